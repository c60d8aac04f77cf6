"""tar, gzip and its family, dd, truncate, fallocate and shuf."""

import io
import re
import tarfile
import zlib
from random import Random

from envs.simulators.shell.commands.modes import group_name, mode_text, user_name
from envs.simulators.shell.commands.options import SUFFIXES, Fail, getopt, lines, number, quote, read
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import MAX_TEXT, Node, Timeout, raw, text
from envs.simulators.shell.patterns import matches
from envs.simulators.shell.process import Process


def _packed(data: bytes) -> bytes:
    """Return bytes as gzip writes them, without a name or a time."""
    made = zlib.compressobj(6, zlib.DEFLATED, 31)
    return made.compress(data) + made.flush()


def _unpacked(data: bytes) -> bytes:
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
    long = {
        "decompress": "d",
        "uncompress": "d",
        "stdout": "c",
        "to-stdout": "c",
        "keep": "k",
        "force": "f",
        "list": "l",
    }
    long |= {"recursive": "r", "test": "t", "verbose": "v", "quiet": "q", "no-name": "n", "fast": "1", "best": "9"}
    options, names = getopt(p.argv, "dckfltrvqnNS:123456789", long)
    flags = {flag for flag, _ in options}
    flags |= {"gunzip": {"d"}, "zcat": {"d", "c"}}.get(program, set())
    p.argv = ["gzip", *p.argv[1:]]  # the others are scripts that run gzip
    status = 0
    for name in names or ["-"]:
        status = max(status, _gzip_one(p, name, flags))
    return status


def _gzip_one(p: Process, name: str, flags: set) -> int:
    unpack = bool(flags & {"d", "t", "l"})
    if unpack and name != "-" and not name.endswith((".gz", ".tgz")) and not p.exists(name) and p.exists(name + ".gz"):
        name += ".gz"
    try:
        node = None if name == "-" else p.lookup(name)
        if node is not None and node.kind == "dir":
            if "r" not in flags:
                p.fail(f"{name} is a directory -- ignored")
                return 2
            return max([_gzip_one(p, f"{name}/{child}", flags) for child in sorted(node.data)], default=0)
        data = p.stdin if name == "-" else p.read(name)
    except OSError as error:
        return p.fail(f"{name + '.gz' if unpack and not name.endswith('gz') else name}: {error.strerror}")
    p.tick(1 + (len(data) >> 8))
    if unpack:
        kept = re.sub(r"\.gz$|(?<=\.t)gz$", "", name) if not name.endswith(".tgz") else name[:-3] + "tar"
        if "c" not in flags and not flags & {"t", "l"} and name != "-" and kept == name:
            p.fail(f"{name}: unknown suffix -- ignored")
            return 2
        if data[:2] != b"\x1f\x8b":
            return p.stderr.write(f"\n{p.argv[0]}: {'stdin' if name == '-' else name}: not in gzip format\n") or 1
        try:
            made = _unpacked(data)
        except ValueError as error:
            return p.stderr.write(f"\n{p.argv[0]}: {'stdin' if name == '-' else name}: {error}\n") or 1
    else:
        if name.endswith(".gz") and "c" not in flags and name != "-":
            p.fail(f"{name} already has .gz suffix -- unchanged")
            return 2
        made, kept = _packed(data), name + ".gz"
    share = 100 * (1 - len(data if unpack else made) / max(1, len(made if unpack else data)))
    if "l" in flags:
        p.out("         compressed        uncompressed  ratio uncompressed_name\n")
        p.out(f"{len(data):19} {len(made):19} {share:5.1f}% {kept}\n")
        return 0
    if "t" in flags:
        return 0
    if "c" in flags or name == "-":
        p.out(made)
        return 0
    if p.exists(kept) and "f" not in flags:
        p.stderr.write(f"{p.argv[0]}: {kept} already exists;\tnot overwritten\n")
        return 2
    if "v" in flags:
        p.stderr.write(f"{name}:\t{share:5.1f}% -- {'created' if 'k' in flags else 'replaced with'} {kept}\n")
    target = p.write(kept, made)
    target.mode, target.mtime = node.mode, node.mtime
    p.chown(target, node.uid if not p.uid else -1, node.gid if not p.uid else -1)
    if "k" not in flags:
        p.unlink(name)
    return 0


# -- tar

