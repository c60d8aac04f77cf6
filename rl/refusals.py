"""The lines that refuse a wrong word and name the nearest valid one. Imported when needed; standard library alone."""

import difflib
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

RECIPES = Path(__file__).parent.parent / "recipes"
WANTED = {bool: "true or false", int: "a whole number", float: "a finite number"}
RENAMED = {"reward.rule=seed": "reward.rule=shaped", "recipe=default": "embedded"}


def hint(word: Any, known, cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" for the nearest known word, or nothing if none is near."""
    near = difflib.get_close_matches(str(word), known, 1, cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def unknown_key(key: str, known: list[str]) -> str:
    in_groups = [other for other in known if other.endswith(f".{key}")]
    near = hint(key, in_groups, 0) or hint(key, known, 0.5)
    return f"unknown key {key!r}{near or '; --help lists the keys'}"


def wrong_type(key: str, value: Any, kind: Any) -> str:
    """Return the line for a value that is none of the field's type: a Literal, bool, int or float."""
    word = f"{key}={value}"
    if word in RENAMED:
        return f"{word} is now called {RENAMED[word]}"
    if get_origin(kind) is Literal:
        near = hint(value, get_args(kind))
        if key == "algo" and (RECIPES / f"{value}.toml").is_file():
            near = f"; did you mean recipe={value}?"
        return f"{word} is not one of {', '.join(get_args(kind))}{near}"
    return f"{key}={str(value).strip()} must be {WANTED[kind]}"


def wrong_mixture(text: str, error: ValueError) -> str:
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


def wrong_recipe(name: str, path: Path, names: list[str], error: Exception) -> str:
    """Return the line for recipe=NAME, whose file at `path` raised the error."""
    if path.is_file():
        return f"recipe={name}: {path} is not TOML ({error})"
    renamed = RENAMED.get(f"recipe={name}")
    return f"recipe={name}: no file {path}{f'; it is now called {renamed}' if renamed else hint(name, names)}"
