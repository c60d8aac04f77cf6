"""The generation engine: slots that keep their keys and values across the turns of an episode.

    engine = Engine(model, max_rows=64)
    slot = engine.open(key=(seed, episode))
    engine.feed(slot, prompt_ids)                   # cached tokens are never computed again
    for turn in engine.run(max_new_tokens=32, temperature=1.0, stop_ids=tokenizer.eos_ids):
        ...                                         # turns come as they finish, while others are being sampled
        engine.feed(turn.slot, observation_ids)     # continue this episode in the same run, or
        engine.close(turn.slot)                     # free its slot

The life of a slot:

    open -> feed -> prefill -> decode steps -> the turn is yielded -> feed: an observation, for the next turn; or close

    feed          ids are pending; a beginning that another slot has too is copied from its row of the cache
    prefill       all pending tokens but the last give their keys and values to the cache
    decode steps  the last token's hidden state gives the next token, until a stop token or a limit

Each token takes one uniform number from a counter (seed, episode, turn, token) and inverts the cumulative distribution.
So an episode's samples depend only on its own key and tokens, not on its neighbours: on a CPU, on CUDA with exact=true.
"""

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import torch

from models.cache import KVCache
from models.decoder import CausalLM
from models.hooks import hooks
from models.linear import ROW_MULTIPLE
from models.logprob import head_logits, log_normalizer
from models.random import fold, fold_all, unit
from models.refusal import Refusal
from models.slots import SampledTurn, Slot, copy_prefixes, share_prefix, to_front

PREFILL_TOKENS = 8192  # of prompts and observations in one forward; more only takes more memory


