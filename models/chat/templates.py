"""Choose a checkpoint's chat format: a hand-written one that agrees with its template, or the template itself.

A template is an untrusted jinja2 program that renders a whole conversation at once. Message text is disguised before
rendering, so that the control tokens in the result are the template's own. What an episode appends is the difference of
two renderings. A template is refused if the rendering of a longer conversation does not begin with that of a shorter
one, because it rewrites what the model has already read.

A template may drop the thoughts of all messages that it is given (DeepSeek-R1-Distill): that rewrites nothing. Sampled
thoughts stay, thoughts in a given conversation are lost.
"""

import json
import re
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from models.chat.formats import (
    ANSWER,
    CHATML_TEMPLATE,
    CLOSE,
    NAME_BEGINS,
    NAME_ENDS,
    OPEN,
    QWEN_SYSTEM,
    THINK,
    ChatML,
    Llama3,
    Marks,
    Qwen,
)
from models.chat.jinja import Compiled, compiled
from models.json_file import read_bytes, read_object
from models.refusal import Refusal

ASKED, SAID = "Qhjx?", "Wvkz!"  # texts of the probes, found again in a rendering
_USER, _SYSTEM = {"role": "user", "content": " What is 2 + 2?\n"}, {"role": "system", "content": "\nBe brief. "}
_THOUGHT = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4 \n"}
_REPLY, _TOOL = {"role": "assistant", "content": "\n 4"}, {"role": "tool", "content": ' {"sum": "四"} \n'}
LEFT_OUT = {
    "system": "a system message: put its text into the first question",
    "user": "a message of the user",
    "assistant": "a message of the assistant",
    "tool": "the result of a tool: put its text into a message of the user",
}
PROBES = (  # conversations on which no two formats agree
    [_USER],
    [_SYSTEM, _USER],
    [_SYSTEM, _USER, _THOUGHT, _USER, _REPLY, _SYSTEM, _USER],
    [_USER, _REPLY, _TOOL, _TOOL, _THOUGHT, _TOOL, _REPLY],
    [_USER, _TOOL, _USER, _THOUGHT],
)


class Format(Protocol):
    """Writes conversations as text in which control tokens have the names that Marks gives them."""

    @property
    def end(self) -> str:
        """The token that ends a reply; "" without a chat format."""

    @property
    def opens_thought(self) -> bool:
        """Whether the header of a reply ends inside a think block."""

    @property
    def render(self) -> Callable[..., str]:
        """(messages, header=True) -> a conversation, and if `header` the header that opens the next reply."""

    @property
    def reply(self) -> Callable[..., tuple[str, str]]:
        """(content; with tools also calls) -> (the text before a reply, the reply as the model would sample it)."""

    @property
    def follow_up(self) -> Callable[[bool, list[dict]], tuple[str, str]]:
        """(closed, messages) -> (the end of the previous reply, the text that follows, which ends the reply if not
        closed)."""


class NoFormat:
    """The format of a checkpoint without one: writing a conversation raises ValueError(reason), plain text works."""

    end, opens_thought = "", False

    def __init__(self, reason: str):
        self.reason = reason

    def render(self, *conversation):
        raise Refusal(self.reason)

    reply = follow_up = render


def choose_format(folder: Path, mark: Marks, thinking: bool, rewrites: bool = False) -> Format:
    """Return the format of a checkpoint: as its chat template writes, or without a template as its control tokens say.
    If neither gives a format, return NoFormat with the reason in one line.

    rewrites: accept a template that rewrites earlier replies, for a caller that renders whole conversations.
    """
    try:
        template = read_template(folder)
        other = read_object(folder / "tokenizer_config.json").get("chat_template")
        if isinstance(template, str) and isinstance(other, str) and other.strip() and other.strip() != template.strip():
            print(
                f"{folder}: chat_template.jinja is read, not the other template in tokenizer_config.json",
                file=sys.stderr,
            )
        return _choose(template, folder, mark, thinking, rewrites)
    except ValueError as error:
        return NoFormat(f"{folder}: {error}")


