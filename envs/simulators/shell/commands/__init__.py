"""The commands in the machine's /usr/bin. COMMANDS maps a name to a function of a Process (see process.py).

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

from importlib import import_module

from envs.simulators.shell.commands.options import guarded

# This is also the order of the files in /usr/bin, which `find` shows.
MODULES = """
accounts.adduser tar gzip sizes awk.command copy diff editor.command expr files find.command grep accounts.groups
accounts.identity listing lists modes packages accounts.passwords pieces processes sed.command sort stat sums system
text accounts.users xargs
"""
TABLES = [import_module(f"{__name__}.{module}").COMMANDS for module in MODULES.split()]
COMMANDS = {name: guarded(command) for table in TABLES for name, command in table.items()}
