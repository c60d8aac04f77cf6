"""The sandbox: output of programs, limits, and attempts to reach the network, files, processes and privileges."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from cases import cases
from conftest import no_hang

from envs.__main__ import main as play_environment
from envs.simulators import sandbox
from envs.simulators.sandbox import Limits, Run, SandboxFailed, code_of, execute, jail, run
from rl.config.words import parse

CASES = cases("sandbox")

pytestmark = pytest.mark.all_only

ROOT = Path(__file__).parents[2]
try:
    sandbox.start(sandbox.ISOLATED)
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)
SHORT = Limits(wall=5, cpu=1, memory=256 * 2**20, output=10_000)
namespaces = pytest.mark.skipif(not sandbox.layers().startswith("namespaces"), reason=sandbox.layers())


def says(source: str, stdin: str = "", limits: Limits = SHORT) -> str:
    """Return the output of a program that must not fail."""
    ran = execute(source, stdin, limits)
    assert ran.stderr == "" and ran.status == 0
    return ran.stdout


def fails(source: str, limits: Limits = SHORT) -> str:
    """Return the last line of stderr of a program that must print nothing to stdout."""
    ran = execute(source, "", limits)
    assert ran.stdout == "" and ran.stderr and ran.status
    return ran.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("source", "stdin", "stdout"),
    CASES["outputs"],
)  # fmt: skip
def test_output_matches_plain_python(source, stdin, stdout):
    assert run(source, stdin) == Run(stdout, "")


def test_sets_have_the_same_order_in_every_run():
    source = "print(*{'pear', 'fig', 'plum'})"
    assert run(source, "") == run(source, "")


@pytest.mark.parametrize(("source", "line"), CASES["errors"])
def test_errors_match_plain_python(source, line):
    assert fails(source).removeprefix("SyntaxError: source code").endswith(line.removeprefix("ValueError: source code"))


@pytest.mark.parametrize(("source", "status", "reason"), CASES["statuses"])
def test_status_counts_whatever_was_printed(source, status, reason):
    """As under plain Python; a program that failed has a reason in stderr."""
    ran = run("print('right', flush=True)\n" + source, "")
    assert (ran.stdout, ran.status) == ("right\n", status) and ran.stderr.endswith(reason)


def test_traceback_shows_only_the_program():
    assert execute("def f():\n    1 / 0\nf()").stderr == (
        'Traceback (most recent call last):\n  File "main.py", line 3, in <module>\n  File "main.py", line 2, in f\n'
        "ZeroDivisionError: division by zero\n"
    )


@pytest.mark.parametrize(("source", "stdout"), CASES["solve"])
def test_solve_is_called_if_the_program_prints_nothing(source, stdout):
    assert says(source, "21") == stdout


def test_solve_is_not_called_after_an_error():
    assert fails("def solve():\n    return 1\nnope") == "NameError: name 'nope' is not defined"


@pytest.mark.parametrize(("reply", "code"), CASES["code of replies"])
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
    assert ran == Run("right\n", "\n[TIMEOUT]", -9)


def test_endless_wait_is_stopped_by_the_wall_time_limit():
    with no_hang():
        ran = execute("import time\ntime.sleep(60)", "", Limits(wall=0.3))
    assert ran == Run("", "\n[TIMEOUT]", -9)


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
        assert len(ran.stdout) <= SHORT.output and len(ran.stderr) <= SHORT.output + 20
        assert ran.stderr.endswith("\n[OUTPUT LIMIT]")
    assert len(says("print('x' * 9999)")) == SHORT.output
    ran = execute("print('x' * 10000)", "", SHORT)  # a line end too much
    assert ran == Run("x" * 10000, "\n[OUTPUT LIMIT]", ran.status)
    assert says("print('x' * 999_999)", limits=Limits()) == "x" * 999_999 + "\n"  # more than a pipe holds


def test_input_may_be_large():
    assert says("import sys\nprint(len(sys.stdin.read()))", "é" * 3_000_000) == "3000000\n"


@namespaces
def test_standard_library_can_be_imported():
    assert says("import decimal, heapq, itertools, json, math, random, re\nprint(decimal.Decimal(1) / 8)") == "0.125\n"
    assert says("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nprint(A(3))") == "A(x=3)\n"


@namespaces
def test_program_end_waits_for_its_threads():
    assert says("import threading\nthreading.Timer(0.1, print, ('from a thread',)).start()") == "from a thread\n"


def test_number_of_threads_is_limited():
    source = """
import threading, time
started = 0
try:
    while True:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        started += 1
except RuntimeError:
    print(started)
