"""DED: write a program for a task in words, in one reply.

Task.     A task in words, for a program that reads stdin and prints, or for a function. Test cases that the agent does
          not see, drawn for each episode, decide. The levels are those of abd.
    1         words put together, one sum or product: `Read s. Print 'dk', then s.`
    2         one idea: a list, a line of words, a loop, two steps of arithmetic; functions too
    3         several steps: primes, matrices, runs of letters, counting, sorting of records; functions too

Answers.  The last block fenced as ```python, else the last fenced block, else the first fenced part of a line, else
          the whole text. A program without output, error or main guard that defines solve() is run again with
          `res = solve()` and the result printed, a list or tuple as print(*res).

Replies.  Passed 5 of 5 cases               right
          Passed 2 of 5 cases               the third case failed; later cases are not run
          Passed 0 of 5 cases: NameError: name 'x' is not defined         the last line of stderr, which must be empty
          There, [TIMEOUT] means that a case took 30 s, or 10 s of computing; [EXIT STATUS 1] and
          [KILLED BY SIGSEGV] that the program ended so, with whatever output.

Cases.    stdin_stdout: a list as input has one item per line; stdin ends with a newline. function_call: the program
          is run with a main guard that prints fn(*args); if a case's output is a list, its first item is expected.
          Outputs are compared without spaces at line ends and blank lines at the end.

Tasks.    panel: the templates with their few parameters. fresh: the same with wider ranges and other names.

Prompts.  native: the task, an example that is not a test case, and the form of a program, which as in the original is
          also asked for where the task wants a function: the function alone is right. short: the task alone, so that
          an agent learns by trying that what is printed `, then` goes on one line.

Reward.   1 when every case passes, else 0. info["valid"]: in the first case it printed something and did not fail.
          info["shaped"]: the reward; a share of the cases would pay for programs that always print the same.

Ending.   Terminated by the first reply, whatever it is, with outcome "correct" or "incorrect".

From the DED task of Affine's validators. The differences:
- The tasks are drawn from our own templates (envs/affine/templates.py), whose cases do not all have the same output.
  `data=rows.jsonl` takes them from rows of satpalsr/rl-python instead: `prompt`, `verification_info` or `test_cases`,
  and `program` for the expert. Cases of an unknown type are skipped; a row with no other case is left out (the original
  scores it 1, and a row without cases 0, whatever the answer).
- A hash of the task's words decides the split, so that no program from training solves a held-out task. The text below
  the task is in our words.
- Programs run in envs/simulators/sandbox, which permits less than the original's. A program that runs out of time or
  does not end with exit status 0 fails, even if it has printed the output.
"""

from dataclasses import dataclass
from random import Random

from envs import common, prompt_file, rows
from envs.affine import programs
from envs.base import Configured, Step
from envs.common import split_of
from envs.refusal import Refusal
from envs.simulators import sandbox

FOOTER = """

---
Write a whole Python 3 program that
- reads all its input from STDIN,
- prints the answers and nothing else to STDOUT,
- stands in a single block fenced as ```python."""
SHORT = "Reply with a Python program.\n"
TYPES = ("stdin_stdout", "function_call")


