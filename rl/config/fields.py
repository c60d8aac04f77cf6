"""The settings of a run: frozen dataclasses whose comments are the help text, grouped by theme.

`Config` inherits the themes, so that a key is an attribute: cfg.lr, and lr= on the command line. A function that reads
one theme is annotated with it, as `cfg: Sampling`, and a test may give it a bare instance. What an algorithm or an
environment has of its own stands in a table: cfg.ppo.clip, cfg.environments["textcraft"].difficulty.

rl/config/words.py makes a Config from words. This file imports no algorithm and no environment when it runs, so that
every file may import it.
"""

from dataclasses import asdict, dataclass, field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from rl.config.arguments import NotNegative, Positive
from rl.config.refusals import Refusal

if TYPE_CHECKING:  # for editors: a run loads its own algorithm alone
    from rl.gigpo import Config as GiGPO
    from rl.grpo import Config as GRPO
    from rl.opd import Config as OPD
    from rl.ppo import Config as PPO
    from rl.reinforce import Config as Reinforce
    from rl.sft import Config as SFT

ALGORITHMS = {
    "sft": "rl.sft",
    "reinforce": "rl.reinforce",
    "grpo": "rl.grpo",
    "gigpo": "rl.gigpo",
    "ppo": "rl.ppo",
    "opd": "rl.opd",
}
Service = Literal["none", "wandb", "tensorboard", "trackio"]


@dataclass(frozen=True)
class Experiment:
    """Algorithm, tasks and model."""

    algo: Literal[*ALGORITHMS] = "ppo"  # the algorithm
    env: str = "textcraft"  # environments by comma, weights after a colon: textcraft, or sat:2,textcraft:1
    model: str = "tiny"  # tiny (embedded) | smol (make smol) | folder | .gguf file | hub id[@revision]
    thinking: bool = True  # for checkpoints that can think before they answer (Qwen3); false: answers without thoughts
    recipe: str = ""  # settings from recipes/NAME.toml, or from a path that ends in .toml
    guide: bool = False  # with the recipe of a guide: also the guide's model and device, as its [guide] table has them
    quick: bool = False  # embedded model: fewer and shorter epochs, as in recipes/quick.toml, to see that all works
    system_prompt: str = ""  # a text, or a file that ends in .txt or .md: a message before the environment's own
    curriculum: str = ""  # an option such as difficulty: its values in turn, the next at 70 % success (:0.7); max_turns


@dataclass(frozen=True)
class Files:
    """Files that a run reads, and its folder."""

    data: str = ""  # sft: learn from this file (JSON Lines, JSON array, Parquet), not env's expert
    out: str = "runs/{algo}-{env}-{timestamp}"  # the run's folder
    resume: str = ""  # continue the run in this folder from its newest checkpoint, with its settings
    rollouts: str = ""  # learn from the episodes of this run's episodes.jsonl, epoch by epoch, and play none
    resume_from: str = ""  # start from this adapter, or a run's best, with a fresh optimizer and KL to it


@dataclass(frozen=True)
class Loop:
    """Number and order of episodes."""

    seed: NotNegative[int] = 0  # of everything: initial adapter, tasks, sampling, order
    order: Literal["random", "sequential"] = "random"  # of tasks, and of episodes or rows in an epoch's updates
    max_samples: NotNegative[int] = 0  # number of different tasks, or of rows of data=; 0: unlimited
    epochs: Positive[int] = 10  # each collects episodes and learns from them, once or more (ppo.epochs)
    episodes: Positive[int] = 64  # episodes collected per epoch; with data= it is every row
    batch_size: Positive[int] = 64  # episodes per optimizer step
    max_steps: NotNegative[int] = 0  # stop after this many optimizer steps; 0: no limit
    max_sampled_tokens: NotNegative[int] = 0  # stop after the epoch that reaches this many, and decay lr up to there


@dataclass(frozen=True)
class Optim:
    """The optimizer step."""

    optimizer: Literal["adamw", "adam", "sgd", "adamw8bit", "muon"] = "adamw"  # adamw8bit: moments of a byte each
    lr: Positive[float] = 1e-5  # learning rate
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # of the learning rate
    warmup_steps: NotNegative[int] = 0  # optimizer steps over which the learning rate rises from 0
    min_lr_ratio: NotNegative[float] = 0.1  # share of lr at which linear and cosine schedules end
    schedule_epochs: str = ""  # FROM-TO: the schedule starts after epoch FROM and ends with epoch TO; empty: all epochs
    weight_decay: NotNegative[float] = 0.0  # adam and sgd add it to the gradient; in the others it is decoupled
    clip_norm: Positive[float] = 1.0  # gradients are scaled down to this norm
    micro_tokens: Positive[int] = 8192  # tokens in one forward and backward; changes the gradient by rounding alone
    checkpoint: Literal["none", "block"] = "none"  # block: keep less for the backward, one more forward of each block


LEAST_TEMPERATURE = 1e-4  # a smaller one is too small to divide logits by; 0 plays greedily


