"""Triton kernels and packed attention, where the device and the dtype allow them."""

from functools import cache

import torch


def attend(q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None, exact: bool = False) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: the Triton kernel in 16 bits, and in any dtype for an exact model."""
    if not exact and q_BHTE.dtype not in (torch.bfloat16, torch.float16):
        return None
    kernel = triton_attend()
    return kernel and kernel(q_BHTE, k_UZEL, v_UZLE, positions_BT, window)


def token_logprobs(hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
    """Implement the hook of models/kernels.py: the Triton kernels on CUDA, other than for float64."""
    if not hidden_ND.is_cuda or hidden_ND.dtype == torch.float64:
        return None
    kernel = triton_logprobs()
    return kernel and kernel(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)


@cache
def triton_attend():
    """Return the kernel of triton/attention.py, or None if Triton is not installed."""
    try:
        from models.fast.triton.attention import attend
    except ImportError:
        return None
    return attend


@cache
def triton_logprobs():
    """Return the kernels of triton/logprob.py, or None if Triton is not installed."""
    try:
        from models.fast.triton.logprob import token_logprobs
    except ImportError:
        return None
    return token_logprobs
