"""Which layers get an adapter: names, lists of names, regular expressions, and PEFT's rank_pattern and alpha_pattern.

Regular expressions may be a stranger's. Python's re backtracks, and an expression of ten characters can keep it busy
for years. So re matches only pieces without repetition here, and repetitions are followed as sets of positions, whose
number is bounded by a name's length. References to groups, atomic groups, look behind and flags are refused: layer
names need none.
"""

import math
import re
import re._compiler as compiler
import re._constants as op
import re._parser as parser
import warnings
from collections import Counter
from collections.abc import Iterable

from lora.refusal import Refusal

STEPS = 4_000_000  # most positions from which parts of expressions are tried, in all; a second or two
LENGTH = 5000  # most characters of an expression
PIECES = (op.LITERAL, op.NOT_LITERAL, op.ANY, op.IN, op.AT)  # syntax of one character or of none


class Patterns:
    """Match regular expressions against layer names, in at most STEPS steps together."""

    def __init__(self):
        self.steps, self.parsed = STEPS, {}

    def matches(self, expression: str, name: str, parts: bool = False) -> bool:
        """Return whether the whole name matches; with `parts` also whether its last dotted parts do.

        Raise ValueError if this is not a regular expression, or one that is not supported or takes too many steps.
        """
        if parts and expression.isidentifier():  # most keys are plain names, and there may be thousands
            return name.rpartition(".")[2] == expression
        return len(name) in self.positions_after(expression, name, part_starts(name) if parts else {0})

    def positions_after(self, expression: str, name: str, starts: set[int]) -> set[int]:
        """Return the positions in the name to which the expression leads from one of the positions `starts`."""
        try:
            if expression not in self.parsed:
                self.parsed[expression] = self._parse(expression)
            return self._after(self.parsed[expression], name, starts)
        except (re.error, OverflowError) as error:
            raise Refusal(f"lora pattern {expression!r} is not a regular expression ({error})") from None
        except RecursionError:
            raise Refusal(f"lora pattern {expression!r} is nested too deeply") from None

    def _parse(self, expression: str) -> list:
        self._count(len(expression))
        if len(expression) > LENGTH:
            raise Refusal(f"lora pattern {expression[:40]!r}... has more than {LENGTH:,} characters")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # FutureWarning: a set like [[a] may mean another one in later versions
            tree = parser.parse(expression)
        if tree.state.flags != re.UNICODE:
            raise Refusal(f"lora pattern {expression!r} has a flag, which is not supported")
        return joined(tree)

    def _count(self, steps: int) -> None:
        self.steps -= steps
        if self.steps < 0:
            raise Refusal(f"the lora patterns take more than {STEPS:,} steps to match")

    def _after(self, tree: list, name: str, places: set[int]) -> set[int]:
        """Return the positions to which a joined syntax tree leads from one of the positions `places`."""
        for kind, value in tree:
            self._count(len(places) + 1)
            if kind == "piece":
                places = {match.end() for place in places if (match := value.match(name, place))}
            elif kind is op.SUBPATTERN:
                places = self._after(value, name, places)
            elif kind is op.BRANCH:
                places = set().union(*(self._after(branch, name, places) for branch in value))
            elif kind is op.MAX_REPEAT:
                places = self._repeated(name, places, *value)
            else:
                sees = {place for place in places if self._after(value, name, {place})}
                places = sees if kind is op.ASSERT else places - sees
        return places

    def _repeated(self, name: str, places: set[int], least: int, most: int, tree: list) -> set[int]:
        """Return the places that follow `least` to `most` repetitions of the tree."""
        for _ in range(least):
            before, places = places, self._after(tree, name, places)
            if places == before:
                break
        new, tries = places, most - least
        while new and tries:
            new, tries = self._after(tree, name, new) - places, tries - 1
            places = places | new
        return places


