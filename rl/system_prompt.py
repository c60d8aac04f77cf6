"""system_prompt=: a system message before the messages of every environment."""

from pathlib import Path

import envs
from envs import prompt_file
from rl.arguments import ArgumentError


def add_to(env: envs.Environment, value: str) -> None:
    """Let an environment's episodes begin with the system prompt, in one message with the environment's own if any."""
    reset, text = env.reset, text_of(value)

    env.reset = lambda seed, split="train": with_prompt(reset(seed, split), text)


def with_prompt(messages: list[dict], text: str) -> list[dict]:
    """Return the messages of a conversation with the system prompt before them."""
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**messages[0], "content": f"{text}\n\n{messages[0]['content']}"}, *messages[1:]]


def text_of(value: str) -> str:
    """Return the text that system_prompt= gives or names. Raise ArgumentError for a file that cannot be read."""
    try:
        return prompt_file.chosen(value, value)
    except ValueError as error:
        raise ArgumentError(f"system_prompt={value}: {error}; a text may stand there instead of a file") from None


def file_of(value: str) -> dict[str, Path]:
    """Return {word: file} if system_prompt= names a file, else {}."""
    return {f"system_prompt={value}": Path(value)} if value.endswith(prompt_file.ENDINGS) else {}
