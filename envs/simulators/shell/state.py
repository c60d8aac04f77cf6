"""A shell's state: variables, special parameters, options, and how it prints errors and traces."""

from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from envs.simulators.shell import expand
from envs.simulators.shell.expand import ExpansionFailed
from envs.simulators.shell.jobs import Job
from envs.simulators.shell.parse import Parser
from envs.simulators.shell.patterns import LOWER, UPPER
from envs.simulators.shell.printing import traced
from envs.simulators.shell.process import Process
from envs.simulators.shell.tree import Assign, Function, SyntaxFailed, Word, index_word, plain_word

MAX_NESTING = 150  # functions, subshells, substitutions and scripts inside one another
OPTIONS = dict.fromkeys([*"efuxnCav", "pipefail", "nullglob", "dotglob", "nocasematch", "extglob", "globstar"], False)
LONG_OPTIONS = {
    "allexport": "a", "errexit": "e", "errtrace": "E", "noglob": "f", "noexec": "n", "nounset": "u", "verbose": "v",
    "xtrace": "x", "noclobber": "C", "pipefail": "pipefail", "posix": "posix", "physical": "P", "monitor": "m",
    "hashall": "h", "braceexpand": "B", "functrace": "T", "emacs": "emacs", "vi": "vi", "history": "history",
}  # fmt: skip


def bucket(key: str) -> int:
    """Return a key's bucket in bash's hash table: FNV over its bytes, modulo 1,024."""
    value = 2166136261
    for c in key:
        value = (value * 16777619 & 0xFFFFFFFF) ^ ord(c)
    return value & 1023


@dataclass(slots=True)
class Var:
    """One variable; `value` is None if declared but not set, {int: str} of an array, {str: str} of a map."""

    value: str | dict | None = None
    exported: bool = False
    readonly: bool = False
    integer: bool = False
    case: str = ""  # "l" or "u": what is assigned becomes lower or upper case
    kind: str = ""  # "a" indexed, "A" associative, "n" a nameref, whose value is a name

    def copy(self) -> "Var":
        value = dict(self.value) if isinstance(self.value, dict) else self.value
        return Var(value, self.exported, self.readonly, self.integer, self.case, self.kind)

    def size(self) -> int:
        """Return how many values a copy has to copy, at least 1."""
        return 1 + len(self.value) if type(self.value) is dict else 1

    def scalar(self) -> str | None:
        """Return the value of the bare name."""
        if type(self.value) is dict:
            return self.value.get("0" if self.kind == "A" else 0)
        return self.value

    def values(self) -> list[str]:
        """Return all values, of an array in the order of its indices."""
        if type(self.value) is dict:
            return [self.value[key] for key in self.indices()]
        return [] if self.value is None else [self.value]

    def indices(self) -> list:
        """Return all indices of an array in order; of a map in the order of bash's hash table, which bash prints."""
        if type(self.value) is dict:
            return sorted(reversed(self.value), key=bucket) if self.kind == "A" else sorted(self.value)
        return [] if self.value is None else [0]


class Exit(Exception):
    """Raised to end the shell."""

    def __init__(self, status: int):
        self.status = status


class Return(Exit):
    """Raised to end a function or a sourced file."""


class Misused(Exception):
    """A builtin called with invalid arguments: it ends with status 2 after the message, if any, and its usage."""


class LoopJump(Exception):
    """Raised by break or continue, for so many loops."""

    def __init__(self, count: int, again: bool):
        self.count, self.again = count, again


