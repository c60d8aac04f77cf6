"""tar."""

import io
import tarfile

from envs.simulators.shell.commands.files import make_parents
from envs.simulators.shell.commands.gzip import MAGIC, packed, unpacked
from envs.simulators.shell.commands.modes import group_name, mode_text, user_name
from envs.simulators.shell.commands.options import Fail, attempt, failing, ordered
from envs.simulators.shell.commands.times import show
from envs.simulators.shell.files import bytes_of, text
from envs.simulators.shell.patterns import matches
from envs.simulators.shell.process import Process

TAR = {"create": "c", "extract": "x", "get": "x", "list": "t", "gzip": "z", "file:": "f", "directory:": "C"}
TAR |= {
    "verbose": "v",
    "exclude:": "E",
    "exclude-from:": "X",
    "same-permissions": "p",
    "preserve-permissions": "p",
    "strip-components:": "1",
}
TAR |= {"no-same-owner": "4", "auto-compress": "a", "absolute-names": "P"}
MANY = "You may not specify more than one '-Acdtrux', '--delete' or  '--test-label' option"
NONE = "You must specify one of the '-Acdtrux', '--delete' or '--test-label' options"
FATAL = "Error is not recoverable: exiting now"
TAR_END = "Exiting with failure status due to previous errors"


def tar(p: Process) -> None:
    argv = list(p.argv)
    if len(argv) > 1 and not argv[1].startswith("-"):  # tar czf a.tgz b: the values follow in order
        letters = argv.pop(1)
        taking = [letter for letter in letters if letter in "fCX"]
        pairs = zip([f"-{letter}" for letter in taking], argv[1:], strict=False)
        argv[1 : 1 + len(taking)] = [word for pair in pairs for word in pair]
        argv[1:1] = [f"-{letter}" for letter in letters if letter not in "fCX"]
    operands, chosen, exclude = [], {}, []
    folder = "."
    for flag, value in _in_order(p, argv):
        if flag == "":
            operands.append((folder, value))
        elif flag == "C":
            folder = value if value.startswith("/") else f"{folder}/{value}"
        elif flag == "E":
            exclude.append(value)
        elif flag == "X":
            with failing(f"{value}: Cannot open", 2):
                exclude += [line for line in text(p.read(value)).splitlines() if line]
        else:
            chosen[flag] = value
    mode = [flag for flag in "cxt" if flag in chosen]
    if len(mode) != 1:
        raise _misused(p, MANY if mode else NONE)
    if mode[0] == "c":
        _create(p, chosen, operands, exclude)
    else:
        _extract(p, mode[0], chosen, folder, [name.rstrip("/") for _, name in operands], exclude)
    if p.failed:
        raise Fail(TAR_END, 2)


def _misused(p: Process, message: str) -> Fail:
    name = p.argv[0]
    hint = f"Try '{name} --help' or '{name} --usage' for more information."
    return Fail(f"{name}: {message}\n{hint}", 2, plain=True)


def _fatal(p: Process, *messages: str) -> Fail:
    return Fail("\n".join(f"{p.argv[0]}: {line}" for line in (*messages, FATAL)), 2, plain=True)


def _in_order(p: Process, argv: list[str]):
    """Yield options and operands in their order, as -C requires."""
    at = argv.index("--") if "--" in argv else len(argv)
    words, rest = argv[1:at], argv[at + 1 :]
    while words:
        options, words = ordered([argv[0], *words], "cxtzvf:C:pX:aP", TAR, permute=False, status=2)
        yield from options
        if words:
            yield "", words.pop(0)
    yield from (("", name) for name in rest)


def _create(p: Process, chosen: dict, operands: list, exclude: list[str]) -> None:
    name = chosen.get("f", "-")
    if not operands:
        raise _misused(p, "Cowardly refusing to create an empty archive")
    out, warned = io.BytesIO(), set()
    say = p.out if name != "-" else p.stderr.write
    if name != "-":
        p.write(name, b"", append=True)  # it exists while its members are found
    with tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as archive:
        target = p.lookup(name) if name != "-" and "z" not in chosen else None  # gzip writes it, unknown to tar
        for folder, operand in operands:
            attempt(p, _add, p, archive, folder, operand, chosen, exclude, warned, say, target)
    data = out.getvalue()
    if "z" in chosen or ("a" in chosen and name.endswith((".gz", ".tgz"))):
        p.tick(len(data) >> 7)
        data = packed(data)
    if name == "-":
        p.out(data)
    else:
        p.write(name, data)


