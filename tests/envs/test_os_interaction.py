"""OS interaction: sound templates, exact turns and messages, rewards, files of tasks, and transcripts."""

import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import golden
import pytest
from cases import cases
from conftest import also_full
from experts import expert

from envs.common import SPLITS, split_of
from envs.os_interaction import BAD_ACTION, EMPTY, MAX_SCRIPT, NO_ACTION, OUTPUT, SLOW, Config, Env
from envs.os_interaction import data as os_data
from envs.os_interaction import tasks as os_tasks
from envs.os_interaction.judge import Endless, judge, obstacle, prepared, twin
from envs.os_interaction.tasks import LEVELS, SKILLS, SLOT, Task, commands, templates
from envs.os_interaction.wordings import wordings
from envs.simulators.sandbox import machine as machine_module
from envs.simulators.shell import MAX_STEPS, Shell, base_machine

CASES = cases("os_interaction")

Shell.strict = True  # errors of the shell must be seen
ALL = [template for level in LEVELS for template in templates(level)]
LIST = Task(
    instruction="Make /srv/a and /srv/b.",
    init=("touch /srv/old",),
    truth=("mkdir /srv/a", "mkdir /srv/b"),
    conditions=("test -f /srv/old", "test -d /srv/a", "test -d /srv/b"),
    skills=("mkdir",),
)


def at(task: Task = LIST, **options) -> Env:
    """Return an environment with this task."""
    env = Env(Config(**{"prompt": "short"} | options))
    env.begin(task)
    return env


def bash(*scripts: str) -> str:
    """Return a native reply that executes scripts."""
    return "I think so.\n\nAct: bash\n\n" + "\n".join(f"```bash\n{script}\n```" for script in scripts)


# -- the templates


def test_there_are_templates_of_every_level_over_all_skills():
    assert len(ALL) >= 60 and len({template.instruction for template in ALL}) == len(ALL)
    assert all(len(templates(level)) >= 10 for level in LEVELS)
    skills = Counter(skill for template in ALL for skill in template.draw(Random(0)).skills)
    assert set(skills) == set(SKILLS.split()) and len(skills) == 29 and min(skills.values()) >= 3


def test_a_level_is_the_number_of_commands():
    for level, counts in {"1": {1}, "2": {2, 3, 4}, "3": {5, 6, 7, 8}, "4": {9, 10, 11, 12}}.items():
        drawn = {sum(len(commands(line)) for line in template.truth) for template in templates(level)}
        assert drawn <= counts


@pytest.mark.parametrize(("line", "names"), CASES["commands of a line"])
def test_the_commands_of_a_line(line, names):
    assert commands(line) == names


@pytest.mark.all_only
def test_instruction_and_machine_reveal_every_name():
    for template in ALL:
        known = {found[0] for text in (template.instruction, *template.init) for found in SLOT.finditer(text)}
        asked = {found[0] for text in (*template.truth, *template.conditions) for found in SLOT.finditer(text)}
        assert asked <= known, template.instruction


def test_slots_of_a_kind_differ():
    for seed in range(3):
        for template in ALL:
            task = template.draw(Random(seed))
            assert not SLOT.search(" ".join([task.instruction, *task.init, *task.truth, *task.conditions]))
    template = os_tasks.parse("USER USER2 USER USER3\n$ true")
    for seed in range(50):
        first, second, again, third = template.draw(Random(seed)).first.split()
        assert first == again and len({first, second, third}) == 3


@pytest.mark.all_only
@pytest.mark.parametrize("count", ["each template", *also_full(1000)])
@pytest.mark.parametrize("level", LEVELS)
def test_every_task_fails_until_it_is_solved(level, count):
    """A task fails at its start and passes with its solution, and preparing it prints nothing."""
    for number in range(len(templates(level)) if count == "each template" else count):
        task = templates(level)[number % len(templates(level))].draw(Random(f"{level} {number}"))
        machine = base_machine()
        assert [Shell(machine).run(script).output for script in task.init] == [""] * len(task.init), task
        assert judge(task, twin(machine), "None") == "incorrect", task
        for script in task.truth:
            assert Shell(machine).run(script).status == 0, script
        assert judge(task, machine, "None") == "correct", task


