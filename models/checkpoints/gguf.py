"""Read GGUF files, llama.cpp's format: their metadata, and their tensors in float32.

The container is that of ggml's docs/gguf.md, versions 2 and 3, little-endian: a header, metadata (a key, a type and a
value each), the names, sizes, types and offsets of the tensors, then their data. Block layouts are ggml-common.h's:
32 numbers of a row share a scale d, and in Q4_1 a minimum m. Files may be a stranger's: every length is compared with
the file and with a limit before it is used. models/checkpoints/gguf_model.py makes a checkpoint of a file.
"""

import math
import mmap
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from models.json_file import POINTER, check_pointer
from models.refusal import Refusal

MOST_KEYS, MOST_TENSORS, MOST_ITEMS = 10_000, 50_000, 2**21  # of metadata; of the file; in all arrays of metadata
MOST_NAME, MOST_TEXT, MOST_METADATA = 256, 2**25, 2**26  # bytes of a key or tensor's name, of a text, before the data
SLAB = 2**22  # numbers that are dequantised at once
ALIGNMENT = 32  # default of general.alignment
TEXT, ARRAY = 8, 9  # types of metadata values
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
OTHER_TYPES = {  # of tensors, named where they are refused
    **{6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K"},
    **{16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS"},
    **{24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4"},
}


# ---------------------------------------------------------------------------------------------------------- the numbers


def _nibbles(packed: np.ndarray) -> np.ndarray:
    """Return 32 numbers below 16 of each 16 bytes: the low halves of all bytes, then the high halves."""
    return np.concatenate([packed & 15, packed >> 4], -1)


def _scale(blocks: np.ndarray, name: str) -> np.ndarray:
    return blocks[name].astype(np.float32)[..., None]


@dataclass(frozen=True)
class Format:
    """A type of tensors: the layout of a block, how many numbers it has, and how they are computed in float32."""

    name: str
    block: np.dtype
    size: int
    values: Callable[[np.ndarray], np.ndarray]  # blocks [...] -> numbers [..., size]


FORMATS = {
    0: Format("F32", np.dtype("<f4"), 1, lambda x: x[..., None]),
    1: Format("F16", np.dtype("<f2"), 1, lambda x: x[..., None]),
    30: Format("BF16", np.dtype("<u2"), 1, lambda x: (x.astype(np.uint32) << 16).view(np.float32)[..., None]),
    8: Format("Q8_0", np.dtype([("d", "<f2"), ("q", "i1", 32)]), 32, lambda x: _scale(x, "d") * x["q"]),
    2: Format(
        *("Q4_0", np.dtype([("d", "<f2"), ("q", "u1", 16)]), 32),
        lambda x: _scale(x, "d") * (_nibbles(x["q"]).astype(np.int8) - 8),
    ),
    3: Format(
        *("Q4_1", np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "u1", 16)]), 32),
        lambda x: _scale(x, "d") * _nibbles(x["q"]) + _scale(x, "m"),
    ),
}


