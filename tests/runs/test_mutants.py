"""The planted bugs of tests/mutants.py: the four that no check saw at first here, all of them with the marker full."""

from dataclasses import replace

import mutants
import pytest
from conftest import ROOT
from mutants import MUTANTS, in_a_fork, table, verdict

pytestmark = pytest.mark.all_only

EACH_TRIAL = True

SAMPLE = [
    "train samples at temperature 1",
    "dropout in reinforcement learning",
    "failed environments are learned from",
    "the count of groups does not move",
]
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
REST = [pytest.param(name, marks=pytest.mark.full) for name in BY_NAME if name not in SAMPLE]


@pytest.mark.parametrize("name", [*SAMPLE, *REST])
def test_a_planted_bug_is_caught(name):
    assert in_a_fork(verdict, BY_NAME[name], seconds=300) == BY_NAME[name].caught_by


@pytest.mark.parametrize("name", ["train samples at temperature 1", "whitening keeps the mean"])
def test_no_bug_is_not_caught(name):
    """By a run, and by a test."""
    assert in_a_fork(verdict, replace(BY_NAME[name], wrong=lambda right: right), seconds=300) == ""


IN_16_BITS = [  # sampling and training differ by 0.2 to 17 nats
    "train samples at temperature 1",
    "dropout in reinforcement learning",
    "the adapter is off while sampling",
    "the sampler keeps its first copy of the weights",
    "the action mask is one token early",
    "the adapter is scaled twice in training",
]


@pytest.mark.full
@pytest.mark.parametrize("name", IN_16_BITS)
def test_a_planted_bug_is_caught_in_16_bits(name, monkeypatch):
    monkeypatch.setattr(mutants, "WORDS", f"{mutants.WORDS} dtype=bfloat16")
    assert in_a_fork(verdict, BY_NAME[name], seconds=300) == BY_NAME[name].caught_by


def test_mutants_are_many_and_the_table_has_them():
    """The committed table is the one that `make mutants` writes if every mutant is caught as its entry says."""
    assert len(BY_NAME) == len(MUTANTS) >= 45
    written = (ROOT / "benchmarks" / "results" / "mutants.md").read_text()
    assert written == table([(mutant, mutant.caught_by) for mutant in MUTANTS])
