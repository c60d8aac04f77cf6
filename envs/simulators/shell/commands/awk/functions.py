"""awk's built-in functions: each compiles a call from the trees of its arguments to a closure."""

import math
import re
from datetime import UTC, datetime
from functools import partialmethod
from random import Random

from envs.simulators.shell.commands.awk.values import number, split_fields, sprintf, text_of
from envs.simulators.shell.commands.sed.text import lower, substitute, upper
from envs.simulators.shell.commands.times import show, zone


class Functions:
    """The part of the compiler for awk's built-in functions."""

    def get_builtin(self, name, arguments):
        if name in OF_VALUES:
            awk, function, made = self.awk, OF_VALUES[name], [self.expression(argument) for argument in arguments]
            return lambda: function(awk, *[value() for value in made])
        return getattr(self, "call_" + name)(*arguments)

    def call_length(self, node=None):
        awk = self.awk
        if node is None:
            return lambda: float(len(awk.field(0)))
        is_array = node[0] == "var" and isinstance(awk.vars.get(node[1]), dict)
        made = self.array(node[1]) if is_array else self.expression(node)
        return lambda: float(len(value if isinstance(value := made(), dict) else awk.text(value)))

    def call_split(self, subject, array, separator=None):
        awk, text, table = self.awk, self.text(subject), self.array(array[1])
        if separator is not None and separator[0] == "regex":
            pattern = separator[1]
            by = lambda: pattern if len(pattern) > 1 else f"[{pattern}]" if pattern else ""  # noqa: E731
        else:
            by = self.text(separator) if separator is not None else lambda: text_of(awk.vars["FS"], "%.6g")

        def run() -> float:
            parts, found = split_fields(awk, text(), by()), table()
            found.clear()
            found.update((str(i), part) for i, part in enumerate(parts, 1))
            return float(len(parts))

        return run

    def substitution(self, everywhere: bool, pattern, replacement, target=None):
        awk, regex, with_ = self.awk, self.pattern(pattern), self.text(replacement)
        node = target or ("field", ("num", 0.0))
        if node[0] == "paren":
            node = node[1]
        if node[0] in ("var", "field", "index"):
            get, put = self.place(node)
        else:
            get, put = self.expression(node), lambda value: None

        def run() -> float:
            subject, found, parts = awk.text(get()), regex(), _replacement(with_())
            changed, count = substitute(found, subject, parts, awk.p.tick, everywhere)
            if count:
                put(changed)
            return float(count)

        return run

    call_sub, call_gsub = partialmethod(substitution, False), partialmethod(substitution, True)

    def call_match(self, subject, pattern):
        awk, text, regex = self.awk, self.text(subject), self.pattern(pattern)

        def run() -> float:
            found = regex().search(text(), 0, awk.p.tick)
            awk.vars["RSTART"] = float(found[0] + 1) if found else 0.0
            awk.vars["RLENGTH"] = float(found[1] - found[0]) if found else -1.0
            return awk.vars["RSTART"]

        return run


# -- functions of values: the running program and the arguments' values to a value


def _substr(awk, subject, start, size=math.inf) -> str:
    word, begin, count = awk.text(subject), number(start), number(size)
    if begin != begin or count != count:
        return ""
    low, size = (max(-1e9, min(1e9, math.trunc(n) if math.isfinite(n) else n)) for n in (begin, count))
    if low < 1:  # mawk 1.3.4 of 2020 makes the piece longer by what lies before the string
        low, size = 1, size - low
    return word[int(low) - 1 : int(low - 1 + size)] if size > 0 else ""


def _index(awk, subject, wanted) -> float:
    whole = awk.text(subject)
    awk.p.tick(1 + (len(whole) >> 10))
    return float(whole.find(awk.text(wanted)) + 1)


def _sprintf(awk, form, *values) -> str:
    shape = awk.text(form)
    made = sprintf(shape, values, lambda shown: awk.fail(f'not enough arguments passed to sprintf("{shape}")'))
    awk.p.tick(1 + (len(made) >> 8))
    return made


def _strftime(awk, form="%c", when=None, utc=0.0) -> str:
    at = awk.p.machine.clock if when is None else number(when)
    at = at if abs(at) < 1e11 else 0.0
    return show(awk.text(form), float(int(at)), "" if number(utc) else awk.p.env.get("TZ", ""))


def _mktime(awk, said) -> float:
    found = re.match(r"\s*(\d{1,4})\s+(\d{1,3})\s+(\d{1,5})\s+(\d{1,5})\s+(\d{1,5})\s+(\d{1,6})", awk.text(said))
    if not found:
        return -1.0
    year, month, day, hour, minute, second = map(int, found.groups())
    try:
        first = datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1, tzinfo=UTC).timestamp()
    except ValueError:
        return -1.0
    at = first + (day - 1) * 86400 + hour * 3600 + minute * 60 + second
    return at - zone(awk.p.env.get("TZ", ""), at)[1]


def _srand(awk, seed=None) -> float:
    old, awk.seed = awk.seed, float(int(awk.p.machine.clock)) if seed is None else number(seed)
    awk.rng = Random(f"awk {awk.seed}")
    return old


def _changed(change):
    def run(awk, value) -> str:
        word = awk.text(value)
        awk.p.tick(1 + (len(word) >> 8))
        return change(word)

    return run


def _system(awk, command) -> float:
    awk.flush()
    return float(awk.shell(awk.text(command)))


def _fflush(awk, name=None) -> float:
    awk.flush()
    return 0.0


def _guarded(function):
    def run(awk, value) -> float:
        given = number(value)
        try:
            return function(given)
        except OverflowError:
            return math.inf
        except ValueError:
            return -math.inf if given == 0 else math.nan

    return run


OF_VALUES = {name: _guarded(getattr(math, name)) for name in ("sin", "cos", "exp", "log", "sqrt")}
OF_VALUES |= {
    "int": _guarded(lambda value: float(math.trunc(value)) if math.isfinite(value) else value),
    "substr": _substr, "index": _index, "sprintf": _sprintf, "strftime": _strftime, "mktime": _mktime,
    "systime": lambda awk: float(int(awk.p.machine.clock)), "rand": lambda awk: awk.rng.random(), "srand": _srand,
    "tolower": _changed(lower), "toupper": _changed(upper), "system": _system, "fflush": _fflush,
    "atan2": lambda awk, a, b: math.atan2(number(a), number(b)), "close": lambda awk, name: awk.close(awk.text(name)),
}  # fmt: skip


def _replacement(by: str) -> list:
    """Return the parts of a replacement: strings, and 0 for the match itself."""
    found = re.findall(r"\\([\\&])|(&)|(\\|[^\\&]+)", by)
    return [0 if match else escaped or other for escaped, match, other in found]
