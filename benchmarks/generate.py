"""Tokens sampled per second, beside transformers' `generate` with a PEFT adapter: python -m benchmarks.generate

decode:     all prompts of one length, all replies of another; greedily, and sampled at temperature 1.
mixed:      prompts and replies of different lengths, greedily. The peer pads the prompts on the left and decodes every
            row to the longest reply; only the tokens that were asked for count.
multi-turn: prompts, then turns of sampled and observed tokens, greedily: slots that keep their keys and values, beside
            the same engine with reuse off, where each turn opens a new slot and feeds the whole history.

Greedy ids must be the same on both sides.
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random

import torch

import lora
from benchmarks import common, sides
from benchmarks.common import Row
from models.generate import Engine

LARGE = 20_000_000  # parameters from which on the higher target holds


@dataclass
class Options(common.Options):
    model: str = "tiny,small"  # by comma: tiny | small (25 million random parameters) | 0.5b | a folder | a hub id
    rows: str = "16,64"  # prompts at once
    prompt: int = 64  # tokens of each
    new: int = 64  # tokens to sample for each
    shortest: int = 20  # of the mixed lengths, and their step
    longest: int = 200  # of the mixed lengths
    episodes: int = 64  # of multi-turn; of a model of 20 million parameters or more an eighth of that
    start: int = 512  # prompt tokens of an episode
    turns: int = 8  # of an episode
    sampled: int = 32  # tokens of a turn
    observed: int = 96  # tokens after it
    peaks: int = 1  # 0: no peak memory in processes of their own
    memory: str = ""  # ours | transformers: run that side of the row `only` once and print its peak memory as JSON


@dataclass(frozen=True)
class Case:
    name: str
    prompts: list[list[int]]
    new: list[int]  # tokens to sample for each prompt
    temperature: float


def make_cases(options: Options, model: str, tokenizer) -> list[Case]:
    cases = []
    for rows in map(int, options.rows.split(",")):
        prompts = sides.windows(tokenizer, [options.prompt] * rows)
        for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
            cases.append(Case(f"{model}, decode {rows} rows {kind}", prompts, [options.new] * rows, temperature))
    draw, steps = Random(0), range(options.shortest, options.longest + 1, options.shortest)
    prompts = sides.windows(tokenizer, [draw.randint(options.shortest, options.longest) for _ in range(rows)])
    cases.append(Case(f"{model}, mixed {rows} rows greedy", prompts, [draw.choice(steps) for _ in range(rows)], 0.0))
    return [case for case in cases if case.name.startswith(options.only)]


# ---- the sides ----


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
    ids_BT = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in case.prompts], device=model.device)
    real = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in case.prompts]
    mask_BT = torch.tensor(real, device=model.device)
    keys = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if case.temperature else {}
    out_BT = model.generate(input_ids=ids_BT, attention_mask=mask_BT, max_new_tokens=max(case.new), **keys)
    assert out_BT.shape[1] == width + max(case.new), "the peer stopped early"
    return [row[width : width + new].tolist() for row, new in zip(out_BT, case.new, strict=True)]


def endless(model):
    """The peer's model, told to sample as many tokens as it is asked for."""
    config = model.generation_config
    config.eos_token_id, config.pad_token_id, config.use_cache = None, 0, True
    return model.eval()


@dataclass(frozen=True)
class Talk:
    """Episodes of several turns, all of the same lengths."""

    prompts: list[list[int]]
    observations: list[list[list[int]]]  # of each turn, of each episode: what follows the sampled tokens
    sampled: int  # tokens of a turn


def make_talk(episodes: int, start: int, turns: int, sampled: int, observed: int, vocab: int) -> Talk:
    """Random ids: what they say does not matter."""
    draw = Random(0)

    def texts(length: int) -> list[list[int]]:
        return [[draw.randrange(vocab) for _ in range(length)] for _ in range(episodes)]

    return Talk(texts(start), [texts(observed) for _ in range(turns)], sampled)


def play(model, talk: Talk, reuse: bool, temperature: float = 0.0) -> tuple[list[list[int]], list[list[float]]]:
    """(ids of each episode, log-probabilities of the sampled ones). reuse: slots are kept from turn to turn."""
    histories, logprobs = [list(prompt) for prompt in talk.prompts], [[] for _ in talk.prompts]
    max_len = len(histories[0]) + sum(talk.sampled + len(observations[0]) for observations in talk.observations)
    engine = Engine(model, len(histories), max_len, lora.adapter_version(model))
    index = {}
    for turn, observations in enumerate(talk.observations):
        if turn == 0 or not reuse:
            index = {engine.open(key=(0, i)): i for i in range(len(histories))}
        for slot, i in index.items():
            engine.feed(slot, talk.observations[turn - 1][i] if turn and reuse else histories[i])
        for row in engine.run(talk.sampled, temperature, stop_ids=frozenset()):
            i = index[row.slot]
            histories[i] += row.ids + observations[i]
            logprobs[i] += row.logprobs
            if not reuse:
                engine.close(row.slot)
    return histories, logprobs


# ---- what is measured ----


