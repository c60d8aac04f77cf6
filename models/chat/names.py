"""Find the names that Marks gives to control tokens. Imported only for checkpoints with their own chat template."""

import re

from models.chat.formats import Marks


def pattern(mark: Marks) -> re.Pattern:
    """Return a regular expression that matches each name."""
    return re.compile("|".join(map(re.escape, mark.names.values())) or r"(?!)")


def show(mark: Marks, text: str) -> str:
    """Return text with each name replaced by its control token, for people and comparisons."""
    tokens = {name: token for token, name in mark.names.items()}
    return pattern(mark).sub(lambda name: tokens[name[0]], text)
