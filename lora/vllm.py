"""Give a model's adapters the one rank and the one scale that vLLM reads from adapter_config.json.

vLLM scales every layer by lora_alpha / r: it ignores PEFT's rank_pattern and alpha_pattern. Its --max-lora-rank is one
of RANKS. Ranks are padded with zeros, which compute the same; other scales go into B.
"""

import torch.nn.functional as F
from torch import nn

from lora.layer import lora_layers

RANKS = (8, 16, 32, 64, 128, 256, 320, 512)


def make_uniform(model: nn.Module, name: str = "default") -> int:
    """Pad and scale the adapters `name` in place. Return their rank. Raise ValueError for a rank above the largest."""
    adapters = [layer.adapters[name] for _, layer in lora_layers(model)]
    most = max(len(adapter.A) for adapter in adapters)
    rank = next((rank for rank in RANKS if rank >= most), None)
    if rank is None:
        raise ValueError(f"rank {most}: vLLM takes at most {RANKS[-1]}")
    scales = {adapter.scale for adapter in adapters}
    scale = scales.pop() if len(scales) == 1 else 1.0
    if not scale or not (scale * rank).is_integer():
        scale = 1.0  # lora_alpha is to be a whole number
    for adapter in adapters:
        missing = rank - len(adapter.A)
        A, B = adapter.A.detach(), adapter.B.detach() * (adapter.scale / scale)
        adapter.A = nn.Parameter(F.pad(A, (0, 0, 0, missing)), requires_grad=False)
        adapter.B = nn.Parameter(F.pad(B, (0, missing)), requires_grad=False)
        adapter.alpha, adapter.rslora, adapter.scale = scale * rank, False, scale
    return rank
