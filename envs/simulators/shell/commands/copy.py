"""cp, mv and ln."""

import errno

from envs.simulators.shell.commands.files import ask, relative
from envs.simulators.shell.commands.options import Fail, ordered, quote
from envs.simulators.shell.files import Node
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
        node = p.lookup(folder, follow) if p.exists(folder, follow) else None
        if node is None or node.kind != "dir":
            if len(names) > 2 or (folder.endswith("/") and node is not None):
                _require_folder(p, folder, "target")
            return [(names[0], folder)]
        names = names[:-1]
    return [(name, f"{folder.rstrip('/') or ''}/{name.rstrip('/').rpartition('/')[2]}") for name in names]


def _require_folder(p: Process, folder: str, what: str) -> None:
    try:
        node = p.lookup(folder)
    except OSError as error:
        raise Fail(f"{what} {quote(folder)}: {error.strerror}") from None
    if node.kind != "dir":
        raise Fail(f"{what} {quote(folder)}: Not a directory")


def _overwrites(p: Process, into: str, source: Node, flags: list[str]) -> bool:
    """Return whether to replace an existing destination; the last of -n, -i and -f decides."""
    there = p.lookup(into) if p.exists(into) else None
    if there is None:
        return True
    if "u" in flags and there.mtime >= source.mtime:
        return False
    last = next((flag for flag in reversed(flags) if flag in "nif"), "f")
    return last == "f" or (last == "i" and ask(p, f"overwrite {quote(into)}?"))


def cp(p: Process) -> int:
    options, names = ordered(p.argv, "adfHilLnPprRst:Tuvx", CP)
    flags, chosen = [flag for flag, _ in options], dict(options)
    pairs = places(p, names, chosen)
    copy = Copy(p, flags, chosen)
    for source, into in pairs:
        copy.start(source, into)
    return copy.status


