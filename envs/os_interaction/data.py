"""Read os_interaction's tasks from a file of LifelongAgentBench or AgentBench.

LifelongAgentBench, `entry_dict.json`: an object of objects with `instruction`, `skill_list`,
`initialization_command_item`, and in `evaluation_info` `evaluation_command_item` and `ground_truth_command_item`. Each
of the three commands has a `script` in bash. A list or JSON Lines of such objects, as on Hugging Face, may hold the
nested fields as Python's repr.

AgentBench, a list of objects, or one object a line: `description`, `labels`; `create.init` and `start`, which prepare
the machine; `evaluation`, which has `match` (a string, or an object with `answer` or `regex`), or `check` and
`example`. A script is a string, or an object with `code` or `file`, and `language`: bash, or python for checks.
"""

import re
from collections import Counter
from pathlib import Path

from envs import rows
from envs.common import SPLITS, check_file, split_of
from envs.data_files import plain_entry, read_json, read_text, say_unread
from envs.http.exchange import plain
from envs.os_interaction.tasks import Python, Task
from envs.own_splits import files_of
from envs.read_once import read_once
from envs.refusal import Refusal

READ = {  # keys of an entry of either set; the others are said
    *("instruction", "skill_list", "initialization_command_item", "evaluation_info", "description", "labels"),
    *("create", "start", "evaluation", "raw_entry_hash"),
}
NESTED = ("initialization_command_item", "evaluation_info", "skill_list")  # fields that hold lists or objects
MOST_PATTERN = 1000  # characters of an answer's pattern


@read_once
def read(path: str, scripts: str = "", splits: str = "hash") -> dict[str, list[Task]]:
    """Return {split: tasks}, by a hash of the instruction or of the data set's own files (envs/own_splits.py).

    `scripts` is the folder of script files. Raise ValueError for a bad file.
    """
    if splits == "own":
        read_file = {file: _read(file, scripts) for file in files_of(path).values()}
        return {split: read_file[file] for split, file in files_of(path).items()}
    found: dict[str, list[Task]] = {split: [] for split in SPLITS}
    for task in _read(path, scripts):
        found[split_of(task.key)].append(task)
    return found


def _read(path: str, scripts: str) -> list[Task]:
    """Return the tasks of a file, in its order."""
    check_file("a file of LifelongAgentBench or AgentBench", path)
    found, reasons, first, entries = [], Counter(), "", _entries(path)
    say_unread(path, entries.values(), READ)
    for name, entry in entries.items():
        try:
            task = _lifelong(entry) if "instruction" in entry else _agent_bench(entry, scripts)
            if task:
                _check(task)
                found.append(task)
            else:
                reasons["no script in bash or Python to prepare or check it"] += 1
                first = first or f"entry {name}"
        except KeyError as error:
            raise Refusal(f"data: entry {name} of {path} lacks {error}") from None
        except (TypeError, AttributeError, IndexError) as error:
            raise Refusal(f"data: entry {name} of {path} has a field of the wrong kind: {error}") from None
    rows.report_left_out(path, len(entries), reasons, first, "tasks")
    if not found:
        raise Refusal(f"data: no entry of {path} can be used")
    return found


def _check(task: Task) -> None:
    """Raise TypeError for a field that must be a text, and for a bad pattern of an answer."""
    texts = (task.instruction, *task.init, *task.truth, *task.conditions, *task.skills, *(task.match or ()))
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise TypeError(f"{wrong[0]!r} is not a text")
    if task.match and task.match[0] == "regex":
        try:
            if len(task.match[1]) > MOST_PATTERN:
                raise Refusal(f"more than {MOST_PATTERN:,} characters")
            re.compile(task.match[1])
        except (ValueError, re.error, OverflowError, RecursionError) as error:
            raise TypeError(f"the pattern {task.match[1][:60]!r}: {error}") from None


def _entries(path: str) -> dict[str, dict]:
    """Return {name: object} of a file."""
    data = read_json(path, lines=path.endswith(".jsonl"))
    if isinstance(data, dict):
        data = [data] if "description" in data else data
    if isinstance(data, list):
        data = {str(number): entry for number, entry in enumerate(data)}
    if not isinstance(data, dict):
        raise Refusal(f"data: {path} must be a list or an object of tasks, not {plain(str(data), 40)}")
    for name, entry in data.items():
        if not isinstance(entry, dict):
            raise Refusal(f"data: entry {name} of {path} must be an object, not {str(entry)[:40]!r}")
    return data


def _lifelong(entry: dict) -> Task:
    """Return a task of LifelongAgentBench."""
    entry = plain_entry(entry, NESTED)
    info = entry["evaluation_info"]
    init = entry["initialization_command_item"]["script"]
    check, truth = (info[f"{kind}_command_item"]["script"].strip() for kind in ("evaluation", "ground_truth"))
    return Task(entry["instruction"], (init,), (truth,), (check,), tuple(entry["skill_list"]))


def _agent_bench(entry: dict, folder: str) -> Task | None:
    """Return a task of AgentBench; None if one of its scripts is in neither bash nor Python."""
    create, evaluation = entry.get("create", {}), entry["evaluation"]
    create = create if isinstance(create, dict) else {}  # the original has a list in one entry by mistake
    init = [_script(item, folder) for item in [*_listed(create.get("init")), *_listed(entry.get("start"))]]
    common = {"instruction": entry["description"], "skills": tuple(entry.get("labels", ())), "answers": True}
    if None in init:
        return None
    if "match" in evaluation:
        match = evaluation["match"]
        kind = "regex" if isinstance(match, dict) and "answer" not in match else "answer"
        match = (kind, match[kind] if isinstance(match, dict) else match)
        return Task(init=tuple(init), truth=(), conditions=(), match=match, **common)
    example = (_script(evaluation.get("example"), folder) or "").strip()
    checks = _listed(evaluation["check"]) or [None]
    conditions = [example or None if item is None else _script(item, folder) for item in checks]
    if None in conditions:
        return None
    return Task(init=tuple(init), truth=(example,) if example else (), conditions=tuple(conditions), **common)


def _listed(value) -> list:
    return value if isinstance(value, list) else [] if value is None else [value]


def _script(item, folder: str) -> str | None:
    """Return a script's text; None if there is no script or its language is unknown."""
    if item is None or isinstance(item, str):
        return item
    if "code" in item:
        text = item["code"]
    else:
        path = Path(folder, item["file"])
        if not path.is_file() or not path.resolve().is_relative_to(Path(folder).resolve()):
            raise Refusal(f"scripts must be the folder of AgentBench's scripts: no file {path} in it")
        text = read_text(path)
    language = item.get("language", "bash")
    return text if language == "bash" else Python(text) if language == "python" else None
