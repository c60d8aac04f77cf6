"""Shared by the commands: options as getopt_long parses them, names quoted as coreutils quotes them, errors, inputs."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from envs.simulators.shell.files import Node
from envs.simulators.shell.process import Process


class Fail(Exception):
    """End a command: `Fail("missing operand", try_help=True)` prints it after the command's name."""

    def __init__(self, message: str = "", status: int = 1, try_help: bool = False, plain: bool = False):
        self.message, self.status, self.try_help, self.plain = message, status, try_help, plain

    def print(self, p: Process) -> None:
        if self.message and self.plain:
            p.stderr.write(self.message + "\n")
        elif self.message:
            p.fail(self.message)
        if self.try_help:
            p.stderr.write(f"Try '{p.argv[0]} --help' for more information.\n")


def guarded(command):
    """Return a command whose Fail and OSError are printed as the real program prints them.

    A command returns its exit status, or None for `p.failed`, which is 0 unless something failed.
    """

    def run(p: Process) -> int:
        try:
            status = command(p)
            return p.failed if status is None else status
        except Fail as failure:
            failure.print(p)
            return failure.status
        except OSError as error:
            return p.fail(f"{quote_if(error.filename)}: {error.strerror}" if error.filename else error.strerror)

    return run


def attempt(p: Process, action: Callable, *arguments) -> bool:
    """Run an action on one of several operands; print its Fail and set `p.failed`. Return whether it succeeded."""
    try:
        action(*arguments)
    except Fail as failure:
        failure.print(p)
        p.failed = max(p.failed, failure.status)
        return False
    return True


def required(value, message: str, status: int = 1):
    """Return a value; Fail if it is None."""
    if value is None:
        raise Fail(message, status)
    return value


@contextmanager
def failing(message: str, status: int = 1) -> Iterator[None]:
    """Turn an OSError in the block into the Fail `message: why`."""
    try:
        yield
    except OSError as error:
        raise Fail(f"{message}: {error.strerror}", status) from None


def getopt(argv: list[str], short: str, long: dict[str, str] | None = None, **limits) -> tuple[dict, list[str]]:
    """Return a command line's options, as a dict from each flag to its last value, and its operands."""
    options, operands = ordered(argv, short, long, **limits)
    return dict(options), operands


def ordered(
    argv: list[str], short: str, long: dict | None = None, permute: bool = True, status: int = 1, least=0, most=None
) -> tuple[list[tuple[str, str | None]], list[str]]:
    """Return a command line's options in their order, as (flag, value), and its operands.

    `short` is getopt's: "ab:c::" has a flag a, a value after b and perhaps one joined to c. `long` maps a long name to
    its flag; the name ends in ":" if a value must follow and in "::" if one may. Long names may be shortened. Fail with
    `status` for an invalid option, for fewer operands than `least` and for more than `most`.
    """
    found: list[tuple[str, str | None]] = []
    operands: list[str] = []
    names = {name.rstrip(":"): (flag, name.count(":")) for name, flag in (long or {}).items()}
    words = iter(argv[1:])
    for word in words:
        if word == "--":
            operands += words
        elif word.startswith("--") and names:
            found.append(_long(word[2:], names, words, status))
        elif word.startswith("-") and word != "-":
            found += _short(word[1:], short, words, status)
        else:
            operands.append(word)
            if not permute:
                operands += words
    if len(operands) < least:
        after = f" after {quote_value(operands[-1])}" if operands else ""
        raise Fail(f"missing operand{after}", status, try_help=True)
    if most is not None and len(operands) > most:
        raise Fail(f"extra operand {quote_value(operands[most])}", status, try_help=True)
    return found, operands


def _long(word: str, names: dict, words: Iterator[str], status: int) -> tuple[str, str | None]:
    name, has_value, value = word.partition("=")
    matches = [name] if name in names else [known for known in names if known.startswith(name)]
    if not matches:
        raise Fail(f"unrecognized option '--{name}'", status, try_help=True)
    if len({names[match] for match in matches}) > 1:
        possible = "".join(f" '--{match}'" for match in matches)
        raise Fail(f"option '--{word}' is ambiguous; possibilities:{possible}", status, try_help=True)
    flag, takes = names[matches[0]]
    if has_value and not takes:
        raise Fail(f"option '--{matches[0]}' doesn't allow an argument", status, try_help=True)
    if not has_value and takes == 1:
        value = next(words, None)
        if value is None:
            raise Fail(f"option '--{matches[0]}' requires an argument", status, try_help=True)
        return flag, value
    return flag, value if has_value else None


