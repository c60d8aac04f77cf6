"""Fold adapters into the weights. Imported only by lora.fold."""

import torch
from torch import nn

from lora.layer import lora_layers


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """Replace every LoRA layer by a plain one with W + scale * B A, summed in float32 and cast to W's dtype once.

    Works in place and cannot be undone, because of rounding: only export calls it. Raises ValueError if a folded weight
    is not finite.
    """
    for path, layer in lora_layers(model):
        base, adapter = layer.base_layer, layer.adapter
        if adapter is not None:
            wide = torch.promote_types(base.weight.dtype, torch.float32)
            weight = base.weight.to(wide) + adapter.scale * (adapter.B.to(wide) @ adapter.A.to(wide))
            base.weight = nn.Parameter(weight.to(base.weight.dtype), requires_grad=False)
            if not torch.isfinite(base.weight).all():
                raise ValueError(f"{path}: the folded weight is not finite")
        model.set_submodule(path, base)
    return model
