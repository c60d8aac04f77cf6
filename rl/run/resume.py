"""Resuming: a run's settings and its newest checkpoint, verified against its manifest. Nothing is ever unpickled.

A resumed run computes what the run would have computed without the interruption. A checkpoint (rl/run/checkpoint.py)
holds the part of the TrainState that cannot be computed again. The same command, or resume=, finds the folder
(folder.py's `claim`), and setup.py's `start` fills the state by `go_on`; an unfinished epoch is played again. The
part that is saved, every save_every epochs and where one is evaluated:

    trainable      the adapter's factors; with lora.r=0 every weight, in float32
    critic         the critic's weights
    reference      the adapter that KL is measured against, once reference_every has moved it
    optimizer      the moments of both, and how many steps each has had
    rng            torch's random generators
    state.json     the COUNTERS: epochs, steps, groups of tasks drawn, kl_coef, baseline, micro_tokens, sampled_tokens;
                   and which values the settings gave for those that a run adapts

The rest comes from the run's folder, or from the counters alone:

    config.json    the settings, with the threads and the library of products that decide how sums round
    reference/     the frozen adapter that KL is measured against, until reference_every moves it
    metrics.jsonl  best epoch, patience and curriculum read it; `forget_after` removes what came after the checkpoint
    origin.json    digests of the base and the data; others are refused (rl/run/digests.py)
    no file        tasks, samples, the order of episodes and dropout's masks depend only on the seed and these counts
"""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

import lora
from models import CausalLM
from models.weights import resolve
from rl import ranks
from rl.adam8bit import scale_count
from rl.config.fields import Config, Lora
from rl.config.refusals import Refusal
from rl.core import learning_rate_factor
from rl.ranks.saving import Pieces
from rl.run import bases, digests, full_finetuning, history, retention
from rl.run.checkpoint import save_checkpoint
from rl.run.files import checkpoints, is_number, read_json, read_lines, remove_leftovers, verify, write_text
from rl.run.state import COUNTERS, MOVED, TrainState


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


def go_on(state: TrainState, checkpoint: Path, cfg: Config) -> None:
    """Fill the state from a checkpoint, and remove what its run wrote after it. Raise ValueError, one line, if the run
    began from other weights or data, or if a file is damaged."""
    run = checkpoint.parent
    digests.check(cfg, run)
    load_checkpoint(state, checkpoint)
    check_limits(state, cfg, dict(read_json(run / "config.json")))
    state.resumed_from = state.epoch
    print(schedule_change(state, cfg, dict(read_json(run / "config.json"))), end="")
    if ranks.is_first():
        forget_after(run, state.epoch)
        if state.epoch and state.epoch not in {record["epoch"] for record in history.records(run)}:
            lacks = f"{run}/metrics.jsonl has no line of epoch {state.epoch}"
            print(f"{lacks}: it was removed or damaged; curves lack that part")
        if retention.evaluation_missing(cfg, run, state.epoch):  # it is made again, whole
            forget_after(run, state.epoch, evaluations=True)
        remove_leftovers(run)
    ranks.wait()  # the others read these files
    print(f"resumed from {checkpoint}")


def check_limits(state: TrainState, cfg: Config, saved: dict[str, Any]) -> None:
    """Raise ValueError for a new limit that the run has passed. saved: the keys of its config.json."""
    for key, done in (("epochs", state.epoch), ("max_steps", state.step)):
        if 0 < getattr(cfg, key) < done and getattr(cfg, key) != saved.get(key):
            raise Refusal(f"{key}={getattr(cfg, key)}: {done} are done, so the run ends at {key}={done} or later")


SCHEDULED = ("epochs", "episodes", "batch_size", "max_steps", "lr", "schedule", "warmup_steps", "min_lr_ratio")


def schedule_change(state: TrainState, cfg: Config, saved: dict[str, Any]) -> str:
    """Return a line about the learning rate if the run goes on with another length of its schedule, else nothing: a
    decay over more steps begins again near its start.

    saved: the keys of the run's config.json.
    """
    earlier = replace(cfg, **{key: saved[key] for key in (*SCHEDULED, "schedule_epochs") if key in saved})
    if cfg.schedule == "constant" or not state.step:
        return ""
    if cfg.schedule_epochs and cfg.schedule_epochs == saved.get("schedule_epochs") and cfg.epochs != earlier.epochs:
        return f"schedule_epochs={cfg.schedule_epochs} stays: the rate decays over these epochs of {cfg.epochs}\n"
    tokens, of_tokens = saved.get("max_sampled_tokens", 0), cfg.max_sampled_tokens
    if (tokens or of_tokens) and not cfg.schedule_epochs:
        ends = f"schedule={cfg.schedule} now ends by max_sampled_tokens={of_tokens}, not {tokens} (0: by epochs)\n"
        return ends if tokens != of_tokens else ""
    same = earlier.schedule_steps == cfg.schedule_steps and earlier.schedule == cfg.schedule
    if same or cfg.schedule_epochs:
        return ""
    before, after = (
        one.lr * learning_rate_factor(step, one.schedule_steps, one.schedule, one.warmup_steps, one.min_lr_ratio)
        for one, step in ((earlier, state.step - 1), (cfg, state.step))
    )
    steps = (
        f"schedule={cfg.schedule} now ends after {cfg.schedule_steps[1]} steps (epoch {cfg.epochs}), not after "
        f"{earlier.schedule_steps[1]} (epoch {earlier.epochs})"
    )
    return (
        f"{steps}: the learning rate was {before:.2g} and goes on with {after:.2g}; "
        f"schedule_epochs=0-{earlier.epochs} keeps the old end, schedule_epochs={state.epoch}-{cfg.epochs} decays anew "
        "from lr=\n"
    )


