"""ABD: find an input on which a program prints an output, in one reply.

Task.     A Python program that reads stdin, and its output on a secret input. The levels:
    1         words put together, one small number more, less or multiplied
    2         one idea: a list, a line of words, a loop, two steps of arithmetic
    3         several steps: primes, matrices, runs of letters, counting, sorting of records
          With `tasks=fresh` the names of a program's variables and the words in its input are made up for each task.

Answers.  <INPUT>
          5
          </INPUT>
          Tags in any case; the last block outside `<think>` and `<thinking>` counts, stripped, without spaces at line
          ends. Any input with the right output is right.

Replies.  No input found                    no block
          Invalid input for program         fewer lines than the program has `input()`; or, if it has
                                            `for _ in range(int(input()))` and the first line is a number N, at most
                                            N lines. The program is not run
          Error: ValueError: ...            the last line of stderr, which must be empty; [TIMEOUT] after 30 s or 10 s
                                            of computing; [EXIT STATUS 1], [KILLED BY SIGSEGV]
          Wrong output: 12                  its first line
          Correct                           equal up to line ends, blanks at both ends, and spaces at line ends

Prompts.  native: instructions, the program and `Expected Output:`, both fenced. short: the program, a line `Output:`
          and the output; the reply is the input; tags work too.

Reward.   1 when the output is equal, else 0. info["valid"]: the program ran on the input and did not fail.
          info["shaped"]: the reward.

Ending.   Terminated by the first reply, whatever it is, with outcome "correct" or "incorrect".

From the ABD task of Affine's validators. The differences:
- The programs and inputs are drawn from our own templates (envs/affine/templates.py). `data=rows.jsonl` takes them
  from rows of satpalsr/rl-python instead: `program`, `inputs`, `output`. As in affinetes the program runs on the row's
  input, and what it prints is the wanted output; the row's `output` is, if it prints nothing or fails. No model writes
  a new input.
- A hash of program and output decides the split. The instructions are in our words.
- Programs run in envs/simulators/sandbox, which permits less than the original's. A program that runs out of time or
  does not end with exit status 0 fails, even if it has printed the output.
"""

import ast
import re
from dataclasses import dataclass
from random import Random
from string import ascii_letters

from envs import common, prompt_file, rows
from envs.affine import programs
from envs.affine.inputs import WORDS
from envs.base import Configured, Step
from envs.common import split_of
from envs.names import MadeUp
from envs.simulators import sandbox

NATIVE = """\
Here are a Python program and what it printed. Find an input, given to it on stdin, for which it prints exactly that.

Program:
```python
{program}
```

Expected Output:
```
{output}
```

Reason as you like. Then give the input between tags, line by line as the program reads it and with nothing added:
<INPUT>
the lines of the input
</INPUT>
Only what stands between the tags is used."""
SHORT = "Reply with the input.\n{program}\nOutput:\n{output}"
THOUGHTS = re.compile("<(/?)think>"), re.compile("<(/?)thinking>")
INPUT = re.compile("<(/?)INPUT>", re.IGNORECASE)
WORD = rf"\b(?:{'|'.join(WORDS)})\b"
LOOP = "for _ in range(int(input()))"


@dataclass(frozen=True)
class Config:
    difficulty: str = "1,2,3"  # levels 1 to 3, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    tasks: str = "panel"  # generated programs: "panel"; "fresh", with made-up names and words for each seed
    data: str = ""  # rows of satpalsr/rl-python: one in each line, or a JSON array; empty: generated programs
    seconds: int = 30  # most wall-clock seconds of a run
    cpu_seconds: int = 10  # most CPU seconds of a run
    prompt: str = "native"  # "native": instructions and tags; "short": the program and its output, a bare answer
    sandbox: str = "isolated"  # "isolated"; "unsafe": run programs even where the system cannot isolate them

    def __post_init__(self):
        common.check_tasks(self.tasks, self.data)
        programs.check_config(self, task_of_row, "program", "output")


