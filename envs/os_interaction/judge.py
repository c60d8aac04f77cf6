"""Prepare os_interaction's machines and judge their state.

A condition is a script that runs on the agent's machine, where the agent may have replaced any program. So before each
condition `restore_programs` restores the system's own.
"""

import sys
from collections.abc import Sequence
from copy import copy
from functools import cache, lru_cache

from envs import base
from envs.http.exchange import plain
from envs.os_interaction import data as os_data
from envs.os_interaction.tasks import Python, Task
from envs.read_once import read_once
from envs.refusal import Refusal
from envs.simulators import sandbox
from envs.simulators.sandbox.machine import RealMachine, Refused
from envs.simulators.shell import MAX_STEPS, Machine, Result, Shell, base_machine
from envs.simulators.shell.files import Caller, Node

PROGRAMS = "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin"  # in the order of PATH
QUICK = sandbox.Limits(wall=10.0, cpu=2)  # of a pattern, and of a check that is tried before its task is played
LINKS = {"sbin": "usr/sbin", "bin": "usr/bin"}  # links to the last two
TRIED = MAX_STEPS // 5  # steps of a script that makes a task's machine, or is tried before its task is played
ENDLESS, SHARE = 3, 0.1  # a file with so many endless tasks, and this share of those tried, is refused


class Endless(base.EnvironmentFailed):
    """A task whose machine cannot be made."""


def prepared(task: Task, kind: str = "simulated") -> Machine | RealMachine:
    """Return a new machine in the initial state of a task; `kind`: the environment's option `machine`.

    Raise Endless for a script of it that does not end.
    """
    machine = base_machine() if kind == "simulated" else RealMachine()
    for script in task.init:
        if run_script(machine, script, max_steps=TRIED).timed_out:
            raise Endless("a script that makes its machine does not end")
    return machine


def run_script(
    machine: Machine | RealMachine, script: str, args: Sequence[str] = (), max_steps: int = MAX_STEPS
) -> Result:
    """Run a script as a new `bash -c`, simulated with at most so many steps, or real."""
    if not isinstance(machine, RealMachine):
        return Shell(machine).run(script, args=tuple(args), max_steps=max_steps)
    try:
        return Result(**machine.run(script, tuple(args)))
    except (Refused, OSError) as error:
        raise base.EnvironmentFailed(f"the real machine failed: {error}") from error


def try_real_machine() -> None:
    """Raise ValueError if this system does not allow real machines."""
    try:
        RealMachine().close()
    except (Refused, OSError) as error:
        hint = "it needs root on Linux; machine=simulated runs anywhere"
        raise Refusal(f"machine=bash cannot run here ({error}): {hint}") from None


def twin(machine: Machine) -> Machine:
    """Return a copy of a machine that shares no mutable state with it."""
    copies: dict[int, Node] = {}

    def copied(node: Node) -> Node:
        known = copies.get(id(node))  # a node may have several names
        if known is None:
            known = Node(node.kind, node.mode, node.data, node.uid, node.gid, node.mtime, node.ino)
            known.atime, known.nlink = node.atime, node.nlink
            copies[id(node)] = known
            if node.kind == "dir":
                folders.append(known)
        return known

    folders: list[Node] = []  # folders to copy; a list, not recursion, since an agent can nest folders deeply
    other = copy(machine)
    other.frozen = False
    other.jobs, other.processes = [], dict(machine.processes)
    other.root = copied(machine.root)
    for folder in folders:
        folder.data = {name: copied(child) for name, child in folder.data.items()}
    return other


@cache
def _programs() -> dict[str, dict[str, bytes]]:
    """Return the contents of the folders of system programs."""
    root = Caller(base_machine())
    return {folder: {name: node.data for name, node in root.lookup(folder).data.items()} for folder in PROGRAMS}


@cache
def _names() -> frozenset[str]:
    return frozenset(name for programs in _programs().values() for name in programs)


def restore_programs(machine: Machine) -> None:
    """Restore the system's programs and the paths to them, and remove anything that would shadow them."""
    for path in ("/usr", "/usr/local", *PROGRAMS):
        above, _, name = path.rpartition("/")
        parent = machine.lookup(above or "/")
        folder = parent.data.get(name)
        if folder is None or folder.kind != "dir":
            machine.change()
            folder = parent.data[name] = Node("dir", 0o755, {})
        if path in PROGRAMS and not _intact(folder.data, programs := _programs()[path]):
            machine.change()
            folder.data = {name: child for name, child in folder.data.items() if name not in _names()}
            folder.data |= {name: Node("file", 0o755, data) for name, data in programs.items()}
    for name, target in LINKS.items():
        node = machine.root.data.get(name)
        if node is None or node.kind != "link" or node.data != target:
            machine.change()
            machine.root.data[name] = Node("link", 0o777, target)


def _intact(there: dict[str, Node], programs: dict[str, bytes]) -> bool:
    """Return whether a folder still has its original system programs and nothing else under their names."""
    if len(there) > len(programs) and _names() & (there.keys() - programs.keys()):
        return False
    if not programs.keys() <= there.keys():
        return False
    nodes = [there[name] for name in programs]
    return [node.data for node in nodes] == [*programs.values()] and {node.mode for node in nodes} <= {0o755}


