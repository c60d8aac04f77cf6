"""Evaluation on held-out tasks: success with an interval, apart from the reward."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean, median, pstdev

from envs.own_splits import OwnSplits
from models import CausalLM, Tokenizer
from rl.config.fields import Config
from rl.ranks.pace import Pace
from rl.records import Episode
from rl.report.progress import progress_bar
from rl.rollout import rollout_at
from rl.run.history import HASH
from rl.run.log import env_metrics, thought_stats
from rl.stats import jeffreys, rate_interval
from rl.tasks import Task, make_env, make_tasks, mixture

# Tasks and random numbers of evaluations: the same in every run and at every epoch, so that differences are paired.
EVAL_STREAM = 2**31


def held_out_tasks(cfg: Config, n: int, samples: int, split: str) -> list[Task]:
    """Return n tasks of a split, each `samples` times in succession. Equal arguments give equal tasks.

    Tasks that are the rows of a file are drawn without replacement, because a row that is played twice says little more
    than once; so of a shorter file there are fewer than n.
    """
    tasks = make_tasks(cfg, 0, n, samples, split, EVAL_STREAM, cfg.order)
    for name in mixture(cfg.env):
        if not hasattr(cfg.environments[name], "splits"):  # its tasks are not those of a file
            continue
        env = make_env(cfg, name)
        rows = list(range(env.count(split))) if isinstance(env, OwnSplits) else []
        if not rows:  # splits=hash of an environment that draws its tasks
            continue
        if cfg.order == "random":
            Random(f"{EVAL_STREAM} {name} {split}").shuffle(rows)
        groups = dict.fromkeys(task.group for task in tasks if task.env == name)
        row_of = dict(zip(groups, rows, strict=False))
        tasks = [task for task in tasks if task.env != name or task.group in row_of]
        tasks = [replace(task, seed=row_of[task.group]) if task.env == name else task for task in tasks]
    return tasks


def evaluate(
    model: CausalLM,
    tokenizer: Tokenizer,
    cfg: Config,
    temperatures: Sequence[float],
    split: str,
    episodes: int,
    pace: Pace | None = None,
) -> Iterator[tuple[dict, list[Episode]]]:
    """Play the same `held_out_tasks` at each temperature (0: greedy). Yield `judged` with each task's "successes" and,
    if some are equal, "task_numbers"; and the episodes."""
    tasks = held_out_tasks(cfg, episodes, 1, split)
    with progress_bar(len(tasks) * len(temperatures), f"evaluate on {split}") as bar:
        episodes_at = rollout_at(temperatures, model, tokenizer, tasks, cfg, bar, pace=pace)
        for at, played in zip(temperatures, episodes_at, strict=True):
            bar.clear()  # its line, for the caller's
            won = [None if e.infrastructure_failed else e.success for e in played]
            of_each = {"successes": won, "task_hashes": task_hashes(played)} | task_numbers(played)
            yield judged(played, at, split) | of_each, played


def judged(played: list[Episode], temperature: float, split: str) -> dict:
    """Return the `summary` of all episodes, and under "by_env" that of each environment. Episodes whose environment
    failed are only counted; at least one must be finished. "failed_envs" names the environments of which none is."""
    finished = [e for e in played if not e.infrastructure_failed]
    failed = sorted({e.env for e in played} - {e.env for e in finished})
    by_env = {name: summary([e for e in finished if e.env == name]) for name in sorted({e.env for e in finished})}
    at = {"temperature": temperature, "split": split, "infrastructure_failed": len(played) - len(finished)}
    return {**summary(finished), **at, "by_env": by_env, **({"failed_envs": failed} if failed else {})}


def summary(episodes: list[Episode]) -> dict:
    """Return the success rate with its 80 % interval, scores, outcomes and lengths of episodes.

    The interval is Jeffreys'; where episodes share a task, a bootstrap over distinct tasks (rl/stats.py), because
    episodes of one task are not independent.
    """
    successes, scores = sum(e.success for e in episodes), [e.score for e in episodes]
    tasks = [task_name(e) for e in episodes]
    if len(set(tasks)) == len(episodes):
        low, high = jeffreys(successes, len(episodes))
    else:
        low, high = rate_interval([float(e.success) for e in episodes], tasks)
    return {
        "episodes": len(episodes),
        "distinct_tasks": len(set(tasks)),
        "prompts_too_long": sum(never_asked(e) for e in episodes),
        "success": successes / len(episodes),
        "low": low,
        "high": high,
        "score_mean": fmean(scores),
        "score_std": pstdev(scores),
        "score_median": median(scores),
        "outcomes": dict(Counter(e.outcome for e in episodes)),
        "turns_mean": fmean(len(e.turns) for e in episodes),
        "sampled_tokens": sum(sum(e.action_mask_T) for e in episodes),
        **thought_stats(episodes),
        **env_metrics(episodes),
    }


def task_hashes(played: list[Episode]) -> str:
    """Return a hash of each episode's task, HASH hexadecimal digits, one after another. A task without a name of its
    environment's is its seed."""
    names = (f"{e.env} {e.task or e.seed}" for e in played)
    return "".join(hashlib.sha256(name.encode()).hexdigest()[:HASH] for name in names)


def task_numbers(played: list[Episode]) -> dict[str, list[int]]:
    """Return under "task_numbers" a number for each episode, equal for episodes of one task; {} if no two are."""
    names = [task_name(e) for e in played]
    number_of = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return {"task_numbers": [number_of[name] for name in names]} if len(number_of) < len(names) else {}


def never_asked(e: Episode) -> bool:
    """Return whether the prompt left no room for a reply: the episode says nothing about the policy."""
    return len(e.turns) == 1 and e.turns[0].stop_reason == "context" and not any(e.action_mask_T)


def task_name(e: Episode) -> str:
    """Return what episodes of one task have in common: the environment's own name of it, or the drawn task's number."""
    return f"{e.env} {e.task or e.group}"


def describe(result: dict) -> str:
    """Return the result as one line."""
    kind = "greedy " if result["temperature"] == 0 else "sampled"
    distinct = result.get("distinct_tasks", result["episodes"])  # results of earlier versions lack it
    of_tasks = f" of {distinct} tasks" if distinct < result["episodes"] else ""
    interval = f"80 % interval {result['low']:.1%} to {result['high']:.1%}, n={result['episodes']}{of_tasks}"
    unasked = result.get("prompts_too_long", 0)
    long = f"; {unasked} prompts left no room for a reply" if unasked else ""
    left_out = result.get("infrastructure_failed", 0)
    failed = f"; {left_out} episodes left out, whose environment or server failed" if left_out else ""
    failed += "".join(
        f"; every episode of {env} failed, so it is missing here" for env in result.get("failed_envs", [])
    )
    return f"{kind} success {result['success']:.1%} ({interval}){long}{failed}"
