"""Why did it learn that: what an epoch's update did to the tokens it learned from, and which episodes moved it.

    python -m rl.explain runs/x 3
    python -m rl.explain runs/x 3 by=advantage tokens=20

The update is repeated on the episodes that the run saved (rollouts=, rl/run/replay.py), from the newest checkpoint
before it or from the run's start, over the epochs between; the run's folder stays as it is. So it is the run's own
update, with the loss as the code has it now: after a change of the loss it shows what the change would have done.

It takes as long as some three updates, and one more for each epoch since that checkpoint. A run keeps its newest two
checkpoints and the best epoch's, or as many as save_total_limit= says.

An episode's share of the gradient is g . G / G . G, for its own gradient g and the sum G of all, before the epoch's
first optimizer step: the shares add up to 1, and one below 0 was overruled by the others.
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import contextlib
import io
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from safetensors.torch import load_file
from tqdm import tqdm

import train
from models import Tokenizer
from rl.batch import forward, policy_logprobs, select
from rl.config import arguments, checks, fields, program
from rl.config.arguments import ArgumentError, Positive
from rl.config.fields import Config, Experiment
from rl.config.words import resolve
from rl.optimizer import parameters_of
from rl.records import Batch
from rl.run import exits, history, replay, setup
from rl.run.files import checkpoints, is_whole
from rl.run.state import TrainState

AROUND = 6  # tokens of context on each side of a token
KEPT = 2**28  # numbers of gradients that are kept, 1 GiB


@dataclass
class Keys:
    by: Literal["change", "probability", "advantage"] = "change"  # order of tokens; change: of log-probability
    tokens: Positive[int] = 10  # shown of each kind
    episodes: Positive[int] = 8  # shown


@dataclass
class Explained:
    """An update: the log-probability of each sampled token before and after, each episode's part of the gradient."""

    batch: Batch  # with advantages_N
    before_N: torch.Tensor
    after_N: torch.Tensor
    norm_B: torch.Tensor  # of the episode's gradient of the policy
    share_B: torch.Tensor  # of the gradient of all episodes; they add up to 1, or are 0 if that is 0
    stats: dict  # metrics of the update
    exact: bool | None  # whether the weights after it are those that the run saved; None: it has saved none of them


def explain(run: Path, epoch: int) -> tuple[Explained, Tokenizer, Config]:
    """Repeat the update of an epoch. Return it with the run's tokenizer and settings."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.redirect_stdout(io.StringIO()):
        repeated, tokenizer, state, _ = setup.start(*start_before(run, epoch, Path(temporary) / "run"))
        cfg = repeated.cfg
        for _ in with_bar(range(state.epoch + 1, epoch), "earlier epochs"):
            recall(state, run)
            train.learn(state, scored(state, cfg), cfg)
        recall(state, run)
        batch = scored(state, cfg)
        before_N, norm_B, share_B = gradient_shares(state, batch, cfg)
        stats, _ = train.learn(state, batch, cfg)
        after_N = policy_logprobs(batch, state.model, cfg.temperature, state.piece_tokens(cfg))
    return Explained(batch, before_N, after_N, norm_B, share_B, stats, same_weights(state, run)), tokenizer, cfg


def start_before(run: Path, epoch: int, copy: Path) -> tuple[Config, Path]:
    """Return the settings and the folder that repeat the run's updates up to this epoch, from its newest whole
    checkpoint before it, or from its start."""
    saved = resolve({"resume": str(run)})
    if saved.algorithm.source != "rollouts":
        raise ArgumentError(f"{run} has algo={saved.algo}, which learns from demonstrations; there is no advantage")
    earlier = [path for path in checkpoints(run) if int(path.name.split("-")[1]) < epoch and is_whole(path)]
    copy.mkdir()
    for name in ("config.json", "origin.json"):
        if (run / name).is_file():
            shutil.copy(run / name, copy / name)
    for folder in [*earlier[-1:], *run.glob("reference")]:
        shutil.copytree(folder, copy / folder.name)
    changed = {"rollouts": str(run / "episodes.jsonl"), "eval_episodes": 0, "ranks": 1, "strict": False, "plan": ""}
    cfg = replace(saved, **changed, out=str(copy), resume=str(copy) if earlier else "")
    checks.check(cfg)
    return cfg, copy


def with_bar(steps: range, name: str) -> tqdm:
    """Return the steps with a progress bar, on a terminal."""
    return tqdm(steps, desc=name, leave=False, disable=None)


def recall(state: TrainState, run: Path) -> None:
    """Give the state the sampled tokens of the run's epochs so far, which `train.learn` does not count."""
    state.sampled_tokens = history.sampled_tokens(run, state.epoch)


