"""declare, local, export, readonly and unset, and assignment with bash's checks for all builtins (put_checked)."""

import re

from envs.simulators.shell import expand
from envs.simulators.shell.printing import declared
from envs.simulators.shell.state import Misused, Var
from envs.simulators.shell.tree import Assign, Word, index_word, plain_word
from envs.simulators.shell.words import NAME

TARGET = re.compile(r"([A-Za-z_]\w*)(?:\[(.*)\])?(\+?=)?(.*)", re.ASCII | re.DOTALL)


def put_checked(sh, name: str, value) -> None:
    """Assign a builtin's value: a string to a name or an array element, a dict to an array."""
    base, bracket, index = name.partition("[")
    if isinstance(value, dict):
        var = sh.vars.setdefault(sh.target(base), Var())
        var.kind, var.value = "a", value
    else:
        sh.put(base, value, index_word(index) if bracket else None)


def _options(argv: list, known: str) -> tuple[set, set, list]:
    """Return the letters after - and after +, and the rest."""
    on, off, at = set(), set(), 1
    while at < len(argv) and isinstance(argv[at], str) and re.match(r"[-+].", argv[at]):
        word = argv[at]
        at += 1
        if word == "--":
            break
        for letter in word[1:]:
            if letter not in known:
                raise Misused(f"{word[0]}{letter}: invalid option")
            (on if word[0] == "-" else off).add(letter)
    return on, off, argv[at:]


def shape(name: str, var: Var) -> str:
    """Return a variable as `declare -p` prints it."""
    flags = var.kind + "i" * var.integer + var.case * (var.case == "l") + "r" * var.readonly
    flags += "u" * (var.case == "u") + "x" * var.exported
    start = f"declare -{flags or '-'} {name}"
    if isinstance(var.value, dict):
        items = "".join(f"[{key}]={declared(var.value[key])} " for key in var.indices())
        return f"{start}=({items if var.kind == 'A' else items.rstrip(' ')})"
    return start if var.value is None else f"{start}={declared(var.value)}"


def _show(sh, argv: list, names: list, wanted) -> int:
    """Print the named variables, or all that `wanted` selects."""
    status = 0
    for name in names or sorted(name for name, var in sh.vars.items() if wanted(var)):
        if name in sh.vars:
            sh.out(shape(name, sh.vars[name]) + "\n")
        else:
            status = sh.fail(f"{name}: not found")
    return status


def _declare(sh, argv: list, on: set, off: set, items: list, scoped: bool) -> int:
    """Give each name its attributes and its value."""
    status = 0
    for item in items:
        if type(item) is Assign:
            name, index, add, value = item.name, item.index, item.add, item.value
        else:
            match = TARGET.fullmatch(item)
            if not match or (match.group(4) and not match.group(3)):
                status = sh.fail(f"`{item}': not a valid identifier")
                continue
            name, place, sign, value = match.groups()
            index = plain_word(place) if place is not None else None
            add, value = sign == "+=", value if sign else None
        var = sh.vars.get(name)
        if scoped and name not in sh.frames[-1][1]:
            sh.frames[-1][1][name] = var
            if var is not None and var.readonly:
                del sh.frames[-1][1][name]
                status = sh.fail(f"{name}: readonly variable")
                continue
            var = None
            sh.vars[name] = Var()
        if var is not None and var.readonly and (value is not None or "r" in off):
            sh.complain(f"{argv[0] + ': ' if argv[0] != 'export' else ''}{name}: readonly variable")
            status = 1
            continue
        if "n" in on:
            sh.vars[name] = Var(value and str(value), kind="n")
            continue
        if not scoped:
            name = sh.target(name)
        kind = sh.vars[name].kind if name in sh.vars else ""
        if (kind == "a" and "A" in on) or (kind == "A" and "a" in on):
            ways = ("indexed", "associative") if kind == "a" else ("associative", "indexed")
            status = sh.fail(f"{name}: cannot convert {ways[0]} to {ways[1]} array")
            continue
        _give(sh, sh.vars.setdefault(name, Var()), name, on, off)
        if isinstance(value, list):
            sh.put_array(name, value, add, "A" if "A" in on else "")
        elif type(value) is Word:
            sh.put(name, expand.assigned(sh, value), index, add)
        elif value is not None:
            sh.put(name, value, index, add)
        if "r" in on:
            sh.vars[name].readonly = True
    return status


def _give(sh, var: Var, name: str, on: set, off: set) -> None:
    if "A" in on and var.kind != "A":
        var.kind, var.value = "A", {} if var.value is None else var.value
    elif "a" in on and not var.kind:
        var.kind, var.value = "a", None if var.value is None else {0: var.value}
    var.exported = (var.exported or "x" in on) and "x" not in off
    var.integer = (var.integer or "i" in on) and "i" not in off
    if {"l", "u"} & on:
        var.case = "l" if "l" in on else "u"
    if var.case in off:
        var.case = ""


def declare(sh, argv: list) -> int:
    on, off, rest = _options(argv, "aAfFgiIlnprtux")
    if "f" in on or "F" in on:
        found = [sh.functions[name][0].source for name in rest or sorted(sh.functions) if name in sh.functions]
        sh.out("".join(source + "\n" for source in found if "f" in on))
        return int(len(found) < len(rest))
    if "p" in on or not rest:
        kinds = on & {"a", "A"}
        return _show(sh, argv, rest, lambda v: (not kinds or v.kind in kinds) and (v.readonly or "r" not in on)
                     and (v.exported or "x" not in on) and (v.integer or "i" not in on))  # fmt: skip
    return _declare(sh, argv, on, off, rest, bool(sh.frames) and "g" not in on)


def local(sh, argv: list) -> int:
    if not sh.frames:
        return sh.fail("can only be used in a function")
    on, off, rest = _options(argv, "aAfFgiIlnprtux")
    return _declare(sh, argv, on, off, [item for item in rest if item != "-"], True)


def export(sh, argv: list) -> int:
    on, _, rest = _options(argv, "fnp")
    if "f" in on:
        missing = [name for name in rest if name not in sh.functions]
        return sh.fail(f"{missing[0]}: not a function") if missing else 0
    if not rest:
        return _show(sh, argv, [], lambda var: var.exported)
    return _declare(sh, argv, set() if "n" in on else {"x"}, {"x"} if "n" in on else set(), rest, False)


def readonly_(sh, argv: list) -> int:
    on, _, rest = _options(argv, "aAfp")
    if not rest:
        return _show(sh, argv, [], lambda var: var.readonly)
    return _declare(sh, argv, {"r"} | on & {"a", "A"}, set(), rest, False)


def unset(sh, argv: list) -> int:
    """Remove variables, array elements, or with -f functions."""
    flags = "".join(word[1:] for word in argv[1:] if word in ("-f", "-v", "-n"))
    status = 0
    for word in (word for word in argv[1:] if word not in ("-f", "-v", "-n", "--")):
        base, bracket, index = word.partition("[")
        base = base if "n" in flags else sh.target(base)
        word = base + bracket + index
        var = sh.vars.get(base)
        if "f" in flags or (var is None and "v" not in flags and word in sh.functions):
            sh.functions.pop(word, None)
        elif not NAME.fullmatch(base):
            status = sh.fail(f"`{word}': not a valid identifier")
        elif var is not None and var.readonly:
            status = sh.fail(f"{base}: cannot unset: readonly variable")
        elif bracket and index not in ("@]", "*]"):
            if var is not None and isinstance(var.value, dict):
                var.value.pop(sh.key(var, index_word(index), base), None)
        else:
            sh.vars.pop(base, None)
    return status
