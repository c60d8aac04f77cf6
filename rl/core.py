"""The arithmetic of policy gradients: pure functions on flat tensors, each with its source.

Entries are sampled tokens (suffix _N) or steps of a return (suffix _steps: tokens or turns), episode after episode;
episode_N and episode_steps hold the index of an entry's episode, in ascending order. No padding, no masks, no model.
"""

import math

import torch
from torch import Tensor


def gae(
    rewards_steps: Tensor, values_steps: Tensor, episode_steps: Tensor, last_values_B: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Return (advantages_steps, returns_steps) of generalized advantage estimation (Schulman et al. 2016, eq. 11, 16).

    The state after an episode's last step has the value last_values_B[episode]: the critic's estimate if a turn limit
    ended it, else 0. returns = advantages + values.
    """
    rewards, values, episode = rewards_steps.tolist(), values_steps.tolist(), episode_steps.tolist()
    last, advantages = last_values_B.tolist(), [0.0] * len(rewards)
    for i in reversed(range(len(rewards))):
        inside = i + 1 < len(rewards) and episode[i + 1] == episode[i]
        next_value = values[i + 1] if inside else last[episode[i]]
        next_advantage = advantages[i + 1] if inside else 0.0
        advantages[i] = rewards[i] + gamma * next_value - values[i] + gamma * lam * next_advantage
    advantages_steps = torch.tensor(advantages, dtype=values_steps.dtype)
    return advantages_steps, advantages_steps + values_steps


def whiten(x_N: Tensor) -> Tensor:
    """Return (x - mean) / sqrt(unbiased variance + 1e-8); for a single entry, 0."""
    if x_N.numel() < 2:
        return x_N - x_N.mean()
    return (x_N - x_N.mean()) * torch.rsqrt(x_N.var() + 1e-8)


def clipped_surrogate(
    log_ratio_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float, dual: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (loss_N, ratio_N, clipped_N) of PPO's clipped objective as a loss (Schulman et al. 2017, eq. 7).

    log_ratio_N = logprobs_N - old_logprobs_N, limited to +-20 so that exp stays finite. clip_high above clip_low is
    DAPO's clip-higher. dual bounds the loss of negative advantages by dual * |advantage| (Ye et al. 2020, eq. 5).
    clipped_N is 1 where the token has no gradient because of a clip.
    """
    ratio_N = log_ratio_N.clamp(-20, 20).exp()
    unclipped_loss_N = -advantages_N * ratio_N
    clipped_loss_N = -advantages_N * ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N, clipped_N = torch.maximum(unclipped_loss_N, clipped_loss_N), clipped_loss_N > unclipped_loss_N
    if dual is not None:
        bound_N = torch.where(advantages_N < 0, -dual * advantages_N, torch.inf)
        loss_N, clipped_N = torch.minimum(loss_N, bound_N), clipped_N | (loss_N > bound_N)
    return loss_N, ratio_N, clipped_N.to(ratio_N.dtype)


def value_loss(values_steps: Tensor, old_values_steps: Tensor, returns_steps: Tensor, clip: float | None) -> Tensor:
    """Return half the squared error of each entry; with clip, at least that of the value clipped to old +- clip."""
    error = (values_steps - returns_steps) ** 2
    if clip is None:
        return 0.5 * error
    clipped = old_values_steps + (values_steps - old_values_steps).clamp(-clip, clip)
    return 0.5 * torch.maximum(error, (clipped - returns_steps) ** 2)


def kl_estimate(logprobs_N: Tensor, ref_logprobs_N: Tensor, kind: str) -> Tensor:
    """Return estimates of KL(policy || reference) per sampled token (Schulman 2020, "Approximating KL divergence").

    k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d with d = logp - logp_ref. As losses their gradients differ: k1's is 0 in
    expectation, k2's that of KL(policy || reference), k3's that of KL(reference || policy).
    """
    d = logprobs_N - ref_logprobs_N
    if kind == "k1":
        return d
    if kind == "k2":
        return 0.5 * d**2
    if kind == "k3":
        return torch.expm1(-d) + d
    raise ValueError(f"kl estimator {kind!r} is not one of k1, k2, k3")


def approximate_kl(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """Return KL(old || new) per sampled token by the k3 estimator: ratio - 1 - log ratio >= 0."""
    return kl_estimate(old_logprobs_N, logprobs_N, "k3")


def learning_rate_factor(step: int, total: int, kind: str, warmup: int, min_ratio: float) -> float:
    """Return the factor on the learning rate in optimizer step `step` of `total` (from 0).

    Linear warm-up over `warmup` steps, then constant, or linear or cosine decay to min_ratio at the last step.
    """
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - 1 - warmup))
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 - (1.0 - min_ratio) * progress
    if kind == "cosine":
        return min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress))
    raise ValueError(f"schedule {kind!r} is not one of constant, linear, cosine")
