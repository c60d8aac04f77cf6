"""The functions that SQLite calls while it runs a statement, with the count of its steps and its failure."""

from envs.simulators.mysql.functions import decimal, decimal_text, double_text
from envs.simulators.mysql.kept import LEADING, kept
from envs.simulators.mysql.tokens import MySQLError, Refused
from envs.simulators.mysql.types import NULL, TEXTUAL, Type
from envs.simulators.regex.match import compile_regex
from envs.simulators.regex.syntax import RegexError

MAX_STEPS = 200  # thousands of steps of SQLite's virtual machine per call of `Database.run`


class Calls:
    """The methods that a connection holds. They must not refer to the connection or its Database: the garbage
    collector does not look inside sqlite3, so that neither would ever be freed."""

    def __init__(self):
        self.steps = 0  # thousands
        self.failure: MySQLError | None = None  # raised by one of the functions
        self.variables: dict[str, tuple] = {}  # @name -> (value as SQLite has it, Type)
        self.counters: dict[str, int] = {}  # table -> the next value of its AUTO_INCREMENT column
        self.generated = 0  # the first such value of the statement
        self.last_generated = 0  # of the last statement that had one
        self.row: tuple = ()  # see `seen`
        self.table = ""  # which the statement changes
        self.ignores = False  # whether a value that an INT column cannot hold is converted instead of refused

    def tick(self) -> bool:
        """Count a thousand steps; return whether they are too many."""
        self.steps += 1
        return self.steps > MAX_STEPS

    def assign(self, name: str, value, kind: str, scale: int, digits: int):
        """Set a variable to a value of this type, and return the value."""
        self.variables[name] = value, Type(kind, scale, digits)
        return value

    def variable(self, name: str, kind: str):
        """Return a variable's value as one of the type that the statement gives the variable."""
        value, now = self.variables.get(name, (None, NULL))
        if value is None or now.kind == kind:
            return value
        if kind in TEXTUAL:
            return as_printed(value, now)
        number = float(LEADING.match(value)[0] or 0) if isinstance(value, str) else value
        if kind not in ("int", "unsigned"):
            return float(number)
        return int(number) if now.kind == "double" else int(decimal(number, 0))

    def keep(self, value, said: str, column: str, row: int):
        """Return a value as a column of this type keeps it; raise MySQL's error if it cannot."""
        try:
            return kept(value, said, self.ignores)
        except Refused as refused:
            code, state, text = refused.args
            text = text.replace("{column}", column).replace("{row}", str(row)).replace("{table}", self.table)
            return self._fail(code, state, text)

    def refusing(self, function):
        """Return a function whose Refused is the statement's error."""

        def call(*values):
            try:
                return function(*values)
            except Refused as refused:
                return self._fail(*refused.args)

        return call

    def required(self, value, column: str, row: int):
        """Return a value that ALTER TABLE converts for a NOT NULL column; fail for NULL."""
        return (
            self._fail(1265, "01000", f"Data truncated for column '{column}' at row {row}") if value is None else value
        )

    def next(self, table: str, value: int | None) -> int:
        """Return the value of an AUTO_INCREMENT column: the next one if none is given, and count it."""
        number = value or self.counters.get(table, 1)
        self.counters[table] = max(self.counters.get(table, 1), number + 1)
        if not value and not self.generated:
            self.generated = number
        return number

    def last(self) -> int:
        return self.last_generated

    def seen(self, *values) -> int:
        """Keep the values of the unique keys of the row that is being written, for the message if one is taken."""
        self.row = values
        return 1

    def only_one(self, count: int, value):
        return value if count < 2 else self._fail(1242, "21000", "Subquery returns more than 1 row")

    def regexp(self, text: str | None, pattern: str | None) -> int | None:
        """Return whether a text has a match, ignoring case; fail if the search takes too many steps."""
        if text is None or pattern is None:
            return None
        try:
            return int(compile_regex(pattern, "perl", icase=True).test(text, self._spend))
        except RegexError as error:
            return self._fail(3688, "HY000", f"Syntax error in regular expression: {error}")

    def _spend(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MAX_STEPS:
            self._fail(3699, "HY000", "Timeout exceeded in regular expression match.")

    def whole(self, value, column: str, row: int) -> int | None:
        """Return a value as an INT column stores it; raise MySQL's error if it cannot."""
        if value is None:
            return None
        if isinstance(value, str):
            value = self._number(value, column, row)
        number = int(decimal(value, 0)) if abs(value) < 1e15 else 10**15 if value > 0 else -(10**15)
        if self.ignores:
            return max(-(2**31), min(number, 2**31 - 1))
        if not -(2**31) <= number < 2**31:
            self._fail(1264, "22003", f"Out of range value for column '{column}' at row {row}")
        return number

    def _number(self, text: str, column: str, row: int) -> float:
        try:
            if text.isascii() and "_" not in text:
                return float(text)
        except ValueError:
            pass
        if self.ignores:
            return float(LEADING.match(text)[0] or 0)
        if text.strip()[:1].isdigit():
            self._fail(1265, "01000", f"Data truncated for column '{column}' at row {row}")
        self._fail(1366, "HY000", f"Incorrect integer value: '{text[:80]}' for column '{column}' at row {row}")

    def _fail(self, code: int, state: str, text: str):
        self.failure = MySQLError(code, state, text)
        raise self.failure


def as_printed(value, kind: Type) -> str:
    """Return a value of SQLite as the string that MySQL prints for it."""
    if kind.kind == "decimal":
        return decimal_text(value, kind.scale)
    return double_text(value) if kind.kind == "double" else str(value)
