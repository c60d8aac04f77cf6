"""One typed configuration: dataclasses, `key=value` on the command line, recipes in TOML, and --help made from both.

    python train.py algo=ppo env=textcraft lr=1e-3 lora.r=16 ppo.clip=0.2 recipe=default

A later word wins over an earlier one, the command line over the recipe, the recipe over recipes/default.toml, and that
over the defaults here; there is no second place where a default lives. An unknown key, a wrong type or an impossible
value is one line with the nearest valid key, and exit status 2, before anything is loaded. A recipe's [tiny] table
applies when the model is the embedded one.

The comment behind each field is its help text.
"""

import ast
import dataclasses
import difflib
import inspect
import io
import json
import re
import sys
import tokenize
import tomllib
import types
import typing
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path

import torch

import envs
from envs.terminal import reader_may_leave
from models.weights import is_tiny
from rl import grpo, ppo, reinforce, sft
from rl.update import OPTIMIZERS

ALGORITHMS = {"sft": sft, "reinforce": reinforce, "grpo": grpo, "ppo": ppo}
RECIPES = Path(__file__).parent.parent / "recipes"


@dataclass
class Lora:
    r: int = 16  # rank of the adapters; 0 trains every weight of the model instead
    alpha: float = 32  # the update is scaled by alpha / r
    dropout: float = 0.0  # on the adapters' input, in sft only: in rl it would make the first ratio differ from 1
    targets: str = "all-linear"  # all-linear | attention | names by comma | a regular expression for whole names
    rslora: bool = False  # scale by alpha / sqrt(r) instead


@dataclass
class Reward:
    rule: str = "native"  # native: the environment's own | seed: the guide's shaping | binary: by outcome, at the end
    scale: float = 1.0  # every reward is multiplied by this
    whiten: bool = False  # divide the epoch's rewards by the deviation of its scores
    correct: float = 1.0  # reward.rule=binary: for outcome correct
    incorrect: float = 0.0  # reward.rule=binary: for outcome incorrect
    timeout: float = 0.0  # reward.rule=binary: for outcome timeout
    unknown: float = 0.0  # reward.rule=binary: for outcome unknown
    invalid: float = -0.05  # reward.rule=seed: added for each action that was not understood or carried out


@dataclass
class Common:
    algo: str = "ppo"  # sft | reinforce | grpo | ppo
    env: str = "textcraft"  # environments by comma, with weights after a colon: textcraft, or sat:2,textcraft:1
    model: str = "tiny"  # tiny (the embedded default) | a folder | a hub id, with @ and a revision to pin one
    thinking: bool = True  # where the checkpoint's turns know it (Qwen3): false asks for answers without thoughts
    recipe: str = "default"  # settings from recipes/NAME.toml, or from a path that ends in .toml
    data: str = ""  # sft: learn from this JSON Lines file, conversations or prompt/answer pairs, not from env's expert
    out: str = "runs/{algo}-{env}-{timestamp}"  # the run's folder
    resume: str = ""  # go on with the run in this folder, from its newest checkpoint and with its settings
    resume_from: str = ""  # start from this adapter's folder, with a fresh optimizer; kept frozen as the KL reference
    seed: int = 0  # of everything: initial adapter, tasks, sampling, order
    order: str = "random"  # of tasks, and of episodes or rows in an epoch's updates: random | sequential
    max_samples: int = 0  # at most so many different tasks, or rows of data=; 0: no limit
    epochs: int = 10  # rounds of collecting episodes and learning from them
    episodes: int = 64  # episodes collected per epoch
    batch_size: int = 64  # episodes per optimizer step
    max_steps: int = 0  # stop after this many optimizer steps; 0: no limit
    optimizer: str = "adamw"  # adamw | adam | sgd
    lr: float = 1e-5  # learning rate
    schedule: str = "constant"  # of the learning rate: constant | linear | cosine
    warmup_steps: int = 0  # optimizer steps over which the learning rate rises from 0
    min_lr_ratio: float = 0.1  # share of lr at which linear and cosine schedules end
    weight_decay: float = 0.0  # decoupled in adamw, added to the gradient in the others
    clip_norm: float = 1.0  # gradients are scaled down to this norm
    micro_tokens: int = 8192  # tokens in one forward and backward; changes memory and speed, never the gradient
    temperature: float = 1.0  # of sampling, and of the log-probabilities that are trained
    max_new_tokens: int = 256  # sampled tokens per turn at most
    max_len: int = 4096  # tokens per episode at most
    max_turns: int = 0  # agent turns per episode at most; 0: the environment's own limit
    rollout_batch_size: int = 64  # episodes being sampled at once
    eval_episodes: int = 200  # held-out tasks per evaluation, each played sampled and greedily; 0: no evaluation
    eval_every: int = 0  # epochs between evaluations; 0: only before the first and after the last
    eval_split: str = "val"  # tasks to evaluate on: val | test | train
    save_every: int = 1  # epochs between what is kept: epoch_N, and a checkpoint that a run resumes from
    dtype: str = "float32"  # of the model's weights: float32 | bfloat16 | float16 (to evaluate)
    device: str = "cpu"  # cpu | cuda
    exact: bool = False  # on CUDA: sampling and training agree in every bit, at some cost; on a CPU they always do
    threads: int = 0  # torch threads on a CPU; 0: one for a model under 10 million parameters, else every core
    log: str = "info"  # info | debug: debug prints every adapted layer


