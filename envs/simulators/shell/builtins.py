"""The builtin commands, BUILTINS: functions of the shell and a command's words that return an exit status, None for 0.

Defined here: exit, return, break, shift, eval, source, exec, set, shopt, let, type, command, ulimit and their
like. The others come from declaring.py, reading.py, places.py, printing.py, signals.py and conditions.py.
"""

import re

from envs.simulators.shell import expand
from envs.simulators.shell.conditions import test
from envs.simulators.shell.declaring import declare, export, local, put_checked, readonly_, unset
from envs.simulators.shell.places import cd, dirs, popd, pushd, pwd, pwd_program, umask
from envs.simulators.shell.printing import echo, formatted, printf, traced
from envs.simulators.shell.reading import mapfile, read
from envs.simulators.shell.signals import disown, jobs, kill, no_control, trap, wait
from envs.simulators.shell.state import LONG_OPTIONS, Exit, LoopJump, Misused, Return
from envs.simulators.shell.words import NAME

RESERVED = "if then elif else fi for while until do done case esac in function select time { } [[ ]] ! coproc"
SHOPT = """checkwinsize cmdhist dotglob expand_aliases extglob failglob globstar huponexit inherit_errexit lastpipe
nocaseglob nocasematch nullglob sourcepath xpg_echo"""
NOT_SIMULATED = {"failglob", "inherit_errexit", "lastpipe", "nocaseglob", "xpg_echo"}  # options of shopt


USAGE = {
    "cd": "cd [-L|[-P [-e]] [-@]] [dir]", "source": "source filename [arguments]", ".": ". filename [arguments]",
    "set": "set [-abefhkmnptuvxBCEHPT] [-o option-name] [--] [-] [arg ...]",
    "printf": "printf [-v var] format [arguments]",
    "kill": "kill [-s sigspec | -n signum | -sigspec] pid | jobspec ... or kill -l [sigspec]",
    "declare": "declare [-aAfFgiIlnrtux] [name[=value] ...] or declare -p [-aAfFilnrtux] [name ...]",
    "typeset": "typeset [-aAfFgiIlnrtux] name[=value] ... or typeset -p [-aAfFilnrtux] [name ...]",
    "local": "local [option] name[=value] ...", "export": "export [-fn] [name[=value] ...] or export -p",
    "readonly": "readonly [-aAf] [name[=value] ...] or readonly -p",
    "read": "read [-ers] [-a array] [-d delim] [-i text] [-n nchars] [-N nchars] [-p prompt] [-t timeout] [-u fd] "
            "[name ...]",
    "mapfile": "mapfile [-d delim] [-n count] [-O origin] [-s count] [-t] [-u fd] [array]",
}  # fmt: skip
USAGE["readarray"] = USAGE["mapfile"]


def colon(sh, argv) -> None:
    """Do nothing."""


def false(sh, argv) -> int:
    return 1


def whole(sh, argv: list[str], default: int) -> int | None:
    """Return the numeric argument of exit, return, shift and their like; None, with a message, if it is no number."""
    args = argv[2:] if argv[1:2] == ["--"] else argv[1:]
    if not args:
        return default
    if not re.fullmatch(r"\s*[-+]?\d{1,18}\s*", args[0]):
        sh.fail(f"{args[0]}: numeric argument required")
        return None
    return int(args[0])


def exit_(sh, argv) -> int:
    status = whole(sh, argv, sh.status)
    if status is not None and len(argv) > 2:
        return sh.fail("too many arguments")
    raise Exit(2 if status is None else status & 255)


def return_(sh, argv) -> int:
    if not sh.frames and not sh.sourcing:
        return sh.fail("can only `return' from a function or sourced script", 2)
    status = whole(sh, argv, sh.status)
    raise Return(2 if status is None else status & 255)


def _jump(sh, argv) -> int:
    if not sh.loops:
        sh.fail("only meaningful in a `for', `while', or `until' loop")
        return 0
    count = whole(sh, argv, 1)
    if count is None:
        raise Exit(128)
    if count < 1:
        raise Exit(sh.fail(f"{argv[1]}: loop count out of range", 128))
    raise LoopJump(min(count, sh.loops), argv[0] == "continue")


