"""Say what is wrong with the values of a config.json, and how a quantised checkpoint is stored. Imported only when
something is wrong or quantised (models/config.py)."""

from typing import NoReturn


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
