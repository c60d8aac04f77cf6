"""Recognise descendants of the embedded model, for which recipes have settings of their own."""

from pathlib import Path

from models.json_file import read_object
from models.weights import TINY


def same_shape(folder: Path) -> bool:
    """Return whether a folder has a model of the embedded one's shape: trained, merged, cast.

    Its config.json is the same but for dtypes, rotary layout and versions.
    """
    try:
        configs = [read_object(path / "config.json") for path in (TINY, folder)]
    except (OSError, ValueError):
        return False
    for config in configs:
        for key in [key for key in config if key.endswith("dtype") or key.startswith("rope") or "transformers" in key]:
            config.pop(key)
    return configs[0] == configs[1]
