"""Commands on the machine, its clock and environment: date, env, sleep, timeout, which, hostname, uname, ..."""

import re
from math import inf

from envs.simulators.shell.commands.options import Fail, failing, getopt, ordered, quote, quote_if, quote_value
from envs.simulators.shell.commands.times import TimeError, parse_time, show
from envs.simulators.shell.files import Timeout
from envs.simulators.shell.jobs import NUMBERS, Expired, signal_name
from envs.simulators.shell.jobs import sleep as jobs_sleep
from envs.simulators.shell.process import Process

DATE = {"date:": "d", "iso-8601::": "I", "rfc-email": "R", "reference:": "r", "set:": "s", "utc": "u", "universal": "u"}
ISO = {"date": "%Y-%m-%d", "hours": "%Y-%m-%dT%H%:z", "minutes": "%Y-%m-%dT%H:%M%:z"}
ISO |= {"seconds": "%Y-%m-%dT%H:%M:%S%:z", "ns": "%Y-%m-%dT%H:%M:%S,%N%:z"}
KERNEL = {"s": "Linux", "r": "5.15.0", "v": "#1 SMP", "m": "x86_64", "p": "x86_64", "i": "x86_64", "o": "GNU/Linux"}


def date(p: Process) -> None:
    chosen, operands = getopt(p.argv, "d:I::Rr:s:u", DATE, most=1)
    tz = "" if "u" in chosen else p.env.get("TZ", "")
    when = p.machine.clock
    form = "%a %b %e %H:%M:%S %Z %Y"
    if "r" in chosen:
        with failing(quote_if(chosen["r"])):
            when = p.lookup(chosen["r"]).mtime
    if "I" in chosen:
        form = next((ISO[unit] for unit in ISO if unit.startswith(chosen["I"] or "date")), None)
        if form is None:
            raise Fail(f"invalid argument {quote_value(chosen['I'])} for '--iso-8601'", try_help=True)
    elif "R" in chosen:
        form = "%a, %d %b %Y %H:%M:%S %z"
    if operands:
        if not operands[0].startswith("+"):
            if not re.fullmatch(r"\d{8,12}(\.\d\d)?", operands[0]):
                raise Fail(f"invalid date {quote_value(operands[0])}")
            raise Fail("cannot set date: Operation not permitted")
        form = operands[0][1:]
    try:
        if "d" in chosen:
            when = parse_time(chosen["d"], when, tz)
        if "s" in chosen:
            parse_time(chosen["s"], when, tz)
            raise Fail("cannot set date: Operation not permitted")
        p.out(show(form, when, tz) + "\n")
    except TimeError:
        raise Fail(f"invalid date {quote_value(chosen.get('d') or chosen.get('s', ''))}") from None


def env(p: Process) -> int:
    long = {"ignore-environment": "i", "null": "0", "unset:": "u"}
    options, operands = ordered(p.argv, "i0u:", long, permute=False, status=125)
    flags, changed = {flag for flag, _ in options}, {} if ("i", None) in options else dict(p.env)
    for flag, value in options:
        if flag == "u":
            changed.pop(value, None)
    if operands[:1] == ["-"]:
        operands, changed = operands[1:], {}
    while operands and "=" in operands[0]:
        name, _, value = operands.pop(0).partition("=")
        changed[name] = value
    if not operands:
        end = "\0" if "0" in flags else "\n"
        p.out("".join(f"{name}={value}{end}" for name, value in changed.items()))
        return 0
    return launched(p, operands, quote(operands[0]), env=changed)


def launched(p: Process, argv: list[str], message: str = "", **changes) -> int:
    """Run a command and return its status; 126 or 127, with a message, if it cannot be run."""
    try:
        return p.run(argv, **changes)
    except OSError as error:
        message = message or f"failed to run command {quote(argv[0])}"
        return p.fail(f"{message}: {error.strerror}", 127 if error.errno == 2 else 126)


def printenv(p: Process) -> int:
    options, names = getopt(p.argv, "0", {"null": "0"}, permute=False, status=2)
    end = "\0" if options else "\n"
    if not names:
        p.out("".join(f"{name}={value}{end}" for name, value in p.env.items()))
        return 0
    found = [p.env[name] for name in names if name in p.env]
    p.out("".join(value + end for value in found))
    return int(len(found) < len(names))


