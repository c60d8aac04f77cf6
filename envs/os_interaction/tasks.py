"""Draw os_interaction's tasks from the templates in envs/os_interaction/templates/."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from shlex import shlex

from envs.common import split_of
from envs.names import MadeUp
from envs.os_interaction.templates import TEMPLATES
from envs.os_interaction.wordings import wordings
from envs.refusal import Refusal

LEVELS = {
    "1": range(1, 2),
    "2": range(2, 5),
    "3": range(5, 9),
    "4": range(9, 13),
}  # level -> commands of a solution
SKILLS = """
addgroup awk cat cd chage chgrp chmod chown chsh cp echo exit find gpasswd grep groupadd ln ls mkdir mv rm sed sleep tee
touch useradd usermod vi wc
"""
POOLS = """
WORD amber birch cedar delta ember fjord grove heron ivory jolly koala lemon mango nylon olive pearl quartz raven tulip
STEM agenda budget cities diary events facts guests hotels ideas jobs letter menu notes orders plan quotes
USER alice bruno clara dmitri elena farid greta hugo irene jonas karin luis maria nadia oscar petra rosa stefan tania
GROUP actors bakers coders divers editors farmers guides hikers judges keepers lawyers miners nurses owners pilots
PLACE /srv /opt /mnt /tmp
MODE 400 440 600 640 660 700 750 664
DMODE 700 711 750 770 775 1777
DAYS 7 14 30 45 60 90 120 180 365
DATE 2030-01-31 2030-06-15 2031-03-01 2031-12-31 2032-02-29 2033-10-05
SHELL /bin/sh /bin/dash /bin/rbash /usr/sbin/nologin
EXT log tmp csv dat bak conf
"""
WORDS = {kind: words for kind, *words in map(str.split, POOLS.strip().splitlines())}
MADE: dict[str, Callable[[Random], str]] = {  # slots composed of other values
    "DIR": lambda rng: f"{rng.choice(WORDS['PLACE'])}/{rng.choice(WORDS['WORD'])}",
    "NAME": lambda rng: f"{rng.choice(WORDS['STEM'])}.{rng.choice(('txt', 'md'))}",
    "NUM": lambda rng: str(rng.randint(3, 9)),
    "ID": lambda rng: str(rng.randint(3000, 3999)),
}
FRESH: dict[str, Callable[[Random], str]] = {  # slots whose pool has few numbers, for fresh tasks
    "MODE": lambda rng: rng.choice([f"{a}{b}{c}" for a in "467" for b in "0456" for c in "04" if a + b + c != "644"]),
    "DMODE": lambda rng: rng.choice([f"{a}7{b}{c}" for a in ("", "", "1") for b in "0157" for c in "01"]),
    "DAYS": lambda rng: str(rng.randint(7, 365)),
    "DATE": lambda rng: f"203{rng.randint(0, 9)}-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
}
MADE_UP = {  # slots with names -> the part that is made up in fresh tasks
    **{"DIR": "[a-z]+$", "NAME": "^[a-z]+"},
    **dict.fromkeys(("WORD", "USER", "GROUP", "EXT"), "[a-z]+"),
}
SLOT = re.compile(r"(?<![A-Z])(DIR|NAME|WORD|USER|GROUP|MODE|DMODE|NUM|ID|DAYS|DATE|SHELL|EXT)([2-9]?)(?![A-Z0-9])")
MARKS = "+ ", "$ ", "? "  # first character of a line -> its field
TRIES = 1000  # draws before a split counts as empty


class Python(str):
    """The text of a Python script; other scripts are in bash."""


@dataclass(frozen=True)
class Task:
    """An instruction, the machine's preparation, a solution, and the conditions at the end."""

    instruction: str
    init: tuple[str, ...]  # scripts that prepare the machine
    truth: tuple[str, ...]  # scripts that solve it, run in order
    conditions: tuple[str, ...]  # scripts that must exit with status 0; joined by && they are the evaluation
    skills: tuple[str, ...]  # the SKILLS that the solution uses, or a file's labels
    level: str = ""  # one of LEVELS, by the number of commands; "" for a task of a file
    answers: bool = False  # a question: conditions get the answer and earlier conditions' outputs as arguments
    match: tuple[str, str] | None = None  # ("answer", text) or ("regex", pattern), instead of conditions
    first: str = ""  # the instruction in its template's own words, where these are others
    fresh: bool = False  # its names are made up

    @property
    def key(self) -> str:
        """The canonical task: the instruction in its first wording, so that a held-out one is not read in training.

        A fresh task's also has the preparation, which reveals the values that the instruction does not.
        """
        said = self.first or self.instruction
        return "os_interaction:" + "\n".join((said, *self.init) if self.fresh else (said,))


@dataclass(frozen=True)
class Template:
    """A paragraph of TEMPLATES with unfilled slots."""

    instruction: str
    init: tuple[str, ...]
    truth: tuple[str, ...]
    conditions: tuple[str, ...]
    skills: tuple[str, ...]
    level: str

    def draw(self, rng: Random, fresh: bool = False) -> Task:
        """Draw a task: slots of one kind get distinct values. `fresh`: its names are made up."""
        values: dict[str, str] = {}
        taken: set[tuple[str, str]] = set()
        makers, made_up = (MADE | FRESH, MadeUp(rng)) if fresh else (MADE, None)

        def fill(found: re.Match) -> str:
            slot, kind = found[0], found[1]
            while slot not in values:
                value = makers[kind](rng) if kind in makers else rng.choice(WORDS[kind])
                if (kind, value) not in taken:
                    taken.add((kind, value))
                    values[slot] = made_up(value, MADE_UP[kind]) if made_up and kind in MADE_UP else value
            return values[slot]

        fields = wordings(self.instruction), self.init, self.truth, self.conditions
        said, init, truth, conditions = (tuple(SLOT.sub(fill, line) for line in lines) for lines in fields)
        return Task(rng.choice(said), init, truth, conditions, self.skills, self.level, first=said[0], fresh=fresh)


def parse(paragraph: str) -> Template:
    """Return the template of a paragraph."""
    lines = paragraph.split("\n")
    init, truth, conditions = (tuple(line[2:] for line in lines if line.startswith(mark)) for mark in MARKS)
    instruction = " ".join(line for line in lines if not line.startswith(MARKS))
    names = [name for line in truth for name in commands(line)]
    level = next(level for level, counts in LEVELS.items() if len(names) in counts)
    return Template(instruction, init, truth, conditions, tuple(sorted({*names} & {*SKILLS.split()})), level)


@cache
def templates(level: str) -> list[Template]:
    """Return all templates of a level."""
    return [template for template in map(parse, TEMPLATES.strip().split("\n\n")) if template.level == level]


def draw(rng: Random, level: str, split: str, fresh: bool = False) -> Task:
    """Draw a task of a level and a split."""
    template = rng.choice(templates(level))
    for _ in range(TRIES):
        task = template.draw(rng, fresh)
        if split_of(task.key) == split:
            return task
    raise Refusal(f"no task of level {level} is in split {split}: {template.instruction}")


def commands(line: str) -> list[str]:
    """Return the names of the commands in a line of bash, in order."""
    names, first = [], True
    tokens = shlex(line, posix=True, punctuation_chars=True)
    tokens.commenters = ""
    for token in tokens:
        if set(token) <= set("|&;()"):
            first = True
        elif first and token not in ("if", "do", "then", "else", "!", "{"):
            first = False
            if token not in ("for", "done", "fi", "}"):
                names.append(token)
    return names
