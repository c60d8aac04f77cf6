"""Compile and match POSIX regular expressions over bytes, as GNU grep, find, sed, expr, vi, mawk and bash read them.

    compile_regex(r"\\(a\\|ab\\)c", "basic").search("xabc") -> (1, 4, 1, 3)

Texts are bytes decoded as latin-1: one character is one byte, as in the C locale. The leftmost longest match is found.
Where Python's `re` provably finds the same match in little time, it does the work. Elsewhere a virtual machine does,
which visits each pair of instruction and position once, so that time grows with pattern length times text length; only
back-references make it visit a pair again. `spend` counts the steps of both.
"""

import re
from collections.abc import Callable
from functools import lru_cache

from envs.simulators.regex.perl import PerlParser
from envs.simulators.regex.syntax import WORD, Parser, RegexError

MOST_INSTRUCTIONS = 20_000  # of a compiled expression: "Regular expression too big" beyond
FAST_STEPS = 1 << 19  # most steps that a search with Python's `re` may take by our estimate
VISITS = 8  # of the machine, in the time of one step; with back-references one

PLACES = {  # assertions in Python's words
    "start": r"\A",
    "end": r"\Z",
    "line start": r"(?m:^)",
    "line end": r"(?m:$)",
    "text start": r"\A",
    "text end": r"\Z",
    "last line end": r"(?=\n?\Z)",
    "word start": r"(?<![A-Za-z0-9_])(?=[A-Za-z0-9_])",
    "word end": r"(?<=[A-Za-z0-9_])(?![A-Za-z0-9_])",
    "no word before": "(?<![A-Za-z0-9_])",
    "no word after": "(?![A-Za-z0-9_])",
    "edge": r"(?a:\b)",
    "no edge": r"(?a:(?!\b))",
}


@lru_cache(maxsize=512)
def compile_regex(
    pattern: str, dialect: str = "basic", icase: bool = False, lines: bool = False, bounds: str = ""
) -> "Regex":
    """Compile an expression in a dialect: "basic" (grep and expr), "extended" (grep -E), "posix" (extended expressions
    of the C library), "sed", "sed extended", "awk", "perl" or "fixed" (plain text).

    With `lines`, ^ and $ also match around newlines. `bounds`: match only "w", words, or "x", whole lines. Raises
    RegexError if the expression is invalid.
    """
    if dialect == "fixed":
        both = (lambda c: frozenset((c.lower(), c.upper()))) if icase else frozenset
        parser, tree = None, ("cat", [("set", both(char) if char.isascii() else frozenset(char)) for char in pattern])
    else:
        parser = PerlParser(pattern, icase) if dialect == "perl" else Parser(pattern, dialect, icase, lines)
        tree = parser.parse()
    if bounds:
        first, last = ("start", "end") if bounds == "x" else ("no word before", "no word after")
        tree = ("cat", [("place", first), tree, ("place", last)])
    if _size(tree) >= MOST_INSTRUCTIONS:
        raise RegexError("Regular expression too big")
    return Regex(tree, parser.groups if parser else 0, bool(parser and parser.backrefs), dialect == "perl")


