"""Layers named by lists and regular expressions, and PEFT's rank_pattern and alpha_pattern. Imported only for those."""

import re
from collections import Counter
from collections.abc import Iterable


def matches(path: str, targets: str | list[str]) -> bool:
    """Return whether `targets`, as `lora.inject` takes them, select the layer of this name."""
    if targets == "all-linear":
        return path != "lm_head"
    if targets == "attention":
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if isinstance(targets, str):
        return regex(targets).fullmatch(path) is not None
    return any(path == target or path.endswith("." + target) for target in targets)


def sizes_by_pattern(
    paths: Iterable[str], r: int, alpha: float, ranks: dict[str, int], alphas: dict[str, float]
) -> dict[str, tuple[int, float]]:
    """Return (r, alpha) of each layer: the exceptions in `ranks` and `alphas` (see `by_pattern`), else r and alpha.

    Raise ValueError for a rank < 1 and for a key that is not a regular expression.
    """
    for rank in ranks.values():
        if rank < 1:
            raise ValueError(f"lora r must be at least 1, not {rank}")
    return {path: (by_pattern(path, ranks, r), by_pattern(path, alphas, alpha)) for path in paths}


def common_size(adapters: dict) -> tuple[int, float, dict]:
    """Return (the most common r, the most common alpha, PEFT's patterns for the layers that have others).

    adapters: layer's name -> lora.layer.Adapter. Raise ValueError if only some layers scale by rsLoRA's rule, which
    PEFT's config cannot express.
    """
    if len({adapter.rslora for adapter in adapters.values()}) > 1:
        raise ValueError("some layers scale by rsLoRA's rule and others do not, which PEFT's config cannot express")
    r, ranks = _exceptions({path: len(adapter.A) for path, adapter in adapters.items()})
    alpha, alphas = _exceptions({path: adapter.alpha for path, adapter in adapters.items()})
    patterns = {"rank_pattern": ranks, "alpha_pattern": alphas}
    return r, alpha, {key: pattern for key, pattern in patterns.items() if pattern}


def _exceptions(values: dict[str, float]) -> tuple[float, dict[str, float]]:
    """Return the most common value, and the other layers' values, each under a pattern of its full name."""
    common = Counter(values.values()).most_common(1)[0][0]
    return common, {f"^{re.escape(path)}": as_int(value) for path, value in values.items() if value != common}


def as_int(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


def by_pattern(path: str, pattern: dict, default):
    """Return the value of the first key that matches the layer's whole name or its last dotted parts, else default."""
    return next((value for key, value in pattern.items() if regex(rf"(.*\.)?({key})$").match(path)), default)


def regex(pattern: str) -> re.Pattern:
    """Return the compiled pattern. Raise ValueError if it is not a regular expression."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"lora pattern {pattern!r} is not a regular expression ({error})") from None
