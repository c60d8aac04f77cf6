"""The part of the interpreter that runs lists, redirected commands, if, loops, case, (( )) and [[ ]]."""

from typing import ClassVar

from envs.simulators.regex.match import RegexError, compile_regex
from envs.simulators.shell import expand
from envs.simulators.shell.arithmetic import ArithmeticFailed
from envs.simulators.shell.conditions import COMPARE, TEXTS, TestFailed, binary, unary
from envs.simulators.shell.expand import ExpansionFailed
from envs.simulators.shell.launch import Launching
from envs.simulators.shell.patterns import LOWER, matches
from envs.simulators.shell.printing import traced
from envs.simulators.shell.state import Exit, LoopJump, Var
from envs.simulators.shell.tree import AndOr, Arithmetic, Case, CFor, Cond, For, If, Redirected, While, Word


class Control(Launching):
    """A shell that runs compound commands; `runners` maps a kind of command to the method for it."""

    runners: ClassVar[dict] = {}

    # -- commands

    def sequence(self, commands: list) -> int:
        for command in commands:
            self.status = self.runners[type(command)](self, command)
        return self.status

    def execute(self, command) -> int:
        self.status = self.runners[type(command)](self, command)
        return self.status

    def check(self, status: int) -> int:
        """After a failed command, run the ERR trap and, with -e, end the shell."""
        if status and not self.quiet:
            action = self.traps.get("ERR")
            if action and (not self.frames or self.options.get("E")):
                self.status, pipe_status = status, self.pipe_status
                self.traps["ERR"] = ""
                self.run_script(action, "error trap", self.line)
                self.traps["ERR"], self.pipe_status = action, pipe_status
            if self.options["e"]:
                raise Exit(status)
        return status

    def and_or(self, command: AndOr) -> int:
        last = len(command.rest) - 1
        status = self.unchecked(command.first)
        for place, (operator, following) in enumerate(command.rest):
            if (status == 0) == (operator == "&&"):
                status = self.execute(following) if place == last else self.unchecked(following)
        return status

    def unchecked(self, command) -> int:
        """Run a condition, whose failure does not trigger -e or the ERR trap."""
        self.quiet += 1
        try:
            return self.execute(command)
        finally:
            self.quiet -= 1

    def condition(self, commands: list) -> bool:
        self.quiet += 1
        try:
            return self.sequence(commands) == 0
        finally:
            self.quiet -= 1

    def redirected(self, command: Redirected) -> int:
        before, sinks = self.fds, len(self.sinks)
        self.line = command.line
        try:
            status = self.execute(command.body) if self.redirect(command.redirects) else self.check(1)
        except ExpansionFailed as failure:
            self.report(failure)
            raise
        finally:
            self.fds = before
        if len(self.sinks) > sinks:
            self.drain(sinks)
        return status

    def if_(self, command: If) -> int:
        for condition, body in command.clauses:
            if self.condition(condition):
                return self.sequence(body)
        self.status = 0
        return self.sequence(command.otherwise)

    def while_(self, command: While) -> int:
        status = 0
        self.loops += 1
        try:
            while True:
                self.machine.tick()
                try:
                    if self.condition(command.condition) == command.until:
                        return status
                    status = self.sequence(command.body)
                except LoopJump as jump:
                    status = 0
                    if self.leaves(jump):
                        return 0
        finally:
            self.loops -= 1

    def leaves(self, jump: LoopJump) -> bool:
        """Return whether break or continue ends this loop; raise it again for an outer loop."""
        if jump.count > 1 and self.loops > 1:
            raise LoopJump(jump.count - 1, jump.again)
        return not jump.again

    def for_(self, command: For) -> int:
        self.line = command.line
        if not command.name.isidentifier():
            self.complain(f"`{command.name}': not a valid identifier")
            return self.check(1)
        values = list(self.args) if command.words is None else expand.arguments(self, command.words)
        status = 0
        self.loops += 1
        try:
            for value in values:
                self.machine.tick()
                if self.options["x"]:
                    shown = " ".join(w.source for w in command.words or ()) or '"$@"'
                    self.trace(f"for {command.name} in {shown}")
                self.put(command.name, value)
                try:
                    status = self.sequence(command.body)
                except LoopJump as jump:
                    status = 0
                    if self.leaves(jump):
                        break
        finally:
            self.loops -= 1
        return status

    def c_for(self, command: CFor) -> int:
        start, condition, step = command.parts
        status = 0
        self.loops += 1
        try:
            self.arithmetic_value(start, command.line)
            while True:
                self.machine.tick()
                said = expand.string(self, condition)
                if said.strip() and not self.arithmetic_value(condition, command.line):
                    return status
                try:
                    status = self.sequence(command.body)
                except LoopJump as jump:
                    status = 0
                    if self.leaves(jump):
                        return 0
                self.arithmetic_value(step, command.line)
        except ArithmeticFailed as failure:
            self.complain(f"((: {failure}")
            return 1
        finally:
            self.loops -= 1

    def arithmetic_value(self, word: Word, line: int) -> int:
        self.line = line
        said = expand.string(self, word)
        if self.options["x"]:
            self.trace(f"(( {said} ))")
        self.machine.tick(expand.steps(said))
        return expand.evaluate(said, self.arithmetic_get, self.arithmetic_put)

    def arithmetic(self, command: Arithmetic) -> int:
        self.machine.tick()
        try:
            return self.check(int(not self.arithmetic_value(command.word, command.line)))
        except ArithmeticFailed as failure:
            self.complain(f"((: {failure}")
            return self.check(1)

    def case(self, command: Case) -> int:
        self.line = command.line
        word = expand.string(self, command.word)
        if self.options["x"]:
            self.trace(f"case {command.word.source} in")
        status, falls = 0, False
        for patterns, body, ending in command.clauses:
            self.machine.tick()
            if falls or any(self.matches(expand.pattern(self, pattern), word) for pattern in patterns):
                self.status = 0
                status = self.sequence(body)
                falls = ending == ";&"
                if ending == ";;":
                    return status
        return status

    def matches(self, pattern: str, value: str) -> bool:
        if self.options["nocasematch"]:
            pattern, value = pattern.translate(LOWER), value.translate(LOWER)
        self.machine.tick(len(value) >> 9)
        return matches(pattern, value, self.machine.tick)

    # -- [[ ]]

    def cond(self, command: Cond) -> int:
        self.line = command.line
        self.machine.tick()
        try:
            return self.check(int(not self.holds(command.test)))
        except ExpansionFailed as failure:
            if failure.fatal:
                raise
            self.report(failure)
            return self.check(1)
        except TestFailed as failure:
            self.complain(str(failure))
            return self.check(2)

    def holds(self, test: tuple) -> bool:
        kind = test[0]
        if kind == "or":
            return self.holds(test[1]) or self.holds(test[2])
        if kind == "and":
            return self.holds(test[1]) and self.holds(test[2])
        if kind == "not":
            return not self.holds(test[1])
        if kind == "word":
            return expand.string(self, test[1]) != ""
        if kind == "unary":
            value = expand.string(self, test[2])
            if self.options["x"]:
                self.trace(f"[[ {test[1]} {traced(value)} ]]")
            return unary(self, test[1][1], value)
        _, op, left, right = test
        value = expand.string(self, left)
        if op == "=~":
            return self.regex_matches(value, expand.regex(self, right))
        if op in ("=", "==", "!="):
            pattern = expand.pattern(self, right, extended=True)
            if self.options["x"]:
                self.trace(f"[[ {traced(value)} {op} {pattern or chr(39) * 2} ]]")
            return self.matches(pattern, value) == (op != "!=")
        other = expand.string(self, right)
        if self.options["x"]:
            self.trace(f"[[ {traced(value)} {op} {traced(other)} ]]")
        if op in COMPARE:
            return COMPARE[op](expand.number(self, value, "[[: "), expand.number(self, other, "[[: "))
        return TEXTS[op](value, other) if op in TEXTS else binary(self, value, op, other)

    def regex_matches(self, value: str, pattern: str) -> bool:
        """Evaluate =~ and set BASH_REMATCH."""
        try:
            expression = compile_regex(pattern, "posix", self.options["nocasematch"])
        except RegexError:
            raise TestFailed("[[: invalid regular expression") from None
        found = expression.search(value, 0, self.machine.tick)
        groups = found and [value[a:b] if a >= 0 else "" for a, b in zip(found[::2], found[1::2], strict=True)]
        self.vars["BASH_REMATCH"] = Var(dict(enumerate(groups or ())), kind="a")
        return bool(groups)
