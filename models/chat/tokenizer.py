"""Encode text as token ids, decode ids, and encode conversations in the chat format of the checkpoint.

    tokenizer.prompt([{"role": "user", "content": "Goal: craft a door."}])

Ids are only ever appended: sampled ids are never decoded and encoded again. Text from outside (an environment, a user)
cannot produce a control token: an observation that contains "<|im_end|>" is encoded as those characters. Of an
assistant's messages <think> and <tool_call> with their ends are the tokenizer's own.

A tokenizer.json may be a stranger's. The tokenizers library panics, aborts the process or fills the memory on some
files, at once or on a later text. So only the components that decoders' tokenizers use are let through, with bounds on
what they make of a text; parts that encoding does not use (padding, truncation) are dropped; a panic is a ValueError.
"""

import json
import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from models.chat.formats import ANSWER, THINK, Marks, check, has_tools, in_thought, without_thoughts
from models.chat.templates import ASKED, SAID, TOOL_USE, Format, NoFormat, choose_format
from models.chat.tool_formats import choose_call_reader, tools_format
from models.chat.tools import Reader
from models.json_file import parse_json, read_bytes, read_object
from models.refusal import Refusal
from models.weights import inside, resolve

MOST_BYTES, MOST_PARTS = 2**25, 2_000_000  # of the file; lists and objects in it, which take up to 250 bytes each
MOST_ADDED, MOST_FIRST = 20_000, 8  # added tokens; tokens before a plain text
PROBE = "The Quick, brown fox: 0123456789\n\tdéjà 漢字 <b> 'x' [1] {y}\n end."
HALF = "\ufffd"  # what decoding a part of a character's bytes gives
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


