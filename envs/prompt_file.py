"""prompt=FILE: an environment's instructions from a text file, such as the original's prompt.

The environment then plays as with prompt=native. The file's text is the first of several messages. An environment with
one message puts its task into the places that the file names in braces.
"""

import re
from pathlib import Path

from envs.read_once import read_once
from envs.refusal import Refusal

ENDINGS = (".txt", ".md")  # of a value that names a file
MOST_BYTES = 2**16  # of the file


@read_once
def text_of(path: str) -> str:
    """Return the text of a file. Raise ValueError with the reason if it is missing, empty, too large or not UTF-8."""
    if Path(path).exists() and not Path(path).is_file():  # opening a pipe would wait for ever
        raise Refusal("not a file")
    try:
        with open(path, "rb") as file:
            found = file.read(MOST_BYTES + 1)
        text = found.decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Refusal(error.strerror if isinstance(error, OSError) else "not UTF-8") from None
    if not text or len(found) > MOST_BYTES:
        raise Refusal(f"the file is {f'larger than {MOST_BYTES:,} bytes' if text else 'empty'}")
    return text


def check(path: str, needed: tuple[str, ...]) -> None:
    """Raise ValueError for a file that cannot be read, or that has no place for a part of the task."""
    try:
        text = text_of(path)
    except ValueError as error:
        raise Refusal(f"prompt={path}: {error}") from None
    for name in needed:
        if f"{{{name}}}" not in text:
            raise Refusal(f"prompt={path}: the file must have {{{name}}} where the task's {name} belongs")


def chosen(prompt: str, own: str) -> str:
    """Return the instructions of the file that `prompt` names, else the environment's own."""
    return text_of(prompt) if prompt.endswith(ENDINGS) else own


def filled(prompt: str, own: str, **values: object) -> str:
    """Return the chosen instructions with the values in the places of their names."""
    if not prompt.endswith(ENDINGS):
        return own.format(**values)
    return re.sub(r"\{(\w+)\}", lambda found: str(values.get(found[1], found[0])), text_of(prompt))
