"""Causal attention by torch's scaled_dot_product_attention: the fallback on devices without a kernel in models/fast."""

import torch
import torch.nn.functional as F
from einops import rearrange


def masked_attention(q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None) -> torch.Tensor:
    """Return what models/attention.py's `attend` does."""
    B = len(q_BHTE)
    k = rearrange(k_UZEL, "u (b k) e l -> b k (u l) e", b=B)
    v = rearrange(v_UZLE, "u (b k) l e -> b k (u l) e", b=B)
    position = positions_BT.clamp(min=0)[..., None]  # the gradient of a query that sees no key would be NaN
    key = torch.arange(k.shape[2], device=q_BHTE.device)
    seen = key <= position  # [B, T, keys]
    if window is not None:
        seen &= key > position - window
    return F.scaled_dot_product_attention(q_BHTE, k, v, attn_mask=seen[:, None], enable_gqa=True)
