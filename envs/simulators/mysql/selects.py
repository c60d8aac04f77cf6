"""Parse a query to a Select.

Its sources: ("table", name, alias), ("derived", Select, alias), ("recursive", name, alias),
("join", kind, left, right, condition, columns of USING or NATURAL).
"""

from dataclasses import dataclass, field, replace

from envs.simulators.mysql.grammar import Grammar
from envs.simulators.mysql.tokens import MySQLError, unquoted
from envs.simulators.mysql.words import RESERVED

MAX_TABLES = 61  # that one statement may join, as in MySQL
HINTS = ("HIGH_PRIORITY", "SQL_BIG_RESULT", "SQL_BUFFER_RESULT", "SQL_NO_CACHE", "SQL_SMALL_RESULT", "STRAIGHT_JOIN")
NATURAL = "natural"  # instead of the columns of USING: those that both sides have


@dataclass
class Select:
    """A SELECT, or a UNION of `parts`, of which it holds only the order and the limit."""

    items: list = field(default_factory=list)  # (expression, alias or None, the text of the expression)
    distinct: bool = False
    source: tuple | None = None
    where: tuple | None = None
    groups: list = field(default_factory=list)  # expressions
    having: tuple | None = None
    windows: dict = field(default_factory=dict)  # name in lower case -> (partition, order, frame)
    order: list = field(default_factory=list)  # (expression, whether it descends)
    limit: tuple | None = None  # rows, rows before them
    parts: list = field(default_factory=list)  # of a union: (query, how it is combined with those before)
    rolls: bool = False  # WITH ROLLUP
    names: list | None = None  # of its columns, where WITH gives them
    recursive: str | None = None  # of WITH RECURSIVE: the name by which its last part reads its own rows


