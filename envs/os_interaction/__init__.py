r"""OS interaction: carry out a task on a Linux machine through bash.

Task.     An instruction, such as `Set the mode of /srv/cedar/plan.txt to 640.`; a machine, prepared by a script; and
          conditions that must hold at the end, each a command with exit status 0. Every task fails at its start and
          passes after its own solution. The levels of difficulty count the commands of that solution:
    1         one
    2         2 to 4
    3         5 to 8
    4         9 to 12, as in the benchmark
          The templates are in templates/. With `tasks=fresh` the names of files, directories, users and groups and
          the words are made up for each task, as long as the panel's, and modes, days and dates are any that fit.
          `Env.current.skills` lists the benchmark's skills that the solution uses.

Machine.  A small Ubuntu simulated in memory (envs/simulators/shell); nothing real is touched. Each turn is a new
          `bash -c` as root in /, without input, stdout and stderr together: files persist, the working directory and
          variables do not. The machine has its own clock, which advances with commands; `sleep` takes no real time.

Actions.  native: the first `Act: ...` of the reply; text before it is ignored.
    Act: bash      in any case; executes all ```bash blocks, joined by empty lines
    Act: finish    the task is done
    Act: answer(x) only for questions of `data=`: the task is done, and x is the answer
          short: `finish`, `answer(x)`; any other reply is executed as a whole.
          tools=native: the tools bash(script), finish() and, for questions, answer(text); a malformed call ends the
          episode as a native reply without a readable action does, with `invalid tool call: ...`.

Replies.  The output of the OS:\n\n...
          The output of the OS is empty.
          The output of the OS:\n\nThe command is marked as timeout since it did not finish within 20 seconds.
          Cannot extract action from agent response. Pattern: "Act:\s*(.+)"       these two end the episode
          Invalid action string matched by pattern "Act:\s*(.+)"
          Output of more than 800 characters is cut to 780, `\n[truncated because the output is too long]`.

Ending.   Terminated by finish, by an answer, or by a native reply without a readable action: there is no second try.
          Truncated after `max_turns` executed replies, with the limit in info["reason"]; the original then requests
          one more reply, which it does not execute. After any ending the state is evaluated: a finished task counts
          even if the agent did not say `finish`. info["status"]: running, completed, agent_validation_failed or
          task_limit_reached.

Reward.   At the end 1 and "correct" if all conditions hold; -0.5 and "incorrect" if not, at the limit too; 0 and
          "unknown" if the evaluation does not terminate, even on a freshly prepared machine. These are the guide's
          rewards. info["shaped"] adds an equal share of 1 the first time that a condition holds which did not
          hold at the start. info["valid"]: bash could run the reply (no syntax error, no status 126 or 127 of its last
          command), or it was finish or an answer.

          `machine=bash` plays on a copy of this computer in namespaces instead, with real bash and programs, for
          evaluating on `data=`: root on Linux, see envs/simulators/sandbox/machine.py. Conditions are tried only at the
          end there, and 20 real seconds are the limit of a script; 512 processes and 2 GiB are the machine's.

Data.     `data=entry_dict.json` reads LifelongAgentBench's tasks, which have one script as their condition, also as
          rows of Hugging Face;
          `data=problems.json scripts=folder` reads AgentBench's, which include questions: `match` compares the
          answer, `check` runs scripts on it. A task is skipped unless it fails at its start and passes after its own
          solution on this machine (no python3, git or network); stderr reports once how many are skipped, and why.
          A file is refused if three of its tasks, and a tenth of those tried, have scripts that do not end.

From LifelongAgentBench's os_interaction. The differences:
- The tasks and their words are ours. A hash of the instruction, in a fresh task also of the machine's preparation,
  decides the split; `splits=own` plays a file in order.
- The machine is a simulation: envs/simulators/shell lists what it supports and where it differs.
- Long outputs are cut as in AgentBench; `max_output=0` cuts nothing, as in LifelongAgentBench.
- A reply of more than 20,000 characters is not executed; the observation is bash's message about its own limit.
- Replaced system programs do not affect the evaluation: before each condition the system's programs, and the folders
  and links that lead to them, are restored.
- AgentBench keeps one shell for an episode, takes a reply's last readable action, allows 8 turns, and counts a task at
  the limit as failed.
"""

import re
from dataclasses import dataclass
from random import Random

from envs import common
from envs.base import Step
from envs.os_interaction import data as os_data
from envs.os_interaction import tasks as os_tasks
from envs.os_interaction.judge import (
    failing,
    judge,
    obstacle,
    prepared,
    run_script,
    runs_python,
    skipped,
    try_real_machine,
    twin,
)
from envs.os_interaction.tasks import LEVELS, Task
from envs.own_splits import OwnSplits, check_splits, file_of
from envs.refusal import Refusal
from envs.simulators import sandbox
from envs.simulators.shell.files import Frozen
from envs.tools import INVALID, TEXT, Malformed, call_of, check_tools, function, known_call

