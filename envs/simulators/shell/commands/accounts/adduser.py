"""Debian's adduser, addgroup, deluser and delgroup."""

import re

from envs.simulators.shell.commands.accounts.groups import group_number, remove_group
from envs.simulators.shell.commands.accounts.passwords import secret
from envs.simulators.shell.commands.accounts.tables import Accounts, find, names_in
from envs.simulators.shell.commands.accounts.users import add
from envs.simulators.shell.commands.files import Removal
from envs.simulators.shell.commands.options import Fail, attempt, getopt
from envs.simulators.shell.files import text
from envs.simulators.shell.process import Process

ADDUSER = {"disabled-password": "p", "disabled-login": "l", "gecos:": "g", "comment:": "g", "home:": "h", "shell:": "s"}
ADDUSER |= {"uid:": "u", "gid:": "i", "ingroup:": "G", "system": "S", "group": "r", "no-create-home": "H", "quiet": "q"}
ADDUSER |= {"force-badname": "b", "allow-badname": "b", "allow-bad-names": "b", "add_extra_groups": "x"}
ADDUSER |= {"firstuid:": "1", "lastuid:": "2", "debug": "D", "verbose": "v"}


def adduser(p: Process) -> int:
    """adduser and addgroup: a user, a system user, a group, or a user into a group."""
    program = p.argv[0].rpartition("/")[2]
    chosen, names = getopt(p.argv, "q", ADDUSER)
    say = (lambda line: None) if "q" in chosen else lambda line: p.out(line + "\n")
    if p.uid:
        raise Fail("Only root may add a user or group to the system.")
    if not names or len(names) > 2:
        raise Fail("Only one or two names allowed.")
    for_group = program == "addgroup" or ("r" in chosen and "S" not in chosen)
    if len(names) == 2:
        if for_group:
            raise Fail("addgroup with two arguments is an unspecified operation.")
        return _into_group(p, *names, say)
    name, system = names[0], "S" in chosen
    if name.isdecimal():
        raise Fail(DIGITS)
    shape = r"[a-z_][-a-z0-9_]*\$?" if not system else r"[A-Za-z_][-A-Za-z0-9_]*\$?"
    if not re.fullmatch(shape, name) and "b" not in chosen:
        raise Fail(BAD_NAME)
    accounts = Accounts(p)
    if for_group:
        return _new_group(p, accounts, name, system, chosen, say)
    if system:
        raise Fail("--system is only simulated for groups; useradd -r makes a system user.")
    if accounts.user(name):
        raise Fail(f"The user `{name}' already exists.")
    return _new_user(p, accounts, name, chosen, say)


DIGITS = """To avoid ambiguity with numerical UIDs, usernames which
            consist of only digits are not allowed."""
BAD_NAME = """Please enter a username matching the regular expression
            configured via the NAME_REGEX configuration variable.  Use the
            `--allow-bad-names' option to relax this check or reconfigure
            NAME_REGEX in configuration."""


def _into_group(p: Process, user: str, group: str, say) -> None:
    accounts = Accounts(p)
    if not accounts.user(user):
        raise Fail(f"The user `{user}' does not exist.")
    record = find(accounts.group, group)
    if not record:
        raise Fail(f"The group `{group}' does not exist.")
    if user in names_in(record[3]):
        p.fail(f"The user `{user}' is already a member of `{group}'.")
        return
    say(f"Adding user `{user}' to group `{group}' ...")
    accounts.join(user, group)
    accounts.save()
    say("Done.")


def _first_free(used: list[str], least: int) -> int:
    taken, number = set(used), least
    while str(number) in taken:
        number += 1
    return number


def _new_group(p: Process, accounts: Accounts, name: str, system: bool, chosen: dict, say) -> None:
    if find(accounts.group, name):
        raise Fail(
            f"The group `{name}' already exists{' as a system group. Exiting' if system else ''}.", 0 if system else 1
        )
    gids = [record[2] for record in accounts.group]
    if chosen.get("i") in gids:
        raise Fail(f"The GID `{chosen['i']}' is already in use.")
    uids = [record[2] for record in accounts.passwd]
    gid = (
        group_number(chosen["i"])
        if "i" in chosen
        else _first_free(gids + (uids if system else []), 100 if system else 1000)
    )
    say(f"Adding group `{name}' (GID {gid}) ...")
    accounts.new_group(name, int(gid))
    accounts.save()
    say("Done.")


