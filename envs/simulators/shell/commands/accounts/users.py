"""useradd, usermod and userdel."""

from envs.simulators.shell.commands.accounts import tables
from envs.simulators.shell.commands.accounts.tables import Accounts, days, find, names_in, opened, valid_name
from envs.simulators.shell.commands.files import Removal
from envs.simulators.shell.commands.modes import tree
from envs.simulators.shell.commands.options import Fail, attempt, required
from envs.simulators.shell.files import text
from envs.simulators.shell.process import Process

USERADD = {"badname": "B", "base-dir:": "b", "comment:": "c", "home-dir:": "d", "expiredate:": "e"}
USERADD |= {"inactive:": "f", "gid:": "g", "groups:": "G", "skel:": "k", "no-log-init": "l"}
USERADD |= {"create-home": "m", "no-create-home": "M", "no-user-group": "N", "non-unique": "o", "password:": "p"}
USERADD |= {"system": "r", "shell:": "s", "uid:": "u", "user-group": "U"}
USERMOD = {"append": "a", "badname": "b", "comment:": "c", "home:": "d", "expiredate:": "e", "inactive:": "f"}
USERMOD |= {"gid:": "g", "groups:": "G", "login:": "l", "lock": "L", "move-home": "m", "non-unique": "o"}
USERMOD |= {"password:": "p", "remove": "r", "shell:": "s", "uid:": "u", "unlock": "U"}


def useradd(p: Process) -> None:
    usage = "useradd [options] LOGIN\n       useradd -D\n       useradd -D [options]"
    accounts, chosen, (name,) = opened(p, usage, "b:c:d:e:f:g:G:k:lmMNop:rs:u:U", USERADD, least=1)
    _check(p, accounts, chosen, "comment")
    if "U" in chosen and "g" in chosen:
        raise accounts.misused("options -U and -g conflict")
    if not valid_name(name) and "B" not in chosen:
        raise Fail(f"invalid user name '{name}': use --badname to ignore", 3)
    accounts.need_root()
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
            tables.warn_shell(p, value)
        if flag == "u" and not (value.isdecimal() and len(value) < 10):
            raise Fail(f"invalid user ID '{value}'", 3)
        if flag == "l" and value and not valid_name(value):
            raise Fail(f"invalid user name '{value}': use --badname to ignore", 3)


def _check_groups(p: Process, accounts: Accounts, value: str) -> None:
    """Fail if a group of a list does not exist, and name each such group."""
    if unknown := [key for key in names_in(value) if not accounts.named_group(key)]:
        raise Fail("\n".join(f"{p.argv[0]}: group '{key}' does not exist" for key in unknown), 6, plain=True)


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
            tables.fill_home(p, home, uid, gid, accounts.home_mode(), chosen.get("k", "/etc/skel"))


def userdel(p: Process) -> int:
    long = {"force": "f", "remove": "r"}
    accounts, flags, (name,) = opened(p, "userdel [options] LOGIN", "frZ", long, least=1)
    user = required(accounts.user(name), f"user '{name}' does not exist", 6)
    accounts.need_root()
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
    if p.find(home) not in (None, p.machine.root):
        attempt(p, Removal(p, {"r", "f"}).start, home)
    else:
        p.fail(f"{name} home directory ({home}) not found")


def usermod(p: Process) -> None:
    accounts, chosen, (name,) = opened(p, "usermod [options] LOGIN", "abc:d:e:f:g:G:l:Lmop:rs:u:U", USERMOD, least=1)
    _check(p, accounts, chosen, "field")
    groups = [accounts.named_group(key)[0] for key in names_in(chosen["G"])] if "G" in chosen else None
    user = required(accounts.user(name), f"user '{name}' does not exist", 6)
    if not chosen:
        raise accounts.misused("no options")
    if "a" in chosen and groups is None:
        raise accounts.misused("-a flag is only allowed with the -G flag")
    if len({"L", "p", "U"} & set(chosen)) > 1:
        raise accounts.misused("the -L, -p, and -U flags are exclusive")
    if "m" in chosen and "d" not in chosen:
        raise accounts.misused("-m flag is only allowed with the -d flag")
    accounts.need_root()
    _change(p, accounts, user, chosen, groups)


def _change(p: Process, accounts: Accounts, user: list[str], chosen: dict, groups: list[str] | None) -> None:
    """Change a user's records, then the home folder."""
    name, new_name = user[0], chosen.get("l", user[0])
    old = list(user)
    shadow = find(accounts.shadow, name) or [name, "!", "", "", "", "", "", "", ""]
    old_shadow = list(shadow)
    if new_name != name and accounts.user(new_name):
        raise Fail(f"user '{new_name}' already exists", 9)
    if "u" in chosen and chosen["u"] != user[2] and "o" not in chosen and find(accounts.passwd, chosen["u"], 2):
        raise Fail(f"UID '{chosen['u']}' already exists", 4)
    user[3] = accounts.named_group(chosen["g"])[2] if "g" in chosen else user[3]
    for flag, column in (("u", 2), ("c", 4), ("d", 5), ("s", 6)):
        user[column] = chosen.get(flag, user[column])
    user[5] = user[5].rstrip("/") or "/"
    if "L" in chosen and not shadow[1].startswith("!"):
        shadow[1] = "!" + shadow[1]
    if "U" in chosen and shadow[1] == "!":
        p.fail("unlocking the user's password would result in a passwordless account.")
        p.stderr.write("You should set a password with usermod -p to unlock this user's password.\n")
    elif "U" in chosen:
        shadow[1] = shadow[1].removeprefix("!")
    if "p" in chosen:
        shadow[1:3] = chosen["p"], accounts.today()
    shadow[7] = days(chosen["e"], p.machine.clock) if "e" in chosen else shadow[7]
    shadow[6] = chosen["f"].replace("-1", "") if "f" in chosen else shadow[6]
    if groups is not None:
        _regroup(accounts, name, groups, chosen)
    if new_name != name:
        _rename(accounts, name, new_name)
    if (user, shadow, groups) == (old, old_shadow, None) and not {"L", "U", "p"} & set(chosen):
        p.fail("no changes")
        return
    accounts.save()
    (_move_home if "m" in chosen and old[5] != user[5] else _own_home)(p, old, user)


def _regroup(accounts: Accounts, name: str, groups: list[str], chosen: dict) -> None:
    others = [group for group in accounts.member_of(name) if group not in groups]
    for group in groups if "r" in chosen else [] if "a" in chosen else others:
        accounts.leave(name, group)
    for group in groups if "r" not in chosen else []:
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


def _move_home(p: Process, old: list[str], user: list[str]) -> None:
    if not p.exists(old[5]):
        why = "does not exist or is inaccessible. Move cannot be completed."
        p.fail(f"The previous home directory ({old[5]}) {why}")
        return
    if p.exists(user[5]):
        raise Fail(f"directory {user[5]} exists", 12)
    try:
        p.rename(old[5], user[5])
    except OSError:
        raise Fail(f"cannot rename directory {old[5]} to {user[5]}", 12) from None
    _own_home(p, old, user)


def _own_home(p: Process, old: list[str], user: list[str]) -> None:
    """Give the files in a user's home to the user's new number."""
    if old[2:4] != user[2:4] and p.exists(user[5]):
        for _, node in tree(p, user[5], p.lookup(user[5])):
            if node.uid == int(old[2]):
                node.uid = int(user[2])
            if node.gid == int(old[3]):
                node.gid = int(user[3])


COMMANDS = {"useradd": useradd, "userdel": userdel, "usermod": usermod}
