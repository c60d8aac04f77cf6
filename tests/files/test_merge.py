"""merge.py: the adapted, the folded and the written model compute the same."""

import json
import re
import runpy
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from cases import cases
from safetensors.torch import load_file
from test_lora import awake, injected, raw_config, tiny_model
from torch import nn

import lora
import merge as program
from models import load_model, load_tokenizer
from models.config import FAMILIES
from models.export import both_layouts, save_model
from models.export import writer as real_writer
from models.logprob import token_logprobs
from models.tiny import make_tiny
from rl.config.arguments import keys_of

CASES = cases("merge")

MERGE = Path(__file__).parents[2] / "merge.py"
DIFFERS = "the written checkpoint differs from the model in"
SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, head_dim=8)
SIZES |= dict(num_attention_heads=4, num_key_value_heads=2)


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def base(request, tmp_path_factory) -> Path:
    """Write a model folder with a tokenizer, as `python -m models.tiny.make_tiny` does."""
    folder = tmp_path_factory.mktemp("base")
    rows = [{"role": "user", "content": "the quick brown fox jumps over the lazy dog\n" * 20}]
    (folder / "demos.jsonl").write_text(json.dumps({"messages": rows}) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {**SIZES, "tie_word_embeddings": request.param}.items():
            patch.setitem(make_tiny.CONFIG, key, value)
        make_tiny.main(make_tiny.Keys(str(folder), f"{folder}/model", 300, copying=0, steps=0, dtype="float32"))
    return folder / "model"


@pytest.fixture
def adapter(base, tmp_path) -> Path:
    lora.save_adapter(adapted(base), tmp_path / "adapter", str(base))
    return tmp_path / "adapter"


def adapted(base: Path):
    return awake(injected(load_model(str(base)), r=4, alpha=6))


def merge(monkeypatch, *words: str):
    """Run merge.py in this process; return its exit status."""
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
    """Return the log-probability of each next token of random ids."""
    ids = ids_BT()
    with torch.no_grad():
        hidden_ND = model(ids)[:, :-1].flatten(0, 1)
        return token_logprobs(hidden_ND, model.lm_head.weight, ids[:, 1:].flatten())[0]


def logprobs_of_transformers(model) -> torch.Tensor:
    ids = ids_BT()
    with torch.no_grad():
        return model(ids).logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).flatten()


def test_adapted_folded_and_merged_models_agree(base, adapter, tmp_path, monkeypatch, capsys):
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") is None
    expected, plain = logprobs(adapted(base)), logprobs(load_model(str(base)))
    assert (expected - plain).abs().max() > 0.1
    torch.testing.assert_close(logprobs(lora.fold(adapted(base))), expected, atol=2e-5, rtol=0)
    torch.testing.assert_close(logprobs(load_model(f"{tmp_path}/merged")), expected, atol=2e-5, rtol=0)
    said = capsys.readouterr().out
    assert "14 layers folded" in said and "float32" in said
    assert float(re.search(r"difference of a log-probability .*: (\S+)", said)[1]) < 2e-5
    assert float(re.search(r"after rounding: (\S+)%", said)[1]) > 99
    assert float(re.search(r"all layers .* lost +(\S+)%", said)[1]) < 0.01
    tied = json.loads((base / "config.json").read_text())["tie_word_embeddings"]
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    assert ("lm_head.weight" not in stored) == tied and not [key for key in stored if "lora" in key]
    before = load_file(base / "model.safetensors")
    changed = {key for key in before if not torch.equal(before[key], stored[key])}
    assert changed == {key for key in before if "_proj" in key}, "neither the embedding nor the head"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "merged"], "no temporary folder stays"


