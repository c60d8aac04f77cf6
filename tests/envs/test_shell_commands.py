"""The simulated shell's commands: golden output of Debian's programs, and properties under any input."""

import gzip
import re
import shlex
import subprocess
import sys
import zlib
from pathlib import Path
from random import Random

import golden
import pytest
from conftest import no_hang
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[1] / "parity"))

import shell_commands
from cases import cases
from shell_commands import FILES, ROOTS, TABLES, WORK, entry, report

from envs.simulators.regex.match import compile_regex
from envs.simulators.shell import Machine, Shell, base_machine
from envs.simulators.shell.commands import COMMANDS
from envs.simulators.shell.commands.gzip import unpacked
from envs.simulators.shell.files import MAX_TEXT, Caller, Frozen, Timeout, raw, text

CASES = cases("shell_commands")

pytestmark = pytest.mark.all_only

Shell.strict = True  # errors of the simulator must be seen


def machine() -> Machine:
    """Return a machine with the files of the comparison."""
    made = base_machine()
    root = Caller(made, umask=0)
    for path, (kind, mode, uid, gid, *_, data) in FILES.items():
        if kind == "dir":
            node = root.lookup(path) if root.exists(path) else root.mkdir(path)
        else:
            node = root.symlink(data, path) if kind == "link" else root.write(path, raw(data))
        node.mode, node.uid, node.gid = mode, uid, gid
    for path, (*_, when, _) in FILES.items():
        node = root.lookup(path, follow=False)
        node.mtime = node.atime = when
    for name in root.lookup("/etc/skel").data.keys() - {".bashrc", ".profile"}:
        root.unlink(f"/etc/skel/{name}")
    return made


def state(made: Machine) -> dict[str, str]:
    """Return a machine's state as shell_commands.state does for the real root."""
    found, root = {}, Caller(made)

    def walk(top: str, node) -> None:
        for name, below in node.data.items():
            data = "" if below.kind == "dir" else below.data if below.kind == "link" else text(bytes(below.data))
            found[f"{top}/{name}"] = entry(below.kind, below.mode, below.uid, below.gid, below.nlink, data)
            if below.kind == "dir":
                walk(f"{top}/{name}", below)

    for top in ROOTS:
        if root.exists(top):
            walk(top, root.lookup(top))
    return found | {path: text(root.read(path)) for path in TABLES if root.exists(path)}


def ours(line: str) -> str:
    """Run a line on the simulated machine; format the result as shell_commands.report."""
    made = machine()
    before = state(made)
    result = Shell(made, cwd=WORK).run(line)
    return "timeout" if result.timed_out else report(result.output, result.status, before, state(made))


# -- beside the real programs


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.full) for part in range(2, 8))])
def test_command_lines_match_the_golden_output(part):
    cases = [(case["input"], case["output"]) for case in golden.read("shell_commands")[part::8]]
    assert len(cases) > 250
    wrong = [f"$ {line}\n{real}\n-- ours:\n{mine}" for line, real in cases if (mine := ours(line)) != real]
    assert not wrong, "\n\n".join(wrong)


def every_node(made: Machine) -> list[tuple]:
    """Return everything that a machine holds."""
    found, folders = [], [("", made.root)]
    for path, folder in folders:
        for name, node in folder.data.items():
            data = () if node.kind == "dir" else node.data
            found.append((path, name, node.mode, node.uid, node.gid, node.nlink, node.mtime, node.atime, data))
            if node.kind == "dir":
                folders.append((f"{path}/{name}", node))
    return found


def test_frozen_machine_rejects_every_change():
    """os_interaction tries conditions on a frozen machine: a line changes nothing or ends before its first change."""
    ended = 0
    for case in golden.read("shell_commands")[::6]:
        line, real, made = case["input"], case["output"], machine()
        made.frozen, before = True, every_node(made)
        try:
            result = Shell(made, cwd=WORK).run(line)
            assert report(result.output, result.status, {}, {}) == real, line
        except Frozen:
            ended += 1
        assert every_node(made) == before, line
    assert 50 < ended < 200


