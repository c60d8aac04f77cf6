"""Plain functions for the kernels of models/cuda/triton and for flash attention on the emulated device.

Each takes the arguments of the kernel's launch as CPU tensors. The kernels' own tests compare them with torch; here
they only have to give numbers that are right to rounding.
"""

import math
from functools import lru_cache

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from emulated_cuda import Device, StandIn
from stand_ins_block import KERNELS as BLOCK

pytest.importorskip("triton")
from models.cuda import available
from models.cuda import block as cuda_block
from models.cuda.triton import attention, block, common, linear, logprob, sample, step
from models.decoder import rotate

LOG2E = math.log2(math.e)


def install(monkeypatch, device: Device, flash: bool = True) -> None:
    """Replace every kernel. flash: whether torch has `varlen_attn`."""
    for module, functions in {
        attention: {"_forward": attend, "_backward_queries": attend_back_queries, "_backward_keys": attend_back_keys},
        linear: {"_multiply": multiply},
        block: BLOCK,
        step: {"_add_norm": add_norm, "_rotary_write": rotary_write, "_swiglu": swiglu},
        sample: {"_score": lambda *_, **__: None, "_choose": choose},
    }.items():
        for name, function in functions.items():
            monkeypatch.setattr(module, name, StandIn(device, name, function))
    monkeypatch.setattr(logprob, "_forward", StandIn(device, "head", head, launches=3))
    monkeypatch.setattr(logprob, "_fold", StandIn(device, "_fold", lambda *_, **__: None))
    monkeypatch.setattr(logprob, "_backward", StandIn(device, "head_back", head_back, launches=2))
    for module in (attention, logprob):
        monkeypatch.setattr(module, "shared_memory", lambda _: 227 * 1024)
    Varlen.stand_ins = [
        StandIn(device, name, f) for name, f in (("varlen", varlen_forward), ("varlen_back", varlen_back))
    ]
    monkeypatch.setattr(cuda_block, "load_varlen", lambda: varlen_attn if flash else None)
    monkeypatch.setattr(attention, "_in_order", lru_cache(64)(attention._in_order.__wrapped__))
    monkeypatch.setattr(common, "_nothing", StandIn(device, "_nothing", lambda x: None))
    available.triton_problem.cache_clear()


# --------------------------------------------------------------------------------- attention over the cache's blocks


def weights_and_inputs(q_BTHE, k_UZEL, v_UZLE, positions_BT, scale, window, K):
    """Return (scores [B, K, G, T, keys] in base e with minus infinity where unseen, q, k, v), in float64: a row's
    result in float32 then has the same bits for any number of keys or rows beside it."""
    B = len(q_BTHE)
    q = rearrange(q_BTHE.double(), "b t (k g) e -> b k g t e", k=K)
    k = rearrange(k_UZEL.double(), "u (b k) e l -> b k 1 (u l) e", b=B)
    v = rearrange(v_UZLE.double(), "u (b k) l e -> b k 1 (u l) e", b=B)
    key, position = torch.arange(k.shape[3]), positions_BT[:, None, None, :, None]
    seen = (key <= position) & (key > position - window)
    return (q @ k.mT * scale).masked_fill(~seen, float("-inf")), q, k, v


def attend(q_NHE, k_UZEL, v_UZLE, positions_N, bounds, places_B, out_NHE, lse_NH, scale, longest, *rest, K, **_options):
    window, (counts_B, bounds) = rest[1], (bounds.diff(), bounds.tolist())
    assert int(counts_B.max()) <= longest
    for i, place in enumerate(places_B.tolist()):
        rows, heads = slice(bounds[i], bounds[i + 1]), slice(place * K, (place + 1) * K)
        blocks = max([0, *positions_N[rows].tolist()]) // 64 + 1
        k, v = k_UZEL[:blocks, heads], v_UZLE[:blocks, heads]
        if bounds[i] == bounds[i + 1]:
            continue
        scores, _, _, v = weights_and_inputs(q_NHE[None, rows], k, v, positions_N[None, rows], scale, window, K)
        lse = scores.logsumexp(-1, keepdim=True)
        weights = (scores - lse.where(lse.isfinite(), 0)).exp()
        out_NHE[rows] = rearrange(weights @ v, "1 k g t e -> t (k g) e").to(out_NHE.dtype)
        lse_NH[rows] = rearrange(lse[..., 0] * LOG2E, "1 k g t -> t (k g)")


