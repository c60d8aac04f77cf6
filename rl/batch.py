"""From episodes to what a model computes on, and back: packing, and the pieces of an optimizer step.

The only place that knows how tokens are laid out. A forward gets whole episodes, without padding and with what they
share only once; the hidden state before each sampled token is what its log-probability and its value come from.
"""

import random
from collections.abc import Iterator
from dataclasses import replace

import torch

from models import CausalLM
from models.logprob import token_logprobs
from rl.records import Batch, Episode

PER_TOKEN = ("turn_N", "reward_N", "old_logprobs_N", "old_values_N", "ref_logprobs_N", "advantages_N", "returns_N")


def make_batch(episodes: list[Episode]) -> Batch:
    """One Batch of all sampled tokens of the episodes; those without any are left out. Raises ValueError if all are."""
    episodes = [e for e in episodes if any(e.action_mask_T)]
    episode, turn, reward, logprob = [], [], [], []
    for b, e in enumerate(episodes):
        for u, t in enumerate(e.turns):
            n = t.stop - t.start
            episode += [b] * n
            turn += [u] * n
            reward += [0.0] * (n - 1) + [t.reward]
            logprob += e.logprobs_T[t.start : t.stop]
    if not episode:
        raise ValueError("none of the episodes has a sampled token; max_len must leave room behind their prompts")
    batch = Batch(
        episodes=episodes,
        episode_N=torch.tensor(episode),
        turn_N=torch.tensor(turn),
        reward_N=torch.tensor(reward),
        old_logprobs_N=torch.tensor(logprob),
        total_tokens=0,
        total_turns=0,
        total_episodes=0,
    )
    return _as_step(batch)


def _as_step(batch: Batch) -> Batch:
    """The batch as a whole optimizer step: its own counts are the denominators."""
    return replace(
        batch,
        total_tokens=len(batch.episode_N),
        total_turns=int(batch.turn_first_N.sum()),
        total_episodes=len(batch.episodes),
    )


def select(batch: Batch, indices: list[int]) -> Batch:
    """The given episodes of a batch, in that order. The totals stay those of the whole."""
    starts = torch.searchsorted(batch.episode_N, torch.arange(len(batch.episodes) + 1)).tolist()
    where_N = torch.tensor([n for i in indices for n in range(starts[i], starts[i + 1])], dtype=torch.long)
    counts = torch.tensor([starts[i + 1] - starts[i] for i in indices], dtype=torch.long)
    tensors = {name: getattr(batch, name) for name in PER_TOKEN}
    return replace(
        batch,
        episodes=[batch.episodes[i] for i in indices],
        episode_N=torch.repeat_interleave(torch.arange(len(indices)), counts),
        last_values_B=None if batch.last_values_B is None else batch.last_values_B[indices],
        **{name: None if x is None else x[where_N] for name, x in tensors.items()},
    )


