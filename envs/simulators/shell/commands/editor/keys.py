"""Run the keys of vi that standard input holds."""

ESCAPE = "\x1b"


class Quit(Exception):
    """The editor ends; its argument is the status."""


class Wrong(Exception):
    """A command that cannot be carried out; its text is the message."""


class Keys:
    """The part of the editor that runs keys."""

    def keys(self, keys: str) -> None:
        """Run the keys of a text."""
        at = 0
        while at < len(keys):
            self.p.tick()
            key = keys[at]
            at += 1
            if key == ":":
                end = min(i for i in (keys.find("\n", at), keys.find("\r", at), len(keys)) if i >= 0)
                self.execute(keys[at:end])
                at = end + 1
            elif key in "iIaAoO":
                end = keys.find(ESCAPE, at)
                end = len(keys) if end < 0 else end
                self.typed(key, keys[at:end])
                at = end + 1
            elif keys[at - 1 : at + 1] in ("dd", "gg", "yy", "ZZ", "ZQ"):
                at += 1
                self.pair(key + keys[at - 1])
            else:
                self.moved(key)

    def typed(self, key: str, words: str) -> None:
        if not self.lines:
            self.lines = [""]
        line = self.lines[self.row]
        if key in "oO":
            self.row += key == "o"
            self.lines.insert(self.row, "")
            line, self.column = "", 0
        at = {
            "i": self.column,
            "I": len(line) - len(line.lstrip()),
            "a": min(self.column + 1, len(line)),
            "A": len(line),
        }
        column = at.get(key, 0)
        added = (line[:column] + words + line[column:]).split("\n")
        self.lines[self.row : self.row + 1] = added
        self.row += len(added) - 1
        self.column, self.changed = max(0, column + len(words) - 1), True

    def pair(self, keys: str) -> None:
        if keys == "dd" and self.lines:
            self.kept = [self.lines.pop(self.row)]
            self.row, self.column, self.changed = max(0, min(self.row, len(self.lines) - 1)), 0, True
        elif keys == "yy" and self.lines:
            self.kept = [self.lines[self.row]]
        elif keys == "gg":
            self.row = self.column = 0
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
            self.changed = True
        elif key == "D" and line:
            self.lines[self.row] = line[: self.column]
            self.changed = True
        elif key == "p" and self.kept:
            self.lines[self.row + 1 : self.row + 1] = self.kept
            self.row, self.changed = self.row + 1, True
