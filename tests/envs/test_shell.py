"""The simulated shell: golden output of bash, rules of the file system, endless and hostile scripts, isolation."""

import builtins
import errno
import os
import re
import subprocess
import sys
import threading
import time
import tracemalloc
from fractions import Fraction
from functools import partial
from pathlib import Path
from random import Random

import golden
import pytest
from cases import cases
from conftest import also_full, no_hang
from hypothesis import given, settings
from hypothesis import strategies as st
from parity import agents, shell, shell_commands

from envs.os_interaction.judge import twin
from envs.simulators.shell import MAX_STEPS, Shell, base_machine
from envs.simulators.shell.base import ADMIN
from envs.simulators.shell.files import Caller, Machine
from envs.simulators.shell.parse import Parser
from envs.simulators.shell.patterns import matches, prefix, suffix
from envs.simulators.shell.process import Process, pipe

CASES = cases("shell")
DEAR = CASES["dear"]
NASTY = CASES["nasty"]

pytestmark = pytest.mark.all_only

Shell.strict = True  # errors of the simulator must be seen
ROOT = Path(__file__).parents[2]
KINDS = {"dir": "d", "link": "l", "file": "-"}


def run(script: str, **options):
    return Shell(base_machine()).run(script, **options)


def below(node, path: str = "") -> dict[str, str]:
    """Return each path below a folder with its mode, and its text or target, as parity/shell.py does."""
    found = {}
    for name, child in node.data.items():
        said = child.data if child.kind == "link" else child.data.decode("latin-1") if child.kind == "file" else ""
        found[path + name] = f"{KINDS[child.kind]}{child.mode:04o} {said}"
        if child.kind == "dir":
            found |= below(child, f"{path}{name}/")
    return found


def run_in_work(script: str) -> dict:
    """Run a script in an empty folder of the simulated machine."""
    machine = base_machine()
    Caller(machine).mkdir(shell.WORK)
    result = Shell(machine, cwd=shell.WORK).run(script)
    return {"output": result.output, "status": result.status, "files": shell.changed(below(machine.lookup(shell.WORK)))}


# -- the language


def test_recursion_limit_is_restored_after_a_script():
    before = sys.getrecursionlimit()
    nested = "f() { if [ $1 -gt 0 ]; then f $(($1 - 1)); else echo deep; fi; }; f 100"
    assert run(nested).output == "deep\n" and sys.getrecursionlimit() == before
    assert run("f() { f; }; f").status and sys.getrecursionlimit() == before


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.full)])
def test_scripts_match_the_golden_output_of_bash(every):
    cases = golden.read("shell")
    assert [case["input"] for case in cases] == shell.golden_scripts() and len(cases) > 2000
    for case in cases[::every]:
        assert run_in_work(case["input"]) == case["output"], case["input"]


def test_stdout_and_stderr_keep_their_order_when_redirected():
    script = "echo 1; nope; echo 2; ls /nope"
    assert run(script).output == (
        "1\nbash: line 1: nope: command not found\n2\nls: cannot access '/nope': No such file or directory\n"
    )
    apart = run(f"{{ {script}; }} 2>/tmp/errors")
    assert apart.output == "1\n2\n" and apart.status == 2
    assert run(f"{{ {script}; }} 2>&1 >/dev/null | wc -l").output == "2\n"


def test_files_persist_but_shell_state_does_not():
    bash = Shell(base_machine())
    assert bash.run("cd /tmp; x=1; umask 077; f() { :; }; echo a > f; exit 3").status == 3
    assert bash.run("pwd; echo [$x]; umask; f; cat /tmp/f").output == (
        "/\n[]\n0022\nbash: line 1: f: command not found\na\n"
    )
    assert bash.run('echo "$0 $1 $#"; cat', args=("a b",), stdin=b"in").output == "bash a b 1\nin"


def test_users_have_only_their_own_rights():
    machine = base_machine()
    Shell(machine).run("mkdir /home/list; chown 38:38 /home/list; echo secret > /root/s; echo open > /o; chmod 604 /o")
    user = Shell(machine, user="list", cwd="/home/list")
    assert user.run("echo a > f; cat f; id -u 2> /dev/null; cat /o").output.startswith("a\n")
    denied = user.run("cat /root/s; echo x > /etc/passwd; rm -f /o; cd /root; chmod 777 /o; mkdir /x; echo >> /o")
    assert denied.output.count("Permission denied") == 6 and denied.output.count("Operation not permitted") == 1
    assert machine.lookup("/root/s").data == b"secret\n" and machine.lookup("/o").mode == 0o604
    assert machine.lookup("/home/list/f").uid == machine.lookup("/home/list/f").gid == 38


