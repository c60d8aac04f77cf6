"""The chat formats of Llama 3, 3.1 and 3.2."""

import json
from dataclasses import dataclass

from models.chat.formats import Marks

TODAY = "26 Jul 2024"  # Llama 3.1's constant; Llama 3.2 would read the clock, but a prompt must not depend on the day


@dataclass(frozen=True)
class Llama3:
    """Messages between header tokens, stripped of surrounding white space.

    dated: 3.1 and 3.2, which open with a system message of dates and write tool results as JSON strings.
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
