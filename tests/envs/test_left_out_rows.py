"""Rows of data files that are left out: counted with a reason, and refused if most of a file goes."""

import json
from random import Random

import pytest

import envs
from envs.db_bench.tasks import entry_of, read_data

GSM = {"question": "{i} and 2?", "answer": "{i}+2 = <<{i}+2={sum}>>{sum}\n#### {sum}"}
CASES = {"test_cases": [{"type": "stdin_stdout", "input": "1", "output": "1"}]}
# environment -> its options, a row that it takes, a row that it leaves out, and the reason
READERS = {
    "planner": ({}, GSM, GSM | {"answer": "It is {sum}."}, "no number behind ####"),
    "planner no text": ({}, GSM, {"problem": "{i}?"}, "no text as its question or its answer"),
    "qa": (
        {"match": "number"},
        {"question": "{i}?", "answer": "{sum}"},
        {"question": "x{i}?", "answer": "(1, {i})"},
        "no number in its answer",
    ),
    "abd": (
        {},
        {"program": "print({i}+int(input()))", "inputs": "1", "output": "{sum}"},
        {"program": "print(input())", "input": "1", "output": "1"},
        "fewer lines in `inputs` than",
    ),
    "abd no program": (
        {},
        {"program": "print({i}+int(input()))", "inputs": "1", "output": "{sum}"},
        {"code": "print(1)"},
        "no program",
    ),
    "ded": (
        {},
        {"prompt": "p{i}", "verification_info": CASES},
        {"prompt": "q{i}", "verification_info": {"tests": []}},
        "no test case whose `type` is stdin_stdout or function_call",
    ),
}


def rows(row: dict, count: int) -> list[str]:
    """Return lines of a row with its numbers filled in."""
    line = json.dumps(row)
    return [line.replace("{i}", str(i)).replace("{sum}", str(i + 2)) for i in range(count)]


def made(name: str, path):
    options = READERS[name][0] | ({"sandbox": "unsafe"} if name[:3] in ("abd", "ded") else {})
    return envs.make(name.partition(" ")[0], data=str(path), **options)


@pytest.mark.parametrize("name", READERS)
def test_rows_left_out_are_counted_with_a_reason(name, tmp_path, capsys):
    _, good, bad, reason = READERS[name]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*rows(good, 30), *rows(bad, 5)]))
    made(name, path).reset(0, "train")
    said = capsys.readouterr().err
    assert f"data: 5 of 35 rows of {path} left out: {reason}" in said and "the first is line 31" in said


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_refused_if_most_rows_are_left_out(name, tmp_path):
    _, good, bad, reason = READERS[name]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*rows(good, 20), *rows(bad, 21)]))
    with pytest.raises(ValueError, match=r"data: 21 of 41 rows of .* left out: .*more than half") as error:
        made(name, path)
    assert reason in str(error.value) and "\n" not in str(error.value)


def test_several_reasons_are_counted_apart(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join([*rows(GSM, 20), *rows({"question": 3}, 2), *rows(GSM | {"answer": "so"}, 4)]))
    made("planner", path)
    assert "left out: 4 with no number behind ####; 2 with no text as" in capsys.readouterr().err


def test_entries_of_agent_bench_in_other_languages_are_counted(tmp_path, capsys):
    script = {"language": "perl", "code": "print 1"}
    good = {"description": "How many?", "evaluation": {"match": "3"}}
    bad = good | {"create": {"init": script}}
    path = tmp_path / "problems.json"
    path.write_text(json.dumps([good | {"description": f"How many? {i}"} for i in range(9)] + [bad] * 2))
    envs.make("os_interaction", data=str(path))
    assert f"data: 2 of 11 tasks of {path} left out: no script in bash or Python" in capsys.readouterr().err
    path = tmp_path / "others.json"
    path.write_text(json.dumps([good, bad, bad, bad]))
    with pytest.raises(ValueError, match=r"3 of 4 tasks of .* more than half"):
        envs.make("os_interaction", data=str(path))


@pytest.mark.parametrize("key", ["reward", "system", "max_turns", "évaluation"])
def test_a_key_of_a_data_file_that_is_not_read_is_named(key, tmp_path, capsys):
    """LifelongAgentBench's and tau-bench's files: what an entry says beside the known keys is not dropped unsaid."""
    env = envs.make("db_bench")
    entry = entry_of(env._draw(Random(0), "train"))
    (tmp_path / "tables.json").write_text(json.dumps([entry, entry | {key: 1}]))
    read_data(str(tmp_path / "tables.json"))
    assert f"that are not read: {key!r} (1)" in capsys.readouterr().err


@pytest.mark.parametrize("text", ['{"question": "1?", "answer": "1", "answer": "2"}', '{"a": {"b": 1, "b": 2}}'])
def test_a_key_that_stands_twice_is_refused(text, tmp_path):
    (tmp_path / "rows.jsonl").write_text(text)
    with pytest.raises(ValueError, match="stands twice"):
        envs.make("qa", data=str(tmp_path / "rows.jsonl"))
    (tmp_path / "rows.json").write_text(f"[{text}]")
    with pytest.raises(ValueError, match="stands twice"):
        envs.make("qa", data=str(tmp_path / "rows.json"))


def test_columns_of_questions_that_are_not_read_are_named(tmp_path, capsys):
    rows = [{"question": f"{i}?", "answer": "1", "topic": "x", "messages": []} for i in range(3)]
    rows += [{"question": "last?", "answer": "1", "hint": "x"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    envs.make("qa", data=str(tmp_path / "rows.jsonl"))
    assert "not read: 'hint' (1 rows), 'messages' (3 rows), 'topic' (3 rows)\n" in capsys.readouterr().err
