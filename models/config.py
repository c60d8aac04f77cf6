"""Read a checkpoint's config.json into the numbers that define the decoder's computation.

A setting that the decoder does not implement is refused by name, so that no model is computed slightly differently from
how it was published.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from models.json_file import number, read_object
from models.rope import LAYER_TYPES, Rope, parse_ropes

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OPTIONAL_SIZES = ("num_key_value_heads", "head_dim", "max_position_embeddings")
MOST = dict.fromkeys(SIZES + OPTIONAL_SIZES, 2**20) | {"num_hidden_layers": 512, "max_position_embeddings": 2**31}
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias")
FAMILIES = ("qwen2", "qwen3", "llama", "mistral")
KEY_HEADS = {"qwen2": 32, "qwen3": 32, "mistral": 8}  # default of num_key_value_heads; Llama's is the query heads
POSITIONS = {"qwen2": 32768, "qwen3": 32768, "llama": 2048, "mistral": 131072}
WINDOW_KEYS = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}
ACTIVATIONS = ("silu", "swish", "gelu", "gelu_pytorch_tanh", "relu")  # swish is silu


@dataclass(frozen=True)
class ModelConfig:
    """The numbers that define the computation, under their Hugging Face names."""

    model_type: str  # qwen2 | qwen3 | llama | mistral
    vocab_size: int  # V, including the checkpoint's padding rows
    hidden_size: int  # D
    intermediate_size: int  # width of the MLP
    num_hidden_layers: int
    num_attention_heads: int  # H
    num_key_value_heads: int  # K; each is shared by H / K query heads
    head_dim: int  # E
    rms_norm_eps: float
    ropes: tuple[Rope, ...]  # one per layer
    windows: tuple[int | None, ...]  # one per layer: the last keys that a query sees, its own included; None: all
    hidden_act: str
    tie_word_embeddings: bool  # the output head shares the embedding's weight
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool  # RMSNorm over each head of q and k, before the rotary embedding
    max_position_embeddings: int
    dtype: str  # dtype of the stored weights, "float32" | "bfloat16" | "float16"
    quant: str  # the blocks' linear layers, as stored or as loaded: "none" | "nf4" | "nf4-double" | "int8"


def read_config(folder: Path) -> ModelConfig:
    """Read `folder/config.json`. Raise FileNotFoundError or ValueError with one line that names the field."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: not found, so this is not a model folder")
    raw = read_object(path)
    try:
        return parse_config(raw)
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None


def parse_config(raw: dict) -> ModelConfig:
    """Return the ModelConfig of a config.json's dictionary. Absent keys get their family's default in transformers."""
    # null means absent, except here: as many key heads as query heads, heads that share hidden_size, no window
    nullable = ("num_key_value_heads", "head_dim", "sliding_window")
    raw = {key: v for key, v in raw.items() if v is not None or key in nullable}
    family, activation = raw.get("model_type"), raw.get("hidden_act", "silu")
    sizes = {key: raw.get(key) for key in MOST if key in SIZES or raw.get(key) is not None}
    tied, attention_bias, mlp_bias = flags = [raw.get(key, False) for key in FLAGS]
    sound, quant = [type(size) is int and 0 < size <= MOST[key] for key, size in sizes.items()], "none"
    sound += [type(flag) is bool for flag in flags] + [family in FAMILIES, activation in ACTIVATIONS]
    if not all(sound) or raw.get("quantization_config"):
        quant = check_values(raw, sizes, MOST, FAMILIES, FLAGS, ACTIVATIONS)
    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    head_dim = raw.get("head_dim", 128 if family == "qwen3" else None) or hidden // heads
    kv_heads = raw.get("num_key_value_heads", KEY_HEADS.get(family)) or heads
    if heads % kv_heads or head_dim % 2 or (family == "llama" and not raw.get("head_dim") and hidden % heads):
        refuse_heads(raw, head_dim, kv_heads)
    # Qwen2 and Mistral ignore attention_bias: Qwen2 has biases of q, k and v but not of o, Mistral has none
    attention_bias = attention_bias and family in ("qwen3", "llama")
    positions = raw.get("max_position_embeddings", POSITIONS[family])
    layer_types, window = ("full_attention",) * raw["num_hidden_layers"], None
    if family == "mistral" or (family != "llama" and raw.keys() & WINDOW_KEYS):  # llama ignores them
        layer_types, window = read_windows(raw, family)
    return ModelConfig(
        model_type=family,
        **{key: raw[key] for key in SIZES},
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=number("rms_norm_eps", raw.get("rms_norm_eps", 1e-6)),
        ropes=parse_ropes(raw, layer_types, positions, family),
        windows=tuple(window if kind == "sliding_attention" else None for kind in layer_types),
        hidden_act="silu" if activation == "swish" else activation,
        tie_word_embeddings=tied,
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=family == "llama" and mlp_bias,
        qk_norm=family == "qwen3",
        max_position_embeddings=positions,
        dtype=str(raw.get("dtype", raw.get("torch_dtype", "float32"))),
        quant=quant,
    )


