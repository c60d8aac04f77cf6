"""Several processes of one run, called ranks: who computes what, and how the results meet.

Every rank holds the whole state of the run and takes the same steps. Shared out are what takes the time: the episodes
that are played, and the pieces of a batch. A result does not depend on the rank that computes it, and results are put
together in the order of the tasks or pieces; so on CPUs one to eight ranks train the same adapter. The first rank alone
writes and prints. A process that `rl/ranks/launch.py` has not made one of several is rank 0 of 1: then the functions
here do everything themselves and send nothing.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar

from rl.config.refusals import Refusal

T = TypeVar("T")
SILENT = 75  # exit status of a rank that ends because of another, without a line of its own


class AnotherRankFailed(RuntimeError):
    """Another rank failed and has said why; this one ends in silence."""


@dataclass
class Here:
    """This process's place among the ranks."""

    rank: int = 0
    world: int = 1  # number of ranks
    store: Any = None  # the torch.distributed store that they share; None if there is one rank
    waited: float = 0.0  # seconds spent waiting for others since `take_waited` was last called
    waiting: bool = False  # for others, now
    waits_outside: set[int] = field(default_factory=set)  # threads that are in `waiting_outside`
    phase: str = ""  # that this process is in; rl/run/phases.py sets it
    shards: Any = None  # rl/ranks/shard.py's of the model in use; None: the model is whole
    interrupt: Callable[[], None] = lambda: None  # raises Interrupted if a signal has come; rl/run/signals.py sets it
    nonfinite: list[int] = field(default_factory=list)  # ranks whose part of the last shared gradient was not finite


here = Here()


def program() -> str:
    """Return the name of the program that the ranks run."""
    name = os.path.basename(sys.argv[0])
    return name if name == "eval.py" else "train.py"


def say(line: str) -> None:
    """Print why the run ends."""
    print(f"{program()}: {line}", file=sys.stderr, flush=True)


def is_first() -> bool:
    return here.rank == 0


def first_only(function: Callable[..., T]) -> Callable[..., T | None]:
    """Decorate a function that writes: it does nothing on other ranks than the first."""

    @wraps(function)
    def on_first(*args, **kwargs):
        return function(*args, **kwargs) if is_first() else None

    return on_first


def holders_only(function: Callable[..., T]) -> Callable[..., T | None]:
    """Decorate a function that saves what trains: the first rank calls it, or all where each trains a share."""

    @wraps(function)
    def on_holders(*args, **kwargs):
        return function(*args, **kwargs) if is_first() or trains_shares() else None

    return on_holders


def trains_shares() -> bool:
    """Return whether each rank trains a share of the weights."""
    return here.shards is not None and here.shards.trains