def failing(machine: Machine, conditions: list[str]) -> list[str]:
    """Return the conditions that do not hold."""
    left = []
    for place, condition in enumerate(conditions):
        if not (place and machine.frozen):
            restore_programs(machine)  # each time, since a condition may run the agent's own scripts
        if Shell(machine).run(condition).status:
            left.append(condition)
    return left


def judge(task: Task, machine: Machine, answer: str, mode: str = sandbox.ISOLATED, tried: bool = False) -> str:
    """Return the outcome: correct, incorrect, or unknown if the evaluation does not terminate even without an agent.

    mode: the environment's option `sandbox`.
    tried: no agent has played, and the evaluation has less time.
    """
    if task.match:
        kind, wanted = task.match
        if kind == "regex":  # a file's, which might take forever
            search = f"import re, sys\nsys.exit(not re.search({wanted!r}, sys.argv[1]))"
            right = _run_python(search, [answer], mode, QUICK).status == 0
        else:
            right = answer == wanted.strip()
        return "correct" if right else "incorrect"
    arguments = [answer] if task.answers else []
    for condition in task.conditions:
        if isinstance(condition, Python):
            ran = _run_python(condition, arguments, mode, QUICK if tried else sandbox.DEFAULT)
            if ran.status:
                return "unknown" if tried and ran.timed_out else "incorrect"
            continue
        real = isinstance(machine, RealMachine)
        if not real:
            restore_programs(machine)
        result = run_script(machine, condition, arguments, TRIED if tried else MAX_STEPS)
        if result.timed_out and (tried or not _ends(task, "bash" if real else "simulated")):
            return "unknown"
        if result.status:
            return "incorrect"
        arguments.append(result.output)
    return "correct"


@lru_cache(maxsize=4096)
def _ends(task: Task, kind: str) -> bool:
    """Return whether all conditions of a task terminate on a freshly prepared machine."""
    machine, arguments = prepared(task, kind), ["None"] if task.answers else []
    for condition in task.conditions:
        if not isinstance(condition, Python):
            result = run_script(machine, condition, arguments)
            if result.timed_out:
                return False
            arguments.append(result.output)
    return True


def runs_python(task: Task) -> bool:
    """Return whether judging the task takes the sandbox: for a check in Python, or a pattern of the answer."""
    return (task.match or ("",))[0] == "regex" or any(isinstance(condition, Python) for condition in task.conditions)


@lru_cache(maxsize=4096)
def obstacle(task: Task, mode: str = sandbox.ISOLATED, kind: str = "simulated") -> str:
    """Return why a task is unusable, or "". It must fail at its start and pass after its own solution."""
    if task.match:
        return ""
    try:
        machine = prepared(task, kind)
    except Endless as error:
        return str(error)
    before = judge(task, prepared(task, kind) if kind == "bash" else twin(machine), "None", mode, tried=True)
    if before != "incorrect":
        return "its check passes at the start" if before == "correct" else "its check does not end"
    if not task.truth:
        return "it has no solution that its check could be tried with"
    for script in task.truth:
        result = run_script(machine, script, max_steps=TRIED)
        output = result.output
        if result.timed_out:
            return "its own solution does not end"
    answer = output.strip() if task.truth[-1] in task.conditions else "None"
    after = "incorrect" if "\n" in answer else judge(task, machine, answer, mode, tried=True)
    if after == "unknown":
        return "after its own solution, its check does not end"
    return "" if after == "correct" else "its own solution does not pass its check on this machine"


@read_once  # and reported once per file and split
def skipped(
    path: str, scripts: str, split: str, mode: str = sandbox.ISOLATED, splits: str = "hash", kind: str = "simulated"
) -> str:
    """Describe the skipped tasks in a split of a file; also print this if any task is left.

    Raise ValueError for a file with many tasks that do not end, before all are tried, and for one with more unusable
    tasks than others.
    """
    tasks, bad, endless = os_data.read(path, scripts, splits)[split], [], 0
    for number, task in enumerate(tasks, 1):
        if why := obstacle(task, mode, kind):
            bad.append((task, why))
            endless += why.endswith("does not end")
            if endless >= max(ENDLESS, SHARE * number):
                many = f"{endless} of the first {number} tasks of split {split} do not end"
                raise Refusal(f"data: {path}: {many}; the last, {plain(task.instruction, 60)!r}: {why}")
    if not bad:
        return ""
    task, why = bad[0]
    said = f"{len(bad)} of {len(tasks)} tasks are unusable; the first, {task.instruction[:60]!r}: {why}"
    if len(bad) < len(tasks) < 2 * len(bad):
        raise Refusal(f"data: {path}, split {split}: {said}; a file of which more than half is unusable is refused")
    if len(bad) < len(tasks):
        print(f"data: {path}, split {split}: {said}", file=sys.stderr)
    return said


def _run_python(script: str, arguments: list[str], mode: str, limits: sandbox.Limits) -> sandbox.Run:
    """Run a Python script on its arguments; it cannot access the machine."""
    program = f"""import sys
sys.argv = {["-c", *arguments]!r}
exec({str(script)!r}, {{"__name__": "__main__"}})
"""
    try:
        return sandbox.run(program, "", limits, mode)
    except sandbox.SandboxFailed as error:
        raise base.EnvironmentFailed(str(error)) from error
