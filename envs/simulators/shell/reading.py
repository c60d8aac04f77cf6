"""read and mapfile: builtins that set variables from input."""

import re

from envs.simulators.shell.commands.options import Fail, ordered
from envs.simulators.shell.declaring import put_checked
from envs.simulators.shell.state import Misused
from envs.simulators.shell.words import NAME


def small_number(text: str) -> int:
    """Return a variable's number, 0 if it is not a number."""
    return int(text) if re.fullmatch(r"\d{1,9}", text) else 0


def parsed(argv: list[str], short: str) -> tuple[dict, list[str]]:
    """Return a builtin's options and operands."""
    try:
        found, operands = ordered(argv, short, permute=False)
    except Fail as failure:
        what, _, letter = failure.message.partition(" -- ")
        raise Misused(f"-{letter[1:-1]}: {what}") from None
    return dict(found), operands


def read(sh, argv) -> int:
    options, names = parsed(argv, "ersa:d:i:n:N:p:t:u:")
    for name in names:
        if not NAME.fullmatch(name.partition("[")[0]):
            return sh.fail(f"`{name}': not a valid identifier")
    line, status = _read_line(sh, options)
    if "a" in options:
        put_checked(sh, options["a"], {})
        for place, text in enumerate(_split(line, sh.ifs(), 0)):
            put_checked(sh, f"{options['a']}[{place}]", text)
        return status
    if not names:
        sh.put("REPLY", joined(line))
        return status
    fields = [joined(line)] if "N" in options else _split(line, sh.ifs(), len(names))
    for place, name in enumerate(names):
        put_checked(sh, name, fields[place] if place < len(fields) else "")
    return status


def _read_line(sh, options: dict) -> tuple[list[tuple[str, bool]], int]:
    """Return the characters of a line, each with whether a backslash protected it, and the status."""
    fd = small_number(options.get("u", "0"))
    stream = sh.stream(fd)
    limit = small_number(options.get("n") or options.get("N") or "0") or None
    end = b"\n" if "d" not in options else (options["d"][:1] or "\0").encode("latin-1")
    end = b"" if "N" in options else end
    out: list[tuple[str, bool]] = []
    while True:
        chunk = _some(stream, limit and limit - len(out), end)
        sh.machine.tick(len(chunk) >> 6)
        at = 0
        while at < len(chunk):
            c = chunk[at]
            at += 1
            if c == "\\" and "r" not in options:
                if at >= len(chunk):
                    chunk += _some(stream, limit and 1, end)
                if at < len(chunk):
                    if chunk[at] != "\n":
                        out.append((chunk[at], True))
                    elif limit is None:
                        chunk += _some(stream, None, end)
                    at += 1
            elif c.encode("latin-1") == end:
                return out, 0
            elif c != "\0":
                out.append((c, False))
        if limit is not None and len(out) >= limit:
            return out, 0
        if not chunk or limit is None:
            return out, 1


def joined(line: list[tuple[str, bool]]) -> str:
    return "".join(c for c, _ in line)


def _some(stream, count: int | None, end: bytes) -> str:
    """Return the rest of the line, or so many of its characters."""
    return stream.readline(end, count).decode("latin-1")


def _split(line: list[tuple[str, bool]], ifs: str, most: int) -> list[str]:
    """Split a line as read does: at most `most` fields (0: any number), the last with the rest."""
    blank = {c for c in ifs if c in " \t\n"}
    start, end = 0, len(line)
    while start < end and line[start][0] in blank and not line[start][1]:
        start += 1
    while end > start and line[end - 1][0] in blank and not line[end - 1][1]:
        end -= 1
    fields: list[str] = []
    at = start
    while at < end:
        if most and len(fields) == most - 1:
            return [*fields, _last_field(line[at:end], ifs)]
        begin = at
        while at < end and (line[at][0] not in ifs or line[at][1]):
            at += 1
        fields.append(joined(line[begin:at]))
        seen = False
        while at < end and not line[at][1] and (line[at][0] in blank or (line[at][0] in ifs and not seen)):
            seen = seen or line[at][0] not in blank
            at += 1
    return fields


def _last_field(rest: list[tuple[str, bool]], ifs: str) -> str:
    """Return the rest for the last variable, less one delimiter at its end if it is the only one."""
    text = joined(rest)
    if rest and rest[-1][0] in ifs and not rest[-1][1] and rest[-1][0] not in " \t\n":
        others = any(c in ifs and not protected for c, protected in rest[:-1])
        return text if others else text[:-1]
    return text


def mapfile(sh, argv: list) -> int | None:
    """Read the lines of the input into an array."""
    given, names = parsed(argv, "td:n:O:s:u:")
    count, skip, first = (small_number(given.get(flag, "0")) for flag in "nsO")
    end = (given.get("d", "\n") or "\0")[:1].encode("latin-1")
    name = names[0] if names else "MAPFILE"
    if not NAME.fullmatch(name):
        return sh.fail(f"`{name}': not a valid identifier")
    found = []
    while line := sh.stream(small_number(given.get("u", "0"))).readline(end):
        sh.machine.tick()
        found.append((line.removesuffix(end) if "t" in given else line).replace(b"\0", b"").decode("latin-1"))
        if count and len(found) == count + skip:
            break
    old = sh.vars.get(sh.target(name)) if "O" in given else None
    kept = dict(old.value) if old is not None and isinstance(old.value, dict) else {}
    put_checked(sh, name, kept | dict(enumerate(found[skip:], first)))
