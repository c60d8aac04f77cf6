"""merge.py: the adapter in place, the folded model and the written checkpoint are the same model."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_lora import awake, injected

import lora
import models
from models import load_model, load_tokenizer, save_model, scratch
from models.logprob import token_logprobs

MERGE = Path(__file__).parents[1] / "merge.py"
SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, head_dim=8)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request, tmp_path_factory) -> Path:
    """A model folder with a tokenizer, as `python -m models.scratch` writes it."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "corpus.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 20)
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**SIZES, "tie_word_embeddings": request.param}.items():
            patch.setitem(scratch.CONFIG, key, value)
        scratch.main(folder / "corpus.txt", folder / "model", vocab_size=300)
    return folder / "model"


@pytest.fixture
def adapter(base, tmp_path) -> Path:
    lora.save_adapter(adapted(base), tmp_path / "adapter", str(base))
    return tmp_path / "adapter"


def adapted(base: Path):
    return awake(injected(load_model(str(base)), r=4, alpha=6))


def merge(monkeypatch, *words: str):
    """Runs merge.py in this process. Returns its exit status."""
    monkeypatch.setattr(sys, "argv", ["merge.py", *words])
    try:
        runpy.run_path(str(MERGE), run_name="__main__")
    except SystemExit as stop:
        if isinstance(stop.code, str):
            print(stop.code, file=sys.stderr)
        return 1 if isinstance(stop.code, str) else stop.code
    return None


def ids_BT() -> torch.Tensor:
    return torch.randint(0, 300, (2, 24), generator=torch.Generator().manual_seed(0))


def logprobs(model) -> torch.Tensor:
    """Of each next token of random ids."""
    ids = ids_BT()
    with torch.no_grad():
        hidden_ND = model(ids)[:, :-1].flatten(0, 1)
        return token_logprobs(hidden_ND, model.lm_head.weight, ids[:, 1:].flatten())[0]


def test_adapted_folded_and_merged_are_one_model(base, adapter, tmp_path, monkeypatch, capsys):
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") is None
    expected, plain = logprobs(adapted(base)), logprobs(load_model(str(base)))
    assert (expected - plain).abs().max() > 0.1
    torch.testing.assert_close(logprobs(lora.fold(adapted(base))), expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(logprobs(load_model(f"{tmp_path}/merged")), expected, atol=2e-5, rtol=0)
    said = capsys.readouterr().out
    assert "14 layers folded" in said and "float32" in said
    assert float(re.search(r"difference of a log-probability .*: (\S+)", said)[1]) < 2e-5
    assert float(re.search(r"after rounding: (\S+)%", said)[1]) > 99
    tied = json.loads((base / "config.json").read_text())["tie_word_embeddings"]
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    assert ("lm_head.weight" not in stored) == tied and not [key for key in stored if "lora" in key]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "merged"], "no temporary folder stays"


