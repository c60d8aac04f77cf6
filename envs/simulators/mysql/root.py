"""Statements of MySQL's root about users, rights and databases. They touch no table.

They are matched as text, before the grammar reads anything. Users and databases are kept by name; a right that is
granted is not, because everything here is done by root.
"""

import re
from dataclasses import dataclass, field

from envs.simulators.mysql.tokens import MySQLError, not_spoken, syntax_error

QUOTED = r"""'[^']*'|"[^"]*"|`[^`]+`"""
NAME, HOST = rf"(?:{QUOTED}|[\w$]+)", rf"(?:{QUOTED}|[\w$.%-]+)"
USER = re.compile(rf" ?({NAME})(?: ?@ ?({HOST}))?(?: [A-Z]+ .+| )?", re.IGNORECASE)
PIECE = re.compile(rf"(?:{QUOTED}|[^,'\"`])+")  # of a list with commas
PLACE = rf"(?: ON (?:TABLE )?(?P<place>(?:(?:\*|{NAME})\.)?(?:\*|{NAME})))?"
LENIENT = r"(?P<lenient> IF(?: NOT)? EXISTS)?"
FORMS = {  # method of Server -> the form of its statement
    "user": rf"(?P<verb>CREATE|ALTER|DROP) (?P<kind>USER|ROLE){LENIENT} (?P<users>.+)",
    "grant": rf"GRANT .+?{PLACE} TO (?P<users>.+)",
    "revoke": rf"REVOKE .+?{PLACE} FROM (?P<users>.+)",
    "database_": rf"(?P<verb>CREATE|DROP) (?:DATABASE|SCHEMA){LENIENT} (?P<name>{NAME})"
    r"(?: (?:DEFAULT|CHARACTER|CHARSET|COLLATE|ENCRYPTION)\b.*)?",
    "use": rf"USE (?P<name>{NAME})",
    "flush": r"FLUSH (?:PRIVILEGES|TABLES|LOGS|STATUS|HOSTS)",
}
READ = {name: re.compile(form, re.IGNORECASE) for name, form in FORMS.items()}
ROOTS = re.compile(r"\s*(?:CREATE|ALTER|DROP|GRANT|REVOKE|USE|FLUSH)\b", re.IGNORECASE)  # first words of them all
SYSTEM = frozenset(("information_schema", "mysql", "performance_schema", "sys"))


@dataclass
class Server:
    """A server's databases, of which one is in use, and its users beside root."""

    database: str = ""
    tables: dict = field(default_factory=dict)  # of the database in use, by name
    databases: set[str] = field(default_factory=set)  # that were created beside it
    users: set[tuple[str, str]] = field(default_factory=set)  # (name, host)

    def answers(self, sql: str) -> bool:
        """Execute a statement about users, rights or databases; return whether it was one."""
        plain = " ".join(sql.split())
        for name, form in READ.items():
            if found := form.fullmatch(plain):
                getattr(self, name)(**found.groupdict())
                return True
        return False

    def user(self, verb: str, kind: str, lenient: str | None, users: str) -> None:
        given, created = _users(users), verb.upper() == "CREATE"
        wrong = [user for user in given if (user in self.users) == created]
        if wrong and not lenient:
            listed = ",".join(f"'{name}'@'{host}'" for name, host in wrong)
            raise MySQLError(1396, "HY000", f"Operation {verb.upper()} {kind.upper()} failed for {listed}")
        if created:
            self.users.update(given)
        elif verb.upper() == "DROP":
            self.users.difference_update(given)

    def grant(self, place: str | None, users: str) -> None:
        self._check_place(place)
        if not self.users.issuperset(_users(users)):
            raise MySQLError(1410, "42000", "You are not allowed to create a user with GRANT")

    def revoke(self, place: str | None, users: str) -> None:
        self._check_place(place)
        for name, host in _users(users):
            if (name, host) not in self.users:
                text = f"There is no such grant defined for user '{name}' on host '{host}'"
                raise MySQLError(1141, "42000", text)

    def database_(self, verb: str, lenient: str | None, name: str) -> None:
        name, created = _plain(name), verb.upper() == "CREATE"
        exists = name in self.databases | SYSTEM | {self.database}
        if exists == created and not lenient:
            if created:
                raise MySQLError(1007, "HY000", f"Can't create database '{name}'; database exists")
            raise MySQLError(1008, "HY000", f"Can't drop database '{name}'; database doesn't exist")
        if not created and name in SYSTEM | {self.database}:
            raise not_spoken(f"DROP DATABASE {name}")
        if created and not exists:
            self.databases.add(name)
        elif not created:
            self.databases.discard(name)

    def use(self, name: str) -> None:
        name = _plain(name)
        if name in self.databases | SYSTEM:
            raise not_spoken(f"USE {name}")
        if name != self.database:
            raise MySQLError(1049, "42000", f"Unknown database '{name}'")

    def flush(self) -> None:
        """Nothing waits to be written."""

    def _check_place(self, place: str | None) -> None:
        """Raise MySQLError for a table that the database in use does not have."""
        *before, table = map(_plain, re.findall(rf"\*|{NAME}", place or "*"))
        if table != "*" and (before or [self.database])[0] == self.database and table not in self.tables:
            raise MySQLError(1146, "42S02", f"Table '{self.database}.{table}' doesn't exist")


def _users(text: str) -> list[tuple[str, str]]:
    """Return the name and the host of each user in a list. What follows a user, such as its password, is not kept."""
    pieces = PIECE.findall(text)
    found = [USER.fullmatch(piece) for piece in pieces]
    if not all(found) or ",".join(pieces) != text:
        raise syntax_error(text.strip())
    return [(_plain(user[1]), _plain(user[2] or "%")) for user in found]


def _plain(name: str) -> str:
    return name[1:-1] if name[0] in "'\"`" else name
