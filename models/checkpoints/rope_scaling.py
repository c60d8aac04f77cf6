"""The published ways to stretch rotary frequencies for longer sequences: linear, dynamic, yarn, llama3.

Imported only for a checkpoint whose config.json names one of them (models/rope.py).
"""

import math
from dataclasses import dataclass

import torch

from models.json_file import number


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


def stretched(kind: str, theta: float, stretch: Stretch, head_dim: int, device=None) -> torch.Tensor:
    """Return the radians per position of each pair, float32 [head_dim / 2], for a models.rope.Rope.

    linear: Chen et al. 2023, section 2.3; yarn: Peng et al. 2023, equations 17 to 22; llama3: the code of Llama 3.1.
    """
    pairs = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    plain = 1.0 / theta**pairs
    if kind == "linear":
        return plain / stretch.factor
    if kind == "yarn":
        slowed = 1.0 / (stretch.factor * theta**pairs)
        keep = 1 - yarn_ramp(stretch, theta, head_dim, device)
        return slowed * (1 - keep) + plain * keep
    keep = llama3_ramp(stretch, plain)
    return (1 - keep) * plain / stretch.factor + keep * plain


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


def refuse_length(length: int, max_length: int) -> None:
    """Raise ValueError: the sequence is too long for dynamic RoPE."""
    raise ValueError(
        f"a sequence of {length} tokens is longer than max_position_embeddings {max_length}: the "
        "angles of dynamic RoPE would change with the longest sequence of the batch"
    )


def read_scaling(kind: str, settings: dict, max_length: int) -> dict:
    """Return the fields of models.rope.Rope that this kind sets. Raise ValueError that names the setting."""
    return _READERS[kind](settings, max_length)


def _linear(settings: dict, max_length: int) -> dict:
    return {"stretch": Stretch(_factor(settings, "linear"))}


def _dynamic(settings: dict, max_length: int) -> dict:
    return {"stretch": Stretch(_factor(settings, "dynamic")), "max_length": max_length}


def _llama3(settings: dict, max_length: int) -> dict:
    low, high = (number(key, settings.get(key)) for key in ("low_freq_factor", "high_freq_factor"))
    if high <= low:
        raise ValueError(f"high_freq_factor {high} must be greater than low_freq_factor {low}")
    factor, original = _factor(settings, "llama3"), _original_length(settings, max_length)
    return {"stretch": Stretch(factor, original, low_freq_factor=low, high_freq_factor=high)}


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
        raise ValueError(f"factor is missing, which {kind} needs")
    try:
        factor = number("factor", settings["factor"])
    except ValueError:
        factor = 0.0
    if factor < 1:
        raise ValueError(f"factor must be a number not less than 1, not {settings['factor']!r}")
    return factor


def _original_length(settings: dict, max_length: int) -> int:
    length = settings.get("original_max_position_embeddings", max_length)
    if type(length) is not int or not 0 < length <= 2**31:
        raise ValueError(f"original_max_position_embeddings must be a positive integer, not {length!r}")
    return length


_READERS = {"linear": _linear, "dynamic": _dynamic, "yarn": _yarn, "llama3": _llama3}
