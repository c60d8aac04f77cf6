"""Messages for names and options that envs/__init__.py does not know. Imported only when there is one."""

from difflib import get_close_matches


def unknown_environment(name: str, names: dict[str, str], groups: dict[str, list[str]]) -> ValueError:
    if name in groups:
        return ValueError(f"{name!r} is a group of environments; choose one of: {', '.join(groups[name])}")
    return ValueError(f"unknown environment {name!r}; {nearest(name, [*names, *groups])}")


def unknown_option(name: str, options: dict, known: list[str]) -> ValueError:
    key = next(key for key in options if key not in known)
    return ValueError(f"unknown option {key!r} of environment {name}; {nearest(key, known)}")


def nearest(word: str, known: list[str]) -> str:
    """Return the known name to try instead, or all of them."""
    close = get_close_matches(str(word), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"choose from: {', '.join(known)}"
