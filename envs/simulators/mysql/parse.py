"""Parse a MySQL statement to a Select, a Change, ("show", what, table), ("set", [(variable, expression)]), or
("transaction", word).

Sources of a Select: ("table", name, alias), ("derived", Select, alias), ("recursive", name, alias),
("join", kind, left, right, condition, columns of USING or NATURAL).
"""

from dataclasses import dataclass, field, replace

from envs.simulators.mysql.grammar import Grammar
from envs.simulators.mysql.tokens import MySQLError, not_spoken, unquoted
from envs.simulators.mysql.words import RESERVED

MAX_TABLES = 61  # that one statement may join, as in MySQL
NATURAL = "natural"  # instead of the columns of USING: those that both sides have
IDLE_SETTINGS = {"AUTOCOMMIT", "FOREIGN_KEY_CHECKS", "SQL_SAFE_UPDATES", "UNIQUE_CHECKS"}  # that change nothing here


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


@dataclass
class Change:
    """INSERT, UPDATE or DELETE."""

    verb: str
    table: str
    alias: str | None = None
    columns: list | None = None  # of INSERT
    rows: list | None = None  # of INSERT, expressions; None for DEFAULT
    query: Select | None = None  # of INSERT ... SELECT
    sets: list = field(default_factory=list)  # of UPDATE: (table, column, expression)
    where: tuple | None = None
    order: list = field(default_factory=list)
    limit: tuple | None = None
    source: tuple | None = None  # of UPDATE or DELETE over a join; `table` is then the alias of DELETE's, or empty
    ignores: bool = False  # IGNORE: a value of another type is converted
    again: list = field(default_factory=list)  # ON DUPLICATE KEY UPDATE, like sets
    row_alias: str | None = None  # of the new row in `again`


