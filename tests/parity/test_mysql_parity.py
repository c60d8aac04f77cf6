"""Our MySQL against MariaDB, whose server Debian packs as mariadb-server: rows, error codes and what a change leaves.

Skipped where the server or its client is missing; parity/mariadb.py says what it needs.

What is MariaDB's own, and not compared: the words of errors; int(11) in DESCRIBE; ROUND to more places than a number
has, which adds noughts there, and to tens of a product, which is exact there; a subquery on the table that UPDATE or
DELETE changes, which MySQL refuses (1093); ORDER BY what has no one value in a group, or is not among what is
DISTINCT (1055 and 3065 in MySQL); columns that WHERE holds to one value, which MySQL takes without GROUP BY; HAVING
without groups (1463); a derived table without a name (1248 in MySQL); the order of groups without ORDER BY, and which
of two texts that are equal but for case represents both; accents and blanks at the end of texts, which are equal there;
where signs sort; division by 0 in a change (1365); last digits of doubles.
"""

import math
from random import Random

import pytest
from mysql_statements import COLUMNS, ROWS, TABLE, statement
from parity.mariadb import STATEMENTS, Original, available

from envs.common import SPLITS
from envs.db_bench.tasks import SKILLS, draw
from envs.simulators.mysql import Database, MySQLError

reason = available()
pytestmark = [pytest.mark.all_only, pytest.mark.full, pytest.mark.skipif(bool(reason), reason=reason)]


def ours(database: Database, sql: str):
    try:
        return database.run(sql)
    except MySQLError as error:
        return error.code


def alike(one, other) -> bool:
    """Return whether results are equal: floats nearly, all else with its type."""
    if isinstance(one, (list, tuple)) and type(one) is type(other) and len(one) == len(other):
        return all(map(alike, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12)
    return type(one) is type(other) and repr(one) == repr(other)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    server = Original(tmp_path_factory.mktemp("mariadb"))
    yield server
    server.close()


def test_a_thousand_statements_give_the_same(original):
    database, loaded = Database(), False
    for seed in range(STATEMENTS):
        sql = statement(Random(f"parity {seed}"))
        if not loaded:
            original.load(TABLE, COLUMNS, ROWS)
            database.load(TABLE, COLUMNS, ROWS)
        theirs, mine = original.run(sql), ours(database, sql)
        assert alike(mine, theirs), (seed, sql, mine, theirs)
        loaded = sql.startswith(("SELECT", "WITH"))
        if not loaded:
            assert original.run(f"SELECT * FROM {TABLE}") == database.rows(), (seed, sql)


def test_tasks_have_the_same_truth(original):
    database = Database()
    for seed in range(300):
        rng = Random(f"parity {seed}")
        task = draw(rng, SKILLS[seed % len(SKILLS)], rng.choice("123"), SPLITS[seed % 3], database)
        original.load(task.table, task.columns, task.rows)
        database.load(task.table, task.columns, task.rows)
        assert alike(database.run(task.sql), original.run(task.sql)), task
        assert original.run(f"SELECT * FROM {task.table}") == database.rows(), task
