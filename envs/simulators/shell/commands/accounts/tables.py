"""The user and group files under /etc as tables: read, change and write them back. Shared by the account commands."""

import re

from envs.simulators.shell.commands.files import make_parents
from envs.simulators.shell.commands.options import Fail, getopt, required
from envs.simulators.shell.commands.times import TimeError, parse_time
from envs.simulators.shell.files import bytes_of, raw, text
from envs.simulators.shell.process import Process
from envs.simulators.shell.records import IS_RECORD

FILES = ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")
NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,30}[A-Za-z0-9_.$-]?")
DAY = 86400


def opened(
    p: Process, usage: str, short: str, long: dict, status: int = 2, least: int = 0
) -> tuple["Accounts", dict, list[str]]:
    """Return the tables, the options as getopt does, and at most one name; Fail with the usage for an invalid line."""
    accounts = Accounts(p, usage)
    try:
        options, names = getopt(p.argv, short, long, status=status)
    except Fail as failure:
        raise accounts.misused(failure.message, status) from None
    if not least <= len(names) <= 1:
        raise accounts.misused(status=status)
    return accounts, options, names


class Accounts:
    """The tables, each a list of records (lists of fields). `save` writes those that changed.

    Invalid lines are ignored and stay in the files.
    """

    def __init__(self, p: Process, usage: str = ""):
        self.p, self.usage = p, usage
        self.tables: dict[str, list[list[str]]] = {}
        self.others: dict[str, dict[int, str]] = {}  # by their places
        self.before: dict[str, str] = {}
        for name in FILES:
            data = p.machine.content(f"/etc/{name}")
            if data is None:
                continue
            p.tick(len(data) >> 5)
            self.before[name] = text(data)
            lines = [line for line in text(data).split("\n") if line]
            known = [bool(IS_RECORD[f"/etc/{name}"](line)) for line in lines]
            self.tables[name] = [line.split(":") for line, sound in zip(lines, known, strict=True) if sound]
            self.others[name] = {i: line for i, line in enumerate(lines) if not known[i]}
        self.passwd, self.group, self.shadow, self.gshadow = (self.tables.setdefault(name, []) for name in FILES[:4])

    def misused(self, message: str = "", status: int = 2) -> Fail:
        what = f"{self.p.argv[0]}: {message}\n" if message else ""
        return Fail(f"{what}Usage: {self.usage}", status, plain=True)

    def need_root(self, path: str = "/etc/passwd") -> None:
        if self.p.uid:
            name = self.p.argv[0]
            raise Fail(f"{name}: Permission denied.\n{name}: cannot lock {path}; try again later.", plain=True)

    def save(self) -> None:
        for name, records in self.tables.items():
            lines = [":".join(record) for record in records]
            for place, line in self.others.get(name, {}).items():
                lines.insert(place, line)
            data = "".join(line + "\n" for line in lines)
            if data != self.before.get(name, ""):
                self.p.write(f"/etc/{name}", raw(data), mode=0o640 if "shadow" in name else 0o644)

    def user(self, key: str) -> list[str] | None:
        return find(self.passwd, key)

    def named_group(self, key: str) -> list[str] | None:
        """Return a group by its name or number."""
        return find(self.group, key) or (find(self.group, key, 2) if key.isdecimal() else None)

    def setting(self, name: str, default: str) -> str:
        """Return a number of /etc/login.defs; invalid values are ignored."""
        data = text(self.p.machine.content("/etc/login.defs") or b"")
        self.p.tick(len(data) >> 8)
        found = re.search(rf"^{name}[ \t]+(\d{{1,9}})\s*$", data, re.MULTILINE)
        return found[1] if found else default

    def home_mode(self) -> int:
        """Return the mode of new home folders."""
        said = self.setting("HOME_MODE", "0750")
        return int(said, 8) & 0o7777 if set(said) <= set("01234567") else 0o750

    def free_id(self, table: list[list[str]], system: bool, kind: str) -> int:
        """Return the number of a new user ("UID") or group ("GID"): above the highest, or below the system's lowest."""
        prefix, lowest, highest = ("SYS_", "100", "999") if system else ("", "1000", "60000")
        low, high = int(self.setting(f"{prefix}{kind}_MIN", lowest)), int(self.setting(f"{prefix}{kind}_MAX", highest))
        used = {int(record[2]) for record in table}
        inside = [number for number in used if low <= number <= high]
        number = (min(inside) - 1 if system else max(inside) + 1) if inside else high if system else low
        if low <= number <= high:
            return number
        free = next((n for n in (range(high, low - 1, -1) if system else range(low, high + 1)) if n not in used), None)
        return required(free, f"Can't get unique {'system ' * system}{kind} (no more available {kind}s)", 4)

    def new_group(self, name: str, gid: int, password: str = "", members: str = "") -> None:
        self.group.append([name, "x", str(gid), members])
        self.gshadow.append([name, password or "!", "", members])

    def secrets(self, name: str) -> list[str]:
        """Return a user's record in /etc/shadow, made if it is missing."""
        if not find(self.shadow, name):
            self.shadow.append([name, "!", *[""] * 7])
        return find(self.shadow, name)

    def join(self, user: str, group: str) -> None:
        for table in (self.group, self.gshadow):
            if record := find(table, group):
                record[3] = ",".join(dict.fromkeys([*names_in(record[3]), user]))

    def leave(self, user: str, group: str) -> None:
        for table in (self.group, self.gshadow):
            if record := find(table, group):
                record[3] = without(record[3], user)

    def member_of(self, user: str) -> list[str]:
        return [record[0] for record in self.group if user in record[3].split(",")]

    def remove_user(self, name: str) -> None:
        """Remove a user's records, memberships and, if nobody else uses it, the group of the same name."""
        user = self.user(name)
        for key in {"passwd", "shadow", "subuid", "subgid"} & set(self.tables):
            self.tables[key][:] = [record for record in self.tables[key] if record[0] != name]
        for group in self.member_of(name):
            self.leave(name, group)
        for record in self.gshadow:
            record[2] = without(record[2], name)
        own = find(self.group, name)
        if own and user and own[2] == user[3] and not own[3] and not find(self.passwd, own[2], 3):
            self.remove_group(name)

    def remove_group(self, name: str) -> None:
        for table in (self.group, self.gshadow):
            table[:] = [record for record in table if record[0] != name]

    def subordinate(self, name: str) -> None:
        """Add a range of subordinate numbers for a new user."""
        for key in ("subuid", "subgid"):
            if key in self.tables:
                ends = [int(start) + int(count) for _, start, count in self.tables[key]]
                self.tables[key].append([name, str(max([100000, *ends])), "65536"])

    def today(self) -> str:
        return str(int(self.p.machine.clock // DAY))


def find(table: list[list[str]], key: str, column: int = 0) -> list[str] | None:
    return next((record for record in table if record[column] == key), None)


def names_in(names: str | None) -> list[str]:
    return [name for name in (names or "").split(",") if name]


def without(names: str, name: str) -> str:
    return ",".join(other for other in names_in(names) if other != name)


def valid_name(name: str) -> bool:
    return bool(NAME.fullmatch(name)) and len(name) <= 32 and name not in (".", "..")


def days(value: str, now: float) -> str | None:
    """Return a date as days since 1970, "" for no date (-1 or empty), None if it is invalid."""
    if value in ("", "-1"):
        return ""
    if re.fullmatch(r"-?\d{1,9}", value):
        return value if int(value) >= 0 else None
    try:
        return str(int(parse_time(value, now) // DAY))
    except TimeError:
        return None


def warn_shell(p: Process, shell: str) -> None:
    """Warn of a shell that cannot run; Fail if it is not a path."""
    if shell and (not shell.startswith("/") or ":" in shell):
        raise Fail(f"invalid shell '{shell}'", 3)
    node = p.find(shell)
    if shell and not (node and node.kind != "dir" and node.mode & 0o111):
        p.fail(f"Warning: missing or non-executable shell '{shell}'")


def fill_home(p: Process, home: str, uid: int, gid: int, mode: int, skel: str = "/etc/skel") -> None:
    """Make a new home folder and copy the skeleton into it."""
    make_parents(p, home)
    node = p.mkdir(home)
    node.mode, node.uid, node.gid = mode, uid, gid
    if p.is_dir(skel):
        _copy_below(p, skel, home, uid, gid)


def _copy_below(p: Process, source: str, into: str, uid: int, gid: int) -> None:
    for name in sorted(p.lookup(source).data):
        node, path = p.lookup(f"{source}/{name}", follow=False), f"{into}/{name}"
        if node.kind == "dir":
            made = p.mkdir(path)
            _copy_below(p, f"{source}/{name}", path, uid, gid)
        elif node.kind == "link":
            made = p.symlink(node.data, path)
        else:
            made = p.write(path, bytes_of(node))
        made.mode, made.uid, made.gid = node.mode, uid, gid