OPERATORS = ("+", "-", "*", "/", "%", "<", ">", "<=", ">=", "==", "!=", "&", "|", "^", "&&", "||", "<<", ">>")


def expression(rng: Random, depth: int) -> tuple[str, int | None]:
    """Return a random C expression and its value, None for a division by zero."""
    if not depth:
        number = rng.choice([0, 1, 2, 3, 7, 100, 2**62, 2**63 - 1])
        return str(number), number
    (left, a), (right, b) = expression(rng, depth - 1), expression(rng, depth - 1)
    op = rng.choice(OPERATORS)
    text = f"({left}) {op} ({right})"
    if op in ("&&", "||") and a is not None and bool(a) == (op == "||"):
        return text, int(op == "||")
    if a is None or b is None or (op in "/%" and b == 0):
        return text, None
    if op in "/%":
        whole = int(Fraction(a, b))
        return text, (whole if op == "/" else a - b * whole)
    value = (
        eval(f"a {op} b") if op in "+-*&|^" else a << (b & 63) if op == "<<" else a >> (b & 63) if op == ">>" else None
    )
    if value is None:
        value = int(
            {"&&": bool(a) and bool(b), "||": bool(a) or bool(b)}.get(op, op in OPERATORS[5:11] and eval(f"a {op} b"))
        )
    return text, (value + 2**63) % 2**64 - 2**63


def test_arithmetic_matches_64_bit_integers():
    rng = Random(0)
    bash = Shell(base_machine())
    for _ in range(300):
        text, value = expression(rng, rng.randint(0, 3))
        said = bash.run(f"echo $(( {text} ))").output
        assert said == f"{value}\n" if value is not None else "division by 0" in said, text


def slow_match(pattern: str, text: str) -> bool:
    """Match a glob by brute force."""
    if not pattern:
        return not text
    if pattern[0] == "*":
        return any(slow_match(pattern[1:], text[i:]) for i in range(len(text) + 1))
    return bool(text) and pattern[0] in ("?", text[0]) and slow_match(pattern[1:], text[1:])


def no_cost(steps: int) -> None:
    """The script's budget has no end."""


@settings(max_examples=80, deadline=None)
@given(st.text("ab*?", max_size=6), st.text("ab", max_size=7))
def test_globs_match_a_brute_force_matcher(pattern, text):
    assert matches(pattern, text, no_cost) == slow_match(pattern, text)
    heads = [n for n in range(len(text) + 1) if slow_match(pattern, text[:n])]
    tails = [n for n in range(len(text) + 1) if slow_match(pattern, text[n:])]
    assert [prefix(pattern, text, longest, no_cost) for longest in (False, True)] == (
        [heads[0], heads[-1]] if heads else [None] * 2
    )
    assert [suffix(pattern, text, longest, no_cost) for longest in (True, False)] == (
        [tails[0], tails[-1]] if tails else [None] * 2
    )


# -- files


def raises(number: int, call, *args) -> None:
    with pytest.raises(OSError) as failure:
        call(*args)
    assert failure.value.errno == number, args


def test_invalid_file_operations_raise_their_errno():
    root = Caller(Machine())
    root.mkdir("/a")
    root.mkdir("/a/b")
    root.write("/a/f", b"text")
    root.symlink("l2", "/l1")
    root.symlink("l1", "/l2")
    for number, call, *args in (
        (errno.ENOENT, root.lookup, "/nope"),
        (errno.ENOENT, root.lookup, ""),
        (errno.ENOENT, root.mkdir, "/nope/b"),
        (errno.ENOTDIR, root.lookup, "/a/f/x"),
        (errno.ENOTDIR, root.lookup, "/a/f/"),
        (errno.ENOTDIR, root.rmdir, "/a/f"),
        (errno.ENOTDIR, root.rename, "/a/b", "/a/f"),
        (errno.ELOOP, root.lookup, "/l1"),
        (errno.EEXIST, root.mkdir, "/a"),
        (errno.EEXIST, root.link, "/a/f", "/a/b"),
        (errno.EISDIR, root.read, "/a"),
        (errno.EISDIR, root.write, "/a", b""),
        (errno.EISDIR, root.unlink, "/a"),
        (errno.EISDIR, root.rename, "/a/f", "/a/b"),
        (errno.ENOTEMPTY, root.rmdir, "/a"),
        (errno.EINVAL, root.rename, "/a", "/a/b/c"),
        (errno.EPERM, root.link, "/a", "/c"),
        (errno.ENAMETOOLONG, root.mkdir, "/" + "x" * 256),
    ):
        raises(number, call, *args)
    assert root.read("/a/../a/./f") == b"text" and root.realpath("/a/b/..//f") == "/a/f"


