"""Models computed, written and merged block by block: the bytes of whole models, in the memory of one block."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest
import torch
from conftest import ROOT, run_program
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save, save_file
from test_lora import awake, injected, raw_config, tiny_model

import lora
from models import export, load_model
from models.checkpoints.streamed import StreamedModel
from models.config import FAMILIES
from models.export import save_model
from models.logprob import head_logits
from models.quant import KINDS, dequantise_layers
from models.weights import TINY

pytestmark = pytest.mark.all_only

IDS_BT = torch.arange(20)[None]
INDEX = "model.safetensors.index.json"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def base_of(folder: Path, family: str = "qwen2", dtype=torch.float32, shards: int = 1, **changes) -> Path:
    """Write a random model with the embedded tokenizer, in one file or in shards."""
    changes = {"vocab_size": 2048, **changes}
    save_model(tiny_model(family, **changes), folder, raw_config(family, **changes), dtype)
    for path in TINY.glob("*token*.json"):
        shutil.copy(path, folder)
    if shards > 1:
        tensors, names = load_file(folder / "model.safetensors"), [f"part{i}.safetensors" for i in range(shards)]
        (folder / "model.safetensors").unlink()
        weight_map = {key: names[i % shards] for i, key in enumerate(tensors)}  # every block has tensors in all files
        for name in names:
            save_file({key: tensors[key] for key in tensors if weight_map[key] == name}, folder / name)
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def adapter_of(base: Path, folder: Path, **keys) -> Path:
    lora.save_adapter(awake(injected(load_model(str(base)), **{"r": 4, "alpha": 6, **keys})), folder, str(base))
    return folder


def whole(base: Path, adapter: Path | None, dtype: torch.dtype, quant: str = "none") -> dict[str, torch.Tensor]:
    """Return the merged tensors of a model that is in memory as a whole, by the formula as it is written."""
    model = load_model(str(base), quant=quant)
    if adapter:
        lora.load_adapter(model, adapter)
    dequantise_layers(model, torch.float32)
    tensors = {key.replace(".base_layer", ""): value for key, value in model.state_dict().items()}
    for path, layer in lora.lora_layers(model):
        A, B = layer.adapter.A.detach(), layer.adapter.B.detach()
        tensors[f"{path}.weight"] = layer.base_layer.weight + layer.adapter.scale * (B @ A)
    left_out = ["lm_head.weight"] if model.config.tie_word_embeddings else []
    return {key: value.to(dtype) for key, value in tensors.items() if ".adapters." not in key and key not in left_out}


def merge(*words) -> tuple[int, str, str]:
    return run_program("merge.py", *map(str, words))


# ----------------------------------------------------------------------------------------------------------- computing


def compute(_path, block, *inputs):
    return block(*inputs)


@pytest.mark.parametrize(
    ("family", "quant"),
    [
        pytest.param(family, quant, marks=[pytest.mark.full] * (quant != "none" and family != "qwen3"))
        for family, quant in itertools.product(FAMILIES, ("none", *KINDS))
    ],
)
@torch.no_grad()
def test_log_probabilities_are_the_whole_models(family, quant, tmp_path):
    """Bit for bit, with an adapter, from a file in bfloat16; the vocabulary has two slabs."""
    base = base_of(tmp_path / "base", family, torch.bfloat16, vocab_size=5000, hidden_size=64)
    adapter = adapter_of(base, tmp_path / "adapter")
    model, streamed = load_model(str(base), quant=quant), StreamedModel(base, quant=quant)
    plain = streamed.logprobs(IDS_BT, compute)
    for one in (model, streamed.meta):
        lora.load_adapter(one, adapter)
    expected = head_logits(model(IDS_BT)[0], model.lm_head.weight, 1.0).log_softmax(-1)
    for _ in range(2):  # a block is as it was
        assert torch.equal(streamed.logprobs(IDS_BT, compute), expected)
    assert (plain - expected).abs().max() > 0.1
    factors = {p for _, layer in lora.lora_layers(streamed.meta) for p in layer.adapters.parameters()}
    ends = {streamed.meta.model.embed_tokens.weight, streamed.meta.model.norm.weight}
    assert all(p.is_meta for p in streamed.meta.parameters() if p not in factors | ends), "no block stays"


@torch.no_grad()
def test_log_probabilities_of_scaled_embeddings_are_the_whole_models(tmp_path):
    """Granite's embeddings are multiplied in float32, not in the dtype of the file."""
    base = base_of(tmp_path / "base", "granite", torch.bfloat16, embedding_multiplier=12.3)
    model = load_model(str(base))
    expected = head_logits(model(IDS_BT)[0], model.lm_head.weight, 1.0)
    assert torch.equal(StreamedModel(base).logprobs(IDS_BT, compute), expected.log_softmax(-1))


