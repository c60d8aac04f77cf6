"""Run command lines with the real programs, in a root of their own: their output, exit status and changes.

Needs Linux, root, `unshare` and Debian's bash, coreutils, grep, sed, findutils, diffutils, mawk, passwd, adduser and
vim. A tmpfs holds an overlay over the file system, in namespaces for mounts, processes and network that end with the
program.
"""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import golden
from parity import namespace

WORK = "/w"
ROOTS = (WORK, "/home", "/srv", "/etc/skel")  # what is made anew before each line, and looked at after it
TABLES = ("/etc/passwd", "/etc/group", "/etc/shadow", "/etc/gshadow", "/etc/subuid", "/etc/subgid")
PROGRAMS = ("bash", "mawk", "sed", "find", "diff", "useradd", "adduser", "vi")
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C",
    "TZ": "UTC",
}
THEN = 1600000000  # seconds: when the files were last changed

# path: (kind, mode, owner, group, time, content or target)
FILES: dict[str, tuple] = {}


def put(path: str, kind: str, data: str = "", mode: int = 0, uid: int = 0, gid: int = 0, time: int = THEN) -> None:
    FILES[path] = (kind, mode or {"dir": 0o755, "file": 0o644, "link": 0o777}[kind], uid, gid, time, data)


for folder in ("", "/sub", "/sub/deep", "/empty"):
    put(WORK + folder, "dir")
put("/w/a.txt", "file", "apple\nbanana\ncherry\napple pie\nBanana split\n\n10\n9\n100\n2\n")
put("/w/b.txt", "file", "banana\ndate\nfig\ncherry\n", 0o600, time=THEN + 100)
put("/w/noend", "file", "one two\nthree")
put(
    "/w/data.csv",
    "file",
    "name,age,city\nann,30,Paris\nbob,25,Rome\ncat,41,Oslo\ndan,25,Bonn\n",
    0o664,
    time=THEN - 10**7,
)
put(
    "/w/pw",
    "file",
    "root:x:0:0:root:/root:/bin/bash\nann:x:1000:1000:Ann A:/home/ann:/bin/sh\nbob:x:1001:1001::/:/bin/false\n",
)
put("/w/nums", "file", "3 apples\n12 pears\n7 figs\n12 dates\n  5 kiwis\n-4 x\n1.5 y\n1e2 z\n")
put("/w/tabs", "file", "a\tb\tc\n\tx\n1\t2\t3\n")
put(
    "/w/log",
    "file",
    "2024-05-01 ERROR disk full\n2024-05-01 INFO ok\n2024-05-02 WARN slow 12ms\n2024-05-03 ERROR net down (eth0)\n",
)
put("/w/a b.txt", "file", "spaced\n")
put("/w/empty.txt", "file")
put("/w/run.sh", "file", "#!/bin/sh\necho hi\n", 0o755)
put("/w/.hidden", "file", "h\n")
put("/w/sub/x.txt", "file", "xx\n")
put("/w/sub/deep/y.log", "file", "yy\nzz\n", 0o640, 1, 2)
put("/w/sub/y.txt", "file", "apple\nzebra\n")
put("/w/bin", "file", "ab\0cd\nef\n")
put("/w/long", "file", "".join(f"line {i}\n" for i in range(1, 31)))
for name, target in (("link", "a.txt"), ("broken", "nowhere"), ("dlink", "sub")):
    put(f"/w/{name}", "link", target)
