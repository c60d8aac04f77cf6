"""Translate MySQL's INSERT, UPDATE and DELETE to SQLite: the changed columns, the stored values, the order of rows."""

from envs.simulators.mysql.combining import ROW, Columns, limited, unique
from envs.simulators.mysql.parse import Change
from envs.simulators.mysql.queries import Block, Table
from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.tokens import MySQLError, not_spoken
from envs.simulators.mysql.types import NULL, TEXTUAL, Type, Typed, as_number, as_text, quoted
from envs.simulators.mysql.variables import assigns


class ChangeBlock(Block):
    """One INSERT, UPDATE or DELETE."""

    def change(self, change: Change) -> str:
        """Return the SQL of an INSERT, UPDATE or DELETE."""
        if change.source:
            return self.over_join(change)
        name, columns = self.known(change.table)
        if change.verb == "INSERT":
            return self.insert(change, name, columns)
        alias = change.alias or name
        self.tables, self.target = [Table(alias, columns)], name
        columns, values = self.assignments(change.sets)
        if any(map(assigns, change.sets)):
            return self.in_order(change, name, columns, values)
        sets = ", ".join(f"{column} = {value}" for column, value in zip(columns, values, strict=True))
        verb = f"UPDATE {quoted(name)} AS {quoted(alias)} SET {sets}"
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

    def in_order(self, change: Change, name: str, columns: list[str], values: list[str]) -> str:
        """Return the SQL of an UPDATE that evaluates its assignments of variables in the order of its ORDER BY."""
        self.clause = "where"
        where = f" WHERE {self.truth(change.where)}" if change.where else ""
        order = self.order(Select(order=change.order), []).strip()
        source = f"{quoted(name)} AS {quoted(self.tables[0].alias)}{where}{limited(change.limit)}"
        listed = "".join(f", {value} AS {quoted(f'value {i}')}" for i, value in enumerate(values))
        rows = f"SELECT {ROW} AS row_{listed}, ROW_NUMBER() OVER ({order}) FROM {source}"
        return self.by_row(name, columns, rows)

    def by_row(self, name: str, columns: list[str], rows: str) -> str:
        """Return the SQL of an UPDATE that sets each row to the values that a query gives for its number."""
        sets = ", ".join(f"{column} = {quoted(f'value {i}')}" for i, column in enumerate(columns))
        return f"UPDATE {quoted(name)} SET {sets} FROM ({rows}) AS matched WHERE {quoted(name)}.{ROW} = row_"

    def over_join(self, change: Change) -> str:
        """Return the SQL of an UPDATE or DELETE over a join, which changes each row once, by its first match."""
        self.numbered = True
        source = self.sources(change.source)
        alias = change.table.rpartition(".")[2] or self.changed_table(change.sets)
        if alias not in sources_of(change.source):
            raise MySQLError(1288, "HY000", f"The target table {alias} of the {change.verb} is not updatable")
        name, _ = self.known(sources_of(change.source)[alias])
        self.target = name
        row = f"{quoted(alias)}.{ROW}"
        columns, values = self.assignments(change.sets)
        self.clause = "where"
        where = f" WHERE {row} IS NOT NULL" + (f" AND {self.truth(change.where)}" if change.where else "")
        if change.order or change.limit:
            raise MySQLError(
                1221, "HY000", f"Incorrect usage of {change.verb} and {'ORDER BY' if change.order else 'LIMIT'}"
            )
        if change.verb == "DELETE":
            return f"DELETE FROM {quoted(name)} WHERE {ROW} IN (SELECT {row} FROM {source}{where})"
        listed = "".join(f", {value} AS {quoted(f'value {i}')}" for i, value in enumerate(values))
        rows = f"SELECT {row} AS row_, {self.first_row()}{listed} FROM {source}{where} GROUP BY {row}"
        return self.by_row(name, columns, rows)

    def changed_table(self, sets: list) -> str:
        """Return the alias of the table whose columns are set."""
        self.clause = "set"
        places = [self._column(table, column).sql for table, column, _ in sets]
        aliases = {
            table.alias for table in self.tables for place in places if place.startswith(f"{quoted(table.alias)}.")
        }
        if len(aliases) > 1:
            raise not_spoken("UPDATE of several tables")
        return aliases.pop()

    def assignments(self, sets: list) -> tuple[list[str], list[str]]:
        """Return the columns and the stored values of assignments; later ones see the values of earlier ones."""
        self.clause = "set"
        columns, values = [], []
        for table, column, node in sets:
            place = self.lookup(table, column) or self._column(table, column)  # which says that there is none
            values.append(stored(self.typed(node), place.type, column, 1))
            self.assigned[column.lower()] = Typed(values[-1], place.type)
            columns.append(quoted(place.sql.rpartition('"."')[2].strip('"')))
        return columns, values

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
        self.check_again(change, columns)
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

    def check_again(self, change: Change, columns: Columns) -> None:
        """Check ON DUPLICATE KEY UPDATE, which never happens: no table has a key."""
        tables = list(self.tables)
        self.tables += [Table(change.row_alias, columns)] if change.row_alias else []
        self.assignments([(table or tables[0].alias, column, node) for table, column, node in change.again])
        self.tables, self.assigned, self.clause = tables, {}, "select"


def sources_of(source: tuple) -> dict[str, str]:
    """Return {alias: table} of the tables in a join."""
    if source[0] == "join":
        return sources_of(source[2]) | sources_of(source[3])
    return {source[2] or source[1].rpartition(".")[2]: source[1]} if source[0] == "table" else {}


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
