"""Log-probabilities of taken tokens from hidden states, without ever holding the [N, V] logits.

The reference and the CPU path; on a CUDA device fast/triton/logprob.py does the same. The vocabulary goes through the
head in slabs of SLAB words. A slab gives of each row a softmax of its own, and what is wanted of the whole row, the log
of the normalizer and means under the distribution, is merged from slab to slab. With a frozen head (LoRA) the gradient
of a row's log-probability with respect to its hidden state does not depend on what comes later,

    d logp(y) / d h = (W[y] - sum_v p_v W[v]) / T = ((1 - p_y) W[y] - sum_{v != y} p_v W[v]) / T,

so the forward computes it while a slab's probabilities are at hand and the backward only scales it: two matrix products
in all. (The second form: where p_y is near 1 the first would drown in rounding.) With a trainable head, or a gradient
for the entropy, the backward makes the logits again. Logits are float32, under 16-bit weights too.
"""

from functools import cache

import torch
import torch.nn.functional as F

from models.linear import ROW_MULTIPLE, by_onednn, multiply, onednn_slabs

SLAB = 4096  # words of the vocabulary at once
ROWS = 2048  # rows at once: a slab's logits are at most 32 MiB in float32, what malloc keeps at hand for the next


@by_onednn()
def token_logprobs(
    hidden_ND: torch.Tensor,
    weight_VD: torch.Tensor,
    targets_N: torch.Tensor,
    temperature: float = 1.0,
    entropy_grad: bool = False,
    keep_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(logprobs_N, entropy_N), float32 (float64 for float64 input), of softmax(hidden @ weight.T / temperature).

    logprobs carry a gradient to hidden, and to weight if it asks for one. entropy (nats, whole vocabulary) carries
    one only with entropy_grad=True, because that costs a third matrix product.
    keep_N: bool; the other rows, whose gradient is known to be zero, never see the head: results 0, no gradient. For
        losses with a mask of their own: rl/ leaves out whole episodes, before the model, and asks for sampled tokens.
    Raises ValueError for a temperature that is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    if keep_N is not None:
        kept = keep_N.nonzero()[:, 0]
        results = token_logprobs(hidden_ND[kept], weight_VD, targets_N[kept], temperature, entropy_grad)
        logprobs_N, entropy_N = (x.new_zeros(len(keep_N)).index_copy(0, kept, x) for x in results)
        return logprobs_N, entropy_N
    if hidden_ND.is_cuda and hidden_ND.dtype != torch.float64 and (kernels := _kernels()):
        return kernels.token_logprobs(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)
    return _TokenLogprobs.apply(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)


@cache
def _kernels():
    """The Triton kernels, or None where Triton is not installed."""
    try:
        from models.fast.triton import logprob as logprob_triton
    except ImportError:
        return None
    return logprob_triton


@by_onednn()
def head_logits(hidden_ND: torch.Tensor, weight_VD: torch.Tensor, temperature: float) -> torch.Tensor:
    """Scaled logits [N padded to ROW_MULTIPLE, V] in float32 at least."""
    return torch.cat([logits for _, logits in _slabs(hidden_ND, weight_VD, temperature)], -1)


def log_normalizer(logits_NV: torch.Tensor) -> torch.Tensor:
    """log sum exp over the vocabulary [N, 1], summed as in `token_logprobs`."""
    whole = None
    for logits in logits_NV.split(SLAB, -1):
        part, _ = _normalized(logits)
        whole = part if whole is None else _normalized(torch.cat((whole, part), -1))[0]
    return whole


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
        N = hidden_ND.shape[0]
        wide = torch.promote_types(hidden_ND.dtype, torch.float32)
        logprobs_N, entropy_N, log_N = (hidden_ND.new_empty(N, dtype=wide) for _ in range(3))
        made_here = hidden_ND.requires_grad and not (weight_VD.requires_grad or entropy_grad)
        slope_ND = torch.empty_like(hidden_ND) if made_here else None  # d logp / d h
        for rows in _chunks(N):
            hidden, targets = hidden_ND[rows], targets_N[rows]
            n, figures = len(hidden), _row_figures(hidden, weight_VD, targets, temperature, made_here)
            log, mean, taken, others = figures
            logp, log_N[rows], entropy_N[rows] = taken - log, log[:n, 0], (log - mean)[:n, 0]
            logprobs_N[rows] = logp[:n, 0]
            if made_here:
                own = weight_VD[targets] * -logp.expm1()[:n]  # 1 - p
                slope_ND[rows] = ((own - others[:n]) / temperature).to(slope_ND.dtype)
        ctx.temperature, ctx.made_here = temperature, made_here
        if not entropy_grad:
            ctx.mark_non_differentiable(entropy_N)
        others = hidden_ND, weight_VD, targets_N, log_N, entropy_N
        ctx.save_for_backward(*((slope_ND,) if made_here else others))
        return logprobs_N, entropy_N

    @staticmethod
    def backward(ctx, grad_logprobs_N, grad_entropy_N):
        if ctx.made_here:
            (slope_ND,) = ctx.saved_tensors
            return (slope_ND * grad_logprobs_N[:, None]).to(slope_ND.dtype), None, None, None, None
        hidden_ND, weight_VD, targets_N, log_N, entropy_N = ctx.saved_tensors
        # Summed over the slabs in float32: in 16 bits each sum would be rounded.
        grad_hidden_ND = torch.zeros_like(hidden_ND, dtype=log_N.dtype) if ctx.needs_input_grad[0] else None
        grad_weight_VD = torch.zeros_like(weight_VD) if ctx.needs_input_grad[1] else None
        for rows in _chunks(len(hidden_ND)):
            hidden, targets_N1 = hidden_ND[rows], targets_N[rows, None]
            log, entropy, of_logp, of_entropy = (
                x[rows, None] for x in (log_N, entropy_N, grad_logprobs_N, grad_entropy_N)
            )
            for start, logits in _slabs(hidden, weight_VD, ctx.temperature):
                surprise = logits[: len(hidden)].sub_(log)  # log p
                grad = -surprise.exp() * (of_logp + (surprise + entropy) * of_entropy)
                inside, place = _inside(targets_N1, start, grad.shape[1])
                grad[inside, place] += of_logp[inside, 0]
                grad = (grad / ctx.temperature).to(weight_VD.dtype)
                if grad_hidden_ND is not None:
                    grad_hidden_ND[rows] += _words(grad, weight_VD, start)
                if grad_weight_VD is not None:
                    grad_weight_VD[start : start + SLAB] += grad.mT @ hidden
        if grad_hidden_ND is not None:
            grad_hidden_ND = grad_hidden_ND.to(hidden_ND.dtype)
        return grad_hidden_ND, grad_weight_VD, None, None, None


def _row_figures(hidden_ND, weight_VD, targets_N, temperature, want_others: bool):
    """Of each row [N, 1]: the log of the normalizer, the mean logit, the taken token's logit; and, [N, D], the mean of
    W[v] without the taken token's share. N is padded to ROW_MULTIPLE: the tail of a vector has other bits."""
    whole = None
    for start, logits in _slabs(hidden_ND, weight_VD, temperature):
        log, probs = _normalized(logits)
        inside, place = _inside(targets_N[:, None], start, logits.shape[1])
        if whole is None:
            taken = torch.full_like(log, torch.nan)
        taken[inside, 0] = logits[inside, place]
        means = [logits.mul_(probs).sum(-1, keepdim=True)]
        if want_others:
            probs[inside, place] = 0
            means.append(_words(probs, weight_VD, start).to(log.dtype))
        if whole is None:
            whole, merged = log, means
            continue
        whole, shares = _normalized(torch.cat((whole, log), -1))
        merged = [(x * shares[:, :1]).addcmul_(y, shares[:, 1:]) for x, y in zip(merged, means, strict=True)]
    return whole, merged[0], taken, merged[1] if want_others else None


def _slabs(hidden_ND, weight_VD, temperature):
    """(first word, scaled logits [N padded to ROW_MULTIPLE, words]) of each slab of the vocabulary."""
    more = -len(hidden_ND) % ROW_MULTIPLE
    hidden_ND = F.pad(hidden_ND, (0, 0, 0, more)) if more else hidden_ND
    wide = torch.promote_types(weight_VD.dtype, torch.float32)
    packed = onednn_slabs(weight_VD, SLAB, wide)
    half = weight_VD.is_cuda and weight_VD.dtype != wide  # CUDA can sum products of 16 bits into float32
    hidden_ND = hidden_ND if half else hidden_ND.to(wide)
    for i, start in enumerate(range(0, len(weight_VD), SLAB)):
        words_SD = weight_VD[start : start + SLAB]
        if packed is not None:
            logits = multiply(hidden_ND, packed[i])
        elif half:
            logits = torch.mm(hidden_ND, words_SD.mT, out_dtype=wide)
        else:
            logits = F.linear(hidden_ND, words_SD.to(wide))
        yield start, logits if temperature == 1 else logits.div_(temperature)


def _normalized(logits_NV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(log sum exp [N, 1], softmax)."""
    probs_NV = logits_NV.softmax(-1)
    return logits_NV.amax(-1, keepdim=True) - probs_NV.amax(-1, keepdim=True).log_(), probs_NV


def _inside(targets_N1, start: int, words: int):
    """The rows whose target is in the slab, and its place there."""
    place = targets_N1[:, 0] - start
    rows = ((place >= 0) & (place < words)).nonzero()[:, 0]
    return rows, place[rows]


def _words(x_NV: torch.Tensor, weight_VD: torch.Tensor, start: int) -> torch.Tensor:
    """x @ W over the words of the slab that begins at `start`."""
    packed = onednn_slabs(weight_VD, SLAB, weight_VD.dtype, transposed=True)
    x_NV = x_NV.to(weight_VD.dtype)
    return x_NV @ weight_VD[start : start + SLAB] if packed is None else multiply(x_NV, packed[start // SLAB])


def _chunks(N: int):
    return (slice(start, min(start + ROWS, N)) for start in range(0, N, ROWS))
