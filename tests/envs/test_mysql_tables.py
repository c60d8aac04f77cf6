"""Definitions of tables, views and indexes in the simulated MySQL: their effects, errors and metadata."""

import datetime
from decimal import Decimal as D
from random import Random

import pytest
from conftest import no_hang
from test_mysql_dialect import COLUMNS, ROWS, check

from envs.simulators.mysql import Database, MySQLError

pytestmark = pytest.mark.all_only


def rows(*statements: str) -> list[tuple]:
    """Return the rows of the last of several calls on a fresh table."""
    database = Database().load("staff", COLUMNS, ROWS)
    for statement in statements[:-1]:
        database.run(statement)
    return database.run(statements[-1])


KEYED = "CREATE TABLE t (id INT PRIMARY KEY, n INT); INSERT INTO t VALUES (2, 20), (1, 10)"
PARENT = "CREATE TABLE p (id INT PRIMARY KEY); INSERT INTO p VALUES (1), (2)"
CHILD = "CREATE TABLE c (x INT, pid INT, FOREIGN KEY (pid) REFERENCES p (id){})"
EFFECTS = [
    ("ALTER TABLE staff ADD COLUMN mail VARCHAR(9)", "SELECT id, mail FROM staff LIMIT 1", [(1, None)]),
    (
        "ALTER TABLE staff ADD mail CHAR(4) NOT NULL DEFAULT 'none' AFTER id, DROP day, DROP COLUMN city",
        "SELECT * FROM staff LIMIT 1",
        [(1, "none", "Ann", 30)],
    ),
    (
        "ALTER TABLE staff ADD n INT FIRST, ADD (m DECIMAL(8,2) NOT NULL)",
        "SELECT n, m FROM staff LIMIT 1",
        [(None, D("0.00"))],
    ),
    (
        "ALTER TABLE staff ADD COLUMN no INT AUTO_INCREMENT PRIMARY KEY FIRST",
        "SELECT no FROM staff WHERE id > 3",
        [(4,), (5,)],
    ),
    (
        "ALTER TABLE staff MODIFY pay DECIMAL(10,2)",
        "SELECT pay FROM staff WHERE id < 3",
        [(D("30.00"),), (D("10.00"),)],
    ),
    ("ALTER TABLE staff MODIFY day DATE", "SELECT MAX(day) FROM staff", [(datetime.date(2024, 2, 29),)]),
    ("ALTER TABLE staff MODIFY pay VARCHAR(9)", "SELECT pay FROM staff LIMIT 1", [("30",)]),
    (
        "ALTER TABLE staff CHANGE COLUMN pay wage BIGINT FIRST",
        "SELECT * FROM staff LIMIT 1",
        [(30, 1, "Ann", "Rome", "2024-01-31")],
    ),
    ("ALTER TABLE staff RENAME COLUMN pay TO wage", "SELECT wage FROM staff WHERE id = 3", [(20,)]),
    ("ALTER TABLE staff RENAME TO people", "SHOW TABLES", [("people",)]),
    (
        "ALTER TABLE staff ALTER pay SET DEFAULT 7; INSERT INTO staff (id) VALUES (9)",
        "SELECT pay FROM staff WHERE id = 9",
        [(7,)],
    ),
    ("ALTER TABLE staff ORDER BY name DESC", "SELECT id FROM staff LIMIT 2", [(5,), (4,)]),
    (
        "ALTER TABLE staff ADD UNIQUE u (id); ALTER TABLE staff DROP INDEX u; INSERT INTO staff (id) VALUES (1)",
        "SELECT COUNT(*) FROM staff",
        [(6,)],
    ),
    ("ALTER TABLE staff ENGINE = InnoDB, CONVERT TO CHARACTER SET utf8mb4", "SELECT COUNT(*) FROM staff", [(5,)]),
    ("CREATE TABLE t (a INT CHECK (a > 0)); ALTER TABLE t DROP COLUMN a, ADD b INT", "SELECT * FROM t", []),
    ("CREATE TABLE t LIKE staff", "SELECT COUNT(*) FROM t", [(0,)]),
    ("CREATE TABLE IF NOT EXISTS staff (a INT)", "SELECT COUNT(*) FROM staff", [(5,)]),
    (
        "CREATE TABLE t AS SELECT name, pay * 2 AS twice FROM staff WHERE id < 3",
        "SELECT * FROM t",
        [("Ann", 60), ("Bob", 20)],
    ),
    ("CREATE TABLE t (a INT) SELECT 1 AS b", "SELECT * FROM t", [(None, 1)]),
    ("CREATE TEMPORARY TABLE t (a INT); INSERT INTO t VALUES (4)", "SHOW TABLES", [("staff",)]),
    (
        "CREATE TABLE t (a ENUM('x', 'y') DEFAULT 'x', b SET('p', 'q'), c TINYINT UNSIGNED, d BOOLEAN); "
        "INSERT INTO t VALUES ('Y', 'q,p', 255, TRUE), (DEFAULT, NULL, '7', 0)",
        "SELECT * FROM t",
        [("y", "p,q", 255, 1), ("x", None, 7, 0)],
    ),
    (
        "CREATE TABLE t (a DATE, b DATETIME, c TIME, d YEAR, e DOUBLE, f TIMESTAMP DEFAULT CURRENT_TIMESTAMP); "
        "INSERT INTO t (a, b, c, d, e) VALUES ('2024-2-3', '2024-02-03 4:05', '1:02:03', 2024, '1.5')",
        "SELECT * FROM t",
        [
            (
                datetime.date(2024, 2, 3),
                datetime.datetime(2024, 2, 3, 4, 5),
                datetime.timedelta(seconds=3723),
                2024,
                1.5,
                datetime.datetime(2024, 5, 6, 10),
            )
        ],
    ),
    (
        "CREATE TABLE t (id INT AUTO_INCREMENT, PRIMARY KEY (id)) AUTO_INCREMENT = 7; "
        "INSERT INTO t VALUES (NULL), (0), (20), "
        "(DEFAULT)",
        "SELECT id, LAST_INSERT_ID() FROM t",
        [(7, 7), (8, 7), (20, 7), (21, 7)],
    ),
    (
        "CREATE TABLE t (e ENUM('b', 'c', 'a')); INSERT INTO t VALUES ('a'), ('b'), (NULL), ('c')",
        "SELECT e FROM t ORDER BY e DESC",
        [("a",), ("c",), ("b",), (None,)],
    ),
    (
        "ALTER TABLE staff RENAME COLUMN name TO city, RENAME COLUMN city TO name",
        "SELECT name, city FROM staff LIMIT 1",
        [("Rome", "Ann")],
    ),
    (KEYED, "SELECT * FROM t", [(1, 10), (2, 20)]),
    (f"{KEYED}; REPLACE INTO t VALUES (1, 5)", "SELECT * FROM t", [(1, 5), (2, 20)]),
    (f"{KEYED}; INSERT IGNORE INTO t VALUES (1, 5), (3, 30)", "SELECT * FROM t", [(1, 10), (2, 20), (3, 30)]),
    (f"{KEYED}; UPDATE IGNORE t SET id = 2, n = 5 WHERE id = 1", "SELECT * FROM t", [(1, 10), (2, 20)]),
    (f"{KEYED}; UPDATE IGNORE t SET id = id + 1 ORDER BY id DESC", "SELECT * FROM t", [(2, 10), (3, 20)]),
    (f"{KEYED}; UPDATE IGNORE t SET id = 3 ORDER BY id DESC", "SELECT * FROM t", [(1, 10), (3, 20)]),
    (f"{KEYED}; ALTER TABLE t MODIFY n INT NOT NULL; UPDATE IGNORE t SET n = NULL", "SELECT n FROM t", [(0,), (0,)]),
    (f"{KEYED}; UPDATE IGNORE t a JOIN t b ON a.id = b.id SET a.id = 2", "SELECT * FROM t", [(1, 10), (2, 20)]),
    (
        f"{KEYED}; INSERT INTO t VALUES (1, 5), (3, 9) ON DUPLICATE KEY UPDATE n = n + VALUES(n)",
        "SELECT * FROM t",
        [(1, 15), (2, 20), (3, 9)],
    ),
    (
        f"{KEYED}; INSERT INTO t VALUES (1, 5) AS new ON DUPLICATE KEY UPDATE n = new.n",
        "SELECT n FROM t",
        [(5,), (20,)],
    ),
    (f"{KEYED}; UPDATE t SET id = id + 1 ORDER BY id DESC", "SELECT * FROM t", [(2, 10), (3, 20)]),
    (
        "CREATE TABLE t (a INT UNSIGNED, b BIGINT UNSIGNED); INSERT INTO t VALUES (7, 18446744073709551615)",
        "SELECT a, b FROM t",
        [(7, 2**64 - 1)],
    ),
    (f"{KEYED}; TRUNCATE TABLE t", "SELECT COUNT(*) FROM t", [(0,)]),
    (
        "CREATE TABLE t (id INT NOT NULL, v VARCHAR(2) NOT NULL); INSERT IGNORE INTO t VALUES (NULL, 'abc')",
        "SELECT * FROM t",
        [(0, "ab")],
    ),
    (
        f"{PARENT}; {CHILD.format(' ON DELETE CASCADE')}; INSERT INTO c VALUES (1, 1), (2, 2); "
        "DELETE FROM p WHERE id = 1",
        "SELECT * FROM c",
        [(2, 2)],
    ),
    (
        f"{PARENT}; {CHILD.format(' ON UPDATE CASCADE')}; INSERT INTO c VALUES (1, 1); ALTER TABLE p ADD n INT; "
        "UPDATE p SET id = 7 WHERE id = 1",
        "SELECT pid FROM c",
        [(7,)],
    ),
    (
        f"{PARENT}; {CHILD.format('')}; SET FOREIGN_KEY_CHECKS = 0; INSERT INTO c VALUES (1, 9)",
        "SELECT pid FROM c",
        [(9,)],
    ),
    (
        "CREATE VIEW v AS SELECT name, pay FROM staff WHERE pay > 10",
        "SELECT * FROM v ORDER BY pay",
        [("Cyd", 20), ("Ann", 30)],
    ),
    (
        "CREATE VIEW v (c, n) AS SELECT city, COUNT(*) FROM staff GROUP BY city; UPDATE staff SET city = 'Oslo'",
        "SELECT * FROM v",
        [("Oslo", 5)],
    ),
    ("CREATE VIEW v AS SELECT * FROM staff; ALTER TABLE staff ADD x INT", "SELECT * FROM v LIMIT 1", [ROWS[0]]),
    ("CREATE VIEW v AS SELECT 1 x; CREATE OR REPLACE VIEW v AS SELECT 2 x", "SELECT x FROM v", [(2,)]),
    (
        "CREATE VIEW v AS SELECT name FROM staff",
        "SELECT s.id FROM v JOIN staff s USING (name) WHERE id < 3",
        [(1,), (2,)],
    ),
    ("CREATE TABLE a (x INT); CREATE TABLE b (x INT); DROP TABLE IF EXISTS a, b, c", "SHOW TABLES", [("staff",)]),
    (
        "CREATE TABLE b (x INT); RENAME TABLE staff TO c, b TO staff",
        "SHOW FULL TABLES LIKE 's%'",
        [("staff", "BASE TABLE")],
    ),
    ("BEGIN; DELETE FROM staff; CREATE TABLE t (a INT); ROLLBACK", "SELECT COUNT(*) FROM staff", [(0,)]),
    (
        "CREATE TABLE t (`a\"b` INT PRIMARY KEY, c VARCHAR(9) DEFAULT 'q''r', CHECK (c <> '?1')); "
        "INSERT INTO t VALUES (1, "
        "DEFAULT)",
        "SELECT * FROM t",
        [(1, "q'r")],
    ),
]


