"""Where what an environment says becomes the number that is trained on. Your own shaping goes in here."""

from dataclasses import replace

import envs
from rl.records import Batch, Episode


def turn_reward(step: envs.Step, episode: Episode, cfg) -> float:
    """The reward of the turn that has just been played, `episode.turns[-1]`, by `reward.rule`:

    native: the environment's own score. seed: the guide's shaping for valid first-time progress, and reward.invalid for
    an action that was not understood. binary: reward.correct, incorrect, timeout or unknown when the episode ends.
    """
    over = step.terminated or step.truncated
    if cfg.rule == "native":
        reward = step.reward
    elif cfg.rule == "seed":
        reward = step.info["shaped"] + (0.0 if step.info["valid"] else cfg.invalid)
    else:
        reward = getattr(cfg, step.info["outcome"]) if over else 0.0
    return cfg.scale * reward


def whiten_rewards(batch: Batch) -> Batch:
    """The batch with its rewards divided by the deviation of its scores. They are not shifted: a shift of each turn's
    reward would pay for long episodes, or for short ones."""
    scores_B = batch.scores_B
    if bool((scores_B == scores_B[0]).all()):  # exactly equal: the deviation would be rounding
        return batch
    return replace(batch, reward_N=batch.reward_N / scores_B.std())
