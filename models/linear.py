"""Linear layers, and several layers of one input as one product.

| name                    | for layers of one input, for example q, k and v                                          |
| ----------------------- | ---------------------------------------------------------------------------------------- |
| `joint_linear`          | the decoder's call: `LoRALinear.joint` (lora/) if any has an adapter, else `Linear.joint` |
| `Linear.joint`          | the output of each layer: F.linear if a weight trains, else `joint_product`              |
| `Linear.joint_product`  | frozen layers' outputs side by side, without autograd: F.linear or a faster hook         |
| `Linear.joint_gradient` | the gradient of that product's input                                                     |
| `JointProduct`          | both as one autograd function; with adapters, FusedLoRA (lora/fused.py)                  |

Numbers of rows are padded to ROW_MULTIPLE, because libraries take other kernels, with other rounding, for one to three
rows and for the tails of vectors. A trial at the start of a run tries whether a row's bits depend on the others.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import nn

from models.hooks import hooks

ROW_MULTIPLE = 16


def joint_linear(x: torch.Tensor, *layers: "LinearLayer") -> tuple[torch.Tensor, ...]:
    """Return the outputs of layers that read the same input, as one product where that is possible."""
    wrapper = next((layer for layer in layers if not isinstance(layer, Linear)), layers[0])
    return wrapper.joint(x, layers)


class LinearLayer(Protocol):
    """The interface of `Linear`, and of a wrapper that adds an adapter to one."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...

    def joint(self, x: torch.Tensor, layers: Any) -> tuple[torch.Tensor, ...]:
        """Return the output of each of the layers, of this class or plain `Linear`."""

    def parts(self) -> "LinearParts":
        """Return the current terms."""


class LinearParts(NamedTuple):
    """The terms of x @ weight.T + bias + scale * x @ A.T @ B.T; A and B are None without an adapter."""

    weight: torch.Tensor  # [out, in]
    bias: torch.Tensor | None
    A: torch.Tensor | None = None  # [R, in]
    B: torch.Tensor | None = None  # [out, R]
    scale: float = 1.0


class Linear(nn.Linear):
    """nn.Linear whose product with a frozen weight models/cpu and models/cuda may replace."""

    matmul: Callable | None = None  # replaces F.linear(x, weight, bias); the hook `make_exact` sets it in all layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.joint(x, (self,))[0]

    def parts(self) -> LinearParts:
        return LinearParts(self.weight, self.bias)

    @staticmethod
    def joint(x: torch.Tensor, layers: Sequence["Linear"]) -> tuple[torch.Tensor, ...]:
        """Return the output of each layer for x [..., in]."""
        if any(layer.weight.requires_grad for layer in layers):
            return tuple((layer.matmul or F.linear)(x, layer.weight, layer.bias) for layer in layers)
        product = layers[0].joint_product
        if torch.is_grad_enabled() and x.requires_grad:
            product = JointProduct.apply
        return product(x, layers).split([layer.out_features for layer in layers], -1)

    @staticmethod
    def joint_product(x: torch.Tensor, layers: Sequence["Linear"]) -> torch.Tensor:
        """Return the outputs of frozen layers side by side, [..., in] -> [..., sum of out], without a gradient."""
        matmul, weights, biases = layers[0].matmul, [layer.weight for layer in layers], [layer.bias for layer in layers]
        y = hooks(x).joint_product(x, weights, biases) if matmul is None else None
        if y is None:
            outputs = [(matmul or F.linear)(x, layer.weight, layer.bias) for layer in layers]
            y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        return y

    @staticmethod
    def joint_gradient(grad: torch.Tensor, layers: Sequence["Linear"]) -> torch.Tensor:
        """Return the gradient of `joint_product`'s input from the gradient of its output."""
        weights = [layer.weight for layer in layers]
        if (grad_x := hooks(grad).joint_gradient(grad, weights)) is not None:
            return grad_x
        parts = (part @ w for part, w in zip(grad.split([len(w) for w in weights], -1), weights, strict=True))
        return sum(parts, next(parts))  # without a copy for 0 + the first


class JointProduct(torch.autograd.Function):
    """`Linear.joint_product` with a gradient for its input alone; saves no tensor for the backward."""

    @staticmethod
    def forward(ctx, x, layers):
        ctx.layers = layers
        return layers[0].joint_product(x, layers)

    @staticmethod
    def backward(ctx, grad):
        return ctx.layers[0].joint_gradient(grad.contiguous(), ctx.layers), None
