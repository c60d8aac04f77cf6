"""Measure how far sampling and training differ, and the cost of equal bits: python -m benchmarks.onpolicy

agreement: episodes of TextCraft, as train.py plays them; every sampled token's log-probability beside the one that the
           training forward gives it. Beside it, on other prompts, transformers' `generate` with a PEFT adapter
           against the same model's forward.
cost:      a rollout of several turns and the training pass over it, with our attention and with torch's
           scaled_dot_product_attention in its place (benchmarks/inexact.py), everywhere or in training alone; or, on a
           GPU, with the model's switch `exact` on and off.
matrix:    instead of both, whether the bits are equal for models, dtypes, ranks and numbers of threads
           (benchmarks/exactness.py). The exit status is 1 if they are not where the trial of a run says so.
random:    the same for that many random models (benchmarks/exactness_random.py).
"""

import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks import common, exactness, exactness_random, generate, inexact, sides
from benchmarks.common import Parts, Row
from models import fast_matmul
from models.cpu.step import exact_step
from models.cuda.exact import make_exact
from models.linear import Linear
from rl.batch import forward, make_batch, micro_batches
from rl.config.arguments import Positive
from rl.config.parse import parse
from rl.records import Episode, Turn
from rl.rollout import rollout
from rl.tasks import make_tasks


@dataclass
class Options(common.Options):
    repeats: Positive[int] = 9  # measured repeats of each side of the cost
    model: str = "tiny"  # tiny | small (random, 25 million parameters) | a folder | a hub id
    dtypes: str = "float32,bfloat16"  # by comma
    episodes: Positive[int] = 1000  # of TextCraft, at most 8 turns each
    difficulty: str = "2"  # of TextCraft, depths by comma
    peer_rows: Positive[int] = 16  # prompts of the peer
    peer_new: Positive[int] = 32  # tokens sampled for each
    rows: Positive[int] = 32  # episodes of the cost
    start: Positive[int] = 64  # prompt tokens of those
    turns: Positive[int] = 4  # turns of those
    sampled: Positive[int] = 32  # tokens of a turn
    observed: Positive[int] = 32  # tokens after it
    matrix: bool = False  # measure the matrix alone; dtypes= and the keys below narrow it
    models: str = exactness.MODELS  # of the matrix, by comma
    ranks: str = exactness.RANKS  # of the matrix, by comma; 0 trains every weight
    threads: str = ""  # torch threads, "" for 2; of the matrix by comma, "" for 1,2,3,4,6,8,16
    resume: bool = True  # in the matrix, also resume a run in each row
    random: int = 0  # measure so many random models alone, from number `first` on
    first: int = 0  # of the random models; a number always draws the same one

    def __post_init__(self):
        if self.random < 0 or self.first < 0 or (self.random and self.matrix):
            raise ValueError(f"random={self.random} first={self.first}: not negative, and not with matrix=true")
        if self.matrix:
            exactness.cells(self.models, self.dtypes, self.ranks, self.threads or exactness.THREADS)
        elif self.threads and not (self.threads.isdecimal() and int(self.threads)):
            raise ValueError(f"threads={self.threads} must be a positive whole number; matrix=true takes several")


@dataclass(frozen=True)
class Agreement:
    tokens: int
    unequal: int  # tokens whose two log-probabilities differ in any bit
    largest: float  # difference, nats
    mean: float  # absolute difference


def compare(sampled_N: torch.Tensor, trained_N: torch.Tensor) -> Agreement:
    apart_N = (sampled_N - trained_N).double().abs()
    return Agreement(len(apart_N), int((sampled_N != trained_N).sum()), apart_N.max().item(), apart_N.mean().item())


# ---- agreement ----


