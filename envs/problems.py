"""Errors for unknown environments and options. envs/__init__.py imports this file only when it raises one."""

from difflib import get_close_matches


def unknown_environment(name: str, names: dict[str, str], groups: dict[str, list[str]]) -> ValueError:
    """Return the error for a name that is not an environment."""
    if name in groups:
        return ValueError(f"{name!r} is a group of environments; choose one of: {', '.join(groups[name])}")
    return ValueError(f"unknown environment {name!r}; {nearest(name, [*names, *groups])}")


def unknown_option(name: str, options: dict, known: list[str]) -> ValueError:
    """Return the error for the first option that an environment does not have."""
    key = next(key for key in options if key not in known)
    return ValueError(f"unknown option {key!r} of environment {name}; {nearest(key, known)}")


def nearest(word: str, known: list[str]) -> str:
    """Return a hint: the most similar known name, or all known names if none is similar."""
    close = get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose from: {', '.join(known)}"