def grad_scores(q_BTHE, k_UZEL, v_UZLE, positions_BT, grad_BTHE, lse_BTH, delta_BTH, scale, window, K):
    scores, q, k, v = weights_and_inputs(q_BTHE, k_UZEL, v_UZLE, positions_BT, scale, window, K)
    lse, delta = (rearrange(x.double(), "b t (k g) -> b k g t 1", k=K) for x in (lse_BTH / LOG2E, delta_BTH))
    weights = (scores - lse.where(lse.isfinite(), 0)).exp()
    grad = rearrange(grad_BTHE.double(), "b t (k g) e -> b k g t e", k=K)
    return weights, weights * (grad @ v.mT - delta), q, k, grad


def attend_back_queries(q, k, v, positions, grad, lse, delta, grad_q, scale, T, Z, window, *_, K, **_options):
    _, slope, _, keys, _ = grad_scores(q, k, v, positions, grad, lse, delta, scale, window, K)
    grad_q.copy_(rearrange(slope @ keys * scale, "b k g t e -> b t (k g) e"))


def attend_back_keys(q, k, v, positions, grad, lse, delta, grad_k, grad_v, scale, T, Z, window, *_, K, **_options):
    weights, slope, queries, _, grads = grad_scores(q, k, v, positions, grad, lse, delta, scale, window, K)
    L = k.shape[3]
    grad_k.copy_(rearrange((slope.mT @ queries).sum(2) * scale, "b k (u l) e -> u (b k) e l", l=L))
    grad_v.copy_(rearrange((weights.mT @ grads).sum(2), "b k (u l) e -> u (b k) l e", l=L))


# ------------------------------------------------------------------------------------------------ products and the head


def multiply(x_ND, weight_OD, bias_O, y_NO, *_sizes, **_options):
    y = x_ND.double() @ weight_OD.double().mT
    y_NO.copy_(y if bias_O is None else y + bias_O)


def head(hidden_ND, weight_VD, targets_N, scale, slope_ND):
    """In float64, so that a row's bits in float32 do not depend on the other rows."""
    logits_NV = hidden_ND.double() @ weight_VD.double().mT * scale
    logp_NV = logits_NV.log_softmax(-1)
    p_NV, logprobs_N = logp_NV.exp(), logp_NV.gather(1, targets_N[:, None])[:, 0]
    if slope_ND is not None:
        slope_ND.copy_((weight_VD[targets_N].double() - p_NV @ weight_VD.double()) * scale)
    peak_N = logits_NV.amax(-1)
    figures = logprobs_N, -(p_NV * logp_NV).sum(-1), peak_N, logits_NV.logsumexp(-1) - peak_N
    return tuple(x.float() for x in figures)


def choose(hidden_BD, weight_VD, _t, _r, uniforms_B, ids_B, logprobs_B, _scratch, scale, *_sizes, GREEDY, **_options):
    """The whole of the sampler, whose other kernels do nothing here; log-probabilities with the bits of `head`."""
    logits_BV = hidden_BD.float() @ weight_VD.float().mT * scale
    sums_BV = logits_BV.softmax(-1).cumsum(-1, dtype=torch.float64)
    target_B1 = None if GREEDY else uniforms_B[:, None] * sums_BV[:, -1:]
    ids_B.copy_(logits_BV.argmax(-1) if GREEDY else torch.searchsorted(sums_BV, target_B1, right=True)[:, 0])
    logprobs_B.copy_(head(hidden_BD, weight_VD, ids_B, scale, None)[0])


def head_back(hidden_ND, weight_VD, targets_N, figures_N, scale, grad_hidden_ND, grad_weight_VD):
    _, _, entropy, of_logp, of_entropy = (x[:, None] for x in figures_N)
    logp_NV = (hidden_ND.float() @ weight_VD.float().mT * scale).log_softmax(-1)
    p_NV, taken_NV = logp_NV.exp(), F.one_hot(targets_N, len(weight_VD))
    slope_NV = scale * ((taken_NV - p_NV) * of_logp - p_NV * (logp_NV + entropy) * of_entropy)
    if grad_hidden_ND is not None:
        grad_hidden_ND.copy_(slope_NV @ weight_VD.float())
    if grad_weight_VD is not None:
        grad_weight_VD.add_((slope_NV.mT @ hidden_ND.float()).to(grad_weight_VD.dtype))


