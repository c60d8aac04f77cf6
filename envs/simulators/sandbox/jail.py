"""The sandbox's server process: isolates itself, then forks a process for each program. Started as a script.

    jail.py FD        FD: a socket that receives, for each program, a packet of LIMITS and five open files:
                      source, stdin, stdout, stderr, and a pipe for the status ("over", "timeout" or "refused: ...")

It imports little, because every program starts as a fork of it.
"""

import atexit
import ctypes
import gc
import os
import resource
import signal
import site
import socket
import struct
import sys
import threading
import traceback
import types
from contextlib import suppress

LIMITS = struct.Struct("dqqqq")  # the fields of sandbox.Limits
JAIL = "/sys"  # mount point of the programs' root: any folder that exists everywhere and holds no library
LIBRARIES = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", os.path.realpath(f"{sys.base_prefix}/lib")]
USERS = 50_000  # first of the unused user ids that programs get when the server runs as root
NEW_MOUNTS, NEW_IPC, NEW_USER, NEW_PIDS, NEW_NET = 0x20000, 0x8000000, 0x10000000, 0x20000000, 0x40000000  # CLONE_NEW*
NOSUID, NODEV, BIND, RECURSIVE, PRIVATE = 2, 4, 4096, 16384, 1 << 18  # MS_*
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
LIBC = ctypes.CDLL(None, use_errno=True)
ROOT = os.geteuid() == 0


def serve(server: socket.socket) -> str:
    """Fork a process for each job until the parent closes the socket. Returns, only in those forks, a source to run."""
    weakness = ""
    try:
        shut_in()
        if first := os.fork():  # the first process of its namespace: when it ends, all the others do
            server.close()
            os.waitpid(first, 0)
            os._exit(0)
    except OSError as error:
        weakness = str(error)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nothing waits for the keepers
    server.send(f"ready {weakness}".encode())
    while True:
        packed, fds, *_ = socket.recv_fds(server, 1000, 5)
        if not packed:
            os.killpg(0, signal.SIGKILL)  # the keepers, whose programs end with them
            os._exit(0)  # the first process of a namespace is spared its own signals
        if not os.fork():
            server.close()
            return keep(LIMITS.unpack(packed), fds, confined=not weakness)
        for fd in fds:
            os.close(fd)


def shut_in() -> None:
    """Leave the network and PID namespaces of the parent and build the programs' root folder."""
    if os.geteuid():
        new_user()
    call("unshare", NEW_MOUNTS | NEW_NET | NEW_PIDS)
    mount("none", "/", None, RECURSIVE | PRIVATE)
    mount("jail", JAIL, "tmpfs", NOSUID | NODEV, "size=1m,mode=755")
    os.mkdir(f"{JAIL}/tmp")
    for library in LIBRARIES:
        inside = JAIL + library
        if os.path.islink(library):
            os.symlink(os.readlink(library), inside)
        elif os.path.isdir(library) and not os.path.isdir(inside):
            os.makedirs(inside)
            mount(library, inside, None, BIND | RECURSIVE)
    read_only = struct.pack("4Q", 1 | NOSUID | NODEV, 0, 0, 0)
    call("syscall", 442, -100, JAIL.encode(), 0x8000, read_only, len(read_only))  # mount_setattr of all that is below


def new_user() -> None:
    """Become root of a new user namespace, which lets an ordinary user create the other namespaces."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def no_shared_memory() -> None:
    """Forbid System V shared memory, queues and semaphores, which no process limit counts."""
    for name, most in (("shmall", "0"), ("msgmni", "0"), ("sem", "0 0 0 0")):
        with suppress(PermissionError), open(f"/proc/sys/kernel/{name}", "w") as file:  # a user before Linux 6.9
            file.write(most)


def keep(limits: tuple, fds: list[int], confined: bool) -> str:
    """Start one program, stop it at its time limit, send the status to the parent. Returns in the program's process."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    wall, cpu, *_ = limits
    status = fds.pop()
    try:
        # RLIMIT_NPROC counts per user: as root each program gets a user id of its own, else a user namespace.
        user = USERS + os.getpid() % 15_000 if ROOT else 0
        if confined:
            if not user:
                new_user()
            call("unshare", NEW_MOUNTS | NEW_IPC | NEW_PIDS)
            mount("private", f"{JAIL}/tmp", "tmpfs", NOSUID | NODEV, "size=16m,nr_inodes=256,mode=1777")
            no_shared_memory()
        child = os.fork()
    except OSError as error:
        os.write(status, f"refused: {error}".encode())
        os._exit(1)
    if not child:
        return become_program(limits, fds, status, user, confined)
    late = []
    signal.signal(signal.SIGALRM, lambda *_: (late.append(True), os.kill(child, signal.SIGKILL)))
    signal.setitimer(signal.ITIMER_REAL, wall)
    _, ending, used = os.wait4(child, 0)  # after the last process of its namespace
    spent = os.WIFSIGNALED(ending) and used.ru_utime + used.ru_stime > cpu - 0.5
    os.write(status, b"timeout" if late or spent else b"over")
    os._exit(0)


def become_program(limits: tuple, fds: list[int], status: int, user: int, confined: bool) -> str:
    """Drop rights and set limits in the program's process, and return its source."""
    _, cpu, memory, output, processes = limits
    program, *streams = fds
    try:
        with open(program, encoding="utf-8", newline="") as file:
            source = file.read()
        if confined:
            os.chroot(JAIL)
            os.chdir("/tmp")
        if user:
            os.setgroups([])
            os.setresgid(user, user, user)
            os.setresuid(user, user, user)
        call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))  # no capability of any kind
        call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for kind, most in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_FSIZE, output),
            (resource.RLIMIT_NPROC, processes if confined else 0),
            (resource.RLIMIT_CPU, cpu),
            (resource.RLIMIT_AS, memory),
        ):
            resource.setrlimit(kind, (most, most))
        for fd, stream in enumerate(streams):
            os.dup2(stream, fd)
    except (OSError, ValueError) as error:
        os.write(status, f"refused: {error}".encode())
        os._exit(1)
    os.closerange(3, 1024)
    return source


def execute(source: str) -> None:
    """Run a program as `python main.py` would, without the interpreter's shutdown, which takes longer than the rest."""
    sys.argv = ["main.py"]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    try:
        exec(compile(source, "main.py", "exec"), main.__dict__)
    except SystemExit as ending:
        if ending.code is not None and not isinstance(ending.code, int):
            print(ending.code, file=sys.stderr)
    except BaseException as error:
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)  # without this frame
    threading._shutdown()  # wait for the program's threads
    atexit._run_exitfuncs()
    if threading.active_count() == 1:
        main.__dict__.clear()  # flushes files that the program left open
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        if not getattr(stream, "closed", True):
            stream.flush()
    os._exit(0)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind and kind.encode(), flags, options.encode())


def call(name: str, *args) -> None:
    """Call a function of the C library; raises OSError if it returns -1."""
    if getattr(LIBC, name)(*args) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def main(fd: int) -> None:
    """Serve jobs from a socket. Modules that programs often import are loaded once, before the forks."""
    import bisect, collections, functools, heapq, itertools, math, re, string, typing  # noqa: E401, F401, I001

    site.setquit()  # exit() and quit()
    gc.freeze()
    execute(serve(socket.socket(fileno=fd)))


if __name__ == "__main__":
    main(int(sys.argv[1]))
