"""Which episodes to play: tasks drawn from the environments that env= names, with their weights.

A system prompt (system_prompt=) stands before the messages of every environment.
"""

import hashlib
import random
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import envs
from envs import prompt_file
from envs.refusal import Refusal as RefusedByEnvironment
from rl import ranks
from rl.config.arguments import ArgumentError
from rl.config.fields import Config, Experiment
from rl.config.refusals import Refusal, one_line
from rl.records import Episode
from rl.reward import measure_progress

FAILURES_SHOWN = 20  # lines about failed episodes of a rollout; the others are only counted
GIVE_UP = 3  # stop after this many groups if every episode so far failed: each may have tried for half a minute


@dataclass(frozen=True)
class Task:
    """An episode to play: its random stream, and the environment's seed, which it shares with its group."""

    key: tuple[int, int]  # of the engine's random stream: (seed of the run, number of the episode)
    env: str
    seed: int  # of the environment
    group: int
    split: str


def mixture(text: str) -> dict[str, float]:
    """Return the weight of each environment that env= names. Raise ArgumentError if it is not as env= takes it."""
    if text in envs.NAMES:
        return {text: 1.0}
    return weights_of(text)


def weights_of(text: str) -> dict[str, float]:
    """Return environment names and weights from "a,b" or "a:2,b:1"; the environments of a group share its weight.

    Raise ArgumentError for a name that is unknown or given twice, and for a weight that is not positive.
    """
    weights = {}
    for part in text.split(","):
        name, colon, given = part.strip().partition(":")
        members = envs.GROUPS.get(name, [name])
        try:
            weight = float(given if colon else 1)
        except ValueError:
            meant = f"; did you mean {given}?" if given in members else ""  # the Affine guide writes affine:sat
            raise ArgumentError(f"env={text}: weight {given!r} of {name} is not a number{meant}") from None
        if not 0 < weight < float("inf"):
            raise ArgumentError(f"env={text}: weight {given} of {name} must be positive and finite")
        for member in members:
            try:
                envs.config_class(member)
            except ValueError as error:  # an unknown name
                raise ArgumentError(f"env={text}: {error}") from None
            if member in weights:
                raise ArgumentError(f"env={text}: {member} is named twice")
            weights[member] = weight / len(members)
    return weights


def make_tasks(
    cfg: Experiment,
    first: int,
    groups: int,
    group_size: int,
    split: str,
    stream: int,
    order: str = "random",
    limit: int = 0,
) -> list[Task]:
    """Return group_size tasks for each of a stream's groups from `first` on. Equal arguments give equal tasks.

    stream: seed of the draws and of the episodes' random numbers: the run's seed, or EVAL_STREAM (rl/evaluate.py).
    order: "random", or "sequential" for the environment's seeds 0, 1, 2, ...
    limit: number of different tasks, after which they repeat; 0: unlimited.
    """
    weights = mixture(cfg.env)
    tasks = []
    for group in range(first, first + groups):
        number = group % limit if limit else group
        draw = random.Random(f"{stream} {number} {split}")
        env = draw.choices(list(weights), list(weights.values()))[0]
        seed = draw.randrange(2**31) if order == "random" else number
        tasks += [Task((stream, group * group_size + i), env, seed, group, split) for i in range(group_size)]
    return tasks


def training_tasks(cfg: Config, first: int) -> list[Task]:
    """Return an epoch's training tasks, from the group with the number `first` on."""
    size = cfg.algorithm.group_size
    return make_tasks(cfg, first, cfg.episodes // size, size, "train", cfg.seed, cfg.order, cfg.max_samples)


def make_env(cfg: Config, name: str) -> envs.Environment:
    """Return the environment of that name with the run's options."""
    env = envs.make(name, **vars(cfg.environments[name]))
    if cfg.system_prompt:
        add_system_prompt(env, cfg.system_prompt)
    if cfg.reward.progress:
        measure_progress(env, name, vars(cfg.environments[name]))
    return env


def add_system_prompt(env: envs.Environment, value: str) -> None:
    """Let an environment's episodes begin with the system prompt, in one message with the environment's own if any."""
    reset, text = env.reset, system_prompt_text(value)

    env.reset = lambda seed, split="train": with_prompt(reset(seed, split), text)


def with_prompt(messages: list[dict], text: str) -> list[dict]:
    """Return the messages of a conversation with the system prompt before them."""
    if messages[0]["role"] != "system":
        first = dict(messages[0])
        tools = {"tools": first.pop("tools")} if "tools" in first else {}  # they stand in the first message
        return [{"role": "system", "content": text, **tools}, first, *messages[1:]]
    return [{**messages[0], "content": f"{text}\n\n{messages[0]['content']}"}, *messages[1:]]


def system_prompt_text(value: str) -> str:
    """Return the text that system_prompt= gives or names. Raise ArgumentError for a file that cannot be read."""
    try:
        return prompt_file.chosen(value, value)
    except ValueError as error:
        raise ArgumentError(f"system_prompt={value}: {error}; a text may stand there instead of a file") from None


def system_prompt_file(value: str) -> dict[str, Path]:
    """Return {word: file} if system_prompt= names a file, else {}."""
    return {f"system_prompt={value}": Path(value)} if value.endswith(prompt_file.ENDINGS) else {}


@contextmanager
def failures_of(env: str) -> Iterator[None]:
    """Context of calls of an environment: what it raises is EnvironmentFailed, so that only its episode is left out.

    A Refusal is worded for the user and passes: a bad option, or a file that changed.
    """
    try:
        yield
    except (envs.EnvironmentFailed, RefusedByEnvironment, Refusal):
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(frame.filename).name}, line {frame.lineno}"
        # contextlib takes an error that StopIteration caused for one of this generator, and drops it
        cause = None if isinstance(error, StopIteration) else error
        raise envs.EnvironmentFailed(f"{env} raised {type(error).__name__}: {one_line(error)} ({where})") from cause


def show_failure(progress: Any, env: str, error: envs.EnvironmentFailed, finished: Iterable[Episode]) -> None:
    """Write a line about the newest of the finished episodes, which has failed, unless FAILURES_SHOWN have one."""
    number = sum(episode.infrastructure_failed for episode in finished)
    if number <= FAILURES_SHOWN:
        more = "; more such episodes are only counted" if number == FAILURES_SHOWN else ""
        progress.write(f"{env}: {error}; the episode is left out{more}")


def check_failures(finished: list, playing: int, waiting: int, error: Exception) -> None:
    """End a rollout in which nothing works: raise ValueError if no episode is playing, all that ended have failed, and
    GIVE_UP groups were tried or no task is waiting.

    With several ranks the latter is no error here: others may have succeeded, and `play_on_ranks` looks at all.
    finished: the episodes; playing, waiting: how many are not finished; error: of the episode that failed last.
    """
    if playing or not all(episode.infrastructure_failed for episode in finished):
        return
    groups = len({episode.group for episode in finished})
    if groups >= GIVE_UP or not (waiting or ranks.here.world > 1):
        tried = f"{len(finished)} of {len(finished) + waiting} episodes"
        raise Refusal(f"{tried} were tried, and every one failed; the last: {error}") from error


def task_digest(env: envs.Environment) -> str:
    """Return a short digest of the task that an environment plays, equal for seeds that draw the same task; "" for an
    environment that does not name its tasks."""
    return hashlib.sha256(env.task.encode()).hexdigest()[:16] if env.task else ""
