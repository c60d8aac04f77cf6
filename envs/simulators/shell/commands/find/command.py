"""The find command: parse its expression, walk the folders, run the actions."""

import re
from collections.abc import Callable

from envs.simulators.regex.match import compile_regex
from envs.simulators.regex.syntax import RegexError
from envs.simulators.shell.commands.find.measures import Measures, formatted
from envs.simulators.shell.commands.modes import group_id, user_id
from envs.simulators.shell.commands.options import Fail, quote, quote_value, required
from envs.simulators.shell.files import Node
from envs.simulators.shell.patterns import LOWER, matches
from envs.simulators.shell.process import Process

KINDS = {"f": "file", "d": "dir", "l": "link", "c": "device"}
ARGUMENT = {
    "-name", "-iname", "-path", "-wholename", "-ipath", "-type", "-size", "-perm", "-user", "-group", "-uid",
    "-gid", "-newer", "-mtime", "-mmin", "-atime", "-amin", "-ctime", "-cmin", "-regex", "-iregex", "-printf",
    "-links", "-maxdepth", "-mindepth", "-newermt", "-regextype", "-inum",
    "-lname", "-ilname", "-anewer", "-cnewer",
}  # fmt: skip
EXTENDED = ("awk", "egrep", "gnu-awk", "posix-awk", "posix-egrep")
REGEX_TYPES = dict.fromkeys(EXTENDED, "extended") | {"posix-extended": "posix"}
REGEX_TYPES |= dict.fromkeys(("findutils-default", "emacs"), "emacs")
REGEX_TYPES |= dict.fromkeys(("ed", "grep", "posix-basic", "posix-minimal-basic", "sed"), "basic")
MOST_ARGUMENTS = 5000  # of one command that {} + makes


def find(p: Process) -> int:
    words = list(p.argv[1:])
    follow = False
    while words and words[0] in ("-H", "-L", "-P"):
        follow = words.pop(0) == "-L"
    paths = []
    while words and not ((words[0][:1] == "-" and len(words[0]) > 1) or words[0] in ("(", ")", "!", ",")):
        paths.append(words.pop(0))
    search = Search(p, words, follow)
    for path in paths or ["."]:
        search.start(path)
    for batch in search.batches:
        search.run_batch(batch)
    return search.status


