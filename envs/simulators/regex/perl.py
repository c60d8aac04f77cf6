"""Parse Perl's regular expressions as PCRE2 reads them over bytes, in the C locale.

\\p{...} knows the general categories of the 256 code points that a byte can be. Recursion, conditions, verbs, scripts
and other features that are missing here raise RegexError.
"""

import re
from unicodedata import category

from envs.simulators.regex.syntax import ANY, CLASSES, ESCAPED_SETS, WORD, Parser, RegexError

VERTICAL = frozenset("\n\v\f\r\x85")
HORIZONTAL = frozenset("\t \xa0")
SETS = ESCAPED_SETS | {"d": CLASSES["digit"], "D": ANY - CLASSES["digit"], "N": ANY - {"\n"}}
SETS |= {"h": HORIZONTAL, "H": ANY - HORIZONTAL, "v": VERTICAL, "V": ANY - VERTICAL}
PLACES = {"A": "text start", "Z": "last line end", "z": "text end", "b": "edge", "B": "no edge"}
CHARACTERS = {"a": "\a", "e": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
POSIX_CLASSES = CLASSES | {"word": WORD, "ascii": frozenset(map(chr, range(128)))}
CATEGORIES = {char: category(char).lower() for char in ANY}
PROPERTIES = {"c": "cfnos", "l": "lmotu", "m": "cen", "n": "dlo", "p": "cdefios", "s": "ckmo", "z": "lps"}
RETURN, NEWLINE = ("set", frozenset("\r")), ("set", frozenset("\n"))
RETURN_ALONE = ("cat", [RETURN, ("look", None, True, NEWLINE)])
LINE_BREAK = ("alt", [("cat", [RETURN, NEWLINE]), RETURN_ALONE, ("set", VERTICAL - {"\r"})])

QUOTED = re.compile(r"\\Q(.*?)(?:\\E|\Z)|\\E|\\.", re.DOTALL)
COMMENT = re.compile(r"\(\?#[^)]*\)")
COMMENT_OR_SPACE = re.compile(r"\(\?#[^)]*\)|[ \t\n\v\f\r]+|#[^\n]*")
NAME = r"([A-Za-z_]\w*)"
NAMED_GROUP = re.compile(rf"\?(?:P?<{NAME}>|'{NAME}')", re.ASCII)
FLAGS = re.compile(r"\?(?![imsx]*xx)([imsx]*)(?:-([imsx]*))?([:)])")
SPECIAL_GROUP = re.compile(r"\?(>|=|!|<=|<!)")
OTHER_GROUP = re.compile(r"\*\w*|\?\W?\w*", re.ASCII)
NAMED_REFERENCE = re.compile(rf"\\k(?:<{NAME}>|'{NAME}'|{{{NAME}}})|\\g{{{NAME}}}|\(\?P={NAME}\)", re.ASCII)
NUMBERED_REFERENCE = re.compile(r"\\g\{(-?\d+)\}|\\g(-?\d+)|\\([1-9]\d*)", re.ASCII)
CODE = re.compile(r"\\(?:x\{([0-9a-fA-F]+)\}|x(?!\{)([0-9a-fA-F]{0,2})|o\{([0-7]+)\}|([0-7]{1,3})|c([ -~]))")
PROPERTY = re.compile(r"\\[pP](?:\{\s*(\^?)([^}]*)\}|([A-Za-z]))")
POSIX_CLASS = re.compile(r"\[([:.=])(\^?)([^]\\]{0,20}?)\1\]")
INTERVAL = re.compile(r"\{\d+(,\d*)?\}", re.ASCII)
MESSAGES = {"Unmatched ) or \\)": "unmatched closing parenthesis"}
MESSAGES |= {"Invalid content of \\{\\}": "numbers out of order in {} quantifier"}
COLLATING = "POSIX collating elements are not supported"
NOT_REPEATABLE = "quantifier does not follow a repeatable item"


class PerlParser(Parser):
    """Parse one expression; the flags are the letters of (?imsx)."""

    def __init__(self, text: str, icase: bool):
        super().__init__(unquoted(text), "perl", icase, lines=False)
        self.names: dict[str, int] = {}
        self.looking = 0  # look-arounds that are open

    def parse(self) -> tuple:
        try:
            return super().parse()
        except RegexError as error:
            raise RegexError(MESSAGES.get(str(error), str(error))) from None

    def skip(self) -> None:
        """Skip comments, and with (?x) white space."""
        shape = COMMENT_OR_SPACE if "x" in self.flags else COMMENT
        while found := shape.match(self.text, self.at):
            self.at = found.end()

    def at_end_of_branch(self) -> bool:
        self.skip()
        return self.at >= len(self.text) or self.text[self.at] in "|)"

    def atom(self, parts: list[tuple]) -> tuple | None:
        char = self.text[self.at]
        if char in "*+?" or (char == "{" and self.interval()):
            raise RegexError(NOT_REPEATABLE)
        if char == "." and "s" not in self.flags:
            self.at += 1
            return ("set", ANY - {"\n"})
        return super().atom(parts)

    def repeated(self, atom: tuple) -> tuple:
        """Read an atom's repetition; a ? after it makes it lazy, a + possessive."""
        self.skip()
        bounds = self.quantifier()
        if bounds is None:
            return atom
        if atom[0] in ("place", "keep"):
            raise RegexError(NOT_REPEATABLE)
        self.skip()
        if self.take("?"):
            return ("lazy", atom, *bounds)
        if self.take("+"):
            return ("atomic", ("rep", atom, *bounds))
        return ("rep", atom, *bounds)

    def interval(self) -> tuple | None:
        return super().interval() if INTERVAL.match(self.text, self.at) else None

    # -- groups

    def group(self) -> tuple | None:
        text, at = self.text, self.at
        if reference := NAMED_REFERENCE.match(text, at - 1):
            return self.named_reference(reference)
        if name := NAMED_GROUP.match(text, at):
            return self.named_group(name)
        if flags := FLAGS.match(text, at):
            return self.flag_group(flags)
        if kind := SPECIAL_GROUP.match(text, at):
            self.at = kind.end()
            return self.special_group(kind[1])
        if text.startswith("?#", at):
            raise RegexError("missing ) after (?# comment")
        if other := OTHER_GROUP.match(text, at):
            raise RegexError(f"({other[0]}...) is not simulated")
        return self.capture()

    def body(self) -> tuple:
        """Read the rest of a group, and drop the flags that it set."""
        outer = self.flags
        tree = self.alternatives()
        if not self.take(")"):
            raise RegexError("missing closing parenthesis")
        self.flags = outer
        return tree

    def capture(self) -> tuple:
        self.groups += 1
        number = self.groups
        return ("group", number, self.body())

    def named_group(self, found: re.Match) -> tuple:
        name = found[1] or found[2]
        if name in self.names:
            raise RegexError("two named subpatterns have the same name (PCRE2_DUPNAMES not set)")
        self.names[name] = self.groups + 1
        self.at = found.end()
        return self.capture()

    def flag_group(self, found: re.Match) -> tuple | None:
        """Read (?i), which changes the flags, or (?i:...) or (?:...)."""
        outer = self.flags
        self.flags = outer.union(found[1]).difference(found[2] or "")
        self.at = found.end()
        if found[3] == ")":
            return None
        tree = self.body()
        self.flags = outer
        return ("cat", [tree])  # not bare, because a look-behind allows several widths only to its own alternatives

    def special_group(self, kind: str) -> tuple:
        if kind == ">":
            return ("atomic", self.body())
        self.looking += 1
        body = self.body()
        self.looking -= 1
        widths = None
        if kind[0] == "<":
            widths = [width(branch) for branch in (body[1] if body[0] == "alt" else [body])]
            if None in widths:
                raise RegexError("lookbehind assertion is not fixed length")
        return ("look", widths, kind[-1] == "!", body)

    def named_reference(self, found: re.Match) -> tuple:
        self.at = found.end()
        return self.reference(self.names.get(found[found.lastindex], 0))

    def reference(self, number: int) -> tuple:
        if not 0 < number <= self.groups:
            raise RegexError("reference to non-existent subpattern")
        self.backrefs = True
        return ("back", number)

    # -- escapes

    def escape(self) -> tuple:
        text, at = self.text, self.at
        char = text[at + 1 : at + 2]
        if char == "K":
            if self.looking:
                raise RegexError("\\K is not allowed in lookarounds (but see PCRE2_EXTRA_ALLOW_LOOKAROUND_BSK)")
            self.at += 2
            return ("keep",)
        if char == "R":
            self.at += 2
            return ("cat", [LINE_BREAK])
        if char in PLACES:
            self.at += 2
            return ("place", PLACES[char])
        if name := NAMED_REFERENCE.match(text, at):
            return self.named_reference(name)
        found = NUMBERED_REFERENCE.match(text, at)
        if found:
            number = int(found[found.lastindex][:9])
            if not found[3] or number < 10 or char in "89" or number <= self.groups:  # else \11 is an octal code
                self.at = found.end()
                return self.reference(number if number > 0 else self.groups + 1 + number)
        return ("set", self.members(self.escaped()))

    def members(self, found: str | frozenset) -> frozenset:
        """Return a set of characters; only a single character gets its other case under (?i)."""
        return self.cased(frozenset(found)) if isinstance(found, str) else found

    def escaped(self) -> str | frozenset:
        """Read an escape that stands for a character or a set."""
        text, at = self.text, self.at
        char = text[at + 1 : at + 2]
        if not char:
            raise RegexError("\\ at end of pattern")
        if char in ("p", "P"):
            return self.property()
        if text.startswith("N{", at + 1) and not INTERVAL.match(text, at + 2):
            raise RegexError("\\N{...} is not simulated")
        if code := CODE.match(text, at):
            self.at = code.end()
            return coded(code)
        self.at += 2
        if char in SETS:
            return SETS[char]
        if char in CHARACTERS:
            return CHARACTERS[char]
        if char.isascii() and char.isalnum():
            raise RegexError(f"\\{char} is not simulated")
        return char

    def property(self) -> frozenset:
        """Read \\p{...}: the characters of a general category."""
        found = PROPERTY.match(self.text, self.at)
        if not found:
            raise RegexError("malformed \\P or \\p sequence")
        negated = (self.text[self.at + 1] == "P") != bool(found[1])
        self.at = found.end()
        name = re.sub(r"[\s_-]", "", found[2] or found[3] or "").lower()
        if name == "any":
            members = ANY
        elif name in ("l&", "lc"):
            members = frozenset(char for char in ANY if CATEGORIES[char] in ("ll", "lu"))
        elif name[:1] in PROPERTIES and name[1:] in ("", *PROPERTIES[name[0]]):
            members = frozenset(char for char in ANY if CATEGORIES[char].startswith(name))
        else:
            raise RegexError(f"{found[0]} is not simulated")
        return ANY - members if negated else members

    # -- character classes

    def bracket(self) -> frozenset:
        text = self.text
        if alone := POSIX_CLASS.match(text, self.at - 1):
            raise RegexError(COLLATING if alone[1] != ":" else "POSIX named classes are supported only within a class")
        negated = text.startswith("^", self.at)
        self.at += negated
        found: set[str] = set()
        first = True
        while first or not text.startswith("]", self.at):
            first = False
            low = self.member()
            if text.startswith("-", self.at) and text[self.at + 1 : self.at + 2] not in ("", "]"):
                self.at += 1
                found |= self.span(low, self.member())
            else:
                found |= self.members(low)
        self.at += 1
        return ANY - found if negated else frozenset(found)

    def span(self, low: str | frozenset, high: str | frozenset) -> frozenset:
        if isinstance(low, frozenset) or isinstance(high, frozenset):
            raise RegexError("invalid range in character class")
        if high < low:
            raise RegexError("range out of order in character class")
        return self.cased(frozenset(map(chr, range(ord(low), ord(high) + 1))))

    def member(self) -> str | frozenset:
        """Read one item of a class: a character or a set."""
        text, at = self.text, self.at
        if at >= len(text):
            raise RegexError("missing terminating ] for character class")
        if found := POSIX_CLASS.match(text, at):
            return self.posix_class(found)
        if text[at] != "\\":
            self.at += 1
            return text[at]
        char = text[at + 1 : at + 2]
        if char in ("b", "8", "9"):
            self.at += 2
            return "\b" if char == "b" else char
        if char == "N":
            raise RegexError("\\N is not supported in a class")
        return self.escaped()

    def posix_class(self, found: re.Match) -> frozenset:
        if found[1] != ":":
            raise RegexError(COLLATING)
        if found[3] not in POSIX_CLASSES:
            raise RegexError("unknown POSIX class name")
        self.at = found.end()
        members = self.cased(POSIX_CLASSES[found[3]])
        return ANY - members if found[2] else members


def unquoted(text: str) -> str:
    """Return an expression in which codes replace the text between \\Q and \\E."""

    def plain(found: re.Match) -> str:
        if found[1] is None:
            return "" if found[0] == "\\E" else found[0]
        return "".join(f"\\x{ord(char):02x}" if char.isascii() else char for char in found[1])

    return QUOTED.sub(plain, text)


def coded(found: re.Match) -> str:
    """Return the character of \\x{...}, \\xHH, \\o{...}, \\ooo or \\cX."""
    braced, digits, octal, short_octal, control = found.groups()
    if control:
        return chr(ord(control.upper()) ^ 64)
    octal = octal or short_octal
    code = int(octal, 8) if octal else int(braced or digits or "0", 16)
    if code > 255:
        raise RegexError("character code point value in \\x{} or \\o{} is too large")
    return chr(code)


def width(node: tuple) -> int | None:
    """Return the number of characters that a tree matches, None if it varies."""
    kind = node[0]
    if kind in ("place", "look", "keep"):
        return 0
    if kind == "set":
        return 1
    if kind == "back":
        raise RegexError("a back reference in a lookbehind is not simulated")
    if kind in ("group", "atomic"):
        return width(node[-1])
    if kind in ("rep", "lazy"):
        once = width(node[1])
        return None if once is None or node[2] != node[3] else once * node[2]
    widths = [width(part) for part in node[1]]
    if None in widths or (kind == "alt" and len(set(widths)) > 1):
        return None
    return widths[0] if kind == "alt" else sum(widths)
