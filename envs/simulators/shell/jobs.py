"""Commands in the background, on the machine's clock.

Each job is a thread, but only one thread runs at a time. A job runs from its start until it sleeps, waits or has used
up its slice of steps. It goes on when the clock gets there: when the script runs a program, sleeps, waits or ends.
"""

import threading
from contextlib import suppress
from math import inf

from envs.simulators.shell.files import Machine, Timeout

SLICE = 4000  # steps that a job may take before others have their turn
SWITCH = 16  # steps of a change of threads, which takes as long as so many others
MOST_JOBS = 200  # commands in the background at a time: each is a thread
AFTER = 20.0  # seconds that jobs go on after their script has ended
SIGNALS = ["HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM"]
SIGNALS += ["TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ", "VTALRM", "PROF"]
SIGNALS += ["WINCH", "IO", "PWR", "SYS"]
NUMBERS = {name: number for number, name in enumerate(SIGNALS, 1)} | {"EXIT": 0}
HARMLESS = ("CHLD", "CONT", "URG", "WINCH", "STOP", "TSTP", "TTIN", "TTOU")  # end no process; nothing here is stopped
ENDED = {"HUP": "Hangup", "KILL": "Killed", "TERM": "Terminated", "USR1": "User defined signal 1"}
ENDED |= {"ALRM": "Alarm clock"}
ENDED |= {"USR2": "User defined signal 2", "QUIT": "Quit", "ABRT": "Aborted", "SEGV": "Segmentation fault"}


class Killed(Exception):
    """A signal that ends a shell: raised through everything that runs in it."""

    def __init__(self, signal: str, shell):
        self.signal, self.shell = signal, shell


class Expired(Exception):
    """The time of the innermost `timeout` is over."""


class Job:
    """A command in the background. `wake` is the time at which it goes on, None once it has ended."""

    def __init__(self, machine: Machine, pid: int, text: str, shell, simple: bool):
        self.machine, self.pid, self.text, self.shell = machine, pid, text, shell
        self.fresh = simple  # whether the next program takes the job's process number
        self.name = "bash"  # of the program that it is, for ps
        self.wake: float | None = machine.clock
        self.started = machine.clock
        self.status, self.signal = 0, ""
        self.reported = False  # whether the shell has printed or waited for its end
        self.deadline, self.nice = inf, 0.05
        self.resumed = 0  # the machine's count of turns at its last one
        self.failure: BaseException | None = None
        self.turn, self.back = threading.Semaphore(0), threading.Semaphore(0)
        machine.jobs.append(self)

    def start(self, run) -> None:
        threading.Thread(target=self._run, args=(run,), daemon=True).start()
        self.resume()

    def _run(self, run) -> None:
        self.turn.acquire()
        try:
            self.status = 128 + NUMBERS[self.signal] if self.signal else run()
        except Killed as killed:
            self.status = 128 + NUMBERS[killed.signal]
        except BaseException as failure:  # the script's own to raise
            self.failure = failure
        self.wake = None
        self.machine.jobs.remove(self)
        self.back.release()

    def resume(self) -> None:
        """Let the job run until it pauses or ends; raise what it failed with."""
        machine = self.machine
        outer, deadline, steps = machine.job, machine.deadline, machine.steps
        share = max(0, min(SLICE, steps))
        machine.job, machine.deadline, machine.steps = self, self.deadline, share
        self.turn.release()
        self.back.acquire()
        self.deadline = machine.deadline
        machine.job, machine.deadline, machine.steps = outer, deadline, steps - share + machine.steps
        if self.failure:
            raise self.failure

    def pause(self, wake: float) -> None:
        """Let the others run until the clock is at `wake`; called by the job itself."""
        self.wake = wake
        self.back.release()
        self.turn.acquire()
        if self.signal:
            raise Killed(self.signal, self.shell)

    def yield_turn(self) -> None:
        """Pause because the slice of steps is used up: each time for longer, so that the script has steps left."""
        self.pause(self.machine.clock + self.nice)
        self.nice *= 2

    def kill(self, signal: str) -> None:
        """Send a signal: at once if it ends the job, else when its shell has finished its command."""
        if signal in HARMLESS or self.wake is None:
            return
        if signal != "KILL" and signal in self.shell.traps:
            self.shell.pending.append(signal)
            return
        self.signal = signal
        if self.machine.job is self:
            raise Killed(signal, self.shell)
        self.resume()


