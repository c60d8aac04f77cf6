"""MySQL's JSON: documents as SQLite holds them, which is as text in MySQL's form, and the functions on them.

Keys are sorted by length, then by their bytes; a path is `$` with .key, ."key", .*, [number], [last] and [*].
"""

import json
import re
from functools import lru_cache

from envs.simulators.mysql.tokens import Refused

DEEPEST = 100  # of documents in one another
WHAT = {  # Python's message: MySQL's
    "Expecting value": "Invalid value.",
    "Expecting property name enclosed in double quotes": "Missing a name for object member.",
    "Expecting ':' delimiter": "Missing a colon after a name of object member.",
    "Unterminated string starting at": "Missing a closing quotation mark in string.",
    "Extra data": "The document root must not be followed by other values.",
    "Invalid \\escape": "Invalid escape character in string.",
}
STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
LEG = re.compile(
    r'\s*(?:\.\s*(?:(?P<every>\*)|(?P<quoted>"(?:[^"\\]|\\.)*")|(?P<key>[^\W\d][\w$]*))'
    r"|\[\s*(?:(?P<all>\*)|(?P<last>last)(?:\s*-\s*(?P<before>\d+))?|(?P<index>\d+))\s*\])",
    re.DOTALL,
)
EVERY = object()  # a leg of a path: each value of an object, or of an array


class Invalid(ValueError):
    """A text that is no JSON: MySQL's reason and the position."""


def parsed(text: str):
    """Return the value of a document. Raise Invalid if the text is none."""
    try:
        value = json.loads(text, parse_constant=_no_constant, parse_float=_float)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except json.JSONDecodeError as error:
        what = WHAT.get(error.msg, "Invalid value.") if text.strip() else "The document is empty."
        if error.msg == "Expecting ',' delimiter":
            what = _missing_comma(text[: error.pos])
        raise Invalid(what, error.pos) from None
    except UnicodeEncodeError:
        raise Invalid("The surrogate pair in string is invalid.", text.index("\\u")) from None
    except RecursionError:
        raise _too_deep() from None


def printed(value) -> str:
    """Return a value as MySQL prints it."""
    return json.dumps(_sorted(value), ensure_ascii=False)


def stored(text: str) -> str:
    """Return the document that a column keeps of a text. Raise MySQL's error with {table} and {column}."""
    try:
        return printed(parsed(text))
    except Invalid as error:
        what, place = error.args
        text = f"Invalid JSON text: \"{what}\" at position {place} in value for column '{{table}}.{{column}}'."
        raise Refused(3140, "22032", text) from None


def key(text: str | None):
    """Return what JSON values compare by in SQLite: null, numbers, strings, objects, arrays, false, true."""
    value = parsed(text) if text is not None else ...
    if value is None:
        return float("-inf")
    if isinstance(value, bool):
        return f"v{int(value)}"
    if isinstance(value, int | float):
        return value if abs(value) < 2**63 else float(value)
    return None if value is ... else f"s{value}" if isinstance(value, str) else "tu"[isinstance(value, list)] + text


def of_key(found) -> str | None:
    """Return the document that compares by this key."""
    if isinstance(found, str):
        return {"s": json.dumps(found[1:], ensure_ascii=False), "v": "true" if found == "v1" else "false"}.get(
            found[0], found[1:]
        )
    return None if found is None else "null" if found == float("-inf") else json.dumps(found)


def number(text: str):
    """Return a document as a number; a string counts as the number it begins with, an object or array as 0."""
    value = parsed(text)
    if isinstance(value, str):
        return float(re.match(r"\s*[-+]?\d+(\.\d*)?|", value, re.ASCII)[0] or 0)
    return value if isinstance(value, int | float) else 0


def document(text: str, function: str, argument: int = 1):
    """Return the value of a function's argument. Raise MySQL's error if it is no document."""
    try:
        return parsed(text)
    except Invalid as error:
        what, place = error.args
        text = f'Invalid JSON text in argument {argument} to function {function}: "{what}" at position {place}.'
        raise Refused(3141, "22032", text) from None


