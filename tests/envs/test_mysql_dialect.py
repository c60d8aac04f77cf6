"""MySQL 8's dialect, statement by statement: the rows that a server with its default settings gives."""

import contextlib
import datetime
from decimal import Decimal as D

import pytest

from envs.simulators.mysql import Database, MySQLError
from envs.simulators.mysql.expressions import ANY_TYPE
from envs.simulators.mysql.forms import FORMS
from envs.simulators.mysql.functions import SIGNATURES
from envs.simulators.mysql.tokens import AGGREGATES
from envs.simulators.mysql.windows import WINDOWED
from envs.simulators.mysql.words import NATIVE

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


GROUPS = [
    ("SELECT city FROM staff GROUP BY city", [("Rome",), ("Lima",), ("Oslo",)]),
    ("SELECT DISTINCT city FROM staff", [("Rome",), ("Lima",), ("Oslo",)]),
    ("SELECT city, COUNT(*) c FROM staff GROUP BY city ORDER BY c DESC", [("Rome", 2), ("Lima", 2), ("Oslo", 1)]),
    ("SELECT pay, COUNT(*) FROM staff GROUP BY pay", [(30, 1), (10, 2), (20, 1), (None, 1)]),
    ("SELECT city, pay FROM staff WHERE id < 4 GROUP BY city, pay", [("Rome", 30), ("Lima", 10), ("Rome", 20)]),
    ("SELECT city FROM staff GROUP BY city HAVING MIN(pay) < 30 LIMIT 2", [("Rome",), ("Lima",)]),
    (
        "SELECT c FROM (SELECT city c, id FROM staff ORDER BY id DESC LIMIT 3) t GROUP BY c",
        [("lima",), ("Oslo",), ("Rome",)],
    ),
    ("SELECT b.city FROM staff a JOIN staff b ON a.pay = b.pay GROUP BY b.city", [("Rome",), ("Lima",), ("Oslo",)]),
    ("WITH t AS (SELECT pay p FROM staff) SELECT p FROM t GROUP BY p LIMIT 2", [(30,), (10,)]),
    ("SELECT name FROM staff WHERE id = 3 UNION SELECT name FROM staff WHERE id < 3", [("Cyd",), ("Ann",), ("Bob",)]),
    ("SELECT 2 UNION ALL SELECT 2 UNION SELECT 1 UNION ALL SELECT 1", [(2,), (1,), (1,)]),
]


@pytest.mark.parametrize(("sql", "expected"), GROUPS)
def test_rows_come_in_order_of_first_appearance(sql, expected):
    check(rows(sql), expected)


VALUES = [
    ("ROUND(-2.5, -1)", D("0")),
    ("ROUND(-0.4)", D("0")),
    ("0 * -1.5", D("0.0")),
    ("CAST(-1 AS UNSIGNED)", 2**64 - 1),
    ("18446744073709551615", 2**64 - 1),
    ("18446744073709551615 - 1", 2**64 - 2),
    ("CONCAT(18446744073709551615)", "18446744073709551615"),
    ("-9223372036854775808", -(2**63)),
    ("-CAST('5' AS UNSIGNED)", -5),
    ("18446744073709551615 > 1", 1),
    ("CAST('7' AS UNSIGNED) / 2", D("3.5000")),
    ("DATE_FORMAT('2024-05-06 17:08:09', '%H:%i:%s %h %l %p %r %T')", "17:08:09 05 5 PM 05:08:09 PM 17:08:09"),
    ("DATE_FORMAT('1999-01-01', '%X %V %U')", "1998 52 00"),
    ("DATE_FORMAT('2024-05-06', '%Q%%')", "Q%"),
    ("DATE('2024-5-6') + 1", 20240507),
    ("DATE('2024-05-06') = '2024-5-6'", 1),
    ("DAY('20240506')", 6),
    ("HOUR('2024-05-06 17:08:09')", 17),
    ("MINUTE('17:08:09')", 8),
    ("WEEK('2008-02-20', 1)", 8),
    ("YEARWEEK('1987-01-01')", 198652),
    ("NOW()", datetime.datetime(2024, 5, 6, 10)),
    ("DATEDIFF(CURDATE(), '2024-05-01')", 5),
    ("CAST('2024-05-06 7:08' AS DATETIME)", datetime.datetime(2024, 5, 6, 7, 8)),
    ("TIMEDIFF('10:00:00', '08:30:00')", datetime.timedelta(minutes=90)),
    ("LAST_DAY('2024-02-05')", datetime.date(2024, 2, 29)),
]


