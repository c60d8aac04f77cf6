"""The sandbox: output of programs, limits, and attempts to reach the network, files, processes and privileges."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import no_hang

from envs.simulators import sandbox
from envs.simulators.sandbox import Limits, Run, SandboxFailed, code_of, execute, jail, run

ROOT = Path(__file__).parents[1]
try:
    CONFINED = sandbox.isolation() == "namespaces"
except SandboxFailed as error:
    pytest.skip(str(error), allow_module_level=True)
SHORT = Limits(wall=5, cpu=1, memory=256 * 2**20, output=10_000)
shut_in = pytest.mark.skipif(not CONFINED, reason="no namespaces here")


def says(source: str, stdin: str = "", limits: Limits = SHORT) -> str:
    """Return the output of a program that must not fail."""
    ran = execute(source, stdin, limits)
    assert ran.stderr == ""
    return ran.stdout


def fails(source: str, limits: Limits = SHORT) -> str:
    """Return the last line of stderr of a program that must print nothing to stdout."""
    ran = execute(source, "", limits)
    assert ran.stdout == "" and ran.stderr
    return ran.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("source", "stdin", "stdout"),
    [
        ("print(int(input()) * 2)", "21", "42\n"),
        ("import sys\nprint(sys.stdin.read().split())", "a b\nc\n", "['a', 'b', 'c']\n"),
        ("print(input(), input())", "é漢\n🪓", "é漢 🪓\n"),
        ("print(1, end='')", "", "1"),
        ("print(__name__)\nif __name__ == '__main__': print('guarded')", "", "__main__\nguarded\n"),
        ("print(1)\nexit()\nprint(2)", "", "1\n"),
        ("import sys\nprint(1)\nsys.exit(3)", "", "1\n"),
        ("import atexit\natexit.register(print, 'bye')\nprint('hi')", "", "hi\nbye\n"),
        ("import sys\nout = open(1, 'w')\nout.write('left open')", "", "left open"),
        ("import sys\nprint(1)\nsys.stdout.close()", "", "1\n"),
        ("print(*{'pear', 'fig', 'plum'})", "", execute("print(*{'pear', 'fig', 'plum'})").stdout),
    ],
)  # fmt: skip
def test_output_matches_plain_python(source, stdin, stdout):
    assert run(source, stdin) == Run(stdout, "")


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("print(x)", "NameError: name 'x' is not defined"),
        ("print(", "SyntaxError: '(' was never closed"),
        ("import sys\nsys.exit('no')", "no"),
        ("input()", "EOFError: EOF when reading a line"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("x = '\0'", "ValueError: source code string cannot contain null bytes"),
    ],
)
def test_errors_match_plain_python(source, line):
    assert fails(source).removeprefix("SyntaxError: source code").endswith(line.removeprefix("ValueError: source code"))


def test_traceback_shows_only_the_program():
    assert execute("def f():\n    1 / 0\nf()").stderr == (
        'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n  File "main.py", line 2, in f\n'
        "ZeroDivisionError: division by zero\n"
    )


@pytest.mark.parametrize(
    ("source", "stdout"),
    [
        ("def solve():\n    return int(input()) * 2", "42\n"),
        ("def solve():\n    print(int(input()) * 2)", "42\n"),
        ("def solve():\n    return [1, 'a']", "1 a\n"),
        ("def solve():\n    return (1, 2)", "1 2\n"),
        ("def solve():\n    return 0", "0\n"),
        ("def solve():\n    pass", ""),
        ("def solve():\n    return 1\nprint(2)", "2\n"),  # it printed
        ("def solve():\n    return 1\nif __name__ == '__main__':\n    pass", ""),  # it has a guard
        ('def solve():\n    return 1\nif  __name__=="__main__":\n    pass', ""),
        ("def answer():\n    return 1", ""),
    ],
)
def test_solve_is_called_if_the_program_prints_nothing(source, stdout):
    assert says(source, "21") == stdout


def test_solve_is_not_called_after_an_error():
    assert fails("def solve():\n    return 1\nnope") == "NameError: name 'nope' is not defined"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        ("print(1)", "print(1)"),
        ("  print(1)\n", "print(1)"),
        ("So:\n```python\nprint(1)\n```", "print(1)"),
        ("```python\nprint(1)\n```\nbetter:\n```python\nprint(2)\n```\nDone.", "print(2)"),
        ("```python\nprint(1)\n```\nwith the input\n```\n5\n```", "print(1)"),  # Python goes first
        ("```\nprint(1)\n```\nor\n```py\nprint(2)\n```", "print(2)"),
        ("```python  \n  x = 1\n```", "x = 1"),
        ("it is ```print(1)```", "print(1)"),
        ("```python\nprint(1)", "```python\nprint(1)"),  # never closed
        ("```python\n```", ""),
        ("", ""),
    ],
)
def test_code_of_extracts_the_last_program(reply, code):
    assert code_of(reply) == code


@pytest.mark.parametrize(
    "piece", ["`", "```", "```\n", "```python\n", "```python ", "``` \n ", "```a", "\n```python\n\n"]
)
def test_code_of_takes_linear_time(piece):
    with no_hang():
        code_of(piece * (200_000 // len(piece)))


# ---- Limits. ----


def test_endless_loop_is_stopped_by_the_cpu_limit():
    with no_hang():
        ran = execute("print('right', flush=True)\nwhile True: pass", "", SHORT)
    assert ran == Run("right\n", "\n[TIMEOUT]")


def test_endless_wait_is_stopped_by_the_wall_time_limit():
    with no_hang():
        ran = execute("import time\ntime.sleep(60)", "", Limits(wall=0.3))
    assert ran == Run("", "\n[TIMEOUT]")


def test_ignored_signals_do_not_delay_the_time_limit():
    source = (
        "import signal, time\nfor s in range(1, 65):\n    try: signal.signal(s, signal.SIG_IGN)\n    except: pass\n"
    )
    assert execute(source + "time.sleep(60)", "", Limits(wall=0.3)).stderr == "\n[TIMEOUT]"


def test_memory_is_limited():
    assert fails("x = bytearray(10**9)") == "MemoryError"
    assert fails("x = []\nwhile True: x.append(bytearray(10**6))") == "MemoryError"


def test_output_is_limited():
    for stream in ("stdout", "stderr"):
        ran = execute(f"import sys\nwhile True: sys.{stream}.write('x' * 1000)", "", SHORT)
        assert len(ran.stdout) <= SHORT.output and len(ran.stderr) <= SHORT.output and ran.stderr
    assert len(says("print('x' * 9999)")) == SHORT.output
    assert len(execute("print('x' * 10000)", "", SHORT).stdout) == SHORT.output  # a line end too much
    assert execute("print('x' * 10000)", "", SHORT).stderr


def test_fork_bomb_is_stopped():
    with no_hang():
        execute("import os\nwhile True:\n    os.fork()", "", SHORT)
    assert says("print(1)") == "1\n"


@shut_in
def test_standard_library_can_be_imported():
    assert says("import decimal, heapq, itertools, json, math, random, re\nprint(decimal.Decimal(1) / 8)") == "0.125\n"
    assert says("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(3))") == "A(x=3)\n"


@shut_in
def test_program_end_waits_for_its_threads():
    assert says("import threading\nthreading.Timer(0.1, print, ('from a thread',)).start()") == "from a thread\n"


@shut_in
def test_number_of_processes_and_threads_is_limited():
    source = """
