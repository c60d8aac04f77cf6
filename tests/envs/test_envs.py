"""Properties of every environment: reset, step and oracle, splits, determinism, hostile replies, the command line."""

import dataclasses
import gc
import io
import json
import os
import subprocess
import sys
import weakref
from collections import Counter
from itertools import product
from pathlib import Path
from random import Random

import golden
import pytest
from cases import cases
from experts import expert
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import envs
from envs import __main__ as cli
from envs import base, common
from envs.simulators import sandbox

CASES = cases("envs")

ROOT = Path(__file__).parents[2]
ONE_TURN = {"sat", "abd", "ded", "planner", "sums"}  # an answer, and the episode is over
ANY_NUMBER = {"sums"}  # any text with a number is a reply
STRICT = {"os_interaction", "db_bench"}  # a native reply in another form than the one asked for ends the episode
SCRIPTS = {"os_interaction"}  # of several blocks, and of all lines of a short reply, it makes one script
NO_FORM = {"os_interaction": -0.5, "db_bench": -0.1, "planner": 0.1}  # what such a reply earns, where that is not 0
LEVELS = {  # environment -> its levels of difficulty
    "textcraft": "1, 2, 3, 4",
    "alfworld": "1, 2, 3, original",
    "babyai": "1, 2, 3, 4, 5",
    "webshop": "1, 2, 3",
    "sciworld": "1, 2, 3, 4",
    "sat": "1, 2, 3, guide, original",
    "abd": "1, 2, 3",
    "ded": "1, 2, 3",
    "os_interaction": "1, 2, 3, 4",
    "db_bench": "1, 2, 3",
    "tau_retail": "1, 2, 3",
    "planner": "1, 2, 3",
    "sums": "1, 2, 3",
}
OURS = [name for name in envs.NAMES if name not in envs.WITHOUT_TASKS]
try:
    sandbox.start(sandbox.ISOLATED)
    REFUSED = ""
except ValueError as error:  # this machine has no rights to confine programs
    REFUSED = str(error)


def over(names, by_level: bool = False):
    """Return a parameter per name or level; environments that run programs are skipped if none can be confined."""
    no_programs = pytest.mark.skipif(bool(REFUSED), reason=REFUSED)
    cases = (
        [(name, level) for name in names for level in LEVELS[name].split(", ")]
        if by_level
        else [(name,) for name in names]
    )
    marked = [pytest.param(*case, marks=no_programs if case[0] in ("abd", "ded") else ()) for case in cases]
    return pytest.mark.parametrize(("name", "level") if by_level else "name", marked)


everywhere = over(OURS)
at_every_level = over(OURS, by_level=True)
with_max_turns = over(name for name in OURS if name not in ONE_TURN)
in_turns = over(name for name in OURS if name not in ONE_TURN | STRICT)

HOSTILE = [*CASES["hostile replies"], "\ud800 lone surrogate"]


@everywhere
def test_expert_episode_keeps_the_contract(name):
    env = envs.make(name)
    messages = env.reset(seed=1, split="train")
    assert all(set(m) == {"role", "content"} and isinstance(m["content"], str) for m in messages)
    assert messages[-1]["role"] == "user"
    assert common.split_of(env.task) == "train"
    steps = expert(env)
    for step in steps:
        assert {"outcome", "success", "valid", "shaped"} <= set(step.info)
        assert isinstance(step.observation, str) and isinstance(step.reward, float) and step.info["valid"] is True
    assert [step.info["success"] for step in steps] == [False] * (len(steps) - 1) + [True]
    assert steps[-1].terminated and not steps[-1].truncated and steps[-1].info["outcome"] == "correct"


@pytest.mark.parametrize("count", [12, pytest.param(1000, marks=pytest.mark.full)])
@at_every_level
def test_the_expert_solves_every_task(name, level, count):
    made = [envs.make(name, difficulty=level, prompt=prompt) for prompt in common.PROMPTS]
    for seed in range(count):
        env = made[seed % 2]
        env.reset(seed, common.SPLITS[seed % 3])
        steps = expert(env)
        alike = ":grow-" in env.task or ":mendelian-" in env.task  # SciWorld's seeds: chosen by a number, as there
        asked = [alike and step.observation.startswith("Ambiguous request: ") for step in steps]
        assert steps[-1].info["success"], (seed, env.task)
        assert all(step.info["valid"] or unclear for step, unclear in zip(steps, asked, strict=True)), (seed, env.task)