@pytest.mark.parametrize(("expression", "value"), VALUES)
def test_values_and_types(expression, value):
    check(rows(f"SELECT {expression}"), [(value,)])


def test_a_number_without_sign_is_not_negative():
    with pytest.raises(MySQLError, match="1690"):
        rows("SELECT CAST(1 AS UNSIGNED) - 2")


SPOKEN = [
    ("SELECT name FROM staff WHERE (city, pay) = ('rome', 20)", [("Cyd",)]),
    ("SELECT id FROM staff WHERE (city, pay) IN (('Rome', 30), ('Oslo', 10))", [(1,), (4,)]),
    ("SELECT id FROM staff WHERE (city, pay) IN (SELECT city, MAX(pay) FROM staff GROUP BY city)", [(1,), (2,), (4,)]),
    ("SELECT (1, 2) < (1, 3), (2, 1) > (1, 9), (1, NULL) = (2, 1)", [(1, 1, 0)]),
    ("SELECT id FROM staff WHERE pay >= ALL (SELECT pay FROM staff WHERE id < 4)", [(1,)]),
    ("SELECT id FROM staff WHERE pay > ANY (SELECT pay FROM staff WHERE id < 4)", [(1,), (3,)]),
    ("SELECT 1 > ALL (SELECT pay FROM staff WHERE id > 9), 9 < SOME (SELECT pay FROM staff WHERE id = 5)", [(1, None)]),
    ("SELECT name FROM staff WHERE name REGEXP '^[a-c]'", [("Ann",), ("Bob",), ("Cyd",)]),
    ("SELECT name FROM staff WHERE name NOT RLIKE 'n|o|y' AND pay IS NOT NULL", [("Dee",)]),
    ("SELECT 'a%' LIKE 'a!%' ESCAPE '!', 'ab' LIKE 'a!%' ESCAPE '!'", [(1, 0)]),
    ("SELECT STDDEV(pay), VAR_SAMP(pay), VARIANCE(pay) FROM staff WHERE id IN (1, 2)", [(10.0, 200.0, 100.0)]),
    ("SELECT VAR_SAMP(pay), STD(pay) FROM staff WHERE id = 1", [(None, 0.0)]),
    ("SELECT day + INTERVAL 1 MONTH FROM staff WHERE id < 3", [("2024-02-29",), ("2024-01-30",)]),
    ("SELECT DATE_SUB('2024-03-01', INTERVAL 36 HOUR)", [("2024-02-28 12:00:00",)]),
    ("SELECT DATE_ADD(DATE('2024-03-01'), INTERVAL -1 DAY)", [(datetime.date(2024, 2, 29),)]),
    ("SELECT ADDDATE('2024-03-01', 31), INTERVAL 1 WEEK + '2024-03-01'", [("2024-04-01", "2024-03-08")]),
    ("SELECT '2024-01-01 10:00' + INTERVAL '1:30' HOUR_MINUTE", [("2024-01-01 11:30:00",)]),
    ("SELECT id FROM staff WHERE day >= CURDATE() - INTERVAL 100 DAY", [(1,), (3,)]),
    ("SELECT EXTRACT(YEAR FROM day), EXTRACT(YEAR_MONTH FROM day) FROM staff WHERE id = 4", [(2022, 202207)]),
    ("SELECT TIMESTAMPDIFF(MONTH, '2024-01-31', '2024-03-30')", [(1,)]),
    ("SELECT TIMESTAMPDIFF(DAY, '2024-03-02', '2024-03-01')", [(-1,)]),
    ("SELECT TIMESTAMPADD(YEAR, -1, '2024-02-29')", [("2023-02-28",)]),
    ("SELECT STR_TO_DATE('May 6, 2024', '%M %e, %Y')", [(datetime.date(2024, 5, 6),)]),
    ("SELECT STR_TO_DATE('06/05/24 7:08 PM', '%d/%m/%y %h:%i %p')", [(datetime.datetime(2024, 5, 6, 19, 8),)]),
    ("SELECT STR_TO_DATE('2024-13-01', '%Y-%m-%d')", [(None,)]),
    ("SELECT CURRENT_DATE, DATE '2024-01-02'", [(datetime.date(2024, 5, 6), datetime.date(2024, 1, 2))]),
    ("SELECT TRIM(LEADING 'x' FROM 'xxax'), TRIM('x' FROM 'xax'), TRIM(' a ')", [("ax", "a", "a")]),
    ("SELECT POSITION('b' IN 'ab')", [(2,)]),
    ("SELECT 6 & 3, 6 | 3, 6 ^ 3, 1 << 4, ~0", [(2, 7, 5, 16, 2**64 - 1)]),
    ("SELECT ANY_VALUE(name), city FROM staff WHERE id < 3 GROUP BY city", [("Ann", "Rome"), ("Bob", "Lima")]),
]  # fmt: skip
WINDOWS = [
    ("SELECT id, LAG(pay) OVER (ORDER BY id) FROM staff WHERE id < 4", [(1, None), (2, 30), (3, 10)]),
    ("SELECT LEAD(name, 2, '-') OVER (ORDER BY id) FROM staff WHERE id < 4", [("Cyd",), ("-",), ("-",)]),
    ("SELECT id, FIRST_VALUE(name) OVER (PARTITION BY city ORDER BY pay) FROM staff WHERE id < 4 ORDER BY id",
     [(1, "Cyd"), (2, "Bob"), (3, "Cyd")]),
    ("SELECT NTILE(2) OVER w, CUME_DIST() OVER w FROM staff WHERE id < 3 WINDOW w AS (ORDER BY id)",
     [(1, 0.5), (2, 1.0)]),
    ("SELECT SUM(pay) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) FROM staff WHERE id < 4",
     [(D("30"),), (D("40"),), (D("30"),)]),
    ("SELECT LAST_VALUE(id) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) FROM staff "
     "WHERE id < 3", [(2,), (2,)]),
    ("SELECT COUNT(*) OVER w, RANK() OVER w FROM staff WHERE id < 3 WINDOW w AS (ORDER BY pay)", [(1, 1), (2, 2)]),
    ("SELECT city, SUM(COUNT(*)) OVER () FROM staff GROUP BY city ORDER BY city LIMIT 1", [("Lima", D("5"))]),
    ("SELECT city, RANK() OVER (ORDER BY COUNT(*) DESC, city) FROM staff GROUP BY city ORDER BY 2",
     [("Lima", 1), ("Rome", 2), ("Oslo", 3)]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), SPOKEN + WINDOWS)
