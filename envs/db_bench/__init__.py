"""DB Bench: answer a question about a table, or change the table, through SQL statements to a MySQL database.

Task.     An instruction, the name of a table and its columns. Each task needs one of 22 skills, from `select` to
          `subquery_nested`; the skill is drawn first. The levels of difficulty:
    1         a table of 4 columns and 4 to 6 rows; a terse instruction with fixed wording
    2         5 columns, 8 to 12 rows; whole sentences with fixed wording
    3         5 or 6 columns with a day among them, 20 to 40 rows; sentences that vary
          With `tasks=fresh` the names of the table and its columns and the words in its rows are made up for each task,
          as long as the panel's.

Actions.  native: the first of `Action: Operation` and `Action: Answer` in the reply
    Action: Operation                    runs the first ```sql block, its fences on lines of their own; line ends become
                                         spaces
    Action: Answer                       gives the rest of the first line that begins with `Final Answer:`
          short:
    answer [('Ann', 3)]                  the first line of the reply
    SELECT name FROM pets                any other first line is SQL
          SQL is split at every `;`, even inside strings, and the parts run up to the first that fails.

Replies.  The rows of the last part, or the error. envs/simulators/mysql lists the SQL that it supports.
    [('Ann', Decimal('3.5000'))]         a Python list; [] after a change; at most 8,000 characters
    1146 (42S02): Table 'pets.cats' doesn't exist

Answers.  A question: the true rows in parentheses, in the true order; at level 1 groups in any order, since their
          instructions name none. A number is right within 1e-6, also as
          Decimal('...'), in quotes, with $ before or % after it. A string must be equal, with or without quotes. A
          single row needs no parentheses: `Ann, 3`. No rows: only square brackets, quotes and blanks. A string that
          contains a comma or a parenthesis cannot be answered; generated tasks have none.
          A change: any answer; the table's state decides, by a hash of its rows in any order.
          strict=false grades as the original does, with its two bugs: if the truth has no rows, any answer without
          parentheses passes; and one character on each side of a number is kept, so that `'5'`, `$5` and `5%` are
          wrong, `x 5` and `5 dollars` right.

Prompts.  native: instructions, an "OK.", the task. short: one message, an instruction line and the task. tools=native:
          one message, and the tools sql(statement) and answer(rows); a malformed call ends the episode as a native
          reply without an action does.

Reward.   1 if the answer or the state is right; -0.1 if it is wrong or the reply has no action; -0.3 at the turn
          limit, even if the state is right. These are the guide's rewards. info["shaped"], which reward.rule=shaped
          pays, adds 0.3 the first time that a statement returns the right rows or makes the right state.

Ending.   Terminated by an answer, and in the native form by a reply without an action, outcome "correct" or
          "incorrect"; truncated, outcome "timeout", after `max_turns` statements. info["status"] and
          info["finish_reason"] are LifelongAgentBench's: running, completed, agent_validation_failed,
          task_limit_reached.

From LifelongAgentBench's db_bench and the single-skill variant of the guide. The differences:
- The tasks come from our templates (tasks.py); `data=` reads the original's file, its rows on Hugging Face as JSON or
  JSON Lines, or {skill: [entry, ...]}. A skill is drawn first, then one of its tasks; an entry of several skills is a
  task of each, and `single_skill=true` leaves it out as the guide does. `select`, a label of every query, counts alone.
- A hash of the true SQL decides the split, in a fresh task also its rows; `splits=own` plays a whole file in order.
- After max_turns statements the original requests one more reply, which it does not execute; here the episode ends. The
  original also counts a change as correct if the next reply is malformed; the guide does not, nor do we.
- The instructions are in our words. The hash is not cut at 1,024 characters, as MySQL's GROUP_CONCAT does.
"""

import math
import re
import sqlite3
from dataclasses import dataclass
from difflib import get_close_matches
from random import Random

from envs import common
from envs.answers import PLAIN
from envs.base import Step
from envs.db_bench.tasks import LEVELS, SKILLS, Task, draw, literal, read_in_order, read_tasks
from envs.own_splits import OwnSplits, check_splits, file_of, files_of
from envs.refusal import Refusal
from envs.simulators.mysql import Database, MySQLError, digest
from envs.tools import INVALID, TEXT, Malformed, call_of, check_tools, function, known_call

