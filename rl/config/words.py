"""From the words key=value to a Config, set in three levels.

    python train.py algo=ppo env=textcraft lr=1e-3 lora.r=16 ppo.clip=0.2 recipe=dapo

1. The defaults in the code: rl/config/fields.py, the algorithm's Config and the environment's.
2. Recipes: recipe=NAME is recipes/NAME.toml. For the embedded model, recipes/embedded.toml is applied first.
3. The command line, where a later word wins over an earlier one.

Of algorithms and environments only those are loaded that the run uses or a word names.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, overload

import envs
from envs.refusal import Refusal as RefusedByEnvironment
from rl.config import arguments, checks, help
from rl.config.arguments import ArgumentError, flatten, word
from rl.config.fields import ALGORITHMS, EVERYDAY, READ_BY_EVAL, THEMES, Config, Lora, Reward, Track, algorithm_module
from rl.config.recipes import Layer, recipe_layers, share_options
from rl.config.refusals import recipe_names, unknown_key
from rl.run.history import best_of_run, read_settings
from rl.tasks import mixture

RUN_TABLES = {"lora": Lora, "reward": Reward, "track": Track}  # which every run has
GROUPS = (*RUN_TABLES, *ALGORITHMS, *envs.NAMES)
MAY_NAME_OTHERS = ("recipe embedded", "saved settings")  # layers with keys of groups that the run need not load

K = TypeVar("K")


@overload
def parse(words: list[str], program: str = "train.py") -> Config: ...
@overload
def parse(words: list[str], program: str, also: type[K]) -> tuple[Config, K]: ...
def parse(words, program="train.py", also=None):
    """Return the Config of key=value words. Exit with 0 after --help, with 2 and one line after a wrong word.

    also: a dataclass of keys that only this program has; its instance is returned beside the Config.
    """
    try:
        if arguments.wants_help(words):
            help.print_and_exit(help_text(words, program, also))
        return checked(words, program, also)
    except (ArgumentError, OSError, RefusedByEnvironment) as error:  # the last for a module that cannot be used
        arguments.fail(program, error)


def checked(words: list[str], program: str, also: type | None = None) -> Any:
    """Return what `parse` does. Raise ArgumentError, OSError or a Refusal of envs for a wrong word, one line each."""
    keys_of_a_run = {field.name for theme in THEMES for field in fields(theme)}
    if taken := envs.NAMES.keys() & {*keys_of_a_run, *RUN_TABLES, *ALGORITHMS}:  # config.json would mix them up
        name = min(taken)
        raise ArgumentError(
            f"no environment can be named {name}, as a setting is; rename it in NAMES of envs/__init__.py"
        )
    given = arguments.split(words)
    for key in ("resume_from", "opd.teacher", "reward.judge"):
        if given.get(key):  # of a run's folder the best epoch
            given[key], _ = best_of_run(given[key], key)
    check_words(given)
    more = {key: given.pop(key) for key in arguments.keys_of(also) if key in given} if also else {}
    keys = arguments.build(also, more) if also else None
    cfg = resolve(given, also)
    checks.check(cfg)
    if program == "train.py":
        checks.check_training(cfg)
        unused = groups_of(given) - {*RUN_TABLES, cfg.algo, *mixture(cfg.env)}
        strict = cfg.strict and "strict" in given  # recipes/embedded.toml sets it for other reasons
        if strict and (unread := [key for key in given if key.partition(".")[0] in unused]):
            raise ArgumentError(f"{unread[0]}= has no effect with algo={cfg.algo} env={cfg.env}; leave it out")
        if effectless := [key for key in given if key.startswith("lora.") and key != "lora.r" and not cfg.lora.r]:
            raise ArgumentError(f"{effectless[0]}= has no effect beside lora.r=0, which trains every weight")
        checks.check_effects(given, cfg)
    return (cfg, keys) if also else cfg


def resolve(given: dict[str, str], also: type | None = None) -> Config:
    """Return the Config of the given keys over the recipes, or over the settings of the run that is resumed.

    Raise ArgumentError for an unknown key and for a value that its field does not take. also: a dataclass whose keys
    an unknown key may resemble.
    """
    layers = layers_of(given)
    settings = merged(layers)
    keys = {key: value for theme in THEMES for key, value in vars(arguments.build(theme, settings)).items()}

    # The tables of the run, and of others those that a recipe or a word names, so that their keys are checked too.
    used = {*RUN_TABLES, keys["algo"], *mixture(keys["env"])} | groups_of(given)
    named = groups_of(merged([layer for layer in layers if layer[0] not in MAY_NAME_OTHERS]))
    classes = {name: group_class(name) for name in GROUPS if name in used | named}
    unread = set(GROUPS) - classes.keys()
    settings = {key: value for key, value in settings.items() if not groups_of([key]) & unread}
    _refuse_unknown(settings, classes, {keys["algo"], *mixture(keys["env"])}, also)
    tables = {name: arguments.build(cls, settings, name) for name, cls in classes.items()}

    of_run = {name: table for name, table in tables.items() if name in used}
    environments = {name: of_run.pop(name) for name in envs.NAMES if name in of_run}
    own = {name: of_run.pop(name) for name in ALGORITHMS if name in of_run and not hasattr(Config, name)}
    return checks.without_auto(Config(**keys, **of_run, own=own, environments=environments))


def _refuse_unknown(
    settings: dict[str, Any], classes: dict[str, type], own: Collection[str], also: type | None
) -> None:
    """Raise ArgumentError for the first key that neither the themes nor the classes of groups have. own: the groups of
    the run's algorithm and environments."""
    known = {key for theme in THEMES for key in arguments.keys_of(theme)}
    known |= {key for name, cls in classes.items() for key in arguments.keys_of(cls, name)}
    for key in settings:
        if key not in known:
            every = [("", cls) for cls in (*THEMES, also) if cls] + [(name, group_class(name)) for name in GROUPS]
            known = [k for group, cls in every for k in arguments.keys_of(cls, group)]
            raise ArgumentError(unknown_key(key, known, [k for k in known if k.partition(".")[0] in own]))


