"""What needs a GPU, in one command and at most ten minutes: python -m benchmarks.gpu

The parts are the CPU benchmarks' own, at the sizes of a large GPU, in bfloat16, with random weights that are made on
the device; decode alone has its own measure, against the bandwidth found in this run. A part that fails, or for which
no time is left, is a line in the notes.
"""

import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import torch

import lora
from benchmarks import common, generate, logprob, onpolicy, sides, step
from benchmarks import lora as lora_benchmark
from benchmarks.common import Row
from models.generate import Engine


@dataclass
class Options(common.Options):
    seconds: int = 570  # no part begins after these


@dataclass(frozen=True)
class Scale:
    """How large everything is. The targets belong to these defaults on an H200."""

    large: str = "7b"
    small: str = "0.5b"
    heads: tuple = (  # name, N, D, V, most seconds, most of a peer's time
        ("7B head, N 8k", 8192, 3584, 152064, {"ours": 26.6e-3, "cut-cross-entropy": 0.70, "liger": 0.25}),
        ("0.5B head, N 16k", 16384, 896, 151936, {"ours": 17.4e-3}),
    )
    decode_rows: tuple[int, int] = (64, 256)  # of the large model and of the small one
    context: int = 1024
    new: int = 32  # tokens decoded in a measured turn
    rollouts: int = 256  # rows of mixed lengths
    lengths: tuple[int, int] = (100, 1000)  # of their prompts and replies; the shortest is the step of the replies
    talk: tuple[int, int, int, int, int] = (64, 512, 8, 32, 96)  # episodes, prompt, turns, sampled, observed
    group: tuple[int, int, int] = (512, 512, 8)  # prompt, completion, samples
    layer_tokens: int = 8192  # through 4 layers of the large model
    step: tuple[int, int, int, int] = (4, 8, 512, 512)  # prompts, samples, tokens of a prompt, of a reply
    round_trip: tuple[int, int, int, int, int] = (32, 128, 4, 32, 32)  # as talk, for the exact path
    half_minute: float = 30.0  # where a part of many seconds stops at three turns


# ---- decode against the bandwidth ----


