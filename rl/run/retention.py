"""Which epochs a run saves and keeps, and whether it has finished: by epochs=, max_steps=, max_sampled_tokens= or
patience=.

rl/run/history.py finds the best epoch.
"""

from pathlib import Path

from rl import ranks
from rl.config.fields import Config, Loop, Saving
from rl.run.files import checkpoints, is_whole, read_json, remove
from rl.run.history import best_epoch, best_saved, evaluations, records, sampled_tokens, saved_epochs, settings
from rl.run.state import TrainState

KEEP = 2  # newest whole checkpoints that stay without save_total_limit: if one is damaged, there is another


def to_save(state: TrainState, cfg: Saving, stats: dict) -> bool:
    """Return whether the epoch that has ended is one of save_steps or save_every; stats: its metrics."""
    if not cfg.save_steps:
        return state.epoch % cfg.save_every == 0
    before = state.step - stats["optimizer_steps"] - stats["skipped_steps"]
    return state.step // cfg.save_steps > before // cfg.save_steps


def limits_reached(cfg: Loop, epoch: int, step: int, sampled_tokens: int) -> dict[str, int]:
    """Return which of the keys epochs, max_steps and max_sampled_tokens have ended the run, with what was taken.
    sampled_tokens: of all its epochs."""
    taken = {"epochs": epoch, "max_steps": step, "max_sampled_tokens": sampled_tokens}
    return {key: n for key, n in taken.items() if 0 < getattr(cfg, key) <= n}


def words_to_go_on(cfg: Config, reached: dict[str, int], run: Path) -> str:
    """Return the words beside resume= with which a finished run goes on. reached: what `limits_reached` returned."""
    words = [f"{key}={2 * n}" for key, n in reached.items()]
    return " ".join(words + ["patience=0"] * patience_exhausted(cfg, run))


def patience_exhausted(cfg: Saving, run: Path) -> bool:
    """Return whether `patience` evaluations or more were made since the best one."""
    best, (_, scores) = best_epoch(run), evaluations(run)
    return bool(cfg.patience) and sum(epoch > best for epoch in scores) >= cfg.patience


@ranks.first_only
def prune(run: Path, state: TrainState) -> None:
    """Remove saves of earlier epochs than the state's: checkpoints, and with save_total_limit= also epoch_N.

    These stay: the newest (save_total_limit, or the KEEP newest checkpoints; of checkpoints whole ones), the best epoch
    by evaluation, the one that was resumed from.
    """
    limit = settings(run).get("save_total_limit")
    best = best_saved(run)
    if limit:
        earlier = [epoch for epoch in saved_epochs(run) if epoch <= state.epoch]
        for epoch in earlier[:-limit]:
            if epoch not in (best, state.resumed_from):
                remove(run / f"epoch_{epoch}")
    protected, whole = {state.resumed_from, best_epoch(run), best}, 0
    for folder in reversed(checkpoints(run)):
        epoch = int(folder.name.split("-")[1])
        if epoch > state.epoch:
            continue  # damaged, or the run would have resumed from it; the run replaces it when it gets there
        just_written = epoch == state.epoch
        if whole < (limit or KEEP) and (just_written or is_whole(folder)):
            whole += 1
        elif epoch not in protected:
            remove(folder)


def evaluation_missing(cfg: Config, run: Path, epoch: int) -> bool:
    """Return whether the metrics lack an evaluation that this run makes, at this epoch."""
    evaluated = [record for record in records(run) if "eval" in record or "eval_loss" in record]
    of_epoch = [record for record in evaluated if record["epoch"] == epoch]
    if cfg.eval_episodes and not cfg.data:
        return not any(record.get("eval", {}).get("temperature") == 0.0 for record in of_epoch)
    return not of_epoch and (bool(evaluated) or epoch == 0)


def words_if_finished(cfg: Config, run: Path) -> str:
    """Return "" if the run in the folder has not finished, or lacks its last evaluation; else `words_to_go_on`.

    A run whose newest checkpoint is damaged has not: it goes on from the one before.
    """
    newest = checkpoints(run)[-1]
    if not is_whole(newest):
        return ""
    try:
        counters = read_json(newest / "state.json")
        tokens = counters.get("sampled_tokens")
        tokens = sampled_tokens(run, counters["epoch"]) if tokens is None else tokens  # of an earlier checkpoint
        words = words_to_go_on(cfg, limits_reached(cfg, counters["epoch"], counters["step"], tokens), run)
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # damaged: resuming skips it
    return "" if evaluation_missing(cfg, run, counters["epoch"]) else words
