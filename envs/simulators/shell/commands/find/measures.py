"""find's tests of sizes, modes and times."""

import re
from collections.abc import Callable

from envs.simulators.shell.commands.find.format import length
from envs.simulators.shell.commands.modes import parse_mode
from envs.simulators.shell.commands.options import Fail, quote, quote_value
from envs.simulators.shell.commands.times import TimeError, parse_time
from envs.simulators.shell.files import Node

DAY = 86400
UNITS = {"c": 1, "w": 2, "b": 512, "": 512, "k": 1024, "M": 1024**2, "G": 1024**3}


class Measures:
    """The part of a search for sizes, modes and times."""

    def count(self, word: str, value: str) -> Callable[[float], bool]:
        """Return the test of a number for +n, -n or n."""
        found = re.fullmatch(r"([-+]?)(\d{1,18})", value)
        if not found:
            raise Fail(f"invalid argument `{value}' to `{word}'")
        sign, number = found[1], int(found[2])
        if sign == "+":
            return lambda given: given > number
        if sign == "-":
            return lambda given: given < number
        return lambda given: given == number

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
        change = parse_mode(value[len(kind) :])
        if change is None:
            raise Fail(f"invalid mode {quote_value(value)}")
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
        if word == "-newermt":
            try:
                than = parse_time(value, self.now)
            except TimeError:
                raise Fail(f"I cannot figure out how to interpret {quote_value(value)} as a date or time") from None
        else:
            try:
                than = self.p.lookup(value).mtime
            except OSError as error:
                raise Fail(f"{quote(value)}: {error.strerror}") from None
        return lambda path, node, depth: self.stamp(word, node) > than