@pytest.mark.parametrize("name", envs.GROUPS["agentgym"])
def test_native_opening_equals_agentgyms(name):
    user, agent, first = envs.make(name).reset(0)
    agreed = "Ok." if name == "webshop" else "OK. I'll follow your instructions and try my best to solve the task."
    assert agent == {"role": "assistant", "content": agreed}
    assert user["role"] == first["role"] == "user" and "Thought:\n" in user["content"]


@everywhere
def test_step_and_oracle_need_a_running_episode(name):
    env = envs.make(name)
    for call in (lambda: env.step("x"), env.oracle):
        with pytest.raises(RuntimeError, match="reset"):
            call()
    env.reset(seed=0)
    expert(env)
    for call in (lambda: env.step("x"), env.oracle):
        with pytest.raises(RuntimeError, match="reset"):
            call()


@over(["abd", "ded"])
def test_a_broken_sandbox_is_no_wrong_answer(name, monkeypatch):
    def broken(*_):
        raise sandbox.SandboxFailed("gone")

    env = envs.make(name)
    env.reset(0)
    reply = env.oracle()
    monkeypatch.setattr(sandbox, "run", broken)
    with pytest.raises(envs.EnvironmentFailed, match="gone"):
        env.step(reply)


@everywhere
def test_a_finished_environment_is_freed(name, frozen_heap):
    """A rollout makes one per episode; 100,000 steps are in benchmarks/envs.py."""
    left = []
    for reply in ("", "Action: Operation\n```sql\nSELECT nope\n```"):
        env = envs.make(name)
        env.reset(seed=0)
        if not (step := env.step(reply)).terminated and not step.truncated:
            expert(env)
        left += [weakref.ref(value) for value in (env, *vars(env).values()) if hasattr(value, "__weakref__")]
    del env, step
    gc.collect()
    assert not [ref() for ref in left if type(ref()).__name__ in ("Env", "Database", "Machine")]


@in_turns
def test_truncation_at_the_turn_limit(name):
    env = envs.make(name, max_turns=3)
    for _ in range(2):  # the second episode gets its three turns as well
        env.reset(seed=0)
        steps = [env.step("nonsense") for _ in range(3)]
        assert [step.truncated for step in steps] == [False, False, True]
        assert [step.info["outcome"] for step in steps] == ["unknown", "unknown", "timeout"]
        assert not any(step.terminated or step.info["success"] or step.info["valid"] for step in steps)
        with pytest.raises(RuntimeError, match="reset"):
            env.step("nonsense")


@over(sorted(ONE_TURN))
def test_any_reply_ends_an_episode_of_one_turn(name):
    env = envs.make(name)
    for _ in range(2):
        env.reset(seed=0)
        step = env.step("nonsense")
        assert step.terminated and not step.truncated and step.info["outcome"] == "incorrect"
        assert not step.info["success"] and not step.info["valid"]
        with pytest.raises(RuntimeError, match="reset"):
            env.step("nonsense")


@everywhere
def test_reset_is_clean_of_the_episode_before(name):
    used, fresh = envs.make(name), envs.make(name)
    for seed in (5, 6):
        used.reset(seed=5)
        for _ in range(1 if name in ONE_TURN | STRICT else 3):
            used.step(used.oracle())
        assert used.reset(seed) == fresh.reset(seed)
        assert used.task == fresh.task
        assert expert(used) == expert(fresh)


@pytest.mark.parametrize("prompt", ["native", "short"])
@everywhere
def test_hostile_replies_change_nothing(name, prompt):
    limit = {} if name in ONE_TURN else {"max_turns": 10 * len(HOSTILE)}
    env = envs.make(name, prompt=prompt, **limit)
    env.reset(seed=1)  # abd: a program that reads a number, not any text
    before = env.oracle()
    for text in HOSTILE:
        step = env.step(text)
        assert not step.info["success"] and len(step.observation) < 1000
        assert not step.info["valid"] or name in ANY_NUMBER
        assert step.terminated == (name in ONE_TURN or (name in STRICT and prompt == "native"))
        assert step.reward == (NO_FORM.get(name, 0) if step.terminated else 0)
        assert step.info["shaped"] == step.reward
        if step.terminated:
            env.reset(seed=1)
    assert env.oracle() == before


