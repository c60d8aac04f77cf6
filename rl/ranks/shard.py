"""shard=zero2 and shard=zero3: each rank keeps a share of every weight, by torch's fully_shard (FSDP2).

A block is a group of weights that is gathered and freed together; embedding, final norm and head are one more. With
zero3 a block is whole while it computes; with zero2 from its first use until the end of the pass. The embedding's group
is whole during a pass, because log-probabilities and the sampler read the head outside of the model's forward.

Adapters and critic are whole on every rank: rl/ranks/gradients.py adds their gradients as for shard=ddp, and the frozen
base is only gathered. So the bits are those of one rank. With lora.r=0 gradients are reduce-scattered, and each rank's
optimizer has the float32 weights of its share alone.

All ranks must gather together. So a pass is one of three:

- whole     every group is gathered at the beginning: rollouts, where the base fits (`fits`)
- lockstep  each forward is one of all ranks; a rank that has none computes a dummy row
- rounds    of an update: forward and backward, as many on each rank as on the one with the most pieces
"""

import gc
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from models import CausalLM
from models.hooks import hooks, keep_copies, nothing_faster
from models.logprob import token_logprobs
from models.sizes import Sizes, sizes_of
from models.weights import HEAD, check_finite
from rl import peaks, ranks
from rl.config.arguments import ArgumentError
from rl.config.fields import Config
from rl.ranks.saving import share_of

RESERVED = 2**30  # bytes that a rollout leaves to others: CUDA's context, Python, the system


class Gather:
    """FSDP's all-gather, counted as waiting; a lost rank raises AnotherRankFailed."""

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor, input_tensor, group, async_op: bool = False) -> None:
        gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch 2.13's name
        ranks.meet(lambda: gather(output_tensor, input_tensor, group))


class Scatter(Gather):
    """FSDP's reduce-scatter, in the same way."""

    def __call__(self, output_tensor, input_tensor, group, op, async_op: bool = False) -> None:
        scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        ranks.meet(lambda: scatter(output_tensor, input_tensor, op, group))


class Shards:
    """The groups of a model, and the passes over it. `ranks.here.shards` is the one of the model in use."""

    def __init__(self, model: CausalLM, cfg: Config, dtype: torch.dtype, mesh: DeviceMesh):
        self.model, self.cfg, self.dtype, self.mesh, self.trains = model, cfg, dtype, mesh, not cfg.lora.r
        self.zero3 = cfg.shard == "zero3"
        self.fits: bool | None = None  # whether rollouts gather all weights; decided at the first one
        self.begun = False  # a forward has told FSDP which groups there are
        self.announces = False  # each forward tells the other ranks of itself
        self.broken = False  # in the midst of a pass: after an error the other ranks wait in vain
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # hidden states are a view, which nobody writes into
        # The optimizer steps on float32 shares; what is gathered is of the model's dtype.
        policy = MixedPrecisionPolicy(dtype, torch.float32, cast_forward_inputs=False) if self.trains else None
        how = {"mesh": mesh, "mp_policy": policy or MixedPrecisionPolicy()}
        for block in model.model.layers:
            fully_shard(block, reshard_after_forward=self.zero3, **how)
        fully_shard(model, reshard_after_forward=False, **how)
        self.groups: list[FSDPModule] = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for group in self.groups:
            group.set_custom_all_gather(Gather())
            group.set_custom_reduce_scatter(Scatter())
            group.set_gradient_divide_factor(1.0)  # a loss divides by counts of all ranks already
            group.set_force_sum_reduction_for_comms(True)
            group.set_reshard_after_backward(self.zero3 and group is not model, recurse=False)
        model.register_forward_pre_hook(self._before_forward, prepend=True)
        model.register_forward_hook(self._after_forward)

    # ---- passes ----

    def sampling(self):
        """Return the context of a rollout: gathered weights where they fit, else lockstep."""
        if self.fits is None:
            self.fits = not self.zero3 or fits(self)
            size = sum(p.numel() * p.itemsize for p in self.model.parameters() if isinstance(p, DTensor)) / 2**20
            how = "gathered weights" if self.fits else "weights that are gathered block by block, in lockstep"
            here = f"{size / ranks.here.world:,.1f} of the base's {size:,.1f} MiB on each of {ranks.here.world} ranks"
            print(f"shard={self.cfg.shard}: {here}; rollouts take {how}")
        return self.whole() if self.fits else self.lockstep()

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Context in which every rank has all weights, and ranks compute independently of one another."""
        self._begin()
        self.model.set_reshard_after_forward(False)
        for group in self.groups:
            group.unshard()
        keep_copies(True)
        self.broken = False
        try:
            yield
        finally:
            self._end()
            for block in self.model.model.layers:
                block.set_reshard_after_forward(self.zero3)

    @contextmanager
    def lockstep(self) -> Iterator[None]:
        """Context in which each forward of one rank is a forward of all."""
        self._begin()
        self.model.unshard()
        self.broken, self.announces = False, True
        on = hooks(self.mesh.device_type)
        before = on.decode_step, on.run_ahead
        on.decode_step = on.run_ahead = nothing_faster  # they read weights without the model's forward
        try:
            try:
                yield
            except Exception:
                if not self.broken:
                    self._serve()
                raise
            self._serve()
        finally:
            on.decode_step, on.run_ahead = before
            self.announces = False
        self._end()

    def begin_step(self, most: int) -> None:
        """Begin the forwards and backwards of an optimizer step: `most` of them on every rank."""
        self._begin()
        self.most, self.done = most, 0
        self.broken = True

    def begin_piece(self) -> None:
        """Announce one forward and backward."""
        self.done += 1
        if self.trains and not self.zero3:  # zero3 has no room for gradients of all weights
            self.model.set_requires_gradient_sync(self.done == self.most)

    def end_step(self, parameters: list[torch.Tensor]) -> None:
        """Do dummy passes where other ranks have more pieces. They leave no gradient in `parameters`."""
        while self.done < self.most:
            self.begin_piece()
            self._dummy(backward=True)
        for p in parameters:
            p.grad = None
        self._end()

    def each(self, pieces: Iterable) -> Iterator[Any]:
        """Yield the pieces, in lockstep."""
        with self.lockstep():
            yield from pieces

    # ---- their parts ----

    def replicated(self, parameters: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the parameters that are whole on every rank."""
        return [p for p in parameters if not isinstance(p, DTensor)]

    def _begin(self) -> None:
        keep_copies(False)
        self.broken = True
        if not self.begun:
            self.begun = True
            self._dummy()
            self.model.reset_iter_state()

    def _end(self) -> None:
        self.model.reset_iter_state()  # frees what is gathered
        keep_copies(False)
        self.broken = False

    def _before_forward(self, *_: Any) -> None:
        if self.announces:
            self._busy(True)
            self.broken = True

    def _after_forward(self, *_: Any) -> None:
        if self.announces:
            self.broken = False

    def _busy(self, here: bool) -> bool:
        """Return whether any rank has a forward to compute."""
        flag = torch.tensor([int(here)])
        ranks.meet(partial(dist.all_reduce, flag))
        return bool(flag)

    def _serve(self) -> None:
        """Compute dummy rows until no rank has a forward to compute."""
        while self._busy(False):
            self.announces = False
            self._dummy()
            self.announces = True

    def _dummy(self, backward: bool = False) -> None:
        """Compute one row, and a gradient of zeros."""
        with torch.set_grad_enabled(backward), torch.random.fork_rng(enabled=self.model.training):
            ids = torch.zeros(1, 1, dtype=torch.long, device=self.mesh.device_type)
            hidden_BTD = self.model(ids)
            if backward:
                logprobs_N, _ = token_logprobs(hidden_BTD[0], self.model.lm_head.weight, ids[0])
                (0 * logprobs_N.sum()).backward()


