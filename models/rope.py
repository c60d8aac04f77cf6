"""Rotary position embeddings (Su et al. 2021): the frequencies, and the rotary settings of a config.json.

A config.json has one of two layouts: `rope_theta` beside `rope_scaling` (transformers 4), or `rope_parameters`
(transformers 5), which may be nested by layer type. Both are read, with the precedence of transformers 5. The published
ways to stretch the frequencies for longer sequences are in models/rope_scaling.py.
"""

from dataclasses import dataclass

import torch

from models.json_file import number

LAYER_TYPES = ("full_attention", "sliding_attention")
KINDS = ("default", "linear", "dynamic", "yarn", "llama3")
THETA = 10000.0


@dataclass(frozen=True)
class Rope:
    """The numbers that define a layer's angles. Fields that its kind does not use keep their defaults."""

    kind: str = "default"  # one of KINDS
    theta: float = THETA
    factor: float = 1.0  # linear, dynamic, yarn, llama3: how many times longer sequences became
    max_length: int | None = None  # dynamic: up to this length the angles do not depend on the length
    original_length: int = 0  # yarn, llama3: the longest sequence before stretching
    beta_fast: float = 32.0  # yarn: pairs that rotate more often than this in original_length keep their frequency;
    beta_slow: float = 1.0  # pairs that rotate less often have it divided by factor; pairs in between are blended
    truncate: bool = True  # yarn: round the ends of that range outwards to whole pairs
    low_freq_factor: float = 1.0  # llama3: like beta_slow
    high_freq_factor: float = 4.0  # llama3: like beta_fast
    scaling: float = 1.0  # yarn: multiplies cos and sin, so attention scores grow by its square


def frequencies(rope: Rope, head_dim: int, device=None) -> tuple[torch.Tensor, float]:
    """Return (radians per position of each pair, float32 [head_dim / 2]; the factor of cos and sin).

    `dynamic` equals the default up to max_length; longer sequences are refused elsewhere.
    """
    if rope.kind not in ("default", "dynamic"):
        from models.rope_scaling import stretched

        return stretched(rope, head_dim, device), rope.scaling
    pairs = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    return 1.0 / rope.theta**pairs, rope.scaling


def parse_ropes(raw: dict, layer_types: tuple[str, ...], max_length: int) -> tuple[Rope, ...]:
    """Return the Rope of each layer. Raise ValueError with one line that names the setting."""
    if raw.get("partial_rotary_factor") not in (None, 1):
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    settings = rope_settings(raw)
    if not nested(settings):
        return (_parse(settings, max_length, "rotary settings"),) * len(layer_types)
    if missing := sorted(set(layer_types) - set(settings)):
        raise ValueError(f"rope_parameters is nested by layer type but has no entry for {missing[0]}")
    each = {kind: _parse(settings[kind], max_length, f"rotary settings of {kind}") for kind in set(layer_types)}
    return tuple(each[kind] for kind in layer_types)


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


def _parse(settings: dict, max_length: int, where: str) -> Rope:
    kind = settings["rope_type"]
    if kind not in KINDS:
        raise ValueError(f"rope type {kind!r} is not supported; supported: {', '.join(KINDS)}")
    if settings.get("partial_rotary_factor") not in (None, 1):
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    try:
        theta, scaling = number("rope_theta", settings["rope_theta"]), {}
        if kind != "default":
            from models.rope_scaling import read_scaling

            scaling = read_scaling(kind, settings, max_length)
        return Rope(kind, theta, **scaling)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
