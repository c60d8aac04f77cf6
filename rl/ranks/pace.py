"""What a rank measures of its own work: which rank is slow, and how long the episodes of an environment are.

A rank is slow if it takes longer for a unit of its own work, whatever its share of the whole is. The lengths of
episodes decide which rank plays what (rl/ranks/playing.py).
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from statistics import median_low

from rl import ranks
from rl.records import Episode

SLOW = 1.5  # times what the median rank takes
EPOCHS = 3  # in a row, after which a line names the rank


class Pace:
    """This rank's measurements. A run has one, TrainState.pace, and passes it to whatever is to be measured."""

    def __init__(self):
        self.own: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])  # work: [seconds, units] since `compare`
        self.slow_epochs: Counter[tuple[str, int]] = Counter()  # (work, rank): epochs in a row in which it was slow
        self.played: dict[str, list[int]] = defaultdict(lambda: [0, 0])  # environment: [episodes so far, their tokens]

    @contextmanager
    def measured(self, work: str) -> Iterator[list[int]]:
        """Context whose seconds, without waiting for other ranks, count to some work. Yield a list for numbers of
        units."""
        began, waited, units = time.monotonic(), ranks.here.waited, []
        yield units
        self.own[work][0] += time.monotonic() - began - (ranks.here.waited - waited)
        self.own[work][1] += sum(units)

    def add_episodes(self, episodes: Iterable[Episode]) -> None:
        """Count the tokens of episodes that any rank has played."""
        for episode in episodes:
            count, tokens = self.played[episode.env]
            self.played[episode.env] = [count + 1, tokens + len(episode.ids_T)]

    def expected_tokens(self, env: str) -> float:
        """Return the mean tokens of an environment's episodes so far; the mean of all for one that has none."""
        count, tokens = self.played.get(env, (0, 0))
        if not count:
            count, tokens = (sum(values[i] for values in self.played.values()) for i in (0, 1))
        return tokens / count if count else 1.0

    def with_busy_seconds(self, phases: dict[str, dict]) -> dict[str, dict]:
        """Return the phases of a log line with the seconds that each of several ranks worked in them, without waiting.
        Print a line about a rank that has become slow. All ranks call this."""
        waited = [phase.pop("waited") for phase in phases.values()]
        if ranks.here.world > 1:
            busy = [phase["seconds"] - seconds for phase, seconds in zip(phases.values(), waited, strict=True)]
            for phase, *seconds in zip(phases.values(), *ranks.gathered(busy), strict=True):
                phase["busy_seconds"] = seconds
            self.compare()
        return phases

    def compare(self) -> None:
        """Compare all ranks since the last call. Print a line for each that has become slow. All ranks call this."""
        of_ranks = ranks.gathered(dict(self.own))
        self.own.clear()
        for work in sorted(set().union(*of_ranks)):
            counted = {rank: own[work] for rank, own in enumerate(of_ranks) if own.get(work, (0, 0))[1]}
            paces = {rank: seconds / units for rank, (seconds, units) in counted.items()}
            middle = median_low(paces.values()) if paces else 0.0
            for rank in range(len(of_ranks)):
                is_slow = rank in paces and paces[rank] > SLOW * middle
                self.slow_epochs[work, rank] = self.slow_epochs[work, rank] + 1 if is_slow else 0
                if self.slow_epochs[work, rank] == EPOCHS:
                    times = f"{paces[rank] / middle:.1f} times as long as the median rank"
                    print(
                        f"rank {rank} is slow, and the others wait: {work} takes it {times}, {EPOCHS} epochs in a row"
                    )
