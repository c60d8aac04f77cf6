"""Random models for `python -m benchmarks.onpolicy random=N`: is the trial of a run right wherever the program runs?

The matrix of exactness.py has a few models that people train. Here sizes, heads, activations, windows, quantisation,
ranks, threads and libraries are drawn from the whole range that the program accepts, many of them small or odd.
"""

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch

import lora
from benchmarks import sides
from benchmarks.common import Row, sizes_for_products
from benchmarks.exactness import restored, tried_and_compared
from benchmarks.random_episodes import CHANGED, NEW
from models import CausalLM
from models.config import ACTIVATIONS, FAMILIES, parse_config
from models.cpu import process

ALONE = (1, 300, 8192)  # tokens of a micro-batch: each episode alone, some, all


@dataclass(frozen=True)
class Drawn:
    """A model and the settings to measure it with."""

    raw: dict  # of config.json
    dtype: str
    quant: str
    rank: int  # 0: every weight trains
    threads: int
    products: str

    def name(self, number: int) -> str:
        raw = self.raw
        heads = f"{raw['num_attention_heads']}/{raw['num_key_value_heads']} heads of {raw['head_dim']}"
        sizes = f"{raw['hidden_size']}x{raw['intermediate_size']}, {heads}, V={raw['vocab_size']}"
        kind = f"{raw['model_type']}, {raw['hidden_act']}, {self.dtype}, {self.quant}, r={self.rank}"
        return f"{number}: {kind}, {sizes}, {self.threads} threads, {self.products}"


def draw(number: int) -> Drawn:
    rng = random.Random(number)

    def size(most: int) -> int:
        """Any number, multiples of 8 and multiples of 32."""
        return rng.choice((rng.randint(1, most), 8 * rng.randint(1, most // 8), 32 * rng.randint(1, most // 32)))

    key_heads = rng.choice((1, 1, 2, 2, 3, 4, 8))
    raw = {
        "model_type": rng.choice(FAMILIES),
        "vocab_size": 1 + size(2000),
        "hidden_size": size(320),
        "intermediate_size": size(800),
        "num_hidden_layers": rng.randint(1, 3),
        "num_attention_heads": key_heads * rng.choice((1, 1, 2, 3, 4, 7)),
        "num_key_value_heads": key_heads,
        "head_dim": 2 * rng.choice((1, 2, 4, 5, 8, 8, 12, 16, 16, 20, 32, 32, 64)),
        "hidden_act": rng.choice((*ACTIVATIONS, "silu", "silu", "silu")),
        "tie_word_embeddings": rng.random() < 0.5,
        "attention_bias": rng.random() < 0.3,
        "mlp_bias": rng.random() < 0.3,
        "max_position_embeddings": 4096,
    }
    if raw["model_type"] == "mistral":
        raw["sliding_window"] = rng.choice((None, 7, 64, 100))
    quant = rng.choice(("none",) * 5 + ("nf4", "nf4-double", "int8"))
    rank = rng.choice((0, 1, 2, 3, 7, 8, 16, 16, 33, 64, 192, 256))
    dtype = rng.choice(("float32", "float32", "bfloat16"))
    threads, products = rng.choice((1, 2, 2, 3, 4, 6, 8, 12, 16)), rng.choice(("auto", "onednn", "mkl", "plain"))
    return Drawn(raw, dtype, quant, rank if rank or quant == "none" else 16, threads, products)


def make(drawn: Drawn) -> CausalLM:
    torch.manual_seed(0)
    model = sides.random(drawn.raw, getattr(torch, drawn.dtype))
    if drawn.quant != "none":
        model = sides.quantised(model, drawn.quant)
    if not drawn.rank:
        return model.requires_grad_(True)
    lora.inject(model, drawn.rank, 2 * drawn.rank)
    return model


def measured(first: int, count: int) -> Iterator[Row]:
    """Yield the row of each number, printed to stderr when it is measured. Restore torch's number of threads and the
    choice of libraries."""
    with restored():
        for number in range(first, first + count):
            row = measure(number)
            print(f"{row.name}: {row.median('ours'):.1e} nats, {row.check}", file=sys.stderr, flush=True)
            yield row


def measure(number: int) -> Row:
    """Return the largest difference of log-probabilities, with the target 0 if the trial says that there is none."""
    drawn = draw(number)
    torch.set_num_threads(drawn.threads)
    inputs, outputs, weights = sizes_for_products(parse_config(drawn.raw))
    process.choose_products(drawn.products, inputs, outputs, getattr(torch, drawn.dtype), weights)
    process.choose_attention()
    difference, gaps = tried_and_compared(partial(make, drawn), (CHANGED, NEW), ALONE)
    check = f"exact: {difference or 'yes'}; {int((gaps != 0).sum())} of {len(gaps)} differ"
    row = Row(drawn.name(number), {"ours": [gaps.max().item()]}, "nats", check=check)
    row.targets = {} if difference else {"ours": 0.0}
    return row
