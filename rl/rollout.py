"""Episodes: the agent in its environments, and the expert in them.

Tokens in, tokens out. An episode is one list of ids that is only appended to: the prompt, what was sampled, what the
environment answered. What was sampled is decoded for the environment and never encoded again.
"""

import random
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

from tqdm import tqdm

import envs
import lora
from models import CausalLM, Tokenizer
from models.engine import Engine, Row
from rl import reward
from rl.answer import Base, request_streams
from rl.config import mixture
from rl.records import Episode, Turn

AT_ONCE = 8  # slow worlds that are asked side by side: more would take time from programs that have limits on it
GIVE_UP = 3  # episodes whose world failed, and none that did not: each may have tried for half a minute


@dataclass(frozen=True)
class Task:
    """Which episode to play: its random stream, and the environment's seed that it shares with its group."""

    key: tuple[int, int]  # (seed, episode) for the engine
    env: str
    seed: int
    group: int
    split: str


def make_tasks(
    cfg, first_group: int, groups: int, group_size: int, split: str, stream: int, order: str = "random", limit: int = 0
) -> list[Task]:
    """Tasks `first_group`, ... of a stream, each for group_size episodes. Equal arguments give equal tasks.

    order: "random", or "sequential" for the environment's seeds 0, 1, 2, ...
    limit: how many different tasks there are, after which they come again; 0: no end of them.
    """
    weights = mixture(cfg.env)
    tasks = []
    for group in range(first_group, first_group + groups):
        number = group % limit if limit else group
        draw = random.Random(f"{stream} {number} {split}")
        env = draw.choices(list(weights), list(weights.values()))[0]
        seed = draw.randrange(2**31) if order == "random" else number
        for member in range(group_size):
            tasks.append(Task((stream, group * group_size + member), env, seed, group, split))
    return tasks


def make_env(cfg, name: str):
    """The environment of that name with the run's options."""
    options = dict(vars(getattr(cfg, name)))
    if cfg.max_turns and "max_turns" in options:  # tasks of one reply have no such limit
        options["max_turns"] = cfg.max_turns
    return envs.make(name, **options)


def rollout(
    model: CausalLM,
    tokenizer: Tokenizer,
    tasks: Iterable[Task],
    cfg,
    temperature: float,
    progress: tqdm,
    adapter_hash: str = "",
) -> list[Episode]:
    """Plays every task, cfg.rollout_batch_size at once, and returns the episodes in the order of the tasks.

    Episodes that end make room at once for those that wait. What worlds ask of the base model is answered together when
    nothing else can be sampled. An episode whose world fails (envs.EnvironmentFailed) is marked so and over; raises
    ValueError if that is all, or the first GIVE_UP.
    """
    if cfg.max_len > model.config.max_position_embeddings:
        positions = model.config.max_position_embeddings
        raise ValueError(f"max_len={cfg.max_len} is more than the model's max_position_embeddings, {positions}")
    engine = Engine(model, cfg.rollout_batch_size, cfg.max_len, lora.adapter_version(model))
    base = Base(model, tokenizer, cfg)
    games = _Games(engine, base, tokenizer, deque(enumerate(tasks)), cfg, progress, adapter_hash)
    try:
        games.start()
        while games.playing:
            for row in engine.run(cfg.max_new_tokens, temperature, tokenizer.eos_ids):
                games.sampled(row)
                games.take_answers()
            if games.asking:
                games.answer_requests()
            else:
                games.take_answers(wait=True)
    finally:
        games.pool.shutdown(wait=False, cancel_futures=True)
    return [games.finished[index] for index in sorted(games.finished)]


