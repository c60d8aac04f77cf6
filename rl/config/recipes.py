"""Read recipes, which may be a stranger's, and spread short keys over the environments.

A recipe may have two tables beside those of its keys: [tiny] changes it for the embedded model, and [guide] names the
model and device of the guide that it is from, which guide=true takes. Short keys are max_turns=N and sandbox=unsafe,
for every environment of a run that has them, and track=NAME for track.to.
"""

import tomllib
from pathlib import Path
from typing import Any, get_type_hints

import envs
from models.tiny.shape import same_shape
from rl.config.arguments import ArgumentError, convert, flatten, keys_of
from rl.config.fields import Config, Sampling
from rl.config.refusals import RECIPES, Refusal, hint, recipe_names
from rl.tasks import mixture

EXAMPLE = "affine_ppo"  # a recipe of a guide
MOST_BYTES, MOST_DEPTH = 2**14, 8  # of a file, in which tomllib's time grows with the square; of tables in one another
NO_RECIPES = (".yaml", ".yml", ".json", ".py")  # suffixes of other stacks' settings
SHARED = ("max_turns", "sandbox")  # keys whose default leaves every environment its own
OF_A_RUN = ("recipe", "resume", "resume_from", "out", "plan")  # keys that no recipe has

Layer = tuple[str, dict[str, Any]]  # source, keys


def recipe_layers(given: dict[str, Any]) -> list[Layer]:
    """Return (source, keys) of each recipe in effect, later ones win. For the embedded model recipes/embedded.toml
    comes first, and what is for this model alone comes last.

    Raise ArgumentError for guide=true without a recipe that has a guide.
    """
    name = given.get("recipe") or ""
    table = read(name, Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml") if name else {}
    guide, tiny = table.pop("guide", {}), table.pop("tiny", {})
    layers = [(f"recipe {name}", flatten(table))] if name else []
    if convert("guide", given.get("guide", False), bool):
        if not guide:
            raise ArgumentError(f"guide=true needs a recipe with a [guide] table, such as recipe={EXAMPLE}")
        layers.append((f"recipe {name} [guide]", flatten(guide)))
    for_tiny = [(f"recipe {name} [tiny]", flatten(tiny))] if tiny else []
    if convert("quick", given.get("quick", False), bool):
        for_tiny.append(("recipe quick", flatten(read("quick", RECIPES / "quick.toml"))))

    by_recipe = {key: value for _, keys in layers for key, value in keys.items()}
    model = convert("model", given.get("model") or by_recipe.get("model") or Config.model, str)
    if model != "tiny" and not (Path(model).is_dir() and same_shape(Path(model))):
        return layers
    embedded = flatten(read("embedded", RECIPES / "embedded.toml"))
    for env in {key.removesuffix(".data") for key in given | by_recipe if key.endswith(".data")}:
        embedded.pop(f"{env}.tasks", None)  # a file has its own tasks
    return [("recipe embedded", embedded), *layers, *for_tiny]


def read(name: str, path: Path) -> dict[str, Any]:
    """Return the table in the file of recipe=NAME. Raise ArgumentError if it is missing, large, deep, or not TOML."""
    try:
        if path.stat().st_size > MOST_BYTES or not path.is_file():
            raise Refusal(f"not a file of at most {MOST_BYTES:,} bytes")
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:
        if path.is_file():
            raise ArgumentError(f"recipe={name}: {path} is not TOML ({error})") from None
        wanted = "recipes are TOML files, NAME.toml" if name.endswith(NO_RECIPES) else f"no file {path}"
        raise ArgumentError(f"recipe={name}: {wanted}{hint(name.lower(), recipe_names())}") from None
    level = [table]
    for _ in range(MOST_DEPTH):
        level = [value for one in level for value in one.values() if isinstance(value, dict)]
    if level:
        raise ArgumentError(f"recipe={name}: tables more than {MOST_DEPTH} deep")
    for part in ("tiny", "guide"):
        if not isinstance(table.get(part, {}), dict):
            raise ArgumentError(f"recipe={name}: {part} must be a table, [{part}], not {table[part]!r}")
    for keys in (table, table.get("tiny", {}), table.get("guide", {})):
        if of_a_run := [key for key in OF_A_RUN if key in keys]:
            raise ArgumentError(f"recipe={name}: {of_a_run[0]}= is of one run; give it on the command line")
    return table


def share_options(layers: list[Layer], env: str) -> list[Layer]:
    """Return the layers with each key of SHARED as the key of each environment that has it, in the last layer that sets
    it.

    An environment's own key wins in the same layer and in later ones. `track` becomes `track.to`.
    """
    layers = [(source, {"track.to" if key == "track" else key: keys[key] for key in keys}) for source, keys in layers]
    kinds = get_type_hints(Sampling, include_extras=True)
    for key in SHARED:
        setting = [number for number, (_, keys) in enumerate(layers) if key in keys]
        if not setting:
            continue
        value = convert(key, layers[setting[-1]][1][key], kinds[key])
        if value == getattr(Sampling, key):
            continue
        layers = [(source, {name: keys[name] for name in keys if name != key}) for source, keys in layers]
        having = [name for name in mixture(env) if key in keys_of(envs.config_class(name))]
        if not having and key == "max_turns" and layers[setting[-1]][0] == "command line":
            raise ArgumentError(f"max_turns= has no effect with env={env}, which has no such option")
        source, keys = layers[setting[-1]]
        layers[setting[-1]] = (source, {f"{name}.{key}": value for name in having} | keys)
    return layers
