"""The results of eval.py: what a policy did on each task, tables, and comparisons of policies on the same tasks.

The numbers are explained in docs/glossary.md; the formulas are in rl/stats.py.
"""

import math
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

from models import CausalLM, Tokenizer
from rl.config.arguments import ArgumentError
from rl.config.fields import Config
from rl.config.refusals import Refusal
from rl.evaluate import judged, progress_bar
from rl.judge.adapter_settings import TRUNCATION
from rl.records import Episode
from rl.rollout import rollout
from rl.run.files import read_json
from rl.run.phases import phase
from rl.stats import (
    DIFFERENCE,
    RATE,
    bootstrap,
    dominance_probability,
    frontier,
    interval,
    pass_at_k,
    rate_interval,
    score_interval,
    unweighted_interval,
    verdict,
)
from rl.tasks import Task

CONFIDENT = 0.8  # probability from which one policy is said to dominate another


def play(model: CausalLM, tokenizer: Tokenizer, cfg: Config, temperature: float, tasks: list[Task]) -> list[Episode]:
    """Return the episodes of a model in this process."""
    with phase("evaluate"), progress_bar(len(tasks), f"evaluate at temperature {temperature}") as progress:
        return rollout(model, tokenizer, tasks, cfg, temperature, progress)


def result(played: list[Episode], temperature: float, split: str, ks: list[int]) -> dict:
    """Return rl.evaluate.judged of the episodes with more numbers, and under "tasks" what happened on each task."""
    tasks: dict[int, dict] = {}
    for e in played:
        task = tasks.setdefault(e.group, {"env": e.env, "seed": e.seed, "task": "", "success": [], "score": []})
        task["task"] = task["task"] or e.task
        if not e.infrastructure_failed:
            task["success"].append(int(e.success))
            task["score"].append(score_of(e))
    report = {**judged(played, temperature, split), "tasks": list(tasks.values())}
    finished = [e for e in played if not e.infrastructure_failed]
    for env, part in [("", report), *report["by_env"].items()]:
        episodes = [e for e in finished if env in ("", e.env)]
        of_env = [task for task in tasks.values() if env in ("", task["env"]) and task["success"]]
        part["accuracy"] = fmean(e.outcome == "correct" for e in episodes)
        part["nonzero"] = fmean(score_of(e) != 0 for e in episodes)
        part["pass"] = {f"{k}": _passes(of_env, k) for k in ks}
    whole = [[task for task in tasks.values() if task["env"] == env and task["success"]] for env in report["by_env"]]
    rates, names = ([[of(task) for task in one] for one in whole] for of in (_success, _name))
    for key, of_env in (
        ("unweighted", "success"),
        ("unweighted_accuracy", "accuracy"),
        ("unweighted_nonzero", "nonzero"),
    ):
        report[key] = fmean(one[of_env] for one in report["by_env"].values())
    report["unweighted_low"], report["unweighted_high"] = unweighted_interval(rates, RATE, tasks=names)
    return report


def score_of(e: Episode) -> float:
    """Return the score without the rounding of its sum: 0.15 and three times -0.05 are 0."""
    return round(e.score, 9)


