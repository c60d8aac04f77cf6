"""The chat formats of Qwen2.5, Qwen3 and Qwen3-2507: ChatML with tool results, thoughts, a default system message."""

from dataclasses import dataclass

from models.chat.formats import ANSWER, THINK, ChatML

QWEN_SYSTEM = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."


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
        if self.thinking is None:
            return self.header, content + self.end
        thought, answer = thought_and_answer(content)
        if self.thinking:
            return self.header, self._block(thought) + answer.lstrip("\n") + self.end
        if ANSWER in content:
            raise ValueError(f"the reply {content[:40]!r} has thoughts, but thinking is off")
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
