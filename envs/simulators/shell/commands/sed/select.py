"""Decide whether a sed command's addresses select the current line."""

from envs.simulators.shell.commands.sed.parse import Address, Command


class Selection:
    """The part of a running script that evaluates addresses and ranges."""

    def selects(self, command: Command) -> bool:
        """Return whether a command's addresses select this line; opens and closes its range."""
        first, second = command.first, command.second
        if first is None:
            return True
        if second is None:
            return self.at(first)
        if command.end >= 0:
            return self.inside(command, second)
        if first.kind == "line" and first.number == 0 and command.end == -1:
            command.end = 0
            return self.inside(command, second)
        if not self.at(first):
            return False
        if second.kind == "line":
            command.end = second.number if second.number > self.number else -1
        elif second.kind == "plus":
            command.end = self.number + second.number if second.number else -1
        elif second.kind == "multiple":
            up = -(-self.number // second.number) * second.number if second.number else self.number
            command.end = up if up > self.number else -1
        else:
            command.end = 0 if not (second.kind == "last" and self.ahead is None) else -1
        return True

    def inside(self, command: Command, second: Address) -> bool:
        """Return whether a line after the first of a range is in it."""
        if second.kind in ("regex", "last"):
            if self.at(second):
                command.end = -1 if not (command.first.kind == "line" and command.first.number == 0) else -2
            return True
        if self.number >= command.end:
            inside = self.number == command.end
            command.end = -1
            return inside or (second.kind == "line" and self.at(command.first))
        return True

    def at(self, address: Address) -> bool:
        kind = address.kind
        if kind == "line":
            return self.number == address.number
        if kind == "last":
            return self.ahead is None
        if kind == "step":
            if address.step <= 0:
                return self.number == address.number
            return self.number >= address.number and (self.number - address.number) % address.step == 0
        return self.regex(address.regex).test(self.space, self.p.tick)