def load_checkpoint(state: TrainState, folder: Path) -> None:
    """Fill the state from a checkpoint. Raises ValueError, one line, if a file is damaged or does not fit."""
    verify(folder)  # before a tensor is copied: a state that is half loaded could not go on from an older checkpoint
    try:
        _load_checkpoint(state, folder)
    except (SafetensorError, LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        if str(folder) in str(error):
            raise
        what = str(error).replace("\n", " ")[:200]
        raise Refusal(f"{folder}: damaged, or of another version ({type(error).__name__}: {what})") from None


def _load_checkpoint(state: TrainState, folder: Path) -> None:
    critic = {} if state.critic is None else state.critic.state_dict()
    if Pieces(folder, "reference").shapes():
        lora.freeze_copy(state.model, MOVED)
        state.reference = MOVED
    for file, tensors in (
        ("trainable", state.trainable()),
        ("critic", critic),
        ("reference", state.moved_reference()),
    ):
        saved = Pieces(folder, file)
        if {name: p.shape for name, p in tensors.items()} != saved.shapes():
            path = folder / f"{file}.safetensors"
            raise Refusal(f"{path}: its weights are not those of this model, algorithm and lora settings")
        with torch.no_grad():
            for name, p in tensors.items():
                p.copy_(_finite(saved.like(name, p), folder / file, name))
    moments, saved = defaultdict(dict), Pieces(folder, "optimizer")
    trained = [p for group in state.optimizer.param_groups for p in group["params"]]
    for key, shape in saved.shapes().items():
        index, name = key.split(".", 1)
        p, of_blocks = trained[int(index)], name.endswith("_scales")
        if shape and list(shape) != ([scale_count(p)] if of_blocks else list(p.shape)):
            raise Refusal(f"{folder / 'optimizer'}.safetensors: {key} has the shape {list(shape)}")
        tensor = saved.like(key, p) if shape and not of_blocks else saved.whole(key)
        moments[int(index)][name] = _finite(tensor, folder / "optimizer", key)
    if state.masters:
        full_finetuning.round_masters(state)
    state.optimizer.load_state_dict({**state.optimizer.state_dict(), "state": moments})
    generators = load_file(folder / "rng.safetensors")
    torch.set_rng_state(generators["cpu"])
    if "cuda" in generators and torch.cuda.is_available():
        torch.cuda.set_rng_state(generators["cuda"])
    counters = read_json(folder / "state.json")
    given = dict(counters.get("given", state.given))  # earlier checkpoints lack it
    if "sampled_tokens" not in counters:  # likewise
        counters["sampled_tokens"] = history.sampled_tokens(folder.parent, counters["epoch"])
    for name in COUNTERS:
        if given.get(name) != state.given.get(name):  # what the run has adapted holds until another value is given
            continue
        value = counters.get(name, getattr(state, name))  # checkpoints before micro_tokens lack it
        counts = name not in ("kl_coef", "baseline")
        if not (type(value) is int and 0 <= value < 2**53 if counts else value is None or is_number(value)):
            raise Refusal(f"{name} is {value}")
        setattr(state, name, value)


def _finite(tensor: torch.Tensor, file: Path, name: str) -> torch.Tensor:
    """Return the tensor of a file. Raise ValueError if a value in it is not finite."""
    if not bool(tensor.isfinite().all()):
        raise Refusal(f"{file}.safetensors: {name} has a value that is not finite")
    return tensor


def copy_adapter(model: CausalLM, cfg: Config) -> tuple[list[str], Lora]:
    """Give the model two copies of the adapter in cfg.resume_from: one that trains, and a frozen one, "reference".

    A run keeps the reference in its folder, where resume= finds it. Return the names of the adapted layers, and
    cfg.lora with the adapter's own settings.
    """
    folder = Path(cfg.resume) / "reference" if cfg.resume else Path(cfg.resume_from)
    if not cfg.resume:
        bases.check(folder, resolve(cfg.model), model.config.quant)
    lora.load_adapter(model, folder, name="reference", trainable=False)
    names = lora.load_adapter(model, folder)
    layer = dict(lora.lora_layers(model))[names[0]]
    first, targets = layer.adapters["default"], ",".join(sorted({name.rsplit(".", 1)[-1] for name in names}))
    own = {"r": len(first.A), "alpha": first.alpha, "rslora": first.rslora, "targets": targets}
    if not cfg.resume:
        return names, replace(cfg.lora, **own, dropout=layer.dropout)
    for _, layer in lora.lora_layers(model):
        layer.dropout = cfg.lora.dropout
    return names, replace(cfg.lora, **own)


def forget_after(folder: Path, epoch: int, evaluations: bool = False) -> None:
    """Remove lines of later epochs, which the resumed run writes again, and an incomplete last line. With `evaluations`
    also those of the epoch's own evaluation."""
    for name in ("metrics.jsonl", "episodes.jsonl"):
        path = folder / name
        if path.is_file():
            removed = {"eval", "eval_loss"} if evaluations else set()
            earlier = [(line, record) for line, record in read_lines(path) if record["epoch"] <= epoch]
            lines = [line for line, record in earlier if record["epoch"] < epoch or not removed & record.keys()]
            write_text(path, "".join(lines))


def save_unsaved(state: TrainState, run: Path) -> None:
    """Save a checkpoint for an interrupted run, unless there is one or the next epoch's optimizer steps have begun, or
    each rank trains a share of the weights: they may not all have come as far."""
    if not ranks.trains_shares() and not state.mid_epoch and not (run / f"checkpoint-{state.epoch}").is_dir():
        save_checkpoint(state, run)
