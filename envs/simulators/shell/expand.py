"""Expand words to arguments: braces, tilde, parameters, command substitution, arithmetic, splitting, globs, quotes.

A word becomes pieces (kind, text), and the pieces become fields. Kinds: QUOTED is kept literally, LITERAL may hold a
glob, SPLIT may hold a glob and is split at IFS, BREAK ends a field.
"""

import re
from functools import lru_cache, partial

from envs.simulators.shell import patterns
from envs.simulators.shell.arithmetic import ArithmeticFailed, evaluate, steps
from envs.simulators.shell.braces import braces
from envs.simulators.shell.patterns import transform
from envs.simulators.shell.tree import Arith, Double, Lit, Param, Quoted, Subst, Word

QUOTED, LITERAL, SPLIT, BREAK = range(4)
GLOB = re.compile(r"[*?\[]")
EXTENDED = re.compile(r"[*?\[]|[+@!]\(")
MAX_FIELDS = 50_000  # of one command line


class ExpansionFailed(Exception):
    """An expansion that ends the command line; with `fatal` also the shell, with `status`."""

    def __init__(self, message: str, fatal: bool = False, status: int = 1):
        super().__init__(message)
        self.fatal, self.status, self.reported = fatal, status, False


class ReadOnly(ExpansionFailed):
    """An assignment to a readonly variable; a builtin that tried it continues."""

    def __init__(self, name: str):
        super().__init__(f"{name}: readonly variable")


# -- what words become


def arguments(sh, words: list[Word]) -> list[str]:
    out: list[str] = []
    for word in words:
        if word.plain is not None:
            out.append(word.plain)
            continue
        for part in braces(sh, word):
            out += fields(sh, part)
    return out


def fields(sh, word: Word) -> list[str]:
    """Return the arguments of one word, without brace expansion."""
    if word.plain is not None:
        return [word.plain]
    found = split(pieces(sh, word.parts, False), sh.ifs())
    sh.machine.tick(len(found) >> 3)
    if len(found) > MAX_FIELDS:
        raise ExpansionFailed("Argument list too long")
    out: list[str] = []
    glob = EXTENDED if sh.options["extglob"] else GLOB
    for field in found:
        if not sh.options["f"] and any(kind != QUOTED and glob.search(text) for kind, text in field):
            pattern = as_pattern(field, sh.options["extglob"])
            paths = patterns.expand_path(sh, pattern, sh.options["dotglob"], sh.options["globstar"])
            if paths:
                out += paths
                continue
            if sh.options["nullglob"] and re.search(r"[*?\0]|\[.*\]", as_pattern(field, True), re.DOTALL):
                continue
        out.append("".join(text for _, text in field))
    return out


def string(sh, word: Word) -> str:
    """Return the text of a word that is neither split nor globbed, as in an assignment."""
    if word.plain is not None:
        return word.plain
    return joined(pieces(sh, word.parts, False, whole=True))


def pattern(sh, word: Word, extended: bool = False) -> str:
    """Return a word as a glob, with quoted characters escaped; `extended` as if extglob was on, as in [[ ]]."""
    if word.plain is not None and not re.search(r"[*?\[(\\]", word.plain):
        return word.plain
    return as_pattern(pieces(sh, word.parts, False, whole=True), extended or sh.options["extglob"])


def regex(sh, word: Word) -> str:
    """Return a word as a regular expression, with quoted characters escaped."""
    parts = pieces(sh, word.parts, False, whole=True)
    return "".join(re.sub(r"([\\.^$*+?()\[\]{}|])", r"\\\1", t) if kind == QUOTED else t for kind, t in parts)


def assigned(sh, word: Word) -> str:
    """Return a value to assign: tildes are also expanded after colons."""
    if word.plain is not None:
        return word.plain
    parts = word.parts
    if any(type(part) is Lit and ":~" in part.text for part in parts):
        later = partial(re.compile(r":(~[\w-]*)", re.ASCII).sub, lambda m: ":" + tilde(sh, m[1]))
        parts = [Lit(later(part.text)) if type(part) is Lit else part for part in parts]
    return joined(pieces(sh, parts, False, whole=True))


def joined(parts: list) -> str:
    return "".join(" " if kind == BREAK else text for kind, text in parts)


def as_pattern(parts: list, extended: bool = False) -> str:
    mark = patterns.extended if extended else str
    return "".join(patterns.escape(text) if kind == QUOTED else mark(text) for kind, text in parts)


# -- pieces


def pieces(sh, parts: list, quoted: bool, whole: bool = False) -> list:
    """Return the pieces of a word's parts; with `whole` nothing will be split, so that $* is one string."""
    out: list = []
    for place, part in enumerate(parts):
        kind = type(part)
        if kind is Lit:
            text = part.text
            if not place and text.startswith("~"):
                text = _tilde_prefix(sh, text, len(parts) == 1, out)
            out.append((LITERAL, text))
        elif kind is Quoted:
            out.append((QUOTED, part.text))
        elif kind is Double:
            out += _double(sh, part.parts)
        elif kind is Param:
            out += param(sh, part, quoted, whole)
        elif kind is Subst:
            read = sh.sink_of if part.into else sh.file_of if part.file else sh.output_of
            text = read(part.program)
            out.append((QUOTED if quoted or part.file else SPLIT, text))
        elif kind is Arith:
            out.append((QUOTED if quoted else SPLIT, str(number(sh, string(sh, part.word)))))
    return out


