"""The base model's answers to requests of environments: replies to conversations, and embeddings of texts.

    base = Base(model, tokenizer, cfg)
    results = base.answer({slot: [(request, stream), ...], ...})     # of all waiting episodes together

The base is the policy with every adapter off, so training does not change it. With lora.r=0 every weight trains and
there is no base: that is refused for environments that need it. The base's keys and values are in an engine of their
own. Each request has its own random stream: an answer depends neither on the requests beside it nor on when it is
given.
"""

from collections import deque
from collections.abc import Iterator
from itertools import count, islice

import torch

import lora
from envs.requests import Request, Result
from models import CausalLM, Tokenizer
from models.engine import Engine, SampledTurn
from models.random import fold_all
from rl.config.fields import Config
from rl.config.refusals import Refusal

Stream = tuple[int, int]  # the engine's key of a random stream


def request_streams(key: tuple[int, int]) -> Iterator[Stream]:
    """Yield the random streams of an episode's requests; none is the stream of its own turns."""
    seed, episode = key
    return ((seed, int(fold_all([(episode, number)]))) for number in count())


class Base:
    """The base model: cfg.rollout_batch_size conversations at once, of at most cfg.max_len tokens each."""

    def __init__(self, model: CausalLM | None, tokenizer: Tokenizer, cfg: Config):
        self.model, self.tokenizer, self.cfg = model, tokenizer, cfg
        self.engine: Engine | None = None  # made for the first chat
        self.waiting: dict[int, list[tuple[Request, Stream]]] = {}  # by slot, first come first
        self.streams: dict[tuple[int, int], Iterator[Stream]] = {}  # by the key of the episode

    def ask(self, slot: int, key: tuple[int, int], requests: list[Request]) -> None:
        """Keep the requests of the episode in a slot until `answer_waiting`."""
        streams = self.streams.setdefault(key, request_streams(key))
        self.waiting[slot] = list(zip(requests, streams, strict=False))

    def answer_waiting(self) -> dict[int, list[Result]]:
        """Return the results of each slot's requests, in the order in which the slots asked."""
        waiting, self.waiting = self.waiting, {}
        return self.answer(waiting)

    def answer(
        self, asking: dict[int, list[tuple[Request, Stream]]], adapter: str | None = None
    ) -> dict[int, list[Result]]:
        """Return the results of each episode's requests; a conversation without room for a reply gets an empty one.

        adapter: answers in the base's place. Raises ValueError if there is no model, or for an unknown kind of request.
        """
        requests = [pair for pairs in asking.values() for pair in pairs]
        if not requests:
            return {}
        if self.model is None:
            raise Refusal("an environment asks the base model, and there is none to answer")
        chats: dict[tuple, deque] = {}  # {(max_tokens, temperature): (place, stream, prompt's ids) of each}
        embeds: dict[int, list[str]] = {}  # {place: texts}
        for place, (request, stream) in enumerate(requests):
            if request.kind == "chat" and request.messages is not None:
                waiting = chats.setdefault((request.max_tokens, request.temperature), deque())
                waiting.append((place, stream, self.tokenizer.prompt(request.messages)))
            elif request.kind == "embed" and request.texts is not None:
                embeds[place] = request.texts
            else:
                raise Refusal(f"a request must be of kind chat or embed, not {request.kind!r}")
        results: dict[int, Result] = {}
        with lora.use_adapter(self.model, adapter):
            for (max_tokens, temperature), waiting in chats.items():
                for place, reply in self._replies(self.model, waiting, max_tokens, temperature):
                    text = self.tokenizer.answer(reply.ids)
                    results[place] = Result(text=text, tokens=len(reply.ids), stop_reason=reply.stop_reason)
            vectors = self._embed(self.model, {text for texts in embeds.values() for text in texts})
        results |= {place: Result(vector=[vectors[text] for text in texts]) for place, texts in embeds.items()}
        places = iter(range(len(requests)))
        return {slot: [results[place] for place in islice(places, len(pairs))] for slot, pairs in asking.items()}

    def _replies(
        self, model: CausalLM, waiting: deque, max_tokens: int, temperature: float
    ) -> Iterator[tuple[int, SampledTurn]]:
        """Yield (place, reply) of each prompt as it finishes."""
        if self.engine is None:
            cfg = self.cfg
            self.engine = Engine(model, cfg.rollout_batch_size, cfg.max_len, lora.adapter_version(model))
        engine, places = self.engine, {}

        def start() -> None:
            while waiting and engine.free:
                place, stream, ids = waiting.popleft()
                slot = engine.open(stream)
                engine.feed(slot, ids)
                places[slot] = place

        start()
        for turn in engine.run(max_tokens, temperature, self.tokenizer.eos_ids):
            yield places.pop(turn.slot), turn
            engine.close(turn.slot)
            start()

    @torch.no_grad()
    def _embed(self, model: CausalLM, texts: set[str]) -> dict[str, list[float]]:
        """Return for each text the mean of its hidden states after the final norm, [D]; zeros if it has no token."""
        ids = {text: self.tokenizer.encode(text)[: self.cfg.max_len] for text in texts}
        device, width = model.lm_head.weight.device, model.config.hidden_size
        vectors = {text: [0.0] * width for text in texts}
        waiting = deque(sorted((text for text in texts if ids[text]), key=lambda text: (len(ids[text]), text)))
        while waiting:
            piece: list[str] = []
            size = 0
            while waiting and (not piece or size + len(ids[waiting[0]]) <= self.cfg.micro_tokens):
                piece.append(waiting.popleft())
                size += len(ids[piece[-1]])
            lengths = [len(ids[text]) for text in piece]
            ids_N = torch.tensor([i for text in piece for i in ids[text]], device=device)
            segments_N = torch.repeat_interleave(torch.arange(len(piece)), torch.tensor(lengths)).to(device)
            hidden_ND = model(ids_N[None], segments_BT=segments_N[None])[0].double().cpu()
            for text, hidden_TD in zip(piece, hidden_ND.split(lengths), strict=True):
                vectors[text] = hidden_TD.mean(0).tolist()
        return vectors