INSTRUCTIONS = """\
You work with a MySQL database. You are given a question about one table, or a change to make in it. Think first, then \
choose one of two actions. To run one statement, written on one line:
Action: Operation
```sql
SELECT name FROM staff WHERE id = 1;
```
You are shown the rows that MySQL finds, or its error. To finish:
Action: Answer
Final Answer: [(1, 'Ann Lee', 'sales'), (4, 'Bo Cruz', 'sales')]
The answer is the list of rows that the question asks for, in their order and with their columns. After a change it \
may be anything: what counts is the table. A reply in any other form ends the task as failed, and so does having no \
answer after {limit} statements."""
AGREED = "OK."
WITH_TOOLS = """\
You work with a MySQL database. You are given a question about one table, or a change to make in it. Call one tool in \
each reply. A reply without a well-formed call, or {limit} statements without an answer, end the task as failed.

{task}"""
TOOLS = [
    function("sql", "Run one statement. Returns the rows that MySQL finds, or its error.", statement=TEXT),
    function(
        "answer",
        "Finish with the rows that the question asks for, in their order and with their columns. After a change they "
        "may be anything: what counts is the table.",
        rows={**TEXT, "description": "Such as [(1, 'Ann Lee', 'sales'), (4, 'Bo Cruz', 'sales')]."},
    ),
]
SHORT = "Reply with SQL, or with answer and the rows it found."
ACTION = r"Action: (Operation|Answer)"
BLOCK = r"```sql\n([\s\S]*?)\n```"
FINAL = r"\nFinal Answer:(.*)"
MAX_REPLY = 8_000  # most characters of rows shown
FOUND = 0.3  # shaped reward for the right rows or the right state, paid once
NUMBER = re.compile(PLAIN, re.ASCII)


@dataclass(frozen=True)
class Config:
    difficulty: str = "3"  # levels 1 to 3, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    tasks: str = "panel"  # generated tasks: "panel", known tables; "fresh", a table with made-up words for each seed
    skill: str = ""  # a comma list of the 22 skills to draw from; empty: all
    data: str = ""  # LifelongAgentBench's entries, its rows on Hugging Face, or {skill: [entry, ...]}; empty: generated
    splits: str = "hash"  # of data: "hash" of the SQL; "own": a folder's train.json, test.json, or a whole file
    single_skill: bool = False  # of data, leave out entries of several skills; `select`, which every query has, is none
    strict: bool = True  # grade answers without the original's two bugs
    max_turns: int = 3  # statements before the episode is truncated
    prompt: str = "native"  # "native": instructions and Action replies; "short": one message, bare SQL
    tools: str = "none"  # "native": actions are calls of tools in the checkpoint's own format; "none": text

    def __post_init__(self):
        common.check_options(self, LEVELS)
        common.check_tasks(self.tasks, self.data)
        check_tools(self.tools, self.prompt)
        common.set_fields(self, skill=str(self.skill).replace(" ", ""))
        for skill in filter(None, self.skill.split(",")):
            if skill not in SKILLS and not self.data:
                close = get_close_matches(skill, SKILLS, n=1, cutoff=0)
                raise Refusal(
                    f"skill must be a comma list of the 22 skills, not {skill!r}; the nearest is {close[0]!r}"
                )
        if self.skill and not any(self.skill.split(",")):
            raise Refusal(f"skill must be a comma list of skills, or empty for all, not {self.skill!r}")
        check_splits(self)
        if self.splits == "own":
            if self.skill or self.single_skill:
                raise Refusal(
                    "splits=own plays every task of data, whatever its skills: leave skill= and single_skill= out"
                )
            for path in files_of(self.data).values():
                read_in_order(path)
        elif self.data:
            read_tasks(self.data, self.single_skill)


