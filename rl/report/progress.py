"""How far an epoch or an evaluation is: a live line on a terminal, and lines now and then in a log.

    epoch 3 episodes 29/128 ███▌        12 s left  run 8 min left  1,234 tokens/s

Success is not shown before all episodes are finished: the first to finish are the quick ones, which succeed more often.
Of several ranks the first one's share of the episodes is shown, and so its name.

Where stdout is a file or a pipe, what takes longer than FIRST seconds prints a line then, and at doubling intervals:

    evaluate on val: 0 of 400 episodes, 9,100 tokens in 30 s; up to 1 h 52 min left
    evaluate on val: 52 of 400 episodes, 19,400 tokens in 60 s; about 7 min left
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from tqdm import tqdm

from rl import ranks
from rl.records import Episode

FIRST, LONGEST = 30, 600  # seconds before a log's first line, and most seconds between two
ENOUGH = 1000  # sampled tokens from which their pace counts: before, prompts take the time
FORMAT = "{desc} {n_fmt}/{total_fmt} {bar} {remaining} left{postfix}"
# When this process began its first epoch and ended each, and the epochs then left. Of the process, because the bar of
# an evaluation shows the run's time too.
ended: list[tuple[float, int]] = []


class Log:
    """Takes the place of a progress bar without a terminal. A thread prints, because a turn may take minutes."""

    disable = True  # nothing is drawn

    def __init__(self, total: int, name: str):
        self.total, self.name, self.began = total, name, time.monotonic()
        self.done, self.most, self.earlier = 0, 0, 0  # episodes; most tokens of one; tokens sampled before `watch`
        self.printed = self.began, 0  # when the last line was printed, and the tokens then
        self.sampled: Callable[[], int] = lambda: 0
        self.over = False

    def __enter__(self) -> "Log":
        self._wait(FIRST)
        return self

    def __exit__(self, *_) -> None:
        self.over = True  # for a line that is being printed
        self.timer.cancel()

    def _wait(self, seconds: float) -> None:
        self.timer = threading.Timer(seconds, self._print)
        self.timer.daemon = True
        self.timer.name = threading.current_thread().name  # with adapters=, the run's: its lines begin with it
        self.timer.start()

    def clear(self) -> None:
        pass

    def reset(self, total: int) -> None:
        self.total = total

    def write(self, line: str) -> None:
        print(line, flush=True)

    def update(self, count: int = 1) -> None:
        """Count episodes that are finished."""
        self.done += count

    def watch(self, most: int, sampled: Callable[[], int]) -> None:
        """Episodes begin to be played. most: tokens of one. sampled: returns how many are sampled so far."""
        self.earlier, self.most, self.sampled = self.earlier + self.sampled(), most, sampled

    def _print(self) -> None:
        now, tokens = time.monotonic(), self.earlier + self.sampled()
        seconds = now - self.began
        sampled = f", {tokens:,} tokens" if tokens else ", prompts are being read" if self.most else ""
        took = f"in {duration(seconds)}{self._left(now, tokens)}"
        self.printed = now, tokens
        with contextlib.suppress(OSError):  # nobody reads any more: the next line of the program itself ends it
            self.write(f"{self.name}: {self.done} of {self.total} episodes{sampled} {took}")
        if not self.over:
            self._wait(min(seconds, LONGEST))

    def _left(self, now: float, tokens: int) -> str:
        """Return how long the rest takes, by the pace of episodes; while few are finished, at most, by the pace of
        tokens since the last line."""
        if self.done >= self.total / 10:
            return f"; about {duration((now - self.began) / self.done * (self.total - self.done))} left"
        new, rest = tokens - self.printed[1], self.total * self.most - tokens
        if new < ENOUGH or rest <= 0:
            return ""
        return f"; up to {duration((now - self.printed[0]) / new * rest)} left"


def progress_bar(total: int, name: str) -> tqdm | Log:
    """Return a progress bar on a terminal, and what prints lines elsewhere."""
    if ranks.here.world > 1:
        name = f"{name} (rank 0 of {ranks.here.world})"
    if not (sys.stdout and sys.stdout.isatty()):
        return Log(total, name)
    bar = tqdm(total=total, desc=name, leave=False, disable=None, dynamic_ncols=True, bar_format=FORMAT)
    if not bar.disable:
        bar.set_postfix_str(run_left())
    return bar


def finished(progress: Any, episodes: Collection[Episode]) -> None:
    """Count an episode that has just finished. episodes: all that have."""
    if not progress.disable and time.time() - progress.last_print_t >= progress.mininterval:
        progress.set_postfix_str("  ".join(filter(None, (run_left(), described(episodes, progress.start_t)))), False)
    progress.update()


def watch(progress: Any, most: int, sampled: Callable[[], int]) -> None:
    """Let a log count tokens (`Log.watch`)."""
    if isinstance(progress, Log):
        progress.watch(most, sampled)


def described(episodes: Collection[Episode], began: float) -> str:
    """Return the sampled tokens per second since `began` of finished episodes, times the number of ranks."""
    tokens = sum(turn.stop - turn.start for e in episodes for turn in e.turns) * ranks.here.world
    return f"{tokens / max(time.time() - began, 1e-9):,.0f} tokens/s" if tokens else ""


def epoch_ended(left: int) -> None:
    """Note that an epoch has ended and how many are left."""
    ended.append((time.time(), left))


def run_left(now: float | None = None) -> str:
    """Return how long the run still takes at the pace of the epochs since the first, or nothing before the second."""
    if len(ended) < 2:
        return ""
    # The last ten epochs: replies grow and shrink in the course of a run, and so does the time of an epoch.
    (began, first), (last, left) = ended[max(0, len(ended) - 11)], ended[-1]
    if first <= left:  # another run, in the same process
        return ""
    seconds = (last - began) / (first - left) * left - ((time.time() if now is None else now) - last)
    return f"run {duration(seconds)} left" if seconds >= 0.5 else ""


def duration(seconds: float) -> str:
    """Return a duration in the unit that fits."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"
