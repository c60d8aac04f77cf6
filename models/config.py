"""Read a checkpoint's config.json into the numbers that define the decoder's computation.

A setting that the decoder does not implement is refused by name, so that no model is computed slightly differently from
how it was published.
"""

from dataclasses import dataclass
from pathlib import Path

from models.json_file import number, read_object
from models.rope import Rope, parse_ropes

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
        from models.checkpoints.config_problems import check_values

        quant = check_values(raw, sizes, MOST, FAMILIES, FLAGS, ACTIVATIONS)
    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    head_dim = raw.get("head_dim", 128 if family == "qwen3" else None) or hidden // heads
    kv_heads = raw.get("num_key_value_heads", KEY_HEADS.get(family)) or heads
    if heads % kv_heads or head_dim % 2 or (family == "llama" and not raw.get("head_dim") and hidden % heads):
        from models.checkpoints.config_problems import refuse_heads

        refuse_heads(raw, head_dim, kv_heads)
    # Qwen2 and Mistral ignore attention_bias: Qwen2 has biases of q, k and v but not of o, Mistral has none
    attention_bias = attention_bias and family in ("qwen3", "llama")
    positions = raw.get("max_position_embeddings", POSITIONS[family])
    layer_types, window = ("full_attention",) * raw["num_hidden_layers"], None
    if family == "mistral" or (family != "llama" and raw.keys() & WINDOW_KEYS):  # llama ignores them
        from models.checkpoints.windows import read_windows

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
