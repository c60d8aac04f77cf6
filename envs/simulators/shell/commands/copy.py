"""cp, mv and ln."""

import errno

from envs.simulators.shell.commands.files import ask, relative
from envs.simulators.shell.commands.options import Fail, attempt, failing, ordered, quote
from envs.simulators.shell.files import Node, bytes_of, fault
from envs.simulators.shell.process import Process

CP = {"archive": "a", "force": "f", "interactive": "i", "link": "l", "dereference": "L", "no-clobber": "n"}
CP |= {"no-dereference": "P", "preserve::": "p", "recursive": "R", "symbolic-link": "s", "target-directory:": "t"}
CP |= {"no-target-directory": "T", "update": "u", "verbose": "v"}
CP |= {"remove-destination": "F", "no-preserve:": "N", "one-file-system": "x"}
MV = {"force": "f", "interactive": "i", "no-clobber": "n", "target-directory:": "t", "no-target-directory": "T"}
MV |= {"update": "u", "verbose": "v"}
LN = {"force": "f", "interactive": "i", "symbolic": "s", "no-dereference": "n", "target-directory:": "t"}
LN |= {"no-target-directory": "T", "verbose": "v", "relative": "r", "logical": "L", "physical": "P"}


def places(p: Process, names: list[str], chosen: dict, follow: bool = True) -> list[tuple[str, str]]:
    """Return (source, destination) pairs of the operands; Fail if they are inconsistent."""
    if not names:
        raise Fail("missing file operand", try_help=True)
    if "t" in chosen:
        folder = chosen["t"]
        _require_folder(p, folder, "target directory")
    elif "T" in chosen or len(names) == 1:
        if len(names) == 1:
            raise Fail(f"missing destination file operand after {quote(names[0])}", try_help=True)
        if len(names) > 2:
            raise Fail(f"extra operand {quote(names[2])}", try_help=True)
        return [(names[0], names[1])]
    else:
        folder = names[-1]
        node = p.find(folder, follow)
        if node is None or node.kind != "dir":
            if len(names) > 2 or (folder.endswith("/") and node is not None):
                _require_folder(p, folder, "target")
            return [(names[0], folder)]
        names = names[:-1]
    return [(name, f"{folder.rstrip('/') or ''}/{name.rstrip('/').rpartition('/')[2]}") for name in names]


def _require_folder(p: Process, folder: str, what: str) -> None:
    with failing(f"{what} {quote(folder)}"):
        if p.lookup(folder).kind != "dir":
            raise fault(errno.ENOTDIR)


def _stat(p: Process, name: str, follow: bool) -> Node:
    with failing(f"cannot stat {quote(name)}"):
        return p.lookup(name, follow)


def _same(source: str, into: str) -> Fail:
    return Fail(f"{quote(source)} and {quote(into)} are the same file")


def _just_created(source: str, into: str) -> Fail:
    return Fail(f"will not overwrite just-created {quote(into)} with {quote(source)}")


def _require_kind(source: str, into: str, node: Node, there: Node) -> None:
    """Fail if a folder would replace something else, or something else a folder."""
    if there.kind == "dir" and node.kind != "dir":
        raise Fail(f"cannot overwrite directory {quote(into)} with non-directory")
    if there.kind != "dir" and node.kind == "dir":
        raise Fail(f"cannot overwrite non-directory {quote(into)} with directory {quote(source)}")


def _last(flags: list[str]) -> str:
    """Return which of -n, -i and -f decides: the last one."""
    return next((flag for flag in reversed(flags) if flag in "nif"), "f")


def _overwrites(p: Process, into: str, source: Node, flags: list[str]) -> bool:
    """Return whether to replace an existing destination."""
    there = p.find(into)
    if there is None:
        return True
    if "u" in flags and there.mtime >= source.mtime:
        return False
    last = _last(flags)
    return last == "f" or (last == "i" and ask(p, f"overwrite {quote(into)}?"))


def cp(p: Process) -> None:
    options, names = ordered(p.argv, "adfHilLnPprRst:Tuvx", CP)
    pairs = places(p, names, dict(options))
    copy = Copy(p, [flag for flag, _ in options], dict(options))
    for source, into in pairs:
        attempt(p, copy.start, source, into)