def test_entry_that_is_not_finite_is_named(tmp_path):
    for key in (
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
        "model.layers.1.mlp.up_proj.weight",
    ):
        base = base_of(tmp_path / key)
        tensors = load_file(base / "model.safetensors")
        tensors[key].view(-1)[7] = float("nan")
        save_file(tensors, base / "model.safetensors")
        status, _, err = merge(f"model={base}", f"out={tmp_path}/merged")
        assert status == 1 and f"model.safetensors: {key} has an entry that is not finite" in err, err
        assert err.count("\n") == 1 and not list(tmp_path.glob("*merged*"))


# ------------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_files_have_the_bytes_of_save_file(dtype, tmp_path, monkeypatch):
    """In one file and in several, whatever the order of writing; a file has at most SHARD bytes, or one tensor."""
    shapes = {"b.weight": (6, 4), "a.10": (3,), "é": (7, 1), "a.9": (2, 3, 1), "c": (50,), "a.1": (5, 5)}
    several = [["c"], ["b.weight", "a.10", "é", "a.9"], ["a.1"]]  # huggingface_hub numbers a larger tensor first
    tensors = {key: torch.randn(shape).to(dtype) for key, shape in shapes.items()}
    for most, names in ((1000, [list(shapes)]), (40 * dtype.itemsize, several)):
        monkeypatch.setattr(export, "SHARD", most)
        (folder := tmp_path / str(most)).mkdir()
        with export.writer(folder, shapes, dtype) as write:
            for key in reversed(shapes):
                for rows in tensors[key].split(4):
                    write(key, rows)
        files = sorted(folder.glob("*.safetensors"))
        assert len(files) == len(names)
        for path, keys in zip(files, names, strict=True):
            assert path.read_bytes() == save({key: tensors[key] for key in keys}, metadata={"format": "pt"})
    index = json.loads((folder / INDEX).read_text())
    assert index["weight_map"] == {key: path.name for path, keys in zip(files, names, strict=True) for key in keys}
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors.values())
    assert [path.name for path in files] == [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3)]


def test_unfinished_files_are_refused_by_readers(tmp_path):
    shapes = {"a": (2, 2), "b": (3,)}
    with (
        pytest.raises(ValueError, match="b: not written whole"),
        export.writer(tmp_path, shapes, torch.float32) as write,
    ):
        write("a", torch.ones(2, 2))
        write("b", torch.ones(2))
    with pytest.raises(SafetensorError):
        safe_open(tmp_path / "model.safetensors", "pt")


def test_large_models_are_saved_in_shards(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "SHARD", 50_000)
    model = tiny_model("llama", vocab_size=500)
    save_model(model, tmp_path, raw_config("llama", vocab_size=500), torch.float32)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2 and not (tmp_path / "model.safetensors").exists()
    again = load_model(str(tmp_path)).state_dict()
    assert all(torch.equal(again[key], value) for key, value in model.state_dict().items())


# ------------------------------------------------------------------------------------------------------------- merging

Case = namedtuple("Case", "family tied stored shards dtype quant keys")
PATTERNS = {"rank_pattern": {"up_proj": 2, r"layers\.1\..*": 3}, "alpha_pattern": {"(up|down)_proj": 10.0}}
CASES = {
    "tied": Case("qwen2", True, "float32", 1, "float32", "none", {}),
    "untied": Case("qwen3", False, "float32", 1, "float32", "none", {}),
    "bfloat16 from bfloat16 shards": Case("llama", False, "bfloat16", 3, "bfloat16", "none", {}),
    "tied shards": Case("qwen2", True, "bfloat16", 2, "bfloat16", "none", {"targets": "attention"}),
    "float16": Case("mistral", False, "bfloat16", 1, "float16", "none", {}),
    "rslora": Case("qwen2", True, "float32", 1, "bfloat16", "none", {"rslora": True}),
    "patterns": Case("qwen2", False, "bfloat16", 1, "float32", "none", PATTERNS),
    "patterns of rslora": Case("llama", True, "float32", 2, "bfloat16", "none", {"rslora": True, **PATTERNS}),
    "nf4": Case("qwen2", True, "bfloat16", 1, "bfloat16", "nf4", {}),
    "nf4-double": Case("llama", False, "float32", 3, "float32", "nf4-double", {"rslora": True}),
    "int8": Case("qwen2", True, "bfloat16", 2, "bfloat16", "int8", PATTERNS),
}


QUICK = ("untied", "tied shards", "float16", "patterns of rslora", "nf4-double", "int8")


