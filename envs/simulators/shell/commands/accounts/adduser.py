"""Debian's adduser, addgroup, deluser and delgroup."""

import re

from envs.simulators.shell.commands.accounts.groups import group_number, names_in, remove_group
from envs.simulators.shell.commands.accounts.passwords import secret
from envs.simulators.shell.commands.accounts.tables import Accounts, fill_home, find
from envs.simulators.shell.commands.files import Removal
from envs.simulators.shell.commands.options import Fail, getopt
from envs.simulators.shell.files import text
from envs.simulators.shell.process import Process

ADDUSER = {"disabled-password": "p", "disabled-login": "l", "gecos:": "g", "comment:": "g", "home:": "h", "shell:": "s"}
ADDUSER |= {"uid:": "u", "gid:": "i", "ingroup:": "G", "system": "S", "group": "r", "no-create-home": "H", "quiet": "q"}
ADDUSER |= {"force-badname": "b", "allow-badname": "b", "allow-bad-names": "b", "add_extra_groups": "x"}
ADDUSER |= {"firstuid:": "1", "lastuid:": "2", "debug": "D", "verbose": "v"}


def adduser(p: Process) -> int:
    """adduser and addgroup: a user, a system user, a group, or a user into a group."""
    program = p.argv[0].rpartition("/")[2]
    options, names = getopt(p.argv, "q", ADDUSER)
    chosen = dict(options)
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
    if accounts.user(name):
        if system:
            p.fail(f"The system user `{name}' already exists. Exiting.")
            return 0
        raise Fail(f"The user `{name}' already exists.")
    return _new_user(p, accounts, name, system, chosen, say)


DIGITS = """To avoid ambiguity with numerical UIDs, usernames which
            consist of only digits are not allowed."""
BAD_NAME = """Please enter a username matching the regular expression
            configured via the NAME_REGEX configuration variable.  Use the
            `--allow-bad-names' option to relax this check or reconfigure
            NAME_REGEX in configuration."""


def _into_group(p: Process, user: str, group: str, say) -> int:
    accounts = Accounts(p)
    if not accounts.user(user):
        raise Fail(f"The user `{user}' does not exist.")
    record = find(accounts.group, group)
    if not record:
        raise Fail(f"The group `{group}' does not exist.")
    if user in names_in(record[3]):
        p.fail(f"The user `{user}' is already a member of `{group}'.")
        return 0
    say(f"Adding user `{user}' to group `{group}' ...")
    accounts.join(user, group)
    accounts.save()
    say("Done.")
    return 0


def _first_free(used: list[str], least: int) -> int:
    taken, number = set(used), least
    while str(number) in taken:
        number += 1
    return number


def _new_group(p: Process, accounts: Accounts, name: str, system: bool, chosen: dict, say) -> int:
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
    return 0


def _new_user(p: Process, accounts: Accounts, name: str, system: bool, chosen: dict, say) -> int:
    ids = [record[2] for record in accounts.passwd]
    gids = [record[2] for record in accounts.group]
    joined = chosen.get("G")
    if joined and not find(accounts.group, joined):
        raise Fail(f"The group `{joined}' does not exist.")
    own = not joined and (not system or "r" in chosen)
    if chosen.get("u") in ids:
        raise Fail(f"The UID {chosen['u']} is already in use.")
    uid = (
        int(chosen["u"])
        if re.fullmatch(r"\d{1,9}", chosen.get("u", ""))
        else _first_free(ids + (gids if own else []), 100 if system else 1000)
    )
    kind = "system user" if system else "user"
    say(f"Adding {kind} `{name}'{f' (UID {uid})' if system else ''} ...")
    if not own and not joined:
        joined = "nogroup"
    if own:
        gid = uid if str(uid) not in gids else _first_free(gids, 100 if system else 1000)
        say(f"Adding new group `{name}' ({'GID ' if system else ''}{gid}) ...")
        accounts.new_group(name, gid)
    else:
        gid = int(find(accounts.group, joined)[2])
    into = joined or name
    who = f"(UID {uid}) with group `{into}'" if system else f"({uid}) with group `{into} ({gid})'"
    say(f"Adding new user `{name}' {who} ...")
    home = chosen.get("h") or ("/nonexistent" if system else f"/home/{name}")
    shell = chosen.get("s") or ("/usr/sbin/nologin" if system or "l" in chosen else "/bin/bash")
    gecos = (
        ""
        if system and "g" not in chosen
        else (chosen.get("g", "") + ",,,")
        if "," not in chosen.get("g", "")
        else chosen["g"]
    )
    accounts.passwd.append([name, "x", str(uid), str(gid), gecos, home, shell])
    age = ["", "", ""] if system else ["0", "99999", "7"]
    accounts.shadow.append([name, "!", accounts.today(), *age, "", "", ""])
    if not system:
        accounts.subordinate(name)
    accounts.save()
    _home(p, accounts, home, uid, gid, system, chosen, say)
    if not system:
        if not {"p", "l"} & set(chosen):
            _first_password(p, accounts, name)
        if find(accounts.group, "users"):
            say(f"Adding new user `{name}' to supplemental / extra groups `users' ...")
            say(f"Adding user `{name}' to group `users' ...")
            accounts.join(name, "users")
            accounts.save()
    return 0


def _home(p: Process, accounts: Accounts, home: str, uid: int, gid: int, system: bool, chosen: dict, say) -> None:
    if home == "/nonexistent":
        say(f"Not creating `{home}'.")
    elif "H" in chosen:
        say(f"Not creating home directory `{home}'.")
    elif p.exists(home):
        p.fail(f"The home directory `{home}' already exists.  Not copying from `/etc/skel'.")
    else:
        say(f"Creating home directory `{home}' ...")
        if not system:
            say("Copying files from `/etc/skel' ...")
        fill_home(p, home, uid, gid, accounts.home_mode(), "/nonexistent" if system else "/etc/skel")


def _first_password(p: Process, accounts: Accounts, name: str) -> None:
    p.stderr.write("New password: Retype new password: ")
    first, second = (text(p.stream(0).readline()).rstrip("\n") for _ in range(2))
    if first and first == second:
        find(accounts.shadow, name)[1] = secret(first, name)
        p.stderr.write("passwd: password updated successfully\n")


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
    options, names = getopt(p.argv, "q", long | {"backup": "b", "backup-to:": "B"})
    flags = {flag for flag, _ in options}
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
            Removal(p, {"r", "f"}).start(user[5])
    say(f"Removing user `{name}' ...")
    accounts.remove_user(name)
    accounts.save()
    say("Done.")
    return 0


def _out_of_group(accounts: Accounts, user: str, group: str, say) -> int:
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
    return 0


COMMANDS = {"adduser": adduser, "addgroup": adduser, "deluser": deluser, "delgroup": deluser}
