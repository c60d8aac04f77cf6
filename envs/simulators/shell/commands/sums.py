"""md5sum, sha1sum, sha256sum, sha512sum and base64."""

import base64 as encoding
import hashlib

from envs.simulators.shell.commands.options import Fail, getopt, inputs, read
from envs.simulators.shell.files import raw
from envs.simulators.shell.process import Process


def _sum(name: str):
    def command(p: Process) -> int:
        long = {"binary": "b", "text": "t", "tag": "T"}
        flags, names = getopt(p.argv, "bt", long)
        for file, data in inputs(p, names):
            digest = hashlib.new(name, raw(data)).hexdigest()
            p.out(
                f"{name.upper()} ({file}) = {digest}\n"
                if "T" in flags
                else f"{digest} {'*' if 'b' in flags else ' '}{file}\n"
            )
        return p.failed

    return command


def base64(p: Process) -> int:
    chosen, names = getopt(p.argv, "diw:", {"decode": "d", "ignore-garbage": "i", "wrap:": "w"})
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
