"""Translate MySQL's SELECT to SQLite: resolve names, and raise the errors that MySQL raises."""

from dataclasses import dataclass

from envs.simulators.mysql.combining import ROW, Columns, Combining, limited, no_seed, unique
from envs.simulators.mysql.expressions import CLAUSES, LEVEL, Expressions, calls
from envs.simulators.mysql.grammar import NEW_ROW
from envs.simulators.mysql.grouping import Grouping
from envs.simulators.mysql.information import LISTED, columns_of, rows_of
from envs.simulators.mysql.kept import members_of
from envs.simulators.mysql.selects import MAX_TABLES, NATURAL, Select
from envs.simulators.mysql.tables import Schema
from envs.simulators.mysql.tokens import MySQLError, too_many_columns
from envs.simulators.mysql.types import COUNT, NULL, Typed, by_order, literal, quoted, without_case
from envs.simulators.mysql.variables import Variables, assigns

MAX_COLUMNS = 4096  # of all SELECT lists of a statement; in MySQL of each


@dataclass
class Table:
    """A table in FROM: its columns, and the columns that USING has joined with another table's."""

    alias: str
    columns: Columns
    hidden: frozenset = frozenset()
    schema: Schema | None = None  # of a table of the database
    inside: str = ""  # its name in SQLite, if that is not the alias

    def __post_init__(self):
        self.named = {name.lower(): (name, kind) for name, kind in self.columns}


