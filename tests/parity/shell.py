"""Run scripts in real bash, in a root of its own: their output, exit status and files.

Needs Linux, root and `unshare`: a tmpfs holds an overlay over the file system, in namespaces for mounts, processes and
network that end with the program.
"""

import json
import os
import random
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import golden
from parity import namespace

ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "HOSTNAME": "localhost",
    "SHLVL": "0",
}
WORK = "/tmp/w"


def available() -> str:
    """Return why real bash cannot run in a root of its own, "" if it can."""
    return namespace.unavailable(("bash",))


def real(scripts: list[str]) -> list[dict]:
    """Run each script in bash in an empty folder; return {"output", "status", "files"} per script."""
    return namespace.run_inside("parity.shell", scripts, timeout=900)


def inside() -> None:
    """Inside the namespaces: mount the overlay, then run each script."""
    root = namespace.overlay_root()
    namespace.mount("-t", "tmpfs", "tmpfs", f"{root}/dev")
    namespace.mount("-t", "tmpfs", "tmpfs", f"{root}/tmp")
    os.umask(0)
    for name, minor in (("null", 3), ("zero", 5)):
        os.mknod(f"{root}/dev/{name}", 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"{root}/dev/{name}")
    os.umask(0o022)
    json.dump([one(root, script) for script in json.load(sys.stdin)], sys.stdout)