"""
    assert int(says(source)) <= SHORT.threads


def test_limits_hold_for_all_that_runs():
    """Memory and CPU time are limited per process, so a program must be a single one."""
    for start in ("os.fork()", "subprocess.run('true')", "multiprocessing.Process().start()", "os.system('true')"):
        ran = execute(f"import multiprocessing, os, subprocess\nprint({start})", "", SHORT)
        assert "Operation not permitted" in ran.stderr or ran.stdout == f"{127 << 8}\n", start


def test_concurrent_programs_do_not_mix():
    source = "import time\nx = int(input())\ntime.sleep(0.05)\nprint(x)"
    with ThreadPoolExecutor(8) as pool:
        outputs = list(pool.map(lambda i: says(source, str(i)), range(24)))
    assert outputs == [f"{i}\n" for i in range(24)]


# ---- What a program can reach. ----


@namespaces
def test_program_sees_no_files_of_the_parent(tmp_path):
    secret = tmp_path / "expected"
    secret.write_text("42")
    for path in (secret, __file__, "/etc/passwd", "/proc/self/environ", "/dev/null", ROOT / "README.md", "/bin/sh"):
        assert says(f"import os\nprint(os.path.lexists({str(path)!r}))") == "False\n", path
    tops = says("import os\nprint(*os.listdir('/'))").split()
    assert set(tops) <= {"tmp", *(Path(library).parts[1] for library in jail.LIBRARIES)}


@namespaces
def test_program_can_write_only_its_own_folder(tmp_path):
    source = """
import gc
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
    assert says("import os\nprint(os.listdir('/tmp'))") == "[]\n"  # the next program's is new


@namespaces
def test_program_has_no_environment_or_open_files(monkeypatch):
    monkeypatch.setenv("API_KEY", "secret")
    assert "secret" not in says("import os\nprint(dict(os.environ))")
    source = """
import gc
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


def test_server_goes_first_if_memory_runs_out():
    says("print()")
    server = sandbox._current.process.pid
    assert {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in descendants(server)} == {"1000\n"}


def test_server_has_a_session_keyring_of_its_own():
    source = """
from envs.simulators.sandbox import filters, jail
session = lambda: filters.LIBC.syscall(jail.KEYCTL[jail.os.uname().machine], 0, -3, 0)
before = session()
jail.new_session_keyring()
print(before, session())
"""
    before, after = subprocess.check_output([sys.executable, "-c", source], cwd=ROOT, text=True).split()
    if before == "-1":
        pytest.skip("this system has no keyrings")
    assert before != after


def test_program_cannot_touch_its_parent_through_a_descriptor():
    """Flags of an open file are shared by everyone who has it: direct access once ended the parent's read."""
    flags = "import fcntl, os\nprint('right', flush=True)\nos.write(2, b'x')\n"
    flags += "for fd in (1, 2): fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT | os.O_NONBLOCK)"
    for fd in range(3):
        flags += f"\nos.close({fd})"
    assert run(flags, "3", SHORT) == Run("right\n", "x", 0)


def test_program_cannot_change_its_own_status():
    """A program's claims about itself are only output, and tampering with its streams harms only its own output."""
    assert says("print('over 0')\nprint('[TIMEOUT]')") == "over 0\n[TIMEOUT]\n"
    assert says("import os\nos.write(1, b'a')\nos._exit(0)") == "a"
    ran = execute("print('wrong', flush=True)\nimport os\nos.ftruncate(1, 0)", "", SHORT)
    assert ran.stdout == "wrong\n" and ran.status == 1  # what is written is written


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
sandbox.layers()
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


@pytest.mark.parametrize("many", [100, pytest.param(1000, marks=pytest.mark.full)])
def test_programs_leave_nothing_behind(many):
    """No process, open file, mounted folder or memory of this process or of the server."""

    def state() -> tuple[int, int, int, int]:
        server = sandbox._current.process.pid
        pids = [os.getpid(), server, *descendants(server)]
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        files = sum(len(os.listdir(f"/proc/{pid}/fd")) for pid in pids)
        mounts = sum(Path(f"/proc/{pid}/mountinfo").read_text().count("\n") for pid in pids)
        return len(pids), files, mounts, pages * os.sysconf("SC_PAGE_SIZE") // 2**20

    leave = """
import os, threading, time
x = bytearray(10**7)
threading.Thread(target=time.sleep, args=(9,), daemon=True).start()
try:
    open('/tmp/x', 'w').write('x' * 1000)
except OSError:
    pass
print('x' * 10**5)
os._exit(0)
"""

    def play(programs: int) -> None:
        with ThreadPoolExecutor(jail.WORKERS) as pool:
            assert {ran.status for ran in pool.map(lambda _: run(leave, "x" * 10**5), range(programs))} == {0}

    def at_rest() -> tuple[int, int, int, int]:
        """The state once it has been the same for 0.3 s: a worker unmounts a program's /tmp after its last word."""
        gc.collect()
        now, changed = state(), time.time()
        while time.time() < changed + 0.3:
            time.sleep(0.02)
            then, now = now, state()
            changed = time.time() if now[:3] != then[:3] else changed
        return now

    play(24)
    *before, mebibytes = at_rest()
    play(many)
    *after, more = at_rest()
    assert all(now <= then for now, then in zip(after, before, strict=True)), (before, after)
    assert more <= mebibytes + 8


