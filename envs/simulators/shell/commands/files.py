"""mkdir, rmdir, touch, rm, and the commands on path names: basename, dirname, readlink, realpath, mktemp."""

import errno
import string
from random import Random

from envs.simulators.shell.commands.modes import parse_mode
from envs.simulators.shell.commands.options import Fail, attempt, failing, getopt, ordered, quote, quote_if, quote_value
from envs.simulators.shell.commands.times import TimeError, parse_stamp, parse_time
from envs.simulators.shell.files import Node, fault
from envs.simulators.shell.process import Process

KINDS = {"file": "regular file", "dir": "directory", "link": "symbolic link", "device": "character special file"}


def mkdir(p: Process) -> None:
    chosen, names = getopt(p.argv, "pm:v", {"parents": "p", "mode:": "m", "verbose": "v"}, least=1)
    change = parse_mode(chosen["m"]) if "m" in chosen else None
    if "m" in chosen and not change:
        raise Fail(f"invalid mode {quote_value(chosen['m'])}")
    for name in names:
        try:
            if "p" in chosen:
                make_parents(p, name, "v" in chosen)
            node = p.mkdir(name)
            if change:
                node.mode = change(0o777, True, p.umask)
            if "v" in chosen:
                p.out(f"{p.argv[0]}: created directory {quote(name)}\n")
        except OSError as error:
            if "p" in chosen and error.errno == errno.EEXIST and p.is_dir(name):
                continue
            p.failed = p.fail(f"cannot create directory {quote(error.filename or name)}: {error.strerror}")


def make_parents(p: Process, name: str, verbose: bool = False) -> None:
    """Make the missing folders above a path."""
    at = name.find("/", 1)
    while 0 < at < len(name.rstrip("/")):
        part = name[:at]
        try:
            if not p.exists(part, follow=False):
                node = p.mkdir(part)
                node.mode |= 0o300
                if verbose:
                    p.out(f"{p.argv[0]}: created directory {quote(part)}\n")
            elif p.lookup(part).kind != "dir":
                raise fault(errno.ENOTDIR)
        except OSError as error:
            error.filename = part
            raise
        at = name.find("/", at + 1)
        while 0 < at < len(name) and name[at - 1] == "/":
            at = name.find("/", at + 1)


def rmdir(p: Process) -> None:
    long = {"parents": "p", "verbose": "v", "ignore-fail-on-non-empty": "i"}
    flags, names = getopt(p.argv, "pv", long, least=1)
    for name in names:
        path = name
        while path:
            if "v" in flags:
                p.out(f"{p.argv[0]}: removing directory, {quote(path)}\n")
            try:
                p.rmdir(path)
            except OSError as error:
                if not ("i" in flags and error.errno == errno.ENOTEMPTY):
                    what = "failed to remove" if path == name else "failed to remove directory"
                    p.failed = p.fail(f"{what} {quote(path)}: {error.strerror}")
                break
            path = path.rstrip("/").rpartition("/")[0] if "p" in flags else ""


def touch(p: Process) -> None:
    long = {"no-create": "c", "date:": "d", "reference:": "r", "no-dereference": "h"}
    chosen, names = getopt(p.argv, "acd:fhmr:t:", long)
    flags = set(chosen)
    when = mtime = atime = p.machine.clock
    if "r" in chosen:
        with failing(f"failed to get attributes of {quote(chosen['r'])}"):
            reference = p.lookup(chosen["r"])
        mtime, atime = reference.mtime, reference.atime
    try:
        if "d" in chosen:
            mtime = atime = parse_time(chosen["d"], mtime if "r" in chosen else when)
        elif "t" in chosen:
            mtime = atime = parse_stamp(chosen["t"], when)
    except TimeError:
        raise Fail(f"invalid date format {quote_value(chosen['d' if 'd' in chosen else 't'])}") from None
    if not names:
        raise Fail("missing file operand", try_help=True)
    given = bool({"d", "t", "r"} & flags)
    for name in names:
        try:
            if not p.exists(name, follow="h" not in flags):
                if "c" in flags or "h" in flags:
                    continue
                if name.endswith("/"):
                    p.lookup(name)
                p.write(name, b"")
            node = p.lookup(name, follow="h" not in flags)
            if given or not p.may(node, 2):
                p.utime(node, node.mtime, node.atime)
            p.machine.change()
            only_a, only_m = "a" in flags and "m" not in flags, "m" in flags and "a" not in flags
            node.mtime, node.atime = node.mtime if only_a else mtime, node.atime if only_m else atime
        except OSError as error:
            forbidden = error.errno == errno.EPERM
            there = (given or not forbidden) and (p.exists(name) or name.endswith("/"))
            message = "Permission denied" if forbidden and not there else error.strerror
            p.failed = p.fail(f"{'setting times of' if there else 'cannot touch'} {quote(name)}: {message}")