class Search(Measures):
    """An expression, and the walk that applies it."""

    def __init__(self, p: Process, words: list[str], follow: bool):
        self.p, self.follow, self.status = p, follow, 0
        self.deepest, self.least, self.depth_first = 10**6, 0, "-depth" in words or "-delete" in words
        self.words, self.at, self.nested = words, 0, 0
        self.acts = self.pruned = self.stopped = False
        self.regextype = "emacs"
        self.batches: list[tuple[list[str], list[str]]] = []  # commands of -exec ... +, and their files
        self.now = p.machine.clock
        test = self.either() if words else lambda path, node, depth: True
        if self.at < len(words):
            word = words[self.at]
            raise Fail("you have too many ')'" if word == ")" else f"paths must precede expression: `{word}'")
        self.test = test if self.acts else lambda path, node, depth: test(path, node, depth) and self.print(path)

    def print(self, path: str, end: str = "\n") -> bool:
        self.p.out(path + end)
        return True

    # -- the expression

    def peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def next(self, word: str) -> str:
        """Read the argument of a predicate."""
        if self.at >= len(self.words):
            raise Fail(f"missing argument to `{word}'")
        self.at += 1
        return self.words[self.at - 1]

    def deeper(self) -> None:
        self.nested += 1
        if self.nested > 60:
            raise Fail("invalid expression; expression nested too deeply")

    def either(self) -> Callable:
        self.deeper()
        found = self.both()
        while self.peek() in ("-o", "-or"):
            self.at += 1
            self.operand_follows(self.words[self.at - 1])
            found = _or(found, self.both())
        self.nested -= 1
        return found

    def operand_follows(self, operator: str) -> None:
        if not self.peek() or self.peek() in (")", "-o", "-or", "-a", "-and"):
            raise Fail(f"expected an expression after '{operator}'")

    def both(self) -> Callable:
        if self.peek() in ("-o", "-or", "-a", "-and"):
            raise Fail(f"invalid expression; you have used a binary operator '{self.peek()}' with nothing before it.")
        found = self.single()
        while self.peek() and self.peek() not in (")", "-o", "-or"):
            if self.peek() in ("-a", "-and"):
                self.at += 1
                self.operand_follows(self.words[self.at - 1])
            found = _and(found, self.single())
        return found

    def single(self) -> Callable:
        word = self.peek()
        self.at += 1
        if word in ("!", "-not"):
            if not self.peek():
                raise Fail(f"expected an expression after '{word}'")
            self.deeper()
            inner = self.single()
            self.nested -= 1
            return lambda path, node, depth: not inner(path, node, depth)
        if word == "(":
            if self.peek() == ")":
                raise Fail("invalid expression; empty parentheses are not allowed.")
            inner = self.either() if self.peek() else None
            if inner is None or self.peek() != ")":
                raise Fail("invalid expression; I was expecting to find a ')' somewhere but did not see one.")
            self.at += 1
            return inner
        if word in ("-exec", "-execdir", "-ok", "-okdir"):
            return self.exec(word)
        return self.with_argument(word, self.next(word)) if word in ARGUMENT else self.without(word)

    def without(self, word: str) -> Callable:
        """Read a test or action without an argument."""
        p = self.p
        if word in ("-print", "-print0"):
            self.acts = True
            end = "\n" if word == "-print" else "\0"
            return lambda path, node, depth: self.print(path, end)
        if word == "-delete":
            self.acts = True
            return self.delete
        if word == "-prune":
            return self.prune
        if word == "-quit":
            self.acts = True
            return self.quit
        if word == "-empty":
            return lambda path, node, depth: node.kind in ("file", "dir") and not node.data
        if word in ("-readable", "-writable", "-executable"):
            bits = {"-readable": 4, "-writable": 2, "-executable": 1}[word]
            return lambda path, node, depth: p.may(node, bits)
        if word in ("-true", "-depth", "-d", "-follow", "-mount", "-xdev", "-noleaf", "-daystart", "-warn", "-nowarn"):
            self.depth_first = self.depth_first or word == "-d"
            return lambda path, node, depth: True
        if word.startswith("-"):
            raise Fail(f"unknown predicate `{word}'")
        hint = f"\n{self.p.argv[0]}: possible unquoted pattern after predicate `{self.words[self.at - 2]}'?"
        earlier = self.at > 2 and self.words[self.at - 3] in ("-name", "-iname", "-path")
        raise Fail(f"paths must precede expression: `{word}'" + (hint.replace(
            self.words[self.at - 2], self.words[self.at - 3]) if earlier and self.p.exists(word) else ""))  # fmt: skip

    def with_argument(self, word: str, value: str) -> Callable:
        p = self.p
        if word in ("-name", "-iname", "-path", "-ipath", "-wholename", "-lname", "-ilname"):
            glob = self.glob(value, icase=word[1] == "i")
            if "lname" in word:
                return lambda path, node, depth: node.kind == "link" and glob(node.data)
            if "name" in word and word != "-wholename":
                return lambda path, node, depth: glob(path.rstrip("/").rpartition("/")[2] or path)
            return lambda path, node, depth: glob(path)
        if word == "-type":
            wanted = value.split(",")
            if unknown := [letter for letter in wanted if letter not in (*KINDS, "b", "p", "s")]:
                raise Fail(f"Unknown argument to {word}: {unknown[0]}")
            kinds = {KINDS.get(letter) for letter in wanted}
            return lambda path, node, depth: node.kind in kinds
        if word == "-size":
            return self.size(value)
        if word == "-perm":
            return self.perm(value)
        if word in ("-user", "-group"):
            kind = "a known user" if word == "-user" else "an existing group"
            found = (user_id if word == "-user" else group_id)(p, value)
            number = required(found, f"{quote_value(value)} is not the name of {kind}")
            return lambda path, node, depth: (node.uid if word == "-user" else node.gid) == number
        if word in ("-uid", "-gid", "-links", "-inum"):
            count = self.count(word, value)
            field = {"-uid": "uid", "-gid": "gid", "-links": "nlink", "-inum": "ino"}[word]
            return lambda path, node, depth: count(getattr(node, field))
        if word in ("-mtime", "-atime", "-ctime", "-mmin", "-amin", "-cmin"):
            return self.age(word, value)
        if word in ("-newer", "-anewer", "-cnewer", "-newermt"):
            return self.newer(word, value)
        if word in ("-regex", "-iregex"):
            p.tick(len(value) >> 1)  # to compile it
            try:
                dialect = "extended" if self.regextype == "emacs" else self.regextype
                value = emacs(value) if self.regextype == "emacs" else value
                regex = compile_regex(value, dialect, word == "-iregex", bounds="x")
            except RegexError as error:
                raise Fail(f"failed to compile regular expression {quote_value(value)}: {error}") from None
            return lambda path, node, depth: regex.test(path, p.tick)
        if word == "-regextype":
            valid = ", ".join(map(quote_value, sorted(REGEX_TYPES)))
            unknown = f"Unknown regular expression type {quote_value(value)}; valid types are {valid}."
            self.regextype = required(REGEX_TYPES.get(value), unknown)
            return lambda path, node, depth: True
        if word in ("-maxdepth", "-mindepth"):
            if not value.isdecimal():
                raise Fail(f"Expected a positive decimal integer argument to {word}, but got {quote_value(value)}")
            if word == "-maxdepth":
                self.deepest = int(value[:6])
            else:
                self.least = int(value[:6])
            return lambda path, node, depth: True
        self.acts = True
        return lambda path, node, depth: self.print(formatted(p, value, path, node, depth, self.starting), "")

    def glob(self, pattern: str, icase: bool) -> Callable[[str], bool]:
        """Return a function that matches a glob with a text."""
        self.p.tick(len(pattern))  # to compile it
        if (len(pattern) - len(pattern.rstrip("\\"))) % 2:  # a backslash at the end makes a glob invalid
            return lambda text: False
        if icase:
            pattern = pattern.translate(LOWER)

        def match(text: str) -> bool:
            self.p.tick(len(pattern) * len(text) >> 7)
            return matches(pattern, text.translate(LOWER) if icase else text, self.p.tick)

        return match

    def exec(self, word: str) -> Callable:
        self.acts = True
        command = []
        while True:
            part = self.next(word)
            if part == ";" or (part == "+" and command[-1:] == ["{}"]):
                break
            command.append(part)
        if not command:
            raise Fail(f"invalid argument `{part}' to `{word}'")
        if part == "+":
            batch: tuple[list[str], list[str]] = (command[:-1], [])
            self.batches.append(batch)
            return lambda path, node, depth: self.collect(batch, path)
        inside, asks = word.endswith("dir"), word.startswith("-ok")

        def run(path: str, node: Node, depth: int) -> bool:
            folder, _, name = path.rpartition("/")
            shown = f"./{name}" if inside else path
            changes = {"cwd": self.p.realpath(folder or ("/" if path.startswith("/") else "."))} if inside else {}
            argv = [part.replace("{}", shown) for part in command]
            if asks:
                self.p.stderr.write(f"< {command[0]} ... {path} > ? ")
                if self.p.stream(0).readline()[:1] not in (b"y", b"Y"):
                    return False
            return self.execute(argv, **changes) == 0

        return run

    def collect(self, batch: tuple[list[str], list[str]], path: str) -> bool:
        batch[1].append(path)
        if len(batch[1]) >= MOST_ARGUMENTS:
            self.run_batch(batch)
        return True

    def run_batch(self, batch: tuple[list[str], list[str]]) -> None:
        if batch[1]:
            if self.execute(batch[0] + batch[1]):
                self.status = 1
            batch[1].clear()

    def execute(self, argv: list[str], **changes) -> int:
        try:
            return self.p.run(argv, stdin=b"", **changes)
        except OSError as error:
            self.p.fail(f"{quote(argv[0])}: {error.strerror}")
            return 127

    # -- actions on the walk

    def delete(self, path: str, node: Node, depth: int) -> bool:
        if path == ".":
            return True
        try:
            (self.p.rmdir if node.kind == "dir" else self.p.unlink)(path)
        except OSError as error:
            self.status = self.p.fail(f"cannot delete {quote(path)}: {error.strerror}")
            return False
        return True

    def prune(self, path: str, node: Node, depth: int) -> bool:
        self.pruned = True
        return True

    def quit(self, path: str, node: Node, depth: int) -> bool:
        self.stopped = True
        return True

    # -- the walk

    def start(self, path: str) -> None:
        self.starting = path
        try:
            node = self.p.lookup(path, self.follow or path.endswith("/"))
        except OSError as error:
            node = self.p.find(path, follow=False) if self.follow else None
            if node is None:
                self.status = self.p.fail(f"{quote(path)}: {error.strerror}")
                return
        self.walk(path, node, 0)

    def walk(self, path: str, node: Node, depth: int) -> None:
        if self.stopped:
            return
        self.p.tick(2)
        self.pruned = False
        if not self.depth_first and depth >= self.least:
            self.test(path, node, depth)
        if node.kind == "dir" and depth < self.deepest and not (self.pruned and not self.depth_first):
            self.inside(path, node, depth)
        if self.depth_first and depth >= self.least and not self.stopped:
            self.test(path, node, depth)

    def inside(self, path: str, node: Node, depth: int) -> None:
        if not self.p.may(node, 5):
            self.status = self.p.fail(f"{quote(path)}: Permission denied")
            return
        for name in sorted(node.data):
            below = node.data.get(name)
            if below is None:
                continue
            here = f"{path}{'' if path.endswith('/') else '/'}{name}"
            if self.follow and below.kind == "link" and self.p.exists(here):
                below = self.p.lookup(here)
                if depth > 40:
                    continue
            self.walk(here, below, depth + 1)


def emacs(pattern: str) -> str:
    """Return a regular expression in the syntax of Emacs, find's own, as an extended one."""
    out, at = [], 0
    while at < len(pattern):
        bracket = re.compile(r"\[\^?\]?(?:\[:[a-z]+:\]|[^\]])*\]").match(pattern, at)
        piece = bracket[0] if bracket else pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        at += len(piece)
        first = not out or out[-1] in ("(", "|")
        last = at == len(pattern) or pattern.startswith(("\\)", "\\|"), at)
        plain = piece in ("(", ")", "{", "}", "|") or (piece == "^" and not first) or (piece == "$" and not last)
        if plain or (piece in ("*", "+", "?") and (first or out[-1] == "^")):
            out.append("\\" + piece)
        elif piece in ("\\(", "\\)", "\\|"):
            out.append(piece[1])
        else:
            out.append("[^\n]" if piece == "." else piece)
    return "".join(out)


def _and(a: Callable, b: Callable) -> Callable:
    return lambda path, node, depth: a(path, node, depth) and b(path, node, depth)


def _or(a: Callable, b: Callable) -> Callable:
    return lambda path, node, depth: a(path, node, depth) or b(path, node, depth)


COMMANDS = {"find": find}