def scored(state: TrainState, cfg: Config) -> Batch:
    """Return the batch of the state's next epoch, ready to learn from."""
    episodes = train.collect(None, state, None, cfg)
    return train.score(state, [e for e in episodes if not e.infrastructure_failed], cfg)


def gradient_shares(state: TrainState, batch: Batch, cfg: Config) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (the log-probability of each token before the update, the norm of each episode's gradient of the policy,
    its share of the gradient of all).

    Episodes go through the model one by one; a second time if their gradients do not fit into KEPT numbers together.
    """
    algo, policy = fields.algorithm_module(cfg.algo), parameters_of(state.optimizer, policy=True)
    if state.masters:
        raise ArgumentError("runs with lora.r=0 in bfloat16 train copies of the weights, which this does not follow")

    def logprobs_and_gradient(b: int) -> tuple[torch.Tensor, torch.Tensor]:
        micro = forward(select(batch, [b]), state.model, cfg.temperature, state.critic, cfg.algorithm.entropy_grad)
        loss, _ = algo.loss(micro, cfg.algorithm)
        grads = torch.autograd.grad(loss, policy, allow_unused=True)
        flat = [torch.zeros_like(p) if g is None else g for p, g in zip(policy, grads, strict=True)]
        return micro.logprobs_N.detach().float(), torch.cat([g.float().flatten() for g in flat])

    B, P = len(batch.episodes), sum(p.numel() for p in policy)
    logprobs, kept, norm_B, dot_B = [], {}, torch.zeros(B), torch.zeros(B)
    total_P = torch.zeros(P, device=policy[0].device)
    for b in with_bar(range(B), "gradients of episodes"):
        of_episode, gradient_P = logprobs_and_gradient(b)
        logprobs.append(of_episode)
        norm_B[b], total_P = (gradient_P**2).sum() ** 0.5, total_P + gradient_P  # `norm` and `@` round worse
        if B * P <= KEPT:
            kept[b] = gradient_P
    for b in range(B):
        dot_B[b] = ((kept[b] if kept else logprobs_and_gradient(b)[1]) * total_P).sum()
    square = (total_P**2).sum().cpu()
    before_N = torch.cat(logprobs) if logprobs else torch.zeros(0)  # an epoch whose groups were all left out
    return before_N, norm_B, dot_B / square if square else dot_B


def same_weights(state: TrainState, run: Path) -> bool | None:
    """Return whether the state has the weights that the run saved after the same epoch; None if it saved none."""
    path = run / f"checkpoint-{state.epoch}" / "trainable.safetensors"
    if path.is_file():
        saved = load_file(path)
        return all(torch.equal(p.detach().cpu(), saved[name]) for name, p in state.trainable().items())
    later = replay.read(run / "episodes.jsonl", state.model.config.vocab_size).get(state.epoch + 1)
    return later[0].adapter_hash == state.adapter_hash() if later else None


# ------------------------------------------------------------------------------------------------------------- text


def report(explained: Explained, tokenizer: Tokenizer, run: Path, epoch: int, cfg: Experiment, keys: Keys) -> list[str]:
    """Return the lines to print."""
    batch, change_N = explained.batch, explained.after_N - explained.before_N
    verdicts = {
        True: "the update is the run's own, bit for bit",
        False: "not the run's own update: code or machine differ",
    }
    steps = f"{explained.stats['optimizer_steps']} optimizer step{'s' * (explained.stats['optimizer_steps'] != 1)}"
    counts = f"{len(batch.episodes)} episodes, {len(change_N):,} tokens, {steps}"
    lines = [
        f"epoch {epoch} of {run}, {cfg.algo} on {cfg.env}: {counts}",
        verdicts.get(explained.exact, "the run saved no weights after it to compare with"),
    ]
    for name, chosen_N in (("above", batch.advantages_N > 0), ("below", batch.advantages_N < 0)):
        if n := int(chosen_N.sum()):
            moved = int((change_N[chosen_N] * batch.advantages_N[chosen_N] > 0).sum())
            mean, word = change_N[chosen_N].mean(), "likelier" if name == "above" else "less likely"
            lines.append(
                f"advantage {name} 0: {moved:,} of {n:,} tokens ({moved / n:.1%}) became {word}; "
                f"mean change of log-probability {mean:+.4f}"
            )
    order_N = {
        "change": change_N,
        "probability": explained.after_N.exp() - explained.before_N.exp(),
        "advantage": batch.advantages_N,
    }[keys.by]
    changed = change_N.abs().argsort(descending=True, stable=True)  # of equal ones, the most changed come first
    titles = ("highest advantage", "lowest advantage") if keys.by == "advantage" else ("pushed up most", "down most")
    for title, descending in zip(titles, (True, False), strict=True):
        ranked = changed[order_N[changed].argsort(descending=descending, stable=True)][: keys.tokens].tolist()
        if keys.by != "advantage":
            ranked = [n for n in ranked if order_N[n] != 0 and (order_N[n] > 0) == descending]
        lines += ["", f"tokens, {title}: change of log-probability, ratio, probability, advantage"]
        lines += [token_line(explained, tokenizer, n) for n in ranked] or ["  none"]
    lines += ["", "texts, by their summed change: sum, tokens, mean advantage", *text_lines(explained, tokenizer, keys)]
    lines += ["", "episodes that moved the gradient most: share, norm"]
    for b in explained.share_B.abs().argsort(descending=True, stable=True)[: keys.episodes].tolist():
        e, of_episode_N = batch.episodes[b], batch.episode_N == b
        lines.append(
            f"  {explained.share_B[b]:+8.1%} {explained.norm_B[b]:9.2g}  episode {b}: {e.env} seed {e.seed}, "
            f"{e.outcome}, score {round(e.score, 9):g}, turns {len(e.turns)}, tokens {int(of_episode_N.sum())}, "
            f"mean advantage {batch.advantages_N[of_episode_N].mean():+.3f}"
        )
    return lines


def token_line(explained: Explained, tokenizer: Tokenizer, n: int) -> str:
    """Return a token's numbers and the text around it."""
    b, before, after = int(explained.batch.episode_N[n]), explained.before_N[n].item(), explained.after_N[n].item()
    e = explained.batch.episodes[b]
    at = place(explained.batch, n)
    left, token, right = (
        shown(tokenizer, e.ids_T[max(0, i) : j])
        for i, j in ((at - AROUND, at), (at, at + 1), (at + 1, at + 1 + AROUND))
    )
    ratio = torch.tensor(after - before).exp().item()
    odds = f"{torch.tensor(before).exp():7.2%} -> {torch.tensor(after).exp():7.2%}"
    head = f"  {after - before:+9.4f} {ratio:8.4f}  {odds}  {explained.batch.advantages_N[n]:+8.3f}"
    return f"{head}  episode {b}, turn {int(explained.batch.turn_N[n]) + 1}: {left}[{token}]{right}"


