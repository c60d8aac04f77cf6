"""chmod, chown and chgrp, and what other commands need of them: modes as text, names of users and groups."""

import errno
import re
from collections.abc import Callable, Iterator
from functools import reduce
from operator import or_

from envs.simulators.shell.commands.options import Fail, getopt, quote, quote_value, required
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
        mask = reduce(or_, (WHO[letter] for letter in who), 0)
        if what and what in "ugo":
            bits = (mode >> {"u": 6, "g": 3, "o": 0}[what] & 7) * 0o111
        else:
            known = BITS | {"X": 0o111 if folder or mode & 0o111 else 0}
            bits = reduce(or_, (known[letter] for letter in what), 0)
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


def _change_each(p: Process, names: list[str], flags: set, follow: bool, problem, what: str, change) -> None:
    """Apply a change to each operand, and with -R to all below it, and print the line that the change returns."""
    for name in names:
        try:
            node = p.lookup(name, follow)
        except OSError as error:
            p.failed = 1 if "f" in flags else p.fail(problem(name, error))
            continue
        for path, below in tree(p, name, node) if "R" in flags else [(name, node)]:
            try:
                shown = change(path, below)
            except OSError as error:
                p.failed = 1 if "f" in flags else p.fail(f"changing {what} of {quote(path)}: {error.strerror}")
                continue
            p.out(shown or "")


LONG = {"recursive": "R", "changes": "c", "quiet": "f", "silent": "f", "verbose": "v", "preserve-root": "p"}
LONG |= {"no-preserve-root": "p"}


def chmod(p: Process) -> None:
    given = next((word for word in p.argv[1:] if re.match(r"-[ugoarwxXst,+=0-7]", word)), None)  # -x is a mode
    argv = list(p.argv)
    if given is not None:
        argv.remove(given)
    flags, operands = getopt(argv, "Rcfv", LONG, least=1 + (given is None))
    text = given if given is not None else operands.pop(0)
    mode = parse_mode(text)
    if mode is None:
        raise Fail(f"invalid mode: {quote_value(text)}", try_help=True)

    def problem(name: str, error: OSError) -> str:
        if error.errno == errno.ENOENT and p.exists(name, follow=False):
            return f"cannot operate on dangling symlink {quote(name)}"
        return f"cannot access {quote(name)}: {error.strerror}"

    def change(path: str, node: Node) -> str | None:
        if node.kind == "link":
            return None
        old, new = node.mode, mode(node.mode, node.kind == "dir", p.umask)
        p.chmod(node, new)
        if old != new and flags.keys() & {"c", "v"}:
            shown = f"{old:04o} ({mode_text(old)}) to {new:04o} ({mode_text(new)})"
            return f"mode of {quote(path)} changed from {shown}\n"
        return f"mode of {quote(path)} retained as {new:04o} ({mode_text(new)})\n" if "v" in flags else None

    _change_each(p, operands, set(flags), True, problem, "permissions", change)


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
        uid = required(user_id(p, user), f"invalid user: {quote_value(spec)}")
        if sign and not group:
            gid = int(required(p.machine.user(uid), f"invalid spec: {quote_value(spec)}")[3])
    if group:
        gid = required(group_id(p, group), f"invalid group: {quote_value(spec)}")
    return uid, gid


def chown(p: Process) -> None:
    group_only = p.argv[0].endswith("chgrp")
    long = LONG | {"no-dereference": "h", "dereference": "d", "from:": "2"}
    chosen, operands = getopt(p.argv, "RcfvhHLP", long, least=2)
    flags = set(chosen) | ({"h"} if "R" in chosen else set())
    spec = operands.pop(0)
    if group_only:
        uid, gid = -1, required(group_id(p, spec), f"invalid group: {quote_value(spec)}") if spec else -1
    else:
        uid, gid = parse_owner(p, spec)
    user, group = parse_owner(p, chosen["2"]) if "2" in chosen else (-1, -1)

    def problem(name: str, error: OSError) -> str:
        what = "cannot dereference" if p.exists(name, follow=False) else "cannot access"
        return f"{what} {quote(name)}: {error.strerror}"

    def shown(owner: int, group: int) -> str:
        return ":".join([user_name(p, owner)] * (uid != -1) + [group_name(p, group)] * (gid != -1))

    def change(path: str, node: Node) -> str | None:
        node = p.find(path) if node.kind == "link" and "h" not in flags else node
        if node is None or user not in (-1, node.uid) or group not in (-1, node.gid):
            return None
        before = node.uid, node.gid
        p.chown(node, uid, gid)
        what = f"{'ownership' if uid != -1 else 'group'} of {quote(path)}"
        if before != (node.uid, node.gid) and flags & {"c", "v"}:
            return f"changed {what} from {shown(*before)} to {shown(uid, gid)}\n"
        return f"{what} retained as {shown(uid, gid)}\n" if "v" in flags else None

    _change_each(p, operands, flags, "h" not in flags, problem, "group" if group_only else "ownership", change)


COMMANDS = {"chmod": chmod, "chown": chown, "chgrp": chown}
