"""Our MySQL against MariaDB, whose server Debian packs as mariadb-server: rows, error codes and what a change leaves.

It needs the server's program, mariadbd, on PATH or under MARIADBD, and `pip install mysql-connector-python`; without
either it is skipped. `python tests/parity/test_mysql_parity.py > tests/golden/mysql.txt` writes what they all give.

What is MariaDB's own, and not compared: the words of errors; int(11) in DESCRIBE; ROUND to more places than a number
has, which adds noughts there, and to tens of a product, which is exact there; a subquery on the table that UPDATE or
DELETE changes, which MySQL refuses (1093); ORDER BY what has no one value in a group, or is not among what is
DISTINCT (1055 and 3065 in MySQL); columns that WHERE holds to one value, which MySQL takes without GROUP BY; HAVING
without groups (1463); a derived table without a name (1248 in MySQL); the order of groups without ORDER BY, and which
of two texts that are equal but for case stands for both; accents and blanks at the end of texts, which are equal there;
where signs sort; division by 0 in a change (1365); last digits of doubles.
"""

import math
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from random import Random

import pytest

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
from mysql_statements import COLUMNS, ROWS, TABLE, statement  # noqa: E402

from envs.base import SPLITS  # noqa: E402
from envs.db_bench.tasks import SKILLS, draw  # noqa: E402
from envs.simulators.mysql import Database, MySQLError  # noqa: E402

connector = pytest.importorskip("mysql.connector", reason="pip install mysql-connector-python")
SERVER = os.environ.get("MARIADBD") or shutil.which("mariadbd") or "/usr/sbin/mariadbd"
STATEMENTS = 1000
pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(not os.path.exists(SERVER), reason="MariaDB's server is not here: Debian's mariadb-server"),
]
MODES = "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,NO_ENGINE_SUBSTITUTION"


class Original:
    """A server of its own in a folder, and a connection to it."""

    def __init__(self, folder: Path):
        messages = Path(SERVER).resolve().parents[1] / "share" / "mysql"
        command = [SERVER, "--no-defaults", f"--datadir={folder}", f"--socket={folder}/s", "--skip-networking"]
        command += ["--skip-grant-tables", "--character-set-server=utf8mb4", "--innodb-buffer-pool-size=16M"]
        command += [f"--lc-messages-dir={messages}"] * messages.exists() + ["--user=root"] * (os.getuid() == 0)
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        options = {"unix_socket": f"{folder}/s", "user": "root", "collation": "utf8mb4_general_ci", "use_pure": True}
        for _ in range(300):
            try:
                self.connection = connector.connect(**options)
                break
            except connector.Error:
                time.sleep(0.1)
        self.connection.autocommit = True
        self.cursor = self.connection.cursor()
        self.cursor.execute(f"SET sql_mode = '{MODES}'")
        self.cursor.execute("CREATE DATABASE play")
        self.cursor.execute("USE play")
        self.table = None

    def load(self, table: str, columns: list, rows: list) -> None:
        if self.table:
            self.cursor.execute(f"DROP TABLE {self.table}")
        self.table = table
        self.cursor.execute(
            f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in columns)}) ENGINE=Aria"
        )
        self.cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(columns))})", rows)

    def run(self, sql: str):
        """The rows, or the code of the error."""
        try:
            self.cursor.execute(sql)
            return [tuple(row) for row in self.cursor.fetchall()] if self.cursor.description else []
        except connector.Error as error:
            return error.errno

    def close(self) -> None:
        self.connection.close()
        self.server.terminate()
        self.server.wait()


def ours(database: Database, sql: str):
    try:
        return database.run(sql)
    except MySQLError as error:
        return error.code


def alike(one, other) -> bool:
    """Whether results are the same: of floats nearly, of all else also the type."""
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


def golden(folder: Path) -> str:
    """What tests/golden/mysql.txt holds: a statement, and below it its rows, or what the table is then, or the code."""
    server, lines = Original(folder), []
    for seed in range(STATEMENTS):
        sql = statement(Random(f"parity {seed}"))
        server.load(TABLE, COLUMNS, ROWS)
        found = server.run(sql)
        if not sql.startswith(("SELECT", "WITH")) and found == []:
            found = server.run(f"SELECT * FROM {TABLE}")
        lines += [sql, repr(found)]
    server.close()
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        print(golden(Path(place)), end="")
