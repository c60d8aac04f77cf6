"""Copies of the frozen weights of models/linear.py in the layouts of two libraries for CPUs, oneDNN and MKL.

torch multiplies a weight as it lies, so its library rearranges it at every product. A frozen weight is copied once into
the library's own layout, and once more transposed for the gradient of its input. Which library's, `library` says;
process.py chooses it by a trial:

- oneDNN has twice MKL's speed on some CPUs (AMD's with AVX-512), in float32.
- MKL multiplies by its copy up to three times as fast as by the weight where there are few rows. A row's bits depend
  less on the number of rows and threads than in plain products; with Intel's AVX-512 not at all. The copy is float32
  and multiplies 16 bits as float32, which is faster where a CPU has slow products of 16 bits, or none.

Both use parts of torch that may be missing or inexact elsewhere, so a trial decides; without them, or beyond
COPIES_SHARE of the memory, the plain code runs.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch.utils.weak import WeakTensorKeyDictionary

COPIES_SHARE = 0.25  # of the machine's memory, for all copies of weights together
SHARE = 64  # outputs of a thread in MKL's layout, at least
ROWS = 512  # that the layouts are made for; other numbers of rows may be multiplied by them too
WIDENED = 256  # rows of 16 bits that are multiplied at once as float32; more take more memory and no less time
FEW_ROWS = 4  # libraries take other kernels for one to three rows
TRIED_ROWS = 48  # most rows of a product whose padding may be left out
TRIED_SIZE = 2**25  # most weights of a layer that is tried for it; the trial makes as many, and their copy
DTYPES = {"onednn": (torch.float32, torch.bfloat16), "mkl": (torch.float32, torch.bfloat16, torch.float16)}

Library = Literal["onednn", "mkl", "plain"]
# One choice for the process: hooks get tensors, no model, and what samples must multiply as what trains does.
library: Library = "onednn"  # plain: no copies in float32, oneDNN's in 16 bits
keep_layers = True  # False: a layer's copy lives for one product, because its weight does not stay; see `keep_copies`
_copies = WeakTensorKeyDictionary()  # {first weight: {kind of copy: (state of the weights, copy, bytes)}}


class MKLWeight(NamedTuple):
    """A weight in MKL's layout."""

    packed: torch.Tensor  # opaque, float32
    like: torch.Tensor  # [O, D], one number expanded: torch asks for the shape

    def multiply(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows = x.shape[:-1].numel()
        if x.dtype != torch.float32 and rows > WIDENED:
            y = x.new_empty(rows, len(self.like))
            for part, out in zip(x.flatten(0, -2).split(WIDENED), y.split(WIDENED), strict=True):
                out.copy_(self.multiply(part, bias))
            return y.unflatten(0, x.shape[:-1])
        bias = None if bias is None else bias.float()
        # The last argument is the number of rows for which torch takes the copy; for others it takes `like`.
        return torch.ops.mkl._mkl_linear(x.float(), *self, bias, rows).to(x.dtype)


Packed = torch.Tensor | MKLWeight  # a weight in oneDNN's layout, or in MKL's


def use(chosen: Library, afresh: bool = False) -> None:
    """Set the library, and drop the copies for another one; afresh: all copies, because several libraries have some."""
    global library
    if afresh or chosen != library:
        _copies.clear()
    library = chosen


@contextmanager
def taken(other: Library) -> Iterator[None]:
    """Context in which another library is in use, beside whose copies those of the present one stay."""
    global library
    before, library = library, other
    try:
        yield
    finally:
        library = before


def multiply(x: torch.Tensor, packed: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return x @ weight.T + bias, in the dtype of x, for a weight that `pack_weight` packed."""
    if isinstance(packed, MKLWeight):
        return packed.multiply(x, bias)
    return torch.ops.mkldnn._linear_pointwise(x, packed, bias, "none", [], "")


def multiply_first(x_ND: torch.Tensor, rows: int, packed: Packed, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return `multiply` for an x whose rows from `rows` on are padding. They are left out, and their results are zeros,
    for oneDNN's copies of layers of at most TRIED_SIZE weights, where `independent_rows` allows it."""
    if isinstance(packed, MKLWeight):
        return multiply(x_ND, packed, bias)
    small = rows < len(x_ND) <= TRIED_ROWS and packed.numel() <= TRIED_SIZE
    if small and independent_rows("onednn", *packed.shape, torch.get_num_threads()):
        return F.pad(multiply(x_ND[:rows], packed, bias), (0, 0, 0, len(x_ND) - rows))
    return multiply(x_ND, packed, bias)


def plain_first(x_ND: torch.Tensor, rows: int, weight: torch.Tensor) -> torch.Tensor:
    """Return x @ weight.T by a plain float32 product, for an x whose rows from `rows` on are padding. Rows beyond the
    next multiple of FEW_ROWS are left out, and their results are zeros, where `few_rows_agree` allows it."""
    few = rows + -rows % FEW_ROWS
    small = few < len(x_ND) <= TRIED_ROWS and weight.numel() <= TRIED_SIZE
    if small and few_rows_agree(*weight.shape, torch.get_num_threads()):
        return F.pad(F.linear(x_ND[:few], weight), (0, 0, 0, len(x_ND) - few))
    return F.linear(x_ND, weight)


@torch.no_grad()
def pack_weight(weight: torch.Tensor, by: Library | None = None) -> Packed:
    """Return a weight [O, D] in the layout of a library, by default of `library`; the caller keeps it."""
    weight = weight.contiguous()
    if (by or library) == "mkl":
        return MKLWeight(_packed_by_mkl(weight.float()), torch.zeros(1).expand(weight.shape))
    return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS)


def _packed_by_mkl(weight: torch.Tensor) -> torch.Tensor:
    """Return a weight in MKL's layout. It is made by the threads that will multiply, which a layout made by fewer keeps
    waiting, but not by more than one for each SHARE outputs: those would cut the sums of some shapes into parts."""
    threads = torch.get_num_threads()
    torch.set_num_threads(min(threads, max(1, len(weight) // SHARE)))
    try:
        return torch.ops.mkl._mkl_reorder_linear_weight(weight, ROWS)
    finally:
        torch.set_num_threads(threads)


def weight_copy(weights: list[torch.Tensor], transposed: bool = False) -> Packed | None:
    """Return the packed copy of the stacked weights [O, D], transposed if asked; None for the plain product."""
    piece = lambda weight: [weight.mT if transposed else weight]  # noqa: E731
    copies = _cached(weights, (transposed, len(weights)), piece, keep=keep_layers)
    return copies[0] if copies else None


def slab_copies(weight: torch.Tensor, size: int, dtype: torch.dtype, transposed: bool = False):
    """Return a list of the copies of every `size` rows of the weight, in dtype, or None."""
    slabs = lambda w: (slab.mT if transposed else slab for slab in w.split(size))  # noqa: E731
    return _cached([weight], (transposed, size, dtype), slabs, dtype)


def _cached(weights, kind, pieces, dtype=None, keep: bool = True) -> list[Packed] | None:
    """Return packed copies of the pieces of the stacked weights. They are made at the first request and kept until a
    weight changes, the first weight is freed or `keep_copies` drops them; without `keep` they are made each time. None
    if a copy is impossible or over budget, which counts copies that are not kept as well: so the same weights have one.
    """
    first, dtype = weights[0], dtype or weights[0].dtype
    if first.device.type != "cpu" or first.requires_grad:
        return None
    by = library_of(dtype, library)
    if by is None:
        return None
    state = [(weight.data_ptr(), weight._version, weight.dtype) for weight in weights]
    cached, kind = _copies.get(first), (by, *kind)
    if cached is None:
        cached = _copies[first] = {}
    if kind not in cached or cached[kind][0] != state:
        cached.pop(kind, None)
        size = sum(weight.numel() for weight in weights) * bytes_of(dtype, by)
        cached[kind] = (state, None, size if size + bytes_of_copies() <= budget() else 0)
    _, packed, size = cached[kind]
    if packed is None and size:
        weight = torch.cat(weights) if len(weights) > 1 else first
        packed = [pack_weight(piece.to(dtype), by) for piece in pieces(weight.detach())]
        cached[kind] = (state, packed if keep else None, size)
    return packed


def library_of(dtype: torch.dtype, chosen: Library) -> Literal["onednn", "mkl"] | None:
    """Return whose copy a weight of dtype has under a choice of library; None: there is no copy."""
    if chosen == "plain" and dtype == torch.float32:
        return None
    by: Literal["onednn", "mkl"] = "mkl" if chosen == "mkl" else "onednn"
    return by if usable(dtype, by) else None


def bytes_of(dtype: torch.dtype, by: Library) -> int:
    """Return the bytes of a number in a library's copy of a weight of dtype."""
    return 4 if by == "mkl" else dtype.itemsize


def keep_copies(layers: bool) -> None:
    """Drop all copies. layers: whether new copies of a layer's weights are kept, or made for each product."""
    global keep_layers
    keep_layers = layers
    for copies in _copies.values():
        for kind, (state, _, size) in copies.items():
            copies[kind] = (state, None, size)


def bytes_of_copies() -> int:
    return sum(size for copies in _copies.values() for _, _, size in copies.values())


@cache
def budget() -> int:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return int(COPIES_SHARE * memory)


@cache
@torch.no_grad()
def usable(dtype: torch.dtype, by: Library) -> bool:
    """Return whether this torch multiplies weights of dtype that the library packed, and accurately."""
    backend = torch.backends.mkl if by == "mkl" else torch.backends.mkldnn
    if dtype not in DTYPES[by] or not backend.is_available():
        return False
    try:
        return accurate(48, 256, lambda x, w: multiply(x, pack_weight(w.mT, by)), dtype)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


@cache
@torch.no_grad()
def independent_rows(by: Library, outputs: int = 96, inputs: int = 256, _threads: int = 0) -> bool:
    """Return whether a row of a float32 product by a library's copy of a weight [outputs, inputs] has the same bits
    beside TRIED_ROWS - 1 others and beside fewer, or none. It tries the present number of threads; _threads keeps an
    answer for each number."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(TRIED_ROWS + outputs, inputs, generator=generator).split((TRIED_ROWS, outputs))
    copy, bias = pack_weight(weight, by), torch.randn(outputs, generator=generator)
    product = multiply(x, copy, bias)
    return all(torch.equal(multiply(x[:rows], copy, bias), product[:rows]) for rows in range(1, TRIED_ROWS))


@cache
@torch.no_grad()
def few_rows_agree(outputs: int, inputs: int, _threads: int) -> bool:
    """Return whether a row of a plain float32 product with a weight [outputs, inputs] has the same bits beside
    TRIED_ROWS - 1 others and beside the fewer of each multiple of FEW_ROWS."""
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(TRIED_ROWS + outputs, inputs, generator=generator).split((TRIED_ROWS, outputs))
    product = F.linear(x, weight)
    return all(
        torch.equal(F.linear(x[:rows], weight), product[:rows]) for rows in range(FEW_ROWS, TRIED_ROWS, FEW_ROWS)
    )


def accurate(rows: int, inner: int, product, dtype=torch.float32) -> bool:
    """Return whether a product is right to rounding, and each row independent of the number of rows."""
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*shape, generator=generator).to(dtype) for shape in ((rows, inner), (inner, 96)))
    y, expected = product(x, w), x.double() @ w.double()
    close = (y - expected).norm() <= 8 * torch.finfo(dtype).eps * expected.norm()
    return bool(close) and torch.equal(product(x[16:32], w), y[16:32])