CHOICES = {
    "algo": tuple(ALGORITHMS),
    "order": ("random", "sequential"),
    "optimizer": tuple(OPTIMIZERS),
    "schedule": ("constant", "linear", "cosine"),
    "eval_split": ("train", "val", "test"),
    "dtype": ("float32", "bfloat16", "float16"),
    "device": ("cpu", "cuda"),
    "log": ("info", "debug"),
    "reward.rule": ("native", "seed", "binary"),
}
POSITIVE = ("epochs", "episodes", "batch_size", "lr", "clip_norm", "micro_tokens", "max_new_tokens", "max_len")
POSITIVE += ("rollout_batch_size", "save_every", "lora.alpha", "*.epochs", "*.group_size", "*.clip")
POSITIVE += ("*.clip_high", "*.constant_length", "*.kl_horizon", "ppo.critic_lr", "ppo.critic_hidden")
NOT_NEGATIVE = ("lora.r", "max_steps", "warmup_steps", "weight_decay", "temperature", "max_turns", "eval_episodes")
NOT_NEGATIVE += ("seed", "threads", "eval_every", "min_lr_ratio", "max_samples", "*.kl_coef", "*.overlong_limit")
NOT_NEGATIVE += ("ppo.vf_coef", "ppo.critic_warmup")
POSITIVE_OR_NONE = ("ppo.value_clip", "*.target_kl", "*.kl_target", "*.dual_clip")

GROUPS = {"lora": Lora, "reward": Reward, **{name: module.Config for name, module in ALGORITHMS.items()}}
GROUPS |= {name: envs.config_class(name) for name in envs.NAMES}
Config = make_dataclass(
    "Config", [(name, cls, field(default_factory=cls)) for name, cls in GROUPS.items()], bases=(Common,)
)

EVALUATED = ("env", "model", "thinking", "recipe", "temperature", "max_new_tokens", "max_len", "max_turns")
EVALUATED += ("rollout_batch_size", "dtype", "device", "exact", "threads", "reward", *envs.NAMES)  # what eval.py reads


class ConfigError(ValueError):
    """One line for the person who wrote the key."""


