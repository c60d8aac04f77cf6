"""Layers named by lists and regular expressions, and PEFT's rank_pattern and alpha_pattern. Imported only for those."""

import re
from collections import Counter
from collections.abc import Iterable

from lora.expressions import Names


def matching(paths: Iterable[str], targets: str | list[str]) -> list[str]:
    """Return the layers that `targets`, as `lora.inject` takes them, select. Raise ValueError for a bad expression."""
    if targets == "all-linear":
        return [path for path in paths if path != "lm_head"]
    if targets == "attention":
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if isinstance(targets, str):
        return Names(paths).matching(targets)
    wanted = set(targets)
    return [path for path in paths if not wanted.isdisjoint(endings(path))]


def endings(path: str) -> list[str]:
    """Return the whole name and its last dotted parts: "a.b.c", "b.c", "c"."""
    parts = path.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]


def sizes_by_pattern(
    paths: Iterable[str], r: int, alpha: float, ranks: dict[str, int], alphas: dict[str, float]
) -> dict[str, tuple[int, float]]:
    """Return (r, alpha) of each layer: the exceptions in `ranks` and `alphas` (see `by_pattern`), else r and alpha.

    Raise ValueError for a rank < 1 and for a key that is not a regular expression.
    """
    for rank in ranks.values():
        if rank < 1:
            raise ValueError(f"lora r must be at least 1, not {rank}")
    paths = list(paths)
    special_r, special_alpha = by_pattern(paths, ranks), by_pattern(paths, alphas)
    return {path: (special_r.get(path, r), special_alpha.get(path, alpha)) for path in paths}


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


def by_pattern(paths: Iterable[str], pattern: dict) -> dict:
    """Return the value of each layer that a key matches, by its whole name or last dotted parts; the first key wins.

    Raise ValueError for a key that is not a regular expression, or not supported.
    """
    names, found = Names(paths), {}
    for key, value in pattern.items():
        for path in names.matching(key, parts=True):
            found.setdefault(path, value)
    return found
