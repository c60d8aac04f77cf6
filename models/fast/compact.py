"""Busy slots moved to the front of the cache, which the engine reads in place with the idle rows in between."""

from collections.abc import Iterable

from models.attention import KEY_BLOCK
from models.cache import KVCache
from models.engine import Slot


def to_front(cache: KVCache, busy: list[Slot], slots: Iterable[Slot]) -> None:
    """Move the busy slots to the front if more than half of the cache rows before the last of them are idle."""
    if 2 * len(busy) > max(state.place for state in busy):
        return
    by_place = {state.place: state for state in slots}
    taken = {state.place for state in busy}
    free = iter([place for place in range(len(busy)) if place not in taken])
    for state in busy:
        if state.place >= len(busy):
            place = next(free)
            idle = by_place.get(place, Slot((0, 0), place))
            swap(cache, state.place, place, max(state.length, idle.length))
            state.place, idle.place = place, state.place


def swap(cache: KVCache, one: int, other: int, length: int) -> None:
    """Exchange the first `length` tokens of two rows."""
    blocks, K = -(-length // KEY_BLOCK), cache.heads
    for x in (*cache.keys, *cache.values):
        a, b = (x[:blocks, row * K : (row + 1) * K] for row in (one, other))
        before = a.clone()
        a.copy_(b)
        b.copy_(before)
