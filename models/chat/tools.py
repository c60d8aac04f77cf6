"""Read calls of tools out of a reply: Qwen's and Llama's own formats, as their chat templates write them.

    Qwen       text, then for each call  <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>
    Llama 3    a reply that is one object  {"name": ..., "parameters": {...}}

A reader returns (content, calls); the content is the text beside the calls, a call is {"type": "function", "function":
{"name": text, "arguments": object}}. A reply without a call has no calls. A malformed call raises Refusal.
"""

import json
from collections.abc import Callable

from models.chat.formats import CLOSE, OPEN
from models.refusal import Refusal

PYTHON_TAG = "<|python_tag|>"  # Llama 3.1 may write it before a call
MOST_CALL = 100_000  # characters of a reply with calls; longer ones are not read
MOST_DEPTH = 32  # lists and objects in one another in a call's arguments, which templates render by recursion
PROBE = {"type": "function", "function": {"name": "kzqv", "arguments": {"wjx": "ybp"}}}

Reader = Callable[[str], tuple[str, list[dict]]]


def qwen_calls(text: str) -> tuple[str, list[dict]]:
    """Return (content, calls) of a reply in Qwen2.5's and Qwen3's format. Raise Refusal for a malformed call."""
    content, opened, rest = text.partition(OPEN)
    if CLOSE in content:
        raise Refusal(f"{CLOSE} without {OPEN}")
    calls = []
    while opened:
        made, rest = _object(rest)
        calls.append(_call(made, "arguments"))
        closed, rest = rest.lstrip().startswith(CLOSE), rest.lstrip().removeprefix(CLOSE).lstrip()
        if not closed:
            raise Refusal(f"a call must end with {CLOSE}")
        if rest and not rest.startswith(OPEN):
            raise Refusal("there is text behind a call")
        opened, rest = bool(rest), rest.removeprefix(OPEN)
    return content.strip(), calls


def llama_calls(text: str) -> tuple[str, list[dict]]:
    """Return (content, calls) of a reply in Llama 3's format of JSON. Raise Refusal for a malformed call."""
    tagged = text.strip().startswith(PYTHON_TAG)
    said = text.strip().removeprefix(PYTHON_TAG).lstrip()
    if not (tagged or said.startswith("{")):
        return said, []
    made, rest = _object(said)
    if rest.strip():
        raise Refusal("there is text behind the call; a reply has one call and nothing else")
    return "", [_call({key: made[key] for key in made if (key, made[key]) != ("type", "function")}, "parameters")]


def choose_reader(written: str) -> Reader | None:
    """Return the reader of the format in which a template wrote a reply that calls PROBE; None for another format."""
    for reader in (qwen_calls, llama_calls):
        try:
            if reader(written) == ("", [PROBE]):
                return reader
        except Refusal:
            continue
    return None


def _object(text: str) -> tuple[dict, str]:
    """Return the object of JSON at the start of a text, and the text behind it."""
    if len(text) > MOST_CALL:
        raise Refusal(f"a call of more than {MOST_CALL:,} characters is not read")
    try:
        decoder = json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_number)
        made, end = decoder.raw_decode(text.lstrip())
    except Refusal:
        raise
    except (ValueError, RecursionError) as error:
        raise Refusal(f"a call must be an object of JSON ({str(error)[:80]})") from None
    if not isinstance(made, dict):
        raise Refusal(f"a call must be an object of JSON, not {str(made)[:60]}")
    return made, text.lstrip()[end:]


def _distinct(pairs: list[tuple[str, object]]) -> dict:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise Refusal("a key of the call is there twice")
    return made


def _no_number(word: str) -> None:
    raise Refusal(f"{word} is no number of JSON")


def _call(made: dict, key: str) -> dict:
    """Return a call from the object that a reply has. key: the name of its arguments."""
    if made.keys() != {"name", key}:
        raise Refusal(f"a call has name and {key}, not {', '.join(map(repr, made))[:80] or 'nothing'}")
    if not isinstance(made["name"], str) or not made["name"]:
        raise Refusal(f"the name of a call must be a text, not {str(made['name'])[:60]!r}")
    if not isinstance(made[key], dict):
        raise Refusal(f"the {key} of a call must be an object, not {str(made[key])[:60]}")
    level: list = [made[key]]
    for _ in range(MOST_DEPTH):
        items = (item for outer in level for item in (outer.values() if isinstance(outer, dict) else outer))
        level = [item for item in items if isinstance(item, dict | list)]
    if level:
        raise Refusal(f"the {key} of a call have lists and objects more than {MOST_DEPTH} deep")
    return {"type": "function", "function": {"name": made["name"], "arguments": made[key]}}
