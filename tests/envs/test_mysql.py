"""The simulated MySQL: golden answers of MariaDB, values and types, error messages, isolation and limits."""

import contextlib
import datetime
import re
import sqlite3
import weakref
from decimal import Decimal
from itertools import product
from random import Random

import golden
import pytest
from conftest import no_hang
from hypothesis import given, settings
from hypothesis import strategies as st
from mysql_statements import COLUMNS, FROM_NESTS, NESTS, ROWS, TABLE, deep, statement

from envs.simulators.mysql import Database, MySQLError, digest

pytestmark = pytest.mark.all_only

D = Decimal


@pytest.fixture
def staff() -> Database:
    return Database().load(TABLE, COLUMNS, ROWS)


@pytest.mark.parametrize(
    "sql", ["SELECT 1", "SELECT nope", "INSERT INTO staff VALUES ('x')", "SELECT (SELECT id FROM staff)"]
)
def test_a_database_is_freed_at_once(sql):
    """Databases that wait for the garbage collector cost 60 KiB each: its oldest generation is collected only when a
    quarter of all objects is new."""
    database = Database().load(TABLE, COLUMNS, ROWS)
    with contextlib.suppress(MySQLError):
        database.run(sql)
    ref, connection = weakref.ref(database), database.sqlite
    del database
    assert ref() is None
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        connection.execute("SELECT 1")


def one(expression: str):
    """Return the value of an expression."""
    return Database().load(TABLE, COLUMNS, ROWS).run(f"SELECT {expression}")[0][0]


def said(database: Database, sql: str) -> str:
    with pytest.raises(MySQLError) as error:
        database.run(sql)
    return str(error.value)


def test_statements_match_the_golden_output_of_mariadb():
    """The golden file has MariaDB's answers; tests/parity/test_mysql_parity.py lists what is not compared."""
    database, cases = Database(), golden.read("mysql")
    assert len(cases) == 1000
    for case in cases:
        sql = case["input"]
        database.load(TABLE, COLUMNS, ROWS)
        try:
            found = database.run(sql)
            if not sql.startswith(("SELECT", "WITH")):
                found = database.rows()
        except MySQLError as error:
            found = error.code
        assert repr(found) == case["output"], sql


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("7 / 2", D("3.5000")),
        ("2.50 / 3", D("0.833333")),
        ("7 DIV 2", 3),
        ("-7 % 3", -1),
        ("1 / 0", None),
        ("0.1 + 0.2", D("0.3")),
        ("1.5 * 2.25", D("3.375")),
        ("1e3 / 8", 125.0),
        ("'3 apples' + 1", 4.0),
        ("'a' || 0", 0),
        ("1 || NULL", 1),
        ("'Ann' = 'ANN'", 1),
        ("NULL <=> NULL", 1),
        ("2 > '10'", 0),
        ("'2' > '10'", 1),
        ("ROUND(2.5)", D("3")),
        ("ROUND(-2.675, 2)", D("-2.68")),
        ("ROUND(2.5e0)", 2.0),
        ("CEIL(7 / 2)", 4),
        ("FLOOR(-0.5)", -1),
        ("TRUNCATE(3.789, 1)", D("3.7")),
        ("CONCAT('a', 7 / 2, NULL)", None),
        ("CONCAT('a', 7 / 2)", "a3.5000"),
        ("IF(1 > 2, 'yes', 5)", "5"),
        ("IF(1, 1, 2.5)", D("1.0")),
        ("IFNULL(NULL, 2.50)", D("2.50")),
        ("SUBSTRING('hello', -3, 2)", "ll"),
        ("SUBSTRING('hello' FROM 2 FOR 3)", "ell"),
        ("LEFT('hello', 2)", "he"),
        ("RIGHT('hello', 2)", "lo"),
        ("LOCATE('L', 'hello')", 3),
        ("CONCAT(DATABASE(), '.', SCHEMA())", "staff.staff"),
        ("LENGTH('h\u00e9')", 3),
        ("CHAR_LENGTH('h\u00e9')", 2),
        ("YEAR('2020-05-06')", 2020),
        ("MONTH('no day')", None),
        ("DATE_FORMAT('2020-05-01', '%W %D %b %y')", "Friday 1st May 20"),
        ("DATE('2020-05-06 07:08')", datetime.date(2020, 5, 6)),
        ("CAST('12abc' AS SIGNED)", 12),
        ("CAST(7 / 3 AS DECIMAL(10, 2))", D("2.33")),
        ("\"it''s\"", "it''s"),
        (r"'it\'s\n'", "it's\n"),
        ("'a' 'b'", "ab"),
        (r"'a%' LIKE 'A\%'", 1),
        ("(SELECT COUNT(*) FROM staff)", 9),
        ("(SELECT AVG(pay) FROM staff)", D("460.0000")),
        ("(SELECT SUM(pay) FROM staff WHERE pay > 9999)", None),
        ("(SELECT MAX(`Name`) FROM `staff`)", "It 50%"),
        ("(SELECT GROUP_CONCAT(DISTINCT city) FROM staff)", "Cairo,Lima,Oslo,Paris"),
    ],
)
def test_expression_values_and_types(expression, value):
    found = one(expression)
    assert found == value and type(found) is type(value) and str(found) == str(value)