def read_template(folder: Path) -> object:
    """Return the chat template in chat_template.jinja or, without that file, in tokenizer_config.json; None without."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        return read_bytes(path).decode()
    return read_object(folder / "tokenizer_config.json").get("chat_template") or None


def _choose(template: object, folder: Path, mark: Marks, thinking: bool, rewrites: bool) -> Format:
    if template in (None, CHATML_TEMPLATE) and {"<|im_start|>", "<|im_end|>"} <= mark.names.keys():
        return ChatML(mark)
    formats, source = hand_written(mark, thinking), default_template(template)
    if source is None:
        if not formats:
            raise Refusal("no chat template, and no control tokens of ChatML or Llama 3 to write messages with")
        return formats[0]
    variables, run = template_variables(folder, thinking), compiled(source)
    for written in formats:
        if agree(mark, written, run, variables):
            return written
    return Template(run, mark, variables, folder, rewrites)


def hand_written(mark: Marks, thinking: bool) -> list[Format]:
    """Return the hand-written formats whose control tokens the tokenizer has, the plainest first."""
    formats: list[Format] = []
    if {"<|im_start|>", "<|im_end|>"} <= mark.names.keys():
        formats = [ChatML(mark), Qwen(mark), Qwen(mark, system=QWEN_SYSTEM), Qwen(mark, thinking=thinking)]
    if {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"} <= mark.names.keys():
        formats += [Llama3(mark), Llama3(mark, dated=True)]
    return formats


TOOL_USE = "additional_chat_templates/tool_use.jinja"  # the template that transformers takes for tools


def default_template(given: object) -> str | None:
    """Return the template of a tokenizer_config.json, which is a text or a list of named texts."""
    if isinstance(given, list):
        named = {str(one.get("name")): one.get("template") for one in given if isinstance(one, dict)}
        if "default" not in named:
            raise Refusal(f"no chat template is named default, only {', '.join(map(str, named))}")
        given = named["default"] or None
    if not isinstance(given, str | None):
        raise Refusal(f"tokenizer_config.json: chat_template must be a text, not {str(given)[:60]}")
    return given


def template_variables(folder: Path, thinking: bool) -> dict[str, object]:
    """Return what templates refer to beside the conversation: bos_token, eos_token and the like, enable_thinking."""
    tokens: dict[str, object] = {} if thinking else {"enable_thinking": False}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, token in read_object(folder / name).items():
            text = token.get("content") if isinstance(token, dict) else token
            if key.endswith("_token") and isinstance(text, str):
                tokens[key] = text
    return tokens


def agree(mark: Marks, written: Format, run: Callable[..., str], variables: dict) -> bool:
    """Return whether a hand-written format and a compiled chat template write all probes alike."""
    try:
        return all(
            show(mark, written.render(probe, header)) == run(messages=probe, add_generation_prompt=header, **variables)
            for probe in PROBES
            for header in (True, False)
        )
    except ValueError:  # the template refuses a probe
        return False


def with_deadline(method: Callable) -> Callable:
    """Decorator of a Template's method: give it time of its own, and put the checkpoint's folder before the message of
    a ValueError."""

    @wraps(method)
    def call(self, *arguments, **options):
        self._run.renew()
        try:
            return method(self, *arguments, **options)
        except ValueError as error:
            raise Refusal(f"{self.folder}: {error}") from None

    return call


class Rendering:
    """Renders conversations with a compiled chat template. variables, folder: as Template has them."""

    def __init__(self, run: Compiled, mark: Marks, variables: dict[str, object], folder: Path):
        self.folder = folder
        self.mark, self._run, self._variables, self._disguise = mark, run, variables, Disguise(mark)

    @with_deadline
    def render(self, messages: list[dict], header: bool = True) -> str:
        return self._render(messages, header)

    def _render(self, messages: list[dict], header: bool = True, whole: bool = True) -> str:
        """whole: whether to raise ValueError if a text of a message, a call or a tool is not in the rendering."""
        disguised = [
            {"role": message["role"], "content": self._hide(message)}
            | ({"tool_calls": self._hide_all(message["tool_calls"])} if message.get("tool_calls") else {})
            for message in messages
        ]
        tools = self._hide_all(messages[0]["tools"]) if messages and messages[0].get("tools") else None
        rendered = self._run(messages=disguised, tools=tools, add_generation_prompt=header, **self._variables)
        if whole:
            _check_whole(disguised, tools, rendered)
        return self._disguise.reveal(rendered)

    def _hide_all(self, value: Any) -> Any:
        """Return a value of JSON with all texts in it disguised."""
        if isinstance(value, dict):
            return {self._disguise.hide(str(key)): self._hide_all(one) for key, one in value.items()}
        if isinstance(value, list):
            return [self._hide_all(one) for one in value]
        return self._disguise.hide(value) if isinstance(value, str) else value

    def _hide(self, message: dict) -> str:
        """Return a message's disguised text. An assistant's marks of thoughts and calls stay: templates look for the
        first, and both are the tokenizer's own."""
        parts = re.split(f"({THINK}|{ANSWER}|{OPEN}|{CLOSE})", message["content"])
        marked = message["role"] == "assistant"
        return "".join(part if marked and i % 2 else self._disguise.hide(part) for i, part in enumerate(parts))


