"""ABD: reading a reply, valid inputs, equality of outputs, the programs, and rows of a file."""

import json
import re
from collections import Counter
from pathlib import Path
from random import Random

import one_turn
import pytest
from cases import cases
from conftest import no_hang
from one_turn import answered

from envs.affine import abd, programs
from envs.affine.abd import Config, Env, clean, enough_lines, input_in, same_output
from envs.base import Step
from envs.common import SPLITS, split_of
from envs.simulators import sandbox
from rl.config.words import parse

CASES = cases("abd")

try:
    sandbox.start(sandbox.ISOLATED)
except ValueError as error:
    pytest.skip(str(error), allow_module_level=True)

DOUBLE = "def solve():\n    x = int(input())\n    print(x * 2)"


def at(program: str, output: str, **options) -> Env:
    """Return an environment whose episode has this program and output."""
    env = Env(Config(**options))
    env.reset(seed=0)
    env.program, env.input, env.output = program, "5", output
    return env


def grade(reply: str, program: str = DOUBLE, output: str = "10\n", **options) -> tuple[float, bool, str]:
    """Return reward, validity and observation of a reply."""
    step = answered(at(program, output, **options), reply)
    return step.reward, step.info["valid"], step.observation


SHORTAGE = (0, False, "Invalid input for program")


@pytest.mark.parametrize(("reply", "expected"), CASES["replies"])
def test_replies(reply, expected):
    assert grade(reply) == tuple(expected)


@pytest.mark.parametrize(("reply", "expected"), CASES["short replies"])
def test_short_replies_are_bare(reply, expected):
    assert grade(reply, prompt="short") == tuple(expected)


@pytest.mark.parametrize(
    ("text", "cleaned"), [(" \n 1 2 \t\n\n  3 \r\n4\n \n", "1 2\n\n  3\n4"), ("", ""), ("\n\n", ""), ("a\x0bb", "a\nb")]
)
def test_inputs_and_their_lines_are_stripped(text, cleaned):
    assert clean(text) == cleaned == input_in(f"<INPUT>{text}</INPUT>")


@pytest.mark.parametrize(("program", "text", "enough"), CASES["inputs"])
def test_valid_and_refused_inputs(program, text, enough):
    assert enough_lines(program, text) == enough
    if not enough:
        assert grade(f"<INPUT>{text}</INPUT>", program, "?") == SHORTAGE


@pytest.mark.parametrize(("expected", "actual", "same"), CASES["outputs"])
def test_when_outputs_are_equal(expected, actual, same):
    assert same_output(expected, actual) == same
    assert grade("<INPUT>x</INPUT>", f"print({actual!r}, end='')", expected)[0] == same


@pytest.mark.all_only
def test_program_must_end_well_and_in_time():
    assert grade("<INPUT>x</INPUT>", "import sys\nprint(10)\nprint(' ', file=sys.stderr)") == (0, False, "Error: ")
    assert grade("<INPUT>x</INPUT>", "import sys\nprint(10)\nsys.exit(3)") == (0, False, "Error: [EXIT STATUS 3]")
    crash = "import ctypes\nprint(10, flush=True)\nctypes.string_at(0)"
    assert grade("<INPUT>x</INPUT>", crash) == (0, False, "Error: [KILLED BY SIGSEGV]")
    slow = "print(10, flush=True)\nimport time\ntime.sleep(9)"
    assert grade("<INPUT>x</INPUT>", slow, seconds=1) == (0, False, "Error: [TIMEOUT]")


@pytest.mark.all_only
def test_input_cannot_escape_the_program(tmp_path):
    """Programs of a file may evaluate their input."""
    target = tmp_path / "x"
    reply = f"<INPUT>open({str(target)!r}, 'w').write('1')</INPUT>"
    assert re.match("Error: (FileNotFound|Permission)Error", grade(reply, "print(eval(input()))")[2])
    assert not target.exists()


