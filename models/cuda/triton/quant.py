"""Dequantise the weights of models/quant.py with Triton, and multiply a few rows by a 4-bit weight by its codes.

The numbers are those of models/quant.py in every bit: a level times its scale in float32, cast once. With many rows the
dense weight is written once and cuBLAS multiplies by it. With few rows, as in decoding, a product reads the codes once
and dequantises each tile in registers.
"""

from functools import cache

import torch
import triton
import triton.language as tl

from models.quant import BLOCK, LEVELS, NESTED_BLOCK, QuantLinear

FEW = 128  # rows up to which `product` is used
PAIRS = 1024  # codes' bytes that a program of `dequantise` reads
PROGRAMS = 128  # at least so many should share a product, if its outputs allow it
UNFUSED = {"enable_fp_fusion": False}  # a scale is rounded twice, as in bitsandbytes
NESTED = tl.constexpr(NESTED_BLOCK)


@cache
def levels_on(device: torch.device) -> torch.Tensor:
    return torch.tensor(LEVELS, device=device)


def dequantise(layer: QuantLinear, dtype: torch.dtype) -> torch.Tensor:
    """Return the weight of a layer, [out, in] in dtype."""
    out = layer.weight.new_empty(layer.out_features, layer.in_features, dtype=dtype)
    grid = (triton.cdiv(out.numel(), 2 * PAIRS),)
    if layer.kind == "int8":
        tensors = layer.weight, layer.absmax, out
        _dequantise_rows[grid](*tensors, out.numel(), layer.in_features, ENTRIES=2 * PAIRS, **UNFUSED)
    else:
        tensors = layer.weight, *_scales(layer), out
        _dequantise_blocks[grid](*tensors, out.numel(), BLOCK=BLOCK, PAIRS=PAIRS, **UNFUSED)
    return out


def fits(x_ND: torch.Tensor, layer: QuantLinear) -> bool:
    """Return whether `product` takes these rows and this layer."""
    return takes(layer.kind, x_ND.dtype) and layer.in_features % BLOCK == 0 and len(x_ND) <= FEW


def takes(kind: str, dtype: torch.dtype) -> bool:
    """Return whether `product` takes layers of this kind, if their rows are whole blocks, and inputs of this dtype."""
    return kind.startswith("nf4") and dtype in (torch.bfloat16, torch.float16)


def product(x_ND: torch.Tensor, layer: QuantLinear, out_NO: torch.Tensor) -> None:
    """Write x @ weight.T + bias, summed in float32, into out_NO, whose rows may lie apart."""
    N, outputs = out_NO.shape
    rows = max(16, triton.next_power_of_2(N))
    sizes = (64, 32) if rows <= 64 else (32,)  # of a tile whose sums stay in registers
    columns = next((size for size in sizes if triton.cdiv(outputs, size) >= PROGRAMS), 16)
    _multiply[(triton.cdiv(outputs, columns),)](
        *(x_ND.contiguous().view(torch.int32), layer.weight, *_scales(layer), layer.bias, out_NO),
        *(N, layer.in_features, outputs, out_NO.stride(0)),
        **dict(BLOCK=BLOCK, ROWS=rows, COLUMNS=columns, num_warps=4 if columns > 16 else 2, **UNFUSED),
    )


def _scales(layer: QuantLinear) -> tuple:
    """Return the arguments of `_scale`, and the levels."""
    nested = (layer.nested_absmax, layer.nested_map, layer.offset) if layer.kind == "nf4-double" else (None,) * 3
    return layer.absmax, *nested, levels_on(layer.weight.device)


@triton.jit
def _scale(absmax, nested_absmax, nested_map, offset, block, inside):
    """Return the float32 scales of these blocks; 0 outside."""
    scale = tl.load(absmax + block, mask=inside, other=0)
    if nested_absmax is not None:
        nested = tl.load(nested_absmax + block // NESTED, mask=inside, other=0)
        scale = tl.load(nested_map + scale.to(tl.int32)) * nested + tl.load(offset)
        scale = tl.where(inside, scale, 0)
    return scale


@triton.jit(do_not_specialize=["count"])
def _dequantise_blocks(
    codes, absmax, nested_absmax, nested_map, offset, levels, out, count, BLOCK: tl.constexpr, PAIRS: tl.constexpr
):  # fmt: skip
    """Write 2 * PAIRS weights."""
    pair = tl.program_id(0) * PAIRS + tl.arange(0, PAIRS)
    inside = 2 * pair < count
    code = tl.load(codes + pair, mask=inside, other=0).to(tl.int32)
    scale = _scale(absmax, nested_absmax, nested_map, offset, 2 * pair // BLOCK, inside)
    high, low = tl.load(levels + (code >> 4)) * scale, tl.load(levels + (code & 15)) * scale
    at = tl.program_id(0) * 2 * PAIRS + tl.arange(0, 2 * PAIRS)
    tl.store(out + at, tl.interleave(high, low).to(out.dtype.element_ty), mask=at < count)


@triton.jit(do_not_specialize=["count"])
def _dequantise_rows(codes, absmax, out, count, inputs, ENTRIES: tl.constexpr):
    """Write ENTRIES weights."""
    at = tl.program_id(0) * ENTRIES + tl.arange(0, ENTRIES)
    inside = at < count
    code = tl.load(codes + at, mask=inside, other=0).to(tl.float32)
    weight = code * tl.load(absmax + at // inputs, mask=inside, other=0) * (1 / 127)
    tl.store(out + at, weight.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["N"])
def _multiply(
    pairs_of_x, codes, absmax, nested_absmax, nested_map, offset, levels, bias, out, N, inputs, outputs, out_row,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Compute COLUMNS outputs of all rows, one block of inputs at a time. Two neighbours of x, in 16 bits each, are
    loaded as one int32; a byte has the codes of the same two inputs."""
    dtype: tl.constexpr = out.dtype.element_ty
    columns, rows = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, ROWS)
    width, blocks = inputs // 2, inputs // BLOCK
    sums = tl.zeros((COLUMNS, ROWS), tl.float32)
    for block in range(0, blocks):
        pair = block * (BLOCK // 2) + tl.arange(0, BLOCK // 2)
        at = codes + columns[:, None] * width + pair[None, :]
        code = tl.load(at, mask=(columns < outputs)[:, None], other=0).to(tl.int32)
        scale = _scale(absmax, nested_absmax, nested_map, offset, columns * blocks + block, columns < outputs)[:, None]
        high, low = tl.load(levels + (code >> 4)) * scale, tl.load(levels + (code & 15)) * scale
        x = tl.load(pairs_of_x + rows[None, :] * width + pair[:, None], mask=(rows < N)[None, :], other=0)
        even, odd = x.to(tl.int16).to(dtype, bitcast=True), (x >> 16).to(tl.int16).to(dtype, bitcast=True)
        sums = tl.dot(high.to(dtype), even, sums)
        sums = tl.dot(low.to(dtype), odd, sums)
    if bias is not None:
        sums += tl.load(bias + columns, mask=columns < outputs, other=0).to(tl.float32)[:, None]
    at = out + rows[None, :] * out_row + columns[:, None]
    tl.store(at, sums.to(dtype), mask=(columns < outputs)[:, None] & (rows < N)[None, :])
