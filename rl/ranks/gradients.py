"""The gradient of an optimizer step, added up in one order for every number of ranks.

Rounding depends on the order of a sum. So a step's pieces form SHARES parts of adjacent pieces, whoever computes them:
a part's gradients are added piece by piece, those of the parts in a binary tree. Ranks that hold adjacent parts add
them up to nodes of that tree, exchange these and add the rest, each for itself.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from models.random import fold_all
from rl import ranks
from rl.ranks.pace import Pace
from rl.run.memory_errors import is_from_cuda

SHARES = 8  # parts of a step, and so the most ranks that give the same bits as one; a power of two
LARGE = 2**30  # bytes

T = TypeVar("T")


@dataclass
class Node:
    """The sum of 2**level adjacent parts, the `index`-th of its level. A gradient is None where no piece has one."""

    level: int
    index: int
    grads: list[Tensor | None]


class StepSum(Generic[T]):
    """The pieces of one optimizer step, and the sum of their gradients.

    Iterate over (number, piece) of those that this rank computes, and append a result for each. The iteration takes the
    gradient of each finished part out of p.grad; `summed` puts the sum of all parts there at the end of its block, and
    then the results are those of all pieces, in order.
    """

    def __init__(self, pieces: list[T], parameters: list[Tensor]):
        self.pieces, self.parameters = pieces, parameters
        self.results: list = []
        self.nodes: list[Node] = []
        world = ranks.here.world
        one_gpu = world == 1 and any(p.is_cuda for p in parameters)  # which promises no bits in any case
        # Large gradients are added as they come, and those of the ranks by an all-reduce: that needs no copies, but the
        # rounding depends on the number of ranks.
        self.in_place = one_gpu or sum(4 * p.numel() for p in parameters) > LARGE
        parts = world if self.in_place else max(SHARES, 1 << (world - 1).bit_length())
        # The parts of each rank, each with the numbers of its pieces.
        self.parts = [
            [(part, ranks.share(len(pieces), part, parts)) for part in ranks.share(parts, rank, world)]
            for rank in range(world)
        ]

    def __iter__(self) -> Iterator[tuple[int, T]]:
        for part, numbers in self.parts[ranks.here.rank]:
            for number in numbers:
                if ranks.here.shards is not None:
                    ranks.here.shards.begin_piece()
                yield number, self.pieces[number]
            # The part's gradients leave the parameters, so that the next part's are added up apart from them.
            push(self.nodes, Node(0, part, [p.grad for p in self.parameters]))
            for p in self.parameters:
                p.grad = None

    def counts(self) -> list[int]:
        """Return how many pieces each rank computes."""
        return [sum(len(numbers) for _, numbers in parts) for parts in self.parts]


@contextmanager
def summed(pieces: Iterable[T], parameters: list[Tensor], pace: Pace | None = None) -> Iterator[StepSum[T]]:
    """Context of an optimizer step: after it, the parameters' gradients are the sums over all pieces, on every rank.

        with summed(micro_batches, parameters) as step:
            for number, micro in step:
                loss.backward()
                step.results.append(...)

    pace: measures this rank. Raises torch.OutOfMemoryError on every rank if memory runs out on one.
    """
    shards = ranks.here.shards
    if shards is not None:
        parameters = shards.replicated(parameters)  # the others are reduced by their own backward
    step = StepSum(list(pieces), parameters)
    if ranks.here.world == 1:
        yield step
    else:
        yield from _with_other_ranks(step, pace or Pace())
    for p, grad in zip(parameters, step.nodes[0].grads if parameters else [], strict=True):
        p.grad = grad


def _with_other_ranks(step: StepSum[T], pace: Pace) -> Iterator[StepSum[T]]:
    """Yield the step for the block of `summed`; then exchange results and sums with the other ranks."""
    shards, error = ranks.here.shards, None
    try:
        with pace.measured("a micro-batch of an update") as units:
            units += [step.counts()[ranks.here.rank]]
            if shards is not None:
                shards.begin_step(max(step.counts()))
            yield step
            if shards is not None:
                shards.end_step(step.parameters)
    except Exception as raised:
        if shards is not None and isinstance(raised, torch.OutOfMemoryError):
            raise RuntimeError(str(raised)) from None  # the others cannot repeat the step with smaller pieces
        error = raised
    # A rank that failed comes here too, because the others would wait for its nodes.
    ran_out = error is not None and is_from_cuda(error)
    of_ranks = ranks.agreed(None if ran_out else step.results, None if ran_out else error)
    step.results = []
    for rank, results in enumerate(of_ranks):
        if results is None:
            raise torch.OutOfMemoryError(f"out of memory on rank {rank}")
        step.results += results
    if step.parameters:
        step.nodes = (reduced if step.in_place else exchanged)(step.nodes, step.parameters)


@contextmanager
def same_masks(dropout: float, key: tuple[int, int, int], device: torch.device) -> Iterator[None]:
    """Context in which dropout draws the masks of `key` on any rank. Afterwards torch's generators are as they were:
    the CPU's and that of `device`. The other GPUs of a machine are left alone. Does nothing without dropout."""
    if not dropout:
        yield
        return
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(int(fold_all([key])))
        yield


