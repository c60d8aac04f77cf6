"""models/logprob.py's `token_logprobs` by slabs, with a frozen head's gradient computed in the forward.

Used on a CPU, and on CUDA where Triton does not work.

The vocabulary goes through the output head in slabs of models/logprob.py's SLAB words. Each slab gives a row a softmax
of its own; the log of the normalizer and the means under the distribution are merged from slab to slab. With a frozen
head (LoRA) the gradient of a row's log-probability with respect to its hidden state does not depend on the loss,

    d logp(y) / d h = (W[y] - sum_v p_v W[v]) / T = ((1 - p_y) W[y] - sum_{v != y} p_v W[v]) / T,

so the forward computes it while a slab's probabilities are at hand, and the backward only scales it: two matrix
products in all. (The second form does not cancel where p_y is near 1.) With a trainable head, or a gradient for the
entropy, the backward computes the logits again (models/logprob.py).
"""

import torch

from models import logprob
from models.logprob import backward_through_logits, normalize, slab_back, slabs

ROWS = 2048  # rows at once: a slab's logits take 32 MiB in float32 at most, which malloc keeps for the next slab


def token_logprobs(hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
    """Compute models/logprob.py's `token_logprobs` in less time and memory, to rounding."""
    return _TokenLogprobs.apply(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
        N = len(hidden_ND)
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        logprobs_N, entropy_N, log_N = (hidden_ND.new_empty(N, dtype=wide) for _ in range(3))
        in_forward = hidden_ND.requires_grad and not (weight_VD.requires_grad or entropy_grad)
        slope_ND = torch.empty_like(hidden_ND) if in_forward else None  # d logp / d h
        for rows in (slice(start, start + ROWS) for start in range(0, N, ROWS)):
            hidden, targets = hidden_ND[rows], targets_N[rows]
            n = len(hidden)
            log, entropy, taken, others = _row_statistics(hidden, weight_VD, targets, temperature, in_forward)
            logp, log_N[rows], entropy_N[rows] = taken - log, log[:n, 0], entropy[:n, 0]
            logprobs_N[rows] = logp[:n, 0]
            if slope_ND is not None:
                own = weight_VD[targets] * -logp.expm1()[:n]  # (1 - p) W[y]
                slope_ND[rows] = ((own - others[:n]) / temperature).to(slope_ND.dtype)
        ctx.temperature, ctx.in_forward = temperature, in_forward
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_N)
        inputs = hidden_ND, weight_VD, targets_N, log_N, entropy_N
        ctx.save_for_backward(*((slope_ND,) if in_forward else inputs))
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx, grad_logprobs_N, grad_entropy_N):
        if ctx.in_forward:
            (slope_ND,) = ctx.saved_tensors
            return (slope_ND * grad_logprobs_N[:, None]).to(slope_ND.dtype), None, None, None, None
        grads = backward_through_logits(ctx, grad_logprobs_N, grad_entropy_N, ROWS)
        return *grads, None, None, None


def _row_statistics(hidden_ND, weight_VD, targets_N, temperature, want_others: bool):
    """Return (log normalizer, entropy, target's logit), [N padded, 1] each, and the mean of W[v] without the target's
    share, [N padded, D] or None."""
    log = None
    for start, logits in slabs(hidden_ND, weight_VD, temperature):
        slab_log, probs, peak, log_total = normalize(logits)
        word = targets_N - start
        inside = ((word >= 0) & (word < logits.shape[1])).nonzero()[:, 0]  # the rows whose target is in this slab
        word = word[inside]
        if log is None:
            taken = torch.full_like(slab_log, torch.nan)
        taken[inside, 0] = logits[inside, word]
        # The entropy of this slab's own softmax, from differences to the peak: large logits would cancel.
        means = [log_total - logits.sub_(peak).mul_(probs).sum(-1, keepdim=True)]
        if want_others:
            probs[inside, word] = 0
            means.append(slab_back(probs, weight_VD, start, logprob.SLAB).to(slab_log.dtype))
        del logits, probs  # or the next slab's would be made beside them
        if log is None:
            log, merged = slab_log, means
            continue
        log, shares, *_ = normalize(torch.cat((log, slab_log), -1))
        merged = [(x * shares[:, :1]).addcmul_(y, shares[:, 1:]) for x, y in zip(merged, means, strict=True)]
        merged[0] += torch.special.entr(shares).sum(-1, keepdim=True)  # of the choice between slabs
    return log, merged[0], taken, merged[1] if want_others else None
