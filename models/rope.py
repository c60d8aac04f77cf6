"""Rotary position embeddings (Su et al. 2021): the settings of each layer, and the frequencies.

A config.json has one of two layouts: `rope_theta` beside `rope_scaling` (transformers 4), or `rope_parameters`
(transformers 5), which may be nested by layer type. Both are read, with the precedence of transformers 5. Frequencies
may be stretched for longer sequences in the published ways: linear, dynamic, yarn, llama3.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch

from models.json_file import number
from models.refusal import Refusal

LAYER_TYPES = ("full_attention", "sliding_attention")
KINDS = ("default", "linear", "dynamic", "yarn", "llama3")
THETA = 10000.0  # default of rope_theta
THETAS = {"smollm3": 2e6, "olmo3": 5e5}  # of families with another default
OWN_LAYOUT = ("olmo3",)  # families whose settings beside the nested ones are for some layers alone
NESTS = ("qwen2", "qwen3", "olmo3")  # families whose settings may be nested by layer type


@dataclass(frozen=True)
class Stretch:
    """The numbers of the stretched kinds. Fields that a kind does not use keep their defaults."""

    factor: float = 1.0  # how many times longer sequences became
    original_length: int = 0  # yarn, llama3: the longest sequence before stretching
    beta_fast: float = 32.0  # yarn: pairs that rotate more often than this in original_length keep their frequency;
    beta_slow: float = 1.0  # pairs that rotate less often have it divided by factor; pairs in between are blended
    truncate: bool = True  # yarn: round the ends of that range outwards to whole pairs
    low_freq_factor: float = 1.0  # llama3: like beta_slow
    high_freq_factor: float = 4.0  # llama3: like beta_fast


@dataclass(frozen=True)
class Rope:
    """The numbers that define a layer's angles."""

    kind: str = "default"  # default | linear | dynamic | yarn | llama3 | none: every angle is 0, which turns nothing
    theta: float = THETA
    stretch: Stretch | Any = None  # a Stretch for other kinds than the default, else None
    max_length: int | None = None  # dynamic: up to this length the angles do not depend on the length
    scaling: float = 1.0  # multiplies cos and sin, so attention scores grow by its square (yarn, Granite)


def frequencies(rope: Rope, head_dim: int, device=None) -> tuple[torch.Tensor, float]:
    """Return (radians per position of each pair, float32 [head_dim / 2]; the factor of cos and sin).

    linear: Chen et al. 2023, section 2.3; yarn: Peng et al. 2023, equations 17 to 22; llama3: the code of Llama 3.1.
    dynamic equals the default up to max_length, beyond which the decoder refuses a sequence.
    """
    pairs = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    plain, stretch = 1.0 / rope.theta**pairs, rope.stretch
    if rope.kind == "none":
        return torch.zeros_like(plain), rope.scaling
    if rope.kind == "linear":
        return plain / stretch.factor, rope.scaling
    if rope.kind == "yarn":
        slowed = 1.0 / (stretch.factor * rope.theta**pairs)
        keep = 1 - yarn_ramp(stretch, rope.theta, head_dim, device)
        return slowed * (1 - keep) + plain * keep, rope.scaling
    if rope.kind == "llama3":
        keep = llama3_ramp(stretch, plain)
        return (1 - keep) * plain / stretch.factor + keep * plain, rope.scaling
    return plain, rope.scaling


