"""The live line of a terminal: how far an epoch is, how long it and the run still take, and how its episodes go.

    epoch 3/48 episodes 29/128 ███▌        12 s left, run 8 min left  success 41 %  reward 0.52  1,234 tokens/s

It is drawn on a terminal alone; where stdout or stderr is a file or a pipe, nothing is written.
"""

import sys
import time
from collections.abc import Collection
from typing import Any

from tqdm import tqdm

from rl import ranks
from rl.records import Episode

FORMAT = "{desc} {n_fmt}/{total_fmt} {bar} {remaining} left{postfix}"
# When this process began its first epoch and ended each, and the epochs then left. Of the process, because the bar of
# an evaluation shows the run's time too.
ended: list[tuple[float, int]] = []


def progress_bar(total: int, name: str) -> tqdm:
    """Return a progress bar on a terminal, nothing elsewhere."""
    silent = None if sys.stdout and sys.stdout.isatty() else True
    bar = tqdm(total=total, desc=name, leave=False, disable=silent, dynamic_ncols=True, bar_format=FORMAT)
    if not bar.disable:
        bar.set_postfix_str(run_left())
    return bar


def finished(progress: Any, episodes: Collection[Episode]) -> None:
    """Count an episode that has just finished. episodes: all that have."""
    if not progress.disable and time.time() - progress.last_print_t >= progress.mininterval:
        progress.set_postfix_str("  ".join(filter(None, (run_left(), described(episodes, progress.start_t)))), False)
    progress.update()


def described(episodes: Collection[Episode], began: float) -> str:
    """Return success, reward and tokens per second of episodes that began to be played then."""
    played = [e for e in episodes if not e.infrastructure_failed]
    if not played:
        return ""
    success, reward = (sum(values) / len(played) for values in ((e.success for e in played), (e.score for e in played)))
    tokens = sum(turn.stop - turn.start for e in played for turn in e.turns) * ranks.here.world
    return f"success {success:.0%}  reward {reward:.2f}  {tokens / max(time.time() - began, 1e-9):,.0f} tokens/s"


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