class Copy:
    """The options of one cp, the files it has made, and its exit status so far."""

    def __init__(self, p: Process, flags: list[str], chosen: dict):
        self.p, self.flags, self.status = p, flags, 0
        self.last_word = next((flag for flag in reversed(flags) if flag in "nif"), "f")
        self.recursive = bool({"r", "R", "a"} & set(flags))
        kept = (chosen.get("p") or "mode,ownership,timestamps").split(",") if "p" in flags else []
        self.keep = {"mode", "ownership", "timestamps"} if "a" in flags or "all" in kept else set(kept)
        self.plain_mode = "mode" in (chosen.get("N") or "")
        self.keep -= set((chosen.get("N") or "").split(","))
        follows = [flag for flag in flags if flag in "LPdaH"]
        last = follows[-1] if follows else ""
        self.follow_first = last in ("L", "H") or not (self.recursive or {"P", "d"} & set(follows))
        self.follow_below = last == "L"
        self.made: dict[int, str] = {}  # ids of the nodes that this call made -> their paths
        self.top = ("", "")  # the operand that is copied, and where to

    def start(self, source: str, into: str) -> None:
        p = self.p
        try:
            node = p.lookup(source, self.follow_first)
        except OSError as error:
            self.status = p.fail(f"cannot stat {quote(source)}: {error.strerror}")
            return
        if node.kind == "dir" and not self.recursive:
            self.status = p.fail(f"-r not specified; omitting directory {quote(source)}")
            return
        self.top = (source, into)
        self.copy(source, into, node)

    def copy(self, source: str, into: str, node: Node) -> None:
        """Copy one node, and everything below it, to a name."""
        p = self.p
        p.tick()
        try:
            there = p.lookup(into) if p.exists(into) else None
            link = p.lookup(into, follow=False) if p.exists(into, follow=False) else None
            if there is not None and there.kind != "dir" and self.last_word == "n":
                return
            if (link is not None and node is link) or (there is not None and there is node and "s" not in self.flags):
                if not ("l" in self.flags and node.kind == "file"):
                    self.status = p.fail(f"{quote(source)} and {quote(into)} are the same file")
                return
            if there is not None and id(there) in self.made and there.kind != "dir":
                self.status = p.fail(f"will not overwrite just-created {quote(into)} with {quote(source)}")
                return
            if node.kind == "dir":
                self.folder(source, into, node, there)
                return
            if there is not None and there.kind == "dir":
                self.status = p.fail(f"cannot overwrite directory {quote(into)} with non-directory")
                return
            if not _overwrites(p, into, node, self.flags):
                return
            if link is not None and there is None and node.kind == "file":
                self.status = p.fail(f"not writing through dangling symlink {quote(into)}")
                return
            self.single(source, into, node, link)
        except OSError as error:
            if error.filename is None or error.filename == "":
                error.filename = f"cannot create regular file {quote(into)}"
            self.status = p.fail(f"{error.filename}: {error.strerror}")

    def folder(self, source: str, into: str, node: Node, there: Node | None) -> None:
        p = self.p
        if there is not None and there.kind != "dir":
            self.status = p.fail(f"cannot overwrite non-directory {quote(into)} with directory {quote(source)}")
            return
        if there is None:
            try:
                there = p.mkdir(into, node.mode & 0o777)
            except OSError as error:
                error.filename = f"cannot create directory {quote(into)}"
                raise
            self.made[id(there)] = into
            self.tell(source, into)
        p.machine.change()
        mode = there.mode
        there.mode |= 0o700
        if not p.may(node, 5):
            there.mode = mode
            self.status = p.fail(f"cannot access {quote(source)}: Permission denied")
            return
        for name in sorted(node.data):
            below = node.data[name]
            path = f"{source.rstrip('/')}/{name}"
            if below.kind == "dir" and id(below) in self.made:
                self.status = p.fail("cannot copy a directory, {}, into itself, {}".format(*map(quote, self.top)))
                continue
            if self.follow_below and below.kind == "link":
                try:
                    below = p.lookup(path)
                except OSError as error:
                    self.status = p.fail(f"cannot stat {quote(path)}: {error.strerror}")
                    continue
            self.copy(path, f"{into.rstrip('/')}/{name}", below)
        there.mode = mode
        self.preserve(node, there)

    def single(self, source: str, into: str, node: Node, link: Node | None) -> None:
        """Copy a file or a link to a name that is not a folder."""
        p, flags = self.p, self.flags
        self.tell(source, into)
        if "s" in flags or "l" in flags:
            if link is not None and "f" in flags:
                p.unlink(into)
            elif link is not None:
                what = "symbolic" if "s" in flags else "hard"
                self.status = p.fail(f"cannot create {what} link {quote(into)} to {quote(source)}: File exists")
                return
            if "s" in flags:
                p.symlink(source, into)
            else:
                p.link(source, into, follow=False)
            return
        if node.kind == "link":
            if link is not None:
                p.unlink(into)
            made = p.symlink(node.data, into)
        else:
            if not p.may(node, 4):
                error = OSError(errno.EACCES, "Permission denied")
                error.filename = f"cannot open {quote(source)} for reading"
                raise error
            data = p.bytes_of(node)
            if link is not None and ("F" in flags or ("f" in flags and not p.may(p.lookup(into), 2))):
                p.unlink(into)
            if into.endswith("/"):
                raise OSError(errno.ENOTDIR, "Not a directory")
            made = p.write(into, data, mode=0o666 if self.plain_mode else node.mode & 0o777)
        self.made[id(made)] = into
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


def mv(p: Process) -> int:
    options, names = ordered(p.argv, "fint:Tuv", MV)
    flags, chosen = [flag for flag, _ in options], dict(options)
    status = 0
    made: set[int] = set()
    for source, into in places(p, names, chosen):
        status |= _move(p, source.rstrip("/") or "/", into, flags, made)
    return status


