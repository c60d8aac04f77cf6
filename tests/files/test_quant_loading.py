"""Checkpoints that bitsandbytes saved, quantising while loading within the promised memory, and clear errors."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT, random_model
from make_quantised import FROZEN, SETTINGS, SKIPPED, digest, original, save_by_bitsandbytes
from safetensors.torch import load_file, save_file

from models import load_model
from models.config import stored_kind
from models.export import save_model
from models.quant import KINDS, QuantLinear, block_linears, dequantise_layers
from models.refusal import Refusal

pytestmark = pytest.mark.all_only

UP = "model.layers.0.mlp.up_proj"
STATE = f"{UP}.weight.quant_state.bitsandbytes__nf4"


def refused(folder, *words, quant="none"):
    """Assert that loading raises ValueError with one line that contains these words."""
    with pytest.raises(ValueError) as caught:
        load_model(str(folder), quant=quant)
    message = str(caught.value)
    assert type(caught.value) is Refusal and "\n" not in message and len(message) < 400, message
    for word in words:
        assert word in message, message


@pytest.fixture
def stored(tmp_path):
    """Return a function that copies a checkpoint of bitsandbytes, with changed tensors (None removes one)."""

    def copy(kind, settings=None, **changes):
        tensors = load_file(FROZEN / kind / "model.safetensors")
        tensors |= {UP + name: value for name, value in changes.items()}
        save_file({key: value for key, value in tensors.items() if value is not None}, tmp_path / "model.safetensors")
        config = json.loads((FROZEN / kind / "config.json").read_text())
        config["quantization_config"] |= settings or {}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return tmp_path

    return copy


# ------------------------------------------------------------------------------------------------------ bitsandbytes


@pytest.mark.parametrize("kind", KINDS)
def test_stored_checkpoint_loads_bit_for_bit(kind):
    """It is recognised without a key; the same kind may be given."""
    expected = json.loads((FROZEN / kind / "dense.json").read_text())
    for quant in ("none", kind):
        model = load_model(str(FROZEN / kind), quant=quant)
        layers = block_linears(model)
        assert {name: digest(layer.dense(torch.float32)) for name, layer in layers.items()} == expected
        assert model.config.quant == kind
        assert {layer.kind for name, layer in layers.items() if name != SKIPPED or kind != "nf4"} == {kind}
    assert load_model(str(FROZEN / "nf4")).get_submodule(SKIPPED).kind == "none"


@pytest.mark.parametrize("kind", KINDS)
def test_quantising_while_loading_equals_bitsandbytes(kind, tmp_path):
    found, stored = load_model(str(original(tmp_path)), quant=kind), load_model(str(FROZEN / kind))
    ours, theirs = found.state_dict(), stored.state_dict()
    left_out = [key for key in {*ours, *theirs} if kind == "nf4" and key.startswith(SKIPPED)]
    assert set(ours) - set(left_out) == set(theirs) - set(left_out) and len(ours) > 20
    assert all(torch.equal(ours[key], theirs[key]) for key in ours if key not in left_out)


@pytest.mark.parametrize("kind", ["nf4-double", "int8"])
def test_whole_checkpoint_equals_transformers(kind, tmp_path):
    """Saved now, in shards; compared with the weights that transformers dequantises."""
    for name in ("transformers", "accelerate", "bitsandbytes"):
        pytest.importorskip(name)
    expected = save_by_bitsandbytes(original(tmp_path / "plain"), tmp_path / "stored", kind, max_shard_size="20KB")
    assert len(list((tmp_path / "stored").glob("*.safetensors"))) > 2
    layers = block_linears(load_model(str(tmp_path / "stored"))).items()
    assert {name: digest(layer.dense(torch.float32)) for name, layer in layers} == expected


@pytest.mark.parametrize("kind", KINDS)
def test_codes_do_not_depend_on_the_dtype_of_the_model(kind, tmp_path):
    folder = str(original(tmp_path))
    models = [load_model(folder, dtype, quant=kind) for dtype in (torch.float32, torch.bfloat16)]
    for one, other in zip(*(block_linears(model).values() for model in models), strict=True):
        assert torch.equal(one.dense(torch.float32), other.dense(torch.float32))
        assert (one.weight.dtype, one.absmax.dtype) == (other.weight.dtype, other.absmax.dtype)
    assert models[1].model.norm.weight.dtype == torch.bfloat16


@torch.no_grad()
def test_dequantised_model_computes_and_saves_the_same(tmp_path):
    model, ids = load_model(str(FROZEN / "nf4")), torch.arange(30)[None]
    expected, quantised = model(ids), replace(model.config)
    dequantise_layers(model, torch.float32)
    assert not any(isinstance(layer, QuantLinear) for layer in model.modules())
    assert (model(ids) - expected).abs().max() < 1e-5 * expected.abs().max()
    raw = json.loads((FROZEN / "nf4" / "config.json").read_text())
    save_model(model, tmp_path, raw, torch.float32)
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
    again = load_model(str(tmp_path))
    assert all(torch.equal(value, again.state_dict()[key]) for key, value in model.state_dict().items())
    assert replace(again.config, quant="nf4", dtype="bfloat16") == quantised


# ------------------------------------------------------------------------------------------------------------ memory

MEASURE = """
import sys, torch
from models import load_model

