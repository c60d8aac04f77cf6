"""Replies to many requests at once, sampled on a thread of its own.

    sampler = Sampler(model, tokenizer, {"mine": folder}, ...)
    sampler.start()
    sampler.submit(request)          # sampler.notify(requests) is called as their tokens come

Requests for one adapter are rows of one engine; engines of several adapters take a step each in turn, over the same
base. A finished sequence stays in its slot until the slot is needed: a request that continues it computes only what
is new. The uniform numbers of a reply depend on its `stream` alone, so its tokens do not depend on other requests.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import torch

import lora
from envs.serve import described, report
from lora.layer import activate
from models import CausalLM, Tokenizer
from models.engine import Engine, SampledTurn, Slot, sample
from models.logprob import head_logits
from models.random import fold, fold_all, unit
from models.truncation import truncate, truncated
from rl.config.refusals import Refusal
from rl.run import bases
from rl.serve.text import Text

BASE = "base"  # a name of the base model beside its own, which no adapter may have
PAUSE = 0.05  # seconds between two calls of `notify` while no reply ends: each costs time that sampling could have


class Full(Exception):
    """Too many requests wait already. passes: whether there is room for these once fewer wait."""

    def __init__(self, message: str, passes: bool = True):
        super().__init__(message)
        self.passes = passes


@dataclass(eq=False)
class Request:
    """A prompt, how to sample its reply, and the reply so far. The sampler's thread alone writes the second half."""

    ids: list[int]  # the prompt's
    adapter: str | None  # its name; None is the base
    max_tokens: int
    temperature: float
    stream: int  # state of the random numbers (models/random.py): int64
    stop_ids: frozenset[int]  # end the reply, which contains them
    top_k: int = 0  # sample from that many most likely tokens; 0: all
    top_p: float = 1.0  # sample from the fewest tokens that have this probability together
    stop: tuple[str, ...] = ()  # texts that end the reply
    alternatives: int = 0  # most likely tokens to report beside each sampled one

    sampled: list[int] = field(default_factory=list)  # sampled ids, the stop token included
    logprobs: list[float] = field(default_factory=list)  # of each, under the sampling temperature
    likely: list[list[tuple[int, float]]] = field(default_factory=list)  # of each: (id, log-probability), best first
    reused: int = 0  # tokens of the prompt whose keys and values were at hand
    finish: str = ""  # once over: "stop" | "length" | "context" | "cancelled" | "error"
    error: str = ""  # one line, for finish "error"
    cancelled: bool = False  # set by any thread: the sampler then drops the request
    text: Text | None = None  # makes `reply`; only where `stop` is searched for
    reply: str = ""  # the text so far
    reply_to: object = None  # whoever waits for the reply sets it and knows its type

    def matches(self, tokenizer: Tokenizer) -> bool:
        """Return whether the text of the reply contains one of `stop`, now that a token has been added."""
        if not self.stop:
            return False
        self.text = self.text or Text(tokenizer)
        new = self.text.add(self.sampled[-1:])
        self.reply += new
        tail = self.reply[-len(new) - max(map(len, self.stop)) :]
        return bool(new) and any(words in tail for words in self.stop)


def random_states(seed: int | None, state: int | None, count: int) -> list[int]:
    """Return the states of that many replies' random numbers. `state` is the first one's; no seed draws one."""
    seed = int.from_bytes(os.urandom(8), "little", signed=True) if seed is None else seed
    states = fold_all([(seed, number) for number in range(count)]).tolist()
    return states if state is None else [state, *states[1:]]


