"""Run command lines with the real programs, in a root of their own: their output, exit status and changes.

Needs Linux, root, `unshare` and Debian's bash, coreutils, grep, sed, findutils, diffutils, mawk, passwd, adduser and
vim. A tmpfs holds an overlay over the file system, in namespaces for mounts, processes and network that end with the
program.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import golden
from cases import cases
from parity import namespace

WORK = "/w"
ROOTS = (WORK, "/home", "/srv", "/etc/skel")  # what is made anew before each line, and looked at after it
TABLES = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid")
PROGRAMS = ("bash", "mawk", "sed", "find", "diff", "useradd", "adduser", "vi")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "TZ": "UTC",
}

TEXTS = cases("shell_commands_of_debian")
# path: (kind, mode, owner, group, time, content or target)
FILES = {path: tuple(node) for path, *node in TEXTS["files"]}


def available() -> str:
    """Return why the real programs cannot run in a root of their own, "" if they can."""
    return namespace.unavailable(PROGRAMS)


def real(lines: list[str]) -> list[str]:
    """Run each line with the real programs; format the results as `report`."""
    return namespace.run_inside("parity.shell_commands", lines, timeout=1800)


def inside() -> None:
    """Inside the namespaces: mount the overlay, then run each line."""
    root = namespace.overlay_root()
    namespace.mount("--rbind", "/dev", f"{root}/dev")
    os.chroot(root)
    os.umask(0o022)
    before = None
    answers = []
    for line in json.load(sys.stdin):
        fresh()
        before = before or state()
        try:
            done = subprocess.run(
                ["/bin/bash", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=ENVIRONMENT, cwd=WORK, timeout=10,
            )  # fmt: skip
            answers.append(report(done.stdout.decode("latin-1"), done.returncode, before, state()))
        except subprocess.TimeoutExpired:
            answers.append("timeout")
    json.dump(answers, sys.stdout)


def fresh() -> None:
    """Restore the files before each line."""
    for top in ROOTS:
        shutil.rmtree(top, ignore_errors=True)
    for path, (kind, mode, uid, gid, _, data) in FILES.items():
        if kind == "dir":
            os.makedirs(path, exist_ok=True)
        elif kind == "link":
            os.symlink(data, path)
        else:
            Path(path).write_bytes(data.encode("latin-1"))
        os.lchown(path, uid, gid)
        if kind != "link":
            os.chmod(path, mode)
    for path, (*_, time, _) in reversed(FILES.items()):
        os.utime(path, (time, time), follow_symlinks=False)


def state() -> dict[str, str]:
    """Return each compared path with its kind, mode, owner, links and content."""
    found = {}
    for top in ROOTS:
        for folder, folders, files in os.walk(top):
            for name in [*folders, *files]:
                path = f"{folder}/{name}"
                info = os.lstat(path)
                link = os.path.islink(path)
                kind = "link" if link else "dir" if os.path.isdir(path) else "file"
                data = os.readlink(path) if link else "" if kind == "dir" else Path(path).read_bytes().decode("latin-1")
                found[path] = entry(kind, info.st_mode & 0o7777, info.st_uid, info.st_gid, info.st_nlink, data)
    for path in TABLES:
        found[path] = Path(path).read_text()
    return found


def entry(kind: str, mode: int, uid: int, gid: int, links: int, data: str) -> str:
    """Return a node as one line."""
    if kind == "link":
        return f"link {uid}:{gid} {data}"
    if kind == "dir":
        return f"dir {mode:04o} {uid}:{gid}"
    return f"file {mode:04o} {uid}:{gid} {links} {data!r}"


def report(output: str, status: int, before: dict, after: dict) -> str:
    """Return a line's result in the golden file's format. Usage texts are cut after their first line."""
    output = re.sub(
        r"(?ms)^(Usage: [^\n]*\n(?:       \w+ -D[^\n]*\n)*)\n?(?:Options:\n|Program:\n|  -).*\Z", r"\1", output
    )
    shown = [f"| {line}" for line in output.split("\n")]
    if shown[-1] == "| ":
        shown.pop()
    elif output:
        shown.append("| (no newline)")
    if status:
        shown.append(f"status {status}")
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if path in TABLES:
            rows = (old or "").split("\n"), (new or "").split("\n")
            shown += [f"- {path} {row}" for row in rows[0] if row not in rows[1]]
            shown += [f"+ {path} {_undated(row)}" for row in rows[1] if row not in rows[0]]
            if sorted(rows[0]) == sorted(rows[1]):
                shown.append(f"~ {path} {','.join(row.split(':')[0] for row in rows[1])}")
        else:
            shown.append(f"+ {path} {new}" if new is not None else f"- {path}")
    return re.sub(r"[^\n -~]", lambda found: f"\\x{ord(found[0]):02x}", "\n".join(shown))


def _undated(row: str) -> str:
    """Return a record of /etc/shadow whose password was set today."""
    return re.sub(r"^([^:]*:[^:]*):(?:19849|2\d{4}):", r"\1:TODAY:", row) if row.count(":") == 8 else row


# -- lines drawn at random

WORDS: dict[str, list[str]] = {}
for _line in TEXTS["choices"].splitlines():
    _key, *_words = _line.split("  ")
    WORDS.setdefault(_key, []).extend({"EMPTY": "", "BLANK": " "}.get(_word, _word) for _word in _words)


def draw(seed) -> str:
    """Return a random command line."""
    rng = random.Random(f"shell commands {seed}")
    line = rng.choice(TEXTS["templates"]).replace(" $ ", " | ")
    line = re.sub(r"\{([A-Z])\}", lambda found: rng.choice(WORDS[found[1]]), line)
    return line.replace("{{", "{").replace("}}", "}")


KNOWN = ("usermod -d /srv/nope -m", "find . -type l")  # how lines begin that are known to differ
# and those with commands and options that the simulator lacks
KNOWN += ("cut --complement", "sort -c", "sort -V", "base64")
MISSING = re.compile(r"sed .*(y/abc/xyz/|[0-9,/~+!$abe'{;]l['};])")  # sed's y and l
DRAWN = 1800  # seeds of the lines in the golden file


def drawn(seeds: range) -> list[str]:
    """Return distinct random lines from fixed seeds."""
    lines = dict.fromkeys(draw(seed) for seed in seeds)
    return [line for line in lines if not (line.startswith(KNOWN) or MISSING.match(line))]


def cases() -> list[dict]:
    """Return the golden cases: the real programs' answers to the file's lines and to the drawn ones."""
    lines = list(dict.fromkeys([*(case["input"] for case in golden.read("shell_commands")), *drawn(range(DRAWN))]))
    return [golden.case(line, answer) for line, answer in zip(lines, real(lines), strict=True)]


if __name__ == "__main__" and sys.argv[1:] == ["inside"]:
    inside()
