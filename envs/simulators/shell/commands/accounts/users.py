"""useradd, usermod and userdel."""

from envs.simulators.shell.commands.accounts.tables import (
    Accounts,
    days,
    fill_home,
    find,
    names_in,
    need_root,
    usage_error,
    usage_options,
    valid_name,
    warn_shell,
)
from envs.simulators.shell.commands.files import Removal
from envs.simulators.shell.commands.modes import tree
from envs.simulators.shell.commands.options import Fail, attempt
from envs.simulators.shell.files import text
from envs.simulators.shell.process import Process

USERADD = {"badname": "B", "base-dir:": "b", "comment:": "c", "home-dir:": "d", "expiredate:": "e"}
USERADD |= {"inactive:": "f", "gid:": "g", "groups:": "G", "skel:": "k", "key:": "K", "no-log-init": "l"}
USERADD |= {"create-home": "m", "no-create-home": "M", "no-user-group": "N", "non-unique": "o", "password:": "p"}
USERADD |= {"system": "r", "shell:": "s", "uid:": "u", "user-group": "U"}
USERMOD = {"append": "a", "badname": "b", "comment:": "c", "home:": "d", "expiredate:": "e", "inactive:": "f"}
USERMOD |= {"gid:": "g", "groups:": "G", "login:": "l", "lock": "L", "move-home": "m", "non-unique": "o"}
USERMOD |= {"password:": "p", "remove": "r", "shell:": "s", "uid:": "u", "unlock": "U"}


def useradd(p: Process) -> None:
    usage = "useradd [options] LOGIN\n       useradd -D\n       useradd -D [options]"
    chosen, names = usage_options(p, "b:c:d:e:f:g:G:k:K:lmMNop:rs:u:U", USERADD, usage, least=1)
    accounts = Accounts(p)
    _check(p, accounts, chosen, "comment")
    if "U" in chosen and "g" in chosen:
        raise usage_error(p, usage, "options -U and -g conflict")
    name = names[0]
    if not valid_name(name) and "B" not in chosen:
        raise Fail(f"invalid user name '{name}': use --badname to ignore", 3)
    need_root(p)
    if accounts.user(name):
        raise Fail(f"user '{name}' already exists", 9)
    own = "U" in chosen or ("g" not in chosen and "N" not in chosen)
    if own and find(accounts.group, name):
        raise Fail(f"group {name} exists - if you want to add this user to that group, use -g.", 9)
    uid = int(chosen["u"]) if "u" in chosen else accounts.free_id(accounts.passwd, "r" in chosen, "UID")
    if "u" in chosen and "o" not in chosen and find(accounts.passwd, str(uid), 2):
        raise Fail(f"UID {uid} is not unique", 4)
    add(p, accounts, name, uid, own, chosen)


def _default_shell(p: Process) -> str:
    """Return the shell of new users, from /etc/default/useradd."""
    data = text(p.machine.content("/etc/default/useradd") or b"")
    return next((line[6:] for line in data.split("\n") if line.startswith("SHELL=")), "/bin/sh")


def _check(p: Process, accounts: Accounts, chosen: dict, comment: str) -> None:
    """Fail for invalid values, in the order of the options."""
    for flag, value in chosen.items():
        if flag == "c" and ":" in value:
            raise Fail(f"invalid {comment} '{value}'", 3)
        if flag in "db" and value and not value.startswith("/"):
            raise Fail(f"invalid {'home' if flag == 'd' else 'base'} directory '{value}'", 3)
        if flag == "e" and days(value, p.machine.clock) is None:
            raise Fail(f"invalid date '{value}'", 3)
        if flag == "f" and not value.removeprefix("-").isdecimal():
            raise Fail(f"invalid numeric argument '{value}'", 3)
        if flag == "g" and not accounts.named_group(value):
            raise Fail(f"group '{value}' does not exist", 6)
        if flag == "G":
            _check_groups(p, accounts, value)
        if flag == "s":
            warn_shell(p, value)
        if flag == "u" and not (value.isdecimal() and len(value) < 10):
            raise Fail(f"invalid user ID '{value}'", 3)
        if flag == "l" and value and not valid_name(value):
            raise Fail(f"invalid user name '{value}': use --badname to ignore", 3)


