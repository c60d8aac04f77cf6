"""Run folders of strangers: their files are read within bounds, and what is wrong with one is a line that names it."""

import copy
import json
import random
import re
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import hostile_files
import pytest
import torch
from hostile import modest
from hostile_files import tokenizer
from safetensors.torch import load_file, save_file
from test_checkpoint import make_state, sign
from test_lora import injected
from test_report import make_episode

import lora
from eval import Keys, words_and_lines_as_trained
from lora.peft_files import read_adapter_config
from models import load_model, load_tokenizer
from models.json_file import read_bytes
from rl.config.fields import Lora
from rl.config.words import parse
from rl.merging.model_card import model_card
from rl.ranks.saving import Pieces
from rl.report import page, runs
from rl.report.episodes import epoch_lines
from rl.run import digests, health, replay, resume, retention
from rl.run import folder as claim
from rl.run.checkpoint import save_checkpoint
from rl.run.files import append, sha256, verify
from rl.run.watch import Watch


@pytest.mark.parametrize("name", ["../outside", "/etc/hostname", "inside/file"])
def test_a_manifest_names_files_of_its_own_folder_alone(name, tmp_path):
    """A file elsewhere may have no end, such as one of /proc."""
    (tmp_path / "outside").write_text("x")
    folder = save_checkpoint(make_state(), tmp_path)
    (folder / "inside").mkdir()
    (folder / "inside" / "file").write_text("x")
    manifest = json.loads((folder / "manifest.json").read_text())
    place = folder / name
    manifest["sha256"][name] = sha256(place) if place.is_file() else ""
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=r"manifest\.json: damaged, [^\n]+$"):
        verify(folder)


def test_a_file_longer_than_it_says_is_read_up_to_the_limit(tmp_path):
    """The system's own files say that they have 0 bytes, and a stranger's may be a link to one."""
    (tmp_path / "adapter_config.json").symlink_to("/proc/kallsyms")
    with modest(megabytes=4), pytest.raises(ValueError, match="larger than"):
        read_bytes(tmp_path / "adapter_config.json", 1000)
    with modest(megabytes=4), pytest.raises(ValueError, match="larger than"):
        read_adapter_config(tmp_path)


def test_a_hole_in_the_data_of_the_report_is_one_line(tmp_path):
    with open(tmp_path / page.DATA, "wb") as file:
        file.truncate(10 << 30)
    with modest(), pytest.raises(ValueError, match=rf"{page.DATA}, line 1: larger than"):
        list(page.data_lines(tmp_path / page.DATA))


def test_a_file_of_a_million_ranks_is_refused_at_once(tmp_path):
    save_file({"a": make_state().critic.up.weight}, tmp_path / "trainable-00001-of-3000000.safetensors")
    with modest(megabytes=50), pytest.raises(ValueError, match="not those of 3000000 ranks"):
        Pieces(tmp_path, "trainable")


@pytest.mark.parametrize("shape", [(1,), (10**4, 500)])
def test_moments_of_another_shape_are_refused(shape, tmp_path):
    """Else the first step would fail."""
    folder = save_checkpoint(make_state(1), tmp_path)
    path = folder / "optimizer.safetensors"
    found = load_file(path)
    name = next(name for name, tensor in found.items() if tensor.dim())
    save_file({**found, name: torch.zeros(shape)}, path)
    sign(folder)
    with pytest.raises(ValueError, match=rf"optimizer\.safetensors: {name} has the shape"):
        resume.load_checkpoint(make_state(), folder)


@pytest.mark.parametrize("name", ["generation_config.json", "special_tokens_map.json", "chat_template.jinja"])
def test_a_link_out_of_a_models_folder_is_refused(name, tmp_path):
    """Runs copy these files, and merge.py pushes them to the hub: they must not be others of this machine."""
    (tmp_path / "secret").write_text("{}")
    folder = tokenizer(tmp_path / "model")
    load_tokenizer(str(folder))
    (folder / name).symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=rf"{name}: links to a file outside the folder"):
        load_tokenizer(str(folder))


# ------------------------------------------------------------------------------------------------------ random damage