@torch.no_grad()
def our_agreement(model, tokenizer, episodes: int, difficulty: str) -> tuple[Agreement, int]:
    """Return (the agreement of sampling and training, the number of sampled turns) over `episodes` episodes."""
    words = ["env=textcraft", "algo=grpo", f"textcraft.difficulty={difficulty}", f"grpo.group_size={min(8, episodes)}"]
    words.append(f"episodes={episodes // min(8, episodes) * min(8, episodes)}")
    cfg = parse(words, "benchmarks.onpolicy")
    size = cfg.grpo.group_size
    tasks = make_tasks(cfg, 0, cfg.episodes // size, size, "train", cfg.seed)
    played = rollout(model, tokenizer, tasks, cfg, cfg.temperature, tqdm(disable=True))
    pieces = [
        (piece.old_logprobs_N, forward(piece, model, cfg.temperature).logprobs_N)
        for piece in micro_batches(make_batch(played), cfg.micro_tokens)
    ]
    sampled_N, trained_N = (torch.cat(values) for values in zip(*pieces, strict=True))
    return compare(sampled_N, trained_N), sum(len(episode.turns) for episode in played)


@torch.no_grad()
def peer_agreement(model, prompts: list[list[int]], new: int) -> Agreement:
    """Compare transformers with itself: the logits that `generate` sampled from with those of one forward."""
    torch.manual_seed(0)
    ids_BP = torch.tensor(prompts, device=model.device)
    keys = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "max_new_tokens": new}
    keys |= {"return_dict_in_generate": True, "output_logits": True, "attention_mask": torch.ones_like(ids_BP)}
    found = generate.endless(model).generate(input_ids=ids_BP, **keys)
    taken_BT1 = found.sequences[:, ids_BP.shape[1] :, None]
    whole_BTV = model(input_ids=found.sequences, use_cache=False).logits[:, ids_BP.shape[1] - 1 : -1]
    logits = torch.stack(found.logits, 1), whole_BTV
    sampled, trained = (x.float().log_softmax(-1).gather(-1, taken_BT1).flatten() for x in logits)
    return compare(sampled, trained)


def agreement_parts(name: str, found: Callable[[], tuple[dict[str, Agreement], str]]) -> Parts:
    """Return the rows of shares and gaps. The target is that no token of ours differs."""

    def shares(row: str) -> Row:
        sides_, check = found()
        counts = "; ".join(f"{side}: {a.unequal:,} of {a.tokens:,} tokens" for side, a in sides_.items())
        values = {side: [a.unequal / a.tokens] for side, a in sides_.items()}
        return Row(row, values, "of all", targets={"ours": 0.0}, check=f"{counts}{check}")

    def gap(which: str, row: str) -> Row:
        return Row(row, {side: [getattr(a, which)] for side, a in found()[0].items()}, "nats")

    return {
        f"{name}, tokens that differ": shares,
        f"{name}, largest gap": partial(gap, "largest"),
        f"{name}, mean gap": partial(gap, "mean"),
    }


# ---- cost ----


def round_trip(model, talk: generate.Talk) -> Agreement:
    """Sample the episodes; take the gradient of all sampled log-probabilities."""
    histories, logprobs = generate.play(model, talk, reuse=True, temperature=1.0)
    episodes, start = [], len(talk.prompts[0])
    step = talk.sampled + len(talk.observations[0][0])
    for group, (ids, values) in enumerate(zip(histories, logprobs, strict=True)):
        episode = Episode("", 0, group, ids, [0] * len(ids), [0.0] * len(ids))
        for turn in range(len(talk.observations)):
            first = start + turn * step
            taken = slice(first, first + talk.sampled)
            episode.turns.append(Turn(taken.start, taken.stop, 0.0, "length"))
            episode.action_mask_T[taken] = [1] * talk.sampled
            episode.logprobs_T[taken] = values[turn * talk.sampled : (turn + 1) * talk.sampled]
        episodes.append(episode)
    old, new = [], []
    for piece in micro_batches(make_batch(episodes), 8192):
        logprobs_N = forward(piece, model, 1.0).logprobs_N
        with fast_matmul():  # as rl/update.py does it
            logprobs_N.mean().backward()
        old.append(piece.old_logprobs_N)
        new.append(logprobs_N.detach())
    for p in model.parameters():
        p.grad = None
    return compare(torch.cat(old), torch.cat(new))


def measure_cost(
    name: str, model, talk: generate.Talk, options, target: float | None, device="cpu", limit: float = float("inf")
) -> Row:
    """Compare the time with our attention to that with torch's, everywhere or in training alone. On a GPU compare the
    model with its switch `exact` on and off."""

    def replaced(other: Callable[[], AbstractContextManager]) -> Agreement:
        with other():
            return round_trip(model, talk)

    def switched(exact: bool) -> Agreement:
        make_exact(model)
        if not exact:
            model.exact = False
            for layer in model.modules():
                if isinstance(layer, Linear):
                    layer.matmul = None
        assert (model.lm_head.matmul is not None) == model.exact == exact
        return round_trip(model, talk)

    if device == "cpu":
        stacked = exact_step(model) is not None
        works = {"ours": partial(round_trip, model, talk)}
        works["torch's attention"] = partial(replaced, partial(inexact.everywhere, stacked))
        works["torch's in training alone"] = partial(replaced, inexact.in_training)
    else:
        works = {"ours": partial(switched, True), "not exact": partial(switched, False)}
    found = works["ours"]()
    if found.unequal:
        equal = (
            f"no cost of exactness to report: {found.unequal:,} of {found.tokens:,} tokens differ with our attention"
        )
    else:
        equal = f"ours: all {found.tokens:,} tokens equal bit for bit"
    seconds = common.interleave(works, options.repeats, options.warmup, device, limit, clock=options.clock)
    row = Row(name, seconds, tokens=found.tokens, check=equal)
    if target and not found.unequal:
        row.targets = {min((side for side in works if side != "ours"), key=row.median): target}
    return row


