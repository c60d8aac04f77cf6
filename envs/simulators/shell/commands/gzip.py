"""gzip, gunzip and zcat."""

import re
import zlib

from envs.simulators.shell.commands.options import Fail, attempt, failing, getopt
from envs.simulators.shell.files import MAX_TEXT, Timeout
from envs.simulators.shell.process import Process

MAGIC = b"\x1f\x8b"


def packed(data: bytes) -> bytes:
    """Return bytes as gzip writes them, without a name or a time."""
    made = zlib.compressobj(6, zlib.DEFLATED, 31)
    return made.compress(data) + made.flush()


def unpacked(data: bytes) -> bytes:
    """Return the contents of a gzip file; ValueError if it is none, Timeout if they are too large."""
    out = b""
    if data[:2] != MAGIC:
        raise ValueError("not in gzip format")
    while data:
        made = zlib.decompressobj(31)
        try:
            out += made.decompress(data, MAX_TEXT + 1 - len(out))
        except zlib.error:
            raise ValueError("invalid compressed data--format violated") from None
        if len(out) > MAX_TEXT:
            raise Timeout
        if not made.eof:
            raise ValueError("unexpected end of file")
        data = made.unused_data
    return out


def gzip(p: Process) -> None:
    """gzip, gunzip and zcat."""
    program = p.argv[0].rpartition("/")[2]
    long = {"decompress": "d", "uncompress": "d", "stdout": "c", "to-stdout": "c", "keep": "k", "force": "f"}
    long |= {"test": "t", "quiet": "q", "no-name": "n", "fast": "1", "best": "9"}
    flags, names = getopt(p.argv, "dckftqn123456789", long)
    flags = set(flags) | {"gunzip": {"d"}, "zcat": {"d", "c"}}.get(program, set())
    p.argv = ["gzip", *p.argv[1:]]  # the others are scripts that run gzip
    for name in names or ["-"]:
        attempt(p, _gzip_one, p, name, flags)


def _gzip_one(p: Process, name: str, flags: set) -> None:
    unpack = bool(flags & {"d", "t"})
    if unpack and name != "-" and not name.endswith((".gz", ".tgz")) and not p.exists(name) and p.exists(name + ".gz"):
        name += ".gz"
    with failing(name + ".gz" if unpack and not name.endswith("gz") else name):
        node = None if name == "-" else p.lookup(name)
        if node is not None and node.kind == "dir":
            raise Fail(f"{name} is a directory -- ignored", 2)
        data = p.stdin if name == "-" else p.read(name)
    p.tick(1 + (len(data) >> 8))
    if unpack:
        kept = re.sub(r"\.gz$|(?<=\.t)gz$", "", name) if not name.endswith(".tgz") else name[:-3] + "tar"
        if "c" not in flags and "t" not in flags and name != "-" and kept == name:
            raise Fail(f"{name}: unknown suffix -- ignored", 2)
        try:
            made = unpacked(data)
        except ValueError as error:
            raise Fail(f"\n{p.argv[0]}: {'stdin' if name == '-' else name}: {error}", plain=True) from None
    else:
        if name.endswith(".gz") and "c" not in flags and name != "-":
            raise Fail(f"{name} already has .gz suffix -- unchanged", 2)
        made, kept = packed(data), name + ".gz"
    if "t" in flags:
        return
    if "c" in flags or name == "-":
        p.out(made)
        return
    if p.exists(kept) and "f" not in flags:
        raise Fail(f"{kept} already exists;\tnot overwritten", 2)
    target = p.write(kept, made)
    target.mode, target.mtime = node.mode, node.mtime
    p.chown(target, node.uid if not p.uid else -1, node.gid if not p.uid else -1)
    if "k" not in flags:
        p.unlink(name)


COMMANDS = {"gzip": gzip, "gunzip": gzip, "zcat": gzip}
