"""Programs that attack the sandbox, and a process that runs them all with fewer rights: python tests/sandbox_attacks.py

    sandbox_attacks.py MODE PERMISSION endless|    MODE: one of MODES; isolated or unsafe; prints a line of JSON

It imports the standard library, tests/cases.py and the sandbox alone, so that any user's interpreter can run it.
"""

import ctypes
import json
import os
import shutil
import socket
import struct
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)]

from cases import cases  # noqa: E402

from envs.simulators import sandbox  # noqa: E402
from envs.simulators.sandbox import filters  # noqa: E402

LIMITS = sandbox.Limits(wall=2, cpu=1, memory=256 * 2**20, output=10_000)
NOBODY = 65_534
SYS_ADMIN = 21  # CAP_SYS_ADMIN
MODES = {  # name -> (user, capabilities to drop, system calls that fail with EPERM)
    "root": (0, [], []),
    "user": (NOBODY, [], []),
    "user without namespaces": (NOBODY, [], ["unshare"]),
    "root without CAP_SYS_ADMIN": (0, [SYS_ADMIN], []),
    "root as in docker": (0, [SYS_ADMIN], ["unshare", "keyctl", "mount"]),
    "root without capabilities": (0, list(range(41)), ["unshare"]),
    "user without namespaces and Landlock": (NOBODY, [], ["unshare", "landlock_create_ruleset"]),
}
NUMBERS = {"unshare": (272, 97), "mount": (165, 40), "keyctl": (250, 219), "landlock_create_ruleset": (444, 444)}
MISTAKES = "NameError", "AttributeError", "TypeError", "KeyError", "ImportError"  # of an attack's own source
SECRET = "271828-the-expected-output"

PRELUDE = """
import ctypes, fcntl, glob, mmap, os, resource, signal, socket, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
column = {{"x86_64": 0, "aarch64": 1}}[os.uname().machine]
HOST, PORT, UDP, PARENT, LIBRARY = {host!r}, {port}, {udp}, {parent}, os.__file__
SECRET_FILE, VICTIM, SOCKET, DATAGRAM, ABSTRACT = (HOST + n for n in ("/secret", "/victim", "/stream", "/datagram", ""))
ABSTRACT = "\\0" + ABSTRACT
def broken(why=""):
    print("BROKEN", why, flush=True)
def call(numbers, *arguments):      # a system call that must fail
    ctypes.set_errno(0)
    if libc.syscall(numbers[column], *arguments) != -1:
        broken(numbers)
def reads(path):
    with open(path, "rb") as file:
        broken(file.read(100))
try:
    exec({source!r})
except BaseException as error:
    print(type(error).__name__, error)
"""


TABLES = cases("sandbox_attacks", ROOT=str(ROOT), FILE=__file__)
TABLES["privileges"] |= {
    name: f"call({numbers}, {arguments})" for name, (numbers, arguments) in TABLES.pop("calls that must fail").items()
}
ATTACKS = {f"{group}: {name}": source for group, attacks in TABLES.items() for name, source in attacks.items()}


def drop(mode: str) -> None:
    """Give up the rights that a mode lacks, as a container or another user would. Raise OSError where that fails."""
    user, capabilities, calls = MODES[mode]
    for capability in capabilities:
        filters.LIBC.prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP: exec does not give it back
    if capabilities:
        header, data = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
        filters.call("capget", header, data)
        lost = sum(1 << capability for capability in capabilities)
        sets = struct.unpack("6I", data.raw)
        kept = [word & ~(lost >> 32 if place > 2 else lost) & 0xFFFFFFFF for place, word in enumerate(sets)]
        filters.call("capset", header, struct.pack("6I", *kept))
    if user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        filters.call("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self belongs to the user, as after a login
    if calls:
        column = filters.MACHINE[1] - 1
        code = [filters._op(filters.LOAD, 0)]
        for name in calls:
            code += [filters._op(filters.EQUAL, NUMBERS[name][column], 0, 1), filters._refuse(1)]
        filters.seccomp(b"".join([*code, filters.ALLOW]))


class Host:
    """Everything around the sandbox that an attack could reach, with open rights: a folder, sockets, a process."""

    def __init__(self):
        self.folder = tempfile.mkdtemp()
        os.chmod(self.folder, 0o777)
        for name, text in (("secret", SECRET), ("victim", "unchanged")):
            Path(self.folder, name).write_text(text)
            os.chmod(f"{self.folder}/{name}", 0o666)
        self.sockets = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        self.sockets += [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM), socket.socket()]
        self.sockets.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        names = [self.folder + "/stream", "\0" + self.folder, self.folder + "/datagram", *[("127.0.0.1", 0)] * 2]
        for sock, name in zip(self.sockets, names, strict=True):
            sock.bind(name)
            sock.setblocking(False)
            if sock.type == socket.SOCK_STREAM:
                sock.listen()
        for name in ("stream", "datagram"):
            os.chmod(f"{self.folder}/{name}", 0o777)

    def program(self, source: str) -> str:
        """Return an attack with what it needs to know."""
        _, _, _, tcp, udp = (sock.getsockname() for sock in self.sockets)
        return PRELUDE.format(host=self.folder, port=tcp[1], udp=udp[1], parent=os.getpid(), source=source)

    def state(self) -> dict:
        """Return everything that must not change."""
        library = os.stat(os.__file__)
        found = {"library": [library.st_mode, library.st_mtime_ns], "files": sorted(os.listdir(self.folder))}
        for name in ("", "/secret", "/victim"):
            stat = os.stat(self.folder + name)
            found[f"folder{name}"] = [stat.st_mode, stat.st_uid, stat.st_mtime_ns]
        for number, sock in enumerate(self.sockets):
            with suppress(BlockingIOError):
                found[f"socket {number}"] = str(sock.accept() if sock.type == socket.SOCK_STREAM else sock.recv(100))
        found["open files"] = len(os.listdir("/proc/self/fd"))
        found["processes"] = sum(session(path) == sandbox._current.process.pid for path in Path("/proc").glob("[0-9]*"))
        return found


def session(process: Path) -> int:
    """Return the session of a process, 0 if it has ended."""
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[3])
    except OSError:
        return 0


def attack(mode: str, permission: str, names: list[str]) -> dict:
    """Run attacks in a mode. Return the layers, the attacks that got through, and what was left behind."""
    drop(mode)
    os.environ["API_KEY"] = SECRET
    try:
        sandbox.start(permission)
    except ValueError as error:
        return {"refused": str(error)}
    host, broken, mistakes = Host(), {}, {}
    before = host.state()

    def one(name: str) -> None:
        try:
            ran = sandbox.run(host.program(ATTACKS[name]), "", LIMITS, permission)
            if "BROKEN" in ran.stdout or SECRET in ran.stdout + ran.stderr:
                broken[name] = ran.stdout[:300]
            if ran.stdout.startswith(MISTAKES):
                mistakes[name] = ran.stdout[:300]
        except Exception as error:  # whatever a program does must be a verdict about it
            broken[name] = f"the parent: {error!r}"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(one, names))
    after = host.state()
    left = {name: [value, after[name]] for name, value in before.items() if after[name] != value}
    left |= {name: value for name, value in after.items() if name not in before}
    shutil.rmtree(host.folder)
    found = {"broken": broken, "mistakes": mistakes, "left": left}
    return {"layers": sandbox.layers(), "count": len(names), **found}


if __name__ == "__main__":
    chosen = [name for name in ATTACKS if sys.argv[3] or not name.startswith("endless: ")]
    print(json.dumps(attack(sys.argv[1], sys.argv[2], chosen)))
