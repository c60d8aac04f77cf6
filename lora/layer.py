"""The LoRA layer, its injection into a model, and switching between adapters.

    y = base(x) + scale * B A dropout(x),   A [r, in] ~ U(-1/sqrt(in), 1/sqrt(in)),   B [out, r] = 0

A and B both zero would never learn: each one's gradient is a product with the other. A random and B zero leaves the
output unchanged at first and gives B a gradient at once. The factors are float32 over a base of any dtype, so
that small updates are not rounded away (they are multiplied in the base's), and they are never folded into the base in
order to sample.
"""

import math
import re
from collections.abc import Callable, Hashable
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

RANK_MULTIPLE = 16
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
        return self.together(x, self)[0]

    @staticmethod
    def together(x: torch.Tensor, *layers: nn.Module) -> tuple[torch.Tensor, ...]:
        """The outputs of layers that read the same input, some of which may be plain: one product with the A factors of
        all, and one with their frozen weights where these know how."""
        adapters = [getattr(layer, "adapter", None) for layer in layers]
        bases = tuple(getattr(layer, "base_layer", layer) for layer in layers)
        dropout = any(layer.training and getattr(layer, "dropout", 0) > 0 for layer in layers)
        if dropout or any(base.weight.requires_grad for base in bases):
            return tuple(_as_written(x, layer) for layer in layers)
        scales = [None if adapter is None else adapter.scale for adapter in adapters]
        factors = [f for adapter in adapters if adapter is not None for f in (adapter.A, adapter.B)]
        y = _LoRA.apply(x.reshape(-1, x.shape[-1]), bases, scales, *factors)
        return tuple(
            out.view(*x.shape[:-1], out.shape[-1]) for out in y.split([base.out_features for base in bases], -1)
        )

    @property
    def adapter(self) -> Adapter | None:
        """The active one."""
        return None if self.active is None else self.adapters[self.active]

    def parts(self):
        """(weight, bias, A, B, scale) of the layer as it is now; A and B are None where no adapter is active."""
        base, adapter = self.base_layer, self.adapter
        factors = (None, None, 1.0) if adapter is None else (adapter.A, adapter.B, adapter.scale)
        return base.weight, base.bias, *factors


def _as_written(x: torch.Tensor, layer: nn.Module) -> torch.Tensor:
    """A layer by itself, as its formula: with dropout, or with a base that trains too."""
    y, adapter = getattr(layer, "base_layer", layer)(x), getattr(layer, "adapter", None)
    if adapter is None:
        return y
    low = F.linear(F.dropout(x, layer.dropout, layer.training), adapter.A.to(x.dtype))
    return y + adapter.scale * F.linear(low, adapter.B.to(x.dtype))


class _LoRA(torch.autograd.Function):
    """[N, in] -> [N, the outputs of all bases side by side], with scales[i] * B_i A_i added to base i unless that is
    None. Keeps x and the factors: x A is made again in the backward, and a frozen weight gets no gradient. The factors
    are multiplied in the dtype of x; their gradients are in their own.
    """

    @staticmethod
    def forward(ctx, x, bases, scales, *factors):
        ctx.bases, ctx.scales = bases, scales
        ctx.save_for_backward(x, *factors)
        y = _product(x, bases)
        if factors:
            A, Bs = _cast(factors, scales, x.dtype)
            matmul = getattr(bases[0], "matmul", None)  # a product that they take in torch's place
            for out, low, B in _pieces(y, (matmul or F.linear)(x, A), bases, scales, Bs):
                out.addmm_(low, B.mT) if matmul is None else out.add_(matmul(low, B))
        return y

    @staticmethod
    def backward(ctx, grad):
        (x, *factors), grad = ctx.saved_tensors, grad.contiguous()
        grad_x = _back(grad, ctx.bases) if ctx.needs_input_grad[0] else None
        if not factors:
            return grad_x, None, None
        A, Bs = _cast(factors, ctx.scales, x.dtype)
        pieces = list(_pieces(grad, F.linear(x, A), ctx.bases, ctx.scales, Bs))
        grad_low = torch.cat([out @ B for out, _, B in pieces], -1)
        if grad_x is not None:
            grad_x.addmm_(grad_low, A[: grad_low.shape[1]])
        grads_A = (grad_low.mT @ x).split([B.shape[1] for B in Bs])
        scales = [scale for scale in ctx.scales if scale is not None]
        grads = []
        for (out, low, _), grad_A, scale in zip(pieces, grads_A, scales, strict=True):
            grads += grad_A.to(factors[0].dtype).mul_(scale), (out.mT @ low).to(factors[0].dtype)
        return grad_x, None, None, *grads


def _cast(factors, scales, dtype):
    """(scale * A of all, one above the other, [the B factors]) in that dtype. Zeros fill A up to RANK_MULTIPLE: bits
    of narrow products depend on their width, so on which layers are together."""
    As = [A * scale for A, scale in zip(factors[::2], [s for s in scales if s is not None], strict=True)]
    missing = -sum(len(A) for A in As) % RANK_MULTIPLE
    if missing:
        As.append(As[0].new_zeros(missing, As[0].shape[1]))
    return (torch.cat(As) if len(As) > 1 else As[0]).to(dtype), [B.to(dtype) for B in factors[1::2]]


def _pieces(y, low, bases, scales, Bs):
    """Of each base with an adapter: (its columns of y, those of low, B)."""
    outs = y.split([base.out_features for base in bases], -1)
    adapted = [out for out, scale in zip(outs, scales, strict=True) if scale is not None]
    widths = [B.shape[1] for B in Bs]
    return zip(adapted, low[:, : sum(widths)].split(widths, -1), Bs, strict=True)


def _product(x, bases):
    """Of the frozen layers, side by side. A kind of layer that is faster at this has a `product` of its own, and `back`
    for the way back (models/linear.py)."""
    if hasattr(bases[0], "product"):
        return bases[0].product(x, bases)
    return torch.cat([F.linear(x, base.weight, base.bias) for base in bases], -1)


def _back(grad, bases):
    if hasattr(bases[0], "back"):
        return bases[0].back(grad, bases)
    return grad @ torch.cat([base.weight for base in bases])


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
