"""Parts of benchmarks/gpu.py that check: the GPU tests, log-probabilities of real text beside transformers, and whether
sampling and training agree, with quantiles of the gap."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch

from benchmarks import common, generate, memory, sides
from benchmarks.common import Row
from benchmarks.gpu_sizes import Given
from models import load_model, load_tokenizer
from models.cuda.exact import make_exact
from models.linear import Linear
from models.logprob import token_logprobs
from rl.batch import forward, make_batch, micro_batches
from rl.records import Episode

ROOT = Path(__file__).parents[1]
CHOSEN = "not full and not compiles"  # tests that the part `tests` runs
QUANTILES = (0.5, 0.9, 0.99, 0.999, 1.0)


def tests(given: Given) -> Iterator[Row | str]:
    """Run the tests of kernels in a process of their own, a file at a time; the row counts failures.

    Those that only compile need no GPU, and are left out.
    """
    if common.absent("pytest"):
        yield "tests: not run, pytest is not installed; pip install -e '.[test]' brings it."
        return
    for file in given.scale.tests:
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--tb=line", "-m", CHOSEN]
        command.append(f"tests/{file}")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        lines = result.stdout.strip().splitlines() or [f"no output, exit status {result.returncode}"]
        summary = next(
            (line for line in lines[::-1] if re.search(r"\d+ (passed|failed|error|skipped)", line)), lines[-1]
        )
        failed = sum(int(n) for n in re.findall(r"(\d+) (?:failed|error)", summary))
        failed = max(failed, int(result.returncode not in (0, 5)))  # 5: nothing was collected
        for line in lines[:-1] if failed else ():
            if re.match(r"(FAILED|ERROR|E  |/.*Error)", line):
                yield f"{file}: {line[:300]}"
        yield Row(f"tests/{file}", {"ours": [float(failed)]}, "failed", targets={"ours": 0.0}, check=summary)


# ---- real text ----


@torch.no_grad()
def our_logprobs(model, ids_BT: torch.Tensor) -> torch.Tensor:
    hidden_ND = model(ids_BT)[:, :-1].flatten(0, 1)
    return token_logprobs(hidden_ND, model.lm_head.weight, ids_BT[:, 1:].flatten())[0].double().cpu()


@torch.no_grad()
def their_logprobs(model, ids_BT: torch.Tensor) -> torch.Tensor:
    found = []
    for ids_T in ids_BT:
        logits_TV = model(input_ids=ids_T[None], use_cache=False).logits[0, :-1]
        found.append(logits_TV.float().log_softmax(-1).gather(-1, ids_T[1:, None])[:, 0])
    return torch.cat(found).double().cpu()


def text(given: Given) -> Iterator[Row | str]:
    """Compare the log-probabilities of real text, from the embedded model with an adapter, with those of transformers
    in float32; and both sides' in 16 bits with the same."""
    if common.absent("transformers", "peft"):
        yield "text: not compared, transformers or peft is not installed."
        return
    with tempfile.TemporaryDirectory() as folder:
        base, adapter = sides.prepare("tiny", Path(folder))
        load = partial(sides.peer_model, base, adapter, device=given.device)
        pieces, tokens = given.scale.text
        windows = sides.windows(load_tokenizer(str(base)), [tokens] * pieces)
        ids_BT = torch.tensor(windows, device=given.device)
        expected_N = their_logprobs(load(dtype=torch.float32)[0].eval(), ids_BT)
        for dtype in dict.fromkeys((torch.float32, given.dtype)):
            found = {"ours": our_logprobs(sides.our_model(base, adapter, dtype, given.device)[0], ids_BT)}
            if dtype != torch.float32:
                found["transformers"] = their_logprobs(load(dtype=dtype)[0].eval(), ids_BT)
            values = {side: [(x - expected_N).abs().max().item()] for side, x in found.items()}
            targets = {"ours": 1e-3} if dtype == torch.float32 else {"transformers": 1.0}
            name = f"text, {str(dtype).removeprefix('torch.')}, largest error against float32 transformers"
            yield Row(name, values, "nats", targets=targets, check=f"{len(expected_N):,} tokens")


# ---- agreement of sampling and training ----


def switch_exact(model, exact: bool) -> None:
    """Make a model exact on CUDA, or take that back."""
    make_exact(model)
    if not exact:
        model.exact = False
        for layer in model.modules():
            if isinstance(layer, Linear):
                layer.matmul = None


def played(model, talk: generate.Talk) -> list[Episode]:
    """Return the records of episodes that are sampled at temperature 1."""
    episodes, n = [], talk.sampled
    for group, (ids, values) in enumerate(zip(*generate.play(model, talk, reuse=True, temperature=1.0), strict=True)):
        episode = Episode("", 0, group)
        episode.append(talk.prompts[group])
        for turn, observations in enumerate(talk.observations):
            at = len(episode.ids_T)
            episode.append_turn(ids[at : at + n], values[turn * n : (turn + 1) * n], "length")
            episode.append(observations[group])
        assert episode.ids_T == ids
        episodes.append(episode)
    return episodes


def train(model, episodes: list[Episode]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return (trained minus sampled log-probabilities, the gradient of every adapter factor)."""
    gaps, parameters = [], {name: p for name, p in model.named_parameters() if p.requires_grad}
    for piece in micro_batches(make_batch(episodes), 8192):
        logprobs_N = forward(piece, model, 1.0).logprobs_N
        logprobs_N.mean().backward()
        gaps.append(logprobs_N.detach() - piece.old_logprobs_N)
    gradients = {name: p.grad for name, p in parameters.items()}
    for p in parameters.values():
        p.grad = None
    return torch.cat(gaps).double(), gradients


def agreement(given: Given) -> Iterator[Row]:
    """Sample episodes, compute their log-probabilities as training does, and take the gradient twice: with exact=true,
    where every bit must be equal, and without."""
    for shape in ("tiny", given.scale.small):
        base = partial(load_model, "tiny") if shape == "tiny" else partial(sides.random, sides.SHAPES[shape])
        model = sides.adapted(base(dtype=given.dtype, device=given.device))
        talk = generate.make_talk(*given.scale.round_trip, model.config.vocab_size)
        for exact in (False, True):
            switch_exact(model, exact)
            episodes = played(model, talk)
            gaps_N, first = train(model, episodes)
            _, second = train(model, episodes)
            unequal, targets = int((gaps_N != 0).sum()), {"ours": 0.0} if exact else {}
            quantiles = gaps_N.abs().quantile(torch.tensor(QUANTILES, dtype=torch.float64)).tolist()
            check = f"{unequal:,} of {len(gaps_N):,} tokens differ; k3 {(gaps_N.exp() - gaps_N - 1).mean():.1e}; "
            check += "quantiles of the gap: "
            check += ", ".join(f"{at} {gap:.1e}" for at, gap in zip(QUANTILES, quantiles, strict=True))
            name = f"agreement {shape}, exact={str(exact).lower()}"
            values = {"ours": [unequal / len(gaps_N)]}
            yield Row(f"{name}, tokens that differ", values, "of all", targets=targets, check=check)
            differ = sum(not torch.equal(first[name], second[name]) for name in first)
            check = "the same batch twice, adapter factors compared bit for bit"
            words = {"unit": f"of {len(first)}", "targets": targets, "check": check}
            yield Row(f"{name}, gradients of a second backward that differ", {"ours": [float(differ)]}, **words)
        del model
        memory.free_memory()
