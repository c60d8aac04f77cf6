"""An in-memory Linux: nodes (inodes), the machine that holds them, and system calls with a user's rights.

Text is bytes in a str: every character is one byte (latin-1), as in the C locale, where `é` counts as two. `raw(text)`
gives the bytes of paths, arguments and variables, `text(data)` the reverse; neither ever fails.

Users are files: /etc/passwd, /etc/group, /etc/shadow and /etc/gshadow are the only record of users and groups.
"""

import errno
import os
from dataclasses import dataclass
from functools import lru_cache
from math import inf

from envs.simulators.shell.records import Table

CLOCK = 1714989600.0  # seconds; the machine's clock at the start: Mon May  6 10:00:00 UTC 2024
TICK = 0.001  # seconds that a command takes on that clock
MAX_LINKS = 40  # symbolic links that one path may go through
MAX_NAME, MAX_PATH = 255, 4096  # bytes
READ, WRITE, EXECUTE = 4, 2, 1
SETUID, SETGID, STICKY = 0o4000, 0o2000, 0o1000
MAX_TEXT = 1 << 22  # bytes that one text may grow to, wherever a script makes texts grow
ENDLESS = 1 << 16  # bytes that an endless device gives if the reader sets no limit


class Timeout(Exception):
    """The script has used up its steps or its output."""


class Hangup(Exception):
    """Nobody reads the output any more: SIGPIPE."""


class Frozen(Exception):
    """A script tried to change a frozen machine."""


def raw(text: str) -> bytes:
    """Return a text's bytes."""
    return text.encode("latin-1", "replace")


def text(data: bytes) -> str:
    """Return bytes as text."""
    return data.decode("latin-1")


def fault(number: int, path: str = "") -> OSError:
    """Return an OSError whose `strerror` is the message that commands print: 'No such file or directory'."""
    return OSError(number, os.strerror(number), path)


class Node:
    """A file, folder, link or device. One node may have several names: `nlink` counts them."""

    __slots__ = ("atime", "data", "gid", "ino", "kind", "mode", "mtime", "nlink", "uid")

    def __init__(self, kind: str, mode: int, data, uid: int = 0, gid: int = 0, mtime: float = CLOCK, ino: int = 0):
        self.kind = kind  # "file", "dir", "link" or "device"
        self.mode = mode  # permission bits, with setuid, setgid and sticky
        self.data = data  # file: bytes; dir: {name: Node}; link: target; device: "null", "zero", "random", "stdin", ...
        self.uid, self.gid = uid, gid
        self.mtime = self.atime = mtime  # seconds of the machine's clock; atime changes only when it is set
        self.nlink = 2 if kind == "dir" else 1  # a folder: 2 and its subfolders
        self.ino = ino

    @property
    def size(self) -> int:
        """Return the bytes that stat reports: 4096 for a folder."""
        return 4096 if self.kind == "dir" else 0 if self.kind == "device" else len(self.data)


