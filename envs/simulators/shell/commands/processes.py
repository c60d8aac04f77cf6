"""Commands on processes and the system's state: ps, pgrep, pkill, kill, free, who and users."""

import re

from envs.simulators.shell.commands.listing import human
from envs.simulators.shell.commands.modes import user_name
from envs.simulators.shell.commands.options import Fail, getopt
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.jobs import alive, send, signal_name
from envs.simulators.shell.process import Process

COLUMNS = {  # of ps: the title, the width (negative: to the left), and the value
    "pid": ("PID", 7, lambda p, row: row.pid), "ppid": ("PPID", 7, lambda p, row: row.parent),
    "user": ("USER", -8, lambda p, row: user_name(p, row.uid)), "uid": ("UID", 5, lambda p, row: row.uid),
    "comm": ("COMMAND", -15, lambda p, row: row.command), "args": ("COMMAND", -27, lambda p, row: row.text),
    "etime": ("ELAPSED", 11, lambda p, row: _elapsed(p.machine.clock - row.started)),
    "etimes": ("ELAPSED", 7, lambda p, row: int(p.machine.clock - row.started)),
    "stat": ("STAT", -4, lambda p, row: row.state), "tty": ("TT", -8, lambda p, row: "?"),
    "time": ("TIME", 8, lambda p, row: "00:00:00"), "pcpu": ("%CPU", 4, lambda p, row: "0.0"),
    "pmem": ("%MEM", 4, lambda p, row: "0.0"), "ni": ("NI", 3, lambda p, row: 0),
    "rss": ("RSS", 5, lambda p, row: 3200),
    "vsz": ("VSZ", 6, lambda p, row: 4364), "stime": ("STIME", 5, lambda p, row: show("%H:%M", row.started)),
    "c": ("C", 2, lambda p, row: 0), "UID": ("UID", -8, lambda p, row: user_name(p, row.uid)),
    "TTY": ("TTY", -8, lambda p, row: "?"), "cmd": ("CMD", -27, lambda p, row: row.text),
    "CMD": ("CMD", -15, lambda p, row: row.command), "start": ("START", -5, lambda p, row: show("%H:%M", row.started)),
    "TIME": ("TIME", 6, lambda p, row: "0:00"),
}  # fmt: skip
ALIASES = {"command": "args", "ucmd": "comm", "fname": "comm", "%cpu": "pcpu", "%mem": "pmem", "euser": "user",
           "s": "stat", "state": "stat", "tt": "tty", "tname": "tty", "nice": "ni", "ruser": "user",
           "euid": "uid"}  # fmt: skip


class Row:
    """One process."""

    def __init__(self, pid: int, parent: int, uid: int, started: float, text: str):
        self.pid, self.parent, self.uid, self.started, self.text = pid, parent, uid, started, text
        self.command = text.split(" ")[0].rpartition("/")[2][:15]
        self.state = "Ss" if parent == 0 else "S"


def rows(p: Process) -> list[Row]:
    """Return the processes, without the one that asks."""
    return [Row(pid, parent, uid, max(started, p.machine.shell.started), text)
            for pid, (parent, uid, started, _, text) in alive(p.machine).items()]  # fmt: skip


