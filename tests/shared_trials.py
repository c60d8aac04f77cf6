"""Share the trials of exactness between the runs of a process, or of several: each takes a second or two."""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch

PASSED = set()  # digests of what decides a trial, of those that found no difference


@contextmanager
def shared_trials(folder: Path | None = None, also_first: bool = True) -> Iterator[None]:
    """Context in which a run takes the trials of an earlier run with the same model and kernels, if they found no
    difference.

    folder: where other processes of this machine share theirs, as empty files. also_first: share
    `trial.first_difference` too, and not only the trials of the decode step.
    """
    from models import trial
    from models.cpu import packed
    from models.cpu import step as cpu_step

    first_difference = trial.first_difference

    def key(name: str, model: torch.nn.Module, *kind) -> str:
        weights = [(p.dtype, p.device, p.shape, p.requires_grad) for p in model.parameters()]
        kernels = model.exact, torch.get_num_threads(), packed.library
        return hashlib.sha256(repr((name, model.config, model, weights, kernels, kind)).encode()).hexdigest()

    def known(passed: str) -> bool:
        return passed in PASSED or (folder is not None and (folder / passed).exists())

    def remember(passed: str) -> None:
        PASSED.add(passed)
        if folder:
            (folder / passed).touch()

    def shared_difference(model: torch.nn.Module) -> str | None:
        passed = key("trial", model)
        found = None if known(passed) else first_difference(model)
        if not found:
            remember(passed)
        return found

    def shared(name: str) -> Callable[..., bool]:
        real = getattr(cpu_step, name)

        def agrees(tried, model: torch.nn.Module) -> bool:
            passed = key(name, model, tried.row_multiple, tried.copies)
            found = known(passed) or real(tried, model)
            if found:
                remember(passed)
            return found

        return agrees

    steps = {name: shared(name) for name in ("_agrees", "_prefills_alike")}
    first = shared_difference if also_first else first_difference
    with mock.patch.object(trial, "first_difference", first), mock.patch.multiple(cpu_step, **steps):
        yield
