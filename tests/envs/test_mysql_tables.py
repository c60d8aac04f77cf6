"""Definitions of tables, views and indexes in the simulated MySQL: their effects, errors and metadata."""

from random import Random

import pytest
from cases import cases
from conftest import no_hang
from test_mysql_dialect import COLUMNS, ROWS, rows

from envs.simulators.mysql import Database, MySQLError

CASES = cases("mysql_tables")
EFFECTS = CASES["effects"]
ERRORS = CASES["errors"]
VIOLATIONS = CASES["violations"]

pytestmark = pytest.mark.all_only


PARENT = "CREATE TABLE p (id INT PRIMARY KEY); INSERT INTO p VALUES (1), (2)"
CHILD = "CREATE TABLE c (x INT, pid INT, FOREIGN KEY (pid) REFERENCES p (id){})"


@pytest.mark.parametrize(("definition", "query", "expected"), EFFECTS)
def test_definition_has_mysql_s_effect(definition, query, expected):
    assert repr(rows(definition, query)) == expected


@pytest.mark.parametrize(("sql", "line"), ERRORS)
def test_failed_definition_changes_nothing(sql, line):
    database = Database().load("staff", COLUMNS, ROWS)
    before = database.definition()
    with pytest.raises(MySQLError) as error:
        database.run(sql)
    assert str(error.value) == line
    assert database.rows() == ROWS and database.definition() == before and database.run("SHOW TABLES") == [("staff",)]


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