class Selects(Grammar):
    """Read queries; see Grammar."""

    def __init__(self, sql: str):
        super().__init__(sql)
        self.tables = 0  # that are joined so far, derived ones too
        self.named: dict[str, tuple[Select, int]] = {}  # WITH: a query, and how many tables it joins
        self.into: list[str] = []  # names of the @variables of INTO
        self.recurring: dict[str, bool] = {}  # WITH RECURSIVE being read: a name, and whether it was read inside

    def query(self) -> Select:
        """Read SELECT, UNION, EXCEPT or INTERSECT, with WITH, ORDER BY and LIMIT."""
        self.deeper()
        outer = self.named
        self.common_tables()
        bracketed = self.sees("(")
        parts = self.combined(self.intersection, "UNION", "EXCEPT")
        found = parts[0][0] if len(parts) == 1 else Select(parts=parts)
        order, limit = self.order_by(), self.limit()
        if len(parts) == 1 and bracketed and (order or limit):
            found = Select(parts=parts)
        if order or limit:
            found.order, found.limit = order, limit
        self.depth -= 1
        self.named = outer
        return found

    def combined(self, read, *words: str) -> list[tuple[Select, str]]:
        """Read queries between these words; each comes with its word, and ALL where that is said."""
        parts = [(read(), "UNION ALL")]
        while word := next((word for word in words if self.accept(word)), ""):
            if self.accept("ALL"):
                word += " ALL"
            else:
                self.accept("DISTINCT")
            parts.append((read(), word))
        return parts

    def intersection(self) -> Select:
        """Read what binds stronger than UNION."""
        parts = self.combined(self.part, "INTERSECT")
        return parts[0][0] if len(parts) == 1 else Select(parts=parts)

    def common_tables(self) -> None:
        """Read WITH, if it is there, in front of a query, UPDATE or DELETE."""
        if self.accept("WITH"):
            self.named, recursive = dict(self.named), self.accept("RECURSIVE")
            self.listed(lambda: self.common_table(recursive))

    def common_table(self, recursive: bool) -> None:
        name, names = self.name(), None
        if self.accept("("):
            names = self.listed(self.name)
            self.expect(")")
        self.expect("AS", "(")
        before, self.tables = self.tables, 0
        low = name.lower()
        if recursive:
            self.recurring[low] = False
        query = self.query()
        self.expect(")")
        recurs = self.recurring.pop(low, False)
        if names or recurs:
            query = replace(query, names=names, recursive=low if recurs else None)
        self.named[low] = query, max(1, self.tables)
        self.tables = before

    def part(self) -> Select:
        """Read SELECT without its order and limit, or a query in parentheses."""
        if self.accept("("):
            found = self.query()
            self.expect(")")
            return found
        self.expect("SELECT")
        found = Select(distinct=self.accept("DISTINCT"))
        if not found.distinct:
            self.accept("ALL")
        while self.sees(*HINTS) and self.tokens[self.at + 1][1] not in (",", "FROM", "", "AS"):
            self.at += 1
        found.distinct = found.distinct or self.accept("DISTINCT")
        found.items = self.listed(self.item)
        self.into_variables()
        if self.accept("FROM") and not self.accept("DUAL"):
            found.source = self.sources()
        found.where = self.expression() if self.accept("WHERE") else None
        if self.accept("GROUP"):
            self.expect("BY")
            found.groups = self.listed(self.expression)
            found.rolls = self.accept("WITH", "ROLLUP")
        found.having = self.expression() if self.accept("HAVING") else None
        if self.accept("WINDOW"):
            found.windows = dict(self.listed(self.named_window))
        return found

    def into_variables(self) -> None:
        """Read INTO @a, @b of the whole statement, before FROM or at its end."""
        if self.depth > 1 or self.into or not self.sees("INTO") or self.tokens[self.at + 1][0] != "variable":
            return
        self.at += 1
        while self.tokens[self.at][0] == "variable" and not self.tokens[self.at][1].startswith("@@"):
            self.into.append(self.tokens[self.at][1][1:].lower())
            self.at += 1
            if not self.accept(","):
                return
        raise self.error()

    def named_window(self) -> tuple:
        name = self.name()
        self.expect("AS")
        return name.lower(), self.over()

    def item(self) -> tuple:
        """Read an expression of the SELECT list, its alias and its text."""
        start = self.tokens[self.at][2]
        if self.accept("*"):
            return ("star", None), None, "*"
        expression = self.expression()
        end = self.tokens[self.at][2]
        return expression, self.alias(texts=True), self.sql[start:end].strip()

    def alias(self, texts: bool = False) -> str | None:
        """Read a name after AS or without it; with `texts`, a quoted string is allowed."""
        said = self.accept("AS")
        kind, text, _ = self.tokens[self.at]
        if texts and kind == "text":
            self.at += 1
            return unquoted(text)
        return self.name() if said or kind == "name" or (kind == "word" and text not in RESERVED) else None

    def sources(self) -> tuple:
        """Read the tables of FROM and their joins."""
        found = self.source()
        while True:
            kind = "INNER"
            if self.accept(","):
                found = ("join", "INNER", found, self.source(), None, None)
                continue
            natural = self.accept("NATURAL")
            if self.accept("LEFT") or self.accept("RIGHT"):
                kind = self.tokens[self.at - 1][1]
                self.accept("OUTER")
                self.expect("JOIN")
            elif self.accept("INNER") or self.accept("CROSS"):
                self.expect("JOIN")
            elif not self.accept("JOIN"):
                return found
            right, condition, using = self.source(), None, NATURAL if natural else None
            if natural:
                pass
            elif self.accept("ON"):
                condition = self.expression()
            elif self.accept("USING"):
                self.expect("(")
                using = self.listed(self.name)
                self.expect(")")
            elif kind != "INNER":
                raise self.error()
            found = ("join", kind, found, right, condition, using)

    def source(self) -> tuple:
        if self.accept("("):
            if not self.sees("SELECT", "WITH", "("):
                found = self.sources()
                self.expect(")")
                return found
            query = self.query()
            self.expect(")")
            alias = self.alias()
            if alias is None:
                raise MySQLError(1248, "42000", "Every derived table must have its own alias")
            self.joins(1)
            return "derived", query, alias
        name = self.table_name()
        alias = self.alias()
        if name.lower() in self.recurring:
            self.recurring[name.lower()] = True
            self.joins(1)
            return "recursive", name.lower(), alias or name
        query, tables = self.named.get(name.lower(), (None, 1))
        self.joins(tables)
        return ("derived", query, alias or name) if query else ("table", name, alias)

    def joins(self, tables: int) -> None:
        self.tables += tables
        if self.tables > MAX_TABLES:
            raise MySQLError(1116, "HY000", "Too many tables; MySQL can only use 61 tables in a join")

    def table_name(self) -> str:
        """Read the name of a table, including a database before it."""
        name = self.name()
        return f"{name}.{self.name(words=True)}" if self.accept(".") else name

    def order_by(self) -> list:
        if not self.accept("ORDER"):
            return []
        self.expect("BY")
        return self.listed(self.ordering)

    def ordering(self) -> tuple:
        expression = self.expression()
        descends = self.accept("DESC")
        if not descends:
            self.accept("ASC")
        return expression, descends

    def limit(self) -> tuple | None:
        if not self.accept("LIMIT"):
            return None
        first = self.count()
        if self.accept(","):
            return self.count(), first
        return (first, self.count()) if self.accept("OFFSET") else (first, 0)

    def count(self) -> int:
        kind, text, _ = self.tokens[self.at]
        if kind != "int":
            raise self.error()
        self.at += 1
        return min(int(text[:20]), 2**62)
