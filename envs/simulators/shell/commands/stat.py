"""stat and df."""

import re

from envs.simulators.shell.commands.files import KINDS
from envs.simulators.shell.commands.listing import human
from envs.simulators.shell.commands.modes import LETTERS, group_name, mode_text, user_name
from envs.simulators.shell.commands.options import getopt, nodes, quote
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import Node
from envs.simulators.shell.process import Process

TYPE_BITS = {"dir": 0o40000, "link": 0o120000, "file": 0o100000, "device": 0o20000}
STAMP = "%Y-%m-%d %H:%M:%S.%N +0000"
DISK = 64 << 20  # kilobytes that the disk is said to have


def stat(p: Process) -> None:
    long = {"dereference": "L", "format:": "c", "printf:": "P"}
    chosen, names = getopt(p.argv, "Lc:", long, least=1)
    for name, node in nodes(p, names, "cannot statx", follow="L" in chosen):
        p.tick(8)
        whole = WHOLE.replace("%n", "%n -> " + node.data.replace("%", "%%")) if node.kind == "link" else WHOLE
        form = _unescaped(chosen["P"]) if "P" in chosen else chosen["c"] + "\n" if "c" in chosen else whole
        p.out(_filled(p, form, name, node))


WHOLE = (
    "  File: %n\n  Size: %-10s\tBlocks: %-10b IO Block: %-6o %F\nDevice: %Hd,%Ld\tInode: %-10i  Links: %h\n"
    "Access: (%04a/%10.10A)  Uid: (%5u/%8U)   Gid: (%5g/%8G)\nAccess: %x\nModify: %y\nChange: %z\n Birth: %w\n"
)


def _unescaped(form: str) -> str:
    known = {"n": "\n", "t": "\t", "\\": "\\", "a": "\a", "r": "\r", '"': '"', "e": "\x1b"}
    return re.sub(r"\\(.)", lambda found: known.get(found[1], found[0]), form, flags=re.DOTALL)


def _filled(p: Process, form: str, name: str, node: Node) -> str:
    size = len(node.data) if node.kind == "link" else node.size
    kind = "regular empty file" if node.kind == "file" and not size else KINDS[node.kind]
    arrow = f"{quote(name)} -> {quote(node.data)}" if node.kind == "link" else quote(name)
    blocks = -(-size // 4096) * 8 if node.kind in ("file", "dir") else 0
    values = {
        "a": node.mode, "A": LETTERS[node.kind] + mode_text(node.mode), "b": blocks,
        "B": 512, "d": 65024, "D": "fe00", "f": f"{TYPE_BITS[node.kind] | node.mode:x}", "F": kind, "g": node.gid,
        "G": group_name(p, node.gid), "h": node.nlink, "i": node.ino, "m": "/", "n": name, "N": arrow, "o": 4096,
        "s": size, "t": 0, "T": 0, "u": node.uid, "U": user_name(p, node.uid), "W": 0, "w": "-",
        "X": int(node.atime // 1), "Y": int(node.mtime // 1), "Z": int(node.mtime // 1), "C": "?",
    }  # fmt: skip
    times = {"x": node.atime, "y": node.mtime, "z": node.mtime}
    values |= {
        "PN": f"{name} -> {node.data}" if node.kind == "link" else name,
        "Hd": 254,
        "Ld": 0,
        "Hr": 0,
        "Lr": 0,
        "r": 0,
        "R": 0,
    }

    def fill(found: re.Match) -> str:
        flags, width, precision, letter = found.groups()
        if letter == "%":
            return "%"
        if letter in times:
            text = show(STAMP, times[letter])
        elif letter not in values:
            return "?" if letter else "%"
        else:
            text = str(values[letter])
        if letter == "a":
            text = f"{'0' * ('#' in flags)}{node.mode:o}"
        if precision is not None:
            text = text[: int(precision[:4] or 0)]
        size = min(int(width[:9] or 0), 1000)
        if "-" in flags:
            return text.ljust(size)
        numeric = letter in ("a", "b", "g", "h", "i", "s", "u", "o", "X", "Y", "Z", "W")
        return text.rjust(size, "0" if "0" in flags and numeric else " ")

    return re.sub(r"%([-#+ 0']*)(\d*)(?:\.(\d*))?([HL][dr]|[a-zA-Z%]|)", fill, form)


def df(p: Process) -> int | None:
    flags, names = getopt(p.argv, "ahkTP", {"human-readable": "h", "print-type": "T", "all": "a"})
    for name in names:
        if not p.exists(name):
            return p.fail(f"{name}: No such file or directory")
    used = p.machine.bytes // 1024 + 4 * p.machine.nodes
    sizes = [human(size * 1024) if "h" in flags else str(size) for size in (DISK, used, DISK - used)]
    head = ["Size", "Used", "Avail"] if "h" in flags else ["1K-blocks", "Used", "Available"]
    kinds = ["Type"] * ("T" in flags), ["overlay"] * ("T" in flags)
    rows = [["Filesystem".ljust(14), *kinds[0], *head, "Use%", "Mounted on"]]
    rows += [["overlay", *kinds[1], *sizes, f"{-(-used * 100 // DISK)}%", "/"]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *middle, last in rows:
        cells = [cell.rjust(width) for cell, width in zip(middle, widths[1:-1], strict=True)]
        p.out(" ".join([first.ljust(widths[0]), *cells, last]) + "\n")


COMMANDS = {"stat": stat, "df": df}
