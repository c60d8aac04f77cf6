"""MySQL's mode ONLY_FULL_GROUP_BY: errors for columns that may have several values in a group; Block inherits it."""

from envs.simulators.mysql.expressions import calls
from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.tokens import MySQLError
from envs.simulators.mysql.types import quoted

MODE = "this is incompatible with sql_mode=only_full_group_by"


class Grouping:
    """The check of a SELECT with groups."""

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
