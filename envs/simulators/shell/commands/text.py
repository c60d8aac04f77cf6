"""Commands on whole texts: cat, head, tail, wc, tee, nl, tac, rev, seq, yes."""

import re
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from functools import partial
from math import inf

from envs.simulators.shell.commands.options import Fail, getopt, inputs, lines, number, quote, quote_if, quote_value
from envs.simulators.shell.files import ENDLESS, MAX_TEXT, Timeout, text
from envs.simulators.shell.jobs import sleep
from envs.simulators.shell.process import Process


def cat(p: Process) -> None:
    long = {"show-all": "A", "number-nonblank": "b", "show-ends": "E", "number": "n", "squeeze-blank": "s"}
    options, files = getopt(p.argv, "AbeEnstTuv", long | {"show-tabs": "T", "show-nonprinting": "v"})
    flags = "".join(flag.replace("A", "vET").replace("e", "vE").replace("t", "vT") for flag in options)
    count, blank = 0, False
    for _, data in inputs(p, files):
        if not flags.strip("u"):
            p.out(data)
            continue
        p.tick(len(data) >> 4)
        shown = []
        for line in lines(data, keep=True):
            bare, end = (line[:-1], "\n") if line.endswith("\n") else (line, "")
            if "s" in flags and not bare and blank:
                continue
            blank = not bare
            if ("n" in flags or "b" in flags) and (bare or "b" not in flags):
                count += 1
                shown.append(f"{count:6}\t")
            shown.append(_visible(bare, flags) + ("$" if "E" in flags and end else "") + end)
        p.out("".join(shown))


def _visible(line: str, flags: str) -> str:
    if "T" in flags:
        line = line.replace("\t", "^I")
    if "v" not in flags:
        return line
    return re.sub(r"[^\t -~]", lambda found: _named(ord(found[0])), line)


def _named(code: int) -> str:
    """Return a character that is not printable as cat -v shows it."""
    prefix, code = ("M-", code - 128) if code >= 128 else ("", code)
    return prefix + (f"^{chr(code + 64)}" if code < 32 else "^?" if code == 127 else chr(code))


def _part_options(p: Process) -> tuple[dict, list[str], str, str]:
    """Return the options of head and tail (also -5), the files, the unit and the count."""
    argv, is_tail = list(p.argv), p.argv[0].endswith("tail")
    shape = r"([-+])(\d+)([clbkmqvf]*)" if is_tail else r"(-)(\d+)([clbkmqvf]*)"
    if found := re.fullmatch(shape, "".join(argv[1:2])):
        sign, digits, letters = found.groups()
        extra = [f"-{flag}" for flag in letters if flag in "qvf"]
        argv[1:2] = ["-c" if "c" in letters else "-n", sign.strip("-") + digits, *extra]
    long = {"lines:": "n", "bytes:": "c", "quiet": "q", "silent": "q", "verbose": "v", "zero-terminated": "z"}
    long |= {"follow::": "f", "retry": "F", "pid:": "p", "sleep-interval:": "s"} if is_tail else {}
    options, files = getopt(argv, "n:c:qvz" + ("fFs:" if is_tail else ""), long)
    unit, count = next((option for option in reversed(options.items()) if option[0] in "nc"), ("n", "10"))
    return options, files, unit, count


def _each_part(p: Process, flags: dict, files: list[str], cut, most: int = ENDLESS) -> None:
    """Print a part of each input under its header; `most` bytes are read of an endless device."""
    headers = "v" in flags or (len(files) > 1 and "q" not in flags)
    before = ""
    for name in files or ["-"]:
        try:
            data = text(p.stream(0).read(most) if name == "-" else p.read(name, most))
        except OSError as error:
            reading = error.strerror == "Is a directory"
            if reading and headers:
                p.out(f"{before}==> {name} <==\n")
                before = "\n"
            what = f"error reading {quote(name)}" if reading else f"cannot open {quote(name)} for reading"
            p.failed = p.fail(f"{what}: {error.strerror}")
            continue
        if headers:
            p.out(f"{before}==> {'standard input' if name == '-' else name} <==\n")
            before = "\n"
        p.out(cut(data))
    if flags.keys() & {"f", "F"} and files:
        _follow(p, [name for name in files if p.exists(name)])


def _follow(p: Process, files: list[str]) -> None:
    """Print what jobs append to files, until a signal or the time of a `timeout` ends it."""
    printed = {name: len(p.read(name)) for name in files}
    while True:
        sleep(p.machine, 1.0 if p.machine.jobs or p.machine.deadline < inf else inf)
        for name in files:
            data = p.read(name) if p.exists(name) else b""
            p.out(data[printed[name] :])
            printed[name] = len(data)


