"""Share the trials of a run's start between the runs of a process, and those of exactness between processes."""

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch

PASSED = set()  # digests of what decides a trial, of those that found no difference
RACES = {}  # {what decides a trial of speed: its result}


@contextlib.contextmanager
def shared_trials(folder: Path | None = None, also_first: bool = True) -> Iterator[None]:
    """Context in which a run takes the trials of an earlier run with the same model and kernels, if they found no
    difference.

    folder: where other processes of this machine share theirs, as empty files. also_first: share
    `trial.first_difference` too, and not only the trials of the decode step.
    """
    from models import trial
    from models.cpu import packed, speed
    from models.cpu import step as cpu_step

    first_difference, race = trial.first_difference, speed.race

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

    def shared_race(part, steps, rows: int):
        shapes = [(p.dtype, p.shape, p.requires_grad) for p in part.model.parameters()]
        kind = repr((part.model.config, shapes, torch.get_num_threads(), steps, rows))
        if kind not in RACES:
            RACES[kind] = race(part, steps, rows)
        return RACES[kind]

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
    patches = {trial: {"first_difference": first}, cpu_step: steps, speed: {"race": shared_race}}
    with contextlib.ExitStack() as stack:
        for module, names in patches.items():
            stack.enter_context(mock.patch.multiple(module, **names))
        yield
