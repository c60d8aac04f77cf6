"""Simulate how often the 80 % intervals of evaluations have the truth: python -m benchmarks.coverage

The truth is a rate of success, or a difference of two, drawn uniformly. Each task has a rate of its own around it, and
the episodes are shared out over the tasks at random, as seeds are. `spread` is the share of the variance that lies
between tasks: at 0 episodes are independent, at 1 a task always ends alike. Minutes on one core.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rl.config import program
from rl.config.arguments import Positive
from rl.stats import DIFFERENCE, RATE, bootstrap, interval

SIZES = ((15, 200), (30, 200), (60, 200), (151, 300))  # tasks, episodes
SPREADS = (0.2, 0.5)

Played = tuple[float, np.ndarray, np.ndarray]  # the truth, the value of each episode, its task


@dataclass
class Keys:
    simulations: Positive[int] = 4000  # of each row; the standard error of 80 % is 0.4 / sqrt(this)
    draws: Positive[int] = 400  # of the bootstrap


def success(rng: np.random.Generator, tasks: int, episodes: int, spread: float) -> Played:
    """Return the successes of one policy."""
    truth, of_task = rng.uniform(), rng.integers(tasks, size=episodes)
    strength = 1 / spread - 1  # of a beta law whose variance is spread * mean * (1 - mean)
    rates = rng.beta(truth * strength, (1 - truth) * strength, tasks)
    return truth, (rng.random(episodes) < rates[of_task]).astype(float), of_task


def difference(rng: np.random.Generator, tasks: int, episodes: int, spread: float) -> Played:
    """Return the paired differences of two policies' successes: 1, 0 or -1."""
    shares, of_task = rng.dirichlet([1, 1, 1]), rng.integers(tasks, size=episodes)
    bounds = rng.dirichlet((1 / spread - 1) * shares, tasks).cumsum(1)[of_task]
    value = 1.0 - (rng.random((episodes, 1)) > bounds[:, :2]).sum(1)
    return shares[0] - shares[2], value, of_task


POSSIBLE = {success: RATE, difference: DIFFERENCE}


def covered(simulate: Callable[..., Played], size: tuple[int, int], spread: float, keys: Keys) -> tuple[float, float]:
    """Return how often the clustered interval has the truth, and how often one that takes episodes for tasks has."""
    rng, hits, naive = np.random.default_rng(0), 0, 0
    for seed in range(keys.simulations):
        truth, values, of_task = simulate(rng, *size, spread)
        possible, values, names = POSSIBLE[simulate], values.tolist(), of_task.astype(str).tolist()
        low, high = interval(bootstrap(values, possible, keys.draws, seed, names))
        hits += low <= truth <= high
        low, high = interval(bootstrap(values, possible, keys.draws, seed))
        naive += low <= truth <= high
    return hits / keys.simulations, naive / keys.simulations


def main(keys: Keys) -> None:
    print(f"{keys.simulations:,} simulations of each row: standard error {0.4 / keys.simulations**0.5:.2%}\n")
    print("| interval of | tasks | episodes | spread | clustered | episodes taken for tasks |")
    print("| --- | --- | --- | --- | --- | --- |")
    for simulate in POSSIBLE:
        for tasks, episodes in SIZES:
            for spread in SPREADS:
                found = covered(simulate, (tasks, episodes), spread, keys)
                cells = " | ".join(f"{share:.1%}" for share in found)
                print(f"| {simulate.__name__} | {tasks} | {episodes} | {spread} | {cells} |", flush=True)


if __name__ == "__main__":
    [keys] = program.parse(sys.argv[1:], "benchmarks.coverage", Keys, about=__doc__)
    main(keys)
