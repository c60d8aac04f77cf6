"""The LoRA layer, its injection into a model, and the switch between adapters (Hu et al. 2021).

    y = base(x) + scale * B A dropout(x),   A [R, in] ~ U(-1/sqrt(in), 1/sqrt(in)),   B [out, R] = 0

A and B both zero would never learn: the gradient of each is a product with the other. A random and B zero leaves the
output unchanged at first and gives B a gradient at once. The factors are float32 over a base of any dtype, so that
small updates are not rounded away; a product casts them to the base's dtype. Sampling never merges them into the base.

A running model applies A and B in one of three places:

    LoRALinear.forward    the plain formula: with dropout, or over a base that trains or is a plain nn.Linear
    lora/fused.py         FusedLoRA: other forward passes, all layers of one input at once, with a gradient of its own
    models/stacked.py     decode steps on a CPU, from copies of the weights; on CUDA models/cuda/step.py
"""

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lora.fused import FusedLoRA
from lora.refusal import Refusal
from lora.targets import matching, sizes_by_pattern


class Adapter(nn.Module):
    """The two factors of one layer: A [R, in] and B [out, R], float32."""

    def __init__(self, inputs: int, outputs: int, r: int, alpha: float, rslora: bool = False, device=None):
        super().__init__()
        self.A = nn.Parameter(torch.empty(r, inputs, device=device, dtype=torch.float32))
        self.B = nn.Parameter(torch.zeros(outputs, r, device=device, dtype=torch.float32))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.alpha, self.rslora = alpha, rslora
        self.scale = alpha / math.sqrt(r) if rslora else alpha / r


class LoRALinear(nn.Module):
    """A frozen linear layer with any number of named adapters, of which at most one is active.

    `forward` is the formula; where `fuses` allows it, `joint` and `joint_lean` compute several layers of one input at
    once.
    """

    def __init__(self, base_layer: nn.Linear):
        super().__init__()
        self.base_layer = base_layer
        self.adapters: Any = nn.ModuleDict()  # of Adapter by name, a type that nn.ModuleDict does not have
        self.dropout = 0.0  # on the adapter's input, in train mode only
        self.active: str | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return base(x) + scale * B A dropout(x)."""
        base, adapter = self.base_layer, self.adapter
        if adapter is None:
            return base(x)
        if self.fuses():
            return self.joint(x, (self,))[0]  # by default: the same formula as one autograd function (lora/fused.py)
        A, B = adapter.A.to(x.dtype), adapter.B.to(x.dtype)
        low = F.linear(F.dropout(x, self.dropout, self.training), A)
        return base(x) + adapter.scale * F.linear(low, B)

    @staticmethod
    def joint(x: torch.Tensor, layers: Sequence[nn.Module]) -> tuple[torch.Tensor, ...]:
        """Return the output of each layer for x [..., in], of all layers by one `FusedLoRA` if each of them fuses.

        The layers are LoRALinear or, without an adapter, models.linear.Linear.
        """
        if (terms := fused_terms(layers)) is None:
            return tuple(layer(x) for layer in layers)
        bases, scales, factors = terms
        y = FusedLoRA.apply(x.reshape(-1, x.shape[-1]), bases, scales, False, (), *factors)
        return y.view(*x.shape[:-1], y.shape[-1]).split([base.out_features for base in bases], -1)

    @staticmethod
    def joint_lean(x: torch.Tensor, layers: Sequence[nn.Module], again: tuple = ()) -> torch.Tensor:
        """Return the outputs of `joint` side by side, x [N, in] -> [N, sum of out]; training in 16 bits on CUDA.

        again: how the backward may compute x (lora/fused.py, `lean`).
        """
        if (terms := fused_terms(layers)) is None:
            outputs = [layer(x) for layer in layers]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        bases, scales, factors = terms
        return FusedLoRA.apply(x, bases, scales, True, again, *factors)

    def fuses(self) -> bool:
        """Return whether `FusedLoRA` computes this layer now: not with dropout, a base that trains, or an nn.Linear,
        which has no `joint_product`."""
        drops = self.training and self.dropout > 0
        return hasattr(self.base_layer, "joint_product") and not drops and not self.base_layer.weight.requires_grad

    @property
    def adapter(self) -> Adapter | None:
        """The active adapter."""
        return None if self.active is None else self.adapters[self.active]

    def parts(self) -> tuple:
        """Return the terms of the base's product (its `parts`) with the active adapter's A, B and scale."""
        base: Any = self.base_layer  # here a models.linear.Linear
        parts, adapter = base.parts(), self.adapter
        return parts if adapter is None else parts._replace(A=adapter.A, B=adapter.B, scale=adapter.scale)


def fused_terms(layers: Sequence[nn.Module]) -> tuple[list[nn.Module], list[float | None], list[torch.Tensor]] | None:
    """Return (bases, scales, factors) as `FusedLoRA` takes them; None if it does not compute these layers now."""
    bases = [layer.base_layer if isinstance(layer, LoRALinear) else layer for layer in layers]
    adapters = [layer.adapter if isinstance(layer, LoRALinear) else None for layer in layers]
    fuse = all(layer.fuses() for layer in layers if isinstance(layer, LoRALinear))
    if not fuse or any(base.weight.requires_grad for base in bases):
        return None
    scales = [None if adapter is None else adapter.scale for adapter in adapters]
    return bases, scales, [factor for adapter in adapters if adapter is not None for factor in (adapter.A, adapter.B)]


def inject(
    model: nn.Module,
    r: int = 16,
    alpha: float = 32,
    dropout: float = 0.0,
    targets: str | list[str] = "all-linear",
    rslora: bool = False,
    name: str = "default",
    rank_pattern: dict[str, int] | None = None,
    alpha_pattern: dict[str, float] | None = None,
) -> list[str]:
    """Freeze the model, add an adapter to the target layers and activate it. Return the names of these layers.

    targets: "all-linear" (all but the output head), "attention" (q, k, v, o, or qkv), a list of names (matched as whole
        dotted suffixes; rl/config/model_checks.py makes it of names by comma), or a regular expression for whole names.
    rslora: scale by alpha / sqrt(r) (Kalajdzievski 2023).
    rank_pattern, alpha_pattern: exceptions to r and alpha (lora/targets.py).
    Raises ValueError for r < 1, an alpha that is not positive, a dropout outside [0, 1), and targets that match nothing
    or are the output head.
    """
    modules = {path: module for path, module in model.named_modules() if not path.endswith(".base_layer")}
    linears = {path: module for path, module in modules.items() if isinstance(module, (nn.Linear, LoRALinear))}
    if not 0 <= dropout < 1:
        raise Refusal(f"lora dropout must be in [0, 1), not {dropout}")
    selected = select_layers(linears, targets)
    sizes = sizes_by_pattern(selected, r, alpha, rank_pattern or {}, alpha_pattern or {})
    model.requires_grad_(False)  # adapters that are there already freeze too: they are references
    for path, size in sizes.items():
        layer = linears[path]
        if not isinstance(layer, LoRALinear):
            layer = LoRALinear(layer).train(layer.training)
            model.set_submodule(path, layer)
        base = layer.base_layer
        layer.adapters[name] = Adapter(base.in_features, base.out_features, *size, rslora, base.weight.device)
        layer.dropout = dropout
    activate(model, name)
    return selected


def select_layers(linears: Iterable[str], targets: str | list[str]) -> list[str]:
    """Return the names among `linears`, of all linear layers of a model, that `targets` selects (see `inject`).

    Raise ValueError if that is none, or the output head is among them.
    """
    linears = list(linears)
    selected = matching(linears, targets)
    if not selected:
        known = ", ".join(sorted({path.rsplit(".", 1)[-1] for path in linears if path != "lm_head"}))
        raise Refusal(f"lora targets {targets!r} match no layer; linear layers here: {known}")
    if "lm_head" in selected:
        raise Refusal("lora targets include the output head lm_head; log-probabilities need a plain head")
    return selected


def lora_layers(model: nn.Module) -> list[tuple[str, LoRALinear]]:
    """Return (name, layer) of every layer that has adapters, in the model's order."""
    return [(path, module) for path, module in model.named_modules() if isinstance(module, LoRALinear)]