def sleep(p: Process) -> None:
    _, operands = getopt(p.argv, "", least=1)
    total = sum(map(_seconds, operands))
    jobs_sleep(p.machine, total if total <= MOST_SLEEP else inf)


def _seconds(interval: str, status: int = 1) -> float:
    found = re.fullmatch(r"(\d+\.?\d*|\.\d+|inf|infinity)([smhd]?)", interval)
    if not found:
        raise Fail(f"invalid time interval {quote_value(interval)}", status, try_help=True)
    return float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}[found[2]]


MOST_SLEEP = 86400.0  # seconds that one command may wait: more is for ever


def timeout(p: Process) -> int:
    """Run a command, which ends at the limit: by the machine's clock, or when it has used up half of the steps."""
    long = {"kill-after:": "k", "signal:": "s", "preserve-status": "p", "foreground": "f", "verbose": "v"}
    chosen, operands = getopt(p.argv, "k:s:v", long, permute=False, status=125, least=2)
    signal = signal_name(chosen.get("s", "TERM"))
    if signal is None:
        raise Fail(f"{quote_value(chosen['s'])}: invalid signal", 125, try_help=True)
    limit = _seconds(operands[0], 125)
    machine, start = p.machine, p.machine.clock
    outer, steps = machine.deadline, machine.steps
    machine.deadline = min(outer, start + limit) if limit else outer
    share = machine.steps = steps // 2 if limit else steps
    try:
        return launched(p, operands[1:])
    except (Expired, Timeout):
        if not limit or outer < start + limit:  # another's limit
            raise
        machine.clock = max(machine.clock, start + limit)
        p.killed, p.pid = signal if signal == "KILL" else "", machine.next_pid()
        return 128 + NUMBERS[signal] if signal == "KILL" or "p" in chosen else 124
    finally:
        machine.deadline = outer
        machine.steps += steps - share


def which(p: Process) -> int | None:
    options, names = getopt(p.argv, "as", permute=False, status=2)
    for name in names:
        folders = [""] if "/" in name else [f"{folder}/" for folder in p.env.get("PATH", "").split(":") if folder]
        found = [folder + name for folder in folders if _runs(p, folder + name)]
        p.failed = p.failed or int(not found)
        if "s" not in options:
            p.out("".join(place + "\n" for place in (found if "a" in options else found[:1])))
    return None if names else 1


def _runs(p: Process, path: str) -> bool:
    node = p.find(path)
    return node is not None and node.kind == "file" and p.may(node, 1)


def hostname(p: Process) -> None:
    _, names = getopt(p.argv, "sf", {"short": "s", "fqdn": "f"})
    if names:
        raise Fail("you must be root to change the host name")
    p.out(p.machine.hostname + "\n")


def uname(p: Process) -> None:
    long = {"all": "a", "kernel-name": "s", "nodename": "n", "kernel-release": "r", "kernel-version": "v"}
    long |= {"machine": "m", "operating-system": "o", "processor": "p", "hardware-platform": "i"}
    options, _ = getopt(p.argv, "asnrvmpio", long, most=0)
    flags = options or {"s"}
    values = KERNEL | {"n": p.machine.hostname}
    p.out(" ".join(values[flag] for flag in "snrvmpio" if flag in flags or "a" in flags) + "\n")


def nproc(p: Process) -> None:
    p.out("1\n")


def sync(p: Process) -> None:
    """Do nothing: files are in memory."""


def nologin(p: Process) -> int:
    p.out("This account is currently not available.\n")
    return 1


def nohup(p: Process) -> int:
    """nohup, nice and stdbuf: run the command."""
    words = p.argv[1:]
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in ("-n", "-o", "-e", "-i") else words[1:]
    if not words:
        raise Fail("missing operand", 125, try_help=True)
    if p.machine.job and p.machine.job.fresh:
        p.machine.job.name = " ".join(words)  # which takes this one's place
    return launched(p, words)


ALL = (date, env, printenv, sleep, timeout, which, hostname, uname, nproc, sync, nologin, nohup)
COMMANDS = {command.__name__: command for command in ALL}
COMMANDS |= {"nice": nohup, "stdbuf": nohup}
