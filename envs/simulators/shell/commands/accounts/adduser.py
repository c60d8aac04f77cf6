"""Debian's adduser, addgroup, deluser and delgroup."""

import re
from itertools import count

from envs.simulators.shell.commands.accounts.groups import group_number, remove_group
from envs.simulators.shell.commands.accounts.passwords import secret
from envs.simulators.shell.commands.accounts.tables import Accounts, find, names_in
from envs.simulators.shell.commands.accounts.users import add
from envs.simulators.shell.commands.files import Removal
from envs.simulators.shell.commands.options import Fail, attempt, getopt, required
from envs.simulators.shell.files import text
from envs.simulators.shell.process import Process

ADDUSER = {"disabled-password": "p", "disabled-login": "l", "gecos:": "g", "comment:": "g", "home:": "h", "shell:": "s"}
ADDUSER |= {"uid:": "u", "gid:": "i", "ingroup:": "G", "system": "S", "group": "r", "no-create-home": "H", "quiet": "q"}
ADDUSER |= {"force-badname": "b", "allow-badname": "b", "allow-bad-names": "b", "add_extra_groups": "x"}
ADDUSER |= {"firstuid:": "1", "lastuid:": "2", "debug": "D", "verbose": "v"}


DIGITS = """To avoid ambiguity with numerical UIDs, usernames which
            consist of only digits are not allowed."""
BAD_NAME = """Please enter a username matching the regular expression
            configured via the NAME_REGEX configuration variable.  Use the
            `--allow-bad-names' option to relax this check or reconfigure
            NAME_REGEX in configuration."""
DELUSER = {"remove-home": "h", "remove-all-files": "h", "group": "r", "system": "S", "quiet": "q", "only-if-empty": "o"}
DELUSER |= {"backup": "b", "backup-to:": "B"}


class Session:
    """One call of these commands: the options, the tables, and the messages that -q hides."""

    def __init__(self, p: Process, long: dict, what: str):
        self.p = p
        self.chosen, self.names = getopt(p.argv, "q", long)
        if p.uid:
            raise Fail(f"Only root may {what} the system.")
        if not 0 < len(self.names) < 3:
            raise Fail("Only one or two names allowed.")
        self.name, self.accounts = self.names[0], Accounts(p)

    def say(self, line: str) -> None:
        if "q" not in self.chosen:
            self.p.out(line + "\n")

    def finish(self) -> None:
        self.accounts.save()
        self.say("Done.")

    def group(self, name: str, status: int = 1) -> list[str]:
        return required(find(self.accounts.group, name), f"The group `{name}' does not exist.", status)

    def membership(self, no_user: int = 1, no_group: int = 1) -> tuple[str, str, bool]:
        """Return the two operands, a user and a group, and whether the user is a member."""
        user, group = self.names
        required(self.accounts.user(user), f"The user `{user}' does not exist.", no_user)
        return user, group, user in names_in(self.group(group, no_group)[3])


def adduser(p: Process) -> None:
    """adduser and addgroup: a user, a system user, a group, or a user into a group."""
    session = Session(p, ADDUSER, "add a user or group to")
    chosen, name, system = session.chosen, session.name, "S" in session.chosen
    for_group = p.argv[0].rpartition("/")[2] == "addgroup" or ("r" in chosen and not system)
    if len(session.names) == 2:
        if for_group:
            raise Fail("addgroup with two arguments is an unspecified operation.")
        _into_group(session)
        return
    if name.isdecimal():
        raise Fail(DIGITS)
    shape = r"[a-z_][-a-z0-9_]*\$?" if not system else r"[A-Za-z_][-A-Za-z0-9_]*\$?"
    if not re.fullmatch(shape, name) and "b" not in chosen:
        raise Fail(BAD_NAME)
    if for_group:
        _new_group(session, system)
        return
    if system:
        raise Fail("--system is only simulated for groups; useradd -r makes a system user.")
    if session.accounts.user(name):
        raise Fail(f"The user `{name}' already exists.")
    _new_user(session)