SIGNS = "Action: Thought: Act: ``` ```bash ```sql ```python <INPUT> </INPUT> [ ] { } ( ) , ; : = 0 -1 99999999 goto[ \n"


def replies(words: list[str]):
    """Return a strategy of arbitrary texts, shuffled words of an environment, and repetitions of both up to 100 kB."""
    piece = st.text(st.characters(), max_size=200) | st.lists(st.sampled_from(words), max_size=15).map(" ".join)
    return piece | st.builds(lambda text, size: (text * size)[:size], piece, st.integers(1_000, 100_000))


@pytest.mark.all_only
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), prompt=st.sampled_from(common.PROMPTS))
@everywhere
def test_any_reply_gets_a_valid_step(name, data, prompt):
    env = envs.make(name, prompt=prompt)
    words = env.reset(1)[-1]["content"].split() + env.oracle().split()
    step = env.step(data.draw(replies(sorted({*words, *SIGNS.split(" ")}))))
    assert isinstance(step.observation, str) and len(step.observation) < 10_000
    assert step.info["outcome"] in ("correct", "incorrect", "timeout", "unknown")
    assert step.terminated or step.truncated or env.oracle()


def in_brackets(reply: str) -> str:
    """Return `go to desk 1` as `goto[desk 1]`."""
    verb, _, rest = reply.replace("go to ", "goto ", 1).partition(" ")
    return f"{verb}[{rest}]"


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", common.PROMPTS)
@over(name for name in OURS if name not in ONE_TURN | SCRIPTS)
def test_a_reply_in_two_forms_is_one_action_at_most(name, prompt):
    env, *pair = (envs.make(name, prompt=form) for form in (prompt, *common.PROMPTS))

    def then(*replies: str) -> str:
        """Return the expert's action after these replies, or how the episode ended."""
        env.reset(seed)
        for reply in replies:
            step = env.step(reply)
        return env.oracle() if env.running else step.info["outcome"]

    for seed, start in product(range(50), range(6)):  # until two moves lead further than either
        moves = []
        for each in pair:
            each.reset(seed)
        while len(moves) < start + 2 and pair[0].running:
            moves.append([each.oracle() for each in pair])
            for each, reply in zip(pair, moves[-1], strict=True):
                each.step(reply)
        if len(moves) < start + 2:
            continue
        *before, first, second = (move[common.PROMPTS.index(prompt)] for move in moves)
        both = then(*before, first, second)
        if both not in (then(*before, move) for move in ("?", first, second)):
            break
    else:
        raise AssertionError("no such episode")
    forms = [[native, short, in_brackets(short), f"Action: {in_brackets(short)}"] for native, short in moves[-2:]]
    for one, other, between in product(*forms, ("\n", "\n\n", " ")):
        assert then(*before, one + between + other) != both, one + between + other


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", common.PROMPTS)
@over(sorted(ONE_TURN))
def test_only_one_of_two_answers_counts(name, prompt):
    env, *pair = (envs.make(name, difficulty="1", prompt=form) for form in (prompt, *common.PROMPTS))

    def right(reply: str) -> bool:
        env.reset(1)
        return env.step(reply).info["success"]

    def answers(seed: int) -> list[str]:
        for each in pair:
            each.reset(seed)
        return [each.oracle() for each in pair]

    ours = answers(1)
    theirs = next(found for found in map(answers, range(2, 50)) if not any(map(right, found)))
    assert right(ours[common.PROMPTS.index(prompt)])
    for i, j in product(range(2), repeat=2):
        assert not (right(f"{ours[i]}\n{theirs[j]}") and right(f"{theirs[i]}\n{ours[j]}"))


