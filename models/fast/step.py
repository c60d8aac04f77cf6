"""The decoder for one more token of each row, in few calls: inside the CUDA graph of cuda_graph.py; cpu_step.py has
that of a CPU.

With a handful of rows and a few million weights, calls cost more than sums. So layers that read the same input become
one product (products.py).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from models.cache import CacheView
from models.config import ModelConfig
from models.decoder import Block, CausalLM, rotate
from models.fast.products import Stacked, Unstacked, groups


class HeadNorms:
    """q_norm and k_norm of a layer as one norm of the query and key heads side by side."""

    def __init__(self, block: Block, cfg: ModelConfig):
        self.norms = [block.self_attn.q_norm] * cfg.num_attention_heads
        self.norms += [block.self_attn.k_norm] * cfg.num_key_value_heads
        self.weight, self.eps = self._copy(), cfg.rms_norm_eps
        self.wide = torch.promote_types(self.weight.dtype, torch.float32)

    def _copy(self) -> torch.Tensor:
        return torch.stack([norm.weight for norm in self.norms])

    def __call__(self, x_NHE: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_NHE.to(self.wide), x_NHE.shape[-1:], None, self.eps).to(x_NHE.dtype) * self.weight

    def refresh(self) -> None:
        """Copy the weights again, in place."""
        self.weight.copy_(self._copy())


@dataclass
class StepLayer:
    """A layer of the decoder with its linear layers as four products (models/fast/products.py)."""

    block: Block
    head_norms: HeadNorms | None
    qkv: Stacked | Unstacked
    out: Stacked | Unstacked
    gate_up: Stacked | Unstacked
    down: Stacked | Unstacked

    def refresh(self) -> None:
        """Copy all weights again, in place."""
        for copied in (self.head_norms, self.qkv, self.out, self.gate_up, self.down):
            if copied is not None:
                copied.refresh()


class Step:
    """A decoder whose layers of one input are stacked by `stack` (a class of products.py)."""

    def __init__(self, model: CausalLM, stack: Callable):
        cfg, self.model, self.layers = model.config, model, []
        for block in model.model.layers:
            norms = HeadNorms(block, cfg) if cfg.qk_norm else None
            self.layers.append(StepLayer(block, norms, *(stack(layers) for layers in groups(block))))

    def hidden(self, ids_N: torch.Tensor, rotary: dict, view: CacheView, rows: int, attend: Callable) -> torch.Tensor:
        """Return hidden states [N, D] after the final norm; write the new keys and values to the cache.

        rotary: {rope: (cos_NE, sin_NE)}. rows: of the view, B; the rows of ids_N after them are padding.
        attend: (q_BHE, k_UZEL, v_UZLE, window) -> out_BHE.
        """
        cfg, decoder = self.model.config, self.model.model
        H, K, E = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
        x_ND = F.embedding(ids_N, decoder.embed_tokens.weight)
        for i, layer in enumerate(self.layers):
            block = layer.block
            heads_NHE = layer.qkv.joint(block.input_layernorm(x_ND)).unflatten(-1, (-1, E))
            qk_NHE = heads_NHE[:, : H + K]
            if layer.head_norms is not None:
                qk_NHE = layer.head_norms(qk_NHE)
            qk_BHE = rotate(qk_NHE, *rotary[cfg.ropes[i]])[:rows]
            k_UZEL, v_UZLE = view.layer(i).extend(qk_BHE[:, H:, None], heads_NHE[:rows, H + K :, None])
            attended_BHE = attend(qk_BHE[:, :H], k_UZEL, v_UZLE, cfg.windows[i])
            x_ND = x_ND + layer.out(padded(attended_BHE.reshape(rows, H * E), len(x_ND)))[0]
            gate, up = layer.gate_up(block.post_attention_layernorm(x_ND))
            x_ND = x_ND + layer.down(block.mlp.act(gate) * up)[0]
        return decoder.norm(x_ND)


def padded(x: torch.Tensor, N: int) -> torch.Tensor:
    """Return x with zero rows up to N."""
    return torch.cat((x, x.new_zeros(N - len(x), *x.shape[1:]))) if len(x) < N else x