def _check_groups(p: Process, accounts: Accounts, value: str) -> None:
    """Fail if a group of a list does not exist, and name each such group."""
    unknown = [key for key in names_in(value) if not accounts.named_group(key)]
    for key in unknown:
        p.fail(f"group '{key}' does not exist")
    if unknown:
        raise Fail(status=6)


def add(p: Process, accounts: Accounts, name: str, uid: int, own: bool, chosen: dict) -> None:
    system = "r" in chosen
    gid = 100
    if "g" in chosen:
        gid = int(accounts.named_group(chosen["g"])[2])
    elif own:
        gid = uid
        if find(accounts.group, str(uid), 2):
            gid = accounts.free_id(accounts.group, system, "GID")
        accounts.new_group(name, gid)
    home = chosen.get("d") or f"{chosen.get('b', '/home')}/{name}"
    shell = chosen.get("s", _default_shell(p))
    accounts.passwd.append([name, "x", str(uid), str(gid), chosen.get("c", ""), home, shell])
    age = ["", "", ""] if system else [accounts.setting(f"PASS_{key}", default) for key, default in
                                       (("MIN_DAYS", "0"), ("MAX_DAYS", "99999"), ("WARN_AGE", "7"))]  # fmt: skip
    inactive = chosen.get("f", "").replace("-1", "")
    expires = days(chosen.get("e", ""), p.machine.clock)
    accounts.shadow.append([name, chosen.get("p", "!"), accounts.today(), *age, inactive, expires, ""])
    for group in names_in(chosen.get("G")):
        accounts.join(name, accounts.named_group(group)[0])
    if not system:
        accounts.subordinate(name)
    accounts.save()
    if "m" in chosen and "M" not in chosen:
        if p.exists(home):
            p.fail(f"warning: the home directory {home} already exists.")
            p.fail("Not copying any file from skel directory into it.")
        else:
            fill_home(p, home, uid, gid, accounts.home_mode(), chosen.get("k", "/etc/skel"))


def userdel(p: Process) -> int:
    usage = "userdel [options] LOGIN"
    flags, (name,) = usage_options(p, "frZ", {"force": "f", "remove": "r"}, usage, least=1)
    accounts = Accounts(p)
    user = accounts.user(name)
    if not user:
        raise Fail(f"user '{name}' does not exist", 6)
    need_root(p)
    accounts.remove_user(name)
    accounts.save()
    if "r" in flags:
        _remove_home(p, name, user[5])
    return 0


def _remove_home(p: Process, name: str, home: str) -> None:
    if not p.exists(f"/var/mail/{name}"):
        p.fail(f"{name} mail spool (/var/mail/{name}) not found")
    else:
        p.unlink(f"/var/mail/{name}")
    if p.exists(home) and p.lookup(home) is not p.machine.root:
        attempt(p, Removal(p, {"r", "f"}).start, home)
    else:
        p.fail(f"{name} home directory ({home}) not found")


def usermod(p: Process) -> int:
    usage = "usermod [options] LOGIN"
    chosen, names = usage_options(p, "abc:d:e:f:g:G:l:Lmop:rs:u:U", USERMOD, usage, least=1)
    accounts = Accounts(p)
    _check(p, accounts, chosen, "field")
    groups = [accounts.named_group(key)[0] for key in names_in(chosen["G"])] if "G" in chosen else None
    user = accounts.user(names[0])
    if not user:
        raise Fail(f"user '{names[0]}' does not exist", 6)
    if not chosen:
        raise usage_error(p, usage, "no options")
    if "a" in chosen and groups is None:
        raise usage_error(p, usage, "-a flag is only allowed with the -G flag")
    if len({"L", "p", "U"} & set(chosen)) > 1:
        raise usage_error(p, usage, "the -L, -p, and -U flags are exclusive")
    if "m" in chosen and "d" not in chosen:
        raise usage_error(p, usage, "-m flag is only allowed with the -d flag")
    need_root(p)
    return _change(p, accounts, user, chosen, groups)


