"""Checks of data=, rollouts= and of sft's expert. Imported when a run has one of them."""

from pathlib import Path
from typing import Any

from rl.arguments import ArgumentError
from rl.tasks import mixture


def check_source(cfg: Any) -> None:
    """Raise ArgumentError for data= where nothing is imitated, rollouts= where nothing is played, a file that is
    missing, and for sft without an expert."""
    if cfg.rollouts and cfg.algorithm.source != "rollouts":
        raise ArgumentError(f"rollouts= has episodes that an agent played: for reinforce, grpo and ppo, not {cfg.algo}")
    if cfg.rollouts and not Path(cfg.rollouts).is_file():
        raise ArgumentError(f"rollouts={cfg.rollouts}: no such file; a run's is FOLDER/episodes.jsonl")
    if cfg.rollouts:
        return
    if cfg.algorithm.source == "rollouts":
        way = f"to be rewarded for right answers to its questions: env=qa qa.data={cfg.data}"
        raise ArgumentError(f"data= is a file to imitate: for algo=sft, not for algo={cfg.algo}; {way}")
    if cfg.data and not Path(cfg.data).is_file():
        raise ArgumentError(f"data={cfg.data}: no such file")
    if not cfg.data and "http" in mixture(cfg.env):
        none = f"algo={cfg.algo} imitates an expert, and env=http has none"
        raise ArgumentError(f"{none}; env={cfg.http.kind} has one, and data= takes a file")
