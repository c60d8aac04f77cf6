"""Parse an awk program to its syntax tree, with mawk's grammar and error messages.

Expressions (e) and statements (s) are tuples that begin with their kind:
("num", float) ("str", text) ("regex", text) ("var", name) ("field", e) ("index", name, [e]) ("in", [e], name)
("assign", op, target, e) ("cond", e, e, e) ("or" | "and" | "cat", e, e) ("not" | "neg" | "plus", e)
("binary", op, e, e) ("compare", op, e, e) ("match", negated, e, e) ("step", before, amount, target)
("call", name, [e]) ("builtin", name, [e]) ("paren", e) ("group", [e])
("print" | "printf", [e], redirection, e) ("if", e, s, s) ("for", s, e, s, s)
("forin", name, array, s) ("block", [s]) ("expr", e) ("exit", e) ("delete", name, [e])
("break" | "continue" | "next" | "nextfile",)
"""

from dataclasses import dataclass, field

from envs.simulators.shell.commands.awk.expressions import CONCATENATION, Expressions
from envs.simulators.shell.commands.options import Fail


@dataclass
class Program:
    """The parts of a program."""

    begin: list = field(default_factory=list)
    rules: list = field(default_factory=list)  # (pattern or None, end of a range or None, statement or None)
    end: list = field(default_factory=list)


class Parser(Expressions):
    """Parse tokens to a Program, by recursive descent."""

    def __init__(self, text: str):
        super().__init__(text)
        self.loops = 0  # how many are open
        self.outside = True  # in BEGIN or END, where next has no meaning
        self.program = Program()

    # -- rules and statements

    def parse(self) -> Program:
        while True:
            self.terminators()
            if self.kind == "end":
                break
            self.item()
        for name, line in self.called:
            raise Fail(f"line {line}: function {name} never defined", 2)
        return self.program

    def item(self) -> None:
        if self.token in ("BEGIN", "END"):
            rules = self.program.begin if self.accept("BEGIN") else self.accept("END") and self.program.end
            if self.token != "{":
                raise self.error()
            self.outside = True
            rules.append(self.block())
            return
        self.outside = False
        pattern = stop = None
        if self.token != "{":
            if self.token == "}":
                raise Fail(f"line {self.tokens[self.at][2]}: extra '}}'\nawk: line {self.tokens[self.at][2]}: "
                           "syntax error at or near end of line", 2)  # fmt: skip
            pattern = self.expression()
            if self.accept(","):
                self.newlines()
                stop = self.expression()
        body = self.block() if self.token == "{" else None
        if body is None and self.token not in ("\n", ";") and self.kind != "end":
            raise self.error()
        self.program.rules.append((pattern, stop, body))

    def block(self) -> tuple:
        self.deeper()
        self.expect("{")
        statements = []
        while True:
            self.terminators()
            if self.accept("}"):
                break
            if self.kind == "end":
                raise self.error(missing="}")
            statements.append(self.statement())
        self.depth -= 1
        return ("block", statements)

    def terminators(self) -> None:
        while self.accept("\n", ";"):
            pass

    def ended(self, statement: tuple) -> tuple:
        """Read a statement and its terminator."""
        if self.kind == "end":
            raise self.error(missing="}")
        if self.token != "}" and not self.accept(";", "\n"):
            raise self.error()
        return statement

    def body(self) -> tuple:
        """Read the statement of a loop or condition."""
        self.newlines()
        if self.accept(";"):
            return ("block", [])
        return self.statement()

    def statement(self) -> tuple:
        self.deeper()
        token = self.token
        if token == "{":
            found = self.block()
        elif token in STATEMENTS:
            self.at += 1
            found = STATEMENTS[token](self)
        elif token in ("break", "continue", "next", "nextfile"):
            if token in ("break", "continue") and not self.loops:
                raise Fail(f"line {self.tokens[self.at][2]}: {token} statement outside of loop", 2)
            if token.startswith("next") and self.outside:
                raise Fail(f"line {self.tokens[self.at][2]}: improper use of {token}", 2)
            self.at += 1
            found = self.ended((token,))
        else:
            found = self.ended(self.simple())
        self.depth -= 1
        return found

    def simple(self) -> tuple:
        """Read a statement without control flow: an expression, print, delete."""
        if self.token in ("print", "printf"):
            return self.print()
        if self.accept("delete"):
            name = self.tokens[self.at][1]
            if self.kind != "name":
                raise self.error()
            self.at += 1
            return ("delete", name, self.subscript() if self.token == "[" else None)
        return ("expr", self.expression())

    def print(self) -> tuple:
        name = self.token
        self.at += 1
        arguments: list = []
        if not (self.token in ("\n", ";", "}", ">", ">>", "|") or self.kind == "end"):
            self.no_gt = True
            arguments = self.listed(self.expression)
            self.no_gt = False
        if len(arguments) == 1 and arguments[0][0] == "group":
            arguments = arguments[0][1]
        elif any(argument[0] == "group" for argument in arguments):
            raise self.error()
        if name == "printf" and not arguments:
            raise self.error()
        redirection = self.accept(">", ">>", "|")
        target = self.operation(CONCATENATION) if redirection else None
        return (name, arguments, redirection, target)

    def condition(self) -> tuple:
        self.expect("(")
        found = self.plain_expression()
        self.expect(")")
        return found

    def if_(self) -> tuple:
        condition = self.condition()
        then = self.body()
        at = self.at
        self.terminators()
        if self.accept("else"):
            return ("if", condition, then, self.body())
        self.at = at
        return ("if", condition, then, None)

    def looped(self) -> tuple:
        self.loops += 1
        body = self.body()
        self.loops -= 1
        return body

    def while_(self) -> tuple:
        condition = self.condition()
        return ("for", None, condition, None, self.looped())

    def for_(self) -> tuple:
        self.expect("(")
        match [token[:2] for token in self.tokens[self.at : self.at + 4]]:
            case [("name", name), ("keyword", "in"), ("name", array), ("op", ")")]:
                self.at += 4
                return ("forin", name, array, self.looped())
        first = None if self.token == ";" else self.simple()
        self.expect(";")
        self.newlines()
        condition = None if self.token == ";" else self.expression()
        self.expect(";")
        self.newlines()
        after = None if self.token == ")" else self.simple()
        self.expect(")")
        return ("for", first, condition, after, self.looped())

    def exit(self) -> tuple:
        bare = self.token in ("\n", ";", "}") or self.kind == "end"
        return self.ended(("exit", None if bare else self.expression()))


STATEMENTS = {"if": Parser.if_, "while": Parser.while_, "for": Parser.for_, "exit": Parser.exit}
