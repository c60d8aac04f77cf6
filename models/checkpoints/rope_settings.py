"""The rotary settings of a config.json in both layouts. Imported only for settings other than the default.

The layouts are `rope_theta` beside `rope_scaling` (transformers 4), and `rope_parameters` (transformers 5), which may
be nested by layer type. Both are read, with the precedence of transformers 5.
"""

from models.checkpoints.rope_scaling import read_scaling
from models.json_file import number

LAYER_TYPES = ("full_attention", "sliding_attention")
KINDS = ("default", "linear", "dynamic", "yarn", "llama3")
THETA = 10000.0


def layer_settings(raw: dict, layer_types: tuple[str, ...], max_length: int, family: str) -> list[dict]:
    """Return the fields of models.rope.Rope for each layer. Raise ValueError with one line that names the setting."""
    if raw.get("partial_rotary_factor") not in (None, 1):
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    settings = rope_settings(raw)
    if not nested(settings):
        return [_read(settings, max_length, "rotary settings")] * len(layer_types)
    if family in ("llama", "mistral"):
        raise ValueError(
            f"rope_parameters nested by layer type is not supported for {family}, which has no layer_types"
        )
    if missing := sorted(set(layer_types) - set(settings)):
        raise ValueError(f"rope_parameters is nested by layer type but has no entry for {missing[0]}")
    each = {kind: _read(settings[kind], max_length, f"rotary settings of {kind}") for kind in set(layer_types)}
    return [each[kind] for kind in layer_types]


def rope_settings(raw: dict) -> dict:
    """Return the rotary settings in effect, in the layout of `rope_parameters`.

    Precedence: `rope_scaling` over `rope_parameters`, a rope_theta inside over one beside, rope_type over type, an
    original_max_position_embeddings beside over one inside.
    """
    name = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    found = raw.get(name) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be an object, not {found!r}")
    theta = THETA if raw.get("rope_theta") is None else raw["rope_theta"]
    if not nested(found):
        settings, original = _standard(found, theta), raw.get("original_max_position_embeddings")
        if original is not None and settings["rope_type"] in ("yarn", "llama3"):
            settings["original_max_position_embeddings"] = original
        return settings
    for key, value in found.items():
        if not isinstance(value, dict):
            raise ValueError(f"{name} is nested by layer type, so {key} must be an object, not {value!r}")
    return {kind: _standard(value, theta) for kind, value in found.items()}


def nested(settings: dict) -> bool:
    """Return whether rotary settings are nested by layer type."""
    return any(key in LAYER_TYPES or isinstance(value, dict) for key, value in settings.items())


def _standard(found: dict, theta: float) -> dict:
    settings = {"rope_type": found.get("type", "default"), "rope_theta": theta, **found}
    settings.pop("type", None)
    return settings


def _read(settings: dict, max_length: int, where: str) -> dict:
    kind = settings["rope_type"]
    if kind not in KINDS:
        raise ValueError(f"rope type {kind!r} is not supported; supported: {', '.join(KINDS)}")
    if settings.get("partial_rotary_factor") not in (None, 1):
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    try:
        fields = {"kind": kind, "theta": number("rope_theta", settings["rope_theta"])}
        return fields if kind == "default" else fields | read_scaling(kind, settings, max_length)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
