"""Weight files behind shards or links. Imported only for a checkpoint without a plain model.safetensors."""

import os
import re
from pathlib import Path

from models.json_file import read_object

SHARD_NAME = re.compile(r"[\w-][\w.-]*\.safetensors", re.ASCII)


def weight_files(index: Path, single: Path) -> list[Path]:
    """Return the shards that the file `index` lists, or the file `single` if there is no index.

    Raise FileNotFoundError if neither exists, ValueError for a broken index or a link out of the folder.
    """
    if index.is_file():
        return [inside(path) for path in shard_files(index)]
    if not single.is_file():
        raise FileNotFoundError(f"{single.parent}: has neither {single.name} nor {index.name}")
    return [inside(single)]


def inside(path: Path) -> Path:
    """Return the path. Raise ValueError if it links out of its folder, except from a hub snapshot to its blobs."""
    target, folder = Path(os.path.realpath(path)), Path(os.path.realpath(path.parent))
    snapshot = folder.parent.name == "snapshots"
    if folder in target.parents or (snapshot and folder.parents[1] / "blobs" in target.parents):
        return path
    raise ValueError(f"{path}: links to a file outside the folder")


def shard_files(index: Path) -> list[Path]:
    """Return the files that a model.safetensors.index.json lists, all of them plain names inside its folder.

    Raise ValueError or FileNotFoundError with one line otherwise.
    """
    try:
        shards = sorted(set(read_object(index)["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{index}: not a shard index (a weight_map of tensor names to file names)") from None
    for shard in shards:
        if not isinstance(shard, str) or not SHARD_NAME.fullmatch(shard):
            raise ValueError(f"{index}: shard {shard!r} is not a plain file name inside the folder")
        if not (index.parent / shard).is_file():
            raise FileNotFoundError(f"{index.parent / shard}: missing, though {index.name} lists it")
    return [index.parent / shard for shard in shards]