def status(name):
    return int(open("/proc/self/status").read().split(name + ":")[1].split()[0]) * 1024

folder, quant, dtype = sys.argv[1:]
load_model("tiny", quant=quant)  # imports, and a first use of everything
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak
model = load_model(folder, getattr(torch, dtype), quant=quant)
tensors = {x.data_ptr(): x.numel() * x.element_size() for x in [*model.parameters(), *model.buffers()]}
print(status("VmHWM") - before, sum(tensors.values()))
"""


@pytest.fixture(scope="module")
def sharded(tmp_path_factory):
    """Return (folder, bytes of the largest shard) of a bfloat16 checkpoint of 121 MB in seven shards."""
    folder, shards, weight_map = tmp_path_factory.mktemp("sharded"), [{}], {}
    small = {"vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 2560, "num_hidden_layers": 6, "head_dim": 64}
    model = random_model("llama", dtype=torch.bfloat16, **small)
    for key, tensor in model.state_dict().items():
        if sum(x.nbytes for x in shards[-1].values()) + tensor.nbytes > 24_000_000:
            shards.append({})
        shards[-1][key] = tensor.clone()
    for i, shard in enumerate(shards):
        name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        save_file(shard, folder / name)
        weight_map |= dict.fromkeys(shard, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    fields = {"model_type": "llama", "num_attention_heads": 4, "num_key_value_heads": 2, **small}
    (folder / "config.json").write_text(json.dumps(fields))
    return folder, max(sum(x.nbytes for x in shard.values()) for shard in shards)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="measured by Linux")
@pytest.mark.parametrize(
    ("quant", "dtype"),
    [
        ("none", "bfloat16"),
        pytest.param("none", "float32", marks=pytest.mark.full),
        *(pytest.param(kind, "bfloat16", marks=[pytest.mark.full] * (kind != "nf4-double")) for kind in KINDS),
    ],
)
def test_loading_holds_the_model_and_one_shard(quant, dtype, sharded):
    folder, shard = sharded
    words = [sys.executable, "-c", MEASURE, str(folder), quant, dtype]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    peak, model = map(int, run.stdout.split())
    assert model > 30e6 and peak <= model + shard + 6e6, "and some temporaries of a million entries"


# --------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"quant_method": "gptq"}, "quant_method 'gptq' is not supported; supported: 'bitsandbytes'"),
        ({"quant_method": None}, "quant_method None"),
        ({"bnb_4bit_quant_type": "fp4"}, "bnb_4bit_quant_type 'fp4' is not supported; supported: 'nf4'"),
        ({"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage 'bfloat16'"),
        ({"load_in_4bit": False}, "load_in_4bit False"),
        ({"load_in_8bit": True}, "load_in_8bit and load_in_4bit are both true"),
        ({"load_in_8bit": "false"}, "load_in_8bit must be true or false, not 'false'"),
        ({"bnb_4bit_quant_type": ["nf4"]}, "bnb_4bit_quant_type ['nf4']"),
    ],
)
def test_unknown_formats_in_config_are_refused(stored, settings, word):
    refused(stored("nf4-double", settings), "config.json: quantization_config: ", word)


def test_settings_of_another_kind_than_the_files_are_refused(stored):
    refused(stored("nf4", {"load_in_4bit": False, "load_in_8bit": True}), "config.json says int8", "are stored as nf4")


def test_settings_of_a_quantisation_over_dense_weights_are_refused(tmp_path):
    config = json.loads((original(tmp_path) / "config.json").read_text())
    settings = json.loads((FROZEN / "nf4" / "config.json").read_text())["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": settings}))
    refused(tmp_path, "config.json says nf4, and no layer is stored so: remove quantization_config from it")


def test_settings_name_the_kind():
    assert [stored_kind(settings) for settings in SETTINGS.values()] == list(SETTINGS)
    for settings in ("nf4", 4, ["bitsandbytes"]):
        with pytest.raises(ValueError, match="quantization_config: quant_method"):
            stored_kind(settings)


def json_bytes(**changes):
    state = json.loads(bytes(load_file(FROZEN / "nf4-double" / "model.safetensors")[STATE].tolist())) | changes
    return torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({".weight.absmax": torch.zeros(4)}, [f"{UP}.weight.absmax is torch.float32 of shape (4,)", "torch.uint8"]),
        ({".weight": torch.zeros(5, 1, dtype=torch.uint8)}, [f"{UP}.weight is torch.uint8 of shape (5, 1)"]),
        ({".weight": torch.zeros(320, 64)}, [f"{UP}.weight is torch.float32", "nf4-double has torch.uint8"]),
        ({".weight.quant_map": torch.zeros(16)}, [f"{UP}.weight.quant_map has other levels than NF4's"]),
        ({".weight.nested_quant_map": None}, [f"tensor {UP}.weight.nested_quant_map is missing"]),
        ({".bias": torch.zeros(2)}, [f"tensor {UP}.bias is not part of the model"]),
        ({".weight.extra": torch.zeros(2)}, [f"tensor {UP}.weight.extra is not part of the model"]),
        (
            {".weight.nested_absmax": torch.tensor([1.0, float("inf")])},
            ["nested_absmax has an entry that is not finite"],
        ),
        ({STATE.removeprefix(UP): json_bytes(nested_offset=float("nan"))}, ["__nf4 has an entry that is not finite"]),
        ({STATE.removeprefix(UP): json_bytes(blocksize=128)}, ["has blocksize 128; only 64 is supported"]),
        ({STATE.removeprefix(UP): json_bytes(quant_type="fp4")}, ["has quant_type 'fp4'; only 'nf4'"]),
        ({STATE.removeprefix(UP): json_bytes(shape=[64, 320])}, ["has shape [64, 320]; only [320, 64]"]),
        ({STATE.removeprefix(UP): json_bytes(nested_blocksize=64)}, ["has nested_blocksize 64; only 256"]),
        ({STATE.removeprefix(UP): json_bytes(nested_offset="x")}, ["is not a JSON object"]),
        ({STATE.removeprefix(UP): torch.zeros(9, dtype=torch.uint8)}, ["is not a JSON object"]),
    ],
)
def test_unfit_tensors_are_named(stored, changes, words):
    refused(stored("nf4-double", **changes), *words)


def test_unfit_int8_tensors_are_named(stored):
    columns = torch.tensor(1, dtype=torch.uint8)
    refused(stored("int8", **{".weight_format": columns}), f"{UP}.weight_format is 1; only 0")
    refused(stored("int8", **{".SCB": None}), f"{UP}.weight has dtype torch.int8; weights must be floating-point")
    load_model(str(stored("int8", **{".weight_format": None})))  # as older versions saved it


def test_quantised_head_is_refused(stored):
    folder = stored("int8")
    tensors = load_file(folder / "model.safetensors") | {"lm_head.SCB": torch.ones(97)}
    save_file(tensors, folder / "model.safetensors")
    refused(folder, "lm_head is quantised in the checkpoint; only linear layers of blocks may be")


def test_other_kind_than_stored_is_refused():
    refused(FROZEN / "nf4-double", "is stored as nf4-double, not int8; leave quant= out", quant="int8")


@pytest.mark.parametrize("kind", KINDS)
def test_unfit_floats_are_named_when_quantised(kind, tmp_path):
    path = original(tmp_path) / "model.safetensors"
    good = load_file(path)
    for bad, word in (
        (torch.full((320, 64), float("nan")), f"{UP}.weight has an entry that is not finite"),
        (torch.zeros(320, 63), f"{UP}.weight has shape (320, 63)"),
        (torch.zeros(320, 64, dtype=torch.int32), f"{UP}.weight has dtype torch.int32"),
    ):
        save_file(good | {f"{UP}.weight": bad}, path)
        refused(tmp_path, word, quant=kind)
    save_file({key: value for key, value in good.items() if key != f"{UP}.weight"}, path)
    refused(tmp_path, f"tensor {UP}.weight is missing", quant=kind)
    path.write_bytes(path.read_bytes()[:-9])
    refused(tmp_path, "not a whole safetensors file", quant=kind)
    save_file(good | {f"{UP}.weight": torch.full((320, 64), 1e6)}, path)
    if kind == "int8":
        refused(tmp_path, "not finite in float16", quant=kind)
    else:
        load_model(str(tmp_path), quant=kind)