def _tilde_prefix(sh, text: str, alone: bool, out: list) -> str:
    """Return the text after a leading tilde and its name; append the folder to `out`."""
    name, slash, rest = text.partition("/")
    if not alone and not slash:
        return text
    folder = tilde(sh, name)
    if folder == name:
        return text
    out.append((QUOTED, folder))
    return slash + rest


def tilde(sh, name: str) -> str:
    """Return the folder of ~ or ~name; the text itself if there is no such user."""
    if name == "~":
        home = sh.get("HOME")
        return home if home is not None else (sh.machine.user(sh.uid) or [""] * 7)[5]
    if name in ("~+", "~-"):
        value = sh.get("PWD" if name == "~+" else "OLDPWD")
        return name if value is None else value
    user = sh.machine.user(name[1:])
    return user[5] if user else name


def _double(sh, parts: list) -> list:
    """Expand the contents of double quotes: one field, except for "$@"."""
    found = pieces(sh, parts, True)
    if found:
        return [(QUOTED, text) if kind == LITERAL else (kind, text) for kind, text in found]
    empty_list = any(type(p) is Param and (p.name == "@" or (p.index and p.index.source == "@")) for p in parts)
    return [] if empty_list else [(QUOTED, "")]


def number(sh, text: str, command: str = "") -> int:
    """Return the value of arithmetic text; its errors begin with a command's name."""
    sh.machine.tick(steps(text))
    try:
        return evaluate(text, sh.arithmetic_get, sh.arithmetic_put)
    except ArithmeticFailed as failure:
        raise ExpansionFailed(command + str(failure)) from None


# -- parameters


def param(sh, p: Param, quoted: bool, whole: bool) -> list:
    """Return the pieces of `$name` or `${...}`."""
    kind = QUOTED if quoted else SPLIT
    if not p.op and p.index is None and p.name not in "@*":
        value = sh.get(p.name)
        if value is None:
            if sh.options["u"]:
                raise unbound(p.name)
            return [(QUOTED, "")] if quoted else []
        if len(value) > 1000:
            sh.machine.tick(len(value) >> 9)
        return [(kind, value)]
    if p.op == "bad":
        raise ExpansionFailed(f"{p.source}: bad substitution")
    if p.op == "indirect":
        return _indirect(sh, p, quoted, whole)
    all_of = p.name if p.name in "@*" else p.index.source if p.index and p.index.source in ("@", "*") else ""
    if p.op == "length":
        return [(kind, str(_length(sh, p, all_of)))]
    values = _values(sh, p, all_of)
    sh.machine.tick(sum(map(len, values or ())) >> 8)
    if p.op and p.op.lstrip(":") in ("-", "=", "+", "?"):
        chosen = _conditional(sh, p, values, quoted, whole)
        if chosen is not None:
            return chosen
        values = _values(sh, p, all_of)
    elif values is None or (not values and not all_of and p.op):
        if sh.options["u"] and not all_of:
            raise unbound(p.name if not p.index else f"{p.name}[{p.index.source}]")
        return [(QUOTED, "")] if quoted and not all_of else []
    elif p.op == ":":
        values = _slice(sh, p, values, all_of)
    elif p.op and p.op != "keys":
        values = transform(p.op, values, *_operands(sh, p), sh.machine.tick)
    return _spread(sh, values, all_of, kind, whole)


def unbound(name: str) -> ExpansionFailed:
    return ExpansionFailed(f"{name}: unbound variable", fatal=True, status=127)


def _spread(sh, values: list[str], all_of: str, kind: int, whole: bool) -> list:
    """Return values as pieces: one, or all of an array, joined or each as its own field."""
    if not all_of:
        return [(kind, value) for value in values]
    sh.machine.tick(len(values) >> 2)
    if (all_of == "*" and kind == QUOTED) or (whole and all_of == "*"):
        ifs = sh.get("IFS")
        return [(QUOTED, (" " if ifs is None else ifs[:1]).join(values))]
    out: list = []
    for value in values:
        out += [(BREAK, ""), (kind, value)]
    return out[1:]


def _values(sh, p: Param, all_of: str) -> list[str] | None:
    """Return the values of a parameter; None if it is not set. A scalar is a list of one."""
    if p.name in "@*":
        return list(sh.args)
    if p.op == "keys":
        return [str(key) for key in sh.keys(p.name)]
    if all_of:
        return sh.values(p.name) or None
    value = sh.get(p.name) if p.index is None else sh.element(p.name, p.index)
    return None if value is None else [value]


def _length(sh, p: Param, all_of: str) -> int:
    if all_of:
        return len(sh.args if p.name in "@*" else sh.values(p.name))
    values = _values(sh, p, all_of)
    if values is None and sh.options["u"]:
        raise unbound(p.name)
    return len(values[0]) if values else 0


