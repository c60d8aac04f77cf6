"""Models from the Hugging Face hub. Imported only for a model name that is not a local folder."""

import re
from pathlib import Path

from models.config import read_config

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
REVISION = re.compile(r"\w([\w./-]*\w)?", re.ASCII)
PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def download(name: str) -> Path:
    """Return the folder of a hub id such as "org/name" or "org/name@revision"; offline, that of the hub's cache.

    Raise FileNotFoundError with one line if `name` is not a hub id or the hub does not have it, ValueError if the
    revision cannot be the name of one. A config.json that is not supported is refused before the weights come.
    """
    read_config(download_config(name))
    return _download(name, PATTERNS)


def download_config(name: str) -> Path:
    """Return a folder with the config.json of a hub id. Raise what `download` does for the id and the revision."""
    return _download(name, ["config.json"])


def _download(name: str, patterns: list[str]) -> Path:
    hub_id, revision = split_revision(name)
    if name.startswith((".", "/", "~")) or not HUB_ID.fullmatch(hub_id) or ".." in hub_id:
        raise FileNotFoundError(f"model {name!r}: no such folder (and not a hub id such as Qwen/Qwen2.5-0.5B-Instruct)")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=patterns))
    except Exception as error:  # the hub client raises many kinds; for the user they all mean the same
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise FileNotFoundError(
            f"model {name!r}: no such folder, and no download from the hub ({type(error).__name__}: {reason[:160]})"
        ) from None


def split_revision(name: str | Path) -> tuple[str, str | None]:
    """Return ("org/name", "v1") for the hub id "org/name@v1", and (name, None) for any other name or a folder.

    Raise ValueError with one line for a revision that cannot be a branch, tag or commit.
    """
    hub_id, at, revision = str(name).partition("@")
    if not at or not HUB_ID.fullmatch(hub_id) or Path(name).is_dir():
        return str(name), None
    if not REVISION.fullmatch(revision) or ".." in revision or "//" in revision:
        raise ValueError(f"model {str(name)!r}: {revision!r} is not the name of a branch, tag or commit")
    return hub_id, revision