class Machine:
    """The whole state: files, clock, host name, and the remaining time and space."""

    def __init__(self, hostname: str = "localhost", max_bytes: int = 8 << 20, max_nodes: int = 20_000):
        self.hostname = hostname
        self.clock = CLOCK
        self.max_bytes, self.max_nodes = max_bytes, max_nodes  # of all files together, beyond which the disk is full
        self.bytes = self.nodes = 0
        self.steps = 0  # left to the script that runs
        self.pids = 100  # the last process number given
        self.frozen = False  # whether a change raises Frozen
        self.jobs: list = []  # commands in the background that have not ended, and the one that runs now
        self.turns = 0  # times that one of them has gone on
        self.job = self.shell = None  # self.shell: the interpreter of the running script
        self.deadline = inf  # when the innermost `timeout` ends
        self.processes: dict[int, tuple] = {}  # left over from earlier scripts: see jobs.alive
        self.tables: dict[str, Table] = {}  # of each file of records, as it was last read
        self.root = self.new("dir", 0o755, {})

    def change(self) -> None:
        """Raise Frozen on a frozen machine; called before every change of a file."""
        if self.frozen:
            raise Frozen

    def new(self, kind: str, mode: int, data, uid: int = 0, gid: int = 0) -> Node:
        """Return a node without a name; OSError ENOSPC if there are too many."""
        self.change()
        if self.nodes >= self.max_nodes:
            raise fault(errno.ENOSPC)
        self.nodes += 1
        return Node(kind, mode, data, uid, gid, self.clock, self.nodes + 1)

    def store(self, node: Node, data: bytes) -> None:
        """Give a file its bytes; OSError ENOSPC when the disk is full."""
        self.change()
        grown = self.bytes + len(data) - len(node.data)
        if grown > self.max_bytes and len(data) > len(node.data):
            raise fault(errno.ENOSPC)
        self.bytes = grown
        self.steps -= len(data) >> 14
        node.data = data
        node.mtime = self.clock

    def tick(self, steps: int = 1) -> None:
        """Use up steps; Timeout if none are left. Every loop over an agent's text calls this."""
        self.steps -= steps
        if self.steps < 0:
            if self.job is None:
                raise Timeout
            self.job.yield_turn()

    def next_pid(self) -> int:
        """Return the number of a new process."""
        self.pids = self.pids + 1 if self.pids < 32_000 else 101
        return self.pids

    def lookup(self, path: str, cwd: str = "/", follow: bool = True) -> Node:
        """Return the node at a path, with root's rights."""
        return Caller(self, cwd).lookup(path, follow)

    def content(self, path: str) -> bytes | None:
        """Return the bytes of a file, with root's rights; None if it is missing."""
        node = Caller(self).find(path)
        return node.data if node and node.kind == "file" else None

    def records(self, path: str) -> list[list[str]]:
        """Return the records of one of the files of RECORDS, each a list of its fields; none if it is missing."""
        return self._table(path).records

    def user(self, key: str | int) -> list[str] | None:
        """Return the seven fields in /etc/passwd of a user, by name or by number."""
        return self._table("/etc/passwd").first.get(key)

    def group(self, key: str | int) -> list[str] | None:
        """Return the four fields in /etc/group of a group, by name or by number."""
        return self._table("/etc/group").first.get(key)

    def groups_of(self, name: str) -> tuple[int, ...]:
        """Return all group numbers of a user: the first is that of /etc/passwd."""
        user = self.user(name)
        first = [int(user[3])] if user else []
        return tuple(dict.fromkeys(first + self._table("/etc/group").groups.get(name, [])))

    def _table(self, path: str) -> Table:
        """Return a parsed file of records, parsed again when its bytes change."""
        data = self.content(path) or b""
        known = self.tables.get(path)
        if known is None or known.data is not data:
            self.steps -= len(data) >> 5
            known = self.tables[path] = Table.read(path, data)
        return known


def bytes_of(node: Node, most: int = ENDLESS) -> bytes:
    """Return a node's bytes without checking rights; of an endless device `most` zeros, Timeout above MAX_TEXT."""
    if node.kind == "dir":
        raise fault(errno.EISDIR)
    if node.kind != "device":
        return node.data
    if node.data not in ("zero", "random"):
        return b""
    if most > MAX_TEXT:
        raise Timeout
    return bytes(most)


@lru_cache(maxsize=1024)
def _reversed_parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in reversed(path.split("/")) if part and part != ".")


