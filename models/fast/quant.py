"""Quantised layers, faster: on a CPU the levels of two codes are looked up at once, on CUDA Triton computes."""

from collections.abc import Sequence
from functools import cache

import torch

from models.fast.dispatch import triton_problem

BLOCKS = 2**14  # blocks that are dequantised at once: the temporaries stay in the cache


def dequantise(layer, dtype: torch.dtype) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: a QuantLinear's weight [out, in] in dtype, or None."""
    if layer.weight.is_cuda:
        kernels = triton_quant(layer.weight.device)
        return kernels and kernels.dequantise(layer, dtype)
    from models.quant import BLOCK, scales

    blocks, rest = divmod(layer.out_features * layer.in_features, BLOCK)
    if layer.weight.device.type != "cpu" or layer.kind == "int8" or rest:
        return None
    out = torch.empty(blocks, BLOCK, dtype=dtype)
    tensors = out, layer.weight.view(blocks, BLOCK // 2), scales(layer)[:, None]
    for piece, codes, absmax in zip(*(x.split(BLOCKS) for x in tensors), strict=True):
        pairs = torch.index_select(level_pairs(), 0, codes.reshape(-1).int()).view(torch.float32).view(-1, BLOCK)
        torch.mul(pairs, absmax, out=piece) if dtype == torch.float32 else piece.copy_(pairs.mul_(absmax))
    return out.view(layer.out_features, layer.in_features)


@cache
def level_pairs() -> torch.Tensor:
    """Return the two float32 levels of each byte of codes, as one int64 [256]."""
    from models.quant import LEVELS

    levels = torch.tensor(LEVELS)
    return torch.stack((levels.repeat_interleave(16), levels.repeat(16)), -1).view(torch.int64).view(-1)


def quant_product(x_ND: torch.Tensor, layers: Sequence) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: the outputs of quantised layers side by side on CUDA, or None."""
    if not x_ND.is_cuda or triton_quant(x_ND.device) is None:
        return None
    y = x_ND.new_empty(len(x_ND), sum(layer.out_features for layer in layers))
    write_products(x_ND, layers, y)
    return y


def write_products(x_ND: torch.Tensor, layers: Sequence, y_NO: torch.Tensor) -> None:
    """Write the outputs of quantised layers side by side into y, whose rows may be parts of longer rows."""
    kernels, widths = triton_quant(x_ND.device), [layer.out_features for layer in layers]
    for layer, out in zip(layers, y_NO.split(widths, -1), strict=True):
        if kernels.fits(x_ND, layer):
            kernels.product(x_ND, layer, out)
        elif layer.bias is None:
            torch.mm(x_ND, layer.dense(x_ND.dtype).mT, out=out)
        else:
            torch.addmm(layer.bias, x_ND, layer.dense(x_ND.dtype).mT, out=out)


def triton_quant(device: torch.device):
    """Return the module of triton/quant.py, or None if Triton does not work."""
    if triton_problem(device):
        return None
    from models.fast.triton import quant

    return quant
