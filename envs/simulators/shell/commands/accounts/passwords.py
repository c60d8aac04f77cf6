"""passwd, chpasswd, chage (password ageing) and chsh (login shell)."""

import re
from base64 import b64encode
from hashlib import sha512

from envs.simulators.shell.commands.accounts.tables import DAY, Accounts, days, find, opened
from envs.simulators.shell.commands.options import Fail, required
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import text
from envs.simulators.shell.process import Process

CHAGE = {"lastday:": "d", "expiredate:": "E", "iso8601": "i", "inactive:": "I", "list": "l", "mindays:": "m"}
CHAGE |= {"maxdays:": "M", "warndays:": "W"}
PASSWD = {"all": "a", "delete": "d", "expire": "e", "inactive:": "i", "lock": "l", "mindays:": "n", "quiet": "q"}
PASSWD |= {"status": "S", "unlock": "u", "warndays:": "w", "maxdays:": "x", "keep-tokens": "k", "stdin": "s"}


def chage(p: Process) -> None:
    accounts, chosen, (name,) = opened(p, "chage [options] LOGIN", "d:E:iI:lm:M:W:", CHAGE, least=1)
    values = {}
    for flag, value in chosen.items():
        if flag in "dE":
            values[flag] = days(value, p.machine.clock)
            if values[flag] is None:
                raise accounts.misused(f"invalid date '{value}'")
        elif flag in "mMIW":
            if not re.fullmatch(r"-1|\d{1,9}", value):
                raise accounts.misused(f"invalid numeric argument '{value}'")
            values[flag] = "" if value == "-1" else str(int(value))
    if "l" in chosen and values:
        raise accounts.misused('do not include "l" with other flags')
    user = accounts.user(name)
    if p.uid and not (user and int(user[2]) == p.uid and "l" in chosen):
        raise Fail("Permission denied.")
    required(user, f"user '{name}' does not exist in /etc/passwd")
    shadow = accounts.secrets(name)
    if "l" in chosen:
        _aging(p, shadow, "%Y-%m-%d" if "i" in chosen else "%b %d, %Y")
        return
    if not values:
        raise accounts.misused()
    for flag, column in (("d", 2), ("m", 3), ("M", 4), ("W", 5), ("I", 6), ("E", 7)):
        shadow[column] = values.get(flag, shadow[column])
    accounts.save()


def _aging(p: Process, record: list[str], form: str) -> None:
    """Print the table of chage -l."""
    last, least, most, warn, inactive, expires = (int(field) if field else -1 for field in record[2:8])

    def date(day: int | None) -> str:
        return "never" if day is None or day < 0 else show(form, day * DAY)

    ends = last + most if last > 0 and 0 <= most < 10000 else None
    off = None if ends is None or inactive < 0 else ends + inactive
    changed, end, closed = ["password must be changed"] * 3 if last == 0 else map(date, (last, ends, off))
    p.out(
        f"Last password change\t\t\t\t\t: {changed}\nPassword expires\t\t\t\t\t: {end}\n"
        f"Password inactive\t\t\t\t\t: {closed}\nAccount expires\t\t\t\t\t\t: {date(expires)}\n"
        f"Minimum number of days between password change\t\t: {least}\n"
        f"Maximum number of days between password change\t\t: {most}\n"
        f"Number of days of warning before password expires\t: {warn}\n"
    )


def chsh(p: Process) -> None:
    accounts, options, names = opened(p, "chsh [options] [LOGIN]", "s:", {"shell:": "s"})
    me = find(accounts.passwd, str(p.uid), 2)
    missing = f"user '{names[0]}' does not exist" if names else "Cannot determine your user name."
    user = required(accounts.user(names[0]) if names else me, missing)
    if p.uid and int(user[2]) != p.uid:
        raise Fail(f"You may not change the shell for '{user[0]}'.")
    if not options:
        raise accounts.misused()
    shell = options["s"]
    listed = text(p.machine.content("/etc/shells") or b"").split("\n")
    if p.uid and shell not in listed:
        raise Fail(f"{shell} is an invalid shell")
    if not p.exists(shell):
        p.fail(f"Warning: {shell} does not exist")
    elif not p.may(p.lookup(shell), 1):
        p.fail(f"Warning: {shell} is not executable")
    user[6] = shell
    _save_as_root(p, accounts)


def _save_as_root(p: Process, accounts: Accounts) -> None:
    """Save as a setuid program does."""
    uid, p.uid = p.uid, 0
    accounts.save()
    p.uid = uid


def secret(password: str, name: str) -> str:
    """Return a stand-in for a password's hash in /etc/shadow: deterministic and as long as crypt's."""
    digest = b64encode(sha512(f"{name}:{password}".encode("latin-1")).digest(), b"./").decode().rstrip("=")
    return f"$6${digest[:8]}${digest}"


def passwd(p: Process) -> int | None:
    accounts, chosen, names = opened(p, "passwd [options] [LOGIN]", "adei:kln:qsSuw:x:", PASSWD, 6)
    me = find(accounts.passwd, str(p.uid), 2) or ["root"]
    name = names[0] if names else me[0]
    required(accounts.user(name), f"user '{name}' does not exist")
    if p.uid and (name != me[0] or set(chosen) - {"S", "q"}):
        raise Fail("Permission denied." if chosen else f"You may not view or modify password information for {name}.")
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
        why = "You should set a password with usermod -p to unlock the password of this account."
        raise Fail(why, 3, plain=True)
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
                raise accounts.misused(f"invalid numeric argument '{chosen[flag]}'", 6)
            shadow[column] = "" if chosen[flag] == "-1" else chosen[flag]
    accounts.save()
    if "q" not in chosen:
        p.stderr.write("passwd: password changed.\n")


def _new_password(p: Process, accounts: Accounts, name: str, shadow: list[str]) -> None:
    first, second = (text(p.stream(0).readline()) for _ in range(2))
    p.stderr.write("New password: ")
    if not first.endswith("\n") and not second:
        p.stderr.write("Password change has been aborted.\n" if not first else "")
    first, second = first.strip("\n"), second.strip("\n")
    if first:
        p.stderr.write("Retype new password: ")
    if not first or first != second:
        p.stderr.write("Sorry, passwords do not match.\n" if first else "")
        raise Fail("passwd: Authentication token manipulation error\npasswd: password unchanged", 10, plain=True)
    shadow[1:3] = secret(first, name), accounts.today()
    _save_as_root(p, accounts)
    p.stderr.write("passwd: password updated successfully\n")


def chpasswd(p: Process) -> None:
    long = {"encrypted": "e", "crypt-method:": "c", "md5": "m"}
    accounts, options, _ = opened(p, "chpasswd [options]", "c:ems:", long, 1)
    accounts.need_root()
    for at, line in enumerate(text(p.stdin).split("\n"), 1):
        if not line:
            continue
        name, colon, password = line.partition(":")
        shadow = find(accounts.shadow, name)
        if not colon:
            p.failed = p.fail(f"line {at}: missing new password")
        elif not shadow:
            p.failed = p.fail(f"line {at}: user '{name}' does not exist")
        else:
            shadow[1:3] = password if "e" in options else secret(password, name), accounts.today()
    if p.failed:
        raise Fail("error detected, changes ignored")
    accounts.save()


COMMANDS = {"chage": chage, "chsh": chsh, "passwd": passwd, "chpasswd": chpasswd}
