"""The configuration: frozen dataclasses with a comment per field, set in three levels.

    python train.py algo=ppo env=textcraft lr=1e-3 lora.r=16 ppo.clip=0.2 recipe=dapo

1. The defaults in the code: here, in the algorithm's Config and in the environment's.
2. Recipes: recipe=NAME is recipes/NAME.toml. For the embedded model, recipes/embedded.toml is applied first.
3. The command line, where a later word wins over an earlier one.

Groups load on demand: a Config has the fields of Common, `lora`, `reward`, `track`, and a group for the algorithm and
for each environment that the run uses or that a word names, as cfg.ppo and cfg.textcraft.
"""

import tomllib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, make_dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import envs
from models.tiny.shape import same_shape
from rl.config import arguments, checks, help, recipes
from rl.config.arguments import ArgumentError, NotNegative, Positive, flatten, word
from rl.config.recipes import share_options
from rl.config.refusals import unknown_key
from rl.report import trackers
from rl.run.resume import check_words, saved_settings
from rl.tasks import mixture

RECIPES = Path(__file__).parents[2] / "recipes"
ALGORITHMS = {"sft": "rl.sft", "reinforce": "rl.reinforce", "grpo": "rl.grpo", "ppo": "rl.ppo"}


@dataclass(frozen=True)
class Lora:
    r: NotNegative[int] = 16  # rank of the adapters; 0 trains every weight of the model instead
    alpha: Positive[float] = 32  # the update is scaled by alpha / r
    dropout: float = 0.0  # on the adapters' input, in sft only: in rl it would make the first ratio differ from 1
    targets: str = "all-linear"  # all-linear | attention | names by comma | a regular expression for whole names
    rslora: bool = False  # scale by alpha / sqrt(r) instead


@dataclass(frozen=True)
class Reward:
    rule: Literal["native", "shaped", "binary"] = "native"  # the environment's | denser, for progress | by outcome
    scale: float = 1.0  # every reward is multiplied by this
    whiten: bool = False  # divide the epoch's rewards by the standard deviation of its scores
    correct: float = 1.0  # reward.rule=binary: for outcome correct
    incorrect: float = 0.0  # reward.rule=binary: for outcome incorrect
    timeout: float = 0.0  # reward.rule=binary: for outcome timeout
    unknown: float = 0.0  # reward.rule=binary: for outcome unknown
    invalid: float = -0.05  # reward.rule=shaped: added for each action that was not understood or carried out