class Copy:
    """The options of one cp, and the files it has made."""

    def __init__(self, p: Process, flags: list[str], chosen: dict):
        self.p, self.flags = p, flags
        self.recursive = bool({"r", "R", "a"} & set(flags))
        kept = (chosen.get("p") or "mode,ownership,timestamps").split(",") if "p" in flags else []
        self.keep = {"mode", "ownership", "timestamps"} if "a" in flags or "all" in kept else set(kept)
        self.plain_mode = "mode" in (chosen.get("N") or "")
        self.keep -= set((chosen.get("N") or "").split(","))
        follows = [flag for flag in flags if flag in "LPdaH"]
        last = follows[-1] if follows else ""
        self.follow_first = last in ("L", "H") or not (self.recursive or {"P", "d"} & set(follows))
        self.follow_below = last == "L"
        self.made: set[int] = set()  # ids of nodes
        self.top = ("", "")  # the operand that is copied, and where to

    def start(self, source: str, into: str) -> None:
        node = _stat(self.p, source, self.follow_first)
        if node.kind == "dir" and not self.recursive:
            raise Fail(f"-r not specified; omitting directory {quote(source)}")
        self.top = (source, into)
        self.copy(source, into, node)

    def copy(self, source: str, into: str, node: Node) -> None:
        """Copy one node, and everything below it, to a name."""
        self.p.tick()
        there, link = self.p.find(into), self.p.find(into, follow=False)
        if there is not None and there.kind != "dir" and _last(self.flags) == "n":
            return
        if node is link or (node is there and "s" not in self.flags):
            if "l" in self.flags and node.kind == "file":
                return
            raise _same(source, into)
        if there is not None:
            if there.kind != "dir" and id(there) in self.made:
                raise _just_created(source, into)
            _require_kind(source, into, node, there)
        if node.kind == "dir":
            self.folder(source, into, node, there)
            return
        with failing(f"cannot create regular file {quote(into)}"):
            if _overwrites(self.p, into, node, self.flags):
                if link is not None and there is None and node.kind == "file":
                    raise Fail(f"not writing through dangling symlink {quote(into)}")
                self.single(source, into, node, link)

    def folder(self, source: str, into: str, node: Node, there: Node | None) -> None:
        p = self.p
        if there is None:
            with failing(f"cannot create directory {quote(into)}"):
                there = p.mkdir(into, node.mode & 0o777)
            self.made.add(id(there))
            self.tell(source, into)
        p.machine.change()
        mode = there.mode
        there.mode |= 0o700
        if not p.may(node, 5):
            there.mode = mode
            raise Fail(f"cannot access {quote(source)}: Permission denied")
        for name in sorted(node.data):
            attempt(p, self.below, f"{source.rstrip('/')}/{name}", f"{into.rstrip('/')}/{name}", node.data[name])
        there.mode = mode
        self.preserve(node, there)

    def below(self, source: str, into: str, node: Node) -> None:
        if node.kind == "dir" and id(node) in self.made:
            raise Fail("cannot copy a directory, {}, into itself, {}".format(*map(quote, self.top)))
        if self.follow_below and node.kind == "link":
            node = _stat(self.p, source, True)
        self.copy(source, into, node)

    def single(self, source: str, into: str, node: Node, link: Node | None) -> None:
        """Copy a file or a link to a name that is not a folder."""
        p, flags = self.p, self.flags
        self.tell(source, into)
        if "s" in flags or "l" in flags:
            if link is not None and "f" not in flags:
                what = "symbolic" if "s" in flags else "hard"
                raise Fail(f"cannot create {what} link {quote(into)} to {quote(source)}: File exists")
            if link is not None:
                p.unlink(into)
            (p.symlink if "s" in flags else p.link)(source, into)
            return
        if node.kind == "link":
            if link is not None:
                p.unlink(into)
            made = p.symlink(node.data, into)
        else:
            with failing(f"cannot open {quote(source)} for reading"):
                p.require(node, 4)
            data = bytes_of(node)
            if link is not None and ("F" in flags or ("f" in flags and not p.may(p.lookup(into), 2))):
                p.unlink(into)
            if into.endswith("/"):
                raise fault(errno.ENOTDIR)
            made = p.write(into, data, mode=0o666 if self.plain_mode else node.mode & 0o777)
        self.made.add(id(made))
        self.preserve(node, made)

    def preserve(self, node: Node, made: Node) -> None:
        self.p.machine.change()
        if "ownership" in self.keep and not self.p.uid:
            made.uid, made.gid = node.uid, node.gid
        if "mode" in self.keep:
            made.mode = node.mode
        if "timestamps" in self.keep:
            made.mtime, made.atime = node.mtime, node.atime

    def tell(self, source: str, into: str) -> None:
        if "v" in self.flags:
            self.p.out(f"{quote(source)} -> {quote(into)}\n")


