"""A quantised base beside the same model in plain floats, with adapters: decoding, a training pass and its size:
python -m benchmarks.quant

Every product dequantises its weight first. So a step of decoding, which multiplies few rows, costs most, and a training
pass of many tokens least. Sizes are of the weights in the blocks, without adapters.
"""

import copy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch

import lora
from benchmarks import common, sides
from benchmarks.common import Parts, Row
from models import CausalLM, fast_matmul
from models.config import parse_config
from models.engine import Engine
from models.logprob import token_logprobs
from models.quant import KINDS, block_linears
from models.sizes import sizes_of
from rl.config.arguments import Positive


@dataclass
class Options(common.Options):
    shapes: str = "small:8,0.5b:4"  # of the models and how many layers of each, by comma: small | quarter | 0.5b | 7b
    rows: str = "1,16,64"  # sequences that decode at once, by comma
    new: Positive[int] = 16  # sampled tokens of each
    tokens: Positive[int] = 2048  # of a training pass
    dtypes: str = "float32,bfloat16"  # by comma


def decode(model: CausalLM, rows: int, new: int) -> None:
    engine = Engine(model, rows, 64 + new, lora.adapter_version(model))
    for i in range(rows):
        engine.feed(engine.open((0, i)), [(7 * i + 3 * t) % model.config.vocab_size for t in range(32)])
    for _ in engine.run(new, 1.0, frozenset()):
        pass


@fast_matmul()
def training_pass(model: CausalLM, ids_BT: torch.Tensor) -> None:
    hidden_ND = model(ids_BT)[:, :-1].flatten(0, 1)
    token_logprobs(hidden_ND, model.lm_head.weight, ids_BT[:, 1:].flatten())[0].sum().backward()


def size_of(model: CausalLM) -> float:
    """Return the MiB of the blocks' weights and scales."""
    layers = block_linears(model).values()
    return sum(x.numel() * x.element_size() for layer in layers for x in (layer.weight, *layer.buffers())) / 2**20


def parts_of(name: str, raw: dict, dtype: torch.dtype, options: Options) -> Parts:
    @cache
    def models() -> dict[str, CausalLM]:
        common.choose_products(options, sizes_of(parse_config(raw)), dtype=dtype)
        plain = sides.random(raw, dtype)
        quantised = {kind: sides.quantised(copy.deepcopy(plain), kind) for kind in KINDS}
        return {
            side: sides.adapted(model)
            for side, model in {"ours": quantised.pop("nf4"), **quantised, "plain": plain}.items()
        }

    def time(work: Callable[[CausalLM], None], tokens: int, row: str) -> Row:
        works = {side: partial(work, model) for side, model in models().items()}
        return common.timed(row, works, options, tokens=tokens)

    def size(row: str) -> Row:
        return Row(row, {side: [size_of(model)] for side, model in models().items()}, "MiB")

    ids_BT = torch.arange(options.tokens).view(-1, min(256, options.tokens)) % raw["vocab_size"]
    made = {f"{name}, weights of the blocks": size}
    for rows in map(int, options.rows.split(",")):
        work = partial(decode, rows=rows, new=options.new)
        made[f"{name}, {rows} rows of {options.new} tokens"] = partial(time, work, rows * options.new)
    return made | {f"{name}, training pass": partial(time, partial(training_pass, ids_BT=ids_BT), options.tokens)}


def main(options: Options) -> None:
    torch.set_num_threads(options.threads)
    made: Parts = {}
    for word in options.shapes.split(","):
        shape, _, layers = word.partition(":")
        if shape not in sides.SHAPES or not layers.isdigit():
            sys.exit(f"shapes={options.shapes}: {word} is not a shape and a number of layers, such as small:8")
        raw = sides.layers_of(shape, int(layers), 1536)
        for dtype_name, dtype in common.dtypes_of(options.dtypes).items():
            made |= parts_of(f"{layers} layers of {shape}, {dtype_name}", raw, dtype, options)
    notes = [
        "ours: nf4, with float32 adapters of rank 16 on all layers, as on every side.",
        "rows: a prompt of 32 tokens for each is computed too.",
    ]
    common.measure_and_report("quant", made, options, notes, {"tokens": options.tokens})


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
