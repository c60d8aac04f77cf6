"""The part of the parser that reads compound commands: groups, loops, case, if and [[ ]]."""

import re

from envs.simulators.shell.tree import Arithmetic, Case, CFor, Cond, For, Group, If, SyntaxFailed, While
from envs.simulators.shell.words import Words

OPERATOR = re.compile(r"&&|\|\||;;&|;;|;&|&>>|&>|\|&|<<<|<<-|<<|<&|<>|>>|>&|>\||[;&|<>()\n]")
REGEX = re.compile(r"[^ \t\n'\"\\$`]+")
UNARY = set("abcdefghknoprstuvwxzGLNORS")
BINARY = {"=", "==", "!=", "=~", "<", ">", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot", "-ef"}


class Compound(Words):
    """Read compound commands; `sequence`, `peek` and their like are the Parser's."""

    def parenthesis(self, start: int, line: int):
        """Read `(( ))` if it ends so, else a subshell."""
        if self.s.startswith("((", start):
            word = self.arithmetic(start + 2)
            if word is not None:
                return Arithmetic(word, line)
        self.i = start + 1
        body = self.sequence((")",))
        self.expect(")")
        return Group(body, line, subshell=True)

    def group(self, line: int) -> Group:
        body = self.sequence(("}",))
        self.expect("}")
        return Group(body, line)

    def if_(self, line: int) -> If:
        clauses = []
        while True:
            condition = self.sequence(("then",))
            self.expect("then")
            body = self.sequence(("elif", "else", "fi"))
            clauses.append((condition, body))
            if not self.accept("elif"):
                break
        otherwise = self.sequence(("fi",)) if self.accept("else") else []
        self.expect("fi")
        return If(clauses, otherwise, line)

    def while_(self, line: int, until: bool = False) -> While:
        condition = self.sequence(("do",))
        return While(condition, self.do_group(), until, line)

    def do_group(self) -> list:
        self.expect("do")
        body = self.sequence(("done",))
        self.expect("done")
        return body

    def for_body(self) -> list:
        """Read a loop's body: do ... done, or braces."""
        self.newlines()
        if self.accept("{"):
            body = self.sequence(("}",))
            self.expect("}")
            return body
        return self.do_group()

    def for_(self, line: int):
        self.skip()
        if self.s.startswith("((", self.i):
            start = self.i + 2
            word = self.arithmetic(start)
            if word is None or word.source.count(";") != 2:
                raise SyntaxFailed(self.line(), "syntax error: arithmetic expression required")
            parts = [self.expression(piece, start) for piece in word.source.split(";")]
            self.accept(";")
            return CFor(parts, self.for_body(), line)
        if self.peek() is None or self.peek() == "\n" or OPERATOR.fullmatch(self.peek() or "x"):
            raise self.unexpected()
        name, words = self.word().source, None
        self.newlines()
        if self.accept("in"):
            words = []
            while self.peek() not in (";", "\n", None):
                if OPERATOR.fullmatch(self.peek()):
                    raise self.unexpected()
                words.append(self.word())
            if self.i >= self.n:
                raise self.unexpected()
        self.accept(";")
        self.newlines()
        return For(name, words, self.for_body(), line)

    def case(self, line: int) -> Case:
        self.skip()
        if self.peek() is None or OPERATOR.fullmatch(self.peek() or "x"):
            raise self.unexpected()
        word = self.word()
        self.newlines()
        self.expect("in")
        clauses = []
        while True:
            self.newlines()
            if self.accept("esac"):
                return Case(word, clauses, line)
            self.accept("(")
            patterns = []
            while not patterns or self.accept("|"):
                token = self.peek()
                if token is None or OPERATOR.fullmatch(token):
                    raise self.unexpected()
                patterns.append(self.word())
            self.expect(")")
            body = self.sequence((";;", ";&", ";;&", "esac"), may_be_empty=True)
            token = self.peek()
            clauses.append((patterns, body, token if token != "esac" else ";;"))
            if token != "esac":
                self.i += len(token)

    def cond(self, line: int) -> Cond:
        test = self.cond_or()
        self.newlines()
        if not self.accept("]]"):
            raise self.cond_error("conditional binary operator expected")
        return Cond(test, line)

    def cond_error(self, message: str) -> SyntaxFailed:
        if self.peek() is None:
            return self.unexpected()
        return SyntaxFailed(self.line(), message)

    def cond_or(self) -> tuple:
        left = self.cond_and()
        while self.accept("||"):
            left = ("or", left, self.cond_and())
        return left

    def cond_and(self) -> tuple:
        left = self.cond_not()
        while self.accept("&&"):
            left = ("and", left, self.cond_not())
        return left

    def cond_not(self) -> tuple:
        self.newlines()
        if self.accept("!"):
            self.enter()
            test = ("not", self.cond_not())
            self.depth -= 1
            return test
        if self.accept("("):
            self.enter()
            test = self.cond_or()
            self.newlines()
            self.expect(")")
            self.depth -= 1
            return test
        token = self.peek()
        if token is None or token == "]]" or OPERATOR.fullmatch(token):
            raise self.unexpected()
        word = self.word()
        operator = self.peek()
        flag = word.plain and len(word.plain) == 2 and word.source[0] == "-" and word.plain[1] in UNARY
        if flag and operator not in BINARY:
            if operator in ("]]", "&&", "||", ")", None):
                raise self.cond_error(f"unexpected argument `{operator}' to conditional unary operator")
            return ("unary", word.plain, self.word())
        if operator not in BINARY:
            return ("word", word)
        self.i += len(operator)
        if self.peek() in ("]]", "&&", "||", None):
            raise self.cond_error(f"unexpected argument `{self.peek()}' to conditional binary operator")
        outside, self.extglob = self.extglob, operator in ("=", "==", "!=")
        right = self.word(REGEX) if operator == "=~" else self.word()
        self.extglob = outside
        return ("binary", operator, word, right)
