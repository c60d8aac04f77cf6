"""Renders conversations with a checkpoint's chat template, which is an untrusted program.

The texts of messages are disguised before, so that the control tokens in the result are the template's own, and looked
for in the result, because a template may leave out what it does not know.
"""

import json
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from models.chat.formats import ANSWER, CLOSE, OPEN, THINK, Marks
from models.chat.jinja import Compiled
from models.refusal import Refusal

SWITCHES = re.compile(r"/(no_think|think|system_override)\b")  # SmolLM3's template obeys them in a system message
LEFT_OUT = {
    "system": "a system message: put its text into the first question",
    "user": "a message of the user",
    "assistant": "a message of the assistant",
    "tool": "the result of a tool: put its text into a message of the user",
}


def with_deadline(method: Callable) -> Callable:
    """Decorator of a Rendering's method: give it time of its own, and put the checkpoint's folder before the message of
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
    """Renders conversations with a compiled chat template.

    variables: the template's variables beside the conversation: bos_token and the like, enable_thinking.
    folder: the checkpoint's, which errors name once the format is chosen.
    """

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
        line = longest_line(text)
        needed[line] += bool(line)
        if found(line) < needed[line]:
            raise Refusal(f"the chat template leaves out {what}")

    for text in _texts(tools):
        check(text, "the tools that a conversation declares")
    said = list(_texts(tools))
    for message in messages:
        is_reply = message["role"] == "assistant"
        said.append(message["content"].rpartition(ANSWER)[2] if is_reply else message["content"])
        obeyed = message["role"] == "system" and not found(longest_line(said[-1]))
        check(SWITCHES.sub("", said[-1]) if obeyed else said[-1], LEFT_OUT[message["role"]])
    called = [longest_line(text) for message in messages for text in _texts(message.get("tool_calls"))]
    for line in filter(None, called):  # a call's words may be a message's too, as parts of longer lines
        if found(line) < sum(text.count(line) for text in [*said, *called]):
            beside = any(message["content"].strip() for message in messages if message.get("tool_calls"))
            what = "tool_calls, or the text beside them" if beside else "tool_calls"
            raise Refusal(f"the chat template leaves out {what}: write the calls into the content, as text")


def longest_line(text: str) -> str:
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
