"""The quantisation that an adapter was trained over. Imported by eval.py and merge.py alone."""

import json
from pathlib import Path


def trained_over(adapter: str) -> str:
    """Return quant= of the run whose folder holds this adapter's; "none" if there is no such config.json."""
    if not adapter:
        return "none"
    try:
        return str(json.loads((Path(adapter).parent / "config.json").read_text())["quant"])
    except (OSError, ValueError, KeyError, TypeError):
        return "none"
