"""DED: the program in a reply, test cases of both types, brute force, the tasks, and rows of a file."""

import json
from collections import Counter
from random import Random

import one_turn
import pytest
from cases import cases
from one_turn import answered

from envs.affine import ded, programs
from envs.affine.ded import Config, Env, cases_of_row, draw_cases, normal, prepare
from envs.base import Step
from envs.common import SPLITS, split_of
from envs.simulators import sandbox

CASES = cases("ded")
HOSTILE = {**CASES["hostile programs"], "a surrogate": "print('\ud800')"}

try:
    sandbox.start(sandbox.ISOLATED)
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)


def io(given, output, **more) -> dict:
    return {"type": "stdin_stdout", "input": given, "output": output} | more


def call(name: str, args, output) -> dict:
    return {"type": "function_call", "fn_name": name, "input": args, "output": output}


def grade(reply: str, cases: list[dict], **options) -> tuple[float, bool, str]:
    """Return reward, validity and observation of a reply."""
    env = Env(Config(**options))
    env.reset(seed=0)
    env.cases = cases
    step = answered(env, reply)
    return step.reward, step.info["valid"], step.observation


DOUBLE = [io("5\n", "10\n"), io("7", "14"), io(["-1"], ["-2"])]
RIGHT = (1, True, "Passed 3 of 3 cases")


@pytest.mark.parametrize(
    ("reply", "expected"),
    CASES["programs that read stdin"],
)  # fmt: skip
@pytest.mark.parametrize("prompt", ["native", "short"])
def test_programs_that_read_stdin(reply, expected, prompt):
    assert grade(reply, DOUBLE, prompt=prompt) == tuple(expected)


FUNCTION = [call("add", [2, 3], [5]), call("add", [-1, 1], 0), call("add", ["a", "b"], ["ab"])]


@pytest.mark.parametrize(
    ("reply", "expected"),
    CASES["functions that are called"],
)  # fmt: skip
def test_functions_that_are_called(reply, expected):
    assert grade(reply, FUNCTION) == tuple(expected)


@pytest.mark.parametrize(
    ("case", "prepared"),
    CASES["prepared cases"],
)  # fmt: skip
def test_program_run_for_a_case(case, prepared):
    assert prepare(case, "P") == tuple(prepared)


def test_outputs_are_compared_without_trailing_blanks():
    assert normal("1  \n2\t\n\n \n") == "1\n2" == normal("1\n2")
    assert normal("\n 1") == "\n 1" and normal("1\n\n2") == "1\n\n2" and normal("\n \n") == ""


def test_the_cases_after_a_failure_are_not_run(monkeypatch):
    runs = []
    execute = sandbox.execute
    monkeypatch.setattr(sandbox, "execute", lambda *args: runs.append(args[1]) or execute(*args))
    assert grade("print(10)", DOUBLE) == (0, True, "Passed 1 of 3 cases")
    assert runs == ["5\n", "7\n"]


@pytest.mark.all_only
def test_time_is_limited():
    slow = "print(10, flush=True)\nimport time\ntime.sleep(9)"
    assert grade(slow, DOUBLE, seconds=1) == (0, False, "Passed 0 of 3 cases: [TIMEOUT]")


# ---- Brute force, and looking for the answer. ----


@pytest.mark.all_only
@pytest.mark.parametrize("level", programs.LEVELS)
def test_constant_outputs_do_not_pay(level):
    env = Env(Config(difficulty=level))
    for seed in range(40):
        (message,) = env.reset(seed)
        outputs = [prepare(case, "")[2] for case in env.cases]
        assert len(env.cases) == 5 and len(set(outputs)) > 1
        assert len({repr(case["input"]) for case in env.cases}) == 5
        if "Example input" in message["content"]:
            shown = message["content"].partition("Example input:\n")[2].partition("\n\n---")[0]
            given, _, output = shown.partition("\nExample output:\n")
            assert given not in [case["input"] for case in env.cases]
            outputs.append(output)
        if seed < 4:
            for output in set(outputs):
                name = env.cases[0].get("fn_name")
                if not name:
                    step = env.step(f"```python\nprint({output!r})\n```")
                else:
                    step = env.step(f"def {name}(*_):\n    return {output!r}")
                assert step.reward == step.info["shaped"] == 0 and step.info["valid"]
                env.reset(seed)


