"""passwd, chpasswd, chage (password ageing) and chsh (login shell)."""

import re
from base64 import b64encode
from hashlib import sha512

from envs.simulators.shell.commands.accounts.tables import (
    DAY,
    Accounts,
    days,
    find,
    need_root,
    usage_error,
    usage_options,
)
from envs.simulators.shell.commands.options import Fail
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import text
from envs.simulators.shell.process import Process

CHAGE = {"lastday:": "d", "expiredate:": "E", "iso8601": "i", "inactive:": "I", "list": "l", "mindays:": "m"}
CHAGE |= {"maxdays:": "M", "warndays:": "W"}
PASSWD = {"all": "a", "delete": "d", "expire": "e", "inactive:": "i", "lock": "l", "mindays:": "n", "quiet": "q"}
PASSWD |= {"status": "S", "unlock": "u", "warndays:": "w", "maxdays:": "x", "keep-tokens": "k", "stdin": "s"}


def chage(p: Process) -> None:
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
        return
    if not values:
        raise usage_error(p, usage)
    for flag, column in (("d", 2), ("m", 3), ("M", 4), ("W", 5), ("I", 6), ("E", 7)):
        shadow[column] = values.get(flag, shadow[column])
    accounts.save()


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


def chsh(p: Process) -> None:
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


def _as_root(p: Process, accounts: Accounts) -> None:
    """Save as a setuid program does."""
    uid, p.uid = p.uid, 0
    accounts.save()
    p.uid = uid


def secret(password: str, name: str) -> str:
    """Return a stand-in for a password's hash in /etc/shadow: deterministic and as long as crypt's."""
    digest = b64encode(sha512(f"{name}:{password}".encode("latin-1")).digest(), b"./").decode().rstrip("=")
    return f"$6${digest[:8]}${digest}"


def passwd(p: Process) -> int | None:
    usage = "passwd [options] [LOGIN]"
    chosen, names = usage_options(p, "adei:kln:qsSuw:x:", PASSWD, usage, 6)
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
    if not set(chosen) - {"q", "s"}:
        return _new_password(p, accounts, name, shadow)
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
    for flag, column in (("n", 3), ("x", 4), ("w", 5), ("i", 6)):
        if flag in chosen:
            if not chosen[flag].removeprefix("-").isdecimal():
                raise usage_error(p, usage, f"invalid numeric argument '{chosen[flag]}'", 6)
            shadow[column] = "" if chosen[flag] == "-1" else chosen[flag]
    accounts.save()
    if "q" not in chosen:
        p.stderr.write("passwd: password changed.\n")


def _new_password(p: Process, accounts: Accounts, name: str, shadow: list[str]) -> int | None:
    first, second = (text(p.stream(0).readline()) for _ in range(2))
    p.stderr.write("New password: ")
    if not first.endswith("\n") and not second:
        p.stderr.write("Password change has been aborted.\n" if not first else "")
    if first.strip("\n"):
        p.stderr.write("Retype new password: ")
    if not first.strip("\n") or first.strip("\n") != second.strip("\n"):
        if first.strip("\n"):
            p.stderr.write("Sorry, passwords do not match.\n")
        p.stderr.write("passwd: Authentication token manipulation error\npasswd: password unchanged\n")
        return 10
    shadow[1:3] = secret(first.strip("\n"), name), accounts.today()
    accounts.save() if not p.uid else _as_root(p, accounts)
    p.stderr.write("passwd: password updated successfully\n")


def chpasswd(p: Process) -> int | None:
    options, _ = usage_options(
        p, "c:ems:", {"encrypted": "e", "crypt-method:": "c", "md5": "m"}, "chpasswd [options]", 1
    )
    need_root(p)
    accounts = Accounts(p)
    failed = False
    for at, line in enumerate(text(p.stdin).split("\n"), 1):
        if not line:
            continue
        name, colon, password = line.partition(":")
        shadow = find(accounts.shadow, name)
        if not colon:
            p.fail(f"line {at}: missing new password")
            failed = True
        elif not shadow:
            p.fail(f"line {at}: user '{name}' does not exist")
            failed = True
        else:
            shadow[1:3] = password if "e" in options else secret(password, name), accounts.today()
    if failed:
        return p.fail("error detected, changes ignored")
    accounts.save()


COMMANDS = {"chage": chage, "chsh": chsh, "passwd": passwd, "chpasswd": chpasswd}
