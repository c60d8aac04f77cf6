"""An adapter is used over the base, tokenizer and template that it was trained with, whichever program uses it."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import run_program
from safetensors.torch import load_file, save_file

import eval as eval_program
import lora
import merge
from models import load_model, load_tokenizer
from models.weights import TINY
from rl.config.words import parse
from rl.run import bases
from rl.run.files import new_folder
from rl.run.resume import copy_adapter
from rl.serve.sampler import Sampler


@pytest.fixture(scope="module")
def base(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bases") / "base"
    shutil.copytree(TINY, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    return folder


@pytest.fixture(scope="module")
def adapter(base, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("bases") / "adapter"
    model = load_model(str(base))
    lora.inject(model, r=2, alpha=4)
    lora.save_adapter(model, folder, str(base))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, folder / name)
    bases.write(folder, base, "none")
    return folder


def changed(base: Path, folder: Path, what: str) -> Path:
    """Copy a base with one thing changed."""
    shutil.copytree(base, folder)
    if what == "weights":
        tensors = load_file(folder / "model.safetensors")
        tensors["model.norm.weight"] += 1
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    elif what == "config":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    elif what == "template":
        config = json.loads((folder / "tokenizer_config.json").read_text())
        config["chat_template"] = config["chat_template"].replace("user", "USER") + "{# another #}"
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    elif what == "tokenizer":
        spec = json.loads((folder / "tokenizer.json").read_text())
        spec["model"]["merges"] = spec["model"]["merges"][:-1]
        (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder


def ways_in(adapter: Path, base: Path, out: Path) -> dict:
    """Return each way in which a program uses an adapter over a base."""
    cfg = parse([f"model={base}", f"resume_from={adapter}", "max_new_tokens=2", "max_turns=1", f"out={out}"])
    model, tokenizer = load_model(str(base)), load_tokenizer(str(base))
    return {
        "train": lambda: copy_adapter(model, cfg),
        "eval": lambda: next(eval_program.evaluators_here(cfg, [str(adapter)])),
        "merge": lambda: merge.write(merge.Keys(out=str(out), adapter=str(adapter), model=str(base), prompts=0)),
        "serve": lambda: Sampler(load_model(str(base)), tokenizer, 2, 64, 4).load("a", adapter),
    }


@pytest.mark.parametrize("what", ["weights", "config", "tokenizer", "template"])
@pytest.mark.parametrize("way", ["train", "eval", "merge", "serve"])
def test_another_base_is_refused_on_every_way_in(what, way, base, adapter, tmp_path):
    other = changed(base, tmp_path / "other", what)
    with pytest.raises(ValueError, match=f"{adapter}: {other} has (other|another).*{what}.*trained"):
        ways_in(adapter, other, tmp_path / "out")[way]()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("way", ["train", "eval", "serve"])
def test_a_copy_of_the_base_is_the_same_base(way, base, adapter, tmp_path):
    """Where the base lies, in how many files, and how its tokenizer's file is written does not matter."""
    copy = shutil.copytree(base, tmp_path / "moved")
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    halves = [dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2])]
    names = {name: f"shard-{number}.safetensors" for number, half in enumerate(halves) for name in half}
    for number, half in enumerate(halves):
        save_file(half, copy / f"shard-{number}.safetensors", metadata={"format": "pt"})
    (copy / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": names}))
    save_file({"stray": tensors["model.norm.weight"]}, copy / "stray.safetensors")
    spec = json.loads((copy / "tokenizer.json").read_text())
    spec["padding"] = None
    spec["model"]["merges"] = [pair if isinstance(pair, str) else " ".join(pair) for pair in spec["model"]["merges"]]
    (copy / "tokenizer.json").write_text(json.dumps(spec, indent=1))
    ways_in(adapter, copy, tmp_path / "out")[way]()


@pytest.mark.parametrize("name", ["adapter_config.json", "adapter_model.safetensors"])
@pytest.mark.parametrize("way", ["train", "eval", "merge", "serve"])
def test_a_file_that_the_run_did_not_write_is_refused_on_every_way_in(name, way, base, adapter, tmp_path):
    with new_folder(tmp_path / "epoch_1") as epoch:
        shutil.copytree(adapter, epoch, dirs_exist_ok=True)
    epoch = tmp_path / "epoch_1"
    (epoch / "README.md").write_text("a card")
    bases.check(epoch, base, "none")
    path = epoch / name
    path.write_bytes(path.read_bytes().replace(b" ", b"	", 1))  # a change that no other check can see
    with pytest.raises(ValueError, match=rf"epoch_1/{name}: is not the file that the run wrote: copy it anew, or"):
        ways_in(epoch, base, tmp_path / "out")[way]()
    (epoch / "manifest.json").write_text('{"manifest_version": 3}')  # of another program
    bases.check(epoch, base, "none")


def test_what_another_program_left_beside_an_adapter_is_compared(base, adapter, tmp_path, capsys):
    """Without a record: the base that the config names, the tokenizer and the template in the adapter's folder."""
    foreign = shutil.copytree(adapter, tmp_path / "foreign")
    (foreign / bases.FILE).unlink()
    bases.check(foreign, base, "none")
    for what in ("weights", "config", "tokenizer", "template"):
        with pytest.raises(ValueError, match=what):
            bases.check(foreign, changed(base, tmp_path / what, what), "none")
    config = json.loads((foreign / "adapter_config.json").read_text())
    (foreign / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "Qwen/Qwen3-0.6B"}))
    assert not capsys.readouterr().out
    bases.check(foreign, base, "none")
    assert "names the base Qwen/Qwen3-0.6B; whether" in capsys.readouterr().out
    (foreign / "tokenizer.json").unlink()
    (foreign / "tokenizer_config.json").unlink()
    bases.check(foreign, changed(base, tmp_path / "any", "tokenizer"), "none")  # nothing says what it was


