"""A trial of speed: what a sampled token costs by each library of packed.py, on a part of the model.

A run samples tokens, computes prompts and observations, and trains on all of them. Which library is faster differs
between these and between few rows and many, so the trial does all three, on the model's own shapes: a few layers and
their share of the head, with the adapters. process.py chooses by the result.
"""

import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import NamedTuple

import torch

from models.attention import KEY_BLOCK
from models.cache import KVCache
from models.config import parse_config
from models.cpu import packed
from models.cpu.packed import Library
from models.cpu.step import CPUStep, Step, first_layers
from models.decoder import CausalLM
from models.engine import sample
from models.logprob import token_logprobs
from models.sizes import Sizes, sizes_of

WEIGHTS = 10_000_000  # of the tried part, about: its copies for several libraries do not fit into a cache together
LAYERS, WORDS = 4, 64  # of a part, at most, because calls take time as well; its head has a multiple of so many words
SEQUENCES, TOKENS, WORK = 4, 256, 2**33  # of a prefill and of an update; tokens * weights, at most
PREFILLED, TRAINED = 1, 2  # tokens for each sampled one, about as in runs of several turns whose groups share prompts
DECODES = 2  # of a round, because they are short
MOST_ROWS = 256  # of a decode step: with more the products are as those of training
SAME = 1.2  # times the cost, up to which two libraries count as equally fast
FAR, LEAST = 1.4, 3  # times the cost for which two rounds suffice; rounds that three quarters are taken of, at least
LIMIT = 1.5  # seconds of processor time, after which the medians so far decide


class Part(NamedTuple):
    """A part of a model: its first layers, and as large a share of its head."""

    model: CausalLM  # its embedding, norm and lm_head are whole
    head_VD: torch.Tensor
    whole: int  # weights of the whole model


def part_of(model: CausalLM) -> Part:
    """Return a part of the model, which shares its weights; of sharded weights a random one, without adapters."""
    sizes, weight = sizes_of(model.config), model.lm_head.weight
    if type(model) is not CausalLM:
        return random_part(sizes, weight.dtype)
    layers, words = _share(sizes)
    head_VD = weight.detach()[:words].requires_grad_(weight.requires_grad)
    return Part(first_layers(model, layers), head_VD, sizes.weights)


def random_part(sizes: Sizes, dtype: torch.dtype) -> Part:
    """Return a part of a model that is not loaded, without adapters and biases; every weight is the same number."""
    layers, words = _share(sizes)
    raw = {"model_type": "llama", "num_hidden_layers": layers, "vocab_size": words, "tie_word_embeddings": False}
    raw |= {"hidden_size": sizes.D, "intermediate_size": sizes.I, "rms_norm_eps": 1e-6, "head_dim": sizes.E}
    raw |= {"num_attention_heads": sizes.H, "num_key_value_heads": sizes.key_heads}
    with torch.random.fork_rng([]), torch.device("meta"):
        model = CausalLM(parse_config(raw))
    model = model.to(dtype).to_empty(device="cpu").requires_grad_(False)
    for p in model.parameters():
        p.fill_(0.01)
    return Part(model, model.lm_head.weight, sizes.weights)


def _share(sizes: Sizes) -> tuple[int, int]:
    """Return (layers, words of the head) of a part: about WEIGHTS weights, and the same share of both."""
    layers = min(sizes.L, LAYERS, max(1, round(WEIGHTS * sizes.L / sizes.weights)))
    return layers, min(sizes.V, max(1, round(sizes.V * layers / sizes.L / WORDS)) * WORDS)


def race(part: Part, steps: dict[Library, Step | None], rows: int) -> tuple[Library, dict[Library, float]]:
    """Return (the first library of `steps` whose cost counts as the least, the cost of a sampled token by each of them
    as a multiple of the least).

    steps: the arguments of the CPUStep by each library, None: it has none; the library to prefer comes first. rows:
    sequences that are sampled at once.

    Rounds of all libraries are interleaved and measured by processor time, because other programs take their turns
    beside them, and compared round by round. A library that is surely slower than SAME leaves the race. It ends when
    the first one that is left is surely not slower, or else after LIMIT; the medians of the rounds then decide.
    """
    rows = min(rows, MOST_ROWS)
    tried = [Tried(part, by, step, rows) for by, step in steps.items()]
    rounds: dict[Library, list[float]] = {by: [] for by in steps}
    for one in tried:
        one.warm_up()
    ends = time.process_time() + LIMIT
    while True:
        for library, cost in _round(tried).items():
            rounds[library].append(cost)
        best = min(tried, key=lambda one: median(rounds[one.library])).library
        ratios = {by: [a / b for a, b in zip(found, rounds[best], strict=False)] for by, found in rounds.items()}
        tried = [one for one in tried if _side(ratios[one.library]) != "slower"]
        if len(tried) == 1 or _side(ratios[tried[0].library]) == "same" or time.process_time() > ends:
            costs = {by: median(found) for by, found in ratios.items()}
            return next(one.library for one in tried if costs[one.library] <= SAME), costs


