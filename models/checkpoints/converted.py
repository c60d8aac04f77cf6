"""Checkpoints that were converted from GGUF files, in a folder of the user's cache, each written once.

A folder is named by the sha256 of its file and the version of the conversion, so that another file of the same name,
or an older conversion, is converted anew; that of model=smol by its name and the version. It appears whole: a
conversion that is killed leaves only a folder that nothing reads.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from functools import lru_cache
from pathlib import Path

from models.checkpoints import gguf_model
from models.refusal import Refusal

VERSION = 2  # of what a conversion writes: raise it with each change of gguf.py, gguf_model.py and gguf_tokenizer.py
SMOL = "smol"  # the model name of SmolLM2-135M-Instruct (models/checkpoints/smol.py)
PARTIAL, DAY = ".partial-", 86_400  # the beginning of an unfinished folder's name; seconds after which it is removed


def cache_folder() -> Path:
    """Return the folder of all conversions, which may not exist: $XDG_CACHE_HOME/lora-rl, or ~/.cache/lora-rl.

    Raise OSError for a user without a home, as a container's may be.
    """
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lora-rl"
    except RuntimeError:
        raise OSError("this user has no home directory: set XDG_CACHE_HOME to a folder for converted models") from None


def place_of_smol() -> Path:
    """Return the folder of model=smol, which `make smol` writes. Raise OSError as `cache_folder` does."""
    return cache_folder() / f"{SMOL}-{VERSION}"


def smol_folder() -> Path:
    """Return the folder of model=smol. Raise FileNotFoundError if `make smol` has not written it."""
    folder = place_of_smol()
    if not folder.is_dir():
        raise FileNotFoundError("model=smol is not here: make smol fetches it (93 MB)")
    return folder


def folder_of(path: Path) -> Path:
    """Return the folder of a .gguf file's checkpoint, converted now if it is not in the cache.

    Raise FileNotFoundError if there is no such file, ValueError if it is damaged or not supported.
    """
    if not path.is_file():
        raise FileNotFoundError(f"model {str(path)!r}: no such file")
    version = _version(path)
    folder = cache_folder() / f"{_checked_sha256(path.resolve(), *version)}-{VERSION}"
    if not folder.is_dir():
        print(write(path, folder, version), flush=True)
    return folder


def write(path: Path, folder: Path, version: tuple[int, int] | None = None) -> str:
    """Convert a .gguf file into `folder`, which appears when it is whole. Return a line about its weights.

    version: of the file whose sha256 the folder has. Raise ValueError if the file is damaged, not supported, or by now
    of another version; OSError if the folder cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    for old in folder.parent.glob(f"{PARTIAL}*"):
        with contextlib.suppress(OSError):  # another process removes it
            if time.time() - old.stat().st_mtime > DAY:  # of a killed process; a younger one may still be at work
                shutil.rmtree(old, ignore_errors=True)
    partial = Path(tempfile.mkdtemp(prefix=PARTIAL, dir=folder.parent))
    try:
        types = gguf_model.convert(path, partial)
        for file in partial.iterdir():
            with open(file, "rb") as written:
                os.fsync(written.fileno())  # before the rename, or a crash may leave the new name without content
        if version not in (None, _version(path)):
            raise Refusal(f"{path} changed while it was converted")
        with contextlib.suppress(OSError):  # another process was faster
            partial.rename(folder)
        if not folder.is_dir():
            raise OSError(f"{folder.name} cannot be written")
    except OSError as error:
        raise OSError(f"{path} cannot be converted into {folder.parent}: {error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    counts = ", ".join(f"{count} in {name}" for name, count in sorted(types.items()))
    were = "were not" if types.keys() <= {"F32", "F16", "BF16"} else "were"
    return f"{path.name}: the weights {were} quantised (tensors: {counts}); {folder} holds them in float32"


def _version(path: Path) -> tuple[int, int]:
    """Return what differs between two versions of a file: its bytes, and when they were written, in ns."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns


@lru_cache(maxsize=64)
def _checked_sha256(path: Path, size: int, changed: int) -> str:
    """Return the digest of a .gguf file; it is computed once for a file that does not change.

    Raise ValueError for one that is not supported: its first bytes say so, and the others may be many GB.
    """
    gguf_model.check_header(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
