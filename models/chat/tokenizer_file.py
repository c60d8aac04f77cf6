"""Read a tokenizer.json of strangers. Imported for every tokenizer but the embedded model's.

The tokenizers library panics, aborts the process or fills the memory on some files, at once or on a later text. So only
the components that decoders' tokenizers use are let through, with bounds on what they make of a text; parts that
encoding does not use (padding, truncation) are dropped; what panics all the same is a ValueError.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from models.checkpoints.shards import inside
from models.checkpoints.strict_json import parse_json, read_bytes
from models.json_file import read_object

MOST_BYTES, MOST_PARTS = 2**25, 2_000_000  # of the file; lists and objects in it, which take up to 250 bytes each
MOST_ADDED = 20_000  # added tokens
GROWTH, COMPONENTS = 64, 32  # most characters made of one; components of a stage
EXPRESSION, REPEATS = 4000, 3  # most characters of an expression; repetitions without an end in an alternative of it
COPIED = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja")
KINDS = {  # of a stage's components, and under which name a Sequence lists them
    "normalizer": (
        "normalizers",
        {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Strip", "Prepend", "Replace", "BertNormalizer"},
    ),
    "pre_tokenizer": (
        "pretokenizers",
        {"Split", "ByteLevel", "Metaspace", "Digits", "Whitespace", "WhitespaceSplit", "Punctuation", "UnicodeScripts"},
    ),
    "decoder": (
        "decoders",
        {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip", "WordPiece", "BPEDecoder"},
    ),
}


def opened(path: Path) -> tuple[dict, Callable]:
    """Return the object in a tokenizer.json, and the function that makes a tokenizer of such an object.

    Raise ValueError if it is refused, or if a file beside it that runs copy is a link out of the folder: that could be
    any file of this machine.
    """
    for name in COPIED:
        inside(path.parent / name)
    return checked_spec(path), partial(Guarded, path=path)


def checked_spec(path: Path) -> dict:
    """Return the object in a tokenizer.json, without the parts that are not used. Raise ValueError if it is refused."""
    spec = parse_json(read_bytes(path, MOST_BYTES), MOST_PARTS)
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise ValueError("no model in it")
    for stage in KINDS:
        _check_stage(stage, spec.get(stage))
    model, rows = spec["model"], read_object(path.parent / "config.json").get("vocab_size")
    rows = rows if type(rows) is int else 2**20
    for setting in ("dropout", "continuing_subword_prefix"):
        if model.get(setting):
            raise ValueError(f"model: {setting} {model[setting]!r} is not supported")
    vocab = model.get("vocab")
    ids = list(vocab.values()) if isinstance(vocab, dict) else range(len(vocab))
    if not all(type(i) is int and 0 <= i < rows for i in ids):
        raise ValueError(f"model: an id of the vocabulary is not in 0 to {rows - 1}, the model's rows")
    added = spec.get("added_tokens", [])
    if len(added) > MOST_ADDED:
        raise ValueError(f"{len(added):,} added tokens, more than {MOST_ADDED:,}")
    if not all(type(token["id"]) is int and token["id"] >= 0 and token["content"] for token in added):
        raise ValueError("an added token has no text or no id")
    known = [token for token in added if token["id"] < rows]  # the others have no embedding
    return {**spec, "added_tokens": known, "padding": None, "truncation": None}


def _check_stage(stage: str, component: object) -> None:
    """Raise ValueError for an unsupported component, and for those that together make a text grow without measure."""
    growth, parts = 1.0, list(_parts(stage, component))
    if len(parts) > COMPONENTS:
        raise ValueError(f"{stage}: more than {COMPONENTS} components")
    for part in parts:
        if part["type"] == "Prepend" and not 0 < len(part["prepend"]) <= GROWTH:
            raise ValueError(f"{stage}: Prepend of {len(part['prepend'])} characters is not supported")
        if part["type"] in ("Split", "Replace"):
            [(kind, pattern)] = part["pattern"].items()
            if not pattern:
                raise ValueError(f"{stage}: {part['type']} has an empty pattern")
            if kind == "Regex":
                _check_expression(pattern)
            growth *= max(1, len(part.get("content", "")) / (1 if kind == "Regex" else len(pattern)))
    if growth > GROWTH:
        raise ValueError(f"{stage}: it makes up to {growth:.0f} characters of one, more than {GROWTH}")


def _parts(stage: str, component: object) -> Iterator[dict]:
    """Yield the components of a stage, those in Sequences too."""
    if component is None:
        return
    names, kinds = KINDS[stage]
    kind = component.get("type") if isinstance(component, dict) else component
    if kind == "Sequence":
        for part in component[names]:
            yield from _parts(stage, part)
    elif isinstance(kind, str) and kind in kinds:
        yield component
    else:
        raise ValueError(f"{stage} {kind!r} is not supported")


def _check_expression(expression: str) -> None:
    """Raise ValueError for a regular expression on which the library's matcher may backtrack without measure."""
    if len(expression) > EXPRESSION:
        raise ValueError(f"an expression of {len(expression):,} characters, more than {EXPRESSION:,}")
    sets = r"\[(?:\\.|[^]\\])*\]|\\[pPx]\{[^{}]*\}|\\."
    if re.search(r"\\[1-9kg]|\(\?[^:=!<i]|\(\?<[^=!]", re.sub(r"\\\\", "", expression)):
        raise ValueError(f"the expression {expression!r} has references, names or comments")
    plain = re.sub(sets, "c", expression, flags=re.DOTALL)
    if re.search(r"\)\s*[*+{]", plain):
        raise ValueError(f"the expression {expression!r} repeats a group")
    for alternative in _alternatives(plain):
        if len(re.findall(r"(?:[*+]|\{\d*,\})[?+]?", alternative)) > REPEATS:
            raise ValueError(f"the expression {expression!r} has more than {REPEATS} open repetitions in a row")


def _alternatives(plain: str) -> list[str]:
    """Return the alternatives of an expression outside groups."""
    found, depth = [""], 0
    for c in plain:
        depth += (c == "(") - (c == ")")
        if c == "|" and depth == 0:
            found.append("")
        else:
            found[-1] += c
    return found


class Guarded:
    """A tokenizer of the library whose every error, panics included, is a ValueError of one line."""

    def __init__(self, spec: dict, path: Path):
        self._path = path
        self._tokenizer = self._guard(FastTokenizer.from_str)(json.dumps(spec))

    def __getattr__(self, name: str):
        found = getattr(self._tokenizer, name)
        return self._guard(found) if callable(found) else found

    def _guard(self, function: Callable) -> Callable:
        def call(*args, **options):
            try:
                return function(*args, **options)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic is no Exception
                raise ValueError(f"{self._path}: the tokenizer fails ({str(error)[:200]})") from None

        return call
