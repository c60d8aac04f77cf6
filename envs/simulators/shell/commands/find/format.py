"""Format a node for find's -printf."""

import re

from envs.simulators.shell.commands.modes import LETTERS, group_name, mode_text, user_name
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import Node
from envs.simulators.shell.process import Process


def length(node: Node) -> int:
    """Return the size that find counts: of a link, the length of its target's name."""
    return len(node.data) if node.kind == "link" else node.size


def formatted(p: Process, form: str, path: str, node: Node, depth: int, start: str) -> str:
    """Return the output of -printf."""
    name = path.rstrip("/").rpartition("/")[2] or path
    values = {
        "p": path,
        "f": name,
        "h": path.rpartition("/")[0] or ("." if "/" not in path else ""),
        "s": length(node),
    }
    values |= {"m": f"{node.mode:o}", "M": LETTERS[node.kind] + mode_text(node.mode), "u": user_name(p, node.uid)}
    values |= {
        "g": group_name(p, node.gid),
        "U": node.uid,
        "G": node.gid,
        "d": depth,
        "y": LETTERS[node.kind].replace("-", "f"),
    }
    values |= {"n": node.nlink, "i": node.ino, "l": node.data if node.kind == "link" else "", "H": start, "%": "%"}
    values |= {
        "P": path[len(start) :].lstrip("/"),
        "k": (length(node) + 1023) // 1024,
        "b": (length(node) + 511) // 512,
    }
    values |= {"t": show("%a %b %d %H:%M:%S.%N0 %Y", node.mtime)}
    escapes = {"n": "\n", "t": "\t", "0": "\0", "\\": "\\", "a": "\a", "r": "\r"}

    def fill(found: re.Match) -> str:
        if found[1] is not None:
            return escapes.get(found[1], found[0])
        if found[4] is not None:
            return f"{node.mtime:.9f}0" if found[4] == "@" else show(f"%{found[4]}", node.mtime)
        if found[3] not in values:
            return found[0]
        return f"%{found[2]}s" % (values[found[3]],)

    return re.sub(r"\\(.)|%(-?\d{0,3})(?:([a-zA-SU-Z%])|[TAC](.))", fill, form, flags=re.DOTALL)