put("/home", "dir")
put("/srv", "dir")
put("/etc/skel", "dir")
put("/etc/skel/.bashrc", "file", "# rc\n")
put("/etc/skel/.profile", "file", "# profile\n")
put("/home/ann", "dir", "", 0o750, 1000, 1000)
put("/home/ann/notes", "file", "hi\n", 0o600, 1000, 1000)
put("/home/bob", "dir", "", 0o750, 1001, 1001)
put("/etc/passwd", "file", """root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
ann:x:1000:1000:Ann A,,,:/home/ann:/bin/bash
bob:x:1001:1001::/home/bob:/bin/sh
""")  # fmt: skip
put("/etc/group", "file", """root:x:0:
daemon:x:1:
bin:x:2:
adm:x:4:ann
sudo:x:27:ann
users:x:100:
nogroup:x:65534:
ann:x:1000:
bob:x:1001:
devs:x:1002:bob,ann
""")  # fmt: skip
put("/etc/shadow", "file", """root:*:19478:0:99999:7:::
daemon:*:19478:0:99999:7:::
bin:*:19478:0:99999:7:::
nobody:*:19478:0:99999:7:::
ann:$6$abc$hash:19800:0:99999:7:::
bob:!:19800:0:99999:7:::
""", 0o640, 0, 42)  # fmt: skip
put("/etc/gshadow", "file", """root:*::
daemon:*::
bin:*::
adm:*::ann
sudo:*::ann
users:*::
nogroup:*::
ann:!::
bob:!::
devs:!::bob,ann
""", 0o640, 0, 42)  # fmt: skip
put(
    "/etc/shells",
    "file",
    "# /etc/shells: valid login shells\n/bin/sh\n/bin/bash\n/usr/bin/bash\n/usr/bin/sh\n/bin/dash\n",
)
put("/etc/login.defs", "file", """UMASK 022
HOME_MODE 0700
PASS_MAX_DAYS 99999
PASS_MIN_DAYS 0
PASS_WARN_AGE 7
UID_MIN 1000
UID_MAX 60000
SYS_UID_MIN 100
SYS_UID_MAX 999
GID_MIN 1000
GID_MAX 60000
SYS_GID_MIN 100
SYS_GID_MAX 999
USERGROUPS_ENAB yes
ENCRYPT_METHOD SHA512
""")  # fmt: skip
put("/etc/default/useradd", "file", "SHELL=/bin/sh\n")
for name in ("subuid", "subgid"):
    put(f"/etc/{name}", "file", "ann:100000:65536\nbob:165536:65536\n")


def available() -> str:
    """Return why the real programs cannot run in a root of their own, "" if they can."""
    return namespace.unavailable(PROGRAMS)


def real(lines: list[str]) -> list[str]:
    """Run each line with the real programs; format the results as `report`."""
    return namespace.run_inside("parity.shell_commands", lines, timeout=1800)