def test_an_added_token_for_padding_is_no_other_tokenizer(base, adapter, tmp_path):
    foreign = shutil.copytree(adapter, tmp_path / "foreign")
    (foreign / bases.FILE).unlink()
    spec = json.loads((foreign / "tokenizer.json").read_text())
    spec["added_tokens"].append({**spec["added_tokens"][-1], "id": 99999, "content": "<|pad|>"})
    (foreign / "tokenizer.json").write_text(json.dumps(spec))
    bases.check(foreign, base, "none")


def test_a_tokenizer_that_was_written_anew_is_no_other_one(base, adapter, tmp_path):
    """transformers 5 writes other offsets for Qwen, and settings of the model that older files leave out."""
    foreign = shutil.copytree(adapter, tmp_path / "foreign")
    (foreign / bases.FILE).unlink()
    spec = json.loads((foreign / "tokenizer.json").read_text())
    assert not spec["model"].get("ignore_merges") and "ByteLevel" in json.dumps(spec["pre_tokenizer"])
    spec["model"] |= {"ignore_merges": False, "byte_fallback": False}
    text = json.dumps(spec).replace('"trim_offsets": true', '"trim_offsets": 1')
    text = text.replace('"trim_offsets": false', '"trim_offsets": true').replace(
        '"trim_offsets": 1', '"trim_offsets": false'
    )
    (foreign / "tokenizer.json").write_text(text)
    assert bases.texts(foreign)["tokenizer"] != bases.texts(base)["tokenizer"]
    bases.check(foreign, base, "none")
    for setting in ({"ignore_merges": True}, {"byte_fallback": True}):
        changed_spec = json.loads(text)
        changed_spec["model"] |= setting
        (foreign / "tokenizer.json").write_text(json.dumps(changed_spec))
        with pytest.raises(ValueError, match="another tokenizer"):
            bases.check(foreign, base, "none")


