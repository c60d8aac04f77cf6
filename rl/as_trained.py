"""Play an adapter as its run did: the settings that are saved beside it.

eval.py uses it; train.py does not import it. Settings are put in front of the words of the command line, which win.
"""

from pathlib import Path
from typing import Any

from envs import scorer
from rl import arguments, config
from rl.arguments import ArgumentError, flatten, word
from rl.guard.files import read_json
from rl.tasks import mixture

SAVED = "training_config.json"  # beside an adapter: the config.json of its run
# keys that decide what is played, beside reward.* and ENV.*
PLAYED = ("env", "system_prompt", "thinking", "temperature", "max_new_tokens", "max_len", "order")
TRUNCATION = {"top_k": 0, "top_p": 1.0}  # keys of eval.py that change what is played, and their defaults


def settings_of(folder: Path) -> dict[str, Any] | None:
    """Return the keys that an epoch's folder was trained with, from itself or from its run's folder; None without.

    Raise ArgumentError for a damaged file.
    """
    found = settings_file(folder)
    return found and found[1]


def settings_file(folder: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the file of `settings_of`, and what it holds."""
    for path in (folder / SAVED, folder.parent / "config.json"):
        if path.is_file():
            try:
                settings = flatten(read_json(path))
            except (ValueError, AttributeError, RecursionError) as error:
                raise ArgumentError(f"{path}: not a table of settings in JSON ({error})") from None
            if "algo" in settings:  # else the config.json of a model
                return path, settings
    return None


def with_settings(words: list[str], adapters: list[str]) -> list[str]:
    """Return the words behind those that set what the adapters' runs played. The words win, and so does a recipe= that
    they name.

    Raise ArgumentError if no adapter has settings and the words lack env=, for runs that differ in a key, and for
    settings that name a program: whoever made an adapter does not decide what is executed here.
    """
    given = arguments.split(words)
    own = {**_set_by_recipe(given), **given}
    folders = [name for name in adapters if Path(name).is_dir()]  # missing ones are reported when they load
    if folders and "env" not in own and not any(settings_of(Path(name)) for name in folders):
        lacks = f"{folders[0]} has no {SAVED}, so what it was trained to play is unknown"
        raise ArgumentError(f"{lacks}; give env=, its options, and temperature= and max_new_tokens= as in training")
    first, found = "", {}
    for name in adapters:
        played = _played(settings_of(Path(name)) or {}, own)
        for key in programs(played):
            executed = f"{name} was trained with {key}={played[key]}, which is a program"
            raise ArgumentError(f"{executed}; give {key}= yourself to execute it")
        for key in sorted(played.keys() & found.keys()):
            if played[key] != found[key]:
                pair = f"{first} was trained with {key}={word(found[key])}, {name} with {key}={word(played[key])}"
                raise ArgumentError(f"{pair}; give {key}= for all of them, or evaluate them one by one")
        first, found = first or (name if played else ""), {**played, **found}
    return [*(f"{key}={word(value)}" for key, value in sorted(found.items())), *words]


def programs(settings: dict[str, Any]) -> list[str]:
    """Return the keys that name a program of whoever made the settings."""
    return [key for key, value in settings.items() if key.endswith(".match") and scorer.file_of(str(value))]


def what_is_played(cfg: Any, keys: Any = None) -> dict[str, Any]:
    """Return the keys of a configuration, and of eval.py, that decide what is played and how it is scored."""
    options = flatten({name: vars(group) for name, group in vars(cfg).items() if name in {"reward", *mixture(cfg.env)}})
    shown = {key: getattr(cfg, key) for key in PLAYED if key != "system_prompt" or cfg.system_prompt}
    return shown | ({key: getattr(keys, key) for key in TRUNCATION} if keys else {}) | options


def describe(cfg: Any, keys: Any) -> str:
    """Return one line: what is played, without the options that have their defaults."""
    usual = flatten({name: vars(config.group_class(name)()) for name in ("reward", *mixture(cfg.env))}) | TRUNCATION
    settings = {key: value for key, value in what_is_played(cfg, keys).items() if usual.get(key, ...) != value}
    return f"plays {' '.join(f'{key}={word(value)}' for key, value in settings.items())}"


def origin(words: list[str], adapters: list[str]) -> list[str]:
    """Return a line that names the adapters whose settings are used, and the words that win over them."""
    runs = {name: settings for name in adapters if (settings := settings_of(Path(name)))}
    if not runs:
        return []
    own = [word for word in words if word.partition("=")[0] not in ("adapter", "json", "against", "out")]
    recipes = sorted({f" (recipe={settings['recipe']})" for settings in runs.values() if settings.get("recipe")})
    rest = f"; the command line: {' '.join(own)}" if own else ""
    return [f"settings as in the run of {', '.join(runs)}{''.join(recipes)}{rest}"]


def _played(settings: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that decide what is played, without those that `own` has, also as max_turns= and sandbox=."""
    env = str(own.get("env", settings.get("env", config.Common.env)))
    groups, shared = {"reward", *mixture(env)}, {"max_turns", "sandbox"} & own.keys()
    return {
        key: value
        for key, value in settings.items()
        if (key in PLAYED or key.partition(".")[0] in groups)
        and key not in own
        and key.rpartition(".")[2] not in shared
    }


def _set_by_recipe(given: dict[str, str]) -> dict[str, Any]:
    """Return the keys that the words' recipe= sets."""
    layers = config.recipe_layers(given)
    return config.merged([layer for layer in layers if layer[0] != "recipe embedded"])
