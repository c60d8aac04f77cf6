"""Translate MySQL's INSERT, UPDATE and DELETE to SQLite: the changed columns, the stored values, the order of rows."""

from envs.simulators.mysql.combining import ROW, limited, unique
from envs.simulators.mysql.grammar import NEW_ROW
from envs.simulators.mysql.parse import Change
from envs.simulators.mysql.queries import Block, Table
from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.tables import Column, Schema
from envs.simulators.mysql.tokens import MySQLError, not_spoken
from envs.simulators.mysql.types import NULL, TEXTUAL, Typed, as_number, as_text, literal, quoted
from envs.simulators.mysql.variables import assigns


class ChangeBlock(Block):
    """One INSERT, UPDATE or DELETE. ignoring: whether it has the word IGNORE."""

    ignoring = False

    def change(self, change: Change) -> str:
        """Return the SQL of an INSERT, UPDATE or DELETE."""
        if change.source:
            return self.over_join(change)
        name, columns = self.known(change.table)
        schema = self.base_table(name, change.verb)
        if change.verb == "INSERT":
            return self.insert(change, schema)
        alias = change.alias or name
        self.tables, self.target = [Table(alias, columns, schema=schema)], name
        columns, values = self.assignments(change.sets)
        if any(map(assigns, change.sets)):
            return self.by_row(name, columns, self.ordered(change, name, values))
        sets = ", ".join(f"{column} = {value}" for column, value in zip(columns, values, strict=True))
        verb = f"{self.updating()} {quoted(name)} AS {quoted(alias)} SET {sets}"
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

    def in_turn(self, change: Change) -> tuple[str, str] | None:
        """Return the SQL of the rows that an UPDATE with ORDER BY changes, with their new values, and the SQL that
        changes one of them. None where no unique key makes the order matter."""
        if change.verb != "UPDATE" or change.source or not change.order:
            return None
        name, columns = self.known(change.table)
        schema = self.base_table(name, change.verb)
        if not any(key.unique for key in schema.keys):
            return None
        self.tables, self.target = [Table(change.alias or name, columns, schema=schema)], name
        places, values = self.assignments(change.sets)
        sets = ", ".join(f"{place} = ?" for place in places)
        return self.ordered(change, name, values), f"{self.updating()} {quoted(name)} SET {sets} WHERE {ROW} = ?"

    def updating(self) -> str:
        """Return SQLite's verb of an UPDATE. IGNORE leaves a row as it is whose new key another row has."""
        return "UPDATE OR IGNORE" if self.ignoring else "UPDATE"

    def ordered(self, change: Change, name: str, values: list[str]) -> str:
        """Return the SQL of the numbers and the new values of the rows of an UPDATE, in the order of its ORDER BY."""
        self.clause = "where"
        where = f" WHERE {self.truth(change.where)}" if change.where else ""
        order = self.order(Select(order=change.order), []).strip()
        source = f"{quoted(name)} AS {quoted(self.tables[0].alias)}{where}{limited(change.limit)}"
        listed = "".join(f", {value} AS {quoted(f'value {i}')}" for i, value in enumerate(values))
        return f"SELECT {ROW} AS row_{listed}, ROW_NUMBER() OVER ({order}) FROM {source}"

    def by_row(self, name: str, columns: list[str], rows: str) -> str:
        """Return the SQL of an UPDATE that sets each row to the values that a query gives for its number."""
        sets = ", ".join(f"{column} = {quoted(f'value {i}')}" for i, column in enumerate(columns))
        return f"{self.updating()} {quoted(name)} SET {sets} FROM ({rows}) AS matched WHERE {quoted(name)}.{ROW} = row_"

    def over_join(self, change: Change) -> str:
        """Return the SQL of an UPDATE or DELETE over a join, which changes each row once, by its first match."""
        self.numbered = self.rows = True
        source = self.sources(change.source)
        alias = change.table.rpartition(".")[2] or self.changed_table(change.sets)
        if alias not in sources_of(change.source):
            raise MySQLError(1288, "HY000", f"The target table {alias} of the {change.verb} is not updatable")
        name, _ = self.known(sources_of(change.source)[alias])
        self.base_table(name, change.verb)
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
            kept = self.column_at(place)
            value = self.filled("", kept) if node == ("default",) else stored(self.typed(node), kept, 1)
            values.append(self.held(kept, value))
            self.assigned[column.lower()] = Typed(values[-1], place.type)
            columns.append(quoted(kept.name))
        for column in self.tables[0].schema.columns if self.tables[0].schema else []:
            if column.renews and quoted(column.name) not in columns:
                columns.append(quoted(column.name))
                values.append(stored(self.typed(("call", "NOW", [], False, [], ",")), column, 1))
        return columns, values

    def column_at(self, place: Typed) -> Column:
        """Return the column of a table of the database."""
        for table in self.tables:
            for name, kind in table.columns:
                if place.sql == f"{quoted(table.inside or table.alias)}.{quoted(name)}":
                    found = table.schema and table.schema.column(name)
                    return found or Column(name, "text" if kind.kind in TEXTUAL else "int", kind)
        raise AssertionError(place)

    def base_table(self, name: str, verb: str) -> Schema:
        """Return the table that a statement changes."""
        if self.catalog[name].query:
            raise not_spoken(f"{verb} of a view")
        return self.catalog[name]

    def filled(self, table: str, column: Column) -> str:
        """Return the SQL of a column's value in a row that gives none."""
        if column.increments and table:
            return f"next_({literal(table)}, NULL)"
        if column.default is not None:
            return stored(self.typed(column.default), column, 1)
        if column.nullable:
            return "NULL"
        if self.ignoring:
            return stored(self.typed(column.zero()), column, 1)
        raise MySQLError(1364, "HY000", f"Field '{column.name}' doesn't have a default value")

    def insert(self, change: Change, schema: Schema) -> str:
        """Return the SQL of an INSERT or REPLACE."""
        self.tables, self.clause = [Table(schema.name, schema.listed, schema=schema)], "select"
        names = change.columns or [column.name for column in schema.columns]
        into = [self.column_at(self._column(None, name)) for name in names]
        if len({column.name for column in into}) < len(into):
            twice = next(name for i, name in enumerate(names) if into[i] in into[:i])
            raise MySQLError(1110, "42000", f"Column '{twice}' specified twice")
        again = self.again(change, schema)
        verb = "INSERT OR IGNORE" if change.ignores else "INSERT OR REPLACE" if change.replaces else "INSERT"
        if change.query:
            return self.insert_query(schema, into, change.query, verb) + again
        others = [column for column in schema.columns if column not in into]
        fills = [column for column in others if column.increments or column.default is not None or not column.nullable]
        self.clause, rows = "set", []  # a column stands for what the row has in it so far
        for number, row in enumerate(change.rows, 1):
            row = row or [("default",)] * len(into)
            check_count(len(row), len(into), number)
            values = []
            self.assigned = {name.lower(): Typed("NULL", kind) for name, kind in schema.listed}
            for node, column in zip(row, into, strict=True):
                values.append(self.given(schema.name, column, node, number))
                self.assigned[column.name.lower()] = Typed(values[-1], column.type)
            rows.append(f"({', '.join(values + [self.filled(schema.name, column) for column in fills])})")
        listed = ", ".join(quoted(column.name) for column in into + fills)
        return f"{verb} INTO {quoted(schema.name)} ({listed}) VALUES {', '.join(rows)}{again}"

    def given(self, table: str, column: Column, node: tuple, row: int) -> str:
        """Return the SQL of a value that a row of INSERT gives."""
        if node == ("default",):
            return self.filled(table, column)
        return self.completed(table, column, stored(self.typed(node), column, row))

    def completed(self, table: str, column: Column, value: str) -> str:
        """Return the SQL of a value where AUTO_INCREMENT replaces NULL; see `held`, too."""
        if column.increments:
            return f"next_({literal(table)}, {value})"
        return self.held(column, value)

    def held(self, column: Column, value: str) -> str:
        """Return the SQL of a value where IGNORE replaces NULL in a NOT NULL column."""
        if self.ignoring and not column.nullable:
            return f"IFNULL({value}, {stored(self.typed(column.zero()), column, 1)})"
        return value

    def insert_query(self, schema: Schema, into: list[Column], query: Select, verb: str = "INSERT") -> str:
        """Return the SQL of INSERT ... SELECT."""
        target, self.tables = self.tables, []  # which the query does not see
        sql, selected = self.subquery(query)
        self.tables = target
        check_count(len(selected), len(into), 1)
        names = unique(name for name, _ in selected)
        values = [Typed(quoted(name), kind) for name, (_, kind) in zip(names, selected, strict=True)]
        listed = [
            self.completed(schema.name, column, stored(value, column, 1))
            for column, value in zip(into, values, strict=True)
        ]
        others = [column for column in schema.columns if column not in into]
        fills = [column for column in others if column.increments or column.default is not None or not column.nullable]
        listed += [self.filled(schema.name, column) for column in fills]
        columns = ", ".join(quoted(column.name) for column in into + fills)
        return f"{verb} INTO {quoted(schema.name)} ({columns}) SELECT {', '.join(listed)} FROM ({sql}) WHERE 1"

    def again(self, change: Change, schema: Schema) -> str:
        """Return the SQL of ON DUPLICATE KEY UPDATE, which happens only to a table with a unique key."""
        if not change.again:
            return ""
        tables, hidden = list(self.tables), frozenset(name.lower() for name, _ in schema.listed)
        self.tables.append(Table(NEW_ROW, schema.listed, hidden, inside="excluded"))
        if change.row_alias:
            self.tables.append(Table(change.row_alias, schema.listed, inside="excluded"))
        sets = [(table or schema.name, column, node) for table, column, node in change.again]
        columns, values = self.assignments(sets)
        self.tables, self.assigned, self.clause = tables, {}, "select"
        if not any(key.unique for key in schema.keys):
            return ""
        sets = ", ".join(f"{column} = {value}" for column, value in zip(columns, values, strict=True))
        return f" ON CONFLICT DO UPDATE SET {sets}"


