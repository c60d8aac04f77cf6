"""Measure how much of each layer's update a cast of the folded weight to a smaller dtype loses. merge.py uses it."""

import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass

import torch

from lora.folding import update
from lora.layer import LoRALinear

PIECE = 2**22  # entries of a tensor that are cast at once


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
    for W, D in zip(pieces(layer.base_layer.weight), pieces(update(layer.adapter)), strict=True):
        cast = (W + D).to(dtype)
        error, size = ((x.double() ** 2).sum().item() for x in (cast.float() - W - D, D))
        casts.append(Cast((cast != W.to(dtype)).sum().item(), W.numel(), error, size))
    return total(casts)


def total(casts: Iterable[Cast]) -> Cast:
    """Return the sum over layers, or over pieces of one."""
    return Cast(*(sum(values) for values in zip(*(astuple(cast) for cast in casts), strict=True)))


def pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a matrix or vector in pieces of rows with about PIECE entries."""
    return tensor.split(max(1, PIECE * len(tensor) // tensor.numel()))