class Env(OwnSplits):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config
    timeout_reward, pays_below_0 = -0.3, True

    def __init__(self, config: Config | None = None):
        super().__init__(config)
        hashed = self.config.data and self.config.splits == "hash"
        self.tasks = read_tasks(self.config.data, self.config.single_skill) if hashed else None
        if self.config.tools == "native":
            self.tools, self.role = TOOLS, "tool"
        self.database = Database()

    @property
    def task(self) -> str:
        """The canonical task: the table's name and the SQL of the truth, of a fresh task also its rows."""
        return self.goal.canonical

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        own = self.config.splits == "own"
        self.begin(self.own_task(seed, split) if own else self._draw(Random(f"db_bench {split} {seed}"), split))
        short = f"{SHORT}\n{self.goal.table}: {', '.join(name for name, _ in self.goal.columns)}"
        said = self.goal.instruction
        if self.tools:
            content = WITH_TOOLS.format(limit=self.config.max_turns, task=said)
            return [{"role": "user", "content": content, "tools": self.tools}]
        if self.config.prompt == "short":  # the line above already names the table and its columns
            said = said.partition("\nThe name of this table is")[0]
        return common.opening(self.config.prompt, said, INSTRUCTIONS.format(limit=self.config.max_turns), AGREED, short)

    def begin(self, task: Task) -> None:
        """Start the episode of a task. Raise ValueError for one of a file whose table cannot be made."""
        self.goal = task
        try:
            self.database.load(task.table, task.columns, task.rows)
        except sqlite3.Error as error:
            raise Refusal(f"data: the table {task.table[:60]!r} cannot be made: {error}") from None
        self.turns, self.found, self.tried = 0, False, False
        self.running = True

    def step(self, action_text: str) -> Step:
        """Run the agent's statement, or grade its answer."""
        common.check_running(self.running)
        self.turns += 1
        verb, argument = self._read(action_text)
        valid, shaped, status, reason = verb != "fail", 0.0, "running", None
        observation = argument
        if verb == "sql":
            rows, observation = self._run(argument)
            valid = rows is not None
            shaped = self._progress(rows)
        won = verb == "answer" and self._right(argument)
        terminated = verb != "sql"
        truncated = not terminated and self.turns >= self.config.max_turns
        if terminated:
            status = "completed" if verb == "answer" else "agent_validation_failed"
            observation, reason = ("", None) if verb == "answer" else (argument, argument)
        elif truncated:
            status, reason = "task_limit_reached", f"Task limit reached. The limit is {self.config.max_turns}."
        self.running = not (terminated or truncated)
        reward = 1.0 if won else -0.1 if terminated else self.timeout_reward if truncated else 0.0
        info = common.step_info(won, terminated, truncated, valid, reward + shaped)
        info |= {"status": status, "finish_reason": reason}
        return Step(observation, reward, terminated, truncated, info)

    def oracle(self) -> str:
        """Return an expert's reply in the current state: the true SQL, then its rows."""
        common.check_running(self.running)
        if self.goal.answer is None and self._state_right():
            return self._answer([])
        if self.goal.answer is not None and (self.tried or not self._untouched()):
            return self._answer(self.goal.answer)
        if self._untouched():
            return self._operation("I run the statement that the task asks for.", self.goal.sql)
        return self._operation("The table is not as it was; I put the right rows in it.", self._repair())

    def action_of(self, content: str, calls: list[dict]) -> str:
        """Return the line of the short form that a call means. Raise Malformed for a wrong call."""
        name, given = known_call(calls, TOOLS)
        if name == "answer":
            return "answer " + " ".join(given["rows"].splitlines())
        statement = " ".join(given["statement"].split("\n")).strip()
        if read_short(statement)[0] == "answer" or statement.startswith(INVALID):
            raise Malformed("a statement must be SQL; answer is a tool of its own")
        return statement

    def calls_of(self, action: str) -> tuple[str, list[dict]]:
        """Return the call of an expert's line."""
        verb, argument = read_short(action)
        return call_of("answer", rows=argument) if verb == "answer" else call_of("sql", statement=argument)

    def own_tasks(self, split: str) -> list[Task]:
        """Return the tasks of the data set's own split, in its order."""
        return read_in_order(file_of(self.config.data, split))

    def _draw(self, rng: Random, split: str) -> Task:
        """Return a generated task or one of the file."""
        skills = [skill for skill in self.config.skill.split(",") if skill]
        if self.tasks is None:
            skill, level = rng.choice(skills or SKILLS), rng.choice(self.config.difficulty.split(","))
            return draw(rng, skill, level, split, self.database, self.config.tasks == "fresh")
        there = [skill for skill in self.tasks[split] if skill in skills or not skills]
        if not there:
            raise Refusal(
                f"data: {self.config.data!r} has no task of {self.config.skill or 'any skill'} in split {split}"
            )
        return rng.choice(self.tasks[split][rng.choice(there)])

    def _run(self, sql: str) -> tuple[list | None, str]:
        """Run SQL. Return the rows of the last statement (None after an error) and the observation."""
        try:
            rows = self.database.run(sql)
        except MySQLError as error:
            return None, str(error)
        text = str(rows)
        return rows, text if len(text) <= MAX_REPLY else text[:MAX_REPLY] + "..."

    def _progress(self, rows: list | None) -> float:
        """Return the shaped reward of a statement: for the right rows or the right state, paid once."""
        if self.goal.answer is None:
            right = rows is not None and self._state_right()
        else:
            right = rows is not None and same(rows, self.goal.answer, self.goal.any_order)
        self.tried = self.tried or right
        if self.found or not right:
            return 0.0
        self.found = True
        return FOUND

    def _right(self, answer: str) -> bool:
        """Return whether the answer, or for a change the table, is right."""
        if self.goal.answer is None:
            return self._state_right()
        return matches(answer, self.goal.answer, self.config.strict, self.goal.any_order)

    def _state_right(self) -> bool:
        """Return whether the table equals the one after the true SQL."""
        rows = self._rows()
        return rows is not None and digest(rows) == self.goal.state

    def _untouched(self) -> bool:
        """Return whether the table is as it was at the start."""
        return not self.turns or (self._rows() == [tuple(row) for row in self.goal.rows] and self._as_defined())

    def _as_defined(self) -> bool:
        """Return whether the table has the columns and keys of the start."""
        start = Database().load(self.goal.table, self.goal.columns, [])
        try:
            return self.database.definition() == start.definition()
        except MySQLError:
            return False

    def _rows(self) -> list[tuple] | None:
        """Return the rows of the task's table; None if a statement dropped or renamed it."""
        try:
            return self.database.rows()
        except MySQLError:
            return None

    def _repair(self) -> str:
        """Return statements that bring the table from any state into the right one."""
        fresh = Database().load(self.goal.table, self.goal.columns, self.goal.rows)
        fresh.run(self.goal.sql)
        rows = ", ".join(map(literal, fresh.rows()))
        table = f"`{self.goal.table}`"
        columns = ", ".join(f"`{name}` {kind}" for name, kind in self.goal.columns)
        anew = f"DROP TABLE IF EXISTS {table}; CREATE TABLE {table} ({columns})"
        begin = f"DELETE FROM {table}" if self._as_defined() else anew
        return begin + (f"; INSERT INTO {table} VALUES {rows}" if rows else "")

    def _read(self, reply: str) -> tuple[str, str]:
        """Return a reply's action (sql, answer or fail) and its argument."""
        if self.tools and reply.startswith(INVALID):
            return "fail", reply
        return (read_short if common.form_of(self.config) == "short" else read_native)(reply)

    def _operation(self, thought: str, sql: str) -> str:
        return sql if common.form_of(self.config) == "short" else f"{thought}\nAction: Operation\n```sql\n{sql}\n```"

    def _answer(self, rows: list) -> str:
        if common.form_of(self.config) == "short":
            return f"answer {rows}"
        thought = "These are the rows." if rows else "That is done."
        return f"{thought}\nAction: Answer\nFinal Answer: {rows}"


