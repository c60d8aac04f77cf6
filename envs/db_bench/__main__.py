"""Count db_bench's tasks by skill, and write tasks of a single skill to a file.

python -m envs.db_bench                                 the skills, with the number of generated tasks of each
python -m envs.db_bench data=db.json                    the single-skill tasks of a LifelongAgentBench file, counted
python -m envs.db_bench data=db.json out=single.json    its tasks of a single skill, as {skill: [entry, ...]}
python -m envs.db_bench out=ours.json count=5000        generated tasks in the same layout
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from random import Random

from envs.common import SPLITS, level_list
from envs.db_bench.tasks import LEVELS, SKILLS, draw, entry_of, read_entries, read_tasks
from envs.http.exchange import plain
from envs.refusal import Refusal
from envs.simulators.mysql import Database
from rl.config import program
from rl.config.arguments import NotNegative, Positive
from rl.config.help import quiet_on_closed_pipe
from rl.run import status


@dataclass
class Keys:
    data: str = ""  # a file of LifelongAgentBench's entries; empty generates tasks
    out: str = ""  # also write the tasks to this file
    count: Positive[int] = 1000  # number of tasks to generate
    difficulty: str = "3"  # levels to generate, 1 to 3, drawn uniformly from this comma list; repeats weigh
    seed: NotNegative[int] = 0  # the first generated task; the others use seed + 1, seed + 2, ...

    def __post_init__(self):
        self.difficulty = level_list(self.difficulty, LEVELS)
        if self.out and (os.path.isdir(self.out) or not Path(self.out).parent.is_dir()):
            raise Refusal(f"out must be a file in an existing folder, not {self.out!r}")
        if self.data:
            read_tasks(self.data, single_skill=True)  # raises ValueError for an entry that is not a task


def main(words: list[str]) -> None:
    """Run the program. Exit with 2 on a wrong word or file, with 1 if writing fails and with 130 on Ctrl-C."""
    [keys] = program.parse(words, "envs.db_bench", Keys, about=__doc__)
    with status.ends_in_one_line("envs.db_bench"):
        found = read_entries(keys.data, single_skill=True) if keys.data else generate(keys)
        if keys.out:
            write(Path(keys.out), json.dumps(found, ensure_ascii=False, indent=1))
        with quiet_on_closed_pipe():
            report(found)


def write(path: Path, text: str) -> None:
    """Write a file. Raise OSError naming it."""
    try:
        path.write_text(text)
    except OSError as error:
        raise OSError(f"out={path} cannot be written: {error.strerror}") from None


def report(found: dict[str, list[dict]]) -> None:
    """Print the skills with their numbers of tasks."""
    for skill in sorted(found, key=lambda skill: (SKILLS.index(skill) if skill in SKILLS else len(SKILLS), skill)):
        print(f"{plain(skill, 50):<50}{len(found[skill]):>6}")
    print(f"{len(found)} skills, {sum(map(len, found.values()))} tasks")


def generate(keys: Keys) -> dict[str, list[dict]]:
    """Return generated entries by skill."""
    levels, found, database = keys.difficulty.split(","), {}, Database()
    for seed in range(keys.seed, keys.seed + keys.count):
        rng = Random(f"db_tasks {seed}")
        skill = rng.choice(SKILLS)
        task = draw(rng, skill, rng.choice(levels), rng.choice(SPLITS), database)
        found.setdefault(skill, []).append(entry_of(task))
    return found


if __name__ == "__main__":
    main(sys.argv[1:])
