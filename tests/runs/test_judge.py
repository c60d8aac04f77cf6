"""Results of eval.py: their numbers against a direct computation, comparisons on the same tasks, refusals, merging."""

import contextlib
import json
from statistics import fmean, median, pstdev

import pytest
from cases import cases
from conftest import run_program

from models import load_tokenizer
from rl.config.arguments import ArgumentError
from rl.judge import results as judge
from rl.judge import transcripts
from rl.records import Episode, Turn
from rl.report import episodes
from rl.stats import jeffreys
from rl.tasks import Task

CASES = cases("judge")

PAID = (0.15, -0.05, -0.05, -0.05)
WORDS = ["max_new_tokens=2", "threads=1", "ranks=1"]


def episode(env: str, group: int, success: bool, score: float, failed: bool = False) -> Episode:
    outcome = "correct" if success else "incorrect"
    turns = [Turn(0, 1, score, "stop")]
    return Episode(
        env, 100 + group, group, [1], [1], [0.0], turns, outcome, success, infrastructure_failed=failed, truncated=True
    )


def played(successes: list[list[bool]], env=lambda group: "ab"[group % 2]) -> list[Episode]:
    """Return the episodes of tasks, each with its samples' successes; failures of even tasks score a half."""
    return [
        episode(env(group), group, success, 1.0 if success else (group % 2 == 0) / 2)
        for group, several in enumerate(successes)
        for success in several
    ]


@pytest.mark.parametrize("success", [False, True])
def test_unweighted_mean_lies_in_its_interval(success):
    found = judge.result(played([[success]] * 7), 1.0, "test", [])
    assert found["unweighted"] == success
    assert found["unweighted_low"] <= found["unweighted"] <= found["unweighted_high"]


def test_numbers_of_each_environment_and_over_all():
    successes = [[True], [False], [False], [False], [True], [True], [True]]  # a: 3 of 4; b: 1 of 3
    episodes = [*played(successes), episode("b", 7, False, 0, failed=True)]
    found = judge.result(episodes, 1.0, "test", [])
    a, b, scores = found["by_env"]["a"], found["by_env"]["b"], [1.0, 0.5, 1.0, 1.0]
    assert (a["success"], b["success"], a["accuracy"], a["nonzero"], b["nonzero"]) == (0.75, 1 / 3, 0.75, 1.0, 1 / 3)
    assert (a["score_mean"], a["score_std"], a["score_median"]) == (fmean(scores), pstdev(scores), median(scores))
    assert (a["low"], a["high"]) == jeffreys(3, 4) and (found["low"], found["high"]) == jeffreys(4, 7)
    assert (found["success"], found["unweighted"]) == (4 / 7, pytest.approx((0.75 + 1 / 3) / 2))
    assert found["accuracy"] == pytest.approx((4 * a["accuracy"] + 3 * b["accuracy"]) / 7)
    assert found["score_mean"] == pytest.approx((4 * a["score_mean"] + 3 * b["score_mean"]) / 7)
    assert found["unweighted_low"] < found["unweighted"] < found["unweighted_high"]
    assert found["infrastructure_failed"] == 1 and found["tasks"][7]["success"] == []
    assert found["unweighted_nonzero"] == pytest.approx((1 + 1 / 3) / 2), "the guide's overall success"
    assert found["unweighted_accuracy"] == pytest.approx((a["accuracy"] + b["accuracy"]) / 2)
    assert [line.split()[0] for line in judge.table(found)] == ["n", "a", "b", "pooled", "unweighted"]
    assert judge.table(found)[-1].split()[-2:] == [f"{found['unweighted_accuracy']:.1%}", "66.7%"]


def test_a_score_of_rounding_alone_is_zero():
    """A progress of 0.15 and three invalid actions of -0.05 leave 1e-17."""
    e = Episode("a", 1, 0, [1] * 4, [1] * 4, [0.0] * 4, [Turn(n, n + 1, r, "stop") for n, r in enumerate(PAID)])
    assert e.score != 0 and judge.result([e], 1.0, "test", [])["nonzero"] == 0
    (line, _) = episodes.epoch_lines(load_tokenizer("tiny"), 1, [e], {}, 1000).splitlines()
    assert json.loads(line)["rows"][0][3] == 0


def test_samples_of_a_task_do_not_count_as_tasks():
    """Ten tasks, each solved always or never: eight samples tell no more than one."""
    once, often = (judge.result(played([[n < 4] * m for n in range(10)]), 1.0, "test", [1, 4]) for m in (4, 32))
    assert (once["low"], once["high"]) == (often["low"], often["high"])
    assert often["low"] == pytest.approx(jeffreys(4, 10)[0], abs=0.02) and often["pass"]["4"]["mean"] == 0.4


def test_pass_at_k_is_each_tasks_mean():
    found = judge.result(played([[True, False, False], [False] * 3]), 1.0, "test", [1, 2, 3])
    assert [found["pass"][k]["mean"] for k in "123"] == pytest.approx([1 / 6, 1 / 3, 1 / 2])


def test_differences_are_paired_by_task():
    mine, base = ([[n % 10 < limit] for n in range(200)] for limit in (6, 4))
    results = {name: judge.result(played(s), 1.0, "test", []) for name, s in (("mine", mine), ("base", base))}
    line = judge.compared("mine", results["mine"], "base", results["base"])
    assert line["success"] == pytest.approx(0.2) and 0.15 < line["success_low"] < 0.2 < line["success_high"] < 0.25
    assert "the same 200 tasks: better; success +20.0%" in judge.describe_difference(line)
    back = judge.compared("base", results["base"], "mine", results["mine"])
    assert "worse" in judge.describe_difference(back) and back["success"] == pytest.approx(-0.2)
    equal = judge.describe_difference(judge.compared("x", results["base"], "y", results["base"]))
    assert "no difference shown" in equal and equal.endswith("score +0.000 on each task")
    front = judge.pareto(results)
    assert front["frontier"] == front["sure_frontier"] == ["mine"]
    assert [(pair["better"], pair["worse"]) for pair in front["sure"]] == [("mine", "base")]