INSTRUCTIONS = """\
You are at work on an Ubuntu machine, as root and through bash. I give you a task; carry it out with commands.
In each reply first think about what is to be done, then take exactly one action. To execute commands:

Act: bash

```bash
the commands
```

When the task is done:

Act: finish
{answer}
Commands must not ask for input. Each block is executed in a new shell that starts in /: files stay as you leave them, \
the working directory and variables do not. You have {turns} rounds; the task ends after them, with finish, or with a \
reply without an action."""
ANSWER = """
When the task is a question, and you know the answer:

Act: answer(what you answer, between these parentheses)
"""
AGREED = "OK."
WITH_TOOLS = """\
You are at work on an Ubuntu machine, as root and through bash. Carry out the task. Call one tool in each reply. \
Commands must not ask for input. You have {turns} rounds; the task ends after them, with finish, or with a reply \
without a well-formed call.

{task}"""
TOOLS = [
    function(
        "bash",
        "Execute a script in a new shell that starts in /: files stay as you leave them, the working directory and "
        "variables do not.",
        script=TEXT,
    ),
    function("finish", "Say that the task is done."),
]
QUESTION_TOOLS = [*TOOLS, function("answer", "Answer the question, which ends the task.", text=TEXT)]
SHORT = "Reply with one bash command. When all is done: finish"  # at levels 1 and 2
SHORT_OF_MANY = "Reply with lines of bash, {turns} times at most. When all is done: finish"
NO_ACTION = r'Cannot extract action from agent response. Pattern: "Act:\s*(.+)"'
BAD_ACTION = r'Invalid action string matched by pattern "Act:\s*(.+)"'
OUTPUT = "The output of the OS:\n\n"
EMPTY = "The output of the OS is empty."
SLOW = "The command is marked as timeout since it did not finish within 20 seconds."
CUT = "\n[truncated because the output is too long]"
MACHINES = ["simulated", "bash"]
SYNTAX = "bash: -c: line "  # the start of bash's message about a syntax error
MAX_SCRIPT = 20_000  # most characters of a reply that is executed
TOO_LONG = "bash: Argument list too long\n"
REWARDS = {"correct": 1.0, "incorrect": -0.5, "unknown": 0.0}


@dataclass(frozen=True)
class Config:
    difficulty: str = "1,2,3,4"  # levels 1 to 4, drawn uniformly from this comma list; repeats add weight: "1,1,2"
    tasks: str = "panel"  # generated tasks: "panel", names from short lists; "fresh", a made-up name for each seed
    data: str = ""  # a file of LifelongAgentBench's or AgentBench's tasks; empty: generated tasks
    splits: str = "hash"  # of data: "hash" of the instruction; "own": a folder's train.json, test.json, or a whole file
    scripts: str = ""  # the folder of the script files that AgentBench's tasks name
    max_output: int = 800  # longer output is cut to 20 characters less than this; 0: never
    max_turns: int = 5  # executed replies before the episode is truncated
    prompt: str = "native"  # "native": instructions, Act: and fenced blocks; "short": one message, bare commands
    machine: str = "simulated"  # "simulated"; "bash": real bash in namespaces, which needs root on Linux, for data=
    sandbox: str = "isolated"  # "isolated"; "unsafe": run checks in Python even where the system cannot isolate them
    tools: str = "none"  # "native": actions are calls of tools in the checkpoint's own format; "none": text

    def __post_init__(self):
        common.check_options(self, LEVELS)
        common.check_tasks(self.tasks, self.data)
        check_tools(self.tools, self.prompt)
        common.check_count("max_output", self.max_output, 0)
        if 0 < self.max_output <= 20:
            raise Refusal(f"max_output must be 0 or more than 20, or nothing is left, not {self.max_output}")
        if self.scripts and not self.data:
            raise Refusal("scripts needs data=problems.json, and data is empty")
        check_splits(self)
        if self.machine not in MACHINES:
            raise Refusal(f"unknown machine {self.machine!r}; {common.nearest(self.machine, MACHINES)}")
        if self.machine == "bash":
            try_real_machine()
        if self.data:
            found = os_data.read(self.data, self.scripts, self.splits)
            if any(runs_python(task) for tasks in found.values() for task in tasks):
                sandbox.start(self.sandbox)


