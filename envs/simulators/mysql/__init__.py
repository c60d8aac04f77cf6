"""A MySQL 8 server as an agent sees it, with one database, in memory on Python's sqlite3.

    database = Database().load("shop", [("id", "INT"), ("name", "TEXT")], [(1, "tea")])
    database.run("SELECT name, 7 / 2 FROM shop")        # [("tea", Decimal("3.5000"))]
    database.run("SELECT nope FROM shop")           # MySQLError: 1054 (42S22): Unknown column 'nope' in 'field list'

README.md: the files, the dialect, the differences from MySQL 8, and how it is tested.
"""

import sqlite3
from collections.abc import Iterable
from datetime import date, datetime, timedelta
from hashlib import md5

from envs.simulators.mysql import json_values
from envs.simulators.mysql.calls import Calls
from envs.simulators.mysql.changes import ChangeBlock
from envs.simulators.mysql.dates import seconds_of
from envs.simulators.mysql.definer import Definer
from envs.simulators.mysql.failures import OUT_OF_RANGE, Failures
from envs.simulators.mysql.functions import FUNCTIONS, SPREAD, GroupConcat, decimal
from envs.simulators.mysql.parse import Change, Parser
from envs.simulators.mysql.root import ROOTS, Server
from envs.simulators.mysql.selects import Select
from envs.simulators.mysql.shows import Shows
from envs.simulators.mysql.tables import Column, Schema
from envs.simulators.mysql.tokens import MySQLError
from envs.simulators.mysql.types import Type, quoted

__all__ = ["Database", "MySQLError", "digest"]

MAX_LENGTH = 10_000  # characters per call of `run`
MAX_ROWS = 1_000  # read of a result
MAX_VALUE = 4_000  # bytes of a value, or of a row
MAX_PAGES = 1_000  # of 4 kB, of the table
MAX_PATTERN = 200  # bytes of a LIKE pattern
TYPES = {"INT": Type("int"), "TEXT": Type("text")}
DECLARED = {"INT": "INT", "TEXT": "TEXT COLLATE NOCASE"}
PERMITTED = {  # actions of SQLite after the table is created
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_INSERT,
    sqlite3.SQLITE_UPDATE,
    sqlite3.SQLITE_DELETE,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}


