"""Time of a rollout on CUDA if prompts wait for one another, simulated: python -m benchmarks.schedule

The rule is that of models/cuda/ahead.py. Rows play TURNS turns, whose lengths have a geometric distribution; an
observation comes back at once. A chunk of steps costs CHUNK, and computing any number of observations costs PREFILL:
their weights are read once, and a captured forward launches 257 kernels where a step launches 312. That holds while
they are few hundred tokens; more of them cost the same together as apart.
"""

import random
from types import SimpleNamespace

from models.cuda import ahead
from models.cuda.graph import CHUNK
from models.engine import Slot

PREFILL = 257 / 312  # steps that a forward of few tokens takes, by kernels
TURNS, EPISODES, SEEDS = 8, 4, 12  # turns of an episode, episodes of a row, repeats
ROWS, LENGTHS = (16, 64, 256), (8, 32, 128, 512)  # rows that decode together, mean tokens of a turn


def simulate(rows: int, length: int, seed: int) -> float:
    """Return the time of a rollout in steps."""
    draw, time, left = random.Random(seed), 0.0, [0] * rows
    turns = [TURNS * EPISODES] * rows
    slots = {i: Slot((0, i), i, pending=[0, 0]) for i in range(rows)}  # two pending tokens: one is to be computed
    host = ahead.Ahead(SimpleNamespace(packed=False), slots, 10**9)
    while slots:
        ready = host.ready(list(slots))
        filled = [i for i in ready if len(slots[i].pending) == 2]
        for i in filled:
            slots[i].pending, left[i] = [0], 1 + int(draw.expovariate(1 / length))
        time += CHUNK + PREFILL * bool(filled)
        for i in ready:
            left[i] -= CHUNK
            if left[i] <= 0:
                turns[i] -= 1
                slots[i].pending = [0, 0]
                if not turns[i]:
                    del slots[i]
    return time


def main() -> None:
    waiting = ahead.WAITING
    print("| rows | " + " | ".join(f"turns of {length}" for length in LENGTHS) + " |")
    print("| ---: |" + " ---: |" * len(LENGTHS))
    for rows in ROWS:
        ratios = []
        for length in LENGTHS:
            times = []
            for ahead.WAITING in (waiting, 0):
                times.append(sum(simulate(rows, length, seed) for seed in range(SEEDS)))
            ratios.append(times[0] / times[1])
        print(f"| {rows} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")


if __name__ == "__main__":
    main()
