"""Parse CREATE, ALTER, DROP, RENAME and TRUNCATE of tables, views and indexes.

A statement becomes (method of definer.Definer, *arguments). The actions of ALTER TABLE are such tuples too:
("add_column", Column, its place), ("drop_index", name). A place is None, "" for FIRST, or the column before.
"""

from envs.simulators.mysql.columns import ACTIONS, ColumnDefinitions
from envs.simulators.mysql.tables import Foreign, Key, Schema
from envs.simulators.mysql.tokens import not_spoken


class Definitions(ColumnDefinitions):
    """Read definitions; see Grammar."""

    def definition(self) -> tuple:
        """Read a statement that begins with CREATE, ALTER, DROP or RENAME."""
        for words, read in STATEMENTS:
            if self.accept(*words):
                return read(self)
        raise not_spoken(" ".join(self.sql.split()[:2])[:80])

    # -- CREATE and DROP

    def create_table(self, temporary: bool = False) -> tuple:
        lenient = self.accept("IF", "NOT", "EXISTS")
        schema = Schema(self.table_name(), temporary=temporary)
        if self.accept("LIKE"):
            return "create_like", schema.name, self.table_name(), lenient, temporary
        if self.sees("(") and self.tokens[self.at + 1][1] == "LIKE":
            self.expect("(", "LIKE")
            other = self.table_name()
            self.expect(")")
            return "create_like", schema.name, other, lenient, temporary
        actions = []
        if self.sees("(") and self.tokens[self.at + 1][1] not in ("SELECT", "WITH"):
            self.expect("(")
            actions = [action for group in self.listed(self.addition) for action in group]
            self.expect(")")
        options = self.options()
        self.accept("IGNORE") or self.accept("REPLACE")
        selects = self.accept("AS") or self.sees("SELECT", "WITH", "(")
        return "create_table", schema, actions + options, self.query() if selects else None, lenient

    def create_view(self, replaces: bool = False, alters: bool = False) -> tuple:
        name, names = self.table_name(), None
        if self.accept("("):
            names = self.listed(self.name)
            self.expect(")")
        self.expect("AS")
        query = self.query()
        if self.accept("WITH"):
            self.accept("CASCADED") or self.accept("LOCAL")
            self.expect("CHECK", "OPTION")
        return "create_view", name, names, query, replaces, alters

    def create_index(self, unique: bool = False) -> tuple:
        name = self.name()
        self.using()
        self.expect("ON")
        table = self.table_name()
        key = Key(name, self.key_columns(), unique)
        self.using()
        self.options()
        return "alter", table, [("add_key", key)]

    def drop_tables(self, temporary: bool = False) -> tuple:
        lenient = self.accept("IF", "EXISTS")
        names = self.listed(self.table_name)
        self.accept("RESTRICT") or self.accept("CASCADE")
        return "drop_tables", names, lenient, temporary

    def drop_views(self) -> tuple:
        lenient = self.accept("IF", "EXISTS")
        names = self.listed(self.table_name)
        self.accept("RESTRICT") or self.accept("CASCADE")
        return "drop_views", names, lenient

    def drop_index(self) -> tuple:
        name = self.name(words=True)
        self.expect("ON")
        table = self.table_name()
        self.options()
        return "alter", table, [("drop_index", name)]

    def renaming(self) -> tuple:
        def pair() -> tuple[str, str]:
            old = self.table_name()
            self.expect("TO")
            return old, self.table_name()

        return "rename_tables", self.listed(pair)

    # -- ALTER TABLE

    def alter_table(self) -> tuple:
        table = self.table_name()
        actions = [] if self.tokens[self.at][0] == "end" else self.listed(self.action)
        return "alter", table, [action for group in actions for action in group]

    def action(self) -> list[tuple]:
        """Read an action of ALTER TABLE, which may stand for several."""
        if self.accept("ADD"):
            return self.addition(alters=True)
        if self.accept("DROP"):
            return [self.dropped()]
        if self.accept("MODIFY"):
            self.accept("COLUMN")
            return self.column_definition("change_column")
        if self.accept("CHANGE"):
            self.accept("COLUMN")
            return self.column_definition("change_column", self.name())
        if self.accept("ALTER"):
            if self.sees("INDEX", "CHECK", "CONSTRAINT"):
                raise not_spoken(f"ALTER {self.tokens[self.at][1]}")
            self.accept("COLUMN")
            name = self.name()
            if self.accept("DROP", "DEFAULT"):
                return [("set_default", name, None, None)]
            self.expect("SET", "DEFAULT")
            return [("set_default", name, *self.default())]
        if self.accept("RENAME", "COLUMN"):
            old = self.name()
            self.expect("TO")
            return [("rename_column", old, self.name())]
        if self.accept("RENAME", "INDEX") or self.accept("RENAME", "KEY"):
            old = self.name()
            self.expect("TO")
            return [("rename_index", old, self.name())]
        if self.accept("RENAME"):
            self.accept("TO") or self.accept("AS") or self.accept("=")
            return [("rename_table", self.table_name())]
        if self.accept("CONVERT", "TO"):
            return self.options()
        if self.accept("ORDER"):
            self.expect("BY")
            return [("sort", self.listed(self.ordering))]
        options = self.options()
        if not options:
            raise self.error()
        return options

    def dropped(self) -> tuple:
        """Read what ALTER TABLE drops."""
        if self.accept("PRIMARY"):
            self.expect("KEY")
            return "drop_index", "PRIMARY"
        if self.accept("INDEX") or self.accept("KEY"):
            return "drop_index", self.name()
        if self.accept("FOREIGN"):
            self.expect("KEY")
            return "drop_foreign", self.name()
        if self.accept("CHECK"):
            return "drop_check", self.name()
        if self.accept("CONSTRAINT"):
            return "drop_constraint", self.name(words=True)
        self.accept("COLUMN")
        return "drop_column", self.name()

    def addition(self, alters: bool = False) -> list[tuple]:
        """Read a column, a key or a constraint. alters: whether ALTER TABLE adds it, instead of CREATE TABLE."""
        named = self.accept("CONSTRAINT")
        name = None if not named or self.sees("PRIMARY", "UNIQUE", "FOREIGN", "CHECK") else self.name()
        if self.accept("PRIMARY"):
            self.expect("KEY")
            self.using()
            key = Key("PRIMARY", self.key_columns(), True)
            self.using()
            return [("add_key", key)]
        if self.accept("UNIQUE"):
            self.accept("KEY") or self.accept("INDEX")
            return [("add_key", self.key(name, True))]
        if self.accept("FOREIGN"):
            self.expect("KEY")
            return [("add_foreign", self.foreign(name))]
        if self.accept("CHECK"):
            return [("add_check", self.check(name))]
        if named:
            raise self.error()
        if self.sees("FULLTEXT", "SPATIAL"):
            raise not_spoken(f"{self.tokens[self.at][1]} INDEX")
        if self.accept("INDEX") or self.accept("KEY"):
            return [("add_key", self.key(None, False))]
        if alters:
            self.accept("COLUMN")
        if alters and self.accept("("):
            groups = self.listed(self.addition)
            self.expect(")")
            return [action for group in groups for action in group]
        return self.column_definition("add_column")

    def key(self, name: str | None, unique: bool) -> Key:
        if not self.sees("(", "USING"):
            name = self.name()
        self.using()
        key = Key(name or "", self.key_columns(), unique)
        self.using()
        return key

    def using(self) -> None:
        """Skip the kind of an index, and its comment."""
        if self.accept("USING"):
            self.accept("BTREE") or self.expect("HASH")
        if self.accept("COMMENT"):
            self.string()

    def key_columns(self) -> list[tuple[str, int | None]]:
        def part() -> tuple[str, int | None]:
            if self.sees("("):
                raise not_spoken("functional key part")
            name, length = self.name(), None
            if self.accept("("):
                length = self.count()
                self.expect(")")
            self.accept("ASC") or self.accept("DESC")
            return name, length

        self.expect("(")
        found = self.listed(part)
        self.expect(")")
        return found

    def foreign(self, name: str | None) -> Foreign:
        if not self.sees("("):
            name = name or self.name()
        columns = self.names()
        self.expect("REFERENCES")
        foreign = Foreign(name or "", columns, self.table_name(), self.names() if self.sees("(") else [])
        while self.accept("ON"):
            event = "DELETE" if self.accept("DELETE") else "UPDATE"
            if event == "UPDATE":
                self.expect("UPDATE")
            action = next((action for action in ACTIONS if self.accept(*action.split())), None)
            if action is None:
                raise self.error()
            foreign.actions[event] = action
        return foreign


STATEMENTS = [
    (("CREATE", "TABLE"), Definitions.create_table),
    (("CREATE", "TEMPORARY", "TABLE"), lambda read: read.create_table(temporary=True)),
    (("CREATE", "VIEW"), Definitions.create_view),
    (("CREATE", "OR", "REPLACE", "VIEW"), lambda read: read.create_view(replaces=True)),
    (("ALTER", "VIEW"), lambda read: read.create_view(replaces=True, alters=True)),
    (("CREATE", "INDEX"), Definitions.create_index),
    (("CREATE", "UNIQUE", "INDEX"), lambda read: read.create_index(unique=True)),
    (("DROP", "TABLE"), Definitions.drop_tables),
    (("DROP", "TABLES"), Definitions.drop_tables),
    (("DROP", "TEMPORARY", "TABLE"), lambda read: read.drop_tables(temporary=True)),
    (("DROP", "VIEW"), Definitions.drop_views),
    (("DROP", "INDEX"), Definitions.drop_index),
    (("ALTER", "TABLE"), Definitions.alter_table),
    (("RENAME", "TABLE"), Definitions.renaming),
]
