"""Checkpoints: a load restores every bit of the saved state, and an incomplete save is never loaded."""

import itertools
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_lora import IDS_BT, adapted_model

from rl.config.words import parse
from rl.ppo import Critic
from rl.run import checkpoint
from rl.run.checkpoint import save_checkpoint
from rl.run.files import checkpoints, sha256, verify
from rl.run.resume import forget_after, load_checkpoint, newest_checkpoint
from rl.run.retention import KEEP
from rl.run.run import Run
from rl.run.state import TrainState
from rl.update import make_optimizer


def make_state(steps: int = 0, seed: int = 0, hidden: int = 8, critic: bool = True, **lora_keys) -> TrainState:
    """Return a state after `steps` optimizer steps."""
    torch.manual_seed(seed)
    model = adapted_model(seed, **{"dropout": 0.1, **lora_keys}).train()
    critic = Critic(32, hidden) if critic else None
    parameters = [{"params": [p for p in model.parameters() if p.requires_grad], "lr": 1e-2}]
    parameters += [{"params": list(critic.parameters()), "lr": 1e-3}] if critic else []
    state = TrainState(model, critic, torch.optim.AdamW(parameters))
    for _ in range(steps):
        step(state)
    return state


def step(state: TrainState) -> None:
    """Take an optimizer step that uses dropout, the adapter, the critic and the moments."""
    hidden_ND = state.model(IDS_BT).flatten(0, 1)
    loss = hidden_ND.square().mean()
    if state.critic:
        loss = loss + (state.critic(hidden_ND.detach()) - 1).square().mean()
    loss.backward()
    state.optimizer.step()
    state.optimizer.zero_grad()
    state.step, state.groups, state.epoch = state.step + 1, state.groups + 5, state.epoch + 1


def tensors(state: TrainState) -> dict[str, torch.Tensor]:
    """Return a copy of every tensor that a checkpoint must restore."""
    found = {**state.trainable(), **(state.critic.state_dict() if state.critic else {})}
    for i, entry in state.optimizer.state_dict()["state"].items():
        found |= {f"{i}.{key}": value for key, value in entry.items()}
    return {key: value.detach().clone() for key, value in found.items()} | {"rng": torch.get_rng_state()}


def assert_equal(a: dict, b: dict) -> None:
    assert a.keys() == b.keys() and not [key for key in a if not torch.equal(a[key], b[key])]


@pytest.mark.parametrize("critic", [True, False])
def test_loaded_checkpoint_equals_the_saved_state_bitwise(critic, tmp_path):
    state = make_state(3, critic=critic)
    state.kl_coef, state.baseline = 0.1 + 0.2, None if critic else 1 / 3
    folder = save_checkpoint(state, tmp_path)
    saved = tensors(state)
    assert sum(key.endswith("exp_avg_sq") for key in saved) == 28 + 4 * critic
    other = make_state(1, seed=1, critic=critic)  # another adapter, moments and position in the random stream
    assert other.adapter_hash() != state.adapter_hash()
    load_checkpoint(other, folder)
    assert_equal(tensors(other), saved)
    assert (other.epoch, other.step, other.groups) == (3, 3, 15)
    assert (other.kl_coef, other.baseline) == (state.kl_coef, state.baseline)
    assert other.adapter_hash() == state.adapter_hash()
    step(state)
    after = tensors(state)
    load_checkpoint(other, folder)
    step(other)
    assert_equal(tensors(other), after)


@pytest.mark.parametrize("words", ["adam", "sgd", "adamw8bit", "muon", "adamw lora.b_rate=4", "muon lora.b_rate=4"])
def test_other_optimizers_resume_too(words, tmp_path):
    """Includes an optimizer without state."""
    states = [make_state(0, seed=seed, critic=False) for seed in (0, 1)]
    for state in states:
        cfg = parse([*f"optimizer={words}".split(), "algo=grpo", "lr=0.01", "weight_decay=0.1"])
        state.optimizer = make_optimizer(state.model, None, cfg)
        assert type(state.optimizer).__name__.lower() == words.split()[0]
        assert state.optimizer.param_groups[0]["weight_decay"] == 0.1
    step(states[0])
    load_checkpoint(states[1], save_checkpoint(states[0], tmp_path))
    for state in states:
        torch.manual_seed(5)
        step(state)
    assert states[0].adapter_hash() == states[1].adapter_hash()


def test_checkpoint_has_no_pickle_and_usual_permissions(tmp_path):
    folder = save_checkpoint(make_state(1), tmp_path)
    (tmp_path / "plain").write_text("")
    assert {path.stat().st_mode for path in folder.iterdir()} == {(tmp_path / "plain").stat().st_mode}
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}
    assert all(load_file(path) for path in folder.glob("*.safetensors"))


