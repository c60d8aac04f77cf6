"""Slots that start as copies of other slots: the members of a group share the keys and values of their prompt.

Imported only once a slot is opened with a parent. A copy waits until the tokens of its parent are computed.
"""

from collections.abc import Callable

from models.attention import KEY_BLOCK
from models.cache import KVCache


def fork(child, parent: int, slots: dict, check_version: Callable) -> None:
    """Make `child` a copy of the slot `parent`. Raise RuntimeError if that is not open or is being sampled."""
    source = slots.get(parent)
    if source is None:
        raise RuntimeError(f"slot {parent} is not open")
    if source.parent is None:
        check_version([parent])
    if source.row is not None:
        raise RuntimeError(f"slot {parent} is being sampled; copy it when its row has come")
    if source.parent is None:
        child.parent, child.pending = parent, source.pending[-1:]
        child.length = source.length + max(len(source.pending) - 1, 0)
    else:  # the source still waits for its own parent: copy from that parent
        child.parent, child.pending, child.length = source.parent, list(source.pending), source.length
    child.fed, child.turn = source.fed, source.turn


def copy_from_parents(slots: dict, cache: KVCache, compute: Callable) -> None:
    """Compute the pending tokens of all parents and copy their keys and values to the children."""
    children = [state for state in slots.values() if state.parent is not None]
    compute(list({state.parent for state in children}))
    for state in children:
        parent = slots[state.parent]
        _copy_row(cache, parent.place, state.place, state.length)
        state.version, state.parent = parent.version, None


def _copy_row(cache: KVCache, source: int, target: int, length: int) -> None:
    """Copy the first `length` tokens of one row of the cache to another."""
    blocks, K = -(-length // KEY_BLOCK), cache.heads
    for x in (*cache.keys, *cache.values):
        x[:blocks, target * K : (target + 1) * K] = x[:blocks, source * K : (source + 1) * K]


def detach(slot: int, slots: dict, cache: KVCache, compute: Callable) -> None:
    """Give the children of a slot their copy before the slot is closed."""
    children = [state for state in slots.values() if state.parent == slot]
    try:
        copy_from_parents(slots, cache, compute)
    except RuntimeError:  # the weights have changed; using a child will raise this again
        for state in children:
            state.parent = None
