"""trap, kill, wait, jobs, disown, fg and bg: builtins for signals and commands in the background."""

import re

from envs.simulators.shell.jobs import ENDED, NUMBERS, SIGNALS, Job, send, signal_name, wait_for
from envs.simulators.shell.patterns import quote
from envs.simulators.shell.state import Misused

ORDER = NUMBERS | {"DEBUG": 65, "ERR": 66, "RETURN": 67}  # in which trap prints them


def trap(sh, argv) -> int:
    args = argv[2:] if argv[1:2] == ["--"] else argv[1:]
    if args[:1] == ["-l"]:
        return _list_signals(sh)
    if not args or args[0] == "-p":
        traps = sh.traps or sh.inherited
        wanted = {_event(name) for name in args[1:]} or set(traps)
        for name in sorted(wanted & set(traps), key=ORDER.get):
            shown = name if name in ("EXIT", "ERR", "DEBUG", "RETURN") else f"SIG{name}"
            sh.out(f"trap -- {quote(traps[name])} {shown}\n")
        return 0
    action, names = (None, args) if len(args) == 1 else (args[0], args[1:])
    if len(args) > 1 and args[0].isdecimal() and _event(args[0]):  # a number first: all go back to their defaults
        action, names = None, args
    status, sh.inherited = 0, {}
    for word in names:
        name = _event(word)
        if name is None:
            status = sh.fail(f"{word}: invalid signal specification")
        elif action is None or action == "-":
            sh.traps.pop(name, None)
        else:
            sh.traps[name] = action
    return status


def _event(word: str) -> str | None:
    name = word.upper().removeprefix("SIG")
    return name if name in ("ERR", "DEBUG", "RETURN") else signal_name(word)


def _list_signals(sh) -> None:
    cells = [f"{number:2}) SIG{name}" for number, name in enumerate(SIGNALS, 1)]
    cells += [f"{number:2}) SIGRT{name}" for number, name in _real_time()]
    rows = ["\t".join(cells[at : at + 5]) for at in range(0, len(cells), 5)]
    sh.out("".join(row + ("\t" if len(cells) % 5 and row is rows[-1] else "") + "\n" for row in rows))


def _real_time() -> list[tuple[int, str]]:
    low = [(34 + n, "MIN" + (f"+{n}" if n else "")) for n in range(16)]
    return low + [(50 + n, "MAX" + (f"-{14 - n}" if n < 14 else "")) for n in range(15)]


def kill(sh, argv) -> int:
    args, signal = argv[1:], "TERM"
    if args[:1] in (["-l"], ["-L"]):
        if not args[1:]:
            return _list_signals(sh)
        for word in args[1:]:
            name = signal_name(str(int(word[:9]) & 127) if word.isdecimal() else word)
            if name is None:
                return sh.fail(f"{word}: invalid signal specification")
            sh.out(f"{name if word.isdecimal() else NUMBERS[name]}\n")
        return 0
    if args and re.fullmatch("-.+", args[0]) and args[0] != "--":
        apart = args[0] in ("-s", "-n")
        word, args = (args[1:2] or [""])[0] if apart else args[0][1:], args[1 + apart :]
        signal = signal_name(word)
        if signal is None:
            return sh.fail(f"{word}: invalid signal specification")
    args = args[1:] if args[:1] == ["--"] else args
    if not args:
        raise Misused
    status = 1
    for word in args:
        if word.startswith("%"):
            job = _job(sh, word)
            if job is None or job.wake is None:
                sh.fail(f"{word}: no such job")
                continue
            word = str(job.pid)
        if not re.fullmatch(r"-?\d+", word):
            sh.fail(f"{word}: arguments must be process or job IDs")
        elif word in (str(sh.pid), str(sh.own_pid)):
            (sh.top if word == str(sh.pid) else sh).receive(signal)
            status = 0
        elif send(sh.machine, abs(int(word[:12])), signal):
            status = 0
        else:
            sh.fail(f"({word}) - No such process")
    return status


def _job(sh, word: str) -> Job | None:
    """Return the job of %1, %+, %-, %name or a process number."""
    if word.isdecimal():
        return next((job for job in sh.jobs.values() if str(job.pid) == word), None)
    rest, places = word[1:], list(sh.jobs)
    if rest in ("", "+", "%", "-"):
        back = 2 if rest == "-" and len(places) > 1 else 1
        return sh.jobs[places[-back]] if places else None
    if rest.isdecimal():
        return sh.jobs.get(int(rest[:9]))
    inside = rest[1:] if rest[0] == "?" else None
    return next((job for job in sh.jobs.values()
                 if (inside in job.text if inside else job.text.startswith(rest))), None)  # fmt: skip


def report_killed(sh, job: Job) -> None:
    """Print, once, which signal ended a job."""
    if job.signal in ENDED and job.signal != "TERM" and not job.reported:
        sh.complain(f"{job.pid:5} {ENDED[job.signal]:<23} {job.text}")
    job.reported = True


def wait(sh, argv) -> int:
    words = [word for word in argv[1:] if not word.startswith("-")]
    if "-n" in argv[1:]:
        waiting = [job for job in map(lambda word: _job(sh, word), words) if job] or list(sh.jobs.values())
        waiting = [job for job in waiting if not job.reported]
        if not waiting:
            return 127
        wait_for(sh.machine, lambda: any(job.wake is None for job in waiting))
        ended = next(job for job in waiting if job.wake is None)
        report_killed(sh, ended)
        return ended.status
    status = 0
    for word in words or [str(job.pid) for job in sh.jobs.values()]:
        job = _job(sh, word)
        if job is None:
            status = 127
            why = f"{word}: no such job" if word.startswith("%") else f"`{word}': not a pid or valid job spec"
            sh.fail(f"pid {word} is not a child of this shell" if word.isdecimal() else why)
            continue
        wait_for(sh.machine, lambda job=job: job.wake is None)
        report_killed(sh, job)
        status = job.status
    if not words:
        sh.jobs.clear()
    return status if words else 0


def jobs(sh, argv) -> int:
    flags = "".join(word[1:] for word in argv[1:] if word.startswith("-"))
    chosen = [_job(sh, word) for word in argv[1:] if not word.startswith("-")]
    places = [place for place, job in sh.jobs.items() if job.wake is not None]  # bash -c lists no job that has ended
    for place in places if "s" not in flags else []:
        job = sh.jobs[place]
        if chosen and job not in chosen:
            continue
        if "p" in flags:
            sh.out(f"{job.pid}\n")
            continue
        mark = "+" if place == places[-1] else "-" if len(places) > 1 and place == places[-2] else " "
        number = f"{job.pid} " if "l" in flags else ""
        sh.out(f"[{place}]{mark}  {number}{'Running':<23} {job.text} &\n")
    return int(None in chosen)


def disown(sh, argv) -> int:
    status = 0
    for word in [word for word in argv[1:] if not word.startswith("-")] or (["%%"] if "-a" not in argv else []):
        job = _job(sh, word)
        if job is None:
            status = sh.fail(f"{'current' if word == '%%' else word}: no such job")
        sh.jobs = {place: other for place, other in sh.jobs.items() if other is not job}
    if "-a" in argv:
        sh.jobs.clear()
    return status


def no_control(sh, argv) -> int:
    return sh.fail("no job control")