def _into_group(session: Session) -> None:
    user, group, member = session.membership()
    if member:
        raise Fail(f"The user `{user}' is already a member of `{group}'.", 0)
    session.say(f"Adding user `{user}' to group `{group}' ...")
    session.accounts.join(user, group)
    session.finish()


def _first_free(used: list[str], least: int) -> int:
    return next(number for number in count(least) if str(number) not in used)


def _new_group(session: Session, system: bool) -> None:
    accounts, name, chosen = session.accounts, session.name, session.chosen
    if find(accounts.group, name):
        raise Fail(f"The group `{name}' already exists{' as a system group. Exiting' * system}.", int(not system))
    gids = [record[2] for record in accounts.group]
    if chosen.get("i") in gids:
        raise Fail(f"The GID `{chosen['i']}' is already in use.")
    used = gids + [record[2] for record in accounts.passwd if system]
    gid = int(group_number(chosen["i"]) if "i" in chosen else _first_free(used, 100 if system else 1000))
    session.say(f"Adding group `{name}' (GID {gid}) ...")
    accounts.new_group(name, gid)
    session.finish()


def _new_user(session: Session) -> None:
    """Add a user with a group of the same name or --ingroup, a home, and a password from standard input."""
    p, accounts, name, chosen, say = session.p, session.accounts, session.name, session.chosen, session.say
    joined = chosen.get("G")
    if joined:
        session.group(joined)
    ids, gids = ([record[2] for record in table] for table in (accounts.passwd, accounts.group))
    if chosen.get("u") in ids:
        raise Fail(f"The UID {chosen['u']} is already in use.")
    given = re.fullmatch(r"\d{1,9}", chosen.get("u", ""))
    uid = int(given[0]) if given else _first_free(ids + ([] if joined else gids), 1000)
    home, gecos = chosen.get("h") or f"/home/{name}", chosen.get("g", "")
    there = p.exists(home)
    values = {"c": gecos if "," in gecos else gecos + ",,,", "d": home}
    values["s"] = chosen.get("s") or ("/usr/sbin/nologin" if "l" in chosen else "/bin/bash")
    values |= ({"g": joined} if joined is not None else {}) | ({} if "H" in chosen or there else {"m": ""})
    add(p, accounts, name, uid, not joined, values)
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


def deluser(p: Process) -> None:
    """deluser and delgroup: a user, a group, or a user out of a group."""
    session = Session(p, DELUSER, "remove a user or group from")
    accounts, name, flags, say = session.accounts, session.name, session.chosen, session.say
    if len(session.names) == 2:
        user, group, member = session.membership(2, 3)
        if not member:
            raise Fail(f"The user `{user}' is not a member of group `{group}'.", 6)
        say(f"Removing user `{user}' from group `{group}' ...")
        accounts.leave(user, group)
        session.finish()
        return
    if p.argv[0].rpartition("/")[2] == "delgroup" or "r" in flags:
        if names_in(session.group(name, 3)[3]) and "o" in flags:
            raise Fail(f"The group `{name}' is not empty!", 5)
        say(f"Removing group `{name}' ...")
        if not attempt(p, remove_group, accounts, name, False, "groupdel"):
            raise Fail(f"`/sbin/groupdel {name}' returned error code {p.failed}. Exiting.")
        say("Done.")
        return
    user = required(accounts.user(name), f"The user `{name}' does not exist.", 2)
    p.fail("`/usr/bin/crontab' not executed. Skipping crontab removal. Package `cron' required.")
    if "h" in flags:
        say("Looking for files to backup/remove ...")
        say("Removing files ...")
        if p.find(user[5]) not in (None, p.machine.root):
            attempt(p, Removal(p, {"r", "f"}).start, user[5])
    say(f"Removing user `{name}' ...")
    accounts.remove_user(name)
    session.finish()


COMMANDS = {"adduser": adduser, "addgroup": adduser, "deluser": deluser, "delgroup": deluser}