@pytest.mark.all_only
def test_answers_of_another_episode_do_not_pay():
    env = Env(Config(difficulty="2"))
    drawn = {}
    for seed in range(400):
        env.reset(seed)
        if env.words in drawn and env.cases[0]["type"] == "stdin_stdout":
            table = {case["input"] + "\n": case["output"] for case in drawn[env.words]}
            step = env.step(f"import sys\nprint({table!r}.get(sys.stdin.read(), '?'))")
            assert step.reward == 0
            return
        drawn[env.words] = env.cases
    raise AssertionError("no task came twice")


LOOK = """
import gc, glob, os, sys
text = str(sys.argv) + str(dict(os.environ))
for where in ('/proc/self/environ', '/proc/1/cmdline', '/proc/1/mem', *glob.glob('/tmp/*'), *glob.glob('/proc/*/fd/*')):
    try:
        text += open(where, errors='replace').read(10000)
    except OSError:
        pass
for thing in gc.get_objects():
    if isinstance(thing, dict) and 'test_cases' in thing:
        text += 'found'
print('found' if '271828' in text or 'found' in text else 'nothing')
"""


@pytest.mark.all_only
def test_program_cannot_find_the_expected_output():
    assert grade(LOOK, [io("1", "nothing"), io("1", "271828")]) == (0, True, "Passed 1 of 2 cases")


@pytest.mark.all_only
@pytest.mark.parametrize("program", HOSTILE.values(), ids=HOSTILE)
def test_hostile_programs_are_wrong_and_nothing_more(program):
    reward, _, observation = grade(program, DOUBLE, seconds=5, cpu_seconds=1)
    assert reward == 0 and observation.startswith("Passed 0 of 3 cases") and len(observation) < 300
    assert grade("print(int(input()) * 2)", DOUBLE) == RIGHT


# ---- Tasks. ----


def test_prompts():
    native, short = Env(Config(difficulty="1")), Env(Config(difficulty="1", prompt="short"))
    for seed in range(20):
        (message,), (bare,) = native.reset(seed), short.reset(seed)
        assert message["role"] == bare["role"] == "user"
        words, _, rest = message["content"].partition("\n\nExample input:\n")
        assert words == native.words == short.words
        example, _, footer = rest.partition("\n\n---\n")
        given, _, output = example.partition("\nExample output:\n")
        assert programs.output(native.program, given).rstrip("\n") == output
        for fact in ("Python 3 program", "STDIN", "STDOUT", "```python"):
            assert fact in footer
        assert bare["content"] == f"Reply with a Python program.\n{words}"
        assert bare["content"].isascii() and len(bare["content"]) < 90
        assert native.oracle() == f"```python\n{short.oracle()}\n```"


def solve(level: str, prompt: str, seeds: range) -> Counter:
    env, tasks = Env(Config(difficulty=level, prompt=prompt)), Counter()
    for seed in seeds:
        split = SPLITS[seed % 3]
        env.reset(seed, split)
        assert split_of(env.task) == split
        tasks[env.words] += 1
        assert env.step(env.oracle()) == Step(
            "Passed 5 of 5 cases",
            1.0,
            True,
            False,
            {"outcome": "correct", "success": True, "valid": True, "shaped": 1.0},
        ), (level, seed)
    return tasks


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("level", programs.LEVELS)
def test_the_oracle_solves_every_task(level, prompt):
    assert len(solve(level, prompt, range(8))) > 5


