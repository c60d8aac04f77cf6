"""What worlds ask of the base model while they are played: replies to conversations, and embeddings of texts.

    base = Base(model, tokenizer, cfg)
    results = base.answer({episode: [(request, stream), ...], ...})     # of all episodes that wait, together

The base is the policy's own weights with every adapter off, so training leaves it as it is; where there would be none,
with lora.r=0, rl/config.py refuses to train. Evaluated, a model without adapters is its own base. Its keys and values
stand in an engine of its own, so the policy's are never mixed with them. A reply's random numbers come from a stream
of its own, one for each request of an episode: what is answered depends neither on the requests beside it nor on when
it is answered.
"""

from collections import deque
from collections.abc import Iterator
from itertools import count, islice

import torch

import lora
from envs import Request, Result
from models import CausalLM, Tokenizer
from models.engine import Engine, Row
from models.random import fold_all

Stream = tuple[int, int]  # the engine's key of a random stream


def request_streams(key: tuple[int, int]) -> Iterator[Stream]:
    """The random streams of an episode's requests, one after the other; none is that of its own turns."""
    seed, episode = key
    return ((seed, int(fold_all([(episode, number)]))) for number in count())


class Base:
    """The base model: cfg.rollout_batch_size conversations at once, of at most cfg.max_len tokens each."""

    def __init__(self, model: CausalLM | None, tokenizer: Tokenizer, cfg):
        self.model, self.tokenizer, self.cfg = model, tokenizer, cfg
        self.engine: Engine | None = None  # made when it is needed

    def answer(self, asking: dict[int, list[tuple[Request, Stream]]]) -> dict[int, list[Result]]:
        """The results of each episode's requests. A conversation that leaves no room for a reply gets an empty one.

        Raises ValueError if there is no model, or no such kind of request.
        """
        asked = [pair for pairs in asking.values() for pair in pairs]
        if not asked:
            return {}
        if self.model is None:
            raise ValueError("a world asks the base model, and there is none to answer")
        chats: dict[tuple, deque] = {}  # {(max_tokens, temperature): (place, stream, prompt's ids) of each}
        embeds: dict[int, list[str]] = {}  # {place: texts}
        for place, (request, stream) in enumerate(asked):
            if request.kind == "chat":
                waiting = chats.setdefault((request.max_tokens, request.temperature), deque())
                waiting.append((place, stream, self.tokenizer.prompt(request.messages)))
            elif request.kind == "embed":
                embeds[place] = request.texts
            else:
                raise ValueError(f"a request is of kind chat or embed, not {request.kind!r}")
        results: dict[int, Result] = {}
        with lora.adapters_off(self.model):
            for (max_tokens, temperature), waiting in chats.items():
                for place, row in self._replies(waiting, max_tokens, temperature):
                    results[place] = Result(text=self.tokenizer.answer(row.ids), tokens=len(row.ids))
            vectors = self._embed({text for texts in embeds.values() for text in texts})
        results |= {place: Result(vector=[vectors[text] for text in texts]) for place, texts in embeds.items()}
        places = iter(range(len(asked)))
        return {who: [results[place] for place in islice(places, len(pairs))] for who, pairs in asking.items()}

    def _replies(self, waiting: deque, max_tokens: int, temperature: float) -> Iterator[tuple[int, Row]]:
        """(place, reply) of each prompt, as they are finished."""
        if self.engine is None:
            cfg = self.cfg
            self.engine = Engine(self.model, cfg.rollout_batch_size, cfg.max_len, lora.adapter_version(self.model))
        engine, places = self.engine, {}

        def start() -> None:
            while waiting and engine.free:
                place, stream, ids = waiting.popleft()
                slot = engine.open(stream)
                engine.feed(slot, ids)
                places[slot] = place

        start()
        for row in engine.run(max_tokens, temperature, self.tokenizer.eos_ids):
            yield places.pop(row.slot), row
            engine.close(row.slot)
            start()

    @torch.no_grad()
    def _embed(self, texts: set[str]) -> dict[str, list[float]]:
        """Of each text the mean of its hidden states after the final norm, [D]; zeros if it has no token."""
        ids = {text: self.tokenizer.encode(text)[: self.cfg.max_len] for text in texts}
        device, width = self.model.lm_head.weight.device, self.model.config.hidden_size
        vectors = {text: [0.0] * width for text in texts}
        waiting = deque(sorted((text for text in texts if ids[text]), key=lambda text: (len(ids[text]), text)))
        while waiting:
            piece, size = [], 0
            while waiting and (not piece or size + len(ids[waiting[0]]) <= self.cfg.micro_tokens):
                piece.append(waiting.popleft())
                size += len(ids[piece[-1]])
            lengths = [len(ids[text]) for text in piece]
            ids_1N = torch.tensor([[i for text in piece for i in ids[text]]], device=device)
            segments_1N = torch.repeat_interleave(torch.arange(len(piece)), torch.tensor(lengths))[None].to(device)
            hidden_ND = self.model(ids_1N, segments_BT=segments_1N)[0].double().cpu()
            for text, hidden_TD in zip(piece, hidden_ND.split(lengths), strict=True):
                vectors[text] = hidden_TD.mean(0).tolist()
        return vectors
