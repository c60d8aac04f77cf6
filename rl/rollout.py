"""Rollouts: the agent plays its environments, many episodes at once.

Tokens in, tokens out. An episode is one list of ids that only grows; sampled ids are never decoded and encoded again.
With history=template that holds for the reply that a sample trains; earlier replies are rendered by the chat template.

    rollout           all tasks at one temperature; `rollout_at` at several, for evaluations
    play_on_ranks     each process gets its share of the tasks (rl/ranks/playing.py); one process plays all
    play_here         makes the engine of this process
    play_with         the loop: the engine samples turns, `_Games` lets environments answer them
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from threading import Event
from typing import Any

from tqdm import tqdm

import envs
import lora
from envs.checked import entry, is_numeric
from models import CausalLM, Tokenizer
from models.engine import Engine, SampledTurn
from models.hooks import hooks
from models.refusal import Refusal as RefusedByModel
from rl import ranks, reward
from rl.base_model import Base
from rl.config.fields import Config, Reward
from rl.ranks.pace import Pace
from rl.ranks.playing import play_on_ranks
from rl.records import Episode
from rl.remote.sampler import FailedTurn, RemoteEngine, remote_engine
from rl.report import progress as live
from rl.run.files import is_number
from rl.run.health import sampler_hash
from rl.tasks import Task, check_failures, failures_of, make_env, show_failure, task_digest
from rl.tools import read_action

MAX_THREADS = 8  # slow environments that step at once: with more, programs that have a time limit would be slowed down

# Takes the place of the environment's step for a reply that max_len cut short, which the environment never sees.
UNSEEN = envs.Step("", 0.0, False, False, {"outcome": "unknown", "success": False, "valid": True, "shaped": 0.0})


def rollout(
    model: CausalLM,
    tokenizer: Tokenizer,
    tasks: list[Task],
    cfg: Config,
    temperature: float,
    progress: tqdm,
    keep_hidden: bool = False,
    pace: Pace | None = None,
) -> list[Episode]:
    """Play every task, cfg.rollout_batch_size at once, and return the episodes in the order of the tasks.

    Requests of environments to the base model wait until no episode can sample, then are answered as one batch. An
    episode whose environment fails (EnvironmentFailed) is marked infrastructure_failed. Raise ValueError if all fail.

    keep_hidden: for a critic, episodes keep the hidden states that predicted their sampled tokens.
    pace: by which several ranks share the tasks (`play_on_ranks`).
    """
    return next(rollout_at([temperature], model, tokenizer, tasks, cfg, progress, keep_hidden, pace))


def rollout_at(
    temperatures: Sequence[float],
    model: CausalLM,
    tokenizer: Tokenizer,
    tasks: list[Task],
    cfg: Config,
    progress: tqdm,
    keep_hidden: bool = False,
    pace: Pace | None = None,
) -> Iterator[list[Episode]]:
    """Yield the `rollout` at each temperature; several ranks play them side by side."""
    ways = [partial(play_here, model, tokenizer, cfg, at, sampler_hash(model), keep_hidden) for at in temperatures]
    return play_on_ranks(ways, tasks, progress, pace)


def play_here(
    model: CausalLM,
    tokenizer: Tokenizer,
    cfg: Config,
    temperature: float,
    adapter_hash: str,
    keep_hidden: bool,
    tasks: list[Task],
    progress: tqdm,
) -> list[Episode]:
    """Play tasks in this process and return their episodes. adapter_hash: of the weights that sample."""
    if cfg.sampler:
        engine = remote_engine(model, cfg, adapter_hash)
    else:
        # The cache has a row for each episode that plays at once, so more rows than tasks would stay empty.
        rows, version = min(cfg.rollout_batch_size, len(tasks) or 1), lora.adapter_version(model)
        engine = hooks(model.lm_head.weight).engine(Engine, model, rows, cfg.max_len, version)
    engine.keep_hidden = keep_hidden
    return play_with(engine, model, tokenizer, cfg, temperature, adapter_hash, tasks, progress)


def play_with(
    engine: Engine | RemoteEngine,
    model: CausalLM,
    tokenizer: Tokenizer,
    cfg: Config,
    temperature: float,
    adapter_hash: str,
    tasks: list[Task],
    progress: tqdm,
) -> list[Episode]:
    """Play tasks with an engine and return their episodes: the loop of a rollout."""
    games = _Games(model, engine, tokenizer, deque(tasks), cfg, progress, adapter_hash)
    try:
        games.start()
        turns = max((getattr(cfg.environments[task.env], "max_turns", 1) for task in tasks), default=1)
        live.watch(progress, turns * cfg.max_new_tokens, games.sampled)
        while games.playing:
            for turn in engine.run(cfg.max_new_tokens, temperature, tokenizer.eos_ids):
                games.add_turn(turn)
                games.collect_slow_steps()
            if games.base and games.base.waiting:
                for slot, results in games.base.answer_waiting().items():
                    games.step_env(slot, partial(games.playing[slot].env.answer, results))
            else:
                games.collect_slow_steps(wait=True)
    finally:
        live.watch(progress, 0, int)  # or the log would keep the engine and the model
        # Environments that still run in threads are told to stop: nothing waits for them any more.
        games.cancelled.set()
        games.pool.shutdown(wait=False, cancel_futures=True)
    return [games.finished[task.key] for task in tasks]


@dataclass
class _Game:
    """An episode that is being played."""

    task: Task
    env: envs.Environment
    episode: Episode
    messages: list[dict] | None = None  # the conversation so far, for history=template
    past_budget: bool = False  # the turn has used up max_thinking_tokens, and goes on without that limit


@dataclass
class _Games:
    """The episodes of a rollout: waiting for a slot of the engine, being played, finished."""

    model: CausalLM
    engine: Engine | RemoteEngine
    tokenizer: Tokenizer
    waiting: deque[Task]
    cfg: Config
    progress: tqdm
    adapter_hash: str  # of the weights that sample
    playing: dict[int, _Game] = field(default_factory=dict)  # by slot
    finished: dict[tuple[int, int], Episode] = field(default_factory=dict)  # by Task.key
    slow_steps: deque[tuple[int, Future]] = field(default_factory=deque)  # (slot, step) in a thread, in order of start
    cancelled: Event = field(default_factory=Event)  # set when the rollout ends
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(MAX_THREADS))
    base: Base | None = None  # with the waiting requests, made for the first one
    turn_tokens: int = 0  # sampled in finished turns

    def start(self) -> None:
        """Start as many episodes as the engine has room for. One that begins as the one before it forks its slot, so
        that the prompt of a group is computed once."""
        sibling: tuple[list[int], int] | None = None  # (prompt, slot) of the episode before
        # (env, function that returns the first messages) of the next tasks: slow ones reset together
        ready: deque[tuple[envs.Environment, Callable[[], list[dict]]]] = deque()
        while self.waiting and self.engine.free:
            if not ready:
                ready += [self.reset(task) for task in islice(self.waiting, self.engine.free)]
            task, (env, opening) = self.waiting.popleft(), ready.popleft()
            game = _Game(task, env, Episode(task.env, task.seed, task.group, adapter_hash=self.adapter_hash))
            try:
                with failures_of(task.env):
                    messages, game.episode.task = opening(), task_digest(env)
                game.episode.append(write_prompt(self.tokenizer, messages))
                game.messages = list(messages) if self.cfg.history == "template" else None
            except envs.EnvironmentFailed as error:
                self.fail(game, error)
                continue
            # The prompts are compared, not the groups: an environment may not draw the same task for equal seeds.
            if sibling and sibling[0] == game.episode.ids_T:
                slot = self.engine.open(task.key, parent=sibling[1])
            else:
                slot = self.engine.open(task.key)
                self.engine.feed(slot, game.episode.ids_T, self.cfg.max_thinking_tokens or None)
            sibling = (list(game.episode.ids_T), slot)
            self.playing[slot] = game

    def reset(self, task: Task) -> tuple[envs.Environment, Callable[[], list[dict]]]:
        """Return an environment and a function that returns its first messages."""
        env = make_env(self.cfg, task.env)
        env.cancelled = self.cancelled
        opening = partial(env.reset, task.seed, task.split)
        return env, partial(awaited, self.pool.submit(opening)) if env.slow else opening

    def add_turn(self, turn: SampledTurn) -> None:
        """Append the agent's turn and let the environment execute it."""
        game = self.playing[turn.slot]
        if isinstance(turn, FailedTurn):
            return self.continue_episode(turn.slot, turn.step)
        # The sampled log-probabilities are the old ones of the loss; the mask is 1 on these ids.
        game.episode.append_turn(turn.ids, turn.logprobs, turn.stop_reason, turn.hidden, goes_on=game.past_budget)
        self.turn_tokens += len(turn.ids)
        at_budget = self.cfg.max_thinking_tokens > 0 and not game.past_budget and turn.stop_reason == "length"
        game.past_budget = at_budget
        if at_budget:
            return self.end_thought(game, turn)
        reply = game.episode.last_reply
        game.episode.turns[-1].thoughts = self.tokenizer.thoughts(reply)
        if turn.stop_reason == "context":
            self.continue_episode(turn.slot, lambda: timed_out(UNSEEN, game.env))
        else:
            self.step_env(turn.slot, lambda: game.env.step(read_action(self.tokenizer, reply, game.env)))

    def end_thought(self, game: _Game, turn: SampledTurn) -> None:
        """Let a reply of max_thinking_tokens go on, behind the closing tag if it is still a thought. The tag was not
        sampled: its mask is 0."""
        ids = self.tokenizer.end_of_thought if self.tokenizer.in_thought(turn.ids) else []
        if len(game.episode.last_sample) + len(ids) >= self.cfg.max_len:
            ids = []  # no room for an answer: max_len will end the thought
        game.episode.append(ids)
        self.engine.feed(turn.slot, ids, self.cfg.max_new_tokens - self.cfg.max_thinking_tokens)

    def sampled(self) -> int:
        """Return how many tokens are sampled so far."""
        return self.turn_tokens + self.engine.unfinished

    def step_env(self, slot: int, step: Callable[[], envs.Step]) -> None:
        """Take the environment's step now or, if it is slow, start it in a thread."""
        if self.playing[slot].env.slow:
            self.slow_steps.append((slot, self.pool.submit(step)))
        else:
            self.continue_episode(slot, step)

    def collect_slow_steps(self, wait: bool = False) -> None:
        """Go on with finished steps of slow environments, in order of their start; with `wait`, with at least one."""
        if wait and self.slow_steps:
            with ranks.waiting_outside():
                futures.wait([self.slow_steps[0][1]])
        while self.slow_steps and self.slow_steps[0][1].done():
            slot, step = self.slow_steps.popleft()
            self.continue_episode(slot, step.result)

    def continue_episode(self, slot: int, step: Callable[[], envs.Step]) -> None:
        """Continue the slot's episode with the environment's step, or end it."""
        game = self.playing[slot]
        try:
            with failures_of(game.task.env):
                result = step()
            if result.requests:
                self.base = self.base or Base(self.model, self.tokenizer, self.cfg)
                self.base.ask(slot, game.task.key, result.requests)
                return
            observation_ids = add_step(game.episode, result, self.tokenizer, self.cfg, game.env, game.messages)
        except envs.EnvironmentFailed as error:
            self.engine.close(slot)
            self.fail(self.playing.pop(slot), error)
        else:
            if observation_ids:
                if game.episode.kept:
                    self.engine.rewind(slot, game.episode.kept[-1])
                self.engine.feed(slot, observation_ids, self.cfg.max_thinking_tokens or None)
                return
            self.engine.close(slot)
            self.finished[game.task.key] = self.playing.pop(slot).episode
        live.finished(self.progress, self.finished.values())
        self.start()

    def fail(self, game: _Game, error: envs.EnvironmentFailed) -> None:
        """Mark the episode as failed: train.py leaves it out. Raise ValueError if all failed and none is playing."""
        game.episode.infrastructure_failed = game.episode.truncated = True
        self.finished[game.task.key] = game.episode
        show_failure(self.progress, game.task.env, error, self.finished.values())
        check_failures(list(self.finished.values()), len(self.playing), len(self.waiting), error)


