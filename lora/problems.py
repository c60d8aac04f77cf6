"""Say why an adapter cannot be injected. Imported only when it cannot."""

from collections.abc import Iterable


def refuse(linears: Iterable[str], matched: list[str], r: int, dropout: float, targets: str | list[str]) -> None:
    """Raise ValueError for arguments of `inject`. linears: the names of all linear layers; matched: the targets."""
    if r < 1:
        raise ValueError(f"lora r must be at least 1, not {r}")
    if not 0 <= dropout < 1:
        raise ValueError(f"lora dropout must be in [0, 1), not {dropout}")
    if not matched:
        known = ", ".join(sorted({path.rsplit(".", 1)[-1] for path in linears if path != "lm_head"}))
        raise ValueError(f"lora targets {targets!r} match no layer; linear layers here: {known}")
    raise ValueError("lora targets include the output head lm_head; log-probabilities need a plain head")