class Env(Configured):
    """Play one episode at a time; the module's docstring is the specification."""

    slow = True  # each step runs a process
    defaults = Config

    def __init__(self, config: Config | None = None):
        super().__init__(config)
        self.limits = sandbox.Limits(wall=self.config.seconds, cpu=self.config.cpu_seconds)
        self.places = rows.row_places(self.config.data, task_of_row) if self.config.data else None

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's only turn."""
        common.check_split(split)
        rng = Random(f"abd {split} {seed}")
        if self.places:
            row = rows.row_at(self.config.data, self.places, rng, split)
            self.program, self.input, self.output = fields_of_row(row)
            self.task = canonical(self.program, self.output)  # as the row says, which decides its split
            ran = self._run(self.input)
            self.output = self.output if ran.stderr or not ran.stdout.strip() else ran.stdout
        else:
            self._draw(rng, split)
        self.running = True
        form = SHORT if self.config.prompt == "short" else NATIVE
        shown = {"program": self.program, "output": self.output.rstrip("\n")}
        return [{"role": "user", "content": prompt_file.filled(self.config.prompt, form, **shown)}]

    def step(self, action_text: str) -> Step:
        """Run the program on the agent's input; the episode is over."""
        common.check_running(self.running)
        given = input_in(action_text, bare=self.config.prompt == "short")
        valid = won = False
        if given is None:
            observation = "No input found"
        elif not enough_lines(self.program, given):
            observation = "Invalid input for program"
        else:
            ran = self._run(given)
            valid = not ran.stderr
            won = valid and same_output(self.output, ran.stdout)
            if won:
                observation = "Correct"
            else:
                wrong, error = programs.line(ran.stdout, 0), programs.line(ran.stderr, -1)
                observation = f"Wrong output: {wrong}" if valid else f"Error: {error}"
        self.running = False
        return common.only_step(observation, won, valid)

    def oracle(self) -> str:
        """Return an expert's reply: the secret input."""
        common.check_running(self.running)
        return self.input if self.config.prompt == "short" else f"<INPUT>\n{self.input}\n</INPUT>"

    def _run(self, given: str) -> sandbox.Run:
        """Run the program on an input, whose last line ends like the others."""
        return programs.execute(self.program, given + "\n" * bool(given), self.limits, self.config.sandbox)

    def _draw(self, rng: Random, split: str) -> None:
        """Draw a program from the templates, an input, and its output."""
        for program in programs.draw(rng, self.config.difficulty, split, functions=False):
            self.program, self.input = program.source, program.given(rng)
            if self.config.tasks == "fresh":
                self.program, self.input = renamed(self.program, rng), MadeUp(rng, 3)(self.input, WORD)
            self.output = programs.output(self.program, self.input)
            self.task = canonical(self.program, self.output)
            if split_of(self.task) == split:
                return


def renamed(program: str, rng: Random) -> str:
    """Return a program with other names for its variables: other letters, and made-up words of the same length.

    `_` stays, and so do strings, which must be in single quotes.
    """
    nodes = [node for node in ast.walk(ast.parse(program)) if isinstance(node, ast.Name)]
    known = sorted({node.id for node in nodes if isinstance(node.ctx, ast.Store)} - {"_"})
    letters, made_up = iter(rng.sample(ascii_letters, len(known))), MadeUp(rng)
    names = {name: next(letters) if len(name) == 1 else made_up.word(name) for name in known}
    return re.sub(r"'[^']*'|(?<!\.)\b[a-z]\w*", lambda found: names.get(found[0], found[0]), program)


def canonical(program: str, output: str) -> str:
    """Return the canonical task of a program and its output."""
    return f"abd:{program}\n{output.strip()}"


def fields_of_row(row: dict) -> tuple[str, str, str]:
    """Return a row's program, input and output."""
    program, given, output = (row.get(name) or "" for name in ("program", "inputs", "output"))
    given = clean(rows.as_text(given))
    return sandbox.code_of(rows.as_text(program)), given, rows.as_text(output)


def task_of_row(row: dict) -> str:
    """Return a row's canonical task. Raise LeftOut if a field is missing or its own input would be refused."""
    program, given, output = fields_of_row(row)
    if not program or not output.strip():
        raise rows.LeftOut(f"no {'output' if program else 'program'}")
    if not enough_lines(program, given):
        raise rows.LeftOut("fewer lines in `inputs` than its program reads")
    return canonical(program, output)


def blocks(tag: re.Pattern, text: str) -> list[re.Match]:
    """Return the matches of alternating opening and closing tags, in linear time, unlike `<x>.*?</x>`."""
    found: list[re.Match] = []
    for match in tag.finditer(text):
        closes = len(found) % 2 == 1
        if (match[1] == "/") == closes:
            found.append(match)
    return found[: len(found) // 2 * 2]


def input_in(reply: str, bare: bool = False) -> str | None:
    """Return the input in a reply; None if it has none. `bare`: without tags, the reply itself is the input."""
    text = reply
    for tag in THOUGHTS:
        tags = blocks(tag, text)
        begins, ends = [0, *(end.end() for end in tags[1::2])], [*(start.start() for start in tags[::2]), len(text)]
        text = "".join(text[begin:end] for begin, end in zip(begins, ends, strict=True))  # what lies between thoughts
    tags = blocks(INPUT, text)
    if tags:
        return clean(text[tags[-2].end() : tags[-1].start()])
    if bare:
        return clean(text)
    return "" if blocks(INPUT, reply) else None


def clean(text: str) -> str:
    """Return a text without blanks at both ends and spaces at line ends."""
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def enough_lines(program: str, given: str) -> bool:
    """Return whether an input may have enough lines, judged by the program's text."""
    lines = given.splitlines()
    if LOOP in program and lines and lines[0].isdigit():
        return lines[0].isdecimal() and len(lines[0]) < 4000 and len(lines) > int(lines[0])
    return len(lines) >= program.count("input()")


def same_output(expected: str, actual: str) -> bool:
    """Return whether outputs are equal up to line ends, blanks at both ends, and spaces at line ends."""
    expected, actual = ([line.rstrip() for line in text.strip().splitlines()] for text in (expected, actual))
    return expected == actual