@dataclass(frozen=True)
class Sampling:
    """Sampling of episodes."""

    temperature: NotNegative[float] = 1.0  # of sampling, and of what rl trains; demonstrations are fitted at 1
    max_new_tokens: Positive[int] = 256  # most sampled tokens per turn
    max_len: Positive[int] = 4096  # most tokens per episode, or with history=template per turn with its history
    history: Literal["append", "template"] = "append"  # earlier replies are read as sampled | as the template renders
    max_thinking_tokens: NotNegative[int] = 0  # of a turn, then its thought is closed by force; 0: no bound
    max_turns: NotNegative[int] = 0  # most agent turns per episode, saved as each environment's; 0: keep its own limit
    sandbox: Literal["own", "isolated", "unsafe"] = "own"  # of every environment; own: as abd.sandbox and others say
    rollout_batch_size: Positive[int] = 64  # episodes sampled at once


@dataclass(frozen=True)
class Server:
    """Sampling on a server."""

    sampler: str = ""  # play on this server, http://host:port/v1 (vLLM, or python -m rl.serve load=true); empty: here
    sampler_clip: Positive[float] = 2.0  # sampler=: largest importance weight of a token (rl/remote/off_policy.py)
    sampler_floor: NotNegative[float] = 0.0  # sampler=: tokens of a smaller weight are not learned; 0: all are
    sampler_sequence: NotNegative[float] = 0.0  # sampler=: leave out episodes of mean weight below it or above 1 / it
    ahead: bool = False  # sampler=: sample an epoch while the one before is learned (rl/remote/ahead.py)


@dataclass(frozen=True)
class Evaluation:
    """Evaluation on held-out tasks."""

    eval_episodes: NotNegative[int] = 200  # held-out tasks per evaluation, played sampled and greedily; 0: none
    eval_every: NotNegative[int] = 0  # epochs between evaluations; 0: only before the first and after the last
    eval_split: Literal["train", "val", "test"] = "val"  # tasks to evaluate on


@dataclass(frozen=True)
class Saving:
    """Saving, and the early end of a run."""

    save_every: Positive[int] = 1  # epochs between saves: epoch_N, and a checkpoint; evaluated epochs are saved too
    save_steps: NotNegative[int] = 0  # save after the epoch that passes each multiple of so many steps; 0: save_every
    save_total_limit: Positive[int] | None = None  # newest saves kept beside the best; none: all epochs, 2 checkpoints
    best_by: Literal["success", "loss"] = "success"  # what an evaluated epoch is judged by; loss: held-out, of sft
    patience: NotNegative[int] = 0  # stop after this many evaluations without a better one; 0: never


