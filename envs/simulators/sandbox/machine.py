"""Real bash as root on a throw-away copy of this system, for scripts that the simulated shell does not understand.

    machine = RealMachine()                       # raises Refused where the system forbids it
    machine.run("useradd bob && id bob").output   # files and background processes stay until the machine is closed

A server process, started as this script, forks one process per machine. It leaves the namespaces for mounts, processes,
network, IPC and host name; its root folder is an overlay over this system's own, whose changes are in memory. Programs
keep the capabilities of root in docker without MKNOD and NET_RAW, and see no devices, no /sys and empty /root, /home,
/tmp and /run. When there are more than PROCESSES of them, or they hold more than MEMORY, all of them end. There is no
filter of system calls, and a script may read every file of this system outside the empty folders. So it is for scripts
that mean no harm; the other modules of this folder are for those that may.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module

if __package__:
    from envs.simulators.sandbox import jail
else:  # run as a script, without a path to the package
    sys.path.insert(0, os.path.dirname(__file__))
    jail = import_module("jail")
    del sys.path[0]

SECONDS = 20.0  # of a script, as in LifelongAgentBench
MAX_OUTPUT = 1 << 20  # bytes of a script's output
PROCESSES, MEMORY = 512, 2 << 30  # of a machine; bytes
WATCH = 0.2  # seconds between two looks at them
PAGE = resource.getpagesize()
KEPT = 0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 29, 31  # capabilities: CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID ...
PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
PR_CAPBSET_DROP = 24
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9)}
HIDDEN = "root", "home", "tmp", "run", "var/tmp"  # folders of this system that start empty
PROTECTED = "sys", "sysrq-trigger", "irq", "bus", "fs", "acpi"  # of /proc
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "HOSTNAME": "localhost",
}


class Refused(Exception):
    """The system does not allow such machines; its text says why."""


class RealMachine:
    """One machine. Closing it, or losing the last reference to it, ends all that runs in it."""

    server: socket.socket | None = None
    lock = threading.Lock()

    def __init__(self):
        with self.lock:
            if RealMachine.server is None:
                RealMachine.server = start_server()
            self.socket, other = socket.socketpair()
            socket.send_fds(RealMachine.server, [b"open"], [other.fileno()])
            other.close()
        refusal = self.answer()["refusal"]
        if refusal:
            raise Refused(refusal)

    def run(self, script: str, args: tuple = (), seconds: float = SECONDS) -> dict:
        """Run `bash -c SCRIPT bash ARGS` in / and return its output, status and timed_out."""
        request = json.dumps([script.replace("\0", ""), *(arg.replace("\0", "") for arg in args)] + [seconds]).encode()
        self.socket.sendall(struct.pack("I", len(request)) + request)
        return self.answer()

    def answer(self) -> dict:
        answer = received(self.socket)
        if answer is None:
            raise Refused("its process has ended")
        return json.loads(answer)

    def close(self) -> None:
        self.socket.close()


def start_server() -> socket.socket:
    """Start the process that makes machines; it ends when its socket is closed."""
    if sys.platform != "linux" or os.geteuid():
        raise Refused("not root on Linux")
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-I", "-S", __file__, str(theirs.fileno())]
    subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={})
    theirs.close()
    return ours


def received(source: socket.socket) -> bytes | None:
    """Return the next message, None if the other side has gone."""
    head = source.recv(4, socket.MSG_WAITALL)
    if len(head) < 4:
        return None
    size = struct.unpack("I", head)[0]
    data = source.recv(size, socket.MSG_WAITALL) if size else b""
    return data if len(data) == size else None


def send(target: socket.socket, **answer) -> None:
    data = json.dumps(answer).encode()
    target.sendall(struct.pack("I", len(data)) + data)


# -- the server's side


def serve(server: socket.socket) -> None:
    """Fork a process for each machine."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    while True:
        message, fds, *_ = socket.recv_fds(server, 16, 1)
        if not message:
            return
        if not os.fork():
            server.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            be_machine(socket.socket(fileno=fds[0]))
        os.close(fds[0])


