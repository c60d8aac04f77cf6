"""The syntax tree of a script: made by the parser, run by the interpreter.

A Word is a list of parts; `plain` is its text if nothing in it expands. Commands store their line number.
"""

import re
from dataclasses import dataclass
from typing import NamedTuple

STATIC = re.compile(r"[*?\[{~(]")  # what keeps text outside quotes from standing for itself


class SyntaxFailed(Exception):
    """A syntax error: bash's message, and the exit `status`."""

    def __init__(self, line: int, message: str, shown: str | None = None, status: int = 2):
        super().__init__(message)
        self.line, self.message, self.shown, self.status = line, message, shown, status


class Lit(NamedTuple):
    """Text outside quotes."""

    text: str


class Quoted(NamedTuple):
    """Text protected by quotes or a backslash."""

    text: str


class Double(NamedTuple):
    """The contents of double quotes."""

    parts: list


class Param(NamedTuple):
    """`$name` and `${...}`: `op` is "" or one of OPERATION's, "length", "indirect", "keys" or "bad"."""

    name: str
    index: "Word | None" = None
    op: str = ""
    arg: "Word | None" = None
    arg2: "Word | None" = None
    source: str = ""


class Subst(NamedTuple):
    """`$(...)`, backticks, or with `file` `<(...)` and with `into` `>(...)`: a program and its output or input."""

    program: list
    file: bool = False
    into: bool = False


class Arith(NamedTuple):
    """`$((...))`."""

    word: "Word"


class Word(NamedTuple):
    parts: list
    source: str = ""
    plain: str | None = None


class Assign(NamedTuple):
    """`name[index]=value`; the value of an array is a list of Words and Assigns whose name is ""."""

    name: str
    index: Word | None
    add: bool
    value: "Word | list"
    source: str = ""


@dataclass(slots=True)
class Redirect:
    fd: int
    op: str
    target: Word | None  # of a here-document its text, once that has been read


class Simple(NamedTuple):
    assigns: list[Assign]
    words: list  # Words, and Assigns behind declare and its like
    redirects: list[Redirect]
    line: int


class Pipe(NamedTuple):
    stages: list
    bang: bool
    both: list[bool]  # whether a stage's errors go into the pipe too
    timed: bool = False


class AndOr(NamedTuple):
    first: object
    rest: list  # of (operator, command)


class Background(NamedTuple):
    body: object
    text: str


class Redirected(NamedTuple):
    """A compound command with redirections."""

    body: object
    redirects: list[Redirect]
    line: int


class Group(NamedTuple):
    body: list
    line: int
    subshell: bool = False


class If(NamedTuple):
    clauses: list  # of (condition, body)
    otherwise: list
    line: int


class While(NamedTuple):
    condition: list
    body: list
    until: bool
    line: int


class For(NamedTuple):
    name: str
    words: list[Word] | None  # None: the positional parameters
    body: list
    line: int


class CFor(NamedTuple):
    parts: list[Word]  # start, condition, step
    body: list
    line: int


class Case(NamedTuple):
    word: Word
    clauses: list  # of (patterns, body, ending)
    line: int


class Arithmetic(NamedTuple):
    word: Word
    line: int


class Cond(NamedTuple):
    """`[[ ]]`: ("or"|"and", a, b), ("not", a), ("unary", op, word), ("binary", op, word, word) or ("word", word)."""

    test: tuple
    line: int


class Function(NamedTuple):
    name: str
    body: object
    source: str
    line: int


def plain_word(text: str) -> Word:
    return Word([], text, text)


def index_word(index: str) -> Word:
    """Return the index of `name[index]` from the text after its bracket."""
    return plain_word(index.removesuffix("]"))


def make_word(parts: list, source: str) -> Word:
    """Return a word, with its text if nothing in it expands."""
    plain = []
    for part in parts:
        kind = type(part)
        if kind is Quoted or (kind is Lit and not STATIC.search(part.text)):
            plain.append(part.text)
        elif kind is Double and all(type(inner) is Quoted for inner in part.parts):
            plain += [inner.text for inner in part.parts]
        else:
            return Word(parts, source)
    return Word(parts, source, "".join(plain))