class Engine:
    """Samples from a decoder, max_rows sequences at a time, each of at most max_len tokens and with a row of the cache.

    version: returns a value that changes with the weights. Keys and values that were cached under another value raise
        RuntimeError. The default counts in-place writes to parameters; lora.adapter_version also sees another adapter.
    graph: enqueue steps ahead of the host if models/cuda can; by default on CUDA. On a CPU it is for tests.
    """

    def __init__(self, model: CausalLM, max_rows: int = 64, max_len: int = 2048, version=None, graph=None):
        self.model, self.max_rows, self.max_len = model, max_rows, max_len
        # Turns keep the hidden states that predicted their ids; not where steps run ahead of the host.
        self.keep_hidden = False
        parameters = list(model.parameters())
        self.version: Callable[[], Hashable] = version or (lambda: sum(p._version for p in parameters))
        self._slots: dict[int, Slot] = {}
        self._version: Hashable = None  # of the weights, at the last check
        self._step: Any = None  # the faster decode step, if there is one for these weights
        self._step_version: Hashable = None  # the version of the weights that it was made from
        ahead = model.lm_head.weight.device.type == "cuda" if graph is None else graph
        self._cache = KVCache(model, -(-max_rows // ROW_MULTIPLE) * ROW_MULTIPLE if ahead else max_rows, max_len)
        self._ahead = hooks("cuda").run_ahead(model, self._cache, sample, self._slots, max_len) if ahead else None

    @property
    def free(self) -> int:
        """Number of slots that can be opened."""
        return self.max_rows - len(self._slots)

    @property
    def unfinished(self) -> int:
        """Number of tokens sampled in turns that are not finished. Another thread may read it."""
        return sum(len(turn.ids) for state in list(self._slots.values()) if (turn := state.sampling))

    def open(self, key: tuple[int, int], parent: int | None = None) -> int:
        """Open a slot with the random stream of `key` = (seed, episode) and return its number.

        With `parent` it starts with the tokens of that slot, as the samples of a group share their prompt. Their keys
        and values are copied. Raises RuntimeError if all slots are open, or the parent is not open or is being sampled.
        """
        if not self.free:
            raise RuntimeError(f"all {self.max_rows} slots of the engine are open; close one first")
        # The lowest free row keeps busy slots together at the front of the cache.
        taken = {state.row for state in self._slots.values()}
        slot, row = (next(i for i in range(self.max_rows) if i not in used) for used in (self._slots, taken))
        state = Slot(key, row)
        if parent is not None:
            source = self._slots.get(parent)
            if source is None or source.sampling is not None:
                raise RuntimeError(f"slot {parent} is {'being sampled' if source else 'not open'}: it cannot be copied")
            state.ids, state.pending, state.fed, state.turn = source.ids[:], source.ids[:], source.fed, source.turn
            state.limit = source.limit
            share_prefix(state, self._slots, self.version(), parent)
        self._slots[slot] = state
        return slot

    def feed(self, slot: int, ids: list[int], limit: int | None = None) -> None:
        """Append ids to a slot's sequence; `run` then samples its next turn. limit: in place of max_new_tokens."""
        state = self._slots[slot]
        if state.sampling is not None:
            raise RuntimeError(f"slot {slot} is being sampled; feed it when its turn has come")
        if not ids and not state.pending:
            raise Refusal(f"slot {slot} is empty: a sequence begins with at least one id")
        state.ids += ids
        state.pending, state.fed, state.limit = state.pending + ids, True, limit
        if state.length == 0:
            share_prefix(state, self._slots, self.version())

    def rewind(self, slot: int, length: int) -> None:
        """Drop all ids of a slot's sequence but the first `length`, whose keys and values stay; then feed it."""
        self._settle_children(slot)
        state = self._slots[slot]
        state.length = min(state.length, length)
        state.ids, state.pending = state.ids[:length], state.ids[state.length : length]

    def close(self, slot: int) -> None:
        """Free the slot."""
        self._settle_children(slot)
        del self._slots[slot]

    def _settle_children(self, slot: int) -> None:
        """Copy keys and values to the slots that wait for those of this one."""
        if any(state.parent == slot for state in self._slots.values()):
            copy_prefixes(self._slots, self._cache, self._compute, self.version)

    def run(self, max_new_tokens: int, temperature: float, stop_ids: frozenset[int]) -> Iterator[SampledTurn]:
        """Sample one turn for every slot that has been fed; yield each turn as soon as it is finished.

        Slots fed or opened between two yields join in; the run ends when no slot has a turn to sample. temperature 0
        takes the most likely token and reports log-probabilities at temperature 1. Raises ValueError if it is negative.
        """
        if temperature < 0:
            raise Refusal(f"temperature must not be negative, not {temperature}")
        while True:
            finished = self.step(max_new_tokens, temperature, stop_ids)
            if finished is None:
                return
            yield from finished

    def step(self, max_new_tokens: int, temperature: float, stop_ids: frozenset[int]) -> list[SampledTurn] | None:
        """Sample the next token of every turn, and return the turns that this finishes; None if there is no turn."""
        busy, finished = self._schedule()
        if not busy and not finished:
            return None
        if busy:
            self._prefill_all(busy)
            if self._ahead is None:
                finished += self._sample(busy, max_new_tokens, temperature, stop_ids)
            else:
                finished += self._ahead.advance(busy, self._version, max_new_tokens, temperature, stop_ids)
        for turn in finished:
            self._slots[turn.slot].sampling = None
        return finished

    def _schedule(self) -> tuple[list[int], list[SampledTurn]]:
        """Return (the slots that get a token now, the turns that are finished because their slots are full)."""
        full = self._begin_turns()
        busy = [i for i, state in self._slots.items() if state.sampling is not None and state.sampling not in full]
        if busy and self._ahead is not None:
            busy = self._ahead.ready(busy)  # short prompts wait until several can be computed at once
        return busy, full

    def _prefill_all(self, busy: list[int]) -> None:
        """Fill the cache with the keys and values of all tokens but the last, which predicts the next one."""
        copy_prefixes(self._slots, self._cache, self._compute, self.version)
        self._compute(busy)
        self._stamp_version(busy)

    def _begin_turns(self) -> list[SampledTurn]:
        """Start a turn in every slot that has been fed; return the turns that have no room for a single token."""
        full, fed = [], {i: state for i, state in self._slots.items() if state.fed}
        streams = fold_all([(*state.key, state.turn + 1) for state in fed.values()]).tolist() if fed else []
        for (i, state), stream in zip(fed.items(), streams, strict=True):
            state.fed, state.turn, state.stream = False, state.turn + 1, stream
            # The reason stays "context" unless a stop token or max_new_tokens ends the turn first.
            state.sampling = SampledTurn(i, [], [], "context")
            if state.room(self.max_len) < 1:
                full.append(state.sampling)
        return full

    def _compute(self, slots: list[int]) -> None:
        """Compute all pending tokens of the slots but the last, PREFILL_TOKENS at a time."""
        while waiting := {i: len(self._slots[i].pending) - 1 for i in slots if len(self._slots[i].pending) > 1}:
            counts: dict[int, int] = {}
            budget, longest = PREFILL_TOKENS, max(waiting.values())
            for i, count in waiting.items():
                # A pass is padded to its longest row: take rows of at least half of it that have room for that.
                inside = count == longest or self._slots[i].length + longest <= self.max_len
                if inside and 2 * count >= longest and (count <= budget or not counts):
                    counts[i], budget = min(count, budget), max(budget - count, 0)
            self._prefill(counts)

    def _prefill(self, counts: dict[int, int]) -> None:
        """Compute the first pending tokens of some slots: {slot: how many}."""
        self._stamp_version(list(counts))
        states = [(self._slots[i], n) for i, n in counts.items()]
        if self._ahead is None or not self._ahead.prefill(states, self._version):
            self._prefill_padded(states)
        for state, n in states:
            state.length, state.pending = state.length + n, state.pending[n:]

    def _prefill_padded(self, states: list[tuple[Slot, int]]) -> None:
        """Compute the first n pending tokens of each (slot, n), padded to the longest."""
        ids_N = torch.tensor([token for state, n in states for token in state.pending[:n]])
        positions_N = torch.cat([torch.arange(state.length, state.length + n) for state, n in states])
        rows_B, starts_B, counts_B = torch.tensor([(state.row, state.length, n) for state, n in states]).T
        segments_N = torch.arange(len(states)).repeat_interleave(counts_B)
        view, step = self._cache.view(rows_B, starts_B, int(counts_B.max())), self._current_step()
        if step is None or not step.prefill(ids_N, positions_N, view, counts_B):
            self._forward(ids_N[None], positions_N[None], view, segments_N[None], wanted=counts_B[:0])  # no output

    def _sample(self, busy: list[int], max_new_tokens: int, temperature: float, stop_ids) -> list[SampledTurn]:
        """Sample one more token for each busy slot; return the turns that this finishes."""
        states = [self._slots[i] for i in busy]
        hidden_BD = self._hidden(states)
        if self.keep_hidden:
            for state, own_hidden in zip(states, hidden_BD.split(1), strict=True):
                state.sampling.hidden.append(own_hidden)
        counters = torch.tensor([(state.stream, len(state.sampling.ids)) for state in states])
        uniforms_B = unit(fold(*counters.T)) if temperature else None
        ids_B, logprobs_B = sample(hidden_BD, self.model.lm_head.weight, temperature, uniforms_B)
        sampled = zip(states, ids_B.tolist(), logprobs_B.tolist(), strict=True)
        limits = max_new_tokens, stop_ids, self.max_len
        return [state.sampling for state, token, logprob in sampled if state.append([token], [logprob], *limits)]

    def _hidden(self, states: list[Slot]) -> torch.Tensor:
        """Return the hidden states [B, D] that predict the next token of each slot."""
        to_front(self._cache, states, self._slots.values())
        # Reading the front of the cache in place, idle rows too, costs less than a copy of the busy rows. The output of
        # an idle slot is dropped; its next token will overwrite what it writes.
        by_row = {state.row: state for state in self._slots.values()}
        busy_rows = torch.tensor([state.row for state in states])
        front = [by_row.get(row) for row in range(int(busy_rows.max()) + 1)]
        ids_B = torch.tensor([state.pending[0] if state and state.pending else 0 for state in front])
        starts_B = torch.tensor([state.length if state else 0 for state in front])
        view = self._cache.view(slice(0, len(front)), starts_B, 1)
        positions_B = starts_B.clamp(max=int(starts_B[busy_rows].max()))  # an idle row sees no more than a busy one
        return self._next(ids_B, positions_B, view)[busy_rows]

    def _stamp_version(self, slots: list[int]) -> None:
        """Read the version of the weights, which `_current_step` then uses, and write it into these slots. Raise
        RuntimeError if the weights changed after a slot's keys and values were computed."""
        self._version = self.version()
        for i in slots:
            state = self._slots[i]
            if state.length and state.version != self._version:
                raise RuntimeError(f"slot {i} holds keys and values of other weights; close it and open a new one")
            state.version = self._version

    def _next(self, ids_B: torch.Tensor, positions_B: torch.Tensor, view) -> torch.Tensor:
        """Return hidden states [B, D] of one more token for each row of the view."""
        step, step_together = self._current_step() or self._plain_step, self.model.step_together
        return step_together(step, ids_B, positions_B, view) if step_together else step(ids_B, positions_B, view)

    def _plain_step(self, ids_B: torch.Tensor, positions_B: torch.Tensor, view) -> torch.Tensor:
        return self._forward(ids_B[:, None], positions_B[:, None], view)[:, 0]

    def _current_step(self) -> Any:
        """Return the faster decode step for the weights as they are now, if there is one (CPU: models/cpu/step.py)."""
        if self._step_version != self._version:
            self._step, self._step_version = hooks(self.model.lm_head.weight).decode_step(self.model), self._version
        return self._step

    @torch.no_grad()
    def _forward(self, ids_BT, positions_BT, view, segments_BT=None, wanted=None) -> torch.Tensor:
        """Return the model's hidden states for tokens whose keys and values go into the view."""
        device = self.model.lm_head.weight.device
        segments_BT, wanted = (None if x is None else x.to(device) for x in (segments_BT, wanted))
        return self.model(ids_BT.to(device), positions_BT.to(device), segments_BT, cache=view, wanted=wanted)


@torch.no_grad()
def sample(hidden_BD, weight_VD, temperature: float, uniforms_B: torch.Tensor | None):
    """Return (ids_B, logprobs_B): the token at which the cumulative distribution passes each row's uniform number; at
    temperature 0 the most likely token."""
    if (sampled := hooks(hidden_BD).sample(hidden_BD, weight_VD, temperature, uniforms_B)) is not None:
        return sampled
    logits = head_logits(hidden_BD, weight_VD, temperature or 1.0)
    if temperature == 0:
        ids_B = logits.argmax(-1)
    else:
        assert uniforms_B is not None
        cumulative = logits.softmax(-1).cumsum(-1, dtype=torch.float64)
        target = uniforms_B.to(cumulative.device)[:, None] * cumulative[:, -1:]
        ids_B = torch.searchsorted(cumulative, target, right=True)[:, 0].clamp_(max=len(weight_VD) - 1)
    return ids_B, (logits.gather(1, ids_B[:, None]) - log_normalizer(logits))[:, 0]
