"""The arithmetic of policy gradients: pure functions on flat tensors, each with its source.

Entries belong to sampled tokens (suffix _N) or to steps of a return (suffix _K: tokens or turns), episode after
episode; `episode_K` says which episode an entry belongs to, in ascending order. Nothing here knows of padding or of a
model.
"""

import math

import torch
from torch import Tensor


def gae(
    rewards_K: Tensor, values_K: Tensor, episode_K: Tensor, last_values_B: Tensor, gamma: float, lam: float
) -> tuple[Tensor, Tensor]:
    """Generalized advantage estimation (Schulman et al. 2016, eq. 11 and 16), (advantages_K, returns_K).

    The next state of an episode's last step has the value last_values_B[episode]: 0 where the task terminated, the
    critic's estimate where a limit cut it off. returns = advantages + values.
    """
    rewards, values, episode = rewards_K.tolist(), values_K.tolist(), episode_K.tolist()
    last, advantages = last_values_B.tolist(), [0.0] * len(rewards)
    for k in reversed(range(len(rewards))):
        inside = k + 1 < len(rewards) and episode[k + 1] == episode[k]
        next_value = values[k + 1] if inside else last[episode[k]]
        next_advantage = advantages[k + 1] if inside else 0.0
        advantages[k] = rewards[k] + gamma * next_value - values[k] + gamma * lam * next_advantage
    advantages_K = torch.tensor(advantages, dtype=values_K.dtype)
    return advantages_K, advantages_K + values_K


def returns_to_go(rewards_K: Tensor, episode_K: Tensor, gamma: float) -> Tensor:
    """The discounted sum of an entry's reward and those after it in its episode (Sutton and Barto 2018, eq. 3.8)."""
    zeros_K = torch.zeros_like(rewards_K)
    return gae(rewards_K, zeros_K, episode_K, zeros_K, gamma, 1.0)[0]


def whiten(x_N: Tensor) -> Tensor:
    """(x - mean) / sqrt(unbiased variance + 1e-8); x less its mean where there is one entry."""
    if x_N.numel() < 2:
        return x_N - x_N.mean()
    return (x_N - x_N.mean()) * torch.rsqrt(x_N.var() + 1e-8)


def group_advantages(scores_B: Tensor, group_B: Tensor, divide_by_std: bool, eps: float = 1e-4) -> Tensor:
    """Score less the group's mean (Shao et al. 2024, section 4.1.2), over its unbiased deviation + eps if asked.

    A group of one has advantage 0. A group of exactly equal scores has advantages of exactly 0.
    """
    _, index_B, count_G = torch.unique(group_B, return_inverse=True, return_counts=True)
    advantages_B = torch.zeros_like(scores_B)
    for g in range(len(count_G)):
        mine = index_B == g
        scores = scores_B[mine]
        if bool((scores == scores[0]).all()):
            continue
        centred = scores - scores.mean()
        advantages_B[mine] = centred / (scores.std() + eps) if divide_by_std else centred
    return advantages_B