def group_class(name: str) -> type:
    """Return the dataclass of a group of GROUPS."""
    if name in RUN_TABLES:
        return RUN_TABLES[name]
    return algorithm_module(name).Config if name in ALGORITHMS else envs.config_class(name)


def groups_of(keys: Iterable[str]) -> set[str]:
    """Return the groups of the dotted keys."""
    return {key.partition(".")[0] for key in keys if "." in key}


def layers_of(given: dict[str, str]) -> list[Layer]:
    """Return (source, keys) of the recipes or of the resumed run, and of the command line; later ones win."""
    if given.get("resume"):
        layers = [("saved settings", saved_settings(given["resume"]))]
    else:
        layers = recipe_layers(given)
    layers.append(("command line", given))
    return share_options(layers, merged(layers).get("env", Config.env))


def merged(layers: list[Layer]) -> dict[str, Any]:
    """Return the keys of all layers; later ones win."""
    return {key: value for _, keys in layers for key, value in keys.items()}


def check_words(given: dict[str, str]) -> None:
    """Raise ArgumentError for words that have no effect beside resume= or resume_from=."""
    for key in ("model", "resume", "resume_from", "data"):
        if given.get(key) == "":
            raise ArgumentError(f"{key}= is given without a name")
    for key in ("recipe", "quick", "guide") if given.get("resume") else ():
        if key in given:
            raise ArgumentError(f"{key}= has no effect beside resume=, which goes on with the run's own settings")
    if given.get("resume") and Path(given.get("out", given["resume"])) != Path(given["resume"]):
        anew = f"copy that folder and resume the copy, or begin anew from its adapter: resume_from={given['resume']}"
        raise ArgumentError(f"out= has no effect beside resume=, which goes on in {given['resume']}; {anew}")
    if given.get("resume") and "resume_from" in given:
        raise ArgumentError("resume_from= has no effect beside resume=, which goes on with the run's own adapters")
    if given.get("resume") and given.get("algo") in ALGORITHMS:
        run, algo = given["resume"], given["algo"]
        saved_algo = saved_settings(run).get("algo", algo)
        if algo != saved_algo:
            anew = f"leave algo= out, or begin anew from its adapter: algo={algo} resume_from={run}"
            raise ArgumentError(f"resume={run} goes on with a run of algo={saved_algo}, not of algo={algo}; {anew}")
    if given.get("resume"):
        checks.check_as_saved(given, saved_settings(given["resume"]))
    if given.get("resume_from"):
        checks.check_as_adapter(given["resume_from"], given)