import os, time
children = 0
try:
    while True:
        if not os.fork():
            time.sleep(60)
        children += 1
except OSError:
    print(children)
"""
    assert 4 <= int(says(source)) < SHORT.processes
    threads = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()"
    assert "can't start new thread" in execute(threads, "", Limits(wall=0.5)).stderr


def test_concurrent_programs_do_not_mix():
    source = "import time\nx = int(input())\ntime.sleep(0.05)\nprint(x)"
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda i: says(source, str(i)), range(24)))
    assert outputs == [f"{i}\n" for i in range(24)]


# ---- What a program can reach. ----


@shut_in
def test_program_has_no_network():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert "Network is unreachable" in fails(f"import socket\nsocket.create_connection(('127.0.0.1', {port}))")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("\0a name of the parent's")
        listening.listen()
        assert "Connection refused" in fails(
            'import socket\nsocket.socket(socket.AF_UNIX).connect("\\0a name of the parent\'s")'
        )
    assert "Network is unreachable" in fails(
        "import socket\nsocket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('1.1.1.1', 53))"
    )


@shut_in
def test_program_sees_no_files_of_the_parent(tmp_path):
    secret = tmp_path / "expected"
    secret.write_text("42")
    for path in (secret, __file__, "/etc/passwd", "/proc/self/environ", "/dev/null", ROOT / "README.md", "/bin/sh"):
        assert says(f"import os\nprint(os.path.lexists({str(path)!r}))") == "False\n", path
    tops = says("import os\nprint(*os.listdir('/'))").split()
    assert set(tops) <= {"tmp", *(Path(library).parts[1] for library in jail.LIBRARIES)}


@shut_in
def test_program_can_write_only_its_own_folder(tmp_path):
    source = """
