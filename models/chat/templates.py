"""Choose a checkpoint's chat format: a hand-written one that agrees with its template, or the template itself.

A template is an untrusted jinja2 program that renders a whole conversation at once (rendering.py). What an episode
appends is the difference of two renderings. A template is refused if the rendering of a longer conversation does not
begin with that of a shorter one, because it rewrites what the model has already read.

A template may drop the thoughts of all messages that it is given (DeepSeek-R1-Distill): that rewrites nothing. Sampled
thoughts stay, thoughts in a given conversation are lost.
"""

import re
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from models.chat.formats import (
    ANSWER,
    CHATML_TEMPLATE,
    NAME_BEGINS,
    NAME_ENDS,
    QWEN_SYSTEM,
    THINK,
    ChatML,
    Llama3,
    Marks,
    Qwen,
)
from models.chat.jinja import Compiled, compiled
from models.chat.rendering import Rendering, longest_line, with_deadline
from models.json_file import read_bytes, read_object
from models.refusal import Refusal, say

ASKED, SAID = "Qhjx?", "Wvkz!"  # texts of the probes, found again in a rendering
_USER, _SYSTEM = {"role": "user", "content": " What is 2 + 2?\n"}, {"role": "system", "content": "\nBe brief. "}
_THOUGHT = {"role": "assistant", "content": "<think>\nTwo and two.\n</think>\n\n4 \n"}
_REPLY, _TOOL = {"role": "assistant", "content": "\n 4"}, {"role": "tool", "content": ' {"sum": "四"} \n'}
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
    if template == CHATML_TEMPLATE and {"<|im_start|>", "<|im_end|>"} <= mark.names.keys():
        return ChatML(mark)
    formats, source = hand_written(mark, thinking), default_template(template)
    if source is None:
        if not formats:
            raise Refusal("no chat template, and no control tokens of ChatML or Llama 3 to write messages with")
        name = "ChatML" if isinstance(formats[0], ChatML) else "Llama 3"
        say(f"no chat template in {folder}: messages are written as {name}, from its control tokens")
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


class Template(Rendering):
    """A format (models.chat.formats.Format) that renders with a compiled chat template.

    variables, folder: as a Rendering has them.
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
        self.end = ends[0]
        header = show(self.mark, self._before).rpartition(ASKED)[2]  # a system message may name the tag
        self.opens_thought = header.rfind(THINK) > header.rfind(ANSWER)
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
        thoughts, end, answer = content.rpartition(ANSWER)
        if not self._open:
            text = _appended(self.mark, self._before, self._after_question(content, calls))
        else:  # a past reply has no thoughts in this template
            before = self._before.removesuffix(self._open)
            said, close = (thoughts + end + "\n\n", "") if calls else (content, self._close)
            text = self._disguise.reveal(self._hide({"role": "assistant", "content": said})) + close
            if not text.startswith(self._open):
                opened = show(self.mark, self._open)
                raise Refusal(f"the chat template opens each reply with {opened!r}; {content[:40]!r} does not")
            text = text.removeprefix(self._open)
            if calls:
                text += _appended(self.mark, before, self._after_question(answer.lstrip("\n"), calls))
        if self.end not in text:
            raise Refusal(
                f"the chat template does not end {show(self.mark, text)[-60:]!r} with {show(self.mark, self.end)}"
            )
        text = text[: text.rindex(self.end) + len(self.end)]
        if longest_line(content.rpartition(ANSWER)[0].removeprefix(THINK)) not in show(self.mark, text):
            raise Refusal("the chat template leaves out the thoughts of a reply, which would not be learned")
        return self._before, text

    def _after_question(self, content: str, calls: Sequence[dict]) -> str:
        """Return a conversation of a question and this reply."""
        message = {"role": "assistant", "content": content} | ({"tool_calls": list(calls)} if calls else {})
        return self._render([*self._asked, message], header=False)

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


def _appended(mark: Marks, before: str, after: str) -> str:
    """Return the text that the longer rendering adds to the shorter. Raise ValueError if it rewrites the shorter."""
    if not after.startswith(before):
        at = _common_prefix(before, after)
        near, first, later = (show(mark, text) for text in (before[:at], before[at:], after[at:]))
        raise Refusal(
            "the chat template rewrites earlier messages when more are appended: "
            f"after {near[-30:]!r} it has {first[:30]!r}, later {later[:30]!r}; "
            "train.py and eval.py render each turn anew with history=template"
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
