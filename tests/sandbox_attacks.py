# ruff: noqa: E501
"""Programs that attack the sandbox, and a process that runs them all with fewer rights: python tests/sandbox_attacks.py

    sandbox_attacks.py MODE PERMISSION endless|    MODE: one of MODES; isolated or unsafe; prints a line of JSON

It imports the standard library and the sandbox alone, so that any user's interpreter can run it.
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

FILES = {
    "read a file of the host": "reads(SECRET_FILE)",
    "read it by ..": "reads('../' * 20 + SECRET_FILE)",
    "read it by a symbolic link": "os.symlink(SECRET_FILE, '/tmp/l')\nreads('/tmp/l')",
    "read it by a hard link": "os.link(SECRET_FILE, '/tmp/h')\nreads('/tmp/h')",
    "read it by /proc/self/root": "reads('/proc/self/root' + SECRET_FILE)",
    "read it by the parent's root": "reads(f'/proc/{PARENT}/root' + SECRET_FILE)",
    "read it by another process's folder": "for f in glob.glob('/proc/*/cwd'): reads(f + SECRET_FILE)",
    "read it by an old root folder": "fd = os.open('/', os.O_RDONLY)\nos.chroot('/tmp')\nos.fchdir(fd)\nfor _ in range(20): os.chdir('..')\nos.chroot('.')\nreads(SECRET_FILE)",
    "read it by a handle": "call((304, 265), -100, ctypes.create_string_buffer(128), 0)",
    "read it by openat2": "call((437, 437), -100, SECRET_FILE.encode(), bytes(24), 24)",
    "read it by open_tree": "call((428, 428), -100, SECRET_FILE.encode(), 1)",
    "read /etc/passwd": "reads('/etc/passwd')",
    "read /etc/shadow": "reads('/etc/shadow')",
    "read the environment of all": "for f in glob.glob('/proc/[0-9]*/environ'): reads(f)",
    "read the environment of the parent": "reads(f'/proc/{PARENT}/environ')",
    "read the parent's memory file": "reads(f'/proc/{PARENT}/mem')",
    "read the parent's open files": "for n in range(50): reads(f'/proc/{PARENT}/fd/{n}')",
    "list /proc": "if any(n.isdigit() for n in os.listdir('/proc')): broken()",
    "list a folder of the host": "broken(os.listdir(HOST))",
    "list the folder of the repository": f"broken(os.listdir({str(ROOT)!r}))",
    "read the source of the tests": f"reads({__file__!r})",
    "read a device": "for d in ('mem', 'kmsg', 'vda', 'sda', 'tty', 'fuse', 'kvm', 'null'): reads('/dev/' + d)",
    "inherited descriptors": "for fd in range(3, 4096):\n    try: os.fstat(fd)\n    except OSError: continue\n    broken(fd)",
    "write a file of the host": "open(VICTIM, 'w')\nbroken()",
    "append to it": "open(VICTIM, 'a')\nbroken()",
    "truncate it": "os.truncate(VICTIM, 0)\nbroken()",
    "truncate it while opening it to read": "os.open(VICTIM, os.O_RDONLY | os.O_TRUNC)\nbroken()",
    "make a file beside it": "open(HOST + '/new', 'w')\nbroken()",
    "make a folder beside it": "os.mkdir(HOST + '/new')\nbroken()",
    "make a link beside it": "os.symlink('/', HOST + '/new')\nbroken()",
    "make a pipe beside it": "os.mkfifo(HOST + '/new')\nbroken()",
    "make a device": "os.mknod('/tmp/sda', 0o60600, 0x800)\nbroken()",
    "make an anonymous file beside it": "os.open(HOST, os.O_TMPFILE | os.O_RDWR)\nbroken()",
    "rename it": "os.rename(VICTIM, HOST + '/new')\nbroken()",
    "remove it": "os.unlink(VICTIM)\nbroken()",
    "chmod it": "os.chmod(VICTIM, 0o700)\nbroken()",
    "chmod its folder": "os.chmod(HOST, 0o700)\nbroken()",
    "chown it": "os.chown(VICTIM, os.getuid(), os.getgid())\nbroken()",
    "utime it": "os.utime(VICTIM)\nbroken()",
    "set an attribute": "os.setxattr(VICTIM, 'user.x', b'1')\nbroken()",
    "write to the library": "open(LIBRARY, 'r+')\nbroken()",
    "chmod the library": "os.chmod(LIBRARY, 0o777)\nbroken()",
    "utime the library": "os.utime(LIBRARY)\nbroken()",
    "write beside the library": "open(os.path.dirname(LIBRARY) + '/evil.py', 'w')\nbroken()",
    "write to the root folder": "open('/x', 'w')\nbroken()",
    "write to /dev/shm": "open('/dev/shm/x', 'w')\nbroken()",
    "write to the kernel's settings": "open('/proc/sys/kernel/core_pattern', 'w')\nbroken()",
    "protect itself from the end of memory": "open('/proc/self/oom_score_adj', 'w').write('-1000')\nbroken()",
    "write to a control group": "for f in ('', '/pids', '/memory'): open(f'/sys/fs/cgroup{f}/cgroup.procs', 'w')\nbroken()",
}

NETWORK = {
    "TCP": "socket.create_connection(('127.0.0.1', PORT))\nbroken()",
    "UDP": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'out', ('127.0.0.1', UDP))\nbroken()",
    "IPv6": "socket.socket(socket.AF_INET6)\nbroken()",
    "DNS": "socket.getaddrinfo('example.org', 80)\nbroken()",
    "MPTCP": "socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)\nbroken()",
    "a server": "socket.create_server(('127.0.0.1', 0))\nbroken()",
    "a stream socket by its path": "socket.socket(socket.AF_UNIX).connect(SOCKET)\nbroken()",
    "a datagram socket by its path": "socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'out', DATAGRAM)\nbroken()",
    "an abstract socket": "socket.socket(socket.AF_UNIX).connect(ABSTRACT)\nbroken()",
    "a pair's end to a path": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'out', DATAGRAM)\nbroken()",
    "a pair's end connected to a path": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].connect(DATAGRAM)\nbroken()",
    "a message to a path": "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendmsg([b'out'], [], 0, DATAGRAM)\nbroken()",
    "a descriptor in a message": "a, b = socket.socketpair()\nsocket.send_fds(a, [b'x'], [0])\nbroken()",
    "raw packets": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\nbroken()",
    "netlink": "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)\nbroken()",
    "vsock": "socket.socket(socket.AF_VSOCK).connect((2, 22))\nbroken()",
    "the kernel's ciphers": "socket.socket(socket.AF_ALG)\nbroken()",
    "a pair of another family": "call((53, 199), 30, 1, 0, bytes(8))",
}

PROCESSES = {
    "kill the parent": "os.kill(PARENT, 9)\nbroken()",
    "stop the parent": "os.kill(PARENT, signal.SIGSTOP)\nbroken()",
    "kill all": "os.kill(-1, 9)\nbroken()",
    "kill its group": "os.killpg(0, 9)\nbroken()",
    "kill the worker": "os.kill(os.getppid(), 9)\nbroken()",
    "kill every number": "for n in [*range(1, 300), *range(PARENT - 50, PARENT + 50)]:\n    if n != os.getpid():\n        try: os.kill(n, 9)\n        except OSError: continue\n        broken(n)",
    "signal with a value": "call((129, 138), PARENT, 9, bytes(128))",
    "signal a thread": "call((200, 130), PARENT, 9)",
    "signal by a descriptor": "fd = os.pidfd_open(PARENT)\nbroken()",
    "signal by an owner of a pipe": "r, w = os.pipe()\nfcntl.fcntl(r, 10, 9)\nbroken()",
    "an owner of a pipe": "r, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, PARENT)\nbroken()",
    "an owner by ioctl": "r, w = os.pipe()\nfcntl.ioctl(r, 0x8901, struct.pack('i', PARENT))\nbroken()",
    "take a descriptor": "call((438, 438), 0, 0, 0)",
    "read memory": "call((310, 270), PARENT, bytes(16), 1, bytes(16), 1, 0)",
    "write memory": "call((311, 271), PARENT, bytes(16), 1, bytes(16), 1, 0)",
    "trace the parent": "call((101, 117), 16, PARENT, 0, 0)",
    "trace the worker": "call((101, 117), 16, os.getppid(), 0, 0)",
    "limit the parent": "resource.prlimit(PARENT, resource.RLIMIT_CPU, (1, 1))\nbroken()",
    "limit the worker": "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))\nbroken()",
    "slow the parent": "os.setpriority(os.PRIO_PROCESS, PARENT, 19)\nbroken()",
    "slow the user": "os.setpriority(os.PRIO_USER, 0, 19)\nbroken()",
    "move the parent": "os.sched_setaffinity(PARENT, [0])\nbroken()",
    "schedule the worker": "os.sched_setscheduler(os.getppid(), os.SCHED_IDLE, os.sched_param(0))\nbroken()",
    "fork": "os.fork()\nbroken()",
    "fork without Python": "call((57, 220), 17, 0, 0, 0, 0)",
    "vfork": "call((58, 220), 0x4100, 0, 0, 0, 0)",
    "clone3": "call((435, 435), bytes(88), 88)",
    "clone with a user namespace": "call((56, 220), 0x10000011, 0, 0, 0, 0)",
    "clone a thread with a namespace": "call((56, 220), 0x10010f00, 0, 0, 0, 0)",
    "spawn": "os.posix_spawn('/bin/sh', ['sh', '-c', 'exit'], {})\nbroken()",
    "a shell": "import subprocess\nsubprocess.run('true', shell=True)\nbroken()",
    "a pool of processes": "import multiprocessing\nmultiprocessing.Process(target=print).start()\nbroken()",
    "become a shell": "os.execv('/bin/sh', ['sh', '-c', 'echo BROKEN'])",
    "become Python": "os.execv(sys.executable, ['python', '-c', 'print(\"BROKEN\")'])",
    "become the loader": "for f in glob.glob('/lib*/ld-linux*'): os.execv(f, [f, '--version'])",
    "run a file of its own": "open('/tmp/x', 'w').write('#!/bin/sh\\necho BROKEN')\nos.chmod('/tmp/x', 0o755)\nos.execv('/tmp/x', ['x'])",
    "run memory as a file": "os.memfd_create('x')\nbroken()",
    "map a file of its own to execute": "open('/tmp/x', 'wb').write(bytes(4096))\nf = open('/tmp/x', 'rb')\nmmap.mmap(f.fileno(), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC)\nbroken()",
    "a session of its own": "os.setsid()\nbroken()",
    "a process group": "os.setpgid(0, 0)\nbroken()",
    "keep living without the worker": "if libc.prctl(1, 0, 0, 0, 0) != -1: broken()",
    "be traced": "if libc.prctl(0x59616D61, -1, 0, 0, 0) != -1: broken()",
    "type on the terminal": "fcntl.ioctl(0, 0x5412, b'x')\nbroken()",
    "a 32-bit number of the machine": "if column == 0: call((0x40000000 | 57, 0))",
}

PRIVILEGES = {
    "become root": "os.setuid(0) if os.getuid() else os.setuid(1)\nbroken()",
    "another group": "os.setgroups([0])\nbroken()",
    "gain capabilities": "if libc.capset(struct.pack('Ii', 0x20080522, 0), struct.pack('6I', *[2**32 - 1] * 6)) != -1: broken()",
    "raise a limit": "resource.setrlimit(resource.RLIMIT_AS, (2**40, 2**40))\nbroken()",
    "raise the CPU limit": "resource.setrlimit(resource.RLIMIT_CPU, (99, 99))\nbroken()",
    "go first": "os.nice(-5)\nbroken()",
    "real-time scheduling": "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(9))\nbroken()",
    "lock memory": "if libc.mlockall(1) != -1: broken()",
    "remove the filter": "if libc.prctl(22, 0, 0, 0, 0) != -1: broken()",
    "filter with a listener": "call((317, 277), 1, 8, struct.pack('HxxxxxxP', 1, ctypes.addressof(ctypes.create_string_buffer(b'\\6\\0\\0\\0\\0\\0\\xff\\x7f'))))",
} | {
    name: f"call({numbers}, {arguments})"
    for name, numbers, arguments in (
        ("unshare a user namespace", (272, 97), "0x10000000"),
        ("unshare mounts", (272, 97), "0x20000"),
        ("unshare the network", (272, 97), "0x40000000"),
        ("setns", (308, 268), "0, 0"),
        ("mount", (165, 40), "b'x', b'/tmp', b'tmpfs', 0, None"),
        ("bind mount", (165, 40), "b'/', b'/tmp', None, 4096, None"),
        ("unmount /tmp", (166, 39), "b'/tmp', 2"),
        ("pivot_root", (155, 41), "b'/tmp', b'/tmp'"),
        ("chroot", (161, 51), "b'/tmp'"),
        ("fsopen", (430, 430), "b'tmpfs', 0"),
        ("move_mount", (429, 429), "0, b'', 0, b'', 4"),
        ("mount_setattr", (442, 442), "-100, b'/', 0x8000, bytes(32), 32"),
        ("keyctl: read the session keyring", (250, 219), "0, -3, 1"),
        ("keyctl: describe the user's keyring", (250, 219), "6, -4, bytes(100), 100"),
        ("keyctl: a new session", (250, 219), "1, None"),
        ("add_key", (248, 217), "b'user', b'x', b'y', 1, -3"),
        ("request_key", (249, 218), "b'user', b'x', None, -3"),
        ("io_uring_setup", (425, 425), "8, bytes(120)"),
        ("io_uring_enter", (426, 426), "0, 0, 0, 0, None, 0"),
        ("io_uring_register", (427, 427), "0, 0, None, 0"),
        ("userfaultfd", (323, 282), "1"),
        ("bpf", (321, 280), "0, bytes(64), 64"),
        ("perf_event_open", (298, 241), "bytes(112), 0, -1, -1, 0"),
        ("fanotify_init", (300, 262), "0, 0"),
        ("swapon", (167, 224), "b'/tmp/x', 0"),
        ("sethostname", (170, 161), "b'x', 1"),
        ("reboot", (169, 142), "0, 0, 0, None"),
        ("init_module", (175, 105), "bytes(8), 8, b''"),
        ("finit_module", (313, 273), "0, b'', 0"),
        ("kexec_load", (246, 104), "0, 0, None, 0"),
        ("acct", (163, 89), "None"),
        ("settimeofday", (164, 170), "bytes(16), None"),
        ("clock_settime", (227, 112), "0, bytes(16)"),
        ("adjtimex", (159, 171), "bytes(256)"),
        ("syslog", (103, 116), "3, bytes(100), 100"),
        ("personality", (135, 92), "0x40000"),
        ("memfd_secret", (447, 447), "0"),
        ("shmget", (29, 194), "77, 100, 0o1666"),
        ("msgget", (68, 186), "77, 0o1666"),
        ("semget", (64, 190), "77, 1, 0o1666"),
        ("mq_open", (240, 180), "b'/x', 0o102, 0o666, None"),
        ("vmsplice", (278, 75), "1, None, 0, 0"),
        ("splice", (275, 76), "0, None, 1, None, 1, 0"),
        ("kcmp", (312, 272), "1, 1, 0, 0, 0"),
        ("move_pages", (279, 239), "1, 0, None, None, None, 0"),
        ("process_madvise", (440, 440), "0, None, 0, 8, 0"),
        ("modify the kernel's tables", (154, 999), "0, bytes(16), 16"),
        ("iopl", (172, 999), "3"),
        ("ioperm", (173, 999), "0, 100, 1"),
    )
}

RESOURCES = {
    "memory": "x = []\nwhile True: x.append(bytearray(10**7))",
    "one large piece of memory": "bytearray(2**40)\nbroken()",
    "memory that is mapped": "m = [mmap.mmap(-1, 2**26) for _ in range(9)]\nbroken()",
    "memory that is shared": "m = [mmap.mmap(-1, 2**26, mmap.MAP_SHARED) for _ in range(9)]\nbroken()",
    "memory in threads": "def f():\n    x = bytearray(10**8)\n    time.sleep(9)\nfor _ in range(4): threading.Thread(target=f, daemon=True).start()\ntime.sleep(.2)\nos._exit(0)",
    "memory in processes": "for _ in range(6):\n    if not os.fork():\n        x = bytearray(b'1') * 10**8\n        time.sleep(9)\nbroken()",
    "memory in pipes": "n = 0\nwhile True:\n    r, w = os.pipe()\n    fcntl.fcntl(w, 1031, 2**20)\n    broken() if n > 99 else None\n    n += 1",
    "memory in sockets": "while True:\n    a, b = socket.socketpair()\n    a.setblocking(False)\n    try:\n        while True: a.send(bytes(10**5))\n    except BlockingIOError: globals().setdefault('l', []).append((a, b))\n    broken() if len(l) > 99 else None",
    "memory in large sockets": "l = []\nfor _ in range(30):\n    l += socket.socketpair()\n    for s in l[-2:]: s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**30)\nbroken()",
    "a folder that is full": "for i in range(2000): open(f'/tmp/{i}', 'wb').write(bytes(10**4))\nbroken()",
    "many files": "for i in range(10**6): open(f'/tmp/{i}', 'w')\nbroken()",
    "deep folders": "os.chdir('/tmp')\nfor i in range(10**5):\n    os.mkdir('d')\n    os.chdir('d')\nbroken()",
    "a large file": "open('/tmp/x', 'wb').write(bytes(10**7))\nbroken() if os.path.getsize('/tmp/x') > 20_000 else None",
    "a sparse file": "open('/tmp/x', 'wb').truncate(10**12)\nbroken()",
    "open files": "l = [os.dup(1) for _ in range(999)]\nbroken()",
    "threads": "l = [threading.Thread(target=time.sleep, args=(9,), daemon=True) for _ in range(99)]\n[t.start() for t in l]\nbroken()",
    "threads without a stack": "import _thread\n_thread.stack_size(32768)\nfor _ in range(99): _thread.start_new_thread(time.sleep, (9,))\nbroken()",
    "a fork bomb": "while True: os.fork()",
    "a daemon": "if not os.fork():\n    os.setsid()\n    if not os.fork(): time.sleep(60)\nbroken()",
    "timers": "for _ in range(10**4):\n    if libc.syscall((222, 107)[column], 1, None, bytes(8)) == -1: raise OSError\nbroken()",
    "a core file": "os.abort()",
    "to stop itself": "os.kill(os.getpid(), signal.SIGSTOP)\nbroken()",
    "to stop itself by a thread": "signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)\nbroken()",
    "a flood of output": "while True: sys.stdout.write('x' * 1000)",
    "a flood of errors": "while True: os.write(2, bytes(10**5))",
    "a deep expression": "eval('(' * 10**5)",
}

ENDLESS = {  # each takes its second of CPU time
    "an endless loop": "while True: pass",
    "an endless loop that ignores signals": "for s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except (OSError, ValueError): pass\nwhile True: pass",
    "endless sleep that ignores signals": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(60)\nbroken()",
    "a flood past a closed pipe": "signal.signal(13, signal.SIG_IGN)\nwhile True:\n    try: os.write(1, bytes(10**5))\n    except OSError: pass",
    "a number of a million digits": "sys.set_int_max_str_digits(0)\nprint(len(str(7 ** 1183294)) > 5)",
    "recursion": "def f(): f()\nsys.setrecursionlimit(10**9)\nf()",
    "recursion in C": "x = []\nfor _ in range(10**6): x = [x]\nrepr(x)",
    "a regular expression": "import re\nre.match('(a*)*b', 'a' * 40)",
    "a growing power": "9**9**9**9",
    "a compressed bomb": "import zlib\nzlib.decompress(zlib.compress(bytes(2 * 10**8)))",
}

DESCRIPTORS = {  # what it does to its own streams must neither stop nor mislead the parent
    "direct access": "os.write(1, b'x'), os.write(2, b'x')\nfor fd in (1, 2, 0): fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)",
    "no blocking": "for fd in range(3): os.set_blocking(fd, False)",
    "signals for input": "for fd in range(3): fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC)",
    "appending": "for fd in range(3): fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)",
    "a large pipe": "for fd in (1, 2): fcntl.fcntl(fd, 1031, 2**20)",
    "closed streams": "for fd in range(3): os.close(fd)",
    "exchanged streams": "os.dup2(0, 1)\nos.dup2(0, 2)",
    "truncated streams": "os.ftruncate(1, 0)",
    "a distant position": "os.lseek(0, 2**60, 0)\nos.lseek(1, 0, 0)",
    "writing to stdin": "os.write(0, b'x')\nbroken()",
    "a longer stdin": "os.ftruncate(0, 2**40)\nbroken()",
    "stdin in memory": "mmap.mmap(0, 4096)\nbroken()",
    "seals on stdin": "fcntl.fcntl(0, 1033, 0)\nbroken()",
    "locks": "for fd in range(3): fcntl.lockf(fd, fcntl.LOCK_EX)",
    "a lease": "fcntl.fcntl(0, 1024, 0)\nbroken()",
    "the parent's end of the pipe": "os.write(os.open('/proc/self/fd/1', os.O_RDWR), b'x')\nbroken()",
    "no text": "os.write(1, bytes(range(256)) * 20)",
    "control codes": "print('\\33[2J\\33]0;title\\7\\0' * 9)",
    "half a character": "os.write(1, '漢'.encode()[:2])",
    "a status of its own": "for fd in range(3, 99):\n    try: os.write(fd, b'over 0')\n    except OSError: pass",
    "words of the protocol": "print('over 0', 'timeout', 'refused: x', 'ready')",
    "a blocked writer": "threading.Thread(target=lambda: os.write(2, bytes(10**6)), daemon=True).start()\nos._exit(0)",
}
ATTACKS = {
    f"{group}: {name}": source
    for group, attacks in (
        ("files", FILES), ("network", NETWORK), ("processes", PROCESSES), ("privileges", PRIVILEGES),
        ("resources", RESOURCES), ("descriptors", DESCRIPTORS), ("endless", ENDLESS),
    )
    for name, source in attacks.items()
}  # fmt: skip


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