def test_tasks_that_failed_for_one_policy_are_left_out():
    whole = played([[True], [True], [False]])
    broken = [episode("a", 0, False, 0.0, failed=True), *whole[1:]]
    line = judge.compared("x", judge.result(broken, 1.0, "test", []), "y", judge.result(whole, 1.0, "test", []))
    assert (line["tasks"], line["success"]) == (2, 0.0)


WRONG = [("tasks", 0, name, value) for name in ("success", "score") for value in (3, None, ["1"], [10**400], [[1]])]
WRONG += [("by_env", "a", "success", value) for value in (None, "1", 10**400)]
WRONG += [(name, value) for name in ("by_env", "tasks", "temperature") for value in (None, 3, "x", [1])]
WRONG += [("by_env", "a", 3), ("by_env", {}), ("tasks", 0, 3)]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[:40])
def test_saved_results_of_strangers_are_compared_or_refused(wrong, tmp_path):
    episodes = played([[True], [False], [True], [True]])
    own, saved = (judge.result(episodes, 1.0, "test", []) for _ in range(2))
    *places, name, value = wrong
    inner = saved
    for place in places:
        inner = inner[place]
    inner[name] = value
    (path := tmp_path / "r.json").write_text(json.dumps({"played": {}, "results": {"other": [saved]}}))
    tasks = [Task((0, group), "ab"[group % 2], 100 + group, group, "test") for group in range(4)]
    with contextlib.suppress(ArgumentError):
        [[other]] = judge.saved_results(str(path), judge.TRUNCATION, "test", tasks).values()
        if other["temperature"] == 1.0:
            judge.compared("x", own, "y", other), judge.pareto({"x": own, "y": other})


def test_an_environment_that_failed_for_one_policy_is_left_out():
    whole = played([[True], [False], [True], [True]])
    broken = [episode(e.env, e.group, e.success, 0.0, failed=e.env == "b") for e in whole]
    results = {"x": judge.result(whole, 1.0, "test", []), "y": judge.result(broken, 1.0, "test", [])}
    assert judge.pareto(results)["frontier"] == ["x", "y"]


def test_different_tasks_are_not_compared():
    results = [
        judge.result(played([[True]] * n), 1.0, split, []) for n, split in ((4, "test"), (5, "test"), (4, "val"))
    ]
    results.append(judge.result(played([[True]] * 4, env=lambda _: "c"), 1.0, "test", []))
    for other in results[1:]:
        with pytest.raises(ArgumentError, match="x and y played different tasks, 4 of split=test and"):
            judge.compared("y", other, "x", results[0])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "base.json"
    assert run_program("eval.py", "env=sat", "n=4", f"json={path}", *WORDS)[0] == 0
    return path


def test_eval_compares_with_saved_results(saved, tmp_path):
    words = ["env=sat", "n=4", "samples=2", "k=1,2", f"against={saved}", f"json={tmp_path}/r.json", *WORDS]
    status, out, err = run_program("eval.py", *words)
    assert status == 0, err
    for kind in ("sampled", "greedy"):
        assert f"base against base of {saved}, {kind}, the same 4 tasks: " in out
    assert "pass@2" in out and "not dominated: " in out
    greedy = json.loads((tmp_path / "r.json").read_text())["comparisons"][1]
    assert greedy["differences"][0]["success"] == 0.0 and greedy["temperature"] == 0.0


@pytest.mark.parametrize(("words", "line"), CASES["impossible comparisons"])
def test_comparisons_that_cannot_be_are_one_line(words, line, saved):
    status, out, err = run_program("eval.py", *WORDS, f"against={saved}", *words)
    assert status == 2 and line in err and err.count("\n") == 1 and "success" not in out, (out, err)


def test_a_transcript_has_what_was_read_and_written():
    tokenizer = load_tokenizer("tiny")
    e = Episode("textcraft", 7, 0, outcome="correct")
    e.append(tokenizer.prompt([{"role": "user", "content": "Go."}]))
    e.append_turn(tokenizer.encode("left"), [-0.5] * len(tokenizer.encode("left")), "length")
    e.append(tokenizer.encode(" a wall\x1b[31m"))
    e.append_turn(tokenizer.encode("right"), [-0.5] * len(tokenizer.encode("right")), "stop")
    e.turns[1].reward = 1.0
    said = transcripts.transcript(e, tokenizer)
    assert said.startswith("--- textcraft, seed 7: correct, score 1\n") and "Go." in said.split("[turn 1")[0]
    assert "[turn 1, cut: length] left\n" in said and "a wall\\x1b[31m\n[turn 2] right" in said and "\x1b" not in said


@pytest.mark.all_only
def test_eval_shows_and_keeps_episodes(tmp_path):
    words = ["eval.py", "n=3", *WORDS, "show=2", f"save_episodes={tmp_path}/played.jsonl"]
    status, out, _ = run_program(*words)
    kept = [json.loads(line) for line in (tmp_path / "played.jsonl").read_text().splitlines()]
    assert status == 0 and out.count("--- textcraft, seed ") == 4 and out.count("[turn 1") == 4
    assert [(one["policy"], one["temperature"]) for one in kept][3:] == [("base", 0.0)] * 3 and len(kept) == 6
    assert run_program(*words)[0] == 2, "an earlier file is not overwritten"