def _conditional(sh, p: Param, values: list[str] | None, quoted: bool, whole: bool) -> list | None:
    """Return the pieces of the word in ${name:-word} and its kin; None if the parameter's value is used."""
    empty = not values or (p.op[0] == ":" and not any(values) and len(values) < 2)
    missing = values is None or (empty and (p.op[0] == ":" or p.name in "@*"))
    sign = p.op[-1]
    if (sign == "+") == missing:
        return [(QUOTED, "")] if sign == "+" and quoted else [] if sign == "+" else None
    if sign == "=":
        if p.name in "@*" or not re.match(r"[A-Za-z_]", p.name):
            raise ExpansionFailed(f"${p.name}: cannot assign in this way")
        sh.put(p.name, string(sh, p.arg), p.index)
        return None
    if sign == "?":
        message = string(sh, p.arg) or ("parameter null or not set" if p.op[0] == ":" else "parameter not set")
        raise ExpansionFailed(f"{p.name}: {message}", fatal=True, status=127)
    found = pieces(sh, p.arg.parts, quoted, whole)
    if quoted:
        return found or [(QUOTED, "")]
    return [(SPLIT, text) if kind == LITERAL else (kind, text) for kind, text in found]


def _indirect(sh, p: Param, quoted: bool, whole: bool) -> list:
    """Expand ${!name}; of a nameref the name that it refers to."""
    if p.index is None and p.name in sh.vars and sh.vars[p.name].kind == "n":
        return [(QUOTED if quoted else SPLIT, sh.target(p.name))]
    found = _values(sh, p, "")
    target = found[0] if found else ""
    match = re.fullmatch(r"([A-Za-z_]\w*|\d+|[@*#?$!-])(?:\[(.*)\])?", target, re.ASCII)
    if not match:
        why = f"{target}: invalid variable name" if target else f"!{p.name}: invalid indirect expansion"
        raise ExpansionFailed(why)
    index = Word([Lit(match.group(2))], match.group(2), match.group(2)) if match.group(2) else None
    return param(sh, Param(match.group(1), index, source=p.source), quoted, whole)


def _operands(sh, p: Param) -> tuple[str, str]:
    """Return the pattern of ${name op pattern} and /'s replacement, in which NUL marks the match."""
    parts = pieces(sh, p.arg2.parts, False, whole=True) if p.arg2 else []
    new = "".join(text if kind == QUOTED else text.replace("&", "\0") for kind, text in parts)
    return pattern(sh, p.arg) if p.arg else "", new


def _slice(sh, p: Param, values: list[str], all_of: str) -> list[str]:
    """Expand ${name:offset:length}."""
    offset = number(sh, string(sh, p.arg))
    length = number(sh, string(sh, p.arg2)) if p.arg2 else None
    if not all_of:
        text = values[0]
        start = offset if offset >= 0 else len(text) + offset
        if start < 0 or start > len(text):
            return [""]
        end = len(text) if length is None else start + length if length >= 0 else len(text) + length
        if length is not None and length < 0 and end < start:
            raise ExpansionFailed(f"{p.arg2.source}: substring expression < 0")
        return [text[start:end]]
    if p.name in "@*":
        values = [sh.shell_name, *values]
        keys = list(range(len(values)))
        if offset == 0 and length is not None:
            return values[:length]
    else:
        keys = [key if type(key) is int else place for place, key in enumerate(sh.keys(p.name))]
    if offset < 0:
        offset += (keys[-1] if keys else -1) + 1
        if offset < 0:
            return []
    if length is not None and length < 0:
        raise ExpansionFailed(f"{p.arg2.source}: substring expression < 0")
    chosen = [value for key, value in zip(keys, values, strict=True) if key >= offset]
    return chosen if length is None else chosen[:length]


# -- fields


@lru_cache(16)
def _delimiter(ifs: str) -> re.Pattern:
    blank = re.escape("".join(c for c in ifs if c in " \t\n"))
    other = re.escape("".join(c for c in ifs if c not in " \t\n"))
    if not other:
        return re.compile(f"[{blank}]+")
    return re.compile(f"[{blank}]*([{other}])[{blank}]*|[{blank}]+" if blank else f"([{other}])")


def split(parts: list, ifs: str) -> list[list]:
    """Return the fields that pieces form, each a list of pieces."""
    out: list[list] = []
    current: list | None = None
    for kind, text in parts:
        if kind == SPLIT and ifs:
            at = 0
            for match in _delimiter(ifs).finditer(text):
                if match.start() > at:
                    current = current or []
                    current.append((SPLIT, text[at : match.start()]))
                if current is not None or match.lastindex:
                    out.append(current or [])
                current = None
                at = match.end()
            if at < len(text):
                current = current or []
                current.append((SPLIT, text[at:]))
        elif kind != BREAK:
            if text or kind != SPLIT:
                current = current or []
                current.append((kind, text))
        elif current is not None:
            out.append(current)
            current = None
    return out if current is None else [*out, current]
