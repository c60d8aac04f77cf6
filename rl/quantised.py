"""The base model of an adapter, and the quantisation that it was trained over. train.py does not import it."""

from itertools import pairwise
from pathlib import Path

import lora
from models.weights import TINY
from rl.arguments import ArgumentError
from rl.as_trained import settings_of


def with_base(words: list[str], adapters: list[str]) -> list[str]:
    """Return the words with model=, the base that the first of the adapters' folders names, and quant=, as their runs
    had it, where the words lack them. Raise ArgumentError for runs with different quantisations."""
    given = {word.partition("=")[0] for word in words}
    if adapters and "quant" not in given:
        quant = trained_over_all(adapters)
        words = [*words, f"quant={quant}"] if quant != "none" else words
    if "model" in given or not adapters:
        return words
    try:
        base = lora.read_adapter_config(Path(adapters[0])).get("base_model_name_or_path")
    except (OSError, ValueError):  # reported when the adapter is loaded
        return words
    return [*words, f"model={'tiny' if Path(base).resolve() == TINY.resolve() else base}"] if base else words


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
    """Return quant= in the settings saved beside an adapter, or in its run's folder; None without them."""
    try:
        settings = settings_of(Path(adapter)) if adapter else None
        return None if settings is None else str(settings.get("quant", "none"))
    except (OSError, ArgumentError):
        return None
