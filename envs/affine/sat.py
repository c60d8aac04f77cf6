"""SAT: find an assignment that satisfies a random k-SAT formula, in one reply.

Task.     `(x1 ∨ ¬x3) ∧ (¬x2 ∨ x3)`: a secret assignment of n variables is drawn, then int(ratio * n) clauses of k
          literals over distinct variables; the secret assignment makes one literal true, the others have random
          signs. So every formula is satisfiable. The levels of difficulty:
    1         3 variables, 5 clauses of 2; a random answer is right one time in three
    2         5 variables, 15 clauses of 3
    3         8 variables, 33 clauses of 3
    guide     10 to 20 variables, clauses of 3 to 5, 4.2 per variable: near the threshold for 3, with room for 4 and 5
    original  15 variables, 63 clauses of 10; a random answer is right 94 times in 100

Answers.  Any text. Every `x3=True`, `x3=False`, `x3=1` or `x3=0` in it counts, without spaces around the `=`; the
          last one for a variable wins, unknown variables are ignored. A missing variable makes neither x3 nor ¬x3
          true. `UNSAT` assigns nothing, so it is never right.

Replies.  4 of 5 clauses are satisfied.

Tasks.    panel: the variables are x1 to xn. fresh: their n numbers are drawn from 1 to max(15 - n, n + 1).

Prompts.  native: the formula in symbols; the expert answers `x1=True, x2=False, ...`.
          short: a line of ASCII for each clause, `1 -3` for (x1 ∨ ¬x3), in about a third of the tokens; the expert
          answers `x1=1 x2=0 ...`. Both prompts accept the same answers.

Reward.   1 when the answer satisfies every clause, with the secret assignment or another one, else 0. info["valid"]: a
          variable of the formula was assigned. info["shaped"]: the reward; a share of satisfied clauses would pay
          random answers 1 - 2 ** -k.

Ending.   Terminated by the first reply, whatever it is, with outcome "correct" or "incorrect".

From the SAT task of Affine's validators: level original has the same formulas for the same task ids. The differences:
- A hash of the set of clauses decides the split, so that no formula is in two splits in any order of writing. Seed s
  takes the first task id of s, s + 2**31, s + 2 * 2**31, ... whose formula is in the split: `Env.task_id`. Level 1 has
  about 1,450 formulas.
- The sizes vary. A random generator of their own draws them, so that the formula's draws are the original's.
- The native prompt's last line is in our words. At most nine digits of a variable's number are read.
"""

import re
from dataclasses import dataclass
from random import Random

from envs import common, prompt_file
from envs.base import Configured, Step
from envs.common import split_of
from envs.refusal import Refusal

LEVELS = {  # difficulty -> n, k, ratio
    "1": ("3", "2", "1.7"),
    "2": ("5", "3", "3"),
    "3": ("8", "3", "4.2"),
    "guide": ("10-20", "3-5", "4.2"),
    "original": ("15", "10", "4.26"),
}
NATIVE = """\
Find a satisfying assignment for the following {k}-SAT formula over variables {variables}:
{formula}
Answer with comma-separated assignments in the form `x{first}=True, x{second}=False, ...`, or with `UNSAT` \
if there are none."""
SHORT = """\
Reply x{first}=0 x{second}=1 and so on to x{last}. \
Make one in each line right: {second} is x{second}=1, -{second} is x{second}=0.
{formula}"""
ASSIGNMENT = re.compile(r"x(\d{1,9})=(True|False|1|0)")
STRIDE = 2**31  # distance of a seed's task ids, so that seeds below it share none
TRIES = 1000  # task ids before a split counts as empty; 0.9 ** 1000 is 1e-46


