"""Ranks that each hold a share of the weights (rl/ranks/shard.py) train what one rank does."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from conftest import EXACT_MKL
from rank_cases import run
from test_ranks import contents, differences, played

import train
from models import load_model
from rl.config.arguments import ArgumentError
from rl.config.words import parse
from rl.ranks import join
from rl.ranks import launch as start
from rl.ranks.saving import Pieces, file_name, share_of

pytestmark = pytest.mark.all_only

COMMON = "epochs=1 eval_episodes=0 max_turns=2 max_new_tokens=8 micro_tokens=256 episodes=8 batch_size=8 out=OUT"
COMMON += " temperature=1.5"  # or all rewards of a group are equal
LORA = {  # case: words
    "ppo": f"algo=ppo {COMMON} products=onednn epochs=2 eval_episodes=1 reward.rule=shaped",
    "grpo": f"algo=grpo grpo.kl_coef=0.01 grpo.group_size=4 {COMMON} episodes=12 reward.rule=shaped fails strict=false"
    f" products={'mkl' if EXACT_MKL else 'plain'}",
    "reinforce": f"algo=reinforce env=textcraft:2,sat:1 {COMMON} reward.rule=shaped checkpoint=block products=plain",
    "sft": f"algo=sft lora.dropout=0.1 {COMMON} dtype=bfloat16 products=plain",
}
ALL = {
    "all-grpo": f"algo=grpo lora.r=0 lr=1e-4 grpo.group_size=4 {COMMON} reward.rule=shaped epochs=2 products=plain",
    "all-ppo": f"algo=ppo lora.r=0 lr=1e-4 {COMMON} reward.rule=shaped strict=false products=onednn",
    "all-sft": f"algo=sft lora.r=0 lr=1e-4 {COMMON} dtype=bfloat16 products=plain",
}
GROUPS = 6  # of the embedded model: five blocks, and embedding, norm and head
KINDS = {"zero2": "shard=zero2", "zero3": "shard=zero3", "lockstep": "shard=zero3 lockstep"}
FEW = {("ppo", "zero3"), ("grpo", "lockstep"), ("reinforce", "zero2"), ("all-grpo", "zero3")}
EVERY = {(case, kind) for case in LORA | ALL for kind in KINDS}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Return a function: the folder of a case's run by one rank."""
    folder = tmp_path_factory.mktemp("alone")

    def of(case: str) -> Path:
        if not (folder / case).is_dir():
            run((LORA | ALL)[case].replace("OUT", f"{folder / case}").split())
        return folder / case

    return of


def newest(folder: Path) -> Path:
    return max(folder.glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))


def apart(one: Path, other: Path, name: str) -> float:
    """Return the largest difference of the tensors in NAME.safetensors of two checkpoints."""
    a, b = Pieces(one, name), Pieces(other, name)
    assert a.shapes() == b.shapes() and (name != "trainable" or a.shapes())
    return max((float((a.whole(key) - b.whole(key)).abs().max()) for key in a.shapes()), default=0.0)


def play(folder: Path, world: int, cases: set[tuple[str, str]], trials: Path) -> Path:
    """Run the cases in one group of processes, and return the folder of their runs."""
    words = {f"{case}-{kind}": [f"{(LORA | ALL)[case]} {KINDS[kind]}"] for case, kind in sorted(cases)}
    played(folder, world, words, trials)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory, trials_folder) -> Path:
    """Return the folder of FEW's runs by two ranks."""
    return play(tmp_path_factory.mktemp("two"), 2, FEW, trials_folder)


def check(folder: Path, world: int, cases: set[tuple[str, str]], alone) -> None:
    """Adapters, optimizer, episodes and metrics to the byte; with lora.r=0 weights and moments to 1e-5."""
    for case, kind in sorted(cases):
        ours, theirs = folder / f"{case}-{kind}", alone(case)
        learned = [value for name, value in contents(theirs).items() if name.startswith("grad_norm ")]
        assert any(learned), f"{case} learned nothing"
        if case in LORA:
            assert differences(contents(ours), contents(theirs)) == {}, (case, kind)
        else:
            for name in ("trainable", "optimizer", "critic"):
                assert apart(newest(ours), newest(theirs), name) < 1e-5, (case, kind, name)
        for rank in range(world):
            passes = json.loads((folder / f"{case}-{kind}-held-{rank}.json").read_text())
            if kind == "zero2":  # the first pass begins with a forward that tells FSDP of the groups
                assert max(found["Gather"] for found in passes[1:]) == GROUPS, "once a pass, whatever the micro-batches"
            if case in LORA or kind == "zero2":
                assert max(found["Scatter"] for found in passes) == (0 if case in LORA else GROUPS), (case, kind)
            for found in passes:
                assert found["local"] <= 1.1 * found["base"] / world, (case, kind)
                moments = 3 * found["local"] if case in ALL else 0  # the optimizer's, and gradients
                assert found["others"] <= moments + 2**20, (case, kind, "a copy of the base is kept")