def equal_groups(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """bool_B: the scores of the episode's whole group are exactly equal, so that it has nothing to teach (DAPO)."""
    return torch.stack([(scores_B[group_B == g] == scores_B[group_B == g][0]).all() for g in group_B])


def leave_one_out(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """The mean score of the *others* in each episode's group (Kool et al. 2019, eq. 5). Its own for a group of one."""
    _, index_B, count_G = torch.unique(group_B, return_inverse=True, return_counts=True)
    total_G = scores_B.new_zeros(len(count_G)).index_add_(0, index_B, scores_B)
    others_B = count_G[index_B] - 1
    return torch.where(others_B > 0, (total_G[index_B] - scores_B) / others_B.clamp(min=1), scores_B)


def moving_average(average: float | None, value: float, decay: float) -> float:
    """decay * average + (1 - decay) * value; the value itself where there is no average yet."""
    return value if average is None else decay * average + (1 - decay) * value


def overlong_penalty(tokens_B: Tensor, limit: int, cache: int) -> Tensor:
    """0 up to limit - cache sampled tokens, then falling to -1 at the limit and beyond (DAPO, eq. 13)."""
    return -((tokens_B - (limit - cache)) / cache).clamp(0, 1)


def clipped_surrogate(
    log_ratio_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float, dual: float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """PPO's pessimistic objective per token as a loss (Schulman et al. 2017, eq. 7), with its ratio and clip indicator.

    log_ratio_N = logprobs_N - old_logprobs_N, held within +-20 so that exp stays finite. clip_high above clip_low is
    DAPO's clip-higher. dual bounds the loss of negative advantages by dual * |advantage| (Ye et al. 2020, eq. 5).
    """
    ratio_N = log_ratio_N.clamp(-20, 20).exp()
    plain_N, clipped_N = -advantages_N * ratio_N, -advantages_N * ratio_N.clamp(1 - clip_low, 1 + clip_high)
    loss_N, held_N = torch.maximum(plain_N, clipped_N), clipped_N > plain_N
    if dual is not None:
        bound_N = torch.where(advantages_N < 0, -dual * advantages_N, torch.inf)
        loss_N, held_N = torch.minimum(loss_N, bound_N), held_N | (loss_N > bound_N)
    return loss_N, ratio_N, held_N.to(ratio_N.dtype)


def weighted_surrogate(
    log_ratio_N: Tensor, logprobs_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """CISPO (MiniMax-M1 2025, eq. 4): the clipped ratio is a constant weight, so every token keeps its gradient."""
    ratio_N = log_ratio_N.detach().clamp(-20, 20).exp()
    weight_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    return -weight_N * advantages_N * logprobs_N, ratio_N, (weight_N != ratio_N).to(ratio_N.dtype)


def sequence_log_ratio(log_ratio_N: Tensor, episode_N: Tensor) -> Tensor:
    """The mean log-ratio of each token's episode (GSPO, Zheng et al. 2025, eq. 7)."""
    count_B = torch.bincount(episode_N)
    sum_B = log_ratio_N.new_zeros(len(count_B)).index_add(0, episode_N, log_ratio_N)
    return (sum_B / count_B)[episode_N]


def value_loss(values_K: Tensor, old_values_K: Tensor, returns_K: Tensor, clip: float | None) -> Tensor:
    """Half squared error per entry; with clip, the larger of it and that of values held within clip of the old ones."""
    plain = (values_K - returns_K) ** 2
    if clip is None:
        return 0.5 * plain
    held = old_values_K + (values_K - old_values_K).clamp(-clip, clip)
    return 0.5 * torch.maximum(plain, (held - returns_K) ** 2)


def kl_estimate(logprobs_N: Tensor, ref_logprobs_N: Tensor, kind: str) -> Tensor:
    """Per-token estimates of KL(policy || reference) from sampled tokens (Schulman 2020, "Approximating KL
    divergence").

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


def aggregate(
    loss_N: Tensor, episode_N: Tensor, kind: str, total_tokens: int, total_episodes: int, constant: float = 1
) -> Tensor:
    """One number from per-token losses, by denominators of the whole optimizer step.

    token: the mean over tokens (DAPO). sequence: the mean over episodes of each one's mean (GRPO). episode: the mean
    over episodes of each one's sum (the policy gradient). constant: that over a constant length (Dr. GRPO, Liu et al.
    2025).
    """
    if kind == "token":
        return loss_N.sum() / total_tokens
    if kind == "sequence":
        length_N = torch.bincount(episode_N)[episode_N]
        return (loss_N / length_N).sum() / total_episodes
    if kind in ("episode", "constant"):
        return loss_N.sum() / (total_episodes * (constant if kind == "constant" else 1))
    raise ValueError(f"aggregation {kind!r} is not one of token, sequence, episode, constant")


def approximate_kl(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """KL(old || new) per sampled token, by the k3 estimator on the sampling policy: ratio - 1 - log ratio >= 0."""
    return kl_estimate(old_logprobs_N, logprobs_N, "k3")


def learning_rate_factor(step: int, total: int, kind: str, warmup: int, min_ratio: float) -> float:
    """What the learning rate is multiplied by in optimizer step `step` of `total` (from 0).

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
