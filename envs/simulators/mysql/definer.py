"""Execute definitions of tables, views and indexes (definitions.py); Database inherits Definer.

ALTER TABLE changes a copy of the table's Schema (drafts.py), fills a new table of SQLite with the old one's rows, and
replaces it (building.py).
"""

from copy import deepcopy
from dataclasses import replace

from envs.simulators.mysql.building import Builder
from envs.simulators.mysql.changes import ChangeBlock
from envs.simulators.mysql.drafts import Draft
from envs.simulators.mysql.queries import Block
from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.tables import Column, Schema, said_of
from envs.simulators.mysql.tokens import MySQLError, not_spoken
from envs.simulators.mysql.types import Type, quoted


class Definer(Builder):
    """Definitions; `catalog` has the Schema of each table and view."""

    def _schema(self, name: str) -> Schema:
        """Return the Schema of a table."""
        name, _ = Block(self.name, self.catalog, {}).known(name)
        if self.catalog[name].query:
            raise MySQLError(1347, "HY000", f"'{self.name}.{name}' is not BASE TABLE")
        return self.catalog[name]

    def _new_name(self, name: str) -> str:
        """Return a name without its database, for a new table or view."""
        database, _, table = name.rpartition(".")
        if database and database != self.name:
            raise (
                not_spoken(f"tables of {database}")
                if database in self.server.databases
                else MySQLError(1049, "42000", f"Unknown database '{database}'")
            )
        if "~" in table or table.lower().startswith("sqlite_") or len(table) > 64:
            raise MySQLError(1103, "42000", f"Incorrect table name '{table}'")
        if any(other.lower() == table.lower() for other in self.catalog):
            raise MySQLError(1050, "42S01", f"Table '{table}' already exists")
        return table

    def _define(self, method: str, *details) -> list[tuple]:
        """Execute a definition, which commits the open transaction. If it fails, nothing has changed."""
        self._control("COMMIT")
        catalog, counters = dict(self.catalog), dict(self.calls.counters)
        self._raw("PRAGMA foreign_keys = OFF")
        self._control("BEGIN")
        try:
            getattr(self, f"_{method}")(*details)
        except BaseException:
            self._control("ROLLBACK")
            self.catalog.clear()
            self.catalog.update(catalog)
            self.calls.counters.clear()
            self.calls.counters.update(counters)
            raise
        finally:
            self.defining = None
            self._control("COMMIT")
            self._raw(f"PRAGMA foreign_keys = {int(self.checks_foreign)}")
        return []

    # -- tables

    def _create_table(self, schema: Schema, actions: list[tuple], query: Select | None, lenient: bool) -> None:
        if lenient and schema.name.rpartition(".")[2] in self.catalog:
            return
        schema.name = self._new_name(schema.name)
        draft = Draft(schema)
        for method, *details in sorted(actions, key=lambda action: action[0] != "add_column"):
            getattr(draft, method)(*details)
        if not query:
            return self._build(draft)
        block = ChangeBlock(self.name, self.catalog, {})
        _, named = block.query(query)
        given = [column.name for column in schema.columns]
        for column in selected_columns(block, query, named):
            if not schema.column(column.name):
                draft.add_column(column, None)
            elif column.name not in given:
                raise MySQLError(1060, "42S21", f"Duplicate column name '{column.name}'")
        self._build(draft)
        names = [name for name, _ in named]
        insert = ChangeBlock(self.name, self.catalog, {})
        self._execute(insert.insert_query(schema, [schema.column(name) for name in names], query), insert.parameters)

    def _create_like(self, name: str, other: str, lenient: bool, temporary: bool) -> None:
        old = self._schema(other)
        if lenient and name.rpartition(".")[2] in self.catalog:
            return
        schema = replace(deepcopy(old), name=self._new_name(name), foreign=[], checks=[], temporary=temporary)
        draft = Draft(schema)
        for check in old.checks:
            draft.add_check(replace(check, name=""))
        self._build(draft)

    def _alter(self, name: str, actions: list[tuple]) -> None:
        old = self._schema(name)
        draft, renamed = Draft(deepcopy(old), old), None
        renames = [details for method, *details in actions if method == "rename_column"]
        if len(renames) > 1:  # which happen at once: two columns may swap their names
            others = [action for action in actions if action[0] != "rename_column"]
            first = [("rename_column", name, f"{name}~") for name, _ in renames]
            actions = [*first, *(("rename_column", f"{name}~", new) for name, new in renames), *others]
        for method, *details in actions:
            if method == "rename_table":
                [renamed] = details
            else:
                getattr(draft, method)(*details)
        for other in self.catalog.values():
            for foreign in other.foreign:
                gone = [column for column in foreign.references if foreign.table == old.name]
                gone = [column for column in gone if not draft.schema.column(column)]
                if gone:
                    text = f"Cannot drop column '{gone[0]}': needed in a foreign key constraint '{foreign.name}' of"
                    raise MySQLError(1829, "HY000", f"{text} table '{other.name}'")
        if any(method != "keep" for method, *_ in actions if method != "rename_table"):
            self._build(draft)
        if renamed and renamed.rpartition(".")[2] != old.name:
            self._rename(old.name, renamed)

    def _rename_tables(self, pairs: list[tuple[str, str]]) -> None:
        for old, new in pairs:
            Block(self.name, self.catalog, {}).known(old)
            self._rename(old.rpartition(".")[2], new)

    def _rename(self, old: str, new: str) -> None:
        new = self._new_name(new)
        schema = self.catalog.pop(old)
        if not schema.query:
            self._raw(f"ALTER TABLE {quoted(old)} RENAME TO {quoted(new)}")
        self.catalog[new] = replace(schema, name=new)
        if old in self.calls.counters:
            self.calls.counters[new] = self.calls.counters.pop(old)
        for other in self.catalog.values():
            for foreign in other.foreign:
                foreign.table = new if foreign.table == old else foreign.table

    def _drop_tables(self, names: list[str], lenient: bool, temporary: bool) -> None:
        names = [name.rpartition(".")[2] if name.startswith(f"{self.name}.") else name for name in names]
        there = {
            name: schema
            for name, schema in self.catalog.items()
            if not schema.query and (schema.temporary or not temporary)
        }
        missing = [name for name in names if name not in there]
        if missing and not lenient:
            listed = ",".join(name if "." in name else f"{self.name}.{name}" for name in missing)
            raise MySQLError(1051, "42S02", f"Unknown table '{listed}'")
        for name in dict.fromkeys(name for name in names if name in there):
            for other in self.catalog.values():
                for foreign in other.foreign:
                    if foreign.table == name and other.name not in names and self.checks_foreign:
                        text = f"Cannot drop table '{name}' referenced by a foreign key constraint '{foreign.name}' on"
                        raise MySQLError(3730, "HY000", f"{text} table '{other.name}'.")
            self._raw(f"DROP TABLE {quoted(name)}")
            del self.catalog[name]
            self.calls.counters.pop(name, None)

    def _truncate(self, name: str) -> None:
        schema = self._schema(name)
        for other in self.catalog.values():
            for foreign in other.foreign:
                if foreign.table == schema.name and other is not schema and self.checks_foreign:
                    text = "Cannot truncate a table referenced in a foreign key constraint"
                    raise MySQLError(1701, "42000", f"{text} (`{self.name}`.`{other.name}`, {foreign.create()})")
        self._execute(f"DELETE FROM {quoted(schema.name)}", {})
        self.calls.counters.pop(schema.name, None)

    # -- views

    def _create_view(self, name: str, names: list[str] | None, query: Select, replaces: bool, alters: bool) -> None:
        plain, _ = Block(self.name, self.catalog, {}).known(name) if alters else (name.rpartition(".")[2], None)
        if replaces and plain in self.catalog:
            if not self.catalog[plain].query:
                raise MySQLError(1347, "HY000", f"'{self.name}.{plain}' is not VIEW")
            del self.catalog[plain]
        plain = self._new_name(name)
        query = starless(Block(self.name, self.catalog, {}), query)
        _, columns = Block(self.name, self.catalog, {}).query(query)
        names = names or [column for column, _ in columns]
        if len(names) != len(columns):
            raise MySQLError(
                1353,
                "HY000",
                "In definition of view, derived table or common table expression, SELECT list "
                "and column names list have different column counts",
            )
        lows = [column.lower() for column in names]
        if len(set(lows)) < len(lows):
            twice = next(column for i, column in enumerate(names) if lows[i] in lows[:i])
            raise MySQLError(1060, "42S21", f"Duplicate column name '{twice}'")
        kept = [Column(column, said_of(kind), kind) for column, (_, kind) in zip(names, columns, strict=True)]
        self.catalog[plain] = Schema(plain, kept, query=replace(query, names=names))

    def _drop_views(self, names: list[str], lenient: bool) -> None:
        names = [name.rpartition(".")[2] for name in names]
        missing = [name for name in names if name not in self.catalog]
        if missing and not lenient:
            listed = ",".join(f"{self.name}.{name}" for name in missing)
            raise MySQLError(1051, "42S02", f"Unknown table '{listed}'")
        for name in dict.fromkeys(name for name in names if name in self.catalog):
            if not self.catalog[name].query:
                raise MySQLError(1347, "HY000", f"'{self.name}.{name}' is not VIEW")
            del self.catalog[name]


def selected_columns(block: Block, query: Select, named: list[tuple[str, Type]]) -> list[Column]:
    """Return the columns that CREATE TABLE ... AS SELECT makes: as in their table, or by the type of an expression."""
    nodes = [] if query.parts or query.names or query.recursive else [node for node, *_ in block.items(query)]
    found = []
    for i, (name, kind) in enumerate(named):
        column = None
        if nodes and nodes[i][0] == "column" and (value := block.lookup(*nodes[i][1:])):
            for table in block.tables:
                if table.schema and value.sql.startswith(f"{quoted(table.alias)}."):
                    column = table.schema.column(nodes[i][2])
        column = replace(column, name=name, increments=False) if column else Column(name, said_of(kind), kind)
        found.append(column)
    return found


def starless(block: Block, query: Select) -> Select:
    """Return a view's query with every * of its SELECT lists expanded, as MySQL keeps it."""
    if query.parts:
        return replace(query, parts=[(starless(block.inner(), part), word) for part, word in query.parts])
    inner = block.inner()
    if query.source:
        inner.sources(query.source)
    return replace(query, items=inner.items(query))
