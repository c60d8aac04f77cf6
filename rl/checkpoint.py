"""The state of a run, and how it gets to disk and back: whole or not at all.

A checkpoint is written into a temporary folder, every file and then the folder is synced, a manifest lists each file's
sha256, and one rename makes it visible. Reading verifies the manifest first. Tensors are safetensors and the rest is
JSON: nothing is ever unpickled.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

import lora
from models import CausalLM, Tokenizer, save_model
from rl.update import Critic

COUNTERS = ("epoch", "step", "groups", "kl_coef", "baseline")  # the plain numbers of a TrainState
KEEP = 2  # complete checkpoints that stay
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass
class TrainState:
    """Everything of a run that changes. What is sampled needs no generator state: it hangs on (seed, episode) alone."""

    model: CausalLM  # its trainable parameters
    critic: Critic | None
    optimizer: torch.optim.Optimizer
    reference: str | None = None  # name of the frozen adapter that is the KL reference; None: the base
    epoch: int = 0  # epochs finished
    step: int = 0  # optimizer steps taken
    groups: int = 0  # tasks drawn so far; the next epoch's are the ones after
    kl_coef: float = 0.0  # weight of KL to the reference, as adapted so far
    baseline: float | None = None  # reinforce's moving average of scores

    def trainable(self) -> dict[str, torch.Tensor]:
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def adapter_hash(self) -> str:
        """Of the trainable weights, 16 hexadecimal digits."""
        digest = hashlib.sha256()
        for name, p in self.trainable().items():
            digest.update(name.encode())
            digest.update(p.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]


def save_checkpoint(state: TrainState, run: Path) -> Path:
    """Writes run/checkpoint-N for the N epochs finished, and drops all but the newest KEEP."""
    target = run / f"checkpoint-{state.epoch}"
    with new_folder(target) as folder:
        tensors = {name: p.detach().cpu().contiguous() for name, p in state.trainable().items()}
        save_file(tensors, folder / "trainable.safetensors")
        if state.critic is not None:
            save_file(state.critic.state_dict(), folder / "critic.safetensors")
        moments = state.optimizer.state_dict()["state"]
        entries = [(f"{i}.{key}", value) for i, entry in moments.items() for key, value in entry.items()]
        flat = {key: value.cpu().contiguous() for key, value in entries if value is not None}
        save_file(flat, folder / "optimizer.safetensors")
        save_file({"cpu": torch.get_rng_state()}, folder / "rng.safetensors")  # for dropout
        counters = {name: getattr(state, name) for name in COUNTERS}
        (folder / "state.json").write_text(json.dumps(counters) + "\n")
    for old in checkpoints(run)[:-KEEP]:
        shutil.rmtree(old)
    return target


def load_checkpoint(state: TrainState, folder: Path) -> None:
    """Fills the state from a checkpoint. Raises ValueError, one line, if a file is damaged or does not fit."""
    verify(folder)
    critic = {} if state.critic is None else state.critic.state_dict()
    for path, mine in ((folder / "trainable.safetensors", state.trainable()), (folder / "critic.safetensors", critic)):
        saved = load_file(path) if path.is_file() else {}
        if {k: v.shape for k, v in mine.items()} != {k: v.shape for k, v in saved.items()}:
            raise ValueError(f"{path}: its weights are not those of this model, algorithm and lora settings")
        with torch.no_grad():
            for name, p in mine.items():
                p.copy_(saved[name])
    moments: dict[int, dict] = {}
    for key, value in load_file(folder / "optimizer.safetensors").items():
        index, name = key.split(".", 1)
        moments.setdefault(int(index), {})[name] = value
    state.optimizer.load_state_dict({**state.optimizer.state_dict(), "state": moments})
    torch.set_rng_state(load_file(folder / "rng.safetensors")["cpu"])
    counters = json.loads((folder / "state.json").read_text())
    for name in COUNTERS:
        setattr(state, name, counters[name])


def checkpoints(run: Path) -> list[Path]:
    """The complete checkpoints of a run, oldest first."""
    found = [p for p in run.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", p.name)]
    return sorted(found, key=lambda p: int(p.name.split("-")[1]))


def newest_checkpoint(run: Path) -> Path:
    """The newest one that is whole; says which it passes over. Raises FileNotFoundError, one line, if there is none."""
    for folder in reversed(checkpoints(run)):
        try:
            verify(folder)
        except ValueError as error:
            print(f"passed over: {error}")
            continue
        return folder
    raise FileNotFoundError(f"{run}: no whole checkpoint-N folder there to resume from")


def verify(folder: Path) -> None:
    """Raises ValueError naming the file that is missing or is not what the manifest says."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        raise ValueError(f"{folder}: no manifest.json, so this is not a complete checkpoint")
    try:
        digests = json.loads(manifest.read_text())["sha256"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{manifest}: damaged, not a table of sha256 sums") from None
    if "state.json" not in dict(digests) and "training_stats.json" not in dict(digests):
        raise ValueError(f"{manifest}: damaged, it does not list what a checkpoint has")
    for name, digest in digests:
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: missing, though the manifest lists it")
        if _sha256(folder / name) != digest:
            raise ValueError(f"{folder / name}: damaged, its sha256 is not the manifest's")


def save_epoch(state: TrainState, run: Path, tokenizer: Tokenizer, base_model: str, stats: dict) -> Path:
    """Writes run/epoch_N: the adapter in PEFT's files (or the whole model), training_stats.json and the tokenizer."""
    target = run / f"epoch_{state.epoch}"
    with new_folder(target) as folder:
        if lora.lora_layers(state.model):
            lora.save_adapter(state.model, folder, base_model)
        else:
            raw = json.loads((tokenizer.folder / "config.json").read_text())
            save_model(state.model, folder, raw, next(state.model.parameters()).dtype)
        (folder / "training_stats.json").write_text(json.dumps(stats, indent=2) + "\n")
        copy_tokenizer(tokenizer, folder)
    return target


def copy_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    for name in (*TOKENIZER_FILES, "generation_config.json"):
        if (tokenizer.folder / name).is_file():
            shutil.copy(tokenizer.folder / name, folder / name)


class new_folder:
    """A folder that appears under its name, complete and with a manifest, when the block ends well, or not at all."""

    def __init__(self, target: Path):
        self.target, self.temporary = target, target.with_name(f".{target.name}.partial")

    def __enter__(self) -> Path:
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(parents=True)
        return self.temporary

    def __exit__(self, kind, error, trace) -> None:
        if kind is not None:
            shutil.rmtree(self.temporary, ignore_errors=True)
            return
        digests = {path.name: _sha256(path) for path in sorted(self.temporary.iterdir())}
        (self.temporary / "manifest.json").write_text(json.dumps({"version": 1, "sha256": digests}, indent=2) + "\n")
        for path in self.temporary.iterdir():
            path.chmod((self.temporary / "manifest.json").stat().st_mode)  # safetensors leaves its files to their owner
            _sync(path)
        _sync(self.temporary)
        if self.target.exists():
            shutil.rmtree(self.target)
        os.rename(self.temporary, self.target)
        _sync(self.target.parent)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
