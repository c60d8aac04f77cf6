"""The cached keys and values of growing sequences, in blocks as models/attention.py reads them."""

from dataclasses import dataclass

import torch

from models.attention import KEY_BLOCK
from models.decoder import CausalLM


def stored_dtype(weight: torch.Tensor) -> torch.dtype:
    """Return the dtype of keys and values of a model with such weights. On a CPU, where attention computes in float32,
    16-bit numbers are widened once, and not in each step that reads them."""
    return torch.promote_types(weight.dtype, torch.float32) if weight.device.type == "cpu" else weight.dtype


class KVCache:
    """Keys [U, Z, E, L] and values [U, Z, L, E] of each layer: U blocks of L = KEY_BLOCK tokens, and Z = rows * K. U
    doubles up to max_len's blocks; on CUDA they are allocated at once, because graphs keep addresses."""

    def __init__(self, model: CausalLM, rows: int, max_len: int = 0):
        cfg, like = model.config, model.lm_head.weight
        self.heads, self.most_blocks = cfg.num_key_value_heads, -(-max_len // KEY_BLOCK)
        shape = (self.most_blocks if like.is_cuda and max_len else 2, rows * self.heads, KEY_BLOCK, cfg.head_dim)
        dtype = stored_dtype(like)
        self.values = [torch.zeros(shape, dtype=dtype, device=like.device) for _ in range(cfg.num_hidden_layers)]
        self.keys = [torch.zeros_like(values.mT, memory_format=torch.contiguous_format) for values in self.values]

    def view(self, rows: slice | torch.Tensor, starts_B: torch.Tensor, width: int) -> "CacheView":
        """Return a view for one forward over these rows; each gets up to `width` new tokens from `starts_B` on."""
        blocks = (int(starts_B.max()) + width - 1) // KEY_BLOCK + 1
        self.reserve(blocks)
        device = self.keys[0].device
        index_B = torch.arange(rows.stop) if isinstance(rows, slice) else rows
        heads_BK = (index_B[:, None] * self.heads + torch.arange(self.heads)).to(device)
        read = slice(0, rows.stop * self.heads) if isinstance(rows, slice) else heads_BK.flatten()
        place = (starts_B[:, None, None] + torch.arange(width)[:, None]).to(device)  # [B, T, 1]
        return CacheView(self, read, blocks, place // KEY_BLOCK, heads_BK[:, None], place % KEY_BLOCK)

    def reserve(self, blocks: int) -> None:
        """Allocate at least this many blocks for every sequence."""
        have = len(self.keys[0])
        if blocks > have:
            more = max(blocks, min(2 * have, self.most_blocks or 2 * have)) - have
            at_the_end = (0, 0) * 3 + (0, more)  # of the first dimension: padding is given from the last one on
            for i, layer in enumerate(zip(self.keys, self.values, strict=True)):  # one by one: old blocks are freed
                self.keys[i], self.values[i] = (torch.constant_pad_nd(x, at_the_end) for x in layer)


@dataclass
class CacheView:
    """The part of the cache that the layers read and write in one forward."""

    cache: KVCache
    read: slice | torch.Tensor  # indices of Z to read: a slice reads in place, a tensor copies
    blocks: int  # number of blocks to read
    block: torch.Tensor  # [B, T, 1]: the block that each new token is written to
    heads: torch.Tensor  # [B, 1, K]: its indices of Z
    offset: torch.Tensor  # [B, T, 1]: its place in the block; later tokens of a row overwrite its padding
    layer_index: int = 0  # the layer that `extend` writes

    def layer(self, index: int) -> "CacheView":
        """Return the view itself, turned to another layer."""
        self.layer_index = index
        return self

    def extend(self, k_BKTE: torch.Tensor, v_BKTE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Write the new keys and values; return the keys and values of all tokens so far, k_UZEL and v_UZLE."""
        keys, values = self.cache.keys[self.layer_index], self.cache.values[self.layer_index]
        keys[self.block, self.heads, :, self.offset] = k_BKTE.transpose(1, 2).to(keys.dtype)
        values[self.block, self.heads, self.offset] = v_BKTE.transpose(1, 2).to(values.dtype)
        return keys[: self.blocks, self.read], values[: self.blocks, self.read]
