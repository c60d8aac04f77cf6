"""models/decoder.py over rows of the cache on CUDA, for decoding and prompts: with stacked weights 11 kernels a layer.

Layers that read the same input are one product, which also gives the adapters' low-rank inputs; triton/step.py's
kernels add the adapters and do everything between the products. models/decoder.py's functions are the reference.
Each quantised layer is a product of its own. `Step` is the same in torch's operations: for exact=true, and where Triton
does not work.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from models.cache import CacheView, KVCache
from models.cuda import available
from models.cuda.available import HALF, triton_problem
from models.cuda.products import write_products
from models.decoder import CausalLM, rotate
from models.linear import Linear, LinearLayer, LinearParts, joint_linear
from models.stacked import columns, joined_bias, padded, step_layers


@dataclass
class Rows:
    """Tokens of B sequences end to end, each with its place in the cache; int64 on the device."""

    ids_N: torch.Tensor
    positions_N: torch.Tensor  # -1: padding, which sees nothing and writes nothing
    places_N: torch.Tensor  # row of the cache
    bounds: torch.Tensor  # [B + 1]: the first row of each sequence, and the end of the last one
    places_B: torch.Tensor  # row of the cache
    longest: int  # no sequence has more rows


def attention_problem(model: CausalLM) -> str | None:
    """Return None if Triton computes a model's attention over the cache, else why not."""
    weight, head_dim = model.lm_head.weight, model.config.head_dim
    if triton_problem(weight.device):
        return "Triton does not work here"
    if weight.dtype not in (*HALF, torch.float32):
        return f"Triton's kernel takes no {weight.dtype}".replace("torch.", "")
    if weight.dtype == torch.float32 and head_dim > 128:
        return f"Triton's kernel takes no heads of {head_dim} in float32"  # some chips have no room for them
    return None


def problem(model: CausalLM) -> str | None:
    """Return None if FusedStep computes a model on CUDA, else why not."""
    if model.exact:
        return "exact=true takes the operations of training"
    if not model.config.plain_blocks:
        return f"the fused kernels do not compute the blocks of {model.config.model_type}"
    if model.config.hidden_act != "silu":
        return f"the fused kernels compute silu, not {model.config.hidden_act}"
    return attention_problem(model)


def padded_rank(rank: int) -> int:
    """Return the rank that `Joined` fills an adapter to; Triton's ranges are powers of two."""
    return max(16, 1 << (rank - 1).bit_length()) if rank else 0


