"""Measure how far sampling and training differ: python -m benchmarks.onpolicy

agreement: episodes of TextCraft, as train.py plays them; every sampled token's log-probability beside the one that the
           training forward gives it. Beside it, on other prompts, transformers' `generate` with a PEFT adapter
           against the same model's forward.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks import common, generate, sides
from benchmarks.common import Parts, Row
from models.sizes import sizes_of
from rl.batch import forward, make_batch, micro_batches
from rl.config.arguments import Positive
from rl.config.words import parse
from rl.rollout import rollout
from rl.tasks import make_tasks


@dataclass
class Options(common.Options):
    model: str = "tiny"  # tiny | small (random, 25 million parameters) | a folder | a hub id
    dtypes: str = "float32,bfloat16"  # by comma
    episodes: Positive[int] = 1000  # of TextCraft, at most 8 turns each
    peer_rows: Positive[int] = 16  # prompts of the peer
    peer_new: Positive[int] = 32  # tokens sampled for each
    start: Positive[int] = 64  # tokens of each


@dataclass(frozen=True)
class Agreement:
    tokens: int
    unequal: int  # tokens whose two log-probabilities differ in any bit
    largest: float  # difference, nats
    mean: float  # absolute difference


def compare(sampled_N: torch.Tensor, trained_N: torch.Tensor) -> Agreement:
    apart_N = (sampled_N - trained_N).double().abs()
    return Agreement(len(apart_N), int((sampled_N != trained_N).sum()), apart_N.max().item(), apart_N.mean().item())


@torch.no_grad()
def our_agreement(model, tokenizer, episodes: int) -> tuple[Agreement, int]:
    """Return (the agreement of sampling and training, the number of sampled turns) over `episodes` episodes."""
    words = ["env=textcraft", "algo=grpo", "textcraft.difficulty=2", f"grpo.group_size={min(8, episodes)}"]
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


def parts(word: str, dtype: torch.dtype, prepared: Callable[[], tuple[Path, Path]], options, missing) -> Parts:
    """Return the rows of one dtype; the target is that no token of ours differs. prepared: returns the folders of the
    base and of the adapter."""

    @cache
    def found() -> tuple[dict[str, Agreement], str]:
        model, tokenizer = sides.our_model(*prepared(), dtype)
        common.choose_products(options, sizes_of(model.config), dtype=dtype)
        mine, turns = our_agreement(model, tokenizer, options.episodes)
        by_side = {"ours": mine}
        if not missing:
            prompts = sides.windows(tokenizer, [options.start] * options.peer_rows)
            peer = sides.peer_model(*prepared(), dtype=dtype)[0]
            by_side["transformers + peft"] = peer_agreement(peer, prompts, options.peer_new)
        counts = [f"{side}: {a.unequal:,} of {a.tokens:,} tokens" for side, a in by_side.items()]
        return by_side, "; ".join([*counts, f"ours: {options.episodes:,} episodes of {turns:,} turns"])

    def shares(row: str) -> Row:
        values = {side: [a.unequal / a.tokens] for side, a in found()[0].items()}
        return Row(row, values, "of all", targets={"ours": 0.0}, check=found()[1])

    def gap(which: str, row: str) -> Row:
        return Row(row, {side: [getattr(a, which)] for side, a in found()[0].items()}, "nats")

    return {
        f"{word}, agreement, tokens that differ": shares,
        f"{word}, agreement, largest gap": partial(gap, "largest"),
        f"{word}, agreement, mean gap": partial(gap, "mean"),
    }


def main(options: Options) -> None:
    dtypes = common.dtypes_of(options.dtypes)
    torch.set_num_threads(options.threads)
    missing, made = common.absent("transformers", "peft"), {}
    with tempfile.TemporaryDirectory() as folder:
        prepared = cache(partial(sides.prepare, options.model, Path(folder)))
        for word, dtype in dtypes.items():
            made |= parts(word, dtype, prepared, options, missing)
        about = {"model": options.model, "lora": "r=16 all-linear, B not zero, unmerged on every side"}
        note = (
            f"agreement: ours on {options.episodes:,} episodes of TextCraft, depth 2; transformers "
            f"and peft on {options.peer_rows} prompts of {options.start} tokens with {options.peer_new} sampled, "
            "their softmax in float32."
        )
        common.measure_and_report("onpolicy", made, options, [note], about, ("transformers", "peft"))


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