class TooWeak:
    """A server on a system without namespaces and Landlock."""

    safe, layers = False, "no namespaces, no Landlock, seccomp"

    def usable(self) -> bool:
        return True


def test_fewer_layers_than_the_minimum_are_refused(monkeypatch, capsys):
    """Before anything loads, in one line that names the key; sandbox=unsafe permits it for all environments."""
    monkeypatch.setattr(sandbox, "_current", TooWeak())
    with pytest.raises(SandboxFailed, match="cannot be isolated here"):
        execute("print(1)")
    for program, words in ((parse, ["env=affine"]), (play_environment, ["abd", "demos=1"])):
        with pytest.raises(SystemExit) as ending:
            program(words)
        line = capsys.readouterr().err
        assert ending.value.code == 2 and line.count("\n") == 1 and "sandbox=unsafe runs them" in line
    for words in (["sandbox=unsafe"], ["abd.sandbox=unsafe", "ded.sandbox=unsafe"]):
        cfg = parse(["env=affine", *words])
        assert {cfg.environments[name].sandbox for name in ("abd", "ded")} == {"unsafe"}
    assert parse(["env=textcraft", "sandbox=unsafe"]).env == "textcraft"  # runs no programs
    with pytest.raises(SystemExit):
        parse(["env=abd", "sandbox=off"])
    assert "sandbox=off is not one of own, isolated, unsafe" in capsys.readouterr().err


def test_start_names_the_layers_once(monkeypatch, capsys):
    """Ranks, which this process starts, do not repeat the line."""
    monkeypatch.setenv(sandbox.PRINTED, "")
    for _ in range(2):
        sandbox.start(sandbox.ISOLATED)
    assert capsys.readouterr().err == f"sandbox: {sandbox.layers()}\n"
    source = "from envs.simulators import sandbox; sandbox.start(sandbox.ISOLATED)"
    done = subprocess.run([sys.executable, "-c", source], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 0)


@pytest.mark.parametrize(("ranks", "most"), [("", 8), ("1", 8), ("2", 4), ("3", 2), ("8", 1), ("99", 1), ("x", 8)])
def test_ranks_share_the_programs_of_a_run(ranks, most, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    assert sandbox.programs_at_a_time() == most
    if ranks == "3":
        monkeypatch.setattr(sandbox, "_current", None)
        source = "import time\nprint(time.monotonic())\ntime.sleep(0.3)\nprint(time.monotonic())"
        with ThreadPoolExecutor(5) as pool:
            spans = [[float(x) for x in ran.split()] for ran in pool.map(says, [source] * 5)]
        at_once = max(sum(start <= moment < end for start, end in spans) for moment, _ in spans)
        assert at_once == most


def resident(process: int) -> int:
    """Return the bytes of memory that a process holds, those that it shares included; 0 if it has ended."""
    with suppress(OSError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


@pytest.mark.full
def test_programs_of_a_process_hold_at_most_five_gib_together():
    """Twelve at once, each with as much memory and as many files as it may have: eight of them run."""
    source = "x = bytearray(460 * 2**20)\nfor i in range(15): open(f'/tmp/{i}', 'w').write('x' * 10**6)\n"
    source += "import time\ntime.sleep(3)"
    execute("", "")
    with ThreadPoolExecutor(12) as pool:
        programs, peak = [pool.submit(execute, source, "", Limits(wall=60)) for _ in range(12)], 0
        while not all(program.done() for program in programs):
            peak = max(peak, sum(map(resident, descendants(os.getpid()))))
            time.sleep(0.05)
    assert [program.result().status for program in programs] == [0] * 12
    assert 7 * 460 * 2**20 < peak + 8 * 16 * 2**20 < 5 * 2**30, f"{peak / 2**20:.0f} MiB"
