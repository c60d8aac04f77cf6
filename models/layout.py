"""How the rows of a batch form sequences: padding, packing and shared prefixes.

The S sequences are the rows of ids_BT, or what `sequences_ST` lists.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import rearrange
from torch.nn.utils.rnn import pad_sequence

from models.hooks import hooks
from models.linear import ROW_MULTIPLE
from models.refusal import Refusal
from models.rope import Rope


@dataclass
class Layout:
    """Which rows are the tokens of which sequence; made once per forward, read by every attention layer."""

    last_key_ST: torch.Tensor  # int64: the last key that each query sees; -1 is padding
    rotary: dict[Rope, tuple[torch.Tensor, torch.Tensor]]  # cos_NE, sin_NE of each row's position
    N: int  # rows
    to_sequences: torch.Tensor | None  # int64 [S*T]: the row of each token; None: rows are in order already
    to_rows: torch.Tensor | None  # int64 [N]: for each row, the index in the flattened [S, T] where it first occurs
    exact: bool = False  # bitwise on CUDA: rows are read as x[index], whose gradient is added up in one order
    packed_attend: Callable | None = None  # (q_NHE, k_NKE, v_NKE, window) -> out_NHE, from models/cuda

    def sequences(self, x_NHE: torch.Tensor) -> torch.Tensor:
        """Return rows [N, H, E] as padded sequences [S, H, T, E]."""
        S, T = self.last_key_ST.shape
        if self.to_sequences is None:
            rows = x_NHE[: S * T]
        else:
            rows = x_NHE[self.to_sequences] if self.exact else x_NHE.index_select(0, self.to_sequences)
        return rearrange(rows, "(s t) h e -> s h t e", s=S)

    def rows(self, x_SHTE: torch.Tensor) -> torch.Tensor:
        """Return padded sequences [S, H, T, E] as rows [N, H*E]."""
        x = rearrange(x_SHTE, "s h t e -> (s t) (h e)")
        if self.to_rows is not None:
            return x[self.to_rows] if self.exact else x.index_select(0, self.to_rows)
        return F.pad(x, (0, 0, 0, self.N - len(x)))

    def with_queries(self, wanted: torch.Tensor) -> "Layout":
        """Return the layout whose queries are the rows `wanted`; keys and values are still those of all rows.

        A row that several sequences share is a query of the first of them.
        """
        S, T = self.last_key_ST.shape
        place = wanted if self.to_rows is None else self.to_rows[wanted]  # in the flattened [S, T]
        # Sorted by place, the queries of a sequence are adjacent: the i-th of them moves to s * longest + i.
        order, numbers = place.argsort(), torch.arange(len(wanted), device=wanted.device)
        sequence = place[order] // T
        counts_S = sequence.bincount(minlength=S)
        starts_S, longest = counts_S.cumsum(0) - counts_S, int(counts_S.max())
        to_rows = torch.empty_like(wanted)
        to_rows[order] = sequence * longest + numbers - starts_S[sequence]
        to_sequences, last_key = wanted.new_zeros(S * longest), wanted.new_full((S * longest,), -1)
        to_sequences[to_rows], last_key[to_rows] = numbers, self.last_key_ST.flatten()[place]
        rotary = {rope: (cos_NE[wanted], sin_NE[wanted]) for rope, (cos_NE, sin_NE) in self.rotary.items()}
        return Layout(last_key.view(S, longest), rotary, len(wanted), to_sequences, to_rows, self.exact)


def take_rows(x_ND: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return x_ND[rows], where a row may occur several times.

    Its gradient is added up in one order, so that equal updates have equal bits. On a CPU with several threads torch
    adds that of x[rows] with atomics, and that of index_select in order; on CUDA it is the other way round.
    """
    return x_ND[rows] if x_ND.is_cuda else x_ND.index_select(0, rows)


def make_layout(ids_BT, positions_BT, sequences_ST, cached: bool, exact: bool, rotary_tables: Callable) -> Layout:
    """Return the layout of a batch from the arguments of CausalLM.forward and its method `rotary_tables`.

    An example: two episodes have the prompt 7 8 in common and go on with 5 and with 6. Each id is a row once,

        ids_BT = [[7, 8, 5, 6]]     sequences_ST = [[0, 1, 2],      rows of the first episode
                                                    [0, 1, 3]]      rows of the second

    and so, of the padded N = 16 rows,

        to_sequences = [0, 1, 2, 0, 1, 3]     the row of each token of [S, T], flattened
        to_rows      = [0, 1, 2, 5, 0, ...]   where in it a row occurs first; row 3 is its index 5
        positions    = [0, 1, 2, 2, 0, ...]   of the rows in their sequences, for the rotary embedding
        last_key_ST  = [[ 0,  1, 2],          the mask: a query sees the keys of its own sequence up to this one
                        [-1, -1, 2]]          the prompt's queries are the first episode's; its keys are both's
    """
    device, N = ids_BT.device, -(-ids_BT.numel() // ROW_MULTIPLE) * ROW_MULTIPLE
    to_sequences = to_rows = own_ST = packed_attend = None
    if sequences_ST is None:
        index_BT = torch.arange(ids_BT.shape[1], device=device).expand_as(ids_BT)  # of each token in its sequence
    else:
        row_of_token = sequences_ST.flatten()
        to_sequences, real = row_of_token.clamp(min=0), (row_of_token >= 0).nonzero()[:, 0]
        # A shared row is computed by the first sequence that has it: the least of its indices in [S, T].
        to_rows = torch.zeros(N, dtype=torch.long, device=device)
        to_rows.scatter_reduce_(0, row_of_token[real], real, "amin", include_self=False)
        index_BT = (to_rows[: ids_BT.numel()] % sequences_ST.shape[1]).view_as(ids_BT)
        is_first = to_rows[to_sequences] == torch.arange(len(row_of_token), device=device)
        own_ST = (sequences_ST >= 0) & is_first.view_as(sequences_ST)  # the sequence that computes a shared row
    positions_BT = index_BT if positions_BT is None else positions_BT
    # Cached keys come before the tokens of this forward, so there a query's last key is at its position.
    last_key_ST = positions_BT if cached else index_BT
    if own_ST is not None:
        last_key_ST = last_key_ST.flatten()[to_sequences].view_as(sequences_ST).where(own_ST, -1)
    positions_N = F.pad(positions_BT.flatten(), (0, N - ids_BT.numel()))
    tables = rotary_tables(int(positions_BT.max()) + 1, device)
    rotary = {rope: (cos[positions_N], sin[positions_N]) for rope, (cos, sin) in tables.items()}
    if not (cached or exact):
        packed_attend = hooks(ids_BT).pack(ids_BT, sequences_ST, own_ST, next(iter(rotary.values()))[0])
    return Layout(last_key_ST, rotary, N, to_sequences, to_rows, exact, packed_attend)


def segments_to_sequences(segments_BT: torch.Tensor) -> torch.Tensor:
    """Return sequences_ST of packed or padded rows: each run of one segment id >= 0 within a row is a sequence.

    Raises ValueError if every token is padding.
    """
    begins_BT = segments_BT != F.pad(segments_BT, (1, 0), value=-2)[:, :-1]
    real = (segments_BT.flatten() >= 0).nonzero()[:, 0]
    if len(real) == 0:
        raise Refusal("every token of the batch is padding")
    run = begins_BT.flatten().cumsum(0)[real]  # the run that each token is in
    lengths = run.unique_consecutive(return_counts=True)[1]
    return pad_sequence(real.split(lengths.tolist()), batch_first=True, padding_value=-1)