@dataclass
class _Games:
    """The episodes of a rollout: those that wait for a slot of the engine, are being played, and are over."""

    engine: Engine
    base: Base
    tokenizer: Tokenizer
    waiting: deque[tuple[int, Task]]
    cfg: Any
    progress: tqdm
    adapter_hash: str
    playing: dict[int, tuple] = field(default_factory=dict)  # {slot: (index, env, episode, streams of its requests)}
    asking: dict[int, list[tuple]] = field(default_factory=dict)  # {slot: (request, stream) of each}, as worlds asked
    finished: dict[int, Episode] = field(default_factory=dict)
    answers: deque[tuple[int, Future]] = field(default_factory=deque)  # (slot, step) of slow worlds, as they were asked
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(AT_ONCE))

    def start(self) -> None:
        """Begins as many episodes as the engine has room for."""
        sibling = None  # (group, slot): the prompt of a group is computed once
        begun = deque()  # (env, what gives its opening), of the next tasks: worlds that are slow begin together
        while self.waiting and self.engine.free:
            if not begun:
                begun += [self.begin(task) for _, task in islice(self.waiting, self.engine.free)]
            (index, task), (env, opening) = self.waiting.popleft(), begun.popleft()
            episode = Episode(task.env, task.seed, task.group, adapter_hash=self.adapter_hash)
            try:
                messages = opening()
            except envs.EnvironmentFailed as error:
                self.failed(index, episode, error)
                continue
            _append(episode, self.tokenizer.prompt(messages))
            if sibling and sibling[0] == task.group:
                slot = self.engine.open(task.key, parent=sibling[1])
            else:
                slot = self.engine.open(task.key)
                self.engine.feed(slot, episode.ids_T)
            sibling = (task.group, slot)
            self.playing[slot] = (index, env, episode, request_streams(task.key))

    def begin(self, task: Task) -> tuple:
        """(env, a function that gives its first messages)."""
        env = make_env(self.cfg, task.env)
        opening = partial(env.reset, task.seed, task.split)
        return env, self.pool.submit(opening).result if env.slow else opening

    def sampled(self, row: Row) -> None:
        """The agent's turn, and what its world answers."""
        _, env, episode, _ = self.playing[row.slot]
        episode.turns.append(Turn(len(episode.ids_T), len(episode.ids_T) + len(row.ids), 0.0, row.stop_reason))
        _append(episode, row.ids, row.logprobs)
        if row.stop_reason == "context":
            self.answered(row.slot, lambda: CUT)
        else:
            self.ask(row.slot, partial(env.step, self.tokenizer.answer(row.ids)))

    def ask(self, slot: int, answer: Callable[[], envs.Step]) -> None:
        """Has the slot's world answer, now or, if it is slow, beside the others."""
        if self.playing[slot][1].slow:
            self.answers.append((slot, self.pool.submit(answer)))
        else:
            self.answered(slot, answer)

    def take_answers(self, wait: bool = False) -> None:
        """Takes in what slow worlds have answered, in the order in which they were asked; with `wait` one at least."""
        while self.answers and (wait or self.answers[0][1].done()):
            slot, step = self.answers.popleft()
            self.answered(slot, step.result)
            wait = False

    def answer_requests(self) -> None:
        """The base model answers all that worlds ask of it; they go on in the order in which they asked."""
        asking, self.asking = self.asking, {}
        for slot, results in self.base.answer(asking).items():
            self.ask(slot, partial(self.playing[slot][1].answer, results))

    def answered(self, slot: int, answer: Callable[[], envs.Step]) -> None:
        """The episode of a slot goes on with its world's answer, or ends."""
        index, _, episode, streams = self.playing[slot]
        try:
            step = answer()
        except envs.EnvironmentFailed as error:
            self.engine.close(slot)
            del self.playing[slot]
            self.failed(index, episode, error)
        else:
            if step.requests:
                self.asking[slot] = list(zip(step.requests, streams, strict=False))
                return
            observation_ids = _take_in(episode, step, self.tokenizer, self.cfg)
            if observation_ids:
                self.engine.feed(slot, observation_ids)
                return
            self.engine.close(slot)
            del self.playing[slot]
            self.finished[index] = episode
        self.progress.update()
        self.start()

    def failed(self, index: int, episode: Episode, error: envs.EnvironmentFailed) -> None:
        """The episode counts for nothing; raises ValueError if no other one says that the worlds can be played."""
        episode.infrastructure_failed, episode.truncated = True, True
        self.finished[index] = episode
        self.progress.write(f"{episode.env}: {error}; the episode is left out")
        none_whole = not self.playing and all(e.infrastructure_failed for e in self.finished.values())
        if none_whole and (len(self.finished) >= GIVE_UP or not self.waiting):
            tried = f"{len(self.finished)} of {len(self.finished) + len(self.waiting)} episodes"
            raise ValueError(f"{tried} were tried, and every one failed; the last: {error}") from error


