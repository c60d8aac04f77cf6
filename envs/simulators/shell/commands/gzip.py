"""gzip, gunzip and zcat."""

import re
import zlib

from envs.simulators.shell.commands.options import getopt
from envs.simulators.shell.files import MAX_TEXT, Timeout
from envs.simulators.shell.process import Process


def packed(data: bytes) -> bytes:
    """Return bytes as gzip writes them, without a name or a time."""
    made = zlib.compressobj(6, zlib.DEFLATED, 31)
    return made.compress(data) + made.flush()


def unpacked(data: bytes) -> bytes:
    """Return the contents of a gzip file; ValueError if it is none, Timeout if they are too large."""
    out = b""
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


def gzip(p: Process) -> int:
    """gzip, gunzip and zcat."""
    program = p.argv[0].rpartition("/")[2]
    long = {"decompress": "d", "uncompress": "d", "stdout": "c", "to-stdout": "c", "keep": "k", "force": "f"}
    long |= {"test": "t", "quiet": "q", "no-name": "n", "fast": "1", "best": "9"}
    flags, names = getopt(p.argv, "dckftqn123456789", long)
    flags = set(flags)
    flags |= {"gunzip": {"d"}, "zcat": {"d", "c"}}.get(program, set())
    p.argv = ["gzip", *p.argv[1:]]  # the others are scripts that run gzip
    status = 0
    for name in names or ["-"]:
        status = max(status, _gzip_one(p, name, flags))
    return status


def _gzip_one(p: Process, name: str, flags: set) -> int:
    unpack = bool(flags & {"d", "t"})
    if unpack and name != "-" and not name.endswith((".gz", ".tgz")) and not p.exists(name) and p.exists(name + ".gz"):
        name += ".gz"
    try:
        node = None if name == "-" else p.lookup(name)
        if node is not None and node.kind == "dir":
            return p.fail(f"{name} is a directory -- ignored", 2)
        data = p.stdin if name == "-" else p.read(name)
    except OSError as error:
        return p.fail(f"{name + '.gz' if unpack and not name.endswith('gz') else name}: {error.strerror}")
    p.tick(1 + (len(data) >> 8))
    if unpack:
        kept = re.sub(r"\.gz$|(?<=\.t)gz$", "", name) if not name.endswith(".tgz") else name[:-3] + "tar"
        if "c" not in flags and "t" not in flags and name != "-" and kept == name:
            return p.fail(f"{name}: unknown suffix -- ignored", 2)
        if data[:2] != b"\x1f\x8b":
            return p.stderr.write(f"\n{p.argv[0]}: {'stdin' if name == '-' else name}: not in gzip format\n") or 1
        try:
            made = unpacked(data)
        except ValueError as error:
            return p.stderr.write(f"\n{p.argv[0]}: {'stdin' if name == '-' else name}: {error}\n") or 1
    else:
        if name.endswith(".gz") and "c" not in flags and name != "-":
            return p.fail(f"{name} already has .gz suffix -- unchanged", 2)
        made, kept = packed(data), name + ".gz"
    if "t" in flags:
        return 0
    if "c" in flags or name == "-":
        p.out(made)
        return 0
    if p.exists(kept) and "f" not in flags:
        p.stderr.write(f"{p.argv[0]}: {kept} already exists;\tnot overwritten\n")
        return 2
    target = p.write(kept, made)
    target.mode, target.mtime = node.mode, node.mtime
    p.chown(target, node.uid if not p.uid else -1, node.gid if not p.uid else -1)
    if "k" not in flags:
        p.unlink(name)
    return 0


COMMANDS = {"gzip": gzip, "gunzip": gzip, "zcat": gzip}