NEAR = (
    "You have an error in your SQL syntax; check the manual that corresponds to your MySQL server version for the right"
)
GROUPS = "which is not functionally dependent on columns in GROUP BY clause; this is incompatible with"


@pytest.mark.parametrize(
    ("sql", "line"),
    [
        ("SELECT * FROM nope", "1146 (42S02): Table 'staff.nope' doesn't exist"),
        ("SELECT wage FROM staff", "1054 (42S22): Unknown column 'wage' in 'field list'"),
        ("SELECT 1 FROM staff WHERE s.wage = 1", "1054 (42S22): Unknown column 's.wage' in 'where clause'"),
        ("SELECT 1 FROM staff ORDER BY wage", "1054 (42S22): Unknown column 'wage' in 'order clause'"),
        ("SELECT 1 FROM staff GROUP BY wage", "1054 (42S22): Unknown column 'wage' in 'group statement'"),
        ("SELECT 1 FROM staff GROUP BY city HAVING pay > 1", "1054 (42S22): Unknown column 'pay' in 'having clause'"),
        ("SELEC 1", f"1064 (42000): {NEAR} syntax to use near 'SELEC 1' at line 1"),
        ("SELECT * FORM staff", f"1064 (42000): {NEAR} syntax to use near 'FORM staff' at line 1"),
        ("SELECT 'a", f"1064 (42000): {NEAR} syntax to use near ''a' at line 1"),
        ("SELECT 1 +", f"1064 (42000): {NEAR} syntax to use near '' at line 1"),
        (" ; ", "1065 (42000): Query was empty"),
        ("INSERT INTO staff VALUES (1)", "1136 (21S01): Column count doesn't match value count at row 1"),
        ("INSERT INTO staff (id) VALUES (1), (1, 2)", "1136 (21S01): Column count doesn't match value count at row 2"),
        ("INSERT INTO staff (id) VALUES ('x')", "1366 (HY000): Incorrect integer value: 'x' for column 'id' at row 1"),
        ("INSERT INTO staff (pay) VALUES (2147483648)", "1264 (22003): Out of range value for column 'pay' at row 1"),
        ("INSERT INTO staff (id) VALUES (1), ('7x')", "1265 (01000): Data truncated for column 'id' at row 2"),
        ("SELECT name, COUNT(*) FROM staff GROUP BY city", "1055 (42000): Expression #1 of SELECT list is not in GROUP "
         f"BY clause and contains nonaggregated column 'staff.staff.name' {GROUPS} sql_mode=only_full_group_by"),
        ("SELECT SUM(pay), age FROM staff", "1140 (42000): In aggregated query without GROUP BY, expression #2 of "
         "SELECT list contains nonaggregated column 'staff.staff.age'; this is incompatible with "
         "sql_mode=only_full_group_by"),
        ("SELECT 1 FROM staff WHERE SUM(pay) > 1", "1111 (HY000): Invalid use of group function"),
        ("SELECT (SELECT id FROM staff)", "1242 (21000): Subquery returns more than 1 row"),
        ("SELECT id FROM staff a, staff b", "1052 (23000): Column 'id' in field list is ambiguous"),
        ("SELECT 1 FROM (SELECT 1)", "1248 (42000): Every derived table must have its own alias"),
        ("SELECT SPIN(pay) FROM staff", "1305 (42000): FUNCTION staff.SPIN does not exist"),
        ("DROP TABLE nope", "1051 (42S02): Unknown table 'staff.nope'"),
        ("CREATE TABLE staff (a INT)", "1050 (42S01): Table 'staff' already exists"),
        ("CREATE PROCEDURE p() SELECT 1", "1235 (42000): This version of MySQL doesn't yet support 'CREATE PROCEDURE'"),
        ("DROP DATABASE staff", "1235 (42000): This version of MySQL doesn't yet support 'DROP DATABASE staff'"),
        ("DROP DATABASE nope", "1008 (HY000): Can't drop database 'nope'; database doesn't exist"),
        ("GRANT ALL ON *.* TO 'bob'@'%'", "1410 (42000): You are not allowed to create a user with GRANT"),
        ("GRANT ALL ON staff.nope TO bob", "1146 (42S02): Table 'staff.nope' doesn't exist"),
        ("DROP USER bob, al@h", "1396 (HY000): Operation DROP USER failed for 'bob'@'%','al'@'h'"),
        ("USE nope", "1049 (42000): Unknown database 'nope'"),
        ("UPDATE staff SET pay = (SELECT MAX(pay) FROM staff)", "1093 (HY000): You can't specify target table 'staff' "
         "for update in FROM clause"),
    ],
)  # fmt: skip
def test_error_messages_match_mysql(staff, sql, line):
    assert said(staff, sql) == line
    assert staff.rows() == ROWS


