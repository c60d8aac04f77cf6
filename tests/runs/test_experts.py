"""A run of a mixture of experts logs the same loads when it is resumed, with checkpoint=block and on two ranks."""

import shutil
from pathlib import Path

import pytest
import test_ranks
import torch
from conftest import SMALL, metrics_of, random_model
from test_shard import cut_short

import train
from models.export import save_model
from models.moe import balance, expert_loads
from models.weights import resolve
from rl import update
from rl.config.words import parse

EACH_TRIAL = True  # its ids go through the experts, with gradients
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 1, "moe_intermediate_size": 96}
SHAPE = {**SMALL, **EXPERTS, "hidden_size": 96, "head_dim": 32, "vocab_size": 1280}
WORDS = "algo=ppo ppo.epochs=1 episodes=5 batch_size=3 epochs=2 textcraft.max_turns=1 max_new_tokens=4 eval_episodes=0"
WORDS += " textcraft.prompt=short lora.r=2 threads=1 products=plain max_len=512"
WORDS += " micro_tokens=1"  # each episode is a piece of its own; two ranks share three of a step unevenly


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """Return the words of a run of a random mixture of experts with the embedded model's tokenizer."""
    folder = tmp_path_factory.mktemp("mixture") / "model"
    shutil.copytree(resolve("tiny"), folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    save_model(random_model("qwen3_moe", **SHAPE), folder, {"model_type": "qwen3_moe", **SHAPE}, torch.float32)
    return [*WORDS.split(), f"model={folder}"]


@pytest.fixture(scope="module")
def straight(words, tmp_path_factory) -> Path:
    """Return the folder of a run of two epochs, in which some experts are busier than others and some idle."""
    folder = train.main(parse([*words, "ranks=1", f"out={tmp_path_factory.mktemp('straight') / 'run'}"]))
    first, second = loads(folder)
    assert all(1 < load < 8 and 0 < idle < 1 for load, idle in (first, second)) and first != second
    return folder


def loads(run: Path) -> list[tuple[float, float]]:
    """Return (expert_load, experts_idle) of each epoch."""
    return [(line["expert_load"], line["experts_idle"]) for line in metrics_of(run) if "loss" in line]


def test_a_resumed_run_logs_the_loads_of_a_straight_one(straight, tmp_path):
    train.main(parse([f"resume={cut_short(straight, tmp_path / 'run')}"]))
    assert loads(tmp_path / "run") == loads(straight)


def test_an_epochs_loads_are_those_of_its_pieces(words, straight, tmp_path, monkeypatch):
    """Rows that checkpoint=block computes again are not counted."""
    pieces = []
    monkeypatch.setattr(update, "expert_loads", lambda blocks: pieces.append(expert_loads(blocks)) or pieces[-1])
    train.main(parse([*words, "ranks=1", "epochs=1", "checkpoint=block", f"out={tmp_path / 'run'}"]))
    assert len(pieces) == 5 and loads(tmp_path / "run") == [balance(sum(pieces))] == loads(straight)[:1]


@pytest.mark.all_only
def test_two_ranks_log_the_loads_of_one(words, straight, trials_folder, tmp_path):
    cases = {shard: [" ".join([*words, f"shard={shard}", "out=OUT"])] for shard in ("ddp", "zero2")}
    test_ranks.played(tmp_path, 2, cases, trials_folder)
    for shard in cases:
        assert loads(tmp_path / shard) == loads(straight), shard
        assert test_ranks.differences(*map(test_ranks.contents, (tmp_path / shard, straight))) == {}, shard