def test_all_commands_of_the_benchmark_exist():
    skills = (
        "addgroup awk cat chage chgrp chmod chown chsh cp find gpasswd grep groupadd ln ls mkdir mv rm sed sleep tee "
        "touch useradd usermod vi wc stat id getent head tail sort uniq cut tr xargs basename dirname date seq du df "
        "env which diff ps"
    )
    assert set(skills.split()) <= set(COMMANDS)


# -- regular expressions


def random_expression(rng: Random, depth: int = 3) -> str:
    kind = rng.random()
    if not depth or kind < 0.4:
        return rng.choice(["a", "b", "c", ".", "[ab]", "[^a]"])
    if kind < 0.6:
        return random_expression(rng, depth - 1) + random_expression(rng, depth - 1)
    if kind < 0.75:
        return f"({random_expression(rng, depth - 1)}|{random_expression(rng, depth - 1)})"
    body = rng.choice(["a", ".", "[bc]", f"({random_expression(rng, depth - 1)})"])
    return body + rng.choice(["*", "+", "?", "{1,2}", "{2}", "{0,3}"])


def test_regex_matches_are_never_shorter_than_python_res():
    rng = Random(1)
    for _ in range(1500):
        pattern, subject = random_expression(rng), "".join(rng.choices("abc", k=rng.randint(0, 9)))
        regex, theirs = compile_regex(pattern, "extended"), re.search(pattern, subject)
        mine = regex._machine(subject, 0, None)
        assert (mine is None) == (theirs is None) == (not regex.test(subject)), (pattern, subject)
        if mine:
            assert mine[0] == theirs.start() and mine[1] >= theirs.end(), (pattern, subject)
            ends = [end for end in range(len(subject) + 1) if re.compile(pattern).fullmatch(subject, mine[0], end)]
            assert mine[1] == max(ends), (pattern, subject)
            assert regex.search(subject)[:2] == mine[:2], (pattern, subject)


def test_basic_and_extended_dialects_differ_in_their_operators():
    found = lambda pattern, dialect, subject: (compile_regex(pattern, dialect).search(subject) or (None,))[:2]  # noqa: E731
    assert found(r"a\{2\}", "basic", "xaa") == found("a{2}", "extended", "xaa") == (1, 3)
    assert found("a{2}", "basic", "xa{2}") == (1, 5)
    assert found(r"\(a\|ab\)c", "basic", "abc") == found("(a|ab)c", "extended", "abc") == (0, 3)
    assert found("a|ab", "extended", "ab") == (0, 2)  # the longest
    assert found("a|ab", "perl", "ab") == (0, 1)  # the first
    assert found("*a", "basic", "x*a") == (1, 3)
    assert found(r"\(.\)\1", "basic", "abcc") == (2, 4)
    assert found("[]a]+", "extended", "x]a]") == (1, 4)
    assert found(r"foo\K\d+(?=;)", "perl", "foo12;") == (3, 5)
    assert found("a.*?b", "perl", "aabab") == (0, 3)


@pytest.mark.parametrize("pattern", ["(a*)*b", "(a|a)*b", "(a|aa)+$b", ".*.*.*.*=x", "(((a+)+)+)+b", "(a?){50}a{50}b"])
def test_pathological_regexes_take_linear_time(pattern):
    spent = []
    assert compile_regex(pattern, "extended").search("a" * 2000, 0, spent.append) is None
    assert sum(spent) < 10**6


def test_back_references_are_bounded_by_the_step_budget():
    script = "printf 'a%.0s' $(seq 300) | grep -E '(a*)*(a*)*\\1\\2b'"
    with no_hang():
        Shell(machine()).run(script)


# -- what is left out


@pytest.mark.parametrize(("line", "said"), CASES["missing features"])
def test_missing_features_are_named(line, said):
    result = Shell(machine(), cwd=WORK).run(line)
    assert result.output.split("\n")[0] == said and result.status not in (0, 139)


# -- any input