# ----------------------------------------------------------------------------------------------------- the decode step


def add_norm(x_ND, more_ND, weight_D, sum_ND, normed_ND, eps, *_sizes, **_options):
    if more_ND is not None:
        sum_ND.copy_(x_ND + more_ND)
    normed_ND.copy_(rms_norm(sum_ND, weight_D, eps))


def rms_norm(x, weight, eps):
    return F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype) * weight


def with_adapters(x, up, widths, rank):
    """Return each layer's output, of its base output and low-rank input, side by side."""
    base = x[:, : sum(widths)].split(widths, 1)
    if up is None:
        return base
    low = x[:, sum(widths) :].split(rank, 1)
    return [torch.addmm(*parts) for parts in zip(base, low, [w.mT for w in up.split(widths)], strict=True)]


def rotary_write(qkv, up, norms, cos, sin, positions_N, places_N, q_NHE, keys, values, eps, *_sizes, RANK, **constants):
    H, K, E, L = (constants[name] for name in "HKEL")
    heads = torch.cat(with_adapters(qkv, up, [H * E, K * E, K * E], RANK), 1).unflatten(1, (-1, E))
    qk, at = heads[:, : H + K], positions_N.clamp(min=0)
    qk = rotate(qk if norms is None else rms_norm(qk, norms, eps), cos[at], sin[at])
    q_NHE.copy_(qk[:, :H])
    written = (positions_N >= 0) & (places_N >= 0)
    at, z = at[written, None], places_N[written, None] * K + torch.arange(K)
    keys[at // L, z, :, at % L] = qk[written, H:]
    values[at // L, z, at % L] = heads[written, H + K :]


def swiglu(gate_up, up, out, N, width, stride, *, RANK, **_options):
    gate, value = with_adapters(gate_up, up, [width, width], RANK)
    out.copy_(F.silu(gate) * value)


# ------------------------------------------------------------------------------------------------------ flash attention


def varlen_attn(q, k, v, query_starts, key_starts, most_queries, most_keys, *, window_size=(-1, 0), enable_gqa=False):
    """The signature of torch.nn.attention.varlen.varlen_attn, as far as models/cuda/block.py uses it."""
    assert enable_gqa and window_size[1] == 0 and query_starts.dtype == key_starts.dtype == torch.int32
    assert all(isinstance(x, int) for x in (most_queries, most_keys)) and all(x.stride(-1) == 1 for x in (q, k, v))
    return Varlen.apply(q, k, v, query_starts, key_starts, window_size[0])


class Varlen(torch.autograd.Function):
    stand_ins: list[StandIn]

    @staticmethod
    def forward(ctx, *inputs):
        ctx.save_for_backward(*inputs[:5])
        ctx.window = inputs[5]
        return Varlen.stand_ins[0](*inputs)

    @staticmethod
    def backward(ctx, grad):
        return *Varlen.stand_ins[1](grad.contiguous(), *ctx.saved_tensors, ctx.window), None, None, None


def varlen_forward(q_NHE, k_NKE, v_NKE, query_starts, key_starts, window):
    out = torch.zeros_like(q_NHE)
    for queries, keys in zip(query_starts.tolist()[1:], key_starts.tolist()[1:], strict=True):
        first = int(query_starts[query_starts < queries].max()), int(key_starts[key_starts < keys].max())
        q, k, v = q_NHE[first[0] : queries], k_NKE[first[1] : keys], v_NKE[first[1] : keys]
        key, position = torch.arange(len(k)), torch.arange(len(k) - len(q), len(k))[:, None]
        seen = (key <= position) & ((key >= position - window) | (window < 0))
        q, k, v = (x.transpose(0, 1).float()[None] for x in (q, k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
        out[first[0] : queries] = attended[0].transpose(0, 1).to(out.dtype)
    return out


def varlen_back(grad, q, k, v, query_starts, key_starts, window):
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(varlen_forward(*inputs, query_starts, key_starts, window), inputs, grad)
