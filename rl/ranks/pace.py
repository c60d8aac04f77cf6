"""Which rank is slow: how long each takes for a unit of its own work, whatever its share of the whole is."""

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median_low

from rl import ranks

SLOW = 1.5  # times what the median rank takes
EPOCHS = 3  # in a row, after which a line names the rank

# Of this process, which is one rank: work is measured inside a rollout or an update, and compared once an epoch.
_own: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])  # work: [seconds, units], of this rank since `look`
_slow: Counter[tuple[str, int]] = Counter()  # (work, rank): epochs in a row in which it was slow


@contextmanager
def measured(work: str) -> Iterator[list[int]]:
    """Count the block's seconds, without waiting for other ranks, to some work. Yield a list for numbers of units."""
    began, waited, units = time.monotonic(), ranks.here.waited, []
    yield units
    _own[work][0] += time.monotonic() - began - (ranks.here.waited - waited)
    _own[work][1] += sum(units)


def look() -> None:
    """Compare all ranks since the last look, and print a line for each that has become slow. All ranks call this."""
    everyone = ranks.gathered(dict(_own))
    _own.clear()
    for work in sorted(set().union(*everyone)):
        counted = {rank: work_of[work] for rank, work_of in enumerate(everyone) if work_of.get(work, (0, 0))[1]}
        paces = {rank: seconds / units for rank, (seconds, units) in counted.items()}
        middle = median_low(paces.values()) if paces else 0.0
        for rank in range(len(everyone)):
            is_slow = rank in paces and paces[rank] > SLOW * middle
            _slow[work, rank] = _slow[work, rank] + 1 if is_slow else 0
            if _slow[work, rank] == EPOCHS:
                times = f"{paces[rank] / middle:.1f} times as long as the median rank"
                print(f"rank {rank} is slow, and the others wait: {work} takes it {times}, {EPOCHS} epochs in a row")


def with_busy_seconds(phases: dict[str, dict]) -> dict[str, dict]:
    """Return the phases of a log line with the seconds that each of several ranks worked in them, without waiting.
    Print a line about a rank that has become slow."""
    waited = [phase.pop("waited") for phase in phases.values()]
    if ranks.here.world > 1:
        busy = [phase["seconds"] - seconds for phase, seconds in zip(phases.values(), waited, strict=True)]
        for phase, *seconds in zip(phases.values(), *ranks.gathered(busy), strict=True):
            phase["busy_seconds"] = seconds
        look()
    return phases
