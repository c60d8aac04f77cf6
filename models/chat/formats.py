"""Chat formats: how a conversation becomes text, as the chat templates of the model families write it.

Here is ChatML and what all formats share; choose.py imports the others when a checkpoint needs them.
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass

ROLES = ("system", "user", "assistant", "tool")
THINK, ANSWER = "<think>", "</think>"  # around the thoughts that a reasoning model writes before its answer
CHATML_TEMPLATE = (  # recognised by its text, so that the embedded model does not need jinja2
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Marks:
    """Names for control tokens that no text can contain, because they are random in every process.

    A conversation is assembled as one string and encoded by a tokenizer that knows its control tokens only by these
    names. A message may therefore contain any text, even "<|im_end|>", and it is encoded as plain characters.
    """

    def __init__(self, tokens: Iterable[str]):
        key = secrets.randbelow(10**20)
        self.names = {token: f"\ue000{key}.{i}\ue001" for i, token in enumerate(tokens)}

    def __call__(self, token: str) -> str:
        """Return a control token's name, or the token as plain text if the tokenizer has no such token."""
        return self.names.get(token, token)


@dataclass(frozen=True)
class ChatML:
    """The plain format that many models share: each message in its own <|im_start|> block."""

    mark: Marks

    @property
    def end(self) -> str:
        return self.mark("<|im_end|>")

    @property
    def header(self) -> str:
        return f"{self.mark('<|im_start|>')}assistant\n"

    def render(self, messages: list[dict], header: bool = True) -> str:
        return self._messages(messages) + (self.header if header else "")

    def reply(self, content: str) -> tuple[str, str]:
        return self.header, content + self.end

    def follow_up(self, closed: bool, messages: list[dict]) -> tuple[str, str]:
        text = "\n" + self._messages(messages) + self.header
        return (self.end, text) if closed else ("", self.end + text)

    def _messages(self, messages: list[dict]) -> str:
        return "".join(self._message(message["role"], message["content"]) for message in messages)

    def _message(self, role: str, content: str) -> str:
        return f"{self.mark('<|im_start|>')}{role}\n{content}{self.end}\n"


def check(messages: list[dict]) -> None:
    """Raise ValueError with one line for a message that is not a role and a text."""
    for i, message in enumerate(messages):
        plain = message.keys() == {"role", "content"}
        if not plain or message["role"] not in ROLES or not isinstance(message["content"], str):
            from models.chat.messages import explain

            explain(i, message, ROLES)


def without_thoughts(reply: str) -> str:
    """Return the answer that follows a reply's thoughts, or nothing if the thoughts were cut off."""
    _, end, answer = reply.rpartition(ANSWER)
    if end:
        return answer.lstrip("\n")
    return "" if answer.startswith(THINK) else answer
