"""Episodes: the agent in its environments, and the expert in them.

Tokens in, tokens out. An episode is one list of ids that is only appended to: the prompt, what was sampled, what the
environment answered. What was sampled is decoded for the environment and never encoded again.
"""

import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tqdm import tqdm

import envs
import lora
from models import CausalLM, Tokenizer
from models.generate import Engine
from rl import reward
from rl.config import mixture
from rl.records import Episode, Turn

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

    Episodes that end make room at once for those that wait. One whose world fails (envs.WorldFailed) is marked so and
    over; raises ValueError if that is all, or the first GIVE_UP.
    """
    if cfg.max_len > model.config.max_position_embeddings:
        positions = model.config.max_position_embeddings
        raise ValueError(f"max_len={cfg.max_len} is more than the model's max_position_embeddings, {positions}")
    engine = Engine(model, cfg.rollout_batch_size, cfg.max_len, lora.adapter_version(model))
    waiting, playing, finished = deque(enumerate(tasks)), {}, {}

    def failed(index: int, episode: Episode, error: envs.WorldFailed) -> None:
        episode.infrastructure_failed, episode.truncated = True, True
        finished[index] = episode
        progress.write(f"{episode.env}: {error}; the episode is left out")
        none_whole = not playing and all(e.infrastructure_failed for e in finished.values())
        if none_whole and (len(finished) >= GIVE_UP or not waiting):
            raise ValueError(f"{len(finished)} episodes, and every one failed; the last: {error}") from error

    def start_more() -> None:
        sibling = None  # (group, slot): the prompt of a group is computed once
        while waiting and engine.free:
            index, task = waiting.popleft()
            env = make_env(cfg, task.env)
            episode = Episode(task.env, task.seed, task.group, adapter_hash=adapter_hash)
            try:
                messages = env.reset(task.seed, task.split)
            except envs.WorldFailed as error:
                failed(index, episode, error)
                continue
            _append(episode, tokenizer.prompt(messages))
            if sibling and sibling[0] == task.group:
                slot = engine.open(task.key, parent=sibling[1])
            else:
                slot = engine.open(task.key)
                engine.feed(slot, episode.ids_T)
            sibling = (task.group, slot)
            playing[slot] = (index, env, episode)

    start_more()
    for row in engine.run(cfg.max_new_tokens, temperature, tokenizer.eos_ids):
        index, env, episode = playing[row.slot]
        episode.turns.append(Turn(len(episode.ids_T), len(episode.ids_T) + len(row.ids), 0.0, row.stop_reason))
        _append(episode, row.ids, row.logprobs)
        try:
            step = CUT if row.stop_reason == "context" else env.step(tokenizer.answer(row.ids))
        except envs.WorldFailed as error:
            engine.close(row.slot)
            del playing[row.slot]
            failed(index, episode, error)
        else:
            observation_ids = _take_in(episode, step, tokenizer, cfg)
            if observation_ids:
                engine.feed(row.slot, observation_ids)
                continue
            engine.close(row.slot)
            finished[index] = playing.pop(row.slot)[2]
        progress.update()
        start_more()
    return [finished[index] for index in sorted(finished)]


def demonstrations(tokenizer: Tokenizer, tasks: Iterable[Task], cfg, progress: tqdm) -> list[Episode]:
    """The expert's episodes, with the ids that the model would have sampled; log-probabilities are 0."""
    episodes = []
    for task in tasks:
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
            goes_on = bool(_take_in(episode, env.step(action) if reason == "stop" else CUT, tokenizer, cfg))
        if cfg.sft.all_tokens:
            episode.turns = [Turn(1, len(episode.ids_T), episode.score, "stop")]
            episode.action_mask_T = [0] + [1] * (len(episode.ids_T) - 1)
        episodes.append(episode)
        progress.update()
    return episodes


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
    return ids
