"""Play an adapter as its run did: over the same base and quantisation, with the settings that are saved beside it.

Settings are put in front of the words of the command line, which win.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import lora
from envs import scorer
from envs.own_splits import OwnSplits
from models.weights import HUB_ID, TINY
from rl.config import arguments
from rl.config.arguments import ArgumentError, flatten, word
from rl.config.fields import Config
from rl.config.recipes import recipe_layers
from rl.config.words import group_class, merged
from rl.run.files import read_json
from rl.tasks import make_env, mixture

SAVED = "training_config.json"  # beside an adapter: the config.json of its run
# keys that decide what is played, beside reward.* and ENV.*
PLAYED = ("env", "system_prompt", "thinking", "temperature", "max_new_tokens", "max_len", "order")
PLAYED += ("history", "max_thinking_tokens")
IF_SET = {"system_prompt": "", "history": "append", "max_thinking_tokens": 0}  # shown unless they have these values
TRUNCATION = {"top_k": 0, "top_p": 1.0}  # keys of eval.py that change what is played, and their defaults
EXAMPLE_OF_SPLITS = "env=planner planner.data=gsm8k planner.splits=own"  # an environment whose tasks n=0 counts


def with_settings(words: list[str], adapters: list[str]) -> list[str]:
    """Return the words behind those that set what the adapters' runs played. The words win, and so does a recipe= that
    they name.

    Raise ArgumentError if no adapter has settings and the words lack env=, for runs that differ in a key, and for
    settings that name a program: whoever made an adapter does not decide what is executed here.
    """
    given = arguments.split(words)
    recipe = merged([layer for layer in recipe_layers(given) if layer[0] != "recipe embedded"])
    set_by_words = {**recipe, **given}
    folders = [name for name in adapters if Path(name).is_dir()]  # missing ones are reported when they load
    if folders and "env" not in set_by_words and not any(settings_of(Path(name)) for name in folders):
        lacks = f"{folders[0]} has no {SAVED}, so what it was trained to play is unknown"
        raise ArgumentError(f"{lacks}; give env=, its options, and temperature= and max_new_tokens= as in training")
    first, agreed = "", {}
    for name in adapters:
        played = _played(settings_of(Path(name)) or {}, set_by_words)
        for key in programs(played):
            executed = f"{name} was trained with {key}={played[key]}, which is a program"
            raise ArgumentError(f"{executed}; give {key}= yourself to execute it")
        for key in sorted(played.keys() & agreed.keys()):
            if played[key] != agreed[key]:
                pair = f"{first} was trained with {key}={word(agreed[key])}, {name} with {key}={word(played[key])}"
                raise ArgumentError(f"{pair}; give {key}= for all of them, or evaluate them one by one")
        first, agreed = first or (name if played else ""), {**played, **agreed}
    return [*(f"{key}={word(value)}" for key, value in sorted(agreed.items())), *words]


def with_base(words: list[str], adapters: list[str]) -> list[str]:
    """Return the words with model=, the base that the first of the adapters' folders names, and quant= and thinking= of
    their runs, where the words lack them. Raise ArgumentError for runs that differ in one of these."""
    given = {arguments.key_of(each) for each in words}
    for key, usual in (("quant", "none"), ("thinking", "true")):
        if key in given:
            continue
        values = [(name, value) for name in adapters if (value := _value_of_run(name, key, usual))]
        for (first, value), (name, other) in pairwise(values):
            if other != value:
                pair = f"{first} was trained with {key}={value}, {name} with {key}={other}"
                raise ArgumentError(f"{pair}; use them one by one, or give {key}= for all of them")
        if values and values[0][1] != usual:
            first, value = values[0]
            print(f"{key}={value}, as in the run of {first}")
            words = [*words, f"{key}={value}"]
    if "model" in given or not adapters:
        return words
    try:
        lora.read_adapter_config(Path(adapters[0]))
    except (OSError, ValueError):  # reported when the adapter is loaded
        return words
    base = named_base(Path(adapters[0]))
    return [*words, f"model={base}"] if base else words


def named_base(adapter: Path) -> str:
    """Return the base that an adapter names, "" if it names none. If that is a path that is gone, return model= of the
    adapter's run and print a line. Raise ArgumentError if that is gone too."""
    base = lora.read_adapter_config(adapter).get("base_model_name_or_path") or ""
    if base and Path(base).resolve() == TINY.resolve():
        return "tiny"
    if not is_gone(base):
        return base
    own = str((settings_of(adapter) or {}).get("model", ""))
    if not own or is_gone(own):
        raise ArgumentError(f"{adapter} names the base {base}, which is not there; give model=, its place now")
    print(f"{adapter} names the base {base}, which is not there: model={own} instead, as in its run")
    return own