def _add(p, archive, folder: str, operand: str, chosen: dict, exclude: list, warned: set, say, target) -> None:
    path = operand if operand.startswith("/") else f"{folder}/{operand}"
    with failing(f"{operand}: Cannot stat", 2):
        top = p.lookup(path, follow=False)
    todo = [(operand.rstrip("/") or "/", path, top)]
    while todo:
        shown, where, node = todo.pop()
        p.tick(8)
        if node is target or any(_excluded(p, pattern, shown) for pattern in exclude):
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
            for child in sorted(node.data, reverse=True):
                todo.append((f"{shown.rstrip('/')}/{child}", f"{where}/{child}", node.data[child]))
        elif node.kind == "link":
            info.type, info.linkname = tarfile.SYMTYPE, node.data
        data = bytes_of(node) if node.kind == "file" else b""
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))


def _excluded(p: Process, pattern: str, name: str) -> bool:
    parts = name.split("/")
    ends = ["/".join(parts[:n]) for n in range(1, len(parts) + 1)]
    tails = ["/".join(parts[n:]) for n in range(len(parts))]
    return any(matches(pattern.rstrip("/"), part, p.tick) for part in {*ends, *tails, *parts})


def _extract(p: Process, mode: str, chosen: dict, folder: str, wanted: list[str], exclude: list[str]) -> None:
    name = chosen.get("f", "-")
    try:
        data = p.stdin if name == "-" else p.read(name)
    except OSError as error:
        raise _fatal(p, f"{name}: Cannot open: {error.strerror}") from None
    if not p.is_dir(folder):
        raise _fatal(p, f"{folder.removeprefix('./')}: Cannot open: No such file or directory")
    if "z" in chosen and not data.startswith(MAGIC):
        p.stderr.write("\ngzip: stdin: not in gzip format\n")
        raise _fatal(p, "Child returned status 1")
    try:
        archive = tarfile.TarFile(fileobj=io.BytesIO(unpacked(data) if data.startswith(MAGIC) else data))
        members = archive.getmembers()
    except (tarfile.TarError, ValueError, EOFError):
        p.failed = p.fail("This does not look like a tar archive", 2)
        return
    found: set = set()
    for member in members:
        p.tick(8 + (member.size >> 8))
        shown = text(member.name.encode("utf-8", "surrogateescape"))
        hit = next((name for name in wanted if shown == name or shown.startswith(name + "/")), None)
        if (wanted and hit is None) or any(_excluded(p, pattern, shown) for pattern in exclude):
            continue
        found.add(hit)
        printed = shown + "/" * member.isdir()
        if mode == "t":
            p.out((_long_line(member, printed) if "v" in chosen else printed) + "\n")
            continue
        if "v" in chosen:
            p.out(printed + "\n")
        parts = [part for part in shown.split("/") if part not in ("", ".")]
        if ".." in parts:
            p.fail("Removing leading `../' from member names")
        parts = [part for part in parts if part != ".."][int((chosen.get("1") or "0")[:3]) :]
        if not parts and not member.isdir():
            continue
        try:
            _put(p, archive, member, folder, parts, chosen)
        except OSError as error:
            p.failed = p.fail(f"{shown}: Cannot open: {error.strerror}", 2)
    for missing in [w for w in wanted if w not in found]:
        p.failed = p.fail(f"{missing}: Not found in archive", 2)


def _put(p: Process, archive, member, folder: str, parts: list[str], chosen: dict) -> None:
    """Make what a member of an archive holds."""
    path = f"{folder}/" + "/".join(parts)
    make_parents(p, path)
    if member.isdir():
        if not parts:
            return
        node = p.find(path) or p.mkdir(path)
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


COMMANDS = {"tar": tar}