def test_permissions_follow_owner_group_and_others():
    machine = Machine()
    root = Caller(machine)
    user, friend, other = (Caller(machine, uid=uid, gid=gid, groups=(gid,)) for uid, gid in ((1, 10), (2, 10), (3, 30)))
    root.chown(root.mkdir("/d"), 1, 10)
    root.chmod(machine.lookup("/d"), 0o2770)
    node = user.write("/d/f", b"1")
    assert (node.uid, node.gid, node.mode) == (1, 10, 0o644)
    assert friend.read("/d/f") == b"1"
    raises(errno.EACCES, friend.write, "/d/f", b"2")
    raises(errno.EACCES, other.read, "/d/f")
    raises(errno.EPERM, friend.chmod, node, 0o777)
    raises(errno.EPERM, user.chown, node, 2, -1)
    user.chmod(node, 0o600)
    raises(errno.EACCES, friend.read, "/d/f")
    root.chmod(machine.lookup("/d"), 0o1777)
    raises(errno.EPERM, friend.unlink, "/d/f")  # sticky
    assert friend.mkdir("/d/e").mode == 0o755
    user.unlink("/d/f")
    assert not user.exists("/d/f")


def test_hard_links_share_a_file_and_free_its_space():
    machine = Machine(max_bytes=1000, max_nodes=20)
    root = Caller(machine)
    before = machine.bytes, machine.nodes
    root.write("/f", b"x" * 600)
    root.link("/f", "/g")
    assert machine.lookup("/g").nlink == 2 and machine.bytes == 600
    raises(errno.ENOSPC, root.write, "/h", b"x" * 600)
    root.unlink("/f")
    root.write("/g", b"y", True)
    assert root.read("/g") == b"x" * 600 + b"y"
    for path in ("/g", "/h"):
        root.unlink(path)
    assert (machine.bytes, machine.nodes) == before
    with pytest.raises(OSError):
        for number in range(30):
            root.mkdir(f"/{number}")
    assert machine.nodes == 20


def test_writes_stop_when_the_disk_is_full():
    result = run("x=$(printf '%100000s' a); while echo \"$x\" >> /f; do :; done; ls /f; echo done")
    assert "No space left on device" in result.output and result.output.endswith("done\n")


# -- limits


@pytest.mark.parametrize("script", CASES["endless"])
def test_endless_scripts_time_out(script):
    bash = Shell(base_machine())
    with no_hang():
        result = bash.run(script, max_steps=10_000)
    assert result.timed_out and result.status == 124
    assert bash.run("echo still").output == "still\n"


QUICK = {1, 3, 6, 8, 9, 12, 13, 16}  # each command's; those of awk and of printf that take seconds are in test-full


@pytest.mark.parametrize(
    "script",
    [one if i in QUICK else pytest.param(one, marks=pytest.mark.full) for i, one in enumerate(CASES["growing"])],
)
def test_unbounded_growth_times_out(script):
    tracemalloc.start()
    with no_hang(60):  # tracing takes its time
        result = run(script)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert result.timed_out and peak < 300 << 20


