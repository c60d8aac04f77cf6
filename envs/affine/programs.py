"""Functions that abd and ded share: check their options, draw programs, and run them.

The templates' programs are ours, so `output` runs them in this process. Rows of a file and agents supply other
programs, which `execute` runs in the sandbox.
"""

from collections.abc import Callable, Iterator
from random import Random

from envs import base, common, rows
from envs.affine.templates import TEMPLATES, Program, Template
from envs.refusal import Refusal
from envs.simulators import sandbox

LEVELS = ("1", "2", "3")
MOST_SECONDS = 3600  # of a program
TRIES = 1000  # draws before a split counts as empty


def check_config(config, task_of_row: Callable[[dict], str], *needed: str) -> None:
    """Raise ValueError for a bad option that abd and ded share, or for bad rows in `data`.

    needed: the names that a file of prompt= must have in braces.
    """
    common.set_fields(config, difficulty=common.level_list(config.difficulty, LEVELS))
    for name in ("seconds", "cpu_seconds"):
        common.check_count(name, seconds := getattr(config, name))
        if seconds > MOST_SECONDS:
            raise Refusal(f"{name} must be at most {MOST_SECONDS}, not {seconds}")
    common.check_prompt(config.prompt, *needed)
    sandbox.start(config.sandbox)
    if config.data:
        rows.row_places(config.data, task_of_row)


def templates(level: int, functions: bool) -> list[Template]:
    """Return the templates of a level; those of functions only if `functions` is true."""
    return [t for t in TEMPLATES if t.level == level and (functions or not t.function)]


def draw(rng: Random, difficulty: str, split: str, functions: bool, fresh: bool = False) -> Iterator[Program]:
    """Yield programs of one random level until the caller stops at a program of the split.

    Raise ValueError after TRIES programs.
    """
    level = int(rng.choice(difficulty.split(",")))
    for _ in range(TRIES):
        yield rng.choice(templates(level, functions)).draw(rng, fresh)
    raise Refusal(f"no task of level {level} is in split {split}")


def execute(source: str, stdin: str, limits: sandbox.Limits, mode: str) -> sandbox.Run:
    """Run a program in the sandbox. Raise EnvironmentFailed if the sandbox itself fails."""
    try:
        return sandbox.execute(source, stdin, limits, mode)
    except sandbox.SandboxFailed as error:
        raise base.EnvironmentFailed(str(error)) from error


def line(text: str, which: int) -> str:
    """Return the first (0) or last (-1) non-blank line of a text, at most 200 characters."""
    lines = [line for line in text.splitlines() if line.strip()] or [""]
    return lines[which].strip()[:200]


class OutOfInput(Exception):
    """A template's program read more lines than its input has."""


def output(source: str, stdin: str) -> str:
    """Run a template's program in this process and return its output. Never pass it a program from elsewhere."""
    printed: list[str] = []
    given = iter(stdin.split("\n"))

    def read() -> str:
        try:
            return next(given)
        except StopIteration:
            raise OutOfInput(source) from None

    def write(*values, sep: str = " ") -> None:
        printed.append(sep.join(map(str, values)) + "\n")

    run = lambda source: exec(source, {"__name__": "__main__", "input": read, "print": write})  # noqa: E731
    run(source)
    if not printed and "def solve" in source:
        given = iter(stdin.split("\n"))
        run(source + sandbox.CALL_SOLVE)
    return "".join(printed)
