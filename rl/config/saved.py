"""The settings that a run has saved, and the words beside resume= and resume_from=."""

from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rl.config.arguments import ArgumentError, flatten
from rl.run.files import read_json
from rl.run.history import best_of_run


def check_words(given: dict[str, str], algorithms: Iterable[str]) -> None:
    """Raise ArgumentError for words that have no effect beside resume= or resume_from=. algorithms: the names."""
    for key in ("resume", "resume_from", "data"):
        if given.get(key) == "":
            raise ArgumentError(f"{key}= is given without a name")
    if given.get("resume_from"):  # of a run's folder the best epoch
        given["resume_from"], _ = best_of_run(given["resume_from"], "resume_from")
    if given.get("resume") and "recipe" in given:
        raise ArgumentError("recipe= has no effect beside resume=, which goes on with the run's own settings")
    if given.get("resume") and "resume_from" in given:
        raise ArgumentError("resume_from= has no effect beside resume=, which goes on with the run's own adapters")
    if given.get("resume") and given.get("algo") in algorithms:
        run, algo, own = given["resume"], given["algo"], saved_settings(given["resume"]).get("algo", given["algo"])
        if algo != own:
            anew = f"leave algo= out, or begin anew from its adapter: algo={algo} resume_from={run}"
            raise ArgumentError(f"resume={run} goes on with a run of algo={own}, not of algo={algo}; {anew}")
    own = [key for key in given if key.startswith("lora.") and (key, given[key]) != ("lora.r", "0")]
    if given.get("resume_from") and own:
        raise ArgumentError(f"{own[0]}= has no effect beside resume_from=, whose adapter has its own settings")


def saved_settings(run: str) -> dict[str, Any]:
    """Return the keys of the config.json that a run was started with, and its folder as `out`."""
    path = Path(run) / "config.json"
    if not path.is_file():
        raise ArgumentError(f"resume={run}: no file {path}, so this is not a run's folder{_meant(Path(run))}")
    try:
        keys = flatten(read_json(path))
    except (ValueError, AttributeError, RecursionError) as error:
        raise ArgumentError(f"resume={run}: {path} is not a table of keys in JSON ({error})") from None
    if keys.pop("reduce", "tree") == "fast":  # a key that older runs saved
        print("reduce=fast is gone: gradients of ranks are added in a tree, and the run goes on with other bits")
    return {**keys, "out": run}


def _meant(folder: Path) -> str:
    """Return the end of a message about a folder that is no run's: the runs in it, around it, or of a similar name."""
    near = get_close_matches(folder.name, [path.name for path in _runs(folder.parent)], 1)
    inside = [str(path) for path in _runs(folder)]
    if inside:
        return f"; runs are there: {', '.join(inside[:5])}{', ...' * (len(inside) > 5)}"
    if folder.is_dir() and (folder.parent / "metrics.jsonl").is_file():
        return f"; did you mean {folder.parent}?"
    return f"; did you mean {folder.parent / near[0]}?" if near else ""


def _runs(folder: Path) -> list[Path]:
    """Return the folders of runs in the folder, sorted by name."""
    return sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
