"""Arithmetic of GRPO, RLOO and their relatives: groups of episodes, surrogates, means, whitened rewards.

Pure functions on flat tensors, as in rl/core.py; the suffix _groups means one entry per group. The last two functions
take and return a Batch.
"""

from dataclasses import replace

import torch
from torch import Tensor

from rl.batch import select
from rl.records import Batch


def group_advantages(scores_B: Tensor, group_B: Tensor, divide_by_std: bool, eps: float = 1e-4) -> Tensor:
    """Return score - group mean (Shao et al. 2024, section 4.1.2), divided by (unbiased deviation + eps) if asked.

    A group of one, and a group of exactly equal scores, has advantages of exactly 0.
    """
    _, index_B, count_groups = torch.unique(group_B, return_inverse=True, return_counts=True)
    advantages_B = torch.zeros_like(scores_B)
    for g in range(len(count_groups)):
        in_group = index_B == g
        scores = scores_B[in_group]
        if bool((scores == scores[0]).all()):
            continue
        centred = scores - scores.mean()
        advantages_B[in_group] = centred / (scores.std() + eps) if divide_by_std else centred
    return advantages_B


def equal_groups(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """Return bool_B: the scores of the episode's whole group are exactly equal, so it has no gradient (DAPO)."""
    return torch.stack([(scores_B[group_B == g] == scores_B[group_B == g][0]).all() for g in group_B])


def leave_one_out(scores_B: Tensor, group_B: Tensor) -> Tensor:
    """Return the mean score of the *other* episodes in each one's group (Kool et al. 2019, eq. 5); alone, its own."""
    _, index_B, count_groups = torch.unique(group_B, return_inverse=True, return_counts=True)
    total_groups = scores_B.new_zeros(len(count_groups)).index_add_(0, index_B, scores_B)
    others_B = count_groups[index_B] - 1
    return torch.where(others_B > 0, (total_groups[index_B] - scores_B) / others_B.clamp(min=1), scores_B)


def overlong_penalty(tokens_B: Tensor, limit: int, cache: int) -> Tensor:
    """Return 0 up to limit - cache sampled tokens, falling linearly to -1 at the limit and beyond (DAPO, eq. 13)."""
    return -((tokens_B - (limit - cache)) / cache).clamp(0, 1)


def sequence_log_ratio(log_ratio_N: Tensor, episode_N: Tensor) -> Tensor:
    """Return the mean log-ratio of each token's episode (GSPO, Zheng et al. 2025, eq. 7)."""
    count_B = torch.bincount(episode_N)
    sum_B = log_ratio_N.new_zeros(len(count_B)).index_add(0, episode_N, log_ratio_N)
    return (sum_B / count_B)[episode_N]


def weighted_surrogate(
    log_ratio_N: Tensor, logprobs_N: Tensor, advantages_N: Tensor, clip_low: float, clip_high: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (loss_N, ratio_N, clipped_N) of CISPO (MiniMax-M1 2025, eq. 4): a clipped ratio is a constant weight, so
    every token keeps its gradient."""
    ratio_N = log_ratio_N.detach().clamp(-20, 20).exp()
    weight_N = ratio_N.clamp(1 - clip_low, 1 + clip_high)
    return -weight_N * advantages_N * logprobs_N, ratio_N, (weight_N != ratio_N).to(ratio_N.dtype)


def aggregate(
    loss_N: Tensor, episode_N: Tensor, kind: str, total_tokens: int, total_episodes: int, constant: float = 1
) -> Tensor:
    """Return one number from per-token losses, with denominators of the whole optimizer step.

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


def drop_zero_advantage(batch: Batch) -> Batch:
    """Return the batch without episodes whose advantages are all zero, such as those of a group with equal scores.

    The denominators of losses stay. Only for losses without a gradient where the advantage is 0. Returns the whole
    batch if no episode would be left.
    """
    nonzero_B = torch.zeros(len(batch.episodes), dtype=torch.bool)
    nonzero_B[batch.episode_N[batch.advantages_N != 0]] = True
    if nonzero_B.all() or not nonzero_B.any():
        return batch
    batch = select(batch, nonzero_B.nonzero()[:, 0].tolist())
    return replace(batch, learned_tokens=len(batch.episode_N))


def whiten_rewards(batch: Batch) -> Batch:
    """Return the batch with its rewards divided by the standard deviation of its scores.

    The rewards are not shifted: shifting each turn's reward would favour long episodes, or short ones.
    """
    scores_B = batch.scores_B
    if bool((scores_B == scores_B[0]).all()):  # exactly equal: the deviation would be rounding
        return batch
    return replace(batch, reward_N=batch.reward_N / scores_B.std())