def push(nodes: list[Node], node: Node) -> None:
    """Append the node that follows; a left and a right neighbour become the node above them."""
    while nodes and node.index % 2 and (nodes[-1].level, nodes[-1].index) == (node.level, node.index - 1):
        node = Node(node.level + 1, node.index // 2, added(nodes.pop().grads, node.grads))
    nodes.append(node)


def added(left: list[Tensor | None], right: list[Tensor | None]) -> list[Tensor | None]:
    """Return left + right, written into left's tensors."""
    pairs = zip(left, right, strict=True)
    return [b if a is None else a if b is None else a.add_(b) for a, b in pairs]


def reduced(nodes: list[Node], parameters: list[Tensor]) -> list[Node]:
    """Return one node with the sum of all ranks' only nodes, by all-reduces of the library."""
    [node] = nodes
    own = [grad is not None for grad in node.grads], is_finite(node.grads)
    flags, finite = zip(*ranks.gathered(own), strict=True)
    ranks.here.nonfinite = [rank for rank, whole in enumerate(finite) if not whole]
    for i, (p, anywhere) in enumerate(zip(parameters, map(any, zip(*flags, strict=True)), strict=True)):
        if anywhere:
            node.grads[i] = grad = torch.zeros_like(p) if node.grads[i] is None else node.grads[i]
            ranks.meet(partial(dist.all_reduce, grad))
    return nodes


def exchanged(nodes: list[Node], parameters: list[Tensor]) -> list[Node]:
    """Return the root of the tree, from the nodes of all ranks."""
    have = [[grad is not None for grad in node.grads] for node in nodes]
    tables = ranks.gathered([(node.level, node.index, flags) for node, flags in zip(nodes, have, strict=True)])
    most, sizes = max(map(len, tables)), [p.numel() for p in parameters]
    # Each rank sends as many nodes as the one with the most; missing ones, and missing gradients, are zeros.
    sent = torch.zeros(most, sum(sizes), device=parameters[0].device)
    for row, node in zip(sent, nodes, strict=False):
        for place, grad in zip(row.split(sizes), node.grads, strict=True):
            if grad is not None:
                place.copy_(grad.flatten())
    came = [torch.empty_like(sent) for _ in tables]
    # Gathered and added here, because an all-reduce adds in an order that changes with the number of ranks.
    ranks.meet(partial(dist.all_gather, came, sent))
    ranks.here.nonfinite = [rank for rank, rows in enumerate(came) if not is_finite([rows])]
    merged: list[Node] = []
    for table, rows in zip(tables, came, strict=True):
        for (level, index, flags), row in zip(table, rows, strict=False):
            grads = [part.view_as(p).to(p.dtype) for part, p in zip(row.split(sizes), parameters, strict=True)]
            push(merged, Node(level, index, [grad if flag else None for grad, flag in zip(grads, flags, strict=True)]))
    return merged


def is_finite(grads: list[Tensor | None]) -> bool:
    """Return whether all numbers are finite, as far as their sum shows, which takes no memory."""
    return all(math.isfinite(grad.sum().item()) for grad in grads if grad is not None)
