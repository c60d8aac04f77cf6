"""A run's files: written so that they are whole or absent, checked, and removed so that nothing half is left."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from models.json_file import read_bytes
from rl import ranks
from rl.config.refusals import Refusal

ROOT = Path(__file__).parents[2]
MOST_BYTES = 1 << 26  # of a JSON file, and of a line of JSON Lines
PLAYED = ("episodes", "reward_mean", "reward_std", "accuracy", "cut_by_length", "turns_mean", "invalid_actions")
UNKNOWN = ("sampler_gap", "entropy", "approx_kl", "clip_fraction")  # null where nothing was measured
LEFTOVERS = (".checkpoint-*", ".epoch_*", ".reference.*", ".*.partial", "*.partial")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes `target` when the block ends without an error; an existing one is replaced.
    manifest.json is added, with the sha256 of each file. On other ranks than the first nothing is left."""
    if not ranks.is_first():
        with tempfile.TemporaryDirectory() as nowhere:
            yield Path(nowhere)
        return
    temporary = target.with_name(f".{target.name}.partial")
    try:
        with written(target):
            _delete(temporary)
            temporary.mkdir(parents=True)
            yield temporary
            manifest = temporary / "manifest.json"
            digests = {path.name: sha256(path) for path in sorted(temporary.iterdir())}
            manifest.write_text(json.dumps({"version": 1, "sha256": digests}, indent=2) + "\n")
            for path in temporary.iterdir():
                path.chmod(manifest.stat().st_mode)  # safetensors makes its files readable by their owner alone
                sync(path)
            sync(temporary)
            if os.path.lexists(target):  # may be a symbolic link that leads nowhere
                remove(target)
            os.rename(temporary, target)
            sync(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


@contextmanager
def written(path: Path) -> Iterator[None]:
    """Raise OSError, a line that names the file or folder, if the block cannot write it."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise OSError(f"{path} cannot be written: {getattr(error, 'strerror', None) or error}") from None


def sync(path: Path) -> None:
    """Wait until the file or folder is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """Return the sha256 of a file, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@ranks.first_only
def write_text(path: Path, text: str) -> None:
    """Write a file that is whole or absent; an existing one is replaced."""
    temporary = path.with_name(f".{path.name}.partial")
    with written(path):
        _delete(temporary)  # may be a symbolic link
        temporary.write_text(text)
        sync(temporary)  # before the rename, or a crash may leave the new name with no content
        os.rename(temporary, path)
        sync(path.parent)


@ranks.first_only
def append(path: Path, records: list[dict]) -> None:
    """Append records to a JSON Lines file and sync it; without records make none."""
    if not records:
        return
    with written(path), open(path, "a") as file:
        file.write("".join(f"{json.dumps(record, default=plain)}\n" for record in records))
        file.flush()
        os.fsync(file.fileno())


def plain(record: Any) -> dict:
    """Return a dataclass's fields for JSON, without those whose metadata say {"saved": False}, and without those that
    say "unless empty" and are. Raise TypeError for anything else."""
    if not is_dataclass(record):
        raise TypeError(f"{type(record).__name__} {record!r} is no JSON")
    # dataclasses.asdict would also copy every number of every list.
    values = [(f.name, getattr(record, f.name), f.metadata.get("saved", True)) for f in fields(record)]
    return {name: value for name, value, saved in values if saved is True or (saved and value)}


def read_json(path: Path) -> Any:
    """Return the value of a run's JSON file. Raise ValueError for one that is damaged."""
    text = read_bytes(path, MOST_BYTES)
    try:
        return json.loads(text)
    except RecursionError:
        raise Refusal("nested too deep") from None


def is_number(value: Any) -> bool:
    """Return whether a value of JSON is a number whose square is finite in float32."""
    return type(value) in (int, float) and abs(value) <= 1e15


def bounded_lines(path: Path, most: int = MOST_BYTES) -> Iterator[tuple[int, bytes]]:
    """Yield the number and the bytes of each line of a file. Raise ValueError for a line of more than `most` bytes."""
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(most + 1), b""), 1):
            if len(line) > most:
                raise Refusal(f"{path}, line {number}: larger than {most:,} bytes")
            yield number, line


def read_lines(path: Path) -> list[tuple[str, dict]]:
    """Return (line, record) of a run's JSON Lines file; an incomplete last line is left out.

    Raise ValueError naming the file and the line for one that is no record with an epoch, or whose fields that programs
    compare and print are no numbers.
    """
    if not path.is_file():
        return []
    records = []
    for number, line in bounded_lines(path):
        if not line.endswith(b"\n"):
            continue
        try:
            record = json.loads(line)
            _check_record(record)
            records.append((line.decode(), record))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise Refusal(f"{path}, line {number}: damaged, not a record with an epoch in JSON") from None
    return records