def fits(shards: Shards) -> bool:
    """Return whether a rollout has room for all weights beside each rank's share: on a GPU, or in a rank's part of the
    machine's memory. False where nothing counts what it takes (without models/cpu or models/cuda)."""
    cfg, sizes = shards.cfg, sizes_of(shards.model.config)
    try:
        held = most_copies(sizes, cfg)
    except ArgumentError:
        return False
    world, state = ranks.here.world, (4 + peaks.MOMENTS[cfg.optimizer]) * peaks.trained_weights(sizes, cfg)
    share = peaks.base(sizes, cfg) / world + (state / world if shards.trains else state)
    needs = share + peaks.base(sizes, cfg) + held.copies + peaks.rollout(sizes, cfg, held)
    return all(ranks.gathered(needs <= memory(cfg.device)))


def most_copies(sizes: Sizes, cfg: Config) -> Any:
    """Return the footprint with the library whose copies take the most, of those that products=auto may choose."""
    kinds = ("onednn", "mkl", "plain") if cfg.products == "auto" else (cfg.products,)
    footprints = (peaks.footprint(sizes, replace(cfg, products=kind)) for kind in kinds)
    return max(footprints, key=lambda held: held.copies)


def memory(device: str) -> float:
    """Return the bytes that this rank may take."""
    if device == "cuda":
        return torch.cuda.mem_get_info()[1] - RESERVED
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total / int(os.environ.get("LOCAL_WORLD_SIZE", ranks.here.world)) - RESERVED


# ---- loading ----


def read(cfg: Config, model: CausalLM, files: list[Path], dtype: torch.dtype, device: str) -> dict[str, DTensor]:
    """Shard a model on the meta device and return this rank's share of its tensors; no rank reads more.

    Raise ArgumentError for a quantised checkpoint, ValueError for a tensor that is not finite. models/weights.py has
    checked names and shapes.
    """
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ArgumentError(f"shard={cfg.shard} takes reset_iter_state of fully_shard, which torch 2.13 has")
    if model.config.quant != "none":
        raise ArgumentError(f"shard={cfg.shard} takes dense weights; {cfg.model} is stored as {model.config.quant}")
    gc.collect()  # of a model before this one, whose groups refer to one another
    mesh = init_device_mesh(device, (ranks.here.world,))
    ranks.here.shards = Shards(model, cfg, dtype, mesh)
    parameters, tensors = dict(model.named_parameters(remove_duplicate=False)), {}
    for path in files:
        with safe_open(path, framework="pt", device="cpu") as file:
            for key in file.keys():  # noqa: SIM118  (not a dict)
                if key.endswith("rotary_emb.inv_freq"):
                    continue
                stored = file.get_slice(key)
                start, stop = share_of(stored.get_shape()[0], ranks.here.rank, ranks.here.world)
                local = stored[start:stop] if stop > start else file.get_tensor(key)[:0]
                local = local.to(device=device, dtype=dtype, copy=True)  # not a view of the whole file
                check_finite(local, f"{path}: {key}")
                tensors[key] = local if cfg.lora.r else local.float()  # float32 shares train
    if model.config.tie_word_embeddings:
        tensors.pop(HEAD, None)  # a copy of the embedding
    whole = {key: dict(shape=parameters[key].shape, stride=parameters[key].stride()) for key in tensors}
    return {key: DTensor.from_local(x, mesh, [Shard(0)], run_check=False, **whole[key]) for key, x in tensors.items()}