def share(count: int, rank: int, world: int) -> range:
    """Return the indices of `count` things that a rank takes: adjacent ones, as evenly as can be."""
    return range(rank * count // world, (rank + 1) * count // world)


def own(pieces: Iterable[T]) -> Iterable[T]:
    """Return the pieces that this rank takes, each for one forward; `fill` puts the results together."""
    # Adjacent pieces, so that the results of the ranks, one after another, are in the order of the pieces.
    pieces = list(pieces)
    mine = [pieces[i] for i in share(len(pieces), here.rank, here.world)]
    return mine if here.shards is None else here.shards.each(mine)


@contextmanager
def waiting_outside() -> Iterator[None]:
    """Context in which a thread waits for environments or a server, which have time limits of their own: the heartbeat
    does not take its rank for hung."""
    thread = threading.get_ident()
    here.waits_outside.add(thread)
    try:
        yield
    finally:
        here.waits_outside.discard(thread)


def sampling() -> AbstractContextManager:
    """Return the context in which a rank samples, or waits for those that do."""
    return nullcontext() if here.shards is None else here.shards.sampling()


def computing() -> AbstractContextManager:
    """Return the context of forward passes without a backward."""
    return nullcontext() if here.shards is None else here.shards.lockstep()


def fill(*tensors: Any) -> None:
    """Put CPU tensors together in place: each entry was written by one rank and is 0 on the others."""
    if here.world > 1:
        import torch.distributed as dist  # torch loads slowly, and programs without a model do not need it

        for tensor in tensors:
            meet(lambda tensor=tensor: dist.all_reduce(tensor))


def gathered(value: T) -> list[T]:
    """Return the value that each rank gives, in the order of ranks."""
    if here.world == 1:
        return [value]
    import torch.distributed as dist  # as above

    values = [None] * here.world
    meet(lambda: dist.all_gather_object(values, value))
    return values


def from_first(value: T) -> T:
    """Return the first rank's value."""
    return gathered(value if is_first() else None)[0]


def wait() -> None:
    """Wait until every rank is here."""
    gathered(None)


def together(work: Callable[[], T]) -> list[T]:
    """Do this rank's work and return that of all ranks, in order. If one raises an error, all end: the first of those
    that failed raises its own, the others AnotherRankFailed."""
    if here.world == 1:
        return [work()]
    result, error = None, None
    try:
        result = work()
    except Exception as raised:
        error = raised
    return agreed(result, error)


def agreed(result: T, error: Exception | None = None) -> list[T]:
    """Return what every rank brings, in order. If one brings an error, all end as `together` says."""
    if error is not None and here.shards is not None and here.shards.broken:
        raise error  # the others are in the midst of a pass over the model, and would not come here
    outcomes = gathered((result, None if error is None else type(error).__name__))
    failed = next((rank for rank, (_, name) in enumerate(outcomes) if name), None)
    if failed == here.rank:
        raise error
    if failed is not None:
        raise AnotherRankFailed(f"rank {failed} failed ({outcomes[failed][1]})")
    return [result for result, _ in outcomes]


def chosen(choose: Callable, model: Any, threads: int, trial: bool, products: str, rows: int) -> tuple[str, str]:
    """Return what `choose` (models.choose_threads) returns on the first rank; the others take the same kernels.

    Raises ValueError where another rank's CPU lacks them.
    """
    if here.world == 1:
        return choose(model, threads, trial, products, rows)
    import torch  # as above

    def on_first() -> tuple[str, str, int] | None:
        with sampling():
            return (*choose(model, threads, trial, products, rows), torch.get_num_threads()) if is_first() else None

    exact, kind, count = together(on_first)[0]
    kinds = gathered(kind if is_first() else choose(model, count, False, kind)[1])
    other = next((rank for rank, theirs in enumerate(kinds) if theirs != kind), None)
    if other is not None:
        raise Refusal(f"the CPU of rank {other} multiplies by products={kinds[other]}, that of rank 0 by {kind}")
    return exact, kind


def take_waited() -> float:
    """Return the seconds spent waiting for others since the last call."""
    seconds, here.waited = here.waited, 0.0
    return seconds


def speaks(store: Any = None) -> bool:
    """Return whether this rank is to say why the run ends: it is the first that asks, and asks for the first time."""
    store = store or here.store
    if store is None:
        return True
    # The store decides who is first, so that a failure of all ranks prints one line.
    me = f"{here.rank} {time.monotonic()}"
    try:
        return store.compare_set("spoken", "", me).decode() == me
    except RuntimeError:  # the store is gone, and with it the process that would speak
        return True


def meet(exchange: Callable[[], Any]) -> None:
    """Exchange something with the other ranks, and count the time as waiting. Raise AnotherRankFailed if the connection
    to one breaks; Interrupted if it is a signal to all that ended it."""
    began, here.waiting = time.monotonic(), True
    try:
        exchange()
    except RuntimeError as error:  # the connection to a rank broke
        here.interrupt()
        line = str(error).splitlines()[0][:200]
        # The process that started the ranks prints this line if no rank says more.
        with suppress(RuntimeError):
            here.store.compare_set("lost", "", line)
        raise AnotherRankFailed(line) from None
    finally:
        here.waiting = False
        here.waited += time.monotonic() - began
