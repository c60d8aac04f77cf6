"""The part of the parser that reads words: quotes, and everything that begins with a dollar or a backtick.

It reads the text in one pass, without tokens, because a character's meaning depends on its context.
"""

import re
from bisect import bisect_left
from functools import lru_cache

from envs.simulators.shell.tree import Arith, Double, Lit, Param, Quoted, Subst, SyntaxFailed, Word, make_word

MAX_DEPTH = 60  # commands and expansions inside one another
PLAIN = re.compile(r"[^ \t\n;&|<>()'\"\\$`]+")
NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
PARAMETER = re.compile(r"[A-Za-z_]\w*|\d+|[@*#?$!-]", re.ASCII)
SHORT = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]", re.ASCII)
OPERATION = re.compile(r":?[-=+?]|##?|%%?|//?|\^\^?|,,?|:")
INSIDE_ARITHMETIC = re.compile(r"[()]|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"|[^()\\'\"]+|['\"]", re.DOTALL)
ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
ANSI = re.compile(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|c.|.)", re.DOTALL)


class Words:
    """The part of the parser that reads words; the other part reads commands, and each needs the other."""

    def __init__(self, source: str, line: int = 1):
        self.s, self.i, self.n = source, 0, len(source)
        self.first_line = line
        self.breaks = [m.start() for m in re.finditer("\n", source)] if "\n" in source else []
        self.pending: list = []  # here-documents whose bodies come behind the line
        self.depth = self.inside = 0  # nesting, and that of command substitutions
        self.warnings: list[tuple[int, str]] = []
        self.extglob = False  # whether @(a|b) and its like are words

    def line(self, at: int | None = None) -> int:
        """Return the line number of a position."""
        return self.first_line + (bisect_left(self.breaks, self.i if at is None else at) if self.breaks else 0)

    def last_line(self) -> int:
        """Return the line number at which bash notices the end of the text."""
        return self.first_line + len(self.breaks) + (0 if self.s.endswith("\n") else 1)

    def enter(self) -> None:
        """Enter a deeper level of nesting, which is limited."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise SyntaxFailed(self.line(), "memory exhausted")

    def unclosed(self, start: int, end: str) -> SyntaxFailed:
        return SyntaxFailed(self.line(start), f"unexpected EOF while looking for matching `{end}'")

    def word(self, plain: re.Pattern = PLAIN) -> Word:
        """Read the current word; there must be one."""
        start, parts = self.i, []
        s = self.s
        while self.i < self.n:
            if match := plain.match(s, self.i):
                parts.append(Lit(match.group()))
                self.i = match.end()
                continue
            c = s[self.i]
            if c == "<" or c == ">":
                if s[self.i + 1 : self.i + 2] != "(":
                    break
                self.i += 1
                parts.append(Subst(self.substitution().program, file=True, into=c == ">"))
            elif c in "'\"\\$`":
                part = self.part(c)
                if part:
                    parts.append(part)
            elif c == "(" and self.extglob and self.i > start and s[self.i - 1] in "?*+@!":
                self.read_group(parts)
            else:
                break
        return make_word(parts, s[start : self.i])

    def read_group(self, parts: list) -> None:
        """Read the parentheses of an extended glob, with all that is in them, behind the sign that is there."""
        start, depth = self.i, 0
        while self.i < self.n:
            c = self.s[self.i]
            depth += (c == "(") - (c == ")")
            self.i += 1
            for part in (Lit(c), *(self.parts("()", False) if depth else ())):
                if type(part) is Lit and parts and type(parts[-1]) is Lit:
                    parts[-1] = Lit(parts[-1].text + part.text)
                else:
                    parts.append(part)
            if not depth:
                return
        raise self.unclosed(start, ")")

    def part(self, c: str, double: bool = False):
        """Read a part that begins with a quote, a backslash, a dollar or a backtick; None for a continued line."""
        start = self.i
        if c == "'":
            end = self.s.find("'", start + 1)
            if end < 0:
                raise self.unclosed(start, "'")
            self.i = end + 1
            return Quoted(self.s[start + 1 : end])
        if c == '"':
            self.i += 1
            parts = self.parts('"', double=True)
            if self.i >= self.n:
                raise self.unclosed(start, '"')
            self.i += 1
            return Double(parts)
        if c == "\\":
            self.i = min(start + 2, self.n)
            escaped = self.s[start + 1 : start + 2]
            return None if escaped == "\n" else Quoted(escaped or "\\")
        return self.dollar(double) if c == "$" else self.backticks(double)

    def parts(self, stops: str, double: bool) -> list:
        """Read parts up to one of the stops, which stays: as between double quotes, or as in a word with blanks."""
        out: list = []
        literal = Quoted if double else Lit
        run = _run(stops, double)
        while self.i < self.n:
            match = run.match(self.s, self.i)
            if match.end() > self.i:
                out.append(literal(match.group()))
                self.i = match.end()
                continue
            c = self.s[self.i]
            if c in stops:
                break
            if c == "\\" and double:
                follow = self.s[self.i + 1 : self.i + 2]
                self.i += 2 if follow else 1
                if follow != "\n":
                    known = follow and (follow in "$`\\" or follow in stops)
                    out.append(Quoted(follow if known else "\\" + follow))
            elif part := self.part(c, double):
                out.append(part)
        return out

    def piece(self, stops: str, double: bool) -> Word:
        """Read a word inside braces, up to a stop."""
        start = self.i
        return make_word(self.parts(stops, double), self.s[start : self.i])

    def backticks(self, double: bool) -> Subst:
        start = self.i
        match = re.compile(r"`((?:[^`\\]|\\.)*)`", re.DOTALL).match(self.s, start)
        if not match:
            raise self.unclosed(start, "`")
        self.i = match.end()
        inner = re.sub(r'\\([$`\\"])' if double else r"\\([$`\\])", r"\1", match.group(1))
        self.enter()
        parser = type(self)(inner, self.line(start))
        parser.depth = self.depth
        program = list(parser.programs())
        self.depth -= 1
        return Subst([item for line in program for item in line])

    def dollar(self, double: bool):
        """Read an expansion that begins with a dollar."""
        start, c = self.i, self.s[self.i + 1 : self.i + 2]
        if c == "(":
            if self.s.startswith("((", start + 1):
                inner = self.arithmetic(start + 3)
                if inner is not None:
                    return Arith(inner)
            self.i += 1
            return self.substitution()
        if c == "[" and (end := self.s.find("]", start)) > 0:
            self.i = end + 1
            return Arith(self.expression(self.s[start + 2 : end], start))
        if c == "{":
            self.i += 2
            self.enter()
            part = self.braced(start, double)
            self.depth -= 1
            return part
        if match := SHORT.match(self.s, start + 1):
            self.i = match.end()
            return Param(match.group())
        self.i += 1
        if c == "'" and not double:
            match = re.compile(r"'((?:[^'\\]|\\.)*)'", re.DOTALL).match(self.s, self.i)
            if not match:
                raise self.unclosed(self.i, "'")
            self.i = match.end()
            return Quoted(ANSI.sub(unescaped, match.group(1)).partition("\0")[0])
        if c == '"' and not double:
            return self.part('"')
        return Quoted("$") if double else Lit("$")

    def substitution(self) -> Subst:
        """Read the program between parentheses; the position is at the opening one."""
        self.enter()
        self.inside += 1
        self.i += 1
        program = self.sequence((")",), may_be_empty=True)
        if self.i >= self.n:
            raise SyntaxFailed(self.last_line(), "unexpected EOF while looking for matching `)'")
        self.i += 1
        self.inside -= 1
        self.depth -= 1
        return Subst(program)

    def arithmetic(self, start: int) -> Word | None:
        """Read the expression between `((` and `))`; None, without moving, if it does not end so."""
        depth, at = 0, start
        while True:
            match = INSIDE_ARITHMETIC.match(self.s, at)
            if not match:
                raise SyntaxFailed(self.line(), "unexpected EOF while looking for matching `)'", status=1)
            if match.group() == "(":
                depth += 1
            elif match.group() == ")":
                if not depth:
                    break
                depth -= 1
            at = match.end()
        if not self.s.startswith("))", at):
            return None
        inner = self.s[start:at]
        self.i = at + 2
        return self.expression(inner, start)

    def expression(self, inner: str, start: int) -> Word:
        """Return arithmetic text as a word; double quotes in it mean nothing."""
        if not re.search(r"[$`\\\"]", inner):
            return Word([], inner, inner)
        self.enter()
        parser = type(self)(inner, self.line(start))
        parser.depth = self.depth
        parts = parser.parts("", double=True)
        self.depth -= 1
        return make_word([Double(parts)], inner)

    def braced(self, start: int, double: bool) -> Param:
        """Read `${...}` after its brace."""
        s, op, index = self.s, "", None
        if s.startswith("#", self.i) and not re.compile(r"#\}|#:?[-=+?]\w*\}").match(s, self.i):
            op, self.i = "length", self.i + 1
        elif s.startswith("!", self.i) and not s.startswith("!}", self.i):
            op, self.i = "indirect", self.i + 1
        match = PARAMETER.match(s, self.i)
        if not match:
            return self.bad(start)
        name, self.i = match.group(), match.end()
        if s.startswith("[", self.i):
            self.i += 1
            index = self.piece("]", False)
            self.i += 1
        if op == "indirect" and index and index.source in ("@", "*"):
            op = "keys"
        if s.startswith("}", self.i):
            self.i += 1
            return Param(name, index, op, source=s[start : self.i])
        match = OPERATION.match(s, self.i)
        if not match or op:
            return self.bad(start)
        op, self.i = match.group(), match.end()
        arg, arg2 = self.arguments(op, double)
        if self.i >= self.n:
            raise self.unclosed(start, "}")
        self.i += 1
        return Param(name, index, op, arg, arg2, s[start : self.i])

    def arguments(self, op: str, double: bool) -> tuple[Word | None, Word | None]:
        """Read the operand of `${name op ...}`."""
        if op == ":":
            offset = self.piece(":}", True)
            if not self.s.startswith(":", self.i):
                return offset, None
            self.i += 1
            return offset, self.piece("}", True)
        if op[0] == "/":
            sign = self.s[self.i : self.i + 1] if op == "/" else ""
            if sign and sign in "#%":
                self.i += 1
            pattern = self.piece("/}", False)
            pattern = Word([Lit(sign), *pattern.parts]) if sign and sign in "#%" else pattern
            if not self.s.startswith("/", self.i):
                return pattern, None
            self.i += 1
            return pattern, self.piece("}", False)
        return self.piece("}", double and op[0] not in "#%^,"), None

    def bad(self, start: int) -> Param:
        """Return a part for an invalid expansion in braces: an error when it is expanded."""
        end = self.s.find("}", self.i)
        if end < 0:
            raise self.unclosed(start, "}")
        self.i = end + 1
        return Param("", op="bad", source=self.s[start : self.i])


@lru_cache(64)
def _run(stops: str, double: bool) -> re.Pattern:
    """Return the characters without a special meaning before one of the stops."""
    quotes = ("" if double and "}" not in stops else '"') + ("" if double else "'")
    return re.compile(f"[^{re.escape(stops)}$`\\\\{quotes}]*")


def unescaped(match: re.Match) -> str:
    """Return the character of an escape: \\n, \\101, \\x41, \\u00e9 or \\cA; others stay as they are."""
    code = match.group(1)
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if code[0] == "x" or number < 128 else encoded(number)
    if code[0] in "01234567":
        return chr(int(code, 8) & 255)
    if code[0] == "c" and len(code) > 1:
        return chr(ord(code[1]) & 31)
    return ESCAPES.get(code) or (code if code in "\\'\"?" else match.group())


def encoded(number: int) -> str:
    """Return a character beyond ASCII as the C locale prints it."""
    return f"\\u{number:04X}" if number < 65536 else f"\\U{number:08X}"