def adapter_version(model: nn.Module) -> Callable[[], Hashable]:
    """Return a function whose value changes whenever the model's output may change: when parameters are written in
    place (torch counts that), or another adapter becomes active. Layers injected after this call are not seen."""
    parameters, layers = list(model.parameters()), [layer for _, layer in lora_layers(model)]
    return lambda: (sum(p._version for p in parameters), tuple(layer.active for layer in layers))


def activate(model: nn.Module, name: str | None) -> None:
    """Make the adapter of that name the active one; layers without it compute their base."""
    for _, layer in lora_layers(model):
        layer.active = name if name in layer.adapters else None


def freeze_copy(model: nn.Module, name: str) -> None:
    """Copy the adapter "default" of each layer to a frozen one of that name, which replaces an earlier one."""
    for _, layer in lora_layers(model):
        if "default" in layer.adapters:
            layer.adapters[name] = deepcopy(layer.adapters["default"]).requires_grad_(False)


@contextmanager
def use_adapter(model: nn.Module, name: str | None):
    """Context in which the adapter of that name is active; None is the base. Raises KeyError for an unknown name."""
    layers = [layer for _, layer in lora_layers(model)]
    if name is not None and not any(name in layer.adapters for layer in layers):
        known = sorted({key for layer in layers for key in layer.adapters})
        raise KeyError(f"no adapter named {name!r}; there are: {', '.join(known) or 'none'}")
    before = [layer.active for layer in layers]
    try:
        activate(model, name)
        yield model
    finally:
        for layer, active in zip(layers, before, strict=True):
            layer.active = active


def adapters_off(model: nn.Module):
    """Context in which the model computes its base."""
    return use_adapter(model, None)
