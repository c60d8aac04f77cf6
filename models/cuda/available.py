"""Whether Triton works here, and its kernels."""

from functools import cache
from types import ModuleType

import torch

HALF = (torch.bfloat16, torch.float16)


def kernels() -> ModuleType:
    """Return the package of Triton kernels, models/cuda/triton. Raise ImportError where Triton is not installed."""
    from models.cuda import triton  # Triton may be missing; then torch's operations take its place

    return triton


@cache
def triton_problem(device: torch.device) -> str | None:
    """Return None if Triton compiles and runs a kernel on the device, else why not. Tries it once and prints a failure.

    An installation without Triton fails at the import, and one without a C compiler, as in a slim container image, at
    the first launch.
    """
    try:
        kernels().common.try_kernel(device)
    except Exception as error:  # whatever is missing, torch's own kernels remain
        problem = f"{type(error).__name__}: {str(error).strip() or 'no message'}".splitlines()[0]
        print(
            f"Triton does not work here ({problem}): torch's own kernels take its place, which are slower", flush=True
        )
        return problem
    return None


def has_attention_kernel(like: torch.Tensor, exact: bool) -> bool:
    """Return whether Triton computes attention for queries of this device and dtype."""
    return (exact or like.dtype in HALF) and not triton_problem(like.device)


def has_head_kernel(hidden_ND: torch.Tensor) -> bool:
    """Return whether Triton computes the head and the sampler for such hidden states."""
    return hidden_ND.is_cuda and hidden_ND.dtype != torch.float64 and not triton_problem(hidden_ND.device)
