"""The part of the interpreter that opens redirections, finds a command's program on PATH and starts it."""

import errno
import re
from typing import ClassVar

from envs.simulators.shell import expand
from envs.simulators.shell.files import EXECUTE, READ, Hangup, Node, fault, raw, text
from envs.simulators.shell.process import Process, Stream, pipe
from envs.simulators.shell.state import State
from envs.simulators.shell.tree import Redirect

ELF = b"\x7fELF"  # what a program's file begins with; its name in COMMANDS stands behind
DESCRIPTORS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2} | {f"/dev/fd/{n}": n for n in range(10)}


class Launching(State):
    """A shell that opens files and starts programs; `programs` maps a program file's name to its function."""

    programs: ClassVar[dict] = {}

    # -- redirections

    def redirect(self, redirects: list[Redirect]) -> bool:
        """Open and copy streams for a command; return False, with a message, on failure."""
        self.fds = dict(self.fds)
        for redirect in redirects:
            try:
                self.open(redirect)
            except OSError as failure:
                self.complain(f"{failure.filename}: {failure.strerror}")
                return False
        return True

    def open(self, redirect: Redirect) -> None:
        op, fd = redirect.op, redirect.fd
        if op in ("<<", "<<-", "<<<"):
            given = expand.string(self, redirect.target) + "\n" * (op == "<<<")
            self.fds[fd] = pipe(self.machine, 0, data=raw(given))
            return
        words = expand.arguments(self, [redirect.target])
        if len(words) != 1:
            raise OSError(0, "ambiguous redirect", redirect.target.source)
        target = words[0]
        if op in (">&", "<&"):
            if target == "-":
                self.fds.pop(fd, None)
                return
            if re.fullmatch(r"\d+-?", target):
                self.fds[fd] = self.duplicate(target)
                if target.endswith("-"):
                    self.fds.pop(int(target[:-1]), None)
                return
            closing = redirect.target.plain is not None and target.endswith("-")
            if op == "<&" or fd != 1 or closing:
                raise OSError(0, "ambiguous redirect", target[:-1] if closing else target)
            op = "&>"
        stream = self.fds[fd] = self.open_file(op, target)
        if op in ("&>", "&>>"):
            self.fds[2] = stream

    def duplicate(self, target: str) -> Stream:
        number = int(target.rstrip("-")[:9])
        if number not in self.fds:
            raise OSError(errno.EBADF, "Bad file descriptor", target.rstrip("-"))
        return self.fds[number]

    def open_file(self, op: str, path: str) -> Stream:
        """Return a stream on a file, created and truncated as the operator requires."""
        if path in DESCRIPTORS and (DESCRIPTORS[path] in self.fds or path[5] != "f"):
            return self.duplicate(str(DESCRIPTORS[path]))
        try:
            if op == "<":
                node = self.lookup(path)
                self.require(node, READ)
                return Stream(self.machine, node, path=path)
            if op == ">" and self.options["C"] and self.exists(path) and self.lookup(path).kind == "file":
                raise OSError(errno.EEXIST, "cannot overwrite existing file", path)
            node = self.create(path)
            if node.kind == "file" and op in (">", ">|", "&>"):
                self.machine.store(node, b"")
            return Stream(self.machine, node, op == "<>", True, op in (">>", "&>>"), path)
        except OSError as failure:
            failure.filename = path
            raise

    # -- programs

    def not_found(self, name: str, failure: OSError) -> int:
        if failure.errno == errno.ENOENT and "/" not in name:
            self.complain(f"{name}: command not found")
            return 127
        self.complain(f"{name}: {failure.strerror}")
        return 127 if failure.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP) else 126

    def find_program(self, name: str, path: str) -> tuple[str, Node]:
        """Return the file of a command's name; OSError if none may be run."""
        if "/" in name:
            node = self.lookup(name)
            if node.kind == "dir":
                raise fault(errno.EISDIR)
            self.require(node, EXECUTE)
            return name, node
        found = None
        for folder in path.split(":") if name else ():
            place = f"{folder or '.'}/{name}"
            try:
                node = self.lookup(place)
            except OSError:
                continue
            if node.kind == "file" and self.may(node, EXECUTE):
                return place, node
            found = found or (node if node.kind == "file" else None)
        raise fault(errno.EACCES if found else errno.ENOENT)

    def start(self, process: Process, path: str, node: Node) -> int:
        """Run a file in a process: a built-in program, a script with its interpreter, or a bash script."""
        data = node.data if node.kind == "file" else b""
        command = self.programs.get(text(data[4:])) if data.startswith(ELF) else None
        if command:
            try:
                return command(process)
            except Hangup:
                return 141
            except OSError as failure:
                return process.fail(f"write error: {failure.strerror}")
        self.require(node, READ)
        if data.startswith(ELF) or b"\0" in data[:80]:
            raise OSError(errno.ENOEXEC, "cannot execute binary file: Exec format error", process.argv[0])
        shebang = text(data[2:].split(b"\n", 1)[0]) if data.startswith(b"#!") else "/bin/bash"
        first, _, argument = shebang.strip().partition(" ")
        try:
            target, program = self.find_program(first, "")
        except OSError:
            self.complain(f"{process.argv[0]}: cannot execute: required file not found")
            return 127
        self.deeper()
        process.argv = [first, *([argument.strip()] if argument.strip() else []), path, *process.argv[1:]]
        try:
            return self.start(process, target, program)
        finally:
            self.nesting -= 1

    def run_for(self, process: Process, argv: list[str], stdin=None, stdout=None, **changes) -> int:
        """Process.run: run another command in place of a running one."""
        self.machine.tick(8)
        name = changes.pop("name", argv[0])  # what the program sees as its own name
        child = Process(**{name: getattr(process, name) for name in Process.__dataclass_fields__} | changes)
        child.argv, child.env, child.fds = list(argv), dict(child.env), dict(child.fds)
        if stdin is not None:
            child.fds[0] = pipe(self.machine, data=stdin)
        if stdout is not None:
            child.fds[1] = stdout
        shell = object.__new__(type(self))
        shell.__dict__.update(self.__dict__)
        shell.__dict__.update({name: getattr(child, name) for name in ("cwd", "uid", "gid", "groups", "umask", "fds")})
        child.launch = shell.run_for
        shell.deeper()
        path, node = shell.find_program(argv[0], child.env.get("PATH", "/usr/local/bin:/usr/bin:/bin"))
        child.argv[0] = name
        return shell.start(child, path, node)
