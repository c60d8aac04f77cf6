"""Which epochs a run evaluates, saves and keeps, which one is the best, and whether the run has finished."""

import re
from pathlib import Path
from typing import Any

from rl import ranks
from rl.config.arguments import ArgumentError
from rl.config.fields import Config, Loop, Saving
from rl.run.files import checkpoints, is_whole, read_json, read_lines, remove
from rl.run.state import TrainState

KEEP = 2  # newest whole checkpoints that are kept without save_total_limit


def to_evaluate(state: TrainState, cfg: Config, run: Path) -> bool:
    """Return whether the run evaluates at this epoch: before the first, after the last, and every cfg.eval_every."""
    due = state.epoch == 0 or (cfg.eval_every and state.epoch % cfg.eval_every == 0)
    return bool(due) or finished(state, cfg, run)


def to_save(state: TrainState, cfg: Saving, stats: dict) -> bool:
    """Return whether the epoch that has ended is one of save_steps or save_every; stats: its metrics."""
    if not cfg.save_steps:
        return state.epoch % cfg.save_every == 0
    before = state.step - stats["optimizer_steps"] - stats["skipped_steps"]
    return state.step // cfg.save_steps > before // cfg.save_steps


def finished(state: TrainState, cfg: Config, run: Path) -> bool:
    """Return whether all epochs or steps are taken, or patience= is exhausted. All ranks must call this."""
    return all_taken(cfg, state.epoch, state.step) or bool(cfg.patience and ranks.from_first(exhausted(cfg, run)))


def all_taken(cfg: Loop, epoch: int, step: int) -> bool:
    """Return whether all epochs or steps are taken."""
    return epoch >= cfg.epochs or bool(cfg.max_steps and step >= cfg.max_steps)


def exhausted(cfg: Saving, run: Path) -> bool:
    """Return whether `patience` evaluations or more were made since the best one."""
    best, (_, scores) = best_epoch(run), evaluations(run)
    return bool(cfg.patience) and sum(epoch > best for epoch in scores) >= cfg.patience


def last_line(state: TrainState, cfg: Config, run: Path) -> str:
    """Return the line at a run's end: its last epoch, why it ends early, and its best epoch by evaluation."""
    line = f"done: {run}/epoch_{state.epoch}, curves and episodes in {run}/report.html"
    if not all_taken(cfg, state.epoch, state.step):
        many = "1 evaluation was" if cfg.patience == 1 else f"{cfg.patience} evaluations were"
        line += f"; stopped early: {many} no better (patience=0 goes on)"
    best, (kind, scores) = best_saved(run), evaluations(run)
    if best is not None and len(scores) > 1:
        line += f"; the best epoch by {kind} is epoch_{best}, {shown(kind, scores[best])}"
        line += no_gain(kind, scores, best)
    return line


@ranks.first_only
def prune(run: Path, state: TrainState) -> None:
    """Remove saves of earlier epochs than the state's: checkpoints, and with save_total_limit= also epoch_N.

    These stay: the newest (save_total_limit, or the KEEP newest checkpoints; of checkpoints whole ones), the best epoch
    by evaluation, the one that was resumed from.
    """
    limit = settings(run).get("save_total_limit")
    best = best_saved(run)
    if limit:
        earlier = [epoch for epoch in epochs(run) if epoch <= state.epoch]
        for epoch in earlier[:-limit]:
            if epoch not in (best, state.resumed_from):
                remove(run / f"epoch_{epoch}")
    kept, whole = {state.resumed_from, best_epoch(run), best}, 0
    for folder in reversed(checkpoints(run)):
        epoch = int(folder.name.split("-")[1])
        if epoch > state.epoch:
            continue  # damaged, or the run would have resumed from it; the run replaces it when it gets there
        just_written = epoch == state.epoch
        if whole < (limit or KEEP) and (just_written or is_whole(folder)):
            whole += 1
        elif epoch not in kept:
            remove(folder)


def settings(run: Path) -> dict[str, Any]:
    """Return the keys of a run's config.json; {} without a whole one."""
    try:
        return dict(read_json(run / "config.json"))
    except (OSError, ValueError, TypeError):
        return {}