class State(Process):
    """A process with variables, functions and options. `shell_name` is $0; `label` begins its messages."""

    doomed = ""  # the signal that ends this shell, while it sleeps
    inherited: ClassVar[dict[str, str]] = {}  # traps of the shell above, which a subshell shows until it sets its own
    stack: ClassVar[list[str]] = []  # of pushd; like the two above, an instance that changes it has its own

    def __init__(self, process: Process, name: str = "bash", args: tuple = ()):
        super().__init__(
            process.machine, process.cwd, process.uid, process.gid, process.groups, process.umask,
            ["bash"], {}, dict(process.fds), self.run_for,
        )  # fmt: skip
        self.shell_name, self.label, self.args = name, name, list(args)
        self.vars = {key: Var(value, exported=True) for key, value in process.env.items() if key.isidentifier()}
        self.functions: dict[str, tuple[Function, str]] = {}
        self.options = dict(OPTIONS)
        self.traps: dict[str, str] = {}
        self.frames: list[tuple[str, dict, int]] = []  # of each function: name, variables put aside, line of the call
        self.status = self.substituted = 0
        self.pipe_status = [0]
        self.line = 1
        self.quiet = self.loops = 0  # how many conditions and loops are around
        self.nesting = self.level = self.substitutions = 0  # how many levels, subshells and $(...) are around
        self.pid, self.last_pid = process.machine.next_pid(), None
        self.own_pid, self.top = self.pid, self  # its own number, and the shell whose number $$ is
        self.jobs: dict[int, Job] = {}
        self.pending: list[str] = []  # signals that have come and await the end of the running command
        self.sinks: list = []  # of each `>(...)`: its input, its program, and the shell that runs it
        self.sourcing = 0
        self.random = 42
        self.started = process.machine.clock

    # -- messages

    def syntax_error(self, failure: SyntaxFailed, kind: str) -> None:
        where = f"{self.label}: {kind}: " if kind else f"{self.label}: "
        self.error(f"{where}line {failure.line}: {failure.message}\n")
        if failure.shown is not None and not self.options["e"]:  # with -e bash is gone by then
            self.error(f"{where}line {failure.line}: `{failure.shown}'\n")

    def error(self, message: str) -> None:
        """Write to the standard error, if it is open."""
        if 2 in self.fds:
            with suppress(OSError):
                self.fds[2].write(message)

    def complain(self, message: str) -> None:
        self.error(f"{self.label}: line {self.line}: {message}\n")

    def report(self, failure: ExpansionFailed) -> None:
        """Print, once, why an expansion failed."""
        if not failure.reported:
            self.complain(str(failure))
        failure.reported = True

    def fail(self, message: str, status: int = 1) -> int:
        """Print a builtin's message, `bash: line 1: cd: message`, and return the status."""
        self.complain(f"{self.argv[0]}: {message}")
        return status

    def trace(self, shown: str) -> None:
        prefix = self.get("PS4") or "+ "
        self.error(prefix[0] * self.substitutions + prefix + shown + "\n")

    # -- variables

    def restore(self, saved: dict[str, Var | None]) -> None:
        """Put variables back that were set aside; None stands for a variable that did not exist."""
        for name, var in saved.items():
            if var is None:
                self.vars.pop(name, None)
            else:
                self.vars[name] = var

    def get(self, name: str) -> str | None:
        """Return the value of a parameter; None if it is not set."""
        var = self.vars.get(name)
        if var is not None:
            return self.referred(var) if var.kind == "n" else var.scalar()
        if name.isdecimal():
            number = int(name[:9])
            return self.shell_name if number == 0 else self.args[number - 1] if number <= len(self.args) else None
        special = SPECIAL.get(name)
        return special(self) if special else None

    def referred(self, var: Var) -> str | None:
        """Return the value of what a nameref names."""
        name, bracket, index = self.target(var.value or "").partition("[")
        return self.element(name, index_word(index)) if bracket else self.get(name) if name else None

    def target(self, name: str) -> str:
        """Return the name that a name stands for: its own, or what it refers to as a nameref."""
        for _ in range(8):
            var = self.vars.get(name)
            if var is None or var.kind != "n" or not var.value or var.value == name:
                return name
            name = var.value
        raise ExpansionFailed(f"warning: {name}: circular name reference")

    def ifs(self) -> str:
        var = self.vars.get("IFS")
        return " \t\n" if var is None or var.value is None else var.scalar()

    def values(self, name: str) -> list[str]:
        name = self.target(name)
        var = self.vars.get(name)
        if var is not None:
            return var.values()
        if name in LISTS:
            return LISTS[name](self)
        value = self.get(name)
        return [] if value is None else [value]

    def keys(self, name: str) -> list:
        name = self.target(name)
        var = self.vars.get(name)
        return var.indices() if var is not None else list(range(len(self.values(name))))

    def element(self, name: str, index: Word) -> str | None:
        name = self.target(name)
        var = self.vars.get(name)
        if var is None:
            values = self.values(name)
            place = expand.number(self, expand.string(self, index))
            return values[place] if -len(values) <= place < len(values) else None
        key = self.key(var, index, name)
        if isinstance(var.value, dict):
            return var.value.get(key)
        return var.value if key == 0 else None

    def key(self, var: Var, index: Word, name: str):
        """Return the key of an index: a number, counted from the end if negative, or of a map a string."""
        said = expand.string(self, index)
        if var.kind == "A":
            return said
        place = expand.number(self, said)
        if place < 0:
            keys = var.indices()
            place += (keys[-1] if keys else -1) + 1
            if place < 0:
                raise ExpansionFailed(f"{name}[{said}]: bad array subscript")
        return place

    def put(self, name: str, value: str, index: Word | None = None, add: bool = False) -> None:
        """Assign to a variable or an array element."""
        self.machine.tick(len(value) >> 8)
        var = self.vars.get(name)
        if var is None:
            var = self.vars[name] = Var()
            var.exported = self.options["a"]
        if var.kind == "n":
            if not var.value:
                var.value = value
                return
            base, bracket, place = self.target(name).partition("[")
            self.put(base, value, index_word(place) if bracket else index, add)
            return
        if var.readonly:
            raise expand.ReadOnly(name)
        if index is None and not var.kind and not var.integer and not var.case:
            var.value = self.longer(var.value, value) if add else value
            return
        if index is None:
            key = "0" if var.kind == "A" else 0
        else:
            if not var.kind:
                var.kind, var.value = "a", {} if var.value is None else {0: var.value}
            key = self.key(var, index, name)
        old = var.value.get(key) if isinstance(var.value, dict) else var.value
        if var.integer:
            amount = expand.number(self, value)
            value = str(amount + (expand.number(self, old or "0") if add else 0))
        elif add:
            value = self.longer(old, value)
        if var.case:
            value = value.translate(LOWER if var.case == "l" else UPPER)
        if var.kind:
            var.value = var.value if isinstance(var.value, dict) else {}
            var.value[key] = value
        else:
            var.value = value

    def longer(self, old: str | None, more: str) -> str:
        """Return a value with another appended."""
        self.machine.tick(len(old or "") >> 8)
        return (old or "") + more

    def put_array(self, name: str, items: list, add: bool = False, kind: str = "") -> None:
        """Assign `(...)`: Words are values in turn, Assigns give their index."""
        name = self.target(name)
        var = self.vars.setdefault(name, Var())
        if var.readonly:
            raise expand.ReadOnly(name)
        kind = kind or var.kind or "a"
        made: list[tuple[Word | None, str, bool]] = []
        for item in items:
            if type(item) is Assign:
                made.append((item.index, expand.assigned(self, item.value), item.add))
            else:
                made += [(None, value, False) for value in expand.arguments(self, [item])]
        if not add or not isinstance(var.value, dict):
            var.value = {} if not add or var.value is None else {0: var.value}
        var.kind = kind
        if kind == "A" and made and all(index is None for index, _, _ in made):
            flat = [value for _, value, _ in made] + [""]
            made = [(plain_word(key), value, False) for key, value in zip(flat[::2], flat[1::2], strict=False)]
        self.machine.tick(len(var.value) >> 8)  # the largest index is looked for
        following = max(var.value, default=-1) + 1 if kind == "a" else 0
        for index, value, more in made:
            place = following if index is None else self.key(var, index, name)
            if index is None and kind == "A":
                raise ExpansionFailed(f"{name}: {value}: must use subscript when assigning associative array")
            var.value[place] = ""
            self.put(name, value, plain_word(str(place)))
            if more:
                var.value[place] = value
            following = place + 1 if kind == "a" else 0

    def assign(self, assignment: Assign) -> None:
        """Carry out `name=value`."""
        if isinstance(assignment.value, list):
            self.put_array(assignment.name, assignment.value, assignment.add)
            if self.options["x"]:
                self.trace(assignment.source)
            return
        value = expand.assigned(self, assignment.value)
        if self.options["x"]:
            shown = traced(value) if value or assignment.value.source else ""
            self.trace(f"{assignment.name}{'+' * assignment.add}={shown}")
        self.put(assignment.name, value, assignment.index, assignment.add)

    def is_set(self, name: str) -> bool:
        """Return whether a variable is set, for `-v`."""
        base, bracket, index = name.partition("[")
        if bracket:
            whole = index in ("@]", "*]")
            return bool(self.values(base)) if whole else self.element(base, index_word(index)) is not None
        return self.get(name) is not None

    def arithmetic_get(self, name: str, index: str | None) -> str:
        value = self.get(name) if index is None else self.element(name, _index(index)) or ""
        if value is None and self.options["u"]:
            raise expand.unbound(name)
        self.machine.tick(2 + expand.steps(value or ""))  # it may be an expression, and name others
        return value or ""

    def arithmetic_put(self, name: str, index: str | None, value: str) -> None:
        self.put(name, value, None if index is None else _index(index))

    def environment(self) -> dict[str, str]:
        return {name: var.value for name, var in self.vars.items() if var.exported and type(var.value) is str}