# Run in another process: the demonstrations that `python -m envs NAME` prints, and the cases of the golden file or [].
PROGRAM = """
import contextlib, io, json, runpy, sys
import golden

answers, (names, with_golden) = {}, json.loads(sys.argv[1])
for name, levels in names.items():
    sys.argv = ["envs", name, "demos=30", "seed=11", "split=val", f"difficulty={levels}"]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        runpy.run_module("envs", run_name="__main__")
    answers[name] = {"demonstrations": printed.getvalue(), "golden": golden.cases(name) if with_golden else []}
json.dump(answers, sys.stdout)
"""


def in_processes(with_golden: dict[str, bool]) -> list[dict]:
    """Return each environment's demonstrations, and perhaps its golden cases, from one process per PYTHONHASHSEED."""
    names = {name: LEVELS[name].replace(" ", "") for name in OURS if not (REFUSED and name in ("abd", "ded"))}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps([names, also])],
            cwd=ROOT / "tests" / "envs",
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONUTF8": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
            stdout=subprocess.PIPE,
        )
        for seed, also in with_golden.items()
    ]
    return [json.loads(process.communicate()[0]) for process in started]


@pytest.fixture(scope="module")
def in_two_processes() -> list[dict]:
    return in_processes({"0": False, "77": True})


@pytest.fixture(scope="module")
def in_a_third_process() -> dict:
    return in_processes({"1": True})[0]


@pytest.mark.all_only
@everywhere
def test_episodes_do_not_depend_on_string_hashing(name, in_two_processes):
    one, other = (answers[name]["demonstrations"] for answers in in_two_processes)
    assert len(one) > 500 and one == other


@pytest.mark.full
@everywhere
def test_a_third_hash_seed_changes_no_episode(name, in_two_processes, in_a_third_process):
    assert in_a_third_process[name] == in_two_processes[1][name]


@over(golden.ENVIRONMENTS)
def test_golden_transcripts(name):
    golden.check(name, golden.cases(name))


@pytest.mark.all_only
@everywhere
def test_golden_transcripts_do_not_depend_on_the_process(name, in_two_processes):
    """Another test checks each of them in this process, whose strings have other hashes."""
    golden.check(name, in_two_processes[1][name]["golden"])


MANY = {"abd": 2000, "ded": 1200, "planner": 3000, "tau_retail": 600}  # different tasks in 3,334 seeds; others have 50


@pytest.mark.parametrize("count", [80, pytest.param(3334, marks=pytest.mark.full)])
@everywhere
def test_seeds_draw_many_tasks_and_splits_share_none(name, count):
    env = envs.make(name, difficulty=LEVELS[name].replace(" ", ""))
    tasks = {}
    for split in common.SPLITS:
        drawn = []
        for seed in range(count):
            env.reset(seed, split)
            drawn.append(env.task)
        assert {common.split_of(task) for task in drawn} == {split}
        tasks[split] = set(drawn)
    assert len(tasks["train"]) > min(0.9 * count, MANY.get(name, 50))
    assert name not in MANY or min(map(len, tasks.values())) > 50
    assert not tasks["train"] & tasks["val"] and not tasks["train"] & tasks["test"] and not tasks["val"] & tasks["test"]


def test_split_of_is_fixed_and_80_10_10():
    pinned = {"birch stairs": "train", "birch door": "val", "iron plate": "test"}
    assert {goal: common.split_of(f"textcraft:{goal}") for goal in pinned} == pinned
    counts = Counter(common.split_of(f"task {i}") for i in range(20_000))
    assert counts["train"] == pytest.approx(16_000, abs=300)
    assert counts["val"] == pytest.approx(2_000, abs=200)
    assert counts["test"] == pytest.approx(2_000, abs=200)


def test_records_are_frozen():
    step = base.Step("seen", 0.0, False, False, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        step.reward = 1.0
    assert step.requests == [] and base.Step("", 0.0, False, False, {}).requests is not step.requests


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda: envs.make("textcarft"), "unknown environment 'textcarft'; did you mean 'textcraft'?"),
        (lambda: envs.config_class("zzz"), "unknown environment 'zzz'; choose from: "),
        (lambda: envs.make("affine"), "'affine' is a group of environments; choose one of: sat, abd, ded"),
        (
            lambda: envs.make("textcraft", promt=1),
            "unknown option 'promt' of environment textcraft; did you mean 'prompt'?",
        ),
        (
            lambda: envs.make("planner", worker_temp=1),
            "unknown option 'worker_temp' of environment planner; did you mean 'worker_temperature'?",
        ),
        (lambda: envs.make("textcraft").reset(0, "dev"), "split must be one of train, val, test, not 'dev'"),
    ],
)
def test_wrong_names_are_one_line(call, line):
    with pytest.raises(ValueError) as error:
        call()
    assert str(error.value).startswith(line) and "\n" not in str(error.value)


