"""id, groups, whoami, getent and su."""

from envs.simulators.shell.commands.modes import group_name, user_name
from envs.simulators.shell.commands.options import Fail, getopt, quote_value
from envs.simulators.shell.commands.system import launched
from envs.simulators.shell.process import Process

DATABASES = {"passwd": (0, 2), "group": (0, 2), "shadow": (0,), "gshadow": (0,)}  # columns that keys are looked up in


def id_(p: Process) -> None:
    long = {"user": "u", "group": "g", "groups": "G", "name": "n", "real": "r", "zero": "z", "context": "Z"}
    flags, names = getopt(p.argv, "agGnruzZ", long)
    flags = set(flags)
    only = flags & {"u", "g", "G"}
    if len(only) > 1:
        raise Fail('cannot print "only" of more than one choice')
    if flags & {"n", "r"} and not only:
        raise Fail("cannot print only names or real IDs in default format")
    if "z" in flags and not only:
        raise Fail("option --zero not permitted in default format")
    for name in names or [None]:
        found = _ids(p, name)
        if found is None:
            p.failed = p.fail(f"{quote_value(name)}: no such user")
            continue
        p.out(_shown(p, *found, only, "n" in flags) + ("\0" if "z" in flags else "\n"))


def _ids(p: Process, name: str | None) -> tuple[int, int, list[int]] | None:
    """Return the numbers of a user, its group and all its groups; None if there is no such user."""
    if name is None:
        return p.uid, p.gid, list(dict.fromkeys([p.gid, *p.groups]))
    record = p.machine.user(name) or (p.machine.user(int(name[:12])) if name.isdecimal() else None)
    if not record:
        return None
    return int(record[2]), int(record[3]), list(p.machine.groups_of(record[0]))


def _shown(p: Process, uid: int, gid: int, groups: list[int], only: set, names: bool) -> str:
    if "u" in only:
        return user_name(p, uid) if names else str(uid)
    if "g" in only:
        return group_name(p, gid) if names else str(gid)
    if "G" in only:
        return " ".join(group_name(p, group) if names else str(group) for group in groups)

    def both(number: int, record: list[str] | None) -> str:
        return f"{number}({record[0]})" if record else str(number)

    every = ",".join(both(group, p.machine.group(group)) for group in groups)
    return f"uid={both(uid, p.machine.user(uid))} gid={both(gid, p.machine.group(gid))} groups={every}"


def groups(p: Process) -> None:
    _, names = getopt(p.argv, "")
    for name in names or [None]:
        found = _ids(p, name) if name is None or p.machine.user(name) else None
        if found is None:
            p.failed = p.fail(f"{quote_value(name)}: no such user")
            continue
        prefix = f"{name} : " if name else ""
        p.out(prefix + " ".join(group_name(p, group) for group in found[2]) + "\n")


def whoami(p: Process) -> None:
    getopt(p.argv, "", most=0)
    if not p.machine.user(p.uid):
        raise Fail(f"cannot find name for user ID {p.uid}")
    p.out(user_name(p, p.uid) + "\n")


def getent(p: Process) -> int | None:
    hint = "Try `getent --help' or `getent --usage' for more information."
    _, names = getopt(p.argv, "")
    if not names:
        raise Fail(f"{p.argv[0]}: wrong number of arguments\n{hint}", 1, plain=True)
    database, keys = names[0], names[1:]
    if database not in DATABASES:
        raise Fail(f"Unknown database: {database}\n{hint}", 1, plain=True)
    if p.uid and "shadow" in database:
        return 2
    records = p.machine.records(f"/etc/{database}")
    if not keys:
        p.out("".join(":".join(record) + "\n" for record in records))
    for key in keys:
        columns = [column for column in DATABASES[database] if column == 0 or key.isdecimal()]
        found = next((r for c in columns for r in records if len(r) > c and r[c] == key), None)
        if found:
            p.out(":".join(found) + "\n")
        else:
            p.failed = 2


def su(p: Process) -> int:
    """Run a shell or a command as another user. Only root may, because no password can be typed."""
    long = {"command:": "c", "login": "l", "shell:": "s", "preserve-environment": "m"}
    chosen, operands = getopt(p.argv, "c:lms:p", long, permute=False)
    login = "l" in chosen
    if operands[:1] == ["-"]:
        login, operands = True, operands[1:]
    name = operands.pop(0) if operands else "root"
    more, operands = getopt([p.argv[0], *operands], "c:lms:p", long)
    chosen |= dict(more)
    user = p.machine.user(name)
    if not user:
        raise Fail(f"user {name} does not exist or the user entry does not contain all the required fields")
    if p.uid:
        p.stderr.write("Password: ")
        raise Fail("Authentication failure")
    env = dict(p.env) if not login else {key: p.env[key] for key in ("TERM",) if key in p.env}
    shell = chosen.get("s") or user[6] or "/bin/sh"
    env |= {"HOME": user[5], "SHELL": shell}
    if user[2] != "0" or login:
        env |= {"USER": name, "LOGNAME": name}
    if login:
        env["PATH"] = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
    changes = {"uid": int(user[2]), "gid": int(user[3]), "groups": p.machine.groups_of(name), "env": env}
    if login:
        there = p.exists(user[5])
        if not there:
            p.fail(f"warning: cannot change directory to {user[5]}: No such file or directory")
        changes["cwd"] = p.realpath(user[5]) if there else p.cwd
    argv = [shell, *(["-c", chosen["c"]] if "c" in chosen else []), *operands]
    changes["name"] = "-" * login + shell.rpartition("/")[2]
    return launched(p, argv, f"failed to execute {shell}", **changes)


COMMANDS = {"id": id_, "groups": groups, "whoami": whoami, "getent": getent, "su": su}
