"""Count the bytes of all tensors that are alive, and their peak, on any device."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# MKL asks for 7 MiB or more beside a weight that it packs, and does not touch them; so the weight's numbers count.
MKL_PACK = torch.ops.mkl._mkl_reorder_linear_weight.default if torch.backends.mkl.is_available() else None


class LiveStorage(TorchDispatchMode):
    """Context that follows every storage that an operation returns until it is freed.

    Temporary buffers inside an operation are not seen. `live` and `peak` are bytes; storages from before the context,
    views of them included, count once `add` is called on them.
    """

    def __init__(self):
        super().__init__()
        self.live = self.peak = 0
        self._known = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        results = func(*args, **(kwargs or {}))
        if func is MKL_PACK:
            self._count(results, 4 * args[0].numel())
            return results
        inputs = {_storage(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        outputs = [x for x in tree_leaves(results) if isinstance(x, torch.Tensor)]
        self.add(*(x for x in outputs if _storage(x) not in inputs))
        return results

    def add(self, *tensors: torch.Tensor) -> None:
        """Count the tensors' storages, each once."""
        for x in tensors:
            if x.device.type == "meta":
                continue
            try:
                owner, size = x.untyped_storage(), x.untyped_storage().nbytes()
            except NotImplementedError:  # oneDNN's layout has no storage
                owner, size = x, x.numel() * x.element_size()
            if id(owner) not in self._known:
                self._count(owner, size)

    def _count(self, owner, size: int) -> None:
        self._known[id(owner)] = weakref.finalize(owner, self._free, id(owner), size)
        self.live += size
        self.peak = max(self.peak, self.live)

    def reset_peak(self) -> None:
        self.peak = self.live

    def _free(self, key: int, size: int) -> None:
        self.live -= size
        self._known.pop(key, None)


def _storage(x: torch.Tensor) -> int:
    """Return a number that tensors of one storage share."""
    try:
        return x.untyped_storage()._cdata
    except NotImplementedError:
        return id(x)
