"""From episodes to batches: packing, prefix sharing, the pieces of an optimizer step, and the forward pass over them.

A forward pass gets whole episodes without padding and computes shared prefixes once; the hidden state before each
sampled token gives its log-probability and its value.
"""

import random
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import torch

from models import CausalLM
from models.layout import take_rows
from models.logprob import ROWS, head_logits, log_normalizer, logprobs_of_choices, token_logprobs
from rl import ranks
from rl.config.refusals import Refusal
from rl.records import Batch, Episode


def make_batch(episodes: list[Episode]) -> Batch:
    """Return one Batch of all sampled tokens. Episodes without any are left out; raises ValueError if all are."""
    episodes = [e for e in episodes if any(e.action_mask_T)]
    episode, turn, reward, logprob = [], [], [], []
    for b, e in enumerate(episodes):
        for u, t in enumerate(e.turns):
            sampled = [i for i in range(t.start, t.stop) if e.action_mask_T[i]]
            n = len(sampled)
            episode += [b] * n
            turn += [u] * n
            reward += ([0.0] * (n - 1) + [t.reward])[:n]  # none for a turn without a token
            logprob += [e.logprobs_T[i] for i in sampled]
    if not episode:
        raise Refusal("none of the episodes has a sampled token; max_len must leave room behind their prompts")
    episode_N, turn_N, reward_N, old_logprobs_N = map(torch.tensor, (episode, turn, reward, logprob))
    batch = Batch(episodes, episode_N, turn_N, reward_N, old_logprobs_N, 0, 0, 0)
    return _as_step(numbered(batch))


def _as_step(batch: Batch) -> Batch:
    """Return the batch as a whole optimizer step: its own counts are the denominators."""
    tokens, turns = len(batch.episode_N), int(batch.turn_first_N.sum())
    observed = sum(sum(e.observation_mask_T) for e in batch.episodes)
    return replace(
        batch,
        total_tokens=tokens,
        total_turns=turns,
        total_episodes=len(batch.episodes),
        total_observed=observed,
        learned_tokens=tokens,
    )


def select(batch: Batch, indices: list[int]) -> Batch:
    """Return the batch of the given episodes, in that order. The totals stay those of the whole step.

    Every field whose name ends in _N has one entry per sampled token and every one in _B one per episode, so a new
    field of a loss is cut with the others. Raise IndexError for one that has not as many entries as its name says.
    """
    starts = torch.searchsorted(batch.episode_N, torch.arange(len(batch.episodes) + 1)).tolist()
    where_N = torch.tensor([n for i in indices for n in range(starts[i], starts[i + 1])], dtype=torch.long)
    counts = torch.tensor([starts[i + 1] - starts[i] for i in indices], dtype=torch.long)
    cut: dict[str, Any] = {}
    for kind, chosen, size in (("_N", where_N, len(batch.episode_N)), ("_B", indices, len(batch.episodes))):
        for name in (field.name for field in fields(batch) if field.name.endswith(kind)):
            values = getattr(batch, name)
            if values is not None and len(values) != size:
                raise IndexError(f"Batch.{name} has {len(values)} entries, and the batch {size}")
            cut[name] = None if values is None else values[chosen]
    cut["episode_N"] = torch.repeat_interleave(torch.arange(len(indices)), counts)  # counted anew, from 0
    return replace(batch, episodes=[batch.episodes[i] for i in indices], **cut)


def optimizer_steps(batch: Batch, batch_size: int, seed: str | None) -> Iterator[Batch]:
    """Yield the batch of each optimizer step, of batch_size episodes; the last may be smaller.

    seed: of the order of the episodes; None keeps their order.
    """
    order = list(range(len(batch.episodes)))
    if seed is not None:
        random.Random(seed).shuffle(order)
    for start in range(0, len(order), batch_size):
        yield _as_step(select(batch, order[start : start + batch_size]))


