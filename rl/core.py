"""The arithmetic of policy gradients: pure functions on flat tensors, each with its source.

Entries are sampled tokens (suffix _N) or steps of a return (suffix _steps: tokens or turns), episode after episode;
episode_N and episode_steps hold the index of an entry's episode, in ascending order. The suffix _groups means one entry
per group. No padding, no masks, no model.
"""

import math

import torch
from torch import Tensor

from rl.config.refusals import Refusal


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


def returns_to_go(rewards_steps: Tensor, episode_steps: Tensor, gamma: float) -> Tensor:
    """Return the discounted sum of each step's and later rewards of its episode (Sutton and Barto 2018, eq. 3.8)."""
    no_values_B = rewards_steps.new_zeros(int(episode_steps[-1]) + 1)
    return gae(rewards_steps, torch.zeros_like(rewards_steps), episode_steps, no_values_B, gamma, 1.0)[0]


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
    expectation (if the policy itself sampled, and the sum has a constant divisor), k2's that of KL(policy ||
    reference), k3's that of KL(reference || policy).
    """
    d = logprobs_N - ref_logprobs_N
    if kind == "k1":
        return d
    if kind == "k2":
        return 0.5 * d**2
    if kind == "k3":
        return torch.expm1(-d) + d
    raise Refusal(f"kl estimator {kind!r} is not one of k1, k2, k3")


def kl_of_choices(logprobs_N: Tensor, teacher_logprobs_N: Tensor) -> Tensor:
    """Return KL(policy || teacher) per token [N], over the k choices of each token and one more: all other words.

    logprobs_N, teacher_logprobs_N: [N, k]. If the choices are the whole vocabulary this is the KL over it, else a lower
    bound (TA-OPD, 2608.14728). Without the term of all other words, probability could move to them at no cost.
    """
    p, q = logprobs_N.exp(), teacher_logprobs_N.exp()
    # Rounding may bring the sum past 1; a rest of 1e-6 on both sides costs nothing.
    rest_p, rest_q = (1 - p.sum(-1)).clamp(min=1e-6), (1 - q.sum(-1)).clamp(min=1e-6)
    return (p * (logprobs_N - teacher_logprobs_N)).sum(-1) + rest_p * (rest_p.log() - rest_q.log())


def approximate_kl(logprobs_N: Tensor, old_logprobs_N: Tensor) -> Tensor:
    """Return KL(old || new) per sampled token by the k3 estimator: ratio - 1 - log ratio >= 0."""
    return kl_estimate(old_logprobs_N, logprobs_N, "k3")


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
    """Return, for each episode, the mean score of the *other* episodes of its group (Kool et al. 2019, eq. 5), or its
    own score if it is alone in its group.

    A group of exactly equal scores has exactly that mean, so that score - mean is 0 and not a rounding error.
    """
    _, index_B, count_groups = torch.unique(group_B, return_inverse=True, return_counts=True)
    total_groups = scores_B.new_zeros(len(count_groups)).index_add_(0, index_B, scores_B)
    others_B = count_groups[index_B] - 1
    means_B = (total_groups[index_B] - scores_B) / others_B.clamp(min=1)
    return torch.where(equal_groups(scores_B, group_B) | (others_B == 0), scores_B, means_B)


def over_group_mean(advantages_B: Tensor, scores_B: Tensor, group_B: Tensor) -> Tensor:
    """Return advantages divided by the mean score of their group (MaxRL, Tajwar et al. 2026). A 0 stays 0.

    Raise ValueError for a negative score: the mean of such a group may have any sign.
    """
    if bool((scores_B < 0).any()):
        raise Refusal(f"divide_by_mean needs scores of 0 or more, and an episode has {scores_B.min().item():g}")
    _, index_B, count_groups = torch.unique(group_B, return_inverse=True, return_counts=True)
    mean_groups = scores_B.new_zeros(len(count_groups)).index_add_(0, index_B, scores_B) / count_groups
    return torch.where(advantages_B == 0, 0.0, advantages_B / mean_groups[index_B])


def graph_returns(state_steps: Tensor, next_steps: Tensor, gamma: float) -> Tensor:
    """Return gamma ** (fewest steps from each step's end to success), 0 without a way (GraphGPO, Cheng et al. 2026).

    The steps of all episodes are the edges of one graph. state_steps, next_steps: int64, the numbers of the states in
    which each begins and ends; an episode ends in -1 with success, in -2 without.
    """
    # One entry for each state, and two at the end for -2, without success, and -1, success.
    distance_states = torch.full((int(state_steps.max()) + 3,), torch.inf)
    distance_states[-1] = 0.0
    while True:  # once more per step of the longest path
        nearer = distance_states.scatter_reduce(0, state_steps, distance_states[next_steps] + 1, "amin")
        if torch.equal(nearer, distance_states):
            break
        distance_states = nearer
    distance_steps = distance_states[next_steps]
    return torch.where(distance_steps.isinf(), 0.0, gamma**distance_steps)


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
    loss_N: Tensor,
    episode_N: Tensor,
    kind: str,
    total_tokens: int,
    total_episodes: int,
    constant: float = 1,
    turn_first_N: Tensor | None = None,
) -> Tensor:
    """Return one number from per-token losses, with denominators of the whole optimizer step.

    token: the mean over tokens (DAPO). sequence: the mean over episodes of each one's mean (GRPO). turn: the mean over
    episodes of the mean over an episode's turns of each turn's mean, so that all turns of an episode weigh the same;
    turn_first_N is True on the first token of each turn. episode: the mean over episodes of each one's sum (the policy
    gradient). constant: the sum of an episode divided by a constant length, averaged over episodes (Dr. GRPO, Liu et
    al. 2025).
    """
    if kind == "token":
        return loss_N.sum() / total_tokens
    if kind == "sequence":
        length_N = torch.bincount(episode_N)[episode_N]
        return (loss_N / length_N).sum() / total_episodes
    if kind == "turn":
        assert turn_first_N is not None
        turn_N = turn_first_N.cumsum(0) - 1
        length_N, turns_N = torch.bincount(turn_N)[turn_N], torch.bincount(episode_N[turn_first_N])[episode_N]
        return (loss_N / (length_N * turns_N)).sum() / total_episodes
    if kind in ("episode", "constant"):
        return loss_N.sum() / (total_episodes * (constant if kind == "constant" else 1))
    raise Refusal(f"aggregation {kind!r} is not one of token, sequence, turn, episode, constant")


def learning_rate_factor(step: int, steps: tuple[int, int], kind: str, warmup: int, min_ratio: float) -> float:
    """Return the factor on the learning rate in optimizer step `step` (from 0).

    Linear warm-up over `warmup` steps, then constant, or linear or cosine decay to min_ratio.
    steps: the first step of the decay, and the one after its last.
    """
    if step < warmup:
        return (step + 1) / warmup
    first, last = max(steps[0], warmup), steps[1] - 1
    progress = min(1.0, max(0.0, (step - first) / max(1, last - first)))
    if kind == "constant":
        return 1.0
    if kind == "linear":
        return 1.0 - (1.0 - min_ratio) * progress
    if kind == "cosine":
        return min_ratio + (1.0 - min_ratio) * 0.5 * (1.0 + math.cos(math.pi * progress))
    raise Refusal(f"schedule {kind!r} is not one of constant, linear, cosine")