def _new_user(p: Process, accounts: Accounts, name: str, chosen: dict, say) -> None:
    """Add a user with a group of the same name or --ingroup, a home, and a password from standard input."""
    joined = chosen.get("G")
    if joined and not find(accounts.group, joined):
        raise Fail(f"The group `{joined}' does not exist.")
    ids, gids = ([record[2] for record in table] for table in (accounts.passwd, accounts.group))
    if chosen.get("u") in ids:
        raise Fail(f"The UID {chosen['u']} is already in use.")
    given = re.fullmatch(r"\d{1,9}", chosen.get("u", ""))
    uid = int(given[0]) if given else _first_free(ids + ([] if joined else gids), 1000)
    home, gecos = chosen.get("h") or f"/home/{name}", chosen.get("g", "")
    there = p.exists(home)
    values = {"c": gecos if "," in gecos else gecos + ",,,", "d": home, "g": joined} | (
        {} if "H" in chosen or there else {"m": ""}
    )
    values["s"] = chosen.get("s") or ("/usr/sbin/nologin" if "l" in chosen else "/bin/bash")
    add(p, accounts, name, uid, not joined, {flag: value for flag, value in values.items() if value is not None})
    gid = accounts.user(name)[3]
    say(f"Adding user `{name}' ...")
    if not joined:
        say(f"Adding new group `{name}' ({gid}) ...")
    say(f"Adding new user `{name}' ({uid}) with group `{joined or name} ({gid})' ...")
    if "H" in chosen:
        say(f"Not creating home directory `{home}'.")
    elif there:
        p.fail(f"The home directory `{home}' already exists.  Not copying from `/etc/skel'.")
    else:
        say(f"Creating home directory `{home}' ...\nCopying files from `/etc/skel' ...")
    if not {"p", "l"} & set(chosen):
        p.stderr.write("New password: Retype new password: ")
        first, second = (text(p.stream(0).readline()).rstrip("\n") for _ in range(2))
        if first and first == second:
            accounts.secrets(name)[1] = secret(first, name)
            p.stderr.write("passwd: password updated successfully\n")
    if find(accounts.group, "users"):
        say(f"Adding new user `{name}' to supplemental / extra groups `users' ...")
        say(f"Adding user `{name}' to group `users' ...")
        accounts.join(name, "users")
    accounts.save()


def deluser(p: Process) -> int:
    """deluser and delgroup: a user, a group, or a user out of a group."""
    program = p.argv[0].rpartition("/")[2]
    long = {
        "remove-home": "h",
        "remove-all-files": "h",
        "group": "r",
        "system": "S",
        "quiet": "q",
        "only-if-empty": "o",
    }
    flags, names = getopt(p.argv, "q", long | {"backup": "b", "backup-to:": "B"})
    say = (lambda line: None) if "q" in flags else lambda line: p.out(line + "\n")
    if p.uid:
        raise Fail("Only root may remove a user or group from the system.")
    if not names or len(names) > 2:
        raise Fail("Only one or two names allowed.")
    accounts = Accounts(p)
    if len(names) == 2:
        return _out_of_group(accounts, *names, say)
    name = names[0]
    if program == "delgroup" or "r" in flags:
        if not find(accounts.group, name):
            raise Fail(f"The group `{name}' does not exist.", 3)
        if "o" in flags and names_in(find(accounts.group, name)[3]):
            raise Fail(f"The group `{name}' is not empty!", 5)
        say(f"Removing group `{name}' ...")
        status = remove_group(p, name, False, "groupdel")
        if status:
            return p.fail(f"`/sbin/groupdel {name}' returned error code {status}. Exiting.")
        say("Done.")
        return 0
    user = accounts.user(name)
    if not user:
        raise Fail(f"The user `{name}' does not exist.", 2)
    p.fail("`/usr/bin/crontab' not executed. Skipping crontab removal. Package `cron' required.")
    if "h" in flags:
        say("Looking for files to backup/remove ...")
        say("Removing files ...")
        if p.exists(user[5]) and p.lookup(user[5]) is not p.machine.root:
            attempt(p, Removal(p, {"r", "f"}).start, user[5])
    say(f"Removing user `{name}' ...")
    accounts.remove_user(name)
    accounts.save()
    say("Done.")
    return 0


def _out_of_group(accounts: Accounts, user: str, group: str, say) -> None:
    if not accounts.user(user):
        raise Fail(f"The user `{user}' does not exist.", 2)
    record = find(accounts.group, group)
    if not record:
        raise Fail(f"The group `{group}' does not exist.", 3)
    if user not in names_in(record[3]):
        raise Fail(f"The user `{user}' is not a member of group `{group}'.", 6)
    say(f"Removing user `{user}' from group `{group}' ...")
    accounts.leave(user, group)
    accounts.save()
    say("Done.")


COMMANDS = {"adduser": adduser, "addgroup": adduser, "deluser": deluser, "delgroup": deluser}
