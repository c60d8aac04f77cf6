"""Parse a sed script to a list of commands."""

import re
from dataclasses import dataclass, field

from envs.simulators.regex.match import Regex, compile_regex
from envs.simulators.shell.commands.options import Fail, required
from envs.simulators.shell.commands.sed.text import decoded, replacement_parts

MOST_COMMANDS = 10_000
ESCAPES = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


@dataclass
class Address:
    """Lines of the input: a number, every `step`-th from `number`, the last, or those that match."""

    kind: str  # "line", "step", "last", "regex", "plus" (so many more lines), "multiple" (up to a multiple)
    number: int = 0
    step: int = 0
    regex: Regex | None = None  # None: the last regex that was used


@dataclass
class Command:
    """One command with its addresses and arguments."""

    name: str
    first: Address | None = None
    second: Address | None = None
    negated: bool = False
    text: str = ""  # of a, i, c; the label of b, t, T; the file of r
    regex: Regex | None = None
    parts: list = field(default_factory=list)  # of the replacement: str, a group's number, or a case's letter
    nth: int = 1
    everywhere: bool = False
    prints: int = 0
    target: int = 0  # of {, b, t, T: the command to go on with
    status: int = 0  # of q, Q
    end: int = -1  # while a range is open: its last line, or 0 for one that is not known; -1: closed, -2: for good


