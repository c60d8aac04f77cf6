"""JSON in the simulated MySQL: columns, functions, comparisons, errors. The rows follow MySQL 8's manual."""

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as some
from test_mysql_dialect import check

from envs.simulators.mysql import Database, MySQLError
from envs.simulators.mysql.json_values import _sorted, printed

pytestmark = pytest.mark.all_only

STATEMENTS = """CREATE TABLE t (id INT PRIMARY KEY, data JSON)
INSERT INTO t VALUES (1, '{"name": "Ann", "pay": 30, "tags": ["a", "b"], "at": {"city": "Rome"}, "on": true}')
INSERT INTO t VALUES (2, '{"name":"bob","pay":9,"tags":[],"on":false}'), (3, JSON_OBJECT('pay', 10.5, 'name', NULL))
INSERT INTO t VALUES (4, NULL)"""
ROWS = [
    ("SELECT data FROM t WHERE id = 2", [('{"on": false, "pay": 9, "name": "bob", "tags": []}',)]),
    ("SELECT data FROM t WHERE id > 2", [('{"pay": 10.5, "name": null}',), (None,)]),
    ("SELECT data->'$.name', data->>'$.name' FROM t WHERE id > 1", [('"bob"', "bob"), ("null",) * 2, (None,) * 2]),
    ("SELECT JSON_EXTRACT(data, '$.at.city'), t.data->>'$.tags[1]' FROM t LIMIT 2", [('"Rome"', "b"), (None, None)]),
    ("SELECT data->'$.tags[last]', data->'$.tags[*]' FROM t LIMIT 1", [('"b"', '["a", "b"]')]),
    ("SELECT data->'$.at.*', data->'$.\"at\" . city' FROM t LIMIT 1", [('["Rome"]', '"Rome"')]),
    ("SELECT JSON_EXTRACT(data, '$.pay', '$.name', '$.no') FROM t LIMIT 1", [('[30, "Ann"]',)]),
    ("SELECT id FROM t WHERE data->'$.name' = 'Ann'", [(1,)]),
    ("SELECT id FROM t WHERE data->'$.name' = 'ann' OR data->>'$.name' = 'BOB'", [(2,)]),
    ("SELECT id FROM t WHERE data->'$.pay' > 9.5", [(1,), (3,)]),
    ("SELECT id FROM t WHERE data->'$.pay' BETWEEN 9 AND 11", [(2,), (3,)]),
    ("SELECT id FROM t WHERE data->'$.on' = true", [(1,)]),
    ("SELECT id FROM t WHERE data->'$.on' = 1", []),
    ("SELECT id FROM t WHERE data->'$.on'", [(1,)]),
    ("SELECT id FROM t WHERE data->'$.name' IN ('Ann', 'bob')", [(1,), (2,)]),
    ("SELECT id FROM t WHERE data->'$.name' NOT IN ('Ann')", [(2,), (3,)]),
    ("SELECT id FROM t WHERE data->'$.none' IS NULL", [(1,), (2,), (3,), (4,)]),
    ("SELECT id FROM t ORDER BY data->'$.pay' DESC", [(1,), (3,), (2,), (4,)]),
    ("SELECT MAX(data->'$.pay'), MIN(data->>'$.name'), SUM(data->'$.pay') FROM t", [("30", "Ann", 49.5)]),
    ("SELECT MIN(data->'$.name'), MAX(data->'$.on') FROM t WHERE id < 3", [('"Ann"', "true")]),
    ("SELECT data->'$.pay' + 1, CAST(data->'$.pay' AS SIGNED) FROM t LIMIT 1", [(31.0, 30)]),
    ("SELECT data->>'$.on' x, COUNT(*) FROM t GROUP BY x", [("true", 1), ("false", 1), (None, 2)]),
    ("SELECT JSON_LENGTH(data), JSON_LENGTH(data, '$.tags') FROM t", [(5, 2), (4, 0), (2, None), (None, None)]),
    ("SELECT JSON_KEYS(data) FROM t LIMIT 1", [('["at", "on", "pay", "name", "tags"]',)]),
    ("SELECT id FROM t WHERE JSON_CONTAINS(data, '\"a\"', '$.tags')", [(1,)]),
    ("SELECT id FROM t WHERE JSON_CONTAINS(data, '{\"pay\": 9}')", [(2,)]),
    ("SELECT JSON_CONTAINS('[1, [2]]', '[2]'), JSON_CONTAINS('[1]', 'true'), JSON_CONTAINS('3', '4')", [(1, 0, 0)]),
    ("SELECT JSON_ARRAY(1, 'x', NULL, TRUE, 2.50, 1e0)", [('[1, "x", null, true, 2.5, 1.0]',)]),
    ("SELECT JSON_ARRAY(data->'$.tags') FROM t LIMIT 1", [('[["a", "b"]]',)]),
    ("SELECT JSON_OBJECT('b', 1, 'aa', JSON_ARRAY(), 'a', JSON_OBJECT())", [('{"a": {}, "b": 1, "aa": []}',)]),
    ("SELECT JSON_VALID('{}'), JSON_VALID('{'), JSON_VALID(NULL), JSON_VALID(data) FROM t LIMIT 1", [(1, 0, None, 1)]),
    ("SELECT JSON_UNQUOTE('\"a\\\\tb\"'), JSON_UNQUOTE('[1]'), JSON_QUOTE('a\"b')", [("a\tb", "[1]", '"a\\"b"')]),
    ("SELECT JSON_SET('{\"a\": 1}', '$.a', 2, '$.b', 'x', '$.c.d', 1)", [('{"a": 2, "b": "x"}',)]),
    ("SELECT JSON_INSERT('[1]', '$[0]', 2, '$[5]', 3), JSON_REPLACE('[1]', '$[0]', 2, '$[5]', 3)", [("[1, 3]", "[2]")]),
    ("SELECT JSON_REMOVE('{\"a\": [1, 2], \"b\": 3}', '$.a[0]', '$.b', '$.no')", [('{"a": [2]}',)]),
    ("SELECT CAST('[1,2]' AS JSON), CAST('[1,2]' AS JSON) = CAST('[1, 2]' AS JSON)", [("[1, 2]", 1)]),
    ("SELECT CONCAT(data->'$.name', '!'), UPPER(data->>'$.name') FROM t LIMIT 1", [('"Ann"!', "ANN")]),
    ("SELECT IF(data->>'$.pay' > 9, 'rich', 'poor') FROM t LIMIT 2", [("rich",), ("poor",)]),
    ("SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE DATA_TYPE = 'json'", [("data",)]),
    ("SELECT x->>'$.pay' FROM (SELECT data AS x FROM t) d LIMIT 1", [("30",)]),
]
NO_JSON = "3140 (22032): Invalid JSON text: \"{}\" at position {} in value for column 't.data'."
NO_ARGUMENT = '3141 (22032): Invalid JSON text in argument {} to function {}: "'
ERRORS = [
    ("INSERT INTO t VALUES (9, '{bad')", NO_JSON.format("Missing a name for object member.", 1)),
    ("INSERT INTO t VALUES (9, '[1, 2,')", NO_JSON.format("Invalid value.", 6)),
    ("INSERT INTO t VALUES (9, '')", NO_JSON.format("The document is empty.", 0)),
    ("UPDATE t SET data = 'x' WHERE id = 1", NO_JSON.format("Invalid value.", 0)),
    ("INSERT IGNORE INTO t VALUES (9, '[NaN]')", "3140 "),
    ("INSERT INTO t VALUES (9, '{\"a\": 1 2}')", NO_JSON.format("Missing a comma or } after an object member.", 8)),
    ("INSERT INTO t VALUES (9, '1 2')", "3140 "),
    ("SELECT JSON_EXTRACT('{', '$')", NO_ARGUMENT.format(1, "json_extract") + "Missing a name for object member."),
    ("SELECT JSON_CONTAINS('1', 'x')", NO_ARGUMENT.format(2, "json_contains")),
    ("SELECT CAST('x' AS JSON)", NO_ARGUMENT.format(1, "cast_as_json")),
    (
        "SELECT data->'a' FROM t",
        "3143 (42000): Invalid JSON path expression. The error is around character position 1.",
    ),
    ("SELECT data->'$.' FROM t", "3143 "),
    ("SELECT data->'$.\"\\\\q\"' FROM t", "3143 "),
    (
        "SELECT JSON_LENGTH(data, '$[*]') FROM t",
        "3149 (42000): In this situation, path expressions may not contain the * ",
    ),
    ("SELECT JSON_OBJECT('a')", "1582 (42000): Incorrect parameter count in the call to native function 'JSON_OBJECT'"),
    ("SELECT JSON_OBJECT(NULL, 1)", "3158 (22032): JSON documents may not contain NULL member names."),
    ("SELECT JSON_REMOVE('1', '$')", "3153 (42000): The path expression '$' is not allowed in this context."),
    (
        "CREATE TABLE u (data JSON DEFAULT '{}')",
        "1101 (42000): BLOB, TEXT, GEOMETRY or JSON column 'data' can't have a ",
    ),
    (
        "CREATE INDEX i ON t (data)",
        "3152 (42000): JSON column 'data' supports indexing only via generated columns on a ",
    ),
    ("SELECT data->'$**.a' FROM t", "1235 "),
    ("SELECT id FROM t WHERE data->'$.name' IN (SELECT 'x')", "1235 "),
    ("SELECT JSON_ARRAYAGG(id) FROM t", "1235 "),
    ("SELECT JSON_SEARCH(data, 'one', 'x') FROM t", "1235 "),
    ("SELECT 1 MEMBER OF ('[1]')", "1235 "),
    ("SELECT 'x'->'$.a'", "1235 "),
]


@pytest.fixture(scope="module")
def database() -> Database:
    made = Database().load("staff", [("id", "INT")], [(1,)])
    for statement in STATEMENTS.splitlines():
        made.run(statement)
    return made


@pytest.mark.parametrize(("sql", "expected"), ROWS)
def test_json_gives_mysqls_rows(database, sql, expected):
    check(database.run(sql), expected)


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
