"""The formats of conversations with tools: how a checkpoint writes them, and which reader reads its calls."""

import json
from collections.abc import Sequence
from pathlib import Path

from models.chat.formats import Marks, Qwen, without_thoughts
from models.chat.jinja import Compiled, compiled
from models.chat.rendering import Rendering
from models.chat.templates import (
    ASKED,
    TOOL_USE,
    Format,
    Template,
    default_template,
    read_template,
    show,
    template_variables,
)
from models.chat.tools import CLOSE, OPEN, PROBE, Reader, choose_reader
from models.json_file import read_bytes
from models.refusal import Refusal


def tools_format(folder: Path, mark: Marks, thinking: bool, written: Format, rewrites: bool = False) -> Format:
    """Return the format of conversations that declare or call tools: the checkpoint's own chat template.

    written: the format of its other conversations. rewrites: as `choose_format` has it.

    Raise ValueError if it has none, or one that cannot be used (see Template).
    """
    source = template_of_tools(folder)
    if source is None:
        raise Refusal(f"{folder}: no chat template, which tools and tool_calls need: write the calls as text")
    run, variables = compiled(source), template_variables(folder, thinking)
    if not isinstance(written, Qwen) or written.thinking is None:
        return Template(run, mark, variables, folder, rewrites)
    try:
        return Template(run, mark, variables, folder)
    except Refusal:
        return Qwen3Tools(run, written, variables, folder)


def template_of_tools(folder: Path) -> str | None:
    """Return the checkpoint's template named tool_use, which transformers takes for conversations with tools; else its
    default one, None without any."""
    path, given = folder / TOOL_USE, read_template(folder)
    if path.is_file():
        return read_bytes(path).decode()
    for one in given if isinstance(given, list) else ():
        if isinstance(one, dict) and one.get("name") == "tool_use" and isinstance(one.get("template"), str):
            return one["template"]
    return default_template(given)


def choose_call_reader(written_by: Format, mark: Marks, folder: Path) -> Reader:
    """Return the reader of the calls that a checkpoint's template writes (models/chat/tools.py).

    Raise ValueError if the template leaves out tools or calls, or writes calls in a form that is not read.
    """
    tool = {"type": "function", "function": {"name": "kzqv", "description": "Hjwq.", "parameters": {"type": "object"}}}
    written_by.render([{"role": "user", "content": ASKED, "tools": [tool]}])  # raises ValueError if it is left out
    _, text = written_by.reply("", [PROBE])
    reader = choose_reader(without_thoughts(show(mark, text).removesuffix(show(mark, written_by.end))))
    if reader is None:
        form = show(mark, text)[:80]
        raise Refusal(f"{folder}: the chat template writes calls of tools as {form!r}, neither Qwen's form nor Llama's")
    return reader


class Qwen3Tools(Rendering):
    """The format of tools for Qwen3, whose template rewrites earlier thoughts and is no Template.

    A given conversation is the template's rendering; what an episode appends is as the hand-written format has it.
    """

    def __init__(self, run: Compiled, written: Qwen, variables: dict[str, object], folder: Path):
        super().__init__(run, written.mark, variables, folder)
        self._written, self.end, self.opens_thought = written, written.end, written.opens_thought

    def reply(self, content: str, calls: Sequence[dict] = ()) -> tuple[str, str]:
        return self._written.marked_reply(self._with_calls(self._written.mark_calls(content), calls))

    def follow_up(self, closed: bool, messages: list[dict]) -> tuple[str, str]:
        return self._written.follow_up(
            closed,
            [{**one, "content": self._with_calls(one["content"], one.get("tool_calls", ()))} for one in messages],
        )

    def _with_calls(self, content: str, calls: Sequence[dict]) -> str:
        """Return the content and the calls behind it, as the template writes them."""
        made = [json.dumps(call["function"], ensure_ascii=False) for call in calls]
        opened, closed = self.mark(OPEN), self.mark(CLOSE)
        return "\n".join([*([content] if content else []), *(f"{opened}\n{one}\n{closed}" for one in made)])
