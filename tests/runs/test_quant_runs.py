"""Programs with quant=: training, resuming, the reference, the planner's worker, evaluation, merging, bad input."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import metrics_of, run_program
from make_quantised import FROZEN
from safetensors.torch import load_file

import lora
from models import load_model
from models.quant import QuantLinear, block_linears

pytestmark = pytest.mark.all_only

TURNS = ["max_new_tokens=16", "textcraft.max_turns=4"]  # some games are won, some lost
SHORT = ["episodes=8", "batch_size=8", "eval_episodes=0", "lora.r=4", *TURNS]
TINY = Path("models/tiny").resolve()


def train(folder, *words) -> tuple[str, list[dict]]:
    """Run train.py; return what it printed and the lines of its metrics."""
    status, out, err = run_program("train.py", *SHORT, f"out={folder}", *words)
    assert status == 0, err
    return out, metrics_of(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return the folder of a run over nf4."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    train(folder, "algo=grpo", "quant=nf4", "epochs=2", "lr=0.01", "grpo.group_size=4")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ["algo=ppo", "quant=nf4"],
        pytest.param(
            ["algo=grpo", "quant=nf4-double", "grpo.kl_coef=0.1", "dtype=bfloat16", "textcraft.max_turns=8"],
            marks=pytest.mark.full,
        ),
        pytest.param(
            ["algo=grpo", "quant=nf4", "grpo.kl_coef=0.1", "env=planner", "planner.worker=model"],
            marks=pytest.mark.full,
        ),
        ["algo=reinforce", "quant=int8", "reward.rule=shaped"],
    ],
)
def test_runs_over_quantised_bases_are_exact(words, tmp_path):
    out, metrics = train(tmp_path / "run", "epochs=1", *words)
    assert "exact: yes" in out and " of 2,344,832 parameters train" in out, "codes of 4 bits count as weights"
    assert metrics[-1]["sampler_gap"] == 0 and metrics[-1]["grad_norm"] > 0
    assert metrics[-1].get("reference_kl", 0.0) == 0, "the reference is the same base, in the first step"


def test_sft_learns_over_a_quantised_base(tmp_path):
    words = ["algo=sft", "quant=nf4", "epochs=3", "lr=0.003", "lora.dropout=0.1"]
    losses = [line["loss"] for line in train(tmp_path / "run", *words)[1] if "loss" in line]
    assert losses[-1] < losses[0]


def test_resumed_run_has_the_same_bytes(trained, tmp_path):
    again = tmp_path / "run"
    shutil.copytree(trained, again)
    for name in ("epoch_2", "checkpoint-2"):
        shutil.rmtree(again / name)
    status, out, err = run_program("train.py", f"resume={again}")
    assert status == 0 and "resumed from" in out, err
    for name in ("epoch_2/adapter_model.safetensors", "checkpoint-2/optimizer.safetensors"):
        assert (again / name).read_bytes() == (trained / name).read_bytes(), name


def test_adapter_trains_on_as_its_own_reference(trained, tmp_path):
    words = ["algo=grpo", "quant=nf4", f"resume_from={trained}/epoch_2", "grpo.kl_coef=0.1", "epochs=1"]
    status, out, err = run_program("train.py", *words, *SHORT[:3], *TURNS, f"out={tmp_path}/run")
    assert status == 0 and "exact: yes" in out, err


def test_adapter_is_a_plain_peft_adapter(trained):
    """It has no trace of the quantisation, and loads over any kind of base."""
    config = json.loads((trained / "epoch_2" / "adapter_config.json").read_text())
    assert not any("quant" in key for key in config) and all("lora_" in key for key in load_file(adapter_file(trained)))
    models = {"none": load_model("tiny"), "nf4": load_model("tiny", quant="nf4"), "dequantised": load_model("tiny")}
    for name, layer in block_linears(models["nf4"]).items():
        models["dequantised"].get_submodule(name).weight.data.copy_(layer.dense(torch.float32))
    for model in models.values():
        lora.load_adapter(model, trained / "epoch_2")
    outputs = {name: model(torch.arange(20)[None]) for name, model in models.items()}
    apart = lambda one, other: ((outputs[one] - outputs[other]).norm() / outputs[other].norm()).item()  # noqa: E731
    assert apart("nf4", "dequantised") < 1e-5 and 1e-2 < apart("nf4", "none") < 0.5


def adapter_file(run):
    return run / "epoch_2" / "adapter_model.safetensors"


def test_evaluation_quantises_as_the_run_did(trained, tmp_path):
    results = {}
    for name, words in {"run": [], "nf4": ["quant=nf4"], "none": ["quant=none"]}.items():
        path = tmp_path / f"{name}.json"
        words = [f"adapter={trained}/epoch_2", "n=2", "max_new_tokens=8", "max_turns=2", f"json={path}", *words]
        assert run_program("eval.py", *words)[0] == 0
        results[name] = json.loads(path.read_text())
    assert results["run"] == results["nf4"] and results["run"]["config"]["quant"] == "nf4"
    assert results["none"]["config"]["quant"] == "none"


def test_adapters_over_different_bases_are_not_compared(trained, tmp_path):
    """Over plain weights, over nf4, and an adapter from elsewhere, whose base nobody knows."""
    for name, settings in {"plain": {"algo": "ppo", "quant": "none"}, "elsewhere": {"hidden_size": 64}}.items():
        shutil.copytree(trained / "epoch_2", tmp_path / name / "epoch_2")
        (tmp_path / name / "config.json").write_text(json.dumps(settings))
        (tmp_path / name / "epoch_2" / "training_config.json").unlink()
    plain, elsewhere, short = f"{tmp_path}/plain/epoch_2", f"{tmp_path}/elsewhere/epoch_2", ["n=1", "max_new_tokens=1"]
    short.append("textcraft.max_turns=1")
    mixed = f"adapter=base, {trained}/epoch_2, {elsewhere}, {plain}"
    line = f"{trained}/epoch_2 was trained with quant=nf4, {plain} with quant=none; use them one by one, or give "
    assert run_program("eval.py", mixed, *short) == (2, "", f"eval.py: {line}quant= for all of them\n")
    assert run_program("eval.py", f"adapter={trained}/epoch_2,{plain}", "quant=none", *short)[0] == 0
    status, out, err = run_program("eval.py", f"adapter={elsewhere},{trained}/epoch_2", *short)
    assert status == 0 and out.splitlines()[0] == f"quant=nf4, as in the run of {trained}/epoch_2", err


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@torch.no_grad()
def test_merging_folds_into_the_dequantised_weights(trained, tmp_path, dtype):
    words = [f"adapter={trained}/epoch_2", f"out={tmp_path}/merged", f"dtype={dtype}", "force=true"]
    status, out, err = run_program("merge.py", *words)
    assert status == 0, err
    assert f"nf4 to {dtype}: the checkpoint gets the rounded weights that the adapter saw" in out
    report = json.loads((tmp_path / "merged" / "merge_report.json").read_text())
    assert report["quant"] == "nf4" and len(report["layers"]) == 35
    merged, adapted = load_model(f"{tmp_path}/merged", getattr(torch, dtype)), load_model("tiny", quant="nf4")
    lora.load_adapter(adapted, trained / "epoch_2")
    for name, layer in lora.lora_layers(adapted):
        weight = layer.base_layer.dense(torch.float32) + layer.adapter.scale * (layer.adapter.B @ layer.adapter.A)
        assert torch.equal(merged.get_submodule(name).weight, weight.to(getattr(torch, dtype))), name
    if dtype == "float32":
        ids = torch.arange(20)[None]
        torch.testing.assert_close(merged(ids), adapted(ids), atol=1e-4, rtol=1e-4)


def test_merging_over_the_base_itself_is_possible(trained, tmp_path):
    words = [f"adapter={trained}/epoch_2", f"out={tmp_path}/merged", "quant=none", "force=true"]
    status, out, err = run_program("merge.py", *words)
    assert status == 0 and "was trained over quant=nf4, and is used over quant=none" in out, out + err
    assert json.loads((tmp_path / "merged" / "merge_report.json").read_text())["quant"] == "none"


def with_tokenizer(kind, folder):
    """Write the checkpoint of bitsandbytes with the embedded tokenizer, whose ids need not fit."""
    shutil.copytree(FROZEN / kind, folder)
    for path in TINY.glob("*token*.json"):
        shutil.copy(path, folder)
    return folder


@torch.no_grad()
def test_stored_checkpoint_is_cast_to_a_dense_one(tmp_path):
    """merge.py without an adapter reads a checkpoint of bitsandbytes and writes a plain one."""
    folder = with_tokenizer("nf4-double", tmp_path / "stored")
    model = load_model(str(folder))
    vocabulary = {"model.embed_tokens.weight": torch.zeros(2048, 64)}  # the test sentence has larger ids
    from safetensors.torch import save_file

    save_file(load_file(folder / "model.safetensors") | vocabulary, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": 2048}
    (folder / "config.json").write_text(json.dumps(config))
    status, out, err = run_program("merge.py", f"model={folder}", f"out={tmp_path}/dense", "dtype=float32")
    assert status == 0 and "nf4-double to float32" in out, err
    dense = load_model(f"{tmp_path}/dense")
    assert dense.config.quant == "none" and not any(isinstance(m, QuantLinear) for m in dense.modules())
    for name, layer in block_linears(model).items():
        assert torch.equal(dense.get_submodule(name).weight, layer.dense(torch.float32)), name


def test_stored_checkpoints_do_not_train_whole(tmp_path):
    folder = with_tokenizer("int8", tmp_path / "stored")
    (folder / "model.safetensors").write_bytes(b"not read")
    words = [f"model={folder}", "max_len=256", f"out={tmp_path}/run", *SHORT]
    line = f"train.py: {folder}: is stored as int8, not nf4; leave quant= out\n"
    assert run_program("train.py", *words, "quant=nf4") == (2, "", line)
    line = "train.py: lora.r=0 cannot train a checkpoint that is stored as int8; use lora.r=16\n"
    assert run_program("train.py", *words, "lora.r=0") == (2, "", line)
