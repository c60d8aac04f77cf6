"""A folder on disk that is whole or absent: written beside its place, synced, listed in a manifest, renamed."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the block ends without an error; an existing one is replaced.
    manifest.json is added, with the sha256 of each file."""
    temporary = target.with_name(f".{target.name}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        yield temporary
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    manifest = temporary / "manifest.json"
    digests = {path.name: sha256(path) for path in sorted(temporary.iterdir())}
    manifest.write_text(json.dumps({"version": 1, "sha256": digests}, indent=2) + "\n")
    for path in temporary.iterdir():
        path.chmod(manifest.stat().st_mode)  # safetensors makes its files readable by their owner alone
        _sync(path)
    _sync(temporary)
    if target.exists():
        shutil.rmtree(target)
    os.rename(temporary, target)
    _sync(target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
