"""Evaluate arithmetic as `$(( ))`, `(( ))`, `let` and array indices do: C's operators on 64-bit integers, variables
evaluated recursively, and bash's error messages, which name the token at which bash notices the error."""

import operator
import re
from collections.abc import Callable

TOKEN = re.compile(
    r"\s*(?:(\d+#[0-9a-zA-Z@_]*|\d[0-9a-zA-Z_]*)|([A-Za-z_]\w*)"
    r"|(<<=|>>=|\*\*|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%=<>!~&|^?:,()]))",
    re.ASCII,
)
LEVEL = {"||": 1, "&&": 2, "|": 3, "^": 4, "&": 5, "==": 6, "!=": 6, "<": 7, ">": 7, "<=": 7, ">=": 7, "<<": 8, ">>": 8}
LEVEL |= {"+": 9, "-": 9, "*": 10, "/": 10, "%": 10, "**": 11}
ASSIGNING = {"=", "+=", "-=", "*=", "/=", "%=", "<<=", ">>=", "&=", "^=", "|="}
MAX_DEPTH = 40  # parentheses and variables inside one another


class ArithmeticFailed(Exception):
    """An error in arithmetic; its text is bash's message, which begins with the expression."""


def wrap(value: int) -> int:
    """Return a number wrapped to 64 bits."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def steps(text: str) -> int:
    """Return what an expression costs in steps of the machine; the first 32 characters are in its command's steps."""
    return max(0, len(text) - 32) >> 1


def evaluate(text: str, get: Callable, put: Callable, depth: int = 0) -> int:
    """Return the value of an expression; `get(name, index)` and `put(name, index, value)` access variables."""
    if text.isdecimal() and text[0] != "0" and len(text) < 18:
        return int(text)
    return Expression(text, get, put, depth).whole()


