"""cd, pwd, pushd, popd, dirs and umask."""

import re

from envs.simulators.shell.commands.files import normal
from envs.simulators.shell.commands.modes import mode_text, parse_mode
from envs.simulators.shell.state import Misused


def cd(sh, argv) -> int:
    args = [word for word in argv[1:] if word not in ("-L", "-P", "--", "-e", "-@")]
    physical = "-P" in argv[1:]
    if bad := next((word for word in args if re.fullmatch("-.+", word)), None):
        raise Misused(f"{bad[:2]}: invalid option")
    if len(args) > 1:
        return sh.fail("too many arguments")
    target = args[0] if args else sh.get("HOME")
    if target is None:
        return sh.fail("HOME not set")
    if args and target == "-":
        target = sh.get("OLDPWD")
        if target is None:
            return sh.fail("OLDPWD not set")
        sh.out(target + "\n")
    if not target:
        return 0
    places = [target]
    if not target.startswith(("/", "./", "../")) and target not in (".", ".."):
        places = [f"{part}/{target}" for part in (sh.get("CDPATH") or "").split(":") if part] + places
    for place in places:
        try:
            return _enter(sh, place, physical, show=place != target)
        except OSError as error:
            why = error.strerror
    return sh.fail(f"{target}: {why}")


def _enter(sh, target: str, physical: bool, show: bool) -> None:
    logical = sh.get("PWD") or sh.cwd
    if not target.startswith("/"):
        path = f"{logical}/{target}"
        target = path if sh.exists(logical) and sh.realpath(logical) == sh.cwd else f"{sh.cwd}/{target}"
    plain = normal(target)
    node = sh.lookup(target)
    if node.kind != "dir":
        raise NotADirectoryError(20, "Not a directory")
    sh.require(node, 1)
    real = sh.realpath(plain) if sh.exists(plain) else sh.realpath(target)
    sh.put("OLDPWD", logical)
    sh.cwd = real
    sh.put("PWD", real if physical else plain)
    for name in ("OLDPWD", "PWD"):
        sh.vars[name].exported = True
    if show:
        sh.out(plain + "\n")


def dirs(sh, argv) -> None:
    """Print the stack of folders, the present one first: dirs, and pushd and popd after a change."""
    home = sh.get("HOME") or ""
    if argv[1:2] == ["-c"]:
        sh.stack = []
        return
    whole = [sh.get("PWD") or sh.cwd, *sh.stack]
    shown = [path if "-l" in argv or not home or (path != home and not path.startswith(home + "/"))
             else "~" + path[len(home) :] for path in whole]  # fmt: skip
    if "-v" in argv:
        sh.out("".join(f"{place:2}  {path}\n" for place, path in enumerate(shown)))
    else:
        sh.out(("\n" if "-p" in argv else " ").join(shown) + "\n")


def _changed(sh, target: str, stack: list[str]) -> int | None:
    """Enter a folder and print the new stack."""
    try:
        _enter(sh, target, False, False)
    except OSError as error:
        return sh.fail(f"{target}: {error.strerror}")
    sh.stack = stack
    return dirs(sh, ["dirs"])


def pushd(sh, argv) -> int | None:
    here, target = sh.get("PWD") or sh.cwd, next((word for word in argv[1:] if word != "-n"), None)
    stack = [here, *sh.stack]
    if target is None:
        if not sh.stack:
            return sh.fail("no other directory")
        target, stack = sh.stack[0], [here, *sh.stack[1:]]
    return _changed(sh, target, stack)


def popd(sh, argv) -> int | None:
    return _changed(sh, sh.stack[0], sh.stack[1:]) if sh.stack else sh.fail("directory stack empty")


def pwd(sh, argv) -> None:
    value = None if "-P" in argv[1:] else sh.get("PWD")
    sh.out((value or sh.cwd) + "\n")


def pwd_program(process) -> int:
    """The program pwd, which unlike the builtin ignores $PWD."""
    process.out(process.cwd + "\n")
    return 0


def umask(sh, argv) -> int | None:
    args = [word for word in argv[1:] if word not in ("-S", "-p", "--")]
    if not args:
        allowed = mode_text(0o777 & ~sh.umask).replace("-", " ")
        symbolic = f"u={allowed[:3]},g={allowed[3:6]},o={allowed[6:]}".replace(" ", "")
        sh.out(symbolic + "\n" if "-S" in argv else f"{'umask ' if '-p' in argv else ''}{sh.umask:04o}\n")
        return 0
    if args[0][:1].isdecimal():
        if not re.fullmatch("[0-7]{1,9}", args[0]) or int(args[0], 8) > 0o777:
            return sh.fail(f"{args[0]}: octal number out of range")
        sh.umask = int(args[0], 8)
        return 0
    change = parse_mode(args[0])
    if not change:
        return sh.fail(f"`{args[0][:1]}': invalid symbolic mode operator")
    sh.umask = 0o777 & ~change(0o777 & ~sh.umask, False, 0)