@pytest.mark.all_only
def test_functions_in_the_sandbox_match_the_generator():
    functions = [t for t in programs.TEMPLATES if t.function]
    assert len(functions) >= 5
    for template in functions:
        program = template.draw(Random(0))
        assert "$" not in program.task + program.source and program.function + " with" in program.task
        assert grade(program.source, draw_cases(program, Random(1), 4))[0] == 1


@pytest.mark.all_only
def test_every_template_has_cases_with_distinct_outputs():
    for template in programs.TEMPLATES:
        for seed in range(8):
            rng = Random(seed)
            cases = draw_cases(template.draw(rng), rng, 6)
            assert len(cases) == 6 and len({str(case["output"]) for case in cases[1:]}) > 1


@pytest.mark.all_only
def test_task_is_its_words_with_fresh_cases():
    env, cases = Env(Config(difficulty="1")), {}
    for seed in range(200):
        env.reset(seed)
        assert env.task == f"ded:{env.words}"
        cases.setdefault(env.task, []).append(str(env.cases))
    again = [drawn for drawn in cases.values() if len(drawn) > 1]
    assert again and all(len(set(drawn)) == len(drawn) for drawn in again)


# ---- Golden transcripts. ----

EPISODES = [
    ({"difficulty": "1"}, 3, ["", "```python\nprint(1)\n```", "oracle"]),
    ({"difficulty": "1", "prompt": "short"}, 3, ["print(x)", "oracle"]),
    ({"difficulty": "2"}, 9, ["print(input())", "oracle"]),
    ({"difficulty": "2", "prompt": "short", "cases": 3}, 15, ["oracle"]),
    ({"difficulty": "3"}, 6, ["I do not know.", "```\nprint(", "oracle"]),
]


def transcript() -> list[dict]:
    return one_turn.transcript(ded, EPISODES)


# ---- Rows of a file. ----


def row(number: int, info, **more) -> dict:
    source = f"print(int(input()) + {number})"
    return {"prompt": f"Add {number}.\n", "program": source, "verification_info": info} | more


@pytest.mark.all_only
def test_rows_of_a_file(tmp_path):
    def cases(n: int) -> dict:
        return {"test_cases": [io("1", str(1 + n)), {"type": "gui"}, io(["2"], [str(2 + n)])]}

    rows = [row(i, [cases(i), json.dumps(cases(i)), repr(cases(i))][i % 3]) for i in range(60)]
    rows[3] = {"prompt": "Add 3.", "program": rows[3]["program"], "test_cases": json.dumps(cases(3))}  # the older key
    rows[4]["program"] = f"```python\n{rows[4]['program']}\n```"
    left_out = [
        row(90, {"test_cases": []}),
        row(91, {"test_cases": [{"type": "gui"}]}),
        row(92, "no cases"),
        row(93, None),
    ]
    left_out += [row(94, cases(94), prompt=" ")]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows + left_out)))
    env, seen = Env(Config(data=str(path))), Counter()
    for split in SPLITS:
        for seed in range(250):
            (message,) = env.reset(seed, split)
            assert message["content"].startswith(env.words + "\n\n---\n") and split_of(env.task) == split
            seen[env.words] += 1
            if seen[env.words] == 1 and seed < 30:
                assert env.step(env.oracle()).observation == "Passed 2 of 2 cases"
    assert set(seen) == {f"Add {i}." for i in range(60)}


def test_cases_may_stand_without_their_object():
    cases = [io("1", "2")]
    for written in ({"test_cases": cases}, cases, json.dumps(cases), repr({"test_cases": cases})):
        assert cases_of_row({"test_cases": written}) == cases
    assert cases_of_row({"verification_info": "[" * 10_000}) == cases_of_row({}) == []


def test_a_file_without_rows_is_one_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row(1, {"test_cases": []})))
    with pytest.raises(ValueError, match=r"data: .* left out: no "):
        Env(Config(data=str(path)))
