"""Refuse or rename a run's folder that exists already. Imported when it does."""

from pathlib import Path


def refusal(folder: Path) -> FileExistsError:
    """Return the error for a folder in which a run is already."""
    resumable = any(folder.glob("checkpoint-*"))
    way = f"resume={folder} goes on with it" if resumable else "it has no checkpoint; choose another out="
    return FileExistsError(f"out={folder}: a run is there already; {way}")


def next_folder(folder: Path, out: str) -> Path:
    """Make and return folder-2, or the first free number after it, with an empty config.json.

    Two runs with {timestamp} in out= may begin in the same second. Raise FileExistsError for any other out=.
    """
    if "{timestamp}" not in out:
        raise FileExistsError(f"out={folder}: another run has begun there") from None
    number = 2
    while True:
        found = folder.with_name(f"{folder.name}-{number}")
        found.mkdir(parents=True, exist_ok=True)
        try:
            open(found / "config.json", "x").close()
            return found
        except FileExistsError:
            number += 1
