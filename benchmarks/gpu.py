"""Measurements that need a GPU, in one command and at most ten minutes: python -m benchmarks.gpu

The parts are the CPU benchmarks' own, at the sizes of a large GPU, in bfloat16, with random weights that are made on
the device; decode alone has its own measure, against the bandwidth found in this run. A part that fails, or whose time
is over, is a line in the notes; the rows that it had until then are in the table.
"""

import math
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from random import Random

import torch

import lora
from benchmarks import common, generate, logprob, onpolicy, sides, step
from benchmarks import lora as lora_benchmark
from benchmarks.common import Row
from models.engine import Engine
from rl.arguments import Positive


@dataclass
class Options(common.Options):
    only: str = ""  # parts whose name starts so
    seconds: Positive[int] = 540  # of all parts together
    part: Positive[int] = 150  # of one part at most


@dataclass(frozen=True)
class Scale:
    """The sizes of all parts. The targets belong to these defaults on an H200."""

    large: str = "7b"
    small: str = "0.5b"
    heads: tuple = (  # name, N, D, V, target seconds, target share of a peer's time
        ("7B head, N 8k", 8192, 3584, 152064, {"ours": 26.6e-3, "cut-cross-entropy": 0.70, "liger": 0.25}),
        ("0.5B head, N 16k", 16384, 896, 151936, {"ours": 17.4e-3}),
    )
    decode_rows: tuple[int, int] = (64, 256)  # of the large model and of the small one
    context: int = 1024
    new: int = 32  # tokens decoded in a measured repeat
    rollouts: int = 256  # rows of mixed lengths
    lengths: tuple[int, int] = (100, 1024)  # of their prompts and replies, any between
    talk: tuple[int, int, int, int, int] = (64, 512, 8, 32, 96)  # episodes, prompt, turns, sampled, observed
    group: tuple[int, int, int] = (512, 512, 8)  # prompt, completion, samples
    layer_tokens: int = 8192  # through 4 layers of the large model
    step: tuple[int, int, int, int] = (4, 8, 512, 512)  # prompts, samples, tokens of a prompt, of a reply
    round_trip: tuple[int, int, int, int, int] = (32, 128, 4, 32, 32)  # as talk, for the exact path
    patience: float = 45.0  # seconds after which a row of long repeats stops at common.ENOUGH


# ---- decode against the bandwidth ----


