"""Restrict the calling process with seccomp and Landlock. Nothing can lift either again.

    seccomp(allowed_calls(writes=True, threads=True))       # only the system calls that a Python program needs
    landlock(["/usr/lib"], ["/tmp"])                        # only these folders: to read, to read and write

Sources: seccomp(2), landlock(7), the headers linux/seccomp.h, linux/landlock.h and asm/unistd.h.
"""

import ctypes
import errno
import os
import platform
import struct
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_SECCOMP, SECCOMP_MODE_FILTER, PR_SET_NO_NEW_PRIVS = 22, 2, 38
MACHINES = {"x86_64": (0xC000003E, 1), "aarch64": (0xC00000B7, 2)}  # AUDIT_ARCH_*, and the column in the tables below
MACHINE = MACHINES.get(platform.machine()) if sys.maxsize > 2**32 else None  # None: no filter is known for it
NEWER = 424  # calls from this number on fail as on an older kernel, so that the C library falls back to older calls

# System calls with their numbers on x86_64 and aarch64; "-": the machine does not have it.
ALWAYS = """
read 0 63, write 1 64, readv 19 65, writev 20 66, pread64 17 67, pwrite64 18 68, preadv 295 69, pwritev 296 70,
preadv2 327 286, pwritev2 328 287, close 3 57, dup 32 23, dup2 33 -, dup3 292 24, lseek 8 62, fstat 5 80, stat 4 -,
lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48, faccessat2 439 439, readlink 89 -,
readlinkat 267 78, getcwd 79 17, chdir 80 49, fchdir 81 50, getdents64 217 61, statfs 137 43, fstatfs 138 44,
getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11, llistxattr 195 12, flistxattr 196 13,
poll 7 -, ppoll 271 73, select 23 -, pselect6 270 72, epoll_create 213 -, epoll_create1 291 20, epoll_ctl 233 21,
epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, eventfd 284 -, eventfd2 290 19, pipe 22 -, pipe2 293 59,
mmap 9 222, mprotect 10 226, munmap 11 215, mremap 25 216, madvise 28 233, msync 26 227, brk 12 214,
rt_sigaction 13 134, rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigtimedwait 128 137,
rt_sigsuspend 130 133, sigaltstack 131 132, signalfd4 289 74, pause 34 -, alarm 37 -, getitimer 36 102,
setitimer 38 103, timer_create 222 107, timer_settime 223 110, timer_gettime 224 108, timer_getoverrun 225 109,
timer_delete 226 111, timerfd_create 283 85, timerfd_settime 286 86, timerfd_gettime 287 87, time 201 -,
times 100 153, gettimeofday 96 169, clock_gettime 228 113, clock_getres 229 114, clock_nanosleep 230 115,
nanosleep 35 101, sched_yield 24 124, futex 202 98, futex_waitv 449 449, set_robust_list 273 99,
set_tid_address 218 96, rseq 334 293, arch_prctl 158 -, getcpu 309 168, sched_getaffinity 204 123, getpid 39 172,
getppid 110 173, gettid 186 178, getuid 102 174, geteuid 107 175, getgid 104 176, getegid 108 177, getgroups 115 158,
getresuid 118 148, getresgid 120 150, getpgrp 111 -, getpgid 121 155, getsid 124 156, uname 63 160, sysinfo 99 179,
getrusage 98 165, getrlimit 97 163, setrlimit 160 164, getrandom 318 278, umask 95 166, recvfrom 45 207,
shutdown 48 210, getsockopt 55 209, getsockname 51 204, getpeername 52 205, fsync 74 82,
fdatasync 75 83, ftruncate 77 46, fallocate 285 47, sendfile 40 71,
copy_file_range 326 285, wait4 61 260, waitid 247 95, restart_syscall 219 128, exit 60 93, exit_group 231 94
"""
WRITES = """
mkdir 83 -, mkdirat 258 34, rmdir 84 -, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37,
unlink 87 -, unlinkat 263 35, symlink 88 -, symlinkat 266 36, truncate 76 45, chmod 90 -, fchmod 91 52,
fchmodat 268 53, fchmodat2 452 452, utime 132 -, utimes 235 -, futimesat 261 -, utimensat 280 88
"""
CHECKED = "open 2 -, openat 257 56, fcntl 72 25, ioctl 16 29, prctl 157 167, prlimit64 302 261, clone 56 220"
CHECKED += ", socketpair 53 199, sendto 44 206"  # by their arguments: `_conditions`

FOR_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CLONE_NEW, CLONE_THREAD = 0x7E020080, 0x10000  # every flag that makes a namespace
FCNTL = [0, 1, 2, 3, 4, 5, 6, 7, 1030, 1032]  # to copy, flags, locks, a pipe's size; none that sends a signal
IOCTL = [0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451]  # is it a terminal, its size, bytes to read, fd flags
PRCTL = [15, 16]  # a thread's name
AF_UNIX = 1

LOAD, EQUAL, AT_LEAST, ANY_OF, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # BPF instructions
ACCESS_BITS = {1: 13, 2: 14, 3: 15, 4: 15}  # Landlock's ABI -> number of its rights to files; 16 from ABI 5 on
READ = 1 << 2 | 1 << 3  # files, folders
WRITE = (
    READ | 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 13 | 1 << 14
)  # nothing to execute, no devices