TAR = {"create": "c", "extract": "x", "get": "x", "list": "t", "append": "r", "update": "u", "gzip": "z", "bzip2": "j"}
TAR |= {
    "file:": "f",
    "directory:": "C",
    "verbose": "v",
    "exclude:": "X",
    "same-permissions": "p",
    "preserve-permissions": "p",
}
TAR |= {
    "strip-components:": "1",
    "transform:": "2",
    "xz": "J",
    "keep-old-files": "k",
    "overwrite": "3",
    "no-same-owner": "4",
}
TAR |= {
    "to-stdout": "O",
    "auto-compress": "a",
    "absolute-names": "P",
    "remove-files": "5",
    "files-from:": "T",
    "wildcards": "6",
}
TAR |= {
    "owner:": "7",
    "group:": "8",
    "mode:": "9",
    "numeric-owner": "0",
    "sort:": "s",
    "mtime:": "m",
    "dereference": "h",
}
TAR_END = "Exiting with failure status due to previous errors"


def tar(p: Process) -> int:
    argv = list(p.argv)
    if len(argv) > 1 and not argv[1].startswith("-"):  # tar czf a.tgz b: the values follow in order
        letters = argv.pop(1)
        taking = [letter for letter in letters if letter in "fCTX"]
        values = argv[1 : 1 + len(taking)]
        argv[1 : 1 + len(taking)] = [
            word for letter, value in zip(taking, values, strict=False) for word in (f"-{letter}", value)
        ]
        argv[1:1] = [f"-{letter}" for letter in letters if letter not in "fCTX"]
    operands, chosen, exclude = [], {}, []
    folder = "."
    for flag, value in _in_order(p, argv):
        if flag == "":
            operands.append((folder, value))
        elif flag == "C":
            folder = value if value.startswith("/") else f"{folder}/{value}"
        elif flag == "X":
            exclude.append(value)
        else:
            chosen[flag] = value
    mode = [flag for flag in "cxtru" if flag in chosen]
    if len(mode) != 1:
        message = "You may not specify more than one '-Acdtrux', '--delete' or  '--test-label' option" if mode else (
            "You must specify one of the '-Acdtrux', '--delete' or '--test-label' options")  # fmt: skip
        p.fail(message)
        p.stderr.write(f"Try '{p.argv[0]} --help' or '{p.argv[0]} --usage' for more information.\n")
        return 2
    if mode[0] in "cru":
        return _create(p, mode[0], chosen, operands, exclude)
    return _extract(p, mode[0], chosen, folder, [name.rstrip("/") for _, name in operands], exclude)


def _in_order(p: Process, argv: list[str]):
    """Yield options and operands in their order, as -C requires."""
    words = argv[1:]
    while words:
        word = words[0]
        if word == "--":
            yield from (("", name) for name in words[1:])
            return
        if not word.startswith("-") or word == "-":
            yield "", words.pop(0)
            continue
        needs = 1
        if word.startswith("--"):
            name = word[2:].partition("=")[0]
            needs += "=" not in word and any(key.rstrip(":").startswith(name) and key.endswith(":") for key in TAR)
        else:
            at = next((i for i, c in enumerate(word[1:], 1) if c in "fCTX"), None)
            needs += at is not None and at == len(word) - 1
        yield from getopt([argv[0], *words[:needs]], "cxtrujzJvf:C:pX:kOaPT:hmwSW", TAR, status=2)[0]
        del words[:needs]


def _create(p: Process, mode: str, chosen: dict, operands: list, exclude: list[str]) -> int:
    name = chosen.get("f", "-")
    if "T" in chosen:
        operands = operands + [(".", line) for line in lines(read(p, chosen["T"]))]
    if not operands:
        p.fail("Cowardly refusing to create an empty archive")
        p.stderr.write(f"Try '{p.argv[0]} --help' or '{p.argv[0]} --usage' for more information.\n")
        return 2
    out, status = io.BytesIO(), 0
    if mode in "ru" and p.exists(name):
        out.write(p.read(name))
        out.seek(0)
    warned: set[str] = set()
    say = p.out if name != "-" else p.stderr.write
    if name != "-":
        p.write(name, b"", append=True)  # it exists while its members are found
    with tarfile.open(fileobj=out, mode="a" if out.getvalue() else "w", format=tarfile.GNU_FORMAT) as archive:
        target = p.lookup(name) if name != "-" and "z" not in chosen else None  # gzip writes it, unknown to tar
        for folder, operand in operands:
            status = max(status, _add(p, archive, folder, operand, chosen, exclude, warned, say, target))
    data = out.getvalue()
    if "z" in chosen or ("a" in chosen and name.endswith((".gz", ".tgz"))):
        data = _packed(data)
    if name == "-":
        p.out(data)
    else:
        p.write(name, data)
    if status:
        p.fail(TAR_END)
    return status