@pytest.mark.parametrize(("definition", "query", "expected"), EFFECTS)
def test_definition_has_mysql_s_effect(definition, query, expected):
    check(rows(definition, query), expected)


ERRORS = [
    ("ALTER TABLE nope ADD a INT", "1146 (42S02): Table 'staff.nope' doesn't exist"),
    ("ALTER TABLE staff ADD name TEXT", "1060 (42S21): Duplicate column name 'name'"),
    (
        "ALTER TABLE staff ADD hired DATE NOT NULL",
        "1292 (22007): Incorrect date value: '0000-00-00' for column 'hired' at row 1",
    ),
    ("ALTER TABLE staff DROP nope", "1091 (42000): Can't DROP 'nope'; check that column/key exists"),
    ("ALTER TABLE staff DROP PRIMARY KEY", "1091 (42000): Can't DROP 'PRIMARY'; check that column/key exists"),
    ("ALTER TABLE staff MODIFY name INT", "1366 (HY000): Incorrect integer value: 'Ann' for column 'name' at row 1"),
    ("ALTER TABLE staff MODIFY name VARCHAR(2)", "1406 (22001): Data too long for column 'name' at row 1"),
    ("ALTER TABLE staff MODIFY pay INT NOT NULL", "1138 (22004): Invalid use of NULL value"),
    ("ALTER TABLE staff MODIFY pay BIGINT NOT NULL", "1265 (01000): Data truncated for column 'pay' at row 5"),
    ("ALTER TABLE staff MODIFY nope INT", "1054 (42S22): Unknown column 'nope' in 'staff'"),
    (
        "ALTER TABLE staff MODIFY id INT AUTO_INCREMENT",
        "1075 (42000): Incorrect table definition; there can be only one auto column and it must be defined as a key",
    ),
    (
        "ALTER TABLE staff ADD INDEX (name)",
        "1170 (42000): BLOB/TEXT column 'name' used in key specification without a key length",
    ),
    ("ALTER TABLE staff ADD INDEX (nope)", "1072 (42000): Key column 'nope' doesn't exist in table"),
    ("ALTER TABLE staff ADD UNIQUE u (pay)", "1062 (23000): Duplicate entry '10' for key 'staff.u'"),
    ("ALTER TABLE staff ADD PRIMARY KEY (id), ADD PRIMARY KEY (pay)", "1068 (42000): Multiple primary key defined"),
    ("ALTER TABLE staff ADD INDEX i (id), ADD INDEX i (pay)", "1061 (42000): Duplicate key name 'i'"),
    ("ALTER TABLE staff ADD CONSTRAINT big CHECK (pay > 15)", "3819 (HY000): Check constraint 'big' is violated."),
    (
        "ALTER TABLE staff ALTER city SET DEFAULT 'x'",
        "1101 (42000): BLOB, TEXT, GEOMETRY or JSON column 'city' can't have a default value",
    ),
    (
        "ALTER TABLE staff DROP id, DROP name, DROP city, DROP pay, DROP day",
        "1090 (42000): You can't delete all columns with ALTER TABLE; use DROP TABLE instead",
    ),
    ("CREATE UNIQUE INDEX u ON staff (city(2))", "1062 (23000): Duplicate entry 'Ro' for key 'staff.u'"),
    ("CREATE TABLE t (a INT DEFAULT 'x')", "1067 (42000): Invalid default value for 'a'"),
    (
        "CREATE TABLE t (a INT DEFAULT b)",
        "1064 (42000): You have an error in your SQL syntax; check the manual that corresponds to your MySQL server "
        "version for the right syntax to use near 'b)' at line 1",
    ),
    ("CREATE TABLE t (a INT, a INT)", "1060 (42S21): Duplicate column name 'a'"),
    ("CREATE TABLE other.t (a INT)", "1049 (42000): Unknown database 'other'"),
    (
        "CREATE TABLE c (a INT, FOREIGN KEY (a) REFERENCES nope (id))",
        "1824 (HY000): Failed to open the referenced table 'nope'",
    ),
    (
        "CREATE TABLE c (a INT, FOREIGN KEY (a) REFERENCES staff (id))",
        "1822 (HY000): Failed to add the foreign key "
        "constraint. Missing index for constraint 'c_ibfk_1' in the referenced table 'staff'",
    ),
    ("DROP TABLE a, b", "1051 (42S02): Unknown table 'staff.a,staff.b'"),
    ("DROP VIEW staff", "1347 (HY000): 'staff.staff' is not VIEW"),
    ("DROP INDEX i ON staff", "1091 (42000): Can't DROP 'i'; check that column/key exists"),
]