import os
written = []
for where, folders, _ in os.walk('/'):
    folders[:] = folders[:9] if where.count('/') < 4 else []
    for act in (lambda: open(where + '/x', 'w'), lambda: os.chmod(where, 0o700)):
        try:
            act()
            written.append(where)
        except OSError:
            pass
print(*written)
"""
    assert set(says(source, limits=Limits()).split()) <= {"/tmp"}
    assert "No such file" in fails(f"open({str(tmp_path / 'x')!r}, 'w')")
    assert "space left" in fails("for i in range(99):\n    open(str(i), 'wb').write(bytes(10**6))", Limits())


@shut_in
def test_program_has_no_environment_or_open_files(monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    assert "secret" not in says("import os\nprint(dict(os.environ))")
    source = """
import os
found = []
for fd in range(3, 4096):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
print(found)
"""
    assert says(source) == "[]\n"


@shut_in
def test_program_sees_no_other_processes():
    assert says("import os\nprint(os.getpid(), os.getppid())") == "1 0\n"
    source = """
import os, signal
killed = []
for pid in [*range(2, 2000), %d]:
    try:
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
    except OSError:
        pass
try:
    os.kill(-1, signal.SIGKILL)
except OSError:
    pass
os.killpg(0, signal.SIGTERM)
print(killed)
"""
    assert says(source % os.getpid()) == "[]\n"


@shut_in
@pytest.mark.parametrize(
    "act",
    [
        "libc.unshare(0x10000000)",  # a user namespace would bring privileges and its own mounts
        "libc.unshare(0x20000)",
        "libc.mount(b'x', b'/tmp', b'tmpfs', 0, None)",
        "libc.umount2(b'/tmp', 2)",
        "libc.chroot(b'/tmp')",
        "libc.setuid(0) or libc.setuid(1)",
        "libc.sethostname(b'x', 1)",
        "libc.mknod(b'/tmp/sda', 0o60600, 0x800)",
        "libc.ptrace(16, 2, 0, 0)",
        "libc.setns(0, 0)",
        "libc.prlimit(0, 9, (ctypes.c_ulong * 2)(2**40, 2**40), None)",
    ],
)
def test_program_has_no_privileges(act):
    assert says(f"import ctypes\nlibc = ctypes.CDLL(None)\nprint({act})") == "-1\n"


@shut_in
def test_program_leaves_nothing_to_the_next_one():
    leave = """
import ctypes, os
open('/tmp/note', 'w').write('5 7 9')
libc = ctypes.CDLL(None)
print(libc.shmget(77, 100, 0o1666), libc.msgget(77, 0o1666), libc.semget(77, 1, 0o1666))  # unbounded memory
"""
    look = "import ctypes, os\nprint(os.listdir('/tmp'), ctypes.CDLL(None).shmget(77, 100, 0o666))"
    assert says(leave) == "-1 -1 -1\n" and says(look) == "[] -1\n"


DAEMON = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(0.3)
        os.write(1, b'late')
        time.sleep(60)
    os._exit(0)
os.wait()
print('done', flush=True)
"""