def _move(p: Process, source: str, into: str, flags: list[str], made: set[int]) -> int:
    try:
        node = p.lookup(source, follow=False)
    except OSError as error:
        return p.fail(f"cannot stat {quote(source)}: {error.strerror}")
    there = p.lookup(into, follow=False) if p.exists(into, follow=False) else None
    if there is not None:
        if there is node:
            kept = [flag for flag in flags if flag in "fin"][-1:] == ["n"]
            return 0 if kept else p.fail(f"{quote(source)} and {quote(into)} are the same file")
        if id(there) in made:
            return p.fail(f"will not overwrite just-created {quote(into)} with {quote(source)}")
        if there.kind == "dir" and node.kind != "dir":
            return p.fail(f"cannot overwrite directory {quote(into)} with non-directory")
        if there.kind != "dir" and node.kind == "dir":
            return p.fail(f"cannot overwrite non-directory {quote(into)} with directory {quote(source)}")
        if not _overwrites(p, into, node, flags):
            return 0
    try:
        if node.kind != "dir" and into.endswith("/"):
            raise OSError(errno.ENOTDIR, "Not a directory")
        if source.rpartition("/")[2] in (".", ".."):
            p.walk(into, follow=False)
            raise OSError(errno.EBUSY, "Device or resource busy")
        p.rename(source, into.rstrip("/") if node.kind == "dir" else into)
    except OSError as error:
        if error.errno == errno.EINVAL and node.kind == "dir":
            return p.fail(f"cannot move {quote(source)} to a subdirectory of itself, {quote(into)}")
        return p.fail(f"cannot move {quote(source)} to {quote(into)}: {error.strerror}")
    made.add(id(node))
    if "v" in flags:
        p.out(f"renamed {quote(source)} -> {quote(into)}\n")
    return 0


def ln(p: Process) -> int:
    options, names = ordered(p.argv, "fiLnPrst:Tv", LN)
    flags, chosen = [flag for flag, _ in options], dict(options)
    if len(names) == 1 and "t" not in chosen and "T" not in chosen:
        names = [names[0], "."]
    status = 0
    pairs = places(p, names, chosen, follow="n" not in flags)
    made: set[int] = set()
    for source, into in pairs:
        status |= _link(p, source, into, flags, made)
    return status


def _link(p: Process, source: str, into: str, flags: list[str], made: set[int]) -> int:
    symbolic = "s" in flags
    what = "symbolic" if symbolic else "hard"
    node = None
    if not symbolic:
        try:
            node = p.lookup(source, follow="L" in flags)
        except OSError as error:
            return p.fail(f"failed to access {quote(source)}: {error.strerror}")
        if node.kind == "dir":
            return p.fail(f"{source}: hard link not allowed for directory")
    there = p.lookup(into, follow=False) if p.exists(into, follow=False) else None
    if there is not None and ("f" in flags or "i" in flags):
        if id(there) in made:
            return p.fail(f"will not overwrite just-created {quote(into)} with {quote(source)}")
        if there.kind == "dir":
            return p.fail(f"{into}: cannot overwrite directory")
        if there is node or (symbolic and p.exists(source) and p.lookup(source, False) is there):
            return p.fail(f"{quote(source)} and {quote(into)} are the same file")
        if "f" not in flags and "i" in flags and not ask(p, f"replace {quote(into)}?"):
            return 0
        p.unlink(into)
    try:
        if symbolic:
            target = source
            if "r" in flags:
                target = relative(p.realpath(source), p.realpath(into).rpartition("/")[0] or "/")
            made.add(id(p.symlink(target, into)))
        else:
            made.add(id(p.link(source, into, "L" in flags)))
    except OSError as error:
        toward = " -> ''" if not source else "" if symbolic or error.errno == errno.EEXIST else f" => {quote(source)}"
        return p.fail(f"failed to create {what} link {quote(into)}{toward}: {error.strerror}")
    if "v" in flags:
        p.out(f"{quote(into)} {'->' if symbolic else '=>'} {quote(source)}\n")
    return 0


COMMANDS = {"cp": cp, "mv": mv, "ln": ln}
