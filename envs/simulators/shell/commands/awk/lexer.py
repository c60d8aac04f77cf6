"""Split an awk program into tokens."""

import re

from envs.simulators.shell.commands.options import Fail

KEYWORDS = {
    "BEGIN", "END", "function", "func", "if", "else", "while", "for", "do", "break", "continue", "next",
    "nextfile", "exit", "return", "delete", "in", "getline", "print", "printf",
}  # fmt: skip
BUILTINS = {
    "length", "substr", "index", "split", "sub", "gsub", "match", "sprintf", "sin", "cos", "atan2", "exp", "log",
    "sqrt", "int", "rand", "srand", "tolower", "toupper", "system", "close", "fflush",
    "systime", "strftime", "mktime",
}  # fmt: skip
TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r]|\\\r?\n)+)|(?P<comment>#[^\n]*)|(?P<num>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<newline>\n)"
    r"|(?P<op>\+\+|--|\+=|-=|\*=|/=|%=|\^=|==|<=|>=|!=|!~|&&|\|\||>>|[-+*/%^!<>|?:~$=,;(){}\[\]&@])",
    re.ASCII,
)
QUOTED = {"str": re.compile(r'"((?:[^"\\\n]|\\.)*)"', re.DOTALL)}
QUOTED["regex"] = re.compile(r"/((?:[^/\\\n\[]|\\.|\[(?:[\]^]|(?![\]^]))(?:\\.|[^]\\\n])*\])*)/", re.DOTALL)
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "a": "\a", "b": "\b", '"': '"', "\\": "\\"}


def unescaped(text: str) -> str:
    """Return a string constant with its escapes replaced; invalid escapes stay."""

    def char(found: re.Match) -> str:
        body = found[1]
        if body[0] in "01234567":
            return chr(int(body, 8) & 255)
        if body[0] == "x" and len(body) > 1:
            return chr(int(body[1:], 16))
        return ESCAPES.get(body, "" if body == "\n" else "\\" + body)

    return re.sub(r"\\([0-7]{1,3}|x[0-9a-fA-F]{1,2}|.)", char, text, flags=re.DOTALL)


class Lexer:
    """Tokens (kind, text, line). A slash begins a regular expression unless an operand precedes it."""

    def __init__(self, text: str):
        self.text, self.at, self.line = text, 0, 1
        self.tokens: list[tuple[str, str, int]] = []
        while self.at < len(text):
            self.next()
        self.line += not text.endswith("\n")
        self.tokens.append(("end", "", self.line))

    def next(self) -> None:
        text, at = self.text, self.at
        if text[at] == '"':
            return self.quoted("string constant", "str")
        if text[at] == "/" and not self.after_operand():
            return self.quoted("regular expression", "regex")
        found = TOKEN.match(text, at)
        if not found:
            shown = text[at] if " " <= text[at] <= "~" else f"\\{ord(text[at]):03o}"
            raise Fail(f"line {self.line}: unexpected character '{shown}'", 2)
        kind, token = found.lastgroup, found[0]
        self.at = found.end()
        if kind == "name":
            called = text.startswith("(", self.at) and token not in KEYWORDS and token not in BUILTINS
            kind = "keyword" if token in KEYWORDS else "builtin" if token in BUILTINS else "func" if called else "name"
        if kind not in ("space", "comment"):
            self.tokens.append((kind, token, self.line))
        self.line += token.count("\n")
        return None

    def after_operand(self) -> bool:
        if not self.tokens:
            return False
        kind, token, _ = self.tokens[-1]
        return kind in ("num", "name", "str", "regex", "builtin") or token in (")", "]", "$", "++", "--")

    def quoted(self, what: str, kind: str) -> None:
        found = QUOTED[kind].match(self.text, self.at)
        if not found:
            start = self.text[self.at : self.at + 20].split("\n")[0]
            raise Fail(f"line {self.line}: runaway {what} {start} ...", 2)
        self.tokens.append((kind, found[1] if kind == "regex" else unescaped(found[1]), self.line))
        self.at = found.end()
