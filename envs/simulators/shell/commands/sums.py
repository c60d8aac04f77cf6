"""md5sum, sha1sum, sha256sum, sha512sum and base64."""

import base64 as encoding
import hashlib
import re

from envs.simulators.shell.commands.options import Fail, getopt, inputs, quote_if, read
from envs.simulators.shell.files import raw
from envs.simulators.shell.process import Process


def _sum(name: str):
    def command(p: Process) -> int:
        long = {"check": "c", "binary": "b", "text": "t", "tag": "T", "quiet": "q", "status": "s", "zero": "z"}
        options, names = getopt(p.argv, "bctzw", long | {"warn": "w", "ignore-missing": "i", "strict": "S"})
        flags = {flag for flag, _ in options}
        if "c" in flags:
            return _checked(p, names, name, flags)
        status = 0
        for file, data in inputs(p, names):
            if data is None:
                status = 1
                continue
            digest = hashlib.new(name, raw(data)).hexdigest()
            p.out(
                f"{name.upper()} ({file}) = {digest}\n"
                if "T" in flags
                else f"{digest} {'*' if 'b' in flags else ' '}{file}\n"
            )
        return status

    return command


def _checked(p: Process, names: list[str], name: str, flags: set) -> int:
    failed = missing = 0
    for list_name in names or ["-"]:
        for line in read(p, list_name).split("\n"):
            found = re.fullmatch(r"\\?([0-9a-fA-F]+) [ *](.+)", line)
            if not found:
                continue
            try:
                good = hashlib.new(name, raw(read(p, found[2]))).hexdigest() == found[1].lower()
            except OSError as error:
                p.fail(f"{quote_if(found[2])}: {error.strerror}")
                p.out(f"{found[2]}: FAILED open or read\n")
                missing += 1
                continue
            failed += not good
            if "s" not in flags and not (good and "q" in flags):
                p.out(f"{found[2]}: {'OK' if good else 'FAILED'}\n")
    if missing:
        p.fail(f"WARNING: {missing} listed file{'s' if missing > 1 else ''} could not be read")
    if failed and "s" not in flags:
        p.fail(f"WARNING: {failed} computed checksum{'s' if failed > 1 else ''} did NOT match")
    return int(bool(failed or missing))


def base64(p: Process) -> int:
    options, names = getopt(p.argv, "diw:", {"decode": "d", "ignore-garbage": "i", "wrap:": "w"})
    chosen = dict(options)
    data = read(p, names[0] if names else "-")
    if "d" in chosen:
        try:
            p.out(encoding.b64decode("".join(data.split()), validate="i" not in chosen))
        except ValueError:
            raise Fail("invalid input") from None
        return 0
    shown = encoding.b64encode(raw(data)).decode()
    wrap = int(chosen["w"][:9]) if chosen.get("w", "").isdecimal() else 76
    if not wrap:
        p.out(shown)
    else:
        p.out("".join(shown[i : i + wrap] + "\n" for i in range(0, len(shown), wrap)))
    return 0


COMMANDS = {f"{name}sum": _sum(name) for name in ("md5", "sha1", "sha256", "sha512")} | {"base64": base64}
