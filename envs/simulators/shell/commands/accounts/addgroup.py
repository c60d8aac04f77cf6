"""Debian's addgroup and delgroup."""

import re

from envs.simulators.shell.commands.accounts.groups import group_number, remove_group
from envs.simulators.shell.commands.accounts.tables import Accounts, find, names_in
from envs.simulators.shell.commands.options import Fail, getopt
from envs.simulators.shell.process import Process

ADDGROUP = {"gid:": "g", "system": "S", "group": "G", "quiet": "q", "debug": "D", "verbose": "v"}
ADDGROUP |= {"force-badname": "b", "allow-badname": "b", "allow-bad-names": "b"}
DIGITS = """To avoid ambiguity with numerical UIDs, usernames which
            consist of only digits are not allowed."""
BAD_NAME = """Please enter a username matching the regular expression
            configured via the NAME_REGEX configuration variable.  Use the
            `--allow-bad-names' option to relax this check or reconfigure
            NAME_REGEX in configuration."""


def addgroup(p: Process) -> int:
    chosen, names = getopt(p.argv, "q", ADDGROUP)
    if p.uid:
        raise Fail("Only root may add a user or group to the system.")
    if not 0 < len(names) < 3:
        raise Fail("Only one or two names allowed.")
    if len(names) == 2:
        raise Fail("addgroup with two arguments is an unspecified operation.")
    name, system = names[0], "S" in chosen
    if name.isdecimal():
        raise Fail(DIGITS)
    shape = r"[a-z_][-a-z0-9_]*\$?" if not system else r"[A-Za-z_][-A-Za-z0-9_]*\$?"
    if not re.fullmatch(shape, name) and "b" not in chosen:
        raise Fail(BAD_NAME)
    accounts = Accounts(p)
    if find(accounts.group, name):
        how = " as a system group. Exiting" if system else ""
        raise Fail(f"The group `{name}' already exists{how}.", 0 if system else 1)
    gids = [record[2] for record in accounts.group]
    if chosen.get("g") in gids:
        raise Fail(f"The GID `{chosen['g']}' is already in use.")
    taken, gid = {*gids, *(record[2] for record in accounts.passwd if system)}, 100 if system else 1000
    while str(gid) in taken:
        gid += 1
    gid = int(group_number(chosen["g"])) if "g" in chosen else gid
    accounts.new_group(name, gid)
    accounts.save()
    if "q" not in chosen:
        p.out(f"Adding group `{name}' (GID {gid}) ...\nDone.\n")
    return 0


def delgroup(p: Process) -> int:
    flags, names = getopt(p.argv, "q", {"group": "G", "system": "S", "quiet": "q", "only-if-empty": "o"})
    if p.uid:
        raise Fail("Only root may remove a user or group from the system.")
    if len(names) != 1:
        raise Fail("Only one or two names allowed.")
    name, group = names[0], find(Accounts(p).group, names[0])
    if not group:
        raise Fail(f"The group `{name}' does not exist.", 3)
    if "o" in flags and names_in(group[3]):
        raise Fail(f"The group `{name}' is not empty!", 5)
    if "q" not in flags:
        p.out(f"Removing group `{name}' ...\n")
    status = remove_group(p, name, False, "groupdel")
    if status:
        return p.fail(f"`/sbin/groupdel {name}' returned error code {status}. Exiting.")
    if "q" not in flags:
        p.out("Done.\n")
    return 0


COMMANDS = {"addgroup": addgroup, "delgroup": delgroup}