def awaited(future: Future) -> Any:
    """Return what a thread of a slow environment returns, once it does."""
    with ranks.waiting_outside():
        return future.result()


def write_prompt(tokenizer: Tokenizer, messages: list[dict]) -> list[int]:
    """Return the ids of an environment's first messages. Raise EnvironmentFailed if the tokenizer or the chat template
    cannot write them: other tasks' may be written."""
    try:
        return tokenizer.prompt(messages)
    except RefusedByModel as error:
        raise envs.EnvironmentFailed(f"its prompt cannot be written: {error}") from None


def timed_out(step: envs.Step, env: envs.Environment) -> envs.Step:
    """Return the step as the last one of an episode that max_len ends: it also pays what the environment's turn limit
    does, so that a reply which is too long earns no more than a wrong one by the environment's own rewards."""
    shaped = entry(step.info, "shaped") + env.timeout_reward
    info = {**step.info, "outcome": "timeout", "success": False, "shaped": shaped}
    return replace(step, reward=step.reward + env.timeout_reward, truncated=True, info=info)


def add_step(
    episode: Episode,
    step: envs.Step,
    tokenizer: Tokenizer,
    cfg: Config,
    env: envs.Environment,
    messages: list[dict] | None = None,
) -> list[int]:
    """Append the environment's step to the episode and set the last turn's reward.

    Return the observation's ids, after which the agent samples its next turn; [] ends the episode. max_len has room if
    the observation and one more token fit.

        the task goes on, and max_len has room         observation appended, episode goes on           -> its ids
        the task goes on, and max_len has no room      observation dropped, `timed_out`                -> []
        truncated, and a critic bootstraps             observation appended if there is room           -> []
        truncated by a reply that max_len cut          there is none: the environment was not asked    -> []
        terminated, or truncated without a bootstrap   observation dropped                             -> []

    messages: with history=template, the conversation before the last turn; the turn and the observation are appended.
    The ids then follow `episode.kept[-1]` ids of the last sample.

    Raise EnvironmentFailed for an observation that the tokenizer or the chat template cannot write.
    """
    ids, over, algo = [], step.terminated or step.truncated, cfg.algorithm
    was_seen = episode.turns[-1].stop_reason != "context"  # the environment does not see a reply that max_len cuts
    if not over or (was_seen and not step.terminated and algo.critic and algo.bootstrap):
        observation, kept = {"role": env.role, "content": step.observation}, len(episode.ids_T)
        try:
            if messages is None:
                ids = tokenizer.follow_up(episode.ids_T[-1], [observation])
            else:
                messages += [tokenizer.message(episode.last_reply, bool(env.tools)), observation]
                kept, ids = difference(episode.last_sample, tokenizer.prompt(messages))
        except RefusedByModel as error:
            raise envs.EnvironmentFailed(f"its observation cannot be written: {error}") from None
        ids = ids if kept + len(ids) < cfg.max_len else []
        if ids and messages is not None:
            episode.kept.append(kept)
    if not (over or ids):
        episode.turns[-1].stop_reason = "context"
        with failures_of(episode.env):
            step = timed_out(step, env)
    episode.append(ids)
    end_turn(episode, step, cfg.reward)
    return [] if over else ids