WINDOW = 4096  # default of sliding_window


def read_windows(raw: dict, family: str) -> tuple[tuple[str, ...], int | None]:
    """Return (the type of each layer, the window of sliding layers). Raise ValueError that names the setting.

    Mistral has one window for all layers, whatever layer_types says. In Qwen, if use_sliding_window is true, the layers
    that layer_types names slide, or if it is absent the layers from max_window_layers on.
    """
    count, window = raw["num_hidden_layers"], raw.get("sliding_window", WINDOW)
    if family == "mistral" and raw.get("num_key_value_heads", 8) is None:
        raise ValueError(
            "num_key_value_heads is null, which is not supported for mistral: give the number of key heads"
        )
    if family != "mistral":
        check_flag(raw, "use_sliding_window")
        window = window if raw.get("use_sliding_window") else None
    if window is not None and (type(window) is not int or not 0 < window <= 2**31):
        raise ValueError(f"sliding_window must be a positive integer or null, not {window!r}")
    if family == "mistral":
        return ("full_attention" if window is None else "sliding_attention",) * count, window
    first = raw.get("max_window_layers", 28)
    if type(first) is not int or first < 0:
        raise ValueError(f"max_window_layers must be a whole number, not {first!r}")
    slides = [window is not None and i >= first for i in range(count)]
    kinds = raw.get("layer_types", [LAYER_TYPES[s] for s in slides])
    if not isinstance(kinds, list):
        raise ValueError(f"layer_types must be a list, not {kinds!r}")
    for kind in kinds:
        if kind not in LAYER_TYPES:
            raise ValueError(f"layer_types names {kind!r}, which is not supported; supported: {', '.join(LAYER_TYPES)}")
    if len(kinds) != count:
        raise ValueError(f"layer_types has {len(kinds)} entries for num_hidden_layers {count}")
    if window is None and "sliding_attention" in kinds:
        raise ValueError(
            "layer_types names sliding-window attention, but use_sliding_window is not true or sliding_window is null"
        )
    return tuple(kinds), window


def check_values(raw: dict, sizes: dict, most: dict[str, int], families, flags, activations) -> str:
    """Return how the blocks' linear layers are stored, "none" for plain floats. Raise ValueError for the first value
    that is wrong by itself; the other arguments are models/config.py's."""
    if raw.get("model_type") not in families:
        raise ValueError(f"model_type {raw.get('model_type')!r} is not supported; supported: {', '.join(families)}")
    for key, size in sizes.items():
        if type(size) is not int or size <= 0:
            raise ValueError(f"{key} must be a positive integer, not {size!r}")
        if size > most[key]:
            raise ValueError(f"{key} {size} is more than {most[key]:,}, the most that is supported")
    for key in flags:
        check_flag(raw, key)
    if raw.get("hidden_act", "silu") not in activations:
        raise ValueError(f"hidden_act {raw['hidden_act']!r} is not supported; supported: {', '.join(activations)}")
    return stored_kind(raw["quantization_config"])


def stored_kind(settings) -> str:
    """Return the kind that a quantization_config names. Raise ValueError if this code cannot read such checkpoints."""
    method = settings.get("quant_method", "bitsandbytes") if isinstance(settings, dict) else settings
    if method != "bitsandbytes":
        raise ValueError(f"quantization_config: quant_method {method!r} is not supported; supported: 'bitsandbytes'")
    if settings.get("load_in_8bit"):
        return "int8"
    given = {"bnb_4bit_quant_storage": "uint8", **settings}
    for key, only in (("load_in_4bit", True), ("bnb_4bit_quant_type", "nf4"), ("bnb_4bit_quant_storage", "uint8")):
        if given.get(key) != only:
            raise ValueError(f"quantization_config: {key} {given.get(key)!r} is not supported; supported: {only!r}")
    return "nf4-double" if settings.get("bnb_4bit_use_double_quant") else "nf4"


def refuse_heads(raw: dict, head_dim: int, kv_heads: int) -> NoReturn:
    """Raise ValueError for sizes that do not divide, or an odd head size."""
    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    if raw["model_type"] == "llama" and not raw.get("head_dim") and hidden % heads:
        raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    raise ValueError(f"head_dim {head_dim} is odd; rotary embedding needs pairs")


def check_flag(raw: dict, key: str) -> None:
    """Raise ValueError for a key that is neither absent nor a boolean."""
    if not isinstance(raw.get(key, False), bool):
        raise ValueError(f"{key} must be true or false, not {raw[key]!r}")
