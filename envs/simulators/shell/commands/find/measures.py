"""find's tests of sizes, modes and times, and the output of -printf."""

import operator
import re
from collections.abc import Callable

from envs.simulators.shell.commands.modes import LETTERS, group_name, mode_text, parse_mode, user_name
from envs.simulators.shell.commands.options import Fail, failing, quote, quote_value, required
from envs.simulators.shell.commands.times import TimeError, parse_time, show
from envs.simulators.shell.files import Node
from envs.simulators.shell.process import Process

DAY = 86400
UNITS = {"c": 1, "w": 2, "b": 512, "": 512, "k": 1024, "M": 1024**2, "G": 1024**3}


def length(node: Node) -> int:
    """Return the size that find counts: of a link, the length of its target's name."""
    return len(node.data) if node.kind == "link" else node.size


def formatted(p: Process, form: str, path: str, node: Node, depth: int, start: str) -> str:
    name = path.rstrip("/").rpartition("/")[2] or path
    target, kind = node.data if node.kind == "link" else "", LETTERS[node.kind]
    values = {"p": path, "f": name, "h": path.rpartition("/")[0] or ("." if "/" not in path else ""), "H": start}
    values |= {"P": path[len(start) :].lstrip("/"), "d": depth, "y": kind.replace("-", "f"), "l": target, "%": "%"}
    values |= {"m": f"{node.mode:o}", "M": kind + mode_text(node.mode), "n": node.nlink, "i": node.ino}
    values |= {"u": user_name(p, node.uid), "g": group_name(p, node.gid), "U": node.uid, "G": node.gid}
    values |= {"s": length(node), "k": (length(node) + 1023) // 1024, "b": (length(node) + 511) // 512}
    values |= {"t": show("%a %b %d %H:%M:%S.%N0 %Y", node.mtime)}
    escapes = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\", "a": "\a", "r": "\r"}

    def fill(found: re.Match) -> str:
        if found[1] is not None:
            return escapes.get(found[1], found[0])
        if found[4] is not None:
            return f"{node.mtime:.9f}0" if found[4] == "@" else show(f"%{found[4]}", node.mtime)
        if found[3] not in values:
            return found[0]
        return f"%{found[2]}s" % (values[found[3]],)

    return re.sub(r"\\(.)|%(-?\d{0,3})(?:([a-zA-SU-Z%])|[TAC](.))", fill, form, flags=re.DOTALL)


class Measures:
    """The part of a search for sizes, modes and times."""

    def count(self, word: str, value: str) -> Callable[[float], bool]:
        """Return the test of a number for +n, -n or n."""
        found = re.fullmatch(r"([-+]?)(\d{1,18})", value)
        if not found:
            raise Fail(f"invalid argument `{value}' to `{word}'")
        holds, number = {"+": operator.gt, "-": operator.lt, "": operator.eq}[found[1]], int(found[2])
        return lambda given: holds(given, number)

    def size(self, value: str) -> Callable:
        found = re.fullmatch(r"([-+]?\d{1,18})([cwbkMG]?)", value)
        if not found:
            if value and value[-1] not in "0123456789cwbkMG":
                raise Fail(f"invalid -size type `{value[-1]}'")
            raise Fail(f"Invalid argument `{value}' to -size")
        count, unit = self.count("-size", found[1]), UNITS[found[2]]
        return lambda path, node, depth: count(-(-length(node) // unit))

    def perm(self, value: str) -> Callable:
        kind = value[:1] if value[:1] in "-/" else ""
        change = required(parse_mode(value[len(kind) :]), f"invalid mode {quote_value(value)}")
        bits = change(0, False, 0)
        if kind == "-":
            return lambda path, node, depth: node.mode & bits == bits
        if kind == "/":
            return lambda path, node, depth: not bits or bool(node.mode & bits)
        return lambda path, node, depth: node.mode == bits

    def age(self, word: str, value: str) -> Callable:
        count = self.count(word, value)
        unit = 60 if word.endswith("min") else DAY
        if unit == 60:  # minutes are rounded up, days down
            return lambda path, node, depth: count(-((self.stamp(word, node) - self.now) // 60))
        return lambda path, node, depth: count((self.now - self.stamp(word, node)) // unit)

    def stamp(self, word: str, node: Node) -> float:
        return node.atime if word[1] == "a" else node.mtime

    def newer(self, word: str, value: str) -> Callable:
        try:
            with failing(quote(value)):
                than = parse_time(value, self.now) if word == "-newermt" else self.p.lookup(value).mtime
        except TimeError:
            raise Fail(f"I cannot figure out how to interpret {quote_value(value)} as a date or time") from None
        return lambda path, node, depth: self.stamp(word, node) > than
