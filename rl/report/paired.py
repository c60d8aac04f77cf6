"""Paired differences of evaluations that played the same held-out tasks: lines for report.html and the terminal."""

from pathlib import Path

from rl.run import history
from rl.run.history import HASH
from rl.stats import DIFFERENCE, bootstrap, interval, verdict

Played = tuple[list[int | None], list[int], str]  # the success of each episode, its task's number, `task_hashes`


def since_start(run: Path) -> list[str]:
    """Return a line for sampled and one for greedy play of a run: the success of its last evaluation minus that before
    training, with an 80 % interval. A kind without both evaluations has no line."""
    lines = []
    for kind in history.KINDS:
        played = evaluations(run, kind)
        if 0 in played and len(played) > 1:
            epoch, last = list(played.items())[-1]
            lines += difference(f"epoch {epoch} against epoch 0, before training, {kind}", last, played[0])
    return lines


def evaluations(run: Path, kind: str) -> dict[int, Played]:
    """Return what a run's evaluations of one of history.KINDS played, by epoch, without those that do not have the
    success of each episode. Evaluations of earlier versions do not number tasks, so that there each episode counts as
    a task, or do not hash them.
    """
    results = history.results(history.records(run), kind == "greedy")
    found = {epoch: result for epoch, result in results.items() if "successes" in result}
    return {
        epoch: (
            result["successes"],
            result.get("task_numbers") or [*range(len(result["successes"]))],
            result.get("task_hashes", ""),
        )
        for epoch, result in found.items()
    }


def difference(head: str, ours: Played, theirs: Played) -> list[str]:
    """Return the line of one comparison, which begins with `head`, over the episodes of the same tasks that both
    finished; no line if there is none."""
    same = [True] * len(ours[0])
    if ours[2] and theirs[2]:  # a resumed run may play others
        pieces = range(0, len(ours[2]), HASH)
        same = [ours[2][i : i + HASH] == theirs[2][i : i + HASH] for i in pieces]
    episodes = zip(ours[0], theirs[0], ours[1], same, strict=False)
    pairs = [(a - b, str(task)) for a, b, task, fits in episodes if fits and a is not None and b is not None]
    if not pairs:
        return []
    differences, tasks = zip(*pairs, strict=True)
    low, high = interval(bootstrap(differences, DIFFERENCE, tasks=tasks))
    distinct = len({*tasks})
    mean = sum(differences) / len(differences)
    bounds = f"80 % interval {low:+.1%} to {high:+.1%}"
    of_tasks = f"{len(pairs)} episodes of {distinct} tasks" if distinct < len(pairs) else f"{len(pairs)} tasks"
    return [f"{head}, the same {of_tasks}: {verdict(low, high)}; success {mean:+.1%} ({bounds})"]
