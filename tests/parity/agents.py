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
from pathlib import Path

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
LINES = Path(__file__).with_name("agents_lines.txt").read_text().strip("\n")


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