class Tokenizer:
    """The tokenizer of a checkpoint and its chat format (models/chat/formats.py).

    thinking: False makes a model whose format has thoughts (Qwen3) reply without them; other models ignore it.
    eos_ids:  frozenset of the ids that end a reply, merged from generation_config, config, tokenizer files and format.
    """

    def __init__(self, folder: Path, thinking: bool = True, rewrites: bool = False):
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: the model folder has no tokenizer.json")
        try:
            spec, lost = read_spec(path)
            added = {token["content"]: token["id"] for token in spec.get("added_tokens", [])}
            control = {token["content"]: token["id"] for token in spec.get("added_tokens", []) if _is_control(token)}
            self._full, mark = Guarded(spec, path), Marks(control)
            self._text = Guarded(_renamed(spec, mark.names), path)  # cannot read control tokens
            moved = [token for token, name in mark.names.items() if self._text.token_to_id(name) != control[token]]
            moved += _not_found(self._text, mark.names, control)
        except Exception as error:  # the library raises bare Exceptions
            raise Refusal(f"{path}: not a tokenizer file ({error})") from None
        if moved:
            raise Refusal(f"{path}: the control token {moved[0]!r} is not distinct from text in this vocabulary")
        self._say_losses(path)
        self.control_ids = frozenset(control.values())
        self.vocab_size = self._full.get_vocab_size()
        self._thinking, self._rewrites, self._mark = thinking, rewrites, mark
        self._format = self._choose_format(lost)
        ends = self.encode(self._format.end)[:1] if self._format.end else []
        self._end = ends[0] if ends else None
        self.eos_ids = frozenset([*self._read_eos(added), *ends])

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. Half a surrogate pair is encoded as "?".

        Only a name from Marks becomes a control token. Text from outside cannot contain such a name.
        """
        return self._text.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids

    @cached_property
    def first_ids(self) -> list[int]:
        """The ids that the checkpoint puts before a plain text, such as a BOS token; none for many. A conversation has
        those of its chat format."""
        alone, whole = (self._full.encode("a", add_special_tokens=special).ids for special in (False, True))
        first = whole[: whole.index(alone[0])] if alone and alone[0] in whole else []
        if len(first) > MOST_FIRST or not all(i < self.vocab_size for i in first):
            raise Refusal(f"{self.folder}: the tokenizer puts {len(first)} tokens before a text, or ids that it lacks")
        return first

    def decode(self, ids: list[int]) -> str:
        """Return text without control tokens. Drop ids past the vocabulary, which are padding rows of the head."""
        return self._full.decode([i for i in ids if i < self.vocab_size], skip_special_tokens=True)

    def answer(self, ids: list[int]) -> str:
        """Return the text of a sampled reply without its thoughts, or nothing if the thoughts were cut off."""
        return without_thoughts(self._said(ids), self._format.opens_thought)

    def message(self, ids: list[int]) -> str:
        """Return the content of a sampled reply's message, for a template that renders it again. Thoughts that were cut
        off are closed, so that the template knows them from the answer."""
        text = self._said(ids)
        if self._format.opens_thought:
            text = f"{THINK}\n{text}"
        return f"{text}\n{ANSWER}\n\n" if in_thought(text) else text

    def in_thought(self, ids: list[int]) -> bool:
        """Return whether a sampled reply ends inside its thoughts."""
        return in_thought(self._said(ids), self._format.opens_thought)

    def thoughts(self, ids: list[int]) -> int:
        """Return how many of the first ids of a sampled reply are thoughts, the closing tag included."""
        text = self._said(ids)
        if in_thought(text, self._format.opens_thought):
            return len(ids)
        closed = text.count(ANSWER)
        return bisect_left(range(len(ids)), closed, key=lambda n: self.decode(ids[:n]).count(ANSWER)) if closed else 0

    @cached_property
    def end_of_thought(self) -> list[int]:
        """The ids that end thoughts, as Qwen3 and DeepSeek-R1 write them: the closing tag between line breaks."""
        return self.encode(f"\n{self._mark(ANSWER)}\n\n")

    def _said(self, ids: list[int]) -> str:
        """Return the text of a sampled reply without the token that ends it."""
        return self.decode(ids[:-1] if ids[-1:] and ids[-1] in self.eos_ids else ids)

    def show(self, ids: list[int]) -> str:
        """Return text with control tokens, for people to read."""
        return self._full.decode([i for i in ids if i < self.vocab_size], skip_special_tokens=False)

    def _say_losses(self, path: Path) -> None:
        """Print a line if ids do not decode to the text: a normalizer, or a vocabulary without some characters."""
        decoded = self._full.decode(self._text.encode(PROBE, add_special_tokens=False).ids, skip_special_tokens=False)
        lost = [word for word in PROBE.split() if word not in decoded]
        if lost or decoded.count("\n") < PROBE.count("\n"):
            what = ", ".join(lost) or "line breaks"
            print(f"{path}: what the model reads is not the text: {what} of a test text is lost", file=sys.stderr)

    def bytes_of(self, token: int) -> bytes:
        """Return the bytes that a token writes, which may be a part of a character."""
        text, piece = self.show([token]), self._full.id_to_token(token) or ""
        if HALF not in text:
            return text.encode()
        if fallback := re.fullmatch("<0x([0-9A-F]{2})>", piece):
            return bytes([int(fallback[1], 16)])
        written = byte_level_alphabet()
        return bytes(written[c] for c in piece) if written.keys() >= set(piece) else text.encode()

    def prompt(self, messages: list[dict], header: bool = True) -> list[int]:
        """Return the ids of a conversation, with `header` followed by the header of the assistant's next reply."""
        check(messages)
        return self.encode(self._format_for(messages).render(messages, header))

    def follow_up(self, last_id: int, messages: list[dict]) -> list[int]:
        """Return the ids of the messages and the next header, which follow a sampled reply that ends with `last_id`.

        If `last_id` is not the format's end token, the ids start with that token; it was not sampled.
        """
        check(messages)
        return self._after(*self._format_for(messages).follow_up(last_id == self._end, messages))

    def reply(self, content: str, calls: Sequence[dict] = ()) -> list[int]:
        """Return the ids of a reply as the model samples it: a think block if the format has one, text, calls of tools
        as the checkpoint's template writes them, end token."""
        if calls:
            return self._after(*self._tools_format.reply(content, calls))
        return self._after(*self._format.reply(content))

    def _format_for(self, messages: list[dict]) -> Format:
        """Return the format that writes these messages."""
        return self._tools_format if has_tools(messages) else self._format

    def calls(self, ids: list[int]) -> tuple[str, list[dict]]:
        """Return the content of a sampled reply without its thoughts, and the calls of tools in it
        (models/chat/tools.py). Raise Refusal for a malformed call, and for a checkpoint without a format for them."""
        text = self.show(ids[:-1] if ids[-1:] and ids[-1] in self.eos_ids else ids)
        return self._call_reader(without_thoughts(text, self._tools_format.opens_thought))

    def check_tools(self) -> None:
        """Raise Refusal if the checkpoint has no format for tools and their calls that is read here."""
        _ = self._call_reader

    @cached_property
    def _call_reader(self) -> Reader:
        return choose_call_reader(self._tools_format, self._mark, self.folder)

    @cached_property
    def _tools_format(self) -> Format:
        return tools_format(self.folder, self._mark, self._thinking, self._format)

    def _after(self, before: str, text: str) -> list[int]:
        """Return the ids of `text` after `before`. Some tokenizers put a space before the first text."""
        head, ids = self.encode(before), self.encode(before + text)
        return ids[len(head) :] if ids[: len(head)] == head else self.encode(text)

    def _choose_format(self, lost: list[str]) -> Format:
        """Return the chat format of the checkpoint. lost: added tokens for which the model has no row."""
        chosen = choose_format(self.folder, self._mark, self._thinking, self._rewrites)
        if lost and not isinstance(chosen, NoFormat):
            written = chosen.render([{"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}])
            for token in lost:
                if token in written:
                    reason = f"the chat template writes {token!r}, for whose id the model's embedding has no row"
                    return NoFormat(f"{self.folder}: {reason}: resize the embedding before the checkpoint is used")
        return chosen

    def _read_eos(self, added: dict[str, int]) -> set[int]:
        """Return the ids that the checkpoint's settings name as ends of a reply. added: ids of added tokens by text."""
        eos_ids = set()
        for name in ("generation_config.json", "config.json"):
            value = read_object(self.folder / name).get("eos_token_id")
            values = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(i) is int for i in values):
                raise Refusal(f"{self.folder / name}: eos_token_id must be ids, not {value!r}")
            eos_ids |= set(values)
        token = read_object(self.folder / "tokenizer_config.json").get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        ids = (added.get(token), self._full.token_to_id(token)) if isinstance(token, str) else ()
        return eos_ids | {i for i in ids if i is not None}


@cache
def byte_level_alphabet() -> dict[str, int]:
    """Return the byte of each character of a ByteLevel vocabulary: printable bytes stand for themselves, the others
    for the characters from U+0100 on, in order (GPT-2's encoder.py, bytes_to_unicode)."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in printable)
    return {chr(byte): byte for byte in printable} | {chr(0x100 + n): byte for n, byte in enumerate(others)}


def load_tokenizer(name: str, thinking: bool = True, rewrites: bool = False) -> Tokenizer:
    """Return the tokenizer of a model name (see models.weights.resolve)."""
    return Tokenizer(resolve(name), thinking, rewrites)


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
    known = [token for token in added if token["id"] < rows]
    lost = [token["content"] for token in added if token["id"] >= rows]
    return {**spec, "added_tokens": known, "padding": None, "truncation": None}, lost


def _is_control(token: dict) -> bool:
    """Return whether an added token is a control token, which text from outside must not contain: a special one, or one
    with brackets, such as Qwen's <tool_call>. The others are words, line breaks or spaces of the vocabulary."""
    return bool(token.get("special")) or re.search(r"[<>\[\]|\uff5c]", token["content"]) is not None


def _not_found(tokenizer: "Guarded", names: dict[str, str], ids: dict[str, int]) -> list[str]:
    """Return the control tokens whose names are not read as control tokens in the middle and at the end of a text."""
    written = [*names, *names]
    encoded = tokenizer.encode("a" + "a".join(names[token] for token in written), add_special_tokens=False).ids
    known = set(ids.values())
    read = [i for i in encoded if i in known]
    if read == [ids[token] for token in written]:
        return []
    return [token for token in names if read.count(ids[token]) != 2] or written[:1]


def _renamed(spec: dict, names: dict[str, str]) -> dict:
    """Return a tokenizer.json with control tokens renamed by `names`, and without merges that make the old names.

    The names are looked for before the text is normalized, and inside words too: else a normalizer that changes the
    text around a name, or a letter behind it, would make it plain text.
    """
    model, found_anywhere = spec["model"], {"normalized": False, "single_word": False}
    added = [
        {**token, "content": names[token["content"]], **found_anywhere} if token["content"] in names else token
        for token in spec["added_tokens"]
    ]
    if isinstance(model["vocab"], dict) and not names.keys().isdisjoint(model["vocab"]):
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", [])]
        model = {
            **model,
            "vocab": {names.get(piece, piece): i for piece, i in model["vocab"].items()},
            "merges": [pair for pair in merges if names.keys().isdisjoint((*pair, "".join(pair)))],
            "unk_token": names.get(model.get("unk_token"), model.get("unk_token")),
        }
    return {**spec, "added_tokens": added, "model": model}


def _check_stage(stage: str, component: object) -> None:
    """Raise ValueError for an unsupported component, and for those that together make a text grow without measure."""
    growth, parts = 1.0, list(_parts(stage, component))
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


def _parts(stage: str, component: Any) -> Iterator[dict]:
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
