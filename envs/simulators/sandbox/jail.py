"""The sandbox's server process: isolates itself, then runs programs in a pool of workers. Started as a script.

    jail.py FD N      FD: a socket that receives, for each program, a packet of LIMITS and five open files: source,
                      stdin, and pipes for stdout, stderr and the status: "over STATUS" (minus the signal if one ended
                      it), "timeout" or "refused: REASON"

Each of the N workers takes one program at a time from the socket and runs it in a fork of itself. It imports little,
because every program starts as such a fork.
"""

import atexit
import gc
import os
import resource
import select
import signal
import site
import socket
import struct
import sys
import threading
import traceback
import types
from contextlib import suppress
from importlib import import_module

if __package__:
    from envs.simulators.sandbox import filters
else:  # run as a script, without a path to the package
    sys.path.insert(0, os.path.dirname(__file__))
    filters = import_module("filters")
    del sys.path[0]

call = filters.call
LIMITS = struct.Struct("dqqqq")  # the fields of sandbox.Limits
WORKERS = 8  # most programs that run side by side
JAIL = "/sys"  # mount point of the programs' root: any folder that exists everywhere and holds no library
LIBRARIES = ["/lib", "/lib64", "/usr/lib", "/usr/lib64", os.path.realpath(f"{sys.base_prefix}/lib")]
USERS = 50_000  # first of the unused user ids that programs get when the server runs as root
NEW_MOUNTS, NEW_UTS, NEW_IPC = 0x20000, 0x4000000, 0x8000000  # CLONE_NEW*
NEW_USER, NEW_PIDS, NEW_NET = 0x10000000, 0x20000000, 0x40000000
NOSUID, NODEV, NOEXEC, BIND, RECURSIVE, PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18  # MS_*
DETACH = 2  # MNT_DETACH
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
KEYCTL, JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1


class Box:
    """The layers around the programs of a worker."""

    isolated = False  # namespaces, with a root folder and a /tmp of their own
    nested = False  # ... inside a user namespace, because the server is not root or lacks CAP_SYS_ADMIN
    landlock = filters.landlock_version()
    seccomp = filters.has_seccomp()
    user = 0  # the user id of programs; 0: the server's
    threads = False  # whether RLIMIT_NPROC counts a program's threads alone, so that it may start some
    calls = b""  # the system calls that programs may make


def serve(server: socket.socket, workers: int) -> str:
    """Start the workers, then end with the parent or with the first worker that ends.

    Returns, only in the process of a program, the source to run.
    """
    box, obstacle, number = Box(), "", os.getpid()
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # if memory runs out, the kernel ends a program first
    new_session_keyring()
    try:
        shut_in(box)
        if first := os.fork():  # the first process of its namespace: when it ends, all the others do
            server.close()
            os.waitpid(first, 0)
            os._exit(0)
        box.isolated = True
    except OSError as error:
        obstacle = f" ({error.strerror})"
    ends = select.poll()
    ends.register(server, 0)
    for slot in range(workers):
        if not (worker := os.fork()):
            return work(server, box, USERS + (number * WORKERS + slot) % 15_000)
        ends.register(os.pidfd_open(worker), select.POLLIN)
    layers = ["namespaces" if box.isolated else "no namespaces" + obstacle]
    layers.append(f"Landlock {box.landlock}" if box.landlock else "no Landlock")
    layers.append("seccomp" if box.seccomp else "no seccomp")
    server.send(f"{int(box.seccomp and bool(box.isolated or box.landlock))} {', '.join(layers)}".encode())
    ends.poll()
    os.killpg(0, signal.SIGKILL)
    os._exit(0)  # the first process of a namespace is spared its own signals


def new_session_keyring() -> None:
    """Leave the parent's keys, where the system has keyrings."""
    with suppress(OSError, KeyError):
        call("syscall", KEYCTL[os.uname().machine], JOIN_SESSION_KEYRING, None)


def shut_in(box: Box) -> None:
    """Leave the parent's namespaces and build the programs' root folder. Raise OSError if the system forbids it."""
    own = NEW_MOUNTS | NEW_NET | NEW_PIDS | NEW_IPC | NEW_UTS
    try:
        call("unshare", own)
    except PermissionError:
        box.nested, box.threads = True, as_unused_user(new_user) > 0  # no limit counts root's threads
        call("unshare", own)
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


def as_unused_user(act):
    """Return act(), called where possible as an unused user in root's place; if it fails, become root again."""
    if os.geteuid() or not readable_by_all(folders=True):
        return act()
    try:
        with suppress(OSError):  # root without CAP_SETUID stays root
            os.setgroups([])
            os.setegid(USERS)
            os.seteuid(USERS)
            call("prctl", PR_SET_DUMPABLE, 1, 0, 0, 0)  # or /proc/self would belong to root
        return act()
    except OSError:
        os.seteuid(0)
        os.setegid(0)
        raise