def _index(index: str) -> Word:
    if len(index) > 1 and index[0] == index[-1] and index[0] in "\"'":
        index = index[1:-1]
    return Parser("").expression_word(index, 0) if "$" in index else plain_word(index)


def _random(shell: State) -> str:
    shell.random = (shell.random * 1103515245 + 12345) % (1 << 31)
    return str(shell.random >> 16)


SPECIAL = {"?": lambda sh: str(sh.status), "#": lambda sh: str(len(sh.args)), "$": lambda sh: str(sh.pid)}
SPECIAL |= {"-": lambda sh: "".join(c for c in "aefhnuvx" if sh.options.get(c, c == "h")) + "Bc"}
SPECIAL |= {"!": lambda sh: sh.last_pid, "*": lambda sh: " ".join(sh.args), "@": lambda sh: " ".join(sh.args)}
SPECIAL |= {"LINENO": lambda sh: str(sh.line), "RANDOM": _random, "BASHPID": lambda sh: str(sh.own_pid)}
SPECIAL |= {"SECONDS": lambda sh: str(int(sh.machine.clock - sh.started)), "PPID": lambda sh: "0"}
SPECIAL |= {"EPOCHSECONDS": lambda sh: str(int(sh.machine.clock)), "HOSTNAME": lambda sh: sh.machine.hostname}
SPECIAL |= {"UID": lambda sh: str(sh.uid), "EUID": lambda sh: str(sh.uid), "GROUPS": lambda sh: str(sh.gid)}
SPECIAL |= {"OSTYPE": lambda sh: "linux-gnu", "BASH": lambda sh: "/bin/bash", "OPTIND": lambda sh: "1"}
SPECIAL |= {"BASH_VERSION": lambda sh: "5.2.21(1)-release", "BASH_SUBSHELL": lambda sh: str(sh.level)}
SPECIAL |= {"IFS": lambda sh: " \t\n", "PS4": lambda sh: "+ ", "PIPESTATUS": lambda sh: str(sh.pipe_status[0])}
SPECIAL |= {"FUNCNAME": lambda sh: sh.frames[-1][0] if sh.frames else None}
SPECIAL |= {"BASH_SOURCE": lambda sh: sh.label if sh.frames or not sh.from_text else None}
LISTS = {
    "PIPESTATUS": lambda sh: [str(status) for status in sh.pipe_status],
    "FUNCNAME": lambda sh: [name for name, _, _ in reversed(sh.frames)],
    "GROUPS": lambda sh: [str(group) for group in sh.groups],
}
