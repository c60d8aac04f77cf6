"""The gradient of an optimizer step, added up in one order for every number of ranks.

Rounding depends on the order of a sum. So a step's pieces form SHARES parts of adjacent pieces, whoever computes them:
a part's gradients are added piece by piece, those of the parts in a binary tree. Ranks that hold adjacent parts add
them up to nodes of that tree, exchange these and add the rest, each for itself.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from models.random import fold_all
from rl import ranks
from rl.ranks import pace
from rl.run.memory_errors import may_run_out

SHARES = (
    8  # parts of a step (rl/ranks/gradients.py), and so the most ranks that give the same bits as one; a power of two
)
LARGE = 2**30  # bytes


def adds_in_place(size: int, one_gpu: bool) -> bool:
    """Return whether gradients of so many bytes are added as they come, whatever reduce= is."""
    return size > LARGE or one_gpu


def most_held(pieces: int) -> int:
    """Return the most sums of gradients that one rank holds when it begins with a piece, if it adds in a tree: of the
    parts before, and of the same part if that has several pieces."""
    return (min(pieces, SHARES) - 1).bit_length() + (pieces > SHARES)


@dataclass
class Node:
    """The sum of 2**level adjacent parts, the `index`-th of its level. A gradient is None where no piece has one."""

    level: int
    index: int
    grads: list[Tensor | None]


def accumulate(work: Callable, pieces: Iterable, parameters: list[Tensor], fast: bool = False) -> list:
    """Do `work(number, piece)`, which adds a piece's gradients to the parameters', for all pieces of an optimizer step.
    Return the results in the order of the pieces, and leave the sum of the gradients on every rank.

    fast: add gradients as they come, and those of the ranks by an all-reduce. It needs no copies of gradients and sends
    less, but numbers of ranks differ by rounding. Gradients of more than LARGE bytes are added so in any case, and
    those of a single GPU, of which no bits are promised.
    Raises torch.OutOfMemoryError on every rank if it is raised on one.
    """
    pieces, (rank, world), shards = list(pieces), (ranks.here.rank, ranks.here.world), ranks.here.shards
    if shards is not None:
        parameters = shards.replicated(parameters)  # the others have been reduced by their own backward
    fast = fast or adds_in_place(
        sum(4 * p.numel() for p in parameters), world == 1 and any(p.is_cuda for p in parameters)
    )
    parts = world if fast else max(SHARES, 1 << (world - 1).bit_length())

    def taken(rank: int) -> list[range]:
        """Return the numbers of the pieces of each part that a rank takes."""
        return [ranks.share(len(pieces), part, parts) for part in ranks.share(parts, rank, world)]

    def own() -> tuple[list, list[Node]]:
        results, nodes, most = [], [], max(sum(map(len, taken(other))) for other in range(world))
        rounds = nullcontext(work) if shards is None else shards.rounds(work, most, parameters)
        with rounds as do, pace.measured("a micro-batch of an update") as units:
            units += [len(numbers) for numbers in taken(rank)]
            for part, numbers in zip(ranks.share(parts, rank, world), taken(rank), strict=True):
                results += [do(i, pieces[i]) for i in numbers]
                push(nodes, Node(0, part, [p.grad for p in parameters]))
                for p in parameters:
                    p.grad = None
        return results, nodes

    if world == 1:
        results, nodes = own()
    else:
        found = ranks.together(partial(_unless_out_of_memory, own, nodes := []))
        if None in found:
            raise torch.OutOfMemoryError(f"out of memory on rank {found.index(None)}")
        results = [result for part in found for result in part]
        if not parameters:
            return results
        nodes = reduced(nodes, parameters) if fast else exchanged(nodes, parameters)
    for p, grad in zip(parameters, nodes[0].grads, strict=True):
        p.grad = grad
    return results


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


def _unless_out_of_memory(own: Callable, nodes: list[Node]) -> list | None:
    """Return the results of `own`, with its nodes in `nodes`; None if memory runs out."""
    with may_run_out():
        results, nodes[:] = own()
        return results
    return None


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
    import torch.distributed as dist

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
    import torch.distributed as dist

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