@dataclass
class Caller:
    """A process as the file system sees it: system calls, relative to a folder and checked against a user's rights.

    Root passes every check. Every method raises OSError with Linux's errno.
    """

    machine: Machine
    cwd: str = "/"  # without links
    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = (0,)
    umask: int = 0o022

    # -- finding

    def walk(self, path: str, follow: bool = True) -> tuple[Node, str, Node | None, list[str]]:
        """Return the folder, the name in it, the node if it exists, and the names from the root on, without links."""
        if not path:
            raise fault(errno.ENOENT)
        if len(path) > MAX_PATH:
            raise fault(errno.ENAMETOOLONG)
        whole = path if path[0] == "/" else f"{self.cwd}/{path}"
        # No Timeout here, the next tick raises it: evaluations of a machine walk paths too.
        self.machine.steps -= 1 + (len(whole) >> 5)
        must_be_dir = path.endswith(("/", "/.", "/..")) or path in (".", "..")
        nodes, names, links = [self.machine.root], [], 0
        todo = list(_reversed_parts(whole))
        while todo:
            name = todo.pop()
            here = nodes[-1]
            if here.kind != "dir":
                raise fault(errno.ENOTDIR)
            if self.uid and not self.may(here, EXECUTE):
                raise fault(errno.EACCES)
            if name == "..":
                if names:
                    nodes.pop()
                    names.pop()
                continue
            child = here.data.get(name)
            if child is None:
                if len(name) > MAX_NAME:
                    raise fault(errno.ENAMETOOLONG)
                if todo:
                    raise fault(errno.ENOENT)
                return here, name, None, [*names, name]
            if child.kind == "link" and (todo or follow or must_be_dir):
                links += 1
                if links > MAX_LINKS:
                    raise fault(errno.ELOOP)
                self.machine.steps -= len(child.data) >> 5
                if child.data[0] == "/":
                    nodes, names = nodes[:1], []
                todo += _reversed_parts(child.data)
                continue
            nodes.append(child)
            names.append(name)
        node = nodes[-1]
        if must_be_dir and node.kind != "dir":
            raise fault(errno.ENOTDIR)
        return nodes[-2] if names else node, names[-1] if names else "/", node, names

    def lookup(self, path: str, follow: bool = True) -> Node:
        """The node at a path; of a link itself if `follow` is false."""
        node = self.walk(path, follow)[2]
        if node is None:
            raise fault(errno.ENOENT)
        return node

    def find(self, path: str, follow: bool = True) -> Node | None:
        """Return the node at a path; None if the caller cannot see one."""
        try:
            return self.walk(path, follow)[2]
        except OSError:
            return None

    def exists(self, path: str, follow: bool = True) -> bool:
        return self.find(path, follow) is not None

    def is_dir(self, path: str) -> bool:
        node = self.find(path)
        return node is not None and node.kind == "dir"

    def realpath(self, path: str) -> str:
        """Return the absolute path without links; the last part need not exist."""
        return "/" + "/".join(self.walk(path)[3])

    def may(self, node: Node, bits: int) -> bool:
        """Return whether the caller may READ, WRITE or EXECUTE (summed) a node."""
        if not self.uid:
            return bits != EXECUTE or node.kind == "dir" or bool(node.mode & 0o111)
        shift = 6 if node.uid == self.uid else 3 if node.gid == self.gid or node.gid in self.groups else 0
        return (node.mode >> shift) & bits == bits

    def require(self, node: Node, bits: int) -> None:
        """Raise OSError EACCES unless the caller may."""
        if not self.may(node, bits):
            raise fault(errno.EACCES)

    # -- files

    def read(self, path: str, most: int = ENDLESS) -> bytes:
        """Return the bytes of a file; `most` of an endless device."""
        node = self.lookup(path)
        self.require(node, READ)
        return bytes_of(node, most)

    def create(self, path: str, mode: int = 0o666, exclusive: bool = False) -> Node:
        """Return the file at a path for writing, made if missing, with `mode` less the umask."""
        folder, name, node, _ = self.walk(path, follow=not exclusive)
        if node is None:
            if path.endswith("/"):
                raise fault(errno.EISDIR)
            return self.attach(folder, name, "file", mode & ~self.umask, b"")
        if exclusive:
            raise fault(errno.EEXIST)
        if node.kind == "dir":
            raise fault(errno.EISDIR)
        self.require(node, WRITE)
        return node

    def write(self, path: str, data: bytes, append: bool = False, mode: int = 0o666) -> Node:
        """Write bytes into a file, or append them."""
        node = self.create(path, mode)
        if node.kind == "file":
            self.machine.store(node, node.data + data if append else data)
        return node

    def mkdir(self, path: str, mode: int = 0o777) -> Node:
        """Make a folder, with `mode` less the umask; the group and bit of a setgid folder are inherited."""
        folder, name, node, _ = self.walk(path, follow=False)
        if node is not None:
            raise fault(errno.EEXIST)
        return self.attach(folder, name, "dir", mode & ~self.umask, {})

    def symlink(self, target: str, path: str) -> Node:
        folder, name, node, _ = self.walk(path, follow=False)
        if not target:
            raise fault(errno.ENOENT)
        if node is not None:
            raise fault(errno.EEXIST)
        return self.attach(folder, name, "link", 0o777, target)

    def link(self, old: str, new: str, follow: bool = False) -> Node:
        """Give a file another name."""
        node = self.lookup(old, follow)
        folder, name, there, _ = self.walk(new, follow=False)
        if there is not None:
            raise fault(errno.EEXIST)
        if node.kind == "dir":
            raise fault(errno.EPERM)
        self.require(folder, WRITE | EXECUTE)
        self.machine.change()
        folder.data[name] = node
        folder.mtime = self.machine.clock
        node.nlink += 1
        return node

    def attach(self, folder: Node, name: str, kind: str, mode: int, data) -> Node:
        """Make a node in a folder, owned by the caller."""
        self.require(folder, WRITE | EXECUTE)
        gid = folder.gid if folder.mode & SETGID else self.gid
        node = self.machine.new(kind, mode, data, self.uid, gid)
        if kind == "dir":
            node.mode |= folder.mode & SETGID
            folder.nlink += 1
        folder.data[name] = node
        folder.mtime = self.machine.clock
        return node

    def unlink(self, path: str) -> None:
        """Remove a name that is not a folder's."""
        folder, name, node, _ = self.walk(path, follow=False)
        if node is None:
            raise fault(errno.ENOENT)
        if node.kind == "dir":
            raise fault(errno.EISDIR)
        self.detach(folder, name, node)

    def rmdir(self, path: str) -> None:
        folder, name, node, _ = self.walk(path, follow=False)
        if node is None:
            raise fault(errno.ENOENT)
        if node.kind != "dir":
            raise fault(errno.ENOTDIR)
        if path.rstrip("/").rpartition("/")[2] == ".":
            raise fault(errno.EINVAL)
        if node is self.machine.root:
            raise fault(errno.EBUSY)
        if node.data:
            raise fault(errno.ENOTEMPTY)
        self.detach(folder, name, node)

    def detach(self, folder: Node, name: str, node: Node) -> None:
        """Remove a name from its folder; the last name frees the space."""
        self.may_remove(folder, node)
        self.machine.change()
        del folder.data[name]
        folder.mtime = self.machine.clock
        node.nlink -= 1
        if node.kind == "dir":
            folder.nlink -= 1
        if node.kind == "dir" or not node.nlink:
            self.machine.nodes -= 1
            self.machine.bytes -= len(node.data) if node.kind == "file" else 0

    def may_remove(self, folder: Node, node: Node) -> None:
        """Raise OSError unless the caller may remove a name: write permission, and ownership in a sticky folder."""
        self.require(folder, WRITE | EXECUTE)
        if self.uid and folder.mode & STICKY and self.uid not in (node.uid, folder.uid):
            raise fault(errno.EPERM)

    def rename(self, old: str, new: str) -> None:
        """Move a node to another name, replacing an existing one."""
        source, name, node, names = self.walk(old, follow=False)
        folder, into, there, into_names = self.walk(new, follow=False)
        if node is None:
            raise fault(errno.ENOENT)
        self.may_remove(source, node)
        self.require(folder, WRITE | EXECUTE)
        if node is there:
            return
        if node.kind == "dir" and into_names[: len(names)] == names:
            raise fault(errno.EINVAL)
        if there is not None:
            if there.kind == "dir" and node.kind != "dir":
                raise fault(errno.EISDIR)
            if there.kind != "dir" and node.kind == "dir":
                raise fault(errno.ENOTDIR)
            if there.kind == "dir" and there.data:
                raise fault(errno.ENOTEMPTY)
            self.detach(folder, into, there)
        self.machine.change()
        del source.data[name]
        folder.data[into] = node
        source.mtime = folder.mtime = self.machine.clock
        if node.kind == "dir":
            source.nlink -= 1
            folder.nlink += 1

    # -- what a node says of itself

    def chmod(self, node: Node, mode: int) -> None:
        """Set the permission bits; only for the owner and root."""
        if self.uid and self.uid != node.uid:
            raise fault(errno.EPERM)
        self.machine.change()
        node.mode = mode & 0o7777

    def chown(self, node: Node, uid: int = -1, gid: int = -1) -> None:
        """Set owner and group, -1 for unchanged: root, or the owner among its own groups; a file loses setuid."""
        stranger = uid not in (-1, node.uid) or gid not in (-1, node.gid, self.gid, *self.groups)
        if self.uid and (self.uid != node.uid or stranger):
            raise fault(errno.EPERM)
        self.machine.change()
        node.uid = node.uid if uid == -1 else uid
        node.gid = node.gid if gid == -1 else gid
        if node.kind == "file":
            node.mode &= ~(SETUID | SETGID if node.mode & 0o010 else SETUID)

    def utime(self, node: Node, mtime: float, atime: float | None = None) -> None:
        if self.uid and self.uid != node.uid:
            raise fault(errno.EPERM)
        self.machine.change()
        node.mtime, node.atime = mtime, mtime if atime is None else atime
