"""Sums: add two numbers, in one reply: for the first minutes with a pretrained model.

Task.     `What is 17 + 25?` The numbers are 0 to 29 at level 1, 10 to 69 at level 2, 0 to 99 at level 3.

Right.    The number in the reply (envs/answers.py: behind the last mark that has one, else the last) is the sum.

Replies.  Score: 1

Reward.   1 or 0. info["shaped"]: the reward. info["valid"]: the reply has a number.

Ending.   Terminated by the first reply, with outcome "correct" or "incorrect".

Splits.   By a hash of the two numbers in either order, so that 25 + 17 is held out where 17 + 25 is.

Expert.   The sum.
"""

from dataclasses import dataclass
from random import Random

from envs import common, prompt_file
from envs.answers import final_number
from envs.base import Configured, Step
from envs.common import split_of

LEVELS = {"1": range(30), "2": range(10, 70), "3": range(100)}  # difficulty -> the numbers
NATIVE = "What is {sum}?"
SHORT = "{sum}="


@dataclass(frozen=True)
class Config:
    difficulty: str = "2"  # levels 1 to 3, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    prompt: str = "native"  # "native": a question in words; "short": the sum and an equals sign

    def __post_init__(self):
        common.set_fields(self, difficulty=common.level_list(self.difficulty, LEVELS))
        common.check_prompt(self.prompt, "sum")


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config

    @property
    def task(self) -> str:
        """The canonical task: the two numbers, the smaller one first."""
        return canonical(*self.numbers)

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the message up to the agent's only turn."""
        common.check_split(split)
        rng = Random(f"sums {split} {seed}")
        numbers = LEVELS[rng.choice(self.config.difficulty.split(","))]
        self.numbers = rng.choice(numbers), rng.choice(numbers)
        while split_of(self.task) != split:  # each level has sums of every split
            self.numbers = rng.choice(numbers), rng.choice(numbers)
        self.running = True
        form = SHORT if self.config.prompt == "short" else NATIVE
        content = prompt_file.filled(self.config.prompt, form, sum="{} + {}".format(*self.numbers))
        return [{"role": "user", "content": content}]

    def step(self, action_text: str) -> Step:
        """Grade the reply; the episode is over."""
        common.check_running(self.running)
        self.running, number = False, final_number(action_text)
        won = number == sum(self.numbers)
        return common.only_step(f"Score: {int(won)}", won, number is not None)

    def oracle(self) -> str:
        """Return the sum."""
        common.check_running(self.running)
        return str(sum(self.numbers))


def canonical(first: int, second: int) -> str:
    """Return the canonical text of a sum, whose hash decides the split."""
    return f"sums:{min(first, second)}+{max(first, second)}"