def test_number_of_tables_and_columns_is_limited(staff):
    def derived(count: int) -> str:
        return "SELECT COUNT(*) FROM " + ", ".join(f"(SELECT 1) a{i}" for i in range(count))

    assert staff.run(derived(61)) == [(1,)]
    for sql in (derived(62), derived(500), "SELECT 1 FROM " + ",".join(["(SELECT 1)a"] * 800)):
        assert said(staff, sql) == "1116 (HY000): Too many tables; MySQL can only use 61 tables in a join"
    assert len(staff.run("SELECT *" + ", *" * 332 + " FROM staff")[0]) == 333 * len(COLUMNS)
    for stars in (333, 682, 4000):
        assert said(staff, "SELECT *" + ",*" * stars + " FROM staff") == "1117 (HY000): Too many columns"


def test_show_and_describe(staff):
    assert staff.run("SHOW TABLES") == staff.run("show databases") == [("staff",)]
    assert staff.run("DESCRIBE staff")[:2] == [
        ("id", "int", "YES", "", None, ""),
        ("name", "text", "YES", "", None, ""),
    ]
    assert staff.run("DESC staff") == staff.run("SHOW COLUMNS FROM `staff`")


def test_changes_are_atomic(staff):
    assert "at row 3" in said(staff, "INSERT INTO staff (id) VALUES (1), ('2'), ('x')")
    assert staff.rows() == ROWS
    assert staff.run("INSERT INTO staff (id, name) VALUES ('12', 3.50), (2.5, NULL)") == []
    assert staff.rows()[9:] == [(12, "3.50", None, None, None, None), (3, None, None, None, None, None)]
    staff.run("UPDATE staff SET pay = 5, age = pay + 1 WHERE id = 12")
    assert staff.rows()[9][3:5] == (5, 6)  # from left to right
    staff.run("DELETE FROM staff ORDER BY id DESC LIMIT 8; DELETE FROM staff WHERE id = 1")
    assert [row[0] for row in staff.rows()] == [2, 3]
    staff.run("TRUNCATE TABLE staff")
    assert staff.rows() == []


def test_statements_are_split_at_every_semicolon(staff):
    assert staff.run("SELECT 1; SELECT 2;") == [(2,)]
    assert "near ''a'" in said(staff, "SELECT 'a;b'")


def test_digest_does_not_depend_on_row_order():
    """By hand: md5 of '1,a' begins ad7b7, of '2' c81e7."""
    assert digest([(1, "a"), (2, None)]) == digest([(2, None), (1, "a")]) == "3244aa9480ab1ff53689d8d1022622ac"
    assert digest([(1, "a")]) != digest([(1, "a"), (1, "a")]) != digest([(1, "b"), (1, "a")])
    assert digest([]) == "d41d8cd98f00b204e9800998ecf8427e"


@pytest.mark.parametrize(
    ("code", "sql"),
    [
        (1064, "ATTACH DATABASE 'x.db' AS x"),
        (1064, "PRAGMA database_list"),
        (1305, "SELECT load_extension('x')"),
        (1305, "SELECT readfile('/etc/passwd')"),
        (1235, "SELECT LOAD_FILE('/etc/passwd')"),
        (1146, "SELECT * FROM sqlite_master"),
        (1235, "SELECT * INTO OUTFILE '/tmp/x' FROM staff"),
        (1064, "VACUUM INTO 'x.db'"),
        (1235, "SET GLOBAL general_log = 1"),
    ],
)
def test_only_the_table_can_be_reached(staff, code, sql):
    assert said(staff, sql).startswith(f"{code} ")


@pytest.mark.parametrize(
    "sql",
    ["ATTACH ':memory:' AS x", "PRAGMA page_size", "CREATE TABLE x (a)", "SELECT * FROM sqlite_master"]
    + ["SELECT load_extension('x')", "DROP TABLE staff", "BEGIN"],
)
def test_authorizer_alone_blocks_forbidden_actions(staff, sql):
    with pytest.raises(sqlite3.DatabaseError, match=r"not authorized|prohibited"):
        staff.sqlite.execute(sql)


