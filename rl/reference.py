"""The frozen reference policy: its log-probabilities, and the weight of KL to it (see rl/kl.py)."""

from dataclasses import replace

import torch

from models import CausalLM
from rl import ranks
from rl.batch import forward, micro_batches
from rl.kl import Config
from rl.records import Batch


@torch.no_grad()
def add_reference(batch: Batch, model: CausalLM, temperature: float, micro_tokens: int) -> Batch:
    """Return the batch with ref_logprobs_N under the active adapter; the caller activates the reference."""
    ref_logprobs_N = torch.zeros(len(batch.episode_N))
    # The field carries each entry's index through micro_batches, to write results back in order.
    index = replace(batch, ref_logprobs_N=torch.arange(len(batch.episode_N)))
    for piece in ranks.own(micro_batches(index, micro_tokens)):
        ref_logprobs_N[piece.ref_logprobs_N] = forward(piece, model, temperature).logprobs_N.float()
    ranks.fill(ref_logprobs_N)
    return replace(batch, ref_logprobs_N=ref_logprobs_N)


def next_kl_coef(batch: Batch, cfg: Config) -> float:
    """Return the next epoch's kl_coef (Ziegler et al. 2019, section 2.2): higher if the epoch's KL was above kl_target.

    An epoch of n episodes multiplies it by at most 1 +- 0.2 * min(1, n / kl_horizon). The factors compound: in
    kl_horizon episodes, of one epoch or of several, to between 0.8 and exp(0.2) = 1.22.
    """
    if cfg.kl_target is None or not len(batch.episodes):
        return batch.kl_coef
    kl = (batch.old_logprobs_N - batch.ref_logprobs_N).mean().item()
    error = min(max(kl / cfg.kl_target - 1, -0.2), 0.2)
    return batch.kl_coef * (1 + error * min(1.0, len(batch.episodes) / cfg.kl_horizon))
