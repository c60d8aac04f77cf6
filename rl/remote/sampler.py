r"""Episodes sampled by a server: train.py sampler=http://host:port/v1

The server speaks OpenAI's protocol with vLLM's additions: ids in and out, log-probabilities of what was sampled, and
adapters that are loaded while it runs. That is `python -m rl.serve load=true`, or

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True vllm serve BASE --enable-lora --max-lora-rank 64 \
        --logprobs-mode processed_logprobs

Before a rollout the adapter is saved in the run's folder, which the server must be able to read under the same path,
and loaded under a name made of its weights' hash: no reply can mix two adapters, and no cache can be of another one.
The adapters of earlier updates are then unloaded; with ahead=true the one before stays, because the next epoch may be
sampled with it while the present one is evaluated. A reply that does not fit its request is asked for again; if that
does not help, its episode is left out. What the server computed differently is corrected in rl/remote/off_policy.py.
"""

import hashlib
import math
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import envs
import lora
from envs.http.exchange import short
from models import CausalLM
from models.engine import SampledTurn
from models.random import fold_all
from rl import ranks
from rl.config.fields import Config, Files
from rl.config.refusals import Refusal
from rl.remote.client import Refused, Server
from rl.run.files import new_folder

MOST_REQUESTS = 64  # to the server at once
WAITS = 300  # seconds in which the first rank must have sent the adapter
ATTEMPTS = 3  # for a reply that does not fit its request


class Unusable(Exception):
    """A reply that does not fit its request."""


def remote_engine(model: CausalLM, cfg: Config, weights: str) -> "RemoteEngine":
    """Return an engine that samples with the model's active adapter, whose hash is `weights`, once the server has it.

    Of several ranks the first one sends the adapter. Raise ValueError if the server refuses it or lacks room for
    cfg.max_len tokens, ConnectionError if it does not answer.
    """
    server, name = Server(cfg.sampler.rstrip("/")), f"{_prefix(cfg)}{weights}"
    with ranks.waiting_outside():
        if ranks.is_first():
            push(server, name, model, cfg)
        for _ in range(WAITS):
            if name in server.names():
                break
            time.sleep(1)
    limits = cfg.rollout_batch_size, cfg.max_len, model.config.vocab_size
    return RemoteEngine(server, name, _folder(cfg) / name, *limits)


def push(server: Server, name: str, model: CausalLM, cfg: Config) -> None:
    """Let the server load the active adapter, and unload this run's earlier ones."""
    known, folder = server.names(), _folder(cfg)
    for served in server.ask("/models")["data"]:
        longest = served.get("max_model_len") if isinstance(served, dict) else None
        if type(longest) is int and 0 < longest < cfg.max_len:
            raise Refusal(f"sampler={cfg.sampler} takes {longest} tokens, fewer than max_len={cfg.max_len}")
    if not (folder / name).is_dir():
        with new_folder(folder / name) as files:
            lora.save_adapter(model, files, cfg.model)
    if name not in known:
        try:
            load(server, name, folder / name)
        except Refused as error:
            raise Refusal(f"sampler={cfg.sampler} does not load the adapter: {error}") from None
    os.utime(folder / name)  # the folders' times say which adapter was sent last
    newest_first = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns, reverse=True)
    stay = {path.name for path in newest_first[: 2 if cfg.ahead else 1]}
    for old in known:
        if old.startswith(_prefix(cfg)) and old not in stay:
            server.ask("/unload_lora_adapter", {"lora_name": old}, json_reply=False)
    for old in folder.iterdir():
        if old.name not in stay:
            shutil.rmtree(old, ignore_errors=True)


