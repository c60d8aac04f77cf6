"""Parse MySQL expressions to nested tuples:

("text", s), ("int", n), ("decimal", digits), ("double", digits), ("null",), ("column", table, name), ("star", table),
("negate", e), ("not", e), ("binary", operator, left, right), ("is", e, what, negated),
("in", e, list or Select, negated), ("like", e, pattern, escape, negated), ("regexp", e, pattern, negated),
("between", e, low, high, negated), ("compared", operator, e, ALL or ANY, Select), ("row", [e]), ("inverted", e),
("interval", e, unit),
("case", operand, [(when, then)], otherwise), ("exists", Select), ("query", Select), ("cast", e, type, scale),
("call", NAME, arguments, distinct, order, separator), ("window", call, (partition, order, frame) or its name),
("variable", name), ("assign", name of a variable, e), ("default",).
"""

from envs.simulators.mysql.forms import BARE, FORMS, called, interval
from envs.simulators.mysql.tokens import (
    AGGREGATES,
    CALLED,
    TOKEN,
    MySQLError,
    not_spoken,
    syntax_error,
    too_deep,
    unquoted,
)
from envs.simulators.mysql.words import RESERVED, UNSPOKEN

STRENGTH = {"OR": 1, "||": 1, "XOR": 2, "AND": 3, "&&": 3, "+": 10, "-": 10, "*": 11, "/": 11, "%": 11}
STRENGTH |= {"|": 7, "&": 8, "<<": 9, ">>": 9, "^": 12, "DIV": 11, "MOD": 11} | dict.fromkeys(
    ("=", "<=>", "<", ">", "<=", ">=", "<>", "!="), 6
)
SAME = {"||": "OR", "&&": "AND", "MOD": "%", "!=": "<>"}
CASTS = ("SIGNED", "UNSIGNED", "CHAR", "DECIMAL", "DATE", "DATETIME", "TIME", "DOUBLE", "FLOAT", "JSON")
NEW_ROW = "new row~"  # alias of the row that INSERT ... ON DUPLICATE KEY UPDATE could not add
PREDICATES = ("IS", "NOT", "IN", "LIKE", "REGEXP", "RLIKE", "BETWEEN")  # what begins one after an expression
PREFIXES = ("NOT", "!", "-", "+", "~")
MAX_DEPTH = 60  # of expressions and queries in one another; SQLite's parser has a stack of 100


