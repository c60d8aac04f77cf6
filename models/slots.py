"""The engine's slots: each has one sequence and one row of the cache. Slots may share a beginning and may be moved.

The samples of a group share their prompt, other slots the system prompt: the keys and values of a common beginning are
computed once and copied. A copy waits until the tokens of its parent are computed. Busy slots are moved to the front of
the cache, which the engine reads in place with the idle rows in between. models/engine.py shows a slot's life.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from models.attention import KEY_BLOCK
from models.cache import KVCache

LEAST = 16  # tokens; computing fewer takes about as long as copying them


@dataclass
class SampledTurn:
    """One sampled turn."""

    slot: int
    ids: list[int]  # sampled ids, the stop token included
    logprobs: list[float]  # of each sampled id, under the sampling temperature
    stop_reason: str  # "stop" a stop token | "length" max_new_tokens | "context" the slot is full; until then "context"
    hidden: list[torch.Tensor] = field(default_factory=list)  # [1, D] that predicted each id, if Engine.keep_hidden


@dataclass
class Slot:
    """A sequence that grows turn by turn, and its row of the cache."""

    key: tuple[int, int]  # (seed, episode)
    row: int  # of the cache
    version: Hashable = None  # of the weights that computed the cached keys and values
    length: int = 0  # tokens before `pending`: in the cache or, while `parent` is set, to be copied from its row
    ids: list[int] = field(default_factory=list)  # all tokens
    pending: list[int] = field(default_factory=list)  # tokens not in the cache; the last one predicts the next token
    fed: bool = False  # a turn is to be sampled
    limit: int | None = None  # most tokens of the current turn, if not max_new_tokens
    turn: int = -1  # index of the current turn
    stream: int = 0  # state of the turn's random numbers
    sampling: SampledTurn | Any = None  # the turn being sampled, or None
    parent: int | Any = None  # slot to copy the first `length` tokens from, once they are computed; or None

    def room(self, max_len: int) -> int:
        """Return how many more tokens fit; negative if too many were fed."""
        return max_len - self.length - len(self.pending)

    def append(self, ids: list[int], logprobs: list[float], max_new_tokens: int, stop_ids, max_len: int) -> bool:
        """Append sampled tokens to the turn; return whether they finish it."""
        self.ids += ids
        self.length, self.pending = self.length + len(ids), ids[-1:]
        self.sampling.ids += ids
        self.sampling.logprobs += logprobs
        if ids[-1] in stop_ids:
            self.sampling.stop_reason = "stop"
        elif len(self.sampling.ids) >= (self.limit or max_new_tokens):
            self.sampling.stop_reason = "length"
        else:
            return self.room(max_len) < 1
        return True


def share_prefix(new: Slot, slots: dict[int, Slot], version: Hashable, parent: int | None = None) -> None:
    """Set the parent of a slot whose tokens are all pending to the slot with the longest common beginning, or to
    `parent`, if at least LEAST tokens are common.

    Only slots that wait for no parent themselves are compared. Keys and values of another version of the weights are
    not shared, nor the last token of a slot: its hidden state is needed, or it is not computed yet.
    """
    shared, ids = LEAST - 1, new.ids
    for i in [i for i, slot in slots.items() if slot.parent is None] if parent is None else [parent]:
        other = slots[i]
        usable = other is not new and other.version in (None, version)
        if usable and other.ids[shared : shared + 1] == ids[shared : shared + 1]:  # else no more is common
            common = min(_common(other.ids, ids), len(other.ids) - 1, len(ids) - 1)
            if common > shared:
                # `parent` itself may still wait for a copy of these tokens: then they come from its own parent.
                while slots[i].parent is not None and slots[i].length >= common:
                    i = slots[i].parent
                shared, new.parent, new.length, new.pending = common, i, common, ids[common:]


def _common(one: list[int], other: list[int]) -> int:
    """Return the length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def copy_prefixes(slots: dict[int, Slot], cache: KVCache, compute: Callable, version: Callable[[], Hashable]) -> None:
    """Compute the pending tokens of all parents and copy their keys and values to the children, parents first. A child
    starts from its own tokens instead where its parent was computed by other weights, or has more tokens than fit and
    so is not computed."""
    room = cache.most_blocks * KEY_BLOCK or math.inf
    while children := [slot for slot in slots.values() if slot.parent is not None]:
        now, copies = version(), defaultdict(list)
        for child in children:
            parent = slots[child.parent]
            if parent.version not in (None, now) or len(parent.ids) > room:
                child.parent, child.length, child.pending = None, 0, list(child.ids)
        ready = [child for child in children if child.parent is not None and slots[child.parent].parent is None]
        compute(list(dict.fromkeys(child.parent for child in ready)))
        for child in ready:
            parent = slots[child.parent]
            copies[parent.row, -(-child.length // KEY_BLOCK)].append(child.row)
            child.version, child.parent = parent.version, None
        for (source, blocks), targets in copies.items():
            _copy_row(cache, source, sorted(targets), blocks)


def _copy_row(cache: KVCache, source: int, targets: list[int], blocks: int) -> None:
    """Copy the first blocks of one row of the cache to others, adjacent ones at once."""
    starts = [i for i, row in enumerate(targets) if i == 0 or row != targets[i - 1] + 1]
    for start, stop in pairwise([*starts, len(targets)]):
        rows = slice(targets[start], targets[stop - 1] + 1)
        for x in (*cache.keys, *cache.values):
            x_URK = x.unflatten(1, (-1, cache.heads))  # U blocks, R rows, K heads
            x_URK[:blocks, rows] = x_URK[:blocks, source : source + 1]


def to_front(cache: KVCache, busy: list[Slot], slots: Iterable[Slot]) -> None:
    """Move the busy slots to the front if more than half of the cache rows before the last of them are idle."""
    if 2 * len(busy) > max(state.row for state in busy):
        return
    by_row = {state.row: state for state in slots}
    taken = {state.row for state in busy}
    free = iter([row for row in range(len(busy)) if row not in taken])
    for state in busy:
        if state.row >= len(busy):
            row = next(free)
            idle = by_row.get(row, Slot((0, 0), row))
            swap(cache, state.row, row, max(state.length, idle.length))
            state.row, idle.row = row, state.row


def swap(cache: KVCache, one: int, other: int, length: int) -> None:
    """Exchange the first `length` tokens of two rows."""
    blocks, K = -(-length // KEY_BLOCK), cache.heads
    for x in (*cache.keys, *cache.values):
        a, b = (x[:blocks, row * K : (row + 1) * K] for row in (one, other))
        before = a.clone()
        a.copy_(b)
        b.copy_(before)
