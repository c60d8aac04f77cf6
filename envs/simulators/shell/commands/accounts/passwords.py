"""passwd (which sets no password), chage (password ageing) and chsh (login shell)."""

import re

from envs.simulators.shell.commands.accounts.tables import (
    DAY,
    Accounts,
    days,
    find,
    usage_error,
    usage_options,
)
from envs.simulators.shell.commands.options import Fail
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import text
from envs.simulators.shell.process import Process

CHAGE = {"lastday:": "d", "expiredate:": "E", "iso8601": "i", "inactive:": "I", "list": "l", "mindays:": "m"}
CHAGE |= {"maxdays:": "M", "warndays:": "W"}
PASSWD = {"delete": "d", "expire": "e", "lock": "l", "quiet": "q", "status": "S", "unlock": "u"}


def chage(p: Process) -> int:
    usage = "chage [options] LOGIN"
    chosen, names = usage_options(p, "d:E:iI:lm:M:W:", CHAGE, usage, least=1)
    values = {}
    for flag, value in chosen.items():
        if flag in "dE":
            values[flag] = days(value, p.machine.clock)
            if values[flag] is None:
                raise usage_error(p, usage, f"invalid date '{value}'")
        elif flag in "mMIW":
            if not re.fullmatch(r"-1|\d{1,9}", value):
                raise usage_error(p, usage, f"invalid numeric argument '{value}'")
            values[flag] = "" if value == "-1" else str(int(value))
    if "l" in chosen and values:
        raise usage_error(p, usage, 'do not include "l" with other flags')
    accounts = Accounts(p)
    name = names[0]
    user = accounts.user(name)
    own = user and int(user[2]) == p.uid and "l" in chosen
    if p.uid and not own:
        raise Fail("Permission denied.")
    if not user:
        raise Fail(f"user '{name}' does not exist in /etc/passwd", 1)
    shadow = accounts.secrets(name)
    if "l" in chosen:
        _aging(p, shadow, "%Y-%m-%d" if "i" in chosen else "%b %d, %Y")
        return 0
    if not values:
        raise usage_error(p, usage)
    for flag, column in (("d", 2), ("m", 3), ("M", 4), ("W", 5), ("I", 6), ("E", 7)):
        shadow[column] = values.get(flag, shadow[column])
    accounts.save()
    return 0


def _aging(p: Process, record: list[str], form: str) -> None:
    """Return the table that chage -l prints."""
    last, least, most, warn, inactive, expires = (int(field) if field else -1 for field in record[2:8])
    date = lambda day: show(form, day * DAY)  # noqa: E731
    ends = last + most if last > 0 and 0 <= most < 10000 else None
    change = "password must be changed" if last == 0 else "never" if last < 0 else date(last)
    lines = [
        ("Last password change\t\t\t\t\t", change),
        ("Password expires\t\t\t\t\t", change if last == 0 else "never" if ends is None else date(ends)),
        (
            "Password inactive\t\t\t\t\t",
            change if last == 0 else "never" if ends is None or inactive < 0 else date(ends + inactive),
        ),
        ("Account expires\t\t\t\t\t\t", "never" if expires < 0 else date(expires)),
        ("Minimum number of days between password change\t\t", least),
        ("Maximum number of days between password change\t\t", most),
        ("Number of days of warning before password expires\t", warn),
    ]
    p.out("".join(f"{title}: {value}\n" for title, value in lines))


def chsh(p: Process) -> int:
    usage = "chsh [options] [LOGIN]"
    options, names = usage_options(p, "s:", {"shell:": "s"}, usage)
    accounts = Accounts(p)
    me = find(accounts.passwd, str(p.uid), 2)
    user = accounts.user(names[0]) if names else me
    if not user:
        raise Fail(f"user '{names[0]}' does not exist" if names else "Cannot determine your user name.", 1)
    if p.uid and int(user[2]) != p.uid:
        raise Fail(f"You may not change the shell for '{user[0]}'.")
    if not options:
        raise usage_error(p, usage)
    shell = options["s"]
    listed = text(p.machine.content("/etc/shells") or b"").split("\n")
    if p.uid and shell not in listed:
        raise Fail(f"{shell} is an invalid shell")
    if not p.exists(shell):
        p.fail(f"Warning: {shell} does not exist")
    elif not p.may(p.lookup(shell), 1):
        p.fail(f"Warning: {shell} is not executable")
    user[6] = shell
    accounts.save() if not p.uid else _as_root(p, accounts)
    return 0


def _as_root(p: Process, accounts: Accounts) -> None:
    """Save as a setuid program does."""
    uid, p.uid = p.uid, 0
    accounts.save()
    p.uid = uid


def passwd(p: Process) -> int:
    usage = "passwd [options] [LOGIN]"
    chosen, names = usage_options(p, "delqSu", PASSWD, usage, 6)
    accounts = Accounts(p)
    me = find(accounts.passwd, str(p.uid), 2) or ["root"]
    name = names[0] if names else me[0]
    if not accounts.user(name):
        raise Fail(f"user '{name}' does not exist", 1)
    if p.uid and (name != me[0] or set(chosen) - {"S", "q"}):
        raise Fail(
            "Permission denied." if set(chosen) else f"You may not view or modify password information for {name}."
        )
    shadow = accounts.secrets(name)
    if "S" in chosen:
        state = "NP" if not shadow[1] else "L" if shadow[1][0] in "!*" else "P"
        ages = " ".join(field or "-1" for field in shadow[3:7])
        p.out(f"{name} {state} {show('%Y-%m-%d', int(shadow[2] or 0) * DAY)} {ages}\n")
        return 0
    if not set(chosen) - {"q"}:
        p.stderr.write("passwd: Authentication token manipulation error\npasswd: password unchanged\n")
        return 10
    if "u" in chosen and shadow[1] == "!":
        p.fail("unlocking the password would result in a passwordless account.")
        p.stderr.write("You should set a password with usermod -p to unlock the password of this account.\n")
        return 3
    if "l" in chosen and not shadow[1].startswith("!"):
        shadow[1] = "!" + shadow[1]
    if "u" in chosen:
        shadow[1] = shadow[1].removeprefix("!")
    if "d" in chosen:
        shadow[1] = ""
    if "e" in chosen:
        shadow[2] = "0"
    accounts.save()
    if "q" not in chosen:
        p.stderr.write("passwd: password changed.\n")
    return 0


COMMANDS = {"chage": chage, "chsh": chsh, "passwd": passwd}
