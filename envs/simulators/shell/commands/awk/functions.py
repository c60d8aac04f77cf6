"""awk's built-in functions: each compiles a call from the trees of its arguments to a closure."""

import math
import re
from datetime import UTC, datetime
from random import Random

from envs.simulators.shell.commands.awk.values import split_fields, sprintf, text_of
from envs.simulators.shell.commands.sed.text import lower, upper
from envs.simulators.shell.commands.times import show, zone
from envs.simulators.shell.files import MAX_TEXT, Timeout


class Functions:
    """The part of the compiler for awk's built-in functions."""

    def get_builtin(self, name, arguments):
        if name in MATHS:
            made, function = self.number(arguments[0]), MATHS[name]
            return lambda: function(made())
        return getattr(self, "call_" + name)(*arguments)

    def call_length(self, node=None):
        awk = self.awk
        if node is None:
            return lambda: float(len(awk.field(0)))
        made = self.array(node[1]) if node[0] == "var" and self.is_array(node[1]) else self.expression(node)

        def run() -> float:
            value = made()
            return float(len(value) if isinstance(value, dict) else len(text_of(value, awk.vars["CONVFMT"])))

        return run

    def is_array(self, name: str) -> bool:
        return name not in self.parameters and isinstance(self.awk.vars.get(name), dict)

    def call_substr(self, subject, start, size=None):
        text, first = self.text(subject), self.number(start)
        many = self.number(size) if size else lambda: math.inf

        def run() -> str:
            word, begin, count = text(), first(), many()
            if begin != begin or count != count:
                return ""
            low = max(-1e9, min(1e9, math.trunc(begin) if math.isfinite(begin) else begin))
            size = max(-1e9, min(1e9, math.trunc(count) if math.isfinite(count) else count))
            if low < 1:  # mawk 1.3.4 of 2020 makes the piece longer by what lies before the string
                low, size = 1, size - low
            return word[int(low) - 1 : int(low - 1 + size)] if size > 0 else ""

        return run

    def call_index(self, subject, wanted):
        text, part, tick = self.text(subject), self.text(wanted), self.awk.p.tick

        def run() -> float:
            whole = text()
            tick(1 + (len(whole) >> 10))
            return float(whole.find(part()) + 1)

        return run

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

    def call_sub(self, pattern, replacement, target=None):
        return self.substitution(pattern, replacement, target, everywhere=False)

    def call_gsub(self, pattern, replacement, target=None):
        return self.substitution(pattern, replacement, target, everywhere=True)

    def substitution(self, pattern, replacement, target, everywhere: bool):
        awk, regex, with_ = self.awk, self.pattern(pattern), self.text(replacement)
        node = target or ("field", ("num", 0.0))
        if node[0] == "paren":
            node = node[1]
        if node[0] in ("var", "field", "index"):
            get, put = self.place(node)
        else:
            get, put = self.expression(node), lambda value: None

        def run() -> float:
            subject, found, by = text_of(get(), awk.vars["CONVFMT"]), regex(), with_()
            changed, count = substitute(found, subject, by, everywhere, awk.p.tick)
            if count:
                put(changed)
            return float(count)

        return run

    def call_match(self, subject, pattern):
        awk, text, regex = self.awk, self.text(subject), self.pattern(pattern)

        def run() -> float:
            found = regex().search(text(), 0, awk.p.tick)
            awk.vars["RSTART"] = float(found[0] + 1) if found else 0.0
            awk.vars["RLENGTH"] = float(found[1] - found[0]) if found else -1.0
            return awk.vars["RSTART"]

        return run

    def call_sprintf(self, form, *arguments):
        awk, text, values = self.awk, self.text(form), [self.expression(argument) for argument in arguments]

        def run() -> str:
            shape = text()
            missing = lambda shown: awk.fail(f'not enough arguments passed to sprintf("{shape}")')  # noqa: E731
            made = sprintf(shape, [value() for value in values], missing)
            awk.p.tick(1 + (len(made) >> 8))
            return made

        return run

    def call_atan2(self, a, b):
        left, right = self.number(a), self.number(b)
        return lambda: math.atan2(left(), right())

    def call_systime(self):
        awk = self.awk
        return lambda: float(int(awk.p.machine.clock))

    def call_strftime(self, form=None, when=None, utc=None):
        awk, text = self.awk, self.text(form) if form else lambda: "%c"
        seconds = self.number(when) if when else lambda: awk.p.machine.clock
        in_utc = self.number(utc) if utc else lambda: 0.0

        def run() -> str:
            at = seconds()
            at = at if abs(at) < 1e11 else 0.0
            return show(text(), float(int(at)), "" if in_utc() else awk.p.env.get("TZ", ""))

        return run

    def call_mktime(self, said):
        awk, text = self.awk, self.text(said)

        def run() -> float:
            found = re.match(r"\s*(\d{1,4})\s+(\d{1,3})\s+(\d{1,5})\s+(\d{1,5})\s+(\d{1,5})\s+(\d{1,6})", text())
            if not found:
                return -1.0
            year, month, day, hour, minute, second = map(int, found.groups())
            try:
                first = datetime(year + (month - 1) // 12, (month - 1) % 12 + 1, 1, tzinfo=UTC).timestamp()
            except ValueError:
                return -1.0
            at = first + (day - 1) * 86400 + hour * 3600 + minute * 60 + second
            return at - zone(awk.p.env.get("TZ", ""), at)[1]

        return run

    def call_rand(self):
        awk = self.awk
        return lambda: awk.rng.random()

    def call_srand(self, seed=None):
        awk = self.awk
        made = self.number(seed) if seed else lambda: float(int(awk.p.machine.clock))

        def run() -> float:
            old, awk.seed = awk.seed, made()
            awk.rng = Random(f"awk {awk.seed}")
            return old

        return run

    def call_tolower(self, node):
        return self.changed(node, lower)

    def call_toupper(self, node):
        return self.changed(node, upper)

    def changed(self, node, change):
        made, tick = self.text(node), self.awk.p.tick

        def run() -> str:
            word = made()
            tick(1 + (len(word) >> 8))
            return change(word)

        return run

    def call_system(self, node):
        awk, made = self.awk, self.text(node)

        def run() -> float:
            awk.flush()
            return float(awk.shell(made()))

        return run

    def call_close(self, node):
        awk, made = self.awk, self.text(node)
        return lambda: awk.close(made())

    def call_fflush(self, node=None):
        awk = self.awk

        def run() -> float:
            awk.flush()
            return 0.0

        return run


def _guarded(function):
    def run(value: float) -> float:
        try:
            return function(value)
        except OverflowError:
            return math.inf
        except ValueError:
            return -math.inf if value == 0 else math.nan

    return run


MATHS = {name: _guarded(getattr(math, name)) for name in ("sin", "cos", "exp", "log", "sqrt")}
MATHS["int"] = lambda value: float(math.trunc(value)) if math.isfinite(value) else value


def substitute(regex, subject: str, by: str, everywhere: bool, tick) -> tuple[str, int]:
    """Return a string with its first match or all matches replaced, and their number."""
    parts = _replacement(by)
    shown: list[str] = []
    at, copied, count, last_end, size = 0, 0, 0, -1, 0
    while at <= len(subject):
        found = regex.search(subject, at, tick)
        if not found:
            break
        begin, end = found[0], found[1]
        if begin == end == last_end:
            at = end + 1
            continue
        count += 1
        matched = subject[begin:end]
        shown += [subject[copied:begin], "".join(matched if part is None else part for part in parts)]
        size += len(shown[-2]) + len(shown[-1])
        tick((len(parts) >> 3) + (len(shown[-1]) >> 10))
        if size > MAX_TEXT:
            raise Timeout
        copied = last_end = end
        at = end if end > begin else end + 1
        if not everywhere:
            break
    return "".join(shown) + subject[copied:], count


def _replacement(by: str) -> list:
    """Return the parts of a replacement: strings, and None for the match itself."""
    parts: list = []
    at = 0
    while at < len(by):
        if by[at] == "\\" and by[at + 1 : at + 2] in ("&", "\\"):
            parts.append(by[at + 1])
            at += 2
        else:
            parts.append(None if by[at] == "&" else by[at])
            at += 1
    return parts