class Regex:
    """A compiled expression; `groups` is how many parentheses it has."""

    def __init__(self, tree: tuple, groups: int, backrefs: bool, first: bool):
        self.tree, self.groups, self.backrefs = tree, groups, backrefs
        self.first = first  # Perl's way: the first match that is tried, not the longest
        self.cost, self.loops, exact = _cost(tree)
        self.exact = exact or first
        self.fast = re.compile(_python(tree), re.DOTALL) if not backrefs and self.cost <= 4096 else None
        self.program: list | None = None

    def search(self, text: str, start: int = 0, spend: Callable[[int], None] | None = None) -> tuple | None:
        """Return the leftmost longest match from `start` on: (start, end, start 1, end 1, ...), -1 if unmatched."""
        if self.fast and self.exact and self._cheap(text, start):
            found = self.fast.search(text, start)
            self._count(found, text, start, spend)
            return found and tuple(place for group in found.regs for place in group)
        return self._machine(text, start, spend)

    def test(self, text: str, spend: Callable[[int], None] | None = None) -> bool:
        """Return whether the text has a match."""
        if self.fast and self._cheap(text, 0):
            found = self.fast.search(text)
            self._count(found, text, 0, spend)
            return found is not None
        return self._machine(text, 0, spend) is not None

    def _count(self, found: re.Match | None, text: str, start: int, spend) -> None:
        """Count the estimated steps of a search with Python's `re`."""
        if spend:
            tried = (found.end() if found else len(text)) - start + 1
            spend(1 + (self.cost * tried * (len(text) - start + 1) ** self.loops >> 11))

    def _cheap(self, text: str, start: int) -> bool:
        return self.cost * (len(text) - start + 1) ** (self.loops + 1) <= FAST_STEPS

    def _machine(self, text: str, start: int, spend) -> tuple | None:
        if self.program is None:
            self.program = assemble(self.tree, self.groups)
        seen: set = set()
        for begin in range(start, len(text) + 1):
            found = self._run(self.program, text, begin, (-1, -1) * self.groups + (begin,), seen, spend)
            if found:
                end, marks = found
                return (marks[-1], end, *marks[:-1])
        return None

    def _run(
        self, program: list, text: str, begin: int, marks: tuple, seen: set, spend, end: int | None = None
    ) -> tuple[int, tuple] | None:
        """Return the end of the match that begins at one position, and the marks: where groups begin and end, and \\K.

        `marks` are those before the match, and `end` is where it must end, if given. `seen` holds the states known not
        to lead to another match.
        """
        best, best_end, size, steps = None, -1, len(text), 0
        stack = [(0, begin, marks)]
        while stack:
            pc, at, marks = stack.pop()
            while True:
                steps += 1
                if steps & 1023 == 0 and spend:
                    spend(1024 if self.backrefs else 1024 // VISITS)
                key = (pc, at, marks) if self.backrefs else pc * (size + 1) + at
                if key in seen:
                    break
                seen.add(key)
                op, value, after = program[pc]
                if op == "set":
                    if at >= size or text[at] not in value:
                        break
                    at += 1
                elif op == "split":
                    stack.append((value, at, marks))
                elif op == "save":
                    marks = marks[:value] + (at,) + marks[value + 1 :]
                elif op == "place":
                    if not _holds(value, text, at):
                        break
                elif op == "back":
                    word = text[marks[2 * value - 2] : marks[2 * value - 1]]
                    if marks[2 * value - 1] < 0 or not text.startswith(word, at):
                        break
                    at += len(word)
                elif op == "look":
                    marks = self._look(value, text, at, marks, spend)
                    if marks is None:
                        break
                elif op == "atomic":
                    found = self._run(value, text, at, marks, set(), spend)
                    if found is None:
                        break
                    at, marks = found
                else:
                    if at > best_end and end in (None, at):
                        best, best_end = marks, at
                        if self.first:
                            stack.clear()
                    break
                pc = after
        if spend:
            steps &= 1023
            spend(1 + (steps if self.backrefs else steps // VISITS))
        return None if best is None else (best_end, best)

    def _look(self, value: tuple, text: str, at: int, marks: tuple, spend) -> tuple | None:
        """Return the marks behind a look-around at a position; None if it does not hold."""
        program, widths, negated = value
        begins, end = ([at], None) if widths is None else ([at - width for width in widths if width <= at], at)
        for begin in begins:
            found = self._run(program, text, begin, marks, set(), spend, end)
            if found:
                return None if negated else found[1]
        return marks if negated else None


def _holds(place: str, text: str, at: int) -> bool:
    """Return whether an assertion holds at a position."""
    if place in ("start", "text start"):
        return at == 0
    if place in ("end", "text end"):
        return at == len(text)
    if place == "last line end":
        return at == len(text) or (at == len(text) - 1 and text[at] == "\n")
    if place == "line start":
        return at == 0 or text[at - 1] == "\n"
    if place == "line end":
        return at == len(text) or text[at] == "\n"
    if place in ("no word before", "no word after"):
        at -= place == "no word before"
        return not (0 <= at < len(text) and text[at] in WORD)
    before, here = at > 0 and text[at - 1] in WORD, at < len(text) and text[at] in WORD
    if place == "word start":
        return here and not before
    if place == "word end":
        return before and not here
    return (before != here) == (place == "edge")


def assemble(tree: tuple, groups: int) -> list[tuple]:
    """Return the virtual machine's instructions (name, value, next) for a tree."""
    program: list = []

    def put(op: str, value=None) -> int:
        program.append([op, value, len(program) + 1])
        return len(program) - 1

    def emit(node: tuple) -> None:
        kind = node[0]
        if kind in ("set", "place", "back"):
            put(kind, node[1])
        elif kind == "cat":
            for part in node[1]:
                emit(part)
        elif kind == "group":
            put("save", 2 * node[1] - 2)
            emit(node[2])
            put("save", 2 * node[1] - 1)
        elif kind == "alt":
            jumps = []
            for branch in node[1][:-1]:
                split = put("split")
                emit(branch)
                jumps.append(put("jump"))
                program[split][1] = len(program)
            emit(node[1][-1])
            for jump in jumps:
                program[jump][2] = len(program)
        elif kind == "look":
            put("look", (assemble(node[3], groups), node[1], node[2]))
        elif kind == "atomic":
            put("atomic", assemble(node[1], groups))
        elif kind == "keep":
            put("save", 2 * groups)
        else:
            repeat(*node)

    def repeat(kind: str, body: tuple, least: int, most: int | None) -> None:
        for _ in range(least):
            emit(body)
        splits = []
        for _ in range(1 if most is None else most - least):
            splits.append(put("split"))
            emit(body)
        if most is None:
            program[put("jump")][2] = splits[0]
        for split in splits:  # a split goes on with what follows it first, then with its value
            program[split][1] = len(program)
            if kind == "lazy":
                program[split][1:] = program[split][2], program[split][1]

    emit(tree)
    put("match")

    def target(pc: int) -> int:
        while program[pc][0] == "jump":
            pc = program[pc][2]
        return pc

    for step in program:
        step[2] = target(step[2]) if step[0] != "match" else 0
        if step[0] == "split":
            step[1] = target(step[1])
    return [tuple(step) for step in program]


def _size(node: tuple) -> int:
    """Return the number of instructions of a tree, without the last one, `match`."""
    kind = node[0]
    if kind == "cat":
        return sum(map(_size, node[1]))
    if kind == "group":
        return _size(node[2]) + 2
    if kind == "alt":
        return sum(map(_size, node[1])) + 2 * (len(node[1]) - 1)
    if kind in ("look", "atomic"):
        return _size(node[-1]) + 1  # those inside are a program of their own
    if kind in ("rep", "lazy"):
        _, body, least, most = node
        once = _size(body)
        return least * once + (once + 2 if most is None else (most - least) * (once + 1))
    return 1


def _cost(node: tuple) -> tuple[int, int, bool]:
    """Return the cost of a tree in Python's `re`: a factor, the number of unbounded loops, and whether it finds the
    longest."""
    kind = node[0]
    if kind == "cat":
        parts = [_cost(part) for part in node[1]]
        factor = 1
        for part in parts:
            factor = min(factor * part[0], 1 << 20)
        return factor, sum(part[1] for part in parts), all(part[2] for part in parts)
    if kind == "group":
        return _cost(node[2])
    if kind == "alt":
        parts = [_cost(part) for part in node[1]]
        return min(sum(part[0] for part in parts) + 1, 1 << 20), max(part[1] for part in parts), False
    if kind in ("look", "keep", "atomic"):
        return (1, 1, True) if kind == "look" and _python_look(node) else (1 << 20, 0, True)
    if kind in ("rep", "lazy"):
        _, body, least, most = node
        factor, loops, exact = _cost(body)
        if body[0] == "set":
            return (1, 1, True) if most is None or most - least > 64 else (most - least + 1, 0, True)
        if most is None or loops or most > 8:
            return 1 << 20, 0, False
        return min((factor + (most > least)) ** most, 1 << 20), 0, exact and least == most
    return 1, 0, True


def _python(node: tuple) -> str:
    """Return a tree as an expression of Python's `re`."""
    kind = node[0]
    if kind == "set":
        return _python_set(node[1])
    if kind == "place":
        return PLACES[node[1]]
    if kind == "cat":
        return "".join(map(_python, node[1]))
    if kind == "group":
        return f"({_python(node[2])})"
    if kind == "alt":
        return "(?:" + "|".join(map(_python, node[1])) + ")"
    if kind == "look":
        return _python_look(node)
    if kind == "keep":
        return ""
    kind, body, least, most = node
    text = _python(body)
    text = text if body[0] in ("set", "group") else f"(?:{text})"
    return f"{text}{{{least},{'' if most is None else most}}}{'?' if kind == 'lazy' else ''}"


def _python_look(node: tuple) -> str:
    """Return a look-around as Python's, "" unless it is of a single character."""
    _, widths, negated, body = node
    return f"(?{'' if widths is None else '<'}{'!' if negated else '='}{_python(body)})" if body[0] == "set" else ""


@lru_cache(maxsize=4096)
def _python_set(members: frozenset) -> str:
    if len(members) == 256:
        return "."
    if len(members) == 1:
        return re.escape(next(iter(members)))
    if not members:
        return "(?!)"
    codes, ranges = sorted(map(ord, members)), []
    for code in codes:
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    return "[" + "".join(f"\\x{a:02x}-\\x{b:02x}" for a, b in ranges) + "]"
