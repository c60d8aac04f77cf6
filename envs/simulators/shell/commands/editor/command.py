"""vi, vim and ex without a terminal: commands from -c, and standard input read as ex commands or as vi keys.

Keys: i a I A o O c s with their text up to Escape; x D J r ~ p P d y w G gg j k h l 0 $ / with counts; and : commands.
There is no undo.
"""

import re
from contextlib import suppress

from envs.simulators.regex.match import compile_regex
from envs.simulators.regex.syntax import RegexError
from envs.simulators.shell.commands.editor.keys import ESCAPE, Keys, Quit, Wrong
from envs.simulators.shell.commands.options import Fail
from envs.simulators.shell.commands.sed.text import replacement_parts, substitute
from envs.simulators.shell.files import raw, text
from envs.simulators.shell.process import Process

WARNINGS = "Vim: Warning: Output is not to a terminal\nVim: Warning: Input is not from a terminal\n"
VALUE = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^']|'')*'|line\(['\"].['\"]\)(?:\s*[-+]\s*\d+)?|-?\d+|%")  # of :call
ENDING = "Vim: Error reading input, exiting...\nVim: Finished.\n"


def vi(p: Process) -> int:
    ex = p.argv[0].rpartition("/")[2] == "ex"
    silent = False
    commands: list[str] = []
    files: list[str] = []
    words = iter(p.argv[1:])
    for word in words:
        if word == "--":
            files += words
        elif word in ("-c", "--cmd", "-S"):
            commands.append(next(words, ""))
        elif word.startswith("+") and len(word) > 1:
            commands.append(word[1:])
        elif word.startswith("-") and len(word) > 1:
            flags = word[1:]
            if flags.strip("eEsnNRZmMyvbuUiXTtdorp"):
                what = f'Unknown option argument: "{word}"'
                raise Fail(f'VIM - Vi IMproved\n{what}\nMore info with: "vim -h"', plain=True)
            if flags[:1] in ("u", "U", "i", "T") and len(flags) == 1:
                next(words, None)
            ex, silent = ex or "e" in flags or "E" in flags, silent or "s" in flags
        else:
            files.append(word)
    if not ex:
        p.stderr.write(WARNINGS)
    editor = Editor(p, files[0] if files else "", not ex or not silent)
    editor.row = max(0, len(editor.lines) - 1) if ex else 0
    try:
        for command in commands:
            editor.execute(command)
        if ex:
            editor.lines_of_commands(text(p.stdin))
            return editor.status
        editor.keys(text(p.stdin).rstrip("\n") + "\n")
    except Quit as leaving:
        return leaving.args[0] or (editor.status if ex else 0)
    p.stderr.write(ENDING)
    return 1


class Editor(Keys):
    """A file's lines, the cursor's line and column, and the last error."""

    def __init__(self, p: Process, name: str, shows: bool):
        self.p, self.name, self.shows, self.status = p, name, shows, 0
        self.lines: list[str] = []
        self.last_pattern = ""
        if name:
            with suppress(OSError):
                data = text(p.read(name))
                self.lines = data.removesuffix("\n").split("\n") if data else []
        self.row, self.column = 0, 0
        self.changed = False
        self.kept: list[str] = []

    def execute(self, command: str, depth: int = 0) -> None:
        """Run one ex command; store an error and, unless silent, print it."""
        self.p.tick(5)
        try:
            self.command(command.lstrip(": \t"), depth)
        except Wrong as wrong:
            self.status = 1
            if self.shows:
                self.p.stderr.write(f"{wrong}\n")
        except RegexError:
            self.status = 1

    def lines_of_commands(self, data: str) -> None:
        """Run standard input as ex commands; a text after a, i or c ends in a dot."""
        rest = data.split("\n")
        while rest:
            line = rest.pop(0)
            found = re.fullmatch(r":?\s*(\S*?)\s*(a|i|c|append|insert|change)!?", line)
            if found:
                added = []
                while rest and rest[0] != ".":
                    added.append(rest.pop(0))
                del rest[:1]
                self.insert(found[1], found[2][0], added)
            elif line.strip():
                self.execute(line)

    def insert(self, address: str, kind: str, added: list[str]) -> None:
        try:
            low, high, _ = self.range(address)
        except Wrong:
            self.status = 1
            return
        if kind == "c":
            at = max(low - 1, 0)
            self.lines[at : max(high, 1)] = added
        else:
            at = high if kind == "a" else max(0, high - 1)
            self.lines[at:at] = added
        self.changed = True
        self.row = max(0, at + len(added) - 1)

    # -- ex commands

    def range(self, command: str) -> tuple[int, int, str]:
        """Return the lines that a command addresses, from 1, and the rest of the command."""
        if command.startswith("%"):
            return 1, len(self.lines), command[1:]
        found = self.address(command)
        if found is None:
            return self.row + 1, self.row + 1, command
        low, rest = found
        if rest[:1] in (",", ";"):
            second = self.address(rest[1:])
            high, rest = second if second else (self.row + 1, rest[1:])
        else:
            high = low
        low, high = sorted((low, high))
        if high > max(len(self.lines), 1) or low < 0:
            raise Wrong("E16: Invalid range")
        return low, high, rest

    def address(self, command: str) -> tuple[int, str] | None:
        if found := re.match(r"\d{1,9}", command):
            line, rest = int(found[0]), command[found.end() :]
        elif command[:1] == "$":
            line, rest = len(self.lines), command[1:]
        elif command[:1] == ".":
            line, rest = self.row + 1, command[1:]
        elif command[:1] in ("/", "?") and command:
            pattern, rest = self.delimited(command[1:], command[0])
            regex = self.regex(pattern)
            order = [*range(self.row + 1, len(self.lines)), *range(self.row + 1)]
            order = order if command[0] == "/" else [(2 * self.row - i) % max(1, len(self.lines)) for i in order]
            held = (i for i in order if i < len(self.lines))  # none, in an empty text
            line = next((i + 1 for i in held if regex.test(self.lines[i], self.p.tick)), 0)
            if not line:
                raise Wrong(f"E486: Pattern not found: {pattern}")
        elif command[:1] in ("+", "-") and command:
            line, rest = self.row + 1, command
        else:
            return None
        while found := re.match(r"([-+])(\d{0,9})", rest):
            line += int(found[1] + (found[2] or "1"))
            rest = rest[found.end() :]
        return line, rest

    def delimited(self, text: str, delimiter: str) -> tuple[str, str]:
        """Return the text up to a delimiter, and the rest."""
        found = re.match(rf"(?:\\.|[^{re.escape(delimiter)}])*", text, re.DOTALL)
        inner = re.sub(r"\\(.)", lambda m: m[1] if m[1] == delimiter else m[0], found[0], flags=re.DOTALL)
        return inner, text[found.end() + 1 :]

    def regex(self, pattern: str):
        pattern = pattern or self.last_pattern
        if not pattern:
            raise Wrong("E35: No previous regular expression")
        self.last_pattern = pattern
        if pattern.startswith("\\v"):
            return compile_regex(pattern[2:], "sed extended")
        icase = "\\c" in pattern
        return compile_regex(pattern.replace("\\c", ""), "sed", icase)

    def command(self, command: str, depth: int) -> None:
        if not command or command[0] == '"':
            return
        if depth > 5:
            raise Wrong("E147: Cannot do :global recursive")
        low, high, rest = self.range(command)
        given = len(rest) < len(command)
        rest = rest.lstrip(" \t")
        name = re.match(r"[a-zA-Z]+|[&<>=!]|", rest)[0]
        if name not in ("r", "read"):  # line 0 is a place to put behind; elsewhere the first line is meant
            low, high = max(low, 1), max(high, 1)
        if name[:1] == "s" and re.match(r"s(u|ub|ubstitute)?([^a-zA-Z0-9\s\"|]|$)", rest):
            rest = rest[re.match(r"s(u|ub|ubstitute)?", rest).end() :]
            after = self.substitute(low, high, rest)
            if after:
                self.execute(after, depth)
            return
        if name in ("g", "global", "v", "vglobal"):
            self.globally(rest[len(name) :], (low, high) if given else (1, len(self.lines)), name[0] == "v", depth)
            return
        if name in ("normal", "norm"):
            keys = rest[len(name) :].removeprefix("!").removeprefix(" ")
            for row in range(low, high + 1) if given else [0]:
                if row:
                    self.row, self.column = max(0, min(row, len(self.lines)) - 1), 0
                self.keys(keys + ESCAPE)
            return
        if name in ("exe", "execute"):
            said = re.fullmatch(r"\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)')\s*(?:\|(.*))?", rest[len(name) :], re.DOTALL)
            if not said:
                raise Wrong(f"E121: Undefined variable: {rest[len(name) :].strip()}")
            self.execute(_string(said[1]) if said[1] is not None else said[2], depth + 1)
            if said[3]:
                self.execute(said[3], depth)
            return
        if name == "call":
            self.call(rest[4:].strip())
            return
        body, bar, after = rest[len(name) :].partition("|")
        self.plain(name, body.strip(), low, high, given)
        if bar:
            self.execute(after, depth)

    def call(self, said: str) -> None:
        """Run :call append(line, text) or setline(line, text)."""
        found = re.fullmatch(r"(append|setline)\((.*)\)\s*(?:\|(.*))?", said, re.DOTALL)
        if not found:
            raise Wrong(f"E117: Unknown function: {said.partition('(')[0]}")
        values = [_string(part[1:-1]) if part[0] == '"' else part[1:-1].replace("''", "'") if part[0] == "'" else part
                  for part in VALUE.findall(found[2])]  # fmt: skip
        if len(values) < 2:
            raise Wrong(f"E119: Not enough arguments for function: {found[1]}")
        first = self.number(values[0])
        begin, count = (first, 0) if found[1] == "append" else (first - 1, len(values) - 1)
        if 0 <= begin <= len(self.lines):
            self.lines[begin : begin + count] = values[1:]
            self.changed = True
        if found[3]:
            self.execute(found[3])

    def number(self, said: str) -> int:
        """Return a line's number: 3, '$', or line('$') - 1."""
        found = re.fullmatch(r"(?:line\(['\"](.)['\"]\)|([$.])|(-?\d{1,9}))\s*(?:([-+])\s*(\d{1,9}))?", said)
        if not found:
            return 0
        name = found[1] or found[2]
        base = {"$": len(self.lines), ".": self.row + 1}.get(name, 0) if name else int(found[3])
        return base + int((found[4] or "+") + (found[5] or "0"))

    def plain(self, name: str, body: str, low: int, high: int, given: bool) -> None:
        """Run a command that takes a range and perhaps a name."""
        if not name:
            self.row = max(0, min(high, len(self.lines)) - 1)
        elif name in ("d", "de", "delete"):
            if high > len(self.lines):
                raise Wrong("E16: Invalid range")
            self.kept = self.lines[low - 1 : high]
            del self.lines[low - 1 : high]
            self.row, self.changed = max(0, min(low - 1, len(self.lines) - 1)), True
        elif name in ("w", "write", "up", "update", "wq", "x", "xit", "wall", "wa", "wqa", "xa", "exit"):
            self.write(body.lstrip("! "), self.lines[low - 1 : high] if given else self.lines, name)
            if name[0] == "x" or "q" in name or name == "exit":
                raise Quit(0)
        elif name in ("q", "quit", "qa", "qall", "cq", "cquit"):
            if self.changed and not body.startswith("!") and name[0] != "c":
                raise Wrong("E37: No write since last change (add ! to override)")
            raise Quit(1 if name[0] == "c" else 0)
        elif name in ("p", "print", "P"):
            self.p.out("".join(line + "\n" for line in self.lines[low - 1 : high]))
            self.row = max(0, min(high, len(self.lines)) - 1)
        elif name in ("t", "co", "copy"):
            at = self.place(body)
            copied = self.lines[low - 1 : high]
            self.lines[at:at] = copied
            self.row, self.changed = at + len(copied) - 1, True
        elif name in ("m", "mo", "move"):
            at = self.place(body)
            if low <= at < high:
                raise Wrong("E134: Cannot move a range of lines into itself")
            moved = self.lines[low - 1 : high]
            del self.lines[low - 1 : high]
            at -= len(moved) if at >= high else 0
            self.lines[at:at] = moved
            self.row, self.changed = at + len(moved) - 1, True
        elif name in ("sor", "sort"):
            if body.strip("u! "):
                raise Wrong(f"E474: Invalid argument: {body}")
            first, last = (low, high) if given else (1, len(self.lines))
            lines = sorted(self.lines[first - 1 : last], reverse="!" in body)
            self.lines[first - 1 : last] = list(dict.fromkeys(lines)) if "u" in body else lines
            self.row, self.changed = first - 1, True
        elif name in ("j", "join"):
            high = high if high > low else low + 1
            joined = " ".join(line if i == 0 else line.lstrip() for i, line in enumerate(self.lines[low - 1 : high]))
            self.lines[low - 1 : high] = [joined]
            self.changed = True
        elif name in ("r", "read"):
            try:
                data = text(self.p.read(body)).removesuffix("\n").split("\n")
            except OSError:
                raise Wrong(f"E484: Can't open file {body}") from None
            self.lines[high:high] = data
            self.row, self.changed = high, True
        elif name not in ("set", "se", "syntax", "noh", "nohlsearch", "let", "echo", "silent", "u", "undo"):
            raise Wrong(f"E492: Not an editor command: {name}{body}")

    def place(self, body: str) -> int:
        """Return the number of the line behind which :t and :m put lines."""
        found = self.address(body)
        if found is None:
            raise Wrong("E14: Invalid address")
        if not 0 <= found[0] <= len(self.lines):
            raise Wrong("E16: Invalid range")
        return found[0]

    def write(self, name: str, lines: list[str], command: str) -> None:
        target = name or self.name
        if not target:
            raise Wrong("E32: No file name")
        if command[0] in "xu" and not self.changed and not name:
            return
        try:
            self.p.write(target, raw("".join(line + "\n" for line in lines)))
        except OSError:
            raise Wrong(f'"{target}" E212: Can\'t open file for writing') from None
        if target == self.name or not self.name:
            self.changed = False

    def substitute(self, low: int, high: int, rest: str) -> str:
        """Run :s on lines and return the text after a bar."""
        delimiter = rest[:1]
        if not delimiter:
            raise Wrong("E35: No previous regular expression")
        pattern, rest = self.delimited(rest[1:], delimiter)
        with_, rest = self.delimited(rest, delimiter)
        flags, _, after = rest.partition("|")
        regex = self.regex(pattern + ("\\c" if "i" in flags else ""))
        parts = replacement_parts(with_, {"r": "\n", "n": "\0", "t": "\t"})
        count = 0
        for row in range(min(high, len(self.lines)) - 1, low - 2, -1):
            changed, many = substitute(regex, self.lines[row], parts, self.p.tick, "g" in flags)
            if many:
                self.lines[row : row + 1] = changed.split("\n")
                self.row = row if not count else self.row
                count += many
        if not count and "e" not in flags:
            raise Wrong(f"E486: Pattern not found: {pattern}")
        self.changed = self.changed or bool(count)
        return after

    def globally(self, rest: str, lines: tuple[int, int], inverted: bool, depth: int) -> None:
        """Run a command on each line that matches (:g) or does not (:v)."""
        inverted = inverted or rest.startswith("!")
        rest = rest.removeprefix("!")
        pattern, command = self.delimited(rest[1:], rest[:1] or "/")
        if re.match(r"\s*m(o|ove)?\b\s*[^0\s]", command):  # the lines that are chosen would move as well
            raise Wrong(f"E492: Not an editor command: {command}")
        regex = self.regex(pattern)
        chosen = [i for i in range(lines[0] - 1, min(lines[1], len(self.lines)))
                  if regex.test(self.lines[i], self.p.tick) != inverted]  # fmt: skip
        moved = 0
        for row in chosen:
            before = len(self.lines)
            self.row = row + moved
            self.execute(command or "p", depth + 1)
            moved += len(self.lines) - before


def _string(said: str) -> str:
    """Return the text of a string in double quotes."""
    known = {"n": "\n", "t": "\t", "r": "\r", "e": ESCAPE, "<Esc>": ESCAPE, "<esc>": ESCAPE, "<ESC>": ESCAPE}
    known |= {"<CR>": "\r", "<cr>": "\r", "<Enter>": "\r", "<Tab>": "\t", "<Space>": " "}
    return re.sub(r"\\(<\w+>|.)", lambda found: known.get(found[1], found[1]), said, flags=re.DOTALL)


COMMANDS = dict.fromkeys(("vi", "vim", "ex"), vi)
