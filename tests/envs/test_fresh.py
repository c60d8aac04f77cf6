"""tasks=fresh: many tasks in each split, none in two, all solvable, and as long as the panel's."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
from experts import expert

import envs
from envs import common
from envs.refusal import Refusal

ROOT = Path(__file__).parents[2]
LEVELS = {
    "textcraft": "1, 2, 3, 4",
    "alfworld": "1, 2, 3, original",
    "webshop": "1, 2, 3",
    "sat": "1, 2, 3, guide, original",
    "ded": "1, 2, 3",
    "tau_retail": "1, 2, 3",
}
at_every_level = pytest.mark.parametrize(
    ("name", "level"), [(name, level) for name, levels in LEVELS.items() for level in levels.split(", ")]
)
LEAST = 10_000  # tasks of a split


def drawn(name: str, level: str, split: str, count: int) -> list[str]:
    """Return the canonical tasks of the first seeds of a split."""
    env = envs.make(name, difficulty=level, prompt="short", tasks="fresh")
    return [env.task for seed in range(count) if env.reset(seed, split)]


@pytest.mark.parametrize("count", [40, pytest.param(400, marks=pytest.mark.all_only)])
@at_every_level
def test_each_split_has_ten_thousand_tasks_of_its_own(name, level, count):
    """Of N equally likely tasks, n draws have n (n - 1) / 2N equal pairs on average, and more if some are likelier.

    The number of pairs is about Poisson's: two standard deviations more would be unlikely with LEAST tasks.
    """
    mean_pairs = count * (count - 1) / 2 / LEAST
    tasks = {split: Counter(drawn(name, level, split, count)) for split in common.SPLITS}
    for split, counts in tasks.items():
        assert {common.split_of(task) for task in counts} == {split}
        pairs = sum(times * (times - 1) / 2 for times in counts.values())
        assert pairs <= mean_pairs + 2 * mean_pairs**0.5, (split, counts.most_common(3))
    assert len(set().union(*tasks.values())) == sum(map(len, tasks.values()))


@pytest.mark.parametrize(("count", "near"), [(40, 0.2), pytest.param(400, 0.06, marks=pytest.mark.all_only)])
@at_every_level
def test_the_expert_wins_as_fast_as_in_the_panel(name, level, count, near):
    lengths, turns = {}, {}
    for tasks in common.TASKS:
        env = envs.make(name, difficulty=level, prompt="short", tasks=tasks)
        opened, played = [], []
        for seed in range(count):
            opened.append(sum(len(message["content"]) for message in env.reset(seed)))
            if not env.slow or seed % 20 == 0:  # a process for each test case
                played.append(expert(env))
        assert all(steps[-1].info["success"] and all(step.info["valid"] for step in steps) for steps in played)
        lengths[tasks], turns[tasks] = mean(opened), mean(map(len, played))
    assert lengths["fresh"] == pytest.approx(lengths["panel"], rel=near)
    assert turns["fresh"] == pytest.approx(turns["panel"], rel=near)


@pytest.mark.parametrize("name", LEVELS)
def test_a_seed_has_one_fresh_task_in_both_prompts(name):
    env, other = (envs.make(name, tasks="fresh", prompt=prompt) for prompt in common.PROMPTS)
    for seed in range(5):
        env.reset(seed)
        other.reset(seed)
        assert env.task == other.task


PRINT = """
import envs
for name in NAMES:
    env = envs.make(name, tasks="fresh", prompt="short")
    for seed in range(4):
        print(env.reset(seed, "val"), env.task, env.oracle())
"""


@pytest.mark.all_only
def test_fresh_tasks_do_not_depend_on_string_hashing():
    printed = [
        subprocess.check_output(
            [sys.executable, "-c", PRINT.replace("NAMES", repr([*LEVELS]))],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
        )
        for seed in "07"
    ]
    assert printed[0] == printed[1] and len(printed[0]) > 10_000


@pytest.mark.parametrize("name", LEVELS)
def test_unknown_tasks_are_refused_by_name(name):
    with pytest.raises(Refusal) as error:
        envs.make(name, tasks="new")
    assert str(error.value) == "tasks must be 'panel' or 'fresh', not 'new'"
