"""Encode text as token ids, decode ids, and encode conversations in the chat format of the checkpoint.

    tokenizer.prompt([{"role": "user", "content": "Goal: craft a door."}])

Ids are only ever appended: sampled ids are never decoded and encoded again. Text from outside (an environment, a user)
cannot produce a control token: an observation that contains "<|im_end|>" is encoded as those characters.
"""

import json
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from models.chat.formats import CHATML_TEMPLATE, ChatML, Marks, check, without_thoughts
from models.json_file import TINY, read_object
from models.weights import resolve


class Tokenizer:
    """The tokenizer of a checkpoint and its chat format (models/chat/formats.py).

    thinking: False makes a model whose format has thoughts (Qwen3) reply without them; other models ignore it.
    eos_ids:  frozenset of the ids that end a reply, merged from generation_config, config, tokenizer files and format.
    """

    def __init__(self, folder: Path, thinking: bool = True):
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: the model folder has no tokenizer.json")
        try:
            if self.folder == TINY:
                spec, make = json.loads(path.read_text()), lambda spec: FastTokenizer.from_str(json.dumps(spec))
            else:
                from models.chat.tokenizer_file import opened

                spec, make = opened(path)
            added = {token["content"]: token["id"] for token in spec.get("added_tokens", [])}
            self._full, mark = make(spec), Marks(added)
            self._text = make(_renamed(spec, mark.names))  # cannot read control tokens
            moved = [token for token, name in mark.names.items() if self._text.token_to_id(name) != added[token]]
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"{path}: not a tokenizer file ({error})") from None
        if moved:
            raise ValueError(f"{path}: the control token {moved[0]!r} is not distinct from text in this vocabulary")
        self.control_ids = frozenset(added.values())
        self.vocab_size = self._full.get_vocab_size()
        self._format = self._choose_format(mark, thinking)
        ends = self.encode(self._format.end)[:1] if self._format.end else []
        self._end = ends[0] if ends else None
        self.eos_ids = frozenset([*self._read_eos(added), *ends])

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text. Half a surrogate pair is encoded as "?".

        Only a name from Marks becomes a control token. Text from outside cannot contain such a name.
        """
        return self._text.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Return text without control tokens. Drop ids past the vocabulary, which are padding rows of the head."""
        return self._full.decode([i for i in ids if i < self.vocab_size], skip_special_tokens=True)

    def answer(self, ids: list[int]) -> str:
        """Return the text of a sampled reply without its thoughts, or nothing if the thoughts were cut off."""
        return without_thoughts(self.decode(ids[:-1] if ids[-1:] and ids[-1] in self.eos_ids else ids))

    def show(self, ids: list[int]) -> str:
        """Return text with control tokens, for people to read."""
        return self._full.decode([i for i in ids if i < self.vocab_size], skip_special_tokens=False)

    def prompt(self, messages: list[dict], header: bool = True) -> list[int]:
        """Return the ids of a conversation, with `header` followed by the header of the assistant's next reply."""
        check(messages)
        return self.encode(self._format.render(messages, header))

    def follow_up(self, last_id: int, messages: list[dict]) -> list[int]:
        """Return the ids of the messages and the next header, which follow a sampled reply that ends with `last_id`.

        If `last_id` is not the format's end token, the ids start with that token; it was not sampled.
        """
        check(messages)
        return self._after(*self._format.follow_up(last_id == self._end, messages))

    def reply(self, content: str) -> list[int]:
        """Return the ids of a reply as the model samples it: a think block if the format has one, text, end token."""
        return self._after(*self._format.reply(content))

    def _after(self, before: str, text: str) -> list[int]:
        """Return the ids of `text` after `before`. Some tokenizers put a space before the first text."""
        head, ids = self.encode(before), self.encode(before + text)
        return ids[len(head) :] if ids[: len(head)] == head else self.encode(text)

    def _choose_format(self, mark: Marks, thinking: bool):
        """Return the Format (models/chat/choose.py) of the checkpoint."""
        template = read_object(self.folder / "tokenizer_config.json").get("chat_template")
        other = template != CHATML_TEMPLATE or (self.folder / "chat_template.jinja").is_file()
        if other or not {"<|im_start|>", "<|im_end|>"} <= mark.names.keys():
            from models.chat.choose import choose_format

            return choose_format(template, self.folder, mark, thinking)
        return ChatML(mark)

    def _read_eos(self, added: dict[str, int]) -> set[int]:
        found = set()
        for name in ("generation_config.json", "config.json"):
            value = read_object(self.folder / name).get("eos_token_id")
            values = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(i) is int for i in values):
                raise ValueError(f"{self.folder / name}: eos_token_id must be ids, not {value!r}")
            found |= set(values)
        token = read_object(self.folder / "tokenizer_config.json").get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        ids = (added.get(token), self._full.token_to_id(token)) if isinstance(token, str) else ()
        return found | {i for i in ids if i is not None}


def _renamed(spec: dict, names: dict[str, str]) -> dict:
    """Return a tokenizer.json with control tokens renamed by `names`, and without merges that make the old names."""
    model, added = spec["model"], [{**token, "content": names[token["content"]]} for token in spec["added_tokens"]]
    if isinstance(model["vocab"], dict) and not names.keys().isdisjoint(model["vocab"]):
        from models.chat.vocabulary import renamed_pieces

        model = renamed_pieces(model, names)
    return {**spec, "added_tokens": added, "model": model}


def load_tokenizer(name: str, thinking: bool = True) -> Tokenizer:
    """Return the tokenizer of a model name (see models.weights.resolve)."""
    return Tokenizer(resolve(name), thinking)
