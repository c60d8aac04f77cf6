"""The syntax tree of a script: made by the parser, run by the interpreter.

A Word is a list of parts; `plain` is its text if nothing in it expands. Commands store their line number.
"""

import re
from dataclasses import dataclass

STATIC = re.compile(r"[*?\[{~(]")  # what keeps text outside quotes from standing for itself


class SyntaxFailed(Exception):
    """A syntax error: bash's message, and the exit `status`."""

    def __init__(self, line: int, message: str, shown: str | None = None, status: int = 2):
        super().__init__(message)
        self.line, self.message, self.shown, self.status = line, message, shown, status


@dataclass(slots=True)
class Lit:
    """Text outside quotes."""

    text: str


@dataclass(slots=True)
class Quoted:
    """Text protected by quotes or a backslash."""

    text: str


@dataclass(slots=True)
class Double:
    """The contents of double quotes."""

    parts: list


@dataclass(slots=True)
class Param:
    """`$name` and `${...}`: `op` is "" or one of OPERATION's, "length", "indirect", "keys" or "bad"."""

    name: str
    index: "Word | None" = None
    op: str = ""
    arg: "Word | None" = None
    arg2: "Word | None" = None
    source: str = ""


@dataclass(slots=True)
class Subst:
    """`$(...)`, backticks, or with `file` `<(...)` and with `into` `>(...)`: a program and its output or input."""

    program: list
    file: bool = False
    into: bool = False


@dataclass(slots=True)
class Arith:
    """`$((...))`."""

    word: "Word"


@dataclass(slots=True)
class Word:
    parts: list
    source: str = ""
    plain: str | None = None


@dataclass(slots=True)
class Assign:
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
    target: Word | None


@dataclass(slots=True)
class Simple:
    assigns: list[Assign]
    words: list  # Words, and Assigns behind declare and its like
    redirects: list[Redirect]
    line: int


@dataclass(slots=True)
class Pipe:
    stages: list
    bang: bool
    both: list[bool]  # whether a stage's errors go into the pipe too
    timed: bool = False


@dataclass(slots=True)
class AndOr:
    first: object
    rest: list  # of (operator, command)


@dataclass(slots=True)
class Background:
    body: object
    text: str


@dataclass(slots=True)
class Redirected:
    """A compound command with redirections."""

    body: object
    redirects: list[Redirect]
    line: int


@dataclass(slots=True)
class Group:
    body: list
    line: int
    subshell: bool = False


@dataclass(slots=True)
class If:
    clauses: list  # of (condition, body)
    otherwise: list
    line: int


@dataclass(slots=True)
class While:
    condition: list
    body: list
    until: bool
    line: int


@dataclass(slots=True)
class For:
    name: str
    words: list[Word] | None  # None: the positional parameters
    body: list
    line: int


@dataclass(slots=True)
class CFor:
    parts: list[Word]  # start, condition, step
    body: list
    line: int


@dataclass(slots=True)
class Case:
    word: Word
    clauses: list  # of (patterns, body, ending)
    line: int


@dataclass(slots=True)
class Arithmetic:
    word: Word
    line: int


@dataclass(slots=True)
class Cond:
    """`[[ ]]`: ("or"|"and", a, b), ("not", a), ("unary", op, word), ("binary", op, word, word) or ("word", word)."""

    test: tuple
    line: int


@dataclass(slots=True)
class Function:
    name: str
    body: object
    source: str
    line: int


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