@lru_cache(256)
def legs(path: str) -> tuple:
    """Return the legs of a path: keys, EVERY, and (index, whether from the end)."""
    text = path.strip()
    found, place = [], 1
    while place < len(text) and text[:1] == "$":
        match = LEG.match(text, place)
        if not match:
            break
        if match["quoted"] and not valid(match["quoted"]):
            break
        if match["quoted"]:
            found.append(parsed(match["quoted"]))
        elif match["last"] or match["index"]:
            found.append((int(match["before"] or match["index"] or 0), bool(match["last"])))
        else:
            found.append(match["key"] or (EVERY, match.lastgroup))
        place = match.end()
    if "**" in text[place:] or " to " in text[place:]:
        raise Refused(1235, "42000", f"This version of MySQL doesn't yet support '{path[:80]}'")
    if text[:1] != "$" or place < len(text):
        text = f"Invalid JSON path expression. The error is around character position {place}."
        raise Refused(3143, "42000", text)
    return tuple(found)


def reached(value, leg) -> list:
    """Return the values that a leg of a path leads to."""
    if leg == (EVERY, "every"):
        return list(value.values()) if isinstance(value, dict) else []
    if leg == (EVERY, "all"):
        return list(value) if isinstance(value, list) else []
    if isinstance(leg, str):
        return [value[leg]] if isinstance(value, dict) and leg in value else []
    values, (index, last) = value if isinstance(value, list) else [value], leg
    return [values[len(values) - 1 - index if last else index]] if index < len(values) else []


def followed(value, path: str) -> list:
    """Return the values at a path."""
    values = [value]
    for leg in legs(path):
        values = [each for value in values for each in reached(value, leg)]
    return values


def wild(path: str) -> bool:
    return any(isinstance(leg, tuple) and leg[0] is EVERY for leg in legs(path))


def one(value, path: str) -> list:
    """Return the value at a path without wildcards, in a list that is empty if there is none."""
    if wild(path):
        text = "In this situation, path expressions may not contain the * and ** tokens or an array range."
        raise Refused(3149, "42000", text)
    return followed(value, path)


def extract(text: str, *paths: str) -> str | None:
    value = document(text, "json_extract")
    found = [each for path in paths for each in followed(value, path)]
    several = len(paths) > 1 or wild(paths[0])
    return printed(found if several else found[0]) if found else None


def unquote(text: str) -> str:
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    return document(text, "json_unquote")


def length(text: str, path: str = "$") -> int | None:
    found = one(document(text, "json_length"), path)
    return (len(found[0]) if isinstance(found[0], list | dict) else 1) if found else None


def keys(text: str, path: str = "$") -> str | None:
    found = one(document(text, "json_keys"), path)
    return printed(list(_sorted(found[0]))) if found and isinstance(found[0], dict) else None


def contains(target: str, candidate: str, path: str = "$") -> int | None:
    found = one(document(target, "json_contains"), path)
    return int(_has(found[0], document(candidate, "json_contains", 2))) if found else None


def valid(text: str) -> int:
    try:
        parsed(text)
    except (Invalid, Refused):
        return 0
    return 1


def array(*values: str | None) -> str:
    return printed([None if value is None else parsed(value) for value in values])


def made(*pairs: str | None) -> str:
    if None in pairs[::2]:
        raise Refused(3158, "22032", "JSON documents may not contain NULL member names.")
    values = [None if value is None else parsed(value) for value in pairs[1::2]]
    return printed(dict(zip(pairs[::2], values, strict=True)))


def changer(name: str, adds: bool, replaces: bool):
    """Return JSON_SET or one of its like: whether it adds what is not there, and replaces what is."""

    def change(text: str | None, *pairs: str | None) -> str | None:
        if None in (text, *pairs[::2]):
            return None
        value = document(text, name)
        for path, new in zip(pairs[::2], pairs[1::2], strict=True):
            if replaces if one(value, path) else adds:
                value = _changed(value, legs(path), None if new is None else parsed(new))
        return printed(value)

    return change


