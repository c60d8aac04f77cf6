"""Draw scripts of the kinds that agents write on a machine, and compare the simulator with real bash on them.

    PYTHONPATH=.:tests python -m parity.agents 2000                # the share that is equal: output, status, files
    PYTHONPATH=.:tests python -m parity.agents mutated 100000      # spoiled ones, which must not crash the simulator

Needs what parity.shell needs for the first; the second runs anywhere.
"""

import random
import re
import sys
from functools import cache
from multiprocessing import Pool

from parity import shell

from envs.os_interaction.judge import twin
from envs.simulators.shell import Shell, base_machine
from envs.simulators.shell.files import Caller

SETUP = """
mkdir -p src/lib logs data/{raw,out}
printf 'alice,30,paris\\nbob,25,rome\\ncarol,35,oslo\\ndave,25,paris\\n' > data/people.csv
seq 12 > data/nums.txt; printf 'INFO start\\nERROR disk full\\nWARN slow\\nERROR net down\\nINFO stop\\n' > logs/app.log
printf 'the quick brown fox\\njumps over the lazy dog\\nthe end\\n' > data/text.txt; echo 'key=value' > src/conf.ini
echo 'port=80' >> src/conf.ini; touch src/a.py src/b.py src/lib/c.py src/old.bak logs/empty.log
"""
CHOICES = {
    "F": ["data/people.csv", "data/nums.txt", "logs/app.log", "data/text.txt", "src/conf.ini"],
    "D": ["src", "logs", "data", ".", "data/raw", "new", "src/lib"],
    "P": ["'*.py'", "'*.log'", "'*.txt'", "'[a-c]*'", "'*.bak'"],
    "W": ["the", "ERROR", "INFO", "paris", "bob", "key", "quick", "5", "o"],
    "N": ["1", "2", "3", "4", "5", "7"],
    "M": ["644", "600", "755", "700", "640", "u+x", "go-r", "a+w", "g=rx"],
    "V": ["x", "name", "count", "total", "file"],
    "O": ["out.txt", "data/out/res.txt", "result", "logs/new.log"],
    "C": ["1", "2", "3"],
    "S": ["hello", "Hello-World", "foo_bar", "a.b.c", "path/to/file.tar.gz", "2024-05-06"],
    "K": ["-n", "-r", "-u", "-nr", "-k 2", "-t, -k2", "-t, -k2,2n -k1,1", "-f"],
}
LINES = r"""
grep {W} {F}
grep -c {W} {F} || echo none
grep -rn {W} {D} | sort
grep -rl {W} {D} | sort | head -n {N}
grep -v {W} {F} | wc -l
grep -E '^[a-z]+,[0-9]+' {F} | cut -d, -f{C}
grep -o '[0-9]\+' {F} | sort -n | tail -1
sort {K} {F} | head -{N}
sort {K} {F} > {O}; cat {O}
cut -d, -f{C} {F} | sort | uniq -c | sort -rn
awk -F, '{print $1, $2}' {F}
awk -F, '$2 > 25 {print $1; n++} END {print n+0}' {F}
awk '{s += $1} END {print s, NR, s / NR}' {F}
awk -F, '{c[$3]++} END {for (k in c) print k, c[k]}' {F} | sort
awk 'NR % 2 == 0' {F}
awk '{print NR ": " $0}' {F} | tail -n {N}
awk 'length > {N} {print length, $NF}' {F}
awk -v n={N} 'NR == n {print; exit}' {F}
awk 'BEGIN {printf "%-10s|%5.2f|%03d\n", "{S}", 3.14159, {N}}'
sed 's/{W}/XX/g' {F}
sed -i 's/{W}/YY/' {F} && cat {F}
sed -n '{N}p' {F}
sed -n '2,{N}p' {F}
sed '/{W}/d' {F}
sed -i '{N}d' {F}; wc -l < {F}
sed -E 's/([a-z]+),([0-9]+)/\2 \1/' {F}
sed -i '1i # header' {F}; head -2 {F}
sed '$a footer' {F} | tail -n 2
sed 's/^[ \t]*//; s/ *$//' {F} | head -n {N}
tr a-z A-Z < {F} | head -n {N}
tr -d '0-9' < {F}
tr -s ' ' '\n' < {F} | sort | uniq -c | sort -rn -k1,1 | awk '{print $1}' | head -3
wc {F}
wc -l {F} {F} | tail -1
head -n {N} {F} | tail -n 1
tail -n +{N} {F}
find . -type f -name {P} | sort
find {D} -type f | wc -l
find . -type d | sort
find . -name {P} -exec basename {} \; | sort
find {D} -type f -empty
find . -type f -size +0 | sort | xargs ls -1
find . -name {P} -print0 | xargs -0 -r wc -c | sort
find . -maxdepth 1 -mindepth 1 -printf '%f %y\n' | sort
find . -type f -newer src/a.py | wc -l
find . -name {P} -delete; find . -type f | sort
find {D} -type f -exec chmod {M} {} +; stat -c '%a %n' {D}/* 2> /dev/null
ls {D}
ls -1 {D} | wc -l
ls -l {F} | awk '{print $1, $5}'
ls -a {D} | head -n {N}
ls nope || echo "status $?"
mkdir -p {D}/sub/{x,y}; ls {D}/sub
mkdir {D} 2>&1; echo $?
touch {D}/f{1..3}.txt && ls {D}
cp {F} {O} && diff {F} {O} && echo same
cp -r {D} copy && ls copy
mv {F} {O}; ls {O}; test -e {F} || echo moved
rm {F}; ls {F} 2>&1
rm -rf {D}/*; ls -A {D}
ln -s {F} link; readlink link; cat link | wc -l
chmod {M} {F}; stat -c %a {F}
chmod -R {M} {D}; stat -c '%a' {D}
stat -c '%s %F' {F}
du -a {D} | wc -l
basename {S}; dirname {S}
echo "{S}" | cut -c1-{N}
echo {S} | rev
echo {S} > {O}; echo more >> {O}; cat {O}
printf '%s\n' {S} {W} | tee {O}
printf '%05d %x %o %e\n' {N} 255 8 1234.5
cat {F} | while read -r line; do echo "[$line]"; done
while IFS=, read -r a b c; do echo "$a is $b"; done < {F}
while read -r n; do (( n % 2 )) && echo "$n odd"; done < data/nums.txt
for f in src/*.py; do echo "$f: $(wc -c < "$f")"; done
for f in {D}/*; do [ -f "$f" ] && echo "file $f" || echo "other $f"; done
for i in $(seq {N}); do echo -n "$i "; done; echo
for ((i = 0; i < {N}; i++)); do echo $((i * i)); done
for w in $(cat {F}); do echo ${#w}; done | sort -n | uniq -c
{V}={S}; echo ${{V}%.*} ${{V}##*.} ${{V}^^} ${#{V}} ${{V}/o/0}
{V}={N}; while [ ${V} -gt 0 ]; do echo ${V}; {V}=$(({V} - 1)); done
{V}=$(wc -l < {F}); if [ "${V}" -gt {N} ]; then echo big; else echo small; fi
if grep -q {W} {F}; then echo found; else echo missing; fi
if [[ -f {F} && ! -d {F} ]]; then echo file; fi
[ -d {D} ] && echo yes || echo no
[[ {S} =~ ([a-z]+)[^a-z]([a-zA-Z]+) ]] && echo "${BASH_REMATCH[1]} ${BASH_REMATCH[2]}"
case {S} in *.gz) echo archive;; hello|foo*) echo word;; *) echo other;; esac
arr=({W} {S} {N}); echo ${#arr[@]} "${arr[1]}"; for e in "${arr[@]}"; do echo "- $e"; done
declare -A m; m[a]={N}; m[b]={S}; for k in "${!m[@]}"; do echo "$k=${m[$k]}"; done | sort
f() { local n=$1; echo "got $n of $#"; return {N}; }; f {S} {W}; echo $?
fact() { [ $1 -le 1 ] && echo 1 || echo $(($1 * $(fact $(($1 - 1))))); }; fact {N}
cat > run.sh <<'END'
#!/bin/bash
set -euo pipefail
echo "args: $*"
for a in "$@"; do echo "<$a>"; done
END
chmod +x run.sh; ./run.sh {W} "{S} x"; echo $?
cat <<END | sort
{S} $((2 + {N}))
$(echo {W})
END
set -e; false || echo handled; echo {S}
set -u; echo ${undefined:-default}; echo "${undefined2}"; echo not reached
set -o pipefail; cat nope 2> /dev/null | wc -l; echo ${PIPESTATUS[0]}
trap 'echo cleanup' EXIT; echo work {N}
trap 'echo error on line' ERR; ls nope 2> /dev/null; echo go on
(cd {D} && pwd); pwd
cd {D} && ls | head -n {N}; cd - > /dev/null; pwd
{ echo a; echo b >&2; } > {O} 2>&1; cat {O}
ls nope > {O} 2>&1; cat {O}
exec 3> {O}; echo fd >&3; exec 3>&-; cat {O}
read -r a b <<< "{S} {W}"; echo "$b $a"
mapfile -t l < {F}; echo ${#l[@]}; echo "${l[-1]}"
IFS=: read -ra p <<< "a:b:{S}"; echo "${p[2]}"
echo $((({N} + 3) * 2 % 5)) $((2 ** {N})) $(({N} > 2 ? 1 : 0))
expr {N} + 4 \* 2
seq -s, 1 {N}
seq 10 | paste -sd+ | sed 's/+/ + /g'
paste -d' ' data/nums.txt {F} | head -n {N}
date -d '2024-01-31 +{N} days' +%F; date -d @86400 -u +%H:%M
tar czf b.tgz {D} && tar tzf b.tgz | sort | head -n {N}; rm -f b.tgz
tar cf b.tar src; mkdir ex; tar xf b.tar -C ex; find ex -type f | sort; rm -f b.tar
gzip -k {F}; gunzip -c {F}.gz | head -1; rm -f */*.gz
md5sum {F} | cut -c1-8; sha256sum < {F} | cut -c1-10
comm -12 <(sort {F}) <(sort {F}) | head -n {N}
diff {F} {F}; echo $?
diff <(head -3 {F}) <(tail -3 {F}); echo $?
xargs -n 2 echo < data/nums.txt
ls src/*.py | xargs -I{} cp {} {}.orig; ls src
cat {F} | xargs -n1 | tail -n {N}
sleep 0.01 & wait $!; echo $?
(sleep 0.02; echo late) & echo early; wait
timeout 1 echo {S}; echo $?
nohup true 2> /dev/null; echo $?
type cd; command -v ls > /dev/null && echo has ls
which nope || echo absent
{S}_cmd 2>&1 | head -1
env | grep -c '^HOME='; export {V}={S}; bash -c 'echo "$'{V}'"'
printf -v out '%s-%s' {W} {N}; echo "$out"
echo {a,b}{1..3} | tr ' ' '\n' | wc -l
shopt -s nullglob; for f in *.nope; do echo $f; done; echo end
let x={N}*2 y=x+1; echo $x $y
until [ -e flag ]; do touch flag; echo made; done
nl {F} | head -n {N}
tac {F} | head -n 1
fold -w 10 {F} | head -n {N}
cat -A {F} | head -n 1
od -c {F} | head -1
split -l 5 data/nums.txt part_; ls part_*; rm part_*
truncate -s 10 {O}; stat -c %s {O}
dd if=/dev/zero of={O} bs=100 count={N} 2> /dev/null; wc -c < {O}
test {N} -lt 4 && echo lt; [ "{W}" = "{W}" ] && echo eq; [ -z "" ] && echo empty
echo "${HOME}" '$HOME' "\$HOME"; echo 'it'"'"'s'
x=(1 2 3); x+=(4); unset 'x[0]'; echo "${x[@]}" "${!x[@]}" ${#x[@]}
s="{S}"; echo "${s:1:3}" "${s: -2}" "${s#*[-_./]}"
[ "$(id -u)" -eq 0 ] && echo root; whoami
echo "$(< {F})" | head -n 1
join -t, <(sort data/people.csv) <(sort data/people.csv) | head -n {N}
shuf -n 1 -e same; shuf -i 1-{N} | wc -l
yes {W} | head -n {N}
rm -i {F} < /dev/null; ls {F}
vi -es -c '%s/{W}/VV/g' -c wq {F}; cat {F}
echo {N} | awk '{print $1 ^ 2, sqrt($1), int($1 / 2)}'
logger hi 2> /dev/null; hostname > /dev/null; uname -s
stat -c '%U:%G' {F}; chown root:root {F} && echo ok
getent passwd root | cut -d: -f7; id -un; groups
cmp {F} {F} && echo identical; cmp -s {F} data/nums.txt; echo $?
tee -a {O} < {F} > /dev/null; wc -l < {O}
egrep -c 'a|e' {F}; fgrep . {F} | wc -l
""".strip("\n")