def advance(machine: Machine, until: float) -> None:
    """Set the clock to a later time, and let the jobs run whose time comes before it."""
    while ready := [job for job in machine.jobs if job.wake <= until]:
        job = min(ready, key=lambda job: (job.wake, job.resumed))  # of equal ones, the job that has waited longest
        machine.turns += 1
        job.resumed = machine.turns
        machine.clock = max(machine.clock, job.wake)
        job.resume()
        machine.tick(SWITCH)
        if machine.shell.doomed:
            raise Killed(machine.shell.doomed, machine.shell)
    machine.clock = max(machine.clock, until)


def sleep(machine: Machine, seconds: float) -> None:
    """Sleep; raise Expired where a `timeout` ends before."""
    until = machine.clock + seconds
    over = until > machine.deadline
    until = min(until, machine.deadline)
    if machine.job:
        machine.job.pause(until)
    elif until == inf:
        raise Timeout
    else:
        advance(machine, until)
    if over:
        raise Expired


def wait_for(machine: Machine, ended) -> None:
    """Let time pass until `ended()` holds; Timeout if nothing could ever make it hold."""
    while not ended():
        following = min((job.wake for job in machine.jobs if job is not machine.job), default=inf)
        sleep(machine, max(0.0, following - machine.clock))


def settle(machine: Machine) -> None:
    """End the jobs of a script that has ended: some seconds later, as its machine runs on between scripts.

    What still sleeps then stays in the table of processes, where ps and kill find it, but does nothing any more.
    """
    try:
        limit = machine.clock + AFTER
        while machine.jobs and (following := min(job.wake for job in machine.jobs)) <= limit:
            advance(machine, following)
    finally:
        end_all(machine, keep=True)


def end_all(machine: Machine, keep: bool = False) -> None:
    """End all threads, each with SIGKILL."""
    for job in list(machine.jobs):
        if keep:
            until = job.wake if job.name != "bash" else inf
            machine.processes[job.pid] = (1, job.shell.uid, job.started, until, job.name)
        machine.steps = max(machine.steps, SLICE)
        while job.wake is not None:
            job.signal = "KILL"
            with suppress(BaseException):  # it has ended, and its script too
                job.resume()


def alive(machine: Machine) -> dict[int, tuple]:
    """Return the processes: number -> (parent's number, user's number, start, end, command line)."""
    here = {job.pid: (machine.shell.pid, job.shell.uid, job.started, inf, job.name) for job in machine.jobs}
    left = {pid: process for pid, process in machine.processes.items() if process[3] > machine.clock}
    shell = (0, machine.shell.uid, machine.shell.started, inf, "bash")
    first = {1: (0, 0, 0.0, inf, "/bin/bash"), machine.shell.pid: shell}
    return dict(sorted((first | left | here).items()))


def signal_name(word: str) -> str | None:
    """Return a signal's name from TERM, SIGTERM or 15; None if there is none."""
    name = SIGNALS[int(word) - 1] if word.isdecimal() and 0 < int(word[:4]) <= len(SIGNALS) else word.upper()
    name = "EXIT" if word == "0" else name.removeprefix("SIG")
    return name if name in NUMBERS else None


def send(machine: Machine, pid: int, signal: str) -> bool:
    """Send a signal to a process; return whether it exists. EXIT, number 0, only asks."""
    job = next((job for job in machine.jobs if job.pid == pid), None)
    if signal == "EXIT" or pid == 1:
        return pid in alive(machine)
    if job:
        job.kill(signal)
    elif machine.shell and pid == machine.shell.pid:
        machine.shell.receive(signal)
    elif pid in alive(machine):
        if signal not in HARMLESS:
            del machine.processes[pid]
    else:
        return False
    return True