def read_native(reply: str) -> tuple[str, str]:
    """Return a native reply's action (sql, answer or fail) and its argument: the SQL, the answer, or the reason."""
    action = re.search(ACTION, reply)
    if not action:
        return "fail", f"Can not find action in agent response. Pattern: {ACTION}"
    if action[1] == "Answer":
        answer = re.search(FINAL, reply)
        if answer:
            return "answer", answer[1]
        return "fail", f"Can not find final answer in agent response. Pattern: {FINAL}"
    start = reply.find("```sql\n") + len("```sql\n")
    end = reply.find("\n```", start)
    if start < len("```sql\n") or end < 0:
        return "fail", f"Can not find SQL in agent response. Pattern: {BLOCK}"
    return "sql", reply[start:end].strip().replace("\n", " ")


def read_short(reply: str) -> tuple[str, str]:
    """Return a short reply's action (sql or answer) and its argument."""
    line = reply.strip().partition("\n")[0]
    word, _, rest = line.partition(" ")
    return ("answer", rest) if word.lower().rstrip(":") == "answer" else ("sql", line)


def same(rows: list, truth: list, any_order: bool = False) -> bool:
    """Return whether rows equal the true ones."""
    return paired([[str(value) for value in row] for row in rows], truth, True, any_order)


def paired(rows: list[list[str]], truth: list, strict: bool, any_order: bool) -> bool:
    """Return whether each row has the values of a true row of its own, the one at its place unless `any_order`."""
    left = list(truth)
    for row in rows:
        right = next((right for right in (left if any_order else left[:1]) if is_row(row, right, strict)), None)
        if right is None:
            return False
        left.remove(right)
    return not left


