"""Triton kernels, where the device, the dtype and the installation allow them."""

from functools import cache

import torch

from models.fast import head

HALF = (torch.bfloat16, torch.float16)


def attend(q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None, exact: bool = False) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: the Triton kernel in 16 bits, and for every exact model."""
    if not has_attention_kernel(q_BHTE, exact):
        return None
    from models.fast.triton.attention import attend as kernel

    return kernel(q_BHTE, k_UZEL, v_UZLE, positions_BT, window)


def token_logprobs(hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
    """Implement the hook of models/kernels.py: the Triton kernels on CUDA, other than for float64, else head.py."""
    kernel = head.token_logprobs
    if has_head_kernel(hidden_ND):
        from models.fast.triton.logprob import token_logprobs as kernel

    return kernel(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)


def sample(hidden_BD, weight_VD, temperature, uniforms_B):
    """Implement the hook of models/kernels.py: the Triton kernels on CUDA, other than for float64."""
    if not has_head_kernel(hidden_BD):
        return None
    from models.fast.triton.sample import sample as kernel

    return kernel(hidden_BD, weight_VD, temperature, uniforms_B)


def has_attention_kernel(like: torch.Tensor, exact: bool) -> bool:
    return (exact or like.dtype in HALF) and not triton_problem(like.device)


def has_head_kernel(hidden_ND: torch.Tensor) -> bool:
    return hidden_ND.is_cuda and hidden_ND.dtype != torch.float64 and not triton_problem(hidden_ND.device)


@cache
def triton_problem(device: torch.device) -> str | None:
    """Return None if Triton compiles and runs a kernel on the device, else why not. Tries it once and prints a failure.

    An installation without Triton fails at the import, and one without a C compiler, as in a slim container image, at
    the first launch.
    """
    try:
        from models.fast.triton.common import try_kernel

        try_kernel(device)
    except Exception as error:  # whatever is missing, torch's own kernels remain
        problem = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
        print(
            f"Triton does not work here ({problem}): torch's own kernels take its place, which are slower", flush=True
        )
        return problem
    return None
