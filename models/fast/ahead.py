"""Steps enqueued before the host has seen what the last ones gave.

While the device computes CHUNK steps (cuda_graph.py), the host reads what the CHUNK before gave: it learns of a
finished row some steps late, which changes nothing that is sampled.
"""

from collections.abc import Hashable

import numpy as np

from models.fast.cuda_graph import CHUNK, Steps


class Ahead:
    """The host's side: which slots are on their way, and what has come of them."""

    def __init__(self, steps: Steps, slots: dict, max_len: int):
        self.steps, self.slots, self.max_len = steps, slots, max_len
        self.settings = None  # (max_new_tokens, temperature, stop_ids)
        self.moving = {}  # {slot: row} that the device is moving on
        self.flying = None  # the same of the chunk under way, and what waits for it

    def advance(self, busy: list[int], version: Hashable, max_new_tokens: int, temperature: float, stop_ids) -> list:
        """Enqueues more steps if any slot may need them, then reads those before; returns the rows that they finish.

        Every busy slot has one pending token. What is under way with other settings is read first.
        """
        settings = (max_new_tokens, temperature, frozenset(stop_ids))
        if settings != self.settings:
            finished, self.flying = self._read(self.flying), None
            self.settings, self.moving = settings, {}
            known = [i for i in stop_ids if 0 <= i < len(self.steps.stops_V)]
            self.steps.stops_V.zero_()[known] = True
            if finished:
                return finished
        left, before = {i: self._left(i) for i in busy}, self.flying
        rows = before[0] if before else {}
        more = any(n > CHUNK * (rows.get(i) is self.slots[i].row) for i, n in left.items())
        self.flying = self._enqueue(left, version, temperature) if more else None
        return self._read(before)

    def _left(self, i: int) -> int:
        slot = self.slots[i]
        return min(max(self.settings[0] - len(slot.row.ids), 1), self.max_len - slot.length - 1)

    def _enqueue(self, left: dict[int, int], version: Hashable, temperature: float) -> tuple:
        rows = {i: self.slots[i].row for i in left}
        joining = [i for i, row in rows.items() if self.moving.get(i) is not row]
        table_6S = np.zeros((6, self.steps.state_5S.shape[1]), np.int64)
        table_6S[1, list(self.slots)] = [slot.length for slot in self.slots.values()]
        for i in joining:
            slot = self.slots[i]
            assert slot.place == i, "the tables of the device are by place"
            table_6S[:5, i] = slot.pending[0], slot.length, slot.stream, len(slot.row.ids), left[i]
        table_6S[5] = 1
        table_6S[5, [i for i, row in rows.items() if self.moving.get(i) is row]] = 0
        longest = max(max(s.length + 1, min(s.length + 2 * CHUNK, self.max_len)) for s in self.slots.values())
        self.steps.push(table_6S)  # before anything is tried out: what is idle must not write where it once was
        self.steps.prepare(version, longest, temperature)
        self.moving = rows
        return rows, self.steps.enqueue()

    def _read(self, chunk: tuple | None) -> list:
        if chunk is None:
            return []
        (rows, wait), (max_new_tokens, _, stop_ids) = chunk, self.settings
        ids_CS, logprobs_CS = wait().swapaxes(0, 1)
        ids_SC, logprobs_SC, finished = ids_CS.T.astype(np.int64).tolist(), logprobs_CS.T.tolist(), []
        for i, row in rows.items():
            ids = [token for token in ids_SC[i] if token >= 0]
            if not ids or i not in self.slots or self.slots[i].row is not row:
                continue  # it was done before, or the slot is another's by now
            if self.slots[i].append(ids, logprobs_SC[i][: len(ids)], max_new_tokens, stop_ids, self.max_len):
                finished.append((len(ids), row))
        return [row for _, row in sorted(finished, key=lambda pair: pair[0])]
