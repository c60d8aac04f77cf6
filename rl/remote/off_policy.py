"""Learning from episodes that another program sampled (sampler=): its log-probabilities are not the trainer's.

With old_logprobs_N recomputed by the trainer, the ratio that a loss clips is that of this run's own policy. What the
sampler computed differently is corrected by truncated importance weights, w = min(p trainer / p sampler, sampler_clip)
of each token (Ionides 2008; Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training").
They multiply the advantages, and so the gradient of every policy loss; not opd.top_k's term, which is no policy
gradient. Where both computed the same, w is 1.

With a clipped surrogate this is the decoupled objective (Hilton et al. 2021, "Batch size-invariance for policy
optimization"): w * min(ratio * A, clip(ratio) * A) with ratio = pi / proximal and w = proximal / behaviour. The
behaviour policy is the sampler's, the proximal one the trainer's at the start of the update, where the paper has a
moving average of weights; and w is truncated.

A weight far below 1 tells that the policy has left the token: it says little and costs steps. Two masks, off by
default, set the advantages of such tokens to 0, while the denominators of losses stay:

    sampler_floor       a token whose weight is below this
    sampler_sequence    every token of an episode whose geometric mean weight is below this or above its inverse

Both are biased: what the policy has just learned to avoid is not corrected any further.
"""

import math
from dataclasses import replace

import torch
from tqdm import tqdm

from rl.batch import policy_logprobs, select
from rl.config.fields import Config, Server
from rl.config.refusals import Refusal
from rl.core import sequence_log_ratio
from rl.records import Batch
from rl.run.state import TrainState

FAR = 0.5  # nats per token by which an episode's log-probabilities may differ on average: another adapter's do by more


def recomputed(batch: Batch, state: TrainState, cfg: Config, micro_tokens: int) -> Batch:
    """Return the batch with the trainer's log-probabilities as old_logprobs_N, and the `remote_*` metrics of it.

    Episodes whose log-probabilities are FAR from these were not sampled by these weights; they are left out, unless
    ahead= sampled them before the last update, which may have moved them. Raise ValueError if all are.
    """
    recomputed_N = policy_logprobs(batch, state.model, cfg.temperature, micro_tokens)
    gaps_N = (recomputed_N - batch.old_logprobs_N).abs()
    sums_B = gaps_N.new_zeros(len(batch.episodes)).index_add_(0, batch.episode_N, gaps_N)
    far_B = sums_B / torch.bincount(batch.episode_N, minlength=len(sums_B)) > FAR
    metrics = {"remote_gap": gaps_N.max().item(), "remote_gap_mean": gaps_N.mean().item(), "remote_far": 0}
    if state.ahead:
        metrics["staleness"] = state.step - state.ahead.now.step
    if far_B.any():
        metrics["remote_far"], mean = int(far_B.sum()), metrics["remote_gap_mean"]
        line = f"{metrics['remote_far']} of {len(far_B)} episodes have log-probabilities far from this adapter's"
        if far_B.all():
            usual = "another base, or log-probabilities before the temperature (vLLM: --logprobs-mode)"
            usual += ", or an update that moved too far" if metrics.get("staleness") else ""
            raise Refusal(f"sampler={cfg.sampler}: {line}, {mean:.2g} nats on average: {usual}")
        fate = f"kept: {metrics['staleness']} steps lie between" if metrics.get("staleness") else "left out"
        tqdm.write(f"{line}; they are {fate}")
    if far_B.any() and not metrics.get("staleness"):
        for episode, far in zip(batch.episodes, far_B.tolist(), strict=True):
            episode.infrastructure_failed = episode.infrastructure_failed or far
        recomputed_N = recomputed_N[~far_B[batch.episode_N]]
        batch = select(batch, (~far_B).nonzero()[:, 0].tolist())
    return replace(batch, old_logprobs_N=recomputed_N, metrics=metrics)


def weighted(batch: Batch, cfg: Server) -> Batch:
    """Return the batch with its advantages times the importance weights, 0 for masked tokens; an empty batch as it is.

    Its metrics describe the weights before the masks, and remote_masked the masks, if there are any.
    """
    if not batch.episodes:
        return batch
    pairs = ((p, m) for e in batch.episodes for p, m in zip(e.logprobs_T, e.action_mask_T, strict=True))
    sampled_N = torch.tensor([logprob for logprob, sampled in pairs if sampled])
    log_ratio_N = batch.old_logprobs_N - sampled_N
    # A token that the sampler found far less likely would outweigh the rest of the step, so weights are truncated.
    weights_N = log_ratio_N.exp().clamp(max=cfg.sampler_clip)
    metrics = {
        "remote_weight_mean": weights_N.mean().item(),
        "remote_clipped": (weights_N == cfg.sampler_clip).float().mean().item(),
    }
    if cfg.sampler_floor or cfg.sampler_sequence:
        masked_N = weights_N < cfg.sampler_floor
        if cfg.sampler_sequence:
            masked_N |= sequence_log_ratio(log_ratio_N, batch.episode_N).abs() > -math.log(cfg.sampler_sequence)
        weights_N = torch.where(masked_N, 0.0, weights_N)
        metrics["remote_masked"] = masked_N.float().mean().item()
    return replace(batch, advantages_N=batch.advantages_N * weights_N, metrics=batch.metrics | metrics)
