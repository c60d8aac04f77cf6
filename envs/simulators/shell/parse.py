"""Parse bash text to a tree, one complete command at a time, as bash does: earlier commands run before a later syntax
error is found."""

import re
from collections.abc import Iterator
from functools import partial

from envs.simulators.shell import tree
from envs.simulators.shell.compound import OPERATOR, Compound

BLANKS = re.compile(r"(?:[ \t]|\\\n)*(?:#[^\n]*)?")
REDIRECT = re.compile(r"(\d*)(&>>|&>|<<<|<<-|<<|<&|<>|>>|>&|>\||<(?!\()|>(?!\())")
BARE = re.compile(r"([^ \t\n;&|<>()'\"\\$`]+)(?=[ \t\n;&|<>()]|$)")
ASSIGN = re.compile(r"([A-Za-z_]\w*)(\[[^]\n]*\])?(\+?=)", re.ASCII)
FUNCTION = re.compile(r"([^ \t\n;&|<>()'\"\\$`{}]+)[ \t]*\([ \t]*\)")
ENDS = {"then", "do", "done", "fi", "else", "elif", "esac", "}", "in"}
DECLARING = {"declare", "typeset", "local", "export", "readonly"}


class Parser(Compound):
    """Parse a script in one pass; `programs` yields each complete command as a list and raises tree.SyntaxFailed."""

    def programs(self) -> Iterator[list]:
        """Yield the commands of each complete line."""
        while True:
            while self.peek() == "\n":
                self.newline()
            if self.i >= self.n:
                return
            items = []
            while self.i < self.n:
                token = self.peek()
                if token is None or token == "\n":
                    break
                items.append(self.item())
                if self.stopped:
                    break
            if self.pending and (self.i >= self.n or self.s[self.i] == "\n"):
                self.newline()
            yield items

    def skip(self) -> None:
        self.i = BLANKS.match(self.s, self.i).end()

    def peek(self) -> str | None:
        """Return the current token: an operator, a bare word, "" for any other word, None at the end."""
        self.i = i = BLANKS.match(self.s, self.i).end()
        if i >= self.n:
            return None
        if match := BARE.match(self.s, i):
            return match.group()
        match = OPERATOR.match(self.s, i)
        if not match or (match.group() in "<>" and self.s[i + 1 : i + 2] == "("):
            return ""
        return match.group()

    def unexpected(self) -> tree.SyntaxFailed:
        """Return the error for the current token."""
        token = self.peek()
        if token is None:
            return tree.SyntaxFailed(self.last_line(), "syntax error: unexpected end of file")
        if token == "":
            start = self.i
            token = self.word().source
            self.i = start
        start = self.s.rfind("\n", 0, self.i) + 1
        end = self.s.find("\n", self.i)
        shown = self.s[start : end if end >= 0 else self.n]
        token = "newline" if token == "\n" else token
        status = 127 if self.inside else 2
        return tree.SyntaxFailed(self.line(), f"syntax error near unexpected token `{token}'", shown, status)

    def expect(self, token: str) -> None:
        if not self.accept(token):
            raise self.unexpected()

    def accept(self, token: str) -> bool:
        """Read a token if it comes next; return whether it does."""
        found = self.peek() == token
        self.i += len(token) * found
        return found

    def newline(self) -> None:
        """Read a line's end and the here-documents after it."""
        self.i += 1
        if self.pending:
            self.bodies()

    def newlines(self) -> None:
        while self.peek() == "\n":
            self.newline()

    def bodies(self) -> None:
        """Read the here-documents that the last line announced."""
        pending, self.pending = self.pending, []
        for redirect, delimiter, quoted, line in pending:
            lines = []
            while True:
                if self.i >= self.n:
                    why = f"here-document at line {line} delimited by end-of-file (wanted `{delimiter}')"
                    self.warnings.append((self.last_line() - (not self.s.endswith("\n")), f"warning: {why}"))
                    break
                end = self.s.find("\n", self.i)
                text = self.s[self.i : end if end >= 0 else self.n]
                self.i = end + 1 if end >= 0 else self.n
                text = text.lstrip("\t") if redirect.op == "<<-" else text
                if text == delimiter:
                    break
                lines.append(text + "\n")
            body = "".join(lines)
            if quoted:
                redirect.target = tree.Word([], body, body)
            else:
                inner = type(self)(body, line + 1)
                redirect.target = tree.make_word([tree.Double(inner.parts("", double=True))], body)

    def sequence(self, stops: tuple, may_be_empty: bool = False) -> list:
        """Read commands up to one of the stops, which is not consumed."""
        items: list = []
        while True:
            self.newlines()
            token = self.peek()
            if token in stops or (token is None and self.inside and ")" in stops):
                if not items and not may_be_empty:
                    raise self.unexpected()
                return items
            if token is None:
                raise self.unexpected()
            items.append(self.item())
            if self.stopped and self.peek() not in stops and self.peek() != "\n":
                raise self.unexpected()

    def item(self):
        """Read a command and its terminator; `stopped` means that it has none."""
        self.skip()
        start = self.i
        command = self.and_or()
        token = self.peek()
        self.stopped = token not in (";", "&", "\n", None)
        if token == "&" or token == ";":
            self.i += 1
            if token == "&":
                command = tree.Background(command, self.s[start : self.i - 1].strip())
        elif token not in ("\n", None) and not self.depth:
            raise self.unexpected()
        return command

    def and_or(self):
        first, rest = self.pipeline(), []
        while (token := self.peek()) in ("&&", "||"):
            self.i += 2
            self.newlines()
            rest.append((token, self.pipeline()))
        return tree.AndOr(first, rest) if rest else first

    def pipeline(self):
        bang = timed = False
        while (token := self.peek()) in ("!", "time"):
            self.i += len(token)
            bang, timed = bang != (token == "!"), timed or token == "time"
            if self.peek() in (None, "\n", ";"):
                return tree.Pipe([], bang, [], timed)
        stages, both = [self.command()], []
        while (token := self.peek()) in ("|", "|&"):
            self.i += len(token)
            both.append(token == "|&")
            self.newlines()
            stages.append(self.command())
        return tree.Pipe(stages, bang, both, timed) if bang or timed or both else stages[0]

    def command(self):
        """Read a simple or compound command with its redirections."""
        token = self.peek()
        if token is None or token in ENDS - {"in"}:
            raise self.unexpected()
        reader = COMPOUND.get(token)
        if reader is None:
            if (match := FUNCTION.match(self.s, self.i)) and not ASSIGN.match(self.s, self.i):
                return self.function(match.group(1), match.end())
            return self.simple()
        self.enter()
        line = self.line()
        start = self.i
        self.i += len(token)
        if token == "function":
            self.skip()
            match = FUNCTION.match(self.s, self.i) or BARE.match(self.s, self.i)
            if not match:
                raise self.unexpected()
            command = self.function(match.group(1), match.end())
        else:
            command = reader(self, line) if token != "(" else self.parenthesis(start, line)
            redirects = []
            while redirect := self.redirect():
                redirects.append(redirect)
            command = tree.Redirected(command, redirects, line) if redirects else command
        self.depth -= 1
        return command

    def function(self, name: str, end: int) -> tree.Function:
        start, line = self.i, self.line()
        self.i = end
        self.newlines()
        if self.peek() not in COMPOUND:
            raise self.unexpected()
        body = self.command()
        return tree.Function(name, body, self.s[start : self.i], line)

    def simple(self) -> tree.Simple:
        assigns, words, redirects = [], [], []
        line, declaring = self.line(), False
        while True:
            if redirect := self.redirect():
                redirects.append(redirect)
                continue
            if self.i >= self.n or (self.s[self.i] in "\n;&|()" or self.peek() == "<>"):
                break
            if (not words or declaring) and (match := ASSIGN.match(self.s, self.i)):
                (words if words else assigns).append(self.assignment(match))
                continue
            word = self.word()
            if not words:
                declaring = word.plain in DECLARING
            words.append(word)
            if len(words) + len(assigns) <= 2:  # bash takes note of the line behind the second word
                line = self.line()
        if not (assigns or words or redirects):
            raise self.unexpected()
        if self.s[self.i : self.i + 1] == "(":
            self.i += len(words) == 1 and not assigns  # the error of a function without its other parenthesis
            raise self.unexpected()
        return tree.Simple(assigns, words, redirects, line)

    def assignment(self, match: re.Match) -> tree.Assign:
        start, self.i = self.i, match.end()
        index = match.group(2) and self.expression_word(match.group(2)[1:-1], start)
        add = match.group(3) == "+="
        if not self.s.startswith("(", self.i):
            value = self.word()
            return tree.Assign(match.group(1), index, add, value, self.s[start : self.i])
        self.i += 1
        items: list = []
        while True:
            self.newlines()
            if self.accept(")"):
                return tree.Assign(match.group(1), index, add, items, self.s[start : self.i])
            if self.peek() is None:
                raise tree.SyntaxFailed(self.last_line(), "unexpected EOF while looking for matching `)'")
            element = re.compile(r"\[([^]\n]*)\](\+?=)").match(self.s, self.i)
            if element:
                self.i = element.end()
                key = self.expression_word(element.group(1), start)
                items.append(tree.Assign("", key, element.group(2) == "+=", self.word()))
                continue
            before = self.i
            items.append(self.word())
            if self.i == before:
                raise self.unexpected()

    def expression_word(self, inner: str, start: int) -> tree.Word:
        """Return the text between brackets as a word."""
        parser = type(self)(inner, self.line(start))
        parser.depth = self.depth
        return parser.piece("", double=False)

    def redirect(self) -> tree.Redirect | None:
        """Read the current redirection, if there is one."""
        self.skip()
        match = REDIRECT.match(self.s, self.i)
        if not match:
            return None
        digits, op = match.groups()
        if digits and op[0] == "&":
            return None
        line = self.line()
        self.i = match.end()
        token = self.peek()
        if token is None or token == "\n" or (token and OPERATOR.fullmatch(token)):
            raise self.unexpected()
        redirect = tree.Redirect(int(digits[:9]) if digits else 0 if op[0] == "<" else 1, op, None)
        word = self.word()
        if op not in ("<<", "<<-"):
            redirect.target = word
            return redirect
        quoted = any(type(part) in (tree.Quoted, tree.Double) for part in word.parts)
        delimiter = word.plain if word.plain is not None else word.source
        self.pending.append((redirect, delimiter, quoted, line))
        return redirect


COMPOUND = {"(": Compound.parenthesis, "{": Compound.group, "if": Compound.if_, "while": Compound.while_}
COMPOUND |= {"until": partial(Compound.while_, until=True), "for": Compound.for_, "case": Compound.case}
COMPOUND |= {"[[": Compound.cond, "function": Parser.function}
