"""models/engine.py's `_sample` on CUDA: steps are enqueued before the host has read the results of the last ones.

While the device computes a chunk of CHUNK steps (graph.py), the host reads the results of the chunk before. It
notices a finished row some steps late, which changes nothing that is sampled.
"""

from collections.abc import Callable, Hashable

import numpy as np

from models.cache import KVCache
from models.cuda.graph import CHUNK, SlotState, Steps
from models.cuda.prefill import Prefill
from models.decoder import CausalLM

WAITING = 1 / 16  # of the rows that are sampled: so many prompts are computed at once
PATIENCE = 4  # chunks that a prompt waits for others


def run_ahead(model: CausalLM, cache: KVCache, sample: Callable, slots: dict, max_len: int) -> "Ahead | None":
    """Return the `Ahead` of an engine's cache and slots; None for a family whose blocks its steps do not compute."""
    return None if not model.config.plain_blocks else Ahead(Steps(model, cache, sample), slots, max_len)


class Ahead:
    """The host's side: which slots the device is sampling, and the results."""

    def __init__(self, steps: Steps, slots: dict, max_len: int):
        self.steps, self.slots, self.max_len = steps, slots, max_len
        self.compute = Prefill(steps) if steps.packed else None
        self.waited = 0  # chunks, since the last prompts were computed
        self.settings = None  # (max_new_tokens, temperature, stop_ids)
        self.moving = {}  # {slot: row} that the device is sampling
        self.in_flight = None  # ({slot: row} of the chunk in flight, the function that waits for it)

    def ready(self, busy: list[int]) -> list[int]:
        """Return the busy slots without those whose prompt or observation waits for others to be computed with it.

        A forward of few tokens takes about as long as a step of all rows. So prompts wait until there are enough of
        them, for PATIENCE chunks at most, and never while nothing is sampled or a group's samples need their parent.
        """
        sampled = [i for i in busy if len(self.slots[i].pending) == 1]
        waiting, parents = len(busy) - len(sampled), {slot.parent for slot in self.slots.values()} - {None}
        needed = any(len(self.slots[parent].pending) > 1 for parent in parents)
        wait = 0 < waiting < WAITING * len(sampled) and self.waited < PATIENCE and not needed
        self.waited = self.waited + 1 if wait else 0
        return sampled if wait else busy

    def prefill(self, states: list[tuple], version: Hashable) -> bool:
        """Compute the first n pending tokens of each (slot, n); return False where prefill.py cannot."""
        if self.compute is None:
            return False
        self.compute([(slot.row, slot.length, slot.pending[:n]) for slot, n in states], version)
        return True

    def advance(self, busy: list[int], version: Hashable, max_new_tokens: int, temperature: float, stop_ids) -> list:
        """Enqueue more steps if any slot may need them, read the chunk before, and return the rows that it finishes.

        Every busy slot has one pending token. Under new settings the chunk in flight is read first.
        """
        settings = (max_new_tokens, temperature, frozenset(stop_ids))
        if settings != self.settings:
            finished, self.in_flight = self._read(self.in_flight), None
            self.settings, self.moving = settings, {}
            self.steps.stop_at(stop_ids)
            if finished:
                return finished
        left, before = {i: self._left(i) for i in busy}, self.in_flight
        rows = before[0] if before else {}
        more = any(n > CHUNK * (rows.get(i) is self.slots[i].sampling) for i, n in left.items())
        self.in_flight = self._enqueue(left, version, temperature) if more else None
        return self._read(before)

    def _left(self, i: int) -> int:
        slot = self.slots[i]
        return min(max((slot.limit or self.settings[0]) - len(slot.sampling.ids), 1), self.max_len - slot.length - 1)

    def _enqueue(self, left: dict[int, int], version: Hashable, temperature: float) -> tuple:
        rows = {i: self.slots[i].sampling for i in left}
        staying = [i for i, row in rows.items() if self.moving.get(i) is row]
        new = SlotState(np.zeros(self.steps.state.storage.shape, np.int64))
        new.length_B[list(self.slots)] = [slot.length for slot in self.slots.values()]
        for i in set(rows) - set(staying):
            slot = self.slots[i]
            assert slot.row == i, "the device's state is by row"
            new.token_B[i], new.stream_B[i] = slot.pending[0], slot.stream
            new.sampled_B[i], new.left_B[i] = len(slot.sampling.ids), left[i]
        changed_B = np.ones(new.storage.shape[1], np.int64)
        changed_B[staying] = 0
        longest = max(max(s.length + 1, min(s.length + 2 * CHUNK, self.max_len)) for s in self.slots.values())
        self.steps.push(new, changed_B)  # before the trial steps: idle slots must not write where they once were
        self.steps.prepare(version, longest, temperature)
        self.moving = rows
        return rows, self.steps.enqueue()

    def _read(self, chunk: tuple | None) -> list:
        if chunk is None:
            return []
        (rows, wait), (max_new_tokens, _, stop_ids) = chunk, self.settings
        chunk_ids, chunk_logprobs = wait().swapaxes(0, 1)
        ids_by_slot, logprobs_by_slot, finished = chunk_ids.T.astype(np.int64).tolist(), chunk_logprobs.T.tolist(), []
        for i, row in rows.items():
            ids = [token for token in ids_by_slot[i] if token >= 0]
            if not ids or i not in self.slots or self.slots[i].sampling is not row:
                continue  # the row was finished before, or the slot has another one by now
            if self.slots[i].append(ids, logprobs_by_slot[i][: len(ids)], max_new_tokens, stop_ids, self.max_len):
                finished.append((len(ids), row))
        return [row for _, row in sorted(finished, key=lambda pair: pair[0])]
