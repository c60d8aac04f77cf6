"""Digests of what a run begins from: base's weights, data=, files of tasks, code. A resumed run compares them.

Other weights, data, tasks or a changed reference adapter would make another run of it: they are refused. Other code, or
another torch, may be meant: it is printed.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from envs import scorer
from envs.prompt_file import ENDINGS
from lora.peft_files import is_adapter
from models.weights import resolve
from rl.config.fields import Config
from rl.config.refusals import Refusal, one_line
from rl.run import bases
from rl.run.files import code_digests, read_json, sha256, verify, write_text
from rl.tasks import mixture, system_prompt_file

BLOCK = 2**20
MOST_BYTES = 2**30  # of the weights that are read; of larger ones evenly spaced blocks
TASK_FILES = (".data", ".scripts")  # options of environments that name a file or folder


def origin(cfg: Config) -> dict[str, Any]:
    """Return the digests of what this run begins from."""
    return {
        "base": bases.identity(resolve(cfg.model), cfg.quant),
        "data": sha256(Path(cfg.data)) if cfg.data else "",
        "tasks": task_files(cfg),
        "torch": torch.__version__,
        "code": code_digests(),
    }


def task_files(cfg: Config) -> dict[str, str]:
    """Return a digest of each file or folder that the environments' options name, by the option and its value."""
    options = {f"{env}.{key}": value for env in mixture(cfg.env) for key, value in vars(cfg.environments[env]).items()}
    paths = {f"{key}={value}": Path(value) for key, value in options.items() if value and key.endswith(TASK_FILES)}
    prompts = {key: value for key, value in options.items() if key.endswith(".prompt")}
    paths |= {f"{key}={value}": Path(value) for key, value in prompts.items() if value.endswith(ENDINGS)}
    scorers = {key: scorer.file_of(value) for key, value in options.items() if key.endswith(".match")}
    paths |= {f"{key}={options[key]}": Path(path) for key, path in scorers.items() if path}
    if teacher := getattr(cfg.algorithm, "teacher", ""):
        paths |= {f"{cfg.algo}.teacher={teacher}": Path(teacher)} if Path(teacher).is_dir() else {}
    if rubric := cfg.reward.rubric:
        paths[f"reward.rubric={rubric}"] = Path(rubric)
    if (judge := cfg.reward.judge) and is_adapter(Path(judge)):
        paths[f"reward.judge={judge}"] = Path(judge)
    if cfg.system_prompt:
        paths |= system_prompt_file(cfg.system_prompt)
    return {word: digest(path.rglob("*") if path.is_dir() else [path]) for word, path in paths.items()}


def digest(paths: Iterable[Path]) -> str:
    """Return a sha256 of the names, sizes and content of files; above MOST_BYTES in all, of every n-th block of BLOCK
    bytes."""
    files = sorted(path for path in paths if path.is_file())
    step = -(-sum(path.stat().st_size for path in files) // MOST_BYTES) or 1
    total = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        total.update(f"{path.name} {size}\n".encode())
        with open(path, "rb") as file:
            for at in range(0, size, step * BLOCK):
                file.seek(at)
                total.update(file.read(BLOCK))
    return total.hexdigest()


def write(cfg: Config, run: Path) -> None:
    """Write run/origin.json."""
    write_text(run / "origin.json", json.dumps(origin(cfg), indent=1) + "\n")


def check(cfg: Config, run: Path) -> None:
    """Compare with run/origin.json. Raise ValueError if weights, data or reference differ; print what else does."""
    if (manifest := run / "reference" / "manifest.json").is_file():
        verify(run / "reference")
    elif cfg.resume_from:
        print(f"{manifest} is missing: whether the adapter that KL is measured against is whole is not checked")
    path = run / "origin.json"
    if not path.is_file():
        print(f"{path} is missing: whether weights, data and code are those of the run's beginning is not checked")
        return
    try:
        before = read_json(path)
        files, tasks, torch_before = dict(before["code"]), dict(before.get("tasks", {})), one_line(before["torch"])
        base = {key: str(value) for key, value in dict(before.get("base", {})).items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refusal(f"{path}: damaged ({error}); without the file nothing is compared") from None
    now, data = origin(cfg), f"data={cfg.data}"
    if changed := bases.differences(base, now["base"]):
        model = f"model={cfg.model} has changed since the run began, or another is given"
        raise Refusal(f"resume={run}: {model}; it has {', '.join(changed)}")
    inputs_before = {data: before.get("data"), **tasks}
    inputs_now = {data: now["data"], **now["tasks"]}
    if not base:  # of an earlier version
        inputs_before[f"model={cfg.model}"] = before.get("weights")
        inputs_now[f"model={cfg.model}"] = digest(resolve(cfg.model).glob("*.safetensors"))
    for word in inputs_before.keys() & inputs_now.keys():  # an option with another value is another setting
        if inputs_before[word] != inputs_now[word]:
            other = ", or another file is given" if word == data else ""
            raise Refusal(f"resume={run}: {word} has changed since the run began{other}; it must stay as it was")
    check_moved(cfg, run, tasks, now["tasks"])
    if torch_before != now["torch"]:
        print(f"torch is {now['torch']}, and was {torch_before} when the run began: numbers may differ")
    changed = sorted(name for name in files.keys() | now["code"].keys() if files.get(name) != now["code"].get(name))
    if changed:
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        print(f"code has changed since the run began: {one_line(', '.join(changed[:4]))}{more}")


def check_moved(cfg: Config, run: Path, before: dict[str, str], now: dict[str, str]) -> None:
    """Print which files of tasks are others than before. Raise ValueError for one that is played in its order: the
    run's place in the earlier file says nothing about another one."""
    values_before = dict(word.partition("=")[::2] for word in before)  # option: value
    for word, digest_now in now.items():
        option, _, value = word.partition("=")
        earlier = values_before.get(option, value)
        if earlier == value or before[f"{option}={earlier}"] == digest_now:
            continue
        if cfg.order == "sequential":
            place = f"order=sequential goes on at a place in {earlier}, which {value} does not have"
            raise Refusal(f"resume={run}: {word} is another file: {place}; resume_from={run} begins with its first row")
        print(f"{word} is another file than {earlier}, with which the run began")