class Rows(Engine):
    """An engine whose turns have sampling settings of their own, one turn for each slot."""

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, max_rows: int, max_len: int):
        super().__init__(model, max_rows, max_len, lora.adapter_version(model), graph=False)
        self.tokenizer = tokenizer
        self.running: dict[int, Request] = {}  # by slot
        self._idle: dict[int, list[int]] = {}  # slot: ids whose keys and values it holds; the least recently used first

    def admit(self, requests: deque[Request]) -> None:
        """Give slots to waiting requests, as far as there are any. Equal prompts are computed once."""
        siblings: dict[tuple[int, ...], int] = {}  # {prompt: its slot}
        while requests and (self.free or self._idle):
            request = requests.popleft()
            prompt = tuple(request.ids)
            parent = siblings.get(prompt)
            slot = self._continued(request) if parent is None else None
            if slot is None:
                if not self.free:
                    self._drop(next(iter(self._idle)))
                slot = self.open((0, 0), parent)
                if parent is None:
                    self.feed(slot, request.ids)
                request.reused = self._slots[slot].length
            siblings.setdefault(prompt, slot)
            self.running[slot] = request

    def _continued(self, request: Request) -> int | None:
        """Return an idle slot that holds most of what it and the prompt have in common, cut back to that; or None."""
        shared, slot = max(((_shared(ids, request.ids), i) for i, ids in self._idle.items()), default=(0, 0))
        # A short common beginning is not worth a long conversation.
        if not shared or 2 * shared < len(self._idle[slot]):
            return None
        # At least one id is fed again, because its hidden state predicts the reply's first token.
        length = min(shared, len(request.ids) - 1)
        if any(state.parent == slot and state.length > length for state in self._slots.values()):
            return None  # another slot waits to copy more than would be left
        del self._idle[slot]
        state = self._slots[slot]
        request.reused = state.length = length
        state.ids, state.pending = request.ids[: state.length], []
        self.feed(slot, request.ids[state.length :])
        return slot

    def finish(self, slot: int, reason: str) -> Request:
        """End the slot's reply; the slot keeps its sequence. Return the request."""
        request, state = self.running.pop(slot), self._slots[slot]
        state.sampling, state.fed, request.finish = None, False, reason
        # A fork that still waits to copy its parent holds no keys and values that a later request could use.
        if state.parent is None and state.length:
            self._idle[slot] = (request.ids + request.sampled)[: state.length]
        else:
            self.close(slot)
        return request

    def _drop(self, slot: int) -> None:
        del self._idle[slot]
        self.close(slot)

    def _begin_turns(self) -> list[SampledTurn]:
        full = super()._begin_turns()
        for slot, request in self.running.items():
            self._slots[slot].stream = request.stream
        return full

    def _sample(self, busy: list[int], *_) -> list[SampledTurn]:
        """Sample one more token for each busy slot by its own request; return the rows that this finishes."""
        states = [self._slots[i] for i in busy]
        hidden_BD, requests, finished = self._hidden(states), [self.running[i] for i in busy], []

        def settings(i: int) -> tuple:
            return requests[i].temperature, requests[i].top_k, requests[i].top_p

        # One draw for all rows with equal settings, because `sample` takes one temperature for its batch.
        for (temperature, top_k, top_p), group in groupby(sorted(range(len(busy)), key=settings), settings):
            rows = list(group)
            ids_B, logprobs_B = self._draw(hidden_BD[rows], [states[i] for i in rows], temperature, top_k, top_p)
            for i, token, logprob in zip(rows, ids_B.tolist(), logprobs_B.tolist(), strict=True):
                request, state = requests[i], states[i]
                request.sampled.append(token)
                if request.alternatives:
                    likely = self._most_likely(hidden_BD[i : i + 1], temperature, top_k, top_p, request.alternatives)
                    request.likely.append(likely)
                request.logprobs.append(logprob)  # last: a token counts as sampled once it has this
                over = state.append([token], [logprob], request.max_tokens, request.stop_ids, self.max_len)
                if request.matches(self.tokenizer) and state.sampling.stop_reason != "stop":
                    state.sampling.stop_reason, over = "stop", True
                if over:
                    finished.append(state.sampling)
        return finished

    def _draw(self, hidden_BD, states: list[Slot], temperature: float, top_k: int, top_p: float):
        counters = torch.tensor([(state.stream, len(state.sampling.ids)) for state in states])
        uniforms_B = unit(fold(*counters.T)) if temperature else None
        with truncated(self.model.lm_head.weight.device.type, top_k, top_p):
            return sample(hidden_BD, self.model.lm_head.weight, temperature, uniforms_B)

    @torch.no_grad()
    def _most_likely(self, hidden_BD, temperature: float, top_k: int, top_p: float, count: int) -> list:
        """Return [(id, log-probability)] of the likeliest tokens behind the first row, as it is sampled."""
        logits_BV = head_logits(hidden_BD, self.model.lm_head.weight, temperature or 1.0)[:1]
        if temperature and (top_k or top_p < 1):
            logits_BV = truncate(logits_BV, top_k, top_p)
        best = logits_BV[0].log_softmax(-1).topk(min(count, logits_BV.shape[1]))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(token, logprob) for token, logprob in pairs if logprob > float("-inf")]


def _shared(a: list[int], b: list[int]) -> int:
    """Return how many ids the beginnings of a and b have in common."""
    size = min(len(a), len(b))
    if a[:size] == b[:size]:
        return size
    return next(i for i in range(size) if a[i] != b[i])