def text_lines(explained: Explained, tokenizer: Tokenizer, keys: Keys) -> list[str]:
    """Return the texts whose tokens changed most in all, upwards and downwards."""
    ids_N = torch.tensor(
        [i for e in explained.batch.episodes for i, m in zip(e.ids_T, e.action_mask_T, strict=True) if m]
    )
    ids, where_N, counts = ids_N.unique(return_inverse=True, return_counts=True)
    sums, means = (
        torch.zeros(len(ids)).index_add_(0, where_N, x_N.float())
        for x_N in (explained.after_N - explained.before_N, explained.batch.advantages_N)
    )
    order, lines = sums.argsort(descending=True).tolist(), []
    half = max(1, keys.tokens // 2)
    for k in dict.fromkeys([*order[:half], *order[-half:]]):
        mean = means[k] / counts[k]
        lines.append(f"  {sums[k]:+9.4f} {int(counts[k]):6,}  {mean:+8.3f}  [{shown(tokenizer, [int(ids[k])])}]")
    return lines


def place(batch: Batch, n: int) -> int:
    """Return the index in its episode's ids_T of the batch's token n."""
    b = int(batch.episode_N[n])
    rank = n - int((batch.episode_N < b).sum())
    return [i for i, sampled in enumerate(batch.episodes[b].action_mask_T) if sampled][rank]


def shown(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Return text without anything that a terminal would obey."""
    return repr(tokenizer.show(ids))[1:-1]


def main(words: Sequence[str]) -> None:
    given, named = arguments.folders_and_words(words)
    [keys] = program.parse(named, "rl.explain", Keys, about=__doc__)
    with exits.exits_cleanly("rl.explain"):
        if len(given) != 2 or not given[1].isdecimal():
            raise ArgumentError("give a run's folder and an epoch: python -m rl.explain runs/x 3")
        run, epoch = Path(given[0]), int(given[1])
        if not (run / "episodes.jsonl").is_file():
            raise ArgumentError(f"{run}: no episodes.jsonl, so this is not the folder of a run that played episodes")
        last = max((record["epoch"] for record in history.records(run) if "seconds" in record), default=0)
        if not 1 <= epoch <= last:
            raise ArgumentError(f"epoch {epoch}: {run} has epochs 1 to {last}")
        explained, tokenizer, cfg = explain(run, epoch)
        print("\n".join(report(explained, tokenizer, run, epoch, cfg, keys)))


if __name__ == "__main__":
    main(sys.argv[1:])