def end_turn(episode: Episode, step: envs.Step, cfg: Reward) -> None:
    """Set the reward of the episode's last turn and, if the step ends the episode, its outcome.

    Raise EnvironmentFailed for a step without one of these, or with a number that a run cannot save.
    """
    with failures_of(episode.env):
        episode.turns[-1].reward = number("reward", reward.turn_reward(step, episode, cfg))
        episode.terminated, episode.truncated = bool(step.terminated), bool(step.truncated)
        episode.invalid += not step.info.get("valid", True)
        if step.terminated or step.truncated:
            episode.outcome = entry(step.info, "outcome")
            episode.success = bool(number("success", entry(step.info, "success")))
            metrics = step.info.get("metrics", {})
            if not all(isinstance(name, str) for name in metrics):
                raise envs.EnvironmentFailed(f"a name of its metrics is no text: {list(metrics)!r}")
            episode.metrics = {name: number(name, value) for name, value in metrics.items()}


def number(name: str, value: Any) -> float:
    """Return a number of an environment as one of Python's own: NumPy's and torch's are no JSON.

    Raise EnvironmentFailed for anything else, and for one that is not from -1e15 to 1e15.
    """
    found = float(value) if is_numeric(value) and type(value) not in (int, float) else value
    if not is_number(found):
        raise envs.EnvironmentFailed(f"its {name} is {value!r}, not a number from -1e15 to 1e15")
    return found


def difference(before: list[int], after: list[int]) -> tuple[int, list[int]]:
    """Return (kept, ids): the first `kept` ids of `before`, then ids, are `after`. At least its last id is in ids."""
    pairs = enumerate(zip(before, after[:-1], strict=False))
    kept = next((i for i, (a, b) in pairs if a != b), min(len(before), len(after) - 1))
    return kept, after[kept:]
