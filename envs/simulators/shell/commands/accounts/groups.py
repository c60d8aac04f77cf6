"""groupadd, groupmod, groupdel and gpasswd."""

from envs.simulators.shell.commands.accounts.tables import Accounts, find, names_in, opened, valid_name
from envs.simulators.shell.commands.options import Fail, required
from envs.simulators.shell.process import Process


def group_number(value: str) -> str:
    if not (value.isdecimal() and len(value) < 10):
        raise Fail(f"invalid group ID '{value}'", 3)
    return str(int(value))


def groupadd(p: Process) -> None:
    long = {"force": "f", "gid:": "g", "non-unique": "o", "password:": "p", "system": "r", "users:": "U"}
    accounts, chosen, (name,) = opened(p, "groupadd [options] GROUP", "fg:op:rU:", long, least=1)
    gid = group_number(chosen["g"]) if "g" in chosen else None
    if not valid_name(name):
        raise Fail(f"'{name}' is not a valid group name", 3)
    accounts.need_root("/etc/group")
    if find(accounts.group, name):
        if "f" in chosen:
            return
        raise Fail(f"group '{name}' already exists", 9)
    if gid is not None and "o" not in chosen and find(accounts.group, gid, 2):
        if "f" not in chosen:
            raise Fail(f"GID '{gid}' already exists", 4)
        gid = None
    number = int(gid) if gid is not None else accounts.free_id(accounts.group, "r" in chosen, "GID")
    accounts.new_group(name, number, chosen.get("p", ""), chosen.get("U", ""))
    accounts.save()


def groupdel(p: Process) -> None:
    accounts, options, (name,) = opened(p, "groupdel [options] GROUP", "f", {"force": "f"}, least=1)
    remove_group(accounts, name, bool(options), p.argv[0])


def remove_group(accounts: Accounts, name: str, force: bool, program: str) -> None:
    group = find(accounts.group, name)
    if not group:
        raise Fail(f"{program}: group '{name}' does not exist", 6, plain=True)
    accounts.need_root("/etc/group")
    primary = find(accounts.passwd, group[2], 3)
    if primary and not force:
        raise Fail(f"{program}: cannot remove the primary group of user '{primary[0]}'", 8, plain=True)
    accounts.remove_group(name)
    accounts.save()


def groupmod(p: Process) -> None:
    long = {"gid:": "g", "new-name:": "n", "non-unique": "o"}
    accounts, chosen, (name,) = opened(p, "groupmod [options] GROUP", "g:n:o", long, least=1)
    gid, new = group_number(chosen["g"]) if "g" in chosen else None, chosen.get("n", name)
    group = required(find(accounts.group, name), f"group '{name}' does not exist", 6)
    secrets = find(accounts.gshadow, name)
    if new != name and not valid_name(new):
        raise Fail(f"invalid group name '{new}'", 3)
    if new != name and find(accounts.group, new):
        raise Fail(f"group '{new}' already exists", 9)
    accounts.need_root("/etc/group")
    if gid is not None and gid != group[2]:
        if "o" not in chosen and find(accounts.group, gid, 2):
            raise Fail(f"GID '{gid}' already exists", 4)
        for user in accounts.passwd:
            user[3] = gid if user[3] == group[2] else user[3]
        group[2] = gid
    for record in filter(None, (group, secrets)):
        record[0] = new
    accounts.save()


def gpasswd(p: Process) -> None:
    long = {"add:": "a", "delete:": "d", "remove-password": "r", "restrict": "R", "members:": "M"}
    long |= {"administrators:": "A"}
    accounts, chosen, (name,) = opened(p, "gpasswd [option] GROUP", "a:d:rRM:A:", long, least=1)
    if len(set(chosen) - {"A", "M"}) + bool({"A", "M"} & set(chosen)) != 1:
        raise accounts.misused()
    named = [chosen["a"]] if "a" in chosen else names_in(chosen.get("A")) + names_in(chosen.get("M"))
    unknown = [user for user in named if not accounts.user(user)]
    if unknown:
        raise Fail("\n".join(f"{p.argv[0]}: user '{user}' does not exist" for user in unknown), 3, plain=True)
    group = required(find(accounts.group, name), f"group '{name}' does not exist in /etc/group", 3)
    if not find(accounts.gshadow, name):
        accounts.gshadow.append([name, "!", "", group[3]])
    secrets = find(accounts.gshadow, name)
    me = find(accounts.passwd, str(p.uid), 2)
    if p.uid and ({"A", "M"} & set(chosen) or not me or me[0] not in names_in(secrets[2])):
        raise Fail("Permission denied.")
    if "a" in chosen:
        p.out(f"Adding user {chosen['a']} to group {name}\n")
        accounts.join(chosen["a"], name)
    elif "d" in chosen:
        p.out(f"Removing user {chosen['d']} from group {name}\n")
        if chosen["d"] not in names_in(group[3]):
            raise Fail(f"user '{chosen['d']}' is not a member of '{name}'", 3)
        accounts.leave(chosen["d"], name)
    elif "r" in chosen or "R" in chosen:
        secrets[1] = "" if "r" in chosen else "!"
    if "A" in chosen:
        secrets[2] = chosen["A"]
    if "M" in chosen:
        group[3] = secrets[3] = chosen["M"]
    accounts.save()


COMMANDS = {"groupadd": groupadd, "groupdel": groupdel, "groupmod": groupmod, "gpasswd": gpasswd}
