"""Parse a MySQL statement to a Select, a Change, ("show", what, table), ("set", [(variable, expression)]),
("store", Select, variables of INTO), ("define", method of Definer, *arguments), or ("transaction", word)."""

from dataclasses import dataclass, field

from envs.simulators.mysql.definitions import Definitions
from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.tokens import MySQLError, not_spoken

SHOWN = {"BINARY", "CHARACTER", "COLLATION", "COUNT", "CREATE", "ENGINE", "ENGINES", "ERRORS", "EVENTS", "EXTENDED"}
SHOWN |= {"FUNCTION", "GLOBAL", "GRANTS", "MASTER", "OPEN", "PLUGINS", "PRIVILEGES"}
SHOWN |= {"PROCEDURE", "PROCESSLIST", "PROFILES", "SCHEMAS", "SESSION", "STATUS", "STORAGE", "TABLE", "TRIGGERS"}
SHOWN |= {"VARIABLES", "WARNINGS"}  # by MySQL, and not here
IDLE_SETTINGS = {"SQL_SAFE_UPDATES", "UNIQUE_CHECKS"}  # that change nothing here
SETTINGS = {"AUTOCOMMIT", "FOREIGN_KEY_CHECKS"}


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
    replaces: bool = False  # REPLACE: rows with an equal key are deleted first


class Parser(Definitions):
    """Read a whole statement; see Grammar."""

    def statement(self):
        """Read the statement: Select, Change, or ("show", what, table)."""
        if self.tokens[0][0] == "end":
            raise MySQLError(1065, "42000", "Query was empty")
        with_tables = self.sees("WITH")
        self.deeper()
        self.common_tables()
        self.depth -= 1
        if with_tables and not self.sees("SELECT", "UPDATE", "DELETE", "("):
            raise self.error()
        if self.sees("SELECT", "("):
            found = self.query()
            self.into_variables()
        elif self.accept("INSERT") or self.accept("REPLACE"):
            replaces = self.tokens[self.at - 1][1] == "REPLACE"
            found = self.insert()
            found.replaces = replaces
        elif self.accept("UPDATE"):
            found = self.update()
        elif self.accept("DELETE"):
            found = self.delete()
        elif self.accept("TRUNCATE"):
            self.accept("TABLE")
            found = "define", "truncate", self.table_name()
        elif self.accept("SHOW"):
            found = self.show()
        elif self.accept("SET"):
            found = "set", [pair for pair in self.listed(self.setting) if pair]
        elif self.sees("START", "BEGIN", "COMMIT", "ROLLBACK"):
            found = "transaction", self.transaction()
        elif self.sees("EXPLAIN", "DESCRIBE", "DESC") and self.explains():
            raise not_spoken("EXPLAIN")
        elif self.accept("DESCRIBE") or self.accept("DESC") or self.accept("EXPLAIN"):
            found = ("show", "COLUMNS", self.table_name())
        elif self.sees("CREATE", "DROP", "ALTER", "RENAME"):  # of tables; root.py answers the others
            found = "define", *self.definition()
        elif self.sees("TABLE", "VALUES"):
            raise not_spoken(self.tokens[self.at][1])
        else:
            raise self.error()
        if self.tokens[self.at][0] != "end":
            raise self.error()
        return ("store", found, self.into) if self.into else found

    def explains(self) -> bool:
        """Return whether the word that comes next asks for the plan of a statement, not for a table's columns."""
        kind, text, _ = self.tokens[self.at + 1]
        plans = ("SELECT", "WITH", "UPDATE", "DELETE", "INSERT", "REPLACE", "ANALYZE", "FORMAT", "EXTENDED", "(")
        return kind in ("word", "sign") and text in plans

    def show(self) -> tuple:
        if self.accept("DATABASES"):
            return "show", "DATABASES", None
        if self.accept("CREATE", "TABLE"):
            return "show", "CREATE", self.table_name()
        full = self.accept("FULL")
        if self.accept("TABLES"):
            if self.accept("FROM") or self.accept("IN"):
                self.name()
            pattern = self.string() if self.accept("LIKE") else "%"
            return "show", "FULL TABLES" if full else "TABLES", pattern
        if self.accept("INDEX") or self.accept("INDEXES") or self.accept("KEYS"):
            if not (self.accept("FROM") or self.accept("IN")):
                raise self.error()
            return "show", "INDEX", self.table_name()
        if self.sees(*SHOWN):
            raise not_spoken(f"SHOW {self.tokens[self.at][1]}")
        if not (self.accept("COLUMNS") or self.accept("FIELDS")):
            raise self.error()
        if not (self.accept("FROM") or self.accept("IN")):
            raise self.error()
        return "show", "COLUMNS", self.table_name()

    def setting(self) -> tuple | None:
        """Read what SET sets: a variable or @@autocommit, and its expression; None for what changes nothing here."""
        kind, text, place = self.tokens[self.at]
        if kind == "variable" and not text.startswith("@@"):
            self.at += 1
            if not self.accept(":="):
                self.expect("=")
            return text[1:].lower(), self.expression()
        if self.accept("NAMES"):
            if self.tokens[self.at][0] not in ("word", "name", "text"):
                raise self.error()
            self.at += 1
            return None
        self.accept("SESSION")
        kind, text, _ = self.tokens[self.at]
        name = text.upper().removeprefix("@@").removeprefix("SESSION.")
        if kind == "end":
            raise self.error()
        if kind not in ("word", "variable") or name not in IDLE_SETTINGS | SETTINGS:
            raise not_spoken(f"SET {self.sql[place:].split(maxsplit=1)[0][:80]}")
        self.at += 1
        self.expect("=")
        value = ("int", 1) if self.accept("ON") else ("int", 0) if self.accept("OFF") else self.expression()
        return (f"@@{name.lower()}", value) if name in SETTINGS else None

    def transaction(self) -> str:
        """Read START TRANSACTION, BEGIN, COMMIT or ROLLBACK; return BEGIN for the first two."""
        _, word, place = self.tokens[self.at]
        self.at += 1
        known = self.accept("TRANSACTION") if word == "START" else self.accept("WORK") or True
        if not known or self.tokens[self.at][0] != "end":
            raise not_spoken(self.sql[place:].strip()[:80])
        return "BEGIN" if word == "START" else word

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
        if self.sees("DEFAULT") and self.tokens[self.at + 1][1] != "(":
            self.at += 1
            return ("default",)
        return self.expression()

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
