"""models/engine.py's step, the decoder and the sampler, as one CUDA graph.

A step of a small model takes the GPU less time than it takes a host to start its kernels. So a whole step, from the
embedding of the pending tokens to the next ids with their log-probabilities, is one graph, and everything that it
reads is on the device (SlotState). A slot that is done stops by itself. ahead.py is the host's side.

`Steps.step` is plain torch: no shape depends on data, nothing waits for the device. Only the capture and the copy to
the host need CUDA; on a CPU the same function is called.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass

import numpy as np
import torch

from models.attention import KEY_BLOCK, attend, masked
from models.cache import CacheView, KVCache
from models.cuda import available, step
from models.cuda.exact import ExactJoined
from models.cuda.step import FusedStep, Rows, Step, Unstacked
from models.decoder import CausalLM
from models.hooks import fast_matmul
from models.random import fold, unit
from models.stacked import Stacked, groups

CHUNK = 4  # steps that are enqueued together
STACKED_SHARE = 0.25  # of the device's memory: larger models are not copied to be stacked


@dataclass
class SlotState:
    """The state of every slot of the cache, int64 [B] each: rows of one tensor or array, which one copy moves."""

    storage: torch.Tensor | np.ndarray  # [5, B]

    def __post_init__(self):
        self.token_B, self.length_B, self.stream_B, self.sampled_B, self.left_B = self.storage
        # the pending token; tokens in the cache; random stream of the turn; tokens that the turn has; that it may get


class Steps:
    """The device's side: the state of every slot of the cache, and the step that gives each of them one more token.

    sample:    (hidden_BD, weight_VD, temperature, uniforms_B) -> (ids_B, logprobs_B)
    attention: as models/attention.py's `attend`; by default that, on CUDA one that a graph can contain: the Triton
               kernel, or static_attention where there is none.
    stacked:   whether to stack copies of the weights of layers that read the same input; by default `may_stack`.
    """

    def __init__(self, model: CausalLM, cache: KVCache, sample: Callable, attention=None, stacked: bool | None = None):
        self.model, self.cache, self.sample = model, cache, sample
        self.device = device = model.lm_head.weight.device
        self.on_gpu = device.type == "cuda"
        # Triton's attention reads no block beyond a sequence's end, and takes sequences end to end.
        self.packed = self.on_gpu and not step.attention_problem(model)
        self.fused = self.on_gpu and not step.problem(model)
        if attention is None and self.packed:
            attention = available.kernels().attention.attend
        self.attention = attention or (static_attention if self.on_gpu else attend)
        self.stacked = may_stack(model) if stacked is None else stacked
        K, B = cache.heads, cache.keys[0].shape[1] // cache.heads
        self.places_B, self.bounds = (torch.arange(n, device=device) for n in (B, B + 1))
        self.heads = torch.arange(B * K, device=device).view(B, 1, K)
        self.state = SlotState(torch.zeros(5, B, dtype=torch.long, device=device))
        self.stops_V = torch.zeros(model.config.vocab_size, dtype=torch.bool, device=device)
        # Ids and log-probabilities of two chunks [2 * CHUNK, 2, B]; -1 where a slot had nothing to sample.
        self.ring = torch.zeros(2 * CHUNK, 2, B, dtype=torch.float64, device=device)
        self.ring_at = torch.zeros(1, dtype=torch.long, device=device)
        self.arrived = torch.zeros(2 * CHUNK, 2, B, dtype=torch.float64, pin_memory=self.on_gpu)
        self.side = torch.cuda.Stream(device) if self.on_gpu else None
        self.blocks, self.temperature, self.chunks = 1, 1.0, 0
        self.graphs = {}  # of the step, by temperature
        self.version = self.signature = self.fitted = self.made_for = self.graph = None  # what all this was made for

    @fast_matmul()
    @torch.no_grad()
    def step(self) -> None:
        """Sample one more token for every slot that may have one; update the state, the cache and the ring in place."""
        state = self.state
        active_B = state.left_B > 0
        hidden_BD = self._hidden(active_B)
        uniforms_B = unit(fold(state.stream_B, state.sampled_B))
        ids_B, logprobs_B = self.sample(hidden_BD, self.model.lm_head.weight, self.temperature, uniforms_B)
        taken = torch.stack((torch.where(active_B, ids_B, -1).double(), logprobs_B.double()))
        self.ring.index_copy_(0, self.ring_at, taken[None])
        self.ring_at.add_(1).remainder_(2 * CHUNK)
        state.token_B.copy_(torch.where(active_B, ids_B, state.token_B))
        state.length_B.add_(active_B)
        state.sampled_B.add_(active_B)
        state.left_B.copy_(torch.where(active_B & ~self.stops_V[ids_B], state.left_B - 1, 0))

    def _hidden(self, active_B: torch.Tensor) -> torch.Tensor:
        """Return hidden states [B, D] of the pending tokens. An idle slot computes too: it writes where its next token
        will be written, and its query sees one key."""
        length_B = self.state.length_B
        if self.fused:
            positions_B = torch.where(active_B, length_B, -1)
            rows = Rows(self.state.token_B, positions_B, self.places_B, self.bounds, self.places_B, 1)
            return self.decoder.hidden(rows, self.cache, self.tables)
        seen = torch.where(active_B, length_B, 0)[:, None]
        rotary = {rope: (cos[length_B], sin[length_B]) for rope, (cos, sin) in self.tables.items()}
        length = length_B[:, None, None]
        places = length // KEY_BLOCK, self.heads, length % KEY_BLOCK
        view = CacheView(self.cache, slice(None), self.blocks, *places)
        attend_one = lambda q_BHE, k, v, window: self.attention(q_BHE[:, :, None], k, v, seen, window)  # noqa: E731
        return self.decoder.hidden(self.state.token_B, rotary, view, len(length_B), attend_one)

    @torch.no_grad()
    def prepare(self, version: Hashable, longest: int, temperature: float) -> None:
        """Make ready for steps with these weights, and sequences of at most `longest` tokens."""
        self.load(version)
        self.fit(longest)
        if self.made_for != (made_for := (self.signature, self.fitted)):
            self.graphs, self.made_for = {}, made_for
        self.temperature = temperature
        if temperature not in self.graphs:
            self._try_out()
            self.graphs[temperature] = captured(self.step) if self.on_gpu else None
        self.graph = self.graphs[temperature]

    def load(self, version: Hashable) -> None:
        """Copy the weights if they have changed: in place, if everything lies where it lay."""
        if version == self.version:
            return
        signature = _signature(self.model)
        if signature == self.signature:
            for layer in self.decoder.layers:
                layer.refresh()
        elif self.fused:
            self.decoder = FusedStep(self.model, self.stacked)
        elif self.on_gpu and self.model.exact:
            join = step.joiner(self.model, self.stacked)
            self.decoder = Step(self.model, lambda layers: ExactJoined(join(layers)))
        else:
            self.decoder = Step(self.model, Stacked if self.stacked else Unstacked)
        self.version, self.signature = version, signature

    def fit(self, longest: int) -> None:
        """Give the cache and the rotary tables room for sequences of that many tokens."""
        needed, have = -(-longest // KEY_BLOCK), len(self.cache.keys[0])
        if self.packed:
            self.blocks = max(needed, have)
        while self.blocks < needed:
            self.blocks = max(needed, min(2 * self.blocks, self.cache.most_blocks))
        self.cache.reserve(self.blocks)
        if self.fitted != (self.blocks, len(self.cache.keys[0])):
            limits = [rope.max_length for rope in self.model.config.ropes if rope.max_length is not None]
            length = max(longest, min([self.blocks * KEY_BLOCK, *limits]))
            self.tables = dict(self.model.rotary_tables(length, self.device))  # kept for the graph, which reads these
            self.fitted = self.blocks, len(self.cache.keys[0])

    def _try_out(self) -> None:
        """Run two steps and undo them; the next steps overwrite what they wrote to the cache. At their first calls
        libraries allocate memory and kernels are compiled, which a graph cannot contain."""
        storage, ring_at = self.state.storage.clone(), self.ring_at.clone()
        self.step(), self.step()
        self.state.storage.copy_(storage), self.ring_at.copy_(ring_at)

    def stop_at(self, stop_ids) -> None:
        """End turns at these ids from now on."""
        stops_V = np.zeros(len(self.stops_V), bool)
        stops_V[[i for i in stop_ids if 0 <= i < len(stops_V)]] = True
        self.stops_V.copy_(to_device(stops_V, self.device))

    def push(self, new: SlotState, changed_B: np.ndarray) -> None:
        """Replace the state of the slots where changed_B is true."""
        rows = to_device(np.concatenate((new.storage, changed_B[None])), self.device)
        self.state.storage.copy_(torch.where(rows[-1] == 1, rows[:-1], self.state.storage))

    def enqueue(self) -> Callable[[], np.ndarray]:
        """Enqueue CHUNK steps; return a function that waits for their ids and log-probabilities [CHUNK, 2, B]."""
        for _ in range(CHUNK):
            self.graph.replay() if self.on_gpu else self.step()
        half = slice(self.chunks % 2 * CHUNK, (self.chunks % 2 + 1) * CHUNK)
        self.chunks += 1
        if not self.on_gpu:
            self.arrived[half] = self.ring[half]
            return lambda: self.arrived[half].numpy()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.arrived[half].copy_(self.ring[half], non_blocking=True)
            done = self.side.record_event()
        return lambda: (done.synchronize(), self.arrived[half].numpy())[1]


def captured(compute: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Return what `compute` does as a graph."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        compute()
    return graph


def to_device(numbers: np.ndarray, device: torch.device) -> torch.Tensor:
    """Return a copy on the device, without a wait for it."""
    x = torch.from_numpy(numbers)
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)  # torch keeps it until then


def _signature(model: CausalLM) -> Hashable:
    """Return the addresses of everything that a step reads, and the adapters' scales: while these stay, so may a
    graph."""
    layers = [layer for block in model.model.layers for group in groups(block) for layer in group]
    read = [*model.parameters(), *(part for layer in layers for part in layer.parts())]
    return tuple(part.data_ptr() if isinstance(part, torch.Tensor) else part for part in read)


def may_stack(model: CausalLM) -> bool:
    """Return whether the weights are on CUDA, fit STACKED_SHARE and are not quantised: their stacks would be dense."""
    weight = model.lm_head.weight
    if not weight.is_cuda or model.config.quant != "none":
        return False
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    return size <= STACKED_SHARE * torch.cuda.get_device_properties(weight.device).total_memory


def static_attention(q_BHTE, k_UZEL, v_UZLE, positions_BT, window=None) -> torch.Tensor:
    """Return what models/attention.py's `attend` does for T = 1. The operations are the same for all positions, which
    stay on the device. Keys and values are read in place; scores and sums are float32 at least."""
    (B, H, _, E), (U, Z, _, L) = q_BHTE.shape, k_UZEL.shape
    scores_UZGL = _product(q_BHTE.reshape(1, Z, H * B // Z, E).expand(U, -1, -1, -1), k_UZEL) * E**-0.5
    keys = torch.arange(U * L, device=q_BHTE.device).view(U, 1, L)
    masked_UZL = masked(keys, positions_BT.expand(B, Z // B).reshape(Z), window)
    scores_UZGL.masked_fill_(masked_UZL[:, :, None], float("-inf"))
    weights_UZGL = (scores_UZGL - scores_UZGL.amax((0, 3), keepdim=True)).exp_()
    total = weights_UZGL.sum((0, 3))[..., None]
    out_ZGE = _product(weights_UZGL.to(v_UZLE.dtype), v_UZLE).sum(0) / total
    return out_ZGE.reshape(B, H, 1, E).to(q_BHTE.dtype)


def _product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a [U, Z, rows, in] @ b [U, Z, in, out] in float32 at least."""
    (a, b), shape = (x.flatten(0, 1) for x in (a, b)), (*a.shape[:-1], b.shape[-1])
    if a.dtype in (torch.float32, torch.float64):
        return torch.bmm(a, b).view(shape)
    if a.device.type == "cuda":
        return torch.bmm(a, b, out_dtype=torch.float32).view(shape)
    return torch.bmm(a.float(), b.float()).view(shape)