@pytest.mark.parametrize("name", [pytest.param(x, marks=[pytest.mark.full] * (x not in QUICK)) for x in CASES])
def test_bytes_are_those_of_the_whole_model(name, tmp_path):
    case = CASES[name]
    sizes = {"tie_word_embeddings": case.tied, "hidden_size": 64}
    base = base_of(tmp_path / "base", case.family, DTYPES[case.stored], case.shards, **sizes)
    adapter = adapter_of(base, tmp_path / "adapter", **case.keys)
    words = [f"adapter={adapter}", f"dtype={case.dtype}", f"quant={case.quant}", f"out={tmp_path}/merged"]
    status, out, err = merge(*words)
    assert status == 0, err
    tensors = whole(base, adapter, DTYPES[case.dtype], case.quant)
    assert (tmp_path / "merged" / "model.safetensors").read_bytes() == save(tensors, metadata={"format": "pt"})
    assert f"read back block by block: all {len(tensors)} tensors have the bytes that were computed" in out
    assert json.loads((tmp_path / "merged" / "merge_report.json").read_text())["tensors_compared"] == len(tensors)
    plain = whole(base, None, DTYPES[case.dtype], case.quant)
    assert {key for key in tensors if not torch.equal(tensors[key], plain[key])} == {
        f"{path}.weight" for path, _ in lora.lora_layers(adapted_meta(base, adapter))
    }


def adapted_meta(base: Path, adapter: Path):
    meta = StreamedModel(base).meta
    lora.load_adapter(meta, adapter)
    return meta


@pytest.mark.parametrize("shards", [1, 3])
def test_merged_shards_load_in_transformers(shards, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    base = base_of(tmp_path / "base", shards=shards)
    adapter = adapter_of(base, tmp_path / "adapter")
    monkeypatch.setattr(export, "SHARD", 30_000)
    status, _, err = merge(f"adapter={adapter}", f"out={tmp_path}/merged")
    assert status == 0, err
    files = sorted((tmp_path / "merged").glob("*.safetensors"))
    assert len(files) > 3 and files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    found, expected = {}, whole(base, adapter, torch.float32)
    for path in files:
        found |= (tensors := load_file(path))
        assert len(tensors) == 1 or sum(t.nbytes for t in tensors.values()) <= 30_000
    assert found.keys() == expected.keys() and all(torch.equal(found[key], value) for key, value in expected.items())
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    ours = StreamedModel(tmp_path / "merged").logprobs(IDS_BT, compute)
    with torch.no_grad():
        torch.testing.assert_close(theirs(IDS_BT).logits[0].log_softmax(-1), ours, atol=5e-5, rtol=0)


def test_written_config_is_compared(tmp_path, monkeypatch):
    """Weights alone do not say what a model computes."""
    real, base = export.save_config, base_of(tmp_path / "base")

    def other(folder, raw, dtype):
        real(folder, {**raw, "rms_norm_eps": 1e-5}, dtype)

    monkeypatch.setattr(export, "save_config", other)
    status, _, err = merge(f"model={base}", f"out={tmp_path}/merged")
    assert status == 1 and "the written checkpoint differs from the model in config.json" in err
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def test_folded_weight_that_is_not_finite_is_named(tmp_path):
    base = base_of(tmp_path / "base")
    model = injected(load_model(str(base)), r=1)
    layer = dict(lora.lora_layers(model))["model.layers.1.mlp.up_proj"]
    for factor in layer.adapter.parameters():
        factor.data.fill_(1e30)
    lora.save_adapter(model, tmp_path / "adapter", str(base))
    for force in ("false", "true"):
        status, _, err = merge(f"adapter={tmp_path}/adapter", f"out={tmp_path}/merged", f"force={force}")
        assert status == 1 and "model.layers.1.mlp.up_proj: the folded weight is not finite" in err, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


# ----------------------------------------------------------------------------------------------------------- bad input


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def of_another_base(base: Path) -> None:
    """Give the folder a narrower model."""
    shutil.rmtree(base)
    base_of(base, shards=3, hidden_size=16)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda base: (base / "part1.safetensors").unlink(), f"part1.safetensors: missing, though {INDEX} lists it"),
        (lambda base: truncate(base / "part1.safetensors"), "part1.safetensors: not a whole safetensors file"),
        (lambda base: truncate(base / "part2.safetensors"), "part2.safetensors: not a whole safetensors file"),
        (of_another_base, "down_proj.lora_B has shape (32, 4), this model needs (16, 4)"),
    ],
    ids=["missing", "truncated", "last truncated", "another base"],
)
@pytest.mark.parametrize("quant", ["none", "nf4"])
def test_bad_base_is_one_line_and_nothing_is_written(harm, said, quant, tmp_path):
    base = base_of(tmp_path / "base", shards=3)
    adapter = adapter_of(base, tmp_path / "adapter")
    harm(base)
    status, _, err = merge(f"adapter={adapter}", f"quant={quant}", f"out={tmp_path}/merged")
    assert status == 1 and said in err and err.count("\n") == 1 and len(err) < 400, err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_too_little_space_is_seen_before_writing(tmp_path, monkeypatch):
    base, usage = base_of(tmp_path / "base"), namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9, 30_000))
    monkeypatch.setattr(export, "header", lambda *_: pytest.fail("a file was opened"))
    status, _, err = merge(f"model={base}", f"out={tmp_path}/merged")
    size = (base / "model.safetensors").stat().st_size
    assert (status, err) == (
        1,
        f"merge.py: {tmp_path}/merged cannot be written: {size / 1e9:.2f} GB are needed and 0.00 GB are free\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


def run_merge(code: str, *words) -> subprocess.CompletedProcess:
    """Run merge.py in a process of its own, after some lines of code."""
    code += "\nimport runpy\nrunpy.run_path('merge.py', run_name='__main__')"
    command = [sys.executable, "-c", code, *map(str, words)]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ)


