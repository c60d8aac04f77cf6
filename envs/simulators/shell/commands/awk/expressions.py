"""Parse awk's expressions to the trees that parse.py lists."""

from collections.abc import Callable

from envs.simulators.shell.commands.awk.lexer import Lexer
from envs.simulators.shell.commands.options import Fail

ABSENT = ("function", "func", "getline", "do", "return")  # keywords of statements that awk does not know here
MOST_NESTED = 60  # expressions and statements within one another
LEVELS = [("||",), ("&&",), ("in",), ("~", "!~"), ("<", "<=", "==", "!=", ">", ">="), ("",), ("+", "-")]
LEVELS += [("*", "/", "%")]
OR, AND, _, MATCH, COMPARE, CONCATENATION = range(6)  # places in LEVELS, which begins with what binds least
CONCATENATED = ("$", "!", "(", "-", "+", "++", "--")  # how an operand may begin that is no word
ARGUMENTS = {"length": (0, 1), "substr": (2, 3), "index": (2, 2), "split": (2, 3), "sub": (2, 3), "gsub": (2, 3)}
ARGUMENTS |= {"match": (2, 2), "sprintf": (1, 1000), "atan2": (2, 2), "rand": (0, 0), "srand": (0, 1), "fflush": (0, 1)}
ARGUMENTS |= {"systime": (0, 0), "strftime": (0, 3), "mktime": (1, 1)}


