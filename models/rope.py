"""Rotary position embeddings (Su et al. 2021): the settings of each layer, and the frequencies. Rarer settings are read
and computed in models/checkpoints/rope_settings.py and rope_scaling.py."""

from collections.abc import Hashable
from dataclasses import dataclass

import torch

from models.json_file import number

THETA = 10000.0


@dataclass(frozen=True)
class Rope:
    """The numbers that define a layer's angles."""

    kind: str = "default"  # default | linear | dynamic | yarn | llama3
    theta: float = THETA
    stretch: Hashable = None  # for other kinds than the default: models/checkpoints/rope_scaling.py's Stretch
    max_length: int | None = None  # dynamic: up to this length the angles do not depend on the length
    scaling: float = 1.0  # yarn: multiplies cos and sin, so attention scores grow by its square


def frequencies(rope: Rope, head_dim: int, device=None) -> tuple[torch.Tensor, float]:
    """Return (radians per position of each pair, float32 [head_dim / 2]; the factor of cos and sin).

    `dynamic` equals the default up to max_length; longer sequences are refused elsewhere.
    """
    if rope.kind not in ("default", "dynamic"):
        from models.checkpoints.rope_scaling import stretched

        return stretched(rope.kind, rope.theta, rope.stretch, head_dim, device), rope.scaling
    pairs = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    return 1.0 / rope.theta**pairs, rope.scaling


def parse_ropes(raw: dict, layer_types: tuple[str, ...], max_length: int, family: str) -> tuple[Rope, ...]:
    """Return the Rope of each layer from a config.json. Raise ValueError with one line that names the setting."""
    found = raw.get("rope_parameters") or {}
    if isinstance(found, dict) and not raw.keys() & {"rope_scaling", "partial_rotary_factor"}:
        settings = {"rope_type": "default", "rope_theta": raw.get("rope_theta", THETA), **found}
        if settings["rope_type"] == "default" and len(settings) == 2:
            return (Rope(theta=number("rope_theta", settings["rope_theta"])),) * len(layer_types)
    from models.checkpoints.rope_settings import layer_settings

    return tuple(Rope(**fields) for fields in layer_settings(raw, layer_types, max_length, family))
