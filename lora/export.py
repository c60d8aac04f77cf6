"""Fold adapters into the weights, measure what a cast of the result loses, and give adapters the form that vLLM reads.

vLLM scales every layer by lora_alpha / r: it ignores PEFT's rank_pattern and alpha_pattern, and its --max-lora-rank is
one of RANKS. So ranks are padded with zeros, which compute the same, and other scales go into B.
"""

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass

import torch
import torch.nn.functional as F
from torch import nn

from lora.layer import Adapter, LoRALinear, lora_layers
from lora.refusal import Refusal

PIECE = 2**22  # entries of a tensor that are cast at once
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # the values of vLLM's --max-lora-rank


@torch.no_grad()
def fold(model: nn.Module, prefix: str = "") -> nn.Module:
    """Replace every LoRA layer by a plain one with W + scale * B A, summed in float32 and cast to W's dtype once.

    model: a model, or a part of one whose layers' names begin with `prefix` in messages. Works in place and cannot be
    undone, because of rounding: only export calls it. Raises ValueError if a folded weight is not finite.
    """
    for path, layer in lora_layers(model):
        base, adapter = layer.base_layer, layer.adapter
        if adapter is not None:
            weight = update(adapter, torch.promote_types(base.weight.dtype, torch.float32)).add_(base.weight)
            base.weight = nn.Parameter(weight.to(base.weight.dtype), requires_grad=False)
            if not torch.isfinite(base.weight).all():
                raise Refusal(f"{prefix}{path}: the folded weight is not finite")
        model.set_submodule(path, base)
    return model


@torch.no_grad()
def update(adapter: Adapter, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return what an adapter adds to its layer's weight: scale * B A [out, in], computed in dtype."""
    return (adapter.B.to(dtype) @ adapter.A.to(dtype)).mul_(adapter.scale)


@dataclass(frozen=True)
class Cast:
    """How casting the folded weight of one or several layers changes their update D = scale * B A."""

    moved: int  # entries of W that differ after cast(W + D)
    entries: int
    error: float  # ||(cast(W + D) - W) - D||^2
    size: float  # ||D||^2

    def shares(self) -> dict[str, float]:
        """Return the fraction of weights that moved, and the lost part of the update in Frobenius norm."""
        lost = math.sqrt(self.error / self.size) if self.size else 0.0
        return {"moved": self.moved / self.entries, "lost": lost}


@torch.no_grad()
def measure(layer: LoRALinear, dtype: torch.dtype) -> Cast:
    """Return what a cast to `dtype` does to a layer's update."""
    casts = []
    for W, D in zip(pieces(layer.base_layer.weight), pieces(update(layer.adapters[layer.active])), strict=True):
        cast = (W + D).to(dtype)
        error, size = ((x.double() ** 2).sum().item() for x in (cast.float() - W - D, D))
        casts.append(Cast(int((cast != W.to(dtype)).sum()), W.numel(), error, size))
    return total(casts)


def total(casts: Iterable[Cast]) -> Cast:
    """Return the sum over layers, or over pieces of one."""
    return Cast(*(sum(values) for values in zip(*(astuple(cast) for cast in casts), strict=True)))


def pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a matrix or vector in pieces of rows with about PIECE entries."""
    return tensor.split(max(1, PIECE * len(tensor) // tensor.numel()))


def make_uniform(model: nn.Module, name: str = "default") -> int:
    """Pad and scale the adapters `name` in place. Return their rank. Raise ValueError for a rank above the largest."""
    adapters: list[Adapter] = [layer.adapters[name] for _, layer in lora_layers(model)]
    most = max(len(adapter.A) for adapter in adapters)
    rank = next((rank for rank in RANKS if rank >= most), None)
    if rank is None:
        raise Refusal(f"rank {most}: vLLM takes at most {RANKS[-1]}")
    scales = {adapter.scale for adapter in adapters}
    scale = scales.pop() if len(scales) == 1 else 1.0
    if not scale or not (scale * rank).is_integer():
        scale = 1.0  # lora_alpha is to be a whole number
    for adapter in adapters:
        missing = rank - len(adapter.A)
        A, B = adapter.A.detach(), adapter.B.detach() * (adapter.scale / scale)
        adapter.A = nn.Parameter(F.pad(A, (0, 0, 0, missing)), requires_grad=False)
        adapter.B = nn.Parameter(F.pad(B, (0, missing)), requires_grad=False)
        adapter.alpha, adapter.rslora, adapter.scale = scale * rank, False, scale
    return rank