class Env(OwnSplits):
    """Play one episode at a time; the module's docstring is the specification."""

    defaults = Config
    pays_below_0 = True
    timeout_reward = REWARDS["incorrect"]  # max_len leaves the task undone, and the state is not judged

    def __init__(self, config: Config | None = None):
        super().__init__(config)
        cfg = self.config
        self.data = os_data.read(cfg.data, cfg.scripts, cfg.splits) if cfg.data else None
        pythonic = self.data is not None and any(runs_python(task) for tasks in self.data.values() for task in tasks)
        self.slow = pythonic or cfg.machine == "bash"

    @property
    def task(self) -> str:
        """The canonical task: its instruction."""
        return self.current.key

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages up to the agent's first turn."""
        common.check_split(split)
        rng = Random(f"os_interaction {split} {seed}")
        if self.data:
            own = self.config.splits == "own"
            self.current = self.own_task(seed, split) if own else self._entry(rng, split)
        else:
            level = rng.choice(self.config.difficulty.split(","))
            self.current = os_tasks.draw(rng, level, split, self.config.tasks == "fresh")
        return self.begin(self.current)

    def begin(self, task: Task) -> list[dict]:
        """Start the episode of a task."""
        self.current = task
        self.machine = prepared(task, self.config.machine)
        self.done = 0  # number of the solution's scripts executed
        self.output = ""
        self.turns = 0
        self.unmet = [] if task.answers else list(task.conditions)
        self._progress()
        self.share = 1 / max(1, len(self.unmet))
        self.running = True
        if self.config.tools == "native":
            self.tools, self.role = (QUESTION_TOOLS if task.answers else TOOLS), "tool"
            content = WITH_TOOLS.format(turns=self.config.max_turns, task=task.instruction)
            return [{"role": "user", "content": content, "tools": self.tools}]
        answer = ANSWER if task.answers else ""
        instructions = INSTRUCTIONS.format(turns=self.config.max_turns, answer=answer)
        short = SHORT if task.level in ("1", "2") else SHORT_OF_MANY.format(turns=self.config.max_turns)
        return common.opening(self.config.prompt, task.instruction, instructions, AGREED, short)

    def step(self, action_text: str) -> Step:
        """Execute the agent's reply; every reply counts as a turn."""
        common.check_running(self.running)
        self.turns += 1
        action, content = self._read(action_text)
        observation, reason, shaped, valid, status = "", "", 0.0, True, "completed"
        if action == "bash":
            observation, valid = self._execute(content)
            shaped = self._progress() * self.share
            status = "task_limit_reached" if self.turns >= self.config.max_turns else "running"
            reason = f"Task limit reached. The limit is {self.turns}." if status != "running" else ""
        elif not action:
            observation, reason, valid, status = content, content, False, "agent_validation_failed"
        self.running = status == "running"
        outcome, reward = "unknown", 0.0
        if not self.running:
            outcome = judge(self.current, self.machine, content if action == "answer" else "None", self.config.sandbox)
            reward = REWARDS[outcome]
        truncated = status == "task_limit_reached"
        info = {"outcome": outcome, "success": outcome == "correct", "valid": valid, "shaped": shaped + reward}
        info |= {"status": status, "reason": reason}
        return Step(observation, reward, not (self.running or truncated), truncated, info)

    def oracle(self) -> str:
        """Return an expert's reply: the rest of the solution, spread over the turns left, then finish."""
        common.check_running(self.running)
        task, left = self.current, self.current.truth[self.done :]
        if not task.truth and (task.match is None or task.match[0] == "regex"):
            raise RuntimeError("no expert: the file has no solution of this task")
        if left:
            turns = max(1, self.config.max_turns - self.turns - 1)  # one turn is left for finish
            return self._reply("bash", "\n".join(left[: -(-len(left) // turns)]))
        if task.match:
            return self._reply("answer", task.match[1])
        if task.truth[-1] in task.conditions:  # the last script's output answers the question
            return self._reply("answer", self.output.strip())
        return self._reply("finish")

    def action_of(self, content: str, calls: list[dict]) -> str:
        """Return the reply of the short form that a call means. Raise Malformed for a wrong call."""
        name, given = known_call(calls, self.tools)
        if name == "bash":
            if given["script"].startswith(INVALID) or _ended(given["script"].strip(), self.current.answers):
                raise Malformed("a script for bash must be commands; finish and answer are tools of their own")
            return given["script"]
        return f"answer({given['text']})" if name == "answer" else name

    def calls_of(self, action: str) -> tuple[str, list[dict]]:
        """Return the call of an expert's reply."""
        name, content = _ended(action, self.current.answers) or ("bash", action)
        key = {"bash": "script", "answer": "text"}.get(name)
        return call_of(name, **({key: content} if key else {}))

    def _entry(self, rng: Random, split: str) -> Task:
        """Return a task of the file that passes with its own solution here."""
        for task in rng.sample(self.data[split], len(self.data[split])):
            if not obstacle(task, self.config.sandbox, self.config.machine):
                return task
            skipped(self.config.data, self.config.scripts, split, self.config.sandbox, "hash", self.config.machine)
        raise self._no_task(split)

    def _no_task(self, split: str) -> ValueError:
        """Return the error for a split without a task that can be played."""
        cfg = self.config
        why = skipped(cfg.data, cfg.scripts, split, cfg.sandbox, cfg.splits, cfg.machine) or "the file has none"
        return ValueError(f"data: {cfg.data} has no task in split {split} that can be played: {why}")

    def own_tasks(self, split: str) -> list[Task]:
        """Return the tasks of the data set's own split that pass with their own solution here, in its order."""
        cfg = self.config
        if split not in self.data:
            file_of(cfg.data, split)  # raises ValueError
        if skipped(cfg.data, cfg.scripts, split, cfg.sandbox, cfg.splits, cfg.machine):  # prints how many, once
            playable = [task for task in self.data[split] if not obstacle(task, cfg.sandbox, cfg.machine)]
            if not playable:
                raise self._no_task(split)
            return playable
        return self.data[split]

    def _read(self, reply: str) -> tuple[str, str]:
        """Return the action in a reply (bash, finish, answer) and its content; "" and the reason if it has none."""
        if self.tools and reply.startswith(INVALID):
            return "", reply
        if common.form_of(self.config) == "short":
            said = reply.strip()
            return _ended(said, self.current.answers) or ("bash", said)
        found = re.search(r"Act:\s*(.+)", reply)
        if not found:
            return "", NO_ACTION
        said = found[1].strip()
        if said.lower().startswith("bash"):
            return "bash", "\n\n".join(_blocks(reply))
        return _ended(said, self.current.answers, exact=False) or ("", BAD_ACTION)

    def _reply(self, action: str, content: str = "") -> str:
        """Return an expert's action in the form of the prompt."""
        said = f"answer({content})" if action == "answer" else action
        if common.form_of(self.config) == "short":
            return content if action == "bash" else said
        if action == "bash":
            return f"Think: This is what comes next.\n\nAct: bash\n\n```bash\n{content}\n```"
        return f"Think: All that was asked for is done.\n\nAct: {said}"

    def _execute(self, script: str) -> tuple[str, bool]:
        """Run a script. Return the observation and whether bash could run it."""
        for count in range(1, len(self.current.truth) - self.done + 1):
            if script == "\n".join(self.current.truth[self.done : self.done + count]):
                self.done += count
                break
        if len(script) > MAX_SCRIPT:
            return OUTPUT + TOO_LONG, False
        result = run_script(self.machine, script)
        self.output = result.output
        if result.timed_out:
            return OUTPUT + SLOW, True
        shown, most = result.output, self.config.max_output
        if 0 < most < len(shown):
            shown = shown[: most - 20] + CUT
        refused = result.status in (126, 127) or (result.status and SYNTAX in result.output)
        understood = script.strip() != "" and not refused
        return OUTPUT + shown if shown else EMPTY, understood

    def _progress(self) -> int:
        """Return how many conditions hold for the first time.

        A condition may run the agent's own scripts. If these would change the machine, it runs on a copy. A real
        machine has no copy, so that none are tried before the end.
        """
        if self.config.machine == "bash":
            return 0
        machine, before = self.machine, len(self.unmet)
        clock, pids = machine.clock, machine.pids
        machine.frozen = True
        try:
            self.unmet = failing(machine, self.unmet)
        except Frozen:
            self.unmet = failing(twin(machine), self.unmet)
        finally:
            machine.frozen, machine.clock, machine.pids = False, clock, pids
        return before - len(self.unmet)


def _ended(said: str, answers: bool, exact: bool = True) -> tuple[str, str] | None:
    """Return the action finish or answer; `exact`: nothing may follow it."""
    lower = said.lower()
    if lower == "finish" or (not exact and lower.startswith("finish")):
        return "finish", ""
    if answers and lower.startswith("answer") and "(" in said and ")" in said:
        return "answer", said[said.find("(") + 1 : said.rfind(")")].strip()
    return None


def _blocks(reply: str) -> list[str]:
    """Return the contents of ```bash ... ``` blocks, in linear time, unlike a lazy pattern."""
    found, at = [], reply.find("```bash\n")
    while at >= 0 and (end := reply.find("\n```", at + 8)) >= 0:
        found.append(reply[at + 8 : end])
        at = reply.find("```bash\n", end + 4)
    return found