def _round(tried: list["Tried"]) -> dict[Library, float]:
    """Return the cost of a sampled token by each library, in seconds."""
    costs = dict.fromkeys((one.library for one in tried), 0.0)
    for work in ("decode",) * DECODES + ("prefill", "update"):
        for one in tried:
            costs[one.library] += one.seconds(work)
    return costs


def _side(ratios: list[float]) -> str:
    """Return on which side of SAME the ratios of rounds are: "slower" | "same", or "" while that is not sure."""
    if len(ratios) < LEAST:
        return "slower" if len(ratios) > 1 and min(ratios) > FAR else ""
    low, _, high = quantiles(ratios, n=4)
    return "slower" if low > SAME else "same" if high < SAME else ""


class Tried:
    """A part of a model whose products one library computes, with its decode step."""

    def __init__(self, part: Part, library: Library, step: Step | None, rows: int):
        self.part, self.library, self.rows = part, library, rows
        model, weights = part.model, sum(p.numel() for p in part.model.model.layers.parameters()) + part.head_VD.numel()
        self.length = max(1, min(TOKENS, WORK // weights) // SEQUENCES)  # tokens of each sequence
        self.cache = KVCache(model, max(rows, SEQUENCES))
        self.cache.reserve(2)
        with packed.taken(library):
            self.step = CPUStep(model, *step) if step else None
        self.trained = [p for p in (*model.model.layers.parameters(), part.head_VD) if p.requires_grad]

    def warm_up(self) -> None:
        """Make the copies of weights, and choose kernels."""
        for work in ("decode", "update"):
            self.seconds(work)

    def seconds(self, work: str) -> float:
        """Return the processor time of one sampled token's share of some work: "decode" | "prefill" | "update"."""
        works: dict[str, tuple[Callable[[], object], float]] = {
            "decode": (self.decode, 1 / (DECODES * self.rows)),
            "prefill": (self.prefill, PREFILLED / (SEQUENCES * self.length)),
            "update": (self.update, TRAINED / (SEQUENCES * self.length)),
        }
        function, share = works[work]
        with packed.taken(self.library):
            began = time.process_time()
            function()
            return share * (time.process_time() - began)

    @torch.no_grad()
    def decode(self) -> None:
        """Sample one token of each row, as models/engine.py does."""
        positions_B, ids_B = torch.full((self.rows,), 3 * KEY_BLOCK // 2), torch.zeros(self.rows, dtype=torch.long)
        view = self.cache.view(slice(0, self.rows), positions_B, 1)
        if self.step is None:
            hidden_BD = self.part.model(ids_B[:, None], positions_B[:, None], cache=view)[:, 0]
        else:
            hidden_BD = self.step(ids_B, positions_B, view)
        sample(hidden_BD, self.part.head_VD, 1.0, torch.full((self.rows,), 0.5, dtype=torch.float64))

    @torch.no_grad()
    def prefill(self) -> None:
        """Write the keys and values of some prompts, as models/engine.py does; here the last layer computes all."""
        places_B, starts_B = torch.arange(SEQUENCES), torch.zeros(SEQUENCES, dtype=torch.long)
        segments_N = places_B.repeat_interleave(self.length)
        view = self.cache.view(places_B, starts_B, self.length)
        self.part.model(torch.zeros_like(segments_N)[None], self._positions_N()[None], segments_N[None], view)

    @torch.enable_grad()
    def update(self) -> None:
        """Compute log-probabilities and their gradient, which is dropped."""
        rows_ST, ids_N, inputs = torch.arange(SEQUENCES * self.length).view(SEQUENCES, -1), self._positions_N() * 0, []
        need = lambda _module, _ids, x: inputs.append(x if x.requires_grad else x.requires_grad_())  # noqa: E731
        hook = self.part.model.model.embed_tokens.register_forward_hook(need)
        try:
            hidden_ND = self.part.model(ids_N[None], sequences_ST=rows_ST)[0]
        finally:
            hook.remove()
        logprobs_N = token_logprobs(hidden_ND, self.part.head_VD, ids_N)[0]
        torch.autograd.grad(logprobs_N.sum(), self.trained + inputs)

    def _positions_N(self) -> torch.Tensor:
        return torch.arange(self.length).repeat(SEQUENCES)
