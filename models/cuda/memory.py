"""The memory that models/cuda takes beside a model's weights, and the engine that one rollout leaves to the next.

A new engine stacks the weights of layers that read the same input, tries a step out and captures it, and does the same
for prompts of a few sizes. The graphs read keys and values at their addresses, so the cache stays with them: what is
kept is taken from training, and plan= counts it.
"""

from collections.abc import Callable
from typing import Any

import torch

from models.cuda import available, graph, step
from models.hooks import hooks
from models.memory import Footprint
from models.sizes import Sizes, sizes_of
from models.stacked import groups

KEPT_SHARE = 1 / 16  # of the device's memory, up to which an engine is kept: training has the rest
HOPPER = 227 * 1024  # bytes of shared memory of a program; with less the head's scratch is no larger


class KeptEngine:
    """Holds the models.engine.Engine of the last rollout, if it takes a small part of the device's memory."""

    def __init__(self):
        self.last: Any = None
        self.sampler: Any = None  # in its graphs; models/truncation.py replaces the hook for a while

    def engine(self, make: Callable, model, max_rows: int, max_len: int, version: Callable):
        """Return an engine without open slots, made by `make` from the other arguments, or the one before, if it is of
        this model, length and sampler and has as many rows or more."""
        engine, self.last, sampler = self.last, None, hooks("cuda").sample
        large_enough = engine is not None and not engine._slots and engine.max_rows >= max_rows
        if not large_enough or (engine.model, engine.max_len, self.sampler) != (model, max_len, sampler):
            engine = None  # its memory is free for the new one
            engine = make(model, max_rows, max_len, version)
        engine.version, self.sampler = version, sampler
        self.last = engine if engine._ahead is not None and is_small(engine) else None
        return engine

    def drop(self, _layers: bool) -> None:
        """Free the engine. It implements the hook `keep_copies`: stacks are all copies of weights on CUDA."""
        self.last = None


def is_small(engine) -> bool:
    """Return whether the cache and the stacked weights take at most KEPT_SHARE of the device's memory."""
    model, weight = engine.model, engine.model.lm_head.weight
    factors = [layer.parts().A for block in model.model.layers for group in groups(block) for layer in group]
    rank = max((len(A) for A in factors if A is not None), default=0)
    card = torch.cuda.get_device_properties(weight.device).total_memory
    cache = sum(x.numel() * x.element_size() for x in (*engine._cache.keys, *engine._cache.values))
    copies = stacks(sizes_of(model.config), weight.dtype, model.config.quant, rank, card)
    return cache + copies <= KEPT_SHARE * card


def footprint(
    sizes: Sizes, dtype: torch.dtype, kind: str, rank: int, _library: str, card: int, rows: int, _again: bool
) -> Footprint:
    """Return the footprint of a model.

    kind: of models/quant.py, of the blocks' linear layers. rank: of the adapters, 0 where every weight trains. card:
    bytes of the device's memory, 0 if unknown. rows: tokens whose log-probabilities are computed together.
    """
    return Footprint(
        products="plain",
        copies=0,
        stacks=stacks(sizes, dtype, kind, rank, card),
        dequantised=0 if kind == "none" else sizes.largest_linear * dtype.itemsize,
        head=_head(sizes, dtype, rows),
        small=int(KEPT_SHARE * card),
    )


def stacks(sizes: Sizes, dtype: torch.dtype, kind: str, rank: int, card: int) -> int:
    """Return the bytes that the decode step copies: the blocks' weights, where graph.py does, and the adapters'
    factors, as if every layer had one."""
    stacked = kind == "none" and sizes.weights * dtype.itemsize <= graph.STACKED_SHARE * card
    factors = sizes.L * step.padded_rank(rank) * sum(outputs + inputs for outputs, inputs in sizes.linears.values())
    return dtype.itemsize * (factors + (sizes.block_weights if stacked else 0))


def _head(sizes: Sizes, dtype: torch.dtype, rows: int) -> int:
    """Return the bytes of the scratch of the head's kernels for so many rows."""
    logprob = available.kernels().logprob
    tiles = logprob.tiles(sizes.D, dtype, HOPPER)
    of = lambda count: logprob.scratch_bytes(count, sizes.D, sizes.V, dtype, tiles)  # noqa: E731
    return of(min(rows, max(logprob.SCRATCH_BYTES // of(tiles.rows), 1) * tiles.rows))
