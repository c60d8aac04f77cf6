"""How the products of models/linear.py are computed on a CPU: a trial of speed (speed.py) chooses the library, once for
the process. models/trial.py then tries whether sampling and training have the same bits.
"""

from collections.abc import Iterator
from typing import Literal

import torch

from models.cpu import onednn, packed, speed, step
from models.cpu.packed import Library
from models.cpu.speed import Part, Step
from models.decoder import CausalLM
from models.trial import ONE_THREAD, ROWS

NAMES = {
    "onednn": "oneDNN, from copies of frozen weights",
    "mkl": "MKL, from copies of frozen weights",
    "plain": "plain, from the weights as they lie",
}


def choose_for_model(model: CausalLM, products: Library | Literal["auto"], rows: int) -> None:
    """Choose the library of a model's products and print it. rows: sequences that are sampled at once."""
    dtype = model.lm_head.weight.dtype
    print(f"products: {choose_products(products, model, rows)}")
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
        packed.use(asked_library(other)[0])
        if packed.library == other != before:
            yield NAMES[other]


def choose_products(kind: Library | Literal["auto"], model: CausalLM | Part, rows: int = ROWS) -> str:
    """Set packed.py's library of products with frozen weights: the one that is asked for, or with "auto" the best.
    Return a line about it."""
    chosen, why = best_library(model, rows) if kind == "auto" else asked_library(kind)
    packed.use(chosen)
    return f"{NAMES[chosen]} ({why})"


def usable_libraries() -> list[Library]:
    """Return the libraries whose products are accurate here."""
    return [by for by in ("onednn", "mkl") if packed.usable(torch.float32, by)] + ["plain"]


def asked_library(kind: Library) -> tuple[Library, str]:
    """Return the library that is asked for, or "plain" where it is missing or inexact, and why."""
    return (kind, "as asked") if kind in usable_libraries() else ("plain", f"{kind} is missing or inexact here")


def best_library(model: CausalLM | Part, rows: int = ROWS) -> tuple[Library, str]:
    """Return the library with which a sampled token costs least (speed.py), and why.

    The decode step is the fastest that the shapes allow. Of a model with trainable weights, the step of the chosen
    library is then tried for its bits, as a run does in any case; if they allow only another one, the trial of speed is
    repeated with that.

    Libraries that cost up to speed.SAME times the least count as equal, because two runs of one command that choose
    differently differ in their bits. Of those the first is taken: in float32 MKL, where a row's bits do not depend on
    the number of rows, as with Intel's AVX-512; oneDNN where it multiplies all of float32, as with AVX-512, so that its
    speed hardly depends on the shapes; then plain products, which take no memory. A small model gets the first without
    a trial, so that all of its runs choose alike.
    """
    part = model if isinstance(model, Part) else speed.part_of(model)
    libraries, half = usable_libraries(), part.head_VD.dtype.itemsize == 2
    if libraries == ["plain"]:
        return "plain", "copies are impossible or inexact here"
    order: list[Library] = ["onednn", "plain", "mkl"] if onednn.multiplies_float32() else ["plain", "mkl", "onednn"]
    if "mkl" in libraries and not half and packed.independent_rows("mkl"):
        order = ["mkl", *(by for by in order if by != "mkl")]
    order = [by for by in order if by in libraries]
    if part.whole < ONE_THREAD:
        return order[0], "a small model, which no trial of speed is made for"
    steps: dict[Library, Step | None] = {}
    for by in order:
        with packed.taken(by):
            steps[by] = next(iter(step.possible_arguments(part.model, part.whole)), None)
    while True:
        chosen, costs = speed.race(part, steps, rows)
        packed.use(chosen, afresh=True)
        allowed = steps[chosen]
        if type(model) is CausalLM and any(p.requires_grad for p in model.parameters()):
            allowed = step.exact_arguments(model)
        if allowed == steps[chosen]:
            return chosen, _reason(chosen, costs, half)
        steps[chosen] = allowed


def _reason(chosen: Library, costs: dict[Library, float], half: bool) -> str:
    """Return a line about the costs."""
    speeds = {by: costs["plain"] / cost for by, cost in costs.items()}
    if half and chosen == "mkl":
        return f"as float32, at {speeds['mkl']:.2f}x the speed of 16 bits here"
    tried = ", ".join(f"{'oneDNN' if by == 'onednn' else 'MKL'}'s {speeds[by]:.2f}x" for by in speeds if by != "plain")
    equal = f"; up to {speed.SAME:g}x count as equal" if costs[chosen] > 1 else ""
    return f"speed of copies here: {tried}{equal}"