def _add(p, archive, folder: str, operand: str, chosen: dict, exclude: list, warned: set, say, target) -> int:
    path = operand if operand.startswith("/") else f"{folder}/{operand}"
    try:
        top = p.lookup(path, follow="h" in chosen)
    except OSError as error:
        p.fail(f"{operand}: Cannot stat: {error.strerror}")
        return 2
    todo = [(operand.rstrip("/") or "/", path, top)]
    while todo:
        shown, where, node = todo.pop()
        p.tick(8)
        if node is target or any(_excluded(pattern, shown) for pattern in exclude):
            if node is target:
                p.fail(f"{shown}: archive cannot contain itself; not dumped")
            continue
        if "v" in chosen:
            say(shown.rstrip("/") + "/" * (node.kind == "dir") + "\n")
        kept = shown
        if shown.startswith("/") and "P" not in chosen:
            kept = shown.lstrip("/")
            if "/" not in warned:
                p.fail("Removing leading `/' from member names")
                warned.add("/")
        info = tarfile.TarInfo(kept or "./")
        info.mode, info.uid, info.gid, info.mtime = node.mode, node.uid, node.gid, int(node.mtime)
        info.uname, info.gname = user_name(p, node.uid), group_name(p, node.gid)
        if node.kind == "dir":
            info.type = tarfile.DIRTYPE
            todo += [
                (f"{shown.rstrip('/')}/{child}", f"{where}/{child}", node.data[child])
                for child in sorted(node.data, reverse=True)
            ]
        elif node.kind == "link":
            info.type, info.linkname = tarfile.SYMTYPE, node.data
        data = p.bytes_of(node) if node.kind == "file" else b""
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    if "5" in chosen:
        p.run(["rm", "-rf", path])
    return 0


def _excluded(pattern: str, name: str) -> bool:
    parts = name.split("/")
    ends = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    tails = ["/".join(parts[n:]) for n in range(len(parts))]
    return any(matches(pattern.rstrip("/"), part) for part in {*ends, *tails, *parts})


def _extract(p: Process, mode: str, chosen: dict, folder: str, wanted: list[str], exclude: list[str]) -> int:
    name = chosen.get("f", "-")
    try:
        data = p.stdin if name == "-" else p.read(name)
    except OSError as error:
        p.fail(f"{name}: Cannot open: {error.strerror}")
        p.fail("Error is not recoverable: exiting now")
        return 2
    if "C" in chosen or folder != ".":
        try:
            if p.lookup(folder).kind != "dir":
                raise NotADirectoryError(20, "Not a directory")
        except OSError as error:
            p.fail(f"{folder.removeprefix('./')}: Cannot open: {error.strerror}")
            p.fail("Error is not recoverable: exiting now")
            return 2
    try:
        packed = data[:2] == b"\x1f\x8b"
        if "z" in chosen and not packed:
            p.stderr.write("\ngzip: stdin: not in gzip format\n")
            p.fail("Child returned status 1")
            p.fail("Error is not recoverable: exiting now")
            return 2
        archive = tarfile.TarFile(fileobj=io.BytesIO(_unpacked(data) if packed else data))
        members = archive.getmembers()
    except (tarfile.TarError, ValueError, EOFError):
        p.fail("This does not look like a tar archive")
        p.fail(TAR_END)
        return 2
    found, status = set(), 0
    for member in members:
        p.tick(8 + (member.size >> 8))
        shown = text(member.name.encode("utf-8", "surrogateescape"))
        hit = next(
            (w for w in wanted if shown == w or shown.startswith(w + "/") or ("6" in chosen and _excluded(w, shown))),
            None,
        )
        if (wanted and hit is None) or any(_excluded(pattern, shown) for pattern in exclude):
            continue
        found.add(hit)
        printed = shown + "/" * member.isdir()
        if mode == "t":
            p.out((_long_line(member, printed) if "v" in chosen else printed) + "\n")
            continue
        if "v" in chosen:
            (p.stderr.write if "O" in chosen else p.out)(printed + "\n")
        if "O" in chosen:
            p.out(archive.extractfile(member).read() if member.isfile() else b"")
            continue
        parts = [part for part in shown.split("/") if part not in ("", ".")]
        if ".." in parts:
            p.fail("Removing leading `../' from member names")
        parts = [part for part in parts if part != ".."][int((chosen.get("1") or "0")[:3]) :]
        if not parts and not member.isdir():
            continue
        try:
            _put(p, archive, member, folder, parts, chosen)
        except OSError as error:
            p.fail(f"{shown}: Cannot open: {error.strerror}")
            status = 2
    for missing in [w for w in wanted if w not in found]:
        p.fail(f"{missing}: Not found in archive")
        status = 2
    if status:
        p.fail(TAR_END)
    return status


