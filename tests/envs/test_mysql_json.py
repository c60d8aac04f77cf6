"""JSON in the simulated MySQL: columns, functions, comparisons, errors. The rows follow MySQL 8's manual."""

import contextlib
import json

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as some
from test_mysql_dialect import check

from envs.simulators.mysql import Database, MySQLError
from envs.simulators.mysql.json_values import _sorted, printed

CASES = cases("mysql_json")
ROWS = CASES["rows"]
ERRORS = CASES["errors"]

pytestmark = pytest.mark.all_only

STATEMENTS = """CREATE TABLE t (id INT PRIMARY KEY, data JSON)
INSERT INTO t VALUES (1, '{"name": "Ann", "pay": 30, "tags": ["a", "b"], "at": {"city": "Rome"}, "on": true}')
INSERT INTO t VALUES (2, '{"name":"bob","pay":9,"tags":[],"on":false}'), (3, JSON_OBJECT('pay', 10.5, 'name', NULL))
INSERT INTO t VALUES (4, NULL)"""


@pytest.fixture(scope="module")
def database() -> Database:
    made = Database().load("staff", [("id", "INT")], [(1,)])
    for statement in STATEMENTS.splitlines():
        made.run(statement)
    return made


@pytest.mark.parametrize(("sql", "expected"), ROWS)
def test_json_gives_mysqls_rows(database, sql, expected):
    assert repr(database.run(sql)) == expected


@pytest.mark.parametrize(("sql", "message"), ERRORS)
def test_json_fails_with_mysqls_errors(database, sql, message):
    before = database.run("SELECT * FROM t")
    with pytest.raises(MySQLError) as error:
        database.run(sql)
    assert str(error.value).startswith(message)
    assert database.run("SELECT * FROM t") == before


def test_json_columns_are_changed_and_described():
    database = Database().load("staff", [("id", "INT"), ("note", "TEXT")], [(1, '{"b":1}'), (2, "[2]")])
    database.run("ALTER TABLE staff MODIFY note JSON, ADD more JSON NOT NULL")
    check(database.rows(), [(1, '{"b": 1}', "null"), (2, "[2]", "null")])
    database.run(
        "UPDATE staff SET note = JSON_SET(note, '$.b', note->'$.b' + 1, '$.c', TRUE), more = '[]' WHERE id = 1"
    )
    check(database.run("SELECT note, more FROM staff LIMIT 1"), [('{"b": 2.0, "c": true}', "[]")])
    assert "`note` json DEFAULT NULL" in database.definition() and "`more` json NOT NULL" in database.definition()
    check(
        database.run("DESCRIBE staff")[1:],
        [("note", "json", "YES", "", None, ""), ("more", "json", "NO", "", None, "")],
    )
    database.run("CREATE TABLE kept AS SELECT note, note->>'$.b' b FROM staff WHERE note->'$.b' > 1")
    check(database.run("SELECT * FROM kept"), [('{"b": 2.0, "c": true}', "2.0")])


@pytest.mark.parametrize("sql", [sql for sql, _ in ROWS + ERRORS])
def test_every_beginning_of_a_json_statement_gives_rows_or_an_error(database, sql):
    words = sql.split()
    for count in range(1, len(words)):
        with contextlib.suppress(MySQLError):
            database.run(" ".join(words[:count]))


VALUES = some.recursive(
    some.none() | some.booleans() | some.integers(-99, 99) | some.text("aé;'\"\\ \n", max_size=4),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text("ab", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES)
def test_a_document_survives_a_column_and_its_extraction(value):
    database = Database().load("staff", [("id", "INT")], [(1,)])
    database.run("CREATE TABLE t (data JSON)")
    text = json.dumps(value).replace("\\", "\\\\").replace("'", "''").replace(";", "\\\\u003b")
    database.run(f"INSERT INTO t VALUES ('{text}')")
    [(kept, whole, same)] = database.run("SELECT data, data->'$', data = data FROM t")
    assert json.loads(kept) == json.loads(whole) == value and kept == printed(_sorted(value)) and same == 1


def test_deep_documents_are_refused_in_bounded_time(database):
    for text in ("[" * 101 + "]" * 101, "[" * 1900 + "]" * 1900, '{"a":' * 300 + "1" + "}" * 300):
        with pytest.raises(MySQLError, match="3157"):
            database.run(f"INSERT INTO t VALUES (9, '{text}')")
    database.run(f"SELECT CAST('{'[' * 99 + ']' * 99}' AS JSON)")


def test_alter_view_replaces_a_view_alone():
    database = Database().load("staff", [("id", "INT")], [(1,), (2,)])
    database.run("CREATE VIEW v AS SELECT id FROM staff; ALTER VIEW v (n) AS SELECT COUNT(*) FROM staff")
    check(database.run("SELECT n FROM v"), [(2,)])
    for sql, code in (
        ("ALTER VIEW w AS SELECT 1", 1146),
        ("ALTER VIEW staff AS SELECT 1", 1347),
        ("ALTER VIEW v", 1064),
    ):
        with pytest.raises(MySQLError) as error:
            database.run(sql)
        assert error.value.code == code
    check(database.run("SELECT n FROM v"), [(2,)])
