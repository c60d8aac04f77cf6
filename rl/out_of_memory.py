"""What to do when an accelerator's memory runs out: smaller micro-batches, then advice. Imported only then."""

import gc
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

from rl.batch import micro_batches
from rl.records import Batch
from rl.state import TrainState


def accumulate_smaller(accumulate: Callable, state: TrainState, batch: Batch, algo: ModuleType, cfg: Any) -> Any:
    """Return what rl/update.py's `accumulate` does, in micro-batches of half the size, or half of that, and so on.

    Gradients that the failed attempt left are dropped. The size that worked holds for the rest of the run. With dropout
    (sft alone) the new attempt draws other masks. Raises
    ValueError, one line, if the forward and backward of a single episode do not fit.
    """
    most = state.micro_tokens or cfg.micro_tokens
    while True:
        free(state)
        pieces = _pieces(batch, most)
        if pieces == len(batch.episodes):
            longest = max(len(episode.ids_T) for episode in batch.episodes)
            raise ValueError(
                f"out of memory in the update of a single episode of up to {longest} tokens; {advice(cfg)}"
            )
        while _pieces(batch, most) == pieces:
            most //= 2
        print(
            f"out of memory in the update: again with micro_tokens={most}, the same gradient up to rounding", flush=True
        )
        state.micro_tokens = most
        try:
            return accumulate(state, batch, algo, cfg)
        except torch.OutOfMemoryError:
            continue  # the tensors of the failed attempt are freed with the exception


def free(state: TrainState) -> None:
    """Drop all gradients and the memory that they and a failed forward held."""
    state.optimizer.zero_grad(set_to_none=True)
    state.model.zero_grad(set_to_none=True)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _pieces(batch: Batch, micro_tokens: int) -> int:
    return sum(1 for _ in micro_batches(batch, micro_tokens))


def advice(cfg: Any) -> str:
    """Return which settings would need less memory."""
    ways = []
    if cfg.checkpoint == "none":
        ways.append("checkpoint=block keeps less of each layer for the backward")
    if cfg.quant == "none" and cfg.lora.r:
        ways.append("quant=nf4 stores the base in 4.5 bits a weight")
    if cfg.dtype == "float32":
        ways.append("dtype=bfloat16 halves the base")
    ways.append(f"max_len below {cfg.max_len} and rollout_batch_size below {cfg.rollout_batch_size} take less")
    return "; ".join([*ways, "plan=true prints what each phase needs"])