def bandwidth(device: str, size: int = 2**32) -> float:
    """Bytes per second that a copy reads and writes: the best of five."""
    source = torch.empty(size if device != "cpu" else 2**26, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = min(common.seconds_of(lambda: target.copy_(source), device) for _ in range(5))
    return 2 * source.numel() / best


def bytes_per_step(model, rows: int, context: float) -> float:
    """What one decoded token of each row has to read: every weight once, and each row's keys and values."""
    cfg, skipped = model.config, 0
    if not cfg.tie_word_embeddings:
        skipped = model.model.embed_tokens.weight.nbytes  # a few of its rows alone
    weights = sum(p.nbytes for p in model.parameters()) - skipped
    per_token = 2 * cfg.num_hidden_layers * cfg.num_key_value_heads * cfg.head_dim * model.lm_head.weight.itemsize
    return weights + rows * context * per_token


def decode(name: str, rows: int, target: float, scale: Scale, options, device: str, dtype) -> Row:
    """Seconds of a step of an engine whose slots have about `context` tokens, with sampling and log-probabilities."""
    raw, turns = sides.SHAPES[name], options.warmup + options.repeats
    model = sides.adapted(sides.random(raw, dtype, device))
    start = max(scale.context - scale.new * turns // 2, 1)
    engine = Engine(model, rows, start + scale.new * (turns + 1), lora.adapter_version(model))
    draw, slots = Random(0), [engine.open(key=(0, i)) for i in range(rows)]
    for slot in slots:
        engine.feed(slot, [draw.randrange(raw["vocab_size"]) for _ in range(start)])
    for _ in engine.run(1, 1.0, frozenset()):
        pass

    def turn() -> None:
        for slot in slots:
            engine.feed(slot, [])
        assert all(len(row.ids) == scale.new for row in engine.run(scale.new, 1.0, frozenset()))

    seconds = common.take_turns({"ours": turn}, options.repeats, options.warmup, device, scale.half_minute)["ours"]
    context = start + scale.new * (options.warmup + len(seconds) / 2)
    limit = bytes_per_step(model, rows, context) / bandwidth(device)
    values = {"ours": [value / scale.new for value in seconds], "bandwidth limit": [limit]}
    row = Row(f"decode {name}, {rows} rows, context {context:.0f}", values, speedup=True, tokens=rows)
    row.targets = {"bandwidth limit": target}
    return common.progress(row)


# ---- rollouts of mixed lengths ----


def continuous(model, case: generate.Case) -> list[list[int]]:
    """transformers' continuous batching, as its `generate_batch` does it, but each request with its own length, and
    with a manager that lives on from turn to turn: what it captures once is not in the time."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    settings = GenerationConfig(do_sample=False, max_new_tokens=max(case.new), eos_token_id=-1, pad_token_id=0)
    keys = {"generation_config": settings, "block": True, "timeout": 5, "persistent_manager": True}
    keys["continuous_batching_config"] = ContinuousBatchingConfig(
        allow_block_sharing=False,  # the prompts come again in each turn
        max_memory_percent=0.4,  # or it takes nearly all that is free
    )
    with model.continuous_batching_context_manager(**keys) as manager:
        asked = zip(case.prompts, case.new, strict=True)
        names, found = [manager.add_request(ids, max_new_tokens=new) for ids, new in asked], {}
        while len(found) < len(names):
            result = manager.get_result(timeout=1)
            if result is not None and result.error:
                raise RuntimeError(f"transformers' continuous batching: {result.error}")
            if result is not None and result.is_finished():
                found[result.request_id] = list(result.generated_tokens)
            elif result is None and not manager.is_running():
                raise RuntimeError("transformers' continuous batching stopped by itself")
    return [found[name] for name in names]


def rollouts(scale: Scale, options, device: str, dtype) -> list[Row]:
    raw, (shortest, longest), draw = sides.SHAPES[scale.small], scale.lengths, Random(0)
    model = sides.adapted(sides.random(raw, dtype, device))
    lengths = [draw.randint(shortest, longest) for _ in range(scale.rollouts)]
    prompts = [[draw.randrange(raw["vocab_size"]) for _ in range(length)] for length in lengths]
    new = [draw.choice(range(shortest, longest + 1, shortest)) for _ in range(scale.rollouts)]
    case = generate.Case(f"mixed {scale.rollouts} rows {shortest}-{longest}, {scale.small}", prompts, new, 0.0)
    works = {"ours": partial(generate.ours, model)}
    if not common.absent("transformers", "peft"):
        peer = sides.twin(model, raw)[0].base_model.model
        peer.generation_config.eos_token_id = None
        works["continuous batching"] = partial(continuous, peer)
    row = generate.measure(case, works, options, {"continuous batching": 3.0}, device, scale.half_minute)
    return [row]


# ---- the parts ----


def heads(scale: Scale, options, device: str, dtype, notes: list[str]) -> list[Row]:
    others, missing = logprob.peers(device, compile=False)
    notes += logprob.notes_of(missing)
    rows = []
    for name, N, D, V, targets in scale.heads:
        inputs = logprob.make_inputs(N, D, V, dtype, device)
        rows += logprob.measure(inputs, name, {"ours": logprob.ours, **others}, options, targets, limit=True)
    return rows


def turns(scale: Scale, options, device: str, dtype) -> list[Row]:
    raw = sides.SHAPES[scale.small]
    model = sides.adapted(sides.random(raw, dtype, device))
    talk = generate.make_talk(*scale.talk, raw["vocab_size"])
    name = f"multi-turn {scale.talk[0]} rows, {scale.small}"
    return [generate.measure_turns(name, model, talk, options, device, scale.half_minute)]


def layers(scale: Scale, options, device: str, dtype) -> list[Row]:
    raw, targets = sides.layers_of(scale.large, 4), {"peft": 0.90, "floor": 1.08}
    name = f"4 layers of {scale.large}, {scale.layer_tokens} tokens"
    return lora_benchmark.measure_layers(name, raw, scale.layer_tokens, dtype, options, targets, device)


def group(scale: Scale, options, device: str, dtype) -> list[Row]:
    """Time at the small model's shape; that the gradients are equal, in float32 at a smaller one."""
    (prompt, completion, samples), rows = scale.group, []
    target = 0.9 * samples * (prompt + completion) / (prompt + samples * completion)
    for shape, kind in ((scale.small, dtype), ("quarter", torch.float32)):
        name = f"group prefix sharing, {shape} {str(kind).removeprefix('torch.')}"
        bound = target if kind == dtype else 1.0
        rows += lora_benchmark.measure_group(name, sides.SHAPES[shape], scale.group, kind, options, bound, device)
    return rows


def grpo_step(scale: Scale, options, device: str, dtype, notes: list[str]) -> list[Row]:
    missing = common.absent("transformers", "peft", "trl", "datasets", "accelerate")
    notes += [f"{name}: absent; the step was measured without trl." for name in missing]
    prompts, samples, prompt, new = scale.step
    sizes = {"prompts": prompts, "samples": samples, "prompt": prompt, "new": new, "pieces": prompts}
    words = {"repeats": options.repeats, "warmup": 1, "threads": options.threads, "model": scale.small}
    kind = str(dtype).removeprefix("torch.")
    rows = step.measure(step.Options(**words, **sizes, device=device, dtype=kind), missing, target=6.0)
    for row in rows:
        row.name = f"GRPO {scale.small}, {row.name}"
    return rows


def exact(scale: Scale, options, device: str, dtype) -> list[Row]:
    raw = sides.SHAPES[scale.small]
    model = sides.adapted(sides.random(raw, dtype, device))
    talk = generate.make_talk(*scale.round_trip, raw["vocab_size"])
    name = f"rollout and training pass, {scale.small}"
    return onpolicy.measure_cost(name, model, talk, options, 1.10, device, scale.half_minute)


def parts(scale: Scale, options, device: str, dtype, notes: list[str]) -> dict[str, Callable[[], list[Row]]]:
    """In the order of what would be missed most if time ran out."""
    common_words = scale, options, device, dtype
    large, small = scale.decode_rows
    return {
        "log-probabilities": partial(heads, *common_words, notes),
        "decode, large": lambda: [decode(scale.large, large, 0.80, *common_words)],
        "decode, small": lambda: [decode(scale.small, small, 0.50, *common_words)],
        "LoRA layers": partial(layers, *common_words),
        "group prefix sharing": partial(group, *common_words),
        "exact path": partial(exact, *common_words),
        "multi-turn": partial(turns, *common_words),
        "GRPO step": partial(grpo_step, *common_words, notes),
        "mixed rollouts": partial(rollouts, *common_words),
    }


def run(scale: Scale, options: Options, device: str, dtype) -> tuple[list[Row], list[str]]:
    """(rows, notes) of all parts, those that failed as notes."""
    began, rows, notes = time.monotonic(), [], []
    for name, part in parts(scale, options, device, dtype, notes).items():
        if not name.startswith(options.only):
            continue
        if time.monotonic() - began > options.seconds:
            notes.append(f"{name}: not run, {options.seconds} seconds were over.")
            continue
        try:
            rows += part()
        except Exception as error:  # whatever a part dies of, the others are still wanted
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            notes.append(f"{name}: failed, {type(error).__name__}: {reason}")
            print(notes[-1], file=sys.stderr, flush=True)
        if device != "cpu":
            torch.cuda.empty_cache()
    return rows, notes


def main(options: Options) -> None:
    if not torch.cuda.is_available():
        print(
            "benchmarks.gpu: no CUDA device on this machine, or in this torch; make bench runs on a CPU",
            file=sys.stderr,
        )
        raise SystemExit(2)
    warnings.simplefilter("ignore")
    torch.set_num_threads(options.threads)
    rows, notes = run(Scale(), options, "cuda", torch.bfloat16)
    about = {"dtype": "bfloat16", "cuda": torch.version.cuda, "bandwidth": f"{bandwidth('cuda') / 1e12:.2f} TB/s"}
    about |= {"lora": "r=16 all-linear, unmerged on every side"}
    notes += [
        "Times are of CUDA events, or of the host's clock after synchronizing for the GRPO step; parts of many seconds "
        "stop at three turns when half a minute is over.",
        "bandwidth limit: every weight and each row's keys and values read once, at the speed of a copy in this run.",
        "two products: h W' and the result with W, in chunks of 4096 rows, and nothing else.",
        f"most allocated: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB.",
    ]
    common.report("gpu", rows, options, notes, about)
    if not rows or any(not math.isfinite(row.median("ours")) for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