def shift(sh, argv) -> int | None:
    count = whole(sh, argv, 1)
    if count is None:
        return 1
    if count < 0:
        return sh.fail(f"{argv[1]}: shift count out of range")
    if count > len(sh.args):
        return 1
    del sh.args[:count]


def eval_(sh, argv) -> int:
    source = " ".join(argv[2:] if argv[1:2] == ["--"] else argv[1:])
    sh.deeper()
    try:
        return sh.run_script(source, "eval", sh.line)
    finally:
        sh.nesting -= 1


def source(sh, argv) -> int:
    if len(argv) < 2:
        raise Misused("filename argument required")
    path = argv[1]
    try:
        if "/" not in path and not sh.exists(path):
            path = next((f"{d}/{path}" for d in (sh.get("PATH") or "").split(":") if sh.exists(f"{d}/{path}")), path)
        if sh.lookup(path).kind == "dir":
            return sh.fail(f"{argv[1]}: is a directory")
        data = sh.read(path).decode("latin-1")
    except OSError as failure:
        sh.complain(f"{argv[1]}: {failure.strerror}")
        return 1
    saved = sh.args, sh.label, sh.line
    sh.deeper()
    sh.sourcing += 1
    sh.label = argv[1]
    if len(argv) > 2:
        sh.args = argv[2:]
    try:
        return sh.run_script(data.replace("\0", ""))
    except Return as end:
        return end.status
    finally:
        if len(argv) > 2:
            sh.args = saved[0]
        _, sh.label, sh.line = saved
        sh.sourcing -= 1
        sh.nesting -= 1


def exec_(sh, argv) -> int:
    """Run a program in the shell's place; without one, keep the redirections."""
    args = argv[1:]
    if not args:
        return 0
    try:
        sh.find_program(args[0], sh.get("PATH") or "")
    except OSError as failure:
        sh.fail(f"{args[0]}: {'not found' if failure.errno == 2 and '/' not in args[0] else failure.strerror}")
        raise Exit(127 if failure.errno == 2 else 126) from None
    sh.traps.pop("EXIT", None)
    raise Exit(sh.program(args))


def set_(sh, argv) -> int | None:
    """Set options and positional parameters."""
    args, at = argv[1:], 0
    if not args:
        values = {name: var.scalar() for name, var in sorted(sh.vars.items())}
        sh.out("".join(f"{name}={value and traced(value)}\n" for name, value in values.items() if value is not None))
        return 0
    while at < len(args):
        word = args[at]
        at += 1
        if word == "--" or word == "-":
            sh.args = args[at:]
            return 0
        if not re.match(r"[-+].", word):
            sh.args = args[at - 1 :]
            return 0
        for letter in word[1:]:
            name = letter
            if letter == "o":
                if at >= len(args):
                    return shopt(sh, ["shopt", "-o"])
                name = LONG_OPTIONS.get(args[at])
                if name is None:
                    return sh.fail(f"{args[at]}: invalid option name")
                at += 1
            elif letter not in "abefhkmnptuvxBCEHPT":
                raise Misused(f"{word[0]}{letter}: invalid option")
            sh.options[name] = word[0] == "-"


def shopt(sh, argv) -> int:
    flags = "".join(word[1:] for word in argv[1:] if word.startswith("-"))
    names = [word for word in argv[1:] if not word.startswith("-")]
    known = LONG_OPTIONS if "o" in flags else {name: name for name in SHOPT.split()}
    status = 0
    for name in names or (sorted(known) if "s" not in flags and "u" not in flags else ()):
        if name not in known:
            status = sh.fail(f"{name}: invalid {'option' if 'o' in flags else 'shell option'} name")
        elif "s" in flags and name in NOT_SIMULATED:
            status = sh.fail(f"{name}: this option is not simulated")
        elif "s" in flags or "u" in flags:
            sh.options[known[name]] = "s" in flags
        else:
            on = sh.options.get(known[name], False)
            status = status or int(not on and bool(names))
            if "q" not in flags:
                sh.out(f"{name:<15}\t{'on' if on else 'off'}\n")
    return status


def let(sh, argv) -> int:
    if len(argv) < 2:
        return sh.fail("expression expected")
    value = 0
    for word in argv[1:]:
        try:
            value = expand.number(sh, word)
        except expand.ExpansionFailed as failure:
            if failure.fatal:
                raise
            return sh.fail(str(failure))
    return int(not value)