@pytest.mark.parametrize(("sql", "line"), ERRORS)
def test_failed_definition_changes_nothing(sql, line):
    database = Database().load("staff", COLUMNS, ROWS)
    before = database.definition()
    with pytest.raises(MySQLError) as error:
        database.run(sql)
    assert str(error.value) == line
    assert database.rows() == ROWS and database.definition() == before and database.run("SHOW TABLES") == [("staff",)]


PLACE = "(`staff`.`c`, CONSTRAINT `c_ibfk_1` FOREIGN KEY (`pid`) REFERENCES `p` (`id`))"
VIOLATIONS = [
    (KEYED, "INSERT INTO t VALUES (2, 1)", "1062 (23000): Duplicate entry '2' for key 't.PRIMARY'"),
    (KEYED, "UPDATE t SET id = 2 WHERE id = 1", "1062 (23000): Duplicate entry '2' for key 't.PRIMARY'"),
    (KEYED, "UPDATE t SET n = 0, id = 5 ORDER BY n", "1062 (23000): Duplicate entry '5' for key 't.PRIMARY'"),
    (KEYED, "INSERT INTO t (n) VALUES (1)", "1364 (HY000): Field 'id' doesn't have a default value"),
    (KEYED, "INSERT INTO t VALUES (NULL, 1)", "1048 (23000): Column 'id' cannot be null"),
    (
        "CREATE TABLE t (a VARCHAR(3), b INT, UNIQUE ab (a, b)); "
        "INSERT INTO t VALUES ('x', 1), ('x', NULL), ('x', NULL)",
        "INSERT INTO t VALUES ('X', 1)",
        "1062 (23000): Duplicate entry 'X-1' for key 't.ab'",
    ),
    (
        "CREATE TABLE t (a VARCHAR(3))",
        "INSERT INTO t VALUES ('abcd')",
        "1406 (22001): Data too long for column 'a' at row 1",
    ),
    (
        "CREATE TABLE t (a TINYINT)",
        "INSERT INTO t VALUES (1), (128)",
        "1264 (22003): Out of range value for column 'a' at row 2",
    ),
    (
        "CREATE TABLE t (a DECIMAL(3,1))",
        "INSERT INTO t VALUES (100)",
        "1264 (22003): Out of range value for column 'a' at row 1",
    ),
    (
        "CREATE TABLE t (a ENUM('x'))",
        "INSERT INTO t VALUES ('y')",
        "1265 (01000): Data truncated for column 'a' at row 1",
    ),
    (
        "CREATE TABLE t (a DATE)",
        "INSERT INTO t VALUES ('y')",
        "1292 (22007): Incorrect date value: 'y' for column 'a' at row 1",
    ),
    (
        "CREATE TABLE t (a INT CHECK (a > 0), b INT, CHECK (a < b))",
        "INSERT INTO t VALUES (3, 2)",
        "3819 (HY000): Check constraint 't_chk_2' is violated.",
    ),
    (
        f"{PARENT}; {CHILD.format('')}",
        "INSERT INTO c VALUES (1, 9)",
        f"1452 (23000): Cannot add or update a child row: a foreign key constraint fails {PLACE}",
    ),
    (
        f"{PARENT}; {CHILD.format('')}; INSERT INTO c VALUES (1, 1)",
        "DELETE FROM p",
        f"1451 (23000): Cannot delete or update a parent row: a foreign key constraint fails {PLACE}",
    ),
    (
        f"{PARENT}; {CHILD.format('')}",
        "DROP TABLE p",
        "3730 (HY000): Cannot drop table 'p' referenced by a foreign key constraint 'c_ibfk_1' on table 'c'.",
    ),
    (
        f"{PARENT}; {CHILD.format('')}",
        "TRUNCATE p",
        "1701 (42000): Cannot truncate a table referenced in a foreign key "
        "constraint (`staff`.`c`, CONSTRAINT `c_ibfk_1` FOREIGN KEY (`pid`) REFERENCES `p` (`id`))",
    ),
    (
        "CREATE VIEW v AS SELECT pay FROM staff; ALTER TABLE staff DROP pay",
        "SELECT * FROM v",
        "1356 (HY000): View 'staff.v' "
        "references invalid table(s) or column(s) or function(s) or definer/invoker of view lack rights to use them",
    ),
    (
        "CREATE TABLE t (a INT, b INT, CHECK (a > 0), CONSTRAINT c CHECK (a > b))",
        "ALTER TABLE t DROP COLUMN a",
        "3959 (HY000): Check constraint 'c' uses column 'a', hence column cannot be dropped or renamed.",
    ),
]


