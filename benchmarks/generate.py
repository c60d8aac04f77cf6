"""Tokens sampled per second, beside transformers' `generate` with a PEFT adapter: python -m benchmarks.generate

decode:     all prompts of one length, all replies of another; greedily, and sampled at temperature 1.
mixed:      prompts and replies of any length between two, greedily. The peer pads the prompts on the left and decodes
            every row to the longest reply; only the requested tokens count.
multi-turn: prompts, then turns of sampled and observed tokens, greedily: slots that keep their keys and values, beside
            the same engine with reuse off, where each turn opens a new slot and feeds the whole history.

Greedy ids must be the same on both sides.
"""

import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

import torch

import lora
from benchmarks import common, sides
from benchmarks.common import TOO, Parts, Row
from models import fast_matmul
from models.cuda.graph import CHUNK
from models.engine import Engine
from models.sizes import sizes_of
from rl.config.arguments import Positive

LARGE = 20_000_000  # parameters of the smallest model with the higher target


@dataclass
class Options(common.Options):
    model: str = "tiny,small"  # by comma: tiny | small (25 million random parameters) | 0.5b | a folder | a hub id
    rows: str = "16,64"  # prompts at once
    prompt: Positive[int] = 64  # tokens of each
    new: Positive[int] = 64  # tokens to sample for each
    shortest: Positive[int] = 20  # of the mixed lengths
    longest: Positive[int] = 200  # of the mixed lengths
    episodes: Positive[int] = 64  # of multi-turn; of a model of 20 million parameters or more an eighth of that
    start: Positive[int] = 512  # prompt tokens of an episode
    turns: Positive[int] = 8  # of an episode
    sampled: Positive[int] = 32  # tokens of a turn
    observed: Positive[int] = 96  # tokens after it


@dataclass(frozen=True)
class Case:
    name: str
    prompts: list[list[int]]
    new: list[int]  # tokens to sample for each prompt
    temperature: float


KINDS = {"decode {} rows greedy": 0.0, "decode {} rows sampled": 1.0, "mixed {} rows greedy": 0.0}  # temperatures


def make_case(options: Options, kind: str, rows: int, name: str, tokenizer) -> Case:
    lengths, new = [options.prompt] * rows, [options.new] * rows
    if kind.startswith("mixed"):
        lengths, new = mixed_lengths(rows, options.shortest, options.longest)
    return Case(name, sides.windows(tokenizer, lengths), new, KINDS[kind])


def mixed_lengths(rows: int, shortest: int, longest: int) -> tuple[list[int], list[int]]:
    """Return (lengths of the prompts, lengths of the replies)."""
    draw = Random(0)
    return tuple([draw.randint(shortest, longest) for _ in range(rows)] for _ in range(2))


# ---- the sides ----


def ours(model, case: Case, engine: Engine | None = None) -> list[list[int]]:
    """Return our replies. The engine is a new one by default, as train.py makes one each epoch."""
    if engine is None:
        engine = make_engine(model, case)
    index, replies = {}, [[] for _ in case.prompts]
    for i, prompt in enumerate(case.prompts):
        slot = engine.open(key=(0, i))
        engine.feed(slot, prompt)
        _end_after(case.new[i], engine._slots[slot])
        index[slot] = i
    for row in engine.run(max(case.new), case.temperature, stop_ids=frozenset()):
        assert len(row.logprobs) == len(row.ids)
        i = index[row.slot]
        assert case.new[i] <= len(row.ids) < case.new[i] + CHUNK
        replies[i] = row.ids[: case.new[i]]  # an engine that runs ahead samples whole chunks
        engine.close(row.slot)
    return replies


def make_engine(model, case: Case) -> Engine:
    max_len = max(len(prompt) + new for prompt, new in zip(case.prompts, case.new, strict=True))
    return Engine(model, len(case.prompts), max_len, lora.adapter_version(model))


def _end_after(tokens: int, slot) -> None:
    """End a slot's row after `tokens` tokens, as a stop token would: the engine has one limit for all slots."""
    append = slot.append
    slot.append = lambda ids, logprobs, _, *more: append(ids, logprobs, tokens, *more)


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
    """Return the peer's model without stop tokens: it samples as many tokens as `max_new_tokens` says."""
    config = model.generation_config
    config.eos_token_id, config.pad_token_id, config.use_cache = None, 0, True
    return model.eval()


@dataclass(frozen=True)
class Talk:
    """Episodes of several turns, all of the same lengths."""

    prompts: list[list[int]]
    observations: list[list[list[int]]]  # ids after the sampled tokens, by turn and episode
    sampled: int  # tokens of a turn


def make_talk(episodes: int, start: int, turns: int, sampled: int, observed: int, vocab: int) -> Talk:
    """Return episodes of random ids, since their meaning does not matter."""
    draw = Random(0)

    def texts(length: int) -> list[list[int]]:
        return [[draw.randrange(vocab) for _ in range(length)] for _ in range(episodes)]

    return Talk(texts(start), [texts(observed) for _ in range(turns)], sampled)


def play(model, talk: Talk, reuse: bool, temperature: float = 0.0) -> tuple[list[list[int]], list[list[float]]]:
    """Return (ids of each episode, log-probabilities of the sampled ids).

    reuse: keep the slots from turn to turn; otherwise each turn feeds the whole history to a new slot.
    """
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
    """Assert that replies have their lengths. Return which rows have equal ids, where greedy sampling fixes them."""
    for side, found in replies.items():
        assert [len(reply) for reply in found] == case.new, f"{case.name}: {side} sampled other lengths"
    if case.temperature or len(replies) < 2 or "ours" not in replies:
        return "lengths"
    counts, peers = [], [side for side in replies if side != "ours"]
    for side in peers:
        pairs = list(zip(replies["ours"], replies[side], strict=True))
        unequal = [i for i, (mine, theirs) in enumerate(pairs) if mine != theirs]
        for i in unequal[:1]:
            at = next(t for t, (a, b) in enumerate(zip(*pairs[i], strict=True)) if a != b)
            print(f"{case.name}: {side}'s row {i} differs from token {at} on", file=sys.stderr)
        of = f" to {side}" if len(peers) > 1 else ""
        counts.append(f"{len(pairs) - len(unequal)}/{len(pairs)} rows equal{of}")
    return ", ".join(counts)


