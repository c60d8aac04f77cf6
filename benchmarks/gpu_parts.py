"""The parts of benchmarks/gpu.py, the most important first; most are the CPU benchmarks' own at other sizes."""

import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

import torch

import train
from benchmarks import common, generate, gpu_checks, gpu_decode, logprob, memory, real_size, sides, step
from benchmarks import lora as lora_benchmark
from benchmarks.common import Row
from benchmarks.gpu_sizes import Given
from models.logprob import token_logprobs
from rl.config.words import parse


def each(parts: common.Parts) -> Iterator[Row | str]:
    """Yield the rows; one that fails is a note."""
    for name, part in parts.items():
        try:
            row = part(name)
        except Exception as error:  # a failure of any kind must not lose the other rows
            row = f"{name}: failed, {common.one_line(error)}"
            memory.free_memory()
        yield row


# ---- a run of train.py ----


def epoch(given: Given) -> Iterator[Row]:
    """Measure an epoch of train.py algo=ppo in phases, of the embedded model and of the small shape."""
    word = str(given.dtype).removeprefix("torch.")
    for name, more in (("tiny", given.scale.epoch), (given.scale.small, given.scale.epoch_small)):
        with tempfile.TemporaryDirectory() as folder:
            model = name
            if name != "tiny":
                model = f"{folder}/base"
                sides.write_base(name, given.dtype, model)
            words = ["algo=ppo", f"model={model}", f"device={given.device}", f"dtype={word}", f"out={folder}/run"]
            train.main(parse([*words, *more.split()], "train.py"))
            found = real_size.phases_of(Path(folder, "run"))
        for phase, measured in found.items():
            row = Row(f"train.py algo=ppo {name}, {phase}", {"ours": [measured.seconds]}, tokens=measured.tokens)
            row.check, row.details = f"peak {measured.peak_gib:.2f} GiB", {"phase_peak_gib": measured.peak_gib}
            yield row


# ---- the head ----


def heads(given: Given) -> Iterator[Row | str]:
    others, missing = logprob.peers(given.device)
    yield from logprob.notes_of(missing)
    for name, N, D, V, targets in given.scale.heads:
        make = cache(partial(logprob.make_inputs, N, D, V, given.dtype, given.device))
        words = name, make, {"ours": logprob.ours, **others}, given.options, given.targets(targets), given.device
        yield from each(logprob.parts(*words))
        yield with_entropy(f"{name}, with the entropy's gradient", make(), given)
        make.cache_clear()


def with_entropy(name: str, inputs: logprob.Inputs, given: Given) -> Row:
    """Compare log-probabilities and entropy, both with a gradient, to plain torch."""

    def ours(hidden_ND, weight_VD, targets_N):
        logprobs_N, entropy_N = token_logprobs(hidden_ND, weight_VD, targets_N, 1.0, entropy_grad=True)
        return logprobs_N + 0.01 * entropy_N

    def naive(hidden_ND, weight_VD, targets_N):
        logp_NV = torch.nn.functional.linear(hidden_ND, weight_VD).float().log_softmax(-1)
        return logp_NV.gather(1, targets_N[:, None])[:, 0] - 0.01 * (logp_NV.exp() * logp_NV).sum(-1)

    works = {side.__name__: partial(logprob.run, side, inputs) for side in (ours, naive)}
    return common.compared(name, works, lambda found: found[1], given, tokens=len(inputs.targets_N))


# ---- rollouts ----


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


def rollouts(given: Given) -> Iterator[Row]:
    """Compare rollouts of mixed lengths. Both sides keep captured graphs between repeats."""
    scale, raw, draw = given.scale, sides.SHAPES[given.scale.small], Random(0)
    model = sides.adapted(sides.random(raw, given.dtype, given.device))
    lengths, new = generate.mixed_lengths(scale.rollouts, *scale.lengths)
    prompts = [[draw.randrange(raw["vocab_size"]) for _ in range(length)] for length in lengths]
    shortest, longest = scale.lengths
    case = generate.Case(f"mixed {scale.rollouts} rows {shortest}-{longest}, {scale.small}", prompts, new, 0.0)
    works, dropped = {"ours": partial(generate.ours, model, engine=generate.make_engine(model, case))}, {}
    if not common.absent("transformers", "peft"):
        twins = common.each_side({"continuous batching": partial(sides.twin, model, raw)}, dropped)
        for side, (twin, _) in twins.items():
            peer = twin.base_model.model
            peer.generation_config.eos_token_id = None
            works[side] = partial(continuous, peer)
    targets = given.targets({"continuous batching": 3.0})
    row = generate.measure(case, works, given.options, targets, 0, given.device, scale.patience)
    row.dropped |= dropped
    yield row


# ---- the others ----


def turns(given: Given) -> Iterator[Row]:
    model = gpu_decode.model_of(given.scale.small, given)
    talk = generate.make_talk(*given.scale.talk, model.config.vocab_size)
    name = f"multi-turn {given.scale.talk[0]} rows, {given.scale.small}"
    words = given.options, given.targets({"reuse off": 3.0}), given.device, given.scale.patience
    yield generate.measure_turns(name, model, talk, *words)


