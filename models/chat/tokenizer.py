"""Encode text as token ids, decode ids, and encode conversations in the chat format of the checkpoint.

    tokenizer.prompt([{"role": "user", "content": "Goal: craft a door."}])

Ids are only ever appended: sampled ids are never decoded and encoded again. Text from outside (an environment, a user)
cannot produce a control token: an observation that contains "<|im_end|>" is encoded as those characters. Of an
assistant's messages <think> and <tool_call> with their ends are the tokenizer's own. models/chat/tokenizer_file.py
reads the file.
"""

import re
import sys
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path

from models.chat.formats import ANSWER, THINK, Marks, check, has_tools, in_thought, without_thoughts
from models.chat.templates import ASKED, SAID, Format, NoFormat, choose_format, read_template
from models.chat.tokenizer_file import Guarded, parts_of, read_spec
from models.chat.tool_formats import choose_call_reader, tools_format
from models.chat.tools import Reader
from models.json_file import read_object
from models.refusal import Refusal
from models.weights import resolve

MOST_FIRST = 8  # tokens before a plain text
PROBE = "The Quick, brown fox: 0123456789\n\tdéjà 漢字 <b> 'x' [1] {y}\n end."
HALF = "\ufffd"  # what decoding a part of a character's bytes gives


class Tokenizer:
    """The tokenizer of a checkpoint and its chat format (models/chat/formats.py).

    thinking: False makes a model whose format has thoughts (Qwen3) reply without them; models without thoughts ignore
        it, and `check_thinking` refuses it for a template that opens thoughts in any case.
    prepends: the tokenizer.json puts a character before each piece of text between control tokens.
    eos_ids:  frozenset of the ids that end a reply, merged from generation_config, config, tokenizer files and format.
    """

    def __init__(self, folder: Path, thinking: bool = True, rewrites: bool = False):
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            save = "AutoTokenizer.from_pretrained(...).save_pretrained(...) of transformers writes tokenizer.json"
            pieces = (self.folder / "tokenizer.model").is_file()
            hint = f"; of SentencePiece's tokenizer.model, which is there, {save}" * pieces
            raise FileNotFoundError(f"{path}: the model folder has no tokenizer.json{hint}")
        for name in ("config.json", "tokenizer_config.json"):
            read_object(self.folder / name)  # read beside tokenizer.json below: a broken one is named as itself
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
        self.prepends = any(part["type"] == "Prepend" for part in parts_of("normalizer", spec.get("normalizer")))
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

    def message(self, ids: list[int], tools: bool = False) -> dict:
        """Return the message of a sampled reply, for a template that renders it again. Thoughts that were cut off are
        closed, so that the template knows them from the answer.

        tools: the message has the reply's calls of tools as `tool_calls`; a reply with a malformed call stays text.
        """
        text = self._said(ids)
        if self._format.opens_thought:
            text = f"{THINK}\n{text}"
        text = f"{text}\n{ANSWER}\n\n" if in_thought(text) else text
        message: dict = {"role": "assistant", "content": text}
        if tools:
            with suppress(Refusal, RecursionError):
                said, calls = self.calls(ids)
                thoughts = "".join(text.rpartition(ANSWER)[:2])
                content = "\n\n".join(filter(None, (thoughts, said)))
                message |= {"content": content, "tool_calls": calls} if calls else {}
        return message

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

    def check_thinking(self) -> None:
        """Raise Refusal if replies are to have no thoughts, and the chat template opens one in each."""
        if not self._thinking and self._format.opens_thought:
            always = f"the chat template opens {THINK} in every reply, also with thinking=false"
            bound = "max_thinking_tokens= of train.py and eval.py bounds thoughts"
            raise Refusal(f"{self.folder}: {always}: take thinking=true; {bound}")

    @property
    def has_thoughts(self) -> bool:
        """Whether the chat template knows the tag that ends thoughts."""
        return ANSWER in str(read_template(self.folder))

    @property
    def opens_thought(self) -> bool:
        """Whether the header of a reply ends inside a think block."""
        return self._format.opens_thought

    def check_tools(self) -> None:
        """Raise Refusal if the checkpoint has no format for tools and their calls that is read here."""
        _ = self._call_reader

    @cached_property
    def _call_reader(self) -> Reader:
        return choose_call_reader(self._tools_format, self._mark, self.folder)

    @cached_property
    def _tools_format(self) -> Format:
        return tools_format(self.folder, self._mark, self._thinking, self._format, self._rewrites)

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
        eos_ids, rows = set(), read_object(self.folder / "config.json").get("vocab_size")
        rows = rows if type(rows) is int else 2**20  # as read_spec
        for name in ("generation_config.json", "config.json"):
            value = read_object(self.folder / name).get("eos_token_id")
            values = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(i) is int for i in values):
                raise Refusal(f"{self.folder / name}: eos_token_id must be ids, not {value!r}")
            if others := [i for i in values if not 0 <= i < rows]:
                raise Refusal(
                    f"{self.folder / name}: eos_token_id {others[0]} is not in 0 to {rows - 1}, the model's rows"
                )
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


def _is_control(token: dict) -> bool:
    """Return whether an added token is a control token, which text from outside must not contain: a special one, or one
    with brackets, such as Qwen's <tool_call>. The others are words, line breaks or spaces of the vocabulary."""
    return bool(token.get("special")) or re.search(r"[<>\[\]|\uff5c]", token["content"]) is not None


def _not_found(tokenizer: Guarded, names: dict[str, str], ids: dict[str, int]) -> list[str]:
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