def test_failed_write_leaves_only_whole_checkpoints(tmp_path, monkeypatch):
    """The n-th disk operation of a save fails, for every n until the save succeeds."""
    earlier = save_checkpoint(make_state(1), tmp_path)
    state, calls = make_state(2), []

    def breaking(function):
        def call(*args, **keys):
            calls.append(function.__name__)
            if len(calls) == limit:
                raise OSError("no space left on device")
            return function(*args, **keys)

        return call

    for owner, name in ((checkpoint, "save_file"), (os, "fsync"), (os, "rename"), (Path, "write_text")):
        monkeypatch.setattr(owner, name, breaking(getattr(owner, name)))
    for limit in itertools.count(1):  # noqa: B007  (`call` reads it)
        calls.clear()
        try:
            save_checkpoint(state, tmp_path)
        except OSError:
            verify(earlier)
            for found in checkpoints(tmp_path):
                verify(found)
            assert len(checkpoints(tmp_path)) == 1 or calls[-2:] == ["rename", "fsync"]
            continue
        break
    assert limit > 12 and {*calls} == {"save_file", "fsync", "rename", "write_text"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-2"], "and no litter"
    load_checkpoint(make_state(), newest_checkpoint(tmp_path))


def sign(folder: Path) -> None:
    """Write the digests of a checkpoint's files into its manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["sha256"] |= {name: sha256(folder / name) for name in manifest["sha256"]}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-len(data) // 2] ^= 1
    path.write_bytes(data)


FILES = ("trainable.safetensors", "critic.safetensors", "optimizer.safetensors", "rng.safetensors", "state.json")


@pytest.mark.parametrize("damage", [flip, Path.unlink, lambda path: path.write_bytes(b"")])
@pytest.mark.parametrize("name", [*FILES, "manifest.json"])
def test_damaged_file_is_named_and_changes_nothing(damage, name, tmp_path):
    folder = save_checkpoint(make_state(2), tmp_path)
    damage(folder / name)
    state = make_state(1, seed=1)
    before = tensors(state)
    with pytest.raises(ValueError, match=r"missing|damaged|no manifest\.json") as caught:
        load_checkpoint(state, folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)
    assert name in str(caught.value) or name == "manifest.json"  # whose flipped digits name another file
    assert_equal(tensors(state), before)


@pytest.mark.parametrize(
    ("keys", "name"),
    [
        (dict(r=8), "trainable.safetensors"),
        (dict(targets="attention"), "trainable.safetensors"),
        (dict(critic=False), "critic.safetensors"),
        (dict(hidden=16), "critic.safetensors"),
    ],
)
def test_checkpoint_of_other_settings_is_refused(keys, name, tmp_path):
    for mine, theirs in ((keys, {}), ({}, keys)):
        folder = save_checkpoint(make_state(1, **mine), tmp_path)
        with pytest.raises(ValueError, match=f"{name}: its weights are not those of this model") as caught:
            load_checkpoint(make_state(**theirs), folder)
        assert "\n" not in str(caught.value)


def test_only_the_newest_stay(tmp_path):
    (tmp_path / "epoch_1").mkdir()
    (tmp_path / "checkpoint-best").mkdir()
    state = make_state()
    for epoch in (1, 2, 9, 10, 11):
        state.epoch = epoch
        save_checkpoint(state, tmp_path)
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-10", "checkpoint-11"] and KEEP == 2
    assert newest_checkpoint(tmp_path).name == "checkpoint-11"
    assert (tmp_path / "epoch_1").is_dir() and (tmp_path / "checkpoint-best").is_dir()


def test_a_run_without_a_checkpoint_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no whole checkpoint-N folder there to resume from"):
        newest_checkpoint(tmp_path)


def test_damaged_checkpoint_is_skipped_for_the_one_before(tmp_path, capsys):
    for epoch in (1, 2):
        newest = save_checkpoint(make_state(epoch), tmp_path)
    flip(newest / "trainable.safetensors")
    assert newest_checkpoint(tmp_path).name == f"checkpoint-{make_state(1).epoch}"
    assert f"skipped: {newest / 'trainable.safetensors'}: damaged" in capsys.readouterr().out


def test_hash_covers_exactly_the_trainable_weights():
    state = make_state()
    before = state.adapter_hash()
    state.model.lm_head.weight.data.add_(1)
    assert state.adapter_hash() == before and len(before) == 16
    next(iter(state.trainable().values())).data[0, 0] += 1e-6
    assert state.adapter_hash() != before


def test_incomplete_line_and_later_epochs_are_removed(tmp_path):
    cfg = parse([f"out={tmp_path}/run"])
    run = Run(tmp_path / "run")
    run.folder.mkdir()
    run.begin(cfg)
    run.write_settings()
    for epoch in range(4):
        run.metrics({"epoch": epoch})
    with open(run.folder / "metrics.jsonl", "a") as file:
        file.write('{"epoch": 1, "lo')
    forget_after(run.folder, 2)
    assert [json.loads(line)["epoch"] for line in (run.folder / "metrics.jsonl").read_text().splitlines()] == [0, 1, 2]
    assert sorted(path.name for path in run.folder.iterdir()) == ["config.json", "metrics.jsonl"]
