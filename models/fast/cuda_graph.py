"""The engine's step on a GPU as one CUDA graph.

A step of a small model takes the GPU less time than it takes a host to start its kernels. So a whole step, from the
embedding of the pending tokens to the next ids with their log-probabilities, becomes one graph; and all that it must
know lies on the device: of each slot the pending token, the length, the random stream, how many tokens it has sampled
and how many it still may. A slot that is done stops by itself. models/fast/ahead.py is the host's side.

`Steps.step` is plain torch: no shape depends on data, nothing waits for the device. Only the capture and the copy to
the host need CUDA; elsewhere the same function is called.
"""

from collections.abc import Callable, Hashable

import numpy as np
import torch

from models.attention import KEY_BLOCK, attend, masked
from models.cache import KVCache
from models.decoder import CausalLM, rotate
from models.fast.dispatch import triton_attend
from models.fast.onednn import onednn_matmul
from models.fast.products import Stacked, Unstacked, parts
from models.random import fold, unit

CHUNK = 4  # steps that are enqueued together
STACKED_SHARE = 0.25  # of the device's memory: larger models are not copied to be stacked


class Steps:
    """The device's side: the state of every slot of the cache, and the step that moves all of them on by a token.

    sample:    (hidden_SD, weight_VD, temperature, uniforms_S) -> (ids_S, logprobs_S)
    attention: as models/attention.py's `attend`; by default that, on CUDA one that a graph can hold: the Triton kernel
               in 16 bits, or static_attention.
    stacked:   whether to stack copies of the weights of layers that read the same input; by default on CUDA, if they
               fit STACKED_SHARE and the model need not be exact.
    """

    def __init__(self, model: CausalLM, cache: KVCache, sample: Callable, attention=None, stacked: bool | None = None):
        self.model, self.cache, self.sample = model, cache, sample
        self.device = device = model.lm_head.weight.device
        self.on_gpu = device.type == "cuda"
        half = cache.keys[0].dtype in (torch.bfloat16, torch.float16)
        on_gpu = (triton_attend() if half else None) or static_attention
        self.attention = attention or (on_gpu if self.on_gpu else attend)
        self.stacked = self.on_gpu and not model.exact and _fits(model) if stacked is None else stacked
        K, S = cache.heads, cache.keys[0].shape[1] // cache.heads
        self.heads_SK = torch.arange(S * K, device=device).view(S, K)
        # A row each: the pending token, the length, the random stream, how many tokens the turn has, may still have.
        self.state_5S = torch.zeros(5, S, dtype=torch.long, device=device)
        self.stops_V = torch.zeros(model.config.vocab_size, dtype=torch.bool, device=device)
        # Of two chunks the ids and log-probabilities; -1 where a slot had nothing to sample.
        self.ring_C2S = torch.zeros(2 * CHUNK, 2, S, dtype=torch.float64, device=device)
        self.at_1 = torch.zeros(1, dtype=torch.long, device=device)
        self.arrived_C2S = torch.zeros(2 * CHUNK, 2, S, dtype=torch.float64, pin_memory=self.on_gpu)
        self.side = torch.cuda.Stream(device) if self.on_gpu else None
        self.blocks, self.temperature, self.chunks = 1, 1.0, 0
        self.version = self.signature = self.key = self.graph = None  # what the layers and the graph were made for

    @onednn_matmul()
    @torch.no_grad()
    def step(self) -> None:
        """One more token for every slot that may have one, in place: of the state, the cache and the ring."""
        token_S, length_S, stream_S, made_S, left_S = self.state_5S
        active_S = left_S > 0
        hidden_SD = self._hidden(token_S, length_S, active_S)
        uniforms_S = unit(fold(stream_S, made_S))
        ids_S, logprobs_S = self.sample(hidden_SD, self.model.lm_head.weight, self.temperature, uniforms_S)
        taken_2S = torch.stack((torch.where(active_S, ids_S, -1).double(), logprobs_S.double()))
        self.ring_C2S.index_copy_(0, self.at_1, taken_2S[None])
        self.at_1.add_(1).remainder_(2 * CHUNK)
        left_S = torch.where(active_S & ~self.stops_V[ids_S], left_S - 1, 0)
        token_S = torch.where(active_S, ids_S, token_S)
        self.state_5S.copy_(torch.stack((token_S, length_S + active_S, stream_S, made_S + active_S, left_S)))

    def _hidden(self, token_S: torch.Tensor, length_S: torch.Tensor, active_S: torch.Tensor) -> torch.Tensor:
        """Hidden states [S, D] of the pending tokens. An idle slot computes too: what it writes lies where its next
        token will, and its query sees a single key."""
        decoder, E = self.model.model, self.model.config.head_dim
        block_S1, place_S1 = (length_S // KEY_BLOCK)[:, None], (length_S % KEY_BLOCK)[:, None]
        seen_S1 = torch.where(active_S, length_S, 0)[:, None]
        turns = {rope: (cos[length_S], sin[length_S]) for rope, (cos, sin) in self.tables.items()}
        x_SD = decoder.embed_tokens(token_S)
        cfg = self.model.config
        widths = [E * n for n in (cfg.num_attention_heads, cfg.num_key_value_heads, cfg.num_key_value_heads)]
        for i, (block, (qkv, out, gate_up, down)) in enumerate(zip(decoder.layers, self.products, strict=True)):
            attention, keys, values = block.self_attn, self.cache.keys[i], self.cache.values[i]
            q, k, v = (x.unflatten(-1, (-1, E)) for x in qkv(block.input_layernorm(x_SD)).split(widths, -1))
            q_SHE = rotate(attention.q_norm(q), *turns[attention.rope])
            keys[block_S1, self.heads_SK, :, place_S1] = rotate(attention.k_norm(k), *turns[attention.rope])
            values[block_S1, self.heads_SK, place_S1] = v
            keys, values = keys[: self.blocks], values[: self.blocks]
            attended_SHTE = self.attention(q_SHE[:, :, None], keys, values, seen_S1, attention.window)
            x_SD = x_SD + out(attended_SHTE.flatten(1))
            gate, up = gate_up(block.post_attention_layernorm(x_SD)).chunk(2, -1)
            x_SD = x_SD + down(block.mlp.act(gate) * up)
        return decoder.norm(x_SD)

    @torch.no_grad()
    def prepare(self, version: Hashable, longest: int, temperature: float) -> None:
        """Before steps are enqueued: for these weights, and for sequences of `longest` tokens at most."""
        if version != self.version:
            signature = _signature(self.model)
            if signature != self.signature:
                kind = Stacked if self.stacked else Unstacked
                self.products = [[kind(layers) for layers in block.groups()] for block in self.model.model.layers]
                self.key = None
            elif self.stacked:
                for product in (product for products in self.products for product in products):
                    product.refresh()
            self.version, self.signature = version, signature
        while self.blocks * KEY_BLOCK < longest:
            self.blocks *= 2
        self.cache.reserve(self.blocks)
        key = (self.blocks, len(self.cache.keys[0]), temperature)
        if key != self.key:
            limits = [rope.max_length for rope in self.model.config.ropes if rope.max_length is not None]
            length = max(longest, min([self.blocks * KEY_BLOCK, *limits]))
            self.tables = dict(self.model.rotary_tables(length, self.device))  # the graph reads these; others may come
            self.temperature = temperature
            self._try_out()
            if self.on_gpu:
                self.graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                    self.step()
            self.key = key

    def _try_out(self) -> None:
        """Two steps that come to nothing: the next ones will overwrite what these write. At their first calls libraries
        take memory and kernels are compiled, which no graph can hold."""
        state_5S, at_1 = self.state_5S.clone(), self.at_1.clone()
        self.step(), self.step()
        self.state_5S.copy_(state_5S), self.at_1.copy_(at_1)

    def push(self, table_6S: np.ndarray) -> None:
        """New state for the slots whose last number in the table is 1; the others keep theirs."""
        table = torch.from_numpy(table_6S)
        table = (table.pin_memory() if self.on_gpu else table).to(self.device, non_blocking=True)
        self.state_5S.copy_(torch.where(table[5] == 1, table[:5], self.state_5S))

    def enqueue(self) -> Callable[[], np.ndarray]:
        """CHUNK steps; returns what waits for their ids and log-probabilities [CHUNK, 2, S]."""
        for _ in range(CHUNK):
            self.graph.replay() if self.on_gpu else self.step()
        half = slice(self.chunks % 2 * CHUNK, (self.chunks % 2 + 1) * CHUNK)
        self.chunks += 1
        if not self.on_gpu:
            self.arrived_C2S[half] = self.ring_C2S[half]
            return lambda: self.arrived_C2S[half].numpy()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.arrived_C2S[half].copy_(self.ring_C2S[half], non_blocking=True)
            done = self.side.record_event()
        return lambda: (done.synchronize(), self.arrived_C2S[half].numpy())[1]


def _signature(model: CausalLM) -> Hashable:
    """Where everything lies that a step reads, and the adapters' scales: while it stays, so does a graph."""
    layers = [layer for block in model.model.layers for group in block.groups() for layer in group]
    read = [*model.parameters(), *(part for layer in layers for part in parts(layer))]
    return tuple(part.data_ptr() if isinstance(part, torch.Tensor) else part for part in read)


def _fits(model: CausalLM) -> bool:
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return size <= STACKED_SHARE * torch.cuda.get_device_properties(model.lm_head.weight.device).total_memory


def static_attention(q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None) -> torch.Tensor:
    """models/attention.py's `attend` for one query a row, T = 1: the same work whatever the positions, which no host
    needs to know. Keys and values are read where they lie; scores and sums in float32 at least."""
    (B, H, _, E), (U, Z, _, L) = q_BHTE.shape, k_UZEL.shape
    scores_UZGL = _product(q_BHTE.reshape(1, Z, H * B // Z, E).expand(U, -1, -1, -1), k_UZEL) * E**-0.5
    key_U1L = torch.arange(U * L, device=q_BHTE.device).view(U, 1, L)
    masked_UZL = masked(key_U1L, positions_BT.expand(B, Z // B).reshape(Z), window)
    scores_UZGL.masked_fill_(masked_UZL[:, :, None], float("-inf"))
    weights_UZGL = (scores_UZGL - scores_UZGL.amax((0, 3), keepdim=True)).exp_()
    total_ZG1 = weights_UZGL.sum((0, 3))[..., None]
    out_ZGE = _product(weights_UZGL.to(v_UZLE.dtype), v_UZLE).sum(0) / total_ZG1
    return out_ZGE.reshape(B, H, 1, E).to(q_BHTE.dtype)


def _product(a_UZMN: torch.Tensor, b_UZNO: torch.Tensor) -> torch.Tensor:
    """a @ b in float32 at least."""
    (a, b), shape = (x.flatten(0, 1) for x in (a_UZMN, b_UZNO)), (*a_UZMN.shape[:-1], b_UZNO.shape[-1])
    if a.dtype in (torch.float32, torch.float64):
        return torch.bmm(a, b).view(shape)
    if a.device.type == "cuda":
        return torch.bmm(a, b, out_dtype=torch.float32).view(shape)
    return torch.bmm(a.float(), b.float()).view(shape)
