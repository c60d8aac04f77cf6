"""The folders, files, users and programs of a fresh machine: a small Ubuntu."""

from envs.simulators.shell.files import Caller, Machine, Node
from envs.simulators.shell.launch import ELF
from envs.simulators.shell.run import PROGRAMS

FOLDERS = """
/boot /dev /dev/fd /dev/pts /dev/shm /etc /etc/default /etc/skel /etc/ssl /etc/cron.d /etc/init.d /home /home/ubuntu
/media /mnt /opt /proc /root /run /srv /sys /tmp /usr /usr/bin /usr/games /usr/include /usr/lib /usr/local
/usr/local/bin /usr/local/etc /usr/local/lib /usr/local/sbin /usr/local/share /usr/sbin /usr/share
/usr/share/doc /usr/src /var /var/backups /var/cache /var/lib /var/local /var/log /var/mail /var/opt
/var/spool /var/tmp
"""
MODES = {"/root": 0o700, "/tmp": 0o1777, "/var/tmp": 0o1777, "/dev/shm": 0o1777, "/proc": 0o555, "/sys": 0o555}
LINKS = {"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "usr/lib", "/var/run": "/run"}
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "stdin", "stdout", "stderr")
ADMIN = """
addgroup adduser chpasswd delgroup deluser groupadd groupdel groupmod nologin useradd userdel usermod
"""  # what lies in /usr/sbin
USERS = """root:0:0:root:/root:/bin/bash
daemon:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:2:2:bin:/bin:/usr/sbin/nologin
sys:3:3:sys:/dev:/usr/sbin/nologin
sync:4:65534:sync:/bin:/bin/sync
games:5:60:games:/usr/games:/usr/sbin/nologin
man:6:12:man:/var/cache/man:/usr/sbin/nologin
lp:7:7:lp:/var/spool/lpd:/usr/sbin/nologin
mail:8:8:mail:/var/mail:/usr/sbin/nologin
news:9:9:news:/var/spool/news:/usr/sbin/nologin
uucp:10:10:uucp:/var/spool/uucp:/usr/sbin/nologin
proxy:13:13:proxy:/bin:/usr/sbin/nologin
www-data:33:33:www-data:/var/www:/usr/sbin/nologin
backup:34:34:backup:/var/backups:/usr/sbin/nologin
list:38:38:Mailing List Manager:/var/list:/usr/sbin/nologin
irc:39:39:ircd:/run/ircd:/usr/sbin/nologin
_apt:42:65534::/nonexistent:/usr/sbin/nologin
nobody:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
ubuntu:1000:1000:Ubuntu:/home/ubuntu:/bin/bash"""
GROUPS = """
root:0 daemon:1 bin:2 sys:3 adm:4 tty:5 disk:6 lp:7 mail:8 news:9 uucp:10 man:12 proxy:13 kmem:15 dialout:20
fax:21 voice:22 cdrom:24 floppy:25 tape:26 sudo:27 audio:29 dip:30 www-data:33 backup:34 operator:37 list:38
irc:39 src:40 shadow:42 utmp:43 video:44 sasl:45 plugdev:46 staff:50 games:60 users:100 nogroup:65534 ubuntu:1000
"""
OF_UBUNTU = ["adm", "dialout", "cdrom", "floppy", "sudo", "audio", "dip", "video", "plugdev"]  # the first user's groups
BASHRC = "# ~/.bashrc: read by interactive shells.\n[ -z \"$PS1\" ] && return\nPS1='\\u@\\h:\\w\\$ '\n"
PROFILE = '# ~/.profile: read by login shells.\n[ -f "$HOME/.bashrc" ] && . "$HOME/.bashrc"\n'


def _ubuntu(group: str) -> str:
    return "ubuntu" * (group.partition(":")[0] in OF_UBUNTU)


def _locked(record: str) -> str:
    name = record.partition(":")[0]
    return f"{name}:{'!' if name == 'ubuntu' else '*'}"