def _check_record(record: dict) -> None:
    """Raise an error if a field that programs compare or print is missing or of another kind."""
    epoch, evaluated = record["epoch"], [record["eval"]] if "eval" in record else []
    numbers = [record[name] for name in PLAYED] if "tasks" in record and "accuracy" in record else []
    numbers += [record[name] for name in ("eval_loss", "seconds", *PLAYED) if name in record]
    numbers += [record[name] for name in UNKNOWN if record.get(name) is not None]
    numbers += [result[name] for result in evaluated for name in ("temperature", "success")]
    numbers += [result[name] for result in evaluated for name in ("low", "high", "episodes") if name in result]
    numbers += [won for result in evaluated for won in result.get("successes", []) if won is not None]
    texts = [record.get("tasks", "")]
    texts += [result.get(name, "") for result in evaluated for name in ("split", "task_hashes")]
    if not (type(epoch) is int and 0 <= epoch < 2**53 and all(isinstance(text, str) for text in texts)):
        raise Refusal
    for number in numbers:
        float(number + 0)


def verify(folder: Path) -> None:
    """Raise ValueError naming a file that is missing or differs from the folder's manifest."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        raise Refusal(f"{folder}: no manifest.json, so this is not a complete checkpoint")
    try:
        digests = dict(read_json(manifest)["sha256"])
    except (ValueError, KeyError, TypeError):
        raise Refusal(f"{manifest}: damaged, not a table of sha256 sums") from None
    if not {"state.json", "training_stats.json", "adapter_config.json"} & digests.keys():
        raise Refusal(f"{manifest}: damaged, it does not list the files of a checkpoint")
    if others := [name for name in digests if name != Path(name).name]:
        raise Refusal(f"{manifest}: damaged, {others[0][:60]!r} is no file of this folder")
    for name, digest in digests.items():
        if not (folder / name).is_file():
            raise Refusal(f"{folder / name}: missing, though the manifest lists it")
        if sha256(folder / name) != digest:
            raise Refusal(f"{folder / name}: damaged, its sha256 is not the manifest's")


def verify_adapter(folder: Path) -> None:
    """Raise ValueError naming a file of an adapter that differs from the folder's manifest.

    Other files may change, such as a card. Without a manifest, or with another program's, nothing is compared.
    """
    try:
        digests = dict(read_json(folder / "manifest.json")["sha256"])
    except (OSError, ValueError, LookupError, TypeError):
        return
    for path in (folder / "adapter_config.json", folder / "adapter_model.safetensors"):
        if path.name in digests and path.is_file() and sha256(path) != digests[path.name]:
            mend = "copy it anew, or remove manifest.json if the change is meant"
            raise Refusal(f"{path}: is not the file that the run wrote: {mend}")


def is_whole(folder: Path) -> bool:
    """Return whether every file of the folder's manifest is as it was written."""
    try:
        verify(folder)
    except (OSError, ValueError):
        return False
    return True


def remove(folder: Path) -> None:
    """Remove a folder. One that is half removed has a name that nothing else reads."""
    # A rename is atomic and removing files one by one is not: a killed process must not leave half a checkpoint.
    removed = folder.with_name(f".{folder.name}.removed")
    _delete(removed)
    os.rename(folder, removed)
    _delete(removed)


def remove_leftovers(run: Path) -> None:
    """Remove what a killed process left half written or half removed in a run's folder."""
    for path in {path for pattern in LEFTOVERS for path in run.glob(pattern)}:
        _delete(path)


def _delete(path: Path) -> None:
    """Delete a folder, or a file or symbolic link in its place, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def checkpoints(run: Path) -> list[Path]:
    """Return the folders checkpoint-N of a run, oldest first."""
    folders = [path for path in run.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(folders, key=lambda path: int(path.name.split("-")[1]))


def how_to_resume(folder: str) -> str:
    """Return the message for an interrupted run."""
    if any(Path(folder).glob("checkpoint-*")):
        return f"python train.py resume={folder} goes on from its newest checkpoint"
    return f"{folder} has no checkpoint yet; the same command begins again"


def code_digests() -> dict[str, str]:
    """Return a digest of each file of ours that a run may execute, by its name."""
    rooms = [path for room in ("lora", "models", "rl", "envs") for path in (ROOT / room).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): sha256(path)[:16] for path in sorted([ROOT / "train.py", *rooms])}
