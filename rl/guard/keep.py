"""Which checkpoints a run keeps, what it removes, and whether it has finished."""

from pathlib import Path
from typing import Any

from rl import ranks
from rl.guard.files import checkpoints, is_whole, read_json, read_lines, remove
from rl.state import TrainState

KEEP = 2  # newest whole checkpoints that are kept


@ranks.first_only
def prune(run: Path, state: TrainState) -> None:
    """Remove checkpoints of earlier epochs than the state's.

    These stay: the KEEP newest whole ones, that of the best epoch by evaluation, the one that was resumed from.
    """
    kept, whole = {state.resumed_from, best_epoch(run)}, 0
    for folder in reversed(checkpoints(run)):
        epoch = int(folder.name.split("-")[1])
        if epoch > state.epoch:
            continue  # damaged, or the run would have resumed from it; the run replaces it when it gets there
        if whole < KEEP and (epoch == state.epoch or is_whole(folder)):  # the state's own has just been written
            whole += 1
        elif epoch not in kept:
            remove(folder)


def records(run: Path) -> list[dict]:
    """Return the records of metrics.jsonl. Raise ValueError naming a damaged line."""
    return [record for _, record in read_lines(run / "metrics.jsonl")]


def best_epoch(run: Path) -> int | None:
    """Return the epoch with the highest success in sampled play, or else the lowest held-out loss; the first of equal
    ones. None before the first evaluation."""
    _, scores = evaluations(run)
    return max(scores, key=scores.get) if scores else None


def evaluations(run: Path) -> tuple[str, dict[int, float]]:
    """Return what the epochs of a run are judged by, "success" or "held-out loss", and each evaluated epoch's score:
    its success in sampled play, or the negative loss. Higher is better."""
    played, losses = {}, {}
    for record in records(run):
        if "eval" in record and record["eval"]["temperature"]:
            played[record["epoch"]] = record["eval"]["success"]
        if "eval_loss" in record:
            losses[record["epoch"]] = -record["eval_loss"]
    return ("success", played) if played else ("held-out loss", losses)


def evaluation_missing(cfg: Any, run: Path, epoch: int) -> bool:
    """Return whether the metrics lack an evaluation that this run makes, at this epoch."""
    found = [record for record in records(run) if "eval" in record or "eval_loss" in record]
    here = [record for record in found if record["epoch"] == epoch]
    if cfg.eval_episodes and not cfg.data:
        return not any(record.get("eval", {}).get("temperature") == 0.0 for record in here)
    return not here and (bool(found) or epoch == 0)


def is_finished(cfg: Any, run: Path) -> bool:
    """Return whether the run in the folder has taken all its epochs or steps, and made its last evaluation.

    A run whose newest checkpoint is damaged has not: it goes on from the one before.
    """
    newest = checkpoints(run)[-1]
    if not is_whole(newest):
        return False
    try:
        counters = read_json(newest / "state.json")
        done = counters["epoch"] >= cfg.epochs or bool(cfg.max_steps and counters["step"] >= cfg.max_steps)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # damaged: resuming skips it
    return done and not evaluation_missing(cfg, run, counters["epoch"])
