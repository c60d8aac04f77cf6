"""dd, truncate and fallocate: bytes of files and their sizes."""

import re

from envs.simulators.shell.commands.options import SUFFIXES, Fail, failing, getopt, number, quote
from envs.simulators.shell.files import MAX_TEXT, Node
from envs.simulators.shell.process import Process

OPERANDS = ["if", "of", "bs", "ibs", "obs", "count", "skip", "seek", "conv", "status", "iflag"]


def dd(p: Process) -> None:
    given = {}
    for word in p.argv[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in OPERANDS:
            raise Fail(f"unrecognized operand {quote(word)}", try_help=True)
        given[key] = value
    size = {key: _dd_number(given[key]) for key in ("bs", "ibs", "obs", "count", "skip", "seek") if key in given}
    block_in, block_out = size.get("bs", size.get("ibs", 512)), size.get("bs", size.get("obs", 512))
    conv = given.get("conv", "").split(",")
    if not block_in or not block_out:
        raise Fail("invalid number: '0'")
    skip = size.get("skip", 0) * (1 if "skip_bytes" in given.get("iflag", "") else block_in)
    most = size["count"] * (1 if "count_bytes" in given.get("iflag", "") else block_in) if "count" in size else None
    with failing(f"failed to open {quote(given.get('if', 'standard input'))}"):
        end = MAX_TEXT + 1 if most is None else skip + most
        whole = p.read(given["if"], end) if "if" in given else p.stream(0).read(end)
    data = whole[skip:] if most is None else whole[skip : skip + most]
    blocks = len(data) // block_in, len(data) % block_in
    data = data.upper() if "ucase" in conv else data.lower() if "lcase" in conv else data
    p.tick(1 + (len(data) >> 10))
    if "of" in given:
        seek = size.get("seek", 0) * block_out
        with failing(f"failed to open {quote(given['of'])}"):
            old = p.read(given["of"]) if p.exists(given["of"]) else b""
            kept = old[:seek] + bytes(max(0, seek - len(old)))
            p.write(given["of"], kept + data + (old[len(kept) + len(data) :] if "notrunc" in conv else b""))
    else:
        p.out(data)
    if given.get("status") != "none":
        out = len(data) // block_out, int(len(data) % block_out > 0)
        p.stderr.write(f"{blocks[0]}+{int(blocks[1] > 0)} records in\n{out[0]}+{out[1]} records out\n")
        if given.get("status") != "noxfer":
            amount = f"{len(data)} byte{'s' * (len(data) != 1)}{_units(len(data))}"
            p.stderr.write(f"{amount} copied, 0.001 s, {len(data) / 1e6:.1f} GB/s\n")


def _units(size: int) -> str:
    """Return dd's ` (1.0 kB, 1.0 KiB)`."""
    if size < 1000:
        return ""

    def shown(base: int, letters: str, tail: str) -> str:
        power = sum(size >= base**n for n in range(1, len(letters) + 1))
        amount = size / base**power
        return f"{amount:.1f} {letters[power - 1]}{tail}" if amount < 10 else f"{amount:.0f} {letters[power - 1]}{tail}"

    return f" ({shown(1000, 'kMG', 'B')}" + (f", {shown(1024, 'KMG', 'iB')})" if size >= 1024 else ")")


def _dd_number(said: str) -> int:
    total = 1
    for factor in said.split("x"):
        found = re.fullmatch(r"(\d{1,15})([a-zA-Z]*)", factor)
        suffixes = SUFFIXES | {"c": 1, "w": 2, "": 1}
        if not found or found[2] not in suffixes:
            raise Fail(f"invalid number: {quote(said)}")
        total *= int(found[1]) * suffixes[found[2]]
    return total


def truncate(p: Process) -> None:
    long = {"size:": "s", "reference:": "r", "no-create": "c"}
    chosen, names = getopt(p.argv, "s:r:c", long)
    if "s" not in chosen and "r" not in chosen:
        raise Fail("you must specify either '--size' or '--reference'", try_help=True)
    if not names:
        raise Fail("missing file operand", try_help=True)
    said = chosen.get("s", "0")
    sign = said[0] if said[:1] in ("+", "-") else ""
    amount = len(p.read(chosen["r"])) if "s" not in chosen else number(said[len(sign) :], "number")
    for name in names:
        if "c" in chosen and not p.exists(name):
            continue
        try:
            node = p.create(name)
        except OSError as error:
            p.failed = p.fail(f"cannot open {quote(name)} for writing: {error.strerror}")
            continue
        old = len(node.data)
        size = {"+": old + amount, "-": old - amount}.get(sign, amount)
        _resize(p, node, max(0, size), name)


def _resize(p: Process, node: Node, size: int, name: str) -> None:
    if size > p.machine.max_bytes:
        raise Fail(f"failed to truncate {quote(name)} at {size} bytes: No space left on device")
    p.machine.store(node, node.data[:size] + bytes(max(0, size - len(node.data))))


def fallocate(p: Process) -> None:
    long = {"length:": "l", "offset:": "o", "keep-size": "n", "posix": "x", "verbose": "v"}
    chosen, names = getopt(p.argv, "l:o:nxvdp", long)
    if "l" not in chosen:
        raise Fail("no length argument specified")
    if not names:
        raise Fail("no filename specified")
    length = number(chosen["l"], "length") if chosen["l"][-1:].isdecimal() or chosen["l"][-1:] in "KMGkBi" else 0
    if not length:
        raise Fail("invalid length value specified")
    node = p.create(names[0])
    end = length + number(chosen.get("o", "0"), "offset")
    if end > p.machine.max_bytes:
        raise Fail("fallocate failed: No space left on device")
    if end > len(node.data) and "n" not in chosen:
        _resize(p, node, end, names[0])


COMMANDS = {"dd": dd, "truncate": truncate, "fallocate": fallocate}