FILES = {
    "/etc/passwd": "".join("{}:x:{}\n".format(*line.split(":", 1)) for line in USERS.split("\n")),
    "/etc/group": "".join(f"{group.replace(':', ':x:')}:{_ubuntu(group)}\n" for group in GROUPS.split()),
    "/etc/shadow": "".join(f"{_locked(user)}:19800:0:99999:7:::\n" for user in USERS.split("\n")),
    "/etc/gshadow": "".join(f"{_locked(group)}::{_ubuntu(group)}\n" for group in GROUPS.split()),
    "/etc/subuid": "ubuntu:100000:65536\n",
    "/etc/subgid": "ubuntu:100000:65536\n",
    "/etc/shells": "# /etc/shells: valid login shells\n/bin/sh\n/bin/bash\n/usr/bin/bash\n/bin/rbash\n/usr/bin/rbash\n"
    "/usr/bin/sh\n/bin/dash\n/usr/bin/dash\n",
    "/etc/hostname": "localhost\n",
    "/etc/hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n",
    "/etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nNAME="Ubuntu"\nVERSION_ID="24.04"\n'
    'VERSION="24.04.1 LTS (Noble Numbat)"\nVERSION_CODENAME=noble\nID=ubuntu\nID_LIKE=debian\n',
    "/etc/lsb-release": "DISTRIB_ID=Ubuntu\nDISTRIB_RELEASE=24.04\nDISTRIB_CODENAME=noble\n"
    'DISTRIB_DESCRIPTION="Ubuntu 24.04.1 LTS"\n',
    "/etc/debian_version": "trixie/sid\n",
    "/etc/issue": "Ubuntu 24.04.1 LTS \\n \\l\n\n",
    "/etc/passwd-": "",
    "/etc/environment": 'PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"\n',
    "/etc/fstab": "# UNCONFIGURED FSTAB FOR BASE SYSTEM\n",
    "/etc/profile": "# /etc/profile: read by login shells.\n",
    "/etc/bash.bashrc": "# /etc/bash.bashrc: read by interactive shells.\n",
    "/etc/default/useradd": "SHELL=/bin/sh\n",
    "/etc/login.defs": "UID_MIN 1000\nUID_MAX 60000\nGID_MIN 1000\nGID_MAX 60000\nSYS_UID_MIN 100\nSYS_UID_MAX 999\n"
    "PASS_MAX_DAYS 99999\nPASS_MIN_DAYS 0\nPASS_WARN_AGE 7\nUMASK 022\nHOME_MODE 0750\nCREATE_HOME no\n",
    "/etc/skel/.bashrc": BASHRC,
    "/etc/skel/.profile": PROFILE,
    "/etc/skel/.bash_logout": "# ~/.bash_logout: read when a login shell ends.\n",
    "/home/ubuntu/.bashrc": BASHRC,
    "/home/ubuntu/.profile": PROFILE,
    "/home/ubuntu/.bash_logout": "# ~/.bash_logout: read when a login shell ends.\n",
    "/root/.bashrc": BASHRC,
    "/root/.profile": PROFILE,
}
SECRET = ("/etc/shadow", "/etc/gshadow")  # 0640, of the group shadow


INSTALLED = [("/usr/sbin" if name in ADMIN.split() else "/usr/bin", name, ELF + name.encode()) for name in PROGRAMS]


def base_machine(hostname: str = "localhost") -> Machine:
    """Return a fresh machine."""
    machine = Machine(hostname)
    root = Caller(machine, umask=0)
    folders = {"": machine.root}
    for path in FOLDERS.split():
        parent, _, name = path.rpartition("/")
        folders[path] = root.attach(folders[parent], name, "dir", MODES.get(path, 0o755), {})
    for path, target in LINKS.items():
        parent, _, name = path.rpartition("/")
        root.attach(folders[parent], name, "link", 0o777, target)
    for name in DEVICES:
        kind = "random" if name == "urandom" else name
        root.attach(folders["/dev"], name, "device", 0o666, kind)
    for path, content in FILES.items():
        parent, _, name = path.rpartition("/")
        node = root.attach(folders[parent], name, "file", 0o640 if path in SECRET else 0o644, content.encode())
        node.gid = 42 if path in SECRET else 0
        if parent == "/home/ubuntu":
            node.uid = node.gid = 1000
        machine.bytes += len(node.data)
    for path, name, data in INSTALLED:
        there = folders[path].data
        there[name] = Node("file", 0o755, data, ino=machine.nodes + len(there))
    folders["/home/ubuntu"].mode = 0o750
    folders["/home/ubuntu"].uid = folders["/home/ubuntu"].gid = 1000
    folders["/var/mail"].mode, folders["/var/mail"].gid = 0o2775, 8
    return machine
