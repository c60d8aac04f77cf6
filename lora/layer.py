"""The LoRA layer, its injection into a model, and switching between adapters.

    y = base(x) + scale * B A dropout(x),   A [r, in] ~ U(-1/sqrt(in), 1/sqrt(in)),   B [out, r] = 0

A and B both zero would never learn: each one's gradient is a product with the other. A random and B zero leaves the
output unchanged at first and gives B a gradient at once. The factors are float32 over a base of any dtype, so
that small updates are not rounded away, and they are never folded into the base in order to sample.
"""

import math
import re
from collections.abc import Callable, Hashable
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")


class Adapter(nn.Module):
    """The two factors of one layer: A [r, in] and B [out, r], float32."""

    def __init__(self, inputs: int, outputs: int, r: int, alpha: float, rslora: bool = False, device=None):
        super().__init__()
        self.A = nn.Parameter(torch.empty(r, inputs, device=device, dtype=torch.float32))
        self.B = nn.Parameter(torch.zeros(outputs, r, device=device, dtype=torch.float32))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        self.alpha, self.rslora = alpha, rslora
        self.scale = alpha / math.sqrt(r) if rslora else alpha / r


class LoRALinear(nn.Module):
    """A frozen linear layer with any number of named adapters, of which at most one is active."""

    def __init__(self, base_layer: nn.Linear):
        super().__init__()
        self.base_layer = base_layer
        self.adapters = nn.ModuleDict()
        self.dropout = 0.0  # on the adapter's input, in train mode only
        self.active: str | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base_layer(x)
        if self.active is None:
            return y
        adapter = self.adapters[self.active]
        x = x.to(adapter.A.dtype)
        if self.training and self.dropout > 0:
            x = F.dropout(x, self.dropout)
        low = F.linear(x, adapter.A)
        if low.dtype == y.dtype and y.dim() == 2:  # in place: nothing needs the base's output for its gradient
            return y.addmm_(low, adapter.B.mT, alpha=adapter.scale)
        return y + F.linear(low * adapter.scale, adapter.B).to(y.dtype)

    def parts(self):
        """(weight, bias, A, B, scale) of the layer as it is now; A and B are None where no adapter is active."""
        base = self.base_layer
        if self.active is None:
            return base.weight, base.bias, None, None, 1.0
        adapter = self.adapters[self.active]
        return base.weight, base.bias, adapter.A, adapter.B, adapter.scale


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
    """Freezes the model, gives the target layers an adapter, and activates it. Returns the layers' names.

    targets: "all-linear" (every linear layer but the output head), "attention" (q, k, v, o), a list of layer names
        (matched as whole dotted suffixes), or a regular expression that must match a whole name.
    scale is alpha / r, or alpha / sqrt(r) with rslora (Kalajdzievski 2023).
    rank_pattern, alpha_pattern: the r and alpha of layers that have their own; a key is a regular expression for the
        whole name or its last dotted parts, and the first that matches counts, as in PEFT.
    Raises ValueError for r < 1, targets that match nothing, or a target on the output head.
    """
    rank_pattern, alpha_pattern = rank_pattern or {}, alpha_pattern or {}
    for rank in (r, *rank_pattern.values()):
        if rank < 1:
            raise ValueError(f"lora r must be at least 1, not {rank}")
    if not 0 <= dropout < 1:
        raise ValueError(f"lora dropout must be in [0, 1), not {dropout}")
    linears = {
        path: module
        for path, module in model.named_modules()
        if isinstance(module, (nn.Linear, LoRALinear)) and not path.endswith(".base_layer")
    }
    matched = [path for path in linears if matches(path, targets)]
    if not matched:
        known = ", ".join(sorted({path.rsplit(".", 1)[-1] for path in linears if path != "lm_head"}))
        raise ValueError(f"lora targets {targets!r} match no layer; linear layers here: {known}")
    if "lm_head" in matched:
        raise ValueError("lora targets include the output head lm_head; log-probabilities need a plain head")
    sizes = {path: (by_pattern(path, rank_pattern, r), by_pattern(path, alpha_pattern, alpha)) for path in matched}
    model.requires_grad_(False)
    for path, size in sizes.items():
        layer = linears[path]
        if not isinstance(layer, LoRALinear):
            layer = LoRALinear(layer).train(layer.training)
            parent, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(parent), leaf, layer)
        base = layer.base_layer
        layer.adapters[name] = Adapter(base.in_features, base.out_features, *size, rslora, base.weight.device)
        layer.dropout = dropout
    _activate(model, name)
    return matched


