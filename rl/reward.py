"""The one place where what an environment says becomes the number that is trained on."""

import envs


def turn_reward(step: envs.Step, cfg) -> float:
    """The reward of one turn, by `reward.rule`:

    native: the environment's own score. seed: the guide's shaping for valid first-time progress, and reward.invalid for
    an action that was not understood. binary: reward.correct, incorrect, timeout or unknown when the episode ends, and
    reward.invalid likewise.
    """
    over = step.terminated or step.truncated
    if cfg.rule == "native":
        reward = step.reward
    elif cfg.rule == "seed":
        reward = step.info["shaped"]
    else:
        reward = getattr(cfg, step.info["outcome"]) if over else 0.0
    if cfg.rule != "native" and not step.info["valid"]:
        reward += cfg.invalid
    return cfg.scale * reward