@pytest.mark.all_only
@pytest.mark.parametrize(
    "piece",
    ["<INPUT>", "</INPUT>", "<think>", "<think></think>", "<thinking>x", "<INPUT>\n", "<", "1\n", "\u0130", "5"],
)
def test_huge_replies_are_read_in_linear_time(piece):
    with no_hang():
        input_in(piece * (200_000 // len(piece)))


def slow_input(reply: str) -> str | None:
    """Find the input by regular expressions, which take quadratic time."""
    text = reply
    for name in ("think", "thinking"):
        text = re.sub(f"<{name}>.*?</{name}>", "", text, flags=re.DOTALL)
    found = re.findall("<INPUT>(.*?)</INPUT>", text, re.DOTALL | re.IGNORECASE)
    if not found:
        return "" if re.search("<INPUT>.*?</INPUT>", reply, re.DOTALL | re.IGNORECASE) else None
    lines = [line.rstrip() for line in found[-1].strip().splitlines()]
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)


@pytest.mark.all_only
def test_input_equals_the_regular_expressions_match():
    rng = Random(0)
    for _ in range(2000):
        reply = "".join(rng.choices(CASES["pieces"], k=rng.randint(0, 12)))
        assert input_in(reply) == slow_input(reply), reply


# ---- Tasks. ----


def test_prompts():
    native, short = Env(Config(difficulty="1")), Env(Config(difficulty="1", prompt="short"))
    for seed in range(20):
        (message,), (bare,) = native.reset(seed), short.reset(seed)
        assert message["role"] == bare["role"] == "user"
        assert f"Program:\n```python\n{native.program}\n```" in message["content"]
        assert f"Expected Output:\n```\n{native.output.rstrip()}\n```" in message["content"]
        assert "<INPUT>" in message["content"] and "</INPUT>" in message["content"]
        assert bare["content"] == f"Reply with the input.\n{native.program}\nOutput:\n{native.output.rstrip()}"
        assert bare["content"].isascii() and len(bare["content"]) < 120
        assert native.oracle() == f"<INPUT>\n{short.oracle()}\n</INPUT>"


def solve(level: str, prompt: str, seeds: range) -> Counter:
    env, tasks = Env(Config(difficulty=level, prompt=prompt)), Counter()
    for seed in seeds:
        split = SPLITS[seed % 3]
        env.reset(seed, split)
        assert split_of(env.task) == split and env.output.strip()
        tasks[env.program] += 1
        assert env.step(env.oracle()) == Step(
            "Correct", 1.0, True, False, {"outcome": "correct", "success": True, "valid": True, "shaped": 1.0}
        ), (level, seed)
    return tasks


@pytest.mark.all_only
@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("level", programs.LEVELS)
def test_the_oracle_solves_every_task(level, prompt):
    assert len(solve(level, prompt, range(25))) > 10


def templates() -> list[programs.Template]:
    return [t for t in programs.TEMPLATES if not t.function]


def test_there_are_forty_templates_and_all_levels_have_some():
    assert len(programs.TEMPLATES) >= 40
    assert Counter(t.level for t in templates()).keys() == {1, 2, 3}
    assert min(Counter(t.level for t in templates()).values()) >= 10
    assert len({t.task for t in programs.TEMPLATES}) == len(programs.TEMPLATES)


@pytest.mark.all_only
def test_the_sandbox_prints_the_generators_output():
    for template in templates():
        program = template.draw(Random(template.task))
        assert "$" not in program.task + program.source
        text = program.given(Random(1))
        ran = sandbox.execute(program.source, text)
        assert ran == sandbox.Run(programs.output(program.source, text), ""), program.source


@pytest.mark.all_only
def test_constants_and_copies_of_the_output_do_not_pay():
    """An answer that ignores the program is seldom right."""
    right, tasks = Counter(), 0
    for template in templates():
        for seed in range(20):
            rng = Random(seed)
            program = template.draw(rng)
            output = programs.output(program.source, program.given(rng))
            tasks += 1
            for name, answer in {"copy": output.strip(), "0": "0", "1": "1", "cat": "cat", "1 2 3": "1 2 3"}.items():
                try:
                    good = same_output(output, programs.output(program.source, answer))
                except Exception:
                    good = False
                right[name] += good and enough_lines(program.source, answer)
    assert max(right.values()) < 0.05 * tasks, (right, tasks)


@pytest.mark.all_only
def test_difficulty_is_the_level_and_repeats_add_weight():
    shape = lambda source: re.sub(r"\d+|'[a-z]+'", "_", source)  # noqa: E731  without what is drawn
    level = {shape(template.draw(Random(0)).source): template.level for template in templates()}
    env, drawn = Env(Config(difficulty="1, 1, 3")), Counter()
    for seed in range(300):
        env.reset(seed)
        drawn[level.get(shape(env.program))] += 1
    assert set(drawn) <= {1, 3, None} and 170 < drawn[1] < 230 and drawn[3] > 60


# ---- Golden transcripts. ----

EPISODES = [
    ({"difficulty": "1"}, 3, ["", "<INPUT>?</INPUT>", "oracle"]),
    ({"difficulty": "1", "prompt": "short"}, 3, ["12", "oracle"]),
    ({"difficulty": "2", "prompt": "short"}, 1, ["<INPUT></INPUT>", "1\n1", "oracle"]),
    ({"difficulty": "3"}, 4, ["<INPUT>\n3\n</INPUT>", "<think><INPUT>2</INPUT></think>", "oracle"]),
    ({"difficulty": "3", "prompt": "short"}, 8, ["oracle"]),
]


def transcript() -> list[dict]:
    return one_turn.transcript(abd, EPISODES)


# ---- Rows of a file. ----


def write(path: Path, rows: list) -> str:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n")
    return str(path)


@pytest.mark.all_only
def test_rows_of_a_file(tmp_path):
    rows = [{"program": f"print(int(input()) + {i})", "inputs": f"{i}\n", "output": f"{2 * i}\n"} for i in range(40)]
    rows[1]["program"] = f"```python\n{rows[1]['program']}\n```"
    rows[2]["inputs"] = ["2"]
    rows[3] = repr(rows[3])  # a Python literal
    rows += [{"program": "print(1)", "inputs": "", "output": ""}, {"program": "", "output": "1"}, {"inputs": "1"}]
    rows += [{"program": "print(input() + input())", "inputs": "1", "output": "1"}]  # its own input is not let through
    path = write(tmp_path / "rows.jsonl", rows)
    env, seen = Env(Config(data=path)), {}
    for split in SPLITS:
        seen[split] = set()
        for seed in range(150):
            (message,) = env.reset(seed, split)
            assert env.program in message["content"] and split_of(env.task) == split
            seen[split].add(env.task)
            assert seed > 5 or env.step(env.oracle()).observation == "Correct"
    assert sum(map(len, seen.values())) == len(set.union(*seen.values())) == 40
    again = Env(Config(data=path))
    assert again.reset(7) == env.reset(7) and again.task == env.task


def test_a_rows_program_is_run_again(tmp_path):
    """As in affinetes, the wanted output is what the program prints now, else the row's."""
    rows = [
        {"program": f"import sys\nprint(len(sys.stdin.read()), {i})", "inputs": "ab", "output": "stale"}
        for i in range(9)
    ]
    rows += [
        {"program": f"{i}/0 if 'a' in input() else print('stale')", "inputs": "a", "output": "stale"} for i in range(9)
    ]
    env, outputs = Env(Config(data=write(tmp_path / "rows.jsonl", rows))), set()
    for seed in range(30):
        env.reset(seed)
        outputs.add(env.output.split()[0])
        assert split_of(env.task) == "train" and env.task.endswith("stale")
        if "len" in env.program:
            assert env.step(env.oracle()).info["success"]
    assert outputs == {"3", "stale"}  # the input ends with a line break


@pytest.mark.all_only
@pytest.mark.parametrize("indent", [None, 4])
def test_an_array_of_rows_plays_like_their_lines(indent, tmp_path):
    rows = [{"program": f"print({i}, input())", "inputs": "é", "output": f"{i} é"} for i in range(20)]
    lines, chunk = Env(Config(data=write(tmp_path / "rows.jsonl", rows))), tmp_path / "chunk.json"
    chunk.write_text(json.dumps(rows, indent=indent))
    array = Env(Config(data=str(chunk)))
    assert [array.reset(seed) for seed in range(9)] == [lines.reset(seed) for seed in range(9)]
    chunk.write_text(json.dumps([*rows, 1]))
    with pytest.raises(ValueError, match=r"data: row 21 of the array in .* must be an object"):
        Env(Config(data=str(chunk)))
    chunk.write_text(json.dumps(rows)[:-1])
    with pytest.raises(ValueError, match=r"data: .* is not JSON: "):
        Env(Config(data=str(chunk)))


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (["{}"], "data: 1 of 1 rows of {path} left out: no program; the first is line 1; a file"),
        (["[1]"], "data: line 1 of {path} must be one object, as JSON or as a Python literal"),
        ([{"program": "p", "inputs": "", "output": "o"}, "nonsense"], "data: line 2 of {path} must be one object,"),
    ],
)
def test_unusable_file_is_one_line(rows, line, tmp_path):
    path = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ValueError) as error:
        Env(Config(data=path))
    assert str(error.value).startswith(line.format(path=path)) and "\n" not in str(error.value)