@pytest.mark.all_only
@pytest.mark.parametrize("every", [9, *also_full(1)])
def test_no_line_of_a_solution_can_be_left_out(every):
    for number, template in enumerate(ALL[::every]):
        task = template.draw(Random(number))
        for left_out in range(len(task.truth)):
            machine = prepared(task)
            for script in (*task.truth[:left_out], *task.truth[left_out + 1 :]):
                Shell(machine).run(script)
            assert judge(task, machine, "None") == "incorrect", (task.truth[left_out], task.instruction)


@pytest.mark.all_only
def test_each_template_has_three_wordings_in_one_split():
    for template in ALL:
        said = wordings(template.instruction)
        assert len(set(said)) >= 3 and said[0] == template.instruction
        assert all(set(SLOT.findall(other)) == set(SLOT.findall(said[0])) for other in said), said
    tasks = [templates("1")[0].draw(Random(seed)) for seed in range(60)]
    assert {task.instruction.split(" ")[0] for task in tasks} == {"Create", "Make", "Please"}
    assert len({task.key for task in tasks if "/srv/amber" in task.instruction}) <= 1


def outcome_of(start: str, change) -> str:
    """Return the outcome of a template's solution whose lines are changed."""
    task = next(template for template in ALL if template.instruction.startswith(start)).draw(Random(3))
    machine = prepared(task)
    for script in task.truth:
        Shell(machine).run(change(script, task))
    return judge(task, machine, "None")


@pytest.mark.parametrize(("start", "right", "wrong"), CASES["only seem right"])
def test_solutions_that_only_seem_right_are_incorrect(start, right, wrong):
    changed = []

    def change(script: str, task: Task) -> str:
        changed.append(re.sub(right, wrong, script))
        return changed[-1]

    assert outcome_of(start, lambda script, task: script) == "correct"
    assert outcome_of(start, change) == "incorrect", changed


@pytest.mark.parametrize("start", ["Make DIR/NAME2 a symbolic", "Move the directory", "Back up DIR", "Close the shop"])
def test_symbolic_links_may_be_relative(start):
    def relative(script: str, task: Task) -> str:
        found = re.fullmatch(r"ln -s (\S+) (\S+)", script)
        return f"ln -sr {found[1]} {found[2]}" if found else script

    assert outcome_of(start, relative) == "correct"


