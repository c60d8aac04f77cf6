"""MySQL's errors for those of SQLite; Database inherits Failures."""

import re
import sqlite3

from envs.simulators.mysql.building import key_names, keyed
from envs.simulators.mysql.calls import as_printed
from envs.simulators.mysql.combining import no_aggregation
from envs.simulators.mysql.tokens import MySQLError, too_deep, too_many_columns

OUT_OF_RANGE = MySQLError(1690, "22003", "BIGINT value is out of range")


class Failures:
    """The errors of a Database's statements."""

    def _as_mysql(self, error: sqlite3.Error, sql: str) -> MySQLError:
        """Return the MySQL error for an error of SQLite."""
        return self._violation(str(error)) if "constraint failed" in str(error) else _as_mysql(error, self.name, sql)

    def _violation(self, text: str) -> MySQLError:
        """Return the MySQL error for a constraint that a row violates."""
        kind, _, detail = text.partition(" constraint failed: ")
        last = detail.rpartition(".")[2]
        if kind == "NOT NULL":
            if self.defining:
                return MySQLError(1138, "22004", "Invalid use of NULL value")
            return MySQLError(1048, "23000", f"Column '{last}' cannot be null")
        if kind == "CHECK":
            return MySQLError(3819, "HY000", f"Check constraint '{detail}' is violated.")
        if kind == "UNIQUE":
            for schema in filter(None, (self.defining, *self.catalog.values())):
                for key in schema.keys:
                    if key.unique and detail in key_names(schema, key):
                        values = dict(zip(keyed(schema), self.calls.row, strict=False))
                        texts = [as_printed(values[n], schema.column(n).type)[:length] for n, length in key.columns]
                        text = f"Duplicate entry '{'-'.join(texts)}' for key '{schema.name}.{key.name}'"
                        return MySQLError(1062, "23000", text)
        changed = self.changing and self.catalog.get(self.changing.table.rpartition(".")[2])
        if changed and changed.foreign and self.changing.verb != "DELETE":
            return self._orphan(changed, changed.foreign[0])
        for schema in self.catalog.values():
            for foreign in schema.foreign:
                if not changed or foreign.table == changed.name:
                    return self._orphan(schema, foreign, parent=True)
        return too_deep()


def _as_mysql(error: sqlite3.Error, table: str, sql: str) -> MySQLError:
    """Return the MySQL error for an error of SQLite."""
    text = str(error)
    recursion = re.search('WITH RECURSIVE "(.+?)~"', sql)
    if "interrupted" in text and recursion:
        message = "Recursive query aborted after 1001 iterations. Try increasing @@cte_max_recursion_depth to a larger "
        return MySQLError(3636, "HY000", message + "value.")
    if "interrupted" in text:
        message = "Query execution was interrupted, maximum statement execution time exceeded"
        return MySQLError(3024, "HY000", message)
    if recursion and "recursive" in text and ("aggregate" in text or "window" in text):
        return no_aggregation(recursion[1])
    if recursion and ("recursive" in text or "circular" in text):
        message = (
            f"In recursive query block of Recursive Common Table Expression '{recursion[1]}', the recursive table "
        )
        return MySQLError(3577, "HY000", message + "must be referenced only once, and not in any subquery")
    if "too many columns" in text:
        return too_many_columns()
    if "full" in text:
        return MySQLError(1114, "HY000", f"The table '{table}' is full")
    if "too big" in text:
        return MySQLError(1406, "22001", "Data too long")
    if "integer overflow" in text or "raised exception" in text:
        return OUT_OF_RANGE
    return too_deep()
