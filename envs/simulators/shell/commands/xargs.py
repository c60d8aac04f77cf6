"""xargs: build and run commands from items on standard input."""

import re
from shlex import shlex

from envs.simulators.shell.commands.options import Fail, getopt, read
from envs.simulators.shell.files import MAX_TEXT, Timeout
from envs.simulators.shell.process import Process

MOST_ARGUMENTS = 5000  # of one command


def xargs(p: Process) -> int | None:
    long = {"null": "0", "arg-file:": "a", "delimiter:": "d", "replace::": "I", "max-lines::": "L", "max-args:": "n"}
    long |= {"no-run-if-empty": "r", "verbose": "t", "max-procs:": "P", "exit": "x", "max-chars:": "s"}
    chosen, command = getopt(p.argv, "0a:d:E:I:i::L:l::n:P:prs:tx", long, permute=False)
    command = command or ["echo"]
    for flag in chosen.keys() & {"n", "L", "P", "s"}:
        if not (chosen[flag] or "").isdecimal():
            raise Fail(f'invalid number "{chosen[flag]}" for -{flag} option', try_help=True)
        if flag in "nL" and not int(chosen[flag][:9]):
            raise Fail(f"value {chosen[flag]} for -{flag} option should be >= 1", try_help=True)
    data = read(p, chosen["a"]) if "a" in chosen else read(p, "-")
    last = chosen.get("E")  # the item at which input ends
    marker = chosen.get("I") or ("{}" if "I" in chosen or "i" in chosen else None)
    if "0" in chosen or "d" in chosen:
        escapes = {"\\n": "\n", "\\t": "\t", "\\0": "\0", "\\\\": "\\"}
        end = "\0" if "0" in chosen else escapes.get(chosen["d"], chosen["d"][:1] or "\0")
        rows = [[item] for item in data.removesuffix(end).split(end)] if data else []
    elif marker is not None:
        rows = [line.lstrip(" \t") for line in data.split("\n") if line.strip(" \t")]
        rows = [_unquoted(line)[:1] if re.search(r"['\"\\]", line) else [line] for line in rows]
    else:
        rows = [items for line in data.split("\n") if (items := _unquoted(line))]
    if last and not chosen.keys() & {"0", "d"}:
        ended = next((i for i, items in enumerate(rows) if last in items), len(rows))
        cut = [items[: items.index(last)] for items in rows[ended : ended + 1]]
        rows = rows[:ended] + [items for items in cut if items]
    if marker is not None:
        calls = [_filled(p, command, marker, row[0]) for row in rows]
    else:
        calls = _calls(command, rows, chosen)
        if not rows and "r" not in chosen:
            calls = [command]
    return _run_calls(p, calls, "t" in chosen)


def _filled(p: Process, command: list[str], marker: str, item: str) -> list[str]:
    """Return a command with an item in place of each marker."""
    size = sum(map(len, command)) + sum(part.count(marker) for part in command) * len(item)
    p.tick(size >> 8)
    if size > MAX_TEXT:
        raise Timeout
    return [part.replace(marker, item) for part in command]


def _unquoted(line: str) -> list[str]:
    """Return the items of a line, split at blanks, with quotes and backslashes removed."""
    if not ("'" in line or '"' in line or "\\" in line):
        return line.split()
    line += "\\" * ((len(line) - len(line.rstrip("\\"))) % 2)  # a backslash at the end stands for itself
    items = shlex(line, posix=True)
    items.whitespace_split, items.commenters, items.escapedquotes = True, "", ""
    try:
        return list(items)
    except ValueError:
        kind = "double" if items.state == '"' else "single"
        message = f"unmatched {kind} quote; by default quotes are special to xargs unless you use the -0 option"
        raise Fail(message) from None


def _calls(command: list[str], rows: list[list[str]], chosen: dict) -> list[list[str]]:
    if "L" in chosen or "l" in chosen:
        step = int((chosen.get("L") or chosen.get("l") or "1")[:9])
        groups = [[item for row in rows[i : i + step] for item in row] for i in range(0, len(rows), step)]
    else:
        items = [item for row in rows for item in row]
        step = int(chosen["n"][:9]) if "n" in chosen else MOST_ARGUMENTS
        groups = [items[i : i + step] for i in range(0, len(items), step)]
    return [command + group for group in groups]


def _run_calls(p: Process, calls: list[list[str]], verbose: bool) -> int | None:
    for argv in calls:
        p.tick(10)
        if verbose:
            p.stderr.write(" ".join(argv) + "\n")
        try:
            ended = p.run(argv, stdin=b"")
        except OSError as error:
            return p.fail(f"{argv[0]}: {error.strerror}", 127 if error.errno == 2 else 126)
        if ended == 255:
            return p.fail(f"{argv[0]}: exited with status 255; aborting", 124)
        if ended:
            p.failed = 123


COMMANDS = {"xargs": xargs}