class Template(Rendering):
    """A format (models.chat.formats.Format) that renders with a compiled chat template.

    variables: the template's variables beside the conversation: bos_token and the like, enable_thinking.
    folder: the checkpoint's, which errors name once the format is chosen.
    Raise ValueError with one line for a template that cannot be run, ends a reply with no control token, numbers its
    messages, rewrites earlier ones (unless `rewrites` allows it), or leaves out the text of a message. If it fails only
    with a system message, only such conversations are refused.
    """

    def __init__(self, run: Compiled, mark: Marks, variables: dict[str, object], folder: Path, rewrites: bool = False):
        super().__init__(run, mark, variables, folder)
        self._rewrites = rewrites
        user, assistant = {"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}
        self._asked, self._answered, self._after_last = [user], [user, assistant], ""
        open_, closed = (self._render(self._asked, header) for header in (True, False))
        self._after_last = closed[_common_prefix(closed, open_) :]  # of a conversation without a header, Phi-3's EOS
        self._probe([])
        self._no_system = None
        try:
            self._probe([{"role": "system", "content": "Ypfq."}])
        except ValueError as error:
            self._no_system = str(error)
        self._before, rendered = self._render(self._asked), self._render(self._answered, header=False)
        self._close = rendered[rendered.rindex(SAID) + len(SAID) :]
        ends = pattern(self.mark).search(self._close)
        if not ends:
            raise Refusal(f"the chat template ends a reply with {show(self.mark, self._close)!r}, no control token")
        self.end, shown = ends[0], show(self.mark, self._before)
        self.opens_thought = shown.rfind(THINK) > shown.rfind(ANSWER)
        self._open = self._before[_common_prefix(self._before, rendered) :]  # "<think>\n", absent from past replies

    @with_deadline
    def render(self, messages: list[dict], header: bool = True) -> str:
        if self._no_system and any(message["role"] == "system" for message in messages):
            raise Refusal(self._no_system)
        return self._render(messages, header)

    def _render(self, messages: list[dict], header: bool = True, whole: bool = True) -> str:
        """Without what ends a whole conversation: another message may follow."""
        rendered = super()._render(messages, header, whole)
        return rendered if header else rendered.removesuffix(self._after_last)

    @with_deadline
    def reply(self, content: str, calls: Sequence[dict] = ()) -> tuple[str, str]:
        if show(self.mark, self._open).startswith(THINK) and ANSWER not in content:
            content = f"{THINK}\n\n{ANSWER}\n\n{content}"  # a demonstration without thoughts
        message = {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})
        if self._open and not calls:
            text = self._disguise.reveal(self._hide(message)) + self._close
            if not text.startswith(self._open):
                opened = show(self.mark, self._open)
                raise Refusal(f"the chat template opens each reply with {opened!r}; {content[:40]!r} does not")
            text = text.removeprefix(self._open)
        else:
            text = _appended(self.mark, self._before, self._render([*self._asked, message], header=False))
        if self.end not in text:
            raise Refusal(
                f"the chat template does not end {show(self.mark, text)[-60:]!r} with {show(self.mark, self.end)}"
            )
        text = text[: text.rindex(self.end) + len(self.end)]
        if _longest_line(content.rpartition(ANSWER)[0].removeprefix(THINK)) not in show(self.mark, text):
            raise Refusal("the chat template leaves out the thoughts of a reply, which would not be learned")
        return self._before, text

    @with_deadline
    def follow_up(self, closed: bool, messages: list[dict]) -> tuple[str, str]:
        rendered = self._render(self._answered, header=False)
        more = _appended(self.mark, rendered, self._render([*self._answered, *messages]))
        if not closed:
            return SAID, self._close + more
        return self.end, self._close[self._close.index(self.end) + len(self.end) :] + more

    def _probe(self, first: list[dict]) -> None:
        """Raise ValueError if the template rewrites earlier messages, thoughts included, or numbers its messages."""
        thoughtful = {"role": "assistant", "content": f"{THINK}\nBgxd.\n{ANSWER}\n\n{SAID}"}
        talk = [*first, *self._asked, thoughtful, *self._asked, thoughtful, *self._asked]
        if self._rewrites:
            self._render(talk)
            return
        rendered = [self._render(talk[:n], False, whole=False) for n in range(len(first) + 1, len(talk) + 1)]
        added = [_appended(self.mark, *pair) for pair in pairwise(rendered)]
        if added[1] != added[3]:
            raise Refusal("the chat template numbers messages: a question differs after a second reply")
        if not all(SAID in text for text in added[::2]) or not all(ASKED in text for text in added[1::2]):
            raise Refusal("the chat template leaves out messages of the user or of the assistant")
        self._render(talk, header=False)