def epochs(run: Path) -> list[int]:
    """Return the epochs N that a run has saved as epoch_N, in order."""
    return sorted(int(path.name[6:]) for path in run.glob("epoch_*") if re.fullmatch(r"epoch_\d+", path.name))


def records(run: Path) -> list[dict]:
    """Return the records of metrics.jsonl. Raise ValueError naming a damaged line."""
    return [record for _, record in read_lines(run / "metrics.jsonl")]


def best_epoch(run: Path) -> int | None:
    """Return the evaluated epoch with the highest score, the first of equal ones. None before the first evaluation."""
    _, scores = evaluations(run)
    return max(scores, key=scores.get) if scores else None


def best_saved(run: Path) -> int | None:
    """Return the best of the evaluated epochs that have a folder epoch_N; None without one."""
    _, scores = evaluations(run)
    return max((epoch for epoch in epochs(run) if epoch in scores), key=scores.get, default=None)


def best_of_run(name: str, key: str = "adapter") -> tuple[str, str]:
    """Return the folder of the best epoch by evaluation if `name` is a run's folder, else `name`, and a line about the
    choice. Raise ArgumentError, naming the key, if no epoch that the run saved was evaluated."""
    run = Path(name)
    if not (run / "metrics.jsonl").is_file() or (run / "adapter_config.json").is_file():
        return name, ""
    kind, scores = evaluations(run)
    best = best_saved(run)
    if best is None:
        folders = ", ".join(sorted(path.name for path in run.glob("epoch_*"))) or "none"
        raise ArgumentError(f"{key}={name}: no saved epoch was evaluated, so none is best; choose one of: {folders}")
    saved = sum(epoch in scores for epoch in epochs(run))
    among = f"the best of {saved} evaluated epochs" if saved > 1 else "the only evaluated epoch"
    choice = f"epoch_{best} is {among} that the run saved, by {kind}"
    line = f"{name}: {choice}, {shown(kind, scores[best])}"
    return str(run / f"epoch_{best}"), line + no_gain(kind, scores, best)


def no_gain(kind: str, scores: dict[int, float], best: int) -> str:
    """Return the end of a line if the epoch `best` scores no higher than the model before training, else ""."""
    no_worse = scores.get(0, -float("inf")) >= scores[best]
    return f"; before training it was no worse, {shown(kind, scores[0])}" if no_worse else ""


def shown(kind: str, score: float) -> str:
    """Return an epoch's score as it is printed."""
    return f"{score:.1%}" if kind == "success" else f"{-score:.4f}"


def evaluations(run: Path) -> tuple[str, dict[int, float]]:
    """Return what the epochs of a run are judged by, "success" or "held-out loss" (best_by=loss, or nothing was
    played), and each evaluated epoch's score: its success in sampled play, or the negative loss. Higher is better."""
    played, losses = {}, {}
    for record in records(run):
        if "eval" in record and record["eval"]["temperature"]:
            played[record["epoch"]] = record["eval"]["success"]
        if "eval_loss" in record:
            losses[record["epoch"]] = -record["eval_loss"]
    by_loss = not played or (losses and settings(run).get("best_by") == "loss")
    return ("held-out loss", losses) if by_loss else ("success", played)


def evaluation_missing(cfg: Config, run: Path, epoch: int) -> bool:
    """Return whether the metrics lack an evaluation that this run makes, at this epoch."""
    found = [record for record in records(run) if "eval" in record or "eval_loss" in record]
    here = [record for record in found if record["epoch"] == epoch]
    if cfg.eval_episodes and not cfg.data:
        return not any(record.get("eval", {}).get("temperature") == 0.0 for record in here)
    return not here and (bool(found) or epoch == 0)


def is_finished(cfg: Config, run: Path) -> bool:
    """Return whether the run in the folder has taken all its epochs or steps, or patience= is exhausted, and has made
    its last evaluation.

    A run whose newest checkpoint is damaged has not: it goes on from the one before.
    """
    newest = checkpoints(run)[-1]
    if not is_whole(newest):
        return False
    try:
        counters = read_json(newest / "state.json")
        done = all_taken(cfg, counters["epoch"], counters["step"]) or exhausted(cfg, run)
    except (OSError, ValueError, KeyError, TypeError):
        return False  # damaged: resuming skips it
    return done and not evaluation_missing(cfg, run, counters["epoch"])