class Expressions:
    """The part of the parser for tokens and expressions."""

    def __init__(self, text: str):
        self.tokens, self.at, self.depth = Lexer(text).tokens, 0, 0
        self.no_gt = False  # in print, > sends the output somewhere
        self.called: list[tuple[str, int]] = []  # functions, and the line that mawk complains of

    # -- tokens

    @property
    def token(self) -> str:
        kind, text, _ = self.tokens[self.at]
        return text if kind in ("op", "keyword", "newline") else ""

    @property
    def kind(self) -> str:
        return self.tokens[self.at][0]

    def error(self, missing: str = "") -> Fail:
        kind, text, line = self.tokens[self.at]
        for _, word, _ in self.tokens[self.at : self.at + 2]:  # getline follows a |
            if word in ABSENT:
                return Fail(f"line {line}: {word} is not simulated", 2)
        near = {"end": "end of file", "newline": "end of line"}.get(kind, text)
        if missing:
            return Fail(f"line {line}: missing {missing} near {near}", 2)
        if kind == "str":
            near = f'"{text}"'
        return Fail(f"line {line}: syntax error at or near {near}", 2)

    def accept(self, *tokens: str) -> str:
        found = self.token
        if found and found in tokens:
            self.at += 1
            return found
        return ""

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.error(missing=token if (token in ")}]" and self.kind in ("end",)) or token == ")" else "")

    def newlines(self) -> None:
        while self.token == "\n":
            self.at += 1

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise self.error()

    # -- expressions, the loosest first

    def expression(self) -> tuple:
        self.deeper()
        found = self.conditional()
        if self.token in ("=", "+=", "-=", "*=", "/=", "%=", "^="):
            if found[0] not in ("var", "field", "index"):
                raise self.error()
            op = self.accept(self.token)
            self.newlines()
            found = ("assign", op[:-1], found, self.expression())
        self.depth -= 1
        return found

    def plain_expression(self) -> tuple:
        """Read an expression inside brackets, where > compares."""
        before, self.no_gt = self.no_gt, False
        found = self.expression()
        self.no_gt = before
        return found

    def conditional(self) -> tuple:
        found = self.operation()
        if self.accept("?"):
            self.newlines()
            then = self.expression()
            self.newlines()
            if not self.accept(":"):
                raise self.error()
            self.newlines()
            return ("cond", found, then, self.expression())
        return found

    def operation(self, level: int = 0) -> tuple:
        """Read operands and the operators between them: those of a level of LEVELS, and those that bind tighter."""
        if level == len(LEVELS):
            return self.unary()
        found = self.operation(level + 1)
        while self.continues(LEVELS[level]):
            op = self.accept(*LEVELS[level])
            if op == "in":
                if self.kind != "name":
                    raise self.error()
                found = ("in", found[1] if found[0] == "group" else [found], self.tokens[self.at][1])
                self.at += 1
                continue
            if op in ("||", "&&"):
                self.newlines()
            right = self.operation(level + 1)
            if level in (OR, AND, CONCATENATION):
                found = ({OR: "or", AND: "and"}.get(level, "cat"), found, right)
            elif level == MATCH:
                found = ("match", op == "!~", found, right)
            else:
                found = ("compare" if level == COMPARE else "binary", op, found, right)
        return found

    def continues(self, operators: tuple) -> bool:
        """Return whether one of the operators follows; "" is that of concatenation, which is not written."""
        if operators == ("",):
            return self.kind in ("num", "str", "name", "func", "builtin") or self.token in CONCATENATED
        return self.token in operators and not (self.token == ">" and self.no_gt)

    def unary(self) -> tuple:
        self.deeper()
        if sign := self.accept("!", "-", "+"):
            found = ({"!": "not", "-": "neg", "+": "plus"}[sign], self.unary())
        else:
            found = self.power()
        self.depth -= 1
        return found

    def power(self) -> tuple:
        found = self.postfix()
        if self.accept("^"):
            return ("binary", "^", found, self.unary())
        return found

    def postfix(self) -> tuple:
        found = self.primary()
        if found[0] in ("var", "field", "index") and self.token in ("++", "--"):
            return ("step", False, 1 if self.accept("++", "--") == "++" else -1, found)
        return found

    def primary(self) -> tuple:
        kind, text, _ = self.tokens[self.at]
        token = self.token
        if kind == "num":
            self.at += 1
            return ("num", float(text))
        if kind in ("str", "regex"):
            self.at += 1
            return (kind, text)
        if kind == "func":
            self.at += 1
            self.called.append((text, self.tokens[-1][2]))
            return ("call", text, self.arguments())
        if kind == "builtin":
            return self.builtin(text)
        if kind == "name":
            self.at += 1
            return ("index", text, self.subscript()) if self.token == "[" else ("var", text)
        if token == "$":
            self.at += 1
            self.deeper()
            inner = self.step_before() if self.token in ("++", "--") else None
            if inner is None and (sign := self.accept("-", "+")):
                inner = ("neg" if sign == "-" else "plus", self.primary())
            found = ("field", inner or self.primary())
            self.depth -= 1
            return found
        if token in ("++", "--"):
            return self.step_before()
        if token == "(":
            return self.parenthesis()
        raise self.error()

    def step_before(self) -> tuple:
        amount = 1 if self.accept("++", "--") == "++" else -1
        self.deeper()
        target = self.primary()
        self.depth -= 1
        if target[0] not in ("var", "field", "index"):
            raise self.error()
        return ("step", True, amount, target)

    def listed(self, read: Callable) -> list[tuple]:
        """Read expressions between commas."""
        found = [read()]
        while self.accept(","):
            self.newlines()
            found.append(read())
        return found

    def parenthesis(self) -> tuple:
        self.at += 1
        found = self.listed(self.plain_expression)
        self.expect(")")
        if len(found) == 1:
            return ("paren", found[0])
        if self.token not in ("in", "\n", ";", "}", ">", ">>", "|") and self.kind != "end":
            raise self.error()
        return ("group", found)

    def subscript(self) -> list:
        self.expect("[")
        found = self.listed(self.plain_expression)
        if not self.accept("]"):
            raise self.error()
        return found

    def arguments(self) -> list:
        self.expect("(")
        found: list = []
        self.newlines()
        while self.token != ")":
            found.append(self.plain_expression())
            self.newlines()
            if not self.accept(","):
                break
            self.newlines()
        self.expect(")")
        return found

    def builtin(self, name: str) -> tuple:
        self.at += 1
        if self.token == "(":
            arguments = self.arguments()
        elif name == "length":
            arguments = []
        else:
            raise self.error()
        least, most = ARGUMENTS.get(name, (1, 1))
        if not least <= len(arguments) <= most:
            self.at -= 1
            raise self.error()
        return ("builtin", name, arguments)
