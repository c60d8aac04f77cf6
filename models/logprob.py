"""Log-probabilities of taken tokens from hidden states, without ever holding the [N, V] logits.

The reference and the CPU path. Rows go through the head in chunks. With a frozen head (LoRA) the gradient of a row's
log-probability with respect to its hidden state does not depend on what comes later,

    d logp(y) / d h = (W[y] - sum_v p_v W[v]) / T,

so the forward computes it while the chunk's probabilities are at hand and the backward only scales it: two matrix
products in all. With a trainable head the backward goes through the chunks again. Softmax in float32.
"""

import torch
import torch.nn.functional as F

CHUNK_ELEMENTS = 2**24  # logits held at once: 64 MiB in float32
ROW_MULTIPLE = 16  # as in models/decoder.py: a row's result must not depend on how many rows go with it


def token_logprobs(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    targets_N: torch.Tensor,
    temperature: float = 1.0,
    entropy_grad: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logprobs_N, entropy_N), float32 (float64 for float64 input), of softmax(hidden @ weight.T / temperature).

    logprobs carry a gradient to hidden, and to weight if it asks for one. entropy (nats, whole vocabulary) carries
    one only with entropy_grad=True, because that costs a third matrix product.
    Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    return _TokenLogprobs.apply(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)


def head_logits(hidden_ND: torch.Tensor, weight_VD: torch.Tensor, temperature: float) -> torch.Tensor:
    """Scaled logits [N, V] in float32 at least. The sampler and the trainer both come through here."""
    more = -hidden_ND.shape[0] % ROW_MULTIPLE
    logits = F.linear(F.pad(hidden_ND, (0, 0, 0, more)) if more else hidden_ND, weight_VD)
    logits = logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits
    return logits if temperature == 1 else logits.div_(temperature)


def normalized(logits_NV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(log sum exp over the vocabulary [N, 1], exp(logits - their largest)). Sampler and trainer both come through
    here."""
    peak = logits_NV.amax(-1, keepdim=True)
    weights_NV = (logits_NV - peak).exp_()
    return weights_NV.sum(-1, keepdim=True).log_().add_(peak), weights_NV


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
        N = hidden_ND.shape[0]
        wide = torch.float64 if hidden_ND.dtype == torch.float64 else torch.float32
        logprobs_N, entropy_N = hidden_ND.new_empty(N, dtype=wide), hidden_ND.new_empty(N, dtype=wide)
        frozen = hidden_ND.requires_grad and not weight_VD.requires_grad
        slope_ND = torch.empty_like(hidden_ND) if frozen else None  # d logp / d h
        entropy_slope_ND = torch.empty_like(hidden_ND) if frozen and entropy_grad else None
        for rows in _chunks(N, weight_VD.shape[0]):
            hidden, targets = hidden_ND[rows], targets_N[rows]
            logp, entropy, probs, surprise = _chunk(hidden, weight_VD, targets, temperature)
            logprobs_N[rows], entropy_N[rows] = logp, entropy
            if frozen:
                mean_weight = probs.to(weight_VD.dtype) @ weight_VD
                slope_ND[rows] = (weight_VD[targets] - mean_weight) / temperature
            if frozen and entropy_grad:
                entropy_slope_ND[rows] = _entropy_slope(probs, surprise, entropy).to(weight_VD.dtype) @ weight_VD
                entropy_slope_ND[rows] /= temperature
        ctx.temperature, ctx.entropy_grad = temperature, entropy_grad
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_N)
        if frozen:
            ctx.save_for_backward(slope_ND, entropy_slope_ND)
        elif weight_VD.requires_grad:
            ctx.save_for_backward(hidden_ND, weight_VD, targets_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx, grad_logprobs_N, grad_entropy_N):
        if not ctx.needs_input_grad[1]:
            slope_ND, entropy_slope_ND = ctx.saved_tensors
            grad = slope_ND * grad_logprobs_N[:, None].to(slope_ND.dtype)
            if ctx.entropy_grad:
                grad += entropy_slope_ND * grad_entropy_N[:, None].to(slope_ND.dtype)
            return grad, None, None, None, None
        hidden_ND, weight_VD, targets_N = ctx.saved_tensors
        grad_hidden_ND, grad_weight_VD = torch.empty_like(hidden_ND), torch.zeros_like(weight_VD)
        for rows in _chunks(hidden_ND.shape[0], weight_VD.shape[0]):
            hidden, targets = hidden_ND[rows], targets_N[rows]
            _, entropy, probs, surprise = _chunk(hidden, weight_VD, targets, ctx.temperature)
            grad_logits = probs * -grad_logprobs_N[rows, None]
            grad_logits.scatter_add_(1, targets[:, None], grad_logprobs_N[rows, None])
            if ctx.entropy_grad:
                grad_logits += _entropy_slope(probs, surprise, entropy) * grad_entropy_N[rows, None]
            grad_logits = (grad_logits / ctx.temperature).to(weight_VD.dtype)
            grad_hidden_ND[rows] = grad_logits @ weight_VD
            grad_weight_VD += grad_logits.mT @ hidden
        return grad_hidden_ND, grad_weight_VD, None, None, None


def _chunks(N: int, V: int):
    size = max(CHUNK_ELEMENTS // V // ROW_MULTIPLE, 1) * ROW_MULTIPLE
    return (slice(start, min(start + size, N)) for start in range(0, N, size))


def _chunk(hidden_ND, weight_VD, targets_N, temperature):
    N = hidden_ND.shape[0]
    logits = head_logits(hidden_ND, weight_VD, temperature)
    normalizer, _ = normalized(logits)
    logp = (logits[:N].gather(1, targets_N[:, None]) - normalizer[:N])[:, 0]
    surprise = (logits - normalizer)[:N]  # log p
    probs = surprise.exp()
    entropy = -(probs * surprise).sum(-1)
    return logp, entropy, probs, surprise


def _entropy_slope(probs_NV, surprise_NV, entropy_N):
    """d entropy / d logits (at temperature 1): -p (log p + H)."""
    return -probs_NV * (surprise_NV + entropy_N[:, None])