def micro_batches(batch: Batch, micro_tokens: int) -> Iterator[Batch]:
    """Yield pieces of whole episodes with at most micro_tokens ids each (or one longer episode), of about equal size.

    Groups are sorted by their longest episode. A group's episodes stay together, because a piece computes a shared
    prompt once; the end of a piece can still split a group. Pieces come in pairs, one from the long and one from the
    short end, so that neighbours cost the same on two ranks.
    """
    groups, lengths = [e.group for e in batch.episodes], [len(e.ids_T) for e in batch.episodes]
    longest: dict[int, int] = {}
    for group, length in zip(groups, lengths, strict=True):
        longest[group] = max(length, longest.get(group, 0))
    # Of equally long groups the number decides, else their episodes would mix and their prompts be computed twice.
    order = sorted(range(len(groups)), key=lambda i: (-longest[groups[i]], groups[i]))
    pairs = -(-sum(lengths) // (2 * micro_tokens))
    pieces = _in_pairs(order, lengths, micro_tokens, pairs)
    # Where the limit ends pieces early, small ones are left at the end; more pairs spread the tokens evenly again.
    while len(pieces) > 2 * pairs:
        pairs = max(pairs + 1, len(pieces) // 2)
        pieces = _in_pairs(order, lengths, micro_tokens, pairs)
    for piece in pieces:
        yield select(batch, piece)


def _in_pairs(order: list[int], lengths: list[int], limit: int, pairs: int) -> list[list[int]]:
    """Cut a list of episodes, longest first, into that many pairs of pieces of about equal tokens. A piece ends early
    at `limit` tokens, which may make more pieces. If all fit, they are one."""
    pieces: list[list[int]] = []
    rest, total, taken = order[:], sum(lengths), 0  # taken: tokens of the pieces so far
    while rest:
        piece: list[int] = []
        before, end = taken, -1 if len(pieces) % 2 else 0
        # What this and all earlier pieces would hold if all were equal; a single piece holds everything.
        target = total * (len(pieces) + 1) / (2 * pairs) if total > limit else total
        while rest:
            length = lengths[rest[end]]
            fits = taken + length <= before + limit
            near_target = taken + length / 2 <= target
            if piece and not (fits and near_target):
                break
            piece.append(rest.pop(end))
            taken += length
        pieces.append(piece)
    return pieces


def drop_zero_advantage(batch: Batch) -> Batch:
    """Return the batch without episodes whose advantages are all zero, such as those of a group with equal scores.

    The denominators of losses stay. Only for losses without a gradient where the advantage is 0. Returns the whole
    batch if no episode would be left.
    """
    nonzero_B = torch.zeros(len(batch.episodes), dtype=torch.bool)
    nonzero_B[batch.episode_N[batch.advantages_N != 0]] = True
    if nonzero_B.all() or not nonzero_B.any():
        return batch
    batch = select(batch, nonzero_B.nonzero()[:, 0].tolist())
    return replace(batch, learned_tokens=len(batch.episode_N))


def whiten_rewards(batch: Batch) -> Batch:
    """Return the batch with its rewards divided by the standard deviation of its scores.

    The rewards are not shifted: shifting each turn's reward would favour long episodes, or short ones.
    """
    scores_B = batch.scores_B
    if bool((scores_B == scores_B[0]).all()):  # exactly equal: the deviation would be rounding
        return batch
    return replace(batch, reward_N=batch.reward_N / scores_B.std())


def forward(
    batch: Batch, model: CausalLM, temperature: float, critic: torch.nn.Module | None = None, entropy_grad: bool = False
) -> Batch:
    """Return the batch with logprobs_N, entropy_N and, given a critic, values_N under the current weights.

    If its loss reads observations, also with observation_nll_B, at temperature 1; if it has choices_N, with
    choice_logprobs_N.
    """
    hidden, _, targets = _hidden_of_prefixes(batch, model)
    hidden_ND, targets_N = hidden[0], targets[0]
    logprobs_N, entropy_N = token_logprobs(hidden_ND, model.lm_head.weight, targets_N, temperature, entropy_grad)
    if batch.reads_observations:
        batch = replace(batch, observation_nll_B=_observation_nll(batch, model, hidden[1], targets[1]))
    if batch.choices_N is not None:
        choices = batch.choices_N.to(hidden_ND.device)
        choice_logprobs_N = logprobs_of_choices(
            hidden_ND, model.lm_head.weight, targets_N, logprobs_N, choices, temperature
        )
        batch = replace(batch, choice_logprobs_N=choice_logprobs_N.cpu())
    # Detached, because the critic's loss must not train the policy.
    values_N = None if critic is None else critic(hidden_ND.detach()).cpu()
    return replace(batch, logprobs_N=logprobs_N.cpu(), entropy_N=entropy_N.cpu(), values_N=values_N)


def _observation_nll(
    batch: Batch, model: CausalLM, hidden_observed: torch.Tensor, targets_observed: torch.Tensor
) -> torch.Tensor:
    """Return -log p of each episode's observation tokens, summed, [B]."""
    nll_B = torch.zeros(len(batch.episodes), dtype=torch.promote_types(hidden_observed.dtype, torch.float32))
    if not len(targets_observed):
        return nll_B
    counts = torch.tensor([sum(e.observation_mask_T) for e in batch.episodes])
    logprobs_observed, _ = token_logprobs(hidden_observed, model.lm_head.weight, targets_observed)
    return nll_B.index_add(0, torch.arange(len(counts)).repeat_interleave(counts), -logprobs_observed.cpu())


@torch.no_grad()
def policy_logprobs(batch: Batch, model: CausalLM, temperature: float, micro_tokens: int) -> torch.Tensor:
    """Return the log-probability [N] of each sampled token under the model's active adapter. All ranks must call it."""
    logprobs_N = torch.zeros(len(batch.episode_N))
    for piece in ranks.own(micro_batches(numbered(batch), micro_tokens)):
        logprobs_N[piece.place_N] = forward(piece, model, temperature).logprobs_N.float()
    ranks.fill(logprobs_N)
    return logprobs_N


@torch.no_grad()
def likeliest(
    batch: Batch, model: CausalLM, temperature: float, micro_tokens: int, count: int, words: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (logprobs_N of the sampled tokens, ids [N, count], their log-probabilities [N, count]).

    The ids are the likeliest of the vocabulary's first `words`. All ranks must call it.
    """
    N = len(batch.episode_N)
    logprobs_N, ids, values = torch.zeros(N), torch.zeros(N, count, dtype=torch.long), torch.zeros(N, count)
    for piece in ranks.own(micro_batches(numbered(batch), micro_tokens)):
        hidden, _, targets = _hidden_of_prefixes(piece, model)
        parts = zip(*(x.split(ROWS) for x in (hidden[0], targets[0], piece.place_N)), strict=True)
        for rows_ND, targets_N, place_N in parts:
            logits_NV = head_logits(rows_ND, model.lm_head.weight, temperature)
            normalizer = log_normalizer(logits_NV)
            top_logits, top_ids = logits_NV[:, :words].topk(count)
            logprobs_N[place_N] = (logits_NV.gather(1, targets_N[:, None]) - normalizer)[:, 0].float().cpu()
            ids[place_N], values[place_N] = top_ids.cpu(), (top_logits - normalizer).float().cpu()
    ranks.fill(logprobs_N, ids, values)
    return logprobs_N, ids, values


@torch.no_grad()
def add_values(batch: Batch, model: CausalLM, critic: torch.nn.Module, micro_tokens: int) -> Batch:
    """Return the batch with old_values_N and last_values_B: the critic's values before the update.

    last_values_B is 0 where nothing follows the last turn; else the critic's value of the last state.
    Hidden states that sampling kept save the pass over the model, which would give the same bits; then they are freed.
    """
    old_values_N, last_values_B = torch.zeros(len(batch.episode_N)), torch.zeros(len(batch.episodes))
    for piece in ranks.own(micro_batches(numbered(batch), micro_tokens)):
        # Sampling kept no hidden state behind an observation that follows the last turn.
        goes_on_B = torch.tensor([len(e.ids_T) > e.turns[-1].stop for e in piece.episodes])
        if not goes_on_B.any() and all(e.hidden for e in piece.episodes):
            hidden_ND = torch.cat([hidden for e in piece.episodes for hidden in e.hidden])
        else:
            hidden, last_BD, _ = _hidden_of_prefixes(piece, model)
            hidden_ND = hidden[0]
            place_B = batch.episode_N[piece.place_N].unique_consecutive()
            last_values_B[place_B] = torch.where(goes_on_B, critic(last_BD).cpu(), 0.0)
        old_values_N[piece.place_N] = critic(hidden_ND).cpu()
    for episode in batch.episodes:
        episode.hidden = []
    ranks.fill(old_values_N, last_values_B)
    return replace(batch, old_values_N=old_values_N, last_values_B=last_values_B)


def numbered(batch: Batch) -> Batch:
    """Return the batch with its own numbering in place_N, by which the results of its pieces are put together."""
    return replace(batch, place_N=torch.arange(len(batch.episode_N)))


def _hidden_of_prefixes(batch: Batch, model: CausalLM) -> tuple[list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
    """Return ([hidden_ND before each sampled token], last_BD of each episode, [targets_N]) from one forward pass.

    If the batch reads observations, each list also has their hidden states or their tokens.
    Each distinct prefix of ids is one row: the prompt that a group's episodes share is computed once, and so is what
    the samples of an episode share. N counts sampled tokens, as everywhere in rl/; the model's own N counts the rows.
    """
    device = model.lm_head.weight.device
    # A trie: the key has the row before the id, so that ids share a row only if all ids before them are equal too.
    prefixes: dict[tuple[int, int], int] = {}  # {(row of the prefix before, last id): row}
    row_of_token, lengths = [], []  # of the samples' tokens laid end to end; tokens of each sample
    for e in batch.episodes:
        own: list[int] = []  # the rows of a sample
        for kept, start, stop in e.samples:
            own = own[:kept]
            row = own[-1] if own else -1
            for token in e.ids_T[start:stop]:
                row = prefixes.setdefault((row, token), len(prefixes))
                own.append(row)
            row_of_token += own
            lengths.append(len(own))
    lengths, row_of_token = torch.tensor(lengths), torch.tensor(row_of_token)
    sequences_ST = torch.full((len(lengths), int(lengths.max())), -1)
    sequences_ST[torch.arange(sequences_ST.shape[1]) < lengths[:, None]] = row_of_token
    sampled = _of_samples(batch.episodes, [e.action_mask_T for e in batch.episodes])
    predicted = [sampled.nonzero()[:, 0]]  # places of the tokens that are predicted
    if batch.reads_observations:
        observed = _of_samples(batch.episodes, [e.observation_mask_T for e in batch.episodes])
        predicted.append(observed.nonzero()[:, 0])
    ids = torch.tensor([token for _, token in prefixes], device=device)
    targets = [ids[row_of_token[at].to(device)] for at in predicted]
    # A critic bootstraps from the last rows. A row that predicts the tokens of several episodes is asked for once.
    ends_B = lengths.cumsum(0)[torch.tensor([len(e.samples) for e in batch.episodes]).cumsum(0) - 1] - 1
    rows = [row_of_token[at].to(device) for at in (ends_B, *(at - 1 for at in predicted))]
    wanted, place = torch.cat(rows).unique(return_inverse=True)
    hidden = model(ids[None], sequences_ST=sequences_ST.to(device), wanted=wanted)
    last, *before = (take_rows(hidden, part) for part in place.split([len(row) for row in rows]))
    return before, last, targets


def _of_samples(episodes: list[Episode], masks: list[list[int]]) -> torch.Tensor:
    """Return the episodes' masks (one mask_T each) for their samples laid end to end, bool.

    False on the ids that a sample has in common with the one before it: they are predicted there.
    """
    laid_out = []
    for e, mask_T in zip(episodes, masks, strict=True):
        for kept, start, stop in e.samples:
            laid_out += [0] * kept + mask_T[start:stop]
    return torch.tensor(laid_out, dtype=torch.bool)