@dataclass(frozen=True)
class Machine:
    """Number formats, memory, devices and processes."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # of the weights; auto: bfloat16 on CUDA
    quant: Literal["none", "nf4", "nf4-double", "int8"] = "none"  # 4 or 8 bits for the blocks' frozen weights
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where to compute; auto: on CUDA if there is a device
    plan: str = ""  # true: print the peak memory of each phase and stop; 24GiB: also what would make it fit
    exact: bool = False  # on CUDA: sample and train with the same kernels, at some cost; sampler_gap measures the rest
    threads: NotNegative[int] = 0  # torch threads on a CPU; 0: one for a small model, else all, halved until exact
    products: Literal["auto", "onednn", "mkl", "plain"] = "auto"  # library of products on a CPU; auto: the fastest
    ranks: NotNegative[int] = 0  # processes that share the work; 0: one, or for the embedded model one per core
    shard: Literal["ddp", "zero2", "zero3"] = "ddp"  # of several ranks each holds the model | a share: docs/scale.md


@dataclass(frozen=True)
class Messages:
    """Warnings and the log."""

    strict: bool = False  # end a run that shows signs of learning nonsense (docs/glossary.md); false: warn
    log: Literal["info", "debug"] = "info"  # debug prints every adapted layer, and more numbers of each epoch


@dataclass(frozen=True)
class Lora:
    """The adapter."""

    r: NotNegative[int] = 16  # rank of the adapters; 0 trains every weight of the model instead
    alpha: Positive[float] = 32  # the update is scaled by alpha / r
    dropout: float = 0.0  # on the adapters' input, in sft only: in rl it would make the first ratio differ from 1
    targets: str = "all-linear"  # all-linear | attention | names by comma | a regular expression for whole names
    rslora: bool = False  # scale by alpha / sqrt(r) instead
    b_rate: Positive[float] = 1.0  # learning rate of the factors B over that of A; LoRA+ has 16


@dataclass(frozen=True)
class Reward:
    """The reward that is trained on."""

    rule: Literal["native", "shaped", "binary"] = "native"  # the environment's | denser, for progress | by outcome
    scale: float = 1.0  # every reward is multiplied by this
    whiten: bool = False  # divide the epoch's rewards by the standard deviation of its scores
    correct: float = 1.0  # reward.rule=binary: for outcome correct
    incorrect: float = 0.0  # reward.rule=binary: for outcome incorrect
    timeout: float = 0.0  # reward.rule=binary: for outcome timeout
    unknown: float = 0.0  # reward.rule=binary: for outcome unknown
    invalid: float = -0.05  # reward.rule=shaped: added for each action that was not understood or carried out
    progress: NotNegative[float] = 0.0  # under any rule: added for each move that a turn spares env's expert
    judge: str = ""  # base | a folder with an adapter of it | http://host:port/v1: grades training episodes
    rubric: str = ""  # reward.judge: a text file that says what it grades
    judge_weight: float = 1.0  # reward.judge: of the grade, from 0 to 1, in the reward of an episode's last turn
    judge_model: str = ""  # reward.judge=http...: the server's name of the model; empty: the first that it lists
    judge_max_tokens: Positive[int] = 256  # reward.judge: most tokens of a reply, its thoughts included


@dataclass(frozen=True)
class Track:
    """Metrics sent to another program."""

    to: Service = "none"  # also send metrics there; track=NAME is short for this
    project: str = "lora-rl"  # the project there; TensorBoard has none
    name: str = ""  # the run's name there; empty: its folder's name

    def __post_init__(self):
        if not self.project:
            raise Refusal("project must not be empty")


class Algorithm(Protocol):
    """The settings of an algorithm that the loop reads: fields, class variables or properties of its Config."""

    epochs: int  # passes over each epoch's episodes
    source: str  # "rollouts" | "demonstrations"
    group_size: int  # episodes per task
    critic: bool  # its loss reads values
    reference: bool  # its loss or its rewards read the reference's log-probabilities
    entropy_grad: bool  # its loss has a gradient through entropy_N; where this is False, a term of it has none
    target_kl: float | None  # ends the epoch's updates
    drops_zero_advantage: bool  # a token of advantage 0 has no gradient; False for a loss with another term

    critic_lr: float  # with a critic
    critic_hidden: int
    critic_warmup: int
    bootstrap: bool  # its value of the state after a turn limit counts as reward to come
    kl_coef: float  # with a reference
    kl_target: float | None
    kl_horizon: int
    reference_every: int
    all_tokens: bool  # of demonstrations
    prompt_column: str
    answer_column: str


THEMES = (Experiment, Files, Loop, Optim, Sampling, Server, Evaluation, Saving, Machine, Messages)


@dataclass(frozen=True)
# a dataclass has the fields of its last base first, so that config.json has the themes in their order
class Config(Messages, Machine, Saving, Evaluation, Server, Sampling, Optim, Loop, Files, Experiment):
    """All settings of a run. Of algorithms and environments it has the tables that the run uses or a word names."""

    lora: Lora = Lora()
    reward: Reward = Reward()
    track: Track = Track()
    sft: "SFT | None" = None
    reinforce: "Reinforce | None" = None
    grpo: "GRPO | None" = None
    gigpo: "GiGPO | None" = None
    ppo: "PPO | None" = None
    opd: "OPD | None" = None
    own: dict[str, Any] = field(default_factory=dict)  # name -> Config of an algorithm that has no field here
    environments: dict[str, Any] = field(default_factory=dict)  # name -> Config of the environment

    @property
    def algorithm(self) -> Algorithm:
        """The settings of the algorithm that `algo` names."""
        return self.own.get(self.algo) or getattr(self, self.algo)

    @property
    def total_steps(self) -> int:
        """The optimizer steps of the whole run, those that target_kl or dropped groups will save included."""
        total = self.epochs * self.epoch_steps
        return min(total, self.max_steps or total)

    @property
    def epoch_steps(self) -> int:
        """The optimizer steps of an epoch, with the same ones included."""
        return self.algorithm.epochs * -(-self.episodes // self.batch_size)

    @property
    def schedule_steps(self) -> tuple[int, int]:
        """The first optimizer step of the learning rate's schedule, and the first one after it."""
        if not self.schedule_epochs:
            return 0, self.total_steps
        first, end = map(int, self.schedule_epochs.split("-"))
        return first * self.epoch_steps, end * self.epoch_steps

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as config.json has them: the keys, then a table of each group by its name."""
        values = asdict(self)
        tables = values.pop("own") | values.pop("environments")
        return {key: value for key, value in values.items() if value is not None or key not in ALGORITHMS} | tables


# The keys that most runs change, which --help prints; --help all prints the others too.
EVERYDAY = {"algo", "env", "model", "recipe", "data", "out", "resume", "resume_from"}
EVERYDAY |= {"seed", "epochs", "episodes", "batch_size", "lr"}
EVERYDAY |= {"temperature", "max_new_tokens", "max_len", "eval_episodes", "eval_every"}
EVERYDAY |= {"quant", "device", "ranks", "lora.r"}

# The keys of a run that eval.py reads as well.
READ_BY_EVAL = {"env", "system_prompt", "order", "model", "thinking", "recipe"}
READ_BY_EVAL |= {"temperature", "max_new_tokens", "max_len", "max_turns", "sandbox", "rollout_batch_size"}
READ_BY_EVAL |= {"history", "max_thinking_tokens"}
READ_BY_EVAL |= {"dtype", "quant", "device", "exact", "threads", "products", "ranks", "shard"}


def algorithm_module(name: str) -> ModuleType:
    """Return the algorithm's module: Config, advantages, loss."""
    return import_module(ALGORITHMS[name])
