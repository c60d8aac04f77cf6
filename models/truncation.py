"""Sampling from the most likely tokens alone (top-k: Fan et al. 2018; top-p: Holtzman et al. 2020, nucleus sampling).

For evaluation only. Training needs the log-probability of every token that may be sampled, under the distribution that
sampled it: a token outside of the set has none, and inside it the policy's would be too small by the set's probability.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from models.hooks import hooks
from models.logprob import head_logits


@contextmanager
def truncated(device: str, top_k: int = 0, top_p: float = 1.0) -> Iterator[None]:
    """Context in which engines on a kind of device, "cpu" or "cuda", sample from the top_k most likely tokens (0: all)
    and, of these, from the fewest whose probabilities sum to top_p. Temperature 0 is not affected. Engines made in it
    must not be used outside.

    Log-probabilities are those of the truncated distribution.
    """
    on = hooks(device)
    before = on.sample

    def sample(hidden_BD, weight_VD, temperature: float, uniforms_B):
        if temperature == 0:
            return before(hidden_BD, weight_VD, temperature, uniforms_B)
        logits_BV = head_logits(hidden_BD, weight_VD, temperature)
        return choose(truncate(logits_BV, top_k, top_p), uniforms_B)

    if top_k or top_p < 1:
        on.sample = sample
    try:
        yield
    finally:
        on.sample = before


def truncate(logits_BV: torch.Tensor, top_k: int, top_p: float) -> torch.Tensor:
    """Return the logits with minus infinity outside of the set. Tokens as likely as its last one belong to it."""
    sorted_BV = logits_BV.sort(-1, descending=True).values
    if 0 < top_k < sorted_BV.shape[1]:
        sorted_BV[:, top_k:] = float("-inf")
    probs_BV = sorted_BV.softmax(-1)
    before_BV = probs_BV.cumsum(-1, dtype=torch.float64) - probs_BV
    kept_BV = (before_BV < top_p) & (sorted_BV > float("-inf"))
    last_kept = sorted_BV.masked_fill(~kept_BV, float("inf")).amin(-1, keepdim=True)
    return logits_BV.masked_fill(logits_BV < last_kept, float("-inf"))


def choose(logits_BV: torch.Tensor, uniforms_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (ids_B, logprobs_B) by the inverse of the cumulative distribution, as models/engine.py's `sample`."""
    logprobs_BV = logits_BV.log_softmax(-1)
    sums_BV = logprobs_BV.exp().cumsum(-1, dtype=torch.float64)
    target = uniforms_B.to(sums_BV.device)[:, None] * sums_BV[:, -1:]
    ids = torch.searchsorted(sums_BV, target, right=True).clamp_(max=sums_BV.shape[1] - 1)
    return ids[:, 0], logprobs_BV.gather(1, ids)[:, 0]
