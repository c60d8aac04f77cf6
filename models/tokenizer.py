"""Text to ids and back, and conversations to ids: ChatML, written out, never through a template's string.

    <|im_start|>user\\nGoal: craft a door.<|im_end|>\\n<|im_start|>assistant\\n ...

Ids are only ever appended. What the model sampled stays as it was sampled, and text from outside (an environment, a
user) goes through a copy of the tokenizer that has no added tokens, so it cannot produce a control token: an
observation that contains "<|im_end|>" is read as those characters.
"""

import json
import re
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from models.weights import resolve

ROLES = ("system", "user", "assistant")
QWEN_SYSTEM = re.compile(r"You are Qwen, created by Alibaba Cloud\. You are a helpful assistant\.")


class Tokenizer:
    """The tokenizer of a checkpoint, with the ChatML turn format.

    eos_ids: frozenset of the ids that end a turn, merged from generation_config, config and tokenizer files.
    folder:  where its files are, for those who write a checkpoint.
    """

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: the model folder has no tokenizer.json")
        try:
            spec = json.loads(path.read_text())
            self._full = FastTokenizer.from_str(json.dumps(spec))
            added = {token["content"]: token["id"] for token in spec.get("added_tokens", [])}
            self._plain = FastTokenizer.from_str(json.dumps({**spec, "added_tokens": [], "post_processor": None}))
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"{path}: not a tokenizer file ({error})") from None
        self.control_ids = frozenset(added.values())
        self.vocab_size = self._full.get_vocab_size()
        self._start, self._end = added.get("<|im_start|>"), added.get("<|im_end|>")
        self.eos_ids = frozenset(self._read_eos(added))
        template = self._read_json("tokenizer_config.json").get("chat_template") or ""
        jinja = self.folder / "chat_template.jinja"
        template = jinja.read_text() if jinja.is_file() else template if isinstance(template, str) else ""
        found = QWEN_SYSTEM.search(template)
        self.default_system = found.group(0) if found else None  # Qwen2.5 inserts one where a conversation has none

    def encode(self, text: str) -> list[int]:
        """Ids of text from anywhere; no control token can come out. Half a surrogate pair is read as "?"."""
        return self._plain.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Text without control tokens. Ids past the tokenizer's vocabulary (padding rows of the head) vanish."""
        return self._full.decode([i for i in ids if i < self.vocab_size], skip_special_tokens=True)

    def show(self, ids: list[int]) -> str:
        """Text with control tokens, for people."""
        return self._full.decode([i for i in ids if i < self.vocab_size], skip_special_tokens=False)

    def prompt(self, messages: list[dict]) -> list[int]:
        """Ids of a conversation up to and including the header of the assistant's next turn."""
        if self.default_system and (not messages or messages[0]["role"] != "system"):
            messages = [{"role": "system", "content": self.default_system}, *messages]
        return [i for message in messages for i in self.turn(**message)] + self._header("assistant")

    def turn(self, role: str, content: str) -> list[int]:
        """Ids of one closed turn."""
        if role not in ROLES:
            raise ValueError(f"role {role!r} is not one of {', '.join(ROLES)}")
        return self._header(role, content) + [self._end] + self.encode("\n")

    def follow_up(self, last_id: int, messages: list[dict]) -> list[int]:
        """Ids that continue after a sampled turn whose last id is given: its close, the messages, the next header.

        A turn that was cut off by a limit is closed here, by ids that nobody sampled.
        """
        close = [] if last_id == self._end else [self._end]
        turns = [i for message in messages for i in self.turn(**message)]
        return close + self.encode("\n") + turns + self._header("assistant")

    def reply(self, content: str) -> list[int]:
        """Ids of an assistant's reply as the model would sample it: the text and the stop token."""
        return self.encode(content) + [self._end]

    def _header(self, role: str, content: str = "") -> list[int]:
        if self._start is None or self._end is None:
            raise ValueError(
                f"{self.folder}: the tokenizer has no <|im_start|> and <|im_end|>; only ChatML is supported"
            )
        return [self._start] + self.encode(f"{role}\n{content}")

    def _read_json(self, name: str) -> dict:
        path = self.folder / name
        try:
            found = json.loads(path.read_text()) if path.is_file() else {}
        except ValueError as error:
            raise ValueError(f"{path}: not valid JSON ({error})") from None
        if not isinstance(found, dict):
            raise ValueError(f"{path}: not a JSON object")
        return found

    def _read_eos(self, added: dict[str, int]) -> set[int]:
        found = set()
        for name in ("generation_config.json", "config.json"):
            value = self._read_json(name).get("eos_token_id")
            values = value if isinstance(value, list) else [] if value is None else [value]
            if not all(type(i) is int for i in values):
                raise ValueError(f"{self.folder / name}: eos_token_id must be ids, not {value!r}")
            found |= set(values)
        token = self._read_json("tokenizer_config.json").get("eos_token")
        token = token.get("content") if isinstance(token, dict) else token
        ids = (added.get(token), self._full.token_to_id(token) if token else None, added.get("<|im_end|>"))
        return found | {i for i in ids if i is not None}


def load_tokenizer(name: str) -> Tokenizer:
    """The tokenizer of a model name (see models.weights.resolve)."""
    return Tokenizer(resolve(name))
