"""diff (normal, unified, context, side by side, recursive) and cmp."""

from envs.simulators.shell.commands.options import Fail, getopt, quote_locale, read
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import Node
from envs.simulators.shell.process import Process

LONG = {"brief": "q", "report-identical-files": "s", "unified::": "u", "context::": "c", "ignore-case": "i"}
LONG |= {"ignore-all-space": "w", "ignore-space-change": "b", "ignore-blank-lines": "B", "recursive": "r", "text": "a"}
LONG |= {"side-by-side": "y", "new-file": "N", "color::": "k", "label:": "L", "exclude:": "x", "normal": "n"}
LONG |= {"width:": "W", "suppress-common-lines": "Y", "strip-trailing-cr": "z", "minimal": "d"}
MOST_EDITS = 1200  # lines that differ, beyond which all of the middle is taken for different
MISSING = "\\ No newline at end of file\n"


def diff(p: Process) -> int:
    try:
        options, names = getopt(p.argv, "qsuU:cC:iwbBrayNL:x:W:tdpETZ", LONG, status=2)
    except Fail as failure:
        raise Fail(f"diff: {failure.message}\ndiff: Try 'diff --help' for more information.", 2, plain=True) from None
    flags, chosen = {flag for flag, _ in options}, dict(options)
    if len(names) != 2:
        after = (
            f"missing operand after {quote_locale(p.argv[-1])}"
            if len(names) < 2
            else f"extra operand {quote_locale(names[2])}"
        )
        raise Fail(f"diff: {after}\ndiff: Try 'diff --help' for more information.", 2, plain=True)
    labels = [value for flag, value in options if flag == "L"]
    return Comparison(p, flags, chosen, labels, options).start(*names)