def _put(p: Process, archive, member, folder: str, parts: list[str], chosen: dict) -> None:
    """Make what a member of an archive holds."""
    for count in range(1, len(parts)):
        above = f"{folder}/" + "/".join(parts[:count])
        if not p.exists(above):
            p.mkdir(above)
    path = f"{folder}/" + "/".join(parts)
    if member.isdir():
        if not parts:
            return
        node = p.lookup(path) if p.exists(path) else p.mkdir(path)
    elif p.exists(path, follow=False) and "k" in chosen:
        raise FileExistsError(17, "File exists")
    else:
        if p.exists(path, follow=False):
            p.unlink(path)
        if member.issym():
            node = p.symlink(member.linkname, path)
        elif member.islnk():
            p.link(f"{folder}/{member.linkname}", path)
            return
        else:
            node = p.write(path, archive.extractfile(member).read())
    if not member.issym():
        node.mode = member.mode & (0o7777 if not p.uid or "p" in chosen else ~p.umask & 0o777)
    node.mtime = float(member.mtime)
    if not p.uid and "4" not in chosen:
        user, group = p.machine.user(member.uname), p.machine.group(member.gname)
        node.uid, node.gid = int(user[2]) if user else member.uid, int(group[2]) if group else member.gid


def _long_line(member, name: str) -> str:
    kind = "d" if member.isdir() else "l" if member.issym() else "h" if member.islnk() else "-"
    owner = f"{member.uname or member.uid}/{member.gname or member.gid}"
    size = str(member.size).rjust(max(1, 18 - len(owner)))
    arrow = f" -> {member.linkname}" if member.issym() else f" link to {member.linkname}" if member.islnk() else ""
    return f"{kind}{mode_text(member.mode)} {owner} {size} {show('%Y-%m-%d %H:%M', float(member.mtime))} {name}{arrow}"


# -- dd and the like


def dd(p: Process) -> int:
    given = {}
    for word in p.argv[1:]:
        key, equals, value = word.partition("=")
        if not equals or key not in (
            "if",
            "of",
            "bs",
            "ibs",
            "obs",
            "cbs",
            "count",
            "skip",
            "seek",
            "conv",
            "status",
            "iflag",
            "oflag",
        ):
            raise Fail(f"unrecognized operand {quote(word)}", try_help=True)
        given[key] = value
    size = {key: _dd_number(given[key]) for key in ("bs", "ibs", "obs", "count", "skip", "seek") if key in given}
    block_in, block_out = size.get("bs", size.get("ibs", 512)), size.get("bs", size.get("obs", 512))
    conv = given.get("conv", "").split(",")
    if not block_in or not block_out:
        raise Fail("invalid number: '0'")
    skip = size.get("skip", 0) * (1 if "skip_bytes" in given.get("iflag", "") else block_in)
    most = size["count"] * (1 if "count_bytes" in given.get("iflag", "") else block_in) if "count" in size else None
    try:
        end = MAX_TEXT + 1 if most is None else skip + most
        whole = p.read(given["if"], end) if "if" in given else p.stream(0).read(end)
    except OSError as error:
        raise Fail(f"failed to open {quote(given.get('if', 'standard input'))}: {error.strerror}") from None
    data = whole[skip:] if most is None else whole[skip : skip + most]
    blocks = len(data) // block_in, len(data) % block_in
    data = data.upper() if "ucase" in conv else data.lower() if "lcase" in conv else data
    p.tick(1 + (len(data) >> 10))
    if "of" in given:
        seek = size.get("seek", 0) * block_out
        try:
            old = p.read(given["of"]) if p.exists(given["of"]) else b""
            kept = old[:seek] + bytes(max(0, seek - len(old)))
            p.write(given["of"], kept + data + (old[len(kept) + len(data) :] if "notrunc" in conv else b""))
        except OSError as error:
            raise Fail(f"failed to open {quote(given['of'])}: {error.strerror}") from None
    else:
        p.out(data)
    if given.get("status") != "none":
        out = len(data) // block_out, int(len(data) % block_out > 0)
        p.stderr.write(f"{blocks[0]}+{int(blocks[1] > 0)} records in\n{out[0]}+{out[1]} records out\n")
        if given.get("status") != "noxfer":
            human = _units(len(data))
            p.stderr.write(
                f"{len(data)} byte{'s' * (len(data) != 1)}{human} copied, 0.001 s, {len(data) / 1e6:.1f} GB/s\n"
            )
    return 0


