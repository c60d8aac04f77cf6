"""Tensors of which each rank holds a share of the rows (DTensor): how they are saved and made whole."""

from functools import partial
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from models import CausalLM
from models.checkpoints.export import save_config
from models.checkpoints.writer import writer
from rl import ranks
from rl.ranks.pieces import file_name


def save(tensors: dict[str, Tensor], folder: Path, name: str) -> None:
    """Write each rank's rows as rl/ranks/pieces.py reads them, into the first rank's `folder`, which all must reach.

    All ranks must call this. Raise an error on every rank if one cannot write.
    """
    place = Path(ranks.from_first(str(folder)))
    ranks.together(partial(_save_own, tensors, place, name))


def _save_own(tensors: dict[str, Tensor], folder: Path, name: str) -> None:
    shared = {key: x.to_local() for key, x in tensors.items() if isinstance(x, DTensor)}
    mine = tensors | shared if ranks.is_first() else shared
    mine = {key: x.detach().cpu().contiguous() for key, x in mine.items()}
    save_file(mine, folder / file_name(name, ranks.here.rank, ranks.here.world))


def save_model(model: CausalLM, folder: Path, raw_config: dict, dtype: torch.dtype) -> None:
    """Do what models/checkpoints/export.py's function does, with one whole tensor in memory at a time. All ranks must
    call this; the first one writes."""
    parameters = dict(model.named_parameters())  # a tied head is the embedding
    if ranks.is_first():
        with writer(folder, {key: tuple(p.shape) for key, p in parameters.items()}, dtype) as write:
            for key, p in parameters.items():
                write(key, whole(p))
        save_config(folder, raw_config, dtype)
    else:
        for p in parameters.values():
            whole(p)


def whole(x: Tensor) -> Tensor:
    """Return a copy of the whole tensor, in the dtype that computes, on every rank; all must call this."""
    if not isinstance(x, DTensor):
        return x.clone()
    found: list[Tensor] = []
    ranks.meet(lambda: found.append(x.full_tensor()))
    return found[0].to(ranks.here.shards.dtype)
