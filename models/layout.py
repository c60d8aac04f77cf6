"""How the rows of a batch form sequences: padding, packing and shared prefixes.

The model computes rows: the tokens of a batch laid end to end, x_ND. Only attention needs sequences, so only a `Layout`
knows padding. S is the number of sequences: those of the batch, or those that `sequences_ST` names.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange

from models.attention import Packed
from models.kernels import kernels
from models.linear import ROW_MULTIPLE
from models.rope import Rope


@dataclass
class Layout:
    """Which rows are the tokens of which sequence; made once per forward, read by every attention layer."""

    last_key_ST: torch.Tensor  # int64: the last key that each query sees; -1 is padding
    rotary: dict[Rope, tuple[torch.Tensor, torch.Tensor]]  # cos_NE, sin_NE of each row's position
    N: int  # rows
    to_sequences: torch.Tensor | None  # int64 [S*T]: the row of each token; None: rows are in order already
    to_rows: torch.Tensor | None  # int64 [N]: the inverse; for a row of several sequences the first token
    exact: bool = False  # as in models/attention.py
    packed: Packed | None = None  # attention over rows, instead of over padded sequences

    def sequences(self, x_NHE: torch.Tensor) -> torch.Tensor:
        """Return rows [N, H, E] as padded sequences [S, H, T, E]."""
        S, T = self.last_key_ST.shape
        rows = x_NHE[: S * T] if self.to_sequences is None else x_NHE.index_select(0, self.to_sequences)
        return rearrange(rows, "(s t) h e -> s h t e", s=S)

    def rows(self, x_SHTE: torch.Tensor) -> torch.Tensor:
        """Return padded sequences [S, H, T, E] as rows [N, H*E]."""
        x = rearrange(x_SHTE, "s h t e -> (s t) (h e)")
        if self.to_rows is not None:
            return x.index_select(0, self.to_rows)
        return F.pad(x, (0, 0, 0, self.N - len(x)))

    def only(self, wanted: torch.Tensor) -> "Layout":
        """Return the layout in which only the wanted rows are queries; keys and values stay those of this layout. A row
        that several sequences share is a query of the first one."""
        S, T = self.last_key_ST.shape
        place = wanted if self.to_rows is None else self.to_rows[wanted]
        order = place.argsort()
        sequence = place[order] // T
        counts_S = sequence.bincount(minlength=S)
        count, longest = torch.arange(len(wanted), device=wanted.device), int(counts_S.max())
        to_rows = torch.empty_like(wanted)
        to_rows[order] = sequence * longest + count - (counts_S.cumsum(0) - counts_S)[sequence]
        to_sequences, last_key = wanted.new_zeros(S * longest), wanted.new_full((S * longest,), -1)
        to_sequences[to_rows], last_key[to_rows] = count, self.last_key_ST.flatten()[place]
        rotary = {rope: (cos_NE[wanted], sin_NE[wanted]) for rope, (cos_NE, sin_NE) in self.rotary.items()}
        return Layout(last_key.view(S, longest), rotary, len(wanted), to_sequences, to_rows, self.exact)


def make_layout(
    ids_BT: torch.Tensor,
    positions_BT: torch.Tensor | None,
    sequences_ST: torch.Tensor | None,
    cached: bool,
    rotary_tables: Callable,
    exact: bool,
    like: torch.Tensor,
    head_dim: int,
) -> Layout:
    """Return the layout of a batch; the first four arguments are those of CausalLM.forward.

    rotary_tables: CausalLM's method. like: a tensor of the model's dtype.
    """
    device, N = ids_BT.device, -(-ids_BT.numel() // ROW_MULTIPLE) * ROW_MULTIPLE
    to_sequences = to_rows = own_ST = packed = None
    if sequences_ST is None:
        last_key_ST = index_BT = torch.arange(ids_BT.shape[1], device=device).expand_as(ids_BT)
    else:
        longest, row_of_token = sequences_ST.shape[1], sequences_ST.flatten()
        last_key_ST = torch.arange(longest, device=device).expand_as(sequences_ST)
        to_sequences, real = row_of_token.clamp(min=0), (row_of_token >= 0).nonzero()[:, 0]
        to_rows = torch.zeros(N, dtype=torch.long, device=device)
        to_rows.scatter_reduce_(0, row_of_token[real], real, "amin", include_self=False)
        index_BT = (to_rows[: ids_BT.numel()] % longest).view_as(ids_BT)
        is_first = to_rows[to_sequences] == torch.arange(len(row_of_token), device=device)
        own_ST = (sequences_ST >= 0) & is_first.view_as(sequences_ST)  # the sequence that computes a shared row
    if positions_BT is None:
        positions_BT = index_BT
    elif cached and to_sequences is not None:
        last_key_ST = positions_BT.flatten()[to_sequences].view_as(sequences_ST)
    elif cached:
        last_key_ST = positions_BT
    if to_sequences is not None:
        last_key_ST = last_key_ST.where(own_ST, -1)
    if not (cached or exact):
        packed = kernels.pack(ids_BT, sequences_ST, own_ST, like, head_dim)
    positions_N = F.pad(positions_BT.flatten(), (0, N - ids_BT.numel()))
    tables = rotary_tables(int(positions_BT.max()) + 1, device)
    rotary = {rope: (cos[positions_N], sin[positions_N]) for rope, (cos, sin) in tables.items()}
    return Layout(last_key_ST, rotary, N, to_sequences, to_rows, exact, packed)


def segments_to_sequences(segments_BT: torch.Tensor) -> torch.Tensor:
    """Return sequences_ST of packed or padded rows: each run of one segment id >= 0 within a row is a sequence.

    Raises ValueError if every token is padding.
    """
    B, T = segments_BT.shape
    begins_BT = segments_BT != F.pad(segments_BT, (1, 0), value=-2)[:, :T]
    run = begins_BT.flatten().cumsum(0) - 1  # the run that each token is in
    first_token = begins_BT.flatten().nonzero()[:, 0]  # of each run
    real = segments_BT.flatten() >= 0
    if not bool(real.any()):
        raise ValueError("every token of the batch is padding")
    row = torch.arange(B * T, device=segments_BT.device)
    index = row - first_token[run]
    sequence = (real[first_token].cumsum(0) - 1)[run]  # runs of padding are not counted
    sequences_ST = row.new_full((int(sequence.max()) + 1, int(index[real].max()) + 1), -1)
    sequences_ST[sequence[real], index[real]] = row[real]
    return sequences_ST
