"""Attention without padding or a mask in training on CUDA, by torch's `varlen_attn`: the plain code up to rounding."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass
class PackedRows:
    """Sequences laid end to end for `varlen_attn`. Each row is a query once, in the sequence that owns it, and a key in
    every sequence that contains it; a sequence's own rows are its last."""

    queries: torch.Tensor | slice  # rows, int64
    keys: torch.Tensor | slice
    query_starts_S: torch.Tensor  # int32 [S + 1]: where each sequence begins in `queries`, and where the last one ends
    key_starts_S: torch.Tensor
    most_queries: int  # of one sequence
    most_keys: int

    def attend(self, q_NHE, k_NKE, v_NKE, window: int | None = None) -> torch.Tensor:
        """Return out_NHE: each packed row sees itself and the rows before it in its sequence, `window` of them at most.
        Other rows get 0."""
        pick = lambda x, rows: x[rows] if isinstance(rows, slice) else x.index_select(0, rows)  # noqa: E731
        out = load_varlen()(
            *(pick(q_NHE, self.queries), pick(k_NKE, self.keys), pick(v_NKE, self.keys)),
            *(self.query_starts_S, self.key_starts_S, self.most_queries, self.most_keys),
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=True,
        )
        if isinstance(self.queries, slice):
            return F.pad(out, (0, 0, 0, 0, 0, len(q_NHE) - len(out)))
        return torch.zeros_like(q_NHE).index_copy(0, self.queries, out)


def pack(ids_BT, sequences_ST, own_ST, cos_NE: torch.Tensor) -> Callable | None:
    """Implement the hook of models/kernels.py. Without sequences_ST each row of ids_BT is one sequence."""
    if not available(ids_BT.device, cos_NE.dtype, cos_NE.shape[-1]):
        return None
    if sequences_ST is None:
        sequences_ST = torch.arange(ids_BT.numel(), device=ids_BT.device).view_as(ids_BT)
        own_ST = sequences_ST >= 0
    packed = pack_rows(sequences_ST, own_ST)
    return packed and packed.attend


def pack_rows(sequences_ST: torch.Tensor, own_ST: torch.Tensor) -> PackedRows | None:
    """Pack ragged sequences. sequences_ST holds rows, padded with -1; own_ST marks each row once, in the sequence that
    owns it. Return None if a sequence's own rows are not its last ones."""
    real_ST = sequences_ST >= 0
    if bool((own_ST[:, :-1] & real_ST[:, 1:] & ~own_ST[:, 1:]).any()):
        return None
    counts = own_ST.sum(1), real_ST.sum(1)
    rows = (_as_slice(sequences_ST[mask_ST]) for mask_ST in (own_ST, real_ST))
    starts = (F.pad(count_S.cumsum(0), (1, 0)).int() for count_S in counts)
    return PackedRows(*rows, *starts, *(int(count_S.max()) for count_S in counts))


def _as_slice(rows: torch.Tensor) -> torch.Tensor | slice:
    """Return a slice if the rows are 0, 1, ..., in order."""
    return slice(len(rows)) if torch.equal(rows, torch.arange(len(rows), device=rows.device)) else rows


def load_varlen() -> Callable | None:
    """Return torch's varlen_attn, None before torch 2.10. The import takes seconds, so only its users pay for it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn


def available(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether `varlen_attn` takes such heads on this device."""
    if device.type != "cuda" or load_varlen() is None:
        return False
    takes = {"window_size", "enable_gqa"} <= inspect.signature(load_varlen()).parameters.keys()
    half, fits = dtype in (torch.bfloat16, torch.float16), head_dim % 8 == 0 and head_dim <= 256
    return takes and half and fits and torch.cuda.get_device_capability(device) >= (8, 0)