def table(report: dict) -> list[str]:
    """Return a result as a table: a line per environment, and over several the pooled and the unweighted means."""
    ks = [f"pass@{k}" for k in report["pass"]]
    head = ["", "n", "success", "80 % interval", "accuracy", "nonzero", "score", "deviation", "median", *ks]
    rows = [head, *(_row(env, part) for env, part in report["by_env"].items())]
    if len(report["by_env"]) > 1:
        rows.append(_row("pooled", report))
        bounds = f"{report['unweighted_low']:.1%} to {report['unweighted_high']:.1%}"
        rates = [f"{report[f'unweighted_{key}']:.1%}" for key in ("accuracy", "nonzero")]
        rows.append(["unweighted", "", f"{report['unweighted']:.1%}", bounds, *rates, *[""] * (len(head) - 6)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["    " + "  ".join(map(str.rjust, row, widths)) for row in rows]


def compared(name: str, report: dict, other: str, reference: dict) -> dict:
    """Return the paired differences report - reference of success and score, over tasks that both finished.

    Raise ArgumentError if they did not play the same tasks.
    """
    check_same_tasks(name, report, other, reference)
    success, score = (task_differences(report, reference, key) for key in ("success", "score"))
    names = [_name(task) for task, _ in _finished_by_both(report, reference)]
    if not success:
        raise ArgumentError(f"{other} and {name} have no task that both finished")
    line = {"policy": name, "reference": other, "temperature": report["temperature"], "tasks": len(success)}
    line["distinct_tasks"] = len(set(names))
    line["success"], line["score"] = fmean(success), fmean(score)
    line["success_low"], line["success_high"] = interval(bootstrap(success, DIFFERENCE, tasks=names))
    seen = {value for pair in _finished_by_both(report, reference) for task in pair for value in task["score"]}
    line["score_low"], line["score_high"] = score_interval(score, seen, names)
    return line


def task_differences(report: dict, reference: dict, key: str) -> list[float]:
    """Return report - reference of each task that both finished; key: "success" or "score"."""
    return [fmean(a[key]) - fmean(b[key]) for a, b in _finished_by_both(report, reference)]


def check_same_tasks(name: str, report: dict, other: str, reference: dict) -> None:
    """Raise ArgumentError if two results are not of the same tasks."""
    ours, theirs = ([(task["env"], task["seed"]) for task in one["tasks"]] for one in (report, reference))
    named = [{task.get("task") for task in pair} for pair in zip(report["tasks"], reference["tasks"], strict=False)]
    changed = sum(len(names - {None, ""}) > 1 for names in named)  # results of earlier versions name no tasks
    if ours == theirs and changed:
        raise ArgumentError(f"{other} and {name} played different tasks under {changed} of {len(ours)} seeds")
    if ours != theirs or report["split"] != reference["split"]:
        counts = f"{len(theirs)} of split={reference['split']} and {len(ours)} of split={report['split']}"
        raise ArgumentError(f"{other} and {name} played different tasks, {counts}: give the same env=, n= and split=")


def describe_difference(line: dict) -> str:
    """Return `compared` as one line."""
    bounds = f"80 % interval {line['success_low']:+.1%} to {line['success_high']:+.1%}"
    score = f"score {line['score']:+.3f} ({line['score_low']:+.3f} to {line['score_high']:+.3f})"
    if line["score_low"] == line["score_high"]:  # equal differences have no spread to draw from
        score = f"score {line['score']:+.3f} on each task"
    kind = "greedy" if line["temperature"] == 0 else "sampled"
    repeated = f" ({line['distinct_tasks']} distinct)" if line["distinct_tasks"] < line["tasks"] else ""
    head = f"{line['policy']} against {line['reference']}, {kind}, the same {line['tasks']} tasks{repeated}"
    outcome = verdict(line["success_low"], line["success_high"])
    return f"{head}: {outcome}; success {line['success']:+.1%} ({bounds}), {score}"


def pareto(results: dict[str, dict]) -> dict:
    """Return the Pareto frontier of policies by success in each environment, and the pairs of which one is better in
    all environments with a probability of at least CONFIDENT. Environments that failed for a policy are left out."""
    first, *others = (report["by_env"] for report in results.values())
    envs = [env for env in first if all(env in other for other in others)]
    scores = {name: [report["by_env"][env]["success"] for env in envs] for name, report in results.items()}
    sure = []
    for a, b in permutations(results, 2):
        pairs = _finished_by_both(results[a], results[b])
        of_env = [[(x, y) for x, y in pairs if x["env"] == env] for env in envs]
        differences = [[_success(x) - _success(y) for x, y in one] for one in of_env]
        names = [[_name(x) for x, _ in one] for one in of_env]
        # Without a pair in some environment there is nothing to draw from.
        probability = dominance_probability(differences, tasks=names) if all(differences) else 0.0
        sure += [{"better": a, "worse": b, "probability": probability}] if probability >= CONFIDENT else []
    beaten = {pair["worse"] for pair in sure}
    return {"frontier": frontier(scores), "sure": sure, "sure_frontier": [n for n in results if n not in beaten]}


def describe_pareto(front: dict) -> str:
    """Return `pareto` as one line."""
    sure = [f"{pair['better']} beats {pair['worse']} everywhere ({pair['probability']:.0%})" for pair in front["sure"]]
    likely = f"with a probability of at least {CONFIDENT:.0%} (one-sided)"
    return f"not dominated: {', '.join(front['frontier'])}; {likely}: {', '.join(sure) or 'nothing'}"


def saved_results(path: str, played: dict[str, Any], split: str, tasks: list[Task]) -> dict[str, list[dict]]:
    """Return the results in a file of eval.py's json=. Raise ArgumentError if there are none, or if they were played
    with other settings than `played`, or on other tasks."""
    try:
        saved = read_json(Path(path))
        results, theirs = saved["results"], {**TRUNCATION, **saved["played"]}
        for report in (one for several in results.values() for one in several):
            numbers = [value for task in report["tasks"] for key in ("success", "score") for value in task[key]]
            numbers += [report["temperature"], *(part["success"] for part in report["by_env"].values())]
            _ = math.fsum(numbers), report["split"], [task["seed"] for task in report["tasks"]]
            if report["by_env"].keys() != {task["env"] for task in report["tasks"] if task["success"]}:
                raise Refusal("by_env has other environments than its tasks")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise ArgumentError(f"against={path}: not a file that eval.py json= wrote ({error})") from None
    for key in sorted({*played, *theirs}):
        if played.get(key) != theirs.get(key):
            raise ArgumentError(f"against={path} was played with {key}={theirs.get(key)}, not {played.get(key)}")
    report = {"split": split, "tasks": [{"env": task.env, "seed": task.seed} for task in tasks]}
    for name, several in results.items():
        for one in several:
            check_same_tasks("this evaluation", report, f"{name} of {path}", one)
    return {f"{name} of {path}": several for name, several in results.items()}


def wrote(path: Path) -> bool:
    """Return whether a file is empty, or json= of an earlier evaluation wrote it: a new one may replace it."""
    try:
        return not path.stat().st_size or {"config", "played", "results"} <= dict(read_json(path)).keys()
    except (OSError, ValueError, TypeError):
        return False


def _row(env: str, part: dict) -> list[str]:
    rates = [f"{part[key]:.1%}" for key in ("accuracy", "nonzero")]
    scores = [f"{part[f'score_{key}']:.3f}" for key in ("mean", "std", "median")]
    passes = [f"{one['mean']:.1%} ({one['low']:.1%} to {one['high']:.1%})" for one in part["pass"].values()]
    bounds = f"{part['low']:.1%} to {part['high']:.1%}"
    n, distinct = part["episodes"], part["distinct_tasks"]
    of_tasks = f"{n} of {distinct}" if distinct < n else f"{n}"
    return [env, of_tasks, f"{part['success']:.1%}", bounds, *rates, *scores, *passes]


def _passes(tasks: list[dict], k: int) -> dict[str, float] | None:
    """Return the mean of pass@k over tasks with at least k whole samples, and its interval."""
    whole = [task for task in tasks if len(task["success"]) >= k]
    values = [pass_at_k(sum(task["success"]), len(task["success"]), k) for task in whole]
    low, high = rate_interval(values, [_name(task) for task in whole]) if values else (0.0, 1.0)
    return {"mean": fmean(values) if values else 0.0, "low": low, "high": high, "tasks": len(values)}


def _success(task: dict) -> float:
    """Return the success rate of a task's samples."""
    return fmean(task["success"])


def _name(task: dict) -> str:
    """Return what equal tasks have in common; results of earlier versions name no task, so that each is its own."""
    return f"{task['env']} {task.get('task') or task['seed']}"


def _finished_by_both(report: dict, reference: dict) -> list[tuple[dict, dict]]:
    """Return the pairs of equal tasks of which both results have a finished episode."""
    pairs = zip(report["tasks"], reference["tasks"], strict=True)
    return [(a, b) for a, b in pairs if a["success"] and b["success"]]
