"""models/linear.py's layers of one input as one product from a stacked copy of their weights, for fast decode steps.

A decode step of a few rows is many small products, whose calls cost more than their sums. models/cpu/step.py and
models/cuda/step.py have the steps; models/decoder.py computes the same layer by layer.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from models.config import ModelConfig
from models.decoder import Block, CausalLM
from models.linear import ROW_MULTIPLE, LinearLayer, LinearParts
from models.moe import SparseMLP

JOINED = 192  # most rows of the adapters' joint factor: from 193 on MKL cuts a sum in two on a Zen 5


def groups(block: Block) -> tuple[tuple[LinearLayer, ...], ...]:
    """Return a block's linear layers, grouped by the input that they read: (q, k, v), (o,), and of the MLP or of each
    expert (gate, up), (down,)."""
    attention, mlp = block.self_attn, block.mlp
    if attention.joined:
        return (attention.qkv_proj,), (attention.o_proj,), (mlp.gate_up_proj,), (mlp.down_proj,)
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    mlps = mlp.experts if isinstance(mlp, SparseMLP) else [mlp]
    return qkv, (attention.o_proj,), *(group for m in mlps for group in ((m.gate_proj, m.up_proj), (m.down_proj,)))


class Stacked:
    """Layers of one input as one product, [N, in] -> a tuple of their outputs, from a copy of their weights with the
    adapters' A factors below; a second product adds the B factors, which lie on a block diagonal."""

    def __init__(self, layers: Sequence[LinearLayer]):
        self.layers, self.widths = layers, [len(layer.parts().weight) for layer in layers]
        self.weight, self.bias, self.joint_Bs = self._copies()

    def _copies(self):
        layers = [layer.parts() for layer in self.layers]
        weights = [layer.weight for layer in layers]
        bias, (joint_A, joint_Bs) = joined_bias(weights, [layer.bias for layer in layers]), joined_adapters(layers)
        if joint_A is not None:
            dtype = weights[0].dtype
            weights, joint_Bs = [*weights, joint_A.to(dtype)], [B.to(dtype) for B in joint_Bs]
            bias = None if bias is None else F.pad(bias, (0, len(joint_A)))
        return torch.cat(weights), bias, joint_Bs

    def __call__(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.split_with_sizes(self.joint(x_ND), self.widths, -1)  # Tensor.split calls it after checks

    def joint(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the outputs side by side, [N, in] -> [N, sum of out]."""
        return self.add_adapters(*self._split(F.linear(x_ND, self.weight, self.bias)))

    def _split(self, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (the outputs, the adapters' low-rank inputs) from their joint product."""
        if not self.joint_Bs:
            return y, None
        width = sum(self.widths)
        outputs, low = torch.split_with_sizes(y, (width, y.shape[1] - width), -1)
        return outputs, low

    def add_adapters(self, y: torch.Tensor, low: torch.Tensor | None) -> torch.Tensor:
        if low is None:
            return y
        if len(self.joint_Bs) == 1:
            return y.addmm_(low, self.joint_Bs[0])
        ranks = [len(B) for B in self.joint_Bs]
        for out, part, B in zip(y.split(self.widths, -1), low.split(ranks, -1), self.joint_Bs, strict=True):
            out.addmm_(part, B)
        return y

    def refresh(self) -> None:
        """Copy the layers again, in place, because a CUDA graph reads these addresses."""
        weight, bias, joint_Bs = self._copies()
        for old, new in zip((self.weight, self.bias, *self.joint_Bs), (weight, bias, *joint_Bs), strict=True):
            if old is not None:
                old.copy_(new)


class HeadNorms:
    """q_norm and k_norm of a layer as one norm of the query and key heads side by side."""

    def __init__(self, block: Block, cfg: ModelConfig):
        self.norms = [block.self_attn.q_norm] * cfg.num_attention_heads
        self.norms += [block.self_attn.k_norm] * cfg.num_key_value_heads
        self.weight, self.eps = self._copy(), cfg.rms_norm_eps
        self.wide = torch.promote_types(self.weight.dtype, torch.float32)

    def _copy(self) -> torch.Tensor:
        return torch.stack([norm.weight for norm in self.norms])

    def __call__(self, x_NHE: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_NHE.to(self.wide), x_NHE.shape[-1:], None, self.eps).to(x_NHE.dtype) * self.weight

    def refresh(self) -> None:
        """Copy the weights again, in place."""
        self.weight.copy_(self._copy())


@dataclass
class StepLayer:
    """A layer of the decoder with its linear layers as four products, each of the layers that read one input."""

    block: Block
    head_norms: HeadNorms | None
    qkv: Any  # what `step_layers` was given to make: Stacked, or a class of models/cpu or models/cuda
    out: Any
    gate_up: Any
    down: Any

    def refresh(self) -> None:
        """Copy all weights again, in place."""
        for copied in (self.head_norms, self.qkv, self.out, self.gate_up, self.down):
            if copied is not None:
                copied.refresh()


def step_layers(model: CausalLM, stack: Callable[[Sequence[LinearLayer]], Any]) -> list[StepLayer]:
    """Return the layers of a model's decoder, those of one input joined by `stack`."""
    cfg, layers = model.config, []
    for block in model.model.layers:
        norms = HeadNorms(block, cfg) if cfg.qk_norm else None
        layers.append(StepLayer(block, norms, *(stack(joined) for joined in groups(block))))
    return layers


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


def joined_bias(weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the biases side by side, zeros for layers without one; None if no layer has one."""
    if len(biases) == 1 or all(bias is None for bias in biases):
        return biases[0]
    return torch.cat([w.new_zeros(len(w)) if b is None else b for w, b in zip(weights, biases, strict=True)])


def joined_adapters(layers: list[LinearParts]) -> tuple[torch.Tensor | None, list[torch.Tensor]]:
    """Return (joint_A [R, in], joint_Bs): x @ joint_A.T times `joint_Bs` is what the adapters add to the joint output.

    `joint_A` stacks scale * A of all layers, each padded by zeros to ROW_MULTIPLE rows. `joint_Bs` is one matrix with
    the B factors, transposed to [R, out], on a block diagonal or, beyond JOINED rows, a matrix per layer: libraries cut
    longer sums into parts, and such a sum rounds differently from the shorter products of training.
    """
    if all(layer.A is None for layer in layers):
        return None, []
    As = [layer.A * layer.scale for layer in layers if layer.A is not None]
    joint_A = torch.cat([F.pad(A, (0, 0, 0, -len(A) % ROW_MULTIPLE)) for A in As])
    Bs = [layer.weight.new_zeros(len(layer.weight), 0) if layer.B is None else layer.B for layer in layers]
    joint_Bs = [F.pad(B, (0, -B.shape[1] % ROW_MULTIPLE)).mT.contiguous() for B in Bs]
    return joint_A, [torch.block_diag(*joint_Bs)] if len(joint_A) <= JOINED else joint_Bs


def padded(x: torch.Tensor, N: int) -> torch.Tensor:
    """Return x with zero rows up to N."""
    return torch.cat((x, x.new_zeros(N - len(x), *x.shape[1:]))) if len(x) < N else x


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
