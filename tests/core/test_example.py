"""examples/grpo.py computes what train.py computes, bit for bit, and needs nothing of rl."""

import json
import re
from pathlib import Path

import pytest
import torch

import train
from examples import grpo
from rl.config.words import parse

WORDS = "algo=grpo ranks=1 seed=1 epochs=1 episodes=16 batch_size=8 grpo.group_size=4 max_turns=4 eval_episodes=0"
SMALL = {"SEED": 1, "EPOCHS": 1, "EPISODES": 16, "BATCH_SIZE": 8, "GROUP_SIZE": 4}
SMALL |= {"HELD_OUT": 1, "GAME": {**grpo.GAME, "max_turns": 4}}


@pytest.fixture
def gradients(monkeypatch) -> list[list[torch.Tensor]]:
    """Return a list to which each optimizer step appends its gradient before it is clipped."""
    recorded, clip = [], torch.nn.utils.clip_grad_norm_

    def recording(parameters, max_norm):
        recorded.append([p.grad.clone() for p in parameters])
        return clip(parameters, max_norm)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", recording)
    return recorded


@pytest.mark.all_only
def test_example_computes_what_train_computes(tmp_path, monkeypatch, gradients):
    """Episodes, losses, and gradients of every adapter factor, of an epoch of two optimizer steps."""
    # The example has whatever library of products the run chose: two timings may choose differently.
    products = "products=onednn", f"micro_tokens={grpo.MICRO_TOKENS}", f"out={tmp_path}/run"
    train.main(parse([*WORDS.split(), *products], "train.py"))
    from_train, gradients[:] = gradients[:], []
    collected, losses, collect, loss = [], [], grpo.collect, grpo.grpo_loss
    for name, value in SMALL.items():
        monkeypatch.setattr(grpo, name, value)
    monkeypatch.setattr(grpo, "choose_threads", lambda *_, **__: None)
    monkeypatch.setattr(grpo, "collect", lambda *args: collected.append(collect(*args)) or collected[-1][:])
    monkeypatch.setattr(grpo, "grpo_loss", lambda *args: losses.append(loss(*args)) or losses[-1])
    grpo.main()

    _, played, _ = collected  # the first and the last are held-out tasks
    saved = [json.loads(line) for line in (tmp_path / "run/episodes.jsonl").read_text().splitlines()]
    assert len(played) == len(saved) == 16
    for ours, theirs in zip(played, saved, strict=True):
        sampled = [bool(m) for m in theirs["action_mask_T"]]
        logprobs = [x for x, m in zip(theirs["logprobs_T"], sampled, strict=True) if m]
        score = sum(turn["reward"] for turn in theirs["turns"])
        expected = theirs["group"], theirs["ids_T"], sampled, logprobs, score
        assert (ours.group, ours.ids, ours.sampled, ours.logprobs, ours.score) == expected
    [mean] = [x["loss"] for x in map(json.loads, (tmp_path / "run/metrics.jsonl").open()) if "loss" in x]
    assert sum(x.item() for x in losses) / len(losses) == mean
    assert len(gradients) == len(from_train) == len(losses) == 2
    for ours, theirs in zip(gradients, from_train, strict=True):
        assert any(grad.any() for grad in theirs)
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_example_imports_nothing_of_rl():
    """Models, adapters and environments suffice; its settings are literals in its head."""
    source = Path(grpo.__file__).read_text()
    imported = set(re.findall(r"^ *(?:from|import) (\w+)", source, re.M))
    assert imported == {"contextlib", "dataclasses", "envs", "lora", "models", "random", "sys", "time", "torch"}
