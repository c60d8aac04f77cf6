"""Log-probabilities of sampled tokens from hidden states, without keeping the [N, V] logits.

The logits of a few rows at a time are made from slabs of the vocabulary, SLAB words each. Sampling and training sum a
row's normalizer over the slabs in the same order, so both get the same bits. With a trainable head, or with a gradient
for the entropy, the backward computes the logits again:

    d logp(y) / d logit_v = [v = y] - p_v,    d entropy / d logit_v = -p_v (log p_v + entropy)

What is here is the reference. A CPU takes models/head.py, which gets a frozen head's gradient from the forward, and
CUDA takes models/cuda/triton/logprob.py.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F

from models.hooks import fast_matmul, hooks
from models.linear import ROW_MULTIPLE
from models.refusal import Refusal

SLAB = 4096  # words of the vocabulary at once
ROWS = 256  # rows whose logits are held at once


@fast_matmul()
def token_logprobs(hidden_ND, weight_VD, targets_N, temperature: float = 1.0, entropy_grad: bool = False):
    """Return (logprobs_N, entropy_N in nats) of softmax(hidden @ weight.T / temperature), in float32 at least.

    logprobs carry a gradient to hidden, and to weight if it requires one; entropy only with entropy_grad=True, because
    that costs a third matrix product. Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise Refusal(f"temperature must be positive, not {temperature}")
    results = hooks(hidden_ND).token_logprobs(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)
    return results or _TokenLogprobs.apply(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)


@fast_matmul()
def head_logits(hidden_ND: torch.Tensor, weight_VD: torch.Tensor, temperature: float) -> torch.Tensor:
    """Return logits / temperature, [N, V], in float32 at least."""
    rows = len(hidden_ND)
    return torch.cat([logits[:rows] for _, logits in slabs(hidden_ND, weight_VD, temperature)], -1)


def log_normalizer(logits_NV: torch.Tensor) -> torch.Tensor:
    """Return log sum exp over the vocabulary, [N, 1], summed in the order of `token_logprobs`."""
    first, *others = logits_NV.split(SLAB, -1)
    whole = normalize(first)[0]
    for logits in others:
        whole = normalize(torch.cat((whole, normalize(logits)[0]), -1))[0]
    return whole


def logprobs_of_choices(hidden_ND, weight_VD, targets_N, logprobs_N, choices, temperature: float) -> torch.Tensor:
    """Return the log-probabilities [N, k] of the ids `choices` [N, k], with their gradient, given those of the targets.

    log p(choice) = log p(target) + (logit of choice - logit of target) / temperature, without a second pass over the
    vocabulary.
    """
    wide = logprobs_N.dtype
    hidden_ND, rows = hidden_ND.to(wide), weight_VD[choices].to(wide) - weight_VD[targets_N].to(wide)[:, None]
    return logprobs_N[:, None] + torch.einsum("nd,nkd->nk", hidden_ND, rows) / temperature


class _TokenLogprobs(torch.autograd.Function):
    """`token_logprobs` without the logits of all tokens at once: its backward computes them again, slab by slab."""

    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
        parts = []
        for hidden, targets in zip(hidden_ND.split(ROWS), targets_N.split(ROWS), strict=True):
            logits_NV = head_logits(hidden, weight_VD, temperature)
            log = log_normalizer(logits_NV)
            _, probs_NV, peak, log_total = normalize(logits_NV)
            entropy = (probs_NV * (log_total - (logits_NV - peak))).sum(-1)  # log - logits would cancel if large
            parts.append((logits_NV.gather(1, targets[:, None]) - log, entropy, log))
        logprobs_N, entropy_N, log_N = (torch.cat(x).view(-1) for x in zip(*parts, strict=True))
        ctx.temperature = temperature
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_N)
        ctx.save_for_backward(hidden_ND, weight_VD, targets_N, log_N, entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx, grad_logprobs_N, grad_entropy_N):
        return *backward_through_logits(ctx, grad_logprobs_N, grad_entropy_N, ROWS), None, None, None


def slabs(hidden_ND, weight_VD, temperature) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield (first word, logits / temperature [N padded to ROW_MULTIPLE, words]) of each slab of the vocabulary."""
    rows, padding = len(hidden_ND), -len(hidden_ND) % ROW_MULTIPLE
    hidden_ND = F.pad(hidden_ND, (0, 0, 0, padding)) if padding else hidden_ND
    wide = torch.promote_types(weight_VD.dtype, torch.float32)
    for start in range(0, len(weight_VD), SLAB):
        logits = hooks(hidden_ND).slab_logits(hidden_ND, rows, weight_VD, start, SLAB, wide)
        if logits is None:
            logits = F.linear(hidden_ND.to(wide), weight_VD[start : start + SLAB].to(wide))
        yield start, logits if temperature == 1 else logits.div_(temperature)
        del logits  # or the next slab's would be made beside them


def normalize(logits_NV: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return (log sum exp [N, 1], softmax [N, V], peak [N, 1], log sum exp(logits - peak) [N, 1])."""
    probs_NV, peak = logits_NV.softmax(-1), logits_NV.amax(-1, keepdim=True)
    # The largest probability is 1 / sum exp(logits - peak): its -log is that sum's log, without a second exp of [N, V].
    log_total = -probs_NV.amax(-1, keepdim=True).log_()
    return peak + log_total, probs_NV, peak, log_total


def backward_through_logits(ctx, grad_logprobs_N, grad_entropy_N, limit: int):
    """Return the gradients of hidden_ND and weight_VD, None for one that needs none. limit: rows at once."""
    hidden_ND, weight_VD, targets_N, log_N, entropy_N = ctx.saved_tensors
    # Sums over the slabs are float32: in 16 bits each addition would round.
    grad_hidden_ND = torch.zeros_like(hidden_ND, dtype=log_N.dtype) if ctx.needs_input_grad[0] else None
    grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
    for row in range(0, len(hidden_ND), limit):
        rows = slice(row, row + limit)
        hidden, targets = hidden_ND[rows], targets_N[rows]
        log, entropy, of_logp, of_entropy = (x[rows, None] for x in (log_N, entropy_N, grad_logprobs_N, grad_entropy_N))
        for start, logits in slabs(hidden, weight_VD, ctx.temperature):
            logp = logits[: len(hidden)].sub_(log)
            grad = -logp.exp() * (of_logp + (logp + entropy) * of_entropy)
            word = targets - start
            inside = ((word >= 0) & (word < grad.shape[1])).nonzero()[:, 0]
            grad[inside, word[inside]] += of_logp[inside, 0]
            grad = (grad / ctx.temperature).to(weight_VD.dtype)
            padded = F.pad(grad, (0, 0, 0, len(logits) - len(grad)))  # as `slabs` pads
            if grad_hidden_ND is not None:
                grad_hidden_ND[rows] += slab_back(padded, weight_VD, start, SLAB)[: len(grad)]
            if grad_weight_VD is not None:
                grad_weight_VD[start : start + grad.shape[1]] += grad.mT @ hidden
            del logits, logp, grad, padded  # or the next slab's would be made beside them
    return None if grad_hidden_ND is None else grad_hidden_ND.to(hidden_ND.dtype), grad_weight_VD


def slab_back(x: torch.Tensor, weight_VD: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """Return x @ W over the words of a slab, [N, D]."""
    x = x.to(weight_VD.dtype)
    y = hooks(x).slab_back(x, weight_VD, start, size)
    return x @ weight_VD[start : start + size] if y is None else y