def printf_(sh, argv) -> int:
    if argv[1:2] != ["-v"] or len(argv) < 4:
        if len(argv) > 1 and re.fullmatch("-[^-].*", argv[1]):
            raise Misused(f"{argv[1][:2]}: invalid option")
        return printf(sh, argv)
    if not NAME.fullmatch(argv[2].partition("[")[0]):
        return sh.fail(f"`{argv[2]}': not a valid identifier", 2)
    text, status = formatted(sh, argv[3], argv[4:])
    put_checked(sh, argv[2], text)
    return status


def kind_of(sh, name: str) -> tuple[str, str]:
    """Return what a name is and its path: ("keyword" | "function" | "builtin" | "file" | "", path)."""
    if name in RESERVED.split():
        return "keyword", name
    if name in sh.functions:
        return "function", name
    if name in BUILTINS:
        return "builtin", name
    try:
        return "file", sh.find_program(name, sh.get("PATH") or "")[0]
    except OSError:
        return "", ""


def type_(sh, argv) -> int:
    flags = "".join(word[1:] for word in argv[1:] if word.startswith("-") and word != "--")
    status = 0
    for name in (word for word in argv[1:] if not word.startswith("-")):
        kind, path = kind_of(sh, name)
        if not kind:
            status = 1
            if "t" not in flags and "p" not in flags:
                sh.fail(f"{name}: not found")
        elif "t" in flags:
            sh.out(kind + "\n")
        elif "p" in flags or "P" in flags:
            sh.out(path + "\n" if kind == "file" else "")
        else:
            _describe(sh, name, kind, path)
    return status


def _describe(sh, name: str, kind: str, path: str) -> None:
    if kind == "function":
        sh.out(f"{name} is a function\n{sh.functions[name][0].source}\n")
    else:
        sh.out(f"{name} is {path if kind == 'file' else 'a shell ' + kind}\n")


def command(sh, argv) -> int:
    """Run a command, ignoring functions of its name; -v and -V print what it is."""
    args = argv[1:]
    flags = ""
    while args and re.fullmatch("-[pvV]+|--", args[0]):
        flags += args.pop(0)
    if not args:
        return 0
    if "v" in flags or "V" in flags:
        status = 1
        for name in args:
            kind, path = kind_of(sh, name)
            status = 0 if kind else status
            if kind and "V" in flags:
                _describe(sh, name, kind, path)
            elif kind:
                sh.out(path + "\n")
            elif "V" in flags:
                sh.fail(f"{name}: not found")
        return status
    if args[0] in BUILTINS:
        return sh.call_builtin(BUILTINS[args[0]], args)
    return sh.program(args)


def alias(sh, argv) -> int:
    """Fail for any name: scripts have no aliases."""
    missing = [word for word in argv[1:] if "=" not in word and not word.startswith("-")]
    return max((sh.fail(f"{word}: not found") for word in missing), default=0)


def ulimit(sh, argv) -> None:
    sh.out("unlimited\n")


BUILTINS = {
    ":": colon, "true": colon, "false": false, "cd": cd, "pwd": pwd, "echo": echo, "printf": printf_, "exit": exit_,
    "return": return_, "break": _jump, "continue": _jump, "shift": shift, "eval": eval_, "source": source, ".": source,
    "exec": exec_, "set": set_, "shopt": shopt, "trap": trap, "umask": umask, "read": read, "let": let, "test": test,
    "[": test, "type": type_, "command": command, "wait": wait, "kill": kill,
    "alias": alias, "unalias": alias, "ulimit": ulimit, "export": export, "local": local,
    "readonly": readonly_, "unset": unset, "declare": declare, "typeset": declare, "mapfile": mapfile,
    "readarray": mapfile, "jobs": jobs, "disown": disown, "fg": no_control, "bg": no_control,
    "pushd": pushd, "popd": popd, "dirs": dirs,
     "times": colon, "history": colon, "enable": colon,
}  # fmt: skip


def _as_program(builtin):
    return lambda process: builtin(process, process.argv) or 0


PROGRAMS = {name: _as_program(BUILTINS[name]) for name in ("true", "false", "pwd", "echo", "test", "[")}
PROGRAMS |= {"pwd": pwd_program, "printf": _as_program(printf)}