def test_transformers_loads_the_merged_model(base, adapter, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") is None
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    torch.testing.assert_close(logprobs_of_transformers(theirs), logprobs(adapted(base)), atol=2e-5, rtol=0)
    text = "the quick fox"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer(text)["input_ids"] == load_tokenizer(f"{tmp_path}/merged").encode(text)
    assert tokenizer.eos_token_id in load_tokenizer(f"{tmp_path}/merged").eos_ids


@pytest.mark.parametrize("how", ["base", "word"])
def test_bfloat16_is_rounded_once_and_reported(how, base, tmp_path, monkeypatch, capsys):
    """The dtype is given or the base's; the sum W + scale * B A is float32 either way."""
    if how == "base":
        stored = load_model(str(base))
        save_model(stored, tmp_path / "half", json.loads((base / "config.json").read_text()), torch.bfloat16)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            (tmp_path / "half" / name).write_bytes((base / name).read_bytes())
        base = tmp_path / "half"
    model = awake(injected(load_model(str(base)), r=4, alpha=6))
    for _, layer in lora.lora_layers(model):
        layer.adapters["default"].B.data.mul_(1e-2)  # small enough for rounding to swallow some of it
    lora.save_adapter(model, tmp_path / "adapter", str(base))
    before = {path: layer.base_layer.weight.bfloat16() for path, layer in lora.lora_layers(model)}
    words = [] if how == "base" else ["dtype=bfloat16"]
    assert merge(monkeypatch, f"adapter={tmp_path}/adapter", f"out={tmp_path}/merged", *words) is None
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    expected = {key: value.bfloat16() for key, value in lora.fold(model).state_dict().items()}
    assert {value.dtype for value in stored.values()} == {torch.bfloat16}
    assert all(torch.equal(value, expected[key]) for key, value in stored.items())
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"
    moved = torch.cat([(expected[f"{path}.weight"] != weight).flatten() for path, weight in before.items()])
    said = capsys.readouterr().out
    assert f"after rounding: {moved.double().mean():.1%}" in said and ", bfloat16" in said
    assert 0.01 < moved.double().mean() < 0.99


def shrunk(base: Path, folder: Path, factor: float) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Write an adapter with small updates; return the weight and the update of each layer."""
    model = adapted(base)
    for _, layer in lora.lora_layers(model):
        layer.adapters["default"].B.data.mul_(factor)
    lora.save_adapter(model, folder, str(base))
    parts = {path: layer.parts() for path, layer in lora.lora_layers(model)}
    return {path: (p.weight.detach(), (p.scale * p.B @ p.A).detach()) for path, p in parts.items()}


def test_report_measures_each_layers_loss(base, tmp_path, monkeypatch):
    updates = shrunk(base, tmp_path / "adapter", 1e-2)
    assert merge(monkeypatch, f"adapter={tmp_path}/adapter", f"out={tmp_path}/merged", "dtype=bfloat16") is None
    report = json.loads((tmp_path / "merged" / "merge_report.json").read_text())
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    lost, size = {}, {}
    for path, (W, D) in updates.items():
        lost[path] = (stored[f"{path}.weight"].double() - W.double() - D.double()).norm()
        size[path] = D.double().norm()
    found = {one["layer"]: one for one in report["layers"]}
    assert found.keys() == updates.keys()
    for path, (W, _) in updates.items():
        moved = (stored[f"{path}.weight"] != W.bfloat16()).double().mean().item()
        assert found[path]["moved"] == pytest.approx(moved) and 0.05 < moved < 0.99
        assert found[path]["lost"] == pytest.approx((lost[path] / size[path]).item(), rel=1e-3)
        assert 0.02 < found[path]["lost"] < 0.5
    worst = [one["lost"] for one in report["layers"]]
    assert worst == sorted(worst, reverse=True)
    total = [torch.stack([*one.values()]).norm() for one in (lost, size)]
    assert report["all"]["lost"] == pytest.approx((total[0] / total[1]).item(), rel=1e-3)
    assert (report["dtype"], report["forced"]) == ("bfloat16", False) and report["largest_difference"] > 0


def test_measured_loss_by_hand():
    """Near 1 bfloat16 numbers are 2^-7 apart: one of two updates is lost and the other is kept, both whole."""
    model = nn.ModuleDict({"q_proj": nn.Linear(2, 1)})
    model["q_proj"].weight.data.fill_(1.0)
    lora.inject(model, r=1, alpha=2)
    adapter = model["q_proj"].adapters["default"]
    adapter.A.data, adapter.B.data = torch.tensor([[2.0**-9, 2.0**-7]]), torch.tensor([[0.5]])
    cast = program.measure(model["q_proj"], torch.bfloat16)
    assert cast == program.Cast(moved=1, entries=2, error=2.0**-18, size=2.0**-18 + 2.0**-14)
    assert cast.shares() == {"moved": 0.5, "lost": (1 / 17) ** 0.5}
    adapter.B.data.zero_()
    assert program.measure(model["q_proj"], torch.bfloat16).shares() == {"moved": 0.0, "lost": 0.0}


def test_cast_that_loses_most_of_an_update_is_refused(base, tmp_path, monkeypatch, capsys):
    updates = shrunk(base, tmp_path / "adapter", 1e-4)
    off = {
        path: ((W + D).bfloat16().double() - W.double() - D.double()).norm() / D.double().norm()
        for path, (W, D) in updates.items()
    }
    worst = max(off, key=off.get)
    words = [f"adapter={tmp_path}/adapter", f"out={tmp_path}/merged"]
    assert merge(monkeypatch, *words, "dtype=bfloat16") == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and f"{worst}: as bfloat16, the update is off by {off[worst]:.0%}" in said
    assert all(way in said for way in ("dtype=float32", "adapter_only=true", "force=true"))
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]

    assert merge(monkeypatch, *words, "dtype=bfloat16", "force=true") is None
    assert json.loads((tmp_path / "merged" / "merge_report.json").read_text())["forced"] is True
    assert merge(monkeypatch, words[0], f"out={tmp_path}/whole", "dtype=float32") is None
    whole = json.loads((tmp_path / "whole" / "merge_report.json").read_text())
    assert whole["all"]["lost"] < 0.01


def test_adapter_only_writes_no_weights(base, adapter, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(base.parent)  # PEFT finds the base from anywhere
    words = [f"adapter={adapter}", f"out={tmp_path}/small", f"model={base.name}"]
    assert merge(monkeypatch, *words, "adapter_only=true") is None
    names = {path.name for path in (tmp_path / "small").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "generation_config.json"} <= names
    assert "model.safetensors" not in names and "config.json" not in names
    config = lora.read_adapter_config(tmp_path / "small")
    assert config["base_model_name_or_path"] == str(base.resolve())
    lora.load_adapter(model := load_model(str(base)), tmp_path / "small")
    assert torch.equal(logprobs(model), logprobs(adapted(base)))
    assert "no weights are merged" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["dtype=float16", "force=true", "prompts=3", "max_kl=0.5", "min_agreement=0.5"])
@pytest.mark.parametrize("way", ["adapter_only=true", "export=vllm"])
def test_a_key_of_merging_is_refused_where_nothing_is_merged(word, way, tmp_path, monkeypatch, capsys):
    assert merge(monkeypatch, "adapter=x", f"out={tmp_path}/small", way, word) == 2
    said = f"{word.split('=')[0]}= has no effect beside {way}, which merges nothing"
    assert said in capsys.readouterr().err


def test_an_adapter_of_zeros_is_said_to_change_nothing(base, adapter, tmp_path, monkeypatch, capsys):
    said = "every B is 0: the adapter changes nothing"
    assert merge(monkeypatch, f"adapter={adapter}", "adapter_only=true", f"out={tmp_path}/one") is None
    assert said not in capsys.readouterr().out
    lora.save_adapter(injected(load_model(str(base)), r=4), tmp_path / "fresh", str(base))
    assert merge(monkeypatch, f"adapter={tmp_path}/fresh", "adapter_only=true", f"out={tmp_path}/two") is None
    assert said in capsys.readouterr().out


def test_the_adapters_base_revision_is_read(base, tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def download(name, revision=None, **_):
        asked.append((name, revision))
        return str(base)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    lora.save_adapter(adapted(base), tmp_path / "adapter", "some/base@v1.2")
    assert merge(monkeypatch, f"adapter={tmp_path}/adapter", f"out={tmp_path}/merged") is None
    assert set(asked) == {("some/base", "v1.2")}
    assert merge(monkeypatch, f"adapter={tmp_path}/adapter", f"out={tmp_path}/small", "adapter_only=true") is None
    written = json.loads((tmp_path / "small" / "adapter_config.json").read_text())
    assert (written["base_model_name_or_path"], written["revision"]) == ("some/base", "v1.2")


def test_a_download_takes_the_files_that_are_read_alone(base, monkeypatch):
    """Repositories also hold the weights in another format, or a training's states in folders."""
    import huggingface_hub
    from huggingface_hub.utils import filter_repo_objects

    read = ["config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json", "tokenizer.json"]
    read += ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
    others = ["consolidated.safetensors", "onnx/config.json", "checkpoint-5/model.safetensors", "pytorch_model.bin"]

    def download(name, revision=None, **patterns):
        if "model.safetensors" in patterns["allow_patterns"] or "*.safetensors" in patterns["allow_patterns"]:
            assert list(filter_repo_objects([*read, *others], **patterns)) == read
        return str(base)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    load_model("some/base")


def one_dtype_each() -> list:
    """Return every pair of a family and a dtype; all but one of each family are marked full."""
    dtypes = torch.float32, torch.bfloat16, torch.float16
    pairs = [(family, i, j) for i, family in enumerate(FAMILIES) for j in range(3)]
    return [pytest.param(name, dtypes[j], marks=pytest.mark.full if i % 3 != j else ()) for name, i, j in pairs]


@pytest.mark.parametrize(("family", "dtype"), one_dtype_each(), ids=str)
def test_transformers_agrees_for_every_family_and_dtype(family, dtype, base, tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    tied = json.loads((base / "config.json").read_text())["tie_word_embeddings"]
    raw = raw_config(family, vocab_size=300, tie_word_embeddings=tied)
    save_model(tiny_model(family, vocab_size=300, tie_word_embeddings=tied), tmp_path / "base", raw, torch.float32)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        (tmp_path / "base" / name).write_bytes((base / name).read_bytes())
    model = adapted(tmp_path / "base")
    plain, expected = logprobs(load_model(str(tmp_path / "base"))), logprobs(model)
    lora.save_adapter(model, tmp_path / "adapter", str(tmp_path / "base"))
    word = str(dtype).removeprefix("torch.")
    assert merge(monkeypatch, f"adapter={tmp_path}/adapter", f"out={tmp_path}/merged", f"dtype={word}") is None
    if dtype != torch.float32:
        for p in lora.fold(model).parameters():
            p.data = p.data.to(dtype).float()
        expected = logprobs(model)
    assert (expected - plain).abs().max() > 0.1
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.float32)
    torch.testing.assert_close(logprobs_of_transformers(theirs), expected, atol=5e-5, rtol=0)
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").dtype == dtype
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config == both_layouts(raw) | {"dtype": word, "torch_dtype": word}


def test_without_an_adapter_the_model_is_only_cast(base, tmp_path, monkeypatch, capsys):
    assert merge(monkeypatch, f"model={base}", f"out={tmp_path}/half", "dtype=float16") is None
    before, after = (load_file(folder / "model.safetensors") for folder in (base, tmp_path / "half"))
    assert before.keys() == after.keys() and all(torch.equal(after[key], v.half()) for key, v in before.items())
    assert "0 layers folded" in capsys.readouterr().out


def test_existing_out_is_refused_and_kept(base, adapter, tmp_path, monkeypatch, capsys):
    (tmp_path / "merged").mkdir()
    (tmp_path / "merged" / "mine.txt").write_text("mine")
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") == 1
    assert "exists already" in capsys.readouterr().err
    assert [path.read_text() for path in (tmp_path / "merged").iterdir()] == ["mine"]


@contextmanager
def broken_writer(folder, shapes, dtype):
    with real_writer(folder, shapes, dtype) as write:
        yield write
        raise OSError("no space left on device")


def changed_writer(change):
    """Return a writer that calls change(key, rows) on a copy of the rows before it writes them."""

    @contextmanager
    def changed(folder, shapes, dtype):
        with real_writer(folder, shapes, dtype) as write:

            def write_changed(key, rows):
                change(key, rows := rows.clone())
                write(key, rows)

            yield write_changed

    return changed


def careless(key, rows):
    """Change one weight of a folded layer."""
    if key == "model.layers.1.mlp.up_proj.weight":
        rows[3, 3] += 0.5


def forgetful(key, rows):
    """Lose one row of the embedding, of a token that no test's sentence contains."""
    if key == "model.embed_tokens.weight":
        rows[-1] = 0


def interrupted(key, rows):
    if key == "model.layers.1.self_attn.o_proj.weight":
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize(
    ("writer", "said", "status"),
    [
        (broken_writer, "no space left", 1),
        (changed_writer(careless), f"{DIFFERS} model.layers.1.mlp.up_proj.weight", 1),
        (changed_writer(forgetful), f"{DIFFERS} model.embed_tokens.weight", 1),
        (changed_writer(interrupted), "merge.py: stopped by SIGTERM", 143),
    ],
    ids=["broken", "careless", "forgetful", "interrupted"],
)
def test_failed_write_leaves_nothing_behind(writer, said, status, base, adapter, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("models.export.writer", writer)
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") == status
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_adapter_that_is_not_finite_is_refused(base, adapter, tmp_path, monkeypatch, capsys):
    model = adapted(base)
    lora.lora_layers(model)[0][1].adapters["default"].B.data[0, 0] = float("inf")
    lora.save_adapter(model, adapter, str(base))
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") == 1
    assert "q_proj.lora_B.weight has an entry that is not finite" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


def test_fold_that_differs_from_the_adapter_is_refused(base, adapter, tmp_path, monkeypatch, capsys):
    real = lora.fold

    def wrong_sign(block, **options):
        for _, layer in lora.lora_layers(block):
            layer.adapters["default"].scale *= -1
        return real(block, **options)

    monkeypatch.setattr(lora, "fold", wrong_sign)
    assert merge(monkeypatch, f"adapter={adapter}", f"out={tmp_path}/merged") == 1
    assert "folded in float32, a log-probability is" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["adapter"]


@pytest.mark.parametrize("force", ["true", "false"])
def test_base_out_of_the_dtypes_range_is_refused(force, base, tmp_path, monkeypatch, capsys):
    model = load_model(str(base))
    model.model.norm.weight.data[3] = 1e5
    save_model(model, tmp_path / "base", json.loads((base / "config.json").read_text()), torch.float32)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "base" / name).write_bytes((base / name).read_bytes())
    words = [f"model={tmp_path}/base", f"out={tmp_path}/merged", "dtype=float16", f"force={force}"]
    assert merge(monkeypatch, *words) == 1
    assert "model.norm.weight: not finite as float16" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["base"]


@pytest.mark.parametrize(("words", "status", "said"), CASES["bad arguments"])
def test_bad_arguments_are_refused_in_one_line(words, status, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert merge(monkeypatch, *words.split()) == status
    printed = capsys.readouterr()
    assert said in printed.err and printed.err.count("\n") == 1 and not printed.out
    assert not list(tmp_path.iterdir())


def test_help_lists_every_key(monkeypatch, capsys):
    assert not merge(monkeypatch, "--help")
    printed = capsys.readouterr().out
    assert "usage: python merge.py" in printed and all(f"  {key}=" in printed for key in keys_of(program.Keys))


@pytest.mark.all_only
def test_as_a_command():
    found = subprocess.run([sys.executable, MERGE, "out=x", "lora=y"], capture_output=True, text=True)
    assert found.returncode == 2 and found.stderr.startswith("merge.py: unknown key 'lora'")


def test_an_earlier_versions_merged_model_loads():
    """fixtures/earlier_merged was written by merge.py before files were split up: one layer of width 8."""
    folder = Path(__file__).parents[1] / "fixtures" / "earlier_merged"
    model, tokenizer = load_model(str(folder)).eval(), load_tokenizer(str(folder))
    ids_T = tokenizer.prompt([{"role": "user", "content": "the quick brown fox"}])
    assert ids_T == [298, 265, 198, 272, 292, 278, 295, 288, 87, 299, 198, 298, 270, 198]
    with torch.no_grad():
        hidden_TD = model(torch.tensor([ids_T]))[0]
    logprobs_N, _ = token_logprobs(hidden_TD[:-1], model.lm_head.weight, torch.tensor(ids_T[1:]))
    assert logprobs_N[:4].tolist() == pytest.approx([-5.65307, -5.65323, -5.77337, -5.85794], abs=1e-4)
    assert logprobs_N.sum().item() == pytest.approx(-74.59146, abs=1e-3)