@dataclass(frozen=True)
class Common:
    algo: Literal[*ALGORITHMS] = "ppo"  # the algorithm
    env: str = "textcraft"  # environments by comma, with weights after a colon: textcraft, or sat:2,textcraft:1
    model: str = "tiny"  # tiny (the embedded default) | a folder | a hub id, with @ and a revision to pin one
    thinking: bool = True  # for checkpoints that can think before they answer (Qwen3); false: answers without thoughts
    recipe: str = ""  # settings from recipes/NAME.toml, or from a path that ends in .toml; empty: none
    guide: bool = False  # with the recipe of a guide: also the guide's model and device, as its [guide] table has them
    quick: bool = False  # embedded model: fewer and shorter epochs, as in recipes/quick.toml, to see that all works
    system_prompt: str = ""  # a text, or a file that ends in .txt or .md: a message before the environment's own
    curriculum: str = ""  # an option such as difficulty or skill: its values in turn, the next at 70 % success (:0.7)
    data: str = ""  # sft: learn from this JSON Lines file, conversations or prompt/answer pairs, not from env's expert
    out: str = "runs/{algo}-{env}-{timestamp}"  # the run's folder
    resume: str = ""  # continue the run in this folder, from its newest checkpoint and with its settings
    rollouts: str = ""  # learn from the episodes of this run's episodes.jsonl, epoch by epoch, and play none
    resume_from: str = ""  # start from this adapter, or a run's best, with a fresh optimizer; frozen, the KL reference
    seed: NotNegative[int] = 0  # of everything: initial adapter, tasks, sampling, order
    order: Literal["random", "sequential"] = "random"  # of tasks, and of episodes or rows in an epoch's updates
    max_samples: NotNegative[int] = 0  # number of different tasks, or of rows of data=; 0: unlimited
    epochs: Positive[int] = 10  # each collects episodes and learns from them in one or several passes (ppo.epochs)
    episodes: Positive[int] = 64  # episodes collected per epoch
    batch_size: Positive[int] = 64  # episodes per optimizer step
    max_steps: NotNegative[int] = 0  # stop after this many optimizer steps; 0: no limit
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"  # the optimizer
    lr: Positive[float] = 1e-5  # learning rate
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the learning rate
    warmup_steps: NotNegative[int] = 0  # optimizer steps over which the learning rate rises from 0
    min_lr_ratio: NotNegative[float] = 0.1  # share of lr at which linear and cosine schedules end
    weight_decay: NotNegative[float] = 0.0  # decoupled in adamw, added to the gradient in the others
    clip_norm: Positive[float] = 1.0  # gradients are scaled down to this norm
    micro_tokens: Positive[int] = 8192  # tokens in one forward and backward; changes the gradient by rounding alone
    checkpoint: Literal["none", "block"] = "none"  # block: keep less for the backward, one more forward of each block
    temperature: NotNegative[float] = 1.0  # of sampling, and of what rl trains; demonstrations are fitted at 1
    max_new_tokens: Positive[int] = 256  # most sampled tokens per turn
    max_len: Positive[int] = 4096  # most tokens per episode
    max_turns: NotNegative[int] = 0  # most agent turns per episode, saved as each environment's; 0: keep its own limit
    sandbox: Literal["own", "isolated", "unsafe"] = "own"  # of every environment; own: as abd.sandbox and others say
    rollout_batch_size: Positive[int] = 64  # episodes sampled at once
    sampler: str = ""  # play on this server, http://host:port/v1 (vLLM, or python -m rl.serve load=true); empty: here
    sampler_clip: Positive[float] = 2.0  # sampler=: largest importance weight of a token (rl/remote/off_policy.py)
    ahead: bool = False  # sampler=: sample an epoch while the one before is learned (rl/remote/ahead.py)
    eval_episodes: NotNegative[int] = 200  # held-out tasks per evaluation, played sampled and greedily; 0: none
    eval_every: NotNegative[int] = 0  # epochs between evaluations; 0: only before the first and after the last
    eval_split: Literal["train", "val", "test"] = "val"  # tasks to evaluate on
    save_every: Positive[int] = 1  # epochs between saves: epoch_N, and a checkpoint; evaluated epochs are saved too
    save_steps: NotNegative[int] = 0  # save after the epoch that passes each multiple of so many steps; 0: save_every
    save_total_limit: Positive[int] | None = None  # newest saves kept beside the best; none: all epochs, 2 checkpoints
    best_by: Literal["success", "loss"] = "success"  # what an evaluated epoch is judged by; loss: held-out, of sft
    patience: NotNegative[int] = 0  # stop after this many evaluations without a better one; 0: never
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # of the weights; auto: bfloat16 on CUDA
    quant: Literal["none", "nf4", "nf4-double", "int8"] = "none"  # 4 or 8 bits for the frozen weights of the blocks
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where to compute; auto: on CUDA if there is a device
    plan: str = ""  # true: print the peak memory of each phase and stop; 24GiB: also what would make it fit
    exact: bool = False  # on CUDA: sample and train with the same kernels, at some cost; sampler_gap measures the rest
    threads: NotNegative[int] = 0  # torch threads on a CPU; 0: one for a small model, else all, halved until exact
    products: Literal["auto", "onednn", "mkl", "plain"] = "auto"  # library of products on a CPU; auto: the fastest
    ranks: NotNegative[int] = 0  # processes that share the work; 0: one, or for the embedded model one per core
    shard: Literal["ddp", "zero2", "zero3"] = "ddp"  # of several ranks each holds the model | a share: docs/scale.md
    reduce: Literal["tree", "fast"] = "tree"  # of the ranks' gradients: the same bits for 1 to 8 ranks | faster
    strict: bool = False  # end a run that shows signs of learning nonsense (docs/troubleshooting.md); false: warn
    log: Literal["info", "debug"] = "info"  # debug prints every adapted layer

    @property
    def algorithm(self) -> Any:
        """The settings of the algorithm that `algo` names."""
        return getattr(self, self.algo)

    @property
    def total_steps(self) -> int:
        """The optimizer steps of the whole run, those that target_kl or dropped groups will save included."""
        total = self.epochs * self.algorithm.epochs * -(-self.episodes // self.batch_size)
        return min(total, self.max_steps or total)


GROUPS = ("lora", "reward", "track", *ALGORITHMS, *envs.NAMES)
UNCHECKED = ("recipe embedded", "saved settings")  # have keys of groups that a run does not use and need not load


def algorithm_module(name: str) -> ModuleType:
    """Return the algorithm's module: Config, advantages, loss."""
    return import_module(ALGORITHMS[name])


def group_class(name: str) -> type:
    """Return the dataclass of a group."""
    if name in ALGORITHMS:
        return algorithm_module(name).Config
    return {"lora": Lora, "reward": Reward, "track": trackers.Config}.get(name) or envs.config_class(name)


def parse(words: list[str], program: str = "train.py", also: type | None = None) -> Any:
    """Return the Config of key=value words. Exit with 0 after --help, with 2 and one line after a wrong word.

    also: a dataclass of keys that only this program has; its instance is returned beside the Config.
    """
    if arguments.wants_help(words):
        groups = {name: group_class(name) for name in GROUPS}
        help.print_and_exit(help.settings_text(program, also, Common, groups, list(envs.NAMES)))
    try:
        given = arguments.split(words)
        if {"resume", "resume_from", "data"} & given.keys():
            check_words(given, ALGORITHMS)
        more = {key: given.pop(key) for key in arguments.keys_of(also) if key in given} if also else {}
        keys = arguments.build(also, more) if also else None
        cfg = resolve(given, also)
        checks.check(cfg)
        if program == "train.py":
            checks.check_training(cfg)
    except (ArgumentError, OSError) as error:
        arguments.fail(program, error)
    return (cfg, keys) if also else cfg


def resolve(given: dict[str, str], also: type | None = None) -> Any:
    """Return the Config of the given keys over the recipes, or over the settings of the run that is resumed.

    It has only the groups in use. Keys of other groups are checked too, unless they come from UNCHECKED sources.
    """
    layers = layers_of(given)
    common = checks.without_auto(arguments.build(Common, merged(layers)))
    in_use = {"lora", "reward", "track", common.algo, *mixture(common.env)} | groups_of(given)
    checked = in_use | groups_of(merged([layer for layer in layers if layer[0] not in UNCHECKED]))
    ignored = set(GROUPS) - checked
    settings = {key: value for key, value in merged(layers).items() if not groups_of([key]) & ignored}
    classes = {name: group_class(name) for name in GROUPS if name in checked}
    known = {key for name, cls in classes.items() for key in arguments.keys_of(cls, name)}
    unknown = [key for key in settings if key not in known.union(arguments.keys_of(Common))]
    if unknown:
        every = [("", cls) for cls in (Common, also) if cls] + [(name, group_class(name)) for name in GROUPS]
        keys = [key for group, cls in every for key in arguments.keys_of(cls, group)]
        raise ArgumentError(unknown_key(unknown[0], keys))
    groups = {name: arguments.build(cls, settings, name) for name, cls in classes.items()}
    fields = [(name, cls) for name, cls in classes.items() if name in in_use]
    config_class = make_dataclass("Config", fields, bases=(Common,), frozen=True, kw_only=True)
    return config_class(**vars(common), **{name: groups[name] for name, _ in fields})


def layers_of(given: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
    """Return (source, keys) of the recipes or of the resumed run, and of the command line; later ones win."""
    if given.get("resume"):
        layers = [("saved settings", saved_settings(given["resume"]))]
    else:
        layers = recipe_layers(given)
    layers.append(("command line", given))
    if {"max_turns", "sandbox", "track"} & merged(layers).keys():
        return share_options(layers, merged(layers).get("env", Common.env))
    return layers


def recipe_layers(given: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return (source, keys) of each recipe in effect, later ones win. For the embedded model recipes/embedded.toml
    comes first, and what is for this model alone comes last."""
    model, named, for_tiny = given.get("model"), [], []
    if any(given.get(key) for key in ("recipe", "quick", "guide")):
        model, named, for_tiny = recipes.layers(given)
    model = arguments.convert("model", model or Common.model, str)
    is_tiny = model == "tiny"
    if not is_tiny and Path(model).is_dir():
        is_tiny = same_shape(Path(model))
    embedded = [("recipe embedded", arguments.flatten(tomllib.loads((RECIPES / "embedded.toml").read_text("utf-8"))))]
    return embedded + named + for_tiny if is_tiny else named


def merged(layers: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Return the keys of all layers; later ones win."""
    return {key: value for _, keys in layers for key, value in keys.items()}


def groups_of(keys: Iterable[str]) -> set[str]:
    """Return the groups of the dotted keys."""
    return {key.partition(".")[0] for key in keys if "." in key}


def describe_sources(cfg: Any) -> str:
    """Return one line: each recipe in effect with what it sets for this run, and what the command line sets."""
    named = {key: getattr(cfg, key) for key in ("algo", "env", "model", "recipe", "quick", "guide")}
    without_words = flatten(asdict(resolve({"resume": cfg.resume} if cfg.resume else named)))
    layers = [] if cfg.resume else layers_of(named)[:-1]
    source_of = {key: source for source, keys in layers for key in keys}
    parts = {source: [] for source, _ in layers}
    for key, value in flatten(asdict(cfg)).items():
        source = source_of.get(key) if value == without_words.get(key) else "command line"
        if source and key in without_words and key not in named:
            parts.setdefault(source, []).append(f"{key}={word(value)}")
    start = " ".join(f"{key}={named[key]}" for key in ("algo", "env", "model"))
    start += f"; saved in {Path(cfg.resume) / 'config.json'}: the rest" if cfg.resume else ""
    return "; ".join([start, *(f"{source}: {' '.join(words) or 'nothing'}" for source, words in parts.items())])
