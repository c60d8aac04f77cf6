"""Settings that do not go with a model's config.json end with status 2 before its weights are downloaded."""

import json

import pytest
from conftest import SMALL, run_program

from rl.config import model_checks
from rl.config.words import parse

NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
STORED = {"quantization_config": NF4}
DYNAMIC = {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}
TRAIN, EVAL = ["train.py", "max_len=512"], ["eval.py", "max_len=512"]
OTHER = "Some/model: is stored as nf4, not int8; leave quant= out"
REFUSED = {  # name: (fields of config.json, words, the line)
    "every weight of codes": (
        *(STORED, [*TRAIN, "lora.r=0"]),
        "lora.r=0 cannot train a checkpoint that is stored as nf4; use lora.r=16",
    ),
    "another quant": (STORED, [*TRAIN, "quant=int8"], OTHER),
    "another quant, eval.py": (STORED, [*EVAL, "quant=int8"], OTHER),
    "dynamic RoPE": (
        *(DYNAMIC, TRAIN),
        "model=Some/model: dynamic RoPE changes with a batch's longest sequence; eval.py plays it",
    ),
    "max_len": ({}, ["train.py", "max_len=513"], "max_len=513 is more than the model's max_position_embeddings, 512"),
    "max_len, eval.py": (
        *({}, ["eval.py", "max_len=513"]),
        "max_len=513 is more than the model's max_position_embeddings, 512",
    ),
    "a name that no layer has": (
        *({}, [*TRAIN, "lora.targets=w_proj"]),
        "lora.targets=w_proj: no linear layer is named w_proj; did you mean v_proj?; linear layers here: down_proj, "
        "gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj",
    ),
    "the head": (
        *({}, [*TRAIN, "lora.targets=.*head"]),
        "lora targets include the output head lm_head; log-probabilities need a plain head",
    ),
}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Return a function that puts a config.json on a hub and returns the files that are asked for from then on."""

    def put(fields: dict) -> list:
        asked = []
        (tmp_path / "config.json").write_text(json.dumps({**SMALL, "model_type": "qwen2", **fields}))
        download = lambda name, revision, allow_patterns, **_: asked.append(allow_patterns) or str(tmp_path)  # noqa: E731
        monkeypatch.setattr("huggingface_hub.snapshot_download", download)
        return asked

    return put


@pytest.mark.parametrize("name", REFUSED)
def test_a_setting_is_refused_by_the_config_alone(name, hub):
    fields, words, line = REFUSED[name]
    asked = hub(fields)
    assert run_program(*words, "model=Some/model") == (2, "", f"{words[0]}: {line}\n")
    assert asked and all(patterns == ["config.json"] for patterns in asked)


def test_unsupported_formats_are_refused_before_weights_are_read(hub, tmp_path):
    asked = hub({"quantization_config": {"quant_method": "gptq"}})
    status, _, err = run_program(*TRAIN, "model=Some/model", f"out={tmp_path}/run")
    assert status == 1 and "quant_method 'gptq' is not supported; supported: 'bitsandbytes'" in err
    assert err.count("\n") == 1 and all(patterns == ["config.json"] for patterns in asked)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (STORED, ["max_len=512"]),
        (STORED, ["max_len=512", "quant=nf4"]),
        ({}, ["max_len=512", "lora.targets=q_proj,v_proj"]),
        ({}, ["algo=sft", "data=Makefile"]),  # which plays no episode
    ],
)
def test_settings_that_fit_are_taken(fields, words, hub):
    asked = hub(fields)
    model_checks.check(parse(["model=Some/model", *words]), training=True)
    assert asked