def demonstrations(
    tokenizer: Tokenizer, tasks: Iterable[Task], cfg, progress: tqdm, model: CausalLM | None = None
) -> list[Episode]:
    """The expert's episodes, with the ids that the model would have sampled; log-probabilities are 0.

    model: whose base answers what worlds ask of it, all at once. Raises ValueError if one asks and there is none.
    """
    base, finished = Base(model, tokenizer, cfg), {}
    playing = [(_demonstration(tokenizer, task, cfg), request_streams(task.key)) for task in tasks]
    results = {index: None for index in range(len(playing))}  # for those that go on
    while results:
        asking = {}
        for index, answers in results.items():
            episode, streams = playing[index]
            try:
                asking[index] = list(zip(episode.send(answers), streams, strict=False))
            except StopIteration as end:
                finished[index] = end.value
                progress.update()
        results = base.answer(asking)
    return [finished[index] for index in range(len(playing))]


def _demonstration(tokenizer: Tokenizer, task: Task, cfg) -> Generator[list[envs.Request], list[envs.Result], Episode]:
    """The expert's episode. Yields what its world asks of the base model, and is sent the results."""
    env = make_env(cfg, task.env)
    episode = Episode(task.env, task.seed, task.group)
    _append(episode, tokenizer.prompt(env.reset(task.seed, task.split)))
    goes_on = True
    while goes_on:
        action, room = env.oracle(), max(cfg.max_len - len(episode.ids_T), 0)
        ids = tokenizer.reply(action)
        reason = "stop" if len(ids) <= room else "context"
        ids = ids[:room]
        episode.turns.append(Turn(len(episode.ids_T), len(episode.ids_T) + len(ids), 0.0, reason))
        _append(episode, ids, [0.0] * len(ids))
        step = env.step(action) if reason == "stop" else CUT
        while step.requests:
            step = env.answer((yield step.requests))
        goes_on = bool(_take_in(episode, step, tokenizer, cfg))
    if cfg.sft.all_tokens:
        episode.turns = [Turn(1, len(episode.ids_T), episode.score, "stop")]
        episode.action_mask_T = [0] + [1] * (len(episode.ids_T) - 1)
    return episode


def _append(episode: Episode, ids: list[int], logprobs: list[float] | None = None) -> None:
    """Ids with log-probabilities were sampled; ids without were not."""
    episode.ids_T += ids
    episode.action_mask_T += [0 if logprobs is None else 1] * len(ids)
    episode.logprobs_T += [0.0] * len(ids) if logprobs is None else logprobs


# What stands for the environment's answer to a reply that max_len cut short: it never saw it.
CUT = envs.Step("", 0.0, False, True, {"outcome": "timeout", "success": False, "valid": True, "shaped": 0.0})


def _take_in(episode: Episode, step: envs.Step, tokenizer: Tokenizer, cfg) -> list[int]:
    """Enters the environment's answer to the last turn. Returns its ids, or none if the episode is over, by the answer
    or because max_len has no room for it and a token more."""
    ids = []
    if not (step.terminated or step.truncated):
        ids = tokenizer.follow_up(episode.ids_T[-1], [{"role": "user", "content": step.observation}])
        if len(episode.ids_T) + len(ids) >= cfg.max_len:
            ids, episode.turns[-1].stop_reason = [], "context"
            step = replace(step, truncated=True, info={**step.info, "outcome": "timeout", "success": False})
    _append(episode, ids)
    episode.turns[-1].reward = reward.turn_reward(step, episode, cfg.reward)
    episode.terminated, episode.truncated = step.terminated, step.truncated
    if step.terminated or step.truncated:
        episode.outcome, episode.success = step.info["outcome"], step.info["success"]
        episode.metrics = step.info.get("metrics", {})
    return ids
