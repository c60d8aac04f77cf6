"""The user and group files under /etc as tables: read, change and write them back. Shared by the account commands."""

import re

from envs.simulators.shell.commands.options import Fail, getopt
from envs.simulators.shell.commands.times import TimeError, parse_time
from envs.simulators.shell.files import raw, text
from envs.simulators.shell.process import Process
from envs.simulators.shell.records import IS_RECORD

FILES = ("passwd", "group", "shadow", "gshadow", "subuid", "subgid")
NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.-]{0,30}[A-Za-z0-9_.$-]?")
DAY = 86400


def usage_options(
    p: Process, short: str, long: dict, usage: str, status: int = 2, least: int = 0, most: int = 1
) -> tuple[dict, list[str]]:
    """Parse options as getopt does; print the usage for an invalid one, and for too few or too many operands."""
    try:
        options, names = getopt(p.argv, short, long, status=status)
    except Fail as failure:
        raise usage_error(p, usage, failure.message, status) from None
    if not least <= len(names) <= most:
        raise usage_error(p, usage, status=status)
    return options, names


def usage_error(p: Process, usage: str, message: str = "", status: int = 2) -> Fail:
    return Fail((f"{p.argv[0]}: {message}\n" if message else "") + f"Usage: {usage}", status, plain=True)


def need_root(p: Process, path: str = "/etc/passwd") -> None:
    if p.uid:
        raise Fail(f"{p.argv[0]}: Permission denied.\n{p.argv[0]}: cannot lock {path}; try again later.", 1, plain=True)


class Accounts:
    """The tables, each a list of records (lists of fields). `save` writes those that changed.

    Invalid lines are ignored and stay in the files.
    """

    def __init__(self, p: Process):
        self.p = p
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
        self.passwd, self.group = self.tables.setdefault("passwd", []), self.tables.setdefault("group", [])
        self.shadow, self.gshadow = self.tables.setdefault("shadow", []), self.tables.setdefault("gshadow", [])

    def save(self) -> None:
        for name, records in self.tables.items():
            lines = [":".join(record) for record in records]
            for place, line in self.others.get(name, {}).items():
                lines.insert(place, line)
            data = "".join(line + "\n" for line in lines)
            if data != self.before.get(name, ""):
                mode = 0o640 if "shadow" in name else 0o644
                self.p.write(f"/etc/{name}", raw(data), mode=mode)

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
        """Return the number for a new user ("UID") or group ("GID"): above the highest, for the system below the
        lowest."""
        low = int(self.setting(f"SYS_{kind}_MIN" if system else f"{kind}_MIN", "100" if system else "1000"))
        high = int(self.setting(f"SYS_{kind}_MAX" if system else f"{kind}_MAX", "999" if system else "60000"))
        used = {int(record[2]) for record in table}
        inside = [number for number in used if low <= number <= high]
        number = (min(inside) - 1 if system else max(inside) + 1) if inside else high if system else low
        if low <= number <= high:
            return number
        free = next((n for n in (range(high, low - 1, -1) if system else range(low, high + 1)) if n not in used), None)
        if free is None:
            raise Fail(f"Can't get unique {'system ' if system else ''}{kind} (no more available {kind}s)", 4)
        return free

    def new_group(self, name: str, gid: int, password: str = "", members: str = "") -> None:
        self.group.append([name, "x", str(gid), members])
        self.gshadow.append([name, password or "!", "", members])

    def secrets(self, name: str) -> list[str]:
        """Return a user's record in /etc/shadow, made if it is missing."""
        record = find(self.shadow, name)
        if record is None:
            record = [name, "!", *[""] * 7]
            self.shadow.append(record)
        return record

    def join(self, user: str, group: str) -> None:
        """Make a user a member of a group."""
        for table in (self.group, self.gshadow):
            if record := find(table, group):
                members = [name for name in record[3].split(",") if name]
                record[3] = ",".join(members if user in members else [*members, user])

    def leave(self, user: str, group: str) -> None:
        for table in (self.group, self.gshadow):
            if record := find(table, group):
                record[3] = ",".join(name for name in record[3].split(",") if name and name != user)

    def member_of(self, user: str) -> list[str]:
        return [record[0] for record in self.group if user in record[3].split(",")]

    def remove_user(self, name: str) -> None:
        """Remove a user's records, memberships and, if nobody else uses it, the group of the same name."""
        user = self.user(name)
        for key in ("passwd", "shadow", "subuid", "subgid"):
            if key in self.tables:
                self.tables[key][:] = [record for record in self.tables[key] if record[0] != name]
        for group in self.member_of(name):
            self.leave(name, group)
        for record in self.gshadow:
            record[2] = ",".join(admin for admin in record[2].split(",") if admin and admin != name)
        own = find(self.group, name)
        if own and user and own[2] == user[3]:
            others = [record for record in self.passwd if record[3] == own[2]]
            if not others and not own[3]:
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
    if shell and not (p.exists(shell) and p.lookup(shell).kind != "dir" and p.lookup(shell).mode & 0o111):
        p.fail(f"Warning: missing or non-executable shell '{shell}'")


def fill_home(p: Process, home: str, uid: int, gid: int, mode: int, skel: str = "/etc/skel") -> None:
    """Make a new home folder and copy the skeleton into it."""
    parts = home.strip("/").split("/")
    for i in range(1, len(parts)):
        above = "/" + "/".join(parts[:i])
        if not p.exists(above):
            p.mkdir(above, 0o755)
    node = p.mkdir(home)
    node.mode = mode
    node.uid, node.gid = uid, gid
    if p.exists(skel) and p.lookup(skel).kind == "dir":
        _copy_below(p, skel, home, uid, gid)


def _copy_below(p: Process, source: str, into: str, uid: int, gid: int) -> None:
    for name in sorted(p.lookup(source).data):
        node = p.lookup(f"{source}/{name}", follow=False)
        path = f"{into}/{name}"
        if node.kind == "dir":
            made = p.mkdir(path)
            _copy_below(p, f"{source}/{name}", path, uid, gid)
        elif node.kind == "link":
            made = p.symlink(node.data, path)
        else:
            made = p.write(path, p.bytes_of(node))
        made.mode, made.uid, made.gid = node.mode, uid, gid
