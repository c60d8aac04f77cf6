"""The one place where an environment's step becomes the reward that is trained on. Add your own shaping here."""

import envs
from rl.config.fields import Reward
from rl.records import Episode


def turn_reward(step: envs.Step, episode: Episode, cfg: Reward) -> float:
    """Return the reward of the last turn, `episode.turns[-1]`, by cfg.rule (reward.rule), times cfg.scale.

    native: the environment's own score. shaped: also pays valid first-time progress, and cfg.invalid for an action that
    was not understood. binary: cfg.correct, incorrect, timeout or unknown at the end of the episode.
    """
    if cfg.rule == "native":
        reward = step.reward
    elif cfg.rule == "shaped":
        reward = step.info["shaped"] + (0.0 if step.info["valid"] else cfg.invalid)
    else:
        reward = getattr(cfg, step.info["outcome"]) if step.terminated or step.truncated else 0.0
    return cfg.scale * reward