def layers(given: Given) -> Iterator[Row]:
    scale = given.scale
    raw, targets = sides.layers_of(scale.large, 4), given.targets({"peft": 0.90, "floor": 1.08})
    name = f"4 layers of {scale.large}, {scale.layer_tokens} tokens"
    words = raw, scale.layer_tokens, given.dtype, given.options, targets, given.device
    yield from each(lora_benchmark.layer_parts(name, *words))


def group(given: Given) -> Iterator[Row]:
    """Compare the time at the small model's shape, and the float32 gradients at a smaller one."""
    scale = given.scale
    prompt, completion, samples = scale.group
    target = 0.9 * samples * (prompt + completion) / (prompt + samples * completion)
    for shape, kind in dict.fromkeys([(scale.small, given.dtype), ("quarter", torch.float32)]):
        name, of = f"group prefix sharing, {shape} {str(kind).removeprefix('torch.')}", sides.SHAPES[shape]
        targets = given.targets({"unshared": target if kind == given.dtype else 1.0})
        words = of, scale.group, kind, given.options, targets, given.device
        yield from each(lora_benchmark.group_parts(name, *words))


def grpo_step(given: Given) -> Iterator[Row]:
    missing = common.absent(*sides.TRAINER)
    yield from common.absences(missing)
    (prompts, samples, prompt, new), options = given.scale.step, given.options
    sizes = {"prompts": prompts, "samples": samples, "prompt": prompt, "new": new, "pieces": prompts}
    words = {"repeats": options.repeats, "warmup": 1, "threads": options.threads, "model": given.scale.small}
    words |= {"device": given.device, "dtype": str(given.dtype).removeprefix("torch.")}
    for row in step.measure(step.Options(**words, **sizes), missing, given.targets({"trl": 6.0})):
        row.name = f"GRPO {given.scale.small}, {row.name}"
        yield row


def exact(given: Given) -> Iterator[Row]:
    """Compare a rollout of several turns and the training pass over it with exact=true and without."""
    model = gpu_decode.model_of(given.scale.small, given)
    talk = generate.make_talk(*given.scale.round_trip, model.config.vocab_size)

    def round_trip(exact: bool) -> torch.Tensor:
        gpu_checks.switch_exact(model, exact)
        return gpu_checks.train(model, gpu_checks.played(model, talk))[0]

    unequal = int((round_trip(True) != 0).sum())
    works = {"ours": partial(round_trip, True), "not exact": partial(round_trip, False)}
    words = {"check": f"{unequal:,} tokens differ" if unequal else "all tokens equal bit for bit"}
    words["targets"] = {} if unequal else given.targets({"not exact": 1.10})
    name = f"exact path, {given.scale.small}, rollout and training pass"
    yield common.timed(name, works, given.options, given.device, given.scale.patience, **words)
    gpu_checks.switch_exact(model, True)
    rows, context = (sizes[len(sizes) // 2] for sizes in (given.scale.rows, given.scale.contexts))
    name = f"decode {given.scale.small}, exact=true, {rows} rows, context {context:,}"
    yield gpu_decode.step_row(name, model, rows, context, None, given)


Part = Callable[[Given], Iterator[Row | str]]  # yields rows, and notes
PARTS: dict[str, tuple[Part, int]] = {  # the function and the seconds that benchmarks/gpu.py keeps for it
    "tests": (gpu_checks.tests, 115),
    "agreement": (gpu_checks.agreement, 40),
    "text": (gpu_checks.text, 25),
    "decode, small": (lambda given: gpu_decode.decode(given.scale.small, given), 40),
    "training pass": (gpu_decode.training, 35),
    "epoch": (epoch, 50),
    "quantised base": (gpu_decode.quantised, 30),
    "decode, large": (lambda given: gpu_decode.decode(given.scale.large, given), 35),
    "exact path": (exact, 20),
    "prefill": (lambda given: gpu_decode.prefill(given.scale.small, given), 10),
    "attention": (gpu_decode.attention, 15),
    "head": (heads, 20),
    "LoRA layers": (layers, 10),
    "group prefix sharing": (group, 10),
    "multi-turn": (turns, 10),
    "GRPO step": (grpo_step, 25),
    "mixed rollouts": (rollouts, 15),
}


def measured(name: str, part: Part, given: Given) -> Iterator[Row | str]:
    """Yield a part's rows, each with its peak memory, and its notes, of which a failure is the last."""
    torch.set_num_threads(given.options.threads)
    memory.reset_peak(given.device)
    try:
        for found in part(given):
            if isinstance(found, Row):
                found.details["peak_gib"] = round(memory.peak_gib(given.device), 3)
                memory.reset_peak(given.device)
            yield found
    except Exception as error:  # a failure of any kind must not lose the rows before it
        yield f"{name}: failed, {common.one_line(error)}"


def send(name: str, given: Given, sender: Connection) -> None:
    """Send what a part yields, then None. For a process of its own, which becomes the leader of its group."""
    os.setpgrp()
    warnings.simplefilter("ignore")
    for found in measured(name, PARTS[name][0], given):
        sender.send(found)
    sender.send(None)
