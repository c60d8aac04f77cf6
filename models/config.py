"""What a checkpoint's config.json says, reduced to what the decoder computes.

A field that would change the computation and that the decoder lacks is refused by name: a model that is
silently a little different from the one that was published is the worst kind of wrong.
"""

import json
from dataclasses import dataclass
from pathlib import Path

FAMILIES = ("qwen2", "qwen3", "llama")
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True)
class ModelConfig:
    """The numbers that define the computation, under their Hugging Face names."""

    model_type: str  # qwen2 | qwen3 | llama
    vocab_size: int  # V, with the padding rows that the checkpoint has
    hidden_size: int  # D
    intermediate_size: int  # width of the MLP
    num_hidden_layers: int
    num_attention_heads: int  # H
    num_key_value_heads: int  # K; each serves H / K query heads
    head_dim: int  # E
    rms_norm_eps: float
    rope_theta: float
    hidden_act: str
    tie_word_embeddings: bool  # the output head is the embedding
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool  # RMSNorm over each head of q and k, before RoPE
    max_position_embeddings: int
    dtype: str  # dtype of the stored weights, "float32" | "bfloat16" | "float16"


def read_config(folder: Path) -> ModelConfig:
    """Reads `folder/config.json`. Raises FileNotFoundError or ValueError with one line that names the field."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no config.json there, so this is not a model folder")
    try:
        raw = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{path}: not a JSON object")
    try:
        return parse_config(raw)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def parse_config(raw: dict) -> ModelConfig:
    """Reduces the dictionary of a config.json; defaults for absent keys are those of each family in transformers."""
    # null means absent, but for num_key_value_heads, where it means as many as query heads
    raw = {key: value for key, value in raw.items() if value is not None or key == "num_key_value_heads"}
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}")
    required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    optional = ("num_key_value_heads", "head_dim", "max_position_embeddings")
    for key in (*required, *(key for key in optional if raw.get(key) is not None)):
        if type(raw.get(key)) is not int or raw[key] <= 0:
            raise ValueError(f"{key} must be a positive integer, not {raw.get(key)!r}")
    for key in ("tie_word_embeddings", "attention_bias", "mlp_bias"):
        if not isinstance(raw.get(key, False), bool):
            raise ValueError(f"{key} must be true or false, not {raw[key]!r}")
    _refuse_unsupported(raw, family)

    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    if family == "llama" and not raw.get("head_dim") and hidden % heads:
        raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    head_dim = raw.get("head_dim") or (128 if family == "qwen3" else hidden // heads)
    kv_default = 32 if family.startswith("qwen") and "num_key_value_heads" not in raw else heads
    kv_heads = raw.get("num_key_value_heads") or kv_default
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise ValueError(f"head_dim {head_dim} is odd; rotary embedding needs pairs")

    attention_bias = bool(raw.get("attention_bias", False))
    return ModelConfig(
        model_type=family,
        vocab_size=raw["vocab_size"],
        hidden_size=hidden,
        intermediate_size=raw["intermediate_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=_positive("rms_norm_eps", raw.get("rms_norm_eps", 1e-6)),
        rope_theta=_positive("rope_theta", _rope(raw).get("rope_theta", raw.get("rope_theta", 10000.0))),
        hidden_act=raw.get("hidden_act", "silu"),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        qkv_bias=True if family == "qwen2" else attention_bias,  # Qwen2 ignores attention_bias: always q, k, v, never o
        o_bias=False if family == "qwen2" else attention_bias,
        mlp_bias=family == "llama" and bool(raw.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        max_position_embeddings=raw.get("max_position_embeddings", 32768),
        dtype=str(raw.get("dtype", raw.get("torch_dtype", "float32"))),
    )


def _positive(key: str, value) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{key} must be a positive number, not {value!r}")
    return float(value)


def _rope(raw: dict) -> dict:
    """The rotary parameters: `rope_scaling` (transformers 4) wins over `rope_parameters` (transformers 5)."""
    rope = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"rope_parameters must be an object, not {rope!r}")
    return rope


def _refuse_unsupported(raw: dict, family: str) -> None:
    rope = _rope(raw)
    kind = rope.get("rope_type", rope.get("type", "default"))
    if any(isinstance(value, dict) for value in rope.values()):
        raise ValueError("rope_parameters nested by layer type is not supported")
    if kind != "default":
        raise ValueError(f"rope type {kind!r} is not supported; supported: default")
    if raw.get("partial_rotary_factor", 1) != 1 or rope.get("partial_rotary_factor", 1) != 1:
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    if raw.get("hidden_act", "silu") not in ACTIVATIONS:
        raise ValueError(f"hidden_act {raw['hidden_act']!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    sliding = family != "llama" and raw.get("use_sliding_window") and raw.get("sliding_window")
    kinds = raw.get("layer_types")
    if kinds is None:  # layers from max_window_layers on slide
        slides = sliding and raw.get("max_window_layers", 28) < raw["num_hidden_layers"]
        kinds = ["sliding_attention"] if slides else []
    if not isinstance(kinds, list):
        raise ValueError(f"layer_types must be a list, not {kinds!r}")
    if "sliding_attention" in kinds:
        raise ValueError("sliding-window attention is not supported; set use_sliding_window to false")
    for kind in kinds:
        if kind != "full_attention":
            raise ValueError(f"layer_types names {kind!r}, which is not supported; supported: full_attention")
    if raw.get("quantization_config"):
        raise ValueError("quantization_config is not supported: give a checkpoint in float32, bfloat16 or float16")
