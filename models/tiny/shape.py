"""Recognise descendants of the embedded model. Imported only for a model that is not named "tiny"."""

import json
from pathlib import Path


def same_shape(one: Path, other: Path) -> bool:
    """Return whether two model folders have the same config.json but for dtypes, rotary layout and versions."""
    try:
        configs = [json.loads((folder / "config.json").read_text()) for folder in (one, other)]
    except (OSError, ValueError):
        return False
    for config in configs:
        for key in [key for key in config if key.endswith("dtype") or key.startswith("rope") or "transformers" in key]:
            config.pop(key)
    return configs[0] == configs[1]