def _elapsed(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def ps(p: Process) -> int:
    """List processes: -e -f -p -C -u -o and BSD's aux."""
    shown, titles, pids, names, users = ["pid", "TTY", "time", "CMD"], {}, None, None, None
    words, every, plain = list(p.argv[1:]), False, False
    while words:
        word = words.pop(0)
        if re.fullmatch(r"[axuwfjle]+", word):
            every = every or bool(set("ax") & set(word))
            if "u" in word:
                shown = ["user", "pid", "pcpu", "pmem", "vsz", "rss", "TTY", "stat", "start", "TIME", "args"]
            elif "x" in word or "a" in word:
                shown = ["pid", "TTY", "stat", "TIME", "args"]
        elif found := re.fullmatch(r"-([eAafFlwjH]*)(?:([opuUC])(.*))?|--(pid|format|user)=?(.*)", word):
            flags, option = found[1] or "", found[2] or {"pid": "p", "format": "o", "user": "u"}.get(found[4])
            every = every or bool(set("eA") & set(flags))
            if set("fF") & set(flags):
                shown = ["UID", "pid", "ppid", "c", "stime", "TTY", "time", "cmd"]
            value = found[3] or found[5] or ""
            if option and not value:
                if not words:
                    raise _misused("list of process IDs must follow -p")
                value = words.pop(0)
            if option == "p":
                pids = (pids or []) + re.split("[ ,]+", value)
            elif option == "C":
                names = value.split(",")
            elif option in ("u", "U"):
                users = value.split(",")
            elif option == "o":
                shown, plain = (shown if titles or plain else []) + _columns(p, value, titles), True
        else:
            raise _misused("unsupported option")
    me = Row(p.machine.next_pid(), p.machine.shell.pid, p.uid, p.machine.clock, " ".join(p.argv))
    me.state = "R"
    found = [*rows(p), me]
    if pids is not None:
        found = [row for row in found if str(row.pid) in pids]
    elif names is not None:
        found = [row for row in found if row.command in names]
    elif users is not None:
        found = [row for row in found if user_name(p, row.uid) in users or str(row.uid) in users]
    elif not every:
        found = [row for row in found if row.uid == p.uid]
    _table(p, found, shown, titles)
    return int(not found)


def _misused(message: str) -> Fail:
    return Fail(f"error: {message}\n\nUsage:\n ps [options]\n", plain=True)


def _columns(p: Process, value: str, titles: dict) -> list[str]:
    out = []
    for part in re.split("[ ,]+", value.strip(" ,")):
        name, equals, title = part.partition("=")
        name = ALIASES.get(name, name)
        if name not in COLUMNS:
            raise _misused(f'unknown user-defined format specifier "{name}"')
        if equals:
            titles[name] = title
        out.append(name)
    return out


def _table(p: Process, found: list[Row], shown: list[str], titles: dict) -> None:
    heads = [titles.get(name, COLUMNS[name][0]) for name in shown]
    lines = [heads] if any(heads) else []
    lines += [[str(COLUMNS[name][2](p, row)) for name in shown] for row in found]
    widths = [COLUMNS[name][1] for name in shown]
    widths[-1] = max(widths[-1], 0)  # nothing follows a last column that begins at the left
    for line in lines:
        p.out(" ".join(f"{cell:{'>' if w > 0 else '<'}{abs(w)}}" for cell, w in zip(line, widths, strict=True)) + "\n")


def pgrep(p: Process) -> int:
    """pgrep and pkill: processes by a pattern of their name, or with -f of their command line."""
    words, signal = list(p.argv), "TERM"
    program = p.argv[0].rpartition("/")[2]
    if program == "pkill" and len(words) > 1 and re.fullmatch(r"-(\d+|(SIG)?[A-Z][A-Z0-9]+)", words[1]):
        signal = signal_name(words.pop(1)[1:])
    long = {"full": "f", "exact": "x", "list-name": "l", "list-full": "a", "count": "c", "euid:": "u", "signal:": "s"}
    chosen, patterns = getopt(words, "fxlacu:s:", long, status=2)
    signal = signal_name(chosen["s"]) if "s" in chosen else signal
    if len(patterns) > 1 or not (patterns or "u" in chosen):
        many = "only one pattern can be provided" if patterns else "no matching criteria specified"
        raise Fail(many, 2, try_help=True)
    pattern = "".join(patterns)
    try:
        wanted = re.compile(f"^(?:{pattern})$" if "x" in chosen else pattern)
    except re.error:
        raise Fail("Invalid preceding regular expression", 2) from None
    found = [row for row in rows(p) if wanted.search((row.text if "f" in chosen else row.command)[:500])]
    if "u" in chosen:
        found = [row for row in found if chosen["u"] in (user_name(p, row.uid), str(row.uid))]
    for row in found:
        shown = f" {row.text}" if "a" in chosen else f" {row.command}" if "l" in chosen else ""
        if program == "pkill":
            send(p.machine, row.pid, signal)
        elif "c" not in chosen:
            p.out(f"{row.pid}{shown}\n")
    if "c" in chosen and program != "pkill":
        p.out(f"{len(found)}\n")
    return int(not found)


def kill(p: Process) -> None:
    words, signal = p.argv[1:], "TERM"
    if words and words[0].startswith("-") and words[0] != "--":
        flag = words.pop(0)
        signal = signal_name(words.pop(0) if flag in ("-s", "-n") and words else flag[1:])
    for word in words:
        if signal is None or not word.isdecimal() or not send(p.machine, int(word[:9]), signal):
            p.failed = p.fail(f"({word}): No such process")


def free(p: Process) -> None:
    flags, _ = getopt(p.argv, "bkmgh", {"human": "h", "mega": "m", "giga": "g", "kibi": "k", "bytes": "b"})
    unit = 1 if "b" in flags else 1 << 20 if "m" in flags else 1 << 30 if "g" in flags else 1 << 10
    total, used, cache = 8 << 30, 512 << 20, 256 << 20
    rows = [("Mem:", [total, used, total - used - cache, 1 << 20, cache, total - used]), ("Swap:", [0, 0, 0])]
    p.out(" " * 15 + "total        used        free      shared  buff/cache   available\n")
    for name, values in rows:
        cells = [human(value) + ("i" if value else "B") if "h" in flags else str(value // unit) for value in values]
        p.out(f"{name:<8}" + "".join(cell.rjust(12) for cell in cells) + "\n")


def who(p: Process) -> None:
    """who and users: nobody is logged in."""


COMMANDS = {"ps": ps, "pgrep": pgrep, "pkill": pgrep, "kill": kill, "free": free, "who": who, "users": who}
