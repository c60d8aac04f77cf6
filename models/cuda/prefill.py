"""models/decoder.py for prompts and observations on CUDA, without a wait.

Their layout is made on the host and copied once. Few tokens take the host longer to launch than the device to compute,
so passes of up to SIZES[-1] tokens are CUDA graphs of a few sizes, captured when first needed; padding up to a size
writes nothing. The kernels of longer passes are launched one by one.
"""

import numpy as np
import torch

from models.attention import KEY_BLOCK
from models.cache import CacheView
from models.cuda import available
from models.cuda.graph import Steps, captured, to_device
from models.cuda.step import Rows
from models.linear import ROW_MULTIPLE

SIZES = (64, 256, 1024)  # tokens of a graph


class Prefill:
    """Computes keys and values of pending tokens with the layers of `steps`: a FusedStep's, or a Step's."""

    def __init__(self, steps: Steps):
        self.steps, self.graphs, self.made_for = steps, {}, None

    @torch.no_grad()
    def __call__(self, parts: list[tuple[int, int, list[int]]], version) -> None:
        """Compute tokens of some sequences: for each its row of the cache, the position of its first token, the ids."""
        steps = self.steps
        steps.load(version)
        steps.fit(max(start + len(ids) for _, start, ids in parts))
        made_for = steps.signature, steps.fitted
        if made_for != self.made_for:
            self.graphs, self.made_for = {}, made_for
        count = sum(len(ids) for *_, ids in parts)
        size = next((size for size in SIZES if count <= size), None)
        if size is None or not steps.fused:
            N = -(-count // ROW_MULTIPLE) * ROW_MULTIPLE
            numbers = to_device(layout(parts, N, len(parts)), steps.device)
            rows = as_rows(numbers, N, len(parts), max(len(ids) for *_, ids in parts))
            self._compute(rows) if steps.fused else self._compute_unfused(rows, count)
            return
        B = len(steps.places_B)
        if size not in self.graphs:
            self.graphs[size] = self._capture(size, B)
        buffer, graph = self.graphs[size]
        buffer.copy_(to_device(layout(parts, size, B), steps.device))
        graph.replay()

    def _compute(self, rows: Rows) -> None:
        self.steps.decoder.hidden(rows, self.steps.cache, self.steps.tables, output=False)

    def _compute_unfused(self, rows: Rows, count: int) -> None:
        """Compute the first `count` rows by the operations of models/decoder.py, which training takes too."""
        attend_packed = available.kernels().attention.attend_packed
        steps, position_N = self.steps, rows.positions_N[:count]
        cache, sequences = steps.cache, (position_N, rows.bounds, rows.places_B, rows.longest, steps.cache.heads)
        angles_N = rows.positions_N.clamp(min=0)
        rotary = {rope: (cos[angles_N], sin[angles_N]) for rope, (cos, sin) in steps.tables.items()}
        heads = rows.places_N[:count, None, None] * cache.heads + torch.arange(cache.heads, device=steps.device)
        at = position_N[:, None, None]
        view = CacheView(cache, slice(None), len(cache.keys[0]), at // KEY_BLOCK, heads, at % KEY_BLOCK)
        attend = lambda q_NHE, k, v, window: attend_packed(q_NHE, k, v, *sequences, window)  # noqa: E731
        steps.decoder.hidden(rows.ids_N, rotary, view, count, attend)

    def _capture(self, size: int, B: int):
        """Return (the numbers that the graph reads, the graph)."""
        buffer = to_device(layout([], size, B), self.steps.device)  # all padding: trying it out writes nothing
        rows = as_rows(buffer, size, B, size)
        self._compute(rows), self._compute(rows)  # libraries allocate memory and kernels are compiled at first calls
        return buffer, captured(lambda: self._compute(rows))


def layout(parts: list[tuple[int, int, list[int]]], N: int, B: int) -> np.ndarray:
    """Return the numbers of `Rows` end to end, int64, with padding up to N rows and B sequences."""
    ids, positions, places = np.zeros(N, np.int64), np.full(N, -1), np.full(N, -1)
    bounds, places_B, end = np.zeros(B + 1, np.int64), np.zeros(B, np.int64), 0
    for i, (place, start, tokens) in enumerate(parts):
        rows = slice(end, end := end + len(tokens))
        ids[rows], positions[rows], places[rows] = tokens, np.arange(start, start + len(tokens)), place
        bounds[i + 1], places_B[i] = end, place
    bounds[len(parts) + 1 :] = end
    return np.concatenate((ids, positions, places, bounds, places_B))


def as_rows(numbers: torch.Tensor, N: int, B: int, longest: int) -> Rows:
    return Rows(*numbers.split([N, N, N, B + 1, B]), longest)