class Expression:
    """A parser of one expression that evaluates while it parses; `dry` parts are parsed only."""

    def __init__(self, text: str, get, put, depth: int = 0):
        self.text, self.get, self.put, self.depth = text, get, put, depth
        self.at, self.start = 0, 0  # behind the token at hand, and where it begins
        self.kind = self.token = ""
        self.dry = 0

    def whole(self) -> int:
        if self.depth > MAX_DEPTH:
            raise self.failed("expression recursion level exceeded")
        self.advance()
        if not self.kind:
            return 0
        value = self.comma()
        if self.kind:
            raise self.failed("syntax error in expression")
        return value

    def failed(self, message: str, token: str | None = None) -> ArithmeticFailed:
        shown = self.text[self.start :] if token is None else token
        return ArithmeticFailed(f'{self.text.lstrip()}: {message} (error token is "{shown}")')

    def advance(self) -> None:
        """Read the next token: kind "number", "name", "operator", or "" at the end."""
        match = TOKEN.match(self.text, self.at)
        if not match:
            rest = self.text[self.at :].lstrip()
            if rest:
                self.start = len(self.text) - len(rest)
                behind_operand = self.kind in ("number", "name") or self.token == ")"
                bad = "invalid arithmetic operator" if behind_operand else "operand expected"
                raise self.failed(f"syntax error: {bad}")
            self.kind = self.token = ""
            return
        self.at = match.end()
        self.start = match.start(match.lastindex)
        self.token = match.group(match.lastindex)
        self.kind = ("number", "name", "operator")[match.lastindex - 1]

    def comma(self) -> int:
        value = self.assignment()
        while self.token == ",":
            self.advance()
            value = self.assignment()
        return value

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.failed("expression recursion level exceeded")

    def assignment(self) -> int:
        self.deeper()
        value = self.ternary()
        self.depth -= 1
        if self.token in ASSIGNING and self.kind == "operator":
            raise self.failed("attempted assignment to non-variable")
        return value

    def ternary(self) -> int:
        condition = self.binary(1)
        if self.token != "?":
            return condition
        self.advance()
        self.dry += not condition
        first = self.comma()
        self.dry -= not condition
        if self.token != ":":
            raise self.failed("`:' expected for conditional expression")
        self.advance()
        self.dry += bool(condition)
        second = self.assignment()
        self.dry -= bool(condition)
        return first if condition else second

    def binary(self, least: int) -> int:
        left = self.unary()
        while self.kind == "operator" and (level := LEVEL.get(self.token, 0)) >= least:
            op = self.token
            self.advance()
            if op == "&&" or op == "||":
                idle = bool(left) == (op == "||")
                self.dry += idle
                right = self.binary(level + 1)
                self.dry -= idle
                left = int(bool(left) and bool(right)) if op == "&&" else int(bool(left) or bool(right))
                continue
            before = self.start
            right = self.binary(level if op == "**" else level + 1)
            left = 0 if self.dry else self.apply(op, left, right, before)
        return left

    def apply(self, op: str, a: int, b: int, at: int) -> int:
        """Return the value of `a op b`; `at` is where b begins."""
        if op in "/%":
            if not b:
                self.start = at
                raise self.failed("division by 0")
            quotient = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            return wrap(quotient if op == "/" else a - b * quotient)
        if op == "**":
            if b < 0:
                raise self.failed("exponent less than 0")
            return wrap(pow(a, b, 1 << 64))
        return wrap(OPERATIONS[op](a, b))

    def unary(self) -> int:
        token = self.token
        if self.kind == "operator" and token in ("!", "~", "+", "-"):
            self.advance()
            self.deeper()
            value = self.unary()
            self.depth -= 1
            return {"!": int(not value), "~": ~value, "+": value, "-": wrap(-value)}[token]
        if token in ("++", "--"):
            self.advance()
            if self.kind != "name":  # two signs
                self.deeper()
                return self.unary()
            name, index = self.variable()
            value = wrap(self.value(name, index) + (1 if token == "++" else -1))
            self.store(name, index, value)
            return value
        return self.operand()

    def operand(self) -> int:
        if self.kind == "number":
            value = self.number(self.token)
            self.advance()
            return value
        if self.token == "(":
            self.advance()
            value = self.comma()
            if self.token != ")":
                raise self.failed("missing `)'")
            self.advance()
            return value
        if self.kind != "name":
            self.start *= bool(self.kind or self.text.strip())
            raise self.failed("syntax error: operand expected")
        name, index = self.variable()
        if self.kind == "operator" and self.token in ASSIGNING:
            op = self.token[:-1]
            self.advance()
            at = self.start
            right = self.assignment()
            value = right if not op or self.dry else self.apply(op, self.value(name, index), right, at)
            self.store(name, index, value)
            return value
        value = 0 if self.dry else self.value(name, index)
        if self.token in ("++", "--"):
            self.store(name, index, wrap(value + (1 if self.token == "++" else -1)))
            self.advance()
        return value

    def variable(self) -> tuple[str, str | None]:
        """Read the current name with its index, if it has one."""
        name, index = self.token, None
        if self.text.startswith("[", self.at):
            end = self.text.find("]", self.at)
            if end < 0:
                raise self.failed("bad array subscript", self.text[self.start :])
            index = self.text[self.at + 1 : end]
            self.at = end + 1
        self.advance()
        return name, index

    def value(self, name: str, index: str | None) -> int:
        text = self.get(name, index)
        if not text:
            return 0
        if text.isdecimal() and text[0] != "0" and len(text) < 18:
            return int(text)
        return evaluate(text, self.get, self.put, self.depth + 1)

    def store(self, name: str, index: str | None, value: int) -> None:
        if not self.dry:
            self.put(name, index, str(value))

    def number(self, token: str) -> int:
        """Read a constant: decimal, 0 octal, 0x hexadecimal, or BASE#DIGITS."""
        base, digits = 10, token
        if "#" in token:
            left, _, digits = token.partition("#")
            base = int(left[:5])
            if not 2 <= base <= 64:
                raise self.failed("invalid arithmetic base")
        elif token[:2] in ("0x", "0X"):
            base, digits = 16, token[2:] or "0"
        elif token[0] == "0" and len(token) > 1:
            base, digits = 8, token[1:]
        value = 0
        for c in digits:
            digit = _digit(c, base)
            if not 0 <= digit < base:
                raise self.failed("value too great for base", token)
            value = (value * base + digit) & ((1 << 64) - 1)
        return wrap(value)


def _digit(c: str, base: int) -> int:
    order = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
    return order.find(c.lower() if base <= 36 else c)


OPERATIONS = {"|": operator.or_, "^": operator.xor, "&": operator.and_, "+": operator.add, "-": operator.sub}
OPERATIONS |= {"*": operator.mul, "<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63)}
OPERATIONS |= {"==": operator.eq, "!=": operator.ne, "<": operator.lt, ">": operator.gt, "<=": operator.le}
OPERATIONS |= {">=": operator.ge}
