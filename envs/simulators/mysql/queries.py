"""Translate MySQL's SELECT to SQLite: resolve names, and raise the errors that MySQL raises."""

from dataclasses import dataclass

from envs.simulators.mysql.combining import ROW, Columns, Combining, limited, no_seed, unique
from envs.simulators.mysql.expressions import CLAUSES, LEVEL, Expressions, calls
from envs.simulators.mysql.selects import NATURAL, Select
from envs.simulators.mysql.tokens import MySQLError, too_many_columns
from envs.simulators.mysql.types import Typed, quoted, without_case
from envs.simulators.mysql.variables import Variables, assigns

MODE = "this is incompatible with sql_mode=only_full_group_by"
MAX_COLUMNS = 4096  # of all SELECT lists of a statement; in MySQL of each


@dataclass
class Table:
    """A table in FROM: its columns, and the columns that USING has joined with another table's."""

    alias: str
    columns: Columns
    hidden: frozenset = frozenset()

    def __post_init__(self):
        self.named = {name.lower(): (name, kind) for name, kind in self.columns}


class Block(Expressions, Combining, Variables):
    """The scope of one SELECT or change: the tables whose columns it can name, and `outer`, the enclosing Block.

    `tables` are those of the database; `target` is the table that is being changed, which no subquery may read; `root`
    is the statement's own Block, and `listed` counts the columns of its SELECT lists.
    """

    def __init__(self, database: str, tables: dict[str, Columns], parameters: dict[str, int], outer=None):
        super().__init__(parameters)
        self.database, self.catalog, self.outer = database, tables, outer
        self.target: str | None = outer.target if outer else None
        self.root: Block = outer.root if outer else self
        self.listed = 0
        self.tables: list[Table] = []
        self.aliases: dict[str, Typed] = {}  # of the SELECT list, in lower case
        self.assigned: dict[str, Typed] = {}  # what UPDATE has set so far
        self.visible: set[str] | None = None  # SQL of the columns that HAVING may name; None: any
        self.numbered = False  # whether derived tables number their rows, which ROW names
        self.variables: dict[str, tuple] = outer.variables if outer else {}  # @name -> (value, Type)
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
        return table, self.catalog[table]

    def lookup(self, table: str | None, name: str) -> Typed | None:
        """Return a column of the tables in FROM; None if no table has one of this name."""
        table, low = table and table.rpartition(".")[2], name.lower()
        found = [
            (source.alias, *source.named[low])
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
        if source[0] == "table":
            name, columns = self.known(what)
            if name == self.target:
                text = f"You can't specify target table '{name}' for update in FROM clause"
                raise MySQLError(1093, "HY000", text)
            alias, sql = alias or name, quoted(name)
        elif source[0] == "recursive":
            if what not in self.recursive:  # in the part that must not
                raise no_seed(what)
            sql, columns = quoted(f"{what}~"), self.recursive[what]
        else:
            block = self.inner()
            block.target = None
            sql, columns = block.query(what)
            names = [name.lower() for name, _ in columns]
            if len(set(names)) < len(names):
                twice = next(name for i, (name, _) in enumerate(columns) if name.lower() in names[:i])
                raise MySQLError(1060, "42S21", f"Duplicate column name '{twice}'")
            number = "ROW_NUMBER() OVER ()" + " + 0 * COUNT(*) OVER ()" * bool(self.assigning)  # which needs all rows
            numbered = self.numbered or self.assigning
            sql = f"(SELECT *, {number} AS {ROW} FROM ({sql}))" if numbered else f"({sql})"
        if any(table.alias == alias for table in self.tables):
            raise MySQLError(1066, "42000", f"Not unique table/alias: '{alias}'")
        self.tables.append(Table(alias, columns))
        return f"{sql} AS {quoted(alias)}"

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
        self.clause = "where"
        where = self.truth(query.where) if query.where else ""
        self.clause, self.aggregates = "select", True
        items = self.items(query)
        values = self.values(items)
        groups = self.groups(query, values)
        keys, last = [value.sql for value in groups], self.first_row() if groups else ""
        if query.rolls:
            source += self.roll(groups, "CROSS JOIN" if source else "FROM")
            values, keys = self.values(items), [LEVEL, *(value.sql for value in self.rolled.values())]
            last = ", ".join(f"{LEVEL} <= {i}, {key} COLLATE NOCASE" for i, key in enumerate(keys[1:]))
        assigning = any(assigns(node) for node, *_ in items)
        later = assigning and self.later(query, items)
        order = "" if later else self.order(query, values, last, places=not assigning)
        grouped = bool(groups) or any(calls(node) for node, *_ in items) or calls(query.having)
        having = ""
        if query.having and (grouped or not later):
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
            place = f"(0 + {place})" if node[0] == "negate" else place  # or SQLite takes -1 for a column's number
            parts.append(without_case(Typed(place, value.type)) + " DESC" * descends)
        parts += [last] if last else []
        return f" ORDER BY {', '.join(parts)}" if parts else ""

    def ordinal(self, node: tuple, values: list[Typed]) -> Typed | None:
        """Return the column of the SELECT list with this number."""
        if node[0] != "int":
            return None
        if not 1 <= node[1] <= len(values):
            raise MySQLError(1054, "42S22", f"Unknown column '{node[1]}' in '{CLAUSES[self.clause]}'")
        return values[node[1] - 1]

    # -- ONLY_FULL_GROUP_BY

    def check_groups(self, query: Select, items: list, groups: list[str]) -> None:
        """Raise an error for a column that may have several values in a group."""
        self.clause = "where"
        fixed = self.fixed(query.where)
        for clause, said, listed in (("select", "SELECT list", items), ("order", "ORDER BY", query.order)):
            self.clause = clause
            for i, (node, *_) in enumerate(listed):
                if not (name := self.ungrouped(node, groups, fixed)):
                    continue
                if groups:
                    text = f"Expression #{i + 1} of {said} is not in GROUP BY clause and contains nonaggregated "
                    text += f"column '{name}' which is not functionally dependent on columns in GROUP BY clause; "
                    raise MySQLError(1055, "42000", text + MODE)
                text = f"In aggregated query without GROUP BY, expression #{i + 1} of {said} contains nonaggregated "
                raise MySQLError(1140, "42000", f"{text}column '{name}'; {MODE}")

    def ungrouped(self, node, groups: list[str], fixed: list[str]) -> str | None:
        """Return the first column of an expression outside aggregates that is neither grouped nor fixed by WHERE."""
        if isinstance(node, list) or (isinstance(node, tuple) and not (node and isinstance(node[0], str))):
            return next(filter(None, (self.ungrouped(part, groups, fixed) for part in node)), None)
        if not isinstance(node, tuple) or node[0] in ("text", "int", "null"):
            return None
        if node[0] == "call" and (calls(node[:2]) or node[1] == "ANY_VALUE"):
            return None
        if node[0] == "window":
            over = self.windows.get(node[2].lower(), ()) if isinstance(node[2], str) else node[2]
            return self.ungrouped([*node[1][2], *over[:2]], groups, fixed)
        if node[0] in ("row", "interval"):
            return self.ungrouped(node[1], groups, fixed)
        if node[0] in ("query", "exists") or self.typed(node).sql in groups:
            return None
        if node[0] != "column":
            return self.ungrouped(list(node[1:]), groups, fixed)
        if self.clause == "order" and node[1] is None and node[2].lower() in self.aliases:
            return None  # that is for the SELECT list to answer
        sql = self.typed(node).sql
        table = next((table for table in self.tables if sql.startswith(f"{quoted(table.alias)}.")), None)
        return f"{self.database}.{table.alias}.{node[2]}" if table and sql not in fixed else None

    def fixed(self, node: tuple | None) -> list[str]:
        """Return the SQL of the columns that WHERE restricts to one value."""
        if not node or node[0] != "binary" or node[1] not in ("AND", "="):
            return []
        if node[1] == "AND":
            return self.fixed(node[2]) + self.fixed(node[3])
        pairs = (node[2], node[3]), (node[3], node[2])
        return [self.typed(a).sql for a, b in pairs if a[0] == "column" and b[0] in ("text", "int", "decimal")]


def calls_of(query: Select, alias: str) -> bool:
    """Return whether the SELECT item with this alias contains an aggregate."""
    return any(calls(node) for node, name, _ in query.items if name and name.lower() == alias.lower())
