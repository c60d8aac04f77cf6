"""A run's folder: one process writes into it, and a command that is repeated goes on with it.

Of several ranks the first claims the folder, and the others learn which it is.
"""

import errno
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO

from envs.linux import fcntl
from rl import ranks
from rl.config.arguments import flatten
from rl.config.fields import Config
from rl.config.words import resolve
from rl.ranks import heartbeat
from rl.run import history
from rl.run.files import checkpoints, how_to_resume, remove_leftovers
from rl.run.retention import words_if_finished

LOCK = ".lock"
# written in place: through a symbolic link, if it is one
WRITTEN = (LOCK, "metrics.jsonl", "episodes.jsonl", "report.html", "report.jsonl", "held_out.jsonl")
REPLACED = ("config.json", "origin.json")
RESOLVED = ("threads", "products")  # "choose for me" on the command line, the choice in config.json
SPARE = 2**24  # bytes that must be free before a run begins


@contextmanager
def claim(cfg: Config) -> Iterator[tuple[Config, Path]]:
    """Yield (settings, folder) of the run, with its folder locked for this process and its ranks during the block.

    If out= names a run that has not finished, with the same settings, the settings are those of `resume=` for it.
    Raise FileExistsError, one line, if another process writes there, if the run there has finished or has other
    settings; OSError if nothing can be written there. A folder that is left empty is removed.
    """
    with ExitStack() as locked:

        def claimed() -> tuple[str, bool] | None:
            if not ranks.is_first():
                return None
            settings, folder = locked.enter_context(_claim_alone(cfg))
            return str(folder), settings is not cfg

        folder, continued = ranks.together(claimed)[0]  # which all ranks must reach
        heartbeat.tell_folder(folder)
        try:
            yield (resolve({"resume": folder}) if continued else cfg), Path(folder)
        except KeyboardInterrupt as error:
            if not ranks.is_first():  # _claim_alone adds it for the first one
                error.add_note(how_to_resume(folder))
            raise


@contextmanager
def _claim_alone(cfg: Config) -> Iterator[tuple[Config, Path]]:
    """Do what `claim` does, for this process."""
    folder, file = _lock_folder(cfg)
    try:
        yield (cfg if cfg.resume else _continued(cfg, folder)), folder
    except (OSError, RuntimeError, MemoryError, KeyboardInterrupt) as error:
        if (folder / "config.json").exists() and not isinstance(error, FileExistsError | FileNotFoundError):
            error.add_note(how_to_resume(str(folder)))
        raise
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        file.close()
        with suppress(OSError):
            folder.rmdir()  # only an empty folder goes: a refused run leaves nothing behind


def _lock_folder(cfg: Config) -> tuple[Path, BinaryIO]:
    """Make the folder of out= and lock it. With {timestamp} in out= a number is added until the folder is new."""
    env, now = cfg.env.replace(",", "+").replace(":", "x"), time.strftime("%Y%m%d-%H%M%S")
    first = Path(cfg.resume or cfg.out.format(algo=cfg.algo, env=env, seed=cfg.seed, timestamp=now))
    new = "{timestamp}" in cfg.out and not cfg.resume
    for number in count(1):
        folder = first if number == 1 else first.with_name(f"{first.name}-{number}")
        _make(folder)
        try:
            file = lock(folder)
        except FileExistsError:
            if new:
                continue
            raise
        if not (new and (folder / "config.json").exists()):
            return folder, file
        file.close()