def mv(p: Process) -> None:
    options, names = ordered(p.argv, "fint:Tuv", MV)
    flags, made = [flag for flag, _ in options], set()
    for source, into in places(p, names, dict(options)):
        attempt(p, _move, p, source.rstrip("/") or "/", into, flags, made)


def _move(p: Process, source: str, into: str, flags: list[str], made: set[int]) -> None:
    node, there = _stat(p, source, follow=False), p.find(into, follow=False)
    if there is not None:
        if there is node and _last(flags) == "n":
            return
        if there is node:
            raise _same(source, into)
        if id(there) in made:
            raise _just_created(source, into)
        _require_kind(source, into, node, there)
        if not _overwrites(p, into, node, flags):
            return
    try:
        if node.kind != "dir" and into.endswith("/"):
            raise fault(errno.ENOTDIR)
        if source.rpartition("/")[2] in (".", ".."):
            p.walk(into, follow=False)
            raise fault(errno.EBUSY)
        p.rename(source, into.rstrip("/") if node.kind == "dir" else into)
    except OSError as error:
        if error.errno == errno.EINVAL and node.kind == "dir":
            raise Fail(f"cannot move {quote(source)} to a subdirectory of itself, {quote(into)}") from None
        raise Fail(f"cannot move {quote(source)} to {quote(into)}: {error.strerror}") from None
    made.add(id(node))
    if "v" in flags:
        p.out(f"renamed {quote(source)} -> {quote(into)}\n")


def ln(p: Process) -> None:
    options, names = ordered(p.argv, "fiLnPrst:Tv", LN)
    flags, made = [flag for flag, _ in options], set()
    if len(names) == 1 and "t" not in flags and "T" not in flags:
        names = [names[0], "."]
    for source, into in places(p, names, dict(options), follow="n" not in flags):
        attempt(p, _link, p, source, into, flags, made)


def _link(p: Process, source: str, into: str, flags: list[str], made: set[int]) -> None:
    symbolic, node = "s" in flags, None
    if not symbolic:
        with failing(f"failed to access {quote(source)}"):
            node = p.lookup(source, follow="L" in flags)
        if node.kind == "dir":
            raise Fail(f"{source}: hard link not allowed for directory")
    there = p.find(into, follow=False)
    if there is not None and ("f" in flags or "i" in flags):
        if id(there) in made:
            raise _just_created(source, into)
        if there.kind == "dir":
            raise Fail(f"{into}: cannot overwrite directory")
        if there is node or (symbolic and p.exists(source) and p.lookup(source, False) is there):
            raise _same(source, into)
        if "f" not in flags and not ask(p, f"replace {quote(into)}?"):
            return
        p.unlink(into)
    try:
        if not symbolic:
            made.add(id(p.link(source, into, "L" in flags)))
        elif "r" in flags:
            target = relative(p.realpath(source), p.realpath(into).rpartition("/")[0] or "/")
            made.add(id(p.symlink(target, into)))
        else:
            made.add(id(p.symlink(source, into)))
    except OSError as error:
        toward = " -> ''" if not source else "" if symbolic or error.errno == errno.EEXIST else f" => {quote(source)}"
        what = "symbolic" if symbolic else "hard"
        raise Fail(f"failed to create {what} link {quote(into)}{toward}: {error.strerror}") from None
    if "v" in flags:
        p.out(f"{quote(into)} {'->' if symbolic else '=>'} {quote(source)}\n")


COMMANDS = {"cp": cp, "mv": mv, "ln": ln}