def _count(text: str, unit: str) -> int:
    return number(text, "number of lines" if unit == "n" else "number of bytes")


def head(p: Process) -> None:
    options, files, unit, count = _part_options(p)
    but_last, many = count.startswith("-"), _count(count.removeprefix("-"), unit)
    at = partial(_position, many=many, unit=unit, end="\0" if "z" in options else "\n", from_end=but_last)
    most = many if unit == "c" and not but_last else ENDLESS
    _each_part(p, options, files, lambda data: data[: at(data)], most)


def tail(p: Process) -> None:
    options, files, unit, count = _part_options(p)
    from_start, many = count.startswith("+"), _count(count.lstrip("+-") if count[:1] in "+-" else count, unit)
    many = max(0, many - 1) if from_start else many
    at = partial(_position, many=many, unit=unit, end="\0" if "z" in options else "\n", from_end=not from_start)
    _each_part(p, options, files, lambda data: data[at(data) :])


def _position(data: str, many: int, unit: str, end: str, from_end: bool) -> int:
    """Return the position so many bytes or lines after the start of a text, or before its end."""
    if unit == "c":
        return max(0, len(data) - many) if from_end else many
    return _before_last_lines(data, many, end) if from_end else _after_lines(data, many, end)


def _after_lines(data: str, many: int, end: str) -> int:
    """Return the position after the first lines."""
    at = 0
    for _ in range(min(many, len(data))):
        at = data.find(end, at) + 1
        if not at:
            return len(data)
    return at


def _before_last_lines(data: str, many: int, end: str) -> int:
    """Return the position where the last lines begin."""
    if not many:
        return len(data)
    at = len(data) - data.endswith(end)
    for _ in range(min(many, len(data) + 1)):
        at = data.rfind(end, 0, at)
        if at < 0:
            return 0
    return at + 1


COUNTS = {"l": lambda data: data.count(b"\n"), "w": lambda data: len(data.split()), "m": len, "c": len}
COUNTS |= {"L": lambda data: max(len(line.expandtabs()) for line in data.split(b"\n"))}


def wc(p: Process) -> None:
    long = {"lines": "l", "words": "w", "chars": "m", "bytes": "c", "max-line-length": "L"}
    options, files = getopt(p.argv, "lwcmL", long)
    flags = [flag for flag in "lwmcL" if flag in options] or ["l", "w", "c"]
    width = _wc_width(p, files, flags)
    totals = dict.fromkeys(flags, 0)
    for name in files or ["-"]:
        try:
            data = p.stdin if name == "-" else p.read(name)
        except OSError as error:
            p.failed = p.fail(f"{quote_if(name)}: {error.strerror}")
            if error.strerror != "Is a directory":
                continue
            data = b""
        p.tick(1 + (len(data) >> 8))
        counts = {flag: COUNTS[flag](data) for flag in flags}
        p.out(" ".join(f"{counts[flag]:{width}}" for flag in flags) + (f" {name}" if files else "") + "\n")
        totals = {f: max(totals[f], counts[f]) if f == "L" else totals[f] + counts[f] for f in flags}
    if len(files) > 1:
        p.out(" ".join(f"{totals[flag]:{width}}" for flag in flags) + " total\n")


def _wc_width(p: Process, files: list[str], flags: list[str]) -> int:
    """Return the width of wc's numbers: that of the sum of the sizes, 7 if one is not known beforehand."""
    if len(files) <= 1 and len(flags) == 1:
        return 1
    size, least = 0, 1
    for node in (p.stream(0).node if name == "-" else p.find(name) for name in files or ["-"]):
        if node is not None and node.kind == "file" and isinstance(node.data, bytes):
            size += node.size
        elif node is not None:
            least = 7
    return max(least, len(str(size)))


def tee(p: Process) -> None:
    options, files = getopt(p.argv, "aip", {"append": "a", "ignore-interrupts": "i", "output-error::": "p"})
    data, outputs = p.stdin, []
    for name in files:
        try:
            p.write(name, b"", append="a" in options)
            outputs.append(name)
        except OSError as error:
            p.failed = p.fail(f"{quote_if(name)}: {error.strerror}")
    p.out(data)
    for name in outputs:
        p.write(name, data, append=True)


def nl(p: Process) -> None:
    long = {"body-numbering:": "b", "number-width:": "w", "number-separator:": "s"}
    options, files = getopt(p.argv, "b:w:s:", long)
    chosen = {"b": "t", "w": "6", "s": "\t"} | options
    if chosen["b"][:1] not in ("a", "t", "n"):
        raise Fail(f"invalid body numbering style: {quote_value(chosen['b'])}", try_help=True)
    width = min(number(chosen["w"], "line number field width"), 1000)
    shown, count = [], 0
    for _, data in inputs(p, files):
        for line in lines(data):
            p.tick(1 + (width + len(chosen["s"]) + len(line) >> 8))
            if chosen["b"][0] == "a" or (chosen["b"][0] == "t" and line):
                count += 1
                shown.append(f"{count:{width}}{chosen['s']}{line}\n")
            else:
                shown.append(" " * (width + len(chosen["s"])) + line + "\n")
    p.out("".join(shown))


