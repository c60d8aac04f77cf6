"""What a checkpoint's config.json says, reduced to what the decoder computes.

A field that would change the computation and that the decoder lacks is refused by name: a model that is
silently a little different from the one that was published is the worst kind of wrong.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from models.rope import LAYER_TYPES, Rope, nested, number, parse_ropes

FAMILIES = ("qwen2", "qwen3", "llama", "mistral")
KEY_HEADS = {"qwen2": 32, "qwen3": 32, "mistral": 8}  # where the key is absent; Llama has as many as query heads
POSITIONS = {"qwen2": 32768, "qwen3": 32768, "llama": 2048, "mistral": 131072}
WINDOW = 4096
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "relu")


@dataclass(frozen=True)
class ModelConfig:
    """The numbers that define the computation, under their Hugging Face names."""

    model_type: str  # qwen2 | qwen3 | llama | mistral
    vocab_size: int  # V, with the padding rows that the checkpoint has
    hidden_size: int  # D
    intermediate_size: int  # width of the MLP
    num_hidden_layers: int
    num_attention_heads: int  # H
    num_key_value_heads: int  # K; each serves H / K query heads
    head_dim: int  # E
    rms_norm_eps: float
    ropes: tuple[Rope, ...]  # of each layer
    windows: tuple[int | None, ...]  # of each layer: how many keys a query sees, its own the last; None is all
    hidden_act: str
    tie_word_embeddings: bool  # the output head is the embedding
    qkv_bias: bool
    o_bias: bool
    mlp_bias: bool
    qk_norm: bool  # RMSNorm over each head of q and k, before RoPE
    max_position_embeddings: int
    dtype: str  # dtype of the stored weights, "float32" | "bfloat16" | "float16"

    @property
    def dynamic_rope(self) -> bool:
        """Whether angles beyond max_position_embeddings would depend on the longest sequence of a batch: forwards stop
        there, and training should refuse the model."""
        return any(rope.kind == "dynamic" for rope in self.ropes)


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
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from None


def parse_config(raw: dict) -> ModelConfig:
    """Reduces the dictionary of a config.json; defaults for absent keys are those of each family in transformers."""
    # null means absent, but for two: as many key heads as query heads, and no window
    raw = {key: v for key, v in raw.items() if v is not None or key in ("num_key_value_heads", "sliding_window")}
    family = raw.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}")
    required = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    optional = ("num_key_value_heads", "head_dim", "max_position_embeddings")
    for key in (*required, *(key for key in optional if raw.get(key) is not None)):
        if type(raw.get(key)) is not int or raw[key] <= 0:
            raise ValueError(f"{key} must be a positive integer, not {raw.get(key)!r}")
    tied, attention_bias, mlp_bias = (_flag(raw, key) for key in ("tie_word_embeddings", "attention_bias", "mlp_bias"))
    _refuse_unsupported(raw, family)

    hidden, heads = raw["hidden_size"], raw["num_attention_heads"]
    if family == "llama" and not raw.get("head_dim") and hidden % heads:
        raise ValueError(f"hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    head_dim = raw.get("head_dim") or (128 if family == "qwen3" else hidden // heads)
    kv_heads = raw.get("num_key_value_heads", KEY_HEADS.get(family)) or heads
    if heads % kv_heads:
        raise ValueError(f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    if head_dim % 2:
        raise ValueError(f"head_dim {head_dim} is odd; rotary embedding needs pairs")

    # Qwen2 and Mistral ignore attention_bias: the one has biases of q, k and v and none of o, the other none at all
    attention_bias = attention_bias and family in ("qwen3", "llama")
    positions = raw.get("max_position_embeddings", POSITIONS[family])
    layer_types, window = _layer_types(raw, family)
    return ModelConfig(
        model_type=family,
        vocab_size=raw["vocab_size"],
        hidden_size=hidden,
        intermediate_size=raw["intermediate_size"],
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        rms_norm_eps=number("rms_norm_eps", raw.get("rms_norm_eps", 1e-6)),
        ropes=parse_ropes(raw, layer_types, positions),
        windows=tuple(window if kind == "sliding_attention" else None for kind in layer_types),
        hidden_act=raw.get("hidden_act", "silu"),
        tie_word_embeddings=tied,
        qkv_bias=family == "qwen2" or attention_bias,
        o_bias=attention_bias,
        mlp_bias=family == "llama" and mlp_bias,
        qk_norm=family == "qwen3",
        max_position_embeddings=positions,
        dtype=str(raw.get("dtype", raw.get("torch_dtype", "float32"))),
    )


def _layer_types(raw: dict, family: str) -> tuple[tuple[str, ...], int | None]:
    """What each layer attends with, and the window of those that slide.

    Llama has no windows and Mistral one for all layers, whatever layer_types says. Of Qwen those layers slide that
    layer_types names, or else those from max_window_layers on, if use_sliding_window is true.
    """
    count, window = raw["num_hidden_layers"], raw.get("sliding_window", WINDOW)
    if family == "llama":
        return ("full_attention",) * count, None
    if family != "mistral" and not _flag(raw, "use_sliding_window"):
        window = None
    if window is not None and (type(window) is not int or window <= 0):
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
            "layer_types asks for sliding-window attention, but use_sliding_window is not true, or sliding_window null"
        )
    return tuple(kinds), window


def _flag(raw: dict, key: str) -> bool:
    if not isinstance(raw.get(key, False), bool):
        raise ValueError(f"{key} must be true or false, not {raw[key]!r}")
    return raw.get(key, False)


def _refuse_unsupported(raw: dict, family: str) -> None:
    if family == "mistral" and raw.get("num_key_value_heads", 8) is None:
        raise ValueError(
            "num_key_value_heads is null, which is not supported for mistral: give the number of key heads"
        )
    if family in ("llama", "mistral") and nested(raw):
        raise ValueError(
            f"rope_parameters nested by layer type is not supported for {family}, which has no layer_types"
        )
    if raw.get("hidden_act", "silu") not in ACTIVATIONS:
        raise ValueError(f"hidden_act {raw['hidden_act']!r} is not supported; supported: {', '.join(ACTIVATIONS)}")
    if raw.get("quantization_config"):
        raise ValueError("quantization_config is not supported: give a checkpoint in float32, bfloat16 or float16")
