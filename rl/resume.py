"""Resuming: a run's settings and its newest checkpoint, verified against its manifest. Nothing is ever unpickled."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

import lora
from models import CausalLM
from rl.arguments import ArgumentError, flatten
from rl.checkpoint import checkpoints
from rl.folders import sha256
from rl.state import COUNTERS, TrainState


def check_words(given: dict[str, str]) -> None:
    """Raise ArgumentError for words that have no effect beside resume= or resume_from=."""
    for key in ("resume", "resume_from", "data"):
        if given.get(key) == "":
            raise ArgumentError(f"{key}= is given without a name")
    if given.get("resume") and "recipe" in given:
        raise ArgumentError("recipe= has no effect beside resume=, which goes on with the run's own settings")
    if given.get("resume") and "resume_from" in given:
        raise ArgumentError("resume_from= has no effect beside resume=, which goes on with the run's own adapters")
    own = [key for key in given if key.startswith("lora.") and (key, given[key]) != ("lora.r", "0")]
    if given.get("resume_from") and own:
        raise ArgumentError(f"{own[0]}= has no effect beside resume_from=, whose adapter has its own settings")


def saved_settings(run: str) -> dict[str, Any]:
    """Return the keys of the config.json that a run was started with, and its folder as `out`."""
    path = Path(run) / "config.json"
    if not path.is_file():
        raise ArgumentError(f"resume={run}: no file {path}, so this is not a run's folder")
    try:
        keys = flatten(json.loads(path.read_text()))
    except (ValueError, AttributeError) as error:
        raise ArgumentError(f"resume={run}: {path} is not a table of keys in JSON ({error})") from None
    if keys.get("reward.rule") == "seed":  # the name of "shaped" in runs before it
        keys["reward.rule"] = "shaped"
    if keys.get("max_turns"):  # in runs before 0 was saved here, it won over the environments' own
        keys = {key: value for key, value in keys.items() if not key.endswith(".max_turns")}
    return {**keys, "out": run}


def newest_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint that is whole, and print a line for each that is skipped.

    Raises FileNotFoundError if there is none.
    """
    for folder in reversed(checkpoints(run)):
        try:
            verify(folder)
        except ValueError as error:
            print(f"skipped: {error}")
            continue
        return folder
    raise FileNotFoundError(f"{run}: no whole checkpoint-N folder there to resume from")


def verify(folder: Path) -> None:
    """Raise ValueError naming a file that is missing or differs from the manifest."""
    manifest = folder / "manifest.json"
    if not manifest.is_file():
        raise ValueError(f"{folder}: no manifest.json, so this is not a complete checkpoint")
    try:
        digests = json.loads(manifest.read_text())["sha256"].items()
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{manifest}: damaged, not a table of sha256 sums") from None
    if "state.json" not in dict(digests) and "training_stats.json" not in dict(digests):
        raise ValueError(f"{manifest}: damaged, it does not list the files of a checkpoint")
    for name, digest in digests:
        if not (folder / name).is_file():
            raise ValueError(f"{folder / name}: missing, though the manifest lists it")
        if sha256(folder / name) != digest:
            raise ValueError(f"{folder / name}: damaged, its sha256 is not the manifest's")


def go_on(state: TrainState, checkpoint: Path) -> None:
    """Fill the state from a checkpoint, and remove what its run wrote after it."""
    load_checkpoint(state, checkpoint)
    forget_after(checkpoint.parent, state.epoch)
    print(f"resumed from {checkpoint}")


def load_checkpoint(state: TrainState, folder: Path) -> None:
    """Fill the state from a checkpoint. Raises ValueError, one line, if a file is damaged or does not fit."""
    verify(folder)
    critic = {} if state.critic is None else state.critic.state_dict()
    for path, tensors in (
        (folder / "trainable.safetensors", state.trainable()),
        (folder / "critic.safetensors", critic),
    ):
        saved = load_file(path) if path.is_file() else {}
        if {name: p.shape for name, p in tensors.items()} != {name: p.shape for name, p in saved.items()}:
            raise ValueError(f"{path}: its weights are not those of this model, algorithm and lora settings")
        with torch.no_grad():
            for name, p in tensors.items():
                p.copy_(saved[name])
    moments: dict[int, dict] = {}
    for key, value in load_file(folder / "optimizer.safetensors").items():
        index, name = key.split(".", 1)
        moments.setdefault(int(index), {})[name] = value
    if state.masters:
        from rl import full

        full.round_masters(state)
    state.optimizer.load_state_dict({**state.optimizer.state_dict(), "state": moments})
    torch.set_rng_state(load_file(folder / "rng.safetensors")["cpu"])
    counters = json.loads((folder / "state.json").read_text())
    for name in COUNTERS:
        setattr(state, name, counters.get(name, getattr(state, name)))  # checkpoints before micro_tokens lack it


def copy_adapter(model: CausalLM, cfg: Any) -> tuple[list[str], str, Any]:
    """Give the model two copies of the adapter in cfg.resume_from: one that trains, and a frozen one, "reference".

    A run keeps the reference in its folder, where resume= finds it. Return the names of the adapted layers, their ranks
    and alphas in words, and cfg.lora with the adapter's own settings.
    """
    folder = Path(cfg.resume) / "reference" if cfg.resume else Path(cfg.resume_from)
    lora.load_adapter(model, folder, name="reference", trainable=False)
    names, layers = lora.load_adapter(model, folder), dict(lora.lora_layers(model))
    adapters = [layers[name].adapters["default"] for name in names]
    ranks, alphas = sorted({len(adapter.A) for adapter in adapters}), sorted({adapter.alpha for adapter in adapters})
    size = f"r={'/'.join(f'{r:g}' for r in ranks)} alpha={'/'.join(f'{alpha:g}' for alpha in alphas)}"
    first, targets = adapters[0], ",".join(sorted({name.rsplit(".", 1)[-1] for name in names}))
    own = {"r": len(first.A), "alpha": first.alpha, "rslora": first.rslora, "targets": targets}
    return names, size, replace(cfg.lora, **own, dropout=layers[names[0]].dropout)


def forget_after(folder: Path, epoch: int) -> None:
    """Remove lines of later epochs, which the resumed run writes again, and an incomplete last line."""
    for name in ("metrics.jsonl", "episodes.jsonl"):
        path = folder / name
        if path.is_file():
            lines = [line for line in path.read_text().splitlines(True) if line.endswith("\n")]
            kept = [line for line in lines if json.loads(line)["epoch"] <= epoch]
            path.with_suffix(".partial").write_text("".join(kept))
            path.with_suffix(".partial").replace(path)


def how_to_resume(folder: str) -> str:
    """Return the message for an interrupted run; folder "" means that it had not begun."""
    if not folder:
        return "no run had begun"
    if any(Path(folder).glob("checkpoint-*")):
        return f"python train.py resume={folder} goes on from its newest checkpoint"
    return f"{folder} has no checkpoint yet to go on from"
