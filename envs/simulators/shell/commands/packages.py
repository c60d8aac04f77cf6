"""apt-get and apt on a machine without a network and without package lists: nothing can be installed."""

import re

from envs.simulators.shell.commands.options import getopt
from envs.simulators.shell.process import Process

INSTALLED = {
    "apt": "2.7.14build2", "base-files": "13ubuntu10.1", "bash": "5.2.21-2ubuntu4", "coreutils": "9.4-3ubuntu6",
    "dash": "0.5.12-6ubuntu5", "dpkg": "1.22.6ubuntu6.1", "findutils": "4.9.0-5build1", "grep": "3.11-4build1",
    "gzip": "1.12-1ubuntu3", "login": "1:4.13+dfsg1-4ubuntu3", "mawk": "1.3.4.20240123-1build1",
    "passwd": "1:4.13+dfsg1-4ubuntu3", "procps": "2:4.0.4-4ubuntu3", "sed": "4.9-2build1", "tar": "1.35+dfsg-3build1",
    "util-linux": "2.39.3-9ubuntu6.1", "vim": "2:9.1.0016-1ubuntu7.3",
}  # fmt: skip
READING = "Reading package lists...\nBuilding dependency tree...\nReading state information...\n"
NOTHING = "0 upgraded, 0 newly installed, 0 to remove and 0 not upgraded.\n"
SITES = (("archive.ubuntu.com", "noble"), ("security.ubuntu.com", "noble-security"))
LONG = {"yes": "y", "assume-yes": "y", "quiet": "q", "option:": "o", "no-install-recommends": "n", "fix-broken": "f"}
LONG |= {"fix-missing": "m", "purge": "p", "allow-unauthenticated": "a", "reinstall": "r"}


def apt(p: Process) -> int:
    _, words = getopt(p.argv, "yqfmdsVuo:t:", LONG)
    if p.argv[0].rpartition("/")[2] == "apt":
        p.stderr.write("\nWARNING: apt does not have a stable CLI interface. Use with caution in scripts.\n\n")
    command, names = (words[0] if words else ""), words[1:]
    if command == "update":
        return _update(p)
    if command in ("clean", "autoclean"):
        return 0
    if command not in ("install", "remove", "purge", "reinstall", "upgrade", "dist-upgrade", "autoremove"):
        p.stderr.write(f"E: Invalid operation {command}\n")
        return 100
    p.out(READING)
    unknown = [name for name in names if re.split("[=/]", name)[0] not in INSTALLED]
    p.stderr.write("".join(f"E: Unable to locate package {name}\n" for name in unknown))
    known = [name for name in names if name in INSTALLED and command == "install"]
    p.out("".join(f"{name} is already the newest version ({INSTALLED[name]}).\n" for name in known))
    p.out("" if unknown else NOTHING)
    return 100 * bool(unknown)


def _update(p: Process) -> None:
    for number, (host, suite) in enumerate(SITES, 1):
        p.out(f"Err:{number} http://{host}/ubuntu {suite} InRelease\n  Temporary failure resolving '{host}'\n")
    p.out("Reading package lists...\n")
    for host, suite in SITES:
        where = f"http://{host}/ubuntu/dists/{suite}/InRelease"
        p.stderr.write(f"W: Failed to fetch {where}  Temporary failure resolving '{host}'\n")
    p.stderr.write("W: Some index files failed to download. They have been ignored, or old ones used instead.\n")


COMMANDS = {"apt-get": apt, "apt": apt}