def test_missing_file_is_reported_before_the_run(tmp_path, capsys):
    path = write(tmp_path / "rows.jsonl", [{"program": "print(input())", "inputs": "1", "output": "1"}])
    kinds = dict.fromkeys(("abd", "ded", "planner"), "a file with a row in each line")
    kinds |= {"db_bench": "a file of LifelongAgentBench's entries"}
    kinds |= {"os_interaction": "a file of LifelongAgentBench or AgentBench"}
    for name, kind in kinds.items():
        line = f"{name}.data must be {kind}: no file {path[:-1]!r}"
        with pytest.raises(SystemExit, match="2"):
            parse([f"env={name}", f"{name}.data={path[:-1]}"])
        assert capsys.readouterr().err == f"train.py: {line}; did you mean {path!r}?\n"
    with pytest.raises(ValueError, match=f"^data must be {kinds['abd']}: no file '/no/where'"):
        Config(data="/no/where")
    with pytest.raises(ValueError, match=f"^data: {tmp_path} is a folder: name one of its files"):
        Config(data=str(tmp_path))


def test_byte_order_mark_is_not_part_of_the_first_row(tmp_path):
    row = json.dumps({"program": "print(input())", "inputs": "1", "output": "1"})
    path = write(tmp_path / "rows.jsonl", ["\ufeff" + row])
    env = Env(Config(data=path))
    (split,) = (split for split in SPLITS if env.places[split])
    env.reset(0, split)
    assert env.program == "print(input())"


