"""Make a checkpoint in Hugging Face layout of a GGUF file: config.json, weights in float32, the tokenizer.

Names of keys and tensors are those of llama.cpp's gguf-py/gguf/constants.py and tensor_mapping.py. A key that may
change what the model computes, and is not understood, is refused by name.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.checkpoints import gguf_tokenizer
from models.checkpoints.gguf import File, Tensor, read, shown
from models.config import parse_config
from models.decoder import CausalLM
from models.export import save_config, writer
from models.refusal import Refusal
from models.rope import Rope, Stretch, frequencies

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


def config_of(file: File) -> dict:
    """Return a config.json. Raise ValueError for a key of the architecture, or a general one, that is not supported."""
    metadata, arch = file.metadata, file.metadata.get("general.architecture")
    if metadata.get("split.count", 1) not in (0, 1):  # first: later parts have no architecture
        raise Refusal(f"split.count {shown(metadata['split.count'])}: join the parts with llama-gguf-split first")
    if not isinstance(arch, str) or arch not in ARCHITECTURES:
        raise Refusal(f"architecture {shown(arch)} is not supported; supported: {', '.join(ARCHITECTURES)}")
    if metadata.get("general.type", "model") != "model":
        raise Refusal(f"general.type {shown(metadata['general.type'])} is not a model")
    for name, value in metadata.items():
        key = name.removeprefix(f"{arch}.")
        if key == name or key in READ or key in SIZES.values() or key in HARMLESS:
            continue
        if key not in ONLY or value != ONLY[key]:
            only = f"; supported: {ONLY[key]}" if key in ONLY else ""
            raise Refusal(f"{name} = {shown(value)} is not supported, and may change what the model computes{only}")
    config: dict[str, Any] = {"architectures": [ARCHITECTURES[arch]], "model_type": arch, "hidden_act": "silu"}
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
    factor = file.own("rope.scaling.factor", float, 0.0)  # 0 and 1 scale nothing
    kind = file.own("rope.scaling.type", str, "none" if factor in (0, 1) else "linear")  # llama.cpp's defaults
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


def check_header(path: Path) -> None:
    """Raise ValueError, one line that names the file and the field, if its header is damaged or not supported."""
    try:
        config_of(read(path))
    except Refusal as error:
        raise Refusal(f"{path}: {error}") from None


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
