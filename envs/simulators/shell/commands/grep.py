"""grep, egrep and fgrep."""

import re
from collections.abc import Iterator
from itertools import islice

from envs.simulators.regex.match import RegexError, compile_regex
from envs.simulators.shell.commands.options import Fail, failing, lines, ordered, read
from envs.simulators.shell.patterns import matches
from envs.simulators.shell.process import Process

SHORT = "EFGPiyvwxclLnoqshHrRA:B:C:m:e:f:aIUzZd:0123456789"
LONG = {"extended-regexp": "E", "fixed-strings": "F", "basic-regexp": "G", "perl-regexp": "P", "ignore-case": "i"}
LONG |= {"invert-match": "v", "word-regexp": "w", "line-regexp": "x", "count": "c", "files-with-matches": "l"}
LONG |= {"files-without-match": "L", "line-number": "n", "only-matching": "o", "quiet": "q", "silent": "q"}
LONG |= {"no-messages": "s", "no-filename": "h", "with-filename": "H", "recursive": "r", "regexp:": "e", "file:": "f"}
LONG |= {"dereference-recursive": "R", "after-context:": "A", "before-context:": "B", "context:": "C", "text": "a"}
LONG |= {"max-count:": "m", "include:": "+", "exclude:": "-", "exclude-dir:": "/", "color::": "k", "colour::": "k"}
LONG |= {"null-data": "z", "null": "Z", "label:": "N", "no-ignore-case": "J", "line-buffered": "k"}
LONG |= {"directories:": "d"}
USAGE = "Usage: grep [OPTION]... PATTERNS [FILE]...\nTry 'grep --help' for more information."


def grep(p: Process) -> int:
    kind = {"egrep": "E", "fgrep": "F"}.get(p.argv[0].rpartition("/")[2], "G")
    p.argv = ["grep" if kind != "G" else p.argv[0], *p.argv[1:]]  # they are scripts that run grep
    try:
        options, operands = ordered(p.argv, SHORT, LONG, status=2)
    except Fail as failure:
        raise Fail(f"{p.argv[0]}: {failure.message}\n{USAGE}", 2, plain=True) from None
    flags = {flag for flag, _ in options}
    chosen = dict(options)
    kind = next((flag for flag, _ in reversed(options) if flag in "EFGP"), kind)
    patterns = _patterns(p, options)
    if patterns is None:
        if not operands:
            raise Fail(USAGE, 2, plain=True)
        patterns = operands.pop(0).split("\n")
    if kind == "P" and len(patterns) > 1:
        raise Fail("the -P option only supports a single pattern", 2)
    search = Search(p, patterns, kind, flags, chosen, options)
    recursive = bool(flags & {"r", "R"}) or chosen.get("d") == "recurse"
    files = operands or (["."] if recursive else ["-"])
    folders = recursive and any(map(p.is_dir, files))
    search.named = "H" in flags or ((len(files) > 1 or folders) and "h" not in flags)
    for name in _names(p, files, recursive, search, bare=not operands):
        search.file(name)
        if search.found and "q" in flags:
            return 0
    return 2 if search.failed else 0 if search.found else 1


def _patterns(p: Process, options: list) -> list[str] | None:
    """Return the patterns of -e and -f, None if there are none."""
    found = None
    for flag, value in options:
        if flag == "e":
            found = (found or []) + value.split("\n")
        elif flag == "f":
            with failing(value, 2):
                data = read(p, value)
            found = (found or []) + (data.removesuffix("\n").split("\n") if data else [])
    return found


def _names(p: Process, files: list[str], recursive: bool, search: "Search", bare: bool) -> Iterator[str]:
    """Return the files to search, with folders expanded if recursive."""
    for name in files:
        node = p.find(name) if name != "-" else None
        if not (recursive and node and node.kind == "dir"):
            if name == "-" or not search.skips(search.file_rules, name, command_line=True):
                yield name
            continue
        if not bare and search.skips(search.folder_rules, name, command_line=True):
            continue
        yield from _inside(p, "" if bare else name.rstrip("/") + "/" if name != "/" else "/", node, search)


def _inside(p: Process, prefix: str, folder, search: "Search") -> Iterator[str]:
    for name in sorted(folder.data):
        p.tick()
        node = folder.data[name]
        path = prefix + name
        if node.kind == "link":
            if not search.follow:
                continue
            node = p.find(path)
            if node is None:
                yield path
                continue
        if node.kind == "dir":
            if search.skips(search.folder_rules, name):
                continue
            if p.may(node, 5):
                yield from _inside(p, path + "/", node, search)
            else:
                search.complain(path, "Permission denied")
        elif not search.skips(search.file_rules, name):
            yield path


