"""echo and printf, and strings quoted as `set -x`, `printf %q` and `declare -p` show them."""

import re
from math import inf

from envs.simulators.shell.files import MAX_TEXT, Timeout, raw
from envs.simulators.shell.process import Process
from envs.simulators.shell.words import ESCAPES, unescaped

ECHO = re.compile(r"\\(0[0-7]{0,3}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[abceEfnrtv\\])")
FORMAT = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|[abceEfnrtv\\\"'?])")
SPEC = re.compile(r"%([-+ 0#']*)(\*|\d+)?(?:\.(\*|-?\d*))?(?:[hlLqjzt]*(?=[a-zA-Z]))?([a-zA-Z%])?")
METAS = re.compile(r"[ \t\n'\"\\|&;()<>!{}*\[\]?^$`]|^[#~]|[=:]~")
CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\xff]")
MAX_WIDTH = 100_000  # of a printf field
INTEGER = re.compile(r"\s*([-+]?)(0[xX][0-9a-fA-F]+|\d+)")


def echo(p: Process, argv: list[str]) -> None:
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
    args = argv[2:] if argv[1:2] == ["--"] else argv[1:]
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
        made = _convert(call, kind, flags.replace("'", ""), min(width, MAX_WIDTH), precision)
        if made is None:
            call.complain(f"`{kind}': invalid format character")
            yield None
            return
        yield made.removesuffix("\0")
        if made.endswith("\0"):  # %b met a \c
            yield None


def _int(text: str | None) -> int | None:
    return None if text is None else int(text[:9]) if re.fullmatch(r"-?\d+", text) else 0


def _convert(call: Printf, kind: str, flags: str, width: int, precision: int | None) -> str | None:
    """Return the text of one conversion, which NUL ends where a \\c ends all output; None for an invalid letter."""
    if kind in "sbqc":
        text, stopped = call.next() or "", False
        if kind == "b":
            text, stopped = unescape(text)
        elif kind == "q":
            text = shown(text)
        elif kind == "c":
            text, precision = text[:1], None
        if precision is not None and precision >= 0:
            text = text[:precision]
        return (text.ljust(width) if "-" in flags else text.rjust(width)) + "\0" * stopped
    if kind in "diouxX":
        return conversion(flags, width, precision, kind, call.integer(call.next()))
    return conversion(flags, width, precision, kind, call.real(call.next())) if kind in "fFeEgG" else None


def conversion(flags: str, width: int, precision: int | None, kind: str, value: float) -> str:
    """Return a number as C's printf converts it."""
    if kind in "diouxX":
        value = int(value) if kind in "di" else int(value) % (1 << 64)
        flags = flags if precision is None else flags.replace("0", "")
        flags = flags if kind in "di" else flags.replace("+", "").replace(" ", "")
        if "#" in flags and (kind == "o" or not value):
            flags, digits = flags.replace("#", ""), len(f"{value:o}") + (value != 0)
            precision = max(precision or 0, digits) if kind == "o" else precision
        kind = kind.replace("u", "d")
    elif value != value or value in (inf, -inf):
        flags = flags.replace("0", "")
    size = "" if precision is None or precision < 0 else f".{min(precision, MAX_WIDTH if kind in 'dioxX' else 400)}"
    return f"%{flags}{width or ''}{size}{kind}" % value


# -- quoting


def traced(text: str) -> str:
    """Return a word as `set -x` prints it."""
    if not text or (METAS.search(text) and not CONTROL.search(text)):
        return "'" + text.replace("'", "'\\''") + "'"
    return dollar_quoted(text) if CONTROL.search(text) else text


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
