"""ls, dir and du."""

from functools import cache, partial

from envs.simulators.shell.commands.modes import LETTERS, group_name, mode_text, user_name
from envs.simulators.shell.commands.options import Fail, nodes, ordered, quote, quote_value
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import Node
from envs.simulators.shell.patterns import matches
from envs.simulators.shell.process import Process

SHORT = "aAcCdfFgGhHiklLnNopqrRsStuUxX1"
SORTS = {"size": "S", "time": "t", "none": "U", "extension": "X"}
LONG = {"all": "a", "almost-all": "A", "directory": "d", "classify::": "F", "human-readable": "h", "inode": "i"}
LONG |= {"numeric-uid-gid": "n", "no-group": "G", "reverse": "r", "recursive": "R", "size": "s", "sort:": "1s"}
LONG |= {"color::": "1c", "full-time": "1f", "time-style:": "1t", "dereference": "L", "file-type": "p"}
RECENT = 31556952 / 2  # seconds: half a year


def ls(p: Process) -> int:
    options, names = ordered(p.argv, SHORT, LONG, status=2)
    listing = Listing(p, options)
    files, folders = [], []
    for name in names or ["."]:
        follow = not (listing.long or "F" in listing.flags) or name.endswith("/") or listing.deref
        try:
            node = p.find(name, follow) or p.lookup(name, follow=listing.deref)
        except OSError as error:
            listing.status = p.fail(f"cannot access {quote(name)}: {error.strerror}", 2)
            continue
        target = node if listing.long else p.find(name) or node
        if (node.kind == "dir" or target.kind == "dir") and "d" not in listing.flags:
            folders.append((name, target))
        else:
            files.append((name, node))
    listing.show(listing.ordered(files), "")
    heading = len(files) + len(folders) > 1 or "R" in listing.flags or (listing.status and len(names) > 1)
    for name, node in listing.ordered(folders):
        listing.folder(name, node, heading)
    return listing.status


class Listing:
    """The options of one ls, its output, and its exit status so far."""

    def __init__(self, p: Process, options: list):
        self.p, self.status, self.printed = p, 0, False
        self.user, self.group = (cache(partial(naming, p)) for naming in (user_name, group_name))
        self.flags = {flag for flag, _ in options}
        chosen = dict(options)
        forms = [flag for flag, _ in options if flag in "lgon1Cx" or flag == "1f"]
        self.long = (bool(forms) and forms[-1] in ("l", "g", "o", "n", "1f")) or bool(self.flags & {"l", "g", "o", "n"})
        self.style = "full-iso" if "1f" in self.flags else chosen.get("1t", "")
        if chosen.get("1s", "none") not in SORTS:
            raise Fail(f"invalid argument {quote_value(chosen['1s'])} for '--sort'", 2, try_help=True)
        orders = [SORTS[value] if flag == "1s" else flag for flag, value in options if flag in ("1s", *"StUfX")]
        self.order = orders[-1] if orders else ""
        self.all = "a" in self.flags or "f" in self.flags
        self.deref = "L" in self.flags
        self.atime = "u" in self.flags

    def folder(self, name: str, node: Node, heading: bool) -> None:
        p = self.p
        p.tick()
        if not p.may(node, 4):
            worst = 2 if not self.printed else 1
            self.status = p.fail(f"cannot open directory {quote(name)}: Permission denied", max(self.status, worst))
            return
        if heading:
            p.out(("\n" if self.printed else "") + f"{name}:\n")
        names = [entry for entry in node.data if self.all or "A" in self.flags or not entry.startswith(".")]
        entries = self.ordered([(entry, self.node(name, entry, node.data[entry])) for entry in names])
        if self.all:
            entries = [(".", node), ("..", p.lookup(f"{name}/..")), *entries]
        if self.long or "s" in self.flags:
            blocks = sum(_blocks(below) for _, below in entries)
            p.out(f"total {human(blocks * 1024) if 'h' in self.flags else blocks}\n")
        self.printed = True
        self.show(entries, name)
        if "R" in self.flags:
            for entry, below in entries:
                if below.kind == "dir" and entry not in (".", ".."):
                    self.folder(f"{name.rstrip('/') if name != '/' else ''}/{entry}", below, True)

    def node(self, folder: str, entry: str, node: Node) -> Node:
        return (self.deref and node.kind == "link" and self.p.find(f"{folder}/{entry}")) or node

    def ordered(self, entries: list) -> list:
        """Return entries in the requested order; ties are sorted by name."""
        if self.order in ("U", "f"):
            return entries
        entries = sorted(entries, key=lambda entry: entry[0])
        if self.order == "X":
            entries.sort(key=lambda entry: entry[0][1:].rpartition(".")[1:] if "." in entry[0][1:] else ())
        elif self.order == "S":
            entries.sort(key=lambda entry: -_size(entry[1]))
        elif self.order == "t":
            entries.sort(key=lambda entry: -(entry[1].atime if self.atime else entry[1].mtime))
        if "r" in self.flags:
            entries.reverse()
        return entries

    def show(self, entries: list, folder: str) -> None:
        if not entries:
            return
        self.printed = True
        self.p.tick(len(entries) * (4 if self.long else 1))
        names = [self.name(entry, node, folder) for entry, node in entries]
        rows = [self.cells(node) for _, node in entries]
        widths = [max(len(cell) for cell, _ in column) for column in zip(*rows, strict=True)]
        shown = []
        for row, name in zip(rows, names, strict=True):
            aligned = [c.ljust(w) if left else c.rjust(w) for (c, left), w in zip(row, widths, strict=True)]
            shown.append(" ".join([*aligned, name]) + "\n")
        self.p.out("".join(shown))

    def cells(self, node: Node) -> list[tuple[str, bool]]:
        """Return the cells before a name, each with whether it is aligned to the left."""
        flags, sized = self.flags, human if "h" in self.flags else str
        cells = [(str(node.ino), False)] if "i" in flags else []
        if "s" in flags:
            cells.append((sized(_blocks(node) * (1024 if "h" in flags else 1)), False))
        if not self.long:
            return cells
        cells += [(LETTERS[node.kind] + mode_text(node.mode), True), (str(node.nlink), False)]
        named = "n" not in flags
        if "g" not in flags:
            cells.append((self.user(node.uid) if named else str(node.uid), named))
        if not flags & {"o", "G"}:
            cells.append((self.group(node.gid) if named else str(node.gid), named))
        size = "1, 3" if node.kind == "device" else sized(_size(node))
        return [*cells, (size, False), (self.time(node.atime if self.atime else node.mtime), False)]

    def time(self, when: float) -> str:
        now = self.p.machine.clock
        recent = now - RECENT < when <= now
        if self.style.startswith("+"):
            return show(self.style[1:], when)
        forms = {"full-iso": "%Y-%m-%d %H:%M:%S.%N +0000", "long-iso": "%Y-%m-%d %H:%M"}
        forms["iso"] = "%m-%d %H:%M" if recent else "%Y-%m-%d "
        return show(forms.get(self.style, "%b %e %H:%M" if recent else "%b %e  %Y"), when)

    def name(self, entry: str, node: Node, folder: str) -> str:
        if node.kind == "link" and self.long:
            target = self.p.find(f"{folder}/{entry}" if folder else entry) if "F" in self.flags else None
            return f"{entry} -> {node.data}{self.mark(target) if target else ''}"
        return entry + self.mark(node)

    def mark(self, node: Node) -> str:
        if node.kind == "dir" and self.flags & {"F", "p"}:
            return "/"
        mark = "@" if node.kind == "link" else "*" if node.kind == "file" and node.mode & 0o111 else ""
        return mark if "F" in self.flags else ""