def tac(p: Process) -> None:
    _, files = getopt(p.argv, "")

    def problem(name: str, error: OSError) -> str:
        if error.strerror == "Is a directory":
            return f"{quote_if(name)}: read error: Invalid argument"
        return f"failed to open {quote(name)} for reading: {error.strerror}"

    for _, data in inputs(p, files, problem):
        p.out("".join(reversed(lines(data, keep=True))))


def rev(p: Process) -> None:
    _, files = getopt(p.argv, "")
    for _, data in inputs(p, files, lambda name, error: f"cannot open {name}: {error.strerror}"):
        p.out("\n".join(line[::-1] for line in data.split("\n")))


def seq(p: Process) -> None:
    long = {"separator:": "s", "format:": "f", "equal-width": "w"}
    split = 1
    while split < len(p.argv) and not p.argv[split].lstrip("-.")[:1].isdecimal():  # a negative number is no option
        split += 2 if p.argv[split] in ("-s", "-f") else 1
    chosen, operands = getopt(p.argv[:split], "s:f:w", long, permute=False)
    operands += p.argv[split:]
    separator, padded = chosen.get("s", "\n"), "w" in chosen
    form = _format(chosen["f"]) if "f" in chosen else None
    if not 0 < len(operands) < 4:
        what = f"extra operand {quote_value(operands[3])}" if operands else "missing operand"
        raise Fail(what, try_help=True)
    numbers = [_decimal(operand) for operand in operands]
    first = numbers[0] if len(numbers) > 1 else Decimal(1)
    step, last = numbers[1] if len(numbers) == 3 else Decimal(1), numbers[-1]
    if step == 0:
        raise Fail(f"invalid Zero increment value: {quote_value(operands[1])}", try_help=True)
    places = max(0, -min(first.as_tuple().exponent, step.as_tuple().exponent))
    shown = list(_sequence(p, first, step, last, form or f".{places}f", len(separator)))
    if padded and shown:
        width = max(map(len, shown))
        shown = [("-" if item[0] == "-" else "") + item.lstrip("-").zfill(width - (item[0] == "-")) for item in shown]
    if shown:
        p.out(separator.join(shown) + "\n")


def _format(said: str) -> str:
    """Return seq's -f as a format of Python's %; Fail if it is invalid, Timeout if it is too wide."""
    found = re.fullmatch(r"((?:[^%]|%%)*)(?:%([-+#0 ']*)(\d*)(?:\.(\d*))?L?(.?)(.*))?", said, re.DOTALL)
    before, flags, width, precision, letter, rest = found.groups() if found else ("", "", "", "", "", "")
    wrong = "has no % directive" if letter is None else "ends in %" if not letter else ""
    if letter and letter not in "efgEFG":
        wrong = f"has unknown %{letter} directive"
    elif letter and not re.fullmatch("(?:[^%]|%%)*", rest, re.DOTALL):
        wrong = "has too many % directives"
    if wrong:
        raise Fail(f"format {quote_value(said)} {wrong}")
    if max(int(width[:9] or 0), int((precision or "")[:9] or 0)) > MAX_TEXT:
        raise Timeout
    return f"{before}%{flags.replace(chr(39), '')}{width}{'' if precision is None else '.' + precision}{letter}{rest}"


def _sequence(p: Process, first: Decimal, step: Decimal, last: Decimal, form: str, between: int) -> Iterator[str]:
    value, size = first, 0
    while value <= last if step > 0 else value >= last:
        item = form % value if "%" in form else f"{value:{form}}"
        size += len(item) + between
        p.tick(1 + (len(item) >> 8))
        if size > MAX_TEXT:
            raise Timeout
        yield item
        value += step


def _decimal(operand: str) -> Decimal:
    try:
        value = Decimal(operand)
        if not value.is_finite() or len(operand) > 40 or abs(value.as_tuple().exponent) > 30:
            raise InvalidOperation
        return value
    except InvalidOperation:
        raise Fail(f"invalid floating point argument: {quote_value(operand)}", try_help=True) from None


def yes(p: Process) -> int:
    line = " ".join(p.argv[1:] or ["y"]) + "\n"
    while True:
        p.tick(100)
        p.out(line * (8192 // len(line) + 1))


COMMANDS = {command.__name__: command for command in (cat, head, tail, wc, tee, nl, tac, rev, seq, yes)}