class Script:
    """Reads a script. `chunks` are those of -e, and of -f with the file's name, which newlines join."""

    def __init__(self, chunks: list[tuple[str, str | None]], extended: bool):
        self.dialect = "sed extended" if extended else "sed"
        self.text, self.at = "\n".join(chunk for chunk, _ in chunks), 0
        self.starts: list[tuple[int, str | None]] = []
        total = 0
        for chunk, name in chunks:
            self.starts.append((total, name))
            total += len(chunk) + 1
        self.commands: list[Command] = []
        self.labels: dict[str, int] = {}
        self.blocks: list[int] = []

    def error(self, message: str, ahead: int = 0) -> Fail:
        """Return sed's error message, with the number of the expression and of the character in it."""
        self.at += ahead
        number, (start, name) = max((i, chunk) for i, chunk in enumerate(self.starts) if chunk[0] <= self.at or not i)
        if name is not None:
            return Fail(f"file {name} line {self.text.count(chr(10), start, self.at) + 1}: {message}")
        expressions = sum(name is None for _, name in self.starts[: number + 1])
        return Fail(f"-e expression #{expressions}, char {self.at - start}: {message}")

    def char(self) -> str:
        """Return the next character, "" at the end."""
        char = self.text[self.at : self.at + 1]
        self.at += bool(char)
        return char

    def accept(self, text: str) -> bool:
        """Read a text if it comes next; return whether it does."""
        found = self.text.startswith(text, self.at)
        self.at += len(text) * found
        return found

    def skip(self, chars: str) -> None:
        while self.at < len(self.text) and self.text[self.at] in chars:
            self.at += 1

    def word(self, ends: str) -> str:
        """Read the text before one of the characters, without the blanks around it."""
        self.skip(" \t")
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in ends:
            self.at += 1
        return self.text[start : self.at].rstrip()

    def parse(self) -> list[Command]:
        while True:
            self.skip(" \t\n;")
            if self.at >= len(self.text):
                break
            self.command()
            if len(self.commands) > MOST_COMMANDS:
                raise self.error("memory exhausted")
        if self.blocks:
            self.at = 0
            raise self.error("unmatched `{'")
        self.labels[""] = len(self.commands)
        for command in self.commands:
            if command.name in "btT":
                missing = f"can't find label for jump to `{command.text}'"
                command.target = required(self.labels.get(command.text), missing, 4)
        return self.commands

    def command(self) -> None:
        first, second = self.address(first=True), None
        self.skip(" \t")
        if first is not None and self.accept(","):
            self.skip(" \t")
            second = self.address(first=False)
            if second is None:
                raise self.error("unexpected `,'", 1)
        if first == Address("line") and (second is None or second.kind != "regex"):
            raise self.error("invalid usage of line address 0", 1)
        self.skip(" \t")
        negated = False
        while self.accept("!"):
            negated = True
            self.skip(" \t")
        name = self.char()
        if not name or name == "\n":
            raise self.error("missing command")
        command = Command(name, first, second, negated)
        self.commands.append(command)
        if name == "#":
            if first is not None:
                raise self.error("comments don't accept any addresses")
            self.commands.pop()
            self.until_newline()
        elif name == ":":
            self.label(command)
        elif name == "{":
            self.blocks.append(len(self.commands) - 1)
        elif name == "}":
            self.close(command)
        else:
            self.arguments(command)

    def label(self, command: Command) -> None:
        if command.first is not None:
            raise self.error(": doesn't want any addresses")
        label = self.word("\n;")
        if not label:
            raise self.error('":" lacks a label')
        self.commands.pop()
        self.labels[label] = len(self.commands)

    def close(self, command: Command) -> None:
        if not self.blocks:
            raise self.error("unexpected `}'")
        if command.first is not None:
            raise self.error("} doesn't want any addresses")
        self.commands.pop()
        self.commands[self.blocks.pop()].target = len(self.commands)
        self.ending()

    def arguments(self, command: Command) -> None:
        name = command.name
        if name in "=dDgGhHnNpPx":
            self.ending()
        elif name in "aic":
            self.appended(command)
        elif name in "btT":
            command.text = self.word("\n;}")
        elif name == "r":
            self.skip(" \t")
            command.text = self.until_newline()
            if not command.text:
                raise self.error("missing filename in r/R/w/W commands")
        elif name in "qQ":
            if command.second is not None:
                raise self.error("command only uses one address")
            self.skip(" \t")
            command.status = self.number()
            self.ending()
        elif name == "s":
            self.substitution(command)
        else:
            raise self.error(f"unknown command: `{name}'")

    def until_newline(self) -> str:
        found = self.text[self.at :].partition("\n")[0]
        self.at += len(found)
        return found

    def ending(self, message: str = "extra characters after command") -> None:
        """Read the end of a command: blanks, then ; } # or the end of the line."""
        self.skip(" \t")
        if self.at < len(self.text) and self.text[self.at] not in "\n;}#":
            raise self.error(message, 1)

    def number(self) -> int:
        start = self.at
        self.skip("0123456789")
        return int(self.text[start : self.at][:15] or 0)

    def address(self, first: bool) -> Address | None:
        char = self.text[self.at : self.at + 1]
        if char.isdecimal():
            number = self.number()
            if first and self.accept("~"):
                return Address("step", number, self.number())
            return Address("line", number)
        if self.accept("$"):
            return Address("last")
        if not first and (self.accept("+") or self.accept("~")):
            return Address("plus" if char == "+" else "multiple", self.number())
        if char == "/" or (char == "\\" and self.at + 1 < len(self.text)):
            self.at += 1 + (char == "\\")
            delimiter = self.text[self.at - 1]
            pattern = self.delimited(delimiter, "unterminated address regex", True)
            start = self.at
            self.skip("IM")
            return Address("regex", regex=self.compiled(pattern, self.text[start : self.at]))
        return None

    def delimited(self, delimiter: str, unterminated: str, regex: bool) -> str:
        """Read the text up to a delimiter, which is part of the text behind a backslash; the backslash is dropped."""
        found: list[str] = []
        while True:
            char = self.char()
            if not char or (char == "\n" and regex and "address" in unterminated):
                raise self.error(unterminated)
            if char == delimiter:
                return "".join(found)
            if char == "[" and regex:
                found.append(self.bracket(unterminated))
            elif char == "\\":
                after = self.char()
                if not after:
                    raise self.error(unterminated)
                literal = after == "&" and not regex  # a bare & would be the match
                found.append(after if after == delimiter and not literal else "\\" + after)
            else:
                found.append(char)

    def bracket(self, unterminated: str) -> str:
        """Read a bracket expression after its [; a delimiter inside does not end the text."""
        start = self.at - 1
        self.at += self.text.startswith("^", self.at)
        self.at += self.text.startswith("]", self.at)
        while True:
            char = self.char()
            if not char:
                raise self.error(unterminated)
            if char == "]":
                return self.text[start : self.at]
            kind = self.text[self.at : self.at + 1]
            if char == "[" and kind and kind in ":.=":
                end = self.text.find(kind + "]", self.at + 1)
                self.at = end + 2 if end >= 0 else self.at

    def compiled(self, pattern: str, flags: str) -> Regex | None:
        if not pattern:
            return None
        try:
            icase, lines = "i" in flags.lower(), "m" in flags.lower()
            return compile_regex(decoded(pattern), self.dialect, icase, lines)
        except ValueError as error:
            raise self.error(str(error)) from None

    def decoded(self, text: str, protected: str) -> str:
        """Return a text with its codes replaced; Fail for an invalid one."""
        try:
            return decoded(text, protected)
        except ValueError as error:
            raise self.error(str(error)) from None

    def appended(self, command: Command) -> None:
        """Read the text of a, i and c: one line, or several joined by backslashes."""
        self.skip(" \t")
        if self.at >= len(self.text):
            raise self.error("expected \\ after `a', `c' or `i'")
        if self.accept("\\"):
            start = self.at
            self.skip(" \t")
            if self.at >= len(self.text):
                return
            if not self.accept("\n"):
                self.at = start
        shown = []
        while self.at < len(self.text):
            char = self.char()
            if char == "\n":
                break
            shown.append(char + self.char() if char == "\\" else char)
        text = self.decoded("".join(shown), "\\")
        command.text = re.sub(r"\\(.?)", lambda found: ESCAPES.get(found[1], found[1]), text, flags=re.DOTALL) + "\n"

    def substitution(self, command: Command) -> None:
        delimiter = self.char()
        unterminated = "unterminated `s' command"
        if not delimiter or delimiter in "\n\\":
            raise self.error(unterminated)
        pattern = self.delimited(delimiter, unterminated, True)
        replacement = self.delimited(delimiter, unterminated, False)
        flags = ""
        while True:
            char = self.text[self.at : self.at + 1]
            if char in ("g", "p", "i", "I", "m", "M"):
                self.at += 1
                if char in "gp" and char in flags:
                    raise self.error(f"multiple `{char}' options to `s' command")
                flags += char
            elif char.isdecimal():
                start = self.at
                command.nth = self.number()
                if not command.nth:
                    self.at = start
                    raise self.error("number option to `s' command may not be zero", 1)
            else:
                self.ending("unknown option to `s'")
                break
        command.everywhere, command.prints = "g" in flags, flags.count("p")
        command.regex = self.compiled(pattern, flags)
        command.parts = replacement_parts(self.decoded(replacement, "&\\"), ESCAPES)
        for part in command.parts if command.regex else ():
            if isinstance(part, int) and part > command.regex.groups:
                raise self.error(f"invalid reference \\{part} on `s' command's RHS")