ENDING = [(DEAR[i], MAX_STEPS // 10) for i in (0, 1, 6, 15, 19, 20, 25, 26, 27)]


@pytest.mark.parametrize(("script", "steps"), [*ENDING, *also_full(*((script, MAX_STEPS) for script in DEAR))])
def test_endless_scripts_end_in_time(script, steps):
    """A script uses up its steps in at most twenty microseconds of processor time each."""
    began = time.process_time()
    assert run(script, max_steps=steps).timed_out
    assert time.process_time() - began < 20e-6 * steps


def test_head_ends_an_endless_writer():
    result = run("yes | head -n 2; echo ${PIPESTATUS[0]}; while :; do echo a; done | head -n 1; echo end")
    assert result.output == "y\ny\n141\na\nend\n" and not result.timed_out


LONG = [("", 3_000, MAX_STEPS // 10), ("echo ", 3_000, MAX_STEPS // 10)]
LONGER = [(start, 100_000, MAX_STEPS) for start in ("", "echo ", "echo $((", "[ ", "x=")]


@pytest.mark.parametrize(("start", "size", "steps"), [*LONG, *also_full(*LONGER)])
def test_long_scripts_return_a_result(start, size, steps):
    for piece in (*CASES["lengthy"], "\ud800"):
        with no_hang():
            run(start + piece * (size // len(piece)), max_steps=steps)


WORDS = [*CASES["pieces"].split(), "\n", "\t", "\x01", " "]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(WORDS), max_size=25), st.lists(st.text(max_size=8), max_size=3), st.booleans())
def test_any_text_returns_a_result(pieces, texts, spaced):
    bash = Shell(base_machine())
    result = bash.run((" " if spaced else "").join([*pieces, *texts]), max_steps=5000)
    assert 0 <= result.status <= 255 and isinstance(result.output, str)
    assert bash.run("echo still").output == "still\n"


def spoiled(rng: Random) -> str:
    """Return a script or command line with some words, preferably numbers, replaced, left out or doubled."""
    words = re.split(r"([ \n;,'\"(){}/=:|]+)", rng.choice(rng.choice([SOUND, LINES, LINES])))
    for _ in range(rng.randint(1, 3)):
        numbers = [at for at in range(0, len(words), 2) if re.search(r"\d", words[at])]
        at = rng.choice(numbers) if numbers and rng.random() < 0.4 else rng.randrange(len(words))
        word = rng.choice(NASTY)
        inside = re.sub(r"\d+", lambda _, word=word: word, words[at])
        words[at] = rng.choice([word, word, words[at] * 2, "-" + words[at], inside])
    return "".join(words)


SOUND, LINES = [*shell.written(), *shell.generated(200)], shell_commands.drawn(range(900))


@pytest.mark.parametrize(("seed", "count"), [(0, 1000), *also_full(*((seed, 5000) for seed in range(1, 5)))])
def test_corrupted_scripts_return_a_result(seed, count):
    rng = Random(seed)
    for _ in range(count):
        script = spoiled(rng)
        machine = base_machine()
        Shell(machine).run("mkdir -p /w/sub; cd /w; seq 20 | tee a.txt b.txt nums > log; echo a:b,c d > tabs; id > pw")
        result = Shell(machine, cwd="/w").run(script, stdin=b"a b\n1 2\n", max_steps=20_000)
        assert 0 <= result.status <= 255, script


@pytest.mark.parametrize("count", [200, *also_full(100_000)])
def test_spoiled_scripts_of_agents_crash_nothing(count):
    assert agents.crashes(range(count)) == []


def test_scripts_touch_no_real_file_or_process(monkeypatch):
    """Other threads, which earlier tests may have left, may go on."""
    scripts, others = shell.written()[::2], set(threading.enumerate()) - {threading.current_thread()}

    def forbidden(real, *args, **kwargs):
        if threading.current_thread() in others:
            return real(*args, **kwargs)
        raise AssertionError(f"real: {args}")

    for module, name in (
        *((os, name) for name in ("open", "mkdir", "remove", "listdir", "stat", "chdir", "fork", "system", "getcwd")),
        *((builtins, "open"), (subprocess, "Popen"), (time, "sleep"), (time, "time"), (os, "umask"), (os, "urandom")),
    ):
        monkeypatch.setattr(module, name, partial(forbidden, getattr(module, name)))
    outputs = [run_in_work(script) for script in scripts]
    monkeypatch.undo()
    assert len(outputs) >= 80


def test_shells_in_etc_shells_exist():
    bash = Shell(base_machine())
    missing = "for s in $(cut -d : -f 7 /etc/passwd) $(grep ^/ /etc/shells); do test -x $s || echo $s; done"
    assert bash.run(missing).output == ""
    assert set(ADMIN.split()) == set(bash.machine.lookup("/usr/sbin").data)
    refused = bash.run("su - daemon -c id; echo $?; nologin -x")
    assert refused.output == "This account is currently not available.\n1\nThis account is currently not available.\n"


def test_machines_share_no_state():
    one, two = base_machine(), base_machine()
    Shell(one).run("echo x > /etc/passwd; rm -r /usr; chmod 0 /etc /bin/bash; mkdir /new; sleep 5")
    assert Shell(two).run("ls / | tr '\\n' ' '; wc -l < /etc/passwd; stat -c %a /etc").output == (
        Shell(base_machine()).run("ls / | tr '\\n' ' '; wc -l < /etc/passwd; stat -c %a /etc").output
    )
    assert two.clock < one.clock


def test_a_script_gives_the_same_result_each_time():
    """Parsed scripts are cached, so running one must not change its tree."""
    for script in shell.written()[::3]:
        assert run_in_work(script) == run_in_work(script), script


# -- faults


@pytest.mark.parametrize("broken", CASES["broken"])
def test_broken_user_tables_break_only_user_commands(broken):
    bash = Shell(base_machine())
    bash.run(broken)
    for line in CASES["asking"]:
        result = bash.run(line)
        assert 0 <= result.status <= 255 and not result.timed_out, line


def test_invalid_table_lines_are_ignored_and_preserved():
    bash = Shell(base_machine())
    bash.run("sed -i '1s/^/staff2:x::root\\n/' /etc/group; echo a:x:b:c::: >> /etc/passwd")
    assert bash.run("groupadd g; useradd u; getent group staff2 || id a").output == "id: 'a': no such user\n"
    assert bash.run("head -n 1 /etc/group; grep ^a: /etc/passwd; id -Gn").output == "staff2:x::root\na:x:b:c:::\nroot\n"


@pytest.mark.parametrize(
    ("script", "output", "status"),
    CASES["odd numbers"],
)  # fmt: skip
def test_odd_numbers_match_bash(script, output, status):
    result = run(script)
    assert (result.output, result.status) == (output, status)


@pytest.mark.parametrize(
    "pattern", ["(a{1,200}){1,200}{1,200}", "((a{99}){99}){99}", "a{1,32767}{1,32767}", "a{20000}"]
)
@pytest.mark.parametrize("command", ["grep -E '%s'", "sed -E 's/%s//'", "find / -regextype posix-extended -regex '%s'"])
def test_repetitions_that_grow_too_big_are_an_error(command, pattern):
    """When the expression is compiled, whether or not a line would ever need all of it."""
    result = run(f"echo aaa | {command % pattern}")
    assert result.status in (1, 2) and "Regular expression too big" in result.output


def test_only_ascii_digits_count_as_digits():
    assert "error token is" in run("x=$'\\xb2'; echo $((x))").output
    assert run("echo a >&$'\\xb2'; cat $'\\xb2'").output == "a\n"
    assert run("echo $1 | wc -c", args=("é",)).output == "3\n"


def test_simulator_errors_end_only_the_script(monkeypatch):
    from envs.simulators.shell.run import PROGRAMS

    machine = base_machine()
    for fault, status in ((ZeroDivisionError, 139), (MemoryError, 124)):

        def broken(p: Process, fault=fault) -> int:
            raise fault

        monkeypatch.setitem(PROGRAMS, "id", broken)
        monkeypatch.setattr(Shell, "strict", False)
        result = Shell(machine).run("echo a; id; echo b")
        assert result.status == status and result.output.startswith("a\n") and result.timed_out == (status == 124)
        assert (result.output == "a\nSegmentation fault (core dumped)\n") == (status == 139)
        assert Shell(machine).run("echo still").output == "still\n"
    monkeypatch.setitem(PROGRAMS, "id", lambda p: 1 // 0)
    monkeypatch.setattr(Shell, "strict", True)
    with pytest.raises(ZeroDivisionError):
        Shell(machine).run("id")


def test_time_comes_from_the_machines_clock():
    machine = base_machine()
    start = machine.clock
    with no_hang():
        assert Shell(machine).run("sleep 1000; echo $SECONDS; touch /f").output == "1000\n"
    assert 1000 <= machine.clock - start < 1001
    assert machine.lookup("/f").mtime == pytest.approx(machine.clock, abs=1)


def test_jobs_take_their_time_on_the_machines_clock():
    machine = base_machine()
    start, threads = machine.clock, threading.active_count()
    bash = Shell(machine)
    with no_hang():
        said = bash.run("(sleep 50; echo late) & sleep 20; echo early; wait; echo $SECONDS").output
        assert said == "early\nlate\n50\n" and 50 <= machine.clock - start < 51
        assert bash.run("while :; do :; done & sleep 1; kill $!; wait $!; echo $?").output == "143\n"
        assert bash.run("for i in 1 2 3; do (sleep $i; echo $i >> /f) & done").output == ""
        assert bash.run("cat /f").output == "1\n2\n3\n"  # jobs go on for some seconds after their script
        assert bash.run("sleep infinity & wait").timed_out
        bash.run("while :; do sleep 1; done & while :; do echo x; done > /dev/null &")
    assert threading.active_count() == threads


@pytest.mark.parametrize(("script", "output"), CASES["jobs"])
def test_jobs_that_have_ended_are_not_listed(script, output):
    """A shell that is not interactive lists running jobs alone, as real bash did; `wait` still knows the others."""
    assert run(script).output == output


def test_quotes_around_an_index_in_arithmetic_mean_nothing():
    assert run('declare -A c; for w in a b a; do ((c["$w"]++)); done; echo ${c[a]} ${c[b]}').output == "2 1\n"
    assert run('declare -A c; k="a b"; c["$k"]=5; echo $((c["$k"] + 1))').output == "6\n"
    assert run("declare -A c; ((c['x'] += 2)); ((c[\"x\"] > 1)) && echo ${c[x]}").output == "2\n"
    assert run('a=(3 4); echo $((a["1"]))').output == "4\n"


def test_processes_stay_between_scripts():
    bash = Shell(base_machine())
    bash.run("sleep 1000 & echo $! > /pid; nohup sleep 900 > /dev/null 2>&1 &")
    assert bash.run("kill -0 $(cat /pid) && pgrep -c sleep; ps -o args= -p $(cat /pid)").output == "2\nsleep 1000\n"
    other = Shell(twin(bash.machine))
    assert other.run("kill $(cat /pid); sleep 0.1; kill -0 $(cat /pid); pgrep -c sleep").output.endswith("\n1\n")
    assert bash.run("pkill sleep; pgrep sleep || echo none").output == "none\n"


def test_the_container_lacks_what_ubuntus_lacks():
    bash = Shell(base_machine())
    for name in ("sudo", "nano", "at", "npm", "python3", "git", "curl"):
        assert bash.run(f"{name} x").output == f"bash: line 1: {name}: command not found\n"
    result = bash.run("apt-get install -y curl")
    assert result.status == 100 and result.output.endswith("E: Unable to locate package curl\n")
    result = bash.run("apt-get update")
    assert result.status == 0 and "Temporary failure resolving 'archive.ubuntu.com'" in result.output
    assert bash.run("id ubuntu; useradd bob; id -u bob; . /etc/os-release; echo $VERSION_ID").output == (
        "uid=1000(ubuntu) gid=1000(ubuntu) groups=1000(ubuntu),4(adm),20(dialout),24(cdrom),25(floppy),27(sudo),"
        "29(audio),30(dip),44(video),46(plugdev)\n1001\n24.04\n"
    )


def test_half_a_second_of_work_is_no_timeout():
    script = "i=0; while [ $i -lt 6000 ]; do i=$((i + 1)); x=$(echo $i); done; echo $x"
    assert run(script).output == "6000\n"


def test_commands_can_run_commands():
    """Process.run, which xargs, find and env use, with its own input, output and environment."""
    machine, seen = base_machine(), []

    def outer(p: Process) -> int:
        kept = pipe(p.machine)
        status = p.run(
            ["bash", "-c", "read x; echo $x$A; exit 4"], stdin=b"line\n", stdout=kept, env=p.env | {"A": "!"}
        )
        seen.append((status, kept.read()))
        for name, number in (("nope", errno.ENOENT), ("/etc/passwd", errno.EACCES), ("/etc", errno.EISDIR)):
            raises(number, p.run, [name])
        return 7

    from envs.simulators.shell.run import PROGRAMS

    PROGRAMS["outer"] = outer
    try:
        Caller(machine).write("/bin/outer", b"\x7fELFouter", mode=0o777)
        assert Shell(machine).run("outer < /dev/null; echo $?").output == "7\n"
    finally:
        del PROGRAMS["outer"]
    assert seen == [(4, b"line!\n")]


def test_results_do_not_depend_on_the_hash_seed():
    program = (
        "import sys; sys.path[:0] = ['tests', 'tests/envs', 'tests/parity']; import test_shell as t;"
        "print([t.run_in_work(s) for s in t.shell.written()[6::60]], end='')"
    )
    variables = os.environ | {"PYTHONHASHSEED": "77"}
    there = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, env=variables, text=True)
    assert there == str([run_in_work(script) for script in shell.written()[6::60]])


def test_parser_yields_one_complete_command_at_a_time():
    programs = Parser("echo a\necho b; fi\n").programs()
    assert len(next(programs)) == 1
    assert run("exit 3\nfi").status == 3
