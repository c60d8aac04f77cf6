"""Memory and tokens per second to expect of larger models on one GPU: python -m benchmarks.scale

Nothing here is measured by this command. Memory is what train.py plan= computes (rl/peaks.py). A card's limits are its
published ones times the shares that an H200 reached (SHARES), and the limits of an H200 were measured. How close this
code comes to them is an assumption (ROLLOUT, UPDATE).
docs=true writes the tables into docs/scale.md.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks import sides
from models.config import parse_config
from models.sizes import sizes_of
from rl import peaks, plan
from rl.config import program
from rl.config.parse import parse

DOCS = Path(__file__).parents[1] / "docs/scale.md"
MARKER = "<!-- python -m benchmarks.scale docs=true -->"
MODELS = {"1.5b": "Qwen2.5-1.5B", "7b": "Qwen2.5-7B", "8b": "Llama-3.1-8B", "14b": "Qwen2.5-14B", "32b": "Qwen2.5-32B"}
ROLLOUT = 0.5  # share of the limit that a decode step is assumed to reach
UPDATE = 0.6  # share of the limit that a training pass is assumed to reach
ROWS, CONTEXT = 64, 1024  # sequences that decode together, and the tokens that each has on average
MAX_LEN = 2048  # tokens that the cache holds of each
MICRO_TOKENS, LENGTH, SAMPLED = 8192, 1024, 0.5  # of a training pass: its tokens, those of an episode, sampled share
RANK = 16
BF16, NF4 = 2.0, 0.5 + 4 / 64  # bytes of a weight; a float32 scale for every 64 weights


@dataclass(frozen=True)
class Card:
    name: str
    gigabytes: int
    gibibytes: float  # that programs can allocate: the driver's total less RESERVED
    products: float  # bf16 operations per second, dense
    bandwidth: float  # bytes per second


RESERVED = 1.0  # GiB of CUDA's context and of pieces that fit nothing
SHARES = 790e12 / 989.4e12, 4.3e12 / 4.8e12  # measured over published, of an H200: (products, copies)
CARDS = [
    Card(
        "RTX 4090", 24, 23.5 - RESERVED, 165.2e12 * SHARES[0], 1.008e12 * SHARES[1]
    ),  # NVIDIA's Ada architecture paper
    Card("A100 SXM", 80, 79.2 - RESERVED, 312e12 * SHARES[0], 2.039e12 * SHARES[1]),  # NVIDIA's A100 datasheet
    Card("H200", 141, 139.8 - RESERVED, 790e12, 4.3e12),  # measured
]


@dataclass(frozen=True)
class Size:
    """The sizes of a model that the rates depend on."""

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


def rollout_rate(size: Size, card: Card, weight_bytes: float, rows: int = ROWS) -> float:
    """Return sampled tokens per second of that many sequences: a step reads every weight and all keys and values, or
    multiplies, whichever takes longer."""
    read = (size.layers * weight_bytes + (size.head + size.adapter) * BF16) / card.bandwidth
    products = 2 * rows * (size.layers + size.head + size.adapter) / card.products
    step = max(read, products) + rows * CONTEXT * size.key_bytes / card.bandwidth
    return ROLLOUT * rows / step


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


SETTINGS = {  # name: words of train.py
    "bf16": {"quant": "none", "checkpoint": "none"},
    "bf16, checkpoint": {"quant": "none", "checkpoint": "block"},
    "nf4, checkpoint": {"quant": "nf4", "checkpoint": "block"},
}


def memory(shape: str, settings: dict, rows: int = ROWS, size: str = "true") -> dict[str, float]:
    """Return the peak GiB of the phases of a GRPO run: load, rollout and update. size: of the card, as plan= takes it;
    "true": without the copies of weights that a decode step makes on a card of four times their size."""
    words = ["algo=grpo", f"rollout_batch_size={rows}", f"max_len={MAX_LEN}", f"micro_tokens={MICRO_TOKENS}"]
    cfg = replace(parse([*words, f"lora.r={RANK}"]), device="cuda", dtype="bfloat16", plan=size, **settings)
    needs = plan.on_device(peaks.phases(sizes_of(parse_config(sides.SHAPES[shape])), cfg))
    return {phase: size / 2**30 for phase, size in needs.items()}


def most_rows(shape: str, settings: dict, card: Card) -> int:
    """Return ROWS or the largest half of it with which every phase fits the card, 0 if none does."""
    halves = (ROWS >> i for i in range(ROWS.bit_length()))
    size = f"{card.gibibytes:.1f}GiB"
    return next((n for n in halves if max(memory(shape, settings, n, size).values()) <= card.gibibytes), 0)


def rate(value: float) -> str:
    """Return tokens per second with two digits: the assumptions do not carry more."""
    return f"{float(f'{value:.2g}'):,.0f}"


def table() -> list[str]:
    cards = [f"{card.name}, {card.gigabytes} GB" for card in CARDS]
    lines = [f"| model | settings | GiB to load / roll out / update | {' | '.join(cards)} |"]
    lines.append("| --- | --- | ---: |" + " ---: |" * len(CARDS))
    for shape, name in MODELS.items():
        size = size_of(shape)
        for settings, words in SETTINGS.items():
            weight_bytes, checkpoint = NF4 if words["quant"] == "nf4" else BF16, words["checkpoint"] == "block"
            needs = memory(shape, words)
            cells = [" / ".join(f"{gibibytes:.1f}" for gibibytes in needs.values())]
            for card in CARDS:
                rows = most_rows(shape, words, card)
                pair = (
                    rows and rollout_rate(size, card, weight_bytes, rows),
                    update_rate(size, card, weight_bytes, checkpoint),
                )
                fewer = f" ({rows} rows)" if rows < ROWS else ""
                cells.append(" / ".join(map(rate, pair)) + fewer if rows else "too large")
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