WORDS = ["algo=ppo", "env=textcraft", "epochs=2", "episodes=2", "batch_size=2", "threads=1", "products=plain"]
EVALUATION = {"success": 0.5, "low": 0.4, "high": 0.6, "episodes": 2, "split": "val", "successes": [True, False]}
EPOCH = {"step": 1, "seconds": 1.0, "episodes": 2, "reward_mean": 0.5, "reward_std": 0.5, "accuracy": 0.5}
EPOCH |= {"cut_by_length": 0, "turns_mean": 1.0, "invalid_actions": 0.0, "tasks": "0123456789ab", "sampler_gap": 0.0}
WORTH = [*hostile_files.VALUES.values(), "tiny", "ppo", "textcraft", [[]], {"a": 1}, 3, 2**1100]
NAMES = ["eval", "epoch", "env", "algo", "model", "data", "lora", "seconds", "eval_loss", "successes", "sha256", "code"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Write a run's folder without playing: two epochs of two episodes."""
    run = tmp_path_factory.mktemp("runs") / "run"
    run.mkdir()
    cfg = replace(parse([*WORDS, f"out={run}"]), out=str(run))
    (run / "config.json").write_text(json.dumps(cfg.as_dict()))
    digests.write(cfg, run)
    model = injected(load_model("tiny"), r=2)
    for epoch in (1, 2):
        played = [make_episode("craft 1 door", score, group=int(score)) for score in (0.0, 1.0)]
        append(run / "episodes.jsonl", [{"epoch": epoch, **asdict(e)} for e in played])
        page.add(run, epoch, epoch_lines(load_tokenizer("tiny"), epoch, played, {}, 10**6))
        evaluations = [{"epoch": epoch, "eval": {**EVALUATION, "temperature": at}} for at in (1.0, 0.0)]
        append(run / "metrics.jsonl", [{"epoch": epoch, **EPOCH}, *evaluations, {"epoch": epoch, "eval_loss": 0.5}])
        folder = run / f"epoch_{epoch}"
        lora.save_adapter(model, folder, "tiny")
        (folder / "training_stats.json").write_text(json.dumps({"epoch": epoch}))
        (folder / "training_config.json").write_text(json.dumps(cfg.as_dict()))
        state = make_state(1)
        state.epoch = epoch
        save_checkpoint(state, run)
    return run


def claimed(words: list[str]) -> None:
    with claim.claim(parse(words)):
        pass


def judged(run: Path) -> None:
    words, _ = words_and_lines_as_trained(["n=2", f"adapter={run}"])
    parse(words, "eval.py", Keys)


READERS = {  # what reads a run's folder
    "resume=": lambda run: claimed([f"resume={run}"]),
    "the command again": lambda run: claimed([*WORDS, f"out={run}"]),
    "resume_from=": lambda run: parse(["algo=grpo", f"resume_from={run}"]),
    "eval.py": judged,
    "rl.report.write": lambda run: runs.write([run], runs.Keys(out=str(run / "page.html"), epoch=1)),
    "rl.report of two": lambda run: runs.write([run, run], runs.Keys(out=str(run / "page.html"))),
    "the list of runs": lambda run: runs.listed(run.parent),
    "the check of the origin": lambda run: digests.check(parse(WORDS), run),
    "a checkpoint": lambda run: resume.load_checkpoint(make_state(), resume.newest_checkpoint(run)),
    "what follows a checkpoint": lambda run: resume.forget_after(run, 1, evaluations=True),
    "pruning": lambda run: retention.prune(run, make_state(1)),
    "rollouts=": lambda run: replay.read(run / "episodes.jsonl", 2000),
    "a model card": lambda run: model_card("me/mine", run / "epoch_1", "tiny", True),
    "an adapter": lambda run: lora.read_adapter_config(run / "epoch_1"),
    "the checks of epochs": lambda run: watched(run),
}


def watched(run: Path) -> None:
    watch = Watch()
    watch.begin(make_state(), load_tokenizer("tiny"), replace(parse(WORDS), lora=Lora(r=0)), run)
    for check in (health.equal_rewards, health.all_cut, health.invalid_actions, health.ratio):
        check(watch.records * 9) if watch.records else None
    health.repeated_tasks(watch.records) if watch.records else None


def damage(value, rng: random.Random):
    """Return a copy of a JSON value with a few parts replaced, removed or added."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 4))):
        inner = value
        while inner and isinstance(inner, dict | list):
            key = rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
            if isinstance(inner[key], dict | list) and inner[key] and rng.random() < 0.7:
                inner = inner[key]
                continue
            act = rng.random()
            if act < 0.2:
                del inner[key]
            elif act < 0.35 and isinstance(inner, dict):
                inner[rng.choice(NAMES)] = rng.choice(WORTH)
            else:
                inner[key] = rng.choice(WORTH)
            break
    return value if rng.random() < 0.95 else rng.choice(WORTH)


@pytest.mark.parametrize("count", [60, pytest.param(1500, marks=pytest.mark.full)])
def test_random_damage_of_a_run_ends_in_one_line(count, whole, tmp_path):
    files = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.suffix in (".json", ".jsonl")]
    for seed in range(count):
        rng, run = random.Random(seed), tmp_path / f"{seed}" / "run"
        shutil.copytree(whole, run)
        path = run / rng.choice(files)
        if path.suffix == ".jsonl":
            lines = path.read_text().splitlines()
            place = rng.randrange(len(lines))
            separators = (",", ":") if path.name == page.DATA else None
            lines[place] = json.dumps(damage(json.loads(lines[place]), rng), separators=separators)
            path.write_text("".join(f"{line}\n" for line in lines))
        else:
            path.write_text(json.dumps(damage(json.loads(path.read_text()), rng)))
            if path.parent.name.startswith("checkpoint") and path.name != "manifest.json":
                sign(path.parent)
        name = rng.choice(list(READERS))
        try:
            hostile_files.judge(lambda name=name, run=run: READERS[name](run))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {name} after damage of {path.relative_to(run)}") from error
        shutil.rmtree(run.parent)


@pytest.mark.parametrize(("value", "name"), [(torch.tensor(1.0), "Tensor tensor"), ({"a"}, "set {'a'}")])
def test_what_is_no_json_is_named(value, name, tmp_path):
    with pytest.raises(TypeError, match=f"^{re.escape(name)}"):
        append(tmp_path / "metrics.jsonl", [{"loss": value}])
    assert not (tmp_path / "metrics.jsonl").read_text()
