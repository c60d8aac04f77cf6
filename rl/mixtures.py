"""Several environments in one run, with weights: env=textcraft,sat:2. Imported unless env= is a single name."""

import envs
from rl.arguments import ArgumentError


def weights_of(text: str) -> dict[str, float]:
    """Return environment names and weights from "a,b" or "a:2,b:1"; the environments of a group share its weight.

    Raise ArgumentError for a name that is unknown or given twice, and for a weight that is not positive.
    """
    weights = {}
    try:
        for part in text.split(","):
            name, colon, given = part.strip().partition(":")
            members, weight = envs.GROUPS.get(name, [name]), float(given if colon else 1)
            if not 0 < weight < float("inf"):
                raise ValueError
            for member in members:
                envs.config_class(member)  # raises ValueError for an unknown name
                if member in weights:
                    raise ValueError(f"{member} is named twice")
                weights[member] = weight / len(members)
    except ValueError as error:
        raise ArgumentError(_refusal(text, error)) from None
    return weights


def _refusal(text: str, error: ValueError) -> str:
    """Return the line for env=text, whose names or weights raised the error."""
    for part in text.split(","):
        name, colon, weight = part.strip().partition(":")
        try:
            right = 0 < float(weight if colon else 1) < float("inf")
        except ValueError:
            return f"env={text}: weight {weight!r} of {name} is not a number"
        if not right:
            return f"env={text}: weight {weight} of {name} must be positive and finite"
    return f"env={text}: {error}"
