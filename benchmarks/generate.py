"""Tokens sampled per second, beside transformers' `generate` with a PEFT adapter: python -m benchmarks.generate

decode: all prompts of one length, all replies of another; greedily, and sampled at temperature 1.
mixed:  prompts and replies of different lengths, greedily. The peer pads the prompts on the left and decodes every row
        to the longest reply; only the tokens that were asked for count.

Greedy ids must be the same on both sides.
"""

import json
import math
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random

import torch

import lora
from benchmarks import common
from models.generate import Engine


@dataclass
class Options(common.Options):
    rows: str = "16,64"  # prompts at once
    prompt: int = 64  # tokens of each
    new: int = 64  # tokens to sample for each
    shortest: int = 20  # of the mixed lengths, and their step
    longest: int = 200


@dataclass(frozen=True)
class Case:
    name: str
    prompts: list[list[int]]
    new: list[int]  # tokens to sample for each prompt
    temperature: float


def make_cases(options: Options, tokenizer) -> list[Case]:
    cases = []
    for rows in map(int, options.rows.split(",")):
        prompts = common.windows(tokenizer, [options.prompt] * rows)
        for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            cases.append(Case(f"decode {rows} rows {name}", prompts, [options.new] * rows, temperature))
    draw, steps = Random(0), range(options.shortest, options.longest + 1, options.shortest)
    prompts = common.windows(tokenizer, [draw.randint(options.shortest, options.longest) for _ in range(rows)])
    cases.append(Case(f"mixed {rows} rows greedy", prompts, [draw.choice(steps) for _ in range(rows)], 0.0))
    return [case for case in cases if case.name.startswith(options.only)]


def ours(model, case: Case) -> list[list[int]]:
    """A new engine, as train.py makes one each epoch. Its limit on new tokens is one for all rows, so a row with a
    higher one goes on in a further turn.
    """
    max_len = max(len(prompt) + new for prompt, new in zip(case.prompts, case.new, strict=True))
    engine = Engine(model, len(case.prompts), max_len, lora.adapter_version(model))
    index, replies = {}, [[] for _ in case.prompts]
    for i, prompt in enumerate(case.prompts):
        slot = engine.open(key=(0, i))
        engine.feed(slot, prompt)
        index[slot] = i
    for row in engine.run(math.gcd(*case.new), case.temperature, stop_ids=frozenset()):
        assert len(row.logprobs) == len(row.ids)
        reply = replies[index[row.slot]]
        reply += row.ids
        if len(reply) < case.new[index[row.slot]]:
            engine.feed(row.slot, [])
        else:
            engine.close(row.slot)
    return replies


@torch.no_grad()
def peer(model, case: Case) -> list[list[int]]:
    width = max(map(len, case.prompts))
    ids_BT = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in case.prompts])
    mask_BT = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in case.prompts])
    keys = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if case.temperature else {}
    out_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, max_new_tokens=max(case.new), **keys)
    assert out_BT.shape[1] == width + max(case.new), "the peer stopped early"
    return [row[width : width + new].tolist() for row, new in zip(out_BT, case.new, strict=True)]


def peer_model(base: Path, adapter: Path):
    model, _ = common.peer_model(base, adapter)
    config = model.generation_config
    config.eos_token_id, config.pad_token_id, config.use_cache = None, 0, True
    return model.eval()


def check(case: Case, replies: dict[str, list[list[int]]]) -> str:
    """Lengths always, ids where the peer's can be known."""
    for side, found in replies.items():
        assert [len(reply) for reply in found] == case.new, f"{case.name}: {side} sampled other lengths"
    if case.temperature or "peer" not in replies:
        return "lengths"
    pairs = list(zip(replies["ours"], replies["peer"], strict=True))
    for i, (mine, theirs) in enumerate(pairs):
        if mine != theirs:
            at = next(t for t, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b)
            print(f"{case.name}: row {i} differs from token {at} on, {mine[at]} and {theirs[at]}", file=sys.stderr)
    return f"{sum(mine == theirs for mine, theirs in pairs)}/{len(pairs)} rows equal"


def main(options: Options) -> None:
    if not all(word.isdecimal() and int(word) for word in options.rows.split(",")):
        sys.exit(f"rows={options.rows}: not whole numbers by comma")
    torch.set_num_threads(options.threads)
    missing = common.absent("transformers", "peft")
    with tempfile.TemporaryDirectory() as folder:
        base, adapter = common.prepare(options.model, Path(folder))
        model, tokenizer = common.our_model(base, adapter)
        cases = make_cases(options, tokenizer)
        sides = {"ours": lambda: partial(ours, model), "peer": lambda: partial(peer, peer_model(base, adapter))}
        sides = {name: make() for name, make in sides.items() if options.memory in ("", name)}
    if missing:
        sides.pop("peer", None)
    torch.manual_seed(0)
    if options.memory:
        work = sides[options.memory]
        work(Case("first", [cases[0].prompts[0][:8]] * 2, [2, 2], cases[0].temperature))  # what is imported late
        print(json.dumps({"peak_mib": common.peak_of(lambda: work(cases[0]))}))
        return

    results = []
    for case in cases:
        replies = {name: work(case) for name, work in sides.items()}
        checked = check(case, replies)
        turns = {name: partial(work, case) for name, work in sides.items()}
        seconds = common.take_turns(turns, options.repeats, options.warmup - 1)
        results.append(common.Result(case.name, sum(case.new), seconds, checked))
        common.add_memory(results[-1], "benchmarks.generate", options)
        print(f"{case.name}: {results[-1].ratio or 0:.2f}", file=sys.stderr, flush=True)
    parameters = sum(p.numel() for p in model.parameters())
    about = {"model": options.model, "parameters": f"{parameters:,}", "dtype": "float32", "lora": "r=16 all-linear"}
    notes = [
        f"decode: prompts of {options.prompt} tokens, replies of {options.new}; medians of {options.repeats} turns.",
        "Ours returns the log-probability of every sampled token; the peer is not asked for any.",
        f"mixed: prompts of {options.shortest}-{options.longest} tokens, replies likewise in steps of "
        f"{options.shortest}; the peer decodes all rows to the longest.",
        "MiB: peak resident memory above the loaded model, each side alone in a process.",
    ]
    if missing:
        notes.append(f"absent: {', '.join(missing)}; ours was measured alone.")
    common.report("generate", "transformers", results, options, notes, about)


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
