"""SHOW and DESCRIBE; Database inherits Shows."""

from envs.simulators.mysql.changes import ChangeBlock
from envs.simulators.mysql.tables import Schema
from envs.simulators.mysql.tokens import not_spoken
from envs.simulators.mysql.types import literal, quoted


class Shows:
    """The rows of SHOW and DESCRIBE."""

    def _show(self, block: ChangeBlock, what: str, table: str | None) -> list[tuple]:
        if what == "DATABASES":
            return [(name,) for name in sorted({self.name, *self.server.databases})]
        if what in ("TABLES", "FULL TABLES"):
            block.parameters[table] = 1
            like = "SELECT ?1" if table == "%" else None
            listed = sorted(schema.name for schema in self.catalog.values() if not schema.temporary)
            listed = [
                name for name in listed if like or self._execute(f"SELECT {literal(name)} LIKE ?1", {table: 1})[0][0]
            ]
            kinds = {name: "VIEW" if self.catalog[name].query else "BASE TABLE" for name in listed}
            return [(name, kinds[name]) if what == "FULL TABLES" else (name,) for name in listed]
        name, _ = block.known(table)
        schema = self.catalog[name]
        if what == "CREATE" and schema.query:
            raise not_spoken("SHOW CREATE TABLE of a view")
        if what == "CREATE":
            return [(name, schema.create(self.calls.counters.get(name, 1)))]
        return self._indexes(schema) if what == "INDEX" else schema.describe()

    def _indexes(self, schema: Schema) -> list[tuple]:
        """Return the rows of SHOW INDEX; the cardinalities are exact."""
        rows = []
        for key in schema.keys:
            for i, (name, length) in enumerate(key.columns, 1):
                listed = ", ".join(map(quoted, key.names[:i]))
                [[count]] = self._execute(
                    f"SELECT COUNT(*) FROM (SELECT DISTINCT {listed} FROM {quoted(schema.name)})", {}
                )
                null = "YES" if schema.column(name).nullable else ""
                row = (schema.name, int(not key.unique), key.name, i, name, "A", count, length, None, null, "BTREE")
                rows.append((*row, "", "", "YES", None))
        return rows