def yarn_ramp(stretch: Stretch, theta: float, head_dim: int, device) -> torch.Tensor:
    """Return 0 for pairs that keep their frequency, 1 for pairs that have it divided, values between for the rest."""
    low, high = (
        head_dim * math.log(stretch.original_length / (rotations * 2 * math.pi)) / (2 * math.log(theta))
        for rotations in (stretch.beta_fast, stretch.beta_slow)
    )
    if stretch.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001
    return ((torch.arange(head_dim // 2, device=device).float() - low) / (high - low)).clamp(0, 1)


def llama3_ramp(stretch: Stretch, plain: torch.Tensor) -> torch.Tensor:
    """Return 1 for pairs that keep their frequency, 0 for pairs that have it divided, values between for the rest."""
    rotations = stretch.original_length / (2 * math.pi / plain)
    return ((rotations - stretch.low_freq_factor) / (stretch.high_freq_factor - stretch.low_freq_factor)).clamp(0, 1)


def parse_ropes(raw: dict, layer_types: tuple[str, ...], max_length: int, family: str) -> tuple[Rope, ...]:
    """Return the Rope of each layer from a config.json. Raise ValueError with one line that names the setting."""
    if raw.get("partial_rotary_factor") not in (None, 1):
        raise Refusal("partial_rotary_factor other than 1 is not supported")
    settings = rope_settings(raw)
    if family == "phi3" and settings.get("rope_type", "default") != "default":  # transformers takes yarn as longrope
        raise Refusal(f"rope type {settings['rope_type']!r} is not supported for phi3; supported: default")
    if not nested(settings):
        return (_read(settings, max_length, "rotary settings"),) * len(layer_types)
    if family not in NESTS:
        raise Refusal(
            f"rope_parameters nested by layer type is not supported for {family}; only for {', '.join(NESTS)}"
        )
    if missing := sorted(set(layer_types) - set(settings)):
        raise Refusal(f"rope_parameters is nested by layer type but has no entry for {missing[0]}")
    each = {kind: _read(settings[kind], max_length, f"rotary settings of {kind}") for kind in set(layer_types)}
    return tuple(each[kind] for kind in layer_types)


def rope_settings(raw: dict) -> dict:
    """Return the rotary settings in effect, in the layout of `rope_parameters`.

    Precedence: `rope_scaling` over `rope_parameters`, a rope_theta inside over one beside, rope_type over type, an
    original_max_position_embeddings beside over one inside.
    """
    name = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"
    stored = raw.get(name) or {}
    if not isinstance(stored, dict):
        raise Refusal(f"{name} must be an object, not {stored!r}")
    theta = THETAS.get(raw.get("model_type", ""), THETA) if raw.get("rope_theta") is None else raw["rope_theta"]
    if raw.get("model_type") == "olmo3" and not nested(stored):  # whose sliding layers keep the plain angles
        if stored and name == "rope_parameters":
            raise Refusal("rope_parameters of olmo3 must be nested by layer type")
        return {"full_attention": _standard(stored, theta), "sliding_attention": _standard({}, theta)}
    if not nested(stored):
        settings, original = _standard(stored, theta), raw.get("original_max_position_embeddings")
        if original is not None and settings["rope_type"] in ("yarn", "llama3"):
            settings["original_max_position_embeddings"] = original
        return settings
    for key, value in stored.items():
        if not isinstance(value, dict):
            raise Refusal(f"{name} is nested by layer type, so {key} must be an object, not {value!r}")
    return {kind: _standard(value, theta) for kind, value in stored.items()}


def nested(settings: dict) -> bool:
    """Return whether rotary settings are nested by layer type."""
    return any(key in LAYER_TYPES or isinstance(value, dict) for key, value in settings.items())


def _standard(stored: dict, theta: float) -> dict:
    """Return the settings of one kind of layer in the layout of transformers 5: rope_type and rope_theta are there."""
    settings = {"rope_type": stored.get("type", "default"), "rope_theta": theta, **stored}
    settings.pop("type", None)
    return settings


def _read(settings: dict, max_length: int, where: str) -> Rope:
    """Return the Rope of one kind of layer. where: the beginning of an error's line."""
    kind = settings["rope_type"]
    if kind not in KINDS:
        raise Refusal(f"rope type {kind!r} is not supported; supported: {', '.join(KINDS)}")
    if settings.get("partial_rotary_factor") not in (None, 1):
        raise Refusal("partial_rotary_factor other than 1 is not supported")
    try:
        fields = {"kind": kind, "theta": number("rope_theta", settings["rope_theta"])}
        read_scaling = {"linear": _linear, "dynamic": _dynamic, "yarn": _yarn, "llama3": _llama3}
        return Rope(**(fields if kind == "default" else fields | read_scaling[kind](settings, max_length)))
    except ValueError as error:
        raise Refusal(f"{where}: {error}") from None


def _linear(settings: dict, max_length: int) -> dict:
    return {"stretch": Stretch(_factor(settings, "linear"))}


def _dynamic(settings: dict, max_length: int) -> dict:
    return {"stretch": Stretch(_factor(settings, "dynamic")), "max_length": max_length}


def _llama3(settings: dict, max_length: int) -> dict:
    low, high = (number(key, settings.get(key)) for key in ("low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise Refusal(f"high_freq_factor {high} must be greater than low_freq_factor {low}")
    factor, original = _factor(settings, "llama3"), _original_length(settings, max_length)
    return {"stretch": Stretch(factor, original, low_freq_factor=low, high_freq_factor=high)}


def _yarn(settings: dict, max_length: int) -> dict:
    original, truncate = _original_length(settings, max_length), settings.get("truncate", True)
    if settings["rope_theta"] <= 1:
        raise Refusal(f"rope_theta must be greater than 1 for yarn, not {settings['rope_theta']!r}")
    if not isinstance(truncate, bool):
        raise Refusal(f"truncate must be true or false, not {truncate!r}")
    optional = {key: settings[key] for key in ("beta_fast", "beta_slow") if settings.get(key) is not None}
    betas = {"beta_fast": 32.0, "beta_slow": 1.0, **{key: number(key, value) for key, value in optional.items()}}
    if betas["beta_fast"] < betas["beta_slow"]:
        raise Refusal("beta_fast {beta_fast} must not be less than beta_slow {beta_slow}".format(**betas))
    null = "factor" in settings and settings["factor"] is None
    factor = max_length / original if null else _factor(settings, "yarn")
    return {
        "stretch": Stretch(factor, original, **betas, truncate=truncate),
        "scaling": _yarn_scaling(settings, factor),
    }


def _yarn_scaling(settings: dict, factor: float) -> float:
    """Return attention_factor; if it is absent, 0.1 ln(factor) + 1, or DeepSeek's ratio of two such numbers."""
    if settings.get("attention_factor") is not None:
        return number("attention_factor", settings["attention_factor"])
    mscale, mscale_all_dim = (
        0.0 if settings.get(key) in (None, 0) else number(key, settings[key]) for key in ("mscale", "mscale_all_dim")
    )
    if mscale and mscale_all_dim:
        return _attention_factor(mscale, factor) / _attention_factor(mscale_all_dim, factor)
    return _attention_factor(1.0, factor)


def _attention_factor(mscale: float, factor: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _factor(settings: dict, kind: str) -> float:
    if "factor" not in settings:
        raise Refusal(f"factor is missing, which {kind} needs")
    try:
        factor = number("factor", settings["factor"])
    except ValueError:
        factor = 0.0
    if factor < 1:
        raise Refusal(f"factor must be a number not less than 1, not {settings['factor']!r}")
    return factor


def _original_length(settings: dict, max_length: int) -> int:
    length = settings.get("original_max_position_embeddings", max_length)
    if type(length) is not int or not 0 < length <= 2**31:
        raise Refusal(f"original_max_position_embeddings must be a positive integer, not {length!r}")
    return length