def saved_settings(run: str) -> dict[str, Any]:
    """Return the keys of the config.json that a run was started with, and its folder as `out`."""
    path = Path(run) / "config.json"
    if not path.is_file():
        file = f"; give its folder, {Path(run).parent}" if Path(run).is_file() else ""
        raise ArgumentError(f"resume={run}: no file {path}, so this is not a run's folder{file or _meant(Path(run))}")
    try:
        keys = read_settings(path)
    except ValueError as error:
        raise ArgumentError(f"resume={run}: {path} is not a table of keys in JSON ({error})") from None
    if keys.pop("reduce", "tree") == "fast":  # a key that older runs saved
        print("reduce=fast is gone: gradients of ranks are added in a tree, and the run goes on with other bits")
    return {**keys, "out": run}


def _meant(folder: Path) -> str:
    """Return the end of a message about a folder that is no run's: the runs in it, around it, or of a similar name."""
    runs = sorted(path.parent for path in folder.glob("*/metrics.jsonl"))
    if runs:
        return f"; runs are there: {', '.join(map(str, runs[:5]))}{', ...' * (len(runs) > 5)}"
    if folder.is_dir() and (folder.parent / "metrics.jsonl").is_file():
        return f"; did you mean {folder.parent}?"
    others = [path.parent.name for path in folder.parent.glob("*/metrics.jsonl") if path.parent.name != folder.name]
    near = get_close_matches(folder.name, others, 1)
    return f"; did you mean {folder.parent / near[0]}?" if near else ""


def describe_sources(cfg: Config) -> str:
    """Return one line: each recipe in effect with what it sets for this run, and what the command line sets; and a line
    of what this run does not read, because it is of another algorithm or environment."""
    named = {key: getattr(cfg, key) for key in ("algo", "env", "model", "recipe", "quick", "guide")}
    without_words = flatten(resolve({"resume": cfg.resume} if cfg.resume else named).as_dict())
    layers = [] if cfg.resume else layers_of(named)[:-1]
    source_of = {key: source for source, keys in layers for key in keys}
    parts, unread = {source: [] for source, _ in layers}, []
    for key, value in flatten(cfg.as_dict()).items():
        group, _, name = key.partition(".")
        if key not in without_words and value != vars(arguments.build(group_class(group), merged(layers), group))[name]:
            unread.append(f"{key}={word(value)}")
        source = source_of.get(key) if value == without_words.get(key) else "command line"
        if source and key in without_words and key not in named:
            parts.setdefault(source, []).append(f"{key}={word(value)}")
    start = " ".join(f"{key}={named[key]}" for key in ("algo", "env", "model"))
    start += f"; saved in {Path(cfg.resume) / 'config.json'}: the rest" if cfg.resume else ""
    unused = f"\nwithout effect with algo={cfg.algo} env={cfg.env}: {' '.join(unread)}" if unread else ""
    return (
        "; ".join([start, *(f"{source}: {' '.join(words) or 'nothing'}" for source, words in parts.items())]) + unused
    )


ABOUT = """
The values are those that your words give. A word wins over recipe=NAME, a recipe over the
defaults, which recipes/embedded.toml sets for the embedded model. A run's config.json has them all.
"""
ABOUT_EVAL = "Keys that only training reads may be given too, as recipes do, and change nothing."
MORE = """
More keys by a name behind --help: ppo (or another algorithm), textcraft (or another environment),
lora, reward, track, a key such as lr, or all. recipe= and env= list their names if one is wrong.
"""
SELDOM = {"adapters", "top_k", "top_p", "mode", "out"}  # keys of one program alone that the short help leaves out
WIDTH = 20  # columns of key=value in the short help, whose lines then fit into 100


