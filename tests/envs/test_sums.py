"""Sums: the reply's number is the sum, and a held-out sum is not learned in the other order."""

import re
from random import Random

import one_turn
import pytest

from envs import sums
from envs.common import SPLITS, split_of
from envs.sums import LEVELS, Config, Env

EPISODES = [
    ({"difficulty": "1", "prompt": "native"}, 3, ["oracle", "It is 7.", "no idea"]),
    ({"difficulty": "3", "prompt": "short"}, 1, ["oracle", "1 or 2"]),
]


def transcript() -> list[dict]:
    return one_turn.transcript(sums, EPISODES)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("prompt", ["native", "short"])
def test_the_sum_of_the_two_numbers_shown_is_right_and_no_other(level, prompt):
    env = Env(Config(difficulty=level, prompt=prompt))
    for seed in range(40):
        first, second = map(int, re.findall(r"\d+", env.reset(seed, SPLITS[seed % 3])[0]["content"]))
        assert first in LEVELS[level] and second in LEVELS[level]
        for said, right in ((f"{first} + {second} = {first + second}", True), (f"{first + second + 1}", False)):
            env.reset(seed, SPLITS[seed % 3])
            step = env.step(said)
            assert (step.reward, step.info["success"], step.info["valid"]) == (right, right, True)


def test_levels_have_the_numbers_that_the_specification_names():
    assert {level: (min(numbers), max(numbers)) for level, numbers in LEVELS.items()} == {
        "1": (0, 29),
        "2": (10, 69),
        "3": (0, 99),
    }


def test_both_orders_of_a_sum_are_one_task():
    tasks = {}
    for split in SPLITS:
        env = Env(Config(difficulty="1"))
        for seed in range(300):
            env.reset(seed, split)
            assert split_of(env.task) == split
            tasks.setdefault(frozenset(env.numbers), set()).add(split)
    assert all(len(splits) == 1 for splits in tasks.values()) and len(tasks) > 250


def test_at_level_3_more_than_200_sums_are_held_out():
    env, drawn = Env(Config(difficulty="3")), set()
    for seed in range(2000):
        env.reset(seed, "test")
        drawn.add(env.task)
    assert len(drawn) > 400


@pytest.mark.parametrize("reply", ["", "no idea", "forty", "?" * 10_000, f"{Random(0).random()} {{}}"])
def test_other_replies_are_wrong(reply):
    env = Env()
    env.reset(0)
    assert env.step(reply).reward == 0