def test_statement_gives_mysql_s_rows(sql, expected):
    check(rows(sql), expected)


PAYS = [30, 10, 20, 10, None]
CHANGES = [
    ("UPDATE staff a JOIN staff b ON a.id = b.id + 1 SET a.pay = b.id WHERE b.pay > 10", [30, 1, 20, 3, None]),
    ("UPDATE staff s, (SELECT city, MAX(pay) best FROM staff GROUP BY city) m SET s.pay = m.best, s.name = 'x' "
     "WHERE s.city = m.city AND s.id > 2", [30, 10, 30, 10, 10]),
    ("UPDATE staff s LEFT JOIN staff t ON t.id = s.id + 3 SET s.pay = IFNULL(t.id, 0)", [4, 5, 0, 0, 0]),
    ("UPDATE staff a JOIN staff b ON a.city = b.city SET a.pay = b.pay", [30, 10, 30, 10, 10]),
    ("DELETE a FROM staff a JOIN staff b ON a.pay = b.pay AND a.id > b.id", [30, 10, 20, None]),
    ("DELETE FROM a USING staff a JOIN staff b ON a.id = b.id + 1", [30]),
    ("UPDATE IGNORE staff SET pay = '7 apples' WHERE id < 3", [7, 7, 20, 10, None]),
    ("INSERT IGNORE INTO staff (pay) VALUES ('x'), (-3000000000)", [*PAYS, 0, -(2**31)]),
    ("INSERT INTO staff (id, pay) VALUES (1, 5) ON DUPLICATE KEY UPDATE pay = VALUES(pay) + pay", [*PAYS, 5]),
    ("INSERT INTO staff (id, pay) VALUES (1, 5) AS new ON DUPLICATE KEY UPDATE pay = new.pay", [*PAYS, 5]),
    ("UPDATE staff SET pay = 1, age = 2", 1054),
    ("UPDATE staff a JOIN staff b ON a.id = b.id SET wage = 1", 1054),
    ("UPDATE staff a JOIN staff b ON a.id = b.id SET a.pay = 1, b.pay = 2", 1235),
    ("UPDATE staff a JOIN (SELECT 1 x) b SET b.x = 1", 1288),
    ("DELETE c FROM staff a JOIN staff b ON a.id = b.id", 1288),
    ("UPDATE staff a JOIN staff b ON a.id = b.id SET a.pay = 1 LIMIT 1", 1221),
    ("INSERT INTO staff (id) VALUES (1) ON DUPLICATE KEY UPDATE wage = 1", 1054),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), CHANGES)