def _size(node: Node) -> int:
    return len(node.data) if node.kind == "link" else node.size


def _blocks(node: Node) -> int:
    """Return the kilobytes on disk, in blocks of four."""
    return 0 if node.kind in ("link", "device") else (_size(node) + 4095) // 4096 * 4


def human(size: int) -> str:
    """Return a size as -h prints it: 1.5K, rounded up."""
    if size < 1024:
        return str(size)
    for letter in "KMGTPE":
        tenths = -(-size * 10 // 1024)
        if tenths < 100:
            return f"{tenths // 10}.{tenths % 10}{letter}"
        size = -(-size // 1024)
        if size < 1024:
            return f"{size}{letter}"
    return f"{size}E"


def du(p: Process) -> None:
    long = {"all": "a", "bytes": "b", "total": "c", "human-readable": "h", "summarize": "s", "max-depth:": "d"}
    long |= {"apparent-size": "A", "kilobytes": "k", "exclude:": "E", "null": "0", "separate-dirs": "S"}
    options, names = ordered(p.argv, "abcd:hkmsxS0", long)
    chosen, excluded = dict(options), [value for flag, value in options if flag == "E"]
    end = "\0" if "0" in chosen else "\n"
    deepest = 0 if "s" in chosen else int(chosen["d"][:9]) if chosen.get("d", "").isdecimal() else 10**6

    def size(node: Node) -> int:
        return _size(node) if chosen.keys() & {"A", "b"} else _blocks(node) * 1024

    def text(total: int) -> str:
        if "h" in chosen:
            return human(total)
        return str(total if "b" in chosen else -(-total // 2**20) if "m" in chosen else -(-total // 1024))

    seen: set[int] = set()
    everything = 0

    def walk(path: str, node: Node, depth: int) -> int:
        p.tick()
        if node.nlink > 1 and node.kind != "dir" and id(node) in seen:
            return 0
        seen.add(id(node))
        nonlocal everything
        total = size(node)
        everything += total
        start = path if path != "/" else ""
        for name in sorted(node.data) if node.kind == "dir" else ():
            below = f"{start}/{name}"
            if any(matches(pattern, one, p.tick) for pattern in excluded for one in (name, below)):
                continue
            size_below = walk(below, node.data[name], depth + 1)
            total += 0 if "S" in chosen and node.data[name].kind == "dir" else size_below
        if depth <= deepest and (node.kind == "dir" or "a" in chosen or not depth):
            p.out(f"{text(total)}\t{path}{end}")
        return total

    for name, node in nodes(p, names or ["."], "cannot access", follow=False):
        walk(name, node, 0)
    if "c" in chosen:
        p.out(f"{text(everything)}\ttotal{end}")


COMMANDS = {"ls": ls, "du": du, "dir": ls}
