"""Read a recipe, which may be a stranger's. Imported for every recipe but recipes/embedded.toml."""

import tomllib
from pathlib import Path
from typing import Any

from rl.arguments import ArgumentError
from rl.refusals import wrong_recipe

MOST_BYTES, MOST_DEPTH = 2**14, 8  # of a file, in which tomllib's time grows with the square; of tables in one another


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
    if not isinstance(table.get("tiny", {}), dict):
        raise ArgumentError(f"recipe={name}: tiny must be a table, [tiny], not {table['tiny']!r}")
    return table
