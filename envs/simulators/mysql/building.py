"""Build SQLite's tables from their definitions; Definer inherits Builder.

SQLite holds the constraints: NOT NULL, unique keys, CHECK and foreign keys.
"""

import re

from envs.simulators.mysql.calls import as_printed
from envs.simulators.mysql.changes import ChangeBlock, stored
from envs.simulators.mysql.drafts import Draft, columns_of
from envs.simulators.mysql.queries import Table
from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.tables import Check, Foreign, Key, Schema
from envs.simulators.mysql.tokens import MySQLError, not_spoken
from envs.simulators.mysql.types import JSON, TEXTUAL, Typed, literal, quoted

PARAMETER = re.compile(r'"(?:[^"]|"")*"|\?(\d+)')
NUMBER = "ROW_NUMBER() OVER ()"  # of a row that ALTER TABLE copies
MAX_SQL = 3_900  # bytes of SQLite's CREATE TABLE, which it keeps as a value
INSIDE = "row~"  # alias of the row whose CHECK is translated


class Builder:
    """A Database's tables in SQLite."""

    def _build(self, draft: Draft) -> None:
        """Create a table, with the rows of the old one if it replaces one."""
        schema, old = draft.schema, draft.old
        if not schema.columns and old:
            raise MySQLError(1090, "42000", "You can't delete all columns with ALTER TABLE; use DROP TABLE instead")
        if not schema.columns:
            raise MySQLError(4028, "HY000", "A table must have at least one visible column.")
        counted = [column for column in schema.columns if column.increments]
        if len(counted) > 1 or not all(any(key.names[0] == c.name for key in schema.keys) for c in counted):
            text = "Incorrect table definition; there can be only one auto column and it must be defined as a key"
            raise MySQLError(1075, "42000", text)
        schema.__post_init__()
        self._check_defaults(schema)
        self._check_parents(schema)
        temporary = f"{schema.name}~new"
        self.defining = schema
        sql = self._create_sql(temporary, schema)
        if len(sql.encode()) > MAX_SQL:
            raise not_spoken("tables of so many columns")
        self._raw(sql)
        for key in schema.keys:
            if not key.unique or not any(length for _, length in key.columns):
                continue
            self.built += 1
            key.index = f"~{self.built}"
            listed = ", ".join(
                f"substr({quoted(name)}, 1, {length}) COLLATE NOCASE" if length else quoted(name)
                for name, length in key.columns
            )
            self._raw(f"CREATE UNIQUE INDEX {quoted(key.index)} ON {quoted(temporary)} ({listed})")
        self.calls.counters[schema.name] = max(draft.next, self.calls.counters.get(schema.name, 1))
        if old:
            self._copy(draft, temporary)
            self._raw(f"DROP TABLE {quoted(old.name)}")
        self._raw(f"ALTER TABLE {quoted(temporary)} RENAME TO {quoted(schema.name)}")
        self.catalog[schema.name] = schema
        if schema.foreign and self.checks_foreign and self._raw(f"PRAGMA foreign_key_check({quoted(schema.name)})"):
            raise self._orphan(schema, schema.foreign[0])

    def _orphan(self, schema: Schema, foreign: Foreign, parent: bool = False) -> MySQLError:
        place = f"(`{self.name}`.`{schema.name}`, {foreign.create()})"
        if parent:
            text = "Cannot delete or update a parent row: a foreign key constraint fails"
            return MySQLError(1451, "23000", f"{text} {place}")
        return MySQLError(1452, "23000", f"Cannot add or update a child row: a foreign key constraint fails {place}")

    def _check_defaults(self, schema: Schema) -> None:
        block = ChangeBlock(self.name, self.catalog, {})
        for column in schema.columns:
            if column.default is None:
                continue
            block.parameters.clear()
            value = stored(block.typed(column.default), column, 1)
            try:
                [[kept]] = self._execute(f"SELECT {value}", block.parameters)
            except MySQLError:
                raise MySQLError(1067, "42000", f"Invalid default value for '{column.name}'") from None
            if column.default[0] in ("int", "decimal", "double", "text", "negate"):
                column.printed = as_printed(kept, column.type)

    def _check_parents(self, schema: Schema) -> None:
        """Check that the columns that foreign keys reference are a key."""
        for foreign in schema.foreign:
            parent = schema if foreign.table == schema.name else self.catalog.get(foreign.table)
            if parent is None or parent.query:
                raise MySQLError(1824, "HY000", f"Failed to open the referenced table '{foreign.table}'")
            foreign.references = foreign.references or (parent.primary.names if parent.primary else [])
            if len(foreign.references) != len(foreign.columns):
                text = f"Incorrect foreign key definition for '{foreign.name}': Key reference and table reference don't"
                raise MySQLError(1239, "42000", f"{text} match")
            for name in foreign.references:
                if not parent.column(name):
                    text = f"Failed to add the foreign key constraint. Missing column '{name}' for constraint "
                    raise MySQLError(3734, "HY000", f"{text}'{foreign.name}' in the referenced table '{parent.name}'")
            for ours, theirs in zip(foreign.columns, foreign.references, strict=True):
                if schema.column(ours).type.kind != parent.column(theirs).type.kind:
                    text = f"Referencing column '{ours}' and referenced column '{theirs}' in foreign key constraint "
                    raise MySQLError(3780, "HY000", f"{text}'{foreign.name}' are incompatible.")
            keys = [key for key in parent.keys if key.names[: len(foreign.references)] == foreign.references]
            if not keys:
                text = f"Failed to add the foreign key constraint. Missing index for constraint '{foreign.name}' in the"
                raise MySQLError(1822, "HY000", f"{text} referenced table '{parent.name}'")
            if not any(key.unique and key.names == foreign.references for key in keys):
                raise not_spoken("a foreign key to an index that is not unique")

    def _create_sql(self, name: str, schema: Schema) -> str:
        """Return SQLite's CREATE TABLE."""
        parts = []
        for column in schema.columns:
            declared = "TEXT COLLATE NOCASE" if column.type.kind in TEXTUAL else "INT"
            declared = "TEXT" if column.type == JSON else declared
            declared = "REAL" if column.type.kind in ("decimal", "double") else declared
            parts.append(f"{quoted(column.name)} {declared}{'' if column.nullable else ' NOT NULL'}")
        unique = [key for key in schema.keys if key.unique]
        parts += [
            f"UNIQUE ({', '.join(map(quoted, key.names))})"
            for key in unique
            if not any(length for _, length in key.columns)
        ]
        if unique:
            parts.append(f"CHECK (seen_({', '.join(map(quoted, keyed(schema)))}))")
        for check in schema.checks:
            parts.append(f"CONSTRAINT {quoted(check.name)} CHECK ({self._check_sql(schema, check)})")
        for foreign in schema.foreign:
            ours, theirs = (", ".join(map(quoted, names)) for names in (foreign.columns, foreign.references))
            actions = "".join(f" ON {event} {action}" for event, action in foreign.actions.items())
            parent = name if foreign.table == schema.name else foreign.table
            parts.append(f"FOREIGN KEY ({ours}) REFERENCES {quoted(parent)} ({theirs}){actions}")
        return f"CREATE TABLE {quoted(name)} ({', '.join(parts)})"

    def _check_sql(self, schema: Schema, check: Check) -> str:
        block = ChangeBlock(self.name, self.catalog, {})
        block.tables, block.clause = [Table(INSIDE, schema.listed)], "where"
        for name in columns_of(check.node):
            if not schema.column(name):
                text = f"Check constraint '{check.name}' refers to non-existing column '{name}'."
                raise MySQLError(3820, "HY000", text)
        sql = block.truth(check.node).replace(f"{quoted(INSIDE)}.", "")
        if "SELECT" in sql:
            text = f"An expression of a check constraint '{check.name}' contains disallowed function."
            raise MySQLError(3815, "HY000", text)
        texts = list(block.parameters)

        return PARAMETER.sub(lambda match: literal(texts[int(match[1]) - 1]) if match[1] else match[0], sql)

    def _copy(self, draft: Draft, name: str) -> None:
        """Fill a new table with the rows of the old one."""
        schema, old = draft.schema, draft.old
        block = ChangeBlock(self.name, self.catalog, {})
        block.tables = [Table(old.name, old.listed)]
        values = []
        for column in schema.columns:
            origin = draft.origin.get(column.name)
            if origin:
                value = Typed(f"{quoted(old.name)}.{quoted(origin)}", old.column(origin).type)
                same = old.column(origin).said == column.said
                values.append(value.sql if same else stored(value, column, NUMBER))
                if not column.nullable and column.bare != old.column(origin).bare and not column.increments:
                    values[-1] = f"required_({values[-1]}, {literal(column.name)}, {NUMBER})"
            elif column.default is not None or column.nullable or column.increments:
                values.append(block.filled(schema.name, column))
            else:
                values.append(stored(block.typed(column.zero()), column, 1))
            if column.increments and origin:
                values[-1] = f"next_({literal(schema.name)}, {values[-1]})"
        key = old.primary.names if old.primary else []
        keys = ", ".join(f"{quoted(old.name)}.{quoted(name)}" for name in key) or f"{quoted(old.name)}._rowid_"
        order = block.order(Select(order=draft.order), []) if draft.order else f" ORDER BY {keys}"
        rows = (
            f"SELECT {', '.join(values)} FROM (SELECT *, _rowid_ FROM {quoted(old.name)}) AS {quoted(old.name)}{order}"
        )
        listed = ", ".join(quoted(column.name) for column in schema.columns)
        try:
            self._execute(f"INSERT INTO {quoted(name)} ({listed}) {rows}", block.parameters)
        except MySQLError as error:
            place = str(error).partition(" for column ")[2]
            cut = schema.column(place.split("'")[1]) if error.code == 1406 else None
            if not cut or old.column(draft.origin[cut.name]).bare not in ("char", "varchar"):
                raise
            raise MySQLError(1265, "01000", f"Data truncated for column {place}") from None


def key_names(schema: Schema, key: Key) -> list[str]:
    """Return what SQLite calls a unique key in its messages, before and after the table replaces an old one."""
    tables = (schema.name, f"{schema.name}~new")
    return [f"index '{key.index}'"] + [", ".join(f"{table}.{name}" for name in key.names) for table in tables]


def keyed(schema: Schema) -> list[str]:
    """Return the columns of a table that are in a unique key."""
    names = {name for key in schema.keys if key.unique for name in key.names}
    return [column.name for column in schema.columns if column.name in names][:100]