@pytest.mark.parametrize("script", CASES["endless"])  # fmt: skip
def test_endless_commands_time_out(script):
    with no_hang():
        assert Shell(machine()).run(script).timed_out, script


WORDS = st.one_of(
    st.text(st.characters(codec="latin-1"), max_size=12),
    st.sampled_from(
        ["-", "--", "-a", "-n", "-e", "-z", "--x", "-1", "+2", "/w/a.txt", "/w", "a.txt", "sub", "nope", "ann"]
    ),
    st.sampled_from(
        ["s/a/b/", "{print $1}", "(", ")", "!", "-name", "*", "[", "\\", "{}", ";", "755", "u+x", "1,2", "%s"]
    ),
    st.sampled_from(
        ["x" * 100_000, "(" * 3000, "{" * 3000, "[" * 3000, "-" * 3000, "!" * 3000, "$" * 3000, "\\(" * 3000]
    ),
)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(sorted(COMMANDS)), st.lists(WORDS, max_size=4), st.binary(max_size=40))
def test_any_arguments_return_a_status(name, words, data):
    made = machine()
    result = Shell(made, cwd=WORK).run(" ".join([name, *map(shlex.quote, words)]), stdin=data, max_steps=20_000)
    assert isinstance(result.output, str) and 0 <= result.status < 256


@pytest.mark.parametrize(
    "deep", ["awk 'BEGIN{x=%s1%s}'", "grep -E '%s1%s' a.txt", "expr %s 1 %s", "find . %s -name x %s"]
)
def test_deep_nesting_is_rejected(deep):
    blank = " " if deep.startswith(("expr", "find")) else ""
    line = deep % (("\\(" + blank if blank else "(") * 4000, (blank + "\\)" if blank else ")") * 4000)
    assert Shell(machine(), cwd=WORK).run(line).status


# -- users


def tables(made: Machine) -> dict[str, list[list[str]]]:
    return {name: made.records(f"/etc/{name}") for name in ("passwd", "shadow", "group", "gshadow")}


@pytest.mark.parametrize("seed", range(6))
def test_user_tables_stay_consistent_under_random_commands(seed):
    """Each user has one record in passwd and shadow, each group one in group and gshadow, with the same members."""
    rng, made = Random(seed), machine()
    users, groups = ["ann", "bob", "u1", "u2", "u3"], ["devs", "sudo", "g1", "g2", "ann", "u1"]
    shapes = """useradd -m {u}|useradd -G {g} {u}|userdel -r {u}|usermod -aG {g} {u}|usermod -G {g},{h} {u}|groupadd {g}
    usermod -l {v} {u}|groupdel {g}|groupmod -n {g} {h}|gpasswd -a {u} {g}|gpasswd -d {u} {g}|gpasswd -M {u},{v} {g}
    addgroup {g}|adduser {u} {g}|deluser {u} {g}|usermod -L {u}|passwd -d {u}|chage -M 5 {u}|usermod -u 1{n} {u}
    groupmod -g 1{n} {g}"""
    shapes = re.split(r"\||\n *", shapes)
    for _ in range(60):
        u, v = rng.choices(users, k=2)
        g, h = rng.choices(groups, k=2)
        line = rng.choice(shapes).format(u=u, v=v, g=g, h=h, n=rng.randint(100, 120))
        Shell(made).run(line)
        found = tables(made)
        names = [record[0] for record in found["passwd"]]
        assert sorted(names) == sorted({record[0] for record in found["shadow"]}) == sorted(set(names)), line
        members = {record[0]: record[3] for record in found["group"]}
        assert members == {record[0]: record[3] for record in found["gshadow"]}, line
        widths = {name: {len(record) for record in records} for name, records in found.items()}
        assert widths == {"passwd": {7}, "shadow": {9}, "group": {4}, "gshadow": {4}}, line


