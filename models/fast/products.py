"""Products with frozen weights, and stacked copies of layers that read the same input.

On a CPU the products use copies in a library's own layout (packed.py). On other devices each layer writes into its
columns of one output, which saves a copy of all of them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F

from models.decoder import Block, CausalLM
from models.fast import packed
from models.fast.onednn import multiplies_float32, onednn_matmul
from models.linear import ROW_MULTIPLE, LinearLayer, LinearParts, joint_linear

Copies = Literal["columns", "rows", "none"]  # of stacked weights
JOINED = 192  # most rows of the adapters' joint factor: from 193 on MKL cuts a sum in two on a Zen 5


def joint_product(x: torch.Tensor, weights: list[torch.Tensor], biases: list) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: the outputs of layers side by side, or None."""
    copy = packed.weight_copy(weights)
    if copy is not None:
        return packed.multiply(x, copy, joined_bias(weights, biases))
    return columns(x, weights, biases) if len(weights) > 1 and x.device.type != "cpu" else None


def joint_gradient(grad: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: the gradient of the input of `joint_product`, or None."""
    copy = packed.weight_copy(weights, transposed=True)
    if copy is not None:
        return packed.multiply(grad, copy)
    return sum_of_products(grad, weights) if grad.device.type != "cpu" else None


def slab_logits(hidden_ND, rows: int, weight_VD, start: int, size: int, dtype: torch.dtype) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: the logits of one slab of the head, or None."""
    copies = packed.slab_copies(weight_VD, size, dtype)
    if copies is not None:
        return packed.multiply_first(hidden_ND.to(dtype), rows, copies[start // size])
    if weight_VD.is_cuda and weight_VD.dtype != dtype:  # CUDA can sum products of 16 bits into float32
        return torch.mm(hidden_ND, weight_VD[start : start + size].mT, out_dtype=dtype)
    return None


def slab_back(x: torch.Tensor, weight_VD: torch.Tensor, start: int, size: int) -> torch.Tensor | None:
    """Implement the hook of models/kernels.py: x @ the slab's weights, or None."""
    copies = packed.slab_copies(weight_VD, size, weight_VD.dtype, transposed=True)
    return None if copies is None else packed.multiply(x, copies[start // size])


def columns(x_ND: torch.Tensor, weights: list[torch.Tensor], biases: list) -> torch.Tensor:
    """Return the outputs of the layers side by side; each product writes into its own columns."""
    widths = [len(weight) for weight in weights]
    y = x_ND.new_empty(len(x_ND), sum(widths))
    for weight, bias, out in zip(weights, biases, y.split(widths, -1), strict=True):
        if bias is None:
            torch.mm(x_ND, weight.mT, out=out)
        else:
            torch.addmm(bias, x_ND, weight.mT, out=out)
    return y


def sum_of_products(grad: torch.Tensor, weights: list[torch.Tensor]) -> torch.Tensor:
    """Return the sum of each layer's columns of grad @ its weight, added up in place."""
    first, *rest = zip(grad.split([len(weight) for weight in weights], -1), weights, strict=True)
    total = first[0] @ first[1]
    for part, weight in rest:
        total.addmm_(part, weight)
    return total


def joined_bias(weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the biases side by side, zeros for layers without one; None if no layer has one."""
    if len(biases) == 1 or all(bias is None for bias in biases):
        return biases[0]
    return torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)])


def groups(block: Block) -> tuple[tuple[LinearLayer, ...], ...]:
    """Return a block's linear layers, grouped by the input that they read: (q, k, v), (o,), (gate, up), (down,)."""
    attention, mlp = block.self_attn, block.mlp
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    return qkv, (attention.o_proj,), (mlp.gate_proj, mlp.up_proj), (mlp.down_proj,)


@contextmanager
def random_factors(model: CausalLM) -> Iterator[None]:
    """Context in which the adapters' B factors, zero at first, are random. The parameters' versions do not change."""
    layers = [layer.parts() for block in model.model.layers for group in groups(block) for layer in group]
    Bs, generator = [layer.B for layer in layers if layer.B is not None], torch.Generator().manual_seed(0)
    before = [B.detach().clone() for B in Bs]
    for B in Bs:
        B.data.copy_(torch.randn(B.shape, generator=generator) / B.shape[1])
    try:
        yield
    finally:
        for B, old in zip(Bs, before, strict=True):
            B.data.copy_(old)


def joined_adapters(layers: list[LinearParts]) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """Return (down [R, in], ups): x @ down.T times `ups` is what the adapters add to the joint output.

    `down` stacks scale * A of all layers, each padded by zeros to ROW_MULTIPLE rows. `ups` is one matrix with the B
    factors on a block diagonal or, beyond JOINED rows, a matrix per layer: libraries cut longer sums into parts, and
    such a sum rounds differently from the shorter products of training.
    """
    if all(layer.A is None for layer in layers):
        return None, []
    downs = [layer.A * layer.scale for layer in layers if layer.A is not None]
    down = torch.cat([F.pad(A, (0, 0, 0, -len(A) % ROW_MULTIPLE)) for A in downs])
    Bs = [layer.weight.new_zeros(len(layer.weight), 0) if layer.B is None else layer.B for layer in layers]
    ups = [F.pad(B, (0, -B.shape[1] % ROW_MULTIPLE)).mT.contiguous() for B in Bs]
    return down, [torch.block_diag(*ups)] if len(down) <= JOINED else ups


class Stacked:
    """Layers of one input as one product, [N, in] -> a tuple of their outputs, from a copy of their weights with the
    adapters' A factors below; a second product adds the B factors, which lie on a block diagonal."""

    def __init__(self, layers: Sequence[LinearLayer]):
        self.layers, self.widths = layers, [len(layer.parts().weight) for layer in layers]
        self.weight, self.bias, self.ups = self._copies()

    def _copies(self):
        layers = [layer.parts() for layer in self.layers]
        weights = [layer.weight for layer in layers]
        bias, (down, ups) = joined_bias(weights, [layer.bias for layer in layers]), joined_adapters(layers)
        if down is not None:
            weights, ups = [*weights, down.to(weights[0].dtype)], [up.to(weights[0].dtype) for up in ups]
            bias = None if bias is None else F.pad(bias, (0, len(down)))
        return torch.cat(weights), bias, ups

    def __call__(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split_with_sizes(self.joint(x_ND), self.widths, -1)  # Tensor.split calls it after checks

    def joint(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the outputs side by side, [N, in] -> [N, sum of out]."""
        return self.add_adapters(*self._split(F.linear(x_ND, self.weight, self.bias)))

    def _split(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (the outputs, the adapters' low-rank inputs) from their joint product."""
        width = sum(self.widths)
        return torch.split_with_sizes(y, (width, y.shape[1] - width), -1) if self.ups else (y, None)

    def add_adapters(self, y: torch.Tensor, low: torch.Tensor | None) -> torch.Tensor:
        if not self.ups:
            return y
        if len(self.ups) == 1:
            return y.addmm_(low, self.ups[0])
        ranks = [len(up) for up in self.ups]
        for out, part, up in zip(y.split(self.widths, -1), low.split(ranks, -1), self.ups, strict=True):
            out.addmm_(part, up)
        return y

    def refresh(self) -> None:
        """Copy the layers again, in place, because a CUDA graph reads these addresses."""
        weight, bias, ups = self._copies()
        for old, new in zip((self.weight, self.bias, *self.ups), (weight, bias, *ups), strict=True):
            if old is not None:
                old.copy_(new)


class Unstacked:
    """The function of `Stacked` from the layers' own weights, for models too large to copy."""

    def __init__(self, layers: Sequence[LinearLayer]):
        self.layers = layers

    def __call__(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return joint_linear(x_ND, *self.layers)

    def joint(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the outputs side by side, as a copy."""
        return torch.cat(self(x_ND), -1)

    def refresh(self) -> None:
        """Do nothing: the layers' weights are not copied."""


class StackedOnCPU(Stacked):
    """Stacked layers multiplied by the library that training takes.

    copies: how a stack of its own lies where products are plain: by columns, which is faster, or by rows. A library
        that packs gives it its own layout. "none": no stack is made. The packed copies that training has are used, or
        else the layers' own weights one by one, and the A factors are multiplied apart. So it is for a large model, and
        where a library adds up the longer rows of a stack in other parts.
    """

    def __init__(self, layers: Sequence[LinearLayer], copies: Copies):
        found = [layer.parts() for layer in layers]
        self.own, self.biases = [part.weight for part in found], [part.bias for part in found]
        shared = packed.weight_copy(self.own)
        self.layers, self.widths, self.down = layers, [len(weight) for weight in self.own], None
        if copies != "none" and (shared is None or packed.library == "mkl" or multiplies_float32()):
            super().__init__(layers)
            self.packed = None
            if shared is not None:
                self.packed, self.weight = packed.pack_weight(self.weight), None
            elif copies == "columns":
                self.weight = self.weight.mT.contiguous().mT
        else:
            self.packed, self.weight, self.bias = shared, None, joined_bias(self.own, self.biases)
            self.down, self.ups = joined_adapters(found)

    def __call__(self, x_ND: torch.Tensor, rows: int) -> tuple[torch.Tensor, ...]:
        return torch.split_with_sizes(self.joint(x_ND, rows), self.widths, -1)

    def joint(self, x_ND: torch.Tensor, rows: int) -> torch.Tensor:
        """Return the outputs side by side, [N, in] -> [N, sum of out]. The rows of x from `rows` on are padding."""
        y = self._product(x_ND, rows)
        if self.down is None:
            return self.add_adapters(*self._split(y))
        with onednn_matmul():
            low = F.linear(x_ND, self.down)
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
