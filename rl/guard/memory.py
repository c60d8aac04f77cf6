"""Memory of a CUDA device that runs out in an update, which then begins again with smaller micro-batches."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def may_run_out() -> Iterator[None]:
    """Context that an error of a device without memory ends without a word: one of torch's allocator, of the driver, or
    of a library or kernel beside it. The tensors of the block are freed with the error."""
    try:
        yield
    except RuntimeError as error:
        from rl.out_of_memory import is_out_of_memory

        if not isinstance(error, torch.OutOfMemoryError) and not ("CUDA" in str(error) and is_out_of_memory(error)):
            raise
