"""Conversations as text, as the chat templates of the families write them: ChatML and Llama 3, by hand.

    <|im_start|>user\\nGoal: craft a door.<|im_end|>\\n<|im_start|>assistant\\n ...

A format has `end`, the token that ends a reply, and writes three kinds of text. Control tokens stand in it under the
names that Marks gives them, what people and worlds say stands as it is.

    render(messages, header)        a conversation, and with `header` what opens the assistant's next turn
    reply(content)                  -> (before, text): what the model would sample, and what stands before it
    follow_up(closed, messages)     -> (before, text): what follows a reply, which is still to be closed or is not

Facts from the templates of Qwen2.5, Qwen3, Qwen3-2507 and Llama 3, 3.1, 3.2; the tests compare with them.
"""

import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass

ROLES = ("system", "user", "assistant", "tool")
THINK, ANSWER = "<think>", "</think>"  # open and close what a model thinks before it answers
TODAY = "26 Jul 2024"  # Llama 3.1's constant; Llama 3.2 would ask the clock, and a prompt must not depend on the day
QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


class Marks:
    """Control tokens under names that no text can guess, other ones in every process.

    A conversation is put together as one string and encoded by a tokenizer that knows its control tokens by these names
    alone. Text can therefore say anything, "<|im_end|>" too, and is read as those characters.
    """

    def __init__(self, tokens: Iterable[str]):
        key = secrets.randbelow(10**20)
        self.names = {token: f"\ue000{key}.{i}\ue001" for i, token in enumerate(tokens)}
        self.pattern = re.compile(f"\ue000{key}\\.([0-9]+)\ue001")
        solid = sorted((token for token in self.names if token.strip()), key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, solid)) or r"(?!)")
        edges = {c for token in solid for c in (token[0], token[-1]) if not c.isspace()}
        self._disguise = {ord(c): f"\ue002{key}.{ord(c)}\ue003" for c in edges}
        self._disguised = re.compile(f"\ue002{key}\\.([0-9]+)\ue003")

    def __call__(self, token: str) -> str:
        """The name of a control token; the token as text where the tokenizer has no such token."""
        return self.names.get(token, token)

    def show(self, text: str) -> str:
        """Text with the tokens themselves for their names, to be looked at or compared."""
        tokens = list(self.names)
        return self.pattern.sub(lambda name: tokens[int(name[1])], text)

    def hide(self, text: str) -> str:
        """Text for a template to work on: no control token is in it, nor begins or ends in it."""
        return text.translate(self._disguise)

    def reveal(self, rendered: str) -> str:
        """What a template made of hidden text: its own control tokens under their names, the text as it was."""
        parts = self._disguised.split(rendered)
        parts[::2] = [self._tokens.sub(lambda token: self.names[token[0]], part) for part in parts[::2]]
        parts[1::2] = [chr(int(code)) for code in parts[1::2]]
        return "".join(parts)


@dataclass(frozen=True)
class ChatML:
    """The turns of Qwen, and of many others.

    system:   what is said to a conversation that has no system message of its own (Qwen2.5).
    grouped:  consecutive tool results share a turn of the user (Qwen); else each is a turn of the role "tool".
    thinking: None where the family has no thoughts. Else (Qwen3) a reply opens with a think block, and False puts an
        empty one into the header. A conversation that is given loses the thoughts before its last question, as in
        Qwen3's template. What was sampled keeps them: ids are only ever appended.
    """

    mark: Marks
    system: str | None = None
    grouped: bool = False
    thinking: bool | None = None

    @property
    def end(self) -> str:
        return self.mark("<|im_end|>")

    @property
    def header(self) -> str:
        opened = f"{self.mark('<|im_start|>')}assistant\n"
        return opened + self._block("") if self.thinking is False else opened

    def render(self, messages: list[dict], header: bool = True) -> str:
        if self.system and (not messages or messages[0]["role"] != "system"):
            messages = [{"role": "system", "content": self.system}, *messages]
        return self._turns(messages, len(messages) - 1) + (self.header if header else "")

    def reply(self, content: str) -> tuple[str, str]:
        if self.thinking is None:
            return self.header, content + self.end
        thought, answer = _thought_and_answer(content)
        if self.thinking:
            return self.header, self._block(thought) + answer.lstrip("\n") + self.end
        if ANSWER in content:
            raise ValueError(f"a reply with thoughts, {content[:40]!r}, where thinking is off")
        return self.header, answer.lstrip("\n") + self.end

    def follow_up(self, closed: bool, messages: list[dict]) -> tuple[str, str]:
        text = "\n" + self._turns(messages, -1) + self.header
        return (self.end, text) if closed else ("", self.end + text)

    def _turns(self, messages: list[dict], question: int) -> str:
        """question: where the last question stands if none is among the messages."""
        start, end, roles = self.mark("<|im_start|>"), self.end, [message["role"] for message in messages]
        question = max((i for i, message in enumerate(messages) if _is_question(message)), default=question)
        parts = []
        for i, (role, content) in enumerate(zip(roles, (m["content"] for m in messages), strict=True)):
            if role == "tool" and self.grouped:
                parts += [f"{start}user"] if roles[:i][-1:] != ["tool"] else []
                parts += [f"\n{self.mark('<tool_response>')}\n{content}\n{self.mark('</tool_response>')}"]
                parts += [f"{end}\n"] if roles[i + 1 :][:1] != ["tool"] else []
                continue
            if role == "assistant" and self.thinking is not None:
                thought, content = _thought_and_answer(content)
                if i > question and (thought or i == len(messages) - 1):
                    content = self._block(thought) + content.lstrip("\n")
            parts.append(f"{start}{role}\n{content}{end}\n")
        return "".join(parts)

    def _block(self, thought: str) -> str:
        return f"{self.mark(THINK)}\n{thought}\n{self.mark(ANSWER)}\n\n"


