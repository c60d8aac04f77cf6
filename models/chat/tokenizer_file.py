"""Read a tokenizer.json, which may be a stranger's.

The tokenizers library panics, aborts the process or fills the memory on some files, at once or on a later text. So only
the components that decoders' tokenizers use are let through, with bounds on what they make of a text; parts that
encoding does not use (padding, truncation) are dropped; a panic is a ValueError.
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from models.chat.templates import TOOL_USE
from models.json_file import parse_json, read_bytes, read_object
from models.refusal import Refusal
from models.weights import inside

MOST_BYTES, MOST_PARTS = 2**25, 2_000_000  # of the file; lists and objects in it, which take up to 250 bytes each
GROWTH, COMPONENTS = 64, 32  # most characters made of one; components of a stage
EXPRESSION, REPEATS = 4000, 3  # most characters of an expression; repetitions without an end in an alternative of it
COPIED = ("tokenizer_config.json", "special_tokens_map.json", "generation_config.json", "chat_template.jinja", TOOL_USE)
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
MOST_ADDED = 20_000  # added tokens
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token


def read_spec(path: Path) -> tuple[dict, list[str]]:
    """Return the object in a tokenizer.json, without the parts that are not used; and the added tokens that it lost,
    because the model has no row for them.

    Raise ValueError if it is refused, or if a file beside it that runs copy is a link out of the folder: that could be
    any file of this machine.
    """
    for name in COPIED:
        inside(path.parent / name)
    spec = parse_json(read_bytes(path, MOST_BYTES), MOST_PARTS)
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise Refusal("no model in it")
    for stage in KINDS:
        _check_stage(stage, spec.get(stage))
    model, rows = spec["model"], read_object(path.parent / "config.json").get("vocab_size")
    rows = rows if type(rows) is int else 2**20
    for setting in ("dropout", "continuing_subword_prefix"):
        if model.get(setting):
            raise Refusal(f"model: {setting} {model[setting]!r} is not supported")
    vocab = model.get("vocab")
    ids = list(vocab.values()) if isinstance(vocab, dict) else range(len(vocab))
    if not all(type(i) is int and 0 <= i < rows for i in ids):
        raise Refusal(f"model: an id of the vocabulary is not in 0 to {rows - 1}, the model's rows")
    added = spec.get("added_tokens", [])
    if len(added) > MOST_ADDED:
        raise Refusal(f"{len(added):,} added tokens, more than {MOST_ADDED:,}")
    if not all(type(token["id"]) is int and token["id"] >= 0 and token["content"] for token in added):
        raise Refusal("an added token has no text or no id")
    added = with_flags(added, path.parent / "tokenizer_config.json")
    known = [token for token in added if token["id"] < rows]
    lost = [token["content"] for token in added if token["id"] >= rows]
    return {**spec, "added_tokens": known, "padding": None, "truncation": None}, lost


def with_flags(added: list[dict], config: Path) -> list[dict]:
    """Return the added tokens with the flags that a tokenizer_config.json gives them, as transformers does.

    Raise ValueError for a token that only the tokenizer_config.json adds.
    """
    listed = read_object(config).get("added_tokens_decoder") or {}
    if not isinstance(listed, dict) or not all(isinstance(token, dict) for token in listed.values()):
        raise Refusal(f"{config.name}: added_tokens_decoder must be an object of tokens, not {str(listed)[:80]!r}")
    given = {token.get("content"): (i, token) for i, token in listed.items()}
    known = {token["content"] for token in added}
    for content, (i, _) in given.items():
        if content not in known:
            raise Refusal(f"{config.name} adds {content!r} ({i}), which tokenizer.json lacks: save the tokenizer anew")
    flags = [{flag: given.get(token["content"], ("", {}))[1].get(flag) for flag in FLAGS} for token in added]
    return [token | {k: v for k, v in own.items() if v is not None} for token, own in zip(added, flags, strict=True)]


def _check_stage(stage: str, component: object) -> None:
    """Raise ValueError for an unsupported component, and for those that together make a text grow without measure."""
    growth, parts = 1.0, list(parts_of(stage, component))
    if len(parts) > COMPONENTS:
        raise Refusal(f"{stage}: more than {COMPONENTS} components")
    for part in parts:
        if part["type"] == "Prepend" and not 0 < len(part["prepend"]) <= GROWTH:
            raise Refusal(f"{stage}: Prepend of {len(part['prepend'])} characters is not supported")
        if part["type"] in ("Split", "Replace"):
            [(kind, pattern)] = part["pattern"].items()
            if not pattern:
                raise Refusal(f"{stage}: {part['type']} has an empty pattern")
            if kind == "Regex":
                _check_expression(pattern)
            growth *= max(1, len(part.get("content", "")) / (1 if kind == "Regex" else len(pattern)))
    if growth > GROWTH:
        raise Refusal(f"{stage}: it makes up to {growth:.0f} characters of one, more than {GROWTH}")


def parts_of(stage: str, component: Any) -> Iterator[dict]:
    """Yield the components of a stage, those in Sequences too."""
    if component is None:
        return
    names, kinds = KINDS[stage]
    kind = component.get("type") if isinstance(component, dict) else component
    if kind == "Sequence":
        for part in component[names]:
            yield from parts_of(stage, part)
    elif isinstance(kind, str) and kind in kinds:
        yield component
    else:
        raise Refusal(f"{stage} {kind!r} is not supported")


def _check_expression(expression: str) -> None:
    """Raise ValueError for a regular expression on which the library's matcher may backtrack without measure."""
    if len(expression) > EXPRESSION:
        raise Refusal(f"an expression of {len(expression):,} characters, more than {EXPRESSION:,}")
    sets = r"\[(?:\\.|[^]\\])*\]|\\[pPx]\{[^{}]*\}|\\."
    if re.search(r"\\[1-9kg]|\(\?[^:=!<i]|\(\?<[^=!]", re.sub(r"\\\\", "", expression)):
        raise Refusal(f"the expression {expression!r} has references, names or comments")
    plain = re.sub(sets, "c", expression, flags=re.DOTALL)
    if re.search(r"\)\s*[*+{]", plain):
        raise Refusal(f"the expression {expression!r} repeats a group")
    for alternative in _alternatives(plain):
        if len(re.findall(r"(?:[*+]|\{\d*,\})[?+]?", alternative)) > REPEATS:
            raise Refusal(f"the expression {expression!r} has more than {REPEATS} open repetitions in a row")


def _alternatives(plain: str) -> list[str]:
    """Return the alternatives of an expression outside groups."""
    parts, depth = [""], 0
    for c in plain:
        depth += (c == "(") - (c == ")")
        if c == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += c
    return parts


class Guarded:
    """A tokenizer of the library whose every error, panics included, is a ValueError of one line."""

    def __init__(self, spec: dict, path: Path):
        self._path = path
        self._tokenizer = self._guard(FastTokenizer.from_str)(json.dumps(spec))

    def __getattr__(self, name: str):
        attribute = getattr(self._tokenizer, name)
        return self._guard(attribute) if callable(attribute) else attribute

    def _guard(self, function: Callable) -> Callable:
        def call(*args, **options):
            try:
                return function(*args, **options)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:  # a panic is no Exception
                raise Refusal(f"{self._path}: the tokenizer fails ({str(error)[:200]})") from None

        return call
