"""Save and load tensors of which each rank holds a share of the rows (DTensor), and make them whole.

NAME-00001-of-00004.safetensors has the first rank's rows of every tensor that is shared out, and those that are whole
on every rank; the other files have the rows that follow. NAME.safetensors has whole tensors. A run reads either, with
any number of ranks. The folder's manifest.json lists the files and their sums.
"""

from functools import partial
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from rl import ranks
from rl.config.refusals import Refusal


def file_name(name: str, rank: int, world: int) -> str:
    return f"{name}-{rank + 1:05}-of-{world:05}.safetensors"


def share_of(count: int, rank: int, world: int) -> tuple[int, int]:
    """Return (start, stop) of a rank's rows: chunks of equal size, the last ones smaller or empty, as torch shares."""
    size = -(-count // world)
    return min(rank * size, count), min((rank + 1) * size, count)


class Pieces:
    """The tensors of NAME in a folder, by key; empty if there is no file. Reads what is asked for alone.

    Raises ValueError if a rank's file is missing.
    """

    def __init__(self, folder: Path, name: str):
        paths, self.files = sorted(folder.glob(f"{name}-*-of-*.safetensors")), []
        world = int(paths[0].stem.rsplit("-", 1)[1]) if paths else 0
        names = [file_name(name, rank, world) for rank in range(len(paths))]
        if len(paths) != world or [path.name for path in paths] != names:
            raise Refusal(f"{folder}: the files {name}-*-of-{world:05}.safetensors are not those of {world} ranks")
        if not paths and (single := folder / f"{name}.safetensors").is_file():
            paths = [single]
        self.owners: dict[str, list] = {}  # the files that have rows of a tensor, in order
        for path in paths:
            file = safe_open(path, framework="pt", device="cpu").__enter__()
            for key in file.keys():  # noqa: SIM118  (not a dict)
                self.owners.setdefault(key, []).append(file)

    def shapes(self) -> dict[str, torch.Size]:
        """Return the shape of each whole tensor."""
        of_files = {key: [file.get_slice(key).get_shape() for file in files] for key, files in self.owners.items()}
        return {
            key: torch.Size([sum(shape[0] for shape in shapes), *shapes[0][1:]] if shapes[0] else [])
            for key, shapes in of_files.items()
        }

    def whole(self, key: str) -> Tensor:
        parts = [file.get_tensor(key) for file in self.owners[key]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def like(self, key: str, p: Tensor) -> Tensor:
        """Return a tensor as `p` lies: whole, or this rank's rows."""
        if not _is_share(p):
            return self.whole(key)
        rows = self.rows(key, *share_of(len(p), ranks.here.rank, ranks.here.world)).to(p.device)
        how = dict(run_check=False, shape=p.shape, stride=p.stride())
        return type(p).from_local(rows, p.device_mesh, p.placements, **how)

    def rows(self, key: str, start: int, stop: int) -> Tensor:
        """Return some rows of a tensor."""
        parts, first = [], 0
        for file in self.owners[key]:
            stored = file.get_slice(key)
            count = stored.get_shape()[0]
            a, b = max(start - first, 0), min(stop - first, count)
            parts.append(stored[a:b] if b > a else file.get_tensor(key)[:0])
            first += count
        return torch.cat(parts)


def save(tensors: dict[str, Tensor], folder: Path, name: str) -> None:
    """Write folder/name.safetensors or, where each rank trains rows of the tensors, a file of each rank.

    Then all ranks must call this and reach the first one's `folder`; an error is raised on every rank if one cannot
    write.
    """
    if not ranks.trains_shares():
        save_file({key: x.detach().cpu().contiguous() for key, x in tensors.items()}, folder / f"{name}.safetensors")
        return
    place = Path(ranks.from_first(str(folder)))
    ranks.together(partial(_save_own, tensors, place, name))


def _save_own(tensors: dict[str, Tensor], folder: Path, name: str) -> None:
    shared = {key: x.to_local() for key, x in tensors.items() if _is_share(x)}
    mine = tensors | shared if ranks.is_first() else shared
    mine = {key: x.detach().cpu().contiguous() for key, x in mine.items()}
    save_file(mine, folder / file_name(name, ranks.here.rank, ranks.here.world))


def whole(x: Tensor) -> Tensor:
    """Return the tensor if the model is whole. Else return a copy of the whole tensor, in the dtype that computes, on
    every rank; all must call this."""
    if ranks.here.shards is None:
        return x
    if not _is_share(x):
        return x.clone()
    copies: list[Tensor] = []
    ranks.meet(lambda: copies.append(x.full_tensor()))
    return copies[0].to(ranks.here.shards.dtype)


def _is_share(x: Tensor) -> bool:
    """Return whether a tensor holds a share of the rows."""
    if ranks.here.shards is None:
        return False
    from torch.distributed.tensor import DTensor  # loads slowly, and most runs hold the whole model

    return isinstance(x, DTensor)