def new_user() -> int:
    """Become root of a new user namespace, which lets an ordinary user create the others. Return the id outside it."""
    uid, gid = os.geteuid(), os.getegid()
    call("unshare", NEW_USER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    return uid


def readable_by_all(folders: bool) -> bool:
    """Return whether an unused user could read Python's library and, with `folders`, enter the folders above it."""
    library = os.stat(LIBRARIES[-1]).st_mode & 0o5 == 0o5
    above = [LIBRARIES[-1][:end] for end, sign in enumerate(LIBRARIES[-1]) if sign == "/" and end] if folders else []
    return library and all(os.stat(folder).st_mode & 0o1 for folder in above)


def work(server: socket.socket, box: Box, user: int) -> str:
    """Run one program after another until the parent closes the socket. Returns, only in programs, the source to run.

    user: an unused user id for this worker's programs, if the server is root.
    """
    refusal = None
    try:
        enter(box, user)
    except OSError as error:
        refusal = error
    while True:
        packed, fds, *_ = socket.recv_fds(server, 1000, 5)
        if not packed:
            os._exit(0)
        limits, status = LIMITS.unpack(packed), fds.pop()
        try:
            if refusal:
                raise refusal
            if box.isolated:
                mount("tmp", "/tmp", "tmpfs", NOSUID | NODEV | NOEXEC, "size=16m,nr_inodes=256,mode=1777")
            child = os.fork()
            if not child:
                server.close()
                return become_program(limits, fds, status, box)
            for fd in fds:
                os.close(fd)
            ending = end_of(child, limits)
        except OSError as error:
            ending = f"refused: {error}"
        with suppress(BrokenPipeError):
            os.write(status, ending.encode())
        os.close(status)
        if box.isolated:
            with suppress(OSError):  # where it could not be mounted
                call("umount2", b"/tmp", DETACH)


def enter(box: Box, user: int) -> None:
    """Give the worker the namespaces that its programs share, and find out which of the other layers it can add."""
    if box.nested:
        new_user()  # RLIMIT_NPROC counts in each user namespace
    elif os.geteuid() == 0 and readable_by_all(folders=not box.isolated):
        with suppress(PermissionError):  # root without CAP_SETUID
            os.seteuid(user)
            os.seteuid(0)
            box.user, box.threads = user, True
    if box.isolated:
        call("unshare", NEW_MOUNTS)
        os.chroot(JAIL)
    if box.seccomp:
        box.calls = filters.allowed_calls(writes=box.isolated, threads=box.threads)


def end_of(child: int, limits: tuple) -> str:
    """Wait for a program, stop it at its time limit, and return its status for the parent."""
    wall, cpu, *_ = limits
    process = os.pidfd_open(child)
    ends = select.poll()
    ends.register(process, select.POLLIN)
    late = not ends.poll(1000 * wall)
    if late:
        os.kill(child, signal.SIGKILL)
    os.close(process)
    _, ending, used = os.wait4(child, 0)
    spent = os.WIFSIGNALED(ending) and used.ru_utime + used.ru_stime > cpu - 0.5
    return "timeout" if late or spent else f"over {os.waitstatus_to_exitcode(ending)}"


def become_program(limits: tuple, fds: list[int], status: int, box: Box) -> str:
    """Drop rights and set limits in the program's process, and return its source."""
    _, cpu, memory, output, threads = limits
    program, *streams = fds
    try:
        source = os.read(program, os.fstat(program).st_size).decode()
        if box.isolated:
            os.chdir("/tmp")
        if box.user:
            os.setgroups([])
            os.setresgid(box.user, box.user, box.user)
            os.setresuid(box.user, box.user, box.user)
        call("capset", struct.pack("Ii", 0x20080522, 0), bytes(24))  # no capability of any kind
        call("prctl", filters.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for fd, stream in enumerate(streams):
            os.dup2(stream, fd)
        # Here, because it may need close_range(), which the filter refuses, and the C library then ends the process.
        os.closerange(3, status)
        os.closerange(status + 1, 1024)
        for kind, most in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_MSGQUEUE, 0),
            (resource.RLIMIT_MEMLOCK, 0),
            (resource.RLIMIT_SIGPENDING, 64),
            (resource.RLIMIT_NOFILE, 64),
            (resource.RLIMIT_FSIZE, output),
            (resource.RLIMIT_NPROC, threads + box.nested if box.threads and box.seccomp else 0),
            (resource.RLIMIT_CPU, cpu),
            (resource.RLIMIT_AS, memory),
        ):
            resource.setrlimit(kind, (most, most))
        if box.landlock:
            filters.landlock(["/"] if box.isolated else LIBRARIES, ["/tmp"] if box.isolated else [])
        if box.seccomp:
            filters.seccomp(box.calls)
    except (OSError, ValueError) as error:
        os.write(status, f"refused: {error}".encode())
        os._exit(1)
    os.close(status)
    return source


def execute(source: str) -> None:
    """Run a program and exit as `python main.py` would, without the interpreter's slow shutdown."""
    sys.argv = ["main.py"]
    sys.modules["__main__"] = main = types.ModuleType("__main__")
    status = 0
    try:
        exec(compile(source, "main.py", "exec"), main.__dict__)
    except SystemExit as ending:
        if isinstance(ending.code, int):
            status = ending.code & 0xFF
        elif ending.code is not None:
            print(ending.code, file=sys.stderr)
            status = 1
    except BaseException as error:
        traceback.print_exception(type(error), error, error.__traceback__.tb_next)  # without this frame
        status = 1
    threading._shutdown()  # wait for the program's threads
    atexit._run_exitfuncs()
    if threading.active_count() == 1:
        main.__dict__.clear()  # flushes files that the program left open
    for stream in (sys.stdout, sys.stderr, sys.__stdout__):
        try:
            if not getattr(stream, "closed", True):
                stream.flush()
        except OSError:
            status = status or 120  # as Python's own
    os._exit(status)


def mount(source: str, target: str, kind: str | None, flags: int, options: str = "") -> None:
    call("mount", source.encode(), target.encode(), kind and kind.encode(), flags, options.encode())


def main(fd: int, workers: int) -> None:
    """Serve jobs from a socket. Modules that programs often import are loaded once, before the forks."""
    import bisect, collections, functools, heapq, itertools, math, re, string, typing  # noqa: E401, F401, I001

    site.setquit()  # exit() and quit()
    gc.collect()  # without it a program took 4.6 ms instead of 3.2
    gc.freeze()
    execute(serve(socket.socket(fileno=fd), workers))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