class Comparison:
    """The options of one diff, and its exit status so far."""

    def __init__(self, p: Process, flags: set, chosen: dict, labels: list[str], options: list):
        self.p, self.flags, self.labels = p, flags, labels
        around = chosen.get("U") or chosen.get("C") or chosen.get("u") or chosen.get("c") or "3"
        if not around.isdecimal():
            raise Fail(f"invalid context length {quote_locale(around)}", 2)
        self.around = int(around[:6])
        self.style = "u" if flags & {"u", "U"} else "c" if flags & {"c", "C"} else "y" if "y" in flags else ""
        self.given = " ".join(f"-{flag}{value or ''}" for flag, value in options)

    def start(self, left: str, right: str) -> int:
        p, nodes, status = self.p, [], 0
        for name in (left, right):
            try:
                nodes.append(None if name == "-" else p.lookup(name))
            except OSError as error:
                nodes.append(None)
                if not ("N" in self.flags and error.errno == 2):
                    status = p.fail(f"{name}: {error.strerror}", 2)
        if status:
            return status
        folders = [node is not None and node.kind == "dir" for node in nodes]
        if all(folders):
            return self.folders(left, right, *nodes)
        if folders[0]:
            left = f"{left.rstrip('/')}/{right.rpartition('/')[2]}"
        elif folders[1]:
            right = f"{right.rstrip('/')}/{left.rpartition('/')[2]}"
        return self.files(left, right)

    def folders(self, left: str, right: str, one: Node, two: Node) -> int:
        status = 0
        for name in sorted({*one.data, *two.data}):
            self.p.tick()
            a, b = one.data.get(name), two.data.get(name)
            paths = f"{left.rstrip('/')}/{name}", f"{right.rstrip('/')}/{name}"
            if (a is None or b is None) and "N" not in self.flags:
                self.p.out(f"Only in {(left if a is not None else right).rstrip('/') or '/'}: {name}\n")
                status = max(status, 1)
            elif a is not None and b is not None and a.kind == b.kind == "dir":
                if "r" in self.flags:
                    status = max(status, self.folders(*paths, a, b))
                else:
                    self.p.out(f"Common subdirectories: {paths[0]} and {paths[1]}\n")
            elif a is not None and b is not None and a.kind != b.kind:
                kinds = {"dir": "directory", "file": "regular file", "link": "symbolic link"}
                kind = [
                    kinds.get(n.kind, n.kind) if n.kind != "file" or n.data else "regular empty file" for n in (a, b)
                ]
                self.p.out(f"File {paths[0]} is a {kind[0]} while file {paths[1]} is a {kind[1]}\n")
                status = max(status, 1)
            else:
                status = max(status, self.files(*paths, header="r" in self.flags))
        return status

    def files(self, left: str, right: str, header: bool = False) -> int:
        p, data = self.p, []
        for name in (left, right):
            try:
                data.append(read(p, name))
            except OSError as error:
                if "N" in self.flags and error.errno == 2:
                    data.append("")
                    continue
                return p.fail(f"{name}: {error.strerror}", 2)
        sides = [_lines(text) for text in data]
        beside = self.style == "y" and "q" not in self.flags
        if data[0] == data[1]:
            if beside:
                side_by_side(p, *sides, [], "Y" in self.flags)
            if "s" in self.flags:
                p.out(f"Files {left} and {right} are identical\n")
            return 0
        if "\0" in data[0] + data[1] and "a" not in self.flags:
            p.out(f"{'Files' if 'q' in self.flags else 'Binary files'} {left} and {right} differ\n")
            return 1 if "q" in self.flags else 2
        edits = edit_script([self.key(line) for line in sides[0]], [self.key(line) for line in sides[1]], p.tick)
        if "B" in self.flags:
            edits = [e for e in edits if any(line.strip() for line in sides[0][e[0] : e[1]] + sides[1][e[2] : e[3]])]
        if not edits:
            if beside:
                side_by_side(p, *sides, [], "Y" in self.flags)
            return 0
        if "q" in self.flags:
            p.out(f"Files {left} and {right} differ\n")
            return 1
        if header:
            p.out(f"diff {self.given} {left} {right}\n")
        if self.style in ("u", "c"):
            self.heading(left, right)
            (unified if self.style == "u" else in_context)(p, *sides, edits, self.around)
        elif self.style == "y":
            side_by_side(p, *sides, edits, "Y" in self.flags)
        else:
            normal(p, *sides, edits)
        return 1

    def heading(self, left: str, right: str) -> None:
        marks = ("---", "+++") if self.style == "u" else ("***", "---")
        for i, (mark, name) in enumerate(zip(marks, (left, right), strict=True)):
            if i < len(self.labels):
                self.p.out(f"{mark} {self.labels[i]}\n")
                continue
            when = (
                self.p.lookup(name).mtime
                if name != "-" and self.p.exists(name)
                else 0.0
                if name != "-"
                else self.p.machine.clock
            )
            form = "%Y-%m-%d %H:%M:%S.%N +0000" if self.style == "u" else "%a %b %e %H:%M:%S %Y"
            self.p.out(f"{mark} {name}\t{show(form, when)}\n")

    def key(self, line: str) -> str:
        """Return the part of a line that is compared."""
        if "w" in self.flags:
            line = "".join(line.split())
        elif "b" in self.flags:
            line = " ".join(line.rstrip().split()) if not line[:1].isspace() else " " + " ".join(line.split())
        elif "z" in self.flags:
            line = line.replace("\r\n", "\n")
        return line.lower() if "i" in self.flags else line


def _lines(text: str) -> list[str]:
    """Return lines with their ends."""
    parts = text.split("\n")
    return [part + "\n" for part in parts[:-1]] + parts[-1:] * bool(parts[-1])


def edit_script(a: list[str], b: list[str], tick) -> list[tuple[int, int, int, int]]:
    """Return the changes, (from, to) in the old and (from, to) in the new file, by Myers' greedy algorithm."""
    head = 0
    while head < min(len(a), len(b)) and a[head] == b[head]:
        head += 1
    tail = 0
    while tail < min(len(a), len(b)) - head and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    one, two = a[head : len(a) - tail], b[head : len(b) - tail]
    removed, added = _changed(one, two, tick)
    removed = [False] * head + removed + [False] * (tail + 1)
    added = [False] * head + added + [False] * (tail + 1)
    _slide(a, removed, added)
    _slide(b, added, removed)
    edits, i, j = [], 0, 0
    while i < len(a) or j < len(b):
        start = i, j
        while i < len(a) and removed[i]:
            i += 1
        while j < len(b) and added[j]:
            j += 1
        if start != (i, j):
            edits.append((start[0], i, start[1], j))
        else:
            i, j = i + 1, j + 1
    return edits


