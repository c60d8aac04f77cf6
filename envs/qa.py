r"""QA: answer a question of your own file, in one reply. A rule, or a function of yours, says whether it is right.

Task.     A row of `data`, such as {"question": "2+2?", "answer": "4"}; envs/rows.py has the forms of files. The column
          `prompt_column` is a text, or OpenAI's messages up to the agent's turn; a row without it may have `messages`.
          The agent sees nothing else: system_prompt= adds instructions.

Right.    match=text              The reply is the answer, but for white space and capitals.
          match=number            The numbers are equal, as envs/answers.py reads them: behind the last `####` or
                                  `\boxed{`; without such a mark the last one of the reply, and the only one of the
                                  answer. What is ambiguous, such as 1,5, is no number. A row whose answer has none is
                                  left out, and a line counts these rows.
          match=FILE.py:FUNCTION  Your own function decides, def score(reply: str, row: dict) -> float, from 0 to 1,
                                  which is right. `row` is the whole row, `reply` a text without thoughts. A function
                                  that fails, or returns anything else, breaks the environment: the episode is left out.

Replies.  Score: 1

Reward.   The score: 1 or 0 by a rule, 0 to 1 by a function. info["shaped"]: the reward. info["valid"]: the reply is not
          blank and, with match=number, has a number.

Ending.   Terminated by the first reply, whatever it is, with outcome "correct" for a score of 1, else "incorrect".

Splits.   By a hash of the question, whatever its white space; splits=own plays a folder's files. The seeds 0, 1, 2, ...
          play each question of a split once, in the order of the file. Of rows with the same question the first counts.

Expert.   The answer column, as it is.
"""

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import isfinite

from envs import common, rows, scorer
from envs.answers import answer_number, final_number, plain_text
from envs.base import Step
from envs.conversations import LISTS, conversation, without_flag
from envs.own_splits import OwnSplits, check_splits, file_of, files_of
from envs.read_once import read_once
from envs.refusal import Refusal

RULES = {"text": (plain_text, plain_text), "number": (final_number, answer_number)}  # of match=: what must be equal,
# read from a reply and from the answer
NO_ANSWER = "NaN or an infinity as its answer"
NO_NUMBER = r"no number in its answer, or several without #### or \boxed{} (match=text compares texts)"
NEEDED = 'env=qa asks the questions of your own file: qa.data=rows.jsonl, rows as {"question": "2+2?", "answer": "4"}'


@dataclass(frozen=True)
class Config:
    data: str = ""  # a file of questions, with a row in each line
    splits: str = "hash"  # of data: "hash" of the question; "own": a folder's train.jsonl, test.jsonl, or a whole file
    prompt_column: str = "question"  # column of the question, a text or messages; a row without it may have `messages`
    answer_column: str = "answer"  # column of the right answer, a text or a number
    match: str = "text"  # a reply is right by: text, all of it | number, the last one | FILE.py:FUNCTION, your own code

    def __post_init__(self):
        if scorer.file_of(self.match):
            scorer.load(self.match)
        elif self.match not in RULES:
            raise Refusal(f"match must be text, number or FILE.py:FUNCTION, not {self.match!r}")
        if self.prompt_column == self.answer_column:
            raise Refusal(f"prompt_column and answer_column are both {self.answer_column!r}: the question is no answer")
        check_splits(self)
        for path in set(files_of(self.data).values()) if self.data else ():
            rows.row_places(path, reader(self), once=True)
            say_unread(self, path)