def help_text(words: list[str], program: str, also: type | None = None) -> str:
    """Return the help of train.py, or of eval.py with the keys that it reads: those that most runs change, or those
    that words without "=" name. Values are those that the other words give.

    also: a dataclass of keys that only this program has. Raise ArgumentError for a name that is no key's or group's.
    """
    topics = [each for each in words if "=" not in each and not arguments.wants_help([each])]
    given = arguments.split([each for each in words if "=" in each])
    more = {key: given.pop(key) for key in arguments.keys_of(also) if key in given} if also else {}
    resolve(given, also)  # a wrong word is refused here too
    layers, short = layers_of(given), [] if given.get("resume") else recipe_layers(given)
    # `short` has max_turns= too, which becomes the environments'
    settings = {**merged([*short, *layers]), **given, **more}
    sources = {key: source for source, keys in layers for key in keys}

    def lines(cls: type, group: str = "", wanted: Collection[str] | None = None, width: int = 36) -> list[str]:
        return help.key_lines(cls, group, wanted, arguments.build(cls, settings, group), width)

    if topics and topics != ["all"]:
        themes = [*([also] if also else []), *THEMES]
        blocks = [block for topic in topics for block in _topic(topic, themes, lines, sources)]
        return help.page(program, ABOUT, blocks)
    evaluates, values = program == "eval.py", arguments.build(also, more) if also else None
    if not topics:
        own = help.key_lines(also, "", {*arguments.keys_of(also)} - SELDOM, values, WIDTH) if also else []
        wanted = EVERYDAY & READ_BY_EVAL if evaluates else EVERYDAY
        every = [line for theme in THEMES for line in lines(theme, "", wanted, WIDTH)]
        every += [line for name, cls in RUN_TABLES.items() for line in lines(cls, name, wanted, WIDTH)]
        return help.page(program, ABOUT, [*([own] if own else []), every, MORE.strip().splitlines()])
    alone = [help.key_lines(also, values=values)] if also else []
    wanted = READ_BY_EVAL if evaluates else None
    blocks = [[_heading(theme), *lines(theme, "", wanted)] for theme in THEMES]
    tables = ["reward"] if evaluates else [*RUN_TABLES, *ALGORITHMS]
    blocks += [[_heading(group_class(name), name), *lines(group_class(name), name)] for name in (*tables, *envs.NAMES)]
    blocks.append([f"recipes: {', '.join(recipe_names())}; environments: {', '.join(envs.NAMES)}"])
    about = ABOUT.rstrip() + f"\n{ABOUT_EVAL}" * evaluates
    return help.page(program, about, [*alone, *(block for block in blocks if len(block) > 1 or block == blocks[-1])])


def _topic(topic: str, themes: list[type], lines: Callable[..., list[str]], sources: dict[str, str]) -> list[list[str]]:
    """Return the blocks of help about a group or a key; of a name that several groups have, one of each. themes: the
    dataclasses of keys without a group."""
    if topic in GROUPS:
        return [[_heading(group_class(topic), topic), *lines(group_class(topic), topic)]]
    owners = [("", theme) for theme in themes] + [(name, group_class(name)) for name in GROUPS]
    found, known = [], [*GROUPS]
    for group, cls in owners:
        for f, key in zip(fields(cls), arguments.keys_of(cls, group), strict=True):
            known.append(key)
            if topic in (key, f.name):
                source = [f"  set by {sources[key]}; the default is {word(f.default)}"] if key in sources else []
                found.append([_heading(cls, group), *lines(cls, group, {key}), *source])
    if not found:
        raise ArgumentError(f"--help {topic}: {unknown_key(topic, known)}")
    return found


def _heading(cls: type, group: str = "") -> str:
    """Return the line above the keys of a theme or a group."""
    if group in ALGORITHMS:
        return f"The algorithm, algo={group}:"
    return f"The environment {group}:" if group in envs.NAMES else f"{cls.__doc__.split('.')[0]}:"