def joined(tree: Iterable) -> list[tuple]:
    """Return re's syntax tree as (kind, value) pairs, with neighbours that have no repetition compiled as one "piece".

    Raise ValueError for syntax that is not supported.
    """
    pairs, piece = [], []
    for kind, value in [*tree, (None, None)]:
        if kind in PIECES:
            piece.append((kind, value))
            continue
        if piece:
            pairs.append(("piece", compiler.compile(parser.SubPattern(parser.State(), piece), 0)))
            piece = []
        if kind is op.SUBPATTERN and not value[1] and not value[2]:
            pairs.append((kind, joined(value[3])))
        elif kind is op.BRANCH:
            pairs.append((kind, [joined(branch) for branch in value[1]]))
        elif kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            pairs.append((op.MAX_REPEAT, (value[0], value[1], joined(value[2]))))
        elif kind in (op.ASSERT, op.ASSERT_NOT) and value[0] == 1:
            pairs.append((kind, joined(value[1])))
        elif kind is not None:
            raise Refusal(f"lora patterns: {str(kind).lower().replace('_', ' ')} is not supported")
    return pairs


def part_starts(name: str) -> set[int]:
    """Return the positions in a name at which a dotted part begins."""
    return {0} | {place + 1 for place, c in enumerate(name) if c == "."}


def matching(paths: Iterable[str], targets: str | list[str]) -> list[str]:
    """Return the layers that `targets`, as `lora.inject` takes them, select. Raise ValueError for a bad expression."""
    if targets == "all-linear":
        return [path for path in paths if path != "lm_head"]
    if targets == "attention":
        targets = ["q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj"]
    if isinstance(targets, str):
        patterns = Patterns()
        return [path for path in paths if patterns.matches(targets, path)]
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

    Raise ValueError for a rank < 1, an alpha that is not positive and finite, and for a key that is not a regular
    expression or matches no layer.
    """
    for rank in (r, *ranks.values()):
        if rank < 1:
            raise Refusal(f"lora r must be at least 1, not {rank}")
    for value in (alpha, *alphas.values()):
        if not 0 < value < math.inf:
            raise Refusal(f"lora alpha must be a positive number, not {value}")
    paths = list(paths)
    check_used(paths, ranks)
    check_used(paths, alphas)
    special_r, special_alpha = by_pattern(paths, ranks), by_pattern(paths, alphas)
    return {path: (special_r.get(path, r), special_alpha.get(path, alpha)) for path in paths}


def common_size(adapters: dict) -> tuple[float, float, dict]:
    """Return (the most common r, the most common alpha, PEFT's patterns for the layers that have others).

    adapters: layer's name -> lora.layer.Adapter. Raise ValueError if only some layers scale by rsLoRA's rule, which
    PEFT's config cannot express.
    """
    if len({adapter.rslora for adapter in adapters.values()}) > 1:
        raise Refusal("some layers scale by rsLoRA's rule and others do not, which PEFT's config cannot express")
    r, ranks = _exceptions({path: len(adapter.A) for path, adapter in adapters.items()})
    alpha, alphas = _exceptions({path: adapter.alpha for path, adapter in adapters.items()})
    patterns = {"rank_pattern": ranks, "alpha_pattern": alphas}
    return r, alpha, {key: pattern for key, pattern in patterns.items() if pattern}


def _exceptions(values: dict[str, float]) -> tuple[float, dict[str, float]]:
    """Return the most common value, and the other layers' values, each under a pattern of its full name."""
    common = Counter(values.values()).most_common(1)[0][0]
    return common, {f"^{re.escape(path)}": as_int(value) for path, value in values.items() if value != common}


def as_int(value: float) -> int | float:
    """Return a whole number as an int, as PEFT writes it."""
    return int(value) if float(value).is_integer() else value


def by_pattern(paths: Iterable[str], pattern: dict) -> dict:
    """Return the value of each layer that a key matches, by its whole name or last dotted parts; the first key wins.

    Raise ValueError for a key that is not a regular expression, or not supported.
    """
    patterns, value_of_layer = Patterns(), {}
    for path in paths:
        for key, value in pattern.items():
            if patterns.matches(key, path, parts=True):
                value_of_layer[path] = value
                break
    return value_of_layer


def check_used(paths: list[str], pattern: dict) -> None:
    """Raise ValueError for a key of rank_pattern or alpha_pattern that matches no layer: a misspelt one, say."""
    patterns = Patterns()
    for key in pattern:
        if not any(patterns.matches(key, path, parts=True) for path in paths):
            raise Refusal(f"the rank_pattern or alpha_pattern {key!r} matches no layer that gets an adapter")
