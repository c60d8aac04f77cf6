"""Read recipes, which may be a stranger's. Imported for every recipe but recipes/embedded.toml.

A recipe may have two tables beside those of its keys: [tiny] changes it for the embedded model, and [guide] names the
model and device of the guide that it is from, which guide=true takes.
"""

import tomllib
from pathlib import Path
from typing import Any

from rl.arguments import ArgumentError, convert, flatten
from rl.refusals import RECIPES, wrong_recipe

EXAMPLE = "affine_ppo"
MOST_BYTES, MOST_DEPTH = 2**14, 8  # of a file, in which tomllib's time grows with the square; of tables in one another


Layer = tuple[str, dict[str, Any]]  # source, keys


def layers(given: dict[str, Any]) -> tuple[Any, list[Layer], list[Layer]]:
    """Return the model that recipe=, guide= and model= name, if any, the layers for any model, and those for the
    embedded model alone. Raise ArgumentError for guide=true without a recipe that has a guide."""
    name = given.get("recipe") or ""
    table = read(name, Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml") if name else {}
    guide, tiny = table.pop("guide", {}), table.pop("tiny", {})
    named = [(f"recipe {name}", flatten(table))] if name else []
    if convert("guide", given.get("guide", False), bool):
        if not guide:
            raise ArgumentError(f"guide=true needs a recipe with a [guide] table, such as recipe={EXAMPLE}")
        named.append((f"recipe {name} [guide]", flatten(guide)))
        table |= guide
    for_tiny = [(f"recipe {name} [tiny]", flatten(tiny))] if tiny else []
    if convert("quick", given.get("quick", False), bool):
        for_tiny.append(("recipe quick", flatten(read("quick", RECIPES / "quick.toml"))))
    return given.get("model") or table.get("model"), named, for_tiny


def read(name: str, path: Path) -> dict[str, Any]:
    """Return the table in the file of recipe=NAME. Raise ArgumentError if it is missing, large, deep, or not TOML."""
    try:
        if path.stat().st_size > MOST_BYTES or not path.is_file():
            raise ValueError(f"not a file of at most {MOST_BYTES:,} bytes")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ArgumentError(wrong_recipe(name, path, error)) from None
    level = [table]
    for _ in range(MOST_DEPTH):
        level = [value for one in level for value in one.values() if isinstance(value, dict)]
    if level:
        raise ArgumentError(f"recipe={name}: tables more than {MOST_DEPTH} deep")
    for part in ("tiny", "guide"):
        if not isinstance(table.get(part, {}), dict):
            raise ArgumentError(f"recipe={name}: {part} must be a table, [{part}], not {table[part]!r}")
    return table