def optimizer_steps(batch: Batch, batch_size: int, seed: str | None) -> Iterator[Batch]:
    """The batch in pieces of batch_size episodes, one per optimizer step, the last perhaps smaller; shuffled by seed,
    or as they stand if that is None.
    """
    order = list(range(len(batch.episodes)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    for start in range(0, len(order), batch_size):
        yield _as_step(select(batch, order[start : start + batch_size]))


def drop_zero_advantage(batch: Batch) -> Batch:
    """The batch without the episodes whose advantages are all zero, such as those of a group with equal scores; the
    denominators of losses stay. Only where advantages are all that tokens learn from. Whole if none would be left.
    """
    matters_B = torch.zeros(len(batch.episodes), dtype=torch.bool)
    matters_B[batch.episode_N[batch.advantages_N != 0]] = True
    if matters_B.all() or not matters_B.any():
        return batch
    batch = select(batch, matters_B.nonzero()[:, 0].tolist())
    return replace(batch, learned_tokens=len(batch.episode_N))


def micro_batches(batch: Batch, micro_tokens: int) -> Iterator[Batch]:
    """The batch in pieces of whole episodes of at most micro_tokens ids each (or one longer episode), shortest first,
    the episodes of a group side by side.
    """
    longest: dict[int, int] = {}
    for e in batch.episodes:
        longest[e.group] = max(len(e.ids_T), longest.get(e.group, 0))
    order = sorted(
        range(len(batch.episodes)), key=lambda i: (longest[batch.episodes[i].group], batch.episodes[i].group)
    )
    piece, size = [], 0
    for i in order:
        length = len(batch.episodes[i].ids_T)
        if piece and size + length > micro_tokens:
            yield select(batch, piece)
            piece, size = [], 0
        piece.append(i)
        size += length
    if piece:
        yield select(batch, piece)


def forward(
    batch: Batch, model: CausalLM, temperature: float, critic: torch.nn.Module | None = None, entropy_grad: bool = False
) -> Batch:
    """The batch with logprobs_N, entropy_N and, given a critic, values_N of the model as it is now."""
    hidden_ND, _, targets_N = _hidden(batch, model)
    logprobs_N, entropy_N = token_logprobs(hidden_ND, model.lm_head.weight, targets_N, temperature, entropy_grad)
    values_N = None if critic is None else critic(hidden_ND.detach()).cpu()
    return replace(batch, logprobs_N=logprobs_N.cpu(), entropy_N=entropy_N.cpu(), values_N=values_N)


@torch.no_grad()
def add_values(batch: Batch, model: CausalLM, critic: torch.nn.Module, micro_tokens: int) -> Batch:
    """The batch with old_values_N and last_values_B: the critic's values before the update.

    An episode that terminated has the last value 0; one that a limit cut off, the value of its last state.
    """
    old_values_N = torch.zeros(len(batch.episode_N))
    last_values_B = torch.zeros(len(batch.episodes))
    index = replace(
        batch, old_values_N=torch.arange(len(batch.episode_N)), last_values_B=torch.arange(len(batch.episodes))
    )
    for piece in micro_batches(index, micro_tokens):
        hidden_ND, last_BD, _ = _hidden(piece, model)
        old_values_N[piece.old_values_N] = critic(hidden_ND).cpu()
        terminated_B = torch.tensor([e.terminated for e in piece.episodes])
        last_values_B[piece.last_values_B] = torch.where(terminated_B, 0.0, critic(last_BD).cpu())
    return replace(batch, old_values_N=old_values_N, last_values_B=last_values_B)


@torch.no_grad()
def add_reference(batch: Batch, model: CausalLM, temperature: float, micro_tokens: int) -> Batch:
    """The batch with ref_logprobs_N: those of the model as it is now (call it with the reference adapter active)."""
    ref_logprobs_N = torch.zeros(len(batch.episode_N))
    index = replace(batch, ref_logprobs_N=torch.arange(len(batch.episode_N)))
    for piece in micro_batches(index, micro_tokens):
        ref_logprobs_N[piece.ref_logprobs_N] = forward(piece, model, temperature).logprobs_N.float()
    return replace(batch, ref_logprobs_N=ref_logprobs_N)


def _hidden(batch: Batch, model: CausalLM) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(hidden_ND before each sampled token, last_BD of each episode, targets_N): one forward.

    What two episodes begin with, a system prompt or the whole prompt of a group, is computed once: each distinct prefix
    is one row.
    """
    device = model.lm_head.weight.device
    rows, prefixes = [], {}  # a prefix is the row of the one before it and its last id
    for e in batch.episodes:
        row = -1
        for token in e.ids_T:
            row = prefixes.setdefault((row, token), len(prefixes))
            rows.append(row)
    lengths = torch.tensor([len(e.ids_T) for e in batch.episodes])
    rows_R = torch.tensor(rows)
    sequences_ST = torch.full((len(lengths), int(lengths.max())), -1)
    sequences_ST[torch.arange(sequences_ST.shape[1]) < lengths[:, None]] = rows_R
    mask_R = torch.tensor([m for e in batch.episodes for m in e.action_mask_T], dtype=torch.bool)
    where_N = mask_R.nonzero()[:, 0]
    ids_P = torch.tensor([token for _, token in prefixes], device=device)
    before_N, last_B, taken_N = (rows_R[i].to(device) for i in (where_N - 1, lengths.cumsum(0) - 1, where_N))
    wanted, place = torch.cat((before_N, last_B)).unique(return_inverse=True)
    hidden_WD = model(ids_P[None], sequences_ST=sequences_ST.to(device), wanted=wanted)
    before, last = place.split((len(before_N), len(last_B)))
    return hidden_WD[before], hidden_WD[last], ids_P[taken_N]
