"""Frozen linear layers with weights of 4 or 8 bits, in the formats of bitsandbytes.

nf4         blocks of 64 weights share a float32 scale, their largest magnitude; a weight is one of the 16 levels of
            NF4, the quantiles of a normal distribution (Dettmers et al. 2023, QLoRA, section 3): 4.5 bits a weight
nf4-double  the scales, less their mean, are stored in 8 bits, 256 of them by one float32 scale: 4.13 bits a weight
int8        each row has a float32 scale, its largest magnitude (Dettmers et al. 2022, LLM.int8(), vector-wise): 8 bits

A layer dequantises its weight in float32, casts it once to the dtype of its input and multiplies; so the gradient of
the input, and of adapters, is that of a dense layer with the dequantised weight. Unlike bitsandbytes, int8 rounds no
inputs. Only the linear layers of blocks are quantised: embeddings, head and norms keep their dtype.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from models.hooks import hooks
from models.linear import Linear, LinearParts
from models.refusal import Refusal

KINDS = ("nf4", "nf4-double", "int8")
BLOCK, NESTED_BLOCK = 64, 256  # weights that share a scale; scales that share a scale
PIECE = 2**16  # weights that are quantised at once: larger temporaries leave holes in the process's memory
LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634),
    *(0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)  # of NF4


class QuantLinear(Linear):
    """A frozen linear layer whose weight is dequantised for every product.

    Its tensors are those of `layout`; `weight` holds the codes, so that it has a device and no gradient. Where a layer
    is not quantised (kind "none") beside others that are, `weight` is the plain weight.
    """

    absmax: torch.Tensor
    nested_absmax: torch.Tensor
    nested_map: torch.Tensor
    offset: torch.Tensor

    def __init__(self, linear: nn.Linear, kind: str):
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.kind = linear.in_features, linear.out_features, kind
        self.weight, self.bias = linear.weight, linear.bias
        for name, (shape, dtype) in layout(kind, self.out_features, self.in_features).items() if kind != "none" else ():
            tensor = torch.empty(shape, dtype=dtype, device=linear.weight.device)
            setattr(self, name, nn.Parameter(tensor, requires_grad=False) if name == "weight" else nn.Buffer(tensor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.joint(x, (self,))[0]

    def parts(self) -> LinearParts:
        """Return the terms of the product. The weight is a stand-in of its shape at the codes' address."""
        return LinearParts(self.weight.view(-1)[:1].expand(self.out_features, self.in_features), self.bias)

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return the dequantised weight [out, in], cast to dtype once."""
        if self.kind == "none":
            return self.weight.to(dtype)
        weight = hooks(self.weight).dequantise(self, dtype)
        return dequantise(self).to(dtype) if weight is None else weight

    @staticmethod
    def joint_product(x: torch.Tensor, layers: Sequence[Any]) -> torch.Tensor:
        """Return the outputs of quantised layers side by side, [..., in] -> [..., sum of out], without a gradient."""
        matmul = layers[0].matmul
        y = hooks(x).quant_product(x, layers) if matmul is None else None
        if y is None:
            outputs = [(matmul or F.linear)(x, layer.dense(x.dtype), layer.bias) for layer in layers]
            y = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        return y

    @staticmethod
    def joint_gradient(grad: torch.Tensor, layers: Sequence[Any]) -> torch.Tensor:
        """Return the gradient of `joint_product`'s input from the gradient of its output."""
        grads = grad.split([layer.out_features for layer in layers], -1)
        parts = (part @ layer.dense(grad.dtype) for part, layer in zip(grads, layers, strict=True))
        return sum(parts, next(parts))  # without a copy for 0 + the first

    def _apply(self, fn, recurse: bool = True):
        """Move with the model to another device, but keep the scales in float32 when the model is cast."""
        before = dict(self.named_buffers())
        super()._apply(fn, recurse)
        for name, scale in before.items():
            setattr(self, name, nn.Buffer(scale.to(getattr(self, name).device)))
        return self