def is_gone(model: str) -> bool:
    """Return whether the name of a model is a path, and nothing is there."""
    is_path = model not in ("", "tiny", "smol") and not HUB_ID.fullmatch(model.partition("@")[0])
    return is_path and not Path(model).exists()


def count_tasks(cfg: Config, split: str) -> int:
    """Return how many tasks a split has. Raise ArgumentError unless env= names one environment that plays a data set's
    own splits."""
    names = list(mixture(cfg.env))
    env = make_env(cfg, names[0])
    try:
        count = env.count(split) if len(names) == 1 and isinstance(env, OwnSplits) else 0
    except ValueError as error:  # the data set has no such split
        raise ArgumentError(str(error)) from None
    if not count:
        example = f"such as {EXAMPLE_OF_SPLITS}, not env={cfg.env}"
        raise ArgumentError(f"n=0 needs one environment with tasks of a file, {example}")
    return count


def what_is_played(cfg: Config, truncation: dict[str, float] | None = None) -> dict[str, Any]:
    """Return the keys of a configuration that decide what is played and how it is scored, with eval.py's TRUNCATION."""
    played = {name: group for name, group in cfg.environments.items() if name in mixture(cfg.env)}
    options = flatten({name: vars(group) for name, group in [("reward", cfg.reward), *played.items()]})
    shown = {key: getattr(cfg, key) for key in PLAYED if key not in IF_SET or getattr(cfg, key) != IF_SET[key]}
    return shown | (truncation or {}) | options


def describe(cfg: Config, truncation: dict[str, float]) -> str:
    """Return one line: what is played, without the options that have their defaults."""
    usual = flatten({name: vars(group_class(name)()) for name in ("reward", *mixture(cfg.env))}) | TRUNCATION
    settings = {key: value for key, value in what_is_played(cfg, truncation).items() if usual.get(key, ...) != value}
    return f"plays {' '.join(f'{key}={word(value)}' for key, value in settings.items())}"


def origin(words: list[str], adapters: list[str]) -> list[str]:
    """Return a line that names the adapters whose settings are used, and the words that win over them."""
    runs = {name: settings for name in adapters if (settings := settings_of(Path(name)))}
    if not runs:
        return []
    overriding = [each for each in words if arguments.key_of(each) not in ("adapter", "json", "against", "out")]
    recipes = sorted({f" (recipe={settings['recipe']})" for settings in runs.values() if settings.get("recipe")})
    rest = f"; the command line: {' '.join(overriding)}" if overriding else ""
    return [f"settings as in the run of {', '.join(runs)}{''.join(recipes)}{rest}"]


def trained_over(adapter: str) -> str:
    """Return quant= of the run whose folder holds this adapter's; "none" if there is no such run."""
    return _value_of_run(adapter, "quant", "none") or "none"


def settings_of(folder: Path) -> dict[str, Any] | None:
    """Return the keys that an epoch's folder was trained with, from itself or from its run's folder; None without.

    Raise ArgumentError for a damaged file.
    """
    return (settings_file(folder) or (None, None))[1]


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


def programs(settings: dict[str, Any]) -> list[str]:
    """Return the keys that name a program of whoever made the settings."""
    return [key for key, value in settings.items() if key.endswith(".match") and scorer.file_of(str(value))]


def _played(settings: dict[str, Any], set_by_words: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that decide what is played, without those of `set_by_words`, which names options of all
    environments as max_turns= and sandbox=."""
    env = str(set_by_words.get("env", settings.get("env", Config.env)))
    groups, shared = {"reward", *mixture(env)}, {"max_turns", "sandbox"} & set_by_words.keys()
    played = {}
    for key, value in settings.items():
        decides = key in PLAYED or key.partition(".")[0] in groups
        if decides and key not in set_by_words and key.rpartition(".")[2] not in shared:
            played[key] = value
    return played


def _value_of_run(adapter: str, key: str, usual: str) -> str | None:
    """Return a key, as a word, of the settings saved beside an adapter or in its run's folder; None without settings.
    usual: its value in settings that lack the key."""
    try:
        settings = settings_of(Path(adapter)) if adapter else None
        return None if settings is None else word(settings.get(key, usual))
    except (OSError, ArgumentError):
        return None