def test_an_adapter_that_names_the_embedded_model_alone_is_compared_with_it(base, adapter, tmp_path):
    foreign = shutil.copytree(adapter, tmp_path / "foreign")
    (foreign / bases.FILE).unlink()
    config = json.loads((foreign / "adapter_config.json").read_text())
    (foreign / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "tiny"}))
    bases.check(foreign, base, "none")  # a copy of it
    with pytest.raises(ValueError, match="other weights than those"):
        bases.check(foreign, changed(base, tmp_path / "other", "weights"), "none")


@pytest.mark.parametrize(
    ("named", "said"), [("Qwen/Qwen3-4B", False), ("Qwen/Qwen3-4B@main", False), ("Qwen/Qwen3", True)]
)
def test_a_hub_id_that_begins_another_names_another_base(named, said, base, adapter, tmp_path, capsys):
    foreign = shutil.copytree(adapter, tmp_path / "foreign")
    (foreign / bases.FILE).unlink()
    config = json.loads((foreign / "adapter_config.json").read_text())
    (foreign / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": named}))
    bases.check(foreign, shutil.copytree(base, tmp_path / "models--Qwen--Qwen3-4B" / "snapshots" / "abc"), "none")
    assert (f"names the base {named}; whether" in capsys.readouterr().out) == said


def test_flags_of_added_tokens_make_another_tokenizer(base, adapter, tmp_path):
    other = shutil.copytree(base, tmp_path / "other")
    [end] = [
        t for t in json.loads((base / "tokenizer.json").read_text())["added_tokens"] if t["content"] == "<|im_end|>"
    ]
    config = json.loads((base / "tokenizer_config.json").read_text())
    config["added_tokens_decoder"] = {str(end["id"]): {"content": "<|im_end|>", "rstrip": True}}
    (other / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="another tokenizer"):
        bases.check(adapter, other, "none")


def test_another_quantisation_is_said(base, adapter, capsys):
    bases.check(adapter, base, "nf4")
    assert "was trained over quant=none, and is used over quant=nf4" in capsys.readouterr().out


def test_the_second_adapters_base_is_compared_too(base, adapter, tmp_path):
    other = changed(base, tmp_path / "other", "weights")
    second = shutil.copytree(adapter, tmp_path / "second")
    bases.write(second, other, "none")
    cfg = parse([f"model={base}"])
    evaluators = eval_program.evaluators_here(cfg, [str(adapter), str(second)])
    next(evaluators)
    with pytest.raises(ValueError, match=f"{second}: {base} has other weights"):
        next(evaluators)


def test_a_damaged_record_is_one_line(base, adapter, tmp_path):
    broken = shutil.copytree(adapter, tmp_path / "broken")
    for text in ("[1]", "{", "3"):
        (broken / bases.FILE).write_text(text)
        with pytest.raises(ValueError, match=r"base.json: damaged"):
            bases.check(broken, base, "none")


def test_a_trained_adapter_has_the_record(base, tmp_path):
    words = [f"model={base}", "algo=sft", "episodes=2", "batch_size=2", "epochs=1", "eval_episodes=0", "ranks=1"]
    run_program("train.py", *words, f"out={tmp_path / 'run'}")
    record = json.loads((tmp_path / "run" / "epoch_1" / bases.FILE).read_text())
    assert record == bases.identity(base, "none") and all(record.values())


@pytest.mark.parametrize(
    ("family", "digest"),
    [
        ("llama", "842e79bc4f105c7810e5aff376a05b99e93a5d47807144fd122bc899e8bde610"),
        ("qwen3", "91026c83dabee2d61ef48996bf509b5adf7e1eeee7a55c39f661b462dbdc0a99"),
    ],
)
def test_digest_of_a_config_outlives_new_families(family, digest, tmp_path):
    """Adapters have it beside them: a setting that only other families have must not change it."""
    sizes = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    raw = {"model_type": family, "num_attention_heads": 4, "num_key_value_heads": 2, "rope_theta": 5e5, **sizes}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert bases.config_digest(tmp_path) == digest
