"""system_prompt=: a system message before the messages of every environment."""

from functools import lru_cache
from pathlib import Path

import envs
from rl.arguments import ArgumentError

ENDINGS = (".txt", ".md")  # of a value that names a file
MOST_BYTES = 2**16  # of the file


def add_to(env: envs.Environment, value: str) -> None:
    """Let an environment's episodes begin with the system prompt, in one message with the environment's own if any."""
    reset, text = env.reset, text_of(value)

    env.reset = lambda seed, split="train": with_prompt(reset(seed, split), text)


def with_prompt(messages: list[dict], text: str) -> list[dict]:
    """Return the messages of a conversation with the system prompt before them."""
    if messages[0]["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**messages[0], "content": f"{text}\n\n{messages[0]['content']}"}, *messages[1:]]


@lru_cache(maxsize=4)
def text_of(value: str) -> str:
    """Return the text that system_prompt= gives or names. Raise ArgumentError for a file that is missing, empty, too
    large or not UTF-8."""
    if not value.endswith(ENDINGS):
        return value
    try:
        with open(value, "rb") as file:
            found = file.read(MOST_BYTES + 1)
        text = found.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ArgumentError(f"system_prompt={value}: {reason}; a text may stand there instead of a file") from None
    if not text or len(found) > MOST_BYTES:
        wrong = f"larger than {MOST_BYTES:,} bytes" if text else "empty"
        raise ArgumentError(f"system_prompt={value}: the file is {wrong}")
    return text


def file_of(value: str) -> dict[str, Path]:
    """Return {word: file} if system_prompt= names a file, else {}."""
    return {f"system_prompt={value}": Path(value)} if value.endswith(ENDINGS) else {}
