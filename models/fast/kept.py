"""The engine of one rollout serves the next, on CUDA, where what it holds is a small part of the device's memory.

A new engine stacks the weights of layers that read the same input, tries a step out and captures it, and does the same
for prompts of a few sizes. The graphs read keys and values at their addresses, so the cache stays with them: what is
kept is taken from training, and rl/peaks.py counts it.
"""

from collections.abc import Callable
from typing import Any

import torch

from models.kernels import kernels

_last: Any = None  # the models.engine.Engine of the rollout before
_sampler: Any = None  # the sampler in its graphs, which models/truncation.py replaces for a while


def engine(make: Callable, model, max_rows: int, max_len: int, version: Callable):
    """Implement the hook of models/kernels.py: an engine without open slots, made by `make` from the other arguments,
    or the one before, if it is of this model, length and sampler and has as many rows or more."""
    global _last, _sampler
    before, _last = _last, None
    fits = before is not None and not before._slots and before.max_rows >= max_rows
    if not fits or (before.model, before.max_len, _sampler) != (model, max_len, kernels.sample):
        before = None  # its memory is free for the new one
        before = make(model, max_rows, max_len, version)
    before.version, _sampler = version, kernels.sample
    _last = before if before._ahead is not None and model.lm_head.weight.is_cuda and is_small(before) else None
    return before


def is_small(engine) -> bool:
    """Return whether the cache and the stacked weights take at most KEPT_SHARE of the device's memory."""
    from models.fast.footprint import KEPT_SHARE, stacks
    from models.fast.products import groups
    from models.sizes import sizes_of

    model, weight = engine.model, engine.model.lm_head.weight
    factors = [layer.parts().A for block in model.model.layers for group in groups(block) for layer in group]
    rank = max((len(A) for A in factors if A is not None), default=0)
    card = torch.cuda.get_device_properties(weight.device).total_memory
    cache = sum(x.numel() * x.element_size() for x in (*engine._cache.keys, *engine._cache.values))
    copies = stacks(sizes_of(model.config), "cuda", weight.dtype, model.config.quant, rank, card)
    return cache + copies <= KEPT_SHARE * card


def drop() -> None:
    """Free the engine that is kept."""
    global _last
    _last = None
