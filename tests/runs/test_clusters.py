"""Episodes of one task are not independent: evaluations count distinct tasks, and intervals draw whole tasks."""

import numpy as np
import pytest

from models import load_model, load_tokenizer
from rl.config.arguments import ArgumentError
from rl.config.words import parse
from rl.evaluate import describe, evaluate, summary
from rl.judge.results import compared, result
from rl.records import Episode, Turn
from rl.stats import DIFFERENCE, RATE, bootstrap, interval, jeffreys, rate_interval, student_interval
from rl.tasks import make_env, make_tasks, task_digest


def played(outcomes: dict[str, list[int]], env: str = "textcraft") -> list[Episode]:
    """Return an episode for each outcome of each task."""
    episodes = []
    for task, wins in outcomes.items():
        for win in wins:
            number = len(episodes)
            episode = Episode(env, number, number, [1, 2], [0, 1], [0.0, -1.0], [Turn(1, 2, float(win), "stop")])
            episode.success, episode.outcome, episode.task = bool(win), "correct" if win else "incorrect", task
            episodes.append(episode)
    return episodes


@pytest.mark.parametrize(("tasks", "each"), [(15, 13), (60, 3)])
def test_clustered_intervals_cover_the_rate_of_new_tasks(tasks, each):
    """80 % within three standard errors of the simulation; intervals that take episodes for tasks cover far less."""
    rng, hits, naive, repeats = np.random.default_rng(0), 0, 0, 700
    for seed in range(repeats):
        wins = rng.random((tasks, each)) < rng.beta(2, 2, (tasks, 1))
        names = np.repeat(np.arange(tasks), each).astype(str).tolist()
        low, high = interval(bootstrap(wins.ravel().astype(float).tolist(), RATE, 800, seed, names))
        hits += low <= 0.5 <= high
        low, high = jeffreys(int(wins.sum()), wins.size)
        naive += low <= 0.5 <= high
    assert abs(hits / repeats - 0.8) < 0.045
    assert naive / repeats < 0.75


def test_a_task_for_each_value_changes_nothing():
    values = [1.0, 0.0, 0.0, 1.0, 1.0]
    names = list("abcde")
    assert (bootstrap(values, RATE) == bootstrap(values, RATE, tasks=names)).all()
    assert student_interval(values) == student_interval(values, tasks=names)


def test_equal_episodes_of_a_task_count_once():
    """Asking each of ten tasks five times, always with the same result, says no more than asking once."""
    once = [1.0, 0.0] * 5
    names = [str(i) for i in range(10)]
    many, repeated = [value for value in once for _ in range(5)], [name for name in names for _ in range(5)]
    for several, single in (
        (rate_interval(many, repeated), rate_interval(once)),
        (interval(bootstrap(many, DIFFERENCE, tasks=repeated)), interval(bootstrap(once, DIFFERENCE))),
        (student_interval(many, tasks=repeated), student_interval(once)),
    ):
        assert several == pytest.approx(single, abs=0.02)


def test_an_evaluation_counts_its_distinct_tasks():
    episodes = played({f"goal {i}": [i % 2] * 13 for i in range(15)})
    found = summary(episodes) | {"temperature": 0.0}
    assert (found["episodes"], found["distinct_tasks"]) == (195, 15)
    assert describe(found).endswith("n=195 of 15 tasks)")
    low, high = jeffreys(sum(e.success for e in episodes), 195)
    assert found["high"] - found["low"] > 2 * (high - low)
    alone = summary(played({f"goal {i}": [i % 2] for i in range(15)})) | {"temperature": 1.0}
    assert (alone["low"], alone["high"]) == jeffreys(7, 15) and describe(alone).endswith("n=15)")


def test_a_comparison_draws_whole_tasks():
    """The same differences over ten tasks asked six times and over sixty tasks: the first shows less."""
    better = {f"{i}": [1] * 6 if i < 7 else [0] * 6 for i in range(10)}
    worse = {f"{i}": [1] * 6 if i < 3 else [0] * 6 for i in range(10)}
    few = compared("a", result(played(better), 0.0, "val", []), "b", result(played(worse), 0.0, "val", []))
    apart = [
        result(played({f"{t} {j}": [win] for t, wins in of.items() for j, win in enumerate(wins)}), 0.0, "val", [])
        for of in (better, worse)
    ]
    many = compared("a", apart[0], "b", apart[1])
    assert (few["tasks"], few["distinct_tasks"], many["distinct_tasks"]) == (60, 10, 60)
    assert few["success"] == many["success"] == pytest.approx(0.4)
    for key in ("success", "score"):
        assert few[f"{key}_high"] - few[f"{key}_low"] > 1.8 * (many[f"{key}_high"] - many[f"{key}_low"])


def test_a_rollout_names_the_task_of_each_episode():
    words = "max_turns=1", "max_new_tokens=4", "eval_split=test", "textcraft.tasks=panel"
    cfg = parse(["algo=grpo", "env=textcraft", *words])
    [(found, _)] = evaluate(load_model("tiny"), load_tokenizer("tiny"), cfg, [0.0], "test", 40)
    env, digests = make_env(cfg, "textcraft"), set()
    for task in make_tasks(cfg, 0, 40, 1, "test", 2**31, cfg.order):
        env.reset(task.seed, task.split)
        digests.add(task_digest(env))
    assert found["distinct_tasks"] == len(digests) < 40


def test_pass_at_k_draws_whole_tasks():
    outcomes = {f"{t}": [t % 2] * 10 for t in range(8)}
    found = result(played(outcomes), 1.0, "val", [1])
    [(low, high)] = [(found["pass"]["1"]["low"], found["pass"]["1"]["high"])]
    assert (low, high) == pytest.approx((found["low"], found["high"]), abs=0.02)


def test_other_tasks_under_the_same_seeds_are_not_compared():
    first = result(played({f"a{t}": [1] for t in range(6)}), 0.0, "val", [])
    other = result(played({f"b{t}": [1] for t in range(6)}), 0.0, "val", [])
    with pytest.raises(ArgumentError, match="different tasks under 6 of 6 seeds"):
        compared("now", first, "before", other)
    for task in other["tasks"]:
        task["task"] = ""  # a result of an earlier version
    assert compared("now", first, "before", other)["success"] == 0
