"""Parse a regular expression to its tree, in the dialects of match.py.

A tree is tuples: ("set", characters), ("cat" | "alt", parts), ("group", number, body), ("rep" | "lazy", body, least,
most or None), ("back", number), ("place", name). Perl's dialect, in perl.py, adds ("atomic", body), ("keep",) and
("look", widths, negated, body): the widths of a look-behind's alternatives, or None for a look-ahead.
"""

import re
import string

MOST_NESTED = 100  # parentheses within parentheses

WORD = frozenset(string.ascii_letters + string.digits + "_")
SPACE = frozenset(" \t\n\r\v\f")
ANY = frozenset(map(chr, range(256)))
CLASSES = {
    "alpha": frozenset(string.ascii_letters),
    "digit": frozenset(string.digits),
    "alnum": frozenset(string.ascii_letters + string.digits),
    "upper": frozenset(string.ascii_uppercase),
    "lower": frozenset(string.ascii_lowercase),
    "space": SPACE,
    "blank": frozenset(" \t"),
    "punct": frozenset(string.punctuation),
    "print": frozenset(map(chr, range(32, 127))),
    "graph": frozenset(map(chr, range(33, 127))),
    "cntrl": frozenset(map(chr, [*range(32), 127])),
    "xdigit": frozenset(string.hexdigits),
}
ESCAPED_SETS = {"w": WORD, "W": ANY - WORD, "s": SPACE, "S": ANY - SPACE}
ESCAPED_PLACES = {"<": "word start", ">": "word end", "b": "edge", "B": "no edge", "`": "text start", "'": "text end"}
AWK_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "a": "\a", "b": "\b", "/": "/", '"': '"'}
AWK_CODE = re.compile("x([0-9a-fA-F]{1,2})|([0-7]{1,3})")
SED_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "v": "\v", "f": "\f", "a": "\a", "\\": "\\"}


class RegexError(ValueError):
    """An invalid expression; its text is the C library's message."""


