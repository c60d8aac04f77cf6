"""Attacks on the sandbox, with the rights that root, a user and a container have: contained, or refused beforehand."""

import json
import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import sandbox_attacks
from sandbox_attacks import MODES

from envs.simulators import sandbox
from envs.simulators.sandbox import filters

pytestmark = pytest.mark.all_only

try:
    sandbox.start(sandbox.ISOLATED)
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)
WITH_ENDLESS = "root", "root as in docker"  # in the others they take seconds and show nothing new


@cache
def interpreter(mode: str) -> str:
    """Return an interpreter that the mode's user may run; skip the test without one, or without root's rights."""
    user, capabilities, _ = MODES[mode]
    if os.geteuid() and (user or capabilities or mode == "root"):
        pytest.skip("only root can give up root's rights")
    folder = Path(os.path.realpath(sys.executable))
    if not user or all(place.stat().st_mode & 0o5 == 0o5 for place in [folder, *folder.parents]):
        return sys.executable
    for name in ("/usr/bin/python3", "/usr/local/bin/python3"):
        probe = "import sys; print(sys.version_info >= (3, 11))"
        if shutil.which(name) and subprocess.check_output([name, "-c", probe], text=True) == "True\n":
            return name
    pytest.skip(f"user {user} may run no Python 3.11: {folder} belongs to another user")


def attacked(mode: str, permission: str = "isolated", endless: bool = False) -> dict:
    words = [interpreter(mode), sandbox_attacks.__file__, mode, permission, "endless" if endless else ""]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env={"PATH": os.environ["PATH"]})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


QUICK = "root", "user without namespaces", "user without namespaces and Landlock"


@pytest.mark.parametrize(
    "mode", [mode if mode in QUICK else pytest.param(mode, marks=pytest.mark.full) for mode in MODES]
)
def test_attacks_are_contained_or_refused(mode):
    found = attacked(mode, endless=mode in WITH_ENDLESS)
    if "refused" in found:
        assert "cannot be isolated here" in found["refused"]
        if "Landlock" not in mode:
            pytest.skip(found["refused"])  # contained, but nothing is shown about this mode
    else:
        assert found["broken"] == {} and found["left"] == {} and found["mistakes"] == {} and found["count"] > 200
        assert "seccomp" in found["layers"] and ("Landlock" not in mode or "no Landlock" in found["layers"])


def test_attacks_succeed_where_the_sandbox_is_unsafe():
    """They are real: without namespaces and Landlock, sandbox=unsafe lets a program read files."""
    found = attacked("user without namespaces and Landlock", "unsafe")
    assert {"files: read a file of the host", "files: read /etc/passwd", "files: list /proc"} <= found["broken"].keys()
    assert found["layers"].startswith("no namespaces") and "no Landlock" in found["layers"]
    assert not any(name.startswith(("network", "processes", "privileges")) for name in found["broken"])  # seccomp's


PROBES = {335, 336} if platform.machine() == "x86_64" else set()  # the kernel's own, unfiltered: SIGILL from elsewhere


def test_every_other_system_call_is_refused():
    """All numbers that the filter does not allow fail with EPERM, or with ENOSYS from NEWER on."""
    known = {
        **filters._numbers(filters.ALWAYS),
        **filters._numbers(filters.WRITES),
        **filters._numbers(filters.CHECKED),
    }
    source = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in range(600):
    if number not in {set(known.values()) | PROBES}:
        ctypes.set_errno(0)
        wanted = 38 if number >= {filters.NEWER} else 1
        if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != wanted:
            print(number, ctypes.get_errno())
"""
    assert sandbox.run(source, "") == sandbox.Run("", "")


HEADERS = {"x86_64": "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "aarch64": "/usr/include/asm-generic/unistd.h"}


@pytest.mark.parametrize("machine", HEADERS)
def test_numbers_of_system_calls_match_the_headers(machine, monkeypatch):
    if not os.path.exists(HEADERS[machine]):
        pytest.skip(f"no {HEADERS[machine]}")
    true = {}
    for line in Path(HEADERS[machine]).read_text().splitlines():
        words = line.split()
        if len(words) == 3 and words[0] == "#define" and words[1].startswith("__NR") and words[2].isdigit():
            name = words[1].removeprefix("__NR3264_").removeprefix("__NR_")
            true["newfstatat" if (machine, name) == ("aarch64", "fstatat") else name] = int(words[2])
    monkeypatch.setattr(filters, "MACHINE", filters.MACHINES[machine])
    for table in (filters.ALWAYS, filters.WRITES, filters.CHECKED):
        for name, number in filters._numbers(table).items():
            assert true.get(name, number) == number, name  # older headers lack the newest
    assert len(true) > 200