class Search:
    """The patterns and options of one grep, and its results so far."""

    def __init__(self, p: Process, patterns: list[str], kind: str, flags: set, chosen: dict, options: list):
        self.p, self.flags = p, flags
        self.found = self.failed = self.named = self.shown_before = False
        self.follow = "R" in flags
        self.most = _length(chosen["m"], "max count") if "m" in chosen else None
        around = "".join(flag for flag, _ in options if flag.isdecimal()) or chosen.get("C") or "0"
        self.after, self.before = (_length(chosen.get(flag, around), "context length argument") for flag in "AB")
        self.end = "\0" if "z" in flags else "\n"
        self.label = chosen.get("N", "(standard input)")
        self.file_rules = [(flag, value) for flag, value in options if flag in ("+", "-")]
        self.folder_rules = [(flag, value.rstrip("/") or "/") for flag, value in options if flag == "/"]
        globs = [value for flag, value in options if flag in ("+", "-", "/")]
        p.tick(sum(map(len, globs)) + (sum(map(len, patterns)) >> 1))  # to compile them
        case = [flag for flag, _ in options if flag in "iyJ"]
        dialect = {"G": "basic", "E": "extended", "F": "fixed", "P": "perl"}[kind]
        bounds = "x" if "x" in flags else "w" if "w" in flags else ""
        try:
            icase = bool(case) and case[-1] != "J"
            for pattern in patterns if kind in "GE" else ():
                if re.fullmatch(r"\[:[^\]]*:\]", pattern):
                    raise RegexError("character class syntax is [[:space:]], not [:space:]")
            self.regexes = [compile_regex(pattern, dialect, icase, bounds=bounds) for pattern in patterns]
        except RegexError as error:
            raise Fail(str(error), 2) from None
        if kind == "E":
            for pattern in patterns:
                if found := re.search(r"(?:^|(?<!\\)[(|])\^*([*+?])", pattern):
                    p.fail(f"warning: {found[1]} at start of expression")
        self.skip_folders = chosen.get("d") == "skip"
        self.context = bool(flags & set("ABC0123456789")) and bool(self.before or self.after)

    def skips(self, rules: list[tuple[str, str]], name: str, command_line: bool = False) -> bool:
        """Return whether rules skip a name.

        The last rule that matches decides. If none does, the name is skipped if the first rule is an --include.
        """
        for flag, pattern in reversed(rules):
            if self.fits(pattern, name, command_line):
                return flag != "+"
        return bool(rules) and rules[0][0] == "+"

    def fits(self, pattern: str, name: str, command_line: bool) -> bool:
        """Return whether a glob matches a name, or for a name from the command line a part of it after a slash."""
        while True:
            self.p.tick(1 + (len(pattern) * len(name) >> 7))
            if matches(pattern, name, self.p.tick):
                return True
            if not command_line or "/" not in name:
                return False
            name = name.partition("/")[2]

    def complain(self, name: str, message: str) -> None:
        self.failed = True
        if "s" not in self.flags:
            self.p.fail(f"{name}: {message}")

    def selected(self, line: str) -> bool:
        self.p.tick(1 + (len(line) >> 8))
        return any(regex.test(line, self.p.tick) for regex in self.regexes) != ("v" in self.flags)

    def matches(self, line: str) -> Iterator[tuple[int, int]]:
        """Return the matched parts of a line, from left to right, none empty."""
        at = 0
        while at <= len(line):
            hits = [hit for regex in self.regexes if (hit := regex.search(line, at, self.p.tick))]
            if not hits:
                return
            begin, end = min((hit[0], -hit[1]) for hit in hits)
            if -end > begin:
                yield begin, -end
            at = max(-end, begin + 1)

    def file(self, name: str) -> None:
        try:
            data = read(self.p, name)
        except OSError as error:
            if error.strerror == "Is a directory" and self.skip_folders:
                return
            self.complain(name, error.strerror)
            if error.strerror != "Is a directory":
                return
            data = ""
        flags, label, kept = self.flags, self.label if name == "-" else name, lines(data, self.end)
        binary = "\0" in data and not flags & {"a", "z"}
        if binary and "I" in flags:
            kept = []
        only_one = bool(flags & set("lLq")) or (binary and not flags & set("lLqc"))
        found = (at for at, line in enumerate(kept) if self.selected(line))
        hits = list(islice(found, 1 if only_one and self.most != 0 else self.most))
        self.found = self.found or bool(hits)
        if "q" in flags:
            return
        if "c" in flags and not flags & {"l", "L"}:
            self.p.out((label + ("\0" if "Z" in flags else ":") if self.named else "") + f"{len(hits)}\n")
        if "l" in flags or "L" in flags:
            if bool(hits) == ("L" not in flags):
                self.p.out(label + ("\0" if "Z" in flags else "\n"))
            return
        if "c" in flags or not hits:
            return
        if not binary:
            self.show(label, kept, hits)
        elif not flags >= {"o", "v"}:
            self.p.out(f"{self.p.argv[0]}: {label}: binary file matches\n")

    def show(self, label: str, kept: list[str], hits: list[int]) -> None:
        chosen, last = set(hits), -1
        shown: list[str] = []
        for hit in hits:
            start = max(last + 1, hit - self.before)
            if self.context and (start > last + 1 if last >= 0 else self.shown_before):
                shown.append("--\n")
            for at in range(start, min(len(kept), hit + self.after + 1)):
                if at > hit and at in chosen:
                    break
                shown += self.line(label, at, kept[at], at in chosen)
                last = at
        self.shown_before = True
        self.p.out("".join(shown))

    def line(self, label: str, at: int, line: str, hit: bool) -> list[str]:
        """Print one line, or its matched parts, with its prefix."""
        mark = ":" if hit else "-"
        prefix = (label + ("\0" if "Z" in self.flags else mark)) if self.named else ""
        if "n" in self.flags:
            prefix += f"{at + 1}{mark}"
        if "o" not in self.flags:
            return [f"{prefix}{line}{self.end}"]
        if "v" in self.flags or not hit:
            return []
        return [f"{prefix}{line[begin:end]}{self.end}" for begin, end in self.matches(line)]


def _length(text: str, what: str) -> int:
    if not text.isdecimal():
        raise Fail(f"{text}: invalid {what}" if what[0] == "c" else f"invalid {what}", 2)
    return int(text[:12])


COMMANDS = {"grep": grep, "egrep": grep, "fgrep": grep}