def measure(
    case: Case, works: dict[str, Callable], options, targets: dict, warmup: int, device="cpu", limit: float = math.inf
) -> Row:
    """Return the row of a case.

    works: the function from a Case to its replies, by side. warmup: repeats before the measured ones, besides the one
    that checks the replies.
    """
    repeats, dropped = {name: partial(work, case) for name, work in works.items()}, {}
    replies = common.each_side(repeats, dropped)
    words = {"tokens": sum(case.new), "check": check(case, replies), "dropped": dropped}
    words["targets"] = {side: bound for side, bound in targets.items() if side in works}
    repeats = {name: repeats[name] for name in replies}
    return common.timed(case.name, repeats, options, device, limit, warmup, speedup=True, **words)


def measure_turns(
    name: str, model, talk: Talk, options, targets: dict, device: str = "cpu", limit: float = math.inf
) -> Row:
    """Compare slots that are kept with slots that are not. The warm-up compares their ids."""
    ids = {reuse: play(model, talk, reuse)[0] for reuse in (True, False)}
    equal = sum(a == b for a, b in zip(ids[True], ids[False], strict=True))
    works = {"ours": partial(play, model, talk, True), "reuse off": partial(play, model, talk, False)}
    words = {"targets": targets, "check": f"{equal}/{len(ids[True])} rows equal"}
    words["tokens"] = len(talk.prompts) * len(talk.observations) * talk.sampled
    return common.timed(name, works, options, device, limit, 0, speedup=True, **words)


def load(name: str, wanted: list[str], options: Options) -> tuple:
    """Return (our model, its tokenizer, the function from a Case to its replies by side)."""
    with tempfile.TemporaryDirectory() as folder:
        base, adapter = sides.prepare(name, Path(folder))
        model, tokenizer = sides.our_model(base, adapter)
        common.choose_products(options, sizes_of(model.config), dtype=model.lm_head.weight.dtype)
        makers = {
            "ours": lambda: partial(ours, model),
            "transformers": lambda: partial(peer, endless(sides.peer_model(base, adapter)[0])),
        }
        works = {side: makers[side]() for side in wanted}
    torch.manual_seed(0)
    return model, tokenizer, works


def parts(name: str, options: Options, missing: list[str]) -> Parts:
    """Return the rows of one model."""
    label, wanted = Path(name).name, ["ours"] if missing else ["ours", "transformers"]
    loaded = cache(partial(load, name, wanted, options))
    cases = {
        f"{label}, {kind.format(rows)}": partial(make_case, options, kind, rows)
        for kind in KINDS
        for rows in map(int, options.rows.split(","))
    }

    def is_large() -> bool:
        return sum(p.numel() for p in loaded()[0].parameters()) >= LARGE

    def rate(name: str) -> Row:
        _, tokenizer, works = loaded()
        case, mixed = cases[name](name, tokenizer), "mixed" in name
        bound = 2.0 if mixed else 2.5 if is_large() else 1.7
        stated = common.as_stated(options, *(("shortest", "longest") if mixed else ("prompt", "new")))
        targets = {"transformers": bound} if stated and len(case.prompts) >= 16 else {}
        if is_large() and not (case.temperature or missing):
            works = works | {f"transformers, {TOO}": fast_matmul()(works["transformers"])}
        return measure(case, works, options, targets, 0 if mixed else options.warmup - 1)

    def turns(name: str) -> Row:
        model, episodes = loaded()[0], -(-options.episodes // 8) if is_large() else options.episodes
        words = options.start, options.turns, options.sampled, options.observed
        stated = common.as_stated(options, "episodes", "start", "turns", "sampled", "observed")
        talk = make_talk(episodes, *words, model.config.vocab_size)
        return measure_turns(name, model, talk, options, {"reuse off": 3.0} if stated else {})

    return dict.fromkeys(cases, rate) | {f"{label}, multi-turn greedy": turns}


def main(options: Options) -> None:
    if not all(word.isdecimal() and int(word) for word in options.rows.split(",")):
        sys.exit(f"rows={options.rows}: not whole numbers by comma")
    torch.set_num_threads(options.threads)
    missing, made = common.absent("transformers", "peft"), {}
    for name in options.model.split(","):
        made |= parts(name, options, missing)
    about = {"models": options.model, "dtype": "float32", "lora": "r=16 all-linear, unmerged on every side"}
    notes = [
        f"decode: prompts of {options.prompt} tokens, replies of {options.new}.",
        "Ours returns the log-probability of every sampled token; the peer is not asked for any.",
        f"mixed: prompts of {options.shortest}-{options.longest} tokens, replies likewise; the peer decodes all rows "
        "to the longest.",
        f"multi-turn: {options.episodes} episodes, an eighth of that of a model of {LARGE:,} parameters or more; "
        f"prompts of {options.start} tokens, {options.turns} turns of {options.sampled} sampled and "
        f"{options.observed} observed ones.",
        f"mixed and multi-turn: the run that is checked is the only warm-up. `{TOO}`: in the greedy rows of models of "
        f"{LARGE:,} parameters or more.",
    ]
    common.measure_and_report("generate", made, options, notes, about, ("transformers", "peft"))


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