class Disguise:
    """Replaces the first and last characters of control tokens in message text by names that no text can contain."""

    def __init__(self, mark: Marks):
        key, self._names = secrets.randbelow(10**20), mark.names
        solid = sorted((token for token in mark.names if token.strip()), key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, solid)) or r"(?!)")
        edges = {c for token in solid for c in (token[0], token[-1]) if not c.isspace()}
        self._characters = {ord(c): f"\ue002{key}.{ord(c)}\ue003" for c in edges}
        self._disguised = re.compile(f"\ue002{key}\\.([0-9]+)\ue003")

    def hide(self, text: str) -> str:
        """Return text for a template to render: it contains no control token, nor the start or end of one."""
        return text.translate(self._characters)

    def reveal(self, rendered: str) -> str:
        """Return a rendering with the template's control tokens under their names and the messages' text restored."""
        parts = self._disguised.split(rendered)
        parts[::2] = [self._tokens.sub(lambda token: self._names[token[0]], part) for part in parts[::2]]
        parts[1::2] = [chr(int(code)) for code in parts[1::2]]
        return "".join(parts)


def _check_whole(messages: list[dict], tools: list[dict] | None, rendered: str) -> None:
    """Raise ValueError if a text of a message, a call or a tool is not in the rendering, as often as it was given."""
    needed: Counter[str] = Counter()

    def found(line: str) -> int:
        return sum(rendered.count(form) for form in {line, json.dumps(line, ensure_ascii=False)[1:-1]})

    def check(text: str, what: str) -> None:
        line = _longest_line(text)
        needed[line] += bool(line)
        if found(line) < needed[line]:
            raise Refusal(f"the chat template leaves out {what}")

    for text in _texts(tools):
        check(text, "the tools that a conversation declares")
    said = list(_texts(tools))
    for message in messages:
        is_reply = message["role"] == "assistant"
        said.append(message["content"].rpartition(ANSWER)[2] if is_reply else message["content"])
        check(said[-1], LEFT_OUT[message["role"]])
    called = [_longest_line(text) for message in messages for text in _texts(message.get("tool_calls"))]
    for line in filter(None, called):  # a call's words may be a message's too, as parts of longer lines
        if found(line) < sum(text.count(line) for text in [*said, *called]):
            raise Refusal("the chat template leaves out tool_calls: write the calls into the content, as text")


def _longest_line(text: str) -> str:
    """Return the line by which a text is looked for: templates strip texts, and write the breaks of lines in JSON."""
    return max((line.strip() for line in text.splitlines()), key=len, default="")


def _texts(value: object) -> Iterator[str]:
    """Yield the texts that a value of JSON holds beside its keys, "type" apart."""
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _texts(one) if key != "type" else ()
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str):
        yield value


def _appended(mark: Marks, before: str, after: str) -> str:
    """Return the text that the longer rendering adds to the shorter. Raise ValueError if it rewrites the shorter."""
    if not after.startswith(before):
        at = _common_prefix(before, after)
        near, first, later = (show(mark, text) for text in (before[:at], before[at:], after[at:]))
        raise Refusal(
            "the chat template rewrites earlier messages when more are appended: "
            f"after {near[-30:]!r} it has {first[:30]!r}, later {later[:30]!r}"
        )
    return after[len(before) :]


def _common_prefix(one: str, other: str) -> int:
    """Return the number of characters that two texts have in common before they differ, names taken as a whole."""
    shorter = min(len(one), len(other))
    at = next((i for i in range(shorter) if one[i] != other[i]), shorter)
    opened, ended = one.rfind(NAME_BEGINS, 0, at), one.rfind(NAME_ENDS, 0, at)
    return opened if opened > ended else at


def pattern(mark: Marks) -> re.Pattern:
    """Return a regular expression that matches each name."""
    return re.compile("|".join(map(re.escape, mark.names.values())) or r"(?!)")


def show(mark: Marks, text: str) -> str:
    """Return text with each name replaced by its control token, for people and comparisons."""
    tokens = {name: token for token, name in mark.names.items()}
    return pattern(mark).sub(lambda name: tokens[name[0]], text)
