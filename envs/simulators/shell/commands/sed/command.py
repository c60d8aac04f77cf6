"""The sed command: run a parsed script over the input, line by line."""

from collections.abc import Iterator
from contextlib import suppress

from envs.simulators.shell.commands.options import Fail, failing, ordered, read, required
from envs.simulators.shell.commands.sed.parse import Address, Command, Script
from envs.simulators.shell.commands.sed.text import substitute
from envs.simulators.shell.files import MAX_TEXT, Timeout, raw
from envs.simulators.shell.process import Process

LONG = {"quiet": "n", "silent": "n", "expression:": "e", "file:": "f", "in-place::": "i", "regexp-extended": "E"}
LONG |= {"separate": "s", "null-data": "z", "unbuffered": "u"}
USAGE = "Usage: {name} [OPTION]... {{script-only-if-no-other-script}} [input-file]..."


def sed(p: Process) -> int:
    try:
        options, operands = ordered(p.argv, "ne:f:i::Erszu", LONG)
    except Fail as failure:
        usage = USAGE.format(name=p.argv[0])
        raise Fail(f"{p.argv[0]}: {failure.message}\n{usage}", failure.status, plain=True) from None
    chunks: list[tuple[str, str | None]] = []
    for flag, value in options:
        if flag == "e":
            chunks.append((value, None))
        elif flag == "f":
            with failing(f"couldn't open file {value}", 4):
                chunks.append((read(p, value).removesuffix("\n"), value))
    if not chunks:
        if not operands:
            raise Fail(USAGE.format(name=p.argv[0]), 1, plain=True)
        chunks = [(operands.pop(0), None)]
    p.tick(sum(len(chunk) for chunk, _ in chunks) >> 1)  # to compile its expressions
    flags, chosen = {flag for flag, _ in options}, dict(options)
    silent = "n" in flags or chunks[0][0].startswith("#n\n") or chunks[0][0] == "#n"
    commands = Script(chunks, bool(flags & {"E", "r"})).parse()
    return Sed(p, commands, operands, flags, chosen.get("i"), silent).run()


class Quit(Exception):
    """Raised by q and Q: the exit status, and whether the pattern space is printed."""