def in_real_bash(scripts: list[str]) -> list[int]:
    """Return the exit statuses of scripts that run in order on a throw-away copy of this machine."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["unshare", "-mpnf", "--kill-child", "bash", "-c", CASES["real"], folder, *scripts]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return [int(line) for line in ran.stdout.split()] if not ran.returncode else []


@cache
def has_namespaces() -> bool:
    return in_real_bash(["exit 3"]) == [3]


@pytest.fixture
def real_machine() -> None:
    """Skip the test where no real machine can run."""
    try:
        Config(machine="bash")
    except ValueError as error:
        pytest.skip(str(error))


def test_real_machine_is_refused_in_one_line(monkeypatch):
    with pytest.raises(ValueError, match="unknown machine 'bahs'; did you mean 'bash'"):
        Config(machine="bahs")
    monkeypatch.setattr(machine_module.RealMachine, "server", None)
    monkeypatch.setattr(machine_module.os, "geteuid", lambda: 1000)
    with pytest.raises(ValueError, match=r"cannot run here .not root on Linux.*machine=simulated") as refused:
        Config(machine="bash")
    assert "\n" not in str(refused.value)


@pytest.mark.all_only
@pytest.mark.usefixtures("real_machine")
def test_real_machine_plays_tasks_apart_from_this_system():
    chosen = [template for template in ALL if "sleep" not in template.skills and "vi" not in template.skills]
    for number, template in enumerate(chosen[3::17]):
        env = at(template.draw(Random(number)), machine="bash")
        assert env.slow and expert(env)[-1].info["success"], template.instruction
    env = at(machine="bash")
    assert env.step("sleep 100 & echo $! > /srv/pid; id -u; hostname").observation == OUTPUT + "0\nlocalhost\n"
    seen = env.step("kill -0 $(cat /srv/pid) && echo alive; ls /root /tmp; mount -t tmpfs none /mnt; mknod /b b 8 0")
    assert "alive\n" in seen.observation and seen.observation.count("denied") + seen.observation.count("permitted") == 2
    assert env.step("finish").info["outcome"] == "incorrect" and not Path("/srv/pid").exists()
    other = at(machine="bash")
    assert other.step("ls /srv; mkdir /srv/a /srv/b; sleep 0.01").observation == OUTPUT + "old\n"
    assert other.step("finish").info["outcome"] == "correct"


@pytest.mark.all_only
@pytest.mark.usefixtures("real_machine")
def test_real_script_ends_at_its_time_limit():
    machine = machine_module.RealMachine()
    late = machine.run("echo a; sleep 60", seconds=0.3)
    assert (late["output"], late["status"], late["timed_out"]) == ("a\n", 124, True)
    flood = machine.run("yes", seconds=10)
    assert flood["timed_out"] and len(flood["output"]) == machine_module.MAX_OUTPUT
    assert machine.run("echo still", args=("x",))["output"] == "still\n"
    machine.close()


@pytest.mark.all_only
@pytest.mark.usefixtures("real_machine")
def test_real_scripts_begin_with_the_usual_signals(monkeypatch):
    """Python ignores SIGPIPE and SIGXFSZ, which its programs inherit: `yes | head -1` ended in an error message."""
    monkeypatch.setattr(machine_module.RealMachine, "server", None)  # this test's own inherits its signals
    before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as a job in a shell's background
    try:
        machine = machine_module.RealMachine()
        output = machine.run("trap -p; yes | head -1; echo ${PIPESTATUS[@]}")["output"]
    finally:
        signal.signal(signal.SIGQUIT, before)
    assert output == "y\n141 0\n"
    machine.close()


HOLD = "(head -c 1400000000 /dev/zero | tail -c 1400000000 | sleep 60)"  # tail keeps all of it
BOMBS = ["f() { f | f & }; f; sleep 60", "(sleep 0.2; f() { f | f & }; f) & echo a", f"{HOLD} & {HOLD} & echo a"]
BOMBS = [pytest.param(script, marks=pytest.mark.full) for script in BOMBS]
BOMBS.append("for ((i = 0; i < 700; i++)); do sleep 60 & done; echo a")


@pytest.mark.all_only
@pytest.mark.parametrize("script", BOMBS)
@pytest.mark.usefixtures("real_machine")
def test_too_many_processes_or_bytes_end_those_of_a_machine(script):
    """Also after their script has ended."""
    machine, began = machine_module.RealMachine(), time.monotonic()
    ended = machine.run(script, seconds=30)
    assert ended["timed_out"] or ended["output"] == "a\n"
    time.sleep(2 if HOLD in script else 0.5)
    while machine.run("ls -d /proc/[0-9]* | wc -l")["output"] not in ("4\n", "5\n"):
        assert time.monotonic() - began < 20, "they are still there"
        time.sleep(0.2)
    machine.close()


@pytest.mark.all_only
@pytest.mark.full
@pytest.mark.parametrize("template", ALL, ids=lambda template: template.instruction[:40])
def test_every_template_holds_in_real_bash(template):
    task = template.draw(Random(1))
    missing = [name for name in task.skills if name not in ("cd", "exit") and not shutil.which(name)]
    if missing or not has_namespaces():
        pytest.skip(f"needs {' '.join(missing) or 'Linux, root, and an overlay file system in a namespace'}")
    evaluation = " && ".join(task.conditions)
    statuses = in_real_bash([*task.init, evaluation, *task.truth, evaluation])
    start = len(task.init)
    assert statuses[:start] == [0] * start and statuses[start] and not any(statuses[start + 1 :])


# -- turns


def test_native_replies_and_observations_are_exact():
    env = at(prompt="native")
    step = env.step(bash("mkdir /srv/a"))
    assert (step.observation, step.reward, step.terminated, step.truncated) == (EMPTY, 0.0, False, False)
    assert step.info["status"] == "running" and step.info["outcome"] == "unknown" and step.info["valid"]
    assert (
        env.step(bash("mkdir /srv/a")).observation == OUTPUT + "mkdir: cannot create directory '/srv/a': File exists\n"
    )
    assert env.step(bash("cd /srv; x=1", "echo $x; pwd; ls")).observation == OUTPUT + "1\n/srv\na\nold\n"
    step = env.step("Enough.\nAct: Finish now")
    assert (step.reward, step.terminated, step.truncated) == (-0.5, True, False)
    assert step.info["status"] == "completed" and step.info["outcome"] == "incorrect" and not step.info["success"]


def test_each_turn_is_a_new_shell_in_the_root():
    env = at(prompt="native")
    env.step(bash("cd /srv; x=1; export y=2; echo kept > here"))
    assert env.step(bash('echo "[$x$y]"; pwd; cat /srv/here')).observation == OUTPUT + "[]\n/\nkept\n"


@pytest.mark.parametrize(("reply", "observation"), CASES["scripts of native replies"])
def test_scripts_of_native_replies(reply, observation):
    step = at(prompt="native").step(reply)
    assert step.observation == observation and not step.terminated


@pytest.mark.parametrize(("reply", "reason"), CASES["unreadable replies"])
def test_unreadable_reply_ends_the_episode_and_is_evaluated(reply, reason):
    for scripts, outcome, reward in (("mkdir /srv/a", "incorrect", -0.5), ("mkdir /srv/a /srv/b", "correct", 1.0)):
        env = at(prompt="native")
        env.step(bash(scripts))
        step = env.step(reply)
        assert (step.observation, step.info["reason"], step.info["status"]) == (
            reason,
            reason,
            "agent_validation_failed",
        )
        assert (step.terminated, step.truncated, step.info["valid"]) == (True, False, False)
        assert (step.info["outcome"], step.reward) == (outcome, reward)


def test_the_reasons_are_the_originals():
    assert NO_ACTION == 'Cannot extract action from agent response. Pattern: "Act:\\s*(.+)"'
    assert BAD_ACTION == 'Invalid action string matched by pattern "Act:\\s*(.+)"'


def test_the_state_is_evaluated_at_the_limit():
    for scripts, outcome, reward in (("mkdir /srv/a", "incorrect", -0.5), ("mkdir /srv/a /srv/b", "correct", 1.0)):
        env = at(max_turns=3)
        assert [env.step(script).truncated for script in ("ls", "ls")] == [False, False]
        step = env.step(scripts)
        assert (step.truncated, step.terminated, step.info["status"]) == (True, False, "task_limit_reached")
        assert step.info["reason"] == "Task limit reached. The limit is 3."
        assert (step.info["outcome"], step.reward, step.info["success"]) == (outcome, reward, outcome == "correct")
        with pytest.raises(RuntimeError, match="reset"):
            env.step("ls")


def test_short_replies_are_the_command_line():
    env = at()
    assert env.step("echo 1\necho '```' 2\n").observation == OUTPUT + "1\n``` 2\n"
    assert env.step("echo finish").observation == OUTPUT + "finish\n"
    step = env.step(" finish\n")
    assert step.terminated and step.info["status"] == "completed"


@pytest.mark.parametrize(("script", "valid"), CASES["valid scripts"])
def test_valid_means_that_bash_can_run_the_reply(script, valid):
    assert at().step(script).info["valid"] == valid


@pytest.mark.all_only
def test_long_output_is_cut():
    mark = "\n[truncated because the output is too long]"
    line = "for i in $(seq 10); do printf %s {0..9}{0..9}; done | head -c "
    assert at().step(line + "800").observation == OUTPUT + "".join(f"{i:02}" for i in range(100)) * 4
    cut = at().step(line + "801").observation
    assert cut.endswith(mark) and len(cut) == len(OUTPUT) + 780 + len(mark)
    assert at(max_output=30).step("seq 100").observation == OUTPUT + "1\n2\n3\n4\n5\n" + mark
    assert len(at(max_output=0).step(line + "1000").observation) == len(OUTPUT) + 1000


@pytest.mark.all_only
def test_endless_script_is_stopped_and_the_episode_continues():
    env = at()
    step = env.step("echo 1; while true; do :; done")
    assert step.observation == OUTPUT + SLOW and not step.terminated
    assert env.step("echo 2").observation == OUTPUT + "2\n"


@pytest.fixture
def few_steps(monkeypatch):
    """End an evaluation's scripts after fewer steps."""
    module = sys.modules["envs.os_interaction.judge"]
    for name in ("MAX_STEPS", "TRIED"):
        monkeypatch.setattr(module, name, MAX_STEPS // 10)
    monkeypatch.setattr(module.run_script, "__defaults__", ((), MAX_STEPS // 10))


@pytest.mark.all_only
def test_an_evaluation_that_does_not_end_is_unknown(few_steps):
    endless = Task("Wait.", (), ("true",), ("while true; do :; done",), ())
    step = at(endless).step("finish")
    assert (step.reward, step.info["outcome"], step.info["success"]) == (0.0, "unknown", False)


def test_prompts_state_the_turn_limit():
    native = Env(Config(max_turns=7)).reset(4)
    (short,) = Env(Config(prompt="short")).reset(4)
    assert [message["role"] for message in native] == ["user", "assistant", "user"]
    assert (
        native[1]["content"] == "OK." and "7 rounds" in native[0]["content"] and "answer(" not in native[0]["content"]
    )
    hint, _, instruction = short["content"].partition("\n")
    assert instruction == native[2]["content"] and len(hint) < 70


@pytest.mark.all_only
def test_hostile_replies():
    env = at(max_turns=100)
    for text in (
        "\ud800",
        "\x00\x07\x1b[2J",
        "é漢🪓",
        ": " + "x" * MAX_SCRIPT,
        "x" * 10**5,
        "((((" * 5000,
        "$(" * 9000,
    ):
        step = env.step(text)
        assert not step.info["valid"] and len(step.observation) < 1000 and step.info["shaped"] == 0
    env.step("cd /srv; for i in $(seq 1200); do mkdir d; cd d; done")
    assert env.oracle() == "mkdir /srv/a" and expert(env)[-1].info["success"]
    env = at(prompt="native")
    step = env.step("Act: bash" + "a```bash\n" * 11_000)
    assert step.observation == EMPTY
    assert env.step("Act:" + " \n" * 50_000).info["status"] == "agent_validation_failed"


# -- what pays


def test_shaped_reward_pays_each_condition_once():
    env = at(max_turns=20)
    paid = CASES["paid"]
    for script, shaped in paid:
        assert env.step(script).info["shaped"] == shaped, script


@pytest.mark.all_only
@pytest.mark.parametrize("level", LEVELS)
def test_shaped_rewards_of_the_expert_sum_to_one_plus_the_reward(level):
    env = Env(Config(difficulty=level, prompt="short"))
    for seed in range(10):
        env.reset(seed)
        steps = expert(env)
        assert sum(step.info["shaped"] for step in steps[:-1]) == pytest.approx(1) and steps[-1].info["shaped"] == 1
        assert [step.reward for step in steps] == [0.0] * (len(steps) - 1) + [1.0]


def test_finishing_at_once_costs():
    for template in ALL:
        step = at(template.draw(Random(3))).step("finish")
        assert (step.reward, step.info["shaped"], step.info["outcome"]) == (-0.5, -0.5, "incorrect")


@pytest.mark.parametrize("folder", ["/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin"])
def test_replaced_system_programs_do_not_help(folder):
    task = next(t for t in ALL if t.instruction.startswith("Set the mode of DIR/NAME to")).draw(Random(0))
    env = at(task)
    mode = task.conditions[0].split()[-1]
    env.step(
        f"for name in stat getent grep cat; do echo 'echo {mode}' > {folder}/$name; chmod 755 {folder}/$name; done"
    )
    assert env.step("finish").info["outcome"] == "incorrect"


FILE = Task(
    instruction="Set the mode of /srv/f to 640.",
    init=("touch /srv/f",),
    truth=("chmod 640 /srv/f",),
    conditions=('test "$(stat -c %a /srv/f)" = 640',),
    skills=("chmod",),
)


def fake(path: str, bash: str = "/bin/bash", chmod: str = "chmod") -> str:
    """Return a command that installs a program that always prints 640."""
    return f"printf '#!{bash}\\necho 640\\n' > {path}; {chmod} 755 {path}"


@pytest.mark.all_only
@pytest.mark.parametrize("forgery", CASES["forgeries"])
def test_an_evaluation_cannot_be_forged(forgery):
    for script, outcome in ((forgery, "incorrect"), (f"chmod 640 /srv/f; {forgery}", "correct")):
        env = at(FILE)
        assert env.step(script).info["shaped"] == (outcome == "correct")
        assert env.step("finish").info["outcome"] == outcome


def test_a_condition_cannot_forge_the_next_one():
    run = Task("Write /srv/run.", ("touch /srv/f",), (), ("bash /srv/run", *FILE.conditions), ())
    env = at(run)
    env.step(f"cat > /srv/run <<'E'\n{fake('/usr/bin/stat')}\nE")
    assert env.step("finish").info["outcome"] == "incorrect"


@pytest.mark.all_only
@pytest.mark.parametrize(("condition", "script"), CASES["hopeless evaluations"])
def test_no_agent_makes_an_evaluation_unknown(condition, script, few_steps):
    env = at(Task("Do it.", ("touch /srv/f",), (), (condition,), ()))
    assert not env.step(script).observation.endswith(SLOW)
    step = env.step("finish")
    assert (step.info["outcome"], step.reward) == ("incorrect", -0.5)


@pytest.mark.parametrize("more", ["rm -r /srv /opt /mnt /tmp", "rm /etc/hostname", "rm -rf --no-preserve-root /"])
def test_deleting_too_much_is_incorrect(more):
    asked = "nothing else", "Delete the directory DIR", "and delete DIR."
    chosen = [template for template in ALL if any(words in template.instruction for words in asked)]
    assert len(chosen) == 5
    for template in chosen:
        task = template.draw(Random(0))
        machine = prepared(task)
        for script in (*task.truth, more):
            Shell(machine).run(script)
        assert judge(task, machine, "None") == "incorrect", task.instruction


def test_a_twin_keeps_links_and_shares_no_folder():
    machine = prepared(LIST)
    Shell(machine).run("ln /srv/old /srv/hard; ln -s old /srv/soft")
    other = twin(machine)
    Shell(other).run("echo x > /srv/hard; mkdir /srv/new; chmod 700 /srv")
    assert Shell(other).run("cat /srv/old /srv/soft").output == "x\nx\n"
    assert Shell(machine).run("cat /srv/old; ls /srv; stat -c %a /srv").output == "hard\nold\nsoft\n755\n"


def test_conditions_are_tried_on_a_copy():
    script = Task("Write /srv/run.", (), ("echo true > /srv/run",), ("bash /srv/run", "test -e /srv/x"), ())
    env = at(script)
    step = env.step("echo 'touch /srv/x' > /srv/run")
    assert step.info["shaped"] == 1.0  # both hold on the copy, the second one thanks to the first
    assert env.step("ls /srv").observation == OUTPUT + "run\n"


# -- the expert


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_solves_tasks_in_time(level, prompt):
    env = Env(Config(difficulty=level, prompt=prompt))
    for seed in range(8):
        env.reset(seed, SPLITS[seed % 3])
        steps = expert(env)
        assert steps[-1].info["success"] and steps[-1].terminated, env.task
        assert all(step.info["valid"] for step in steps) and len(steps) <= env.config.max_turns


@pytest.mark.parametrize("max_turns", [1, 2, 3, 20])
def test_expert_fits_into_the_turns_left(max_turns):
    for level in LEVELS:
        env = Env(Config(difficulty=level, prompt="short", max_turns=max_turns))
        env.reset(1)
        steps = expert(env)
        assert steps[-1].info["success"] and len(steps) == min(max_turns, len(env.current.truth) + 1)


def test_expert_continues_from_any_state():
    env = at(max_turns=9)
    env.step("ls")
    env.step("mkdir /srv/a")
    assert env.oracle() == "mkdir /srv/b"
    env.step("mkdir /srv/b")
    assert env.oracle() == "finish"


# -- tasks and splits


@pytest.mark.all_only
def test_difficulty_is_drawn_and_repeats_weigh():
    env, drawn = Env(Config(difficulty="1,1,1,3")), Counter()
    for seed in range(150):
        env.reset(seed)
        drawn[env.current.level] += 1
    assert set(drawn) == {"1", "3"} and drawn["1"] == pytest.approx(112, abs=15)


@pytest.mark.all_only
def test_every_template_has_tasks_in_every_split():
    for template in ALL:
        drawn = (split_of(template.draw(Random(seed)).key) for seed in range(200))
        assert all(split in drawn for split in SPLITS), template.instruction


# -- files of tasks


def lifelong(
    instruction: str, truth: str = "mkdir /srv/x\n", check: str = "test -d /srv/x", init: str = "true"
) -> dict:
    command = lambda script: {"command_name": "bash", "script": script}  # noqa: E731
    info = {"evaluation_command_item": command(check), "ground_truth_command_item": command(truth)}
    entry = {"instruction": instruction, "initialization_command_item": command(init), "evaluation_info": info}
    return entry | {"skill_list": ["mkdir"], "raw_entry_hash": "0"}


def written(tmp_path: Path, data, name: str = "data.json") -> str:
    path = tmp_path / name
    path.write_text(json.dumps(data))
    return str(path)


def test_lifelong_agent_bench_entries(tmp_path, capsys):
    entries = {str(i): lifelong(f"Create the folder /srv/x, way {i}.") for i in range(40)}
    entries["done"] = lifelong("Nothing to do.", init="mkdir /srv/x")
    entries["hopeless"] = lifelong("Write a program.", truth="python3 -c 'print(1)' > /srv/x")
    unplayable = {split_of(f"os_interaction:{entries[name]['instruction']}") for name in ("done", "hopeless")}
    path = written(tmp_path, entries, "entry_dict.json")
    seen = set()
    for split in SPLITS:
        env = Env(Config(data=path, prompt="short" if split == "val" else "native"))
        for seed in range(60):
            messages = env.reset(seed, split)
            assert messages[-1]["content"].endswith(env.current.instruction) and split_of(env.task) == split
            assert env.current.skills == ("mkdir",)
            seen.add(env.current.instruction)
        steps = expert(env)
        assert len(steps) == 2 and steps[-1].info["success"]
    said = capsys.readouterr().err.splitlines()
    assert len(said) == len(unplayable) and "'Nothing to do.': its check passes at the start" in "".join(said)
    assert len(seen) > 25 and all("way" in instruction for instruction in seen)
    env.reset(0)
    env.step(bash("mkdir /srv/x"))
    assert env.step("no action").info["outcome"] == "correct"


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl"])
def test_lifelong_agent_bench_rows_of_repr_play(tmp_path, name):
    """Hugging Face's rows hold nested fields as Python's repr."""
    rows = [lifelong(f"Create the folder /srv/x, way {i}.") for i in range(3)]
    rows = [{key: value if key == "instruction" else repr(value) for key, value in row.items()} for row in rows]
    path = tmp_path / name
    path.write_text(json.dumps(rows) if name == "rows.json" else "\n".join(map(json.dumps, rows)))
    env = Env(Config(data=str(path), splits="own"))
    assert env.count("test") == 3
    env.reset(1, "test")
    assert env.current.skills == ("mkdir",) and expert(env)[-1].info["success"]


INTEGER = "import sys\nsys.exit(0 if int(sys.argv[1]) == int(sys.argv[2]) else 1)"


def problem(evaluation: dict, **others) -> dict:
    return {"description": "How many files?", "labels": ["file"], "evaluation": evaluation} | others


@pytest.mark.parametrize(("entry", "right", "wrong"), CASES["problems of AgentBench"])
def test_agent_bench_problems(entry, right, wrong, tmp_path):
    found = [task for tasks in os_data.read(written(tmp_path, [entry])).values() for task in tasks]
    (task,) = found
    if right is None:
        assert obstacle(task)  # it has no solution to try
        return
    for replies, outcome in ((right, "correct"), (wrong, "incorrect")):
        env = at(task)
        for reply in replies.split("; "):
            step = env.step(reply)
        assert step.terminated and step.info["outcome"] == outcome
    if "regex" in str(entry):
        with pytest.raises(RuntimeError, match="no expert"):
            at(task).oracle()
    else:
        for prompt in ("native", "short"):
            assert not obstacle(task) and expert(at(task, prompt=prompt))[-1].info["success"]


def test_tasks_whose_machine_is_never_ready_are_unusable():
    task = replace(LIST, init=("touch /srv/old; seq 99999999999",))
    assert obstacle(task) == "a script that makes its machine does not end"
    with pytest.raises(Endless):
        at(task)


def test_questions_say_how_to_answer(tmp_path):
    path = written(tmp_path, [problem({"match": "3"}, description=f"Number {i}?") for i in range(30)])
    messages = Env(Config(data=path)).reset(0)
    assert "Act: answer(" in messages[0]["content"]
    env = Env(Config(data=path))
    env.reset(0)
    step = env.step("I counted.\nAct: answer(3)")
    assert step.reward == 1 and step.terminated


def test_scripts_of_agent_bench_are_files_of_a_folder(tmp_path):
    (tmp_path / "check").mkdir()
    (tmp_path / "check" / "same.py").write_text(INTEGER)
    entry = problem({"check": [None, {"language": "python", "file": "check/same.py"}], "example": "echo 1"})
    lines = "".join(json.dumps(entry | {"description": f"Number {i}?"}) + "\n" for i in range(40))
    (tmp_path / "problems.jsonl").write_text(lines + json.dumps(problem({"check": {"language": "c", "code": ""}})))
    env = Env(Config(data=str(tmp_path / "problems.jsonl"), scripts=str(tmp_path)))
    env.reset(0, "val")
    assert env.slow and expert(env)[-1].info["success"]
    with pytest.raises(ValueError, match="scripts must be the folder of AgentBench's scripts: no file "):
        os_data.read(str(tmp_path / "problems.jsonl"), str(tmp_path / "check"))


@pytest.mark.parametrize(("data", "line"), CASES["wrong files"])
def test_a_wrong_file_is_one_line(data, line, tmp_path):
    path = written(tmp_path, data)
    with pytest.raises(ValueError) as error:
        Env(Config(data=path))
    assert str(error.value) == line.format(path=path)


def test_a_split_without_a_playable_task_is_one_line(tmp_path):
    path = written(tmp_path, {str(i): lifelong(f"Way {i}", truth="true") for i in range(30)})
    with pytest.raises(ValueError, match=r"no task in split val that can be played: .* its own solution does not pass"):
        Env(Config(data=path)).reset(0, "val")


def test_brackets_without_end_are_no_json(tmp_path):
    (tmp_path / "deep.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="is not JSON"):
        Env(Config(data=str(tmp_path / "deep.json")))


# -- whole transcripts


def transcript() -> list[dict]:
    """Return the cases of the golden file: an expert at each level, and an agent that makes mistakes."""
    cases = []
    walk = [
        "ls -l /nowhere; echo $?",
        "for i in 1 2; do\n  echo $i\ndone | tee /srv/z",
        "foo",
        "if true",
        "id; seq 500",
    ]
    for difficulty, prompt, seed, replies in (
        *((level, "short", seed, []) for level in LEVELS for seed in range(3)),
        *((level, "native", 7, []) for level in LEVELS),
        ("2", "short", 9, walk),
        ("1", "native", 9, [bash("ls /srv"), "I give up."]),
    ):
        env = Env(Config(difficulty=difficulty, prompt=prompt))
        cases.append(golden.start(env.reset(seed, "test"), seed, "test", difficulty=difficulty, prompt=prompt))
        cases += golden.play(env, replies)
    return cases