class Sampler:
    """The model, its adapters by name, and the thread that samples.

    Everything that touches the model runs on that thread: `call` runs a function there.
    notify: called on it with the requests that have new tokens or have ended.
    """

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, rows: int, max_len: int, most_waiting: int):
        self.model, self.tokenizer, self.rows, self.max_len = model, tokenizer, rows, max_len
        self.most_waiting = most_waiting
        self.adapters: dict[str, tuple[str, Path]] = {}  # {name: (its name in the model, its folder)}
        self.notify: Callable[[list[Request]], None] = lambda requests: None
        self.engines: dict[str | None, Rows] = {}
        self.waiting: dict[str | None, deque[Request]] = {}
        self.commands: deque[Callable[[], None]] = deque()
        self.count = 0  # adapters loaded so far
        self.active: str | None = None  # the active adapter's name in the model
        self.news: dict[Request, None] = {}  # requests with tokens since the last call of `notify`
        self.notified = 0.0  # when that was
        self.changed, self.stopped = threading.Condition(), False
        self.thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    # ------------------------------------------------------------------------------------------- from other threads

    def start(self) -> None:
        self.thread.start()

    def stop(self) -> None:
        """End the thread after its current step. Requests that have not ended get finish "error"."""
        with self.changed:
            self.stopped = True
            self.changed.notify()
        self.thread.join()

    def submit(self, *requests: Request) -> None:
        """Queue requests. Raise Full if more than most_waiting would wait, KeyError for an unknown adapter."""
        with self.changed:
            waiting = sum(map(len, self.waiting.values()))
            if len(requests) > self.most_waiting:
                raise Full(f"{len(requests)} replies at once, and queue={self.most_waiting} may wait", passes=False)
            if waiting + len(requests) > self.most_waiting:
                raise Full(f"{waiting} requests wait already, of queue={self.most_waiting}")
            for request in requests:
                if request.adapter is not None and request.adapter not in self.adapters:
                    raise KeyError(request.adapter)
            for request in requests:
                self.waiting.setdefault(request.adapter, deque()).append(request)
            self.changed.notify()

    def call(self, function: Callable) -> Future:
        """Run a function between two steps; return a Future of its result."""
        result = Future()

        def run() -> None:
            try:
                result.set_result(function())
            except Exception as error:
                result.set_exception(error)

        with self.changed:
            self.commands.append(run)
            self.changed.notify()
        return result

    # --------------------------------------------------------------------------------------- on the sampler's thread

    def load(self, name: str, folder: Path) -> None:
        """Load an adapter under a new name. Raise ValueError if the name is taken or the folder does not fit."""
        if name in self.adapters:
            raise Refusal(f"an adapter named {name!r} is loaded already")
        bases.check(folder, self.tokenizer.folder, self.model.config.quant)
        inner = f"served_{self.count}"  # a module's name cannot have dots
        self.count += 1
        lora.load_adapter(self.model, folder, inner, trainable=False)
        self.active, self.adapters[name] = inner, (inner, folder)

    def unload(self, name: str) -> None:
        """Forget an adapter; its requests end with an error. Raise KeyError if there is none."""
        inner, _ = self.adapters[name]
        # Under the lock and before its requests end, so that `submit` cannot queue another one in between.
        with self.changed:
            del self.adapters[name]
        self._end_all(name, f"the adapter {name!r} was unloaded")
        self.active = None
        activate(self.model, None)
        for _, layer in lora.lora_layers(self.model):
            if inner in layer.adapters:
                del layer.adapters[inner]

    def _run(self) -> None:
        while self._wait_for_work():
            while self.commands:
                self.commands.popleft()()
            for name in list(self.engines.keys() | self.waiting.keys()):
                try:
                    self._step(name)
                except Exception as error:  # such as running out of memory: other requests go on
                    report(error)
                    self._end_all(name, described(error))
        for name in list(self.engines.keys() | self.waiting.keys()):
            self._end_all(name, "the server stops")

    def _wait_for_work(self) -> bool:
        """Wait until there is something to do. Return False when the sampler is to stop."""
        with self.changed:
            while not (self.stopped or self.commands or any(self.waiting.values()) or self._busy()):
                self.changed.wait()
            return not self.stopped

    def _busy(self) -> bool:
        return any(engine.running for engine in self.engines.values())

    def _step(self, name: str | None) -> None:
        """Admit the adapter's waiting requests and sample a token for each of its replies."""
        inner = None if name is None else self.adapters[name][0]
        if self.active != inner:
            activate(self.model, inner)
            self.active = inner
        if name not in self.engines:
            self.engines[name] = Rows(self.model, self.tokenizer, self.rows, self.max_len)
        engine = self.engines[name]
        with self.changed:
            waiting = self.waiting.get(name, deque())
            cancelled = [request for request in waiting if request.cancelled]
            for request in cancelled:
                waiting.remove(request)
                request.finish = "cancelled"
            engine.admit(waiting)
        slots = [slot for slot, request in engine.running.items() if request.cancelled]
        ended = cancelled + [engine.finish(slot, "cancelled") for slot in slots]
        self.news |= dict.fromkeys([*ended, *engine.running.values()])
        if engine.running:
            rows = engine.step(0, 0.0, frozenset())  # each request has its own settings
            ended += [engine.finish(row.slot, row.stop_reason) for row in rows or ()]
        if ended or time.monotonic() > self.notified + PAUSE:
            self.notified, news, self.news = time.monotonic(), list(self.news), {}
            self.notify(news)

    def _end_all(self, name: str | None, error: str) -> None:
        """End all requests for an adapter with an error; its next ones get a new engine."""
        with self.changed:
            requests = list(self.waiting.pop(name, ()))
        engine = self.engines.pop(name, None)
        requests += engine.running.values() if engine else ()
        for request in requests:
            request.finish, request.error = "error", error
        self.notify(requests)
