"""The backward of models/logprob.py's token_logprobs with a trainable head, or with a gradient for the entropy.

    d logp(y) / d logit_v = [v = y] - p_v,    d entropy / d logit_v = -p_v (log p_v + entropy)

Imported only then, because it computes the logits again.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from models.kernels import kernels


def backward_through_logits(ctx, grad_logprobs_N, grad_entropy_N, slabs: Callable, size: int, limit: int):
    """Return the gradients of hidden_ND and weight_VD, None for one that needs none.

    slabs: of models/logprob.py, with `size` words each. limit: rows at once.
    """
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
                grad_hidden_ND[rows] += slab_back(padded, weight_VD, start, size)[: len(grad)]
            if grad_weight_VD is not None:
                grad_weight_VD[start : start + grad.shape[1]] += grad.mT @ hidden
            del logits, logp, grad, padded  # or the next slab's would be made beside them
    return None if grad_hidden_ND is None else grad_hidden_ND.to(hidden_ND.dtype), grad_weight_VD


def slab_back(x: torch.Tensor, weight_VD: torch.Tensor, start: int, size: int) -> torch.Tensor:
    """Return x @ W over the words of a slab, [N, D]."""
    x = x.to(weight_VD.dtype)
    y = kernels.slab_back(x, weight_VD, start, size)
    return x @ weight_VD[start : start + size] if y is None else y
