"""models/linear.py's products with frozen weights on a CPU, from copies of the weights in a library's own layout.

Beside them the slabs of models/logprob.py's head, models/quant.py's `dequantise`, and the stacked products of the
decode step (step.py).
"""

from collections.abc import Sequence
from functools import cache
from typing import Literal

import torch
import torch.nn.functional as F

from models.cpu import packed
from models.cpu.onednn import multiplies_float32, onednn_matmul
from models.cpu.packed import TRIED_ROWS
from models.linear import LinearLayer
from models.quant import BLOCK, LEVELS, scales
from models.stacked import JOINED, Stacked, columns, joined_adapters, joined_bias

Copies = Literal["columns", "rows", "none"]  # of stacked weights
BLOCKS = 2**14  # blocks that are dequantised at once: the temporaries stay in the cache


def joint_product(x: torch.Tensor, weights: list[torch.Tensor], biases: list) -> torch.Tensor | None:
    """Return the outputs of layers side by side, or None where their weights have no copy."""
    copy = packed.weight_copy(weights)
    return None if copy is None else packed.multiply(x, copy, joined_bias(weights, biases))


def joint_gradient(grad: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the gradient of the input of `joint_product`, or None where the weights have no copy."""
    copy = packed.weight_copy(weights, transposed=True)
    return None if copy is None else packed.multiply(grad, copy)


def slab_logits(hidden_ND, rows: int, weight_VD, start: int, size: int, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the logits of one slab of the head, or None in 16 bits where it has no copy."""
    copies = packed.slab_copies(weight_VD, size, dtype)
    if copies is not None:
        return packed.multiply_first(hidden_ND.to(dtype), rows, copies[start // size])
    if not hidden_ND.dtype == weight_VD.dtype == dtype == torch.float32:
        return None
    return packed.plain_first(hidden_ND, rows, weight_VD[start : start + size])


def slab_back(x: torch.Tensor, weight_VD: torch.Tensor, start: int, size: int) -> torch.Tensor | None:
    """Return x @ the slab's weights, or None where it has no copy."""
    copies = packed.slab_copies(weight_VD, size, weight_VD.dtype, transposed=True)
    return None if copies is None else packed.multiply(x, copies[start // size])


def dequantise(layer, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a QuantLinear's weight [out, in] in dtype, or None. The levels of the two codes of a byte are looked up at
    once."""
    blocks, rest = divmod(layer.out_features * layer.in_features, BLOCK)
    if layer.kind == "int8" or rest:
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
    levels = torch.tensor(LEVELS)
    return torch.stack((levels.repeat_interleave(16), levels.repeat(16)), -1).view(torch.int64).view(-1)


@cache
@torch.no_grad()
def copy_multiplies_alike(outputs: int, inputs: int, _threads: int) -> bool:
    """Return whether oneDNN's copy of a weight [outputs, inputs] gives up to TRIED_ROWS rows the bits of its plain
    product. It tries the present number of threads; _threads keeps an answer for each number."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(TRIED_ROWS + outputs, inputs, generator=generator).split((TRIED_ROWS, outputs))
    copy = packed.pack_weight(weight, "onednn")
    with onednn_matmul():
        return all(
            torch.equal(packed.multiply(x[:rows], copy), F.linear(x[:rows], weight))
            for rows in range(1, TRIED_ROWS + 1)
        )


class StackedOnCPU(Stacked):
    """Stacked layers multiplied by the library that training takes.

    copies: how a stack of its own lies where products are plain: by columns, which is faster, or by rows. A library
        that packs gives it its own layout. "none": no stack is made. The packed copies that training has are used, or
        else the layers' own weights one by one, and the A factors are multiplied apart. So it is for a large model, and
        where a library adds up the longer rows of a stack in other parts.
    """

    def __init__(self, layers: Sequence[LinearLayer], copies: Copies):
        parts = [layer.parts() for layer in layers]
        self.own, self.biases = [part.weight for part in parts], [part.bias for part in parts]
        shared = packed.weight_copy(self.own)
        self.layers, self.widths, self.joint_A = layers, [len(weight) for weight in self.own], None
        if copies != "none" and (shared is None or packed.library == "mkl" or multiplies_float32()):
            super().__init__(layers)
            self.packed = None
            if shared is not None:
                self.packed, self.weight = packed.pack_weight(self.weight), None
            elif copies == "columns":
                self.weight = self.weight.mT.contiguous().mT
        else:
            self.packed, self.weight, self.bias = shared, None, joined_bias(self.own, self.biases)
            self.joint_A, self.joint_Bs = joined_adapters(parts)
        self.packed_A = None  # oneDNN's copy, by which few rows take half the time of a plain product
        by_onednn = packed.library == "onednn" and multiplies_float32()
        if by_onednn and self.joint_A is not None:
            alike = copy_multiplies_alike(*self.joint_A.shape, torch.get_num_threads())
            self.packed_A = packed.pack_weight(self.joint_A) if alike else None

    def __call__(self, x_ND: torch.Tensor, rows: int) -> tuple[torch.Tensor, ...]:
        return torch.split_with_sizes(self.joint(x_ND, rows), self.widths, -1)

    def joint(self, x_ND: torch.Tensor, rows: int) -> torch.Tensor:
        """Return the outputs side by side, [N, in] -> [N, sum of out]. The rows of x from `rows` on are padding."""
        y = self._product(x_ND, rows)
        if self.joint_A is None:
            return self.add_adapters(*self._split(y))
        if self.packed_A is not None:
            return self.add_adapters(y, packed.multiply(x_ND, self.packed_A))
        with onednn_matmul():
            low = F.linear(x_ND, self.joint_A)
        return self.add_adapters(y, low)

    def _product(self, x_ND: torch.Tensor, rows: int) -> torch.Tensor:
        if self.packed is not None:
            return packed.multiply_first(x_ND, rows, self.packed, self.bias)
        with onednn_matmul():
            if self.weight is None:
                return columns(x_ND, self.own, self.biases)
            return F.linear(x_ND, self.weight, self.bias)

    def add_adapters(self, y: torch.Tensor, low: torch.Tensor | None) -> torch.Tensor:
        if low is None or low.shape[1] <= JOINED:
            return super().add_adapters(y, low)  # MKL is faster than oneDNN here, with the same bits
        with onednn_matmul():  # MKL would cut the longer sums otherwise
            return super().add_adapters(y, low)