class Env(OwnSplits):
    """Play one episode at a time; the module's docstring is the specification."""

    def __init__(self, config: Config | None = None):
        if not config or not config.data:
            raise Refusal(NEEDED)
        super().__init__(config)
        self.read = reader(config)

    def own_tasks(self, split: str) -> list[int]:
        """Return the places of a split's rows. Raise ValueError if it has none."""
        path = file_of(self.config.data, split)
        if self.config.splits == "own":
            return rows.places_in_order(path, self.read, once=True)
        return rows.of_split(path, rows.row_places(path, self.read, once=True), split)

    def count(self, split: str) -> int:
        """Return the number of questions of a split."""
        return len(self.own_tasks(split))

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's only turn."""
        common.check_split(split)
        self.row = rows.row_of(file_of(self.config.data, split), self.own_task(seed, split))
        self.task, self.running = self.read(self.row), True
        return messages_of(self.row, self.config.prompt_column)

    def step(self, action_text: str) -> Step:
        """Score the reply; the episode is over."""
        common.check_running(self.running)
        self.running, rules = False, RULES.get(self.config.match)
        valid = bool(action_text.strip())
        if rules:
            of_reply, of_answer = rules
            said = of_reply(action_text)
            valid = valid and said is not None
            score = float(said is not None and said == of_answer(answer_of(self.row, self.config.answer_column)))
        else:
            score = scorer.score(self.config.match, action_text, self.row)
        info = common.step_info(score == 1, True, False, valid, score)
        return Step(f"Score: {score:g}", score, True, False, info)

    def oracle(self) -> str:
        """Return the answer. Raise RuntimeError for a row without one, which only a function can judge."""
        common.check_running(self.running)
        try:
            return answer_of(self.row, self.config.answer_column)
        except ValueError as error:
            raise RuntimeError(f"there is no expert for a row of {self.config.data}: {error}") from None


@read_once
def say_unread(config: Config, path: str) -> None:
    """Print the columns that a rule does not read, with how many rows have them; a function reads what it wants."""
    if config.match not in RULES:
        return
    unread = Counter(name for _, _, row in rows.each_row(path) for name in conversation(row, config.prompt_column)[1])
    del unread[config.answer_column]
    if unread:
        names = ", ".join(f"{name!r} ({count:,} rows)" for name, count in sorted(unread.most_common(12)))
        print(f"data: columns of {path} that are not read: {names}", file=sys.stderr)


@lru_cache
def reader(config: Config) -> Callable[[dict], str]:
    """Return `task_of_row` for these settings, the same object for equal ones, which thereby share a scan."""
    return partial(task_of_row, config)


def task_of_row(config: Config, row: dict) -> str:
    """Return a row's canonical task, the words of its question. Raise ValueError if it has not what `match` needs,
    and LeftOut if its answer should be a number and is none."""
    messages = messages_of(row, config.prompt_column)
    if config.match in RULES:
        answer = answer_of(row, config.answer_column)
        if RULES[config.match][1](answer) is None:
            raise rows.LeftOut(NO_NUMBER)
    return f"qa:{' '.join(word for message in messages for word in message['content'].split())}"


def messages_of(row: dict, column: str) -> list[dict]:
    """Return a row's question as messages. Raise ValueError if it has none."""
    if row.get(column) is None and not any(row.get(name) for name in LISTS):
        raise missing(row, "prompt_column", column)
    messages, _ = conversation(row, column)
    if messages[-1]["role"] != "user" or not messages[-1]["content"].strip():
        raise Refusal(f"its question must end with words of the user, not {str(messages[-1:])[-80:]!r}")
    return [without_flag(message) for message in messages]


def answer_of(row: dict, column: str) -> str:
    """Return a row's answer as a text. Raise ValueError if it has none that is a text or a number, LeftOut for NaN and
    infinities."""
    answer = row.get(column)
    if answer is None:
        raise missing(row, "answer_column", column)
    if isinstance(answer, float) and not isfinite(answer):  # as pandas writes an answer that is missing
        raise rows.LeftOut(NO_ANSWER)
    if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not str(answer).strip():
        raise Refusal(f"its answer must be a text or a number, not {str(answer)[:80]!r}")
    # A column of whole numbers, of which one was missing, comes from pandas as 42.0; nobody replies so.
    return str(int(answer)) if isinstance(answer, float) and answer.is_integer() else str(answer)


def missing(row: dict, option: str, column: str) -> ValueError:
    """Return the error for a row without a column; it names the columns that there are."""
    if column in row:
        return ValueError(f"its {column!r} is null: leave the row out")
    known = [repr(name)[1:-1][:80] for name in list(row)[:20]]
    return ValueError(f"it has no {column!r}; {option}= names the column; {common.nearest(column, known)}")
