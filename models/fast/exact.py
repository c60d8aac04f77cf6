"""Sampling and training with the same bits on a GPU. Imported only for exact=true."""

import torch

from models.decoder import CausalLM
from models.fast.dispatch import triton_problem
from models.linear import Linear


def make_exact(model: CausalLM) -> CausalLM:
    """Make sampling and training agree in every bit on CUDA, whatever the batch, at some cost in speed.

    Linear layers, attention and the head then use the same Triton kernels in both. On a CPU nothing changes:
    the plain code is exact there wherever models/fast/trial.py says so. Raise
    ValueError with one line if the dtype, the device or the installation does not allow it.
    """
    weight = model.lm_head.weight
    if weight.device.type == "cpu":
        return model
    if weight.dtype not in (torch.bfloat16, torch.float16):
        raise ValueError("exact=true on a CUDA device takes dtype=bfloat16 or float16 (float32 is too slow there)")
    major, minor = torch.cuda.get_device_capability(weight.device)
    if major < 8:
        raise ValueError(f"exact=true takes a CUDA device of compute capability 8.0 or more, not {major}.{minor}")
    problem = triton_problem(weight.device)
    if problem:
        raise ValueError(f"exact=true on a CUDA device takes Triton, which does not work here: {problem}")
    from models.fast.triton.linear import product

    model.exact = True
    for layer in model.modules():
        if isinstance(layer, Linear):
            layer.matmul = product
    return model