def is_row(row: list[str], right: tuple, strict: bool) -> bool:
    """Return whether the values of a row are the true ones."""
    return len(row) == len(right) and all(equal(value, true, strict) for value, true in zip(row, right, strict=True))


def matches(answer: str, truth: list, strict: bool = True, any_order: bool = False) -> bool:
    """Return whether an answer's text lists the true rows, in order unless `any_order`."""
    rows = rows_in(answer)
    if rows is None:
        return False
    if not rows and not truth:
        return not strict or not answer.strip(" []'\"\t\r")
    if not rows and len(truth) == 1:
        rows = [answer.strip().removeprefix("[").removesuffix("]")]
    parts = [text.split(",") for text in rows]
    for row in parts:
        if truth and len(row) == len(truth[0]) + 1 and not row[-1].strip():  # (5,)
            row.pop()
    return paired([[part.strip() for part in row] for row in parts], truth, strict, any_order)


def rows_in(answer: str) -> list[str] | None:
    """Return the content of each pair of parentheses except Decimal's; None if they are unbalanced."""
    rows, start, inside = [], None, False
    for mark in re.finditer(r"Decimal\(|[()]", answer):
        if mark[0] == "Decimal(" and not inside:
            inside = True
        elif mark[0] == ")" and inside:
            inside = False
        elif mark[0] == "(" and start is None and not inside:
            start = mark.end()
        elif mark[0] == ")" and start is not None:
            rows.append(answer[start : mark.start()])
            start = None
        else:
            return None
    return None if inside or start is not None else rows


def equal(text: str, right, strict: bool) -> bool:
    """Return whether one value of an answer is right: numbers approximately, strings exactly, quotes optional."""
    if right is None:
        return text.strip("'\"") in ("None", "NULL")
    if isinstance(right, str):
        return unquoted(text) == right
    if text.startswith("Decimal(") and text.endswith(")"):
        text = unquoted(text[len("Decimal(") : -1])
    number = plain(text) if strict else stripped(text)
    return bool(NUMBER.fullmatch(number)) and math.isclose(float(number), float(right), rel_tol=1e-6, abs_tol=1e-6)


def unquoted(text: str) -> str:
    """Return a text without a quote at either end."""
    text = text[1:] if text[:1] in ("'", '"') else text
    return text[:-1] if text[-1:] in ("'", '"') else text


def plain(text: str) -> str:
    """Return a number's text without quotes, $ and %."""
    return unquoted(text).strip().removeprefix("$").removesuffix("%").strip()


def stripped(text: str) -> str:
    """Return a number's text as the original cleans it: its digits, and one more character on each side."""
    digits = [i for i, sign in enumerate(text) if sign.isdigit()]
    return text[max(0, digits[0] - 1) : digits[-1] + 2].strip() if digits else text
