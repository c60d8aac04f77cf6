"""The commands in the machine's /usr/bin. COMMANDS maps a name to a function from a Process to an exit status.

accounts/   useradd, usermod, userdel, groupadd, adduser, passwd, chage, id, getent, su and their relatives
awk/, sed/, find/, editor/ (vi, vim, ex), grep.py, expr.py, xargs.py, diff.py (diff, cmp)
text.py     whole texts: cat, head, tail, wc, tee, nl, tac, rev, seq, yes
lists.py    lines and fields: cut, paste, tr, uniq, comm, fold         sort.py  sort, shuf
files.py    create and remove files, handle names: mkdir, touch, rm, basename, readlink, mktemp, ...
copy.py     cp, mv, ln                                                modes.py  chmod, chown, chgrp
listing.py  ls, du                                                    stat.py   stat, df
system.py   date, env, sleep, which, uname, ...                       sums.py   md5sum, sha256sum, ...
processes.py  ps, pgrep, pkill, free, who, ...
tar.py, gzip.py                                                       sizes.py  dd, truncate, fallocate
Shared: options.py (getopt, quoting, errors), times.py (dates), regex/ (regular expressions).

Each module's own COMMANDS lists its commands. Messages are those of the real programs in the C locale.
"""

from envs.simulators.shell.commands import (
    copy,
    diff,
    expr,
    files,
    grep,
    gzip,
    listing,
    lists,
    modes,
    packages,
    pieces,
    processes,
    sizes,
    sort,
    stat,
    sums,
    system,
    tar,
    text,
    xargs,
)
from envs.simulators.shell.commands.accounts import adduser, groups, identity, passwords, users
from envs.simulators.shell.commands.awk import command as awk
from envs.simulators.shell.commands.editor import command as editor
from envs.simulators.shell.commands.find import command as find
from envs.simulators.shell.commands.options import guarded
from envs.simulators.shell.commands.sed import command as sed

# This is also the order of the files in /usr/bin, which `find` shows.
# fmt: off
MODULES = (adduser, tar, gzip, sizes, awk, copy, diff, editor, expr, files, find, grep, groups, identity,
           listing, lists, modes, packages, passwords, pieces, processes, sed, sort, stat, sums, system,
           text, users, xargs)
# fmt: on
COMMANDS = {name: guarded(command) for module in MODULES for name, command in module.COMMANDS.items()}
