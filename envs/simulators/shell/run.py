"""The interpreter: runs a script's tree, one complete command after another, as `bash -c` does.

The stages of a pipeline run one after another with their output buffered; a stage that prints without end is stopped as
SIGPIPE would stop it. A command with & is a job (jobs.py). Subshells are copies of the interpreter.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

from envs.simulators.shell import builtins, expand, tree
from envs.simulators.shell.commands import COMMANDS
from envs.simulators.shell.control import Control
from envs.simulators.shell.expand import ExpansionFailed, ReadOnly
from envs.simulators.shell.files import TICK, Hangup, Node, Timeout, text
from envs.simulators.shell.jobs import ENDED, HARMLESS, MOST_JOBS, NUMBERS, Expired, Job, Killed, advance, wait_for
from envs.simulators.shell.parse import Parser
from envs.simulators.shell.printing import traced
from envs.simulators.shell.process import PIPE_SIZE, Process, Stream, pipe
from envs.simulators.shell.reading import small_number
from envs.simulators.shell.state import MAX_NESTING, Exit, LoopJump, Misused, Return, Var


@lru_cache(maxsize=1024)
def parsed(source: str, first_line: int) -> list | None:
    """Return a script's commands, cached because episodes repeat scripts; None if parsing prints something."""
    parser = Parser(source, first_line)
    try:
        programs = list(parser.programs())
    except (tree.SyntaxFailed, RecursionError):
        return None
    return None if parser.warnings else programs


