"""Sliding-window attention in a config.json. Imported only for a checkpoint that mentions it (models/config.py)."""

from models.checkpoints.config_problems import check_flag
from models.checkpoints.rope_settings import LAYER_TYPES

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
