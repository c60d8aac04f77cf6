"""The quantisation that an adapter was trained over. Imported by eval.py and merge.py alone."""

from itertools import pairwise
from pathlib import Path

from models.json_file import read_object
from rl.arguments import ArgumentError


def trained_over(adapter: str) -> str:
    """Return quant= of the run whose folder holds this adapter's; "none" if there is no such run."""
    return _quant_of_run(adapter) or "none"


def trained_over_all(adapters: list[str]) -> str:
    """Return quant= of the adapters' runs, and print it if it is not "none". Raise ArgumentError for runs that differ:
    one base could not be right for all."""
    kinds = {name: kind for name in adapters if (kind := _quant_of_run(name))}
    for (first, kind), (name, other) in pairwise(kinds.items()):
        if other != kind:
            pair = f"{first} was trained over quant={kind}, {name} over quant={other}"
            raise ArgumentError(f"{pair}; evaluate them one by one, or give quant= for all of them")
    first, kind = next(iter(kinds.items()), ("", "none"))
    if kind != "none":
        print(f"quant={kind}, as in the run of {first}")
    return kind


def _quant_of_run(adapter: str) -> str | None:
    """Return quant= in the config.json beside an adapter's folder, None without one."""
    try:
        settings = read_object(Path(adapter).parent / "config.json") if adapter else {}
        return str(settings.get("quant", "none")) if "algo" in settings else None
    except (OSError, ValueError, AttributeError):
        return None