class Interpreter(Control):
    """A shell: run scripts, simple commands, functions, pipelines and subshells."""

    # -- scripts

    def run_script(self, source: str, kind: str = "", first_line: int = 1) -> int:
        """Run a text and return its status; `kind` names it in syntax errors: "-c", "eval", or nothing for a file."""
        parser = Parser(source, first_line)
        known = parsed(source, first_line) if len(source) < 2000 and not self.options["extglob"] else None
        programs = parser.programs() if known is None else iter(known)
        if not source.strip():
            self.status = 0
        while True:
            try:
                parser.extglob = self.options["extglob"]
                program = next(programs, None)
                for line, warning in parser.warnings:
                    self.line = line
                    self.complain(warning)
                parser.warnings.clear()
                if program is None:
                    return self.status
                if self.options["n"]:
                    self.status = 0  # only the syntax is checked, from the line after `set -n` on
                else:
                    self.sequence(program)
            except tree.SyntaxFailed as failure:
                self.syntax_error(failure, kind)
                self.status = failure.status
                return self.status
            except ExpansionFailed as failure:
                self.report(failure)
                self.status = failure.status if not self.level and self.from_text and not self.options["e"] else 1
                if failure.fatal or self.level:
                    raise Exit(self.status) from None

    def main(self, source: str, kind: str = "") -> int:
        """Run a script to the shell's end."""
        return self.to_end(lambda: self.run_script(source, kind))

    def to_end(self, run: Callable) -> int:
        """Run this shell's commands and its EXIT trap, and return its status."""
        try:
            run()
        except Exit as end:
            self.status = end.status
        except LoopJump:
            pass
        except ExpansionFailed as failure:
            self.report(failure)
            self.status = 1
        except Killed as killed:
            self.end_by(killed)
        return self.finish()

    def finish(self) -> int:
        """Run the EXIT trap, if it is set, and then what reads from `exec > >(...)`."""
        action = self.traps.pop("EXIT", None)
        if action:
            status = self.status
            try:
                self.run_script(action, "exit trap", self.line)
                self.status = status
            except Exit as end:
                self.status = end.status
        if self.sinks:
            self.drain(0)
        return self.status & 255

    # -- signals

    killed = ""  # the signal that ended this shell

    def receive(self, signal: str) -> None:
        """Note a signal: its trap runs after the running command; without a trap it ends this shell."""
        action = self.traps.get(signal) if signal != "KILL" else None
        if action is None and signal not in (*HARMLESS, "EXIT"):
            self.doomed = signal
        if action or self.doomed:
            self.pending.append(signal)

    def deliver(self) -> None:
        """Run the traps of the signals that have come."""
        while self.pending:
            signal = self.pending.pop(0)
            if signal == self.doomed:
                raise Killed(signal, self)
            if action := self.traps.get(signal):
                self.run_script(action, "trap", self.line)

    def end_by(self, killed: Killed) -> None:
        """End this shell by a signal; another shell's goes on to that one."""
        if killed.shell is not self:
            raise killed
        self.killed, self.status = killed.signal, 128 + NUMBERS[killed.signal]
        if killed.signal == "KILL":
            self.traps.clear()

    # -- subshells and pipelines

    def background(self, command: tree.Background) -> int:
        if len(self.machine.jobs) >= MOST_JOBS:
            self.complain("fork: Resource temporarily unavailable")
            raise Exit(254)  # as bash ends
        self.machine.tick(1000)  # for the thread
        shell = self.fork()
        shell.fds[0] = Stream(self.machine, Node("device", 0o666, "null"))
        job = Job(self.machine, shell.own_pid, command.text, shell, type(command.body) is tree.Simple)
        self.jobs = self.jobs | {max(self.jobs, default=0) + 1: job}
        self.last_pid = str(job.pid)
        body = command.body
        commands = body.body if type(body) is tree.Group and body.subshell else [body]
        job.start(lambda: shell.run_forked(*commands))
        return 0

    def fork(self) -> "Interpreter":
        """Return a copy for a subshell: only its changes to files are shared."""
        held = len(self.functions) + len(self.args) + sum(map(Var.size, self.vars.values()))
        self.machine.tick(16 + held // 3)  # time and memory grow with what is copied
        shell = object.__new__(Interpreter)
        shell.__dict__.update(self.__dict__)
        shell.launch = shell.run_for
        shell.vars = {name: var.copy() for name, var in self.vars.items()}
        shell.functions, shell.options, shell.fds = dict(self.functions), dict(self.options), dict(self.fds)
        shell.args, shell.frames, shell.jobs = list(self.args), list(self.frames), dict(self.jobs)
        shell.inherited = self.traps or self.inherited
        shell.own_pid, shell.pending, shell.sinks, shell.doomed = self.machine.next_pid(), [], [], ""
        shell.traps = {name: action for name, action in self.traps.items() if name == "ERR" and self.options.get("E")}
        shell.level += 1
        shell.deeper()
        return shell

    def deeper(self) -> None:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise Timeout

    def run_forked(self, *commands) -> int:
        """Run commands to this subshell's end."""
        try:
            return self.to_end(lambda: self.sequence(commands))
        except Hangup:
            return 141

    def pipeline(self, command: tree.Pipe) -> int:
        if command.timed:
            start = self.machine.clock
            status = self.pipeline(tree.Pipe(command.stages, command.bang, command.both))
            minutes, seconds = divmod(self.machine.clock - start, 60)
            self.error(f"\nreal\t{int(minutes)}m{seconds:.3f}s\nuser\t0m0.000s\nsys\t0m0.001s\n")
            return status
        if not command.stages:
            return int(command.bang)
        if len(command.stages) == 1:
            status = self.unchecked(command.stages[0]) if command.bang else self.execute(command.stages[0])
            return int(not status) if command.bang else status
        self.pipe_status = statuses = self.stages(command)
        status = statuses[-1]
        if self.options["pipefail"]:
            status = next((s for s in reversed(statuses) if s), 0)
        return int(not status) if command.bang else self.check(status)

    def stages(self, command: tree.Pipe) -> list[int]:
        """Run the stages of a pipeline in turn and return their statuses."""
        statuses, source, last = [], None, len(command.stages) - 1
        self.open_outputs(command.stages)
        for place, stage in enumerate(command.stages):
            shell = self.fork()
            shell.quiet += command.bang
            if source:
                shell.fds[0] = source
            if place == last:
                statuses.append(shell.run_forked(stage))
                break
            sink = source = pipe(self.machine, PIPE_SIZE, Hangup())
            shell.fds[1] = sink
            if command.both[place]:
                shell.fds[2] = sink
            statuses.append(self.bounded(shell, stage))
            self.wait_for_writers(sink)
        return statuses

    def open_outputs(self, stages: list) -> None:
        """Create the files that later stages write, as they do before the first stage's program begins to read."""
        first = stages[0]
        if type(first) is not tree.Simple or not first.words or self.options["C"]:
            return
        if type(first.words[0]) is tree.Assign or first.words[0].plain in (None, *builtins.BUILTINS, *self.functions):
            return
        for stage in stages[1:]:
            for redirect in stage.redirects if type(stage) is tree.Simple else ():
                if redirect.op in (">", ">>", ">|", "&>", "&>>") and redirect.target.plain:
                    with suppress(OSError):  # the stage itself will print the message
                        self.open_file(redirect.op, redirect.target.plain)

    def wait_for_writers(self, sink: Stream) -> None:
        """Wait for the jobs that hold the end of a pipe open."""
        if self.machine.jobs:
            others = [job for job in self.machine.jobs if job is not self.machine.job]
            holding = [job for job in others if sink in job.shell.fds.values()]
            wait_for(self.machine, lambda: all(job.wake is None for job in holding))

    def bounded(self, shell: "Interpreter", stage) -> int:
        """Run a stage whose output is piped, with half of the remaining steps; beyond them nobody reads on."""
        steps = self.machine.steps
        share = steps // 2
        self.machine.steps = share
        try:
            return shell.run_forked(stage)
        except Timeout:
            if not shell.fds[1].node.data:
                raise
            return 141
        finally:
            self.machine.steps += steps - share

    def group(self, command: tree.Group) -> int:
        if not command.subshell:
            return self.sequence(command.body)
        shell = self.fork()
        status = shell.run_forked(*command.body)
        if shell.killed == "TERM":
            self.error("Terminated\n")
        return self.check(status)

    def output_of(self, program: list) -> str:
        """Return a program's output without its final line ends."""
        shell = self.fork()
        shell.substitutions += 1
        shell.options["e"] = False
        only = program[0] if len(program) == 1 and type(program[0]) is tree.Simple else None
        if only and not only.words and not only.assigns and [r.op for r in only.redirects] == ["<"]:
            if not shell.redirect(only.redirects):
                self.substituted = 1
                return ""
            printed, self.substituted = b"", 0
            with suppress(OSError):  # bash says nothing of a folder
                printed = shell.fds[0].read()
        else:
            sink = shell.fds[1] = pipe(self.machine, PIPE_SIZE, Timeout())
            self.substituted = shell.run_forked(*program)
            self.wait_for_writers(sink)
            printed = bytes(sink.node.data)
        if b"\0" in printed:
            self.complain("warning: command substitution: ignored null byte in input")
            printed = printed.replace(b"\0", b"")
        self.machine.tick(len(printed) >> 8)
        return text(printed.rstrip(b"\n"))

    def file_of(self, program: list) -> str:
        """Return the path at which a command finds a program's output: `<(...)`."""
        shell = self.fork()
        sink = shell.fds[1] = pipe(self.machine, PIPE_SIZE, Timeout())
        shell.run_forked(*program)
        self.machine.change()
        folder = self.machine.lookup("/dev/fd")
        number = 63 - len(folder.data)
        folder.data[str(number)] = Node("file", 0o600, bytes(sink.node.data))
        if number < 40:
            folder.data.clear()
        return f"/dev/fd/{number}"

    def sink_of(self, program: list) -> str:
        """Return the path of a program's input: `>(...)`. The program runs once the command that writes has ended."""
        folder = self.machine.lookup("/dev/fd")
        number = next(n for n in range(63, 0, -1) if str(n) not in folder.data)
        self.machine.change()
        source = folder.data[str(number)] = Node("file", 0o600, bytearray())
        self.sinks.append((source, str(number), program, self.fork()))
        return f"/dev/fd/{number}"

    def drain(self, kept: int) -> None:
        """Run the programs that read what was written into `>(...)`, the newest of which come first."""
        while len(self.sinks) > kept:
            source, name, program, shell = self.sinks.pop()
            self.machine.lookup("/dev/fd").data.pop(name, None)
            shell.fds[0] = Stream(self.machine, source)
            shell.run_forked(*program)

    # -- simple commands

    def simple(self, command: tree.Simple) -> int:
        self.machine.tick()
        self.machine.clock += TICK
        if self.machine.clock > self.machine.deadline:
            raise Expired
        self.line = command.line
        self.substituted = 0
        before, sinks = self.fds, len(self.sinks)
        argv = self.command_line(command.words)
        if command.redirects and not self.redirect(command.redirects):
            self.fds = before
            return self.check(1)
        keep = False
        try:
            if not argv:
                for assignment in command.assigns:
                    self.assign(assignment)
                status = self.substituted
            else:
                keep = argv[0] == "exec" and len(argv) == 1 and "exec" not in self.functions
                status = self.call(argv, command.assigns)
        except ExpansionFailed as failure:
            self.report(failure)
            raise
        finally:
            if not keep:
                self.fds = before
        if len(self.sinks) > sinks and not keep:
            self.drain(sinks)
        self.pipe_status = [status]
        if self.pending:
            self.status = status
            self.deliver()
        return self.check(status)

    def command_line(self, words: list) -> list:
        """Return a command's expanded words; assignments of declare stay Assigns with their values."""
        if any(type(word) is tree.Assign for word in words):
            out: list = []
            for word in words:
                if type(word) is not tree.Assign:
                    out += expand.arguments(self, [word])
                elif isinstance(word.value, list) or word.index:
                    out.append(word)
                else:
                    out.append(f"{word.name}{'+' * word.add}={expand.assigned(self, word.value)}")
            return out
        return expand.arguments(self, words)

    def call(self, argv: list, assigns: list[tree.Assign]) -> int:
        """Run a command by its expanded words: function, builtin or program."""
        name = argv[0]
        function = self.functions.get(name)
        builtin = None if function else builtins.BUILTINS.get(name)
        if self.options["x"]:
            self.trace(" ".join(word.source if type(word) is tree.Assign else traced(word) for word in argv))
        saved = {a.name: self.vars[a.name].copy() if a.name in self.vars else None for a in assigns}
        for assignment in assigns:
            try:
                self.assign(assignment)
                self.vars[assignment.name].exported = True
            except ExpansionFailed as failure:
                self.report(failure)
        try:
            if builtin:
                return self.call_builtin(builtin, argv)
            return self.call_function(function, argv) if function else self.program(argv)
        finally:
            self.restore(saved)

    def call_builtin(self, builtin, argv: list) -> int:
        self.argv = argv
        try:
            return builtin(self, argv) or 0
        except ReadOnly as failure:
            self.report(failure)
            return 1
        except Misused as failure:
            if failure.args:
                self.fail(str(failure))
            self.error(f"{argv[0]}: usage: {builtins.USAGE[argv[0]]}\n")
            return 2
        except ExpansionFailed as failure:
            if not failure.reported and not failure.fatal:
                self.fail(str(failure))
                failure.reported = True
            raise
        except OSError as failure:
            self.argv = argv
            return self.fail(f"write error: {failure.strerror}")

    def call_function(self, function: tuple[tree.Function, str], argv: list[str]) -> int:
        self.deeper()
        saved = self.args, self.label, self.loops, self.line
        self.args, self.label, self.loops = [str(word) for word in argv[1:]], function[1], 0
        self.frames.append((argv[0], {}, self.line))
        try:
            return self.execute(function[0].body)
        except Return as end:
            return end.status
        except ExpansionFailed as failure:
            self.report(failure)
            raise
        finally:
            self.restore(self.frames.pop()[1])
            self.args, self.label, self.loops, self.line = saved
            self.nesting -= 1

    def program(self, argv: list) -> int:
        environment = self.environment()
        argv = [word.source if type(word) is tree.Assign else word for word in argv]
        name = argv[0]
        self.machine.tick(8)
        try:
            path, node = self.find_program(name, environment.get("PATH", ""))
        except OSError as failure:
            return self.not_found(name, failure)
        self.deeper()
        process = Process(
            self.machine, self.cwd, self.uid, self.gid, self.groups, self.umask,
            argv, environment, dict(self.fds), self.run_for,
        )  # fmt: skip
        if self.machine.job and self.machine.job.fresh:
            self.machine.job.name = " ".join(argv)
        elif self.machine.jobs and not self.machine.job:
            advance(self.machine, self.machine.clock)  # a program takes long enough for jobs to begin
        try:
            status = self.start(process, path, node)
            if process.killed == "TERM":
                self.error("Terminated\n")
            elif process.killed in ENDED:
                self.complain(f"{process.pid:5} {ENDED[process.killed]:<23} {' '.join(map(traced, argv))}")
            return status
        except OSError as failure:
            where = "" if failure.filename is None else f"{failure.filename}: "
            self.complain(f"{where}{failure.strerror}")
            return 126
        finally:
            self.nesting -= 1

    def define(self, command: tree.Function) -> int:
        label = self.label if self.label != self.shell_name or not self.from_text else "environment"
        self.functions[command.name] = (command, label)
        return 0

    from_text = True  # of -c; a script's functions carry the script's name


def bash(process: Process) -> int:
    """Run the program bash: -c TEXT, a file, or the standard input."""
    argv, at, command, from_input, set_options = process.argv, 1, False, False, []
    while at < len(argv) and argv[at][:1] in "-+" and len(argv[at]) > 1:
        word = argv[at]
        at += 1
        if word == "--":
            break
        if word.startswith("--"):
            if word not in ("--login", "--norc", "--noprofile", "--posix"):
                return process.fail(f"{word}: invalid option", 2)
            continue
        command, from_input = command or "c" in word, from_input or "s" in word
        flags = word[0] + "".join(c for c in word[1:] if c in "efuxnCaov")
        if len(flags) > 1:
            set_options.append(flags)
            if "o" in flags:
                set_options.append(argv[at] if at < len(argv) else "")
                at += 1
    rest = argv[at:]
    if command:
        if not rest:
            return process.fail("-c: option requires an argument", 2)
        shell = Interpreter(process, rest[1] if len(rest) > 1 else argv[0], tuple(rest[2:]))
        source, kind = rest[0], "-c"
    elif rest and not from_input:
        try:
            source, kind = text(process.read(rest[0])).replace("\0", ""), ""
        except OSError as failure:
            return process.fail(f"{rest[0]}: {failure.strerror}", 126 if failure.errno == errno.EISDIR else 127)
        shell = Interpreter(process, rest[0], tuple(rest[1:]))
        shell.from_text = False
    else:
        shell = Interpreter(process, argv[0], tuple(rest))
        source, kind = text(process.stdin).replace("\0", ""), ""
    shell.nesting = getattr(process.launch, "__self__", shell).nesting
    shell.vars["SHLVL"] = Var(str(small_number(process.env.get("SHLVL", "0")) + 1), exported=True)
    if set_options:
        builtins.set_(shell, ["set", *set_options])
    job = process.machine.job
    if job and job.fresh:
        shell.pid = shell.own_pid = job.pid
        job.shell, job.fresh = shell, False
    status = shell.main(source, kind)
    process.killed, process.pid = shell.killed, shell.pid
    return status


Interpreter.runners = {tree.Simple: Interpreter.simple, tree.Pipe: Interpreter.pipeline, tree.If: Interpreter.if_}
Interpreter.runners |= {tree.AndOr: Interpreter.and_or, tree.Background: Interpreter.background}
Interpreter.runners |= {tree.Group: Interpreter.group, tree.Redirected: Interpreter.redirected}
Interpreter.runners |= {tree.While: Interpreter.while_, tree.For: Interpreter.for_, tree.CFor: Interpreter.c_for}
Interpreter.runners |= {tree.Case: Interpreter.case, tree.Arithmetic: Interpreter.arithmetic}
Interpreter.runners |= {tree.Cond: Interpreter.cond, tree.Function: Interpreter.define}
PROGRAMS = Interpreter.programs = COMMANDS | builtins.PROGRAMS | dict.fromkeys(("bash", "rbash", "dash", "sh"), bash)


def start(process: Process, script: str, args: tuple) -> int:
    """Run a fresh `bash -c`."""
    shell = process.machine.shell = Interpreter(process, "bash", args)
    return shell.main(script, "-c")
