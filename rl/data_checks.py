"""Checks of data= and of sft's expert. Imported when a run has either."""

from pathlib import Path
from typing import Any

from rl.arguments import ArgumentError
from rl.tasks import mixture


def check_source(cfg: Any) -> None:
    """Raise ArgumentError for data= where nothing is imitated or without the file, and for sft without an expert."""
    if cfg.algorithm.source == "rollouts":
        raise ArgumentError(f"data= is a file to imitate: for algo=sft, not for algo={cfg.algo}")
    if cfg.data and not Path(cfg.data).is_file():
        raise ArgumentError(f"data={cfg.data}: no such file")
    if not cfg.data and "http" in mixture(cfg.env):
        none = f"algo={cfg.algo} imitates an expert, and env=http has none"
        raise ArgumentError(f"{none}; env={cfg.http.kind} has one, and data= takes a file")
