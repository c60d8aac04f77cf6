"""Text to ids and back, and conversations to ids, in the turns of the checkpoint's family.

    tokenizer.prompt([{"role": "user", "content": "Goal: craft a door."}])

Ids are only ever appended. What the model sampled stays as it was sampled, and text from outside (an environment, a
user) goes to a tokenizer that knows the control tokens by secret names, so it cannot produce one: an observation that
contains "<|im_end|>" is read as those characters.
"""

import json
from collections.abc import Callable
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from models.chat import formats as turns
from models.chat.jinja import compiled
from models.chat.templates import Template
from models.weights import resolve

_USER, _SYSTEM = {"role": "user", "content": " What is 2 + 2?\n"}, {"role": "system", "content": "\nBe brief. "}
_THOUGHT = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4 \n"}
_REPLY, _TOOL = {"role": "assistant", "content": "\n 4"}, {"role": "tool", "content": ' {"sum": "四"} \n'}
PROBES = (  # conversations that tell the formats apart
    [_USER],
    [_SYSTEM, _USER],
    [_SYSTEM, _USER, _THOUGHT, _USER, _REPLY, _SYSTEM, _USER],
    [_USER, _REPLY, _TOOL, _TOOL, _THOUGHT, _TOOL, _REPLY],
    [_USER, _TOOL, _USER, _THOUGHT],
)


class Tokenizer:
    """The tokenizer of a checkpoint, and the format of its turns.

    The format is written by hand (formats.py) where one of those writes what the checkpoint's chat template does,
    else it is the template itself (models.chat.templates), and with no template the control tokens tell the family.

    thinking: False asks a model whose format knows thoughts (Qwen3) for replies without; elsewhere it changes nothing.
    eos_ids:  frozenset of the ids that end a turn, merged from generation_config, config, tokenizer files and format.
    folder:   where its files are, for those who write a checkpoint.
    """

    def __init__(self, folder: Path, thinking: bool = True):
        self.folder = Path(folder)
        path = self.folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(f"{path}: the model folder has no tokenizer.json")
        try:
            spec = json.loads(path.read_text())
            self._full = FastTokenizer.from_str(json.dumps(spec))
            added = {token["content"]: token["id"] for token in spec.get("added_tokens", [])}
            mark = turns.Marks(added)
            self._secret = FastTokenizer.from_str(json.dumps(_renamed(spec, mark.names)))
            moved = [token for token, name in mark.names.items() if self._secret.token_to_id(name) != added[token]]
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"{path}: not a tokenizer file ({error})") from None
        if moved:
            raise ValueError(f"{path}: the control token {moved[0]!r} cannot be told from text in this vocabulary")
        self.control_ids = frozenset(added.values())
        self.vocab_size = self._full.get_vocab_size()
        self.eos_ids = frozenset(self._read_eos(added))
        self._format, self._refusal, self._end = None, "", None
        try:
            self._format = self._choose_format(mark, thinking)
            self._end = self.encode(self._format.end)[0]
            self.eos_ids |= {self._end}
        except ValueError as error:  # text can be read all the same
            self._refusal = str(error)

    def encode(self, text: str) -> list[int]:
        """Ids of text from anywhere; no control token can come out. Half a surrogate pair is read as "?"."""
        return self._secret.encode(text.encode(errors="replace").decode(), add_special_tokens=False).ids

    def decode(self, ids: list[int]) -> str:
        """Text without control tokens. Ids past the tokenizer's vocabulary (padding rows of the head) vanish."""
        return self._full.decode([i for i in ids if i < self.vocab_size], skip_special_tokens=True)

    def answer(self, ids: list[int]) -> str:
        """The text of a sampled reply without the thoughts before it; nothing, if it does not come to their end."""
        return turns.without_thoughts(self.decode(ids[:-1] if ids[-1:] and ids[-1] in self.eos_ids else ids))

    def show(self, ids: list[int]) -> str:
        """Text with control tokens, for people."""
        return self._full.decode([i for i in ids if i < self.vocab_size], skip_special_tokens=False)

    def prompt(self, messages: list[dict], header: bool = True) -> list[int]:
        """Ids of a conversation up to and including the header of the assistant's next turn, if that is wanted.

        They are those of the chat template for all messages at once. Qwen3's drops thoughts that lie before the last
        question, from what is given here; what is sampled later keeps its own, since follow_up only appends.
        """
        turns.check(messages)
        return self.encode(self._written("render", messages, header))

    def follow_up(self, last_id: int, messages: list[dict]) -> list[int]:
        """Ids that continue after a sampled turn whose last id is given: its close, the messages, the next header.

        A turn that was cut off by a limit is closed here, by ids that nobody sampled.
        """
        turns.check(messages)
        return self._after(*self._written("follow_up", last_id == self._end, messages))

    def reply(self, content: str) -> list[int]:
        """Ids of an assistant's reply as the model would sample it: the text and the stop token. Where the format knows
        thoughts they come first, as in its template: those that `content` holds in <think> marks, or an empty block."""
        return self._after(*self._written("reply", content))

    def _written(self, kind: str, *args):
        """What the format writes. Raises ValueError, one line, with the folder that it is of."""
        try:
            if self._format is None:
                raise ValueError(self._refusal)
            return getattr(self._format, kind)(*args)
        except ValueError as error:
            raise ValueError(f"{self.folder}: {error}") from None

    def _after(self, before: str, text: str) -> list[int]:
        """Ids of a text that does not begin where the tokenizer would put what it puts at the start of every text."""
        head, ids = self.encode(before), self.encode(before + text)
        return ids[len(head) :] if ids[: len(head)] == head else self.encode(text)

    def _choose_format(self, mark: turns.Marks, thinking: bool) -> turns.ChatML | turns.Llama3 | Template:
        template, formats = self._chat_template(), turns.by_hand(mark, thinking)
        if template is None:
            if not formats:
                raise ValueError("no chat template, and no control tokens of ChatML or Llama 3, to write turns with")
            return formats[0]
        variables = self._template_variables() | ({} if thinking else {"enable_thinking": False})
        run = compiled(template)
        for written in formats:
            if _agree(mark, written, run, variables):
                return written
        return Template(run, mark, variables)

    def _chat_template(self) -> str | None:
        path = self.folder / "chat_template.jinja"
        if path.is_file():
            return path.read_text()
        found = self._read_json("tokenizer_config.json").get("chat_template")
        if isinstance(found, list):
            named = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}
            if "default" not in named:
                raise ValueError(f"no chat template is named default, only {', '.join(map(str, named))}")
            found = named["default"]
        if not isinstance(found, str | None):
            raise ValueError(f"tokenizer_config.json: chat_template must be a text, not {str(found)[:60]}")
        return found or None

    def _template_variables(self) -> dict[str, str]:
        """bos_token, eos_token and the like."""
        found = {}
        for name in ("special_tokens_map.json", "tokenizer_config.json"):
            for key, token in self._read_json(name).items():
                text = token.get("content") if isinstance(token, dict) else token
                if key.endswith("_token") and isinstance(text, str):
                    found[key] = text
        return found

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
        ids = (added.get(token), self._full.token_to_id(token) if token else None)
        return found | {i for i in ids if i is not None}