class Parser(Grammar):
    """Read a whole statement; see Grammar."""

    def __init__(self, sql: str):
        super().__init__(sql)
        self.tables = 0  # that are joined so far, derived ones too
        self.named: dict[str, tuple[Select, int]] = {}  # WITH: a query, and how many tables it joins
        self.recurring: dict[str, bool] = {}  # WITH RECURSIVE being read: a name, and whether it was read inside

    # -- statements

    def statement(self):
        """Read the statement: Select, Change, or ("show", what, table)."""
        if self.tokens[0][0] == "end":
            raise MySQLError(1065, "42000", "Query was empty")
        if self.sees("SELECT", "WITH", "("):
            found = self.query()
        elif self.accept("INSERT") or self.accept("REPLACE"):
            found = self.insert()
        elif self.accept("UPDATE"):
            found = self.update()
        elif self.accept("DELETE"):
            found = self.delete()
        elif self.accept("TRUNCATE"):
            self.accept("TABLE")
            found = Change("DELETE", self.table_name())
        elif self.accept("SHOW"):
            found = self.show()
        elif self.accept("SET"):
            found = "set", [pair for pair in self.listed(self.setting) if pair]
        elif self.sees("START", "BEGIN", "COMMIT", "ROLLBACK"):
            found = "transaction", self.transaction()
        elif self.accept("DESCRIBE") or self.accept("DESC") or self.accept("EXPLAIN"):
            found = ("show", "COLUMNS", self.table_name())
        elif self.sees("CREATE", "DROP", "ALTER"):
            verb = self.tokens[0][1]
            raise MySQLError(1142, "42000", f"{verb} command denied to user 'agent'@'localhost'")
        else:
            raise self.error()
        if self.tokens[self.at][0] != "end":
            raise self.error()
        return found

    def show(self) -> tuple:
        if self.accept("TABLES"):
            return "show", "TABLES", None
        if self.accept("DATABASES"):
            return "show", "DATABASES", None
        if self.accept("CREATE", "TABLE"):
            return "show", "CREATE", self.table_name()
        self.accept("FULL")
        if not (self.accept("COLUMNS") or self.accept("FIELDS")):
            raise self.error()
        if not (self.accept("FROM") or self.accept("IN")):
            raise self.error()
        return "show", "COLUMNS", self.table_name()

    def setting(self) -> tuple | None:
        """Read what SET sets: a variable and its expression; None for a setting that changes nothing here."""
        kind, text, place = self.tokens[self.at]
        if kind == "variable" and not text.startswith("@@"):
            self.at += 1
            if not self.accept(":="):
                self.expect("=")
            return text[1:].lower(), self.expression()
        if self.accept("NAMES"):
            self.at += 1
            return None
        self.accept("SESSION")
        kind, text, _ = self.tokens[self.at]
        name = text.upper().removeprefix("@@").removeprefix("SESSION.")
        if kind not in ("word", "variable") or name not in IDLE_SETTINGS:
            raise not_spoken(f"SET {self.sql[place:].split(maxsplit=1)[0][:80]}" if text else "SET")
        self.at += 1
        self.expect("=")
        if not self.accept("ON") and not self.accept("OFF"):
            self.expression()
        return None

    def transaction(self) -> str:
        word = self.tokens[self.at][1]
        self.at += 1
        if word == "START":
            self.expect("TRANSACTION")
        else:
            self.accept("WORK")
        return {"START": "BEGIN"}.get(word, word)

    def insert(self) -> Change:
        ignores = self.modifiers()
        self.accept("INTO")
        change = Change("INSERT", self.table_name(), ignores=ignores)
        if self.accept("SET"):
            pairs = self.listed(self.assignment)
            change.columns, change.rows = [column for _, column, _ in pairs], [[value for *_, value in pairs]]
            return self.on_duplicate(change)
        if self.accept("("):
            change.columns = [] if self.sees(")") else self.listed(self.name)
            self.expect(")")
        if self.accept("VALUES") or self.accept("VALUE"):
            change.rows = self.listed(self.row)
        else:
            change.query = self.query()
        return self.on_duplicate(change)

    def modifiers(self) -> bool:
        """Read the words between a change's verb and its table; return whether IGNORE is one of them."""
        for word in ("LOW_PRIORITY", "HIGH_PRIORITY", "DELAYED", "QUICK"):
            self.accept(word)
        return self.accept("IGNORE")

    def on_duplicate(self, change: Change) -> Change:
        if self.accept("AS"):
            change.row_alias = self.name()
        if self.accept("ON"):
            self.expect("DUPLICATE", "KEY", "UPDATE")
            change.again = self.listed(self.assignment)
        return change

    def row(self) -> list:
        self.expect("(")
        values = [] if self.sees(")") else self.listed(self.value)
        self.expect(")")
        return values

    def value(self) -> tuple:
        return ("null",) if self.accept("DEFAULT") else self.expression()

    def update(self) -> Change:
        ignores = self.modifiers()
        source = self.sources()
        if source[0] == "table":
            change = Change("UPDATE", *source[1:], ignores=ignores)
        else:
            change = Change("UPDATE", "", source=source, ignores=ignores)
        self.expect("SET")
        change.sets = self.listed(self.assignment)
        return self.rest_of_change(change)

    def delete(self) -> Change:
        """Read DELETE FROM t, DELETE a FROM sources, or DELETE FROM a USING sources."""
        self.modifiers()
        first = self.accept("FROM")
        name = self.table_name()
        if not first or self.sees("USING", ","):
            if self.accept(","):
                raise not_spoken("DELETE of several tables")
            self.expect("USING" if first else "FROM")
            return self.rest_of_change(Change("DELETE", name, source=self.sources()))
        return self.rest_of_change(Change("DELETE", name, self.alias()))

    def assignment(self) -> tuple:
        table, column = None, self.name()
        if self.accept("."):
            table, column = column, self.name(words=True)
        self.expect("=")
        return table, column, self.value()

    def rest_of_change(self, change: Change) -> Change:
        change.where = self.expression() if self.accept("WHERE") else None
        change.order = self.order_by()
        if self.accept("LIMIT"):
            change.limit = self.count(), 0
        return change

    # -- queries

    def query(self) -> Select:
        """Read SELECT, UNION, EXCEPT or INTERSECT, with WITH, ORDER BY and LIMIT."""
        self.deeper()
        outer = self.named
        if self.accept("WITH"):
            self.named, recursive = dict(outer), self.accept("RECURSIVE")
            self.listed(lambda: self.common_table(recursive))
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
        found.items = self.listed(self.item)
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
