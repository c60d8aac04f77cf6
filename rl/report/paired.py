"""Two runs side by side: the paired difference of their last evaluations where they played the same held-out tasks."""

from pathlib import Path
from typing import Any

from rl.report import page
from rl.run import history
from rl.run.files import read_json
from rl.stats import DIFFERENCE, bootstrap, interval, verdict
from rl.tasks import mixture

KEYS = ("env", "eval_split", "order")  # with the options of the environments, they decide which tasks are drawn


def lines(folders: list[Path]) -> list[str]:
    """Return a line for sampled and one for greedy play of each run but the first: its success minus that of the first,
    with an 80 % interval; or one line that says why there is none."""
    configs, names = [read_json(folder / "config.json") for folder in folders], page.names_of(folders)
    first, *others = zip(names, folders, map(tasks_of, configs), strict=True)
    return [line for other in others for line in difference(*other, *first)]


def difference(name: str, run: Path, tasks: dict, other: str, reference: Path, their_tasks: dict) -> list[str]:
    """Return the lines of one run against another; tasks: of `tasks_of`."""
    keys = [key for key in tasks | their_tasks if tasks.get(key) != their_tasks.get(key)]
    keys = ["env"] if "env" in keys else keys  # whose options are others
    if keys:
        different = "; ".join(f"{key}={tasks.get(key)}, not {their_tasks.get(key)}" for key in keys[:3])
        return [f"{name} against {other}: not the same held-out tasks: {different}"]
    compared = []
    for kind in ("sampled", "greedy"):
        ours, theirs = (last(folder, greedy=kind == "greedy") for folder in (run, reference))
        if ours and theirs:
            pairs = [(a, b) for a, b in zip(ours[1], theirs[1], strict=False) if a is not None and b is not None]
            head = f"{name}, epoch {ours[0]}, against {other}, epoch {theirs[0]}, {kind}"
            compared += [described(head, pairs)] if pairs else []
    return compared or [f"{name} against {other}: no evaluation of both has the success of each task"]


def tasks_of(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run that decide which held-out tasks it plays."""
    options = {f"{name}.{key}": value for name in mixture(config["env"]) for key, value in config.get(name, {}).items()}
    return {key: config[key] for key in KEYS if key in config} | options


def last(run: Path, greedy: bool) -> tuple[int, list[int | None]] | None:
    """Return the epoch of a run's last evaluation and the success of each task; None if no evaluation has that."""
    evaluated = [r for r in history.records(run) if "successes" in r.get("eval", {})]
    evaluated = [r for r in evaluated if (r["eval"]["temperature"] == 0) == greedy]
    return (evaluated[-1]["epoch"], evaluated[-1]["eval"]["successes"]) if evaluated else None


def described(head: str, pairs: list[tuple[int, int]]) -> str:
    """Return the line of one comparison; pairs: the successes of both runs in each task."""
    differences = [a - b for a, b in pairs]
    low, high = interval(bootstrap(differences, DIFFERENCE))
    mean = sum(differences) / len(differences)
    bounds = f"80 % interval {low:+.1%} to {high:+.1%}"
    return f"{head}, the same {len(pairs)} tasks: {verdict(low, high)}; success {mean:+.1%} ({bounds})"
