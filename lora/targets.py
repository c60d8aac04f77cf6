"""Which layers get an adapter: names, lists of names, regular expressions, and PEFT's rank_pattern and alpha_pattern.

Regular expressions may be a stranger's. Python's re backtracks, and an expression of ten characters can keep it busy
for years. Here the names lie end to end in one text. A set of positions in it is an integer with a bit for each, and an
expression is followed backwards: from the positions where it may end to those where it may begin, for all names at
once. References to groups, atomic groups, look behind and flags are refused: layer names need none.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterable
from itertools import accumulate
from re import _constants as op
from re import _parser as parser

STEPS = 200_000  # most set operations, and characters of expressions, for one set of names
LENGTH = 5000  # most characters of an expression
CATEGORIES = {  # of characters: (the test, its result)
    **{op.CATEGORY_DIGIT: (str.isdecimal, True), op.CATEGORY_NOT_DIGIT: (str.isdecimal, False)},
    **{op.CATEGORY_SPACE: (str.isspace, True), op.CATEGORY_NOT_SPACE: (str.isspace, False)},
    **{op.CATEGORY_WORD: (lambda c: c.isalnum() or c == "_", True)},
    **{op.CATEGORY_NOT_WORD: (lambda c: c.isalnum() or c == "_", False)},
}


class Names:
    """Layer names, and the steps that are left to match expressions against them."""

    def __init__(self, names: Iterable[str]):
        self.names, self.steps = list(names), STEPS
        text, places = "".join(f"{name}\n" for name in self.names), {}
        for i, c in enumerate(text):
            places.setdefault(c, bytearray(len(text) // 8 + 1))[i // 8] |= 1 << i % 8
        self.masks = {c: int.from_bytes(bits, "little") for c, bits in places.items()}  # where each character is
        self.ends, dots = self.masks.pop("\n", 0), self.masks.get(".", 0)
        self.everywhere = (1 << len(text)) - 1
        self.starts = (self.ends << 1 | 1) & self.everywhere
        self.parts = self.starts | dots << 1  # where a dotted part begins
        self.sets: dict[int, tuple[list, int]] = {}  # the positions of sets of characters, by the id of their node

    def matching(self, expression: str, parts: bool = False) -> list[str]:
        """Return the names that match as a whole; with `parts` also those whose last dotted parts do.

        Raise ValueError if this is not a regular expression, or one that is not supported or takes too many steps.
        """
        return self.within(self.begins(expression, self.ends) & (self.parts if parts else self.starts))

    def within(self, positions: int) -> list[str]:
        """Return the names that have one of the positions."""
        if not positions:
            return []
        bits = format(positions, "b")[::-1]
        places = zip(self.names, self.first_positions(), strict=True)
        return [name for name, first in places if "1" in bits[first : first + len(name) + 1]]

    def first_positions(self) -> list[int]:
        """Return the position at which each name begins."""
        return [0, *accumulate(len(name) + 1 for name in self.names)][:-1]

    def begins(self, expression: str, after: int) -> int:
        """Return the positions from which the expression leads to one of the positions `after`."""
        self.count(len(expression))
        if len(expression) > LENGTH:
            raise ValueError(f"lora pattern {expression[:40]!r}... has more than {LENGTH:,} characters")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # FutureWarning: a set like [[a] may mean another one in later versions
                tree = parser.parse(expression)
            if tree.state.flags != re.UNICODE:
                raise ValueError(f"lora pattern {expression!r} has a flag, which is not supported")
            return self.before(tree, after)
        except (re.error, OverflowError) as error:
            raise ValueError(f"lora pattern {expression!r} is not a regular expression ({error})") from None
        except RecursionError:
            raise ValueError(f"lora pattern {expression!r} is nested too deeply") from None

    def count(self, steps: int = 1) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise ValueError(f"the lora patterns take more than {STEPS:,} steps to match")

    def before(self, tree: Iterable, after: int) -> int:
        """Return the positions from which a syntax tree leads to one of the positions `after`."""
        for kind, value in reversed(list(tree)):
            self.count()
            if after:
                after = self.before_node(kind, value, after)
        return after

    def before_node(self, kind, value, after: int) -> int:
        if kind is op.LITERAL:
            return after >> 1 & self.masks.get(chr(value), 0)
        if kind in (op.NOT_LITERAL, op.ANY):
            return after >> 1 & self.positions([(kind, value)])
        if kind is op.IN:
            if id(value) not in self.sets:
                self.sets[id(value)] = value, self.positions(value)
            return after >> 1 & self.sets[id(value)][1]
        if kind is op.SUBPATTERN and not value[1] and not value[2]:
            return self.before(value[3], after)
        if kind is op.BRANCH:
            found = 0
            for tree in value[1]:
                found |= self.before(tree, after)
            return found
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            return self.before_repeated(*value, after)
        if kind is op.AT:
            return after & self.anchors(value)
        if kind in (op.ASSERT, op.ASSERT_NOT) and value[0] == 1:
            ahead = self.before(value[1], self.everywhere)
            return after & (ahead if kind is op.ASSERT else ~ahead)
        raise ValueError(f"lora patterns: {str(kind).lower().replace('_', ' ')} is not supported")

    def before_repeated(self, least: int, most: int, tree: Iterable, after: int) -> int:
        found = new = after
        tries = most - least
        while new and tries:
            new = self.before(tree, new) & ~found
            found, tries = found | new, tries - 1
        for _ in range(least):
            last, found = found, self.before(tree, found)
            if found == last:
                break
        return found

    def anchors(self, where) -> int:
        """Return the positions of an anchor: the beginning, the end, the edge of a word or not."""
        if where in (op.AT_BEGINNING, op.AT_BEGINNING_STRING):
            return self.starts
        if where in (op.AT_END, op.AT_END_STRING):
            return self.ends
        words = self.positions([(op.CATEGORY, op.CATEGORY_WORD)])
        edges = words ^ words << 1
        return edges if where is op.AT_BOUNDARY else ~edges

    def positions(self, items: list) -> int:
        """Return the positions of the characters in a set."""
        negated = items[0][0] is op.NEGATE
        self.count(len(items))
        return sum(mask for c, mask in self.masks.items() if any(has(i, c) for i in items[negated:]) != negated)


def has(item: tuple, c: str) -> bool:
    """Return whether an item of a set stands for the character."""
    kind, value = item
    if kind is op.RANGE:
        return value[0] <= ord(c) <= value[1]
    if kind is op.CATEGORY:
        test, result = CATEGORIES[value]
        return test(c) is result
    return kind is op.ANY or (ord(c) == value) is (kind is op.LITERAL)


def matching(paths: Iterable[str], targets: str | list[str]) -> list[str]:
    """Return the layers that `targets`, as `lora.inject` takes them, select. Raise ValueError for a bad expression."""
    if targets == "all-linear":
        return [path for path in paths if path != "lm_head"]
    if targets == "attention":
        targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    if isinstance(targets, str):
        return Names(paths).matching(targets)
    wanted = set(targets)
    return [path for path in paths if not wanted.isdisjoint(endings(path))]


def endings(path: str) -> list[str]:
    """Return the whole name and its last dotted parts: "a.b.c", "b.c", "c"."""
    parts = path.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]


def sizes_by_pattern(
    paths: Iterable[str], r: int, alpha: float, ranks: dict[str, int], alphas: dict[str, float]
) -> dict[str, tuple[int, float]]:
    """Return (r, alpha) of each layer: the exceptions in `ranks` and `alphas` (see `by_pattern`), else r and alpha.

    Raise ValueError for a rank < 1 and for a key that is not a regular expression.
    """
    for rank in ranks.values():
        if rank < 1:
            raise ValueError(f"lora r must be at least 1, not {rank}")
    paths = list(paths)
    special_r, special_alpha = by_pattern(paths, ranks), by_pattern(paths, alphas)
    return {path: (special_r.get(path, r), special_alpha.get(path, alpha)) for path in paths}


def common_size(adapters: dict) -> tuple[int, float, dict]:
    """Return (the most common r, the most common alpha, PEFT's patterns for the layers that have others).

    adapters: layer's name -> lora.layer.Adapter. Raise ValueError if only some layers scale by rsLoRA's rule, which
    PEFT's config cannot express.
    """
    if len({adapter.rslora for adapter in adapters.values()}) > 1:
        raise ValueError("some layers scale by rsLoRA's rule and others do not, which PEFT's config cannot express")
    r, ranks = _exceptions({path: len(adapter.A) for path, adapter in adapters.items()})
    alpha, alphas = _exceptions({path: adapter.alpha for path, adapter in adapters.items()})
    patterns = {"rank_pattern": ranks, "alpha_pattern": alphas}
    return r, alpha, {key: pattern for key, pattern in patterns.items() if pattern}


def _exceptions(values: dict[str, float]) -> tuple[float, dict[str, float]]:
    """Return the most common value, and the other layers' values, each under a pattern of its full name."""
    common = Counter(values.values()).most_common(1)[0][0]
    return common, {f"^{re.escape(path)}": as_int(value) for path, value in values.items() if value != common}


def as_int(value: float) -> int | float:
    return int(value) if float(value).is_integer() else value


def by_pattern(paths: Iterable[str], pattern: dict) -> dict:
    """Return the value of each layer that a key matches, by its whole name or last dotted parts; the first key wins.

    Raise ValueError for a key that is not a regular expression, or not supported.
    """
    names, found = Names(paths), {}
    for key, value in pattern.items():
        for path in names.matching(key, parts=True):
            found.setdefault(path, value)
    return found
