"""md5sum, sha1sum, sha256sum and sha512sum."""

import hashlib

from envs.simulators.shell.commands.options import getopt, inputs
from envs.simulators.shell.files import raw
from envs.simulators.shell.process import Process


def _sum(name: str):
    def command(p: Process) -> None:
        flags, names = getopt(p.argv, "bt", {"binary": "b", "text": "t", "tag": "T"})
        for file, data in inputs(p, names):
            digest = hashlib.new(name, raw(data)).hexdigest()
            plain = f"{digest} {'*' if 'b' in flags else ' '}{file}\n"
            p.out(f"{name.upper()} ({file}) = {digest}\n" if "T" in flags else plain)

    return command


COMMANDS = {f"{name}sum": _sum(name) for name in ("md5", "sha1", "sha256", "sha512")}