def check(case: Case, replies: dict[str, list[list[int]]]) -> str:
    """Lengths always, ids where the peer's can be known."""
    for side, found in replies.items():
        assert [len(reply) for reply in found] == case.new, f"{case.name}: {side} sampled other lengths"
    if case.temperature or len(replies) < 2:
        return "lengths"
    told = []
    for side in [side for side in replies if side != "ours"]:
        pairs = list(zip(replies["ours"], replies[side], strict=True))
        unequal = [i for i, (mine, theirs) in enumerate(pairs) if mine != theirs]
        for i in unequal[:1]:
            at = next(t for t, (a, b) in enumerate(zip(*pairs[i], strict=True)) if a != b)
            print(f"{case.name}: {side}'s row {i} is another from token {at} on", file=sys.stderr)
        told.append(f"{len(pairs) - len(unequal)}/{len(pairs)} rows equal")
    return ", ".join(told)


def measure(
    case: Case, works: dict[str, Callable], options, targets: dict, device: str = "cpu", limit: float = math.inf
) -> Row:
    """works: of each side, from a Case to its replies."""
    checked = check(case, {name: work(case) for name, work in works.items()})
    turns = {name: partial(work, case) for name, work in works.items()}
    seconds = common.take_turns(turns, options.repeats, options.warmup - 1, device, limit)
    targets = {side: bound for side, bound in targets.items() if side in works}
    return common.progress(Row(case.name, seconds, speedup=True, targets=targets, tokens=sum(case.new), check=checked))


def measure_turns(name: str, model, talk: Talk, options, device: str = "cpu", limit: float = math.inf) -> Row:
    """Reuse of the slots against none, the ids compared."""
    ids = {reuse: play(model, talk, reuse)[0] for reuse in (True, False)}
    equal = sum(a == b for a, b in zip(ids[True], ids[False], strict=True))
    turns = {"ours": partial(play, model, talk, True), "reuse off": partial(play, model, talk, False)}
    seconds = common.take_turns(turns, options.repeats, options.warmup - 1, device, limit)
    tokens, checked = len(talk.prompts) * len(talk.observations) * talk.sampled, f"{equal}/{len(ids[True])} rows equal"
    return common.progress(Row(name, seconds, speedup=True, targets={"reuse off": 3.0}, tokens=tokens, check=checked))


def rows_of(name: str, options: Options, missing: list[str]) -> list[Row]:
    """All rows of one model; with options.memory, none: it prints that side's peak."""
    label = Path(name).name
    with tempfile.TemporaryDirectory() as folder:
        base, adapter = sides.prepare(name, Path(folder))
        model, tokenizer = sides.our_model(base, adapter)
        cases = make_cases(options, label, tokenizer)
        works = {}
        if options.memory in ("", "ours"):
            works["ours"] = partial(ours, model)
        if options.memory in ("", "transformers") and not missing:
            works["transformers"] = partial(peer, endless(sides.peer_model(base, adapter)[0]))
    torch.manual_seed(0)
    if options.memory:
        work = works[options.memory]
        work(Case("first", [cases[0].prompts[0][:8]] * 2, [2, 2], cases[0].temperature))  # what is loaded late
        print(json.dumps({"peak_mib": common.peak_of(lambda: work(cases[0]))}))
        return []
    rows, large = [], sum(p.numel() for p in model.parameters()) >= LARGE
    for case in cases:
        bound = 2.0 if "mixed" in case.name else 2.5 if large else 1.7
        targets = {"transformers": bound} if len(case.prompts) >= 16 else {}
        rows.append(measure(case, works, options, targets))
        if options.peaks:
            single = replace(options, model=name)
            rows += common.memory_row(f"{case.name}, peak", case.name, list(works), "benchmarks.generate", single)
    episodes = -(-options.episodes // 8) if large else options.episodes
    talk_name = f"{label}, multi-turn {episodes} rows greedy"
    if talk_name.startswith(options.only):
        words = options.start, options.turns, options.sampled, options.observed
        talk = make_talk(episodes, *words, model.config.vocab_size)
        rows.append(measure_turns(talk_name, model, talk, options))
    return rows


def main(options: Options) -> None:
    if not all(word.isdecimal() and int(word) for word in options.rows.split(",")):
        sys.exit(f"rows={options.rows}: not whole numbers by comma")
    torch.set_num_threads(options.threads)
    missing = common.absent("transformers", "peft")
    rows = [row for name in options.model.split(",") for row in rows_of(name, options, missing)]
    if options.memory:
        return
    about = {"models": options.model, "dtype": "float32", "lora": "r=16 all-linear, unmerged on every side"}
    notes = [
        common.BY_ONEDNN,
        f"decode: prompts of {options.prompt} tokens, replies of {options.new}.",
        "Ours returns the log-probability of every sampled token; the peer is not asked for any.",
        f"mixed: prompts of {options.shortest}-{options.longest} tokens, replies likewise in steps of "
        f"{options.shortest}; the peer decodes all rows to the longest.",
        f"multi-turn: prompts of {options.start} tokens, {options.turns} turns of {options.sampled} sampled and "
        f"{options.observed} observed ones.",
        "peak: resident memory above the loaded model, each side alone in a process.",
        *(f"{name}: absent; ours was measured without it." for name in missing),
    ]
    common.report("generate", rows, options, notes, about)


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