@dataclass(frozen=True)
class Config:
    difficulty: str = "1,2,3"  # levels 1 to 3, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    cases: int = 5  # test cases per task; rows of a file have their own
    data: str = ""  # rows of satpalsr/rl-python: one in each line, or a JSON array; empty: generated tasks
    seconds: int = 30  # most wall-clock seconds of a case
    cpu_seconds: int = 10  # most CPU seconds of a case
    prompt: str = "native"  # "native": task, example and instructions; "short": the task alone
    sandbox: str = "isolated"  # "isolated"; "unsafe": run programs even where the system cannot isolate them
    tasks: str = "panel"  # generated tasks: "panel"; "fresh", with wider ranges and other names for each seed

    def __post_init__(self):
        programs.check_config(self, task_of_row, "problem")
        common.check_tasks(self.tasks, self.data)
        common.check_count("cases", self.cases, 2)  # with one case, a program with a constant output would pass


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    slow = True  # each step runs processes
    defaults = Config

    def __init__(self, config: Config | None = None):
        super().__init__(config)
        self.limits = sandbox.Limits(wall=self.config.seconds, cpu=self.config.cpu_seconds)
        self.places = rows.row_places(self.config.data, task_of_row) if self.config.data else None

    @property
    def task(self) -> str:
        """The canonical task: its words alone, whatever the cases."""
        return canonical(self.words)

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's only turn."""
        common.check_split(split)
        rng = Random(f"ded {split} {seed}")
        example = ""
        if self.places:
            row = rows.row_at(self.config.data, self.places, rng, split)
            self.words, self.cases = row["prompt"].rstrip(), cases_of_row(row)
            solution = row.get("program")
            self.program = sandbox.code_of(solution) if isinstance(solution, str) else ""
        else:
            example = self._draw(rng, split)
        self.running = True
        if self.config.prompt == "short":
            return [{"role": "user", "content": SHORT + self.words}]
        content = prompt_file.filled(self.config.prompt, "{problem}" + FOOTER, problem=self.words + example)
        return [{"role": "user", "content": content}]

    def step(self, action_text: str) -> Step:
        """Run the agent's program on the test cases, up to the first that fails; the episode is over."""
        common.check_running(self.running)
        program = sandbox.code_of(action_text)
        passed, valid, error = 0, False, ""
        for number, case in enumerate(self.cases):
            source, stdin, expected = prepare(case, program)
            ran = programs.execute(source, stdin, self.limits, self.config.sandbox)
            failed = bool(ran.stderr.strip())
            if number == 0:
                valid = not failed and bool(ran.stdout.strip())
            if failed or normal(ran.stdout) != normal(expected):
                error = programs.line(ran.stderr, -1)
                break
            passed += 1
        self.running = False
        won = passed == len(self.cases)
        observation = f"Passed {passed} of {len(self.cases)} cases" + (f": {error}" if error else "")
        return common.only_step(observation, won, valid)

    def oracle(self) -> str:
        """Return an expert's reply: the program that printed the cases' outputs."""
        common.check_running(self.running)
        return self.program if self.config.prompt == "short" else f"```python\n{self.program}\n```"

    def _draw(self, rng: Random, split: str) -> str:
        """Draw a task from the templates with its program, cases and example."""
        for program in programs.draw(
            rng, self.config.difficulty, split, functions=True, fresh=self.config.tasks == "fresh"
        ):
            self.words, self.program = program.task, program.source
            if split_of(self.task) == split:
                break
        example, *self.cases = draw_cases(program, rng, 1 + self.config.cases)
        if program.function:
            args = ", ".join(map(repr, example["input"]))
            return f"\n\nExample: print({program.function}({args})) prints {example['output'][0]}"
        return f"\n\nExample input:\n{example['input']}\nExample output:\n{example['output']}"


def canonical(words: str) -> str:
    """Return the canonical task of a task's words."""
    return f"ded:{words}"


def draw_cases(program: programs.Program, rng: Random, count: int) -> list[dict]:
    """Draw an example and cases with distinct inputs; the cases do not all have the same output."""
    for _ in range(programs.TRIES):
        drawn = {}
        for _ in range(programs.TRIES):
            given = program.given(rng)
            drawn.setdefault(repr(given), case_of(program, given))
            if len(drawn) == count:
                break
        cases = list(drawn.values())
        if len({str(case["output"]) for case in cases[1:]}) > 1:
            return cases
    raise Refusal(f"no cases for the task {program.task!r}")


def case_of(program: programs.Program, given) -> dict:
    """Return a case in the format of rows, with the program's output."""
    if not program.function:
        printed = programs.output(program.source, given).rstrip("\n")
        return {"type": "stdin_stdout", "input": given, "output": printed}
    call = f"\nprint({program.function}(*{given!r}))"
    value = programs.output(program.source + call, "").rstrip("\n")
    return {"type": "function_call", "fn_name": program.function, "input": given, "output": [value]}


def cases_of_row(row: dict) -> list[dict]:
    """Return a row's cases of a known type."""
    info = rows.unpack(row.get("verification_info") or row.get("test_cases"))
    cases = info.get("test_cases") if isinstance(info, dict) else info
    return [c for c in cases or () if isinstance(c, dict) and c.get("type") in TYPES] if isinstance(cases, list) else []


def task_of_row(row: dict) -> str:
    """Return a row's canonical task. Raise LeftOut if it has no words or no cases."""
    words = row.get("prompt")
    if not isinstance(words, str) or not words.strip():
        raise rows.LeftOut("no text as `prompt`")
    if not cases_of_row(row):
        known = "no test case whose `type` is stdin_stdout or function_call in `verification_info` or `test_cases`"
        raise rows.LeftOut(known)
    return canonical(words.rstrip())


def prepare(case: dict, program: str) -> tuple[str, str, str]:
    """Return the program to run for a case, its stdin, and the expected output."""
    given, expected = case.get("input"), case.get("output")
    if case["type"] == "stdin_stdout":
        stdin = rows.as_text(given)
        return program, stdin if stdin.endswith("\n") else stdin + "\n", rows.as_text(expected)
    call = f"\nif __name__ == '__main__':\n    print({case.get('fn_name')}(*{given or []!r}))\n"
    return program + call, "", rows.as_text(expected[0] if isinstance(expected, list) and expected else expected)


def normal(text: str) -> str:
    """Return a text without spaces at line ends and blank lines at the end."""
    return "\n".join(line.rstrip() for line in text.rstrip().splitlines())
