"""Translate user variables: @x, and @x := expression in the order of the rows; Block (queries.py) inherits it.

MySQL's manual leaves the order of evaluation open. Here it is the order of MySQL 8 in simple queries:
- A SELECT list is evaluated from left to right, row by row, after WHERE and ORDER BY and before LIMIT:
  `SELECT @n := @n + 1, name FROM shop, (SELECT @n := 0) start ORDER BY name` numbers the sorted rows.
- If ORDER BY uses a value of the list that an assignment changes, or sorts groups, the list is evaluated first, in the
  order of the table's rows or of the groups' first rows.
- A derived table is finished before the query around it begins, as in MySQL, which merges none in such a statement.
- A variable has the type that it had before the statement, that of a string if it had none: then `@n + 1` is a float.
- A variable that was never set is NULL where it is read before the statement's first assignment to it.
- UPDATE assigns in the order of its ORDER BY.

Three kinds of statements fail with 1235: those that would evaluate one assignment twice, such as `(@n := 1) BETWEEN 0
AND 2`; HAVING over a value that an assignment changes, which MySQL evaluates once more for HAVING; and an assignment
beside a window function.
"""

import re

from envs.simulators.mysql.combining import unique
from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.tokens import not_spoken
from envs.simulators.mysql.types import NULL, TEXT, Typed, quoted

QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*\"""")  # texts and names of SQL


def assigns(node) -> set[str]:
    """Return the variables that an expression assigns outside of its subqueries."""
    if not isinstance(node, (tuple, list)):
        return set()
    found = {node[1]} if node and node[0] == "assign" else set()
    return found.union(*map(assigns, node))


def windowed(node) -> bool:
    """Return whether an expression contains a window function."""
    if not isinstance(node, (tuple, list)):
        return False
    return bool(node and node[0] == "window") or any(map(windowed, node))


class Variables:
    """`variables` are the values and types before the statement; `assigning` are the names that it assigns."""

    def _variable(self, name: str) -> Typed:
        value, kind = self.variables.get(name, (None, NULL))
        if name in self.assigning and (name in self.variables or name in self.root.assigned_names):
            kind = TEXT if kind == NULL else kind
            return Typed(f"variable_('{name}', '{kind.kind}')", kind)
        if value is None:
            return Typed("NULL", kind)
        return Typed(self._text(value).sql if isinstance(value, str) else repr(value), kind)

    def exact(self, node: tuple, value: Typed) -> Typed:
        """Return a value for a sum that is no whole number: a variable that began as one keeps its decimal places."""
        if node[0] != "variable" or not value.sql.startswith("variable_(") or value.type.kind != "int":
            return value
        return Typed(f"variable_('{node[1]}', 'decimal')", value.type)

    def _assign(self, name: str, node: tuple) -> Typed:
        value = self.typed(node)
        kind, scale, digits = value.type
        self.root.assigned_names.add(name)
        return Typed(f"assign_('{name}', {value.sql}, '{kind}', {scale}, {digits})", value.type)

    def check_once(self, sql: str) -> str:
        """Return the SQL of the statement; raise an error if an assignment occurs in it more than once."""
        if self.assigning and QUOTED.sub("", sql).count("assign_(") > len(self.assigning):
            raise not_spoken(f"@{self.assigning[0]} := in an expression that is evaluated twice")
        return sql

    def later(self, query: Select, items: list) -> bool:
        """Return whether the SELECT list is evaluated before ORDER BY."""
        names = {alias.lower() for node, alias, _ in items if alias and assigns(node)}

        def uses(node) -> bool:
            if not isinstance(node, (tuple, list)):
                return False
            if node and node[0] == "column":
                return node[2].lower() in names
            if node and node[0] == "variable":
                return node[1] in self.assigning
            return bool(node and node[0] == "assign") or any(map(uses, node))

        numbers = [node[1] for node, _ in query.order if node[0] == "int" and 1 <= node[1] <= len(items)]
        if uses(query.having):
            raise not_spoken(f"@{self.assigning[0]} := and HAVING over its value")
        if any(map(windowed, (node for node, *_ in items))):
            raise not_spoken(f"@{self.assigning[0]} := beside a window function")
        return (
            bool(query.groups and query.order)
            or uses(query.order)
            or any(assigns(items[number - 1][0]) for number in numbers)
        )

    def after_rows(self, query: Select, items: list, values: list[Typed], sql: str, later: bool) -> str:
        """Return the SQL of DISTINCT and ORDER BY over the SQL that evaluates the SELECT list. later: whether ORDER BY
        comes last."""
        names = unique(alias or (node[2] if node[0] == "column" else text) for node, alias, text in items)
        found = f"SELECT {'DISTINCT ' * query.distinct}{', '.join(map(quoted, names))} FROM ({sql})"
        if not later:
            return found
        values = [Typed(quoted(name), value.type) for name, value in zip(names, values, strict=True)]
        self.name_values(items, values)
        tail = self.order(query, values)
        if any(f"{quoted(table.alias)}." in tail for table in self.tables):
            raise not_spoken(f"@{self.assigning[0]} := in a query that is sorted by other columns too")
        return found + tail
