"""Tables of cases that are written as files, fixtures/cases/NAME.toml.

In their texts «x×9» stands for nine copies of x, «NAME» for a text that the test gives, and «null», alone, for None.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "fixtures" / "cases"
MARK = re.compile(r"«(?:(?P<name>[A-Z0-9_]+)|(?P<text>[^«»]*)\u00d7(?P<count>\d+))»")


def unfolded(value: Any, texts: dict[str, str]) -> Any:
    """Return a value of a table with the marks in all its texts replaced."""
    if isinstance(value, dict):
        return {unfolded(key, texts): unfolded(inner, texts) for key, inner in value.items()}
    if isinstance(value, list):
        return [unfolded(inner, texts) for inner in value]
    if value == "«null»":
        return None
    if not isinstance(value, str):
        return value
    return MARK.sub(lambda mark: texts[mark["name"]] if mark["name"] else mark["text"] * int(mark["count"]), value)


def cases(name: str, **texts: str) -> dict[str, Any]:
    """Return {name of a table: its cases} of fixtures/cases/NAME.toml."""
    return unfolded(tomllib.loads((FOLDER / f"{name}.toml").read_text()), texts)