def _changed(a: list[str], b: list[str], tick) -> tuple[list[bool], list[bool]]:
    """Return which lines of each file have no partner in the other."""
    removed, added = [True] * len(a), [True] * len(b)
    reach, trace = {1: 0}, []
    for d in range(min(len(a) + len(b), MOST_EDITS) + 1):
        trace.append(dict(reach))
        for k in range(-d, d + 1, 2):
            tick()
            x = reach[k + 1] if k == -d or (k != d and reach[k - 1] < reach[k + 1]) else reach[k - 1] + 1
            while x < len(a) and 0 <= x - k < len(b) and a[x] == b[x - k]:
                x += 1
            reach[k] = x
            if x >= len(a) and x - k >= len(b):
                _walk_back(trace, len(a), len(b), removed, added)
                return removed, added
        if d * d > 400_000:
            break
    return removed, added


def _walk_back(trace: list[dict], x: int, y: int, removed: list[bool], added: list[bool]) -> None:
    for d in range(len(trace) - 1, -1, -1):
        reach, k = trace[d], x - y
        before = k + 1 if k == -d or (k != d and reach[k - 1] < reach[k + 1]) else k - 1
        start = reach[before], reach[before] - before
        while x > max(start[0], 0) and y > max(start[1], 0):
            x, y = x - 1, y - 1
            removed[x] = added[y] = False
        if d:
            x, y = start


def _slide(lines: list[str], changed: list[bool], others: list[bool]) -> None:
    """Move runs of changes down as far as the same lines allow, as GNU diff does."""
    i, j = 0, 0
    while i < len(lines):
        if not changed[i]:
            while others[j]:
                j += 1
            i, j = i + 1, j + 1
            continue
        start, end = i, i
        while end < len(lines) and changed[end]:
            end += 1
        while end < len(lines) and lines[start] == lines[end] and not others[j]:
            changed[start], changed[end] = False, True
            start, end, j = start + 1, end + 1, j + 1
            while end < len(lines) and changed[end]:
                end += 1
        i = end


def _shown(mark: str, lines: list[str]) -> str:
    return "".join(mark + line + ("" if line.endswith("\n") else "\n" + MISSING) for line in lines)


def _span(low: int, high: int) -> str:
    return f"{low + 1}" if high - low == 1 else f"{low + 1},{high}" if high > low else f"{low}"


def normal(p: Process, a: list[str], b: list[str], edits: list) -> None:
    for low, high, into, to in edits:
        kind = "a" if low == high else "d" if into == to else "c"
        p.out(f"{_span(low, high)}{kind}{_span(into, to)}\n{_shown('< ', a[low:high])}")
        p.out(("---\n" if kind == "c" else "") + _shown("> ", b[into:to]))


def _hunks(edits: list, around: int) -> list[list]:
    hunks: list[list] = []
    for edit in edits:
        if hunks and edit[0] - hunks[-1][-1][1] <= 2 * around:
            hunks[-1].append(edit)
        else:
            hunks.append([edit])
    return hunks


def unified(p: Process, a: list[str], b: list[str], edits: list, around: int) -> None:
    for hunk in _hunks(edits, around):
        low, high = max(0, hunk[0][0] - around), min(len(a), hunk[-1][1] + around)
        into, to = max(0, hunk[0][2] - (hunk[0][0] - low)), hunk[-1][3] + high - hunk[-1][1]
        span = lambda x, y: f"{x + 1}" if y - x == 1 else f"{x + (y > x)},{y - x}"  # noqa: E731
        p.out(f"@@ -{span(low, high)} +{span(into, to)} @@\n")
        at = low
        for first, last, start, end in hunk:
            p.out(_shown(" ", a[at:first]) + _shown("-", a[first:last]) + _shown("+", b[start:end]))
            at = last
        p.out(_shown(" ", a[at:high]))


