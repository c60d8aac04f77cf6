"""The shards of a checkpoint whose weights are in several files. Imported only for one that has an index."""

import json
import re
from pathlib import Path

SHARD_NAME = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)


def shard_files(index: Path) -> list[Path]:
    """Return the files that a model.safetensors.index.json lists, all of them plain names inside its folder.

    Raise ValueError or FileNotFoundError with one line otherwise.
    """
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index}: not a shard index (a weight_map of tensor names to file names)") from None
    for shard in shards:
        if not isinstance(shard, str) or not SHARD_NAME.fullmatch(shard):
            raise ValueError(f"{index}: shard {shard!r} is not a plain file name inside the folder")
        if not (index.parent / shard).is_file():
            raise FileNotFoundError(f"{index.parent / shard}: missing, though {index.name} lists it")
    return [index.parent / shard for shard in shards]
