"""How the products of models/linear.py are computed on a CPU: trials of speed choose the library, once for the process.

models/trial.py then tries whether sampling and training have the same bits.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import geometric_mean

import torch
import torch.nn.functional as F
from torch import nn

from models.cpu import onednn, packed
from models.cpu.packed import Library
from models.trial import ONE_THREAD

FASTER, CLEARLY = 1.1, 1.25  # times the speed; on a busy machine a trial was off by up to 13 %
NAMES = {
    "onednn": "oneDNN, from copies of frozen weights",
    "mkl": "MKL, from copies of frozen weights",
    "plain": "plain, from the weights as they lie",
}
ROWS, ROWS_LARGE, PAIRS = (16, 256), (16, 64, 256), 15  # of the products that are timed: sampling and training
WIDEST, WIDEST_LARGE = 768, 4096  # inputs and outputs of them: of a model that stays in a cache, and of a larger one
READ = 2**25  # numbers of a larger model's weights that are multiplied in turn, at most: 128 MiB in float32
LONGEST = 0.1  # seconds for a library and a number of rows; a CPU without products of 16 bits may take that for one


def choose_for_model(model: nn.Module, products: str) -> None:
    """Choose the library of a model's products and print it."""
    cfg, dtype = model.config, model.lm_head.weight.dtype
    weights = sum(p.numel() for p in model.parameters())
    print(f"products: {choose_products(products, cfg.hidden_size, cfg.intermediate_size, dtype, weights)}")
    if dtype.itemsize == 2 and not packed.usable(torch.bfloat16, "onednn"):
        memory = "in less memory than MKL's copies" if packed.library == "mkl" else "in twice the memory"
        print(f"16 bits: this CPU has no fast products of them; dtype=float32 is faster, {memory}")


def library() -> str:
    """Return the library of products in use."""
    return packed.library


def other_libraries() -> Iterator[str]:
    """Take each other library in turn and yield its name for people; go back to the first one after the last."""
    before = packed.library
    for other in ("mkl", "onednn", "plain", before):
        choose_products(other)
        if packed.library == other != before:
            yield NAMES[other]


def choose_products(
    kind: str = "auto",
    inputs: int = WIDEST,
    outputs: int = WIDEST,
    dtype: torch.dtype = torch.float32,
    weights: int = 0,
) -> str:
    """Set packed.py's library of products with frozen weights as `best_library` says. Return a line about it."""
    chosen, why = best_library(kind, inputs, outputs, dtype, weights)
    packed.use(chosen)
    return f"{NAMES[chosen]} ({why})"


def best_library(kind: str, inputs: int, outputs: int, dtype: torch.dtype, weights: int = 0) -> tuple[Library, str]:
    """Return the library for products with frozen weights, and why: the one that is asked for, or with "auto" what
    trials find for a layer [outputs, inputs] of dtype in a model of so many weights. Where a library is missing or
    inexact, products are plain.

    The bounds lie away from the speeds of CPUs that we know, because two runs of one command that choose differently
    differ in their bits. oneDNN's copies must be faster than both others, and clearly so on a CPU without AVX-512.
    MKL's must be clearly faster than plain products; where a row's bits do not depend on the number of rows, as with
    Intel's AVX-512, they must not be clearly slower. In 16 bits, where they are twice as large, they must be clearly
    faster in any case.
    """
    able = [by for by in ("onednn", "mkl") if packed.usable(torch.float32, by)]
    if kind != "auto":
        return (kind, "as asked") if kind in (*able, "plain") else ("plain", f"{kind} is missing or inexact here")
    if dtype.itemsize == 2 and "mkl" in able:
        faster = speedup_by("mkl", inputs, outputs, dtype, weights)
        if faster >= CLEARLY:
            return "mkl", f"as float32, at {faster:.2f}x the speed of 16 bits here"
        able.remove("mkl")  # its copies are twice as large
    speeds = {by: speedup_by(by, inputs, outputs, torch.float32, weights) for by in able}
    if not speeds:
        return "plain", "copies are impossible or inexact here"
    by_onednn, by_mkl = (speeds.get(by, 0.0) for by in ("onednn", "mkl"))
    least_onednn = FASTER if onednn.multiplies_float32() else CLEARLY
    least_mkl = 1 / CLEARLY if by_mkl and packed.independent_rows("mkl") else CLEARLY
    best = "onednn" if by_onednn >= least_onednn * max(by_mkl, 1) else "mkl" if by_mkl >= least_mkl else "plain"
    tried = ", ".join(f"{'oneDNN' if by == 'onednn' else 'MKL'}'s {faster:.2f}x" for by, faster in speeds.items())
    return best, f"speed of copies here: {tried}"


@torch.no_grad()
def speedup_by(by: Library, inputs: int, outputs: int, dtype: torch.dtype = torch.float32, weights: int = 0) -> float:
    """Return the speed of products from a library's copies of weights [outputs, inputs] over that of plain ones:
    `speedup` with few and with many rows, and the geometric mean of these.

    weights: of the whole model. A small model's stay in a cache: one matrix is multiplied repeatedly. Of a larger model
    several matrices are multiplied in turn, so that each is read from memory, which takes most of the time with few
    rows.
    """
    large = weights >= ONE_THREAD
    shape = [min(size, WIDEST_LARGE if large else WIDEST) for size in (outputs, inputs)]
    count = max(1, min(weights, READ) // math.prod(shape)) if large else 1
    matrices, threads = [torch.ones(shape, dtype=dtype) for _ in range(count)], torch.get_num_threads()
    copies = [packed.pack_weight(matrix, by) for matrix in matrices]
    torch.set_num_threads(threads if large else 1)
    speedups = []
    for rows in ROWS_LARGE if large else ROWS:
        x, own, packs = torch.ones(rows, shape[1], dtype=dtype), itertools.cycle(matrices), itertools.cycle(copies)
        clock = time.process_time if large else time.thread_time  # of all threads, also those that wait for others
        speedups.append(speedup(partial(_product, x, own), partial(_packed_product, x, packs), clock))
    torch.set_num_threads(threads)
    return geometric_mean(speedups)


def _product(x: torch.Tensor, weights: Iterator[torch.Tensor]) -> torch.Tensor:
    return F.linear(x, next(weights))


def _packed_product(x: torch.Tensor, copies: Iterator[packed.Packed]) -> torch.Tensor:
    return packed.multiply(x, next(copies))


def speedup(plain: Callable, other: Callable, clock: Callable[[], float] | None = None) -> float:
    """Return the least CPU time of a plain product over the least of another, of PAIRS pairs after the first, or of the
    fewer that LONGEST seconds allow. Other programs share caches, so they lengthen CPU time too, but not every time:
    the least hardly changes from run to run, and with it the library that is chosen.

    clock: of CPU time, by default this thread's.
    """
    clock = clock or time.thread_time
    times, ends = [], clock() + LONGEST
    while not times or (len(times) <= PAIRS and clock() < ends):
        began = clock()
        plain()
        middle = clock()
        other()
        times.append((middle - began, clock() - middle))
    ours, theirs = (min(column) for column in zip(*(times[1:] or times), strict=True))  # the first chooses kernels
    return ours / theirs