@pytest.mark.parametrize(("definition", "sql", "line"), VIOLATIONS)
def test_constraints_are_enforced(definition, sql, line):
    database = Database().load("staff", COLUMNS, ROWS)
    database.run(definition)
    with pytest.raises(MySQLError) as error:
        database.run(sql)
    assert str(error.value) == line


WHOLE = (
    "CREATE TABLE t (id INT AUTO_INCREMENT, name VARCHAR(20) NOT NULL COMMENT 'it''s', p DECIMAL(8,2) DEFAULT 1.5, "
    "c TIMESTAMP DEFAULT CURRENT_TIMESTAMP, e ENUM('a','b'), pid INT, UNIQUE KEY u (name), KEY (e, p), "
    "PRIMARY KEY (id), "
    "FOREIGN KEY (pid) REFERENCES p (id) ON DELETE SET NULL, CHECK (p > 0 AND name <> 'x'))"
)


def test_metadata_agree_with_the_definition():
    database = Database().load("staff", COLUMNS, ROWS)
    database.run(f"{PARENT}; {WHOLE}; INSERT INTO t (name) VALUES ('a')")
    [(_, text)] = database.run("SHOW CREATE TABLE t")
    assert text.splitlines() == [
        "CREATE TABLE `t` (",
        "  `id` int NOT NULL AUTO_INCREMENT,",
        "  `name` varchar(20) NOT NULL COMMENT 'it''s',",
        "  `p` decimal(8,2) DEFAULT '1.50',",
        "  `c` timestamp NULL DEFAULT CURRENT_TIMESTAMP,",
        "  `e` enum('a','b') DEFAULT NULL,",
        "  `pid` int DEFAULT NULL,",
        "  PRIMARY KEY (`id`),",
        "  UNIQUE KEY `u` (`name`),",
        "  KEY `e` (`e`,`p`),",
        "  KEY `pid` (`pid`),",
        "  CONSTRAINT `t_ibfk_1` FOREIGN KEY (`pid`) REFERENCES `p` (`id`) ON DELETE SET NULL,",
        "  CONSTRAINT `t_chk_1` CHECK ((`p` > 0 and `name` <> 'x'))",
        ") ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_0900_ai_ci",
    ]
    assert database.run("DESCRIBE t") == [
        ("id", "int", "NO", "PRI", None, "auto_increment"),
        ("name", "varchar(20)", "NO", "UNI", None, ""),
        ("p", "decimal(8,2)", "YES", "", "1.50", ""),
        ("c", "timestamp", "YES", "", "CURRENT_TIMESTAMP", "DEFAULT_GENERATED"),
        ("e", "enum('a','b')", "YES", "MUL", None, ""),
        ("pid", "int", "YES", "MUL", None, ""),
    ]
    keys = database.run("SHOW INDEX FROM t")
    assert [row[1:5] for row in keys[:2]] == [(0, "u", 1, "name"), (1, "e", 1, "e")]
    listed = database.run(
        "SELECT column_name, column_type, column_key FROM information_schema.columns WHERE table_name = 't'"
    )
    assert listed == [(row[0], row[1], row[3]) for row in database.run("DESCRIBE t")]
    tables = database.run(
        "SELECT table_name, table_type FROM INFORMATION_SCHEMA.TABLES WHERE table_schema = DATABASE()"
    )
    assert sorted(tables) == database.run("SHOW FULL TABLES")


