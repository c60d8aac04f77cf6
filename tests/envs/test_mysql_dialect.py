"""MySQL 8's dialect, statement by statement: the rows that a server with its default settings gives."""

import contextlib

import pytest
from cases import cases

from envs.simulators.mysql import Database, MySQLError
from envs.simulators.mysql.expressions import ANY_TYPE
from envs.simulators.mysql.forms import FORMS
from envs.simulators.mysql.functions import SIGNATURES
from envs.simulators.mysql.tokens import AGGREGATES
from envs.simulators.mysql.windows import WINDOWED
from envs.simulators.mysql.words import NATIVE

CASES = cases("mysql_dialect")
COMBINED = CASES["combined"]
ROLLED = CASES["rolled up"]
SESSIONS = CASES["sessions"]
IN_ORDER = CASES["assignments in order"]

pytestmark = pytest.mark.all_only

COLUMNS = [("id", "INT"), ("name", "TEXT"), ("city", "TEXT"), ("pay", "INT"), ("day", "TEXT")]
ROWS = [
    (1, "Ann", "Rome", 30, "2024-01-31"),
    (2, "Bob", "Lima", 10, "2023-12-30"),
    (3, "Cyd", "Rome", 20, "2024-02-29"),
    (4, "Dee", "Oslo", 10, "2022-07-04"),
    (5, "Eve", "lima", None, None),
]


def rows(*statements: str) -> list[tuple]:
    """Return the rows of the last of several calls on a fresh table."""
    database = Database().load("staff", COLUMNS, ROWS)
    for statement in statements[:-1]:
        database.run(statement)
    return database.run(statements[-1])


def check(found: list[tuple], expected: list[tuple]) -> None:
    """Compare rows with their types: 1 is neither 1.0 nor Decimal(1)."""
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(("sql", "expected"), CASES["order of first appearance"])
def test_rows_come_in_order_of_first_appearance(sql, expected):
    assert repr(rows(sql)) == expected


@pytest.mark.parametrize(("expression", "value"), CASES["values"])
def test_values_and_types(expression, value):
    assert repr(rows(f"SELECT {expression}")) == f"[({value},)]"


def test_a_number_without_sign_is_not_negative():
    with pytest.raises(MySQLError, match="1690"):
        rows("SELECT CAST(1 AS UNSIGNED) - 2")


@pytest.mark.parametrize(("sql", "expected"), CASES["spoken"] + CASES["windows"])
def test_statement_gives_mysql_s_rows(sql, expected):
    assert repr(rows(sql)) == expected


@pytest.mark.parametrize(("sql", "expected"), CASES["changes"])
def test_changes_change_what_mysql_changes(sql, expected):
    database = Database().load("staff", COLUMNS, ROWS)
    if isinstance(expected, int):
        with pytest.raises(MySQLError) as error:
            database.run(sql)
        assert error.value.code == expected and database.rows() == ROWS
    else:
        assert database.run(sql) == [] and [row[3] for row in database.rows()] == expected


@pytest.mark.parametrize(("sql", "expected"), COMBINED + ROLLED)
def test_combined_recursive_and_rolled_up_queries(sql, expected):
    """Beside MariaDB 10.11, which gives the same rows, but knows no GROUPING and no LIMIT in a recursive part."""
    assert repr(rows(sql)) == expected


@pytest.mark.parametrize(("statements", "expected"), SESSIONS)
def test_a_session_has_variables_and_transactions(statements, expected):
    assert repr(rows(*statements)) == expected


@pytest.mark.parametrize(("statements", "expected"), IN_ORDER)
def test_assignments_follow_the_order_of_the_rows(statements, expected):
    assert repr(rows(*statements)) == expected


def test_a_new_table_begins_a_new_session():
    database = Database().load("staff", COLUMNS, ROWS)
    database.run("SET @a = 1, autocommit = 0")
    database.load("staff", COLUMNS, ROWS)
    assert database.run("DELETE FROM staff; ROLLBACK; SELECT COUNT(*), @a FROM staff") == [(0, None)]


@pytest.mark.parametrize(
    "sql", [sql for sql, _ in COMBINED + ROLLED] + [sql for said, _ in SESSIONS + IN_ORDER for sql in said]
)
def test_every_beginning_of_a_statement_gives_rows_or_an_error(sql):
    words = sql.split()
    for count in range(1, len(words)):
        with contextlib.suppress(MySQLError):
            rows(" ".join(words[:count]))


@pytest.mark.parametrize(("sql", "code"), CASES["not spoken"])
def test_sql_that_is_not_spoken_has_a_code_of_its_own(sql, code):
    with pytest.raises(MySQLError) as error:
        rows(sql)
    assert error.value.code == code


def test_a_search_for_a_pattern_ends():
    with pytest.raises(MySQLError, match="3699"):
        rows("SELECT REPEAT('a', 900) REGEXP '(a|aa)+(a|aa)+(a|aa)+\\\\1b' FROM staff a, staff b, staff c, staff d")


def test_no_function_is_both_spoken_and_not():
    assert not NATIVE & {*SIGNATURES, *ANY_TYPE, *FORMS, *AGGREGATES, *WINDOWED}


def test_common_tables_stand_before_update_and_delete():
    """The usual way to delete duplicates, and the usual way to update from an aggregate."""
    database = Database()
    database.run("CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, a VARCHAR(9), n INT)")
    database.run("INSERT INTO t (a, n) VALUES ('x', 1), ('x', 2), ('y', 3), ('y', 4)")
    ranked = "SELECT id, ROW_NUMBER() OVER (PARTITION BY a ORDER BY n) AS k FROM t"
    database.run(f"WITH r AS ({ranked}) DELETE FROM t WHERE id IN (SELECT id FROM r WHERE k > 1)")
    assert database.run("SELECT id, n FROM t") == [(1, 1), (3, 3)]
    database.run("WITH m AS (SELECT MAX(n) AS top FROM t) UPDATE t SET n = n + 10 WHERE n = (SELECT top FROM m)")
    database.run("WITH m AS (SELECT id, n * 2 AS d FROM t) UPDATE t JOIN m ON t.id = m.id SET t.n = m.d")
    assert database.run("SELECT SQL_NO_CACHE id, n FROM t") == [(1, 2), (3, 26)]
    count = "WITH RECURSIVE c AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM c WHERE i < 3)"
    database.run(f"{count} DELETE FROM t WHERE id IN (SELECT i FROM c)")
    assert database.run("SELECT id FROM t") == []
    for sql, number in (
        ("WITH m AS (SELECT 1) INSERT INTO t (n) VALUES (1)", 1064),
        ("SELECT CHAR(65)", 1235),
        ("WITH r AS (SELECT 1 INTO @x) SELECT * FROM r", 1235),
    ):
        with pytest.raises(MySQLError) as failed:
            database.run(sql)
        assert failed.value.args[0] == number or str(failed.value).startswith(str(number))
