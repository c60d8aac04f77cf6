"""The sequences that the engine samples: one slot each, and the turn that is being sampled in it."""

from collections.abc import Hashable
from dataclasses import dataclass, field


@dataclass
class SampledTurn:
    """One sampled turn."""

    slot: int
    ids: list[int]  # sampled ids, the stop token included
    logprobs: list[float]  # of each sampled id, under the sampling temperature
    stop_reason: str  # "stop" a stop token | "length" max_new_tokens | "context" the slot is full


@dataclass
class Slot:
    key: tuple[int, int]  # (seed, episode)
    place: int  # row of the cache
    version: Hashable = None  # of the weights that computed the cached keys and values
    length: int = 0  # tokens in the cache
    pending: list[int] = field(default_factory=list)  # tokens not in the cache; the last one predicts the next token
    fed: bool = False  # a turn is to be sampled
    turn: int = -1  # index of the current turn
    stream: int = 0  # state of the turn's random numbers
    row: SampledTurn | None = None  # the turn being sampled
    parent: int | None = None  # slot to copy the first `length` tokens from, once they are computed

    def room(self, max_len: int) -> int:
        """Return how many more tokens fit; negative if too many were fed."""
        return max_len - self.length - len(self.pending)

    def append(self, ids: list[int], logprobs: list[float], max_new_tokens: int, stop_ids, max_len: int) -> bool:
        """Append sampled tokens to the row; return whether they finish it."""
        self.length, self.pending = self.length + len(ids), ids[-1:]
        self.row.ids += ids
        self.row.logprobs += logprobs
        if ids[-1] in stop_ids:
            self.row.stop_reason = "stop"
        elif len(self.row.ids) >= max_new_tokens:
            self.row.stop_reason = "length"
        else:
            return self.room(max_len) < 1
        return True