class Grammar:
    """One statement, `self.at` of its tokens read. Every method reads what its name says, or raises MySQLError. Queries
    are read by its subclass, envs.simulators.mysql.selects.Selects."""

    def __init__(self, sql: str):
        self.sql = sql
        self.tokens = []  # (kind, text; of words and signs in capitals, where it begins)
        self.at, self.depth = 0, 0
        self.assigning: list[str] = []  # the @variable of each := in an expression
        place = 0
        while place < len(sql):
            match = TOKEN.match(sql, place)
            if not match:
                self.tokens.append(("bad", "", place))
                break
            if kind := match.lastgroup:
                self.tokens.append((kind, match[0].upper() if kind in ("word", "sign") else match[0], place))
            place = match.end()
        self.tokens.append(("end", "", len(sql)))

    # -- tokens

    def error(self) -> MySQLError:
        """Return the error at the next token."""
        kind, text, place = self.tokens[self.at]
        if kind == "variable" or (kind in ("word", "sign") and text in UNSPOKEN):
            return not_spoken(self.sql[place:].split(maxsplit=1)[0][:80])
        return syntax_error(self.sql[place:].rstrip())

    def sees(self, *words: str) -> bool:
        """Return whether the next token is one of these words or signs."""
        kind, text, _ = self.tokens[self.at]
        return text in words and kind in ("word", "sign")

    def accept(self, *words: str) -> bool:
        """Consume these words or signs if all of them come next, and return whether they did."""
        at = self.at
        for word in words:
            kind, text, _ = self.tokens[at]
            if text != word or kind not in ("word", "sign"):
                return False
            at += 1  # the last token is no word
        self.at = at
        return True

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accept(word):
                raise self.error()

    def name(self, words: bool = False) -> str:
        """Read an identifier; with `words`, a reserved word is allowed."""
        kind, text, place = self.tokens[self.at]
        if kind not in ("word", "name") or (kind == "word" and text in RESERVED and not words):
            raise self.error()
        self.at += 1
        return text[1:-1] if kind == "name" else self.sql[place : place + len(text)]

    def listed(self, read) -> list:
        """Call `read` one or more times, at commas, and return the results."""
        found = [read()]
        while self.accept(","):
            found.append(read())
        return found

    # -- expressions

    def deeper(self, by: int = 1) -> None:
        self.depth += by
        if self.depth > MAX_DEPTH:
            raise too_deep()

    def expression(self, least: int = 1) -> tuple:
        """Read an expression whose operators bind at least this strongly."""
        self.deeper()
        links = 0
        found = self.unary(least)
        while True:
            kind, text, _ = self.tokens[self.at]
            strength = STRENGTH.get(text) if kind in ("word", "sign") else None
            if strength:
                if strength < least:
                    break
                self.at += 1
                some = strength == 6 and next((word for word in ("ALL", "ANY", "SOME") if self.accept(word)), None)
                if some:
                    found = ("compared", SAME.get(text, text), found, some, self.bracketed_query())
                else:
                    found = ("binary", SAME.get(text, text), found, self.expression(strength + 1))
            elif least <= 6 and (after := self.predicate(found)):
                found = after
            else:
                break
            links += 1
            self.deeper()
        self.depth -= links + 1
        return found

    def bracketed_query(self):
        self.expect("(")
        query = self.query()
        self.expect(")")
        return query

    def predicate(self, left: tuple) -> tuple | None:
        """Read IS, IN, LIKE, REGEXP or BETWEEN after an expression; None if none of them follows."""
        if not self.sees(*PREDICATES):
            return None
        if self.accept("IS"):
            negated = self.accept("NOT")
            for what in ("NULL", "TRUE", "FALSE"):
                if self.accept(what):
                    return "is", left, what, negated
            raise self.error()
        following = self.tokens[self.at + 1][1] if self.sees("NOT") else ""
        negated = following in ("IN", "LIKE", "BETWEEN", "REGEXP", "RLIKE") and self.accept("NOT")
        if self.accept("IN"):
            self.expect("(")
            among = self.query() if self.sees("SELECT", "WITH") else self.listed(self.expression)
            self.expect(")")
            return "in", left, among, negated
        if self.accept("LIKE"):
            pattern = self.expression(7)
            escape = self.expression(13) if self.accept("ESCAPE") else ("text", "\\")
            return "like", left, pattern, escape, negated
        if self.accept("REGEXP") or self.accept("RLIKE"):
            return "regexp", left, self.expression(7), negated
        if self.accept("BETWEEN"):
            low = self.expression(7)
            self.expect("AND")
            return "between", left, low, self.expression(7), negated
        return None

    def unary(self, least: int) -> tuple:
        if not self.sees(*PREFIXES):
            return self.primary()
        if least <= 4 and self.accept("NOT"):
            return "not", self.expression(4)
        if self.accept("!"):
            return "not", self.expression(14)
        if self.accept("-"):
            return "negate", self.expression(13)
        if self.accept("+"):
            return self.expression(13)
        if self.accept("~"):
            return "inverted", self.expression(13)
        return self.primary()

    def primary(self) -> tuple:
        kind, text, _ = self.tokens[self.at]
        if kind in ("int", "decimal", "double"):
            self.at += 1
            if kind == "int" and len(text) < 21 and int(text) < 2**64:
                return kind, int(text)
            return "decimal" if kind == "int" else kind, text
        if kind == "text":
            parts = []
            while self.tokens[self.at][0] == "text":
                parts.append(unquoted(self.tokens[self.at][1]))
                self.at += 1
            return "text", "".join(parts)
        if kind == "variable" and not text.startswith("@@"):
            self.at += 1
            if not self.accept(":="):
                return "variable", text[1:].lower()
            self.assigning.append(text[1:].lower())
            return "assign", text[1:].lower(), self.expression()
        if self.accept("("):
            if self.sees("SELECT", "WITH"):
                found = "query", self.query()
            else:
                listed = self.listed(self.expression)
                found = listed[0] if len(listed) == 1 else ("row", listed)
            self.expect(")")
            return found
        return self.worded(text) if kind == "word" else self.column()

    def worded(self, word: str) -> tuple:
        """Read an expression that begins with a word: a form, a function or a column."""
        following = self.tokens[self.at + 1]
        if word in WORDS:
            self.at += 1
            return WORDS[word](self)
        if following[:2] == ("sign", "(") and (word in FORMS or word not in RESERVED or word in CALLED):
            return self.call()
        if word == "VALUES" and following[:2] == ("sign", "("):  # of ON DUPLICATE KEY UPDATE: the new row's column
            self.at += 2
            name = self.name()
            self.expect(")")
            return "column", NEW_ROW, name
        if word in BARE:
            self.at += 1
            if self.accept("("):
                if not self.sees(")"):
                    self.count()  # places of a second, which the clock does not have
                self.expect(")")
            return called(word)
        if word in LITERALS and following[0] == "text":
            self.at += 1
            return "cast", self.primary(), LITERALS[word], 0
        return self.column()

    def column(self) -> tuple:
        """Read a column, perhaps with its table and database, or all columns of a table."""
        table, name = None, self.name()
        while self.accept("."):
            table = f"{table}.{name}" if table else name
            if self.accept("*"):
                return "star", table
            name = self.name(words=True)
        return self.extracted(("column", table, name))

    def extracted(self, column: tuple) -> tuple:
        """Read -> or ->> and a path after a column, if one follows."""
        if not self.sees("->", "->>"):
            return column
        sign = self.tokens[self.at][1]
        self.at += 1
        if self.tokens[self.at][0] != "text":
            raise self.error()
        found = ("call", "JSON_EXTRACT", [column, self.primary()], False, [], ",")
        return ("call", "JSON_UNQUOTE", [found], False, [], ",") if sign == "->>" else found

    def call(self) -> tuple:
        kind, name, place = self.tokens[self.at]
        self.at += 2
        if name in AGGREGATES and self.tokens[self.at - 1][2] != place + len(name):
            raise self.error()  # MySQL takes COUNT (x) for a function of the user's
        if name in FORMS:
            found = FORMS[name](self)
            self.expect(")")
            return found
        distinct, order, separator, arguments = False, [], ",", []
        if name == "COUNT" and self.accept("*"):
            arguments = [("star", None)]
        elif not self.sees(")"):
            distinct = name in AGGREGATES and self.accept("DISTINCT")
            arguments = self.listed(self.expression)
            if name in ("SUBSTRING", "SUBSTR", "MID") and len(arguments) == 1 and self.accept("FROM"):
                arguments.append(self.expression())
                arguments += [self.expression()] if self.accept("FOR") else []
            if name == "GROUP_CONCAT":
                order = self.order_by()
                if self.accept("SEPARATOR"):
                    kind, text, _ = self.tokens[self.at]
                    if kind != "text":
                        raise self.error()
                    self.at += 1
                    separator = unquoted(text)
        self.expect(")")
        found = ("call", name, arguments, distinct, order, separator)
        return ("window", found, self.over()) if self.accept("OVER") else found

    def over(self) -> tuple | str:
        """Read a window: its partition, its order and its frame as SQL, or its name."""
        if not self.sees("("):
            return self.name()
        self.expect("(")
        partition = []
        if self.accept("PARTITION"):
            self.expect("BY")
            partition = self.listed(self.expression)
        order = self.order_by()
        frame = next((word for word in ("ROWS", "RANGE") if self.accept(word)), "")
        if frame and self.accept("BETWEEN"):
            low = self.bound()
            self.expect("AND")
            frame += f" BETWEEN {low} AND {self.bound()}"
        elif frame:
            frame += f" {self.bound()}"
        self.expect(")")
        return partition, order, frame

    def bound(self) -> str:
        """Read an end of a frame."""
        if self.accept("CURRENT", "ROW"):
            return "CURRENT ROW"
        if self.sees("INTERVAL"):
            raise not_spoken("RANGE INTERVAL")
        distance = "UNBOUNDED" if self.accept("UNBOUNDED") else str(self.count())
        side = "PRECEDING" if self.accept("PRECEDING") else "FOLLOWING"
        if side == "FOLLOWING":
            self.expect("FOLLOWING")
        return f"{distance} {side}"

    def case(self) -> tuple:
        operand = None if self.sees("WHEN") else self.expression()
        branches, otherwise = [], ("null",)
        while self.accept("WHEN"):
            when = self.expression()
            self.expect("THEN")
            branches.append((when, self.expression()))
        if not branches:
            raise self.error()
        if self.accept("ELSE"):
            otherwise = self.expression()
        self.expect("END")
        return "case", operand, branches, otherwise

    def exists(self) -> tuple:
        self.expect("(")
        query = self.query()
        self.expect(")")
        return "exists", query

    def cast(self) -> tuple:
        """Read the arguments of CAST or CONVERT."""
        word = self.tokens[self.at - 1][1]
        self.expect("(")
        expression = self.expression()
        self.expect("AS" if word == "CAST" else ",")
        kind = next((kind for kind in CASTS if self.accept(kind)), None)
        if kind is None:
            raise self.error()
        sizes = [0]
        if kind in ("SIGNED", "UNSIGNED"):
            self.accept("INTEGER") or self.accept("INT")
        elif kind in ("DECIMAL", "CHAR", "DATETIME", "TIME") and self.accept("("):
            sizes = self.listed(self.count)
            self.expect(")")
        self.expect(")")
        return "cast", expression, kind, min(sizes[1], 30) if len(sizes) > 1 else 0


WORDS = {  # what begins with a word of its own, once that is read
    "NULL": lambda grammar: ("null",),
    "TRUE": lambda grammar: ("int", True),  # which is 1, but in JSON true
    "FALSE": lambda grammar: ("int", False),
    "CASE": Grammar.case,
    "EXISTS": Grammar.exists,
    "CAST": Grammar.cast,
    "CONVERT": Grammar.cast,
    "INTERVAL": interval,
}
LITERALS = {"DATE": "DATE", "TIME": "TIME", "TIMESTAMP": "DATETIME"}  # the word before a quoted day or time
