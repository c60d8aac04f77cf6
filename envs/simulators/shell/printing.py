"""echo and printf, and strings quoted as `set -x`, `printf %q` and `declare -p` show them."""

import re
import time

from envs.simulators.shell.files import MAX_TEXT, Timeout, raw
from envs.simulators.shell.process import Process
from envs.simulators.shell.words import ESCAPES, unescaped

ECHO = re.compile(r"\\(0[0-7]{0,3}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[abceEfnrtv\\])")
FORMAT = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|[abceEfnrtv\\\"'?])")
SPEC = re.compile(r"%([-+ 0#']*)(\*|\d+)?(?:\.(\*|-?\d*))?(?:[hlLqjzt]*(?=[a-zA-Z]))?([a-zA-Z%]|\([^)]*\)T)?")
METAS = re.compile(r"[ \t\n'\"\\|&;()<>!{}*\[\]?^$`]|^[#~]|[=:]~")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\xff]")
MAX_WIDTH = 100_000  # of a printf field
INTEGER = re.compile(r"\s*([-+]?)(0[xX][0-9a-fA-F]+|\d+)")


def echo(p: Process, argv: list[str]) -> int:
    """Print the arguments, with -e their escapes."""
    newline, escapes, at = True, False, 1
    while at < len(argv) and re.fullmatch("-[neE]+", argv[at]):
        newline = newline and "n" not in argv[at]
        for letter in argv[at][1:]:
            escapes = escapes if letter == "n" else letter == "e"
        at += 1
    text = " ".join(argv[at:])
    if escapes:
        text, stopped = unescape(text, ECHO)
        newline = newline and not stopped
    p.out(text + "\n" if newline else text)
    return 0


def unescape(text: str, escapes: re.Pattern = ECHO) -> tuple[str, bool]:
    """Return a text with its escapes replaced, and whether a \\c ended it early."""
    if "\\" not in text:
        return text, False
    stop = re.search(r"(?:[^\\]|^)(?:\\\\)*(\\c)", text, re.DOTALL) if escapes is ECHO else None
    if stop:
        text = text[: stop.start(1)]
    return escapes.sub(unescaped, text), stop is not None


class Printf:
    """One call of printf: the remaining arguments, and its errors."""

    def __init__(self, p: Process, args: list[str]):
        self.p, self.args, self.at, self.status = p, args, 0, 0

    def next(self) -> str | None:
        self.at += 1
        return self.args[self.at - 1] if self.at <= len(self.args) else None

    def integer(self, text: str | None) -> int:
        """Return the number of an argument: C's notations, or a quote and a character."""
        if not text:
            return 0
        if text[0] in "'\"":
            return ord(text[1]) if len(text) > 1 else 0
        match = INTEGER.match(text)
        if not match or match.end() != len(text):
            self.complain(f"{text}: invalid number")
        if not match:
            return 0
        sign, digits = match.groups()
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits[0] == "0" and len(digits) > 1 else 10
        if base == 8 and digits.strip("01234567"):
            self.complain(f"{text}: invalid octal number")
            return 0
        if len(digits) > 40:
            digits = "9" * 20
        value = int(digits, base)
        limit = 2**63 - 1
        return max(-limit - 1, -value) if sign == "-" else min(value, limit)

    def real(self, text: str | None) -> float:
        if not text:
            return 0.0
        match = re.match(r"\s*[-+]?(?:\d{1,400}\.?\d*|\.\d+)(?:[eE][-+]?\d{1,4})?|\s*[-+]?(?:inf|nan)", text)
        if not match or match.end() != len(text):
            self.complain(f"{text}: invalid number")
        return float(match.group()) if match else 0.0

    def complain(self, message: str) -> None:
        self.status = self.p.fail(message)


def printf(p: Process, argv: list[str]) -> int:
    """Print arguments by a format, which is repeated while there are arguments."""
    args = argv[1:]
    if args and args[0] == "--":
        args = args[1:]
    if not args:
        p.stderr.write("printf: usage: printf [-v var] format [arguments]\n")
        return 2
    text, status = formatted(p, args[0], args[1:])
    p.out(text)
    return status


def formatted(p: Process, form: str, args: list[str]) -> tuple[str, int]:
    """Return the output of printf and its status."""
    call, out, size = Printf(p, args), [], 0
    while True:
        before = call.at
        for piece in _once(call, form):
            if piece is None:
                return "".join(out), call.status
            out.append(piece)
            size += len(piece)
            if size > MAX_TEXT:
                raise Timeout
        p.tick(1 + (size >> 12))
        if call.at >= len(args) or call.at == before:
            return "".join(out), call.status


