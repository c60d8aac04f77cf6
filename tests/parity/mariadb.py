"""A MariaDB server of its own, to answer statements beside our MySQL and to write its golden file.

It needs the server's program, mariadbd, on PATH or under MARIADBD (Debian's mariadb-server), and
`pip install mysql-connector-python`.
"""

import importlib.util
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from random import Random

import golden
from mysql_statements import COLUMNS, ROWS, TABLE, statement

STATEMENTS = 1000
MODES = "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,NO_ENGINE_SUBSTITUTION"


def server_program() -> str:
    return os.environ.get("MARIADBD") or shutil.which("mariadbd") or "/usr/sbin/mariadbd"


def available() -> str:
    """Return why no server can be run here, or an empty text."""
    if not importlib.util.find_spec("mysql"):
        return "pip install mysql-connector-python"
    return "" if os.path.exists(server_program()) else "MariaDB's server is missing: apt install mariadb-server"


class Original:
    """A server in a folder, and a connection to it."""

    def __init__(self, folder: Path):
        import mysql.connector

        self.error = mysql.connector.Error
        server = server_program()
        messages = Path(server).resolve().parents[1] / "share" / "mysql"
        command = [server, "--no-defaults", f"--datadir={folder}", f"--socket={folder}/s", "--skip-networking"]
        command += ["--skip-grant-tables", "--character-set-server=utf8mb4", "--innodb-buffer-pool-size=16M"]
        command += [f"--lc-messages-dir={messages}"] * messages.exists() + ["--user=root"] * (os.getuid() == 0)
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        options = {"unix_socket": f"{folder}/s", "user": "root", "collation": "utf8mb4_general_ci", "use_pure": True}
        for _ in range(300):
            try:
                self.connection = mysql.connector.connect(**options)
                break
            except self.error:
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
        """Return the rows, or the error's code."""
        try:
            self.cursor.execute(sql)
            return [tuple(row) for row in self.cursor.fetchall()] if self.cursor.description else []
        except self.error as error:
            return error.errno

    def close(self) -> None:
        self.connection.close()
        self.server.terminate()
        self.server.wait()


def cases() -> list[dict]:
    """Return the golden cases: a statement, and its rows, or the table that a change leaves, or the error's code."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        server = Original(Path(folder))
        for seed in range(STATEMENTS):
            sql = statement(Random(f"parity {seed}"))
            server.load(TABLE, COLUMNS, ROWS)
            result = server.run(sql)
            if not sql.startswith(("SELECT", "WITH")) and result == []:
                result = server.run(f"SELECT * FROM {TABLE}")
            found.append(golden.case(sql, repr(result)))
        server.close()
    return found
