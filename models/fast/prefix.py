"""Slots that start as copies of other slots: the keys and values of a common beginning are computed once.

The samples of a group share their prompt, other slots the system prompt. A copy waits until the tokens of its parent
are computed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from itertools import pairwise

from models.attention import KEY_BLOCK
from models.cache import KVCache
from models.engine import Slot

LEAST = 16  # tokens; computing fewer takes about as long as copying them


def share_prefix(new: Slot, slots: dict[int, Slot], version: Hashable, parent: int | None = None) -> None:
    """Implement the hook of models/kernels.py: set the parent of a slot whose tokens are all pending to the slot with
    the longest common beginning, or to `parent`, if at least LEAST tokens are common.

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
                while slots[i].parent is not None and slots[i].length >= common:
                    i = slots[i].parent
                shared, new.parent, new.length, new.pending = common, i, common, ids[common:]


def _common(one: list[int], other: list[int]) -> int:
    """Return the length of the common beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def copy_prefixes(slots: dict[int, Slot], cache: KVCache, compute: Callable, version: Callable[[], Hashable]) -> None:
    """Implement the hook of models/kernels.py: compute the pending tokens of all parents and copy their keys and values
    to the children, parents first. A child starts from its own tokens instead where its parent was computed by other
    weights, or has more tokens than fit and so is not computed."""
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
            copies[parent.place, -(-child.length // KEY_BLOCK)].append(child.place)
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