class Sed:
    """A running script: pattern and hold space, the line's number, the input."""

    def __init__(self, p: Process, commands: list[Command], files: list[str], flags: set, suffix, silent: bool):
        self.p, self.commands, self.silent = p, commands, silent
        self.in_place, self.suffix = "i" in flags, suffix or ""
        self.separate = "s" in flags or self.in_place
        self.end = "\0" if "z" in flags else "\n"
        self.files = files or ["-"]
        self.status = self.number = 0
        self.space = self.hold = ""
        self.missing_end = False  # the last line read had no newline
        self.out: list[str] = []
        self.open_line = self.replaced = False
        self.later: list[tuple[str, str]] = []  # what a and r leave for the end of the cycle
        self.last_regex = None
        self.lines: Iterator | None = None
        self.ahead: tuple[str, bool] | None = None

    def run(self) -> int:
        groups = [[name] for name in self.files] if self.separate else [self.files]
        quitting = None
        for names in groups:
            if quitting is None:
                quitting = self.edit(names)
        return self.status if quitting is None else quitting

    def edit(self, names: list[str]) -> int | None:
        """Edit one stream of lines to its end; return the status if q ended it."""
        quitting = None
        if self.in_place and not self.readable(names[0]):
            return None
        self.lines = self.input(names)
        self.ahead = next(self.lines, None)
        self.number, self.hold = 0, ""
        for command in self.commands:
            command.end = -1
        try:
            while self.next_line():
                while self.commands_on_space():
                    pass
        except Quit as leaving:
            quitting = leaving.args[0]
            if self.in_place:
                while self.next_line():
                    self.print(self.space)
        if self.in_place:
            self.replace(names[0])
            self.open_line = False
        else:
            self.p.out("".join(self.out))
        self.out = []
        return quitting

    def readable(self, name: str) -> bool:
        """Return whether a file can be edited in place; print a message if not."""
        p = self.p
        try:
            regular = p.lookup(name).kind == "file"
        except OSError as error:
            self.status = p.fail(f"can't read {name}: {error.strerror}", 2)
            return False
        if not regular:
            self.status = p.fail(f"couldn't edit {name}: not a regular file", 4)
        return regular

    def replace(self, name: str) -> None:
        """Replace a file by the edited text: a new file of the same owner and mode."""
        p = self.p
        node = p.lookup(name)
        mode, uid, gid = node.mode, node.uid, node.gid
        folder, _, base = name.rpartition("/")
        with failing(f"couldn't open temporary file {folder or '.'}/sedXXXXXX", 4):
            if self.suffix:
                backup = self.suffix.replace("*", base) if "*" in self.suffix else base + self.suffix
                backup = backup if "/" in backup or not folder else f"{folder}/{backup}"
                if p.exists(backup, follow=False):
                    p.unlink(backup)
                p.rename(name, backup)
            else:
                p.unlink(name)
            made = p.write(name, raw("".join(self.out)))
        made.mode, made.uid, made.gid = mode, uid, gid

    def input(self, names: list[str]) -> Iterator[tuple[str, bool]]:
        """Yield the lines of the files, each with whether its end is missing."""
        for name in names:
            try:
                data = read(self.p, name)
            except OSError as error:
                self.p.out("".join(self.out))
                self.out = []
                if error.strerror == "Is a directory":
                    raise Fail(f"read error on {name}: {error.strerror}", 4) from None
                self.status = self.p.fail(f"can't read {name}: {error.strerror}", 2)
                continue
            *whole, rest = data.split(self.end)
            yield from ((line, False) for line in whole)
            if rest:
                yield rest, True

    def next_line(self) -> bool:
        """Read the next line into the pattern space; return whether there was one."""
        if self.ahead is None:
            return False
        self.space, self.missing_end = self.ahead
        self.ahead = next(self.lines, None)
        self.number += 1
        return True

    def print(self, text: str, ending: bool = True) -> None:
        """Print a line, without its end if the input's last line has none; later output adds it."""
        last = self.missing_end and self.ahead is None and ending
        self.put(text if last else text + self.end, whole=not last)

    def put(self, text: str, whole: bool = True) -> None:
        if self.open_line:
            self.out.append(self.end)
        self.open_line = not whole
        self.out.append(text)

    def finish(self) -> None:
        """End a cycle: print the pattern space, then the texts of a, r and R."""
        if not self.silent:
            self.print(self.space)
        self.leave()

    def leave(self) -> None:
        for kind, text in self.later:
            if kind == "text":
                self.put(text)
                continue
            with suppress(OSError):
                self.put((self.p.stdin if text == "/dev/stdin" else self.p.read(text)).decode("latin-1"))
        self.later = []

    def commands_on_space(self) -> bool:
        """Run all commands on the pattern space; return whether D starts over without reading."""
        p, pc, many = self.p, 0, len(self.commands)
        self.replaced = False
        while pc < many:
            p.tick(1 + (len(self.space) >> 9))
            command = self.commands[pc]
            pc += 1
            if self.selects(command) == command.negated:
                if command.name == "{":
                    pc = command.target
                continue
            name = command.name
            if name == "s":
                self.substitute(command)
            elif name == "p":
                self.print(self.space)
            elif name == "d":
                self.leave()
                return False
            elif name == "D":
                _, newline, rest = self.space.partition("\n")
                self.leave()
                if not newline:
                    return False
                self.space = rest
                return True
            elif name in "btT":
                if name == "b" or (name == "t") == self.replaced:
                    pc = command.target
                if name != "b":
                    self.replaced = False
            elif name in "nN":
                if not self.more(name):
                    return False
            elif name == "c":
                if command.negated or not command.second or command.end == -1:
                    self.put(command.text)
                self.leave()
                return False
            elif name in "qQ":
                if name == "q":
                    self.finish()
                raise Quit(command.status)
            else:
                self.simple(command)
            if len(self.space) > MAX_TEXT or len(self.hold) > MAX_TEXT:
                raise Timeout
        self.finish()
        return False

    def more(self, name: str) -> bool:
        """Run n and N, which read the next line; without one the script ends."""
        if self.ahead is None:
            self.finish()
            return False
        before = self.space + self.end if name == "N" else ""
        if name == "n" and not self.silent:
            self.print(self.space)
        self.leave()
        self.next_line()
        self.space = before + self.space
        return True

    def simple(self, command: Command) -> None:
        """Run a command that does not change the order of commands."""
        name = command.name
        if name == "a":
            self.later.append(("text", command.text))
        elif name == "i":
            self.put(command.text)
        elif name == "r":
            self.later.append(("file", command.text))
        elif name == "g":
            self.space = self.hold
        elif name == "G":
            self.space += self.end + self.hold
        elif name == "h":
            self.hold = self.space
        elif name == "H":
            self.hold += self.end + self.space
        elif name == "x":
            self.space, self.hold = self.hold, self.space
        elif name == "P":
            self.print(self.space.partition("\n")[0], ending="\n" not in self.space)
        elif name == "=":
            self.put(f"{self.number}\n")

    def regex(self, regex):
        """Return the regular expression, or the last one used if it is empty."""
        self.last_regex = regex or self.last_regex
        return required(self.last_regex, "-e expression #1, char 0: no previous regular expression")

    def substitute(self, command: Command) -> None:
        regex = self.regex(command.regex)
        changed, count = substitute(regex, self.space, command.parts, self.p.tick, command.everywhere, command.nth)
        if count:
            self.space, self.replaced = changed, True
            for _ in range(command.prints):
                self.print(self.space)

    # -- addresses

    def selects(self, command: Command) -> bool:
        """Return whether a command's addresses select this line; opens and closes its range."""
        first, second = command.first, command.second
        if first is None:
            return True
        if second is None:
            return self.at(first)
        if command.end >= 0:
            return self.inside(command, second)
        if first.kind == "line" and first.number == 0 and command.end == -1:
            command.end = 0
            return self.inside(command, second)
        if not self.at(first):
            return False
        if second.kind == "line":
            command.end = second.number if second.number > self.number else -1
        elif second.kind == "plus":
            command.end = self.number + second.number if second.number else -1
        elif second.kind == "multiple":
            up = -(-self.number // second.number) * second.number if second.number else self.number
            command.end = up if up > self.number else -1
        else:
            command.end = 0 if not (second.kind == "last" and self.ahead is None) else -1
        return True

    def inside(self, command: Command, second: Address) -> bool:
        """Return whether a line after the first of a range is in it."""
        if second.kind in ("regex", "last"):
            if self.at(second):
                command.end = -1 if not (command.first.kind == "line" and command.first.number == 0) else -2
            return True
        if self.number < command.end:
            return True
        inside, command.end = self.number == command.end, -1
        return inside or (second.kind == "line" and self.at(command.first))

    def at(self, address: Address) -> bool:
        kind = address.kind
        if kind == "line":
            return self.number == address.number
        if kind == "last":
            return self.ahead is None
        if kind == "step":
            if address.step <= 0:
                return self.number == address.number
            return self.number >= address.number and (self.number - address.number) % address.step == 0
        return self.regex(address.regex).test(self.space, self.p.tick)


COMMANDS = {"sed": sed}