class Database(Definer, Failures, Shows):
    """A database that `load` fills with one table, both of the same name; statements may define more tables."""

    def __init__(self):
        self.name, self.calls, self.server = "", Calls(), Server()
        self.catalog: dict[str, Schema] = {}  # of tables and views
        self.defining: Schema | None = None  # the table that is being built
        self.built = 0  # unique keys with prefixes, which number their names in SQLite
        self.changing: Change | None = None  # the change that is being executed
        self.checks_foreign = True  # MySQL's foreign_key_checks
        self.commits = True  # whether each change does: MySQL's autocommit
        self.sqlite = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        for function, code in FUNCTIONS.items():
            self.sqlite.create_function(f"{function}_", -1, code, deterministic=True)
        for function, code in json_values.FUNCTIONS.items():
            self.sqlite.create_function(f"{function}_", -1, self.calls.refusing(code), deterministic=True)
        self.sqlite.create_function("whole_", 3, self.calls.whole)
        self.sqlite.create_function("assign_", 5, self.calls.assign)
        self.sqlite.create_function("variable_", 2, self.calls.variable)
        self.sqlite.create_function("only_one_", 2, self.calls.only_one)
        self.sqlite.create_function("regexp_", 2, self.calls.regexp, deterministic=True)
        self.sqlite.create_function("keep_", 4, self.calls.keep)
        self.sqlite.create_function("required_", 3, self.calls.required)
        self.sqlite.create_function("next_", 2, self.calls.next)
        self.sqlite.create_function("seen_", -1, self.calls.seen, deterministic=True)
        self.sqlite.create_function("last_generated_", 0, self.calls.last)
        self.sqlite.create_aggregate("GROUP_CONCAT_", -1, GroupConcat)
        for name, spread in SPREAD.items():
            self.sqlite.create_aggregate(f"{name}_", 1, spread)
        self.sqlite.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE)
        self.sqlite.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, MAX_PATTERN)
        self.sqlite.set_progress_handler(self.calls.tick, 1000)
        self.sqlite.execute(f"PRAGMA max_page_count = {MAX_PAGES}")
        self.sqlite.execute("PRAGMA temp_store = MEMORY")  # sorting writes no files

    def __del__(self):
        self.sqlite.close()  # a connection and its cache of statements refer to each other, so it would wait for gc

    def load(self, name: str, columns: list[tuple[str, str]], rows: list) -> "Database":
        """Replace the table. columns: (name, "INT" or "TEXT"); rows: tuples of int, str or None."""
        self.sqlite.set_authorizer(None)
        self.calls.steps = -(10**9)  # no limit
        if not self.checks_foreign or any(schema.foreign for schema in self.catalog.values()):
            self.sqlite.execute("PRAGMA foreign_keys = OFF")  # or the tables have an order
        for table, schema in self.catalog.items():
            if not schema.query:
                self.sqlite.execute(f"DROP TABLE {quoted(table)}")
        listed = [Column(column, kind.lower(), TYPES[kind]) for column, kind in columns]
        self.catalog, self.checks_foreign = {name: Schema(name, listed)}, True
        self.calls.counters, self.calls.last_generated = {}, 0
        self.name, self.calls.steps = name, 0
        self.calls.variables, self.commits, self.server = {}, True, Server(name, self.catalog)
        listed = ", ".join(f"{quoted(column)} {DECLARED[kind]}" for column, kind in columns)
        self.sqlite.execute(f"CREATE TABLE {quoted(name)} ({listed})")
        self.sqlite.executemany(f"INSERT INTO {quoted(name)} VALUES ({', '.join('?' * len(columns))})", rows)
        self.sqlite.set_authorizer(_permit)
        return self

    def run(self, sql: str) -> list[tuple]:
        """Run statements and return the rows of the last, as MySQL's Python connectors give them; a change has none.

        Statements are separated at every `;`, even inside a string. Raises MySQLError if one fails, which changes
        nothing; earlier ones stay done. A transaction ends with the call, which commits it, as the original's
        connector does.
        """
        self.calls.steps = 0
        if len(sql) > MAX_LENGTH:
            raise MySQLError(1153, "08S01", "Got a packet bigger than 'max_allowed_packet' bytes")
        rows: list[tuple] = []
        try:
            for part in [part for part in sql.split(";") if part.strip()] or [""]:
                rows = self._statement(part.encode("utf-8", "replace").decode().replace("\0", "?"))
        finally:
            self._control("COMMIT")
        return rows

    def rows(self) -> list[tuple]:
        """Return the whole table that was loaded. Raise MySQLError if it was dropped or renamed."""
        self.calls.steps = -(10**9)  # no limit
        kinds = [column.type for column in self._schema(self.name).columns]
        found = self.sqlite.execute(f"SELECT * FROM {quoted(self.name)}").fetchall()
        return (
            found if {kind.kind for kind in kinds} <= {"int", "text"} else [tuple(map(_read, r, kinds)) for r in found]
        )

    def definition(self) -> str:
        """Return what SHOW CREATE TABLE prints for the table that was loaded. Raise MySQLError if it is gone."""
        return self._schema(self.name).create(self.calls.counters.get(self.name, 1))

    def _statement(self, sql: str) -> list[tuple]:
        if ROOTS.match(sql) and self.server.answers(sql):
            return []
        parser, parameters = Parser(sql), {}
        statement = parser.statement()
        block = ChangeBlock(self.name, self.catalog, parameters)
        block.variables, block.assigning = dict(self.calls.variables), parser.assigning
        if isinstance(statement, tuple):
            arguments = statement[1:] if statement[0] == "define" else (block, *statement[1:])
            return getattr(self, f"_{statement[0]}")(*arguments)
        if isinstance(statement, Change):
            self.calls.ignores = block.ignoring = statement.ignores
            if not self.commits and not self.sqlite.in_transaction:
                self._control("BEGIN")
            self.changing, self.calls.generated = statement, 0
            self.calls.table = statement.table.rpartition(".")[2] or self.name
            try:
                if turn := block.in_turn(statement):
                    self._in_turn(block.check_once(turn[0]), turn[1], parameters)
                else:
                    self._execute(block.check_once(block.change(statement)), parameters)
            finally:
                self.changing, self.calls.ignores = None, False
                self.calls.last_generated = self.calls.generated or self.calls.last_generated
            return []
        return self._store(block, statement, [])

    def _store(self, block: ChangeBlock, query: Select, into: list[str]) -> list[tuple]:
        """Return the rows of a query, or store its only row in the variables of INTO."""
        text, named = block.query(query)
        block.check_once(text)
        kinds = [kind for _, kind in named]
        rows = self._execute(text, block.parameters)
        if into and len(into) != len(kinds):
            raise MySQLError(1222, "21000", "The used SELECT statements have a different number of columns")
        if into and len(rows) > 1:
            raise MySQLError(1172, "42000", "Result consisted of more than one row")
        for row in rows:
            self.calls.variables.update(zip(into, zip(row, kinds, strict=True), strict=False))
        return [] if into else [tuple(map(_read, row, kinds)) for row in rows]

    def _in_turn(self, rows: str, change: str, parameters: dict[str, int]) -> None:
        """Change rows one after the other, all or none."""
        self._raw("SAVEPOINT turn")
        try:
            for row, *values, _ in self._execute(rows, parameters, -1):
                self._execute(change, (*values, row))
        except BaseException:
            self._raw("ROLLBACK TO turn")
            raise
        finally:
            self._raw("RELEASE turn")

    def _execute(self, sql: str, parameters: Iterable, most: int = MAX_ROWS) -> list[tuple]:
        """Return the first rows of a statement; all if `most` is negative."""
        self.calls.failure = None
        try:
            cursor = self.sqlite.execute(sql, tuple(parameters))
            return cursor.fetchall() if most < 0 else cursor.fetchmany(most)
        except sqlite3.Error as error:
            error, self.calls.failure = self.calls.failure or self._as_mysql(error, sql), None
            raise error from None  # this name alone is unbound here; another would make a cycle with the traceback

    def _set(self, block: ChangeBlock, pairs: list[tuple]) -> list[tuple]:
        for name, expression in pairs:
            block.parameters.clear()
            block.variables = dict(self.calls.variables)
            sql, columns = block.inner().query(Select([(expression, None, name)]))
            [[value]] = self._execute(sql, block.parameters)
            if name == "@@foreign_key_checks":
                self.checks_foreign = bool(value)
                self._control("COMMIT")
                self._raw(f"PRAGMA foreign_keys = {int(self.checks_foreign)}")
            elif name == "@@autocommit":
                self.commits = bool(value)
                if self.commits:
                    self._control("COMMIT")
            else:
                self.calls.variables[name] = value, columns[0][1]
        return []

    def _raw(self, sql: str) -> list[tuple]:
        """Execute a statement that is not permitted to others. It has no text of the agent but names and constants."""
        self.sqlite.set_authorizer(None)
        try:
            return self.sqlite.execute(sql).fetchall()
        except sqlite3.Error as error:
            error = self._as_mysql(error, sql)
            raise error from None
        finally:
            self.sqlite.set_authorizer(_permit)

    def _transaction(self, block: ChangeBlock, word: str) -> list[tuple]:
        """BEGIN, COMMIT or ROLLBACK. As in MySQL, BEGIN commits a transaction that is open."""
        self._control("COMMIT" if word == "BEGIN" else word)
        if word == "BEGIN":
            self._control(word)
        return []

    def _control(self, word: str) -> None:
        """Begin a transaction, or end one if it is open. No other statement is permitted to."""
        if self.sqlite.in_transaction or word == "BEGIN":
            self.sqlite.set_authorizer(None)
            self.sqlite.execute(word)
            self.sqlite.set_authorizer(_permit)