def _change(p: Process, accounts: Accounts, user: list[str], chosen: dict, groups: list[str] | None) -> int:
    """Change a user's records, then the home folder."""
    name, new_name = user[0], chosen.get("l", user[0])
    old = list(user)
    shadow = find(accounts.shadow, name) or [name, "!", "", "", "", "", "", "", ""]
    old_shadow = list(shadow)
    if new_name != name and accounts.user(new_name):
        raise Fail(f"user '{new_name}' already exists", 9)
    if "u" in chosen and chosen["u"] != user[2] and "o" not in chosen and find(accounts.passwd, chosen["u"], 2):
        raise Fail(f"UID '{chosen['u']}' already exists", 4)
    user[2] = chosen.get("u", user[2])
    user[3] = accounts.named_group(chosen["g"])[2] if "g" in chosen else user[3]
    user[4], user[5], user[6] = (
        chosen.get("c", user[4]),
        chosen.get("d", user[5]).rstrip("/") or "/",
        chosen.get("s", user[6]),
    )
    if "L" in chosen and not shadow[1].startswith("!"):
        shadow[1] = "!" + shadow[1]
    if "U" in chosen and shadow[1].startswith("!"):
        if shadow[1] == "!":
            message = "unlocking the user's password would result in a passwordless account."
            p.fail(message)
            p.stderr.write("You should set a password with usermod -p to unlock this user's password.\n")
        else:
            shadow[1] = shadow[1][1:]
    if "p" in chosen:
        shadow[1:3] = chosen["p"], accounts.today()
    shadow[7] = days(chosen["e"], p.machine.clock) if "e" in chosen else shadow[7]
    shadow[6] = chosen["f"].replace("-1", "") if "f" in chosen else shadow[6]
    if groups is not None:
        _regroup(accounts, name, groups, chosen)
    if new_name != name:
        _rename(accounts, name, new_name)
    same = user == old and shadow == old_shadow
    if same and groups is None and not {"L", "U", "p"} & set(chosen):
        p.fail("no changes")
        return 0
    accounts.save()
    return _move_home(p, old, user) if "m" in chosen and old[5] != user[5] else _own_home(p, old, user)


def _regroup(accounts: Accounts, name: str, groups: list[str], chosen: dict) -> None:
    if "r" in chosen:
        for group in groups:
            accounts.leave(name, group)
        return
    for group in accounts.member_of(name):
        if group not in groups and "a" not in chosen:
            accounts.leave(name, group)
    for group in groups:
        accounts.join(name, group)


def _rename(accounts: Accounts, name: str, new_name: str) -> None:
    """Rename a user; its records and its places in groups move to the end."""
    for key in ("passwd", "shadow"):
        if record := find(accounts.tables[key], name):
            record[0] = new_name
            accounts.tables[key].remove(record)
            accounts.tables[key].append(record)
    for group in accounts.member_of(name):
        accounts.leave(name, group)
        accounts.join(new_name, group)
    for record in accounts.gshadow:
        record[2] = ",".join(new_name if admin == name else admin for admin in record[2].split(","))


def _move_home(p: Process, old: list[str], user: list[str]) -> int:
    if not p.exists(old[5]):
        home = old[5]
        message = f"The previous home directory ({home}) does not exist or is inaccessible. Move cannot be completed."
        p.fail(message)
        return 0
    if p.exists(user[5]):
        return p.fail(f"directory {user[5]} exists", 12)
    try:
        p.rename(old[5], user[5])
    except OSError:
        return p.fail(f"cannot rename directory {old[5]} to {user[5]}", 12)
    return _own_home(p, old, user)


def _own_home(p: Process, old: list[str], user: list[str]) -> None:
    """Give the files in a user's home to the user's new number."""
    if old[2:4] != user[2:4] and p.exists(user[5]):
        for _, node in tree(p, user[5], p.lookup(user[5])):
            if node.uid == int(old[2]):
                node.uid = int(user[2])
            if node.gid == int(old[3]):
                node.gid = int(user[3])


COMMANDS = {"useradd": useradd, "userdel": userdel, "usermod": usermod}