def layout(kind: str, outputs: int, inputs: int) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return the (shape, dtype) of each tensor of a layer, by the name of its attribute.

    nf4: `weight` has two codes of 4 bits in a byte, the first in the high half. `absmax` are the scales, of rows for
    int8. nf4-double: absmax = nested_map[absmax] * nested_absmax + offset.
    """
    if kind == "int8":
        return {"weight": ((outputs, inputs), torch.int8), "absmax": ((outputs,), torch.float32)}
    count, blocks = outputs * inputs, -(-outputs * inputs // BLOCK)
    codes = {"weight": ((-(-count // 2), 1), torch.uint8)}
    if kind == "nf4":
        return {**codes, "absmax": ((blocks,), torch.float32)}
    nested = {"absmax": ((blocks,), torch.uint8), "nested_absmax": ((-(-blocks // NESTED_BLOCK),), torch.float32)}
    return {**codes, **nested, "nested_map": ((256,), torch.float32), "offset": ((), torch.float32)}


@torch.no_grad()
def quantise(weight_OI: torch.Tensor, kind: str) -> dict[str, torch.Tensor]:
    """Return the tensors of `layout` for a weight of any float dtype. Raise ValueError if a scale is not finite."""
    if kind == "int8":
        tensors = quantise_rows(weight_OI)
    else:
        codes, absmax = quantise_blocks(weight_OI)
        tensors = {"weight": codes, "absmax": absmax}
        if kind == "nf4-double":
            tensors |= quantise_scales(absmax)
    scale = tensors.get("offset", tensors["absmax"])
    if not scale.isfinite().all():
        raise Refusal("has an entry that is not finite" + " in float16, from which int8 rounds" * (kind == "int8"))
    return tensors


def quantise_blocks(weight: torch.Tensor, block: int = BLOCK) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (codes uint8 [ceil(n / 2), 1], absmax float32 [ceil(n / block)]) of a weight with n entries, row by row.

    A value's level is the nearest; halfway between two it is the lower one. Blocks of zeros have absmax 0 and code 7.
    """
    levels, flat = torch.tensor(LEVELS), weight.reshape(-1)
    middles = ((levels[1:] + levels[:-1]) / 2).tolist()
    codes = torch.empty(-(-len(flat) // 2), dtype=torch.uint8, device=weight.device)
    absmax = torch.empty(-(-len(flat) // block), device=weight.device)
    pieces = flat.split(PIECE), codes.split(PIECE // 2), absmax.split(PIECE // block)
    for piece, code, scale in zip(*pieces, strict=True):
        x = F.pad(piece.float(), (0, -len(piece) % block)).view(-1, block)
        scale.copy_(x.abs().amax(1))
        x = (x * (1 / scale.clamp(min=1e-38))[:, None]).clamp_(-1, 1).view(-1)[: 2 * len(code)]
        level = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
        for middle in middles:
            level += x > middle
        torch.add(level[::2] << 4, level[1::2], out=code)
    return codes[:, None], absmax


def quantise_scales(absmax: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors that store the scales in 8 bits (nf4-double).

    As bitsandbytes does on a CPU, x is rounded to 2**16 steps before its nearest level is chosen. Its CUDA code does
    not: there a scale halfway between two levels, within 1.6e-5 of its block's largest, may get the other one.
    """
    levels, offset = dynamic_map().to(absmax.device), _mean(absmax)
    x = F.pad(absmax - offset, (0, -len(absmax) % NESTED_BLOCK)).view(-1, NESTED_BLOCK)
    nested = x.abs().amax(1, keepdim=True)
    x = (x * (1 / nested.clamp(min=1e-38))).clamp(-1, 1)
    x = ((x + 1) * 32767.5 + 0.5).floor() / 32767.5 - 1
    codes = torch.bucketize(x, (levels[1:] + levels[:-1]) / 2).to(torch.uint8).view(-1)[: len(absmax)]
    return {"absmax": codes.clone(), "nested_absmax": nested[:, 0], "nested_map": levels, "offset": offset}


def dynamic_map() -> torch.Tensor:
    """Return the 256 levels of bitsandbytes' signed dynamic type, ascending: 7 powers of ten with 2**i fractions each,
    their negatives, 0 and 1 (Dettmers 2016, 8-Bit Approximations for Parallelism, section 2.2)."""
    levels = [torch.tensor([0.0, 1.0])]
    for i in range(7):
        edges = torch.linspace(0.1, 1, 2**i + 1)
        fractions = 10 ** (i - 6) * ((edges[:-1] + edges[1:]) / 2)
        levels += [fractions, -fractions]
    return torch.cat(levels).sort()[0]


def _mean(x: torch.Tensor) -> torch.Tensor:
    """Return the mean in the order of one thread: with more of them the last bit would depend on their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return x.mean()
    finally:
        torch.set_num_threads(threads)


def quantise_rows(weight_OI: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors of int8: 127 * x / absmax of the row, rounded to even, from float16 as in bitsandbytes."""
    codes = torch.empty_like(weight_OI, dtype=torch.int8)
    absmax = torch.empty(len(codes), device=codes.device)
    rows = max(1, PIECE // weight_OI.shape[1])
    for piece, code, scale in zip(*(x.split(rows) for x in (weight_OI, codes, absmax)), strict=True):
        half = piece.to(torch.float16)
        scale.copy_(half.abs().amax(1))
        code.copy_((half * (127 / scale)[:, None]).round_().nan_to_num_())  # a row of zeros gives 0 * inf
    return {"weight": codes, "absmax": absmax}


def scales(layer: QuantLinear) -> torch.Tensor:
    """Return a 4-bit layer's scales, float32 [blocks]."""
    if layer.kind == "nf4":
        return layer.absmax
    nested = layer.nested_absmax.repeat_interleave(NESTED_BLOCK)[: len(layer.absmax)]
    return layer.nested_map[layer.absmax.int()] * nested + layer.offset


def dequantise(layer: QuantLinear) -> torch.Tensor:
    """Return the weight of a layer, float32 [out, in]."""
    if layer.kind == "int8":
        return layer.weight.float().mul_(layer.absmax[:, None]).mul_(1 / 127)
    return dequantise_blocks(layer.weight, scales(layer), (layer.out_features, layer.in_features))


def dequantise_blocks(codes: torch.Tensor, absmax: torch.Tensor, shape: tuple, block: int = BLOCK) -> torch.Tensor:
    """Return the float32 weight of this shape from its codes and scales; the inverse of `quantise_blocks`."""
    levels = torch.tensor(LEVELS, device=codes.device)
    halves = torch.stack((codes.view(-1) >> 4, codes.view(-1) & 15), -1).view(-1)
    x = levels[halves.int()]
    x = F.pad(x, (0, -len(x) % block)).view(-1, block) * absmax[:, None]
    return x.view(-1)[: math.prod(shape)].view(shape)


def block_linears(model: nn.Module) -> dict[str, Linear]:
    """Return the linear layers of the model's blocks, or of a block, by name: all but the head."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, Linear) and name != "lm_head"}


def dequantise_layers(module: nn.Module, dtype: torch.dtype) -> None:
    """Replace every quantised layer in a module, such as a block, by a dense one in dtype, one at a time."""
    for name, layer in block_linears(module).items():
        if isinstance(layer, QuantLinear):
            dense = Linear(layer.in_features, layer.out_features, device="meta")
            dense.weight, dense.bias = nn.Parameter(layer.dense(dtype), requires_grad=False), layer.bias
            module.set_submodule(name, dense)