def parse(arguments: list[str], program: str = "train.py", also: type | None = None) -> typing.Any:
    """The Config that the words say. Prints the help and exits 0 on --help; prints one line and exits 2 on a bad word.

    also: another dataclass of keys that this program understands; its instance comes back beside the Config.
    """
    if any(word in ("-h", "--help", "help") for word in arguments):
        with reader_may_leave():
            print(help_text(program, also))
        raise SystemExit(0)
    try:
        given = dict(_split(word) for word in arguments)
        for key in ("resume", "resume_from", "data"):
            if given.get(key) == "":
                raise ConfigError(f"{key}= is given without a name")
        mine = {key: given.pop(key) for key in list(given) if also and key in {f.name for f in fields(also)}}
        extra = also() if also else None
        for key, value in mine.items():
            _assign(extra, key, value)
        cfg = Config()
        if given.get("resume") and "recipe" in given:
            raise ConfigError("recipe= has no effect beside resume=, which goes on with the run's own settings")
        if given.get("resume") and "resume_from" in given:
            raise ConfigError("resume_from= has no effect beside resume=, which goes on with the run's own adapters")
        own = [key for key in given if key.startswith("lora.") and (key, given[key]) != ("lora.r", "0")]
        if given.get("resume_from") and own:
            raise ConfigError(f"{own[0]}= has no effect beside resume_from=, whose adapter has its own settings")
        if given.get("resume"):
            base = {**_saved(given["resume"]), "out": given["resume"]}
        else:
            base, _ = _recipe(given.get("recipe", cfg.recipe), given.get("model"))
        for key, value in {**base, **given}.items():
            _assign(cfg, key, value, also)
        check(cfg)
        if program == "train.py":
            check_training(cfg)
    except ConfigError as error:
        print(f"{program}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    return cfg if also is None else (cfg, extra)


def check(cfg) -> None:
    """Raises ConfigError for a value that cannot be."""
    for key, allowed in CHOICES.items():
        value = _get(cfg, key)
        if value not in allowed:
            near = difflib.get_close_matches(str(value), allowed, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            if key == "algo" and (RECIPES / f"{value}.toml").is_file():
                hint = f"; did you mean recipe={value}?"
            raise ConfigError(f"{key}={value} is not one of {', '.join(allowed)}{hint}")
    for key, value in _values(cfg, POSITIVE):
        if not value > 0:
            raise ConfigError(f"{key}={value} must be positive")
    for key, value in _values(cfg, NOT_NEGATIVE):
        if value < 0:
            raise ConfigError(f"{key}={value} must not be negative")
    for key, value in _values(cfg, POSITIVE_OR_NONE):
        if value is not None and not value > 0:
            raise ConfigError(f"{key}={value} must be positive, or none")
    if cfg.seed >= 2**31:
        raise ConfigError(f"seed={cfg.seed} must be below 2**31 = {2**31}")
    if cfg.reward.scale == 0:
        raise ConfigError("reward.scale=0 leaves nothing to learn from")
    if cfg.min_lr_ratio > 1:
        raise ConfigError(f"min_lr_ratio={cfg.min_lr_ratio} must be at most 1")
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device=cuda: this machine, or this torch, has no CUDA device; device=cpu works everywhere")
    if cfg.exact and cfg.device == "cuda" and cfg.dtype == "float32":
        raise ConfigError("exact=true on a CUDA device takes dtype=bfloat16 or float16; float32 is too slow there")
    if not 0 <= cfg.lora.dropout < 1:
        raise ConfigError(f"lora.dropout={cfg.lora.dropout} must be in [0, 1)")
    try:
        cfg.out.format(algo="", env="", seed=0, timestamp="")
    except (KeyError, IndexError, ValueError, AttributeError):
        raise ConfigError(f"out={cfg.out}: only {{algo}}, {{env}}, {{seed}} and {{timestamp}} are filled in") from None
    try:
        mixture(cfg.env)
    except ValueError as error:
        raise ConfigError(f"env={cfg.env}: {error}") from None
    for name, group in GROUPS.items():  # groups check themselves when made
        try:
            group(**dataclasses.asdict(getattr(cfg, name)))
        except ValueError as error:
            raise ConfigError(f"{name}.{str(error).removeprefix(name + '.')}") from None


def check_training(cfg) -> None:
    """Raises ConfigError for values that do not go together in training."""
    algo = getattr(cfg, cfg.algo)
    if cfg.temperature == 0:
        raise ConfigError("temperature=0 samples nothing to learn from; use eval.py for greedy play")
    if algo.source == "rollouts" and cfg.data:
        raise ConfigError(f"data= is a file to imitate: for algo=sft, not for algo={cfg.algo}")
    if cfg.data and not Path(cfg.data).is_file():
        raise ConfigError(f"data={cfg.data}: no such file")
    if algo.source != "rollouts" and not cfg.data and "http" in mixture(cfg.env):
        here = f"env={cfg.http.kind} has one"
        raise ConfigError(f"algo={cfg.algo} imitates an expert, and env=http has none; {here}, and data= takes a file")
    if cfg.dtype == "float16":
        raise ConfigError("dtype=float16 is for eval.py: its gradients would underflow; train in bfloat16 or float32")
    if algo.reference and cfg.lora.r == 0:
        raise ConfigError(f"{cfg.algo}.kl_coef needs a frozen base as its reference, which lora.r=0 trains away")
    for key, role in (("planner.worker", "worker"), ("tau_retail.user", "customer")):
        if cfg.lora.r == 0 and _get(cfg, key) == "model" and key.partition(".")[0] in mixture(cfg.env):
            raise ConfigError(f"{key}=model needs a frozen base as its {role}, which lora.r=0 trains away")
    if cfg.resume_from and cfg.lora.r == 0:
        raise ConfigError("resume_from= starts from an adapter, but lora.r=0 trains the model itself")
    if algo.critic and algo.critic_warmup >= cfg.epochs:
        raise ConfigError(f"{cfg.algo}.critic_warmup={algo.critic_warmup} leaves the policy no epoch of {cfg.epochs}")
    if cfg.episodes % algo.group_size:
        raise ConfigError(f"episodes={cfg.episodes} must be a multiple of {cfg.algo}.group_size={algo.group_size}")


def mixture(text: str) -> dict[str, float]:
    """Environment names and weights from "a,b" or "a:2,b:1"; the environments of a group share its weight."""
    weights = {}
    for part in text.split(","):
        name, colon, given = part.strip().partition(":")
        try:
            weight = float(given if colon else 1)
        except ValueError:
            raise ValueError(f"weight {given!r} of {name} is not a number") from None
        if not 0 < weight < float("inf"):
            raise ValueError(f"weight {given} of {name} must be positive and finite")
        members = envs.GROUPS.get(name, [name])
        for member in members:
            envs.config_class(member)  # raises ValueError with the nearest name
            if member in weights:
                raise ValueError(f"{member} is named twice")
            weights[member] = weight / len(members)
    return weights


def to_dict(cfg) -> dict:
    """What is saved with a run: every key with its resolved value."""
    return dataclasses.asdict(cfg)


def help_text(program: str, also: type | None = None) -> str:
    """Every key with its default and meaning; of eval.py those that it reads."""
    lines = [f"usage: python {program} [key=value ...]", ""]
    lines += [
        "Keys, with their defaults. recipes/default.toml sets others for the embedded model, and recipe=NAME over"
    ]
    lines += ["them; a run writes what holds into its config.json."]
    unread = set()
    if program == "eval.py":
        lines += ["Keys that only training reads may be given too, as recipes do, and change nothing."]
        unread = {f.name for f in fields(Config)} - {*EVALUATED}
    groups = [(f"{name}.", cls) for name, cls in GROUPS.items() if name not in unread]
    for prefix, cls in ([("", also)] if also else []) + [("", Common)] + groups:
        lines.append("")
        comments = _comments(cls)
        for f in fields(cls):
            if cls is Common and f.name in unread:
                continue
            default = "none" if f.default is None else str(f.default).lower() if f.type is bool else f.default
            lines.append(f"  {prefix + f.name + '=' + str(default):36s} {comments.get(f.name, '')}")
    recipes = ", ".join(sorted(path.stem for path in RECIPES.glob("*.toml")))
    return "\n".join([*lines, "", f"recipes: {recipes}; environments: {', '.join(envs.NAMES)}"])


def _comments(cls: type) -> dict[str, str]:
    """The comment behind each field of a dataclass and of those that it extends, read from their source."""
    inherited = {k: v for base in cls.__bases__ if dataclasses.is_dataclass(base) for k, v in _comments(base).items()}
    source = inspect.cleandoc("\n" + inspect.getsource(cls))
    by_line = {
        token.start[0]: token.string.lstrip("# ").strip()
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    body = ast.parse(source).body[0].body
    return inherited | {n.target.id: by_line.get(n.end_lineno, "") for n in body if isinstance(n, ast.AnnAssign)}


def _split(word: str) -> tuple[str, str]:
    key, equals, value = word.partition("=")
    if not equals:
        raise ConfigError(f"{word!r} is not key=value; --help lists the keys")
    return key.lstrip("-"), value


def _recipe(name: str, model: str | None) -> tuple[dict, dict]:
    """Dotted keys of a recipe over those of recipes/default.toml, and those of them that come from [tiny] tables. A
    recipe's table goes over its other keys, if the model is the embedded one."""
    tables = [_table(one) for one in dict.fromkeys(("default", name))]
    model = model or tables[-1].get("model", Config.model)
    keys, from_tiny = {}, {}
    for table in tables:
        tiny, rest = _flatten(table.pop("tiny", {})), _flatten(table)
        if not is_tiny(model):
            tiny = {}
        keys |= rest | tiny
        from_tiny = {key: value for key, value in from_tiny.items() if key not in rest} | tiny
    return keys, from_tiny


def _table(name: str) -> dict:
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file():
        near = difflib.get_close_matches(name, [p.stem for p in RECIPES.glob("*.toml")], 1)
        raise ConfigError(f"recipe={name}: no file {path}" + (f"; did you mean {near[0]}?" if near else ""))
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise ConfigError(f"recipe={name}: {path} is not TOML ({error})") from None
    if not isinstance(table.get("tiny", {}), dict):
        raise ConfigError(f"recipe={name}: tiny is a table, [tiny], not {table['tiny']!r}")
    return table


def for_tiny(cfg) -> str:
    """What the recipe's [tiny] table has set of what this run uses, as words; empty for other models."""
    _, keys = _recipe(cfg.recipe, cfg.model)
    used = {"", "lora", "reward", cfg.algo, *mixture(cfg.env)}
    kept = {k: value for k, value in keys.items() if k.rpartition(".")[0] in used and _get(cfg, k) == value}
    return " ".join(f"{key}={str(value).lower()}" for key, value in kept.items())


def _saved(run: str) -> dict:
    """Dotted keys of the config.json that a run was started with."""
    path = Path(run) / "config.json"
    if not path.is_file():
        raise ConfigError(f"resume={run}: no file {path}, so this is not a run's folder")
    try:
        return _flatten(json.loads(path.read_text()))
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"resume={run}: {path} is not a table of keys in JSON ({error})") from None


def _flatten(table: dict, prefix: str = "") -> dict:
    flat = {}
    for key, value in table.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def _get(cfg, key: str):
    for part in key.split("."):
        cfg = getattr(cfg, part)
    return cfg


def _values(cfg, keys: tuple[str, ...]) -> typing.Iterator[tuple[str, typing.Any]]:
    """(key, value) of each key; a star stands for every algorithm that has the field."""
    for key in keys:
        owner, _, name = key.rpartition(".")
        for algo in ALGORITHMS if owner == "*" else (owner,):
            if owner != "*" or name in {f.name for f in fields(GROUPS[algo])}:
                full = f"{algo}.{name}" if algo else name
                yield full, _get(cfg, full)


def _assign(cfg, key: str, value, also: type | None = None) -> None:
    owner, _, name = key.rpartition(".")
    target = cfg if not owner else getattr(cfg, owner) if owner in GROUPS else None
    names = {f.name for f in fields(target)} if target is not None else set()
    if name not in names or (not owner and name in GROUPS):
        known = [f.name for cls in (Common, also) if cls for f in fields(cls)]
        known += [f"{group}.{f.name}" for group, cls in GROUPS.items() for f in fields(cls)]
        near = difflib.get_close_matches(key, known, 1, 0.5)
        raise ConfigError(
            f"unknown key {key!r}" + (f"; did you mean {near[0]}?" if near else "; --help lists the keys")
        )
    setattr(target, name, _convert(key, value, typing.get_type_hints(type(target))[name]))


def _convert(key: str, value, kind):
    """A value of the field's type from a word or a TOML value."""
    if isinstance(kind, types.UnionType):
        if value is None or str(value).lower() == "none":
            return None
        kind = next(k for k in kind.__args__ if k is not type(None))
    text = str(value).strip()
    try:
        if kind is bool:
            return {"true": True, "false": False, "1": True, "0": False}[text.lower()]
        if kind is int and not isinstance(value, bool):
            if re.fullmatch(r"[+-]?\d+", text):
                return int(text)
            if float(text).is_integer():  # 1e6
                return int(float(text))
        if kind is float and not isinstance(value, bool):
            number = float(text)
            if abs(number) < float("inf"):
                return number
        if kind is str:
            return ",".join(map(str, value)) if isinstance(value, list) else text
    except (ValueError, KeyError):
        pass
    wanted = {bool: "true or false", int: "a whole number", float: "a finite number"}.get(kind, kind.__name__)
    raise ConfigError(f"{key}={text} must be {wanted}")