def load(server: Server, name: str, folder: Path) -> None:
    """Let the server load an adapter. Raise Refused or ConnectionError."""
    server.ask("/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, json_reply=False)


def _folder(cfg: Files) -> Path:
    return Path(cfg.out).absolute() / "sampler"


def _prefix(cfg: Files) -> str:
    return f"run-{hashlib.sha256(str(Path(cfg.out).absolute()).encode()).hexdigest()[:8]}-"


@dataclass
class FailedTurn(SampledTurn):
    """A turn that the server did not sample."""

    error: str = ""

    def step(self) -> envs.Step:
        """Take the place of the environment's step, which does not see the turn."""
        raise envs.EnvironmentFailed(f"the sampler: {self.error}")


@dataclass
class _Slot:
    key: tuple[int, int]
    ids: list[int]
    fed: bool = False
    turn: int = -1
    limit: int | None = None


@dataclass(eq=False)
class RemoteEngine:
    """The interface of models/engine.py's Engine, with replies of a server."""

    server: Server
    name: str  # of the adapter
    folder: Path  # of the adapter
    max_rows: int
    max_len: int
    words: int  # size of the vocabulary
    slots: dict[int, _Slot] = field(default_factory=dict)
    unfinished: int = 0  # tokens in turns that are not finished: the server does not say
    keep_hidden: bool = False  # without effect: a server sends no hidden states

    @property
    def free(self) -> int:
        return self.max_rows - len(self.slots)

    def open(self, key: tuple[int, int], parent: int | None = None) -> int:
        slot = next(i for i in range(self.max_rows) if i not in self.slots)
        source = _Slot(key, []) if parent is None else self.slots[parent]
        self.slots[slot] = _Slot(key, list(source.ids), source.fed, limit=source.limit)
        return slot

    def feed(self, slot: int, ids: list[int], limit: int | None = None) -> None:
        self.slots[slot].ids += ids
        self.slots[slot].fed, self.slots[slot].limit = True, limit

    def rewind(self, slot: int, length: int) -> None:
        del self.slots[slot].ids[length:]

    def close(self, slot: int) -> None:
        del self.slots[slot]

    def run(self, max_new_tokens: int, temperature: float, stop_ids: frozenset[int]) -> Iterator[SampledTurn]:
        """Sample one turn for every slot that has been fed; yield each as its reply comes."""
        running: dict[Future, int] = {}
        pool, cancelled = ThreadPoolExecutor(min(self.max_rows, MOST_REQUESTS)), self.server.cancelled
        try:
            while True:
                for i, slot in self.slots.items():
                    if slot.fed:
                        slot.fed, slot.turn = False, slot.turn + 1
                        most = slot.limit or max_new_tokens
                        running[pool.submit(self._reply, i, most, temperature, stop_ids, cancelled)] = i
                if not running:
                    return
                with ranks.waiting_outside():
                    done = wait(running, return_when=FIRST_COMPLETED).done
                for future in done:
                    slot = self.slots[running.pop(future)]
                    row = future.result()
                    slot.ids += row.ids
                    yield row
        finally:
            stopped = cancelled.is_set()  # from outside: later turns must not ask either
            cancelled.set()  # requests under way end soon
            pool.shutdown(wait=False, cancel_futures=True)
            # A new event, because this one stays set for the threads that still run and the next turn has to ask.
            if not stopped:
                self.server.cancelled = type(cancelled)()

    def _reply(
        self, number: int, most: int, temperature: float, stop_ids: frozenset[int], cancelled: Event
    ) -> SampledTurn:
        """Return the slot's turn; a FailedTurn if the server gives none that can be used, or `cancelled` is set."""
        slot = self.slots[number]
        room, error = self.max_len - len(slot.ids), "cancelled"
        if room < 1:
            return SampledTurn(number, [], [], "context")
        # The seed is of the episode and the turn, so that the order in which requests are served changes no draw.
        state = int(fold_all([(*slot.key, slot.turn)]))
        body = {"model": self.name, "prompt": list(slot.ids), "max_tokens": min(most, room), "temperature": temperature}
        body |= {"seed": state, "random_state": state, "stop_token_ids": sorted(stop_ids), "logprobs": 0}
        body |= {"return_token_ids": True, "skip_special_tokens": False}
        body |= {"top_p": 1.0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}  # else the checkpoint's own apply
        for _ in range(ATTEMPTS):
            try:
                answer = self.server.ask("/completions", body, cancelled=cancelled)
                ids, logprobs, finish = self._checked(answer, body, stop_ids)
            except (Unusable, ConnectionError) as failed:
                error = str(failed)
                continue
            except Refused as failed:
                error = str(failed)
                with suppress(Refused, ConnectionError):  # a server that was restarted has forgotten the adapter
                    load(self.server, self.name, self.folder)
                continue
            reason = finish if finish == "stop" or len(ids) == most else "context"
            return SampledTurn(number, ids, logprobs, reason)
        return FailedTurn(number, [], [], "failed", error=error)

    def _checked(self, answer: dict, body: dict, stop_ids: frozenset[int]) -> tuple[list[int], list[float], str]:
        """Return (ids, log-probabilities, finish reason) of an answer. Raise Unusable if it does not fit."""
        try:
            [choice] = answer["choices"]
            ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
            finish, model, prompt = choice["finish_reason"], answer["model"], choice.get("prompt_token_ids")
        except (KeyError, TypeError, ValueError):
            raise Unusable(f"an answer without ids, log-probabilities or a model: {short(answer)}") from None
        if model != self.name:
            raise Unusable(f"an answer of the model {short(model)}, asked was {self.name}")
        if prompt is not None and prompt != body["prompt"]:
            raise Unusable("an answer to another prompt")
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < self.words for i in ids):
            raise Unusable(f"ids that are not of the vocabulary: {short(ids)}")
        if not isinstance(logprobs, list) or len(logprobs) != len(ids) or not all(map(_is_logprob, logprobs)):
            raise Unusable(f"{short(logprobs)} as log-probabilities of {len(ids)} ids")
        # A stop id ends a turn of models/engine.py too, so one inside a reply shows that the server did not obey.
        stops_at = [i for i, token in enumerate(ids) if token in stop_ids]
        whole = stops_at == [len(ids) - 1] if finish == "stop" else not stops_at and len(ids) == body["max_tokens"]
        if finish not in ("stop", "length") or not whole:
            raise Unusable(f"{len(ids)} ids of {body['max_tokens']} with the finish reason {short(finish)}")
        return ids, [float(x) for x in logprobs], finish


def _is_logprob(x: object) -> bool:
    return type(x) in (int, float) and math.isfinite(x) and x <= 1e-3  # rounding may lift a sure token's above 0
