"""Rotary positions (Su et al. 2021): the frequencies, the published ways to stretch them, how config.json says it.

A config.json has one of two layouts: `rope_theta` beside `rope_scaling` (transformers 4), or `rope_parameters`
(transformers 5), which may be nested by layer type. Both are read, with the precedence of transformers 5.
"""

import math
import sys
from dataclasses import dataclass

import torch

LAYER_TYPES = ("full_attention", "sliding_attention")
THETA = 10000.0


@dataclass(frozen=True)
class Rope:
    """The numbers that define the angles of a layer; those that its kind does not use stay at their defaults."""

    kind: str = "default"  # default | linear | dynamic | yarn | llama3
    theta: float = THETA
    factor: float = 1.0  # linear, dynamic, yarn, llama3: how many times longer sequences became
    max_length: int | None = None  # dynamic: the longest sequence whose angles do not depend on its length
    original_length: int = 0  # yarn, llama3: the longest sequence before that
    beta_fast: float = 32.0  # yarn: pairs that turn more often than this in original_length keep their speed,
    beta_slow: float = 1.0  # those that turn less often than this are slowed down by factor, the others in between
    truncate: bool = True  # yarn: these bounds are moved out to whole pairs
    low_freq_factor: float = 1.0  # llama3: as beta_slow
    high_freq_factor: float = 4.0  # llama3: as beta_fast
    scaling: float = 1.0  # yarn: of cos and of sin, so that a score grows by its square


def frequencies(rope: Rope, head_dim: int, device=None) -> tuple[torch.Tensor, float]:
    """(radians a position of each pair, float32 [head_dim / 2]; the factor of cos and sin).

    linear: Chen et al. 2023, section 2.3; yarn: Peng et al. 2023, equations 17 to 22; llama3: the code of Llama 3.1.
    dynamic is the default up to max_length, and beyond it is not computed.
    """
    pairs = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    plain = 1.0 / rope.theta**pairs
    if rope.kind == "linear":
        return plain / rope.factor, rope.scaling
    if rope.kind == "yarn":
        slowed = 1.0 / (rope.factor * rope.theta**pairs)
        keep = 1 - _yarn_ramp(rope, head_dim, device)
        return slowed * (1 - keep) + plain * keep, rope.scaling
    if rope.kind == "llama3":
        turns = rope.original_length / (2 * math.pi / plain)
        keep = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
        return (1 - keep) * plain / rope.factor + keep * plain, rope.scaling
    return plain, rope.scaling