def _units(size: int) -> str:
    """Return dd's ` (1.0 kB, 1.0 KiB)`."""
    if size < 1000:
        return ""

    def shown(base: int, letters: str, tail: str) -> str:
        power = 0
        while size / base ** (power + 1) >= 1 and power < len(letters):
            power += 1
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


def truncate(p: Process) -> int:
    long = {"size:": "s", "reference:": "r", "no-create": "c", "io-blocks": "o"}
    options, names = getopt(p.argv, "s:r:co", long)
    chosen = dict(options)
    if "s" not in chosen and "r" not in chosen:
        raise Fail("you must specify either '--size' or '--reference'", try_help=True)
    if not names:
        raise Fail("missing file operand", try_help=True)
    said = chosen.get("s", "0")
    sign = said[0] if said[:1] in ("+", "-", "<", ">", "/", "%") else ""
    amount = len(p.read(chosen["r"])) if "s" not in chosen else number(said[len(sign) :], "number")
    status = 0
    for name in names:
        if "c" in chosen and not p.exists(name):
            continue
        try:
            node = p.create(name)
        except OSError as error:
            status = p.fail(f"cannot open {quote(name)} for writing: {error.strerror}")
            continue
        old = len(node.data)
        size = {"+": old + amount, "-": old - amount, "<": min(old, amount), ">": max(old, amount)}.get(sign, amount)
        if sign in ("/", "%") and amount:
            size = old // amount * amount if sign == "/" else -(-old // amount) * amount
        _resize(p, node, max(0, size), name)
    return status


def _resize(p: Process, node: Node, size: int, name: str) -> None:
    if size > p.machine.max_bytes:
        raise Fail(f"failed to truncate {quote(name)} at {size} bytes: No space left on device")
    p.machine.store(node, node.data[:size] + bytes(max(0, size - len(node.data))))


def fallocate(p: Process) -> int:
    options, names = getopt(
        p.argv, "l:o:nxvdp", {"length:": "l", "offset:": "o", "keep-size": "n", "posix": "x", "verbose": "v"}
    )
    chosen = dict(options)
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
    return 0


def shuf(p: Process) -> int:
    long = {"echo": "e", "input-range:": "i", "head-count:": "n", "output:": "o", "repeat": "r", "random-source:": "s"}
    options, operands = getopt(p.argv, "ei:n:o:rz", long | {"zero-terminated": "z"})
    chosen = dict(options)
    end = "\0" if "z" in chosen else "\n"
    if "i" in chosen:
        found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", chosen["i"])
        if not found or int(found[1]) > int(found[2]) + 1:
            raise Fail(f"invalid input range: {quote(chosen['i'])}")
        p.tick(int(found[2]) - int(found[1]) >> 2)
        items = [str(n) for n in range(int(found[1]), int(found[2]) + 1)]
    else:
        items = list(operands) if "e" in chosen else lines(read(p, operands[0] if operands else "-"), end)
    p.machine.next_pid()
    rng = Random(f"shuf {p.machine.clock} {p.machine.pids}")
    many = number(chosen["n"], "line count") if "n" in chosen else None
    if "r" in chosen and items:
        if many is None:
            raise Timeout
        p.tick(many)
        items = [rng.choice(items) for _ in range(many)]
    else:
        rng.shuffle(items)
    data = "".join(item + end for item in items[:many])
    if "o" in chosen:
        p.write(chosen["o"], raw(data))
    else:
        p.out(data)
    return 0


COMMANDS = {"tar": tar, "gzip": gzip, "gunzip": gzip, "zcat": gzip, "dd": dd, "truncate": truncate}
COMMANDS |= {"fallocate": fallocate, "shuf": shuf}
