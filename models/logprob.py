"""Log-probabilities of sampled tokens from hidden states, without keeping the [N, V] logits.

The logits of a few rows at a time are made from slabs of the vocabulary, SLAB words each. Sampling and training sum a
row's normalizer over the slabs in the same order, so both get the same bits. The backward computes the logits again
(models/logprob_backward.py). models/fast/head.py gets a frozen head's gradient from the forward.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from models.kernels import fast_matmul, kernels
from models.linear import ROW_MULTIPLE

SLAB = 4096  # words of the vocabulary at once
ROWS = 256  # rows whose logits are held at once


@fast_matmul()
def token_logprobs(hidden_ND, weight_VD, targets_N, temperature: float = 1.0, entropy_grad: bool = False):
    """Return (logprobs_N, entropy_N in nats) of softmax(hidden @ weight.T / temperature), in float32 at least.

    logprobs carry a gradient to hidden, and to weight if it requires one; entropy only with entropy_grad=True, because
    that costs a third matrix product. Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    results = kernels.token_logprobs(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)
    return results or _TokenLogprobs.apply(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)


@fast_matmul()
def head_logits(hidden_ND: torch.Tensor, weight_VD: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return logits / temperature, [N padded to ROW_MULTIPLE, V], in float32 at least."""
    return torch.cat([logits for _, logits in slabs(hidden_ND, weight_VD, temperature)], -1)


def log_normalizer(logits_NV: torch.Tensor) -> torch.Tensor:
    """Return log sum exp over the vocabulary, [N, 1], summed in the order of `token_logprobs`."""
    whole = None
    for logits in logits_NV.split(SLAB, -1):
        part = normalize(logits)[0]
        whole = part if whole is None else normalize(torch.cat((whole, part), -1))[0]
    return whole


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
        parts = []
        for hidden, targets in zip(hidden_ND.split(ROWS), targets_N.split(ROWS), strict=True):
            logits_NV = head_logits(hidden, weight_VD, temperature)[: len(hidden)]
            log, (_, probs_NV, peak, log_total) = log_normalizer(logits_NV), normalize(logits_NV)
            entropy = (probs_NV * (log_total - (logits_NV - peak))).sum(-1)  # large logits would cancel
            parts.append((logits_NV.gather(1, targets[:, None]) - log, entropy, log))
        logprobs_N, entropy_N, log_N = (torch.cat(x).view(-1) for x in zip(*parts, strict=True))
        ctx.temperature = temperature
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_N)
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, log_N, entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx, grad_logprobs_N, grad_entropy_N):
        from models.logprob_backward import backward_through_logits

        return *backward_through_logits(ctx, grad_logprobs_N, grad_entropy_N, slabs, SLAB, ROWS), None, None, None


def slabs(hidden_ND, weight_VD, temperature) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (first word, logits / temperature [N padded to ROW_MULTIPLE, words]) of each slab of the vocabulary."""
    rows, padding = len(hidden_ND), -len(hidden_ND) % ROW_MULTIPLE
    hidden_ND = F.pad(hidden_ND, (0, 0, 0, padding)) if padding else hidden_ND
    wide = torch.promote_types(weight_VD.dtype, torch.float32)
    for start in range(0, len(weight_VD), SLAB):
        logits = kernels.slab_logits(hidden_ND, rows, weight_VD, start, SLAB, wide)
        if logits is None:
            logits = F.linear(hidden_ND.to(wide), weight_VD[start : start + SLAB].to(wide))
        yield start, logits if temperature == 1 else logits.div_(temperature)
        del logits  # or the next slab's would be made beside them


def normalize(logits_NV: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return (log sum exp [N, 1], softmax [N, V], peak [N, 1], log sum exp(logits - peak) [N, 1])."""
    probs_NV, peak = logits_NV.softmax(-1), logits_NV.amax(-1, keepdim=True)
    log_total = -probs_NV.amax(-1, keepdim=True).log_()
    return peak + log_total, probs_NV, peak, log_total