def parts(word: str, dtype: torch.dtype, prepared: Callable[[], tuple[Path, Path]], options, missing) -> Parts:
    """Return the rows of one dtype. prepared: returns the folders of the base and of the adapter."""

    @cache
    def ours() -> tuple:
        made = sides.our_model(*prepared(), dtype)
        common.choose_products(options, common.sizes_for_products(made[0].config), dtype=dtype)
        return made

    @cache
    def agreement() -> tuple[dict[str, Agreement], str]:
        model, tokenizer = ours()
        mine, turns = our_agreement(model, tokenizer, options.episodes, options.difficulty)
        found = {"ours": mine}
        if not missing:
            prompts = sides.windows(tokenizer, [options.start] * options.peer_rows)
            peer = sides.peer_model(*prepared(), dtype=dtype)[0]
            found["transformers + peft"] = peer_agreement(peer, prompts, options.peer_new)
        return found, f"; ours: {options.episodes:,} episodes of {turns:,} turns"

    def cost(row: str) -> Row:
        model = ours()[0]
        sizes = options.rows, options.start, options.turns, options.sampled, options.observed
        stated = common.as_stated(options, "model", "rows", "start", "turns", "sampled", "observed")
        talk = generate.make_talk(*sizes, model.config.vocab_size)
        return measure_cost(row, model, talk, options, 1.15 if stated else None)

    return agreement_parts(f"{word}, agreement", agreement) | {f"{word}, rollout and training pass": cost}


def measure_matrix(options: Options) -> None:
    """Report the matrix, or random models; exit with 1 if a row is wrong. An interrupt reports the rows so far."""
    count, rows = options.random, []
    if options.matrix:
        options = replace(options, threads=options.threads or exactness.THREADS)
        common.dtypes_of(options.dtypes)
        chosen = exactness.cells(options.models, options.dtypes, options.ranks, options.threads)
        count, found = len(chosen), exactness.measured(chosen, options.resume)
    else:
        found = exactness_random.measured(options.first, count)
    try:
        for row in found:
            rows.append(row)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    wrong = [row for row in rows if exactness.wrong(row)]
    notes = [exactness.summary(rows), f"{count - len(rows)} rows of this command were not measured."]
    notes.append("The table has the rows that are wrong and those in which the trial says no; the JSON has all.")
    shown = wrong + [row for row in rows if not row.targets and row not in wrong]
    common.report("onpolicy", rows, options, notes, {"models": options.models if options.matrix else "random"}, shown)
    if wrong:
        sys.exit(1)


def main(options: Options) -> None:
    if options.matrix or options.random:
        return measure_matrix(options)
    options = replace(options, threads=options.threads or "2")
    if options.difficulty.strip("1234,"):
        sys.exit(f"difficulty={options.difficulty}: not depths 1 to 4 by comma")
    dtypes = common.dtypes_of(options.dtypes)
    torch.set_num_threads(int(options.threads))
    missing, made = common.absent("transformers", "peft"), {}
    with tempfile.TemporaryDirectory() as folder:
        prepared = cache(partial(sides.prepare, options.model, Path(folder)))
        for word, dtype in dtypes.items():
            made |= parts(word, dtype, prepared, options, missing)
        rows = list(common.measured(made, options.only, missing))
    about = {"model": options.model, "lora": "r=16 all-linear, B not zero, unmerged on every side"}
    notes = [
        f"agreement: ours on {options.episodes:,} episodes of TextCraft, depth {options.difficulty}; transformers "
        f"and peft on {options.peer_rows} prompts of {options.start} tokens with {options.peer_new} sampled, "
        "their softmax in float32.",
        f"cost: {options.rows} episodes, prompts of {options.start} tokens, {options.turns} turns of {options.sampled} "
        f"sampled and {options.observed} observed, then the forward and backward over all; the target holds against "
        "the faster of the two others. torch's attention: scaled_dot_product_attention over caches that lie as it "
        "reads them, to sample (in float32 by a stacked step, as ours) and to train. torch's in training alone: "
        "sampled with ours.",
        *(f"{name}: absent; ours was measured without it." for name in missing),
    ]
    common.report("onpolicy", rows, options, notes, about)


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