def bandwidth(device: str, size: int = 2**32) -> float:
    """Return the bytes per second that a copy reads and writes: the best of five."""
    source = torch.empty(size if device != "cpu" else 2**26, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = min(common.seconds_of(lambda: target.copy_(source), device) for _ in range(5))
    return 2 * source.numel() / best


def bytes_per_step(model, rows: int, context: float) -> float:
    """Return the bytes that one decoded token of each row reads: every weight once, and each row's keys and values."""
    cfg, skipped = model.config, 0
    if not cfg.tie_word_embeddings:
        skipped = model.model.embed_tokens.weight.nbytes  # a few of its rows alone
    weights = sum(p.nbytes for p in model.parameters()) - skipped
    per_token = 2 * cfg.num_hidden_layers * cfg.num_key_value_heads * cfg.head_dim * model.lm_head.weight.itemsize
    return weights + rows * context * per_token


def decode(name: str, rows: int, target: float, scale: Scale, options, device: str, dtype) -> Iterator[Row]:
    """Measure a step of an engine whose slots have about `context` tokens, with sampling and log-probabilities."""
    raw, repeats = sides.SHAPES[name], options.warmup + options.repeats
    model = sides.adapted(sides.random(raw, dtype, device))
    start = max(scale.context - scale.new * repeats // 2, 1)
    engine = Engine(model, rows, start + scale.new * (repeats + 1), lora.adapter_version(model))
    draw, slots = Random(0), [engine.open(key=(0, i)) for i in range(rows)]
    for slot in slots:
        engine.feed(slot, [draw.randrange(raw["vocab_size"]) for _ in range(start)])
    for _ in engine.run(1, 1.0, frozenset()):
        pass

    def repeat() -> None:
        for slot in slots:
            engine.feed(slot, [])
        assert all(len(row.ids) == scale.new for row in engine.run(scale.new, 1.0, frozenset()))

    seconds = common.interleave({"ours": repeat}, options.repeats, options.warmup, device, scale.patience)["ours"]
    context = start + scale.new * (options.warmup + len(seconds) / 2)
    limit = bytes_per_step(model, rows, context) / bandwidth(device)
    values = {"ours": [value / scale.new for value in seconds], "bandwidth limit": [limit]}
    row = Row(f"decode {name}, {rows} rows, context {context:.0f}", values, speedup=True, tokens=rows)
    row.targets = {"bandwidth limit": target}
    yield common.progress(row)


# ---- rollouts of mixed lengths ----


def continuous(model, case: generate.Case) -> list[list[int]]:
    """Sample as transformers' `generate_batch` does, by continuous batching, but with a length of its own per request.

    The manager is kept between repeats, so capturing graphs is not in the time.
    """
    from transformers import ContinuousBatchingConfig, GenerationConfig

    settings = GenerationConfig(do_sample=False, max_new_tokens=max(case.new), eos_token_id=-1, pad_token_id=0)
    keys = {"generation_config": settings, "block": True, "timeout": 5, "persistent_manager": True}
    keys["continuous_batching_config"] = ContinuousBatchingConfig(
        allow_block_sharing=False,  # the prompts come again in each repeat
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


def rollouts(scale: Scale, options, device: str, dtype) -> Iterator[Row]:
    """Compare rollouts of mixed lengths. Both sides keep captured graphs between repeats."""
    raw, draw = sides.SHAPES[scale.small], Random(0)
    model = sides.adapted(sides.random(raw, dtype, device))
    lengths, new = generate.mixed_lengths(scale.rollouts, *scale.lengths)
    prompts = [[draw.randrange(raw["vocab_size"]) for _ in range(length)] for length in lengths]
    shortest, longest = scale.lengths
    case = generate.Case(f"mixed {scale.rollouts} rows {shortest}-{longest}, {scale.small}", prompts, new, 0.0)
    works = {"ours": partial(generate.ours, model, engine=generate.make_engine(model, case))}
    if not common.absent("transformers", "peft"):
        peer = sides.twin(model, raw)[0].base_model.model
        peer.generation_config.eos_token_id = None
        works["continuous batching"] = partial(continuous, peer)
    targets = {"continuous batching": 3.0}
    yield common.progress(generate.measure(case, works, options, targets, 0, device, scale.patience))


# ---- the parts ----


def heads(scale: Scale, options, device: str, dtype, notes: list[str]) -> Iterator[Row]:
    others, missing = logprob.peers(device, compile=device != "cpu")
    notes += logprob.notes_of(missing)
    for name, N, D, V, targets in scale.heads:
        make = cache(partial(logprob.make_inputs, N, D, V, dtype, device))
        names = {"ours": logprob.ours, **others}
        yield from common.measured(logprob.parts(name, make, names, options, targets, device))


def turns(scale: Scale, options, device: str, dtype) -> Iterator[Row]:
    raw = sides.SHAPES[scale.small]
    model = sides.adapted(sides.random(raw, dtype, device))
    talk = generate.make_talk(*scale.talk, raw["vocab_size"])
    name = f"multi-turn {scale.talk[0]} rows, {scale.small}"
    words = options, {"reuse off": 3.0}, device, scale.patience
    yield common.progress(generate.measure_turns(name, model, talk, *words))


def layers(scale: Scale, options, device: str, dtype) -> Iterator[Row]:
    raw, targets = sides.layers_of(scale.large, 4), {"peft": 0.90, "floor": 1.08}
    name = f"4 layers of {scale.large}, {scale.layer_tokens} tokens"
    words = raw, scale.layer_tokens, dtype, options, targets, device
    yield from common.measured(lora_benchmark.layer_parts(name, *words))


def group(scale: Scale, options, device: str, dtype) -> Iterator[Row]:
    """Compare the time at the small model's shape, and the float32 gradients at a smaller one."""
    prompt, completion, samples = scale.group
    target = 0.9 * samples * (prompt + completion) / (prompt + samples * completion)
    for shape, kind in ((scale.small, dtype), ("quarter", torch.float32)):
        name = f"group prefix sharing, {shape} {str(kind).removeprefix('torch.')}"
        words = sides.SHAPES[shape], scale.group, kind, options, {"unshared": target if kind == dtype else 1.0}, device
        yield from common.measured(lora_benchmark.group_parts(name, *words))


def grpo_step(scale: Scale, options, device: str, dtype, notes: list[str]) -> Iterator[Row]:
    missing = common.absent("transformers", "peft", "trl", "datasets", "accelerate")
    notes += [f"{name}: absent; the step was measured without trl." for name in missing]
    prompts, samples, prompt, new = scale.step
    sizes = {"prompts": prompts, "samples": samples, "prompt": prompt, "new": new, "pieces": prompts}
    words = {"repeats": options.repeats, "warmup": 1, "threads": options.threads, "model": scale.small}
    kind = str(dtype).removeprefix("torch.")
    for row in step.measure(step.Options(**words, **sizes, device=device, dtype=kind), missing, {"trl": 6.0}):
        row.name = f"GRPO {scale.small}, {row.name}"
        yield common.progress(row)


def exact(scale: Scale, options, device: str, dtype) -> Iterator[Row]:
    raw = sides.SHAPES[scale.small]
    model = sides.adapted(sides.random(raw, dtype, device))
    talk = generate.make_talk(*scale.round_trip, raw["vocab_size"])
    name = f"rollout and training pass, {scale.small}"
    yield common.progress(onpolicy.measure_cost(name, model, talk, options, 1.10, device, scale.patience))


def parts(scale: Scale, options, device: str, dtype, notes: list[str]) -> dict[str, Callable[[], Iterator[Row]]]:
    """Return the parts, the most important first in case time runs out."""
    common_words = scale, options, device, dtype
    large, small = scale.decode_rows
    return {
        "log-probabilities": partial(heads, *common_words, notes),
        "decode, large": partial(decode, scale.large, large, 0.80, *common_words),
        "decode, small": partial(decode, scale.small, small, 0.50, *common_words),
        "LoRA layers": partial(layers, *common_words),
        "group prefix sharing": partial(group, *common_words),
        "exact path": partial(exact, *common_words),
        "multi-turn": partial(turns, *common_words),
        "GRPO step": partial(grpo_step, *common_words, notes),
        "mixed rollouts": partial(rollouts, *common_words),
    }


class TimeOver(BaseException):
    """Raised when time is over. Not an Exception, which a peer's code may catch."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise TimeOver in the block after `seconds`, as soon as a running call returns to Python."""

    def ring(*_):
        raise TimeOver

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run(scale: Scale, options: Options, device: str, dtype) -> tuple[list[Row], list[str]]:
    """Return (rows, notes) of all parts; a part that fails or takes too long becomes a note."""
    end, rows, notes = time.monotonic() + options.seconds, [], []

    def note(text: str) -> None:
        notes.append(text)
        print(text, file=sys.stderr, flush=True)

    all_parts = parts(scale, options, device, dtype, notes)
    for name in common.chosen(all_parts, options.only):
        left = min(end - time.monotonic(), options.part)
        if left <= 0:
            note(f"{name}: not run, {options.seconds} seconds were over.")
            continue
        try:
            with deadline(left):
                for row in all_parts[name]():
                    rows.append(row)
        except TimeOver:
            note(f"{name}: cut off after {left:.0f} seconds; what it had not measured by then is missing.")
        except Exception as error:  # a failure of any kind must not stop the other parts
            reason = (str(error).strip().splitlines() or [""])[0][:200]
            note(f"{name}: failed, {type(error).__name__}: {reason}")
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
    common.hint(common.absent("transformers", "peft", "trl", "liger-kernel", "cut-cross-entropy"), "bench-gpu")
    torch.set_num_threads(options.threads)
    rows, notes = run(Scale(), options, "cuda", torch.bfloat16)
    if not rows:
        sys.exit("benchmarks.gpu: no part gave a row; the lines above say why")
    about = {"dtype": "bfloat16", "cuda": torch.version.cuda, "bandwidth": f"{bandwidth('cuda') / 1e12:.2f} TB/s"}
    about |= {"lora": "r=16 all-linear, unmerged on every side"}
    notes += [
        "Times are of CUDA events, or of the host's clock after synchronizing for the GRPO step; rows of long repeats "
        f"stop at {common.ENOUGH} of them when {Scale.patience:.0f} seconds are over, as the table says.",
        "mixed: one engine and one manager for all repeats. multi-turn and the exact path: each repeat makes its "
        "engines, and captures their graphs within its time, on both sides.",
        "bandwidth limit: every weight and each row's keys and values read once, at the speed of a copy in this run.",
        f"most allocated: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB.",
    ]
    common.report("gpu", rows, options, notes, about)
    if any(not math.isfinite(row.median("ours")) for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
