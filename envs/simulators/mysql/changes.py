"""Translate MySQL's INSERT, UPDATE and DELETE to SQLite: the changed columns, the stored values, the order of rows."""

from envs.simulators.mysql.parse import Change, Select
from envs.simulators.mysql.queries import Block, Columns, Table, limited, unique
from envs.simulators.mysql.tokens import MySQLError
from envs.simulators.mysql.types import NULL, TEXTUAL, Type, Typed, as_number, as_text, quoted


class ChangeBlock(Block):
    """One INSERT, UPDATE or DELETE."""

    def change(self, change: Change) -> str:
        """Return the SQL of an INSERT, UPDATE or DELETE."""
        name, columns = self.known(change.table)
        if change.verb == "INSERT":
            return self.insert(change, name, columns)
        alias = change.alias or name
        self.tables, self.target = [Table(alias, columns)], name
        verb = f"UPDATE {quoted(name)} AS {quoted(alias)} SET {self.sets(change)}"
        sql = verb if change.verb == "UPDATE" else f"DELETE FROM {quoted(name)} AS {quoted(alias)}"
        self.clause = "where"
        where = self.truth(change.where) if change.where else ""
        if change.limit is None:
            return sql + (f" WHERE {where}" if where else "")
        rows = f"SELECT {quoted(alias)}.rowid FROM {quoted(name)} AS {quoted(alias)}" + (
            f" WHERE {where}" if where else ""
        )
        order = self.order(Select(order=change.order), [])
        return f"{sql} WHERE {quoted(alias)}.rowid IN ({rows}{order}{limited(change.limit)})"

    def sets(self, change: Change) -> str:
        """Return UPDATE's assignments, from left to right: later ones see the new values of earlier ones."""
        self.clause = "set"
        parts = []
        for table, column, node in change.sets:
            place = self.lookup(table, column) or self._column(table, column)  # which says that there is none
            value = stored(self.typed(node), place.type, column, 1)
            self.assigned[column.lower()] = Typed(value, place.type)
            parts.append(f"{self.bare(place)} = {value}")
        return ", ".join(parts)

    def bare(self, place: Typed) -> str:
        """Return the SQL of a column of the changed table, without the table's name."""
        return place.sql.removeprefix(f"{quoted(self.tables[0].alias)}.")

    def insert(self, change: Change, name: str, columns: Columns) -> str:
        self.tables, self.clause = [Table(name, columns)], "select"
        names = change.columns or [column for column, _ in columns]
        places = [self._column(None, column) for column in names]
        into = [self.bare(place) for place in places]
        if len(set(into)) < len(into):
            twice = next(name for i, name in enumerate(names) if into[i] in into[:i])
            raise MySQLError(1110, "42000", f"Column '{twice}' specified twice")
        kinds = [place.type for place in places]
        if change.query:
            sql, selected = self.subquery(change.query)
            check_count(len(selected), len(names), 1)
            values = [
                Typed(quoted(n), kind) for n, (_, kind) in zip(unique(n for n, _ in selected), selected, strict=True)
            ]
            listed = ", ".join(stored(v, k, n, 1) for v, k, n in zip(values, kinds, names, strict=True))
            return f"INSERT INTO {quoted(name)} ({', '.join(into)}) SELECT {listed} FROM ({sql}) WHERE 1"
        rows = []
        for number, row in enumerate(change.rows, 1):
            row = row or [("null",)] * len(names)
            check_count(len(row), len(names), number)
            values = []
            self.clause = "set"  # a column stands for what the row has in it so far
            self.assigned = {column.lower(): Typed("NULL", kind) for column, kind in columns}
            for node, kind, column in zip(row, kinds, names, strict=True):
                values.append(stored(self.typed(node), kind, column, number))
                self.assigned[column.lower()] = Typed(values[-1], kind)
            rows.append(f"({', '.join(values)})")
        return f"INSERT INTO {quoted(name)} ({', '.join(into)}) VALUES {', '.join(rows)}"


def stored(value: Typed, kind: Type, column: str, row: int) -> str:
    """Return the SQL that converts a value to its column's type."""
    if value.type == NULL or (kind.kind == "text" and value.type.kind == "text"):
        return value.sql
    if kind.kind == "text":
        return as_text(value)
    if value.sql.isdigit() and len(value.sql) < 10:
        return value.sql
    whole = value.sql if value.type.kind in TEXTUAL else as_number(value)
    return f"whole_({whole}, '{column.replace(chr(39), chr(39) * 2)}', {row})"


def check_count(given: int, wanted: int, row: int) -> None:
    if given != wanted:
        raise MySQLError(1136, "21S01", f"Column count doesn't match value count at row {row}")
