"""What a run has logged and saved, read from its folder: records, saved epochs, evaluations, and the best epoch.

Any room may read a run, so this module imports nothing of theirs.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rl.config.arguments import ArgumentError, flatten
from rl.config.refusals import Refusal
from rl.run.files import read_json, read_lines

KINDS = ("sampled", "greedy")  # of play in an evaluation
HASH = 6  # hexadecimal digits of a task in `task_hashes` of an evaluation


def records(run: Path) -> list[dict]:
    """Return the records of metrics.jsonl. Raise ValueError naming a damaged line."""
    return [record for _, record in read_lines(run / "metrics.jsonl")]


def sampled_tokens(run: Path, epoch: int) -> int:
    """Return the tokens that the run's epochs up to this one have sampled, by its metrics.jsonl."""
    return sum(record.get("sampled_tokens", 0) for record in records(run) if record["epoch"] <= epoch)


def read_settings(path: Path) -> dict[str, Any]:
    """Return the keys of a config.json, with dots where they are in tables. Raise ValueError if it holds none."""
    try:
        return flatten(read_json(path))
    except (AttributeError, RecursionError) as error:
        raise Refusal(error) from None


def settings(run: Path) -> dict[str, Any]:
    """Return the keys of a run's config.json; {} without a whole one."""
    try:
        return read_settings(run / "config.json")
    except (OSError, ValueError):
        return {}


def saved_epochs(run: Path) -> list[int]:
    """Return the epochs N that a run has saved as epoch_N, in order."""
    return sorted(int(path.name[6:]) for path in run.glob("epoch_*") if re.fullmatch(r"epoch_\d+", path.name))


def results(records: list[dict], greedy: bool) -> dict[int, dict]:
    """Return the results of a run's evaluations by epoch, of greedy or of sampled play."""
    evaluated = [record for record in records if "eval" in record]
    return {record["epoch"]: record["eval"] for record in evaluated if (record["eval"]["temperature"] == 0) == greedy}


def losses(records: list[dict]) -> dict[int, float]:
    """Return a run's held-out losses by epoch."""
    return {record["epoch"]: record["eval_loss"] for record in records if "eval_loss" in record}


def best(scores: dict[int, float], epochs: Iterable[int]) -> int | None:
    """Return the first epoch of `epochs` with the highest score; None if none of them has a score."""
    return max((epoch for epoch in epochs if epoch in scores), key=scores.get, default=None)


def best_epochs(records: list[dict]) -> dict[str, int | None]:
    """Return the best of the epochs that have trained, by "sampled" and by "greedy" success and by held-out "loss"."""
    scores = {kind: {n: r["success"] for n, r in results(records, kind == "greedy").items()} for kind in KINDS}
    scores["loss"] = {epoch: -loss for epoch, loss in losses(records).items()}
    return {kind: best(of_kind, filter(None, of_kind)) for kind, of_kind in scores.items()}


def evaluations(run: Path) -> tuple[str, dict[int, float]]:
    """Return what the epochs of a run are judged by, "success" or "held-out loss" (best_by=loss, or nothing was
    played), and each evaluated epoch's score: its success in sampled play, or the negative loss. Higher is better."""
    logged = records(run)
    played = {epoch: result["success"] for epoch, result in results(logged, greedy=False).items()}
    negative = {epoch: -loss for epoch, loss in losses(logged).items()}
    by_loss = not played or (negative and settings(run).get("best_by") == "loss")
    return ("held-out loss", negative) if by_loss else ("success", played)


def best_epoch(run: Path) -> int | None:
    """Return the evaluated epoch with the highest score, the first of equal ones. None before the first evaluation."""
    _, scores = evaluations(run)
    return best(scores, scores)


def best_saved(run: Path) -> int | None:
    """Return the best of the evaluated epochs that have a folder epoch_N; None without one."""
    _, scores = evaluations(run)
    return best(scores, saved_epochs(run))


def best_of_run(name: str, key: str = "adapter") -> tuple[str, str]:
    """Return the folder of the best epoch by evaluation if `name` is a run's folder, else `name`, and a line about the
    choice. Raise ArgumentError, naming the key, if no epoch that the run saved was evaluated."""
    run = Path(name)
    if not (run / "metrics.jsonl").is_file() or (run / "adapter_config.json").is_file():
        return name, ""
    kind, scores = evaluations(run)
    epoch = best_saved(run)
    if epoch is None:
        folders = ", ".join(sorted(path.name for path in run.glob("epoch_*"))) or "none"
        raise ArgumentError(f"{key}={name}: no saved epoch was evaluated, so none is best; choose one of: {folders}")
    saved = len(scores.keys() & set(saved_epochs(run)))
    among = f"the best of {saved} evaluated epochs" if saved > 1 else "the only evaluated epoch"
    choice = f"epoch_{epoch} is {among} that the run saved, by {kind}"
    return str(run / f"epoch_{epoch}"), f"{name}: {choice}, {score_text(kind, scores, epoch)}"


def score_text(kind: str, scores: dict[int, float], best: int) -> str:
    """Return the score of the epoch `best` as it is printed, with that before training if it was no lower."""
    shown = {epoch: f"{score:.1%}" if kind == "success" else f"{-score:.4f}" for epoch, score in scores.items()}
    before = scores.get(0, -float("inf"))
    if not best or before < scores[best]:
        return shown[best]
    return f"{shown[best]}; before training it was {'better' if before > scores[best] else 'the same'}, {shown[0]}"


def start_line(epoch: Path) -> str:
    """Return a line about the epoch of a run from which another run starts: its score, and that before its own
    training. "" for any other folder."""
    run, number = epoch.parent, epoch.name.removeprefix("epoch_")
    try:
        kind, scores = evaluations(run)
    except (OSError, ValueError):  # not a run's, or damaged
        return ""
    if not number.isdecimal() or int(number) not in scores:
        return ""
    return f"resume_from={epoch}: {kind} {score_text(kind, scores, int(number))}"
