"""Recipes: settings from TOML files. Their keys are dotted: ppo.clip."""

import tomllib
from pathlib import Path
from typing import Any

from models.weights import is_tiny
from rl.arguments import ArgumentError

FOLDER = Path(__file__).parent.parent / "recipes"


def layers(recipe: str, model: str | None, default_model: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (source, keys) of each recipe in effect; later ones win.

    For the embedded model recipes/embedded.toml comes first, and a recipe's [tiny] table last, as "NAME [tiny]".
    model: the command line's, else the recipe's, else default_model counts.
    """
    table = _read(recipe) if recipe else {}
    tiny = table.pop("tiny", {})
    found = [(f"recipe {recipe}", flatten(table))] if recipe else []
    if is_tiny(model or table.get("model", default_model)):
        found.insert(0, ("recipe embedded", flatten(_read("embedded"))))
        if tiny:
            found.append((f"recipe {recipe} [tiny]", flatten(tiny)))
    return found


def _read(name: str) -> dict[str, Any]:
    """Return the table in recipes/NAME.toml, or in the file `name` if that ends in .toml."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # no file, not TOML, or not UTF-8
        from rl.refusals import wrong_recipe

        raise ArgumentError(wrong_recipe(name, path, error)) from None
    if not isinstance(table.get("tiny", {}), dict):
        raise ArgumentError(f"recipe={name}: tiny must be a table, [tiny], not {table['tiny']!r}")
    return table


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table with dotted keys."""
    flat = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