def digest(rows: list[tuple]) -> str:
    """Return LifelongAgentBench's hash of a table, independent of the order of rows: the MD5 of the sorted first five
    digits of the rows' MD5s. NULLs are skipped, as CONCAT_WS does."""
    texts = (",".join(str(value) for value in row if value is not None) for row in rows)
    return _md5(",".join(sorted(_md5(text)[:5] for text in texts)))


def _md5(text: str) -> str:
    return md5(text.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()


def _permit(action: int, *details) -> int:
    """Authorize an action of SQLite. A second barrier: the agent's text never reaches SQLite."""
    hidden = action == sqlite3.SQLITE_READ and str(details[0]).startswith("sqlite_")
    loads = action == sqlite3.SQLITE_FUNCTION and details[1] == "load_extension"
    return sqlite3.SQLITE_OK if action in PERMITTED and not hidden and not loads else sqlite3.SQLITE_DENY


READ = {  # kind -> what converts a value of SQLite to Python's
    "date": date.fromisoformat,
    "datetime": datetime.fromisoformat,
    "time": lambda text: timedelta(seconds=seconds_of(text)),
    "unsigned": lambda bits: int(bits) % 2**64,
}


def _read(value, kind: Type):
    """Convert a value of SQLite to what MySQL's Python connectors give."""
    if value is None:
        return None
    if kind.kind in READ:
        return READ[kind.kind](value)
    try:
        if kind.kind == "decimal":
            return decimal(value, kind.scale)
        if kind.kind == "double":
            return float(value)
    except ArithmeticError:
        raise OUT_OF_RANGE from None
    if kind.kind == "int" and isinstance(value, float):
        raise OUT_OF_RANGE
    return value