def _make(folder: Path) -> None:
    """Make the folder, and check that a run can write there. Raise OSError, one line."""
    try:
        above = (folder.absolute(), *folder.absolute().parents)
        there = next(path for path in above if path.exists() or path.is_symlink())
        if not there.exists():
            raise OSError(f"out={folder}: {there} is a symbolic link that leads nowhere")
        free = shutil.disk_usage(there).free
        if free < SPARE:
            short = f"{free / 2**20:.0f} MiB are free on this disk, that of {there}"
            raise OSError(f"out={folder}: {short}; a run needs {SPARE / 2**20:.0f} MiB to begin or to go on")
        if not (there.is_dir() and os.access(there, os.W_OK)):
            raise OSError(f"out={folder}: {there} is {'not writable' if there.is_dir() else 'a file, not a folder'}")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno is None:
            raise  # its message is ours
        raise OSError(f"out={folder}: {(error.strerror or 'no folder can be there').lower()}") from None
    for path in folder.iterdir():
        if path.name in WRITTEN and path.is_symlink():
            raise OSError(f"{path} is a symbolic link, through which a run would write elsewhere; remove it")
        if path.name in (*WRITTEN, *REPLACED) and path.is_dir():
            raise OSError(f"{path} is a folder, and a run writes a file there; remove it")
        if path.exists() and not (path.is_file() or path.is_dir()):  # opening a pipe would wait for ever
            raise OSError(f"{path} is neither a file nor a folder; remove it")


def lock(folder: Path) -> BinaryIO:
    """Lock the folder for this process; closing the returned file, or the end of the process, unlocks it.

    Raise FileExistsError naming the process that holds the lock. A lock whose process has ended is taken over.
    """
    while True:
        file = open(folder / LOCK, "a+b")  # noqa: SIM115  (closed by the caller)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            holder = file.read(200).decode(errors="replace").strip() or "another process"
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise OSError(f"{folder}: this file system has no locks ({error.strerror})") from None
            raise FileExistsError(f"out={folder}: {holder} is writing there; wait for it or stop it") from None
        # The lock belongs to the file, not to its name: of a removed file it would lock nothing.
        if (folder / LOCK).exists() and os.fstat(file.fileno()).st_ino == (folder / LOCK).stat().st_ino:
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
            file.flush()
            return file
        file.close()  # the process before removed the file in the meantime


def _continued(cfg: Config, folder: Path) -> Config:
    """Return `cfg` for a new folder, or the settings of resume= for the same run that has not finished."""
    saved = history.settings(folder)
    if not saved:
        if _has_results(folder):
            raise FileExistsError(f"out={folder}: a run is there without a whole config.json; choose another out=")
        return cfg
    if "algo" not in saved:
        raise FileExistsError(f"out={folder}: the config.json there is not a run's; choose another out=")
    if not checkpoints(folder):
        if _has_results(folder):
            raise FileExistsError(f"out={folder}: a run is there already; it has no checkpoint; choose another out=")
        remove_leftovers(folder)
        return cfg  # killed before it saved anything
    other = differences(cfg, saved)
    if other:
        raise FileExistsError(
            f"out={folder}: a run with other settings is there ({'; '.join(other[:3])}{', ...' * (len(other) > 3)}); "
            f"resume={folder} goes on with it, another out= starts anew"
        )
    resumed = resolve({"resume": str(folder)})
    if words := words_if_finished(resumed, folder):
        go_on = f"resume={folder} {words} goes on with it"
        raise FileExistsError(f"out={folder}: this run has finished; {go_on}, another out= starts anew")
    print(f"{folder}: a run with these settings has not finished; it goes on")
    return resumed


def _has_results(folder: Path) -> bool:
    names = ("metrics.jsonl", "episodes.jsonl", "epoch_*", "checkpoint-*")
    return any(path.is_dir() or path.stat().st_size for name in names for path in folder.glob(name))


def differences(cfg: Config, saved: dict[str, Any]) -> list[str]:
    """Return "key=A there, B here" for each setting that differs from a run's saved ones.

    A run saves what it chose or read where `cfg` leaves the choice open; those settings are not compared.
    """
    given, defaults = flatten(cfg.as_dict()), {"threads": 0, "products": "auto"}
    skipped = {"out", "resume", "log", "plan", "ranks", "shard"}
    skipped |= {key for key in RESOLVED if given[key] == defaults[key]}
    skipped |= {"episodes"} if cfg.data else set()
    skipped |= {key for key in given if key.startswith("lora.")} if cfg.resume_from else set()
    compared = [key for key in given if key in saved and key not in skipped]
    return [f"{key}={saved[key]} there, {given[key]} here" for key in compared if given[key] != saved[key]]