def rm(p: Process) -> None:
    long = {"recursive": "r", "force": "f", "verbose": "v", "dir": "d", "interactive": "i"}
    long |= {"no-preserve-root": "N", "preserve-root::": "P", "one-file-system": "x"}
    options, names = ordered(p.argv, "dfirRv", long)
    flags = {flag.replace("R", "r") for flag, _ in options}
    asking = next((flag for flag, _ in reversed(options) if flag in "fi"), "") == "i"
    if not names:
        if "f" in flags:
            return
        raise Fail("missing operand", try_help=True)
    removal = Removal(p, flags, asking)
    for name in names:
        attempt(p, removal.start, name)


def ask(p: Process, question: str) -> bool:
    """Return whether the next line of standard input says yes."""
    p.stderr.write(f"{p.argv[0]}: {question} ")
    return p.stream(0).readline()[:1] in (b"y", b"Y")


class Removal:
    """The options of one rm."""

    def __init__(self, p: Process, flags: set, asking: bool = False):
        self.p, self.flags, self.asking = p, flags, asking

    def start(self, name: str) -> None:
        p = self.p
        try:
            node = p.lookup(name, follow=False)
        except OSError as error:
            if "f" in self.flags and error.errno in (errno.ENOENT, errno.ENOTDIR):
                return
            raise Fail(f"cannot remove {quote(name)}: {error.strerror}") from None
        if name.endswith("/") and "r" in self.flags and p.lookup(name.rstrip("/") or "/", False).kind == "link":
            raise Fail(f"cannot remove {quote(name)}: Not a directory")
        if node.kind == "dir" and "r" in self.flags:
            if name.rstrip("/").rpartition("/")[2] in (".", ".."):
                raise Fail(f"refusing to remove '.' or '..' directory: skipping {quote(name)}")
            if node is p.machine.root and "N" not in self.flags:
                also = " (same as '/')" if name != "/" else ""
                p.fail(f"it is dangerous to operate recursively on {quote(name)}{also}")
                raise Fail("use --no-preserve-root to override this failsafe")
        self.remove(name, node)

    def confirm(self, question: str) -> None:
        if not ask(self.p, question):
            raise Fail(status=0)

    def remove(self, path: str, node: Node) -> None:
        """Remove one name and everything below it; Fail, perhaps without a message, if it stays."""
        p = self.p
        p.tick()
        if node.kind == "dir" and "r" not in self.flags and not ("d" in self.flags and not node.data):
            reason = "Directory not empty" if "d" in self.flags else "Is a directory"
            raise Fail(f"cannot remove {quote(path)}: {reason}")
        if node.kind == "dir" and node.data:
            if not p.may(node, 7):
                raise Fail(f"cannot remove {quote(path)}: Permission denied")
            if self.asking:
                self.confirm(f"descend into directory {quote(path)}?")
            prefix = path.rstrip("/") + "/"
            gone = [attempt(p, self.remove, prefix + name, node.data[name]) for name in sorted(node.data)]
            if not all(gone):
                raise Fail(status=0)
        if self.asking:
            kind = "regular empty file" if node.kind == "file" and not node.data else KINDS[node.kind]
            self.confirm(f"remove {kind} {quote(path)}?")
        with failing(f"cannot remove {quote(path)}"):
            (p.rmdir if node.kind == "dir" else p.unlink)(path)
        if "v" in self.flags:
            p.out(f"removed {'directory ' if node.kind == 'dir' else ''}{quote(path)}\n")


def basename(p: Process) -> None:
    chosen, names = getopt(p.argv, "as:z", {"multiple": "a", "suffix:": "s", "zero": "z"}, permute=False, least=1)
    several, suffix = "a" in chosen or "s" in chosen, chosen.get("s", "")
    if not several:
        if len(names) > 2:
            raise Fail(f"extra operand {quote_value(names[2])}", try_help=True)
        names, suffix = names[:1], (*names, "")[1]
    for name in names:
        base = name.rstrip("/").rpartition("/")[2] or name[:1]
        if suffix and base != suffix and base.endswith(suffix):
            base = base[: -len(suffix)]
        p.out(base + ("\0" if "z" in chosen else "\n"))


