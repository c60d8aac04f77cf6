"""Read recipes, which may be a stranger's, and spread short keys over the environments.

A recipe may have two tables beside those of its keys: [tiny] changes it for the embedded model, and [guide] names the
model and device of the guide that it is from, which guide=true takes. Short keys are max_turns=N and sandbox=unsafe,
for every environment of a run that has them, and track=NAME for track.to.
"""

import tomllib
from pathlib import Path
from typing import Any, Literal

import envs
from rl.config import arguments
from rl.config.arguments import ArgumentError, NotNegative, convert, flatten
from rl.config.refusals import RECIPES, wrong_recipe
from rl.tasks import mixture

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


SHARED = {  # key -> its type in Common, and the value with which every environment keeps its own
    "max_turns": (NotNegative[int], 0),
    "sandbox": (Literal["own", "isolated", "unsafe"], "own"),
}


def share_options(layers: list[tuple[str, dict[str, Any]]], env: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the layers with each key of SHARED as the key of each environment that has it, in the last layer that sets
    it.

    An environment's own key wins in the same layer and in later ones. `track` becomes `track.to`.
    """
    layers = [(source, {"track.to" if key == "track" else key: keys[key] for key in keys}) for source, keys in layers]
    for key, (kind, own) in SHARED.items():
        found = [n for n, (_, keys) in enumerate(layers) if key in keys]
        value = arguments.convert(key, layers[found[-1]][1][key], kind) if found else own
        if value != own:
            layers = _shared(layers, found[-1], key, value, env)
    return layers


def _shared(
    layers: list[tuple[str, dict[str, Any]]], last: int, key: str, value: Any, env: str
) -> list[tuple[str, dict[str, Any]]]:
    """Return the layers with a key as that of each environment in layer number `last`."""
    having = [name for name in mixture(env) if key in arguments.keys_of(envs.config_class(name))]
    found = [(source, {name: keys[name] for name in keys if name != key}) for source, keys in layers]
    source, keys = found[last]
    found[last] = (source, {f"{name}.{key}": value for name in having} | keys)
    return found