def statements() -> list[str]:
    """Return the lines, where a here-document and what follows it on its last line belong together."""
    out, lines = [], LINES.split("\n")
    while lines:
        taken = [lines.pop(0)]
        if re.search(r"<<'?END", taken[0]):
            while lines and taken[-1] != "END":
                taken.append(lines.pop(0))
            if taken[0].startswith("cat > run.sh"):
                taken.append(lines.pop(0))
        out.append("\n".join(taken))
    return out


STATEMENTS = statements()


def filled(statement: str, rng: random.Random) -> str:
    return re.sub(r"\{([A-Z])\}", lambda found: rng.choice(CHOICES[found[1]]), statement)


def script(seed) -> str:
    """Return a script of two to five statements."""
    rng = random.Random(f"agents {seed}")
    name = rng.choice(CHOICES["V"])
    chosen = [rng.choice(STATEMENTS).replace("{V}", name) for _ in range(rng.randint(2, 5))]
    return SETUP + "\n".join(filled(statement, rng) for statement in chosen)


def compare(count: int) -> list[str]:
    """Return the scripts on which simulator and bash differ."""
    from test_shell import run_in_work

    scripts = [script(seed) for seed in range(count)]
    answers = shell.real(scripts)
    pairs = zip(scripts, answers, strict=True)
    return [f"{text[len(SETUP):]}\n-- bash: {real}\n-- ours: {mine}" for text, real in pairs
            if (mine := run_in_work(text)) != real]  # fmt: skip


