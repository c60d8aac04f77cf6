"""models/linear.py's products with frozen weights on CUDA, and models/quant.py's by Triton.

Each of several layers of one input writes into its columns of one output, which saves a copy of all of them.
"""

from collections.abc import Sequence

import torch

from models.cuda import available
from models.stacked import columns


def joint_product(x: torch.Tensor, weights: list[torch.Tensor], biases: list) -> torch.Tensor | None:
    """Return the outputs of several layers side by side; None for one layer."""
    return columns(x, weights, biases) if len(weights) > 1 else None


def joint_gradient(grad: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Return the gradient of the input of `joint_product`: the sum of each layer's columns of grad @ its weight, added
    up in place."""
    first, *rest = zip(grad.split([len(weight) for weight in weights], -1), weights, strict=True)
    total = first[0] @ first[1]
    for part, weight in rest:
        total.addmm_(part, weight)
    return total


def slab_logits(hidden_ND, rows: int, weight_VD, start: int, size: int, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the logits of one slab of a head of 16 bits, summed in float32; None for other heads."""
    if weight_VD.dtype == dtype:
        return None
    return torch.mm(hidden_ND, weight_VD[start : start + size].mT, out_dtype=dtype)


def dequantise(layer, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a QuantLinear's weight [out, in] in dtype, or None where Triton does not work."""
    if available.triton_problem(layer.weight.device):
        return None
    return available.kernels().quant.dequantise(layer, dtype)


def quant_product(x_ND: torch.Tensor, layers: Sequence) -> torch.Tensor | None:
    """Return the outputs of quantised layers side by side, or None where Triton does not work."""
    if available.triton_problem(x_ND.device):
        return None
    y = x_ND.new_empty(len(x_ND), sum(layer.out_features for layer in layers))
    write_products(x_ND, layers, y)
    return y


def write_products(x_ND: torch.Tensor, layers: Sequence, y_NO: torch.Tensor) -> None:
    """Write the outputs of quantised layers side by side into y, whose rows may be parts of longer rows."""
    quant, widths = available.kernels().quant, [layer.out_features for layer in layers]
    for layer, out in zip(layers, y_NO.split(widths, -1), strict=True):
        if quant.fits(x_ND, layer):
            quant.product(x_ND, layer, out)
        elif layer.bias is None:
            torch.mm(x_ND, layer.dense(x_ND.dtype).mT, out=out)
        else:
            torch.addmm(layer.bias, x_ND, layer.dense(x_ND.dtype).mT, out=out)