def test_error_names_the_missing_line_of_an_environment(tmp_path, monkeypatch):
    monkeypatch.setattr(envs, "__path__", [*envs.__path__, str(tmp_path)])
    (tmp_path / "guessing.py").write_text("class Config: ...\n\n\nclass Env(Environment): ...\n")
    (tmp_path / "helper.py").write_text("class Envelope: ...\n")
    with pytest.raises(
        ValueError,
        match=r'guessing.py has a class Env: add "guessing": "envs.guessing", to NAMES in .*envs/__init__.py$',
    ):
        envs.make("guessing")
    (tmp_path / "broken.py").write_text("class Env(")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "inner.py").write_text("class Env: ...\n")
    (tmp_path / "unread.py").mkdir()  # a folder: reading it fails
    (tmp_path / "said.py").write_text('"""A text.\nclass Env in it"""\n')
    # base: of envs/, without an Env
    for other in ("helper", "broken", "empty", "unread", "said", "base", "empty/inner", "guessing.Env", 3, None):
        with pytest.raises(ValueError, match=r"choose from|did you mean"):
            envs.make(other)


@pytest.mark.parametrize("difficulty", ["?", "0", "6", "1,,2", ""])
@everywhere
def test_an_unknown_difficulty_names_the_levels(name, difficulty):
    with pytest.raises(ValueError) as error:
        envs.make(name, difficulty=difficulty)
    assert str(error.value) == f"difficulty must be a comma list of {LEVELS[name]}, not {difficulty!r}"


@pytest.mark.parametrize(("name", "options", "line"), CASES["impossible options"])
def test_an_impossible_option_is_one_line(name, options, line):
    if REFUSED and name in ("abd", "ded"):
        pytest.skip(REFUSED)
    with pytest.raises(ValueError) as error:
        envs.make(name, **options)
    assert str(error.value) == line


@everywhere
def test_difficulty_may_be_a_number_or_contain_spaces(name):
    assert envs.make(name, difficulty=2).config.difficulty == "2"
    assert envs.make(name, difficulty="1, 2").config.difficulty == "1,2"


@pytest.mark.parametrize("max_turns", [0, True, "9"])
@with_max_turns
def test_a_turn_limit_is_a_positive_whole_number(name, max_turns):
    with pytest.raises(ValueError) as error:
        envs.make(name, max_turns=max_turns)
    assert str(error.value) == f"max_turns must be a whole number of at least 1, not {max_turns!r}"


@pytest.mark.parametrize("prompt", ["long", ""])
@everywhere
def test_an_unknown_prompt_names_the_known_ones(name, prompt):
    with pytest.raises(ValueError) as error:
        envs.make(name, prompt=prompt)
    line = f"prompt must be 'native' or 'short', not {prompt!r}; or a file that ends in .txt or .md"
    assert str(error.value) == line


def test_envs_imports_only_the_standard_library():
    program = "import sys, envs, envs.__main__; [n == 'qa' or envs.make(n) for n in envs.NAMES]; "
    program += "envs.config_class('qa'); print(*sys.modules)"
    modules = subprocess.check_output([sys.executable, "-c", program], cwd=ROOT, text=True).split()
    roots = {module.partition(".")[0] for module in modules}
    assert not roots & {"torch", "numpy", "tokenizers", "models", "lora"}
    parser = {
        "rl.config.arguments",
        "rl.config.program",
        "rl.config.refusals",
        "rl.config.help",
        "rl.config",
        "rl.run",
        "rl.run.status",
        "rl.run.signals",
    }
    parser |= {"rl.ranks"}
    assert {module for module in modules if module.startswith("rl.")} <= parser


