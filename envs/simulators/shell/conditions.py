"""test, [ and the operators of [[ ]]: tests of files, strings and numbers."""

import operator
import re

from envs.simulators.shell.files import EXECUTE, READ, SETGID, SETUID, STICKY, WRITE
from envs.simulators.shell.process import Process

INTEGER = re.compile(r"[ \t]*[-+]?\d+[ \t]*")
FILES = "abcdefghkprsuwxLS"
COMPARE = {"-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le, "-gt": operator.gt}
COMPARE |= {"-ge": operator.ge}
TEXTS = {"=": str.__eq__, "==": str.__eq__, "!=": str.__ne__, "<": str.__lt__, ">": str.__gt__}
BINARY = (*TEXTS, *COMPARE, "-nt", "-ot", "-ef")
MODES = {"u": SETUID, "g": SETGID, "k": STICKY}
RIGHTS = {"r": READ, "w": WRITE, "x": EXECUTE}


class TestFailed(Exception):
    """An invalid expression; its text is the message after `test: `."""


def unary(p: Process, letter: str, text: str) -> bool:
    """Return whether `-letter text` holds."""
    if letter in "nz":
        return (text == "") == (letter == "z")
    if letter == "t":
        return False
    if letter == "v":
        return p.is_set(text)
    node = p.find(text, follow=letter not in "hL")
    if node is None:
        return False
    if letter in RIGHTS:
        return p.may(node, RIGHTS[letter])
    if letter in MODES:
        return bool(node.mode & MODES[letter])
    if letter == "s":
        return node.size > 0
    kinds = {"f": "file", "d": "dir", "h": "link", "L": "link", "c": "device", "a": node.kind, "e": node.kind}
    return node.kind == kinds.get(letter)


def binary(p: Process, left: str, op: str, right: str) -> bool:
    """Return whether `left op right` holds; TestFailed if an operand is not a number."""
    if op in COMPARE:
        for text in (left, right):
            if not INTEGER.fullmatch(text):
                raise TestFailed(f"{text}: integer expression expected")
        return COMPARE[op](int(left.strip()[:400]), int(right.strip()[:400]))
    if op in TEXTS:
        return TEXTS[op](left, right)
    a, b = p.find(left), p.find(right)
    if op == "-ef":
        return a is not None and a is b
    a, b = (b, a) if op == "-ot" else (a, b)
    return a is not None and (b is None or a.mtime > b.mtime)


def test(p: Process, argv: list[str]) -> int:
    """test and [: return 0 if the expression holds, 1 if not, 2 if it is invalid."""
    args = argv[1:]
    if argv[0] == "[":
        if not args or args[-1] != "]":
            return p.fail("missing `]'", 2)
        args = args[:-1]
    try:
        return 0 if _holds(p, args) else 1
    except TestFailed as failure:
        return p.fail(str(failure), 2)


def _holds(p: Process, args: list[str]) -> bool:
    """Evaluate by the number of arguments, as POSIX defines."""
    count = len(args)
    if count <= 1:
        return bool(args and args[0])
    if count == 2:
        if args[0] == "!":
            return args[1] == ""
        if not _is_unary(args[0]):
            raise TestFailed(f"{args[0]}: unary operator expected")
        return unary(p, args[0][1], args[1])
    if count == 3:
        return _three(p, args)
    if count == 4 and args[0] == "!":
        return not _three(p, args[1:])
    if count == 4 and args[0] == "(" and args[3] == ")":
        return _holds(p, args[1:3])
    reader = _Reader(p, args)
    result = reader.either()
    if reader.at < count:
        raise TestFailed("too many arguments")
    return result


def _is_unary(word: str) -> bool:
    return len(word) == 2 and word[0] == "-" and word[1] in FILES + "nztv"


def _three(p: Process, args: list[str]) -> bool:
    if args[1] in BINARY:
        return binary(p, *args)
    if args[1] in ("-a", "-o"):
        return bool(args[0] and args[2]) if args[1] == "-a" else bool(args[0] or args[2])
    if args[0] == "!":
        return not _holds(p, args[1:])
    if args[0] == "(" and args[2] == ")":
        return args[1] != ""
    raise TestFailed(f"{args[1]}: binary operator expected")


class _Reader:
    """Parse an expression of more than four arguments: -o under -a under ! and parentheses."""

    def __init__(self, p: Process, args: list[str]):
        self.p, self.args, self.at, self.depth = p, args, 0, 0

    def accept(self, word: str) -> bool:
        found = self.args[self.at : self.at + 1] == [word]
        self.at += found
        return found

    def either(self) -> bool:
        value = self.both()
        while self.accept("-o"):
            value = self.both() or value
        return value

    def both(self) -> bool:
        value = self.term()
        while self.accept("-a"):
            value = self.term() and value
        return value

    def term(self) -> bool:
        args, at = self.args, self.at
        if at >= len(args):
            raise TestFailed("argument expected")
        self.depth += 1
        if self.depth > 100:
            raise TestFailed("too many arguments")
        try:
            if self.accept("!"):
                return not self.term()
            if at + 2 < len(args) and args[at + 1] in BINARY:
                self.at += 3
                return binary(self.p, *args[at : at + 3])
            if self.accept("("):
                value = self.either()
                if not self.accept(")"):
                    raise TestFailed("`)' expected")
                return value
            if _is_unary(args[at]) and at + 1 < len(args):
                self.at += 2
                return unary(self.p, args[at][1], args[at + 1])
            self.at += 1
            return args[at] != ""
        finally:
            self.depth -= 1