def in_context(p: Process, a: list[str], b: list[str], edits: list, around: int) -> None:
    for hunk in _hunks(edits, around):
        low, high = max(0, hunk[0][0] - around), min(len(a), hunk[-1][1] + around)
        into, to = max(0, hunk[0][2] - (hunk[0][0] - low)), hunk[-1][3] + high - hunk[-1][1]
        span = lambda x, y: f"{x + 1},{y}" if y - x > 1 else f"{y}"  # noqa: E731
        p.out(f"***************\n*** {span(low, high)} ****\n")
        for side, mark, (begin, stop), at in ((a, "-", (0, 1), low), (b, "+", (2, 3), into)):
            if side is b:
                p.out(f"--- {span(into, to)} ----\n")
            if not any(edit[stop] > edit[begin] for edit in hunk):
                continue
            for edit in hunk:
                both = edit[1] > edit[0] and edit[3] > edit[2]
                p.out(_shown("  ", side[at : edit[begin]]))
                p.out(_shown("! " if both else f"{mark} ", side[edit[begin] : edit[stop]]))
                at = edit[stop]
            p.out(_shown("  ", side[at : high if side is a else to]))


def side_by_side(p: Process, a: list[str], b: list[str], edits: list, brief: bool) -> None:
    """Print the files in two columns of 61 characters."""

    def row(left: str, mark: str, right: str) -> None:
        left, right = left.rstrip("\n").expandtabs()[:61], right.rstrip("\n").expandtabs()[:61]
        if mark == " ":
            p.out(_tabbed(left, 64) + right + "\n" if right else "\n")
        elif mark == "<":
            p.out(_tabbed(left, 62) + "<\n")
        else:
            p.out(_tabbed(left, 62) + mark + ("\t" + right if right else "") + "\n")

    i = 0
    for low, high, into, to in [*edits, (len(a), len(a), len(b), len(b))]:
        for line in a[i:low] if not brief else ():
            row(line, " ", line)
        both = min(high - low, to - into)
        for k in range(both):
            row(a[low + k], "|", b[into + k])
        for line in a[low + both : high]:
            row(line, "<", "")
        for line in b[into + both : to]:
            row("", ">", line)
        i = high


def _tabbed(text: str, column: int) -> str:
    """Return a text padded to a column with tabs, then blanks."""
    at = len(text)
    filled = text
    while at // 8 * 8 + 8 <= column:
        at = at // 8 * 8 + 8
        filled += "\t"
    return filled + " " * (column - at)


def cmp(p: Process) -> int:
    options, names = getopt(
        p.argv, "slbi:n:", {"silent": "s", "quiet": "s", "verbose": "l", "print-bytes": "b"}, status=2
    )
    flags = {flag for flag, _ in options}
    if not names:
        after = f"cmp: missing operand after {quote_locale(p.argv[-1])}"
        raise Fail(f"{after}\ncmp: Try 'cmp --help' for more information.", 2, plain=True)
    names = [*names, "-"][:2]
    data = []
    for name in names:
        try:
            data.append(read(p, name))
        except OSError as error:
            if "s" in flags and error.errno == 2:
                return 2
            return p.fail(f"{name}: {error.strerror}", 2)
    a, b = data
    if a == b:
        return 0
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if "s" in flags:
        return 1
    if "l" in flags:
        width = len(str(max(len(a), len(b))))
        differ = [(i, x, y) for i, (x, y) in enumerate(zip(a, b, strict=False), 1) if x != y]
        p.out("".join(f"{i:{width}} {ord(x):3o} {ord(y):3o}\n" for i, x, y in differ))
    if at == min(len(a), len(b)):
        shorter = names[0] if len(a) < len(b) else names[1]
        if not at:
            return p.fail(f"EOF on {shorter} which is empty")
        whole, line = data[0][:at].endswith("\n"), a[:at].count("\n")
        place = (
            f"byte {at}" if "l" in flags else f"byte {at}, line {line}" if whole else f"byte {at}, in line {line + 1}"
        )
        return p.fail(f"EOF on {shorter} after {place}")
    if "l" not in flags:
        p.out(f"{names[0]} {names[1]} differ: char {at + 1}, line {a[:at].count(chr(10)) + 1}\n")
    return 1


COMMANDS = {"diff": diff, "cmp": cmp}
