"""Fold adapters into the weights. Imported only by lora.fold, merge.py and tests."""

import torch
from torch import nn

from lora.layer import Adapter, lora_layers


@torch.no_grad()
def update(adapter: Adapter, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return what an adapter adds to its layer's weight: scale * B A [out, in], computed in dtype."""
    return (adapter.B.to(dtype) @ adapter.A.to(dtype)).mul_(adapter.scale)


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
                raise ValueError(f"{prefix}{path}: the folded weight is not finite")
        model.set_submodule(path, base)
    return model
