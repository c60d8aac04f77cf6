"""md5sum, sha1sum, sha256sum and sha512sum."""

import hashlib

from envs.simulators.shell.commands.options import getopt, inputs
from envs.simulators.shell.files import raw
from envs.simulators.shell.process import Process


def _sum(name: str):
    def command(p: Process) -> None:
        long = {"binary": "b", "text": "t", "tag": "T"}
        flags, names = getopt(p.argv, "bt", long)
        for file, data in inputs(p, names):
            digest = hashlib.new(name, raw(data)).hexdigest()
            p.out(
                f"{name.upper()} ({file}) = {digest}\n"
                if "T" in flags
                else f"{digest} {'*' if 'b' in flags else ' '}{file}\n"
            )

    return command


COMMANDS = {f"{name}sum": _sum(name) for name in ("md5", "sha1", "sha256", "sha512")}