def test_two_ranks_with_shares_train_what_one_rank_does(two, alone):
    check(two, 2, FEW, alone)
    found = contents(two / "grpo-lockstep")
    assert any(value for name, value in found.items() if name.startswith("left_out ")), "no group failed"


@pytest.mark.full
@pytest.mark.parametrize("world", [2, 3, 4])
def test_ranks_with_shares_train_what_one_rank_does(world, alone, trials_folder, tmp_path):
    check(play(tmp_path, world, EVERY, trials_folder), world, EVERY, alone)


def cut_short(run: Path, copy: Path) -> Path:
    """Return a copy of a run whose second epoch was not saved."""
    shutil.copytree(run, copy)
    for name in ("checkpoint-2", "epoch_2"):
        shutil.rmtree(copy / name)
    return copy


def test_what_two_ranks_saved_resumes_at_one(two, alone, tmp_path, capsys):
    for case in ("ppo", "all-grpo"):
        folder = cut_short(two / f"{case}-zero3", tmp_path / case)
        start.run(train.main, parse([f"resume={folder}", "ranks=1"], "train.py"), groups=3)
        assert "shard=zero3 has no effect with one rank" in capsys.readouterr().out
    assert differences(contents(tmp_path / "ppo"), contents(alone("ppo"))) == {}
    for name in ("trainable", "optimizer"):
        assert apart(newest(tmp_path / "all-grpo"), newest(alone("all-grpo")), name) < 1e-5


@pytest.mark.full
def test_what_two_ranks_saved_resumes_at_four(two, alone, trials_folder, tmp_path):
    for case in ("ppo", "all-grpo"):
        cut_short(two / f"{case}-zero3", tmp_path / case)
    played(tmp_path, 4, {case: ["resume=OUT"] for case in ("ppo", "all-grpo")}, trials_folder)
    assert differences(contents(tmp_path / "ppo"), contents(alone("ppo"))) == {}
    for name in ("trainable", "optimizer"):
        assert apart(newest(tmp_path / "all-grpo"), newest(alone("all-grpo")), name) < 1e-5


def test_one_checkpoint_is_made_of_the_ranks_files(two, tmp_path):
    run = two / "all-grpo-zero3"
    saved = newest(run)
    assert (saved / file_name("trainable", 1, 2)).is_file()
    join.main(join.Keys(str(saved), str(tmp_path / "joined")))
    ours, theirs = load_model(str(tmp_path / "joined")), load_model(str(run / "epoch_2"))
    start = load_model("tiny")
    for (name, a), b, c in zip(ours.named_parameters(), theirs.parameters(), start.parameters(), strict=True):
        assert torch.equal(a, b) and (a.dim() == 1 or not torch.equal(a, c)), name
    with pytest.raises(ValueError, match="has an adapter"):
        join.main(join.Keys(str(newest(two / "ppo-zero3")), str(tmp_path / "other")))


def test_a_missing_file_of_a_rank_is_refused(two, tmp_path):
    shutil.copytree(newest(two / "all-grpo-zero3"), tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2" / file_name("trainable", 1, 2)).unlink()
    with pytest.raises(ValueError, match="are not those of 2 ranks"):
        Pieces(tmp_path / "checkpoint-2", "trainable")


def test_any_number_of_ranks_reads_its_rows():
    """Rows go to ranks in order; a rank may have none."""
    for count in (1, 5, 8, 9):
        for world in (1, 2, 3, 4, 7):
            shares = [share_of(count, rank, world) for rank in range(world)]
            chunks = [len(chunk) for chunk in torch.arange(count).chunk(world)]
            assert [b - a for a, b in shares] == chunks + [0] * (world - len(chunks))
            assert [row for a, b in shares for row in range(a, b)] == list(range(count))


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("shard=zero3 ranks=1", "shard=zero3 shares weights among several ranks: give ranks=2, or use torchrun"),
        ("shard=zero2 quant=nf4", "shard=zero2 takes dense weights: leave quant=nf4 out, or take shard=ddp"),
        ("shard=zero", "shard=zero is not one of ddp, zero2, zero3; did you mean zero3?"),
    ],
)
def test_bad_input_is_one_line(words, line, capsys):
    with pytest.raises((SystemExit, ArgumentError)) as error:
        start.run(train.main, parse(words.split(), "train.py"), groups=64)
    assert line in str(error.value) + capsys.readouterr().err