def inside() -> None:
    """Inside the namespaces: mount the overlay, then run each line."""
    root = namespace.overlay_root()
    namespace.mount("--rbind", "/dev", f"{root}/dev")
    os.chroot(root)
    os.umask(0o022)
    before = None
    answers = []
    for line in json.load(sys.stdin):
        fresh()
        before = before or state()
        try:
            done = subprocess.run(
                ["/bin/bash", "-c", line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                env=ENVIRONMENT, cwd=WORK, timeout=10,
            )  # fmt: skip
            answers.append(report(done.stdout.decode("latin-1"), done.returncode, before, state()))
        except subprocess.TimeoutExpired:
            answers.append("timeout")
    json.dump(answers, sys.stdout)


def fresh() -> None:
    """Restore the files before each line."""
    for top in ROOTS:
        shutil.rmtree(top, ignore_errors=True)
    for path, (kind, mode, uid, gid, _, data) in FILES.items():
        if kind == "dir":
            os.makedirs(path, exist_ok=True)
        elif kind == "link":
            os.symlink(data, path)
        else:
            Path(path).write_bytes(data.encode("latin-1"))
        os.lchown(path, uid, gid)
        if kind != "link":
            os.chmod(path, mode)
    for path, (*_, time, _) in reversed(FILES.items()):
        os.utime(path, (time, time), follow_symlinks=False)


def state() -> dict[str, str]:
    """Return each compared path with its kind, mode, owner, links and content."""
    found = {}
    for top in ROOTS:
        for folder, folders, files in os.walk(top):
            for name in [*folders, *files]:
                path = f"{folder}/{name}"
                info = os.lstat(path)
                link = os.path.islink(path)
                kind = "link" if link else "dir" if os.path.isdir(path) else "file"
                data = os.readlink(path) if link else "" if kind == "dir" else Path(path).read_bytes().decode("latin-1")
                found[path] = entry(kind, info.st_mode & 0o7777, info.st_uid, info.st_gid, info.st_nlink, data)
    for path in TABLES:
        found[path] = Path(path).read_text()
    return found


def entry(kind: str, mode: int, uid: int, gid: int, links: int, data: str) -> str:
    """Return a node as one line."""
    if kind == "link":
        return f"link {uid}:{gid} {data}"
    if kind == "dir":
        return f"dir {mode:04o} {uid}:{gid}"
    return f"file {mode:04o} {uid}:{gid} {links} {data!r}"


def report(output: str, status: int, before: dict, after: dict) -> str:
    """Return a line's result in the golden file's format. Usage texts are cut after their first line."""
    output = re.sub(
        r"(?ms)^(Usage: [^\n]*\n(?:       \w+ -D[^\n]*\n)*)\n?(?:Options:\n|Program:\n|  -).*\Z", r"\1", output
    )
    shown = [f"| {line}" for line in output.split("\n")]
    if shown[-1] == "| ":
        shown.pop()
    elif output:
        shown.append("| (no newline)")
    if status:
        shown.append(f"status {status}")
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        if path in TABLES:
            rows = (old or "").split("\n"), (new or "").split("\n")
            shown += [f"- {path} {row}" for row in rows[0] if row not in rows[1]]
            shown += [f"+ {path} {_undated(row)}" for row in rows[1] if row not in rows[0]]
            if sorted(rows[0]) == sorted(rows[1]):
                shown.append(f"~ {path} {','.join(row.split(':')[0] for row in rows[1])}")
        else:
            shown.append(f"+ {path} {new}" if new is not None else f"- {path}")
    return re.sub(r"[^\n -~]", lambda found: f"\\x{ord(found[0]):02x}", "\n".join(shown))


def _undated(row: str) -> str:
    """Return a record of /etc/shadow whose password was set today."""
    return re.sub(r"^([^:]*:[^:]*):(?:19849|2\d{4}):", r"\1:TODAY:", row) if row.count(":") == 8 else row


# -- lines drawn at random

# replacements of {F}, {T}, ... in a template, separated by two blanks; EMPTY for an empty text
CHOICES = r"""
F  a.txt  b.txt  noend  data.csv  pw  nums  tabs  log  empty.txt  run.sh  link  sub/y.txt  bin  long
T  a.txt  b.txt  noend  data.csv  pw  nums  tabs  log  empty.txt  sub/y.txt  long
X  'a b.txt'  a.txt  b.txt  sub  nope  broken  dlink  empty  link  run.sh  sub/x.txt  no/x  .
D  sub  empty  nope  new  a.txt  sub/deep  dlink  new/deep
N  0  1  2  3  5  10  +2  -1  100
I  1  2  3  4  7
L  1  2  1,3  2-  -2  1-2,4  3,1  5
S  ,  :  BLANK  a  e  -
M  644  755  600  u+x  go-r  a+rw  g=u  +x  o=  u=rw,g=r  1777  4755  g+s  ug+w,o-rwx  a-x  u+s,g-s  0  +t  -w
U  ann  bob  nope  1000  u  new_user
G  devs  sudo  ann  users  nope  27  g  new-group
R  a  an  ^a  e$  a.  [a-c]  x*  [^a-z]  \(a\)n  p\{2\}  \<a  [[:digit:]]  .*  o\|e  ^$  \w\+
E  a|b  ^(a|b)  [0-9]+  an?  (an)+  p{2}  e$  ^.{5}$  [[:upper:]]  (a)(p)  \bpie  x|y|z  ^[^,]*,  ()
C  X  [&]  \1  EMPTY  \n  -&-&  \U&  a b
A  1  $  2,4  /a/  /b/,/e/  2~3  1!  /a/!  2,+1  0,/e/  $!  3,1  EMPTY
K  p  d  =  s/a/X/  s/[a-e]/<&>/g  q  y/abc/xyz/  n;d  N;P;D  G  h;G  x  i top  a end  c new  l  H;$!d;x
V  $1  $2  $NF  $0  NR  NF  length($1)  $1+1  $1 $2  substr($0,2,3)  toupper($1)  NR%2  -$1  $1==$2
P  EMPTY  NR>2  /a/  $1>5  NF>1  END  NR==1,NR==3  !/a/  $1~/^[a-c]/  BEGIN  length>5
"""
WORDS: dict[str, list[str]] = {}
for _line in CHOICES.split("\n")[1:-1]:
    _key, *_words = _line.split("  ")
    WORDS.setdefault(_key, []).extend({"EMPTY": "", "BLANK": " "}.get(_word, _word) for _word in _words)
TEMPLATES = """cat {T}|cat -n {T} {F}|cat -A {F}|cat -bs {T}|cat -E {X}|head -n {N} {T}|head -c {N} {F}|head -{I} {T} {F}|tail -n {N} {T}
tail -c {N} {F}|tail -{I} {T}|tail -n +{I} {T} {X}|wc {F}|wc -l {F} {X}|wc -w {T}|wc -c < {F}|wc -lm {T} {T}|nl {T}|nl -ba -w{I} {T}|tac {T}
rev {T}|seq {I}|seq {I} {N}|seq {I} {I} {N}|seq -w {I} 1{I}|seq -s, {I} {N}|cut -d'{S}' -f{L} {T}|cut -c{L} {F}|cut -f{L} {T}|cut -sd, -f{L} {T}
cut --complement -d: -f{L} pw|paste {T} {T}|paste -sd, {T}|paste -d: {T} {T}|cat {T} $ tr a-z A-Z|cat {T} $ tr -d '[:alpha:]'
cat {F} $ tr -s 'a-z\\n'|cat {T} $ tr '{S}' _|cat {T} $ tr -cd 'a-e\\n'|uniq -c {T}|sort {T} $ uniq -d|sort {T} $ uniq -c $ sort -rn|uniq -i {T}
sort {T}|sort -r {T}|sort -n {T}|sort -u {T} {T}|sort -k{I} {T}|sort -t, -k{I},{I} {T}|sort -t: -k{I}n {T}|sort -nrk{I} {T}|sort -f {T}
sort -k{I},{I}n -k1,1r {T}|sort -c {T}|sort -h {T}|sort -V {T}|sort -b -k{I}.2 {T}|comm {T} {T}|fold -w {I}0 {T}|tee new < {T}
grep '{R}' {F}|grep -n '{R}' {T} {X}|grep -i '{R}' {T}|grep -v '{R}' {T}|grep -c '{R}' {T} {T}|grep -o '{R}' {T}|grep -w '{R}' {T}|grep -x '{R}' {T}
grep -E '{E}' {F}|grep -Eo '{E}' {T}|grep -Ec '{E}' {T} {X}|grep -El '{E}' {T} {T} {T}|grep -Ein '{E}' {T}|grep -A{I} '{R}' {T}|grep -B{I} -n '{R}' {T}
grep -C1 '{R}' {T} {T}|grep -m{I} '{R}' {T}|grep -q '{R}' {X}|grep -L '{R}' {T} {T}|grep -F 'a' {T}|grep -e '{R}' -e '{R}' {T}|grep -on '{E}' {T}
grep -Evw '{E}' {T}|grep -Exn '{E}' {T}|sed 's/{R}/{C}/' {T}|sed 's/{R}/{C}/g' {T}|sed -E 's/{E}/{C}/g' {T}|sed 's/{R}/{C}/{I}' {T}
sed -n 's/{R}/{C}/p' {T}|sed '{A}{K}' {T}|sed -n '{A}{K}' {T}|sed -n '{A}p' {T} {T}|sed '{A}{K};{A}{K}' {T}|sed -i '{A}{K}' {F}|sed -E '{A}s/{E}/{C}/' {T}
sed '{A}{{K};p}' {T}|sed -e '{A}{K}' -e '{A}p' {T}|sed -s '{A}{K}' {T} {T}|awk '{P}{{print {V}}}' {T}|awk -F, '{P}{{print {V}, {V}}}' {T}
awk -F: '{P}{{print {V}}}' pw|awk '{P}{{n++; s+=$1}} END{{print n, s}}' {T}|awk '{{c[{V}]++}} END{{for (k in c) print k, c[k]}}' {T}
awk '{{gsub(/{E}/,"{C}"); print}}' {T}|awk '{{printf "%s %d %5.2f;\\n", {V}, {V}, {V}}}' {T}|awk '{{n=split($0, p, "{S}"); print n, p[1], p[n]}}' {T}
awk 'match($0, /{E}/){{print RSTART, RLENGTH}}' {T}|awk '{{{V}}} {{$2="x"; print; print NF}}' {T}|awk -v x={N} '$1>x' {T}|awk '{{sub(/{E}/,"<&>")}}1' {T}
mkdir {D}|mkdir -p {D}|mkdir -m {M} new|mkdir -pv {D}|rmdir {D}|rm {X}|rm -f {X} {X}|rm -r {D}|rm -rf {D} {X}|touch {X}|touch new {X}|ln {X} new
ln -s {X} new|ln -sf {X} {X}|ln {X} {D}|ln -s {X} {D}|cp {X} {X}|cp {X} {D}|cp -r {X} new|cp -r {D} empty|cp -a {X} new|cp -p {X} new|cp -v {F} {D}
cp -n {F} {F}|mv {X} {X}|mv {X} new|mv {X} {D}|mv -n {F} {F}|mv -v {F} new|mv {F} {F} {D}|cp {F} {F} {D}|chmod {M} {X}|chmod {M} {X} {F}
chmod -v {M} {F}|chmod -R {M} sub|chmod {M},{M} {F}|chown {U} {X}|chown {U}:{G} {F}|chown -R {U}:{G} sub|chown :{G} {X}|chgrp {G} {X}|chgrp -R {G} {D}
stat -c '%a %U %G %s %F %h' {F}|stat -c '%n %A' {X} {F}|stat -c %N {X}|readlink {X}|readlink -f {X}|realpath {X}|basename {X}|basename {F} .txt|dirname {X}
ls {X}|ls -1 {D}|ls -a sub|ls -l {F}|ls -d {X}|ls -F|ls -R sub|ls -1t|ls -lr {T} {T}|ls -S {T} {T} {T}|ls -p {D} {F}|find {D} -name '*.txt' $ sort
find {D} -type f $ sort|find . -size {N} -type f $ sort|find . -perm {M} $ sort|find . -name '[ab]*' -o -type d $ sort|find {D} -maxdepth {N} $ sort
find {X} -type l|find . ! -name '*.txt' -type f $ sort|find {D} -name 'x*' -exec cat {} ';'|find . -newer {T} $ sort|find . -user {U} $ sort
find {D} -type f -printf '%f %s %m\\n' $ sort|find {D} -empty|cat {T} $ xargs -n {I}|ls *.txt $ xargs wc -l|cat {T} $ xargs -I% echo '<%>'
useradd {U}|useradd -m {U}|useradd -m -s /bin/bash -G {G},{G} u|useradd -g {G} u|useradd -u 100{I} u|useradd -r -c 'A B' {U}|userdel {U}|userdel -r {U}
usermod -aG {G} {U}|usermod -G {G},{G} {U}|usermod -s /bin/sh {U}|usermod -l {U} {U}|usermod -L {U}|usermod -U {U}|usermod -d /srv/{U} -m {U}
usermod -g {G} {U}|usermod -u 100{I} {U}|usermod -e 2030-0{I}-01 {U}|usermod -c 'N M' -s /bin/bash {U}|groupadd {G}|groupadd -g 100{I} {G}|groupdel {G}
groupadd -f {G}|groupmod -n {G} {G}|groupmod -g 100{I} {G}|gpasswd -a {U} {G}|gpasswd -d {U} {G}|gpasswd -M {U},{U} {G}|gpasswd -A {U} {G}|chage -l {U}
chage -M {I}0 -m {I} -W {I} {U}|chage -E 2030-0{I}-15 {U}; chage -l {U}|chage -d 2024-0{I}-01 -I {I} -M 90 {U}; chage -l {U}|chsh -s /bin/sh {U}
chsh -s /bin/nope {U}|passwd -S {U}|passwd -l {U}|passwd -e {U}|id {U}|id -Gn {U}|id -u {U}|groups {U}|getent passwd {U}|getent group {G}|addgroup {G}
addgroup --gid 100{I} {G}|delgroup {G}|adduser {U} {G}|deluser {U} {G}|diff {T} {T}|diff -u {T} {T}|diff -q {T} {X}|cmp {F} {F}|expr {N} + {I} \\* {I}
expr {N} / {I}|expr {N} \\< {I}|expr length {T}|date -d '2024-0{I}-1{I} +{I} days' +%F_%a_%j|date -d '2024-0{I}-28 {I} months ago' +%D|md5sum {F}
vi -es -c '%s/a/X/g' -c wq {F}|vi -es -c '{I}d' -c wq {T}|vi -es -c 'g/a/d' -c x {T}|env A={N} printenv A|base64 {T}|seq {I}0 $ head -n {I} $ tail -n 1""".replace("\n", "|").split("|")  # fmt: skip # noqa: E501


def draw(seed) -> str:
    """Return a random command line."""
    rng = random.Random(f"shell commands {seed}")
    line = rng.choice(TEMPLATES).replace(" $ ", " | ")
    line = re.sub(r"\{([A-Z])\}", lambda found: rng.choice(WORDS[found[1]]), line)
    return line.replace("{{", "{").replace("}}", "}")


KNOWN = ("usermod -d /srv/nope -m", "find . -type l")  # how lines begin that are known to differ
# and those with commands and options that the simulator lacks
KNOWN += ("cut --complement", "sort -c", "sort -V", "base64")
MISSING = re.compile(r"sed .*(y/abc/xyz/|[0-9,/~+!$abe'{;]l['};])")  # sed's y and l
DRAWN = 1800  # seeds of the lines in the golden file


def drawn(seeds: range) -> list[str]:
    """Return distinct random lines from fixed seeds."""
    lines = dict.fromkeys(draw(seed) for seed in seeds)
    return [line for line in lines if not (line.startswith(KNOWN) or MISSING.match(line))]


def cases() -> list[dict]:
    """Return the golden cases: the real programs' answers to the file's lines and to the drawn ones."""
    lines = list(dict.fromkeys([*(case["input"] for case in golden.read("shell_commands")), *drawn(range(DRAWN))]))
    return [golden.case(line, answer) for line, answer in zip(lines, real(lines), strict=True)]


if __name__ == "__main__" and sys.argv[1:] == ["inside"]:
    inside()
