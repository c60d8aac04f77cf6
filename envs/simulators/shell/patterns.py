"""Globs: compile them, match them with strings, expand them to file names, and use them in ${name#glob} and its like.

A backslash in a pattern protects the next character. Where extended globs are on, NUL marks each of their groups:
`@(a|b)` arrives as `\0@(a|b)`.
"""

import re
from collections.abc import Callable, Iterator
from functools import lru_cache

from envs.simulators.shell.files import MAX_TEXT, READ, Caller, Timeout

CLASSES = {"alpha": "A-Za-z", "digit": "0-9", "alnum": "A-Za-z0-9", "upper": "A-Z", "lower": "a-z", "blank": " \\t"}
CLASSES |= {"space": " \\t\\n\\r\\f\\v", "punct": "!-/:-@\\[-`{-~", "xdigit": "0-9A-Fa-f", "word": "A-Za-z0-9_"}
CLASSES |= {"cntrl": "\\x00-\\x1f\\x7f", "print": " -~", "graph": "!-~"}
LOWER = {ord(a): a.lower() for a in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
UPPER = {ord(a): a.upper() for a in "abcdefghijklmnopqrstuvwxyz"}
SPECIAL = re.compile(r"[*?\[\0]")
GROUP = re.compile(r"([?*+@!])\(")
POSITIONS = 4  # of an extended glob's match that are tried in a step of the script's budget

Tick = Callable[[int], None]  # uses up steps of a script's budget; raises Timeout if none are left


def extended(pattern: str) -> str:
    """Return a glob with the groups of extended globs marked."""
    return GROUP.sub("\0\\1(", pattern)


def escape(text: str) -> str:
    """Return a pattern that matches only this text."""
    return re.sub(r"([\\*?\[\]()|])", r"\\\1", text)


@lru_cache(512)
def pieces(pattern: str) -> tuple[tuple[re.Pattern, int], ...]:
    """Return the pieces between a pattern's stars: each as a regular expression and its width in characters.

    Because every piece has one width, matches are found piece by piece, without backtracking.
    """
    out, source, width, i, closed = [], [], 0, 0, 0  # closed: how far it is known that no bracket is closed
    while i < len(pattern):
        c = pattern[i]
        i += 1
        if c == "*":
            out.append((re.compile("".join(source), re.DOTALL), width))
            source, width = [], 0
            continue
        width += 1
        if c == "?":
            source.append(".")
        elif c == "\\" and i < len(pattern):
            source.append(re.escape(pattern[i]))
            i += 1
        elif c == "[" and i >= closed and (bracket := _bracket(pattern, i)):
            source.append(bracket[0])
            i = bracket[1]
        elif c == "[" and i >= closed:
            source.append(re.escape(c))
            closed = len(pattern)
        else:
            source.append(re.escape(c))
    return (*out, (re.compile("".join(source), re.DOTALL), width))


def _bracket(pattern: str, i: int) -> tuple[str, int] | None:
    """Return the class that begins after its bracket at i, and its end; None if it never ends."""
    negated, items = pattern[i : i + 1] in ("!", "^"), []
    i += negated
    first = i
    while (c := pattern[i : i + 1]) != "]" or i == first:
        if not c:
            return None
        if c == "[" and pattern[i + 1 : i + 2] in (":", "=", "."):
            end = pattern.find(pattern[i + 1] + "]", i + 2, i + 20)
            if end > 0:
                name = pattern[i + 2 : end]
                items.append(CLASSES.get(name, "") if pattern[i + 1] == ":" else re.escape(name))
                i = end + 2
                continue
        if c == "\\" and i + 1 < len(pattern):
            i += 1
            c = pattern[i]
        if pattern[i + 1 : i + 2] == "-" and pattern[i + 2 : i + 3] not in ("", "]"):
            protected = pattern[i + 2] == "\\"
            high = pattern[i + 3 : i + 4] or "\\" if protected else pattern[i + 2]
            if c <= high:
                items.append(f"{re.escape(c)}-{re.escape(high)}")
            i += 4 if protected else 3
            continue
        items.append(re.escape(c))
        i += 1
    inside = "".join(items)
    if not inside:
        return (".", i + 1) if negated else ("(?!)", i + 1)
    return f"[{'^' if negated else ''}{inside}]", i + 1


def matches(pattern: str, text: str, tick: Tick) -> bool:
    """Return whether a pattern matches a whole text. As below, `tick` pays for extended globs alone."""
    if "\0" in pattern:
        return len(text) in Groups(text, tick).ends(group_tree(pattern), {0})
    parts = pieces(pattern)
    if len(parts) == 1:
        return parts[0][0].fullmatch(text) is not None
    end = prefix(pattern, text, True, tick)
    return end == len(text)


def prefix(pattern: str, text: str, longest: bool, tick: Tick, start: int = 0) -> int | None:
    """Return the end of the shortest or longest match that begins at `start`; None without a match."""
    if "\0" in pattern:
        ends = Groups(text, tick).ends(group_tree(pattern), {start})
        return (max if longest else min)(ends, default=None)
    parts = pieces(pattern)
    head = parts[0][0].match(text, start)
    if not head:
        return None
    return _rest(parts, text, head.end(), longest)


def _rest(parts: tuple, text: str, at: int, longest: bool) -> int | None:
    """Return the end of the pieces after the first one, which ended at `at`."""
    for expression, _ in parts[1:-1]:
        found = expression.search(text, at)
        if not found:
            return None
        at = found.end()
    if len(parts) == 1:
        return at
    if longest:
        last = _last(parts[-1], text, at, len(text))
        return None if last is None else last + parts[-1][1]
    found = parts[-1][0].search(text, at)
    return found.end() if found else None


def _last(piece: tuple[re.Pattern, int], text: str, low: int, high: int) -> int | None:
    """Return the last position between two where a piece matches."""
    expression, width = piece
    if expression.match(text, max(high - width, 0), high) and low <= high - width:  # mostly so, and cheaper
        return high - width
    found = re.compile(f".*{expression.pattern}", re.DOTALL).match(text, low, high)
    return found.end() - width if found else None


def suffix(pattern: str, text: str, longest: bool, tick: Tick) -> int | None:
    """Return the start of the shortest or longest match that ends with the text."""
    if "\0" in pattern:
        groups, tree = Groups(text, tick), group_tree(pattern)
        starts = range(len(text) + 1) if longest else range(len(text), -1, -1)
        return next((start for start in starts if len(text) in groups.ends(tree, {start})), None)
    parts = pieces(pattern)
    at = len(text) - parts[-1][1]
    if at < 0 or not parts[-1][0].match(text, at):
        return None
    for piece in reversed(parts[1:-1]):
        at = _last(piece, text, 0, at)
        if at is None:
            return None
    if len(parts) == 1:
        return at
    if longest:
        found = parts[0][0].search(text, 0, at)
        return found.start() if found else None
    return _last(parts[0], text, 0, at)


def find(pattern: str, text: str, start: int, tick: Tick) -> tuple[int, int] | None:
    """Return the leftmost longest match from `start` on."""
    if "\0" in pattern:
        groups, tree = Groups(text, tick), group_tree(pattern)
        found = ((at, max(groups.ends(tree, {at}), default=at)) for at in range(start, len(text)))
        return next((span for span in found if span[0] < span[1]), None)
    parts = pieces(pattern)
    head = parts[0][0].search(text, start)
    if not head:
        return None
    end = _rest(parts, text, head.end(), longest=True)
    return None if end is None else (head.start(), end)


@lru_cache(256)
def group_tree(pattern: str) -> tuple:
    """Return an extended glob as a tuple of stars, expressions of one character, and groups (sign, alternatives)."""
    return _branches(pattern, 0, False)[0][0]


def _branches(pattern: str, i: int, inside: bool) -> tuple[tuple, int]:
    """Return the alternatives that begin at i, and the position behind them."""
    branches: list[list] = [[]]
    while i < len(pattern):
        c = pattern[i]
        if c == "\0" and i + 2 < len(pattern):
            alternatives, end = _branches(pattern, i + 3, True)
            branches[-1].append((pattern[i + 1], alternatives))
            i = end
        elif inside and c in "|)":
            i += 1
            if c == ")":
                break
            branches.append([])
        else:
            bracket = _bracket(pattern, i + 1) if c == "[" else None
            end = bracket[1] if bracket else i + 1 + (c == "\\")
            branches[-1].append("*" if c == "*" else pieces(pattern[i:end])[0][0])
            i = end
    return tuple(map(tuple, branches)), i


class Groups:
    """Match extended globs with a text: sets of positions, so that no pattern takes exponential time."""

    def __init__(self, text: str, tick: Tick):
        self.text, self.size, self.tick, self.tried = text, len(text), tick, 0

    def pay(self, positions: int) -> None:
        """Pay for the positions that are tried; what is less than a step is paid with later ones."""
        steps, self.tried = divmod(self.tried + positions, POSITIONS)
        if steps:
            self.tick(steps)

    def ends(self, tree: tuple, starts: set[int]) -> set[int]:
        """Return where the matches end that begin at one of the positions."""
        for item in tree:
            self.pay(len(starts) + 1)
            if not starts:
                break
            if item == "*":
                starts = set(range(min(starts), self.size + 1))
            elif isinstance(item, re.Pattern):
                starts = {i + 1 for i in starts if i < self.size and item.match(self.text, i)}
            else:
                starts = self.group(*item, starts)
        return starts

    def group(self, sign: str, alternatives: tuple, starts: set[int]) -> set[int]:
        def once(begins: set[int]) -> set[int]:
            return set().union(*(self.ends(tree, begins) for tree in alternatives))

        if sign == "!":
            self.pay(len(starts) * self.size)
            return set().union(*(set(range(i, self.size + 1)) - once({i}) for i in starts))
        if sign in "@?":
            return once(starts) | (starts if sign == "?" else set())
        reached: set[int] = set()
        new = starts
        while new := once(new) - reached:
            reached |= new
        return reached | starts if sign == "*" else reached


def substitute(pattern: str, text: str, new: str, every: bool, tick: Tick) -> str:
    """Return the text with the first match or every match replaced; NUL in `new` marks the match."""
    out, at, size = [], 0, len(text)
    while at < len(text) and (span := find(pattern, text, at, tick)):
        start, end = span
        if end == start:  # an empty match replaces nothing
            break
        out += [text[at:start], new.replace("\0", text[start:end])]
        size += len(out[-1])
        tick(1 + (len(out[-1]) >> 10))
        if size > MAX_TEXT:
            raise Timeout
        at = end
        if not every:
            break
    return "".join(out) + text[at:]


def expand_path(caller: Caller, pattern: str, hidden: bool = False, deep: bool = False) -> list[str]:
    """Return the paths that match a pattern, sorted by bytes. hidden: a star matches a leading dot. deep: a part `**`
    matches any number of folders, and as the last part also their files (globstar)."""
    parts = pattern.split("/")
    if deep:
        parts = [part for i, part in enumerate(parts) if not (i and part == parts[i - 1] == "**")]
    found = ["/"] if pattern.startswith("/") else [""]
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if not part:
            found = [path + "/" if last and not path.endswith("/") else path for path in found]
            if last:
                found = [path for path in found if caller.is_dir(path or ".")]
            continue
        if deep and part == "**":
            folders = [path for path in found if caller.is_dir(path or ".")]
            slash = "/" if last and "**" not in parts[:place] else ""
            own = [path.rstrip("/") + slash if last else path for path in folders]
            ends = last or parts[place + 1 :] == [""]  # the folder in which the pattern begins has no name
            found = [path for path in own if path.strip("/") or not ends]
            found += [below for path in folders for below in _below(caller, path, last, hidden)]
            continue
        following = []
        for path in found:
            following += _step(caller, path, part, last, hidden)
        found = following
    return sorted(set(found)) if deep else sorted(found)


def _below(caller: Caller, path: str, files: bool, hidden: bool) -> Iterator[str]:
    """Yield the folders below a folder, at any depth, and with `files` what is in them; links are not followed."""
    folders = [path]
    while folders:
        for name in _step(caller, folders.pop(), "*", True, hidden):
            node = caller.find(name, follow=False)
            is_folder = node is not None and node.kind == "dir"
            if is_folder:
                folders.append(name)
            if files or is_folder:
                yield name


def _step(caller: Caller, path: str, part: str, last: bool, hidden: bool) -> list[str]:
    """Match one part of a path: every name in a folder that matches."""
    base = path if not path or path.endswith("/") else path + "/"
    if not SPECIAL.search(part):
        name = base + re.sub(r"\\(.)", r"\1", part)
        return [name] if caller.exists(name, follow=not last) else []
    folder = caller.find(base or ".")
    if folder is None or folder.kind != "dir" or not caller.may(folder, READ):
        return []
    tick = caller.machine.tick
    tick(1 + (len(folder.data) * (32 + len(base)) >> 8))
    dotted = part.startswith((".", "\\.")) or hidden
    names = [name for name in folder.data if (dotted or name[0] != ".") and matches(part, name, tick)]
    return [base + name for name in names if last or caller.is_dir(base + name)]


# -- ${name#pattern}, ${name%pattern}, ${name/pattern/new} and ${name^}


def transform(op: str, values: list[str], glob: str, new: str, tick: Tick) -> list[str]:
    """Apply the operator of ${name op glob} to each value; NUL in `new`, the replacement of /, marks the match."""
    if op[0] == "#":
        ends = [prefix(glob, value, op == "##", tick) for value in values]
        return [value[end or 0 :] for value, end in zip(values, ends, strict=True)]
    if op[0] == "%":
        starts = [suffix(glob, value, op == "%%", tick) for value in values]
        return [value if start is None else value[:start] for value, start in zip(values, starts, strict=True)]
    if op[0] == "/":
        return [_replace(op, glob, value, new, tick) for value in values]
    table = UPPER if op[0] == "^" else LOWER
    return [_change_case(table, op, glob or "?", value, tick) for value in values]


def _replace(op: str, glob: str, value: str, new: str, tick: Tick) -> str:
    if op == "/" and glob[:1] == "#":
        end = prefix(glob[1:], value, True, tick)
        return value if end is None else new.replace("\0", value[:end]) + value[end:]
    if op == "/" and glob[:1] == "%":
        start = suffix(glob[1:], value, True, tick)
        return value if start is None else value[:start] + new.replace("\0", value[start:])
    return substitute(glob, value, new, op == "//", tick) if glob else value


def _change_case(table: dict, op: str, glob: str, value: str, tick: Tick) -> str:
    if glob != "?":
        table = {code: other for code, other in table.items() if matches(glob, chr(code), tick)}
    return value.translate(table) if len(op) == 2 else value[:1].translate(table) + value[1:]


def quote(value: str) -> str:
    """Return a text between single quotes."""
    return "'" + value.replace("'", "'\\''") + "'"
