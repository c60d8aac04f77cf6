"""Tokens per second to expect of larger models on one GPU, computed from limits: python -m benchmarks.scale

Nothing here is measured by this command. A card's limits are its published ones times the shares that an H200 reached
(SHARES), and the limits of an H200 were measured. How close this code comes to them is an assumption (ROLLOUT, UPDATE).
docs=true writes the tables into docs/scale.md.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks import sides
from models.config import parse_config
from rl import program

DOCS = Path(__file__).parents[1] / "docs/scale.md"
MARKER = "<!-- python -m benchmarks.scale docs=true -->"
MODELS = {"1.5b": "Qwen2.5-1.5B", "7b": "Qwen2.5-7B", "8b": "Llama-3.1-8B", "14b": "Qwen2.5-14B", "32b": "Qwen2.5-32B"}
ROLLOUT = 0.5  # share of the limit that a decode step is assumed to reach
UPDATE = 0.6  # share of the limit that a training pass is assumed to reach
ROWS, CONTEXT = 64, 1024  # sequences that decode together, and the tokens that each has on average
MICRO_TOKENS, LENGTH, SAMPLED = 8192, 1024, 0.5  # of a training pass: its tokens, those of an episode, sampled share
RANK = 16
BF16, NF4 = 2.0, 0.5 + 4 / 64  # bytes of a weight; a float32 scale for every 64 weights


@dataclass(frozen=True)
class Card:
    name: str
    gigabytes: int
    products: float  # bf16 operations per second, dense
    bandwidth: float  # bytes per second


SHARES = 790e12 / 989.4e12, 4.3e12 / 4.8e12  # measured over published, of an H200: (products, copies)
CARDS = [
    Card("RTX 4090", 24, 165.2e12 * SHARES[0], 1.008e12 * SHARES[1]),  # NVIDIA's Ada architecture paper
    Card("A100 SXM", 80, 312e12 * SHARES[0], 2.039e12 * SHARES[1]),  # NVIDIA's A100 datasheet
    Card("H200", 141, 790e12, 4.3e12),  # measured
]


@dataclass(frozen=True)
class Size:
    """What the arithmetic needs of a model."""

    layers: int  # parameters of all blocks
    head: int  # of the output head
    adapter: int  # of adapters of rank RANK on every linear layer
    key_bytes: int  # of a token's keys and values in bf16
    attention: int  # query width, summed over the layers


def size_of(shape: str) -> Size:
    raw = sides.SHAPES[shape]
    cfg = parse_config(raw)
    D, inner, E = cfg.hidden_size, cfg.intermediate_size, cfg.head_dim
    q, kv, count = cfg.num_attention_heads * E, cfg.num_key_value_heads * E, cfg.num_hidden_layers
    linears = [(D, q), (D, kv), (D, kv), (q, D), (D, inner), (D, inner), (inner, D)]
    biases = q + 2 * kv if cfg.qkv_bias else 0
    layers = count * (sum(a * b for a, b in linears) + biases + 2 * D)
    adapter = count * RANK * sum(a + b for a, b in linears)
    return Size(layers, D * cfg.vocab_size, adapter, count * 2 * kv * 2, count * q)


def rollout_rate(size: Size, card: Card, weight_bytes: float) -> float:
    """Return sampled tokens per second of ROWS sequences: a step reads every weight and all keys and values, or
    multiplies, whichever takes longer."""
    read = (size.layers * weight_bytes + (size.head + size.adapter) * BF16) / card.bandwidth
    products = 2 * ROWS * (size.layers + size.head + size.adapter) / card.products
    step = max(read, products) + ROWS * CONTEXT * size.key_bytes / card.bandwidth
    return ROLLOUT * ROWS / step


def update_rate(size: Size, card: Card, weight_bytes: float, checkpoint: bool) -> float:
    """Return trained tokens per second, of all tokens of the episodes.

    Per token: the layers forward and for the gradient of their inputs, forward once more with checkpoint=block;
    adapters three times; causal attention, whose backward has 2.5 times the operations of its forward; the frozen head
    twice for sampled tokens. A quantised base is dequantised in each of these passes.
    """
    passes = 3 if checkpoint else 2
    forward_attention = 2 * LENGTH * size.attention  # scores and sums over half of the keys
    operations = 2 * passes * size.layers + 6 * size.adapter + (passes - 1 + 2.5) * forward_attention
    operations += SAMPLED * 4 * size.head
    seconds = MICRO_TOKENS * operations / (UPDATE * card.products)
    if weight_bytes < BF16:
        seconds += passes * size.layers * (weight_bytes + BF16) / card.bandwidth
    return MICRO_TOKENS / seconds


SETTINGS = {  # name: (bytes of a weight, checkpoint)
    "bf16": (BF16, False),
    "bf16, checkpoint": (BF16, True),
    "nf4, checkpoint": (NF4, True),
}


def rate(value: float) -> str:
    """Return tokens per second with two digits: the assumptions do not carry more."""
    return f"{float(f'{value:.2g}'):,.0f}"


def table() -> list[str]:
    header = ["model", "settings", *(f"{card.name}, {card.gigabytes} GB" for card in CARDS)]
    lines = [f"| {' | '.join(header)} |", "| --- | --- |" + " ---: |" * len(CARDS)]
    for shape, name in MODELS.items():
        size = size_of(shape)
        for settings, (weight_bytes, checkpoint) in SETTINGS.items():
            cells = []
            for card in CARDS:
                pair = rollout_rate(size, card, weight_bytes), update_rate(size, card, weight_bytes, checkpoint)
                cells.append(" / ".join(map(rate, pair)))
            lines.append(f"| {name} | {settings} | {' | '.join(cells)} |")
    return lines


@dataclass(frozen=True)
class Keys:
    docs: bool = False  # write the table into docs/scale.md


def main(keys: Keys) -> None:
    lines = "\n".join(table())
    if keys.docs:
        before, _, after = DOCS.read_text().split(MARKER)
        DOCS.write_text(f"{before}{MARKER}\n{lines}\n{MARKER}{after}")
    print(lines)


if __name__ == "__main__":
    [given] = program.parse(sys.argv[1:], "benchmarks.scale", Keys, about=__doc__)
    main(given)