@dataclass(frozen=True)
class Tensor:
    name: str
    shape: tuple[int, ...]  # as torch has it, the last dimension contiguous: the reverse of the file's
    format: Format
    start: int  # the position of its first byte, in the file

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) // self.format.size * self.format.block.itemsize

    def slabs(self, content: mmap.mmap, order: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield the rows in float32, a slab at a time. order: the file's row for each row. Raise ValueError for an
        entry that is not finite, and for a matrix of zeros, as a download under way leaves."""
        length = self.shape[-1] if len(self.shape) > 1 or order is None else 1
        blocks = np.frombuffer(content, self.format.block, self.nbytes // self.format.block.itemsize, self.start)
        blocks = blocks.reshape(-1, length // self.format.size)
        rows, zeros = max(1, SLAB // length), len(self.shape) > 1
        for start in range(0, len(blocks), rows):
            slab = blocks[start : start + rows] if order is None else blocks[order[start : start + rows]]
            with np.errstate(all="ignore"):  # reported below
                values = self.format.values(slab).astype(np.float32).reshape(-1, *self.shape[1:])
                if not np.isfinite(values.sum()) and not np.isfinite(values).all():
                    raise Refusal(f"tensor {self.name} has an entry that is not finite")
            zeros = zeros and not values.any()
            yield values if len(self.shape) > 1 else values.reshape(-1)
        if zeros:
            empty = "has nothing but zeros, as in a file that is not whole"
            raise Refusal(f"tensor {self.name} {empty}; a model that means them needs safetensors")


# -------------------------------------------------------------------------------------------------------- the container


def shown(value: object) -> str:
    """Return a value of metadata, shortened to a part of an error's line."""
    return f"an array of {len(value)}" if isinstance(value, list) else ascii(value)[:80]


@dataclass
class Cursor:
    """A position in the file. Each method reads what is there; `what` names it in an error."""

    content: mmap.mmap
    at: int = 0
    items: int = 0  # of arrays, so far

    def take(self, count: int, what: str) -> int:
        """Return the position of the next `count` bytes, and go behind them."""
        start, self.at = self.at, self.at + count
        if self.at > len(self.content):
            raise Refusal(f"{what}: the file ends within it")
        if self.at > MOST_METADATA:
            raise Refusal(f"{what}: more than {MOST_METADATA:,} bytes come before the tensors' data")
        return start

    def number(self, layout: str, what: str) -> Any:
        [value] = struct.unpack_from(layout, self.content, self.take(struct.calcsize(layout), what))
        return float(str(np.float32(value))) if layout == "<f" else value  # 1e-05, not 9.999999747378752e-06

    def text(self, what: str, most: int = MOST_TEXT) -> str:
        length = self.number("<Q", what)
        if length > most:
            raise Refusal(f"{what}: a text of {length:,} bytes, more than {most:,}")
        start = self.take(length, what)
        try:
            return self.content[start : self.at].decode()
        except UnicodeDecodeError:
            raise Refusal(f"{what}: not UTF-8") from None

    def name(self, what: str) -> str:
        """Return the name of a key or tensor. Raise ValueError if it is long or cannot be printed."""
        name = self.text(what, MOST_NAME)
        if not name.isprintable():
            raise Refusal(f"{what}: the name {shown(name)} cannot be printed")
        return name

    def value(self, what: str) -> object:
        """Return a value of metadata: a number, a boolean, a text, or a list of one of them."""
        kind = self.number("<I", what)
        if kind != ARRAY:
            return self.scalar(kind, what)
        kind, count = self.number("<I", what), self.number("<Q", what)
        self.items += count
        if self.items > MOST_ITEMS:
            raise Refusal(f"{what}: with its {count:,} entries all arrays have more than {MOST_ITEMS:,}")
        if kind == TEXT:
            return [self.text(what) for _ in range(count)]
        if kind not in NUMBERS:
            raise Refusal(f"{what}: an array of type {kind} is not supported")
        layout = f"<{count}{NUMBERS[kind][1]}"
        return list(struct.unpack_from(layout, self.content, self.take(struct.calcsize(layout), what)))

    def scalar(self, kind: int, what: str) -> object:
        if kind == TEXT:
            return self.text(what)
        if kind not in NUMBERS:
            raise Refusal(f"{what}: a value of type {kind} is not known")
        return self.number(NUMBERS[kind], what)


@dataclass
class File:
    """A GGUF file: its metadata, and its tensors by name."""

    content: mmap.mmap
    metadata: dict[str, object] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def own(self, key: str, kind: type, default=None):
        """Return the value of {architecture}.key. Raise ValueError if it is absent without a default or of another
        type than `kind`."""
        name = f"{self.metadata['general.architecture']}.{key}"
        value = self.metadata.get(name, default)
        if value is None:
            raise Refusal(f"{name} is missing")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise Refusal(f"{name}: {shown(value)} is a value of another type")
        return value


def read(path: Path) -> File:
    """Return the file's metadata and tensors. Raise ValueError, one line that names the field, for a damaged file."""
    with open(path, "rb") as file:
        begins = file.read(len(POINTER))
        check_pointer(begins)
        if begins[:4] != b"GGUF":
            raise Refusal("not a GGUF file")
        content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    cursor, found = Cursor(content, 4), File(content)
    version = cursor.number("<I", "the version")
    if version not in (2, 3):
        raise Refusal(f"version {version} of the format is not supported; supported: 2 and 3, little-endian")
    tensors, keys = (cursor.number("<Q", what) for what in ("the number of tensors", "the number of keys"))
    for count, most, what in ((tensors, MOST_TENSORS, "tensors"), (keys, MOST_KEYS, "keys of metadata")):
        if count > most:
            raise Refusal(f"{count:,} {what}, more than {most:,}")
    for i in range(keys):
        key = cursor.name(f"key {i + 1} of {keys}")
        if key in found.metadata:
            raise Refusal(f"the key {key!r} stands twice")
        found.metadata[key] = cursor.value(f"the key {key!r}")
    entries = [_tensor_entry(cursor, f"tensor {i + 1} of {tensors}") for i in range(tensors)]
    align = found.metadata.get("general.alignment", ALIGNMENT)
    if type(align) is not int or align not in [2**n for n in range(3, 17)]:
        raise Refusal(f"general.alignment {shown(align)} is not a power of two from 8 to 65,536")
    data = cursor.at + -cursor.at % align
    for name, shape, layout, offset in entries:
        if name in found.tensors:
            raise Refusal(f"tensor {name} stands twice")
        if offset % align:
            raise Refusal(f"tensor {name}: its offset {offset} is not a multiple of {align}")
        found.tensors[name] = Tensor(name, shape, layout, data + offset)
    _check_places(list(found.tensors.values()), len(content))
    return found


def _tensor_entry(cursor: Cursor, what: str) -> tuple[str, tuple[int, ...], Format, int]:
    """Return (name, shape, format, offset in the data) of the next tensor."""
    name = cursor.name(what)
    what, rank = f"tensor {name!r}", cursor.number("<I", what)
    if rank not in (1, 2):
        raise Refusal(f"{what} has {rank} dimensions; 1 and 2 are supported")
    sizes = [cursor.number("<Q", what) for _ in range(rank)]
    kind, offset = cursor.number("<I", what), cursor.number("<Q", what)
    if kind not in FORMATS:
        supported = ", ".join(layout.name for layout in FORMATS.values())
        raise Refusal(f"{what} has the type {OTHER_TYPES.get(kind, kind)}, which is not supported; {supported} are")
    if not all(sizes) or sizes[0] % FORMATS[kind].size or (rank == 1 and FORMATS[kind].size > 1):
        raise Refusal(f"{what}: {sizes} are no sizes of a tensor of type {FORMATS[kind].name}")
    return name, tuple(reversed(sizes)), FORMATS[kind], offset


def _check_places(tensors: list[Tensor], size: int) -> None:
    """Raise ValueError for a tensor that is not within the file, or overlaps another."""
    end, last = 0, ""
    for tensor in sorted(tensors, key=lambda tensor: tensor.start):
        if tensor.start < end:
            raise Refusal(f"tensor {tensor.name} overlaps {last}")
        end, last = tensor.start + tensor.nbytes, tensor.name
        if end > size:
            raise Refusal(f"tensor {tensor.name}: the file ends within it")