def spoiled(seed) -> str:
    """Return a drawn script with words or characters replaced, left out or doubled."""
    rng = random.Random(f"spoiled {seed}")
    parts = re.split(r"(\W)", script(seed)[len(SETUP) :])
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(parts))
        parts[at] = rng.choice(
            ["", parts[at] * 2, *"()[]{}$`'\"\\|&;<>!*?#~", "-1", "99999999999", "é", parts[at][::-1]]
        )
    return "".join(parts)


@cache
def ready():
    """Return the machine on which spoiled scripts begin."""
    machine = base_machine()
    Caller(machine).mkdir(shell.WORK)
    Shell(machine, cwd=shell.WORK).run(SETUP)
    return machine


def crash_of(seed) -> str:
    """Return a spoiled script with its error if the simulator raises one, else an empty text."""
    Shell.strict = True
    try:
        Shell(twin(ready()), cwd=shell.WORK).run(spoiled(seed), max_steps=20_000)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{spoiled(seed)}"
    return ""


def crashes(seeds: range, processes: int = 1) -> list[str]:
    """Return the spoiled scripts that crash the simulator, each with its error."""
    if processes == 1:
        return [found for found in map(crash_of, seeds) if found]
    with Pool(processes) as pool:
        return [found for found in pool.imap_unordered(crash_of, seeds, chunksize=200) if found]


if __name__ == "__main__":
    many = int(sys.argv[-1])
    kind = "crash" if sys.argv[1] == "mutated" else "differ"
    found = crashes(range(many), 2) if kind == "crash" else compare(many)
    print(*found[:400], sep=f"\n{'=' * 20}\n")
    print(f"{len(found)} of {many} {kind}: {100 * (1 - len(found) / many):.1f} % do not")