def test_changes_change_what_mysql_changes(sql, expected):
    database = Database().load("staff", COLUMNS, ROWS)
    if isinstance(expected, int):
        with pytest.raises(MySQLError) as error:
            database.run(sql)
        assert error.value.code == expected and database.rows() == ROWS
    else:
        assert database.run(sql) == [] and [row[3] for row in database.rows()] == expected


COMBINED = [
    ("SELECT city FROM staff EXCEPT SELECT city FROM staff WHERE pay = 30", [("Lima",), ("Oslo",)]),
    ("SELECT pay FROM staff INTERSECT SELECT pay FROM staff WHERE id > 3", [(10,), (None,)]),
    ("SELECT pay FROM staff EXCEPT ALL SELECT 10", [(30,), (10,), (20,), (None,)]),
    ("SELECT pay FROM staff INTERSECT ALL SELECT pay FROM staff WHERE id > 1", [(10,), (10,), (20,), (None,)]),
    ("SELECT 1 UNION SELECT 2 INTERSECT SELECT 3", [(1,)]),
    ("(SELECT 1 UNION SELECT 2) INTERSECT SELECT 2", [(2,)]),
    ("SELECT 1 UNION ALL SELECT 1 EXCEPT SELECT 2 UNION ALL SELECT 1", [(1,), (1,)]),
    ("SELECT 1.50 INTERSECT SELECT 1.5", [(D("1.50"),)]),
    ("SELECT id FROM staff WHERE id IN (SELECT id FROM staff EXCEPT SELECT 3) LIMIT 3", [(1,), (2,), (4,)]),
    ("SELECT a.id FROM staff a NATURAL JOIN staff b", [(1,), (2,), (3,), (4,)]),
    (
        "SELECT * FROM (SELECT id, name FROM staff) a NATURAL JOIN (SELECT id, pay FROM staff) b LIMIT 1",
        [(1, "Ann", 30)],
    ),
    ("WITH t (x, y) AS (SELECT id, pay FROM staff) SELECT y FROM t WHERE x = 1", [(30,)]),
    ("WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 3) SELECT * FROM n", [(1,), (2,), (3,)]),
    ("WITH RECURSIVE n (a, b) AS (SELECT 1, 1 UNION ALL SELECT b, a + b FROM n LIMIT 5) SELECT MAX(a) FROM n", [(5,)]),
    ("WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT COUNT(*) FROM n", [(1000,)]),
    ("WITH RECURSIVE n AS (SELECT 1 i UNION SELECT (i + 1) % 4 FROM n) SELECT * FROM n", [(1,), (2,), (3,), (0,)]),
    (
        "WITH RECURSIVE c AS (SELECT id, name FROM staff WHERE id = 3 UNION ALL SELECT s.id, s.name FROM staff s "
        "JOIN c ON s.id = c.id + 1) SELECT name FROM c",
        [("Cyd",), ("Dee",), ("Eve",)],
    ),
    (
        "WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i + 1 FROM n WHERE i < 3 UNION ALL SELECT i + 10 FROM n "
        "WHERE i < 3) SELECT * FROM n",
        [(1,), (2,), (11,), (3,), (12,)],
    ),
    (
        "WITH RECURSIVE n AS (SELECT 1 i UNION SELECT 2 UNION SELECT i + 2 FROM n WHERE i < 5 UNION SELECT s.id FROM n "
        "JOIN staff s ON s.id = n.i + 1) SELECT i FROM n ORDER BY i",
        [(1,), (2,), (3,), (4,), (5,), (6,)],
    ),
]  # fmt: skip
ROLLED = [
    (
        "SELECT city, pay, COUNT(*), SUM(pay) FROM staff WHERE id < 5 GROUP BY city, pay WITH ROLLUP",
        [("Lima", 10, 1, D(10)), ("Lima", None, 1, D(10)), ("Oslo", 10, 1, D(10)), ("Oslo", None, 1, D(10)),
         ("Rome", 20, 1, D(20)), ("Rome", 30, 1, D(30)), ("Rome", None, 2, D(50)), (None, None, 4, D(70))],
    ),
    ("SELECT COALESCE(city, 'all'), COUNT(*) FROM staff GROUP BY city WITH ROLLUP",
     [("Lima", 2), ("Oslo", 1), ("Rome", 2), ("all", 5)]),
    ("SELECT pay, GROUPING(pay) FROM staff WHERE id > 3 GROUP BY pay WITH ROLLUP", [(None, 0), (10, 0), (None, 1)]),
    ("SELECT city, MAX(pay) m FROM staff GROUP BY city WITH ROLLUP HAVING city IS NULL", [(None, 30)]),
    ("SELECT city, COUNT(*) n FROM staff GROUP BY city WITH ROLLUP ORDER BY n DESC, city LIMIT 2",
     [(None, 5), ("Lima", 2)]),
    ("SELECT pay, MAX(name) FROM staff WHERE pay > 99 GROUP BY pay WITH ROLLUP", []),
    ("SELECT pay, COUNT(*) FROM staff WHERE id = 1 GROUP BY pay, pay WITH ROLLUP", [(30, 1), (None, 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "expected"), COMBINED + ROLLED)
def test_combined_recursive_and_rolled_up_queries(sql, expected):
    """Beside MariaDB 10.11, which gives the same rows, but knows no GROUPING and no LIMIT in a recursive part."""
    check(rows(sql), expected)


SESSIONS = [
    (("SET @m = (SELECT MAX(pay) FROM staff)", "SELECT name, @M, @n FROM staff WHERE pay = @m"), [("Ann", 30, None)]),
    (("SET @a = 'x', @b = 1.50, @c := 2", "SELECT @a, @b, @c, @a = 'X'"), [("x", D("1.50"), 2, 1)]),
    (("SET @i = 1", "SET @i = @i + 1", "UPDATE staff SET pay = @i", "SELECT DISTINCT pay FROM staff"), [(2,)]),
    (("SELECT @m := MAX(pay) FROM staff", "SELECT name FROM staff WHERE pay = @m"), [("Ann",)]),
    (("SELECT @a := name, @b := pay / 4 FROM staff WHERE id < 3 ORDER BY id; SELECT @a, @b",), [("Bob", D("2.5000"))]),
    (("SELECT MAX(pay), MIN(pay) INTO @m, @n FROM staff", "SELECT @m - @n"), [(20,)]),
    (("SELECT id, name FROM staff WHERE id > 9 INTO @i, @n; SELECT @n",), [(None,)]),
    (("SELECT @x := 1 AS v, id FROM staff LIMIT 2",), [(1, 1), (1, 2)]),
    (("SET NAMES utf8mb4; SET autocommit = 0; SELECT 1",), [(1,)]),
    (("START TRANSACTION; DELETE FROM staff; ROLLBACK; SELECT COUNT(*) FROM staff",), [(5,)]),
    (("BEGIN; DELETE FROM staff WHERE id = 1; COMMIT; ROLLBACK; SELECT COUNT(*) FROM staff",), [(4,)]),
    (("BEGIN; DELETE FROM staff", "ROLLBACK; SELECT COUNT(*) FROM staff"), [(0,)]),
    (("BEGIN; DELETE FROM staff LIMIT 1; BEGIN; DELETE FROM staff; ROLLBACK; SELECT COUNT(*) FROM staff",), [(4,)]),
    (("SET autocommit = 0; DELETE FROM staff; ROLLBACK; SELECT COUNT(*) FROM staff",), [(5,)]),
    (("SET autocommit = OFF; DELETE FROM staff; SET autocommit = 1; ROLLBACK; SELECT COUNT(*) FROM staff",), [(0,)]),
    (("CREATE USER 'bob'@'localhost' IDENTIFIED BY 'a,b', al", "GRANT SELECT ON staff.* TO al, bob@localhost",
      "REVOKE ALL ON *.* FROM al; DROP USER al; CREATE USER IF NOT EXISTS bob@localhost; FLUSH PRIVILEGES"), []),
    (("CREATE DATABASE shop CHARACTER SET utf8mb4; CREATE SCHEMA IF NOT EXISTS shop; USE staff; SHOW DATABASES",),
     [("shop",), ("staff",)]),
    (("CREATE DATABASE shop", "DROP DATABASE shop; SHOW DATABASES"), [("staff",)]),
    (
        ("SHOW CREATE TABLE staff",),
        [("staff", "CREATE TABLE `staff` (\n  `id` int DEFAULT NULL,\n  `name` text,\n  `city` text,\n"
          "  `pay` int DEFAULT NULL,\n  `day` text\n) "
          "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci")],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "expected"), SESSIONS)
def test_a_session_has_variables_and_transactions(statements, expected):
    check(rows(*statements), expected)


START = "(SELECT @n := 0) start"
IN_ORDER = [  # of the rows; @n is a float where it was unset before, because an unset variable is a string to MySQL
    ((f"SELECT @n := @n + 1 AS n, name FROM staff, {START} WHERE id < 4 ORDER BY name DESC",),
     [(1.0, "Cyd"), (2.0, "Bob"), (3.0, "Ann")]),
    (("SET @n = 0; SELECT name, @n := @n + 1 FROM staff ORDER BY pay DESC, id LIMIT 2",), [("Ann", 1), ("Cyd", 2)]),
    (("SET @n = 0; SELECT name, @n := @n + 1 FROM staff ORDER BY pay DESC, id LIMIT 2; SELECT @n",), [(2,)]),
    (("SELECT @n := id, 'assign_(' AS `assign_('` FROM staff WHERE id = 2",), [(2, "assign_(")]),  # our SQLite function
    (("SET @t = 0", "SELECT id, @t := @t + pay AS total FROM staff WHERE id < 4 ORDER BY id DESC"),
     [(3, 20), (2, 30), (1, 60)]),
    (("SET @r = 0, @c = ''", "SELECT city, name, @r := IF(@c = city, @r + 1, 1) r, @c := city FROM staff "
      "WHERE id < 4 ORDER BY city DESC, name DESC"),
     [("Rome", "Cyd", 1, "Rome"), ("Rome", "Ann", 2, "Rome"), ("Lima", "Bob", 1, "Lima")]),
    ((f"SELECT name FROM (SELECT name, @n := @n + 1 AS n FROM staff, {START} ORDER BY name DESC) t WHERE n = 2",),
     [("Dee",)]),
    (("SET @n = 0", "SELECT AVG(pay) FROM (SELECT pay, @n := @n + 1 AS n FROM staff WHERE pay > 0 ORDER BY pay) t "
      "WHERE n IN (FLOOR((@n + 1) / 2), CEIL((@n + 1) / 2))"), [(D("15.0000"),)]),
    ((f"SELECT @n := @n + 1, t.* FROM (SELECT id FROM staff ORDER BY id DESC LIMIT 2) t, {START}",),
     [(1.0, 5), (2.0, 4)]),
    ((f"SELECT city, COUNT(*) c, @n := @n + 1 FROM staff JOIN {START} GROUP BY city ORDER BY c DESC, city",),
     [("Lima", 2, 2.0), ("Rome", 2, 1.0), ("Oslo", 1, 3.0)]),
    (("SET @n = 0", "SELECT @n := @n + 1 AS n, name FROM staff ORDER BY n DESC LIMIT 2"), [(5, "Eve"), (4, "Dee")]),
    (("SET @n = 0", "SELECT name FROM staff WHERE (@n := @n + 1) <= 2"), [("Ann",), ("Bob",)]),
    (("SET @n = 0; SELECT @a := @n := @n + 1, @n, @a FROM staff LIMIT 2",), [(1, 1, "1"), (2, 2, "2")]),
    (("SELECT @p - pay, @p := pay FROM staff WHERE id < 3",), [(None, 30), (None, 10)]),
    (("SET @p = 0", "SELECT @p - pay, @p := pay FROM staff WHERE id < 3"), [(-30, 30), (20, 10)]),
    (("SET @t = 0", "SELECT @t := @t + pay / 4, @t FROM staff WHERE id < 3"), [(D("7.5000"), 8), (D("10.0000"), 10)]),
    (("SET @n = 10", "UPDATE staff SET id = @n := @n + 1 ORDER BY name DESC", "SELECT id FROM staff"),
     [(15,), (14,), (13,), (12,), (11,)]),
    (("SET @n = 0; UPDATE staff SET pay = (@n := @n + 5) WHERE city = 'rome'; SELECT pay FROM staff WHERE id < 4",),
     [(5,), (10,), (10,)]),
    (("SET @n = 5; INSERT INTO staff (id) SELECT @n := @n + 1 FROM staff; SELECT MAX(id), @n FROM staff",), [(10, 10)]),
    (("SELECT @x := pay, staff.* FROM staff WHERE id = 1",), [(30, 1, "Ann", "Rome", 30, "2024-01-31")]),
]  # fmt: skip


@pytest.mark.parametrize(("statements", "expected"), IN_ORDER)
def test_assignments_follow_the_order_of_the_rows(statements, expected):
    check(rows(*statements), expected)


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


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("SELECT JSON_ARRAYAGG(name) FROM staff", 1235),
        ("SET sql_mode = ''", 1235),
        ("SAVEPOINT a", 1235),
        ("TABLE staff", 1235),
        ("VALUES ROW(1, 2)", 1235),
        ("SELECT INTERVAL(3, 1, 2, 5)", 1235),
        ("ROLLBACK TO SAVEPOINT a", 1235),
        ("START TRANSACTION READ ONLY", 1235),
        ("SET NAMES", 1064),
        ("SELECT id FROM staff WHERE (@n := @n + 1) BETWEEN 2 AND 3", 1235),
        ("SELECT @n := 1 AS n FROM staff HAVING n <= 2", 1235),
        ("SELECT @n := 1, RANK() OVER (ORDER BY id) FROM staff", 1235),
        ("WITH t AS (SELECT @n := 1 x) SELECT * FROM t a, t b", 1235),
        ("SELECT @n := 1 AS n FROM staff ORDER BY n, pay", 1235),
        ("SELECT name INTO OUTFILE '/tmp/x' FROM staff", 1235),
        ("SELECT name INTO @m FROM staff", 1172),
        ("SELECT name, pay INTO @m FROM staff LIMIT 1", 1222),
        ("SELECT 1 INTO", 1235),
        ("SELECT 1 INTO @a, FROM staff", 1064),
        ("SELECT GROUPING(pay) FROM staff GROUP BY city", 3602),
        ("SELECT name, COUNT(*) FROM staff GROUP BY city WITH ROLLUP", 1055),
        ("SELECT 1, 2 EXCEPT SELECT 1", 1222),
        ("WITH t (x) AS (SELECT id, pay FROM staff) SELECT * FROM t", 1353),
        ("WITH RECURSIVE n AS (SELECT i FROM n) SELECT * FROM n", 3573),
        ("WITH RECURSIVE n AS (SELECT i FROM n UNION SELECT 1) SELECT * FROM n", 3574),
        ("WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT MAX(i) FROM n) SELECT * FROM n", 3575),
        ("WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i FROM n GROUP BY i) SELECT * FROM n", 3575),
        ("WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT RANK() OVER () FROM n) SELECT * FROM n", 3575),
        ("WITH RECURSIVE n AS (SELECT 1 i UNION ALL (SELECT i FROM n LIMIT 1)) SELECT * FROM n", 1235),
        ("WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT a.i FROM n a, n b) SELECT * FROM n", 3577),
        ("WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i FROM n) SELECT * FROM n LIMIT 1", 3636),
        ("WITH RECURSIVE n AS (SELECT 1 i UNION ALL SELECT i FROM n UNION ALL SELECT 2) SELECT * FROM n", 3574),
        ("WITH RECURSIVE n AS (SELECT 1 i UNION SELECT i FROM n UNION ALL SELECT i FROM n) SELECT * FROM n", 1235),
        ("LOCK TABLES staff READ", 1235),
        ("CREATE TRIGGER t BEFORE INSERT ON staff FOR EACH ROW SET NEW.pay = 1", 1235),
        ("ALTER TABLE staff ADD twice INT GENERATED ALWAYS AS (pay * 2)", 1235),
        ("ALTER TABLE staff ADD data BLOB", 1235),
        ("CREATE USER bob IDENTIFIED", 1064),
        ("CREATE DATABASE shop; CREATE DATABASE shop", 1007),
        ("CREATE USER bob; CREATE USER 'bob'@'%'", 1396),
        ("REVOKE ALL ON *.* FROM bob", 1141),
        ("CREATE DATABASE shop; USE shop", 1235),
        ("SHOW TRIGGERS", 1235),
        ("SELECT * FROM (SELECT 1 x) a, (SELECT x) b", 1054),
        ("INSERT INTO staff (name) SELECT name", 1054),
        ("SHOW STAFF", 1064),
        ("EXPLAIN SELECT 1", 1235),
        ("SELECT name FROM staff FOR UPDATE", 1235),
        ("SELECT @@sql_mode", 1235),
        ("SELECT (1, 2)", 1241),
        ("SELECT 1 = (1, 2)", 1241),
        ("SELECT (1, 2) IN (SELECT 1)", 1241),
        ("SELECT INTERVAL 1 DAY", 1064),
        ("SELECT 'a' REGEXP '('", 3688),
        ("SELECT LAG(pay) FROM staff", 1064),
        ("SELECT RANK() OVER w FROM staff", 3579),
        ("SELECT NTILE(0) OVER () FROM staff", 1210),
        ("SELECT id FROM staff WHERE RANK() OVER () = 1", 3593),
    ],
)
def test_sql_that_is_not_spoken_has_a_code_of_its_own(sql, code):
    with pytest.raises(MySQLError) as error:
        rows(sql)
    assert error.value.code == code


def test_a_search_for_a_pattern_ends():
    with pytest.raises(MySQLError, match="3699"):
        rows("SELECT REPEAT('a', 900) REGEXP '(a|aa)+(a|aa)+(a|aa)+\\\\1b' FROM staff a, staff b, staff c, staff d")


def test_no_function_is_both_spoken_and_not():
    assert not NATIVE & {*SIGNATURES, *ANY_TYPE, *FORMS, *AGGREGATES, *WINDOWED}
