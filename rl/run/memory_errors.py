"""Memory of a CUDA device that runs out in an update, which then begins again with smaller micro-batches."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def suppress_out_of_memory() -> Iterator[None]:
    """Suppress the error of a block for which a CUDA device has too little memory: of torch's allocator, of the driver,
    or of a library or kernel beside it. The tensors of the block are freed with the error."""
    try:
        yield
    except RuntimeError as error:
        if not is_from_cuda(error):
            raise


def is_from_cuda(error: BaseException) -> bool:
    """Return whether a CUDA device had too little memory, so that smaller micro-batches may fit."""
    return isinstance(error, torch.OutOfMemoryError) or ("CUDA" in str(error) and is_out_of_memory(error))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocator of torch, Python, the CUDA driver or one of its libraries failed."""
    words = ("out of memory", "can't allocate memory", "alloc_failed")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error).lower() for word in words)