def test_only_root_changes_users_and_files_of_others():
    made = machine()
    said = lambda line, user="bob": Shell(made, user=user, cwd=WORK).run(line)  # noqa: E731
    assert (
        said("useradd x").output == "useradd: Permission denied.\nuseradd: cannot lock /etc/passwd; try again later.\n"
    )
    assert said("groupadd x").output.endswith("cannot lock /etc/group; try again later.\n")
    assert said("chmod 777 a.txt").output == "chmod: changing permissions of 'a.txt': Operation not permitted\n"
    assert said("chown bob a.txt").output == "chown: changing ownership of 'a.txt': Operation not permitted\n"
    assert said("cat b.txt").output == "cat: b.txt: Permission denied\n"
    assert said("rm -f a.txt").output == "rm: cannot remove 'a.txt': Permission denied\n"
    assert said("touch new").output == "touch: cannot touch 'new': Permission denied\n"
    assert said("mkdir new").output == "mkdir: cannot create directory 'new': Permission denied\n"
    assert said("cp a.txt new").output == "cp: cannot create regular file 'new': Permission denied\n"
    assert said("ls /home/ann").output == "ls: cannot open directory '/home/ann': Permission denied\n"
    assert said("sed -i s/a/b/ a.txt").status == 4
    assert said("id -un").output == "bob\n" and said("su - ann -c whoami", "root").output == "ann\n"
    assert said("grep -r x /home/ann 2>&1").status == 2


def test_sleeping_advances_only_the_machines_clock():
    made = machine()
    with no_hang():
        assert Shell(made).run("date +%F; sleep 86400; date +%F").output == "2024-05-06\n2024-05-07\n"


def test_output_does_not_depend_on_the_hash_seed():
    script = (
        "import sys; sys.path[:0] = sys.argv[1:]\nfrom test_shell_commands import ours\nimport shell_commands\n"
        "print([ours(shell_commands.draw(seed)) for seed in range(12)])"
    )
    tests = Path(__file__).parents[1]
    folders = [str(tests / "envs"), str(tests / "parity"), str(tests), str(tests.parent)]
    there = subprocess.check_output([sys.executable, "-c", script, *folders], env={"PYTHONHASHSEED": "1"}, text=True)
    assert there == f"{[ours(shell_commands.draw(seed)) for seed in range(12)]}\n" and len(there) > 300


@pytest.mark.parametrize(
    "command, status, text",  # as vi has them
    CASES["line zero"],
)
def test_vi_line_zero_means_line_one(command, status, text):
    lines = text.replace("  ", "+").replace(" ", "\n").replace("+", " ") + "\n"
    script = "cd /tmp; printf 'a\\nb\\nc\\n' > f; vi -es -c \"$1\" -c wq f; echo $?; cat f"
    assert Shell(base_machine()).run(script, args=(command,)).output == f"{status}\n{lines}"


def test_vi_search_in_an_empty_file_finds_nothing():
    assert Shell(base_machine()).run("cd /tmp; vi -es -c /dev/full -c wq none; echo $?").output == "1\n"


@pytest.mark.parametrize(("said", "shown"), CASES["dates"])
def test_signed_numbers_in_dates_shift_or_set_the_time_zone(said, shown):
    assert Shell(base_machine()).run(f"date -d '{said}' '+%F %T'").output == f"{shown}\n"


def test_a_compressed_file_that_is_too_large_is_a_timeout():
    packed = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = packed.compress(bytes(MAX_TEXT + 2)) + packed.flush()
    with pytest.raises(Timeout):
        unpacked(bomb)
    assert unpacked(gzip.compress(b"whole")) == b"whole"


def test_shuf_draws_each_line_once_in_an_order_of_its_own():
    machine = base_machine()
    first, second = (Shell(machine).run("seq 50 | shuf").output.split() for _ in range(2))
    assert sorted(first, key=int) == sorted(second, key=int) == [str(n) for n in range(1, 51)]
    assert first != second and first != sorted(first, key=int)
    assert Shell(base_machine()).run("seq 50 | shuf").output.split() == first, "the same machine draws the same"
    assert len(set(Shell(machine).run("shuf -i 1-9 -n 4").output.split())) == 4