def test_transformers_loads_what_was_merged(base, adapter, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") is None
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    ids = ids_BT()
    with torch.no_grad():
        found = theirs(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).flatten()
    torch.testing.assert_close(found, logprobs(adapted(base)), atol=2e-5, rtol=0)
    text = "the quick fox"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer(text)["input_ids"] == load_tokenizer(f"{tmp_path}/merged").encode(text)
    assert tokenizer.eos_token_id in load_tokenizer(f"{tmp_path}/merged").eos_ids


@pytest.mark.parametrize("how", ["base", "word"])
def test_bfloat16_is_rounded_once_and_reported(how, base, tmp_path, monkeypatch, capsys):
    """By the base's own dtype, or by dtype=; the sum W + scale * B A is taken in float32 either way."""
    if how == "base":
        stored = load_model(str(base))
        save_model(stored, tmp_path / "half", json.loads((base / "config.json").read_text()), torch.bfloat16)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            (tmp_path / "half" / name).write_bytes((base / name).read_bytes())
        base = tmp_path / "half"
    model = awake(injected(load_model(str(base)), r=4, alpha=6))
    for _, layer in lora.lora_layers(model):
        layer.adapters["default"].B.data.mul_(1e-3)  # small enough for rounding to swallow some of it
    lora.save_adapter(model, tmp_path / "adapter", str(base))
    before = {path: layer.base_layer.weight.bfloat16() for path, layer in lora.lora_layers(model)}
    words = [] if how == "base" else ["dtype=bfloat16"]
    assert merge(monkeypatch, f"adapter={tmp_path}/adapter", f"out={tmp_path}/merged", *words) is None
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    expected = {key: value.bfloat16() for key, value in lora.fold(model).state_dict().items()}
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    assert all(torch.equal(value, expected[key]) for key, value in stored.items())
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"
    moved = [(expected[f"{path}.weight"] != weight).float().mean().item() for path, weight in before.items()]
    said = capsys.readouterr().out
    assert f"after rounding: {sum(moved) / len(moved):.1%}" in said and ", bfloat16" in said
    assert 0.01 < sum(moved) / len(moved) < 0.99


def test_without_an_adapter_the_model_is_only_cast(base, tmp_path, monkeypatch, capsys):
    assert merge(monkeypatch, f"model={base}", f"out={tmp_path}/half", "dtype=float16") is None
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "half"))
    assert before.keys() == after.keys() and all(torch.equal(after[key], v.half()) for key, v in before.items())
    assert "0 layers folded" in capsys.readouterr().out


def test_an_out_that_exists_is_refused_and_left_alone(base, adapter, tmp_path, monkeypatch, capsys):
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "mine.txt").write_text("mine")
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") == 1
    assert "exists already" in capsys.readouterr().err
    assert [path.read_text() for path in (tmp_path / "merged").iterdir()] == ["mine"]


def broken_writer(model, folder, raw, dtype):
    save_model(model, folder, raw, dtype)
    raise OSError("no space left on device")


def careless_writer(model, folder, raw, dtype):
    """What is written differs in one weight from what was folded."""
    model = injected(model, r=1)
    lora.fold(model).model.layers[1].mlp.up_proj.weight[3, 3] += 0.5
    save_model(model, folder, raw, dtype)
    model.model.layers[1].mlp.up_proj.weight[3, 3] -= 0.5


@pytest.mark.parametrize(
    ("writer", "said"), [(broken_writer, "no space left"), (careless_writer, "does not compute what was merged")]
)
def test_a_failed_write_leaves_nothing_behind(writer, said, base, adapter, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(models, "save_model", writer)
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") == 1
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_an_adapter_that_is_not_finite_is_refused(base, adapter, tmp_path, monkeypatch, capsys):
    model = adapted(base)
    lora.lora_layers(model)[0][1].adapters["default"].B.data[0, 0] = float("inf")
    lora.save_adapter(model, adapter, str(base))
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") == 1
    assert "q_proj: the folded weight is not finite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("out=x lora=y", 2, "unknown key 'lora'"),
        ("out=x adaptor=y", 2, "unknown key 'adaptor'"),
        ("adapter=x", 2, "out= is missing"),
        ("", 2, "out= is missing"),
        ("out=x model=tiny dtype=int8", 2, "dtype=int8 is not one of float32, bfloat16, float16"),
        ("out=x model=tiny dtype=", 2, "dtype= is not one of"),
        ("out=x", 2, "adapter= is missing"),
        ("out=x adapter=no/such", 1, "no/such/adapter_config.json: no adapter_config.json there"),
        ("out=x model=./no/such", 1, "model './no/such': no such folder"),
    ],
)
def test_bad_words(words, status, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert merge(monkeypatch, *words.split()) == status
    printed = capsys.readouterr()
    assert said in printed.err.splitlines()[0] and not printed.out
    assert ("usage:" in printed.err) == (status == 2)
    assert not list(tmp_path.iterdir())


def test_help(monkeypatch, capsys):
    assert not merge(monkeypatch, "--help")
    assert "usage: python merge.py" in capsys.readouterr().out


def test_as_a_command():
    found = subprocess.run([sys.executable, MERGE, "out=x", "lora=y"], capture_output=True, text=True)
    assert found.returncode == 2 and found.stderr.startswith("merge.py: unknown key 'lora'")