def sources_of(source: tuple) -> dict[str, str]:
    """Return {alias: table} of the tables in a join."""
    if source[0] == "join":
        return sources_of(source[2]) | sources_of(source[3])
    return {source[2] or source[1].rpartition(".")[2]: source[1]} if source[0] == "table" else {}


def stored(value: Typed, column: Column, row: int | str) -> str:
    """Return the SQL that converts a value to its column's type. row: its number, or the SQL of that."""
    if value.type == NULL or (column.said == "text" and value.type.kind == "text"):
        return value.sql
    if column.said == "text":
        return as_text(value)
    if column.said == "int" and value.sql.isdigit() and len(value.sql) < 10:
        return value.sql
    whole = value.sql if value.type.kind in TEXTUAL else as_number(value)
    if column.said == "int":
        return f"whole_({whole}, {literal(column.name)}, {row})"
    if column.said == "bigint unsigned" and value.type.kind == "unsigned":
        return value.sql
    number = column.type.kind not in TEXTUAL or (column.said.startswith("enum") and value.type.kind == "int")
    return f"keep_({whole if number else as_text(value)}, {literal(column.said)}, {literal(column.name)}, {row})"


def check_count(given: int, wanted: int, row: int) -> None:
    if given != wanted:
        raise MySQLError(1136, "21S01", f"Column count doesn't match value count at row {row}")
