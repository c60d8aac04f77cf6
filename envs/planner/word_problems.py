"""Draw the planner's word problems from templates, and read those of GSM8K.

A template's numbers are drawn until every step has a whole, positive result.

A solution has GSM8K's format: one line per step with a calculator mark, and the answer after ####.
    Pens in the boxes: 3*12 = <<3*12=36>>36
    Pens left: 36-5 = <<36-5=31>>31
    #### 31
"""

import re
from dataclasses import dataclass
from random import Random

from envs.answers import marked_number
from envs.names import MadeUp
from envs.planner.arithmetic import LETTERS, plain, with_results, work_out
from envs.planner.templates import FIVE_OR_SIX, OBJECTS, THREE_OR_FOUR, TWO_STEPS
from envs.refusal import Refusal

TRIES = 100_000  # draws of numbers before a template counts as impossible
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivan", "June", "Kai", "Lena", "Milo", "Pia")
NOUNS = rf"(?i)\b(?:{'|'.join((*NAMES, *OBJECTS.split()))})(?=(?:e?s)?\b)"  # words that fresh problems replace
WIDER = 3  # factor of the largest numbers in fresh problems
MARK = re.compile(r"<<([^<>=]*)=[^<>]*>>")  # GSM8K's calculator mark


@dataclass(frozen=True)
class Problem:
    """A question and its solution."""

    task: str  # canonical: does not depend on the names in the text
    question: str
    answer: str  # the solution, in GSM8K's format
    truth: float  # the number after its ####
    steps: tuple[tuple[str, str], ...]  # (description, arithmetic); the last result is the truth


@dataclass(frozen=True)
class Template:
    """A family of problems; envs/planner/templates.py describes its parts."""

    name: str
    text: str
    ranges: dict[str, range]
    steps: tuple[tuple[str, str], ...]

    def draw(self, rng: Random, fresh: bool = False) -> Problem:
        """Draw a problem with whole, positive results. `fresh`: nouns are made up, and numbers go further."""
        who, other = rng.sample(NAMES, 2)
        ranges = {name: further(values) for name, values in self.ranges.items()} if fresh else self.ranges
        made_up = MadeUp(rng)
        for _ in range(TRIES):
            numbers = {name: rng.choice(values) for name, values in ranges.items()}
            steps = tuple((what, arithmetic.format(**numbers)) for what, arithmetic in self.steps)
            results = work_out([arithmetic for _, arithmetic in steps])
            if all(result is not None and result > 0 and result % 1 == 0 for result in results):
                break
        else:
            raise Refusal(f"template {self.name}: no numbers give whole, positive results")
        question = self.text.format(who=who, other=other, **numbers)
        if fresh:
            question = re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", made_up(question, NOUNS))
            steps = tuple((made_up(what, NOUNS), arithmetic) for what, arithmetic in steps)
        lines = []
        for (what, arithmetic), result in zip(steps, results, strict=True):
            shown = with_results(arithmetic, results)
            lines.append(f"{what[0].upper()}{what[1:]}: {shown} = <<{shown}={plain(result)}>>{plain(result)}")
        return Problem(
            task=":".join(map(str, ["planner", self.name, *numbers.values()])),
            question=question,
            answer="\n".join([*lines, f"#### {plain(results[-1])}"]),
            truth=results[-1],
            steps=steps,
        )


def further(numbers: range) -> range:
    """Return the numbers of a range and more, up to WIDER times the last one."""
    return range(numbers.start, WIDER * numbers[-1] + 1, numbers.step)


def of_row(row: dict) -> Problem | None:
    """Return the problem of a row of GSM8K; None if it has no question or no answer after ####.

    Its steps are the calculator marks, and the answer itself if the last mark does not give it.
    """
    question, answer = row.get("question"), row.get("answer")
    if not isinstance(question, str) or not isinstance(answer, str) or not question.strip():
        return None
    truth = marked_number(answer)
    if truth is None:
        return None
    marks = [mark.replace(" ", "") for mark in MARK.findall(answer)]
    steps = [mark for mark in marks if re.search("[-+*/]", mark) and work_out([mark])[0] is not None][-len(LETTERS) :]
    if not steps or abs(work_out(steps)[-1] - truth) >= 0.01:
        steps = [*steps[1 - len(LETTERS) :], ("0" if truth < 0 else "") + plain(truth)]
    return Problem(f"planner:{' '.join(question.split())}", question, answer, truth, tuple(("", s) for s in steps))


def _template(line: str) -> Template:
    """Return the template of a paragraph, joined to one line."""
    name, text, ranges, *steps = (part.strip() for part in line.split("|"))
    values = {}
    for part in ranges.split():
        letter, low, high, step = re.fullmatch(r"(\w)=(\d+)-(\d+)(?:/(\d+))?", part).groups()
        values[letter] = range(int(low), int(high) + 1, int(step or 1))
    return Template(name, text, values, tuple(tuple(step.split(": ")) for step in steps))


def _read(table: str) -> tuple[Template, ...]:
    """Return the templates of a table."""
    return tuple(_template(" ".join(paragraph.split())) for paragraph in table.strip().split("\n\n"))


LEVELS = {"1": _read(TWO_STEPS), "2": _read(THREE_OR_FOUR), "3": _read(FIVE_OR_SIX)}
