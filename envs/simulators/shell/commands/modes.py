"""chmod, chown and chgrp, and what other commands need of them: modes as text, names of users and groups."""

import re
from collections.abc import Callable, Iterator

from envs.simulators.shell.commands.options import Fail, getopt, quote, quote_value
from envs.simulators.shell.files import Node
from envs.simulators.shell.process import Process

WHO = {"u": 0o4700, "g": 0o2070, "o": 0o1007, "a": 0o7777}
BITS = {"r": 0o444, "w": 0o222, "x": 0o111, "s": 0o6000, "t": 0o1000}
LETTERS = {"dir": "d", "link": "l", "file": "-", "device": "c"}


def parse_mode(text: str) -> Callable[[int, bool, int], int] | None:
    """Return a function from (mode, is it a folder, umask) to the new mode for `u+x,go=` or `755`; None if invalid."""
    if re.fullmatch("[0-7]{1,30}", text):
        value = int(text, 8)
        if value > 0o7777:
            return None
        kept = 0o6000 if len(text) < 5 else 0  # a folder keeps setuid and setgid unless they are named
        return lambda mode, folder, umask: value | (mode & kept if folder else 0)
    clauses = []
    for clause in text.split(","):
        found = re.fullmatch(r"([ugoa]*)((?:[-+=](?:[ugo]|[rwxXst]*))+)", clause)
        if not found:
            return None
        for sign, what in re.findall(r"([-+=])([ugo]|[rwxXst]*)", found[2]):
            clauses.append((found[1], sign, what))
    return lambda mode, folder, umask: _applied(clauses, mode, folder, umask)


def _applied(clauses: list, mode: int, folder: bool, umask: int) -> int:
    for who, sign, what in clauses:
        mask = 0
        for letter in who:
            mask |= WHO[letter]
        if what and what in "ugo":
            three = (mode >> {"u": 6, "g": 3, "o": 0}[what]) & 7
            bits = three * 0o111 & (mask or 0o7777 & ~umask)
        else:
            bits = 0
            for letter in what:
                if letter == "X":
                    bits |= 0o111 if folder or mode & 0o111 else 0
                else:
                    bits |= BITS[letter]
            bits &= mask or 0o7777 & ~umask
        if sign == "+":
            mode |= bits
        elif sign == "-":
            mode &= ~bits
        else:
            kept = 0o6000 if folder and "s" not in what else 0
            mode = mode & (~(mask or 0o7777) | kept) | bits
    return mode


def mode_text(mode: int) -> str:
    """Return a mode as ls prints it, without the kind: rwxr-xr-x."""
    shown = ["rwx"[i % 3] if mode >> (8 - i) & 1 else "-" for i in range(9)]
    for at, bit, letter in ((2, 0o4000, "s"), (5, 0o2000, "s"), (8, 0o1000, "t")):
        if mode & bit:
            shown[at] = letter if shown[at] == "x" else letter.upper()
    return "".join(shown)