@dataclass(frozen=True)
class Llama3:
    """The turns of Llama 3, whose texts lose the white space around them.

    dated: 3.1 and 3.2, which open with a system block of dates (TODAY, always) and read tool results as JSON strings.
    """

    mark: Marks
    dated: bool = False

    @property
    def end(self) -> str:
        return self.mark("<|eot_id|>")

    @property
    def header(self) -> str:
        return f"{self.mark('<|start_header_id|>')}assistant{self.mark('<|end_header_id|>')}\n\n"

    def render(self, messages: list[dict], header: bool = True) -> str:
        first = ""
        if self.dated:
            system = bool(messages) and messages[0]["role"] == "system"
            said = messages[0]["content"].strip() if system else ""
            first = self._turn("system", f"Cutting Knowledge Date: December 2023\nToday Date: {TODAY}\n\n{said}")
            messages = messages[system:]
        return self.mark.names.get("<|begin_of_text|>", "") + first + self._turns(messages) + self.header * header

    def reply(self, content: str) -> tuple[str, str]:
        return self.header, content.strip() + self.end

    def follow_up(self, closed: bool, messages: list[dict]) -> tuple[str, str]:
        text = self._turns(messages) + self.header
        return (self.end, text) if closed else ("", self.end + text)

    def _turns(self, messages: list[dict]) -> str:
        return "".join(
            self._turn("ipython", json.dumps(message["content"], ensure_ascii=False))
            if self.dated and message["role"] == "tool"
            else self._turn(message["role"], message["content"].strip())
            for message in messages
        )

    def _turn(self, role: str, content: str) -> str:
        return f"{self.mark('<|start_header_id|>')}{role}{self.mark('<|end_header_id|>')}\n\n{content}{self.end}"


def by_hand(mark: Marks, thinking: bool) -> list[ChatML | Llama3]:
    """The formats whose control tokens a tokenizer has, the plainest first."""
    formats = []
    if {"<|im_start|>", "<|im_end|>"} <= mark.names.keys():
        formats = [ChatML(mark), ChatML(mark, grouped=True), ChatML(mark, QWEN_SYSTEM, grouped=True)]
        formats += [ChatML(mark, grouped=True, thinking=thinking)]
    if {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"} <= mark.names.keys():
        formats += [Llama3(mark), Llama3(mark, dated=True)]
    return formats


def check(messages: list[dict]) -> None:
    """Raises ValueError, one line, for a message that is not a role and a text."""
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise ValueError(f"message {i}: role {role!r} is not one of {', '.join(ROLES)}")
        if message.get("tool_calls"):
            raise ValueError(f"message {i}: tool_calls are not supported; write the call into the content, as text")
        if not isinstance(content, str):
            raise ValueError(f"message {i}: content must be a text, not {str(content)[:60]}")
        if others := message.keys() - {"role", "content", "tool_calls"}:
            raise ValueError(f"message {i}: only role and content are read, not {min(others)}")


def _is_question(message: dict) -> bool:
    """Whether a person asks: Qwen3's template keeps the thoughts since then. A tool may also answer as the user."""
    content = message["content"]
    answered = content.startswith("<tool_response>") and content.endswith("</tool_response>")
    return message["role"] == "user" and not answered


def _thought_and_answer(content: str) -> tuple[str, str]:
    """What stands in the think block of a reply, and what after it."""
    if ANSWER not in content:
        return "", content
    thought = content.split(ANSWER)[0].rstrip("\n").split(THINK)[-1].strip("\n")
    return thought, content.split(ANSWER)[-1].lstrip("\n")


def without_thoughts(reply: str) -> str:
    """What follows the thoughts of a reply; nothing, if it does not come to their end."""
    _, end, answer = reply.rpartition(ANSWER)
    if end:
        return answer.lstrip("\n")
    return "" if answer.startswith(THINK) else answer
