"""Chat formats: how a conversation becomes text, as the chat templates of the model families write it.

ChatML, and what all formats share; then Qwen2.5, Qwen3 and Qwen3-2507 (ChatML with tool results, thoughts, a default
system message), and Llama 3, 3.1 and 3.2.
"""

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from models.refusal import Refusal

ROLES = ("system", "user", "assistant", "tool")
THINK, ANSWER = "<think>", "</think>"  # around the thoughts that a reasoning model writes before its answer
OPEN, CLOSE = "<tool_call>", "</tool_call>"  # around a call of a tool in Qwen's format
QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
TODAY = "26 Jul 2024"  # Llama 3.1's constant; Llama 3.2 would read the clock, but a prompt must not depend on the day
CHATML_TEMPLATE = (  # recognised by its text: jinja2 is not needed to choose the format
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


NAME_BEGINS, NAME_ENDS = "\ue000", "\ue001"  # of a control token's name


class Marks:
    """Names for control tokens that no text can contain, because they are random in every process.

    A conversation is assembled as one string and encoded by a tokenizer that knows its control tokens only by these
    names. A message may therefore contain any text, even "<|im_end|>", and it is encoded as plain characters.
    """

    def __init__(self, tokens: Iterable[str]):
        key = secrets.randbelow(10**20)
        self.names = {token: f"{NAME_BEGINS}{key}.{i}{NAME_ENDS}" for i, token in enumerate(tokens)}

    def __call__(self, token: str) -> str:
        """Return a control token's name, or the token as plain text if the tokenizer has no such token."""
        return self.names.get(token, token)


@dataclass(frozen=True)
class ChatML:
    """The plain format that many models share: each message in its own <|im_start|> block."""

    mark: Marks
    opens_thought: ClassVar[bool] = False

    @property
    def end(self) -> str:
        return self.mark("<|im_end|>")

    @property
    def header(self) -> str:
        return f"{self.mark('<|im_start|>')}assistant\n"

    def render(self, messages: list[dict], header: bool = True) -> str:
        return self._messages(messages) + (self.header if header else "")

    def reply(self, content: str) -> tuple[str, str]:
        return self.header, self.mark_calls(content) + self.end

    def mark_calls(self, content: str) -> str:
        """Return an assistant's content in which the marks around calls of tools are the tokenizer's own."""
        return content.replace(OPEN, self.mark(OPEN)).replace(CLOSE, self.mark(CLOSE))

    def follow_up(self, closed: bool, messages: list[dict]) -> tuple[str, str]:
        text = "\n" + self._messages(messages) + self.header
        return (self.end, text) if closed else ("", self.end + text)

    def _messages(self, messages: list[dict]) -> str:
        return "".join(self._message(message["role"], message["content"]) for message in messages)

    def _message(self, role: str, content: str) -> str:
        content = self.mark_calls(content) if role == "assistant" else content
        return f"{self.mark('<|im_start|>')}{role}\n{content}{self.end}\n"


def check(messages: list[dict]) -> None:
    """Raise ValueError, one line, unless each message has a role, a text and, if it is an assistant's, well-formed
    tool_calls."""
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if role not in ROLES:
            raise Refusal(f"message {i}: role {role!r} is not one of {', '.join(ROLES)}")
        if not isinstance(content, str):
            raise Refusal(f"message {i}: content must be a text, not {str(content)[:60]}")
        for call in message.get("tool_calls") or []:
            if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
                raise Refusal(f"message {i}: a tool call must have a function with a name and arguments, not {call}")
        allowed = {"role", "content"} | ({"tool_calls"} if role == "assistant" else set()) | (set() if i else {"tools"})
        if others := message.keys() - allowed:
            raise Refusal(
                f"message {i}: a message of the {role} has no {min(others)}, only {', '.join(sorted(allowed))}"
            )


def has_tools(messages: list[dict]) -> bool:
    """Return whether a conversation declares tools or calls them."""
    return any(message.get("tools") or message.get("tool_calls") for message in messages)


def without_thoughts(reply: str, opened: bool = False) -> str:
    """Return the answer that follows a reply's thoughts, or nothing if the thoughts were cut off.

    opened: the prompt ended inside a think block, so that a reply that does not close it is all thoughts.
    """
    if in_thought(reply, opened):
        return ""
    _, end, answer = reply.rpartition(ANSWER)
    return answer.lstrip("\n") if end else answer


def in_thought(reply: str, opened: bool = False) -> bool:
    """Return whether a reply ends inside its thoughts. opened: the prompt ended inside a think block."""
    _, end, answer = reply.rpartition(ANSWER)
    return THINK in answer or (opened and not end)


@dataclass(frozen=True)
class Qwen(ChatML):
    """ChatML in which consecutive tool results share one message of the user.

    system:   the system message of a conversation that has none of its own (Qwen2.5).
    thinking: None for a family without thoughts. Otherwise (Qwen3) a reply opens with a think block, and False puts an
        empty block into the header instead. Thoughts before the last question are dropped from a given conversation, as
        in Qwen3's template; sampled thoughts stay, because ids are only appended.
    """

    system: str | None = None
    thinking: bool | None = None

    @property
    def header(self) -> str:
        opened = f"{self.mark('<|im_start|>')}assistant\n"
        return opened + self._block("") if self.thinking is False else opened

    def render(self, messages: list[dict], header: bool = True) -> str:
        if self.system and (not messages or messages[0]["role"] != "system"):
            messages = [{"role": "system", "content": self.system}, *messages]
        return self._messages(messages, len(messages) - 1) + (self.header if header else "")

    def reply(self, content: str) -> tuple[str, str]:
        return self.marked_reply(self.mark_calls(content))

    def marked_reply(self, content: str) -> tuple[str, str]:
        """Return what `reply` does, of a content whose marks of calls are the tokenizer's own already."""
        if self.thinking is None:
            return self.header, content + self.end
        thought, answer = thought_and_answer(content)
        if self.thinking:
            return self.header, self._block(thought) + answer.lstrip("\n") + self.end
        if ANSWER in content:
            raise Refusal(f"the reply {content[:40]!r} has thoughts, but thinking is off")
        return self.header, answer.lstrip("\n") + self.end

    def _messages(self, messages: list[dict], question: int = -1) -> str:
        """question: the index of the last question if no message is one."""
        question = max((i for i, message in enumerate(messages) if is_question(message)), default=question)
        roles, parts = [message["role"] for message in messages], []
        for i, (role, content) in enumerate(zip(roles, (m["content"] for m in messages), strict=True)):
            if role == "tool":
                parts += [f"{self.mark('<|im_start|>')}user"] if roles[:i][-1:] != ["tool"] else []
                parts += [f"\n{self.mark('<tool_response>')}\n{content}\n{self.mark('</tool_response>')}"]
                parts += [f"{self.end}\n"] if roles[i + 1 :][:1] != ["tool"] else []
                continue
            if role == "assistant" and self.thinking is not None:
                thought, content = thought_and_answer(content)
                if i > question and (thought or i == len(messages) - 1):
                    content = self._block(thought) + content.lstrip("\n")
            parts.append(self._message(role, content))
        return "".join(parts)

    def _block(self, thought: str) -> str:
        return f"{self.mark(THINK)}\n{thought}\n{self.mark(ANSWER)}\n\n"


def is_question(message: dict) -> bool:
    """Return whether a user asks something new: Qwen3's template keeps the thoughts since the last such message."""
    content = message["content"]
    tool_result = content.startswith("<tool_response>") and content.endswith("</tool_response>")
    return message["role"] == "user" and not tool_result


def thought_and_answer(content: str) -> tuple[str, str]:
    """Return (the text in a reply's think block, the text after it)."""
    if ANSWER not in content:
        return "", content
    thought = content.split(ANSWER)[0].rstrip("\n").split(THINK)[-1].strip("\n")
    return thought, content.split(ANSWER)[-1].lstrip("\n")


@dataclass(frozen=True)
class Llama3:
    """Messages between header tokens, stripped of surrounding white space.

    dated: 3.1 and 3.2, which open with a system message of dates and write tool results as JSON strings.
    """

    mark: Marks
    dated: bool = False
    opens_thought: ClassVar[bool] = False

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
            text = messages[0]["content"].strip() if system else ""
            first = self._message("system", f"Cutting Knowledge Date: December 2023\nToday Date: {TODAY}\n\n{text}")
            messages = messages[system:]
        return self.mark.names.get("<|begin_of_text|>", "") + first + self._messages(messages) + self.header * header

    def reply(self, content: str) -> tuple[str, str]:
        return self.header, content.strip() + self.end

    def follow_up(self, closed: bool, messages: list[dict]) -> tuple[str, str]:
        text = self._messages(messages) + self.header
        return (self.end, text) if closed else ("", self.end + text)

    def _messages(self, messages: list[dict]) -> str:
        return "".join(
            self._message("ipython", json.dumps(message["content"], ensure_ascii=False))
            if self.dated and message["role"] == "tool"
            else self._message(message["role"], message["content"].strip())
            for message in messages
        )

    def _message(self, role: str, content: str) -> str:
        return f"{self.mark('<|start_header_id|>')}{role}{self.mark('<|end_header_id|>')}\n\n{content}{self.end}"
