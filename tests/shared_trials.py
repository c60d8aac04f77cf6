"""Share the trials of exactness between the runs of a process: each takes a second or two."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch

PASSED = set()  # hashes of what decides a trial, of those that found no difference


@contextmanager
def shared_trials() -> Iterator[None]:
    """Context in which a run takes the trials of an earlier run with the same model and kernels, if they found no
    difference."""
    from models.fast import cpu_step, onednn, packed, trial

    first_difference, agrees = trial.first_difference, cpu_step._agrees

    def key(name: str, model: torch.nn.Module, *kind) -> int:
        weights = ((p.dtype, p.device, p.shape, p.requires_grad) for p in model.parameters())
        kernels = model.exact, torch.get_num_threads(), packed.library, onednn.least_batch
        return hash((name, str(model.config), str(model), *weights, *kernels, *kind))

    def shared_difference(model: torch.nn.Module) -> str | None:
        passed = key("trial", model)
        found = None if passed in PASSED else first_difference(model)
        if not found:
            PASSED.add(passed)
        return found

    def shared_agreement(tried, model: torch.nn.Module) -> bool:
        passed = key("step", model, tried.row_multiple, tried.copies)
        found = passed in PASSED or agrees(tried, model)
        if found:
            PASSED.add(passed)
        return found

    with (
        mock.patch.object(trial, "first_difference", shared_difference),
        mock.patch.object(cpu_step, "_agrees", shared_agreement),
    ):
        yield