WIDE = "SELECT *" + ",*" * 300 + " FROM staff"
HOSTILE = [
    "SELECT " + "(" * 4000,
    "SELECT " + "1+" * 4000 + "1",
    "SELECT " + "NULLIF(" * 50 + "1" + ",1)" * 50,
    "SELECT 1" + " BETWEEN 1 AND 2" * 50,
    "SELECT " + "CASE CASE 1 WHEN 1 THEN 2 END WHEN 2 THEN 3 END," * 90 + "1",
    "UPDATE staff SET " + ", ".join(["pay = pay + pay"] * 300),
    "SELECT COUNT(*) FROM " + ", ".join(f"staff a{i}" for i in range(60)),
    "SELECT COUNT(*) FROM " + ", ".join(f"staff a{i}" for i in range(62)),
    "WITH a0 AS (SELECT 1 x)" + "".join(f", a{i + 1} AS (SELECT p.* FROM a{i} p, a{i} q)" for i in range(40))
    + " SELECT * FROM a40",
    "INSERT INTO staff SELECT a.* FROM staff a, staff b, staff c, staff d, staff e, staff f",
    "SELECT GROUP_CONCAT(REPEAT(a.name, 300)) FROM staff a, staff b, staff c, staff d, staff e, staff f",
    "SELECT REPEAT('ab', 1000000000), LPAD('a', 1e9, 'b'), REPLACE('aaaa', 'a', REPEAT('a', 400))",
    "SELECT '" + "%a" * 300 + "' LIKE '" + "%a" * 300 + "'",
    "SELECT 1" + ",1" * 4000,
    "SELECT *" + ",*" * 4000 + " FROM " + ", ".join(f"staff a{i}" for i in range(61)),
    "SELECT *" + ",*" * 10 + " FROM " + ", ".join(f"staff a{i}" for i in range(61)) + " GROUP BY 1" + ",1" * 4000,
    f"SELECT * FROM ({WIDE} UNION {WIDE}) a ORDER BY 1" + ",1" * 3000,
    " UNION ".join([WIDE] * 14),
    "'" * 9999,
    "/*" * 4999,
    "SELECT 1e999, 9" + "9" * 300 + ".5 * 2",
    "SELECT LEFT('a', 1e999), ROUND(1e300), POW(-8, 0.5)",
    "x" * 100_000,
]  # fmt: skip


@pytest.mark.parametrize("sql", HOSTILE, ids=range(len(HOSTILE)))
def test_expensive_statements_are_stopped(staff, sql):
    with no_hang():
        try:
            assert len(str(staff.run(sql))) < 20_000
        except MySQLError as error:
            assert re.match(r"\d{4} \(\w{5}\): .{1,300}$", str(error)), sql[:60]
    assert len(staff.rows()) < 20_000 and staff.run("SELECT 1") == [(1,)]


WORDS = (
    "SELECT FROM staff WHERE name pay city ( ) , = 'a' 1 2.5 AND OR NOT COUNT(*) GROUP BY ORDER LIMIT IN LIKE NULL * + "
)
WORDS += (
    "AVG( CASE WHEN THEN END DISTINCT UNION JOIN ON AS x HAVING EXISTS BETWEEN INSERT INTO VALUES UPDATE SET DELETE / %"
)


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.lists(st.sampled_from(WORDS.split()), max_size=25).map(" ".join),
        st.text(max_size=80),
        st.integers(0, 10**6).map(lambda seed: statement(Random(seed))),
        st.integers(0, 10**6).map(lambda seed: deep(Random(seed))),
    )
)
def test_any_statement_gives_rows_or_a_mysql_error(sql):
    database = Database().load(TABLE, COLUMNS, ROWS)
    with contextlib.suppress(MySQLError):
        assert all(isinstance(row, tuple) for row in database.run(sql))


@pytest.mark.parametrize("nests, inmost", [(NESTS, "1"), (FROM_NESTS, "staff")], ids=["expressions", "sources"])
def test_deep_nesting_gives_rows_or_a_mysql_error(staff, nests, inmost):
    for (one, after_one), (other, after_other), times in product(nests, nests[::3], (14, 28, 400)):
        text = (one + other) * times + inmost + (after_other + after_one) * times
        with no_hang(), contextlib.suppress(MySQLError):
            staff.run(f"SELECT {text}" if nests is NESTS else f"SELECT * FROM {text}")
