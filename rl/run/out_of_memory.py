"""Answers to memory that runs out: smaller micro-batches in an update on a GPU, else one line of advice."""

import gc
import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from models.hooks import keep_copies
from rl.batch import micro_batches
from rl.config.fields import Config
from rl.config.model_checks import config_of
from rl.config.refusals import Refusal
from rl.records import Batch
from rl.run.memory_errors import is_out_of_memory, suppress_out_of_memory
from rl.run.state import TrainState


def accumulate_smaller(accumulate: Callable, state: TrainState, batch: Batch, algo: ModuleType, cfg: Config) -> Any:
    """Return what rl/update.py's `accumulate` does, in micro-batches of half the size, or half of that, and so on.

    Gradients that the failed attempt left are dropped. The size that worked holds for the rest of the run. With dropout
    (sft alone) the new attempt draws other masks. Raises ValueError, one line, if the forward and backward of a single
    episode do not fit.
    """
    most = state.piece_tokens(cfg)
    while True:
        free(state)  # here, outside of any except clause: its traceback would hold the failed forward's tensors
        pieces = _pieces(batch, most)
        if pieces == len(batch.episodes):
            longest = max(len(episode.ids_T) for episode in batch.episodes)
            raise Refusal(
                f"out of memory in the update of a single episode of up to {longest} tokens; {advice(cfg, 'episode')}"
            )
        while _pieces(batch, most) == pieces:
            most //= 2
        print(
            f"out of memory in the update: again with micro_tokens={most}, the same gradient up to rounding", flush=True
        )
        state.micro_tokens = most
        with suppress_out_of_memory():
            return accumulate(state, batch, algo, cfg)


def free(state: TrainState) -> None:
    """Drop all gradients, the memory that they and a failed forward held, and the engine that is kept."""
    keep_copies(True)
    state.optimizer.zero_grad(set_to_none=True)
    state.model.zero_grad(set_to_none=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _pieces(batch: Batch, micro_tokens: int) -> int:
    return sum(1 for _ in micro_batches(batch, micro_tokens))


def advice(cfg: Config, phase: str) -> str:
    """Return which settings would need less memory in a phase; "episode": in the update of a single episode."""
    updates, new = phase in ("learn", "episode"), not cfg.resume  # a resumed run keeps its model
    config = config_of(cfg.model)
    quantised = cfg.quant != "none" or (config is not None and config.quant != "none")
    ways = {
        "checkpoint=block keeps less of each layer for the backward": updates and cfg.checkpoint == "none",
        f"micro_tokens below {cfg.micro_tokens} takes less": phase in ("score", "learn")
        and cfg.micro_tokens > cfg.max_len,
        f"rollout_batch_size below {cfg.rollout_batch_size} takes less": phase in ("collect", "evaluate"),
        "products=plain makes no copies of float32 weights, and of 16 bits smaller ones than mkl": phase == "trial"
        and cfg.products != "plain",
        "quant=nf4 stores the base in 4.5 bits a weight": new and not quantised and cfg.lora.r > 0,
        "dtype=bfloat16 halves the base": new and cfg.dtype == "float32",
        "lora.r=16 trains adapters, without moments of every weight": new and cfg.lora.r == 0,
        f"max_len below {cfg.max_len} takes less": updates or phase in ("collect", "score", "evaluate"),
    }
    return "; ".join(
        [*(way for way, helps in ways.items() if helps), "train.py plan=true prints what each phase needs"]
    )


def explained(error: Exception, cfg: Config | None = None, needs: str = "") -> str:
    """Return one line about an allocation that failed: in which phase, how much was wanted, which settings need less,
    and the error's notes on how the run goes on. Raise the error, which is being handled, again if it is another one.

    cfg: the settings of train.py or eval.py; needs: the advice of a program without them.
    """
    if not is_out_of_memory(error):
        raise
    phase = getattr(error, "phase", "")  # the context of rl/run/phases.py has set it
    wanted = re.search(r"[Tt]ried to allocate ([\d.]+) (\w+)", str(error))
    number, unit = wanted.groups() if wanted else ("", "")
    if unit == "bytes":
        number, unit = f"{float(number) / 2**30:,.2f}", "GiB"
    size = f" ({number} {unit} more were wanted)" if wanted else ""
    ways = advice(cfg, phase) if cfg else needs
    parts = [f"out of memory{phase and f' in {phase}'}{size}", ways, *getattr(error, "__notes__", [])]
    return "; ".join(filter(None, parts))
