"""Replace our exact attention on a CPU by torch's scaled_dot_product_attention, to measure what exactness costs.

`everywhere` replaces it in sampling and training. Keys and values have the layout that torch's function reads, queries
in their own order have no mask, and where ours has a stacked step (models/cpu/step.py) this has one too.
`in_training` samples with our attention and trains with torch's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import torch
import torch.nn.functional as F

import models.decoder
import models.engine
from models.attention import attend as exact_attend
from models.attention import masked
from models.cpu.step import CPUStep
from models.decoder import CausalLM
from models.hooks import hooks, nothing_faster

GROWTH = 64  # tokens that a cache has room for at first; the room doubles


def attend(q_BHTE, k_BKEL, v_BKLE, positions_BT, window=None, exact=False) -> torch.Tensor:
    """Return models/attention.py's `attend`, computed by torch from keys and values that are not in blocks."""
    (B, H, T, E), (K, L), k_BKLE = q_BHTE.shape, v_BKLE.shape[1:3], k_BKEL.mT
    own_BT = (positions_BT == torch.arange(T)) | (positions_BT < 0)
    if window is None and T == L and bool(own_BT.all()):
        return F.scaled_dot_product_attention(q_BHTE, k_BKLE, v_BKLE, is_causal=True, enable_gqa=True)
    mask = ~masked(torch.arange(L), positions_BT.clamp(min=0), window)[:, None]  # [B, 1, T, L]
    if T != 1:
        return F.scaled_dot_product_attention(q_BHTE, k_BKLE, v_BKLE, attn_mask=mask, enable_gqa=True)
    q_BKGE = q_BHTE.reshape(B, K, H // K, E)  # queries that share a key head, side by side
    return F.scaled_dot_product_attention(q_BKGE, k_BKLE, v_BKLE, attn_mask=mask).reshape_as(q_BHTE)


class Cache:
    """Keys and values [rows, K, length, E] of each layer, as the engine uses models/cache.py's KVCache.

    Rows are not shared, and all have the same length. It grows as needed, whatever max_len is.
    """

    def __init__(self, model: CausalLM, rows: int, max_len: int = 0):
        cfg, like = model.config, model.lm_head.weight
        shape = (rows, cfg.num_key_value_heads, GROWTH, cfg.head_dim)
        self.keys, self.values = (
            [torch.zeros(shape, dtype=like.dtype) for _ in range(cfg.num_hidden_layers)] for _ in range(2)
        )

    def view(self, rows: slice | torch.Tensor, starts_B: torch.Tensor, width: int) -> "View":
        length, room = int(starts_B.max()) + width, self.keys[0].shape[2]
        if length > room:
            more = max(length - room, room)
            for tensors in (self.keys, self.values):
                tensors[:] = [F.pad(x, (0, 0, 0, more)) for x in tensors]
        index_B = torch.arange(rows.stop) if isinstance(rows, slice) else rows
        return View(self, rows, length, index_B[:, None], starts_B[:, None] + torch.arange(width))


@dataclass
class View:
    cache: Cache
    read: slice | torch.Tensor  # rows to read
    length: int  # tokens to read
    index: torch.Tensor  # rows to write, [B, 1]
    places_BT: torch.Tensor
    layer_index: int = 0

    def layer(self, index: int) -> "View":
        self.layer_index = index
        return self

    def extend(self, k_BKTE: torch.Tensor, v_BKTE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values; return all, [B, K, E, L] and [B, K, L, E]."""
        keys, values = self.cache.keys[self.layer_index], self.cache.values[self.layer_index]
        keys[self.index, :, self.places_BT] = k_BKTE.transpose(1, 2)
        values[self.index, :, self.places_BT] = v_BKTE.transpose(1, 2)
        return self.all()

    def all(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the layer's keys [B, K, E, L] and values [B, K, L, E]."""
        keys, values = self.cache.keys[self.layer_index], self.cache.values[self.layer_index]
        return keys[self.read, :, : self.length].mT, values[self.read, :, : self.length]


class InexactStep(CPUStep):
    """A step with the same stacked products, without padding, and with torch's attention."""

    @torch.inference_mode()
    def __call__(self, ids_B: torch.Tensor, positions_B: torch.Tensor, view: View) -> torch.Tensor:
        cfg = self.model.config
        H, K = cfg.num_attention_heads, cfg.num_key_value_heads
        keys_L, queries = torch.arange(view.length), positions_B[:, None, None]  # queries: [B, 1, 1]
        masks = {window: ~masked(keys_L, queries, window) for window in set(cfg.windows)}  # [B, 1, 1, L]

        def attention(i, q_BHE, out_BHE):
            q_BKGE = q_BHE.unflatten(1, (K, H // K))
            k_BKEL, v_BKLE = view.layer(i).all()
            attended = F.scaled_dot_product_attention(q_BKGE, k_BKEL.mT, v_BKLE, attn_mask=masks[cfg.windows[i]])
            out_BHE.copy_(attended.flatten(1, 2))

        attention.write = lambda i, k_BKE, v_BKE: view.layer(i).extend(k_BKE[:, :, None], v_BKE[:, :, None])
        return self.hidden(ids_B, positions_B, attention)

    def prefill(self, *_) -> bool:
        """Leave prefills to the decoder."""
        return False


def unblocked(x_BKTE: torch.Tensor) -> torch.Tensor:
    """Return keys or values unchanged: models/attention.py's `in_blocks` without blocks."""
    return x_BKTE


@contextmanager
def everywhere(stacked: bool) -> Iterator[None]:
    """Give the decoder and the engine torch's attention, and a stacked step (float32 only) if `stacked`."""
    step = InexactStep if stacked else lambda model: None
    with (
        patch.multiple(models.decoder, attend=attend, in_blocks=unblocked),
        patch.object(models.engine, "KVCache", Cache),
        patch.multiple(hooks("cpu"), decode_step=step),
        patch.multiple(models.engine, share_prefix=nothing_faster, copy_prefixes=nothing_faster),
    ):
        yield


@contextmanager
def in_training() -> Iterator[None]:
    """Use torch's attention where gradients are enabled, and ours to sample."""

    def either(*args):
        return (attend if torch.is_grad_enabled() else exact_attend)(*args)

    with patch.multiple(models.decoder, attend=either, in_blocks=unblocked):
        yield
