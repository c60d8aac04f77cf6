"""Convert GGUF files (llama.cpp's format) to checkpoints in Hugging Face layout, in float32.

The container is that of ggml's docs/gguf.md, versions 2 and 3, little-endian: a header, metadata (a key, a type and a
value each), the names, sizes, types and offsets of the tensors, then their data. Block layouts are ggml-common.h's:
32 numbers of a row share a scale d, and in Q4_1 a minimum m. Files may be a stranger's: every length is compared with
the file and with a limit before it is used, and what changes the computation and is not understood is refused by name.
"""

import math
import mmap
import re
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from models.checkpoints import gguf_tokenizer
from models.checkpoints.gguf_tokenizer import shown
from models.config import parse_config
from models.decoder import CausalLM
from models.export import save_config, writer
from models.refusal import Refusal
from models.rope import Rope, Stretch, frequencies

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
ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
SIZES = {  # the keys of metadata behind those of config.json
    "num_hidden_layers": "block_count",
    "max_position_embeddings": "context_length",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
}
READ = {  # other keys that are read
    *("attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon"),
    *("vocab_size", "rope.dimension_count", "rope.freq_base"),
    *("rope.scaling.type", "rope.scaling.factor", "rope.scaling.original_context_length"),
}
ONLY = {  # keys that change the computation, and the only value with which they do not
    "attention.causal": True,
    "expert_count": 0,
    "expert_used_count": 0,
    "use_parallel_residual": False,
    "rope.scale_linear": 1.0,
    "rope.scaling.attn_factor": 1.0,
}
HARMLESS = {"rope.scaling.finetuned", "tensor_data_layout"}  # nobody computes with them
MODULES = {  # of a block
    **{"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_output": "self_attn.o_proj"},
    **{"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"},
    **{"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"},
    **{"ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"},
}
OUTSIDE = {  # of blocks
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
FREQUENCIES = "rope_freqs.weight"  # a divisor of each pair's rotary frequency
LLAMA3_FACTORS, LLAMA3_LENGTH = (8.0, 32.0), 8192  # of Llama 3.1 and 3.3, of Llama 3.2; low 1, high 4 in all


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
        entry that is not finite."""
        length = self.shape[-1] if len(self.shape) > 1 or order is None else 1
        blocks = np.frombuffer(content, self.format.block, self.nbytes // self.format.block.itemsize, self.start)
        blocks = blocks.reshape(-1, length // self.format.size)
        rows = max(1, SLAB // length)
        for start in range(0, len(blocks), rows):
            slab = blocks[start : start + rows] if order is None else blocks[order[start : start + rows]]
            with np.errstate(all="ignore"):  # reported below
                values = self.format.values(slab).astype(np.float32).reshape(-1, *self.shape[1:])
                if not np.isfinite(values.sum()) and not np.isfinite(values).all():
                    raise Refusal(f"tensor {self.name} has an entry that is not finite")
            yield values if len(self.shape) > 1 else values.reshape(-1)


# -------------------------------------------------------------------------------------------------------- the container


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

    def number(self, layout: str, what: str) -> int | float | bool:
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
        if file.read(4) != b"GGUF":
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


# ------------------------------------------------------------------------------------------------------------ the model


def config_of(file: File) -> dict:
    """Return a config.json. Raise ValueError for a key of the architecture, or a general one, that is not supported."""
    metadata, arch = file.metadata, file.metadata.get("general.architecture")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        raise Refusal(f"architecture {shown(arch)} is not supported; supported: {', '.join(ARCHITECTURES)}")
    if metadata.get("general.type", "model") != "model":
        raise Refusal(f"general.type {shown(metadata['general.type'])} is not a model")
    if metadata.get("split.count", 1) not in (0, 1):
        raise Refusal(f"split.count {shown(metadata['split.count'])}: join the parts with llama-gguf-split first")
    for name, value in metadata.items():
        key = name.removeprefix(f"{arch}.")
        if key == name or key in READ or key in SIZES.values() or key in HARMLESS:
            continue
        if key not in ONLY or value != ONLY[key]:
            only = f"; supported: {ONLY[key]}" if key in ONLY else ""
            raise Refusal(f"{name} = {shown(value)} is not supported, and may change what the model computes{only}")
    config = {"architectures": [ARCHITECTURES[arch]], "model_type": arch, "hidden_act": "silu"}
    config |= {ours: file.own(key, int) for ours, key in SIZES.items()}
    heads = config["num_attention_heads"]
    head_dim = file.own("attention.key_length", int, config["hidden_size"] // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if (size := file.own(key, int, head_dim)) != head_dim:
            raise Refusal(f"{arch}.{key} {size} is not the size of a key's head, {head_dim}")
    return config | {
        "num_key_value_heads": file.own("attention.head_count_kv", int, heads),
        "head_dim": head_dim,
        "rms_norm_eps": file.own("attention.layer_norm_rms_epsilon", float),
        "rope_theta": file.own("rope.freq_base", float, 10000.0),
        "rope_scaling": _rope_scaling(file, head_dim),
        "vocab_size": file.own("vocab_size", int, len(gguf_tokenizer.texts(metadata, "tokens"))),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
        **gguf_tokenizer.ids(metadata),
    }


def _rope_scaling(file: File, head_dim: int) -> dict | None:
    """Return the rotary scaling of metadata, or of the table that Llama 3 files have in its place."""
    kind = file.own("rope.scaling.type", str, "none")
    if FREQUENCIES in file.tensors:
        if kind != "none":
            raise Refusal(f"tensor {FREQUENCIES} beside rope.scaling.type {shown(kind)} is not supported")
        return _llama3(file, head_dim)
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise Refusal(f"rope.scaling.type {shown(kind)} is not supported; supported: none, linear, yarn")
    scaling = {"rope_type": kind, "factor": file.own("rope.scaling.factor", float)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = file.own("rope.scaling.original_context_length", int)
    return scaling


def _llama3(file: File, head_dim: int) -> dict | None:
    """Return the scaling of a Llama 3 whose table of divisors the file has; None if it divides by 1. Raise ValueError
    for any other table."""
    tensor, theta = file.tensors[FREQUENCIES], file.own("rope.freq_base", float, 10000.0)
    if tensor.shape != (head_dim // 2,):
        raise Refusal(f"tensor {FREQUENCIES} has shape {tensor.shape}, not {(head_dim // 2,)}")
    [divisors] = map(torch.from_numpy, tensor.slabs(file.content))
    if (divisors == 1).all():
        return None
    plain, _ = frequencies(Rope(theta=theta), head_dim)
    for factor in LLAMA3_FACTORS:
        scaled, _ = frequencies(Rope("llama3", theta, Stretch(factor, LLAMA3_LENGTH)), head_dim)
        if torch.allclose(plain / scaled, divisors, rtol=1e-5):
            return {
                **{"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
                "original_max_position_embeddings": LLAMA3_LENGTH,
            }
    raise Refusal(f"tensor {FREQUENCIES} is not the table of Llama 3.1, 3.2 or 3.3")


def renamed(name: str) -> str:
    """Return the Hugging Face name of a tensor. Raise ValueError for an unknown one."""
    if match := re.fullmatch(r"blk\.(\d{1,3})\.(\w+)\.(weight|bias)", name, re.ASCII):
        layer, module, last = match.groups()
        if module in MODULES and str(int(layer)) == layer:
            return f"model.layers.{layer}.{MODULES[module]}.{last}"
    if name not in OUTSIDE:
        raise Refusal(f"tensor {name!r} is not part of a supported model")
    return OUTSIDE[name]


def row_order(name: str, config: dict) -> np.ndarray | None:
    """Return the file's row for each row of a tensor; None if they are the same.

    Files of the architecture llama hold the two halves of a query's or key's head interleaved, [H, E / 2, 2] for
    [H, 2, E / 2], because llama.cpp rotates neighbours (its convert_hf_to_gguf.py, LlamaModel.permute).
    """
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
    if config["model_type"] != "llama" or not heads:
        return None
    count, size = config[heads], config["head_dim"]
    return np.arange(count * size).reshape(count, size // 2, 2).swapaxes(1, 2).reshape(-1)


def check_tensors(tensors: dict[str, Tensor], config: dict) -> None:
    """Raise ValueError if the tensors, by Hugging Face name, are not exactly those of the model."""
    with torch.device("meta"):
        model = CausalLM(parse_config(config))
    shapes = {key: tuple(p.shape) for key, p in model.named_parameters()}  # a tied head is the embedding
    for key, tensor in tensors.items():
        if key not in shapes:
            raise Refusal(f"tensor {tensor.name} is not part of the model that the metadata describe")
        if tensor.shape != shapes[key]:
            raise Refusal(f"tensor {tensor.name} has shape {tensor.shape}; the metadata say {shapes[key]}")
    if missing := sorted(shapes.keys() - tensors.keys()):
        raise Refusal(f"tensor {missing[0]} is missing")


def convert(path: Path, folder: Path) -> dict[str, int]:
    """Write config.json, the weights in float32 and the tokenizer's files into an existing folder.

    Return how many tensors the file has of each type. Raise ValueError, one line that names the file and the field, if
    it is damaged or not supported, and OSError if the disk has not enough space.
    """
    try:
        file = read(path)
        config = config_of(file)
        tensors = {renamed(name): tensor for name, tensor in file.tensors.items() if name != FREQUENCIES}
        check_tensors(tensors, config)
        tokenizer = gguf_tokenizer.files(file.metadata, config)
        for name, text in tokenizer.items():
            (folder / name).write_text(text, encoding="utf-8")
        with writer(folder, {key: tensor.shape for key, tensor in tensors.items()}, torch.float32) as write:
            for key, tensor in tensors.items():
                for rows in tensor.slabs(file.content, row_order(key, config)):
                    write(key, torch.from_numpy(rows))
    except Refusal as error:
        raise Refusal(f"{path}: {error}") from None
    save_config(folder, config, torch.float32)
    return dict(Counter(tensor.format.name for tensor in file.tensors.values()))