class Parser:
    """Parse one expression of the POSIX dialects."""

    def __init__(self, text: str, dialect: str, icase: bool, lines: bool):
        self.text, self.at = text, 0
        self.flags = frozenset("i" * icase + "m" * lines)
        self.dialect = dialect
        self.extended = dialect in ("extended", "posix", "sed extended", "awk", "perl")
        self.strict = dialect in ("posix", "sed extended")  # an operator with nothing to repeat is an error
        self.escapes = SED_ESCAPES if dialect in ("sed", "sed extended") else {}
        self.groups, self.closed, self.depth, self.backrefs = 0, set(), 0, False

    def parse(self) -> tuple:
        tree = self.alternatives()
        if self.at < len(self.text):
            raise RegexError("Unmatched ) or \\)")
        return tree

    def peek(self, token: str) -> bool:
        """Return whether an operator comes next: `(` means \\( in the basic dialect."""
        return self.text.startswith(token if self.extended else "\\" + token, self.at)

    def take(self, token: str) -> bool:
        if not self.peek(token):
            return False
        self.at += len(token) + (not self.extended)
        return True

    def alternatives(self) -> tuple:
        self.depth += 1
        if self.depth > MOST_NESTED:
            raise RegexError("Regular expression too big")
        branches = [self.branch()]
        while self.take("|"):
            branches.append(self.branch())
        self.depth -= 1
        return branches[0] if len(branches) == 1 else ("alt", branches)

    def at_end_of_branch(self) -> bool:
        if self.at >= len(self.text) or self.peek("|"):
            return True
        if not self.peek(")"):
            return False
        return self.depth > 1 or self.dialect not in ("extended", "posix")  # where an unmatched ) is a character

    def branch(self) -> tuple:
        parts: list[tuple] = []
        while not self.at_end_of_branch():
            atom = self.atom(parts)
            if atom is None:
                continue
            parts.append(self.repeated(atom))
        if not parts and self.dialect == "awk" and self.text:
            raise RegexError("missing operand")
        return parts[0] if len(parts) == 1 else ("cat", parts)

    def repeated(self, atom: tuple) -> tuple:
        """Read the repetitions of an atom. After an anchor only grep -E and awk allow one."""
        if atom[0] == "place" and self.dialect not in ("extended", "awk"):
            return atom
        while True:
            begin = self.at
            bounds = self.quantifier()
            if bounds is None:
                return atom
            if self.dialect == "awk" and atom == ("place", "start") and self.text[begin] in "*+":
                raise RegexError("syntax error ^* or ^+")
            if self.dialect == "sed" and self.text.startswith(("*", "\\{"), self.at):
                raise RegexError("Invalid preceding regular expression")
            if atom[0] == "rep" and atom[2] <= 1 and bounds[0] <= 1 and None in (atom[3], bounds[1]):
                atom = ("rep", atom[1], min(atom[2], bounds[0]), None)  # a** is a*
            else:
                atom = ("rep", atom, *bounds)

    def quantifier(self) -> tuple | None:
        """Read the bounds of a repetition; None if none comes next."""
        if self.text.startswith("*", self.at):
            self.at += 1
            return 0, None
        if self.take("+"):
            return 1, None
        if self.take("?"):
            return 0, 1
        if self.peek("{") and self.dialect != "awk":  # mawk 1.3.4 of 2020 has no intervals
            return self.interval()
        return None

    def interval(self) -> tuple | None:
        """Read the bounds of {n}, {n,}, {,m} or {n,m}; None if the brace is a character."""
        shape = re.compile(r"\{(\d*)(,?)(\d*)\}" if self.extended else r"\\\{(\d*)(,?)(\d*)\\\}")
        found = shape.match(self.text, self.at)
        if not found or not (found[1] or found[2]):
            if self.extended and not self.strict:
                return None
            rest = self.text[self.at :]
            closed = ("}" if self.extended else "\\}") in rest
            raise RegexError("Invalid content of \\{\\}" if closed else "Unmatched \\{")
        least = int(found[1][:9] or 0)
        most = int(found[3][:9]) if found[3] else None if found[2] else least
        if most is not None and most < least:
            raise RegexError("Invalid content of \\{\\}")
        if max(least, most or 0) > 32767:
            raise RegexError("Regular expression too big")
        self.at = found.end()
        return least, most

    def atom(self, parts: list[tuple]) -> tuple | None:
        """Read the next atom of a branch; `parts` are those before it."""
        char = self.text[self.at]
        if self.take("("):
            return self.group()
        if char == "\\":
            return self.escape()
        self.at += 1
        if char == "[":
            return ("set", self.bracket())
        if char == ".":
            return ("set", ANY)
        if char == "^" and (self.extended or not parts):
            return ("place", "line start" if "m" in self.flags else "start")
        if char == "$" and (self.extended or self.at_end_of_branch()):
            return ("place", "line end" if "m" in self.flags else "end")
        if self.extended and char in "*+?{" and (not parts or parts[-1][0] == "place"):
            return self.operator_first(char)
        return ("set", self.cased(frozenset(char)))

    def operator_first(self, char: str) -> tuple | None:
        """Handle an operator that repeats nothing: an error in sed -E and awk, while grep -E skips it.

        grep -E and awk take a brace as a character.
        """
        if self.strict:
            raise RegexError("Invalid preceding regular expression")
        if char == "{":
            return ("set", frozenset(char))
        if self.dialect == "awk":
            raise RegexError("missing operand")
        return None

    def group(self) -> tuple:
        self.groups += 1
        number = self.groups
        body = self.alternatives()
        if not self.take(")"):
            raise RegexError("Unmatched ( or \\(")
        self.closed.add(number)
        return ("group", number, body)

    def escape(self) -> tuple:
        self.at += 2
        if self.at > len(self.text):
            raise RegexError("Trailing backslash")
        char = self.text[self.at - 1]
        if self.dialect == "awk":
            return ("set", self.awk_escape())
        if char in self.escapes:
            return ("set", frozenset(self.escapes[char]))
        if char in "123456789":
            if int(char) not in self.closed:
                raise RegexError("Invalid back reference")
            self.backrefs = True
            return ("back", int(char))
        if char in ESCAPED_SETS:
            return ("set", ESCAPED_SETS[char])
        if char in ESCAPED_PLACES:
            return ("place", ESCAPED_PLACES[char])
        if self.dialect == "sed" and char == "{":
            raise RegexError("Invalid preceding regular expression")
        return ("set", self.cased(frozenset(char)))

    def awk_escape(self) -> frozenset:
        """Return the character of awk's escape whose backslash has been read, and the character after it."""
        char = self.text[self.at - 1]
        code = AWK_CODE.match(self.text, self.at - 1)
        if not code:
            return frozenset(AWK_ESCAPES.get(char, char))
        self.at = code.end()
        return frozenset(chr(int(code[1], 16) if code[1] else int(code[2], 8) & 255))

    def cased(self, members: frozenset) -> frozenset:
        if "i" not in self.flags:
            return members
        return members | {c.swapcase() for c in members if c in CLASSES["alpha"]}

    def bracket(self) -> frozenset:
        """Read the characters of a bracket expression after its [."""
        text, broken = self.text, RegexError("Unmatched [, [^, [:, [., or [=")
        negated = text.startswith("^", self.at)
        self.at += negated
        members: set[str] = set()
        first = True
        while True:
            if self.at >= len(text):
                raise broken
            if text[self.at] == "]" and not first:
                self.at += 1
                break
            first = False
            low = self.member()
            after = text[self.at + 1 : self.at + 2]
            if len(low) == 1 and text.startswith("-", self.at) and after and after != "]":
                self.at += 1
                high = self.member()
                if len(high) != 1 or max(high) < max(low):
                    raise RegexError("Invalid range end")
                members.update(map(chr, range(ord(min(low)), ord(min(high)) + 1)))
            else:
                members |= low
        found = self.cased(frozenset(members))
        return ANY - found if negated else found

    def member(self) -> frozenset:
        """Read one item of a bracket expression: a character or a class."""
        text, at = self.text, self.at
        kind = text[at + 1 : at + 2]
        if text[at] == "[" and kind and kind in ":.=":
            end = text.find(kind + "]", at + 2)
            if end < 0:
                raise RegexError("Unmatched [, [^, [:, [., or [=")
            name, self.at = text[at + 2 : end], end + 2
            if kind == ":":
                if name not in CLASSES:
                    raise RegexError("Invalid character class name")
                return CLASSES[name]
            if len(name) != 1:
                raise RegexError("Invalid collation character")
            return frozenset(name)
        if text[at] == "\\" and self.dialect == "awk" and kind:
            self.at += 2
            return self.awk_escape()
        if text[at] == "\\" and kind in self.escapes:
            self.at += 2
            return frozenset(self.escapes[kind])
        self.at += 1
        return frozenset(text[at])
