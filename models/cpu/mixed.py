"""The decode steps of several models that differ by their adapters alone, as one pass over the weights they share.

The reference is a CPUStep (step.py) of each model. Frozen weights multiply the rows of all models at once; attention
reads each model's own cache. The adapters of a layer lie side by side, as one whose rank is the sum of theirs, and a
row's low-rank inputs are zero for the adapters of other models: sums get zeros, which change no bit of them where they
are added up in one order. `Mixer` tries that before it mixes.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F

from models.attention import KEY_BLOCK
from models.cache import CacheView
from models.config import ModelConfig
from models.cpu import packed
from models.cpu.products import Copies, StackedOnCPU
from models.cpu.step import BlockedAttention, CPUStep, adapter_shapes, filled_cache, layers_of_every_kind
from models.linear import ROW_MULTIPLE, LinearLayer, LinearParts
from models.stacked import StepLayer, random_factors

PRODUCTS = ("qkv", "out", "gate_up", "down")  # of a StepLayer
TRIED = (1, 7, 16, 64)  # rows of a model


class MixedLayer:
    """A layer of several models, with their adapters as one."""

    def __init__(self, layers: Sequence[LinearLayer]):
        self.layers = layers

    def parts(self) -> LinearParts:
        parts = [layer.parts() for layer in self.layers]
        adapted = [(part.A * part.scale, part.B) for part in parts if part.A is not None and part.B is not None]
        if not adapted:
            return parts[0]
        A = torch.cat([F.pad(A, (0, 0, 0, -len(A) % ROW_MULTIPLE)) for A, _ in adapted])
        B = torch.cat([F.pad(B, (0, -B.shape[1] % ROW_MULTIPLE)) for _, B in adapted], 1)
        return parts[0]._replace(A=A, B=B, scale=1.0)

    def owners(self) -> list[int]:
        """Return the model that each rank of the adapter belongs to."""
        ranks = [0 if (A := layer.parts().A) is None else len(A) + -len(A) % ROW_MULTIPLE for layer in self.layers]
        return [i for i, rank in enumerate(ranks) for _ in range(rank)]


class MixedProducts(StackedOnCPU):
    """The products of MixedLayers of one input."""

    def __init__(self, layers: Sequence[Any], copies: Copies):  # MixedLayers: their parts are all that is read
        super().__init__(layers, copies)
        self.owner_R = tuple(owner for layer in layers for owner in layer.owners())
        self.foreign_NR = torch.empty(0)  # whether a rank is of another model than a row; set for each step

    def add_adapters(self, y: torch.Tensor, low: torch.Tensor | None) -> torch.Tensor:
        return super().add_adapters(y, None if low is None else low.masked_fill_(self.foreign_NR, 0.0))


class MixedStep(CPUStep):
    """A stacked copy of the models of some CPUSteps as they are now."""

    @torch.inference_mode()
    def __init__(self, steps: Sequence[CPUStep]):
        self.model, self.copies = steps[0].model, steps[0].copies
        self.row_multiple, self.layers = max(step.row_multiple for step in steps), []
        for same in zip(*(step.layers for step in steps), strict=True):
            groups = [zip(*(getattr(layer, name).layers for layer in same), strict=True) for name in PRODUCTS]
            products = [MixedProducts([MixedLayer(layers) for layers in group], self.copies) for group in groups]
            self.layers.append(StepLayer(same[0].block, same[0].head_norms, *products))

    @torch.inference_mode()
    def __call__(
        self, ids: Sequence[torch.Tensor], positions: Sequence[torch.Tensor], views: Sequence[CacheView]
    ) -> tuple[torch.Tensor, ...]:
        """Return hidden states [B, D] of each model, as its own step does for its ids_B, positions_B and view."""
        counts = [len(ids_B) for ids_B in ids]
        owner_N = torch.arange(len(ids)).repeat_interleave(torch.tensor(counts))
        owner_N = F.pad(owner_N, (0, -len(owner_N) % self.row_multiple), value=-1)
        products = [getattr(layer, name) for layer in self.layers for name in PRODUCTS]
        foreign = {owner_R: owner_N[:, None] != torch.tensor(owner_R) for owner_R in {p.owner_R for p in products}}
        for each in products:
            each.foreign_NR = foreign[each.owner_R]
        attention = MixedAttention(self.model.config, positions, views)
        return self.hidden(torch.cat([*ids]), torch.cat([*positions]), attention).split(counts)


class MixedAttention:
    """models/attention.py's exact attention of one query a row, over the caches of several models."""

    def __init__(self, cfg: ModelConfig, positions: Sequence[torch.Tensor], views: Sequence[CacheView]):
        self.counts = [len(positions_B) for positions_B in positions]
        self.parts = [BlockedAttention(cfg, *part) for part in zip(positions, views, strict=True)]

    def write(self, i: int, k_BKE: torch.Tensor, v_BKE: torch.Tensor) -> None:
        for part, k, v in zip(self.parts, k_BKE.split(self.counts), v_BKE.split(self.counts), strict=True):
            part.write(i, k, v)

    def __call__(self, i: int, q_BHE: torch.Tensor, out_BHE: torch.Tensor) -> None:
        for part, q, out in zip(self.parts, q_BHE.split(self.counts), out_BHE.split(self.counts), strict=True):
            part(i, q, out)


class Mixer:
    """Mixes the steps of models that share their frozen weights."""

    def __init__(self):
        self.steps, self.mixed = [], None  # the last ones
        self.tried: dict[tuple, bool] = {}  # {kind of the steps: whether a MixedStep has their bits}

    def __call__(self, steps: list) -> MixedStep | None:
        """Return the steps as one; None if one is no CPUStep, or if other bits were computed in a trial of them."""
        if not all(isinstance(step, CPUStep) for step in steps):
            return None
        if [id(step) for step in steps] != [id(step) for step in self.steps]:
            kind = tuple((step.copies, step.row_multiple, adapter_shapes(step.model)) for step in steps)
            kind = torch.get_num_threads(), packed.library, kind
            if kind not in self.tried:
                self.tried[kind] = agree(steps)
            self.steps, self.mixed = steps, MixedStep(steps) if self.tried[kind] else None
        return self.mixed


@torch.no_grad()
def agree(steps: Sequence[CPUStep]) -> bool:
    """Return whether a MixedStep computes the bits of the steps, with random B factors, on the first layers alone that
    have every kind."""
    models = [layers_of_every_kind(step.model, adapter_shapes(step.model)) for step in steps]
    with ExitStack() as stack:
        for model in models:
            stack.enter_context(random_factors(model))
        apart = [CPUStep(model, step.copies, step.row_multiple) for model, step in zip(models, steps, strict=True)]
        mixed = MixedStep(apart)
        for shift, position in product(range(len(TRIED)), (3, KEY_BLOCK + 1)):
            counts = [TRIED[(i + shift) % len(TRIED)] for i in range(len(steps))]
            ids = [(torch.arange(rows) + i) % models[0].config.vocab_size for i, rows in enumerate(counts)]
            positions = [torch.arange(rows) % 3 + position - 2 for rows in counts]
            views = [  # of two caches each: what one step writes must not be read by the other
                [filled_cache(model, rows, 2).view(slice(0, rows), positions_B, 1) for _ in range(2)]
                for model, rows, positions_B in zip(models, counts, positions, strict=True)
            ]
            own, others = zip(*views, strict=True)
            expected = [step(*row) for step, *row in zip(apart, ids, positions, own, strict=True)]
            if not all(map(torch.equal, mixed(ids, positions, others), expected)):
                return False
    return True