def tree(p: Process, path: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Yield a node and, below a folder, every node, each with its path."""
    yield path, node
    if node.kind == "dir":
        for name in sorted(node.data):
            p.tick()
            yield from tree(p, f"{path.rstrip('/') if path != '/' else ''}/{name}", node.data[name])


def chmod(p: Process) -> int:
    argv, given = [p.argv[0]], None
    for word in p.argv[1:]:  # -x is a mode
        if given is None and re.match(r"-[ugoarwxXst,+=0-7]", word):
            given = word
        else:
            argv.append(word)
    long = {"recursive": "R", "changes": "c", "quiet": "f", "silent": "f", "verbose": "v"}
    flags, operands = getopt(
        argv, "Rcfv", long | {"preserve-root": "p", "no-preserve-root": "p"}, least=1 + (given is None)
    )
    flags = set(flags)
    text = given if given is not None else operands.pop(0)
    change = parse_mode(text)
    if change is None:
        raise Fail(f"invalid mode: {quote_value(text)}", try_help=True)
    status = 0
    for name in operands:
        status |= _chmod_one(p, name, change, flags)
    return status


def _chmod_one(p: Process, name: str, change, flags: set) -> int:
    try:
        node = p.lookup(name)
    except OSError as error:
        if "f" in flags:
            return 1
        dangling = error.strerror == "No such file or directory" and p.exists(name, follow=False)
        if dangling:
            return p.fail(f"cannot operate on dangling symlink {quote(name)}")
        return p.fail(f"cannot access {quote(name)}: {error.strerror}")
    status = 0
    for path, below in tree(p, name, node) if "R" in flags else [(name, node)]:
        if below.kind == "link":
            continue
        old, new = below.mode, change(below.mode, below.kind == "dir", p.umask)
        try:
            p.chmod(below, new)
        except OSError as error:
            status = 1 if "f" in flags else p.fail(f"changing permissions of {quote(path)}: {error.strerror}")
            continue
        if old != new and flags & {"c", "v"}:
            shown = f"{old:04o} ({mode_text(old)}) to {new:04o} ({mode_text(new)})"
            p.out(f"mode of {quote(path)} changed from {shown}\n")
        elif "v" in flags:
            p.out(f"mode of {quote(path)} retained as {new:04o} ({mode_text(new)})\n")
    return status


def user_id(p: Process, name: str) -> int | None:
    """Return a user's number, from its name or number."""
    record = p.machine.user(name)
    return int(record[2]) if record else int(name) if re.fullmatch(r"\+?\d{1,9}", name) else None


def group_id(p: Process, name: str) -> int | None:
    """Return a group's number, from its name or number."""
    record = p.machine.group(name)
    return int(record[2]) if record else int(name) if re.fullmatch(r"\+?\d{1,9}", name) else None


def user_name(p: Process, uid: int) -> str:
    """Return a user's name, or its number if it has none."""
    record = p.machine.user(uid)
    return record[0] if record else str(uid)


def group_name(p: Process, gid: int) -> str:
    """Return a group's name, or its number if it has none."""
    record = p.machine.group(gid)
    return record[0] if record else str(gid)


def parse_owner(p: Process, spec: str) -> tuple[int, int]:
    """Return the numbers of `user`, `user:group`, `:group` or `user:`, -1 for an omitted part."""
    user, sign, group = spec.partition(":")
    uid = gid = -1
    if user:
        found = user_id(p, user)
        if found is None:
            raise Fail(f"invalid user: {quote_value(spec)}")
        uid = found
        if sign and not group:
            record = p.machine.user(uid)
            if not record:
                raise Fail(f"invalid spec: {quote_value(spec)}")
            gid = int(record[3])
    if group:
        found = group_id(p, group)
        if found is None:
            raise Fail(f"invalid group: {quote_value(spec)}")
        gid = found
    return uid, gid


def chown(p: Process) -> int:
    group_only = p.argv[0].endswith("chgrp")
    long = {"recursive": "R", "changes": "c", "quiet": "f", "silent": "f", "verbose": "v"}
    long |= {"no-dereference": "h", "dereference": "d", "from:": "2", "preserve-root": "p", "no-preserve-root": "p"}
    chosen, operands = getopt(p.argv, "RcfvhHLP", long, least=2)
    flags = set(chosen)
    flags |= {"h"} if "R" in flags else set()
    spec = operands.pop(0)
    uid, gid = (-1, group_id(p, spec) if spec else -1) if group_only else parse_owner(p, spec)
    if gid is None:
        raise Fail(f"invalid group: {quote_value(spec)}")
    required = parse_owner(p, chosen["2"]) if "2" in chosen else (-1, -1)
    status = 0
    for name in operands:
        status |= _chown_one(p, name, uid, gid, required, flags, group_only)
    return status


def _chown_one(p: Process, name: str, uid: int, gid: int, required: tuple, flags: set, group_only: bool) -> int:
    follow = "h" not in flags
    try:
        node = p.lookup(name, follow)
    except OSError as error:
        if "f" in flags:
            return 1
        what = "cannot dereference" if p.exists(name, follow=False) else "cannot access"
        return p.fail(f"{what} {quote(name)}: {error.strerror}")
    status = 0
    for path, below in tree(p, name, node) if "R" in flags else [(name, node)]:
        if (required[0] not in (-1, below.uid)) or required[1] not in (-1, below.gid):
            continue
        before = below.uid, below.gid
        if below.kind == "link" and "h" not in flags:
            try:
                below = p.lookup(path)
            except OSError:
                continue
        try:
            p.chown(below, uid, gid)
        except OSError as error:
            what = "group" if group_only else "ownership"
            status = 1 if "f" in flags else p.fail(f"changing {what} of {quote(path)}: {error.strerror}")
            continue
        if flags & {"c", "v"}:
            _tell(p, path, before, uid, gid, (below.uid, below.gid) != before, flags)
    return status


def _tell(p: Process, path: str, before: tuple, uid: int, gid: int, changed: bool, flags: set) -> None:
    """Print chown -v's message."""
    if not changed and "v" not in flags:
        return
    show = lambda u, g: ":".join(([user_name(p, u)] if uid != -1 else []) + ([group_name(p, g)] if gid != -1 else []))  # noqa: E731
    what = "ownership" if uid != -1 else "group"
    old = show(*before)
    new = show(uid, gid)
    if changed:
        p.out(f"changed {what} of {quote(path)} from {old} to {new}\n")
    else:
        p.out(f"{what} of {quote(path)} retained as {new}\n")


COMMANDS = {"chmod": chmod, "chown": chown, "chgrp": chown}
