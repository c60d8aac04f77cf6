"""Say what is wrong with the values of a config.json. Imported only when something is (models/config.py)."""

from typing import NoReturn


def refuse_values(raw: dict, families, sizes, optional_sizes, flags, activations) -> NoReturn:
    """Raise ValueError for the first value that is wrong by itself; the other arguments are models/config.py's."""
    if raw.get("model_type") not in families:
        raise ValueError(f"model_type {raw.get('model_type')!r} is not supported; supported: {', '.join(families)}")
    for key in (*sizes, *(key for key in optional_sizes if raw.get(key) is not None)):
        if type(raw.get(key)) is not int or raw[key] <= 0:
            raise ValueError(f"{key} must be a positive integer, not {raw.get(key)!r}")
    for key in flags:
        check_flag(raw, key)
    if raw.get("hidden_act", "silu") not in activations:
        raise ValueError(f"hidden_act {raw['hidden_act']!r} is not supported; supported: {', '.join(activations)}")
    raise ValueError("quantization_config is not supported: give a checkpoint in float32, bfloat16 or float16")


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
