"""Give real programs a root of their own: an overlay over the file system on a tmpfs, in namespaces for mounts,
processes and network that end with the program. Needs Linux, root and `unshare`."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UNSHARE = ["unshare", "-mpnf", "--kill-child"]


def unavailable(programs: tuple[str, ...]) -> str:
    """Return why the programs cannot run in a root of their own, "" if they can."""
    missing = [program for program in ("unshare", *programs) if not shutil.which(program)]
    if sys.platform != "linux" or os.geteuid() or missing:
        return f"needs Linux, root, and {', '.join(missing or programs)}"
    probe = subprocess.run([*UNSHARE, "true"], capture_output=True)
    return "" if not probe.returncode else "namespaces are not allowed here"


def run_inside(module: str, texts: list[str], timeout: float) -> list:
    """Run `python -m MODULE inside` in new namespaces on texts and return its answers, as JSON both ways."""
    command = [*UNSHARE, sys.executable, "-m", module, "inside"]
    folder = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=folder, input=json.dumps(texts), capture_output=True, text=True, timeout=timeout)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def overlay_root() -> str:
    """Mount the root, with /proc and without devices, and return its path; for the namespaces' first process."""
    top = tempfile.mkdtemp()
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "tmpfs", top)
    for name in ("upper", "work", "root"):
        os.mkdir(f"{top}/{name}")
    mount("-t", "overlay", "-o", f"lowerdir=/,upperdir={top}/upper,workdir={top}/work", "overlay", f"{top}/root")
    mount("-t", "proc", "proc", f"{top}/root/proc")
    if mawk := shutil.which("mawk"):  # what awk is in Debian, until a package brings gawk in
        awk = Path(f"{top}/root/usr/bin/awk")
        awk.unlink(missing_ok=True)
        awk.symlink_to(mawk)
    return f"{top}/root"


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True)