def one(root: str, script: str) -> dict:
    place = root + WORK
    shutil.rmtree(place, ignore_errors=True)
    os.mkdir(place)

    def enter():
        for number in (signal.SIGINT, signal.SIGQUIT):  # a shell in the background lets its programs ignore them
            signal.signal(number, signal.SIG_DFL)
        os.chroot(root)
        os.chdir(WORK)

    try:
        done = subprocess.run(
            ["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=ENVIRONMENT | {"PWD": WORK}, preexec_fn=enter, timeout=10,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"output": "", "status": 124, "files": {}}
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return {"output": done.stdout.decode("utf-8", "replace"), "status": status, "files": changed(files(Path(place)))}


def files(top: Path) -> dict[str, str]:
    """Return each path below a folder with its mode, and its text or target."""
    found = {}
    for path in sorted(top.rglob("*")):
        info = path.lstat()
        text = os.readlink(path) if path.is_symlink() else "" if path.is_dir() else path.read_bytes().decode("latin-1")
        mode = 0o777 if path.is_symlink() else stat.S_IMODE(info.st_mode)
        found[str(path.relative_to(top))] = (
            f"{'l' if path.is_symlink() else 'd' if path.is_dir() else '-'}{mode:04o} {text}"
        )
    return found


def changed(found: dict[str, str]) -> dict[str, str]:
    """Return the files that the prologue of a drawn script does not make."""
    return {path: what for path, what in found.items() if MADE.get(path) != what}


# -- scripts drawn at random

PROLOGUE = """x='a b' y='*.txt' z=hello.tar.gz n=5 s= a=(one 'two three' four)
touch a.txt b.txt c.md; mkdir -p d/e; echo 'one two' > f; printf '1:2:3\\nb c\\n' > g
"""
MADE = {"a.txt": "-0644 ", "b.txt": "-0644 ", "c.md": "-0644 ", "d": "d0755 ", "d/e": "d0755 ", "f": "-0644 one two\n"}
MADE["g"] = "-0644 1:2:3\nb c\n"  # what the prologue leaves
NAMES = ("x", "y", "z", "n", "s", "u", "1")
PATTERNS = ("*", "?", "a*", "*.*", "l", "[a-l]", "*o", ".tar", "[!a-h]*", "'*'", "o.", "h?l", "$x", "b", "*[0-9]")


class Draw:
    """Draw scripts: `script()` returns one whose statements all end."""

    def __init__(self, seed):
        self.rng = random.Random(f"shell {seed}")

    def one(self, *choices):
        choice = self.rng.choice(choices)
        return choice() if callable(choice) else choice

    def name(self):
        return self.rng.choice(NAMES)

    def parameter(self):
        name, pattern = self.name(), self.rng.choice(PATTERNS)
        word = self.one("w", "'q w'", "$n", '"d  q"', "", "~", "{1,2}")
        return self.one(
            f"${name}",
            f"${{{name}}}",
            f"${{#{name}}}",
            f"${{{name}{self.one(':-', '-', ':+', '+')}{word}}}",
            f"${{{name}{self.one('#', '##', '%', '%%')}{pattern}}}",
            f"${{{name}{self.one('/', '//', '/#', '/%')}{pattern}/{self.one('X', '<&>', '', '$n')}}}",
            f"${{{name}{self.one('^', '^^', ',', ',,')}}}",
            f"${{{name}:{self.one('1', '0:2', ' -2', '2:1', '9', ':2')}}}",
            "$@",
            "$*",
            "$#",
            "${a[@]}",
            "${a[*]}",
            "${#a[@]}",
            "${a[1]}",
            "${!a[@]}",
            "${a[@]:1}",
            f"${{a[@]{self.one('#', '%')}{pattern}}}",
        )

    def arithmetic(self, depth=2):
        if not depth:
            return self.one("1", "2", "7", "n", "$n", "-3", "0x10", "u")
        left, right = self.arithmetic(depth - 1), self.arithmetic(depth - 1)
        operator = self.one(*"+-*<>&|^", "<=", "==", "!=", "&&", "||", "<<", ",")
        return self.one(
            f"{left} {operator} {right}",
            f"({left}) {operator} {right}",
            f"!{left}",
            f"{left} ? {right} : 9",
            f"~ {left}",
        )

    def word(self, depth=2):
        return self.one(
            "w",
            "a.b",
            "'s q'",
            '"d q"',
            "a\\ b",
            "*",
            "*.txt",
            "d/*",
            "[ab].*",
            "nope*",
            "{p,q}r",
            "{1..3}",
            "x{1,2}y",
            "~",
            "''",
            self.parameter,
            self.parameter,
            lambda: f'"{self.parameter()}"',
            lambda: f'"<{self.parameter()}>"',
            lambda: f"[{self.parameter()}]",
            lambda: f"$(({self.arithmetic()}))",
            lambda: f"$(echo {self.word(depth - 1)})" if depth else "w",
            lambda: f'"$(echo {self.word(depth - 1)})"' if depth else "w",
            lambda: f"{self.parameter()}{self.parameter()}",
        )

    def words(self):
        return " ".join(self.word() for _ in range(self.rng.randint(1, 3)))

    def test(self):
        left, right = (
            self.one('"$x"', "$n", "$z", '"$s"', "$u", '"$y"', "ab"),
            self.one("5", "ab", '"a b"', "''", "hello.tar.gz"),
        )
        pattern = self.rng.choice(PATTERNS)
        return self.one(
            f"[ {left} = {right} ]",
            f"[ {left} != {right} ]",
            f"[ -n {left} ]",
            f"[ -z {left} ]",
            f"[ $n -{self.one('eq', 'lt', 'ge')} {self.arithmetic(0)} ]",
            f"[ -{self.one(*'efds')} {self.one('a.txt', 'd', 'nope', 'f')} ]",
            f"[ {left} = {right} -o -f f ]",
            f"[ ! {left} = {right} -a 1 = 1 ]",
            f"[[ {left} == {pattern} ]]",
            f"[[ {left} != {pattern} && -e f ]]",
            f"[[ {left} =~ " + self.one("^a", "l+", "[0-9]$", "(.)b", "^.{1,3}$") + " ]]",
            f"[[ $n -gt {self.arithmetic(0)} || ! {left} ]]",
            f"(( {self.arithmetic()} ))",
            "true",
            "false",
            "test $n",
            "! true",
        )

    def simple(self):
        return self.one(
            lambda: f"echo {self.words()}",
            lambda: f"echo {self.words()}",
            lambda: f"printf '<%s>' {self.words()}; echo",
            lambda: f'v={self.word()}; echo "$v"',
            lambda: f'a[{self.one("0", "2", "7", "n", "-1")}]={self.word()}; echo "${{a[@]}}" ${{!a[@]}}',
            lambda: f"set -- {self.words()}; echo $#",
            lambda: f"((n{self.one('+=', '-=', '*=', '=')}{self.arithmetic(1)})); echo $? $n",
            lambda: f"{self.test()}; echo $?",
            lambda: f"read {self.one('v w', '-r v', '-a v', 'v')} < {self.one('f', 'g')}" + '; echo "$v|$w|${v[1]}"',
            lambda: f"cat {self.one('f', 'g', 'nope', '< f')}",
            lambda: f"echo {self.word()} {self.one('> h', '>> h', '>&2', '2>&1', '> d', '> h 2>&1', '&> h')}; cat h",
            "unset v x",
            "cd d && pwd; cd ..",
            lambda: f"eval 'echo {self.one('$x', '$n; echo two', '$((n+1))')}'",
            lambda: f"local v={self.word()}",
            "shift; echo $# $?",
            "nope",
            "false",
            "return 3",
            lambda: f"cat <<E\n{self.parameter()} $(({self.arithmetic(1)})) 'q' \\$x\nE\n",
            lambda: f"cat <<< {self.word()}",
            lambda: f"IFS={self.one('.', ':', 'o', '')}; echo $z",
            lambda: f'echo ${{v:={self.word()}}}; echo "$v"',
            lambda: f"let 'n = {self.arithmetic(1)}'; echo $n",
            lambda: f"declare -{self.one(*'iulx')} v={self.one('ABc', '1+2', 'n')}; echo $v",
        )

    def statement(self, depth=2):
        if not depth or self.rng.random() < 0.5:
            return self.simple()

        def body():
            inner = [self.statement(depth - 1) for _ in range(self.rng.randint(1, 2))]
            return "; ".join(inner).replace("\n;", "\n")

        return self.one(
            lambda: f"if {self.test()}; then {body()}\nelse {body()}\nfi",
            lambda: f'for i in {self.words()}; do echo "$i"; {body()}\ndone',
            lambda: (
                f"for ((i=0; i<{self.rng.randint(1, 3)}; i++)); do {body()}\n{self.one('continue', 'break', ':')}\ndone"
            ),
            lambda: f"case {self.word()} in {self.rng.choice(PATTERNS)}) {body()}\n:;; *) {body()}\n:;; esac",
            lambda: f"{{ {body()}\n}}",
            lambda: f"( {body()}\n)",
            lambda: f"f() {{ {body()}\n}}; f {self.words()}; echo $?",
            lambda: f"{self.test()} && {self.simple()} || {self.simple()}",
            lambda: f'{{ {body()}\n}} 2>&1 | while read -r v w; do echo "$w-$v"; done',
            lambda: f'v=$(echo {self.words()}; {self.test()}; echo $?); echo "$v"',
            lambda: f"{{ {body()}\n}} > k{depth} 2>&1; cat k{depth}",
            lambda: f"set -{self.one(*'efu')}; {body()}",
            lambda: f"{{ {self.simple()}\n}} 2>&1 | cat",
            lambda: f"! {self.test()}; echo $?",
            lambda: f"while read v; do {body()}\ndone < g",
        )

    def script(self):
        return PROLOGUE + "\n".join(self.statement() for _ in range(self.rng.randint(1, 3)))


# Seeds whose scripts meet bash's own faults: a \x01 that leaks out of an empty IFS, and the error of a token two ahead.
FAULTS = (223, 841)


def generated(count: int) -> list[str]:
    """Return random scripts from fixed seeds."""
    return [Draw(seed).script() for seed in range(count + len(FAULTS)) if seed not in FAULTS][:count]


def written() -> list[str]:
    """Return the scripts of shell_cases.txt."""
    text = Path(__file__).with_name("shell_cases.txt").read_text()
    return [script.strip("\n") for script in text.split("\n%%\n")]


def golden_scripts() -> list[str]:
    """Return the inputs of tests/golden/shell.jsonl, in order."""
    return written() + generated(2000)


def cases() -> list[dict]:
    """Return the golden cases: each script, and its output, exit status and files under real bash."""
    scripts = golden_scripts()
    return [golden.case(script, result) for script, result in zip(scripts, real(scripts), strict=True)]


if __name__ == "__main__" and sys.argv[1:] == ["inside"]:
    inside()