def _agree(mark: turns.Marks, written: turns.ChatML | turns.Llama3, run: Callable[..., str], variables: dict) -> bool:
    """Whether a format by hand writes the probes as the chat template does."""
    try:
        return all(
            mark.show(written.render(probe, header)) == run(messages=probe, add_generation_prompt=header, **variables)
            for probe in PROBES
            for header in (True, False)
        )
    except ValueError:  # the template refuses a probe
        return False


def _renamed(spec: dict, names: dict[str, str]) -> dict:
    """A tokenizer.json in which control tokens have other names: no text, and no merge of pieces, is one of them."""
    model, added = spec["model"], [{**token, "content": names[token["content"]]} for token in spec["added_tokens"]]
    vocab = model["vocab"]
    if isinstance(vocab, dict) and not names.keys().isdisjoint(vocab):
        merges = [pair.split(" ") if isinstance(pair, str) else pair for pair in model.get("merges", [])]
        model = {
            **model,
            "vocab": {names.get(piece, piece): i for piece, i in vocab.items()},
            "merges": [pair for pair in merges if names.keys().isdisjoint((*pair, "".join(pair)))],
            "unk_token": names.get(model.get("unk_token"), model.get("unk_token")),
        }
    return {**spec, "added_tokens": added, "model": model}


def load_tokenizer(name: str, thinking: bool = True) -> Tokenizer:
    """The tokenizer of a model name (see models.weights.resolve)."""
    return Tokenizer(resolve(name), thinking)
