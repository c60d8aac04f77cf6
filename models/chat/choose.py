"""Choose a checkpoint's chat format: a hand-written one that agrees with its chat template, or the template itself.

Imported unless the checkpoint has the plain ChatML of models/chat/formats.py.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from models.chat.formats import CHATML_TEMPLATE, ChatML, Marks
from models.chat.llama3 import Llama3
from models.chat.names import show
from models.chat.qwen import QWEN_SYSTEM, Qwen
from models.checkpoints.strict_json import read_bytes
from models.json_file import read_object

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

    end: str  # the token that ends a reply; "" without a chat format
    # (messages, header=True) -> a conversation, and if `header` the header that opens the assistant's next reply
    render: Callable[..., str]
    # (content) -> (the text before a reply, the reply as the model would sample it)
    reply: Callable[[str], tuple[str, str]]
    # (closed, messages) -> (the end of the previous reply, the text that follows, which ends the reply if not closed)
    follow_up: Callable[[bool, list[dict]], tuple[str, str]]


class NoFormat:
    """The format of a checkpoint without one: writing a conversation raises ValueError(reason), plain text works."""

    end = ""

    def __init__(self, reason: str):
        self.reason = reason

    def render(self, *conversation):
        raise ValueError(self.reason)

    reply = follow_up = render


def choose_format(template: object, folder: Path, mark: Marks, thinking: bool) -> Format:
    """Return the format of a checkpoint. template: the chat_template of its tokenizer_config.json, or None.

    The file chat_template.jinja goes before it. Without a template the control tokens decide. If neither gives a
    format, return NoFormat with the reason in one line.
    """
    try:
        return _choose(template, folder, mark, thinking)
    except ValueError as error:
        return NoFormat(f"{folder}: {error}")


def _choose(template: object, folder: Path, mark: Marks, thinking: bool) -> Format:
    path = folder / "chat_template.jinja"
    if path.is_file():
        template = read_bytes(path).decode()
    elif template == "":
        template = None
    if template in (None, CHATML_TEMPLATE) and {"<|im_start|>", "<|im_end|>"} <= mark.names.keys():
        return ChatML(mark)
    formats, source = hand_written(mark, thinking), default_template(template)
    if source is None:
        if not formats:
            raise ValueError("no chat template, and no control tokens of ChatML or Llama 3 to write messages with")
        return formats[0]
    from models.chat.jinja import compiled  # here alone, because it needs jinja2
    from models.chat.templates import Template

    variables = special_tokens(folder) | ({} if thinking else {"enable_thinking": False})
    run = compiled(source)
    for written in formats:
        if agree(mark, written, run, variables):
            return written
    return Template(run, mark, variables, folder)


def hand_written(mark: Marks, thinking: bool) -> list[Format]:
    """Return the hand-written formats whose control tokens the tokenizer has, the plainest first."""
    formats = []
    if {"<|im_start|>", "<|im_end|>"} <= mark.names.keys():
        formats = [ChatML(mark), Qwen(mark), Qwen(mark, system=QWEN_SYSTEM), Qwen(mark, thinking=thinking)]
    if {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"} <= mark.names.keys():
        formats += [Llama3(mark), Llama3(mark, dated=True)]
    return formats


def default_template(found: object) -> str | None:
    """Return the template of a tokenizer_config.json, which is a text or a list of named texts."""
    if isinstance(found, list):
        named = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}
        if "default" not in named:
            raise ValueError(f"no chat template is named default, only {', '.join(map(str, named))}")
        found = named["default"] or None
    if not isinstance(found, str | None):
        raise ValueError(f"tokenizer_config.json: chat_template must be a text, not {str(found)[:60]}")
    return found


def special_tokens(folder: Path) -> dict[str, str]:
    """Return bos_token, eos_token and the like, which templates refer to."""
    found = {}
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        for key, token in read_object(folder / name).items():
            text = token.get("content") if isinstance(token, dict) else token
            if key.endswith("_token") and isinstance(text, str):
                found[key] = text
    return found


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