def call(name: str, *args) -> int:
    """Call a function of the C library and return its value; raise OSError if that is -1."""
    value = getattr(LIBC, name)(*args)
    if value == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return value


def landlock_version() -> int:
    """Return the kernel's version of Landlock, 0 without it."""
    return max(LIBC.syscall(444, None, 0, 1), 0)


def landlock(readable: list[str], writable: list[str]) -> None:
    """Limit the process to reading some folders, and to writing some. Raise OSError if the kernel cannot.

    As far as the version allows: also no TCP (from 4), no signals and abstract sockets outwards (from 6).
    """
    version = landlock_version()
    rights = (1 << ACCESS_BITS.get(version, 16)) - 1
    attributes = struct.pack("QQQ", rights, 0b11, 0b11)[: 8 if version < 4 else 16 if version < 6 else 24]
    rules = call("syscall", 444, attributes, len(attributes), 0)
    for allowed, folders in ((READ, readable), (WRITE & rights, writable)):
        for folder in folders:
            fd = os.open(folder, os.O_PATH)
            call("syscall", 445, rules, 1, struct.pack("=Qi", allowed, fd), 0)
            os.close(fd)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    call("syscall", 446, rules, 0)
    os.close(rules)


def has_seccomp() -> bool:
    """Return whether the kernel filters system calls and their numbers on this machine are known."""
    LIBC.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, None, 0, 0)
    return MACHINE is not None and ctypes.get_errno() == errno.EFAULT  # it would have read a filter


def seccomp(program: bytes) -> None:
    """Limit the process to the system calls that `allowed_calls` returned. Raise OSError if the kernel cannot."""
    buffer = ctypes.create_string_buffer(program)
    call("prctl", PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    call("prctl", PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filter_, 0, 0)


def allowed_calls(writes: bool, threads: bool) -> bytes:
    """Return a BPF program that allows the system calls in the tables above and lets any other fail with EPERM.

    writes: also those that change files; threads: also to start threads. No call starts a process or a program.
    """
    machine, _ = MACHINE
    code = [_op(LOAD, 4), _op(EQUAL, machine, 1), _op(RETURN, 0x80000000), _op(LOAD, 0)]  # kills a foreign machine's
    for number in (_numbers(ALWAYS) | (_numbers(WRITES) if writes else {})).values():
        code += [_op(EQUAL, number, 0, 1), ALLOW]
    for name, number in _numbers(CHECKED).items():
        condition = _conditions(writes, threads)[name]
        code += [_op(EQUAL, number, 0, len(condition)), *condition]
    return b"".join([*code, _op(AT_LEAST, NEWER, 0, 1), _refuse(errno.ENOSYS), _refuse(errno.EPERM)])


def _conditions(writes: bool, threads: bool) -> dict[str, list[bytes]]:
    """Return the part of the BPF program that decides about each call in CHECKED by its arguments."""
    thread = [_op(ANY_OF, CLONE_NEW, 1, 0), _op(ANY_OF, CLONE_THREAD, 1, 0), _refuse(errno.EPERM), ALLOW]
    read_only = [_op(ANY_OF, FOR_WRITING, 0, 1), _refuse(errno.EACCES), ALLOW]
    no_address = [_low(4), _op(EQUAL, 0, 0, 2), _high(4), _op(EQUAL, 0, 1, 0), _refuse(errno.EPERM), ALLOW]
    return {
        "open": [ALLOW] if writes else [_low(1), *read_only],
        "openat": [ALLOW] if writes else [_low(2), *read_only],
        "fcntl": _one_of(1, FCNTL),
        "ioctl": _one_of(1, IOCTL),
        "prctl": _one_of(0, PRCTL),
        "prlimit64": _one_of(0, [0]),  # of this process only
        "clone": [_low(0), *thread] if threads else [_refuse(errno.EAGAIN)],
        "socketpair": _one_of(0, [AF_UNIX]),
        "sendto": no_address,
    }


def _one_of(argument: int, values: list[int]) -> list[bytes]:
    """Return instructions that allow the call if the argument is one of the values."""
    tests = [_op(EQUAL, value, len(values) - place) for place, value in enumerate(values)]
    return [_low(argument), *tests, _refuse(errno.EPERM), ALLOW]


def _numbers(table: str) -> dict[str, int]:
    """Return the number of each call of a table that this machine has."""
    rows = [entry.split() for entry in table.split(",")]
    return {row[0]: int(row[MACHINE[1]]) for row in rows if row[MACHINE[1]] != "-"}


def _op(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
    """Return one instruction; `then` and `otherwise`: how many of the next ones it skips."""
    return struct.pack("HBBI", code, then, otherwise, value)


def _low(argument: int) -> bytes:
    return _op(LOAD, 16 + 8 * argument)


def _high(argument: int) -> bytes:
    return _op(LOAD, 20 + 8 * argument)


def _refuse(error: int) -> bytes:
    return _op(RETURN, 0x50000 | error)


ALLOW = _op(RETURN, 0x7FFF0000)