class Joined:
    """Layers of one input as one product, x [N, in] -> [N, width + rank of each layer]: their outputs without adapters,
    then the adapters' low-rank inputs. Every layer has the same rank, filled with zeros.

    dtype: of the inputs. stacked: whether to copy the frozen weights into one; otherwise each is multiplied into its
    columns. The factors are cast once.
    """

    def __init__(self, layers: Sequence[LinearLayer], dtype: torch.dtype, stacked: bool = False):
        self.layers, self.dtype, self.stacked = layers, dtype, stacked
        self.widths = [len(layer.parts().weight) for layer in layers]
        self.width = sum(self.widths)
        self.weights, self.biases, self.up, self.rank = self._copies()

    def _copies(self):
        parts, up = [layer.parts() for layer in self.layers], None
        weights, biases = self._frozen(parts)
        rank = padded_rank(max((len(part.A) for part in parts if part.A is not None), default=0))
        if rank:
            downs, ups = zip(*(_factors(part, rank, self.dtype) for part in parts), strict=True)
            weights, biases, up = [*weights, torch.cat(downs)], [*biases, None], torch.cat(ups)
        if self.stacked:
            weights, biases = [torch.cat(weights)], [joined_bias(weights, biases)]
        return weights, biases, up, rank

    def _frozen(self, parts: list[LinearParts]) -> tuple[list, list]:
        return [part.weight for part in parts], [part.bias for part in parts]

    def terms(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        """Yield (weight, bias) of each product; their outputs lie side by side."""
        yield from zip(self.weights, self.biases, strict=True)

    def lengths(self) -> list[int]:
        """Return the number of outputs of each of the `terms`."""
        return [len(weight) for weight in self.weights]

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        if len(self.weights) == 1:
            return F.linear(x_ND, self.weights[0], self.biases[0])
        return columns(x_ND, self.weights, self.biases)

    def added(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return a single layer's output with its adapter, [N, width], as a part of longer rows."""
        y = self(x_ND)
        base = y[:, : self.width]
        return base if self.up is None else base.addmm_(y[:, self.width :], self.up.mT)

    def refresh(self) -> None:
        """Copy the layers again, in place, because a CUDA graph reads these addresses."""
        weights, biases, up, _ = self._copies()
        for old, new in zip((*self.weights, *self.biases, self.up), (*weights, *biases, up), strict=True):
            if old is not None and old.data_ptr() != new.data_ptr():
                old.copy_(new)


class QuantJoined(Joined):
    """`Joined` of quantised layers (models/quant.py): a product for each, and one for the A factors. Few rows are
    multiplied by codes of 4 bits; otherwise a weight is dequantised for each product."""

    def __init__(self, layers: Sequence[LinearLayer], dtype: torch.dtype):
        self.bases = [next(module for module in layer.modules() if isinstance(module, Linear)) for layer in layers]
        super().__init__(layers, dtype)

    def _frozen(self, parts: list[LinearParts]) -> tuple[list, list]:
        return [], []

    def terms(self) -> Iterator[tuple[torch.Tensor, torch.Tensor | None]]:
        for layer in self.bases:
            yield layer.dense(self.dtype), layer.bias
        yield from super().terms()

    def lengths(self) -> list[int]:
        return [*self.widths, *super().lengths()]

    def __call__(self, x_ND: torch.Tensor) -> torch.Tensor:
        y = x_ND.new_empty(len(x_ND), sum(self.lengths()))
        write_products(x_ND, self.bases, y[:, : self.width])
        for down in self.weights:
            torch.mm(x_ND, down.mT, out=y[:, self.width :])
        return y


def joiner(model: CausalLM, stacked: bool) -> Callable[[Sequence[LinearLayer]], Joined]:
    """Return the constructor of `Joined` for a model's layers."""
    dtype = model.lm_head.weight.dtype
    if model.config.quant == "none":
        return partial(Joined, dtype=dtype, stacked=stacked)
    return partial(QuantJoined, dtype=dtype)


def _factors(part: LinearParts, rank: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (scale * A [rank, in], B [out, rank]) in dtype, filled with zeros."""
    (outputs, inputs), device = part.weight.shape, part.weight.device
    down, up = (torch.zeros(shape, dtype=dtype, device=device) for shape in ((rank, inputs), (outputs, rank)))
    if part.A is not None:
        down[: len(part.A)], up[:, : len(part.A)] = part.A * part.scale, part.B
    return down, up


class FusedStep:
    """A decoder for rows of the cache. stacked: as in `Joined`."""

    def __init__(self, model: CausalLM, stacked: bool):
        self.model, self.layers = model, step_layers(model, joiner(model, stacked))

    def hidden(self, rows: Rows, cache: KVCache, tables: dict, output: bool = True) -> torch.Tensor | None:
        """Write the rows' keys and values to the cache; return hidden states [N, D] after the final norm, or None
        without `output`.

        tables: {rope: (cos, sin)}, each [length, E].
        """
        triton = available.kernels()
        add_norm, rotary_write, swiglu = triton.step.add_norm, triton.step.rotary_write, triton.step.swiglu
        cfg, decoder = self.model.config, self.model.model
        H, K, eps = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.rms_norm_eps
        x_ND, more_ND = F.embedding(rows.ids_N, decoder.embed_tokens.weight), None
        for i, layer in enumerate(self.layers):
            keys, values, qkv = cache.keys[i], cache.values[i], layer.qkv
            x_ND, normed_ND = add_norm(x_ND, more_ND, layer.block.input_layernorm.weight, eps)
            adapter = qkv.up, qkv.rank, layer.head_norms and layer.head_norms.weight, eps
            where = tables[cfg.ropes[i]], rows.positions_N, rows.places_N, keys, values
            q_NHE = rotary_write(qkv(normed_ND), *adapter, *where, H, K)
            if not output and layer is self.layers[-1]:
                return None
            sequences = rows.positions_N, rows.bounds, rows.places_B, rows.longest
            attended_NHE = triton.attention.attend_packed(q_NHE, keys, values, *sequences, K, cfg.windows[i])
            more_ND = layer.out.added(attended_NHE.flatten(1))
            x_ND, normed_ND = add_norm(x_ND, more_ND, layer.block.post_attention_layernorm.weight, eps)
            gate_up = layer.gate_up
            more_ND = layer.down.added(swiglu(gate_up(normed_ND), gate_up.up, gate_up.rank, gate_up.width // 2))
        return add_norm(x_ND, more_ND, decoder.norm.weight, eps)[1]


class Step:
    """A decoder for rows of the cache by torch's operations. stack: joins layers of one input, as `Stacked` does."""

    def __init__(self, model: CausalLM, stack: Callable):
        self.model, self.layers = model, step_layers(model, stack)

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


class Unstacked:
    """The function of `Stacked` from the layers' own weights, for models too large to copy."""

    def __init__(self, layers: Sequence[LinearLayer]):
        self.layers = layers

    def __call__(self, x_ND: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return joint_linear(x_ND, *self.layers)

    def joint(self, x_ND: torch.Tensor) -> torch.Tensor:
        """Return the outputs side by side, as a copy."""
        return torch.cat(self(x_ND), -1)

    def refresh(self) -> None:
        """Do nothing: the layers' weights are not copied."""
