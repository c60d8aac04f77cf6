"""Random numbers from counters: each depends only on its own (seed, episode, turn, token).

Each number is folded in by the finalizer of SplitMix64 (Steele, Lea and Flood 2014, figure 16), in wrapping int64.
"""

import torch


def fold_all(counters: list[tuple[int, ...]]) -> torch.Tensor:
    """Return the state of each counter, int64 [len(counters)]: its numbers folded into 0 one after the other."""
    state = torch.zeros(len(counters), dtype=torch.long)
    for number in torch.tensor(counters, dtype=torch.long).T:
        state = fold(state, number)
    return state


def fold(state: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """Return the state with one more number folded in."""
    state = (state ^ number) + (0x9E3779B97F4A7C15 - 2**64)
    state = (state ^ _shifted(state, 30)) * (0xBF58476D1CE4E5B9 - 2**64)
    state = (state ^ _shifted(state, 27)) * (0x94D049BB133111EB - 2**64)
    return state ^ _shifted(state, 31)


def unit(state: torch.Tensor) -> torch.Tensor:
    """Return the uniform number of a state: float64 in [0, 1), from the upper 53 bits."""
    return _shifted(state, 11).double() * 2.0**-53


def _shifted(x: torch.Tensor, n: int) -> torch.Tensor:
    """Return x shifted right, with zeros from the left."""
    return (x >> n) & ((1 << (64 - n)) - 1)
