"""Digests of what a run begins from: the base's weights, data= and the code. A resumed run compares them.

Other weights, data or a changed reference adapter would make another run of it: they are refused. Other code, or
another torch, may be meant: it is printed.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch

from models.weights import resolve
from rl.guard.files import read_json, sha256, verify, write_text

ROOT = Path(__file__).parents[2]
BLOCK = 2**20
MOST_BYTES = 2**30  # of the weights that are read; of larger ones evenly spaced blocks


def origin(cfg: Any) -> dict[str, Any]:
    """Return the digests of what this run begins from."""
    return {
        "weights": weights_digest(resolve(cfg.model)),
        "data": sha256(Path(cfg.data)) if cfg.data else "",
        "torch": torch.__version__,
        "code": code(),
    }


def code() -> dict[str, str]:
    """Return a digest of each file of ours that a run may execute, by its name."""
    rooms = [path for room in ("lora", "models", "rl", "envs") for path in (ROOT / room).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): sha256(path)[:16] for path in sorted([ROOT / "train.py", *rooms])}


def weights_digest(folder: Path) -> str:
    """Return a sha256 of the names, sizes and content of a model's safetensors files; above MOST_BYTES in all, of
    every n-th block of BLOCK bytes."""
    files = sorted(folder.glob("*.safetensors"))
    step = -(-sum(path.stat().st_size for path in files) // MOST_BYTES) or 1
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with open(path, "rb") as file:
            for at in range(0, size, step * BLOCK):
                file.seek(at)
                digest.update(file.read(BLOCK))
    return digest.hexdigest()


def write(cfg: Any, run: Path) -> None:
    """Write run/origin.json."""
    write_text(run / "origin.json", json.dumps(origin(cfg), indent=1) + "\n")


def check(cfg: Any, run: Path) -> None:
    """Compare with run/origin.json. Raise ValueError if weights, data or reference differ; print what else does."""
    if (run / "reference" / "manifest.json").is_file():
        verify(run / "reference")
    path = run / "origin.json"
    from rl.refusals import one_line

    if not path.is_file():
        print(f"{path} is missing: whether weights, data and code are those of the run's beginning is not checked")
        return
    try:
        before = read_json(path)
        files, torch_before = dict(before["code"]), one_line(before["torch"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: damaged ({error}); without the file nothing is compared") from None
    now = origin(cfg)
    for key, word in (("weights", f"model={cfg.model}"), ("data", f"data={cfg.data}")):
        if before.get(key) != now[key]:
            raise ValueError(f"resume={run}: {word} has changed since the run began; {key} must stay as they were")
    if torch_before != now["torch"]:
        print(f"torch is {now['torch']}, and was {torch_before} when the run began: numbers may differ")
    changed = sorted(name for name in files.keys() | now["code"].keys() if files.get(name) != now["code"].get(name))
    if changed:
        more = f" and {len(changed) - 4} more" if len(changed) > 4 else ""
        print(f"code has changed since the run began: {one_line(', '.join(changed[:4]))}{more}")
