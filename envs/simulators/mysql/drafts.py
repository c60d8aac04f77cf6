"""The new definition of a table that is created or altered, action by action, with MySQL's errors."""

from dataclasses import replace

from envs.simulators.mysql.tables import LONG, Check, Column, Foreign, Key, Schema
from envs.simulators.mysql.tokens import MySQLError


class Draft:
    """A table's new Schema, and what becomes of the old rows."""

    def __init__(self, schema: Schema, old: Schema | None = None):
        self.schema, self.old = schema, old
        self.origin = {column.name: column.name for column in schema.columns} if old else {}  # new name -> old name
        self.order: list = []
        self.next = 1  # of AUTO_INCREMENT

    def unknown(self, name: str) -> MySQLError:
        return MySQLError(1054, "42S22", f"Unknown column '{name}' in '{self.schema.name}'")

    def wanted(self, name: str) -> Column:
        if column := self.schema.column(name):
            return column
        raise self.unknown(name)

    def place(self, column: Column, place: str | None) -> None:
        """Put a column where FIRST or AFTER says, by default behind the others."""
        at = 0 if place == "" else len(self.schema.columns)
        if place:
            at = self.schema.columns.index(self.wanted(place)) + 1
        self.schema.columns.insert(at, column)

    def check_column(self, column: Column) -> None:
        if column.default is not None and column.bare in LONG and column.default[0] in ("text", "int", "decimal"):
            text = f"BLOB, TEXT, GEOMETRY or JSON column '{column.name}' can't have a default value"
            raise MySQLError(1101, "42000", text)
        if column.increments and column.type.kind not in ("int", "unsigned"):
            raise MySQLError(1063, "42000", f"Incorrect column specifier for column '{column.name}'")
        if column.increments and column.default is not None:
            raise MySQLError(1067, "42000", f"Invalid default value for '{column.name}'")

    # -- actions of ALTER TABLE

    def add_column(self, column: Column, place: str | None) -> None:
        if self.schema.column(column.name):
            raise MySQLError(1060, "42S21", f"Duplicate column name '{column.name}'")
        self.check_column(column)
        self.place(column, place)

    def change_column(self, name: str, column: Column, place: str | None) -> None:
        old = self.wanted(name)
        self.check_column(column)
        at = self.schema.columns.index(old)
        self.rename(old, column.name)
        self.schema.columns[at] = column
        self.origin[column.name] = self.origin.pop(old.name, old.name)
        if place is not None:
            self.schema.columns.remove(column)
            self.place(column, place)

    def rename_column(self, name: str, new: str) -> None:
        old = self.wanted(name)
        self.change_column(name, replace(old, name=new), None)

    def rename(self, old: Column, new: str) -> None:
        """Use a column's new name in the keys and constraints."""
        if old.name == new:
            return
        if (other := self.schema.column(new)) and other is not old:
            raise MySQLError(1060, "42S21", f"Duplicate column name '{new}'")
        self.check_unused(old)
        for key in self.schema.keys:
            key.columns = [(new if name == old.name else name, length) for name, length in key.columns]
        for foreign in self.schema.foreign:
            foreign.columns = [new if name == old.name else name for name in foreign.columns]

    def check_unused(self, column: Column) -> None:
        for check in self.schema.checks:
            if column.name.lower() in columns_of(check.node):
                text = f"Check constraint '{check.name}' uses column '{column.name}', hence column cannot be dropped or"
                raise MySQLError(3959, "HY000", f"{text} renamed.")

    def drop_column(self, name: str) -> None:
        column = self.schema.column(name)
        if not column:
            raise cannot_drop(name)
        low = column.name.lower()
        self.schema.checks = [check for check in self.schema.checks if columns_of(check.node) != {low}]
        self.check_unused(column)
        for foreign in self.schema.foreign:
            if column.name in foreign.columns:
                text = f"Cannot drop column '{column.name}': needed in a foreign key constraint '{foreign.name}'"
                raise MySQLError(1828, "HY000", text)
        self.schema.columns.remove(column)
        for key in self.schema.keys:
            key.columns = [part for part in key.columns if part[0] != column.name]
        self.schema.keys = [key for key in self.schema.keys if key.columns]
        self.origin.pop(column.name, None)

    def set_default(self, name: str, default: tuple | None, printed: str | None) -> None:
        column = replace(self.wanted(name), default=default, printed=printed)
        self.check_column(column)
        self.schema.columns[self.schema.columns.index(self.wanted(name))] = column

    def add_key(self, key: Key) -> None:
        columns = []
        for name, length in key.columns:
            column = self.schema.column(name)
            if not column:
                raise MySQLError(1072, "42000", f"Key column '{name}' doesn't exist in table")
            if column.bare == "json":
                text = f"JSON column '{column.name}' supports indexing only via generated columns on a specified"
                raise MySQLError(3152, "42000", f"{text} JSON path.")
            if column.bare in LONG and not length:
                text = f"BLOB/TEXT column '{column.name}' used in key specification without a key length"
                raise MySQLError(1170, "42000", text)
            if any(column.name == name for name, _ in columns):
                raise MySQLError(1060, "42S21", f"Duplicate column name '{column.name}'")
            columns.append((column.name, length))
        key.columns = columns
        if key.name == "PRIMARY" and self.schema.primary:
            raise MySQLError(1068, "42000", "Multiple primary key defined")
        if not key.name:
            taken, first = {key.name.lower() for key in self.schema.keys}, columns[0][0]
            tries = (first if i == 1 else f"{first}_{i}" for i in range(1, 100))
            key.name = next(name for name in tries if name.lower() not in taken)
        if self.schema.key(key.name):
            raise MySQLError(1061, "42000", f"Duplicate key name '{key.name}'")
        if key.name == "PRIMARY":
            for name in key.names:
                self.wanted(name).nullable = False
        self.schema.keys.append(key)

    def drop_index(self, name: str) -> None:
        key = self.schema.key(name)
        if not key:
            raise cannot_drop(name)
        for foreign in self.schema.foreign:
            if key.names[: len(foreign.columns)] == foreign.columns:
                text = f"Cannot drop index '{key.name}': needed in a foreign key constraint"
                raise MySQLError(1553, "HY000", text)
        self.schema.keys.remove(key)

    def rename_index(self, old: str, new: str) -> None:
        key = self.schema.key(old)
        if not key or key.name == "PRIMARY":
            raise MySQLError(1176, "42000", f"Key '{old}' doesn't exist in table '{self.schema.name}'")
        if self.schema.key(new) not in (None, key):
            raise MySQLError(1061, "42000", f"Duplicate key name '{new}'")
        key.name = new

    def add_check(self, check: Check) -> None:
        name = check.name or self.numbered("chk", [other.name for other in self.schema.checks])
        if any(other.name.lower() == name.lower() for other in self.schema.checks):
            raise MySQLError(3822, "HY000", f"Duplicate check constraint name '{name}'.")
        self.schema.checks.append(replace(check, name=name))

    def add_foreign(self, foreign: Foreign) -> None:
        columns = []
        for name in foreign.columns:
            if not self.schema.column(name):
                raise MySQLError(1072, "42000", f"Key column '{name}' doesn't exist in table")
            columns.append(self.schema.column(name).name)
        foreign.columns = columns
        given = foreign.name
        foreign.name = given or self.numbered("ibfk", [other.name for other in self.schema.foreign])
        if any(other.name == foreign.name for other in self.schema.foreign):
            raise MySQLError(1826, "HY000", f"Duplicate foreign key constraint name '{foreign.name}'")
        self.schema.foreign.append(foreign)
        if not any(key.names[: len(columns)] == columns for key in self.schema.keys):
            self.add_key(Key(given, [(name, None) for name in columns]))

    def numbered(self, word: str, names: list[str]) -> str:
        tries = (f"{self.schema.name}_{word}_{i}" for i in range(1, 1000))
        return next(name for name in tries if name not in names)

    def drop_check(self, name: str) -> None:
        kept = [check for check in self.schema.checks if check.name.lower() != name.lower()]
        if len(kept) == len(self.schema.checks):
            raise MySQLError(3821, "HY000", f"Check constraint '{name}' is not found in the table.")
        self.schema.checks = kept

    def drop_foreign(self, name: str) -> None:
        kept = [foreign for foreign in self.schema.foreign if foreign.name.lower() != name.lower()]
        if len(kept) == len(self.schema.foreign):
            raise cannot_drop(name)
        self.schema.foreign = kept

    def drop_constraint(self, name: str) -> None:
        if any(check.name.lower() == name.lower() for check in self.schema.checks):
            self.drop_check(name)
        elif any(foreign.name.lower() == name.lower() for foreign in self.schema.foreign):
            self.drop_foreign(name)
        elif (key := self.schema.key(name)) and key.unique:
            self.drop_index(name)
        else:
            raise MySQLError(3940, "HY000", f"Constraint '{name}' does not exist.")

    def sort(self, order: list) -> None:
        self.order = order

    def set_comment(self, text: str) -> None:
        self.schema.comment = text

    def set_next(self, number: int) -> None:
        self.next = number

    def keep(self) -> None:
        """An option that changes nothing here, such as ENGINE."""


def cannot_drop(name: str) -> MySQLError:
    return MySQLError(1091, "42000", f"Can't DROP '{name}'; check that column/key exists")


def columns_of(node) -> set[str]:
    """Return the names of the columns in an expression, in lower case."""
    if not isinstance(node, (tuple, list)):
        return set()
    if node and node[0] == "column":
        return {node[2].lower()}
    return set().union(*map(columns_of, node))