class Block(Expressions, Combining, Grouping, Variables):
    """The scope of one SELECT or change: the tables whose columns it can name, and `outer`, the enclosing Block.

    `tables` are those of the database; `target` is the table that is being changed, which no subquery may read; `root`
    is the statement's own Block; `listed` counts the columns of its SELECT lists, `sourced` its tables.
    """

    def __init__(self, database: str, tables: dict[str, Schema], parameters: dict[str, int], outer=None):
        super().__init__(parameters)
        self.database, self.catalog, self.outer = database, tables, outer
        self.target: str | None = outer.target if outer else None
        self.root: Block = outer.root if outer else self
        self.listed, self.sourced = 0, 0
        self.rows = False  # whether FROM names the rows of the tables themselves, by ROW
        self.tables: list[Table] = []
        self.aliases: dict[str, Typed] = {}  # of the SELECT list, in lower case
        self.assigned: dict[str, Typed] = {}  # what UPDATE has set so far
        self.visible: set[str] | None = None  # SQL of the columns that HAVING may name; None: any
        self.numbered = False  # whether derived tables number their rows, which ROW names
        self.variables: dict[str, tuple] = outer.variables if outer else {}  # @name -> (value, Type)
        self.assigned_names: set[str] = set()  # of the root: the @variables that are assigned in what is translated
        self.assigning: list[str] = outer.assigning if outer else []  # the @variable of each := in the statement
        self.recursive: dict[str, Columns] = outer.recursive if outer else {}  # names of WITH RECURSIVE being read

    def inner(self) -> "Block":
        return Block(self.database, self.catalog, self.parameters, self)

    # -- names

    def known(self, name: str) -> tuple[str, Columns]:
        """Return the name and the columns of a table of the database."""
        database, _, table = name.rpartition(".")
        if database and database != self.database and database.lower() != "information_schema":
            raise MySQLError(1049, "42000", f"Unknown database '{database}'")
        if table not in self.catalog or database.lower() == "information_schema":
            raise MySQLError(1146, "42S02", f"Table '{database or self.database}.{table}' doesn't exist")
        return table, self.catalog[table].listed

    def lookup(self, table: str | None, name: str) -> Typed | None:
        """Return a column of the tables in FROM; None if no table has one of this name."""
        table, low = table and table.rpartition(".")[2], name.lower()
        found = [
            (source.inside or source.alias, *source.named[low])
            for source in self.tables
            if table in (None, source.alias) and low in source.named and (table or low not in source.hidden)
        ]
        if len(found) > 1:
            raise MySQLError(1052, "23000", f"Column '{name}' in {CLAUSES[self.clause]} is ambiguous")
        if not found:
            return None
        alias, column, kind = found[0]
        return Typed(f"{quoted(alias)}.{quoted(column)}", kind)

    def _column(self, table: str | None, name: str) -> Typed:
        low, plain = name.lower(), table is None and not self.within
        if plain and self.clause in ("order", "having") and low in self.aliases:
            return self.aliases[low]
        if table == NEW_ROW and not any(source.alias == NEW_ROW for source in self.tables):
            return Typed("NULL", NULL)  # VALUES() outside of ON DUPLICATE KEY UPDATE
        found = self.lookup(table, name)
        if found and self.clause == "set" and low in self.assigned:
            return self.assigned[low]
        if found and self.clause == "having" and not self.within and self.visible is not None:
            found = found if found.sql in self.visible else None
        if not found and plain and self.clause == "group" and low in self.aliases:
            return self.aliases[low]
        block = self.outer
        while not found and block:
            found, block = block.lookup(table, name), block.outer
        if not found:
            whole = f"{table}.{name}" if table else name
            raise MySQLError(1054, "42S22", f"Unknown column '{whole}' in '{CLAUSES[self.clause]}'")
        return found

    def _star(self, table: str | None) -> Typed:
        raise MySQLError(1064, "42000", "You have an error in your SQL syntax; '*' stands for no single value")

    # -- FROM

    def sources(self, source: tuple) -> str:
        """Return the SQL of FROM, and make its tables known."""
        if source[0] == "join":
            return self.join(*source[1:])
        _, what, alias = source
        schema, derived = None, source[0] == "derived"
        if source[0] == "table" and (table := information_table(what)):
            alias, columns, sql = alias or what.rpartition(".")[2], columns_of(table), self.information(table)
        elif source[0] == "table":
            name, columns = self.known(what)
            schema = self.catalog[name]
            if name == self.target:
                text = f"You can't specify target table '{name}' for update in FROM clause"
                raise MySQLError(1093, "HY000", text)
            alias, sql = alias or name, quoted(name)
            self.root.sourced += 1
            if self.root.sourced > MAX_TABLES:
                raise MySQLError(1116, "HY000", "Too many tables; MySQL can only use 61 tables in a join")
            if schema.query:
                sql, derived = self.view(schema), True
            elif schema.primary and not self.rows:  # whose order the rows have
                keys = ", ".join(map(quoted, schema.primary.names))
                sql = f"(SELECT *, ROW_NUMBER() OVER (ORDER BY {keys}) AS {ROW} FROM {sql})"
        elif source[0] == "recursive":
            if what not in self.recursive:  # in the part that must not
                raise no_seed(what)
            sql, columns = quoted(f"{what}~"), self.recursive[what]
        else:
            block = self.inner()
            block.outer, block.target = self.outer, None  # it does not see the tables beside it
            sql, columns = block.query(what)
            names = [name.lower() for name, _ in columns]
            if len(set(names)) < len(names):
                twice = next(name for i, (name, _) in enumerate(columns) if name.lower() in names[:i])
                raise MySQLError(1060, "42S21", f"Duplicate column name '{twice}'")
        if derived:
            number = "ROW_NUMBER() OVER ()" + " + 0 * COUNT(*) OVER ()" * bool(self.assigning)  # which needs all rows
            numbered = self.numbered or self.assigning
            sql = f"(SELECT *, {number} AS {ROW} FROM ({sql}))" if numbered else f"({sql})"
        if any(table.alias == alias for table in self.tables):
            raise MySQLError(1066, "42000", f"Not unique table/alias: '{alias}'")
        self.tables.append(Table(alias, columns, schema=schema))
        return f"{sql} AS {quoted(alias)}"

    def information(self, table: str) -> str:
        """Return the SQL of a table of information_schema."""
        names = LISTED[table]
        rows = rows_of(table, self.database, self.catalog) or [(None,) * len(names)]

        def constant(value: str | int | None) -> str:
            return self._text(value).sql if isinstance(value, str) else "NULL" if value is None else str(value)

        listed = ", ".join(f"column{i} AS {quoted(name)}" for i, name in enumerate(names, 1))
        values = ", ".join(f"({', '.join(map(constant, row))})" for row in rows)
        return f"(SELECT {listed} FROM (VALUES {values}) WHERE column1 IS NOT NULL)"

    def view(self, schema: Schema) -> str:
        """Return the SQL of a view's query."""
        block = Block(self.database, self.catalog, self.parameters)
        block.root = self.root
        try:
            return block.query(schema.query)[0]
        except MySQLError as error:
            if error.code not in (1054, 1146, 1356):
                raise
            text = f"View '{self.database}.{schema.name}' references invalid table(s) or column(s) or function(s) or "
            raise MySQLError(1356, "HY000", text + "definer/invoker of view lack rights to use them") from None

    def join(self, kind: str, left: tuple, right: tuple, condition: tuple | None, using: list | None) -> str:
        one = self.sources(left)
        count = len(self.tables)
        other = self.sources(right)
        other = f"({other})" if right[0] == "join" else other
        self.clause, test = "on", "1"
        if condition:
            test = self.truth(condition)
        elif using:
            if using == NATURAL:
                both = {name for table in self.tables[count:] for name in table.named}
                using = [name for table in self.tables[:count] for name in table.named if name in both]
            new, self.tables = self.tables[count:], self.tables[:count]
            before = [self._column(None, name).sql for name in using]
            old, self.tables = self.tables, new
            after = [self._column(None, name).sql for name in using]
            for table in new:
                table.hidden = frozenset(name.lower() for name in using)
            self.tables = old + new
            test = " AND ".join(f"{a} = {b}" for a, b in zip(before, after, strict=True)) or "1"
        return f"{one} {kind} JOIN {other} ON {test}"

    # -- SELECT

    def subquery(self, query: Select) -> tuple[str, Columns]:
        return self.inner().query(query)

    def select(self, query: Select) -> tuple[str, Columns]:
        self.numbered, self.windows, self.rolls = bool(query.groups), query.windows, query.rolls
        source = f" FROM {self.sources(query.source)}" if query.source else ""
        items = self.items(query)
        assigned = set().union(*(assigns(node) for node, *_ in items)) if self.assigning else set()
        listed = assigned - self.root.assigned_names
        self.clause = "where"
        self.root.assigned_names |= listed  # MySQL resolves the list before WHERE
        where = self.truth(query.where) if query.where else ""
        self.root.assigned_names -= listed
        self.clause, self.aggregates = "select", True
        values = self.values(items)
        groups = self.groups(query, values)
        keys, last = [value.sql for value in groups], self.first_row() if groups else ""
        if query.rolls:
            source += self.roll(groups, "CROSS JOIN" if source else "FROM")
            values, keys = self.values(items), [LEVEL, *(value.sql for value in self.rolled.values())]
            last = ", ".join(f"{LEVEL} <= {i}, {key} COLLATE NOCASE" for i, key in enumerate(keys[1:]))
        assigning = bool(assigned)
        later = assigning and self.later(query, items)
        order = f" ORDER BY {last}" * bool(last) if later else self.order(query, values, last, places=not assigning)
        grouped = bool(groups) or any(calls(node) for node, *_ in items) or calls(query.having)
        having = ""
        if query.having:
            self.clause = "having"
            self.visible = {value.sql for value in (*groups, *values)}
            having = self.truth(query.having)
        if grouped:
            self.check_groups(query, items, keys)
        elif having:  # SQLite wants groups for it
            where, having = " AND ".join(filter(None, (where, having))), ""
        names = unique(alias or (node[2] if node[0] == "column" else text) for node, alias, text in items)
        named = (
            f"{without_case(value) if query.distinct else value.sql} AS {quoted(name)}"
            for value, name in zip(values, names, strict=True)
        )
        listed = ", ".join(named) + f", ROW_NUMBER() OVER ({order.strip()}) AS _place_" * assigning
        sql = f"SELECT {'DISTINCT ' * (query.distinct and not assigning)}{listed}{source}"
        sql += f" WHERE {where}" if where else ""
        sql += f" GROUP BY {', '.join(f'{key} COLLATE NOCASE' for key in keys)}" if keys else ""
        sql += f" HAVING {having}" if having else ""
        if assigning:
            last = limited(query.limit)
            inside, outside = ("", last) if later or query.distinct else (last, "")
            sql = self.after_rows(query, items, values, sql + inside, later) + outside
        else:
            sql += order + limited(query.limit)
        names = [alias or (node[2] if node[0] == "column" else text) for node, alias, text in items]
        return sql, [(name, value.type) for name, value in zip(names, values, strict=True)]

    def values(self, items: list) -> list[Typed]:
        """Return the values of a SELECT list, and make its aliases known."""
        values = [self.typed(node) for node, *_ in items]
        self.name_values(items, values)
        return values

    def name_values(self, items: list, values: list[Typed]) -> None:
        """Make the aliases of a SELECT list stand for these values."""
        self.aliases = {}
        for (node, alias, _), value in zip(items, values, strict=True):
            if alias or node[0] == "column":
                self.aliases.setdefault((alias or node[2]).lower(), value)

    def roll(self, groups: list[Typed], word: str) -> str:
        """WITH ROLLUP: from here on a group is NULL where rows sum over it. Return what FROM needs for that, after the
        word: every row once for each number of groups that count."""
        groups = list(dict.fromkeys(groups))
        levels = " UNION ALL ".join(f"SELECT {i} AS n" for i in range(len(groups) + 1))
        for i, (sql, kind) in enumerate(groups):
            self.rolled[sql] = Typed(f"(CASE WHEN {LEVEL} > {i} THEN {sql} END)", kind)
        self.clause, self.aggregates = "select", True
        return f" {word} ({levels}) AS {LEVEL.partition('.')[0]}"

    def items(self, query: Select) -> list:
        """Return the SELECT list, with every * expanded to its columns."""
        items = []
        for item in query.items:
            found = self.star(item[0][1]) if item[0][0] == "star" else [item]
            self.root.listed += len(found)
            if self.root.listed > MAX_COLUMNS:
                raise too_many_columns()
            items += found
        return items

    def star(self, wanted: str | None) -> list:
        """Return the columns of * or of a table's *."""
        if not self.tables:
            raise MySQLError(1096, "HY000", "No tables used")
        wanted = wanted and wanted.rpartition(".")[2]
        tables = [table for table in self.tables if wanted in (None, table.alias)]
        if not tables:
            raise MySQLError(1051, "42S02", f"Unknown table '{wanted}'")
        return [
            (("column", table.alias, name), None, name)
            for table in tables
            for name, _ in table.columns
            if wanted or name.lower() not in table.hidden
        ]

    def groups(self, query: Select, values: list[Typed]) -> list[Typed]:
        self.clause, self.aggregates = "group", False
        groups = []
        for node in query.groups:
            value = self.ordinal(node, values) or self.typed(node)
            if node[0] == "column" and "(" in value.sql and calls_of(query, node[2]):
                raise MySQLError(1056, "42000", f"Can't group on '{node[2]}'")
            groups.append(value)
        self.aggregates = True
        return groups

    def first_row(self) -> str:
        """Return the SQL of a group's first row, by which MySQL sorts groups; of a join, by its first three tables."""
        names = [f"{quoted(table.alias)}.{ROW}" for table in self.tables[:3]]
        if len(names) < 2:
            return "".join(f"MIN({name})" for name in names)
        return f"MIN({' + '.join(f'(IFNULL({name}, 0) << {40 - 20 * i})' for i, name in enumerate(names))})"

    def order(self, query: Select, values: list[Typed], last: str = "", places: bool = True) -> str:
        """Return the SQL of ORDER BY. last: the SQL of a key after the query's own; places: whether a key may be the
        number of a column of the SELECT list."""
        self.clause = "order"
        parts, selected = [], [value.sql for value in values]
        for i, (node, descends) in enumerate(query.order):
            value = self.ordinal(node, values) or self.typed(node)
            if query.distinct and value.sql not in selected and (name := self.ungrouped(node, selected, [])):
                text = (
                    f"Expression #{i + 1} of ORDER BY clause is not in SELECT list, references column '{name}' which "
                )
                raise MySQLError(3065, "HY000", f"{text}is not in SELECT list; this is incompatible with DISTINCT")
            place = str(selected.index(value.sql) + 1) if places and value.sql in selected else value.sql
            if members := self.members(value):
                place, value = f"FIELD_({value.sql}, {', '.join(map(literal, members))})", Typed("", COUNT)
            place = f"(0 + {place})" if node[0] == "negate" else place  # or SQLite takes -1 for a column's number
            parts.append(by_order(Typed(place, value.type)) + " DESC" * descends)
        parts += [last] if last else []
        return f" ORDER BY {', '.join(parts)}" if parts else ""

    def members(self, value: Typed) -> list[str]:
        """Return the members of the ENUM column that a value is, by which it is sorted."""
        for table in self.tables:
            for column in table.schema.columns if table.schema else []:
                if column.said.startswith("enum(") and value.sql == f"{quoted(table.alias)}.{quoted(column.name)}":
                    return members_of(column.said)
        return []

    def ordinal(self, node: tuple, values: list[Typed]) -> Typed | None:
        """Return the column of the SELECT list with this number."""
        if node[0] != "int":
            return None
        if not 1 <= node[1] <= len(values):
            raise MySQLError(1054, "42S22", f"Unknown column '{node[1]}' in '{CLAUSES[self.clause]}'")
        return values[node[1] - 1]


def information_table(name: str) -> str | None:
    """Return the name of a table of information_schema that is known here."""
    database, _, table = name.upper().rpartition(".")
    return table if database == "INFORMATION_SCHEMA" and table in LISTED else None


def calls_of(query: Select, alias: str) -> bool:
    """Return whether the SELECT item with this alias contains an aggregate."""
    return any(calls(node) for node, name, _ in query.items if name and name.lower() == alias.lower())