def _activate(model: nn.Module, name: str | None) -> None:
    """Layers without an adapter of that name are their base."""
    for _, layer in lora_layers(model):
        layer.active = name if name in layer.adapters else None


def matches(path: str, targets: str | list[str]) -> bool:
    """Whether targets, as `inject` takes them, name the layer."""
    if targets == "all-linear":
        return path != "lm_head"
    if targets == "attention":
        targets = list(ATTENTION)
    if isinstance(targets, str):
        return regex(targets).fullmatch(path) is not None
    return any(path == target or path.endswith("." + target) for target in targets)


def by_pattern(path: str, pattern: dict, default):
    """The value of the first key that matches the layer's whole name or its last dotted parts, or the default."""
    return next((value for key, value in pattern.items() if regex(rf"(.*\.)?({key})$").match(path)), default)


def regex(pattern: str) -> re.Pattern:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"lora pattern {pattern!r} is not a regular expression ({error})") from None


def lora_layers(model: nn.Module) -> list[tuple[str, LoRALinear]]:
    """(name, layer) of every layer that has adapters, in the model's order."""
    return [(path, module) for path, module in model.named_modules() if isinstance(module, LoRALinear)]


def adapter_version(model: nn.Module) -> Callable[[], Hashable]:
    """A function whose value changes whenever the model's output may: by torch's own count of in-place writes to the
    parameters, or by another adapter being active. Layers injected after this call are not seen."""
    parameters, layers = list(model.parameters()), [layer for _, layer in lora_layers(model)]
    return lambda: (sum(p._version for p in parameters), tuple(layer.active for layer in layers))


@contextmanager
def use_adapter(model: nn.Module, name: str | None):
    """Within the block the adapter of that name is active; None is the base model. Raises KeyError for no such name."""
    layers = [layer for _, layer in lora_layers(model)]
    if name is not None and not any(name in layer.adapters for layer in layers):
        known = sorted({key for layer in layers for key in layer.adapters})
        raise KeyError(f"no adapter named {name!r}; there are: {', '.join(known) or 'none'}")
    before = [layer.active for layer in layers]
    try:
        _activate(model, name)
        yield model
    finally:
        for layer, active in zip(layers, before, strict=True):
            layer.active = active


def adapters_off(model: nn.Module):
    """Within the block the model is its base."""
    return use_adapter(model, None)


@torch.no_grad()
def fold(model: nn.Module) -> nn.Module:
    """Replaces every LoRA layer by a plain one with W + scale * B A, summed in float32 and cast to W's dtype once.

    In place and final: rounding makes it impossible to unfold, so only export calls this. Raises ValueError if the sum
    is not finite.
    """
    for path, layer in lora_layers(model):
        base = layer.base_layer
        if layer.active is not None:
            adapter = layer.adapters[layer.active]
            wide = torch.promote_types(base.weight.dtype, torch.float32)
            weight = base.weight.to(wide) + adapter.scale * (adapter.B.to(wide) @ adapter.A.to(wide))
            base.weight = nn.Parameter(weight.to(base.weight.dtype), requires_grad=False)
            if not torch.isfinite(base.weight).all():
                raise ValueError(f"{path}: the folded weight is not finite")
        parent, _, leaf = path.rpartition(".")
        setattr(model.get_submodule(parent), leaf, base)
    return model