@dataclass(frozen=True)
class Config:
    difficulty: str = "guide"  # levels 1, 2, 3, guide, original, drawn uniformly from this list; repeats add weight
    n: str = ""  # variables, 15 or a range 10-20; empty: the level's
    k: str = ""  # literals per clause, 3 or a range 3-5; empty: the level's
    ratio: str = ""  # clauses per variable, 4.2 or a range 3.5-4.5; empty: the level's
    prompt: str = "native"  # "native": the formula in symbols; "short": a line of signed numbers for each clause
    tasks: str = "panel"  # "panel": variables x1 to xn; "fresh": other numbers of the variables for each seed

    def __post_init__(self):
        common.set_fields(self, difficulty=common.level_list(self.difficulty, LEVELS))
        common.set_fields(self, **{name: str(getattr(self, name)).replace(" ", "") for name in ("n", "k", "ratio")})
        for level in self.difficulty.split(","):
            n, k, ratio = self.sizes(level)
            if k[1] > n[0]:
                raise Refusal(f"k must be at most n: level {level} has k up to {k[1]} and n from {n[0]}")
            if int(ratio[0] * n[0]) < 1:
                raise Refusal(f"ratio must give a clause at least: {ratio[0]:g} times n={n[0]} gives none")
        common.check_prompt(self.prompt, "formula")
        common.check_tasks(self.tasks)

    def sizes(self, level: str) -> list[tuple]:
        """Return the lowest and the highest n, k and ratio at a level."""
        own = {"n": self.n, "k": self.k, "ratio": self.ratio}
        return [_range(name, text or default) for (name, text), default in zip(own.items(), LEVELS[level], strict=True)]


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config

    @property
    def task(self) -> str:
        """The canonical task: the set of clauses, in any order."""
        return canonical(self.clauses)

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's only turn."""
        common.check_split(split)
        rng = Random(f"sat {seed}")
        n, k, ratio = self.config.sizes(rng.choice(self.config.difficulty.split(",")))
        n, k, ratio = rng.randint(*n), rng.randint(*k), rng.uniform(*ratio)
        for task_id in range(seed, seed + TRIES * STRIDE, STRIDE):
            secret, clauses = formula(task_id, n, k, int(ratio * n))
            if self.config.tasks == "fresh":
                secret, clauses = renumbered(secret, clauses, Random(f"sat numbers {task_id}"))
            if split_of(canonical(clauses)) == split:
                break
        else:
            raise Refusal(f"no formula of n={n}, k={k}, ratio={ratio:g} is in split {split}: there are too few")
        self.task_id, self.secret, self.clauses = task_id, secret, clauses
        self.running = True
        first, second = [*secret, n + 1][:2]
        said = {"first": first, "second": second, "last": max(secret)}
        if self.config.prompt == "short":
            content = SHORT.format(**said, formula="\n".join(" ".join(map(str, clause)) for clause in clauses))
        else:
            every = ", ".join(f"x{variable}" for variable in secret) if self.config.tasks == "fresh" else f"x1..x{n}"
            symbols = " ∧ ".join(map(_symbols, clauses))
            said |= {"variables": every, "n": n, "k": k, "formula": symbols}
            content = prompt_file.filled(self.config.prompt, NATIVE, **said)
        return [{"role": "user", "content": content}]

    def step(self, action_text: str) -> Step:
        """Grade the agent's answer; the episode is over."""
        common.check_running(self.running)
        self.running = False
        pairs = ((int(found[1]), found[2] in ("True", "1")) for found in ASSIGNMENT.finditer(action_text))
        said = {variable: value for variable, value in pairs if variable in self.secret}
        satisfied = sum(any(said.get(abs(literal)) == (literal > 0) for literal in clause) for clause in self.clauses)
        won = satisfied == len(self.clauses)
        return common.only_step(f"{satisfied} of {len(self.clauses)} clauses are satisfied.", won, bool(said))

    def oracle(self) -> str:
        """Return an expert's reply: the secret assignment."""
        common.check_running(self.running)
        if self.config.prompt == "short":
            return " ".join(f"x{variable}={int(value)}" for variable, value in self.secret.items())
        return ", ".join(f"x{variable}={value}" for variable, value in self.secret.items())


def formula(task_id: int, n: int, k: int, m: int) -> tuple[dict[int, bool], list[list[int]]]:
    """Return the secret assignment and the m clauses of a task id; a literal is 3 for x3, -3 for ¬x3.

    The draws have the original's order, which makes the formulas equal: the values of the variables; for each clause
    its variables, the one that the secret assignment makes true, and the signs of the others.
    """
    rng = Random(task_id)
    secret = {variable: rng.choice((True, False)) for variable in range(1, n + 1)}
    clauses = []
    for _ in range(m):
        variables = rng.sample(range(1, n + 1), k)
        sure = rng.choice(variables)
        signs = [secret[sure] if variable == sure else rng.choice((True, False)) for variable in variables]
        clauses.append([variable if sign else -variable for variable, sign in zip(variables, signs, strict=True)])
    return secret, clauses


def renumbered(secret: dict[int, bool], clauses: list[list[int]], rng: Random) -> tuple[dict, list[list[int]]]:
    """Return the assignment and the clauses with other numbers for the variables, in the same order."""
    n = len(secret)
    numbers = sorted(rng.sample(range(1, max(15 - n, n + 1) + 1), n))  # few variables make few formulas: a wider range
    signed = [[numbers[abs(literal) - 1] * (1 if literal > 0 else -1) for literal in clause] for clause in clauses]
    return dict(zip(numbers, secret.values(), strict=True)), signed


def canonical(clauses: list[list[int]]) -> str:
    """Return a string that does not depend on the order of clauses and literals."""
    return f"sat:{sorted(set(map(tuple, map(sorted, clauses))))}"


def _symbols(clause: list[int]) -> str:
    return "(" + " \N{LOGICAL OR} ".join(f"x{literal}" if literal > 0 else f"¬x{-literal}" for literal in clause) + ")"


def _range(name: str, text: str) -> tuple:
    """Return the lowest and highest value of a size: 10 and 20 for "10-20", 15 and 15 for "15"."""
    low, dash, high = text.partition("-")
    number = float if name == "ratio" else int
    try:
        bounds = number(low), number(high if dash else low)
    except ValueError:
        bounds = 0, 0
    if not 0 < bounds[0] <= bounds[1] < 1000:
        what = "number above 0 and below 1000" if number is float else "whole number from 1 to 999"
        raise Refusal(f"{name} must be a {what}, or a range such as 3-5, not {text!r}")
    return bounds
