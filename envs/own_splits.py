"""The splits that a data set comes with, instead of splits by hash: the option `splits=own`.

`data` is a folder with a file for each split, such as train.jsonl and test.jsonl, or one file, whose tasks are those of
every split. The seeds 0, 1, 2, ... play each task once, in the order of the file. `order=sequential` draws these seeds,
and n=0 of eval.py as many as there are tasks.
"""

import os
from pathlib import Path

from envs.base import Configured
from envs.common import SPLITS
from envs.refusal import Refusal

FORMS = ("hash", "own")
NAMES = {"train": ("train",), "val": ("val", "valid", "validation", "dev"), "test": ("test",)}  # of a split's file
ENDINGS = (".json", ".jsonl")
WHOLE = "tasks.json"  # tau_retail's file without splits


class OwnSplits(Configured):
    """An environment whose `config` has the options `data` and `splits`."""

    def own_tasks(self, split: str) -> list:
        """Return the tasks of the data set's own split, in its order. Raise ValueError if it has no such split."""
        raise NotImplementedError

    def count(self, split: str) -> int:
        """Return the number of tasks of the data set's own split; 0 with splits=hash."""
        return len(self.own_tasks(split)) if self.config.splits == "own" else 0

    def own_task(self, seed: int, split: str):
        """Return the task of a seed."""
        tasks = self.own_tasks(split)
        return tasks[seed % len(tasks)]


def check_splits(config, form: str = "{}") -> None:
    """Raise ValueError for a value of the option `splits` that is unknown or does not fit data; form: of `files_of`."""
    if config.splits not in FORMS:
        raise Refusal(f"splits must be 'hash' or 'own', not {config.splits!r}")
    if config.splits == "own" and not config.data:
        raise Refusal("splits=own needs data=, a file or a folder with a file for each split")
    whole = os.path.isfile(Path(config.data, WHOLE))
    if config.splits == "hash" and config.data and _found(config.data, form) and not whole:
        raise Refusal(f"data: {config.data} has a file for each split; splits=own plays them")


def files_of(data: str, form: str = "{}") -> dict[str, str]:
    """Return {split: file} of a folder, or of one file; form: a file's name without ending, {} for the split's.

    Raise ValueError for a folder without any such file.
    """
    if not os.path.isdir(data):
        return dict.fromkeys(SPLITS, data)
    found = _found(data, form)
    if not found:
        raise Refusal(f"data: the folder {data} has no file of a split, such as {form.format('test')}.json")
    return found


def _found(folder: str, form: str) -> dict[str, str]:
    """Return {split: file} of the splits that have one in a folder."""
    found = {}
    for split in SPLITS:
        names = [form.format(name) + ending for name in NAMES[split] for ending in ENDINGS]
        there = [str(Path(folder, name)) for name in names if os.path.isfile(Path(folder, name))]
        found |= {split: there[0]} if there else {}
    return found


def file_of(data: str, split: str, form: str = "{}") -> str:
    """Return the file of a split. Raise ValueError if the folder has none."""
    found = files_of(data, form)
    if split not in found:
        there = ", ".join(Path(path).name for path in found.values())
        raise Refusal(
            f"data: {data} has no {form.format(NAMES[split][0])}.json or .jsonl, only {there}; "
            f"choose the split with split= or eval_split=, or train with eval_episodes=0"
        )
    return found[split]