def _once(call: Printf, form: str):
    """Return the pieces of one use of the format; None marks the end of output."""
    at = 0
    while at < len(form):
        percent = form.find("%", at)
        if percent != at:
            yield unescape(form[at : percent if percent >= 0 else None], FORMAT)[0]
            if percent < 0:
                return
            at = percent
        match = SPEC.match(form, at)
        flags, width, precision, kind = match.groups()
        at = match.end()
        if kind is None:
            missing = form[at : at + 1]
            call.complain(f"`{missing}': invalid format character" if missing else "`%': missing format character")
            yield None
            return
        if kind == "%":
            yield "%"
            continue
        width = call.integer(call.next()) if width == "*" else int((width or "0")[:9])
        precision = call.integer(call.next()) if precision == "*" else _int(precision)
        if width < 0:
            flags, width = flags + "-", -width
        made = _convert(call, kind, flags, precision)
        if made is None:
            call.complain(f"`{kind}': invalid format character")
            yield None
            return
        text, numeric = made
        yield _pad(text.removesuffix("\0"), flags, min(width, MAX_WIDTH), numeric)
        if text.endswith("\0"):  # %b met a \c
            yield None


def _int(text: str | None) -> int | None:
    return None if text is None else int(text[:9]) if re.fullmatch(r"-?\d+", text) else 0


def _pad(text: str, flags: str, width: int, numeric: bool) -> str:
    if len(text) >= width:
        return text
    if "-" in flags:
        return text.ljust(width)
    if "0" in flags and numeric:
        sign = re.match(r"[-+ ]?(?:0[xX])?", text).group()
        return sign + text[len(sign) :].rjust(width - len(sign), "0")
    return text.rjust(width)


def _convert(call: Printf, kind: str, flags: str, precision: int | None) -> tuple[str, bool] | None:
    """Return the text of one conversion, and whether zeros may pad it; None for an invalid letter."""
    if kind in "sbqc":
        text = call.next() or ""
        stopped = False
        if kind == "b":
            text, stopped = unescape(text)
        elif kind == "q":
            text = shown(text)
        elif kind == "c":
            text = text[:1]
        if precision is not None and precision >= 0 and kind != "c":
            text = text[:precision]
        return text + "\0" * stopped, False
    if kind in "diouxX":
        value = call.integer(call.next())
        if kind in "ouxX":
            value %= 1 << 64
        digits = format(abs(value), {"d": "d", "i": "d", "u": "d"}.get(kind, kind))
        digits = digits.rjust(min(precision or 0, MAX_WIDTH), "0")
        if "#" in flags and value and kind in "oxX":
            digits = ("0" if kind == "o" else "0" + kind) + digits
        plus = ("+" if "+" in flags else " " if " " in flags else "") if kind in "di" else ""
        return ("-" if value < 0 else plus) + digits, precision is None
    if kind in "fFeEgG":
        value = call.real(call.next())
        sign = "+" if "+" in flags else " " if " " in flags else ""
        places = 6 if precision is None or precision < 0 else min(precision, 400)
        return format(value, f"{sign}{'#' if '#' in flags else ''}.{places}{kind}"), True
    if kind.endswith("T"):
        text = call.next()
        when = call.p.machine.clock if text in (None, "-1", "-2") else call.integer(text)
        return time.strftime(kind[1:-2] or "%H:%M:%S", time.gmtime(max(-(2**40), min(when, 2**40)))), False
    return None


# -- quoting


def traced(text: str) -> str:
    """Return a word as `set -x` prints it."""
    if not text:
        return "''"
    if CONTROL.search(text):
        return dollar_quoted(text)
    return "'" + text.replace("'", "'\\''") + "'" if METAS.search(text) else text


def shown(text: str) -> str:
    """Return a word as `printf %q` prints it."""
    if not text:
        return "''"
    if CONTROL.search(text):
        return dollar_quoted(text)
    return re.sub(r"([ \t'\"\\|&;()<>!{}*\[\]?^$`,]|^[#~]|(?<=[=:])~)", r"\\\1", text)


def declared(text: str) -> str:
    """Return a value as `declare -p` prints it."""
    if CONTROL.search(text):
        return dollar_quoted(text)
    return '"' + re.sub(r'([$`"\\])', r"\\\1", text) + '"'


def dollar_quoted(text: str) -> str:
    """Return a text as $'...'."""
    names = {v: "\\" + k for k, v in ESCAPES.items() if k != "e"} | {"'": "\\'", "\\": "\\\\"}
    return "$'" + "".join(names.get(c) or (c if " " <= c <= "~" else f"\\{raw(c)[0]:03o}") for c in text) + "'"