def test_changed_file_is_read_again(tmp_path):
    rows = [{"program": f"print({i}, input())", "inputs": "1", "output": f"{i} 1"} for i in range(9)]
    path = write(tmp_path / "rows.jsonl", rows[:8])
    found = sum(map(len, Env(Config(data=path)).places.values()))
    write(tmp_path / "rows.jsonl", rows)
    assert (found, sum(map(len, Env(Config(data=path)).places.values()))) == (8, 9)


def test_a_split_without_rows_is_one_line(tmp_path):
    rows = [{"program": f"print({i}, input())", "inputs": "1", "output": f"{i} 1"} for i in range(60)]
    ours = {split: [row for row in rows if split_of(abd.task_of_row(row)) == split][:3] for split in SPLITS}
    path = write(tmp_path / "rows.jsonl", ours["train"] + ours["test"])
    with pytest.raises(ValueError) as error:
        Env(Config(data=path)).reset(0, "val")
    assert str(error.value) == (
        f"data: {path} has no row in split val, only in train (3) and test (3); "
        "eval_episodes=0 or eval_split=train trains without them"
    )
    path = write(tmp_path / "rows.jsonl", ours["val"])
    with pytest.raises(ValueError, match=r"has no row in split train, only in val \(3\)$"):
        Env(Config(data=path)).reset(0, "train")


def test_an_unknown_split_is_one_line():
    with pytest.raises(ValueError, match="split must be one of train, val, test, not 'dev'"):
        Env().reset(0, "dev")
