"""Plain functions for the kernels of models/cuda/triton/block.py on the emulated device (see stand_ins.py)."""

import torch
import torch.nn.functional as F

from models.decoder import rotate as rotary


def normed(x, weight, eps):
    return F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype) * weight


def gradients(function, inputs, grads):
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in inputs]
        return torch.autograd.grad(function(*inputs), inputs, grads)


def norm(x_ND, added_ND, weight_D, sum_ND, normed_ND, scale_N, D, eps, **_options):
    if added_ND is not None:
        sum_ND.copy_(x_ND + added_ND)
    normed_ND.copy_(normed(sum_ND, weight_D, eps))
    scale_N.fill_(eps)  # the backward below needs eps alone


def norm_back(sum_ND, scale_N, weight_D, grad_sum_ND, grad_ND, grad_x_ND, D, **_options):
    (grad,) = gradients(lambda x: normed(x, weight_D, scale_N[0].item()), [sum_ND], [grad_ND])
    grad_x_ND.copy_(grad + grad_sum_ND)


def split_and_rotate(qkv, cos, sin, q_weight, k_weight, eps, H, K, E):
    q, k, v = qkv.view(len(qkv), -1, E).split([H, K, K], 1)
    q, k = (x if weight is None else normed(x, weight, eps) for x, weight in ((q, q_weight), (k, k_weight)))
    return rotary(q, cos, sin), rotary(k, cos, sin), v


def rotate(qkv, cos, sin, q_weight, k_weight, out, eps, H, K, E, **_options):
    out.copy_(torch.cat(split_and_rotate(qkv, cos, sin, q_weight, k_weight, eps, H, K, E), 1).view_as(out))


def rotate_back(grad_q, grad_k, grad_v, qkv, cos, sin, q_weight, k_weight, grad, eps, H, K, E, **_options):
    qkv = torch.zeros_like(grad) if qkv is None else qkv
    turn = lambda x: split_and_rotate(x, cos, sin, q_weight, k_weight, eps, H, K, E)  # noqa: E731
    grad.copy_(gradients(turn, [qkv], [grad_q, grad_k, grad_v])[0])


def gated(gate_up):
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def swiglu(gate_up, y, width, **_options):
    y.copy_(gated(gate_up))


def swiglu_back(gate_up, grad_y, grad_gate_up, width, **_options):
    grad_gate_up.copy_(gradients(gated, [gate_up], [grad_y])[0])


KERNELS = {"_norm": norm, "_norm_back": norm_back, "_rotate": rotate, "_rotate_back": rotate_back}
KERNELS |= {"_swiglu": swiglu, "_swiglu_back": swiglu_back}