def be_machine(client: socket.socket) -> None:
    """Enter the namespaces and carry out requests until the client closes its end."""
    try:
        jail.call("unshare", jail.NEW_MOUNTS | jail.NEW_NET | jail.NEW_PIDS | jail.NEW_IPC | jail.NEW_UTS)
        if first := os.fork():  # the first process of its namespace: when it ends, all the others do
            client.close()
            os.waitpid(first, 0)
            os._exit(0)
        jail.call("prctl", jail.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        new_root()
    except OSError as error:
        send(client, refusal=f"namespaces or an overlay file system are missing: {error}")
        os._exit(1)
    send(client, refusal="")
    while (request := next_request(client)) is not None:
        *words, seconds = json.loads(request)
        send(client, **run(words, seconds))
    os._exit(0)


def next_request(client: socket.socket) -> bytes | None:
    """Return the client's next message. What earlier scripts left running is watched until then."""
    while not select.select([client], [], [], WATCH)[0]:
        if crowded():
            os.kill(-1, signal.SIGKILL)  # all in this namespace but its first process
        reap()
    return received(client)


def reap() -> None:
    """Let the processes go that have ended; orphans come to the first process."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def crowded() -> bool:
    """Return whether the machine's processes are too many, or hold too much memory together."""
    pages = []
    for number in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{number}/statm") as file:
            pages.append(int(file.read().split()[1]))
    living = [count for count in pages if count]  # not those that wait to be reaped
    return len(living) > PROCESSES or PAGE * sum(living) > MEMORY


def new_root() -> None:
    """Make an overlay over / the root folder, without the system's devices and private folders."""
    jail.mount("none", "/", None, jail.RECURSIVE | jail.PRIVATE)
    top = "/mnt" if os.path.isdir("/mnt") else "/tmp"
    jail.mount("machine", top, "tmpfs", 0, "size=256m,mode=755")
    for name in ("up", "work", "root"):
        os.mkdir(f"{top}/{name}")
    root = f"{top}/root"
    jail.mount("machine", root, "overlay", 0, f"lowerdir=/,upperdir={top}/up,workdir={top}/work")
    jail.mount("proc", f"{root}/proc", "proc", jail.NOSUID | jail.NODEV | jail.NOEXEC)
    for name in PROTECTED:
        if os.path.exists(f"{root}/proc/{name}"):
            jail.mount(f"{root}/proc/{name}", f"{root}/proc/{name}", None, jail.BIND)
            jail.mount("none", f"{root}/proc/{name}", None, jail.BIND | 32 | 1)  # MS_REMOUNT, MS_RDONLY
    jail.mount("dev", f"{root}/dev", "tmpfs", jail.NOSUID, "size=16m,mode=755")
    for name in HIDDEN:
        if os.path.isdir(f"{root}/{name}"):
            mode = 1777 if "tmp" in name else 700 if name == "root" else 755
            jail.mount("empty", f"{root}/{name}", "tmpfs", jail.NOSUID | jail.NODEV, f"size=128m,mode={mode}")
    os.umask(0)
    for name, numbers in DEVICES.items():
        os.mknod(f"{root}/dev/{name}", 0o666 | stat.S_IFCHR, os.makedev(*numbers))
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    os.mkdir(f"{root}/dev/shm", 0o1777)
    os.umask(0o022)
    os.mkdir(f"{root}/mnt/.old") if not os.path.isdir(f"{root}/mnt/.old") else None
    jail.call("syscall", PIVOT_ROOT[os.uname().machine], root.encode(), f"{root}/mnt/.old".encode())
    os.chdir("/")
    jail.call("umount2", b"/mnt/.old", jail.DETACH)
    os.rmdir("/mnt/.old")
    socket.sethostname("localhost")


def run(words: list[str], seconds: float) -> dict:
    """Run a script and return its answer; at a limit all processes of the machine end."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            be_bash(words, writing)
        finally:
            os._exit(126)
    os.close(writing)
    os.set_blocking(reading, False)
    output, status, end, late = bytearray(), None, time.monotonic() + seconds, False
    process = os.pidfd_open(child)
    while status is None:
        ready, _, _ = select.select([reading, process], [], [], max(0.0, min(WATCH, end - time.monotonic())))
        with suppress(BlockingIOError):
            while data := os.read(reading, 65536):
                output += data[: MAX_OUTPUT - len(output)]
                if len(output) >= MAX_OUTPUT:
                    break
        if process in ready:
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        elif len(output) >= MAX_OUTPUT or time.monotonic() >= end or crowded():
            late = True
            os.kill(-1, signal.SIGKILL)  # all in this namespace but its first process
            os.waitpid(child, 0)
            status = 124
    with suppress(BlockingIOError):
        while (data := os.read(reading, 65536)) and len(output) < MAX_OUTPUT:
            output += data
    os.close(process)
    os.close(reading)
    reap()
    text = output.decode("utf-8", "replace")
    return {"output": text, "status": status if status >= 0 else 128 - status, "timed_out": late}


def be_bash(words: list[str], writing: int) -> None:
    """Give up what root in a container does not have, and become bash."""
    os.setsid()
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.closerange(3, 1024)
    for kind, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_FSIZE, 128 << 20), (resource.RLIMIT_AS, 2 << 30)):
        resource.setrlimit(kind, (most, most))
    for capability in range(64):
        if capability not in KEPT:
            with suppress(OSError):  # beyond the last one that the kernel knows
                jail.call("prctl", PR_CAPBSET_DROP, capability, 0, 0, 0)
    kept = sum(1 << capability for capability in KEPT)
    header, data = struct.pack("Ii", 0x20080522, 0), struct.pack("6I", kept, kept, 0, 0, 0, 0)
    jail.call("capset", header, ctypes.create_string_buffer(data, 24))
    # Python ignores SIGPIPE and SIGXFSZ, and what started it may ignore others.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)
    os.chdir("/")
    os.execve("/bin/bash", ["bash", "-c", words[0], "bash", *words[1:]], ENVIRONMENT | {"PWD": "/"})


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
