"""The one place where an environment's step becomes the reward that is trained on. Add your own shaping here.
The grade of a model that reads the finished episode is added by rl/rubric.py.

`reward.progress=w` adds w * (N(before) - N(after)) to every turn, where N(state) is how many moves the environment's
expert still needs. CAST (2607.25308) does so on top of GRPO, with asinh.

This is potential-based shaping (Ng et al. 1999, theorem 1) with the potential -N: with gamma=1 the sum over an episode
is w * (N(first) - N(last)), so a detour earns nothing. It leaves the optimal policy alone where that solves its tasks:
N is 0 in a solved state and never negative, so no policy collects more. The theorem wants equal potentials at all ends;
episodes that end unsolved keep their N, or groups could not see which of them came near. Hence the bias: where even the
best policy fails at times, coming near competes with success, by at most w times the largest N. The largest N is
max_turns, or the environment's own limit where that is larger: a run of short episodes is paid for coming near too. A
state from which the expert does not solve the task, as after a wrong answer, has that N as well.

The expert of alfworld knows only what the agent has seen, and that of os_interaction follows one fixed solution. There
N is no true distance; as a potential it is as harmless, because any function of the state may be one.
"""

from dataclasses import replace
from typing import Any

import envs
from envs.checked import entry
from envs.demos import expert
from rl.config.fields import Reward
from rl.config.refusals import Refusal
from rl.records import Episode

NO_LIMIT = 10**6  # turns


def turn_reward(step: envs.Step, episode: Episode, cfg: Reward) -> float:
    """Return the reward of the last turn, `episode.turns[-1]`, by cfg.rule (reward.rule), times cfg.scale.

    native: the environment's own score. shaped: also pays valid first-time progress, and cfg.invalid for an action that
    was not understood. binary: cfg.correct, incorrect, timeout or unknown at the end of the episode. With cfg.progress,
    any of them and the progress that `measure_progress` found.
    """
    if cfg.rule == "native":
        reward = step.reward
    elif cfg.rule == "shaped":
        reward = entry(step.info, "shaped") + (0.0 if entry(step.info, "valid") else cfg.invalid)
    else:
        reward = getattr(cfg, entry(step.info, "outcome")) if step.terminated or step.truncated else 0.0
    if cfg.progress:
        reward += cfg.progress * step.info.get("progress", 0)  # the environment never sees a reply that max_len cut
    return cfg.scale * reward


def measure_progress(env: envs.Environment, name: str, options: dict[str, Any]) -> None:
    """Let the steps of an environment have info["progress"]: how many moves fewer its expert needs after the turn.

    name, options: of the environment. The expert plays on in another instance, which has taken the same actions.
    """
    reset, step = env.reset, env.step
    task, left = (0, ""), 0
    actions: list[str] = []

    def reset_and_count(seed: int, split: str = "train") -> list[dict]:
        nonlocal task, left
        task = (seed, split)
        actions.clear()
        messages, left = reset(seed, split), moves_left(name, options, task, actions)
        return messages

    def step_and_count(action_text: str) -> envs.Step:
        nonlocal left
        result, before = step(action_text), left
        actions.append(action_text)
        left = moves_left(name, options, task, actions)
        return replace(result, info={**result.info, "progress": before - left})

    env.reset, env.step = reset_and_count, step_and_count


def moves_left(name: str, options: dict[str, Any], task: tuple[int, str], actions: list[str]) -> int:
    """Return how many moves an environment's expert needs to solve a task after these actions.

    The most is max_turns, or the environment's own limit if that is larger: also for a task that the expert no longer
    solves. task: (seed, split). Raise ValueError if there is no expert, or if the environment asks a model.
    """
    env, moves = envs.make(name, **options), 0
    own = getattr(envs.config_class(name), "max_turns", 1)  # a dataclass keeps a field's default as its attribute
    most = max(own, options.get("max_turns", 1))
    env.reset(*task)  # draws the task with the true limit, which some environments fit their tasks to
    if "max_turns" in options:  # or the moves would become fewer as the turns run out
        env.config = replace(env.config, max_turns=NO_LIMIT)
    step, waiting = None, list(actions)
    while step is None or not (step.terminated or step.truncated):
        if not waiting and moves == most:
            return most
        moves += not waiting
        step = env.step(waiting.pop(0) if waiting else expert(env))
        if step.requests:
            raise Refusal(f"reward.progress: env={name} asks a model here, which the expert's own play cannot do")
    return moves if entry(step.info, "success") else most
