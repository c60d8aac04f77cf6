"""Parse the colon-separated files in /etc (passwd, group, shadow, ...): valid lines, and lookups by name and number."""

import re
from dataclasses import dataclass

ANY, NUMBER, MAYBE = "[^:]*", r"\d{1,10}", r"\d{0,10}"
RECORDS = {  # what a line of these files must be to count: glibc and the programs for users pass over others
    "/etc/passwd": f"{ANY}:{ANY}:{NUMBER}:{NUMBER}:{ANY}:{ANY}:{ANY}",
    "/etc/group": f"{ANY}:{ANY}:{NUMBER}:{ANY}",
    "/etc/shadow": f"{ANY}:{ANY}:" + f"{MAYBE}:" * 6 + ANY,
    "/etc/gshadow": f"{ANY}:{ANY}:{ANY}:{ANY}",
    "/etc/subuid": f"{ANY}:{NUMBER}:{NUMBER}",
    "/etc/subgid": f"{ANY}:{NUMBER}:{NUMBER}",
}
IS_RECORD = {path: re.compile(shape, re.ASCII).fullmatch for path, shape in RECORDS.items()}


@dataclass(frozen=True)
class Table:
    """One of these files, parsed."""

    data: bytes  # its bytes when it was read
    records: list[list[str]]  # the fields of each record
    first: dict[str | int, list[str]]  # of each name, and of users and groups of each number, the record that counts
    groups: dict[str, list[int]]  # of the file of groups: by user, the numbers of those that name the user as a member

    @classmethod
    def read(cls, path: str, data: bytes) -> "Table":
        records = [line.split(":") for line in data.decode("latin-1").split("\n") if IS_RECORD[path](line)]
        first: dict[str | int, list[str]] = {}
        groups: dict[str, list[int]] = {}
        for record in records:
            first.setdefault(record[0], record)
            if path in ("/etc/passwd", "/etc/group"):
                first.setdefault(int(record[2]), record)
            for name in record[3].split(",") if path == "/etc/group" else ():
                groups.setdefault(name, []).append(int(record[2]))
        return cls(data, records, first, groups)
