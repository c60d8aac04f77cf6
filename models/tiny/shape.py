"""Recognise descendants of the embedded model. Imported only for a model that is not named "tiny"."""

import json
from pathlib import Path


def same_shape(folder: Path) -> bool:
    """Return whether a folder has a model of the embedded one's shape: trained, merged, cast.

    Its config.json is the same but for dtypes, rotary layout and versions.
    """
    try:
        configs = [json.loads((path / "config.json").read_text()) for path in (Path(__file__).parent, folder)]
    except (OSError, ValueError):
        return False
    for config in configs:
        for key in [key for key in config if key.endswith("dtype") or key.startswith("rope") or "transformers" in key]:
            config.pop(key)
    return configs[0] == configs[1]
