"""Recipes: settings from TOML files. Their keys are dotted: ppo.clip."""

import tomllib
from pathlib import Path
from typing import Any

from models.weights import is_tiny
from rl.arguments import ArgumentError, hint

FOLDER = Path(__file__).parent.parent / "recipes"
RENAMED = {"default": "embedded"}


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def layers(recipe: str, model: str | None, default_model: str) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, keys) of each recipe in effect; later ones win.

    For the embedded model recipes/embedded.toml comes first, and a recipe's [tiny] table last, as "NAME [tiny]".
    model: the command line's, else the recipe's, else default_model counts.
    """
    table = _read(recipe) if recipe else {}
    tiny = flatten(table.pop("tiny", {}))
    found = [(recipe, flatten(table))] if recipe else []
    if is_tiny(model or table.get("model", default_model)):
        found = [("embedded", flatten(_read("embedded"))), *found, *([(f"{recipe} [tiny]", tiny)] if tiny else [])]
    return found


def _read(name: str) -> dict[str, Any]:
    """Return the table in recipes/NAME.toml, or in the file `name` if that ends in .toml."""
    path = Path(name) if name.endswith(".toml") else FOLDER / f"{name}.toml"
    if not path.is_file():
        renamed = f"; it is now called {RENAMED[name]}" if name in RENAMED else hint(name, names())
        raise ArgumentError(f"recipe={name}: no file {path}{renamed}")
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise ArgumentError(f"recipe={name}: {path} is not TOML ({error})") from None
    if not isinstance(table.get("tiny", {}), dict):
        raise ArgumentError(f"recipe={name}: tiny must be a table, [tiny], not {table['tiny']!r}")
    return table


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table with dotted keys."""
    flat = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