@pytest.mark.all_only
@everywhere
def test_help_documents_every_option(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([name, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for field in (*dataclasses.fields(envs.config_class(name)), *dataclasses.fields(cli.Keys)[1:]):
        default = str(field.default).lower() if isinstance(field.default, bool) else field.default
        (line,) = [line for line in text.splitlines() if line.startswith(f"  {field.name}={default} ")]
        assert len(line.split()) > 4


def test_help_names_every_environment(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([])
    assert end.value.code == 0
    assert f"Environments: {' '.join(envs.NAMES)}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("args", "line"), CASES["wrong arguments"])
def test_wrong_arguments_are_one_line_and_status_2(args, line, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(args)
    captured = capsys.readouterr()
    assert end.value.code == 2 and captured.out == ""
    assert captured.err.startswith(f"envs: {line}") and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (envs.EnvironmentFailed("the server \x1b[2J failed"), "envs: the server \\x1b[2J failed\n"),
        (RuntimeError("no expert: the file has none"), "envs: no expert: the file has none\n"),
        (OSError(24, "Too many open files"), "envs: [Errno 24] Too many open files\n"),
    ],
)
def test_a_failure_is_one_line_and_status_1(error, line, capsys, monkeypatch):
    def oracle(_):
        raise error

    monkeypatch.setattr("envs.textcraft.Env.oracle", oracle)
    with pytest.raises(SystemExit) as end:
        cli.main(["textcraft", "demos=1"])
    assert end.value.code == 1 and capsys.readouterr() == ("", line)


@pytest.mark.parametrize("words", [["sat", "sat.k=2"], ["env=sat", "k=2"]])
def test_train_form_of_a_key_is_read_too(words):
    keys, config = cli.parse(words)
    assert keys.env == "sat" and config.k == "2"


def test_demonstrations_are_whole_episodes(capsys):
    cli.main(["textcraft", "demos=4", "seed=9", "difficulty=1,2", "prompt=short"])
    texts = capsys.readouterr().out.split("Reply with one command")
    assert texts[0] == "" and len(texts) == 5
    for text in texts[1:]:
        assert "\nCrafting commands:\n" in text and text.endswith("\n\n")
        goal = text.partition("Goal: craft ")[2].partition(".")[0]
        assert f" minecraft:{goal.replace(' ', '_')}\n" in text.splitlines(keepends=True)[-2][8:]


def test_a_person_can_play(capsys, monkeypatch):
    env = envs.make("textcraft", difficulty=1)
    env.reset(3)
    moves = []
    while env.running:
        moves.append(env.oracle().split("Action:\n")[1])
        env.step(env.oracle())
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(["?", "dance", *moves, "q"])))
    cli.main(["textcraft", "difficulty=1", "seed=3"])
    text = capsys.readouterr().out
    assert "Could not execute dance" in text and f"Action:\n{moves[0]}" in text
    assert text.endswith("reward 1, shaped 1, valid True\nover: correct\n")


def test_a_game_without_an_expert_goes_on(capsys, monkeypatch):
    env = envs.make("textcraft", difficulty=1, prompt="short")
    env.reset(3)
    moves = []
    while env.running:
        moves.append(env.oracle())
        env.step(moves[-1])

    def none(_):
        raise RuntimeError("there is no expert here")

    monkeypatch.setattr("envs.textcraft.Env.oracle", none)
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(["?", *moves])))
    cli.main(["textcraft", "difficulty=1", "prompt=short", "seed=3"])
    captured = capsys.readouterr()
    assert "> there is no expert here\n> " in captured.out and captured.err == ""
    assert captured.out.endswith("over: correct\n")


@over(OURS)
def test_environments_that_pay_below_0_say_so(name):
    """Of play in which each reply is the expert's or, with as much chance, its action in another task of the level."""
    env, other, least = envs.make(name), envs.make(name), 0.0
    for seed in range(20):
        env.reset(seed, "train")
        other.reset(seed + 1000, "train")
        rng, done = Random(seed), False
        while not done:
            step = env.step((env if rng.random() < 0.5 else other).oracle())
            least, done = min(least, step.reward), step.terminated or step.truncated
    assert least >= 0 or env.pays_below_0