def stat(place: int) -> dict[int, int]:
    """Return one field of /proc/*/stat per process: 1 is its parent, 3 its session."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(path.parts[2])] = int(path.read_text().rpartition(")")[2].split()[place])
    return found


def descendants(ancestor: int) -> set[int]:
    parents, found = stat(1), {ancestor}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return found - {ancestor}


def soon(true) -> bool:
    deadline = time.time() + 5
    while not true() and time.time() < deadline:
        time.sleep(0.02)
    return true()


@shut_in
def test_daemons_end_with_their_program():
    for _ in range(3):
        assert says(DAEMON) == "done\n"
    server = sandbox._current.process.pid
    assert soon(lambda: len(descendants(server)) == 1)  # the one that forks


def test_program_cannot_change_its_own_status():
    """A program's claims about itself are only output, and tampering with its streams harms only its own output."""
    assert says("print('over')\nprint('[TIMEOUT]')") == "over\n[TIMEOUT]\n"
    assert says("import os\nos.write(1, b'a')\nos._exit(0)") == "a"
    assert (
        says("print('wrong', flush=True)\nimport os\nos.ftruncate(1, 0)\nos.lseek(1, 0, 0)\nprint('right')")
        == "right\n"
    )
    ran = execute("import os\nos.abort()", "", SHORT)
    assert ran.stdout == ""
    crashed = execute("print(1)\nimport ctypes\nctypes.string_at(0)", "", SHORT)
    assert crashed.stdout == ""  # what was not written out is lost


# ---- The process that runs them. ----


def test_server_restarts_after_being_killed():
    says("print()")
    server = sandbox._current
    outcome = []

    def sleeper():
        try:
            outcome.append(execute("import time\ntime.sleep(60)"))
        except SandboxFailed as error:
            outcome.append(str(error))

    thread = threading.Thread(target=sleeper)
    thread.start()
    time.sleep(0.2)
    os.killpg(server.process.pid, signal.SIGKILL)
    thread.join(5)
    assert outcome and outcome[0].startswith("a program could not be run")
    server.process.wait(5)
    assert says("print(1)") == "1\n" and sandbox._current is not server


PARENT = """
import os, sys, threading, time
from envs.simulators import sandbox
sandbox.isolation()
if sys.argv[1] == "fork":
    first = sandbox._current
    if not os.fork():
        assert sandbox.execute("print(1)").stdout == "1\\n" and sandbox._current is not first
        os._exit(0)
    assert os.wait()[1] == 0 and sandbox.execute("print(2)").stdout == "2\\n" and sandbox._current is first
    print("both")
else:
    threading.Thread(target=sandbox.execute, args=["import time\\ntime.sleep(60)"], daemon=True).start()
    time.sleep(0.3)
    print(sandbox._current.process.pid, flush=True)
    time.sleep(60)
"""


def test_forked_parent_starts_its_own_server():
    assert subprocess.check_output([sys.executable, "-c", PARENT, "fork"], cwd=ROOT, text=True) == "both\n"


def test_server_ends_with_its_parent():
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, "sleep"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        session = int(parent.stdout.readline())
        assert session in stat(3).values()
        parent.kill()
    assert soon(lambda: session not in stat(3).values())


WEAK_JAIL = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("jail", {path!r})
jail = importlib.util.module_from_spec(spec)
spec.loader.exec_module(jail)
def shut_in():
    raise OSError(1, "unshare: not here")
jail.shut_in = shut_in
jail.main(int(sys.argv[1]))
"""


def test_without_namespaces_limits_hold_and_warn(tmp_path, monkeypatch):
    weak = tmp_path / "weak_jail.py"
    weak.write_text(WEAK_JAIL.format(path=jail.__file__))
    monkeypatch.setattr(jail, "__file__", str(weak))
    monkeypatch.setattr(sandbox, "_current", None)
    with monkeypatch.context() as patch:  # ordinary users are refused unless SANDBOX=limits
        patch.setattr(os, "geteuid", lambda: 1000)
        patch.delenv("SANDBOX", raising=False)
        with pytest.raises(SandboxFailed, match=r"cannot isolate programs here.* not here"):
            execute("print(1)")
    monkeypatch.setenv("SANDBOX", "limits")
    with pytest.warns(UserWarning, match="limits only"):
        assert sandbox.isolation() == "limits: [Errno 1] unshare: not here"
    assert says("print(int(input()) * 2)", "21") == "42\n"
    assert fails("import os\nos.fork()").startswith("BlockingIOError")
    assert fails("x = bytearray(10**9)") == "MemoryError"
    assert execute("import time\ntime.sleep(60)", "", Limits(wall=0.3)).stderr == "\n[TIMEOUT]"
    if os.geteuid() == 0:
        assert int(says("import os\nprint(os.getuid())")) >= jail.USERS
        assert fails(f"import os\nos.kill({os.getpid()}, 9)").startswith("PermissionError")
