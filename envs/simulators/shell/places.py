"""cd, pwd, pushd, popd, dirs and umask."""

import re

UMASK = re.compile(r"([ugoa]*)([-+=])([rwxX]*)")


def cd(sh, argv) -> int:
    """Change the working directory."""
    args = [word for word in argv[1:] if word not in ("-L", "-P", "--", "-e", "-@")]
    physical = "-P" in argv[1:]
    if bad := next((word for word in args if re.fullmatch("-.+", word)), None):
        sh.fail(f"{bad[:2]}: invalid option", 2)
        sh.error("cd: usage: cd [-L|[-P [-e]] [-@]] [dir]\n")
        return 2
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
    failure = None
    for place in places:
        try:
            return _enter(sh, place, physical, show=place != target)
        except OSError as error:
            failure = error
    return sh.fail(f"{target}: {failure.strerror}")


def _enter(sh, target: str, physical: bool, show: bool) -> int:
    logical = sh.get("PWD") or sh.cwd
    if not target.startswith("/"):
        path = f"{logical}/{target}"
        target = path if sh.exists(logical) and sh.realpath(logical) == sh.cwd else f"{sh.cwd}/{target}"
    plain = _plain(target)
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
    return 0


def _plain(path: str) -> str:
    """Return an absolute path without its dots."""
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            parts[-1:] = []
        elif part and part != ".":
            parts.append(part)
    return "/" + "/".join(parts)


def dirs(sh, argv) -> int:
    """Print the stack of folders, the present one first: dirs, and pushd and popd after a change."""
    home = sh.get("HOME") or ""
    if argv[1:2] == ["-c"]:
        sh.stack = []
        return 0
    whole = [sh.get("PWD") or sh.cwd, *sh.stack]
    shown = [path if "-l" in argv or not home or (path != home and not path.startswith(home + "/"))
             else "~" + path[len(home) :] for path in whole]  # fmt: skip
    if "-v" in argv:
        sh.out("".join(f"{place:2}  {path}\n" for place, path in enumerate(shown)))
    else:
        sh.out(("\n" if "-p" in argv else " ").join(shown) + "\n")
    return 0


def pushd(sh, argv) -> int:
    here, target = sh.get("PWD") or sh.cwd, next((word for word in argv[1:] if word != "-n"), None)
    if target is None or (target[:1] in "+-" and target[1:].isdecimal()):
        whole = [here, *sh.stack]
        turn = 1 if target is None else int(target[1:3]) if target[0] == "+" else len(whole) - 1 - int(target[1:3])
        if target is None and not sh.stack:
            return sh.fail("no other directory")
        if not 0 <= turn < len(whole):
            return sh.fail(f"{target}: directory stack index out of range")
        whole = whole[turn:] + whole[:turn] if target else [whole[1], whole[0], *whole[2:]]
        target, stack = whole[0], whole[1:]
    else:
        stack = [here, *sh.stack]
    try:
        _enter(sh, target, False, False)
    except OSError as error:
        return sh.fail(f"{target}: {error.strerror}")
    sh.stack = stack
    return dirs(sh, ["dirs"])


def popd(sh, argv) -> int:
    if not sh.stack:
        return sh.fail("directory stack empty")
    try:
        _enter(sh, sh.stack[0], False, False)
    except OSError as error:
        return sh.fail(f"{sh.stack[0]}: {error.strerror}")
    sh.stack = sh.stack[1:]
    return dirs(sh, ["dirs"])


def pwd(sh, argv) -> int:
    value = None if "-P" in argv[1:] else sh.get("PWD")
    sh.out((value or sh.cwd) + "\n")
    return 0


def pwd_program(process) -> int:
    """The program pwd, which unlike the builtin ignores $PWD."""
    process.out(process.cwd + "\n")
    return 0


def umask(sh, argv) -> int:
    args = [word for word in argv[1:] if word not in ("-S", "-p", "--")]
    if not args:
        kept = [(sh.umask >> shift) & 7 ^ 7 for shift in (6, 3, 0)]
        names = ["".join(c for c, bit in zip("rwx", (4, 2, 1), strict=True) if bits & bit) for bits in kept]
        symbolic = "u={},g={},o={}".format(*names)
        sh.out(symbolic + "\n" if "-S" in argv else f"{'umask ' if '-p' in argv else ''}{sh.umask:04o}\n")
        return 0
    if args[0][:1].isdecimal():
        if not re.fullmatch("[0-7]{1,9}", args[0]) or int(args[0], 8) > 0o777:
            return sh.fail(f"{args[0]}: octal number out of range")
        sh.umask = int(args[0], 8)
        return 0
    mask = sh.umask
    for clause in args[0].split(","):
        match = UMASK.fullmatch(clause)
        if not match:
            return sh.fail(f"`{clause[:1]}': invalid symbolic mode operator")
        who, sign, letters = match.groups()
        bits = sum({"r": 4, "w": 2, "x": 1, "X": 1}[c] for c in set(letters))
        for shift in [{"u": 6, "g": 3, "o": 0}[c] for c in (who.replace("a", "ugo") or "ugo")]:
            allowed = (mask >> shift) & 7 ^ 7
            allowed = bits if sign == "=" else allowed | bits if sign == "+" else allowed & ~bits
            mask = mask & ~(7 << shift) | (allowed ^ 7) << shift
    sh.umask = mask
    return 0