def _yarn_ramp(rope: Rope, head_dim: int, device) -> torch.Tensor:
    """0 for the pairs that keep their speed, 1 for those that are slowed down."""
    low, high = (
        head_dim * math.log(rope.original_length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
        for turns in (rope.beta_fast, rope.beta_slow)
    )
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(head_dim // 2, device=device).float() - low) / (high - low)).clamp(0, 1)


def parse_ropes(raw: dict, layer_types: tuple[str, ...], max_length: int) -> tuple[Rope, ...]:
    """The Rope of each layer. Raises ValueError with one line that names the setting."""
    if raw.get("partial_rotary_factor") not in (None, 1):
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    settings = _settings(raw)
    if not _nested(settings):
        return (_parse(settings, max_length, "rotary settings"),) * len(layer_types)
    if missing := sorted(set(layer_types) - set(settings)):
        raise ValueError(f"rope_parameters is nested by layer type and says nothing of {missing[0]}")
    each = {kind: _parse(settings[kind], max_length, f"rotary settings of {kind}") for kind in set(layer_types)}
    return tuple(each[kind] for kind in layer_types)


def both_layouts(raw_config: dict) -> dict:
    """The config.json with its rotary settings in both layouts, so that old and new readers compute the same.

    Nested ones stay in rope_parameters alone: the old layout cannot say them.
    """
    rest = {k: v for k, v in raw_config.items() if k not in ("rope_theta", "rope_scaling", "rope_parameters")}
    settings = _settings(raw_config)
    if _nested(settings):
        return {**rest, "rope_parameters": settings}
    old = {"rope_theta": settings["rope_theta"]}
    if settings["rope_type"] != "default":
        scaling = {key: value for key, value in settings.items() if key != "rope_theta"}
        old["rope_scaling"] = {**scaling, "type": settings["rope_type"]}
    return {**rest, **old, "rope_parameters": settings}


def nested(raw: dict) -> bool:
    """Whether the rotary settings of a config.json are nested by layer type."""
    return _nested(_settings(raw))


def _nested(settings: dict) -> bool:
    return any(key in LAYER_TYPES or isinstance(value, dict) for key, value in settings.items())


def _settings(raw: dict) -> dict:
    """What counts of a config.json's rotary settings, in the layout of `rope_parameters`.

    `rope_scaling` wins over `rope_parameters`, a rope_theta in it over one beside it, rope_type over type; an
    original_max_position_embeddings beside it over one in it.
    """
    name = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    found = raw.get(name) or {}
    if not isinstance(found, dict):
        raise ValueError(f"{name} must be an object, not {found!r}")
    if not _nested(found):
        settings = _standard(raw, found)
        original = raw.get("original_max_position_embeddings")
        if original is not None and settings["rope_type"] in ("yarn", "llama3"):
            settings["original_max_position_embeddings"] = original
        return settings
    for key, value in found.items():
        if not isinstance(value, dict):
            raise ValueError(f"{name} is nested by layer type, so {key} must be an object, not {value!r}")
    return {kind: _standard(raw, value) for kind, value in found.items()}


def _standard(raw: dict, found: dict) -> dict:
    theta = THETA if raw.get("rope_theta") is None else raw["rope_theta"]
    settings = {"rope_type": found.get("type", "default"), "rope_theta": theta, **found}
    settings.pop("type", None)
    return settings


def _parse(settings: dict, max_length: int, where: str) -> Rope:
    kind = settings["rope_type"]
    if kind not in list(_OF_KIND):
        raise ValueError(f"rope type {kind!r} is not supported; supported: {', '.join(_OF_KIND)}")
    if settings.get("partial_rotary_factor") not in (None, 1):
        raise ValueError("partial_rotary_factor other than 1 is not supported")
    try:
        theta = number("rope_theta", settings["rope_theta"])
        return Rope(kind, theta, **_OF_KIND[kind](settings, max_length))
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _factor(settings: dict, kind: str) -> float:
    if "factor" not in settings:
        raise ValueError(f"factor is missing, which {kind} needs")
    return number("factor", settings["factor"], least=1.0)


def _original_length(settings: dict, max_length: int) -> int:
    length = settings.get("original_max_position_embeddings", max_length)
    if type(length) is not int or length <= 0:
        raise ValueError(f"original_max_position_embeddings must be a positive integer, not {length!r}")
    return length


def _default(settings: dict, max_length: int) -> dict:
    return {}


def _dynamic(settings: dict, max_length: int) -> dict:
    return {"factor": _factor(settings, "dynamic"), "max_length": max_length}


def _linear(settings: dict, max_length: int) -> dict:
    return {"factor": _factor(settings, "linear")}


def _llama3(settings: dict, max_length: int) -> dict:
    low, high = (number(key, settings.get(key)) for key in ("low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise ValueError(f"high_freq_factor {high} must be greater than low_freq_factor {low}")
    return {
        "factor": _factor(settings, "llama3"),
        "original_length": _original_length(settings, max_length),
        "low_freq_factor": low,
        "high_freq_factor": high,
    }


def _yarn(settings: dict, max_length: int) -> dict:
    original, truncate = _original_length(settings, max_length), settings.get("truncate", True)
    if settings["rope_theta"] <= 1:
        raise ValueError(f"rope_theta must be greater than 1 for yarn, not {settings['rope_theta']!r}")
    if not isinstance(truncate, bool):
        raise ValueError(f"truncate must be true or false, not {truncate!r}")
    optional = {key: settings[key] for key in ("beta_fast", "beta_slow") if settings.get(key) is not None}
    betas = {"beta_fast": 32.0, "beta_slow": 1.0, **{key: number(key, value) for key, value in optional.items()}}
    if betas["beta_fast"] < betas["beta_slow"]:
        raise ValueError("beta_fast {beta_fast} must not be less than beta_slow {beta_slow}".format(**betas))
    null = "factor" in settings and settings["factor"] is None
    factor = max_length / original if null else _factor(settings, "yarn")
    scaling = _yarn_scaling(settings, factor)
    return {"factor": factor, "original_length": original, "truncate": truncate, "scaling": scaling, **betas}


def _yarn_scaling(settings: dict, factor: float) -> float:
    """attention_factor, or else what it follows from: 0.1 ln(factor) + 1, or a ratio of two such numbers."""
    if settings.get("attention_factor") is not None:
        return number("attention_factor", settings["attention_factor"])
    mscale, all_dim = (
        0.0 if settings.get(key) in (None, 0) else number(key, settings[key]) for key in ("mscale", "mscale_all_dim")
    )
    grown = lambda scale: 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0  # noqa: E731
    return grown(mscale) / grown(all_dim) if mscale and all_dim else grown(1.0)


_OF_KIND = {"default": _default, "linear": _linear, "dynamic": _dynamic, "yarn": _yarn, "llama3": _llama3}


def number(key: str, value, least: float | None = None) -> float:
    """The value as a float if it is a positive (or not less than `least`) finite number, or else ValueError."""
    bound = sys.float_info.max
    good = not isinstance(value, bool) and isinstance(value, int | float) and 0 < value <= bound
    if not good or (least is not None and value < least):
        asked = "a positive number" if least is None else f"a number not less than {least:g}"
        raise ValueError(f"{key} must be {asked}, not {value!r}")
    return float(value)
