"""The generation engine: slots that keep their keys and values across the turns of an episode.

    engine = Engine(model, max_rows=64)
    slot = engine.open(key=(seed, episode))
    engine.feed(slot, prompt_ids)                   # only new tokens are ever computed
    for row in engine.run(max_new_tokens=32, temperature=1.0, stop_ids=tokenizer.eos_ids):
        ...                                         # rows come as they finish; the others are still being sampled
        engine.feed(row.slot, observation_ids)      # this one goes on in the same run, or
        engine.close(row.slot)                      # gives its place to another

What an episode samples depends on its own key and tokens alone, never on its neighbours: each token takes one uniform
number from a counter (seed, episode, turn, token) and inverts the cumulative distribution.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch

from models.cache import KVCache
from models.decode import Step, exact_step
from models.decoder import ROW_MULTIPLE, CausalLM
from models.logprob import head_logits, normalized


@dataclass
class Row:
    """One sampled turn."""

    slot: int
    ids: list[int]  # sampled ids, the stop token included
    logprobs: list[float]  # of each sampled id, under the sampling temperature
    stop_reason: str  # "stop" a stop token | "length" max_new_tokens | "context" the slot is full


@dataclass
class _Slot:
    key: tuple[int, int]  # (seed, episode)
    version: Hashable = None  # of the weights under which the cached keys and values were computed
    length: int = 0  # tokens in the cache
    pending: list[int] = field(default_factory=list)  # tokens after those; the last one's output gives the next token
    fed: bool = False  # waits for a turn to be sampled
    turn: int = -1  # turns begun, less one
    row: Row | None = None  # the turn being sampled


class Engine:
    """Samples from a decoder, max_rows sequences at a time, each of at most max_len tokens.

    version: called whenever cached keys and values are about to be used; if its value differs from the one under which
        they were computed, the weights have changed and RuntimeError is raised. By default it counts torch's in-place
        writes to the parameters; pass lora.adapter_version to notice a switched adapter as well.
    """

    def __init__(
        self,
        model: CausalLM,
        max_rows: int = 64,
        max_len: int = 2048,
        version: Callable[[], Hashable] | None = None,
    ):
        self.model, self.max_rows, self.max_len = model, max_rows, max_len
        parameters = list(model.parameters())
        self.version = version or (lambda: sum(p._version for p in parameters))
        self._slots: dict[int, _Slot] = {}
        self._cache = KVCache(model, max_rows)
        self._version: Hashable = None  # of the weights, when last looked at
        self._step: Step | None = None  # their stacked copy, if there is an exact one,
        self._step_version: Hashable = None  # and the version that it is a copy of

    @property
    def free(self) -> int:
        """How many more slots can be opened."""
        return self.max_rows - len(self._slots)

    def open(self, key: tuple[int, int], parent: int | None = None) -> int:
        """A new slot with the random stream of `key` = (seed, episode).

        With `parent` it starts as a copy of that slot, whose keys and values are not computed again: the samples of a
        group share their prompt. Raises RuntimeError if all slots are open.
        """
        # The lowest free place, so that the busy ones stay together at the front of the cache.
        slot = next((i for i in range(self.max_rows) if i not in self._slots), None)
        if slot is None:
            raise RuntimeError(f"all {self.max_rows} slots of the engine are open; close one first")
        state = _Slot(key)
        if parent is not None:
            if parent not in self._slots:
                raise RuntimeError(f"slot {parent} is not open")
            source = self._slots[parent]
            self._fill([parent])
            if source.row is not None:
                raise RuntimeError(f"slot {parent} is being sampled; copy it when its row has come")
            self._cache.copy(parent, slot, source.length)
            state = _Slot(key, source.version, source.length, list(source.pending), source.fed, source.turn)
        self._slots[slot] = state
        return slot

    def feed(self, slot: int, ids: list[int]) -> None:
        """Appends ids to a slot's sequence; `run` then samples its next turn."""
        state = self._slots[slot]
        if state.row is not None:
            raise RuntimeError(f"slot {slot} is being sampled; feed it when its row has come")
        if not ids and not state.pending:
            raise ValueError(f"slot {slot} is empty: a sequence begins with at least one id")
        state.pending.extend(ids)
        state.fed = True

    def room(self, slot: int) -> int:
        """How many more tokens fit into a slot's sequence; negative if too many were fed."""
        state = self._slots[slot]
        return self.max_len - state.length - len(state.pending)

    def close(self, slot: int) -> None:
        """Gives the slot's place back."""
        del self._slots[slot]

    def run(self, max_new_tokens: int, temperature: float, stop_ids: frozenset[int]) -> Iterator[Row]:
        """Samples one turn for every slot that has been fed, and yields each row as soon as it is finished.

        Slots fed or opened between two yields join in. temperature 0 takes the most likely token and reports
        log-probabilities at temperature 1. Ends when no slot has a turn to sample.
        Raises ValueError for a negative temperature.
        """
        if temperature < 0:
            raise ValueError(f"temperature must not be negative, not {temperature}")
        while True:
            finished = self._begin_turns()
            busy = [i for i, state in self._slots.items() if state.row is not None and state.row not in finished]
            if not busy and not finished:
                return
            if busy:
                self._fill(busy)
                finished += self._sample(busy, max_new_tokens, temperature, stop_ids)
            for row in finished:
                self._slots[row.slot].row = None
            yield from finished

    def _begin_turns(self) -> list[Row]:
        """Starts a turn in every slot that has been fed; one without room for a single token is finished at once."""
        full = []
        for i, state in self._slots.items():
            if not state.fed:
                continue
            state.fed, state.turn, state.row = False, state.turn + 1, Row(i, [], [], "context")
            if self.room(i) < 1:
                full.append(state.row)
        return full

    def _fill(self, slots: list[int]) -> None:
        """Computes all pending tokens but the last of each slot, so that every slot has exactly one left."""
        slots = [i for i in slots if len(self._slots[i].pending) > 1]
        if not slots:
            return
        longest = max(len(self._slots[i].pending) for i in slots)
        shorter = [i for i in slots if 2 * len(self._slots[i].pending) < longest]
        self._fill(shorter)  # attention pads to the longest of a pass, so prompts and short observations go apart
        slots = [i for i in slots if i not in shorter]
        states = [self._slots[i] for i in slots]
        counts = [len(state.pending) - 1 for state in states]
        ids_1N = torch.tensor([[token for state in states for token in state.pending[:-1]]])
        places = [torch.arange(state.length, state.length + n) for state, n in zip(states, counts, strict=True)]
        positions_1N = torch.cat(places)[None]
        segments_1N = torch.repeat_interleave(torch.arange(len(slots)), torch.tensor(counts))[None]
        self._check_version(slots)
        view = self._cache.view(torch.tensor(slots), torch.tensor([state.length for state in states]), max(counts))
        self._forward(ids_1N, positions_1N, view, segments_1N, wanted_W=torch.empty(0, dtype=torch.long))
        for state, n in zip(states, counts, strict=True):
            state.length, state.pending = state.length + n, state.pending[-1:]

    def _sample(self, busy: list[int], max_new_tokens: int, temperature: float, stop_ids) -> list[Row]:
        """One more token for each busy slot, all of which have one pending; returns the rows that this finishes."""
        self._check_version(busy)
        states = [self._slots[i] for i in busy]
        front = -(-(max(busy) + 1) // ROW_MULTIPLE) * ROW_MULTIPLE
        if 2 * len(busy) > front:
            # The front of the cache as it lies, idle rows too, costs less than a copy of the busy ones. An idle slot's
            # output is dropped, and what it writes lies where its next token will.
            rows, mine = slice(0, front), torch.tensor(busy)
            laid = [self._slots.get(i, _Slot((0, 0))) for i in range(front)]
        else:
            rows, mine, laid = torch.tensor(busy), slice(None), states
        ids_B = torch.tensor([state.pending[0] if state.pending else 0 for state in laid])
        starts_B = torch.tensor([state.length for state in laid])
        hidden_BD = self._next(ids_B, starts_B, self._cache.view(rows, starts_B, 1))[mine]
        counters = [(*state.key, state.turn, len(state.row.ids)) for state in states]
        ids_B, logprobs_B = sample(hidden_BD, self.model.lm_head.weight, temperature, uniforms(counters))

        finished = []
        for i, state, token, logprob in zip(busy, states, ids_B.tolist(), logprobs_B.tolist(), strict=True):
            state.length, state.pending = state.length + 1, [token]
            state.row.ids.append(token)
            state.row.logprobs.append(logprob)
            if token in stop_ids:
                state.row.stop_reason = "stop"
            elif len(state.row.ids) >= max_new_tokens:
                state.row.stop_reason = "length"
            elif self.room(i) >= 1:
                continue
            finished.append(state.row)
        return finished

    def _check_version(self, slots: list[int]) -> None:
        self._version = self.version()
        for i in slots:
            state = self._slots[i]
            if state.length and state.version != self._version:
                raise RuntimeError(f"slot {i} holds keys and values of other weights; close it and open a new one")
            state.version = self._version

    def _next(self, ids_B: torch.Tensor, positions_B: torch.Tensor, view) -> torch.Tensor:
        """Hidden states [B, D] of one more token for each row of the view."""
        if self._step_version != self._version:
            self._step, self._step_version = exact_step(self.model), self._version
        if self._step is not None:
            return self._step(ids_B, positions_B, view)
        return self._forward(ids_B[:, None], positions_B[:, None], view)[:, 0]

    @torch.no_grad()
    def _forward(self, ids_BT, positions_BT, view, segments_BT=None, wanted_W=None) -> torch.Tensor:
        device = self.model.lm_head.weight.device
        segments_BT, wanted_W = (None if x is None else x.to(device) for x in (segments_BT, wanted_W))
        return self.model(ids_BT.to(device), positions_BT.to(device), segments_BT, cache=view, wanted_W=wanted_W)


@torch.no_grad()
def sample(hidden_BD: torch.Tensor, weight_VD: torch.Tensor, temperature: float, uniforms_B: torch.Tensor):
    """(ids_B, logprobs_B): the token where the cumulative distribution passes each row's uniform number."""
    B = hidden_BD.shape[0]
    logits = head_logits(hidden_BD, weight_VD, temperature or 1.0)
    normalizer, weights = normalized(logits)
    if temperature == 0:
        ids_B = logits[:B].argmax(-1)
    else:
        cumulative = weights[:B].cumsum(-1, dtype=torch.float64)
        target = uniforms_B.to(cumulative.device)[:, None] * cumulative[:, -1:]
        ids_B = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=weight_VD.shape[0] - 1)
    return ids_B, (logits[:B].gather(1, ids_B[:, None]) - normalizer[:B])[:, 0]


def uniforms(counters: list[tuple[int, int, int, int]]) -> torch.Tensor:
    """One float64 in [0, 1) for each (seed, episode, turn, token), by hashing the four numbers.

    Each number is folded in by the finalizer of SplitMix64 (Steele, Lea and Flood 2014, figure 16).
    """
    state = np.zeros(len(counters), np.uint64)
    for column in np.array(counters, np.int64).reshape(-1, 4).astype(np.uint64).T:
        state = (state ^ column) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return torch.from_numpy((state >> np.uint64(11)).astype(np.float64) * 2.0**-53)