def dirname(p: Process) -> None:
    options, names = getopt(p.argv, "z", {"zero": "z"}, permute=False, least=1)
    for name in names:
        bare = name.rstrip("/") or name[:1]
        folder = bare.rpartition("/")[0] if "/" in bare else "."
        p.out((folder.rstrip("/") or "/") + ("\0" if options else "\n") if bare != "/" else "/\n")


def readlink(p: Process) -> None:
    long = {"canonicalize": "f", "canonicalize-existing": "e", "canonicalize-missing": "m", "no-newline": "n"}
    long |= {"quiet": "q", "verbose": "v", "zero": "z", "silent": "s"}
    flags, names = getopt(p.argv, "femnqsvz", long, least=1)
    end = "" if "n" in flags and len(names) == 1 else "\0" if "z" in flags else "\n"
    for name in names:
        try:
            if flags.keys() & {"f", "e", "m"}:
                p.out(_canonical(p, name, next(flag for flag in "emf" if flag in flags)) + end)
            else:
                node = p.lookup(name, follow=False)
                if node.kind != "link":
                    raise fault(errno.EINVAL)
                p.out(node.data + end)
        except OSError as error:
            p.failed = p.fail(f"{quote_if(name)}: {error.strerror}") if "v" in flags else 1


def _canonical(p: Process, name: str, missing: str) -> str:
    """Return the absolute path without links. `missing`: e, all must exist; f, all but the last; m, none need to."""
    if missing == "e":
        p.lookup(name)
    try:
        return p.realpath(name)
    except OSError:
        if missing != "m":
            raise
        head, _, last = name.rstrip("/").rpartition("/")
        above = _canonical(p, head or ("/" if name.startswith("/") else "."), "m")
        return normal(f"{above}/{last}")


def normal(path: str) -> str:
    """Return an absolute path without `.`, `..` and doubled slashes; links stay."""
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    return "/" + "/".join(kept)


def realpath(p: Process) -> None:
    long = {"canonicalize-existing": "e", "canonicalize-missing": "m", "no-symlinks": "s", "strip": "s", "quiet": "q"}
    chosen, names = getopt(p.argv, "emsqzLP", long | {"zero": "z", "relative-to:": "r"}, least=1)
    for name in names:
        try:
            path = _canonical(p, name, "e" if "e" in chosen else "m" if "m" in chosen else "f")
            if "s" in chosen:
                path = normal(name if name.startswith("/") else f"{p.cwd}/{name}")
            if "r" in chosen:
                path = relative(path, _canonical(p, chosen["r"], "m"))
            p.out(path + ("\0" if "z" in chosen else "\n"))
        except OSError as error:
            p.failed = 1 if "q" in chosen else p.fail(f"{quote_if(name)}: {error.strerror}")


def relative(path: str, start: str) -> str:
    """An absolute path as seen from a folder."""
    there, here = ([part for part in text.split("/") if part] for text in (path, start))
    same = 0
    while same < min(len(there), len(here)) and there[same] == here[same]:
        same += 1
    return "/".join([".."] * (len(here) - same) + there[same:]) or "."


def mktemp(p: Process) -> None:
    long = {"directory": "d", "dry-run": "u", "quiet": "q", "suffix:": "s", "tmpdir::": "p"}
    chosen, names = getopt(p.argv, "dqtup:", long)
    template = (names[0] if names else "tmp.XXXXXXXXXX") + chosen.get("s", "")
    at = template.rfind("X") + 1
    count = at - len(template[:at].rstrip("X"))
    if count < 3:
        raise Fail(f"too few X's in template {quote(template)}")
    if not names or "t" in chosen or "p" in chosen:
        folder = chosen.get("p") or p.env.get("TMPDIR") or "/tmp"
        template, at = f"{folder}/{template}", at + len(folder) + 1
    at -= count
    rng = Random(f"mktemp {p.machine.nodes} {p.machine.clock} {template}")
    while True:
        letters = "".join(rng.choices(string.ascii_letters + string.digits, k=count))
        path = template[:at] + letters + template[at + count :]
        if not p.exists(path, follow=False):
            break
    with failing(f"failed to create {'directory' if 'd' in chosen else 'file'} via template {quote(template)}"):
        if "u" not in chosen:
            node = p.mkdir(path, 0o700) if "d" in chosen else p.write(path, b"", mode=0o600)
            node.mode = 0o700 if "d" in chosen else 0o600
    p.out(path + "\n")


ALL = (mkdir, rmdir, touch, rm, basename, dirname, readlink, realpath, mktemp)
COMMANDS = {command.__name__: command for command in ALL}