def test_disk_that_fills_up_leaves_nothing(tmp_path):
    base = base_of(tmp_path / "base")
    limit = (base / "model.safetensors").stat().st_size // 2
    found = run_merge(
        f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))",
        f"model={base}",
        f"out={tmp_path}/merged",
    )
    assert found.returncode == 1 and f"{tmp_path}/merged cannot be written: File too large" in found.stderr, (
        found.stderr
    )
    assert found.stderr.count("\n") == 1 and [path.name for path in tmp_path.iterdir()] == ["base"]


KILLED = """
import os, signal
from contextlib import contextmanager
from models import export

real = export.writer

@contextmanager
def killed(*args):
    with real(*args) as write:
        def write_or_die(key, rows):
            if key == "model.layers.1.mlp.up_proj.weight":
                os.kill(os.getpid(), signal.SIGKILL)
            write(key, rows)
        yield write_or_die

export.writer = killed
"""


def test_killed_merge_is_repeated_and_looks_unfinished(tmp_path):
    base = base_of(tmp_path / "base")
    words = [f"adapter={adapter_of(base, tmp_path / 'adapter')}", f"out={tmp_path}/merged"]
    assert run_merge(KILLED, *words).returncode == -signal.SIGKILL
    left = tmp_path / ".merged.partial"
    assert not (tmp_path / "merged").exists() and [path.name for path in left.iterdir()] == ["model.safetensors"]
    with pytest.raises(SafetensorError):
        safe_open(left / "model.safetensors", "pt")
    assert merge(*words)[0] == 0 and merge(words[0], f"out={tmp_path}/again")[0] == 0
    contents = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("merged", "again")]
    assert contents[0] == contents[1] and not left.exists()


# -------------------------------------------------------------------------------------------------------------- memory

MEASURE = """
import sys
import merge

def status(name):
    return int(open("/proc/self/status").read().split(name + ":")[1].split()[0]) * 1024

adapter, out = sys.argv[1:]
merge.main(merge.Keys(model="tiny", out=out + "_first"))  # imports, and a first use of everything
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")  # forget the peak
merge.main(merge.Keys(adapter=adapter, out=out))
print(status("VmHWM") - before)
"""


@pytest.mark.full
@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the system does not count peaks")
def test_peak_memory_is_that_of_a_block(tmp_path):
    """Merging takes as much for 16 layers as for 4: less than half of the model in float32, which whole models took
    two times."""
    sizes = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8, "head_dim": 64}
    sizes |= {"num_key_value_heads": 4, "tie_word_embeddings": True}
    found, weights = {}, {}
    for layers in (4, 16):
        base = base_of(tmp_path / f"base{layers}", dtype=torch.bfloat16, num_hidden_layers=layers, **sizes)
        adapter = adapter_of(base, tmp_path / f"adapter{layers}", r=8)
        weights[layers] = 2 * (base / "model.safetensors").stat().st_size  # in float32
        command = [sys.executable, "-c", MEASURE, str(adapter), f"{tmp_path}/merged{layers}"]
        environ = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        run = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environ)
        assert run.returncode == 0, run.stderr
        found[layers] = int(run.stdout.splitlines()[-1])
    print(found, weights)
    assert found[16] < 0.5 * weights[16] and found[16] - found[4] < 0.2 * (weights[16] - weights[4])
