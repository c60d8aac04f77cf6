"""diff (normal, unified, recursive) and cmp."""

from envs.simulators.shell.commands.files import KINDS
from envs.simulators.shell.commands.options import Fail, getopt, lines, ordered, quote_value, read
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import Node
from envs.simulators.shell.process import Process

LONG = {
    "brief": "q",
    "report-identical-files": "s",
    "unified::": "u",
    "ignore-case": "i",
    "recursive": "r",
    "text": "a",
}
LONG |= {"ignore-all-space": "w", "ignore-space-change": "b", "new-file": "N", "normal": "n"}
MOST_EDITS = 1200  # lines that differ, beyond which all of the middle is taken for different
MISSING = "\\ No newline at end of file\n"


def diff(p: Process) -> int:
    try:
        options, names = ordered(p.argv, "qsuU:iwbraN", LONG, status=2)
    except Fail as failure:
        raise _misused("diff", failure.message) from None
    if len(names) != 2:
        what, word = ("missing operand after", p.argv[-1]) if len(names) < 2 else ("extra operand", names[2])
        raise _misused("diff", f"{what} {quote_value(word)}")
    return Comparison(p, options).start(*names)


def _misused(name: str, message: str) -> Fail:
    return Fail(f"{name}: {message}\n{name}: Try '{name} --help' for more information.", 2, plain=True)


class Comparison:
    """The options of one diff, and its exit status so far."""

    def __init__(self, p: Process, options: list):
        chosen = dict(options)
        self.p, self.flags, self.unified = p, set(chosen), bool({"u", "U"} & set(chosen))
        around = chosen.get("U") or chosen.get("u") or "3"
        if not around.isdecimal():
            raise Fail(f"invalid context length {quote_value(around)}", 2)
        self.around = int(around[:6])
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
                kind = [KINDS[n.kind] if n.kind != "file" or n.data else "regular empty file" for n in (a, b)]
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
        sides = [lines(text, keep=True) for text in data]
        if data[0] == data[1]:
            if "s" in self.flags:
                p.out(f"Files {left} and {right} are identical\n")
            return 0
        if "\0" in data[0] + data[1] and "a" not in self.flags:
            p.out(f"{'Files' if 'q' in self.flags else 'Binary files'} {left} and {right} differ\n")
            return 1 if "q" in self.flags else 2
        edits = edit_script([self.key(line) for line in sides[0]], [self.key(line) for line in sides[1]], p.tick)
        if not edits:
            return 0
        if "q" in self.flags:
            p.out(f"Files {left} and {right} differ\n")
            return 1
        if header:
            p.out(f"diff {self.given} {left} {right}\n")
        if self.unified:
            self.heading(left, right)
            unified(p, *sides, edits, self.around)
        else:
            normal(p, *sides, edits)
        return 1

    def heading(self, left: str, right: str) -> None:
        for mark, name in (("---", left), ("+++", right)):
            when = self.p.machine.clock if name == "-" else self.p.lookup(name).mtime if self.p.exists(name) else 0.0
            self.p.out(f"{mark} {name}\t{show('%Y-%m-%d %H:%M:%S.%N +0000', when)}\n")

    def key(self, line: str) -> str:
        """Return the part of a line that is compared."""
        if "w" in self.flags:
            line = "".join(line.split())
        elif "b" in self.flags:
            line = " ".join(line.rstrip().split()) if not line[:1].isspace() else " " + " ".join(line.split())
        return line.lower() if "i" in self.flags else line


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


def unified(p: Process, a: list[str], b: list[str], edits: list, around: int) -> None:
    hunks: list[list] = []
    for edit in edits:
        if hunks and edit[0] - hunks[-1][-1][1] <= 2 * around:
            hunks[-1].append(edit)
        else:
            hunks.append([edit])
    for hunk in hunks:
        low, high = max(0, hunk[0][0] - around), min(len(a), hunk[-1][1] + around)
        into, to = max(0, hunk[0][2] - (hunk[0][0] - low)), hunk[-1][3] + high - hunk[-1][1]
        span = lambda x, y: f"{x + 1}" if y - x == 1 else f"{x + (y > x)},{y - x}"  # noqa: E731
        p.out(f"@@ -{span(low, high)} +{span(into, to)} @@\n")
        at = low
        for first, last, start, end in hunk:
            p.out(_shown(" ", a[at:first]) + _shown("-", a[first:last]) + _shown("+", b[start:end]))
            at = last
        p.out(_shown(" ", a[at:high]))


def cmp(p: Process) -> int:
    silent, names = getopt(p.argv, "s", {"silent": "s", "quiet": "s"}, status=2)
    if not names:
        raise _misused("cmp", f"missing operand after {quote_value(p.argv[-1])}")
    names = [*names, "-"][:2]
    data = []
    for name in names:
        try:
            data.append(read(p, name))
        except OSError as error:
            if silent and error.errno == 2:
                return 2
            return p.fail(f"{name}: {error.strerror}", 2)
    a, b = data
    if a == b:
        return 0
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if silent:
        return 1
    if at == min(len(a), len(b)):
        shorter = names[0] if len(a) < len(b) else names[1]
        if not at:
            return p.fail(f"EOF on {shorter} which is empty")
        whole, line = data[0][:at].endswith("\n"), a[:at].count("\n")
        place = f"byte {at}, line {line}" if whole else f"byte {at}, in line {line + 1}"
        return p.fail(f"EOF on {shorter} after {place}")
    p.out(f"{names[0]} {names[1]} differ: char {at + 1}, line {a[:at].count(chr(10)) + 1}\n")
    return 1


COMMANDS = {"diff": diff, "cmp": cmp}
