"""What lies in the machine's /usr/bin: COMMANDS maps a name to a function from a Process to an exit status.

options.py, times.py, regex*.py  what they share         text.py, lists.py, sort.py, diff.py  lines and fields
files.py, copy.py, modes.py      changing files          listing.py, stat.py, find*.py        looking at files
grep.py, sed*.py, awk*.py        small languages         editor*.py, expr.py, xargs.py        and smaller ones
accounts.py                      the tables of users     users.py, groups.py, passwords.py, adduser.py, identity.py
system.py, sums.py               the rest

A module's own COMMANDS says what it has. Messages are those of the programs in the C locale.
"""

from envs.simulators.shell.commands import (
    adduser,
    awk,
    copy,
    diff,
    editor,
    expr,
    files,
    find,
    grep,
    groups,
    identity,
    listing,
    lists,
    modes,
    passwords,
    sed,
    sort,
    stat,
    sums,
    system,
    text,
    users,
    xargs,
)
from envs.simulators.shell.commands.options import guarded

MODULES = (adduser, awk, copy, diff, editor, expr, files, find, grep, groups, identity, listing, lists, modes,
           passwords, sed, sort, stat, sums, system, text, users, xargs)  # fmt: skip
COMMANDS = {name: guarded(command) for module in MODULES for name, command in module.COMMANDS.items()}
