"""How many sums of gradients a step holds at once: rl/ranks/tree.py adds them up, rl/peaks.py plans for them."""

SHARES = 8  # parts of a step (rl/ranks/tree.py), and so the most ranks that give the same bits as one; a power of two
LARGE = 2**30  # bytes


def adds_in_place(size: int, one_gpu: bool) -> bool:
    """Return whether gradients of so many bytes are added as they come, whatever reduce= is."""
    return size > LARGE or one_gpu


def most_held(pieces: int) -> int:
    """Return the most sums of gradients that one rank holds when it begins with a piece, if it adds in a tree: of the
    parts before, and of the same part if that has several pieces."""
    return (min(pieces, SHARES) - 1).bit_length() + (pieces > SHARES)