def test_the_printed_definition_makes_the_same_table():
    database = Database().load("staff", COLUMNS, ROWS)
    database.run(f"{PARENT}; {WHOLE}")
    [(_, text)] = database.run("SHOW CREATE TABLE t")
    database.run("DROP TABLE t")
    database.run(text)
    assert database.run("SHOW CREATE TABLE t") == [("t", text)]


def test_loading_removes_every_table():
    database = Database().load("staff", COLUMNS, ROWS)
    database.run(
        f"{PARENT}; {CHILD.format('')}; CREATE VIEW v AS SELECT 1; INSERT INTO c VALUES (1, 1); DROP TABLE staff"
    )
    with pytest.raises(MySQLError, match="1146"):
        database.rows()
    database.load("staff", COLUMNS, ROWS)
    assert database.rows() == ROWS and database.run("SHOW TABLES") == [("staff",)]


def test_growing_definitions_are_stopped():
    views = [f"CREATE VIEW v{i + 1} AS SELECT a.id FROM v{i} a, v{i} b" for i in range(40)]
    chain = [f"CREATE VIEW w{i + 1} AS SELECT * FROM w{i}" for i in range(100)]
    tables = ["; ".join(f"CREATE TABLE t{j}_{i} (a INT)" for i in range(250)) for j in range(3)]
    wide = ["CREATE TABLE x (" + ", ".join(f"c{i} INT" for i in range(900)) + ")"]
    for statements in (views, chain, tables, wide):
        database = Database().load("staff", COLUMNS, ROWS)
        codes = {0}
        database.run("CREATE VIEW v0 AS SELECT id FROM staff; CREATE VIEW w0 AS SELECT id FROM staff")
        for sql in statements:
            try:
                with no_hang():
                    database.run(sql)
            except MySQLError as error:
                codes.add(error.code)
        assert codes <= {0, 1116, 1146, 3024, 1114, 1235}
        assert database.load("staff", COLUMNS, ROWS).run("SELECT COUNT(*) FROM staff") == [(5,)]


def test_any_definition_leaves_tables_and_catalog_alike():
    texts = [part for row in EFFECTS + ERRORS + VIOLATIONS for part in row[0].split("; ")]
    words = " ".join(texts).split()
    for seed in range(150):
        rng, database = Random(seed), Database().load("staff", COLUMNS, ROWS)
        for _ in range(8):
            said = rng.choice(texts).split()
            if rng.random() < 0.5:
                said[rng.randrange(len(said))] = rng.choice(words)
            try:
                database.run(" ".join(said))
            except MySQLError as error:
                assert error.code != 1436, said
        database.sqlite.set_authorizer(None)
        names = database.sqlite.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        kept = {name: schema for name, schema in database.catalog.items() if not schema.query}
        assert {name for (name,) in names} == set(kept)
        for name, schema in kept.items():
            found = database.sqlite.execute("SELECT name FROM pragma_table_info(?)", (name,)).fetchall()
            assert [column for (column,) in found] == [column.name for column in schema.columns]