def _short(cluster: str, short: str, words: Iterator[str], status: int) -> Iterator[tuple[str, str | None]]:
    for i, flag in enumerate(cluster):
        at = short.find(flag)
        if at < 0 or flag == ":":
            raise Fail(f"invalid option -- '{flag}'", status, try_help=True)
        takes = len(short[at + 1 : at + 3]) - len(short[at + 1 : at + 3].lstrip(":"))
        if not takes:
            yield flag, None
            continue
        rest = cluster[i + 1 :]
        if takes == 1 and not rest:
            rest = next(words, None)
            if rest is None:
                raise Fail(f"option requires an argument -- '{flag}'", status, try_help=True)
        yield flag, rest or (None if takes == 2 else "")
        return


PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,:+@%^{}]~#")
ESCAPES = {"\a": "\\a", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\v": "\\v", "\f": "\\f", "\r": "\\r"}


def quote(name: str) -> str:
    """A name in quotes that a shell would read back: 'a', "it's", 'a'$'\\n''b'."""
    if "'" in name and not re.search(r'[^ -~]|["$`\\!]', name):
        return f'"{name}"'
    shown = name.replace("'", "'\\''")
    return "'" + re.sub(r"([^ -~]+)(?=(.?))", lambda m: f"'$'{_escaped(m[1])}{chr(39) * 2 * bool(m[2])}", shown) + "'"


def _escaped(text: str) -> str:
    """Return a text with its control characters as \\n or \\003."""
    return re.sub(r"[^ -~]", lambda m: ESCAPES.get(m[0], f"\\{ord(m[0]):03o}"), text)


def quote_if(name: str) -> str:
    """Return a name, quoted only if a shell requires it."""
    if name and all(char in PLAIN for char in name) and name[0] not in "#~":
        return name
    return quote(name)


def quote_value(text: str) -> str:
    """A value in quotes, as messages show what is no name: ' and \\ escaped, control characters as \\n or \\003."""
    return "'" + _escaped(re.sub(r"(['\\])", r"\\\1", text)) + "'"


def number(text: str, what: str) -> int:
    """Return a count with coreutils' suffixes (k, K, KB, M, ...); Fail if it is invalid."""
    digits = text.lstrip(" \t").removeprefix("+")
    stripped = digits.lstrip("0123456789")
    suffix, digits = stripped, digits[: len(digits) - len(stripped)]
    if not digits or suffix not in SUFFIXES:
        raise Fail(f"invalid {what}: {quote_value(text)}")
    return int(digits[:30]) * SUFFIXES[suffix]


SUFFIXES = {"": 1, "b": 512}
for _power, _letter in enumerate("KMGTPE", 1):
    SUFFIXES |= {_letter: 1024**_power, f"{_letter}iB": 1024**_power, f"{_letter}B": 1000**_power}
SUFFIXES |= {"k": 1024, "kB": 1000, "m": 1024**2}


def read(p: Process, name: str) -> str:
    """Return the text of a file, of standard input for `-`; an OSError names the file."""
    try:
        data = p.stdin if name == "-" else p.read(name)
    except OSError as error:
        error.filename = name
        raise
    p.tick(1 + (len(data) >> 10))
    return data.decode("latin-1")


def inputs(p: Process, operands: list[str], problem: Callable | None = None) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each input, standard input for `-` or without names. If an input cannot be read,
    print a message, by default `name: why`, and set `p.failed`."""
    for name in operands or ["-"]:
        try:
            yield name, read(p, name)
        except OSError as error:
            p.failed = p.fail(problem(name, error) if problem else f"{quote_if(name)}: {error.strerror}")


def nodes(p: Process, names: list[str], problem: str, follow: bool = True) -> Iterator[tuple[str, Node]]:
    """Yield each name with its node. Where there is none, print `problem 'name': why` and set `p.failed`."""
    for name in names:
        try:
            yield name, p.lookup(name, follow)
        except OSError as error:
            p.failed = p.fail(f"{problem} {quote(name)}: {error.strerror}")


def lines(text: str, end: str = "\n", keep: bool = False) -> list[str]:
    """Return the lines of a text, with `keep` with their ends; the last one need not have an end."""
    *whole, rest = text.split(end)
    whole = [line + end for line in whole] if keep else whole
    return [*whole, rest] if rest else whole
