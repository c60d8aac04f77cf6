"""Run the keys of vi that standard input or :normal holds."""

import re

ESCAPE = "\x1b"


class Quit(Exception):
    """The editor ends; its argument is the status."""


class Wrong(Exception):
    """A command that cannot be carried out; its text is the message."""


def _until(ends: str, keys: str, at: int) -> tuple[str, int]:
    """Return the keys before one of the ends, and the position behind it."""
    found = re.compile(f"[^{ends}]*").match(keys, at)
    return found[0], found.end() + 1


class Keys:
    """The part of the editor that runs keys."""

    def keys(self, keys: str) -> None:
        at = 0
        while at < len(keys):
            self.p.tick()
            number = re.compile(r"(?:[1-9]\d{0,4})?").match(keys, at)[0]
            at += len(number)
            if at >= len(keys):
                return
            key, many = keys[at], int(number or 1)
            at += 1
            if key == ":":
                line, at = _until("\n\r", keys, at)
                self.execute(line)
            elif key in "iIaAoO":
                words, at = _until(ESCAPE, keys, at)
                self.typed(key, words * (many if key in "iIaA" else 1))
            elif key in "cCsS":
                two = key + keys[at : at + 1] if key == "c" else {"C": "c$", "s": "cl", "S": "cc"}[key]
                words, at = _until(ESCAPE, keys, at + (key == "c"))
                self.cut(two[1:], many, whole=False)
                if two == "cc":
                    self.lines[self.row : self.row + 1] = [""] if self.lines else []
                    self.column = 0
                self.typed("i", words)
            elif key in "dygZ" and at < len(keys):
                at += 1
                self.pair(key, keys[at - 1], many, bool(number))
            elif key == "r" and at < len(keys):
                at += 1
                line = self.lines[self.row] if self.lines else ""
                if self.column + many <= len(line):
                    self.lines[self.row] = line[: self.column] + keys[at - 1] * many + line[self.column + many :]
                    self.column, self.changed = self.column + many - 1, True
            elif key == "~" and self.lines:
                line, end = self.lines[self.row], self.column + many
                self.lines[self.row] = line[: self.column] + line[self.column : end].swapcase() + line[end:]
                self.column, self.changed = max(0, min(end, len(line) - 1)), True
            elif key in "/?":
                pattern, at = _until("\n\r", keys, at)
                self.row, self.column = self.address(key + pattern)[0] - 1, 0
            elif key == "G" and number:
                self.row, self.column = max(0, min(many, len(self.lines)) - 1), 0
            else:
                for _ in range(min(many, 1000)):
                    self.p.tick()
                    self.moved(key)

    def typed(self, key: str, words: str) -> None:
        if not self.lines:
            self.lines = [""]
        line = self.lines[self.row]
        if key in "oO":
            self.row += key == "o"
            self.lines.insert(self.row, "")
            line, self.column = "", 0
        at = {"i": self.column, "a": min(self.column + 1, len(line)), "I": len(line) - len(line.lstrip())}
        column = len(line) if key == "A" else at.get(key, 0)
        added = (line[:column] + words + line[column:]).split("\n")
        self.lines[self.row : self.row + 1] = added
        self.row += len(added) - 1
        self.column, self.changed = max(0, column + len(words) - 1), True

    def cut(self, motion: str, many: int, whole: bool = True) -> None:
        """Delete what a motion covers: of the line w e $ 0 l, of the text d G gg j."""
        line = self.lines[self.row] if self.lines else ""
        if motion in ("w", "e", "$", "0", "l", "h") and line:
            end, start = self.column, self.column
            for _ in range(many if motion in "wel" else 0):
                shape = r"\w+\s*|[^\w\s]+\s*|\s+" if motion == "w" and whole else r"\s*(?:\w+|[^\w\s]+)|\s+"
                found = re.compile("." if motion == "l" else shape).match(line, end)
                end = found.end() if found else end
            start, end = (start, len(line)) if motion == "$" else (0, start) if motion == "0" else (start, end)
            start = max(0, start - many) if motion == "h" else start
            self.lines[self.row] = line[:start] + line[end:]
            self.column, self.changed = min(start, max(0, len(line) - (end - start) - 1)) if whole else start, True
        elif motion in ("d", "G", "g", "j") and self.lines:
            first = 0 if motion == "g" else self.row
            last = {"G": len(self.lines), "g": self.row + 1, "j": self.row + 1 + many}.get(motion, self.row + many)
            self.kept = self.lines[first:last]
            del self.lines[first:last]
            self.row, self.column, self.changed = max(0, min(first, len(self.lines) - 1)), 0, True

    def pair(self, key: str, second: str, many: int, counted: bool) -> None:
        keys = key + second
        if key == "d":
            self.cut(second, many)
        elif keys == "yy" and self.lines:
            self.kept = self.lines[self.row : self.row + many]
        elif keys == "gg":
            self.row, self.column = (min(many, len(self.lines)) - 1 if counted and self.lines else 0), 0
        elif keys == "ZZ":
            self.write("", self.lines, "x")
            raise Quit(0)
        elif keys == "ZQ":
            raise Quit(0)

    def moved(self, key: str) -> None:
        line = self.lines[self.row] if self.lines else ""
        if key == "G":
            self.row = max(0, len(self.lines) - 1)
        elif key in "j\n" or key == "k":
            self.row = max(0, min(len(self.lines) - 1, self.row + (-1 if key == "k" else 1)))
        elif key in "0^":
            self.column = 0
        elif key == "$":
            self.column = max(0, len(line) - 1)
        elif key in "hl":
            self.column = max(0, min(len(line) - 1, self.column + (1 if key == "l" else -1)))
        elif key == "x" and line:
            self.lines[self.row] = line[: self.column] + line[self.column + 1 :]
            self.column, self.changed = max(0, min(self.column, len(line) - 2)), True
        elif key == "D" and line:
            self.lines[self.row] = line[: self.column]
            self.column, self.changed = max(0, self.column - 1), True
        elif key == "J" and self.row + 1 < len(self.lines):
            self.lines[self.row : self.row + 2] = [(line + " " + self.lines[self.row + 1].lstrip()).rstrip(" ")]
            self.column, self.changed = len(line), True
        elif key == "w" and (found := re.compile(r"(?:\w+|[^\w\s]+)?\s*").match(line, self.column)):
            self.column = min(found.end(), max(0, len(line) - 1))
        elif key == "P" and self.kept:
            self.lines[self.row : self.row] = self.kept
            self.changed = True
        elif key == "p" and self.kept:
            self.lines[self.row + 1 : self.row + 1] = self.kept
            self.row, self.changed = self.row + 1, True