def remove(text: str, *paths: str) -> str:
    value = document(text, "json_remove")
    for path in paths:
        if not legs(path):
            raise Refused(3153, "42000", "The path expression '$' is not allowed in this context.")
        if one(value, path):
            value = _changed(value, legs(path), EVERY)
    return printed(value)


def _changed(value, path: tuple, new):
    """Return a value with another one at a path; new: EVERY to remove what is there."""
    if not path:
        return new
    leg, *rest = path
    inner = reached(value, leg)
    if rest and not inner:
        return value
    below = _changed(inner[0], tuple(rest), new) if rest else new
    if isinstance(leg, str):
        if not isinstance(value, dict):
            return value
        kept = {name: each for name, each in value.items() if name != leg}
        return kept if below is EVERY else {**kept, leg: below}
    values, (index, last) = value if isinstance(value, list) else [value], leg
    place = (len(values) - 1 - index if last else index) if inner else len(values)
    if not inner and last:
        place = 0
    values = values[:place] + ([] if below is EVERY else [below]) + values[place + bool(inner) :]
    return values if isinstance(value, list) or len(values) > 1 else values[0] if values else value


def _has(target, candidate) -> bool:
    """Return whether a document contains another, as JSON_CONTAINS defines it."""
    if isinstance(target, list):
        wanted = candidate if isinstance(candidate, list) else [candidate]
        return all(any(_has(each, one) for each in target) for one in wanted)
    if isinstance(target, dict) and isinstance(candidate, dict):
        return all(name in target and _has(target[name], each) for name, each in candidate.items())
    return isinstance(target, bool) == isinstance(candidate, bool) and target == candidate


def _sorted(value, depth: int = 0):
    """Return a value with its keys in MySQL's order."""
    if depth >= DEEPEST and isinstance(value, list | dict):
        raise _too_deep()
    if isinstance(value, list):
        return [_sorted(each, depth + 1) for each in value]
    if not isinstance(value, dict):
        return value
    names = sorted(value, key=lambda name: (len(name.encode("utf-8", "replace")), name))
    return {name: _sorted(value[name], depth + 1) for name in names}


def _too_deep() -> Refused:
    return Refused(3157, "22032", "The JSON document exceeds the maximum depth.")


def _no_constant(name: str):
    raise Invalid("Invalid value.", 0)


def _float(digits: str) -> float:
    if abs(found := float(digits)) == float("inf"):
        raise Invalid("Number too big to be stored in double.", 0)
    return found


def _missing_comma(before: str) -> str:
    """Return MySQL's reason where a comma is missing: in an object, or in an array."""
    opened = []
    for sign in re.findall(r"[][{}]", STRING.sub("", before)):
        opened.append(sign) if sign in "[{" else opened.pop()
    return f"Missing a comma or {'} after an object member' if opened[-1] == '{' else '] after an array element'}."


def known(function):
    """Return the function wrapped to give NULL if any argument is NULL."""
    return lambda *values: None if None in values else function(*values)


FUNCTIONS = {
    "JSON_ARRAY": array,
    "JSON_CONTAINS": known(contains),
    "JSON_EXTRACT": known(extract),
    "JSON_INSERT": changer("json_insert", adds=True, replaces=False),
    "JSON_KEYS": known(keys),
    "JSON_LENGTH": known(length),
    "JSON_OBJECT": made,
    "JSON_QUOTE": known(lambda text: json.dumps(text, ensure_ascii=False)),
    "JSON_REMOVE": known(remove),
    "JSON_REPLACE": changer("json_replace", adds=False, replaces=True),
    "JSON_SET": changer("json_set", adds=True, replaces=True),
    "JSON_UNQUOTE": known(unquote),
    "JSON_VALID": known(valid),
    "json_key": key,
    "json_of_key": of_key,
    "json_double": known(lambda number: json.dumps(float(number))),
    "json_number": known(number),
    "json_cast": known(lambda text: printed(document(text, "cast_as_json"))),
}
