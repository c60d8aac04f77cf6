"""Rows of GSM8K and satpalsr/rl-python in the form in which they are published, as JSON Lines and as Parquet."""

import json
import sys
from decimal import Decimal
from pathlib import Path

import pytest
from conftest import reference, run_program

import envs
from envs import parquet
from rl import data, sft

R2 = [
    {
        "program": f"n = int(input())\nprint(n * {k})",
        "inputs": "5\n",
        "output": f"{5 * k}\n",
        "prompt": f"Read a number and print it times {k}.",
        "verification_info": json.dumps(
            {"test_cases": [{"type": "stdin_stdout", "input": "2\n", "output": f"{2 * k}\n"}]}
        ),
    }
    for k in range(2, 40)
]


def both(tmp_path, rows: list[dict]) -> list[str]:
    """Write the rows as JSON Lines and as Parquet; skip the test if pyarrow is missing."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    return [f"{tmp_path}/rows.jsonl", f"{tmp_path}/rows.parquet"]


@pytest.mark.parametrize("name", ["abd", "ded"])
def test_rows_of_rl_python_are_the_same_tasks_in_both_forms(name, tmp_path):
    found = []
    for path in both(tmp_path, R2):
        env = envs.make(name, data=path)
        openings = {env.reset(seed)[0]["content"]: env.oracle() for seed in range(12)}
        assert env.step(env.oracle()).info["success"]
        found.append(set(openings))
    assert found[0] == found[1] and len(found[0]) > 3


def test_gsm8k_is_the_same_in_both_forms(tmp_path):
    """The first 200 questions of its test split, in order, and as rows to imitate."""
    lines = reference("gsm8k", "test.jsonl").read_text().splitlines()[:200]
    paths, read = both(tmp_path, [json.loads(line) for line in lines]), []
    for path in paths:
        env = envs.make("planner", data=path, splits="own")
        assert env.count("test") == 200
        read.append([env.reset(seed, "test") for seed in range(200)])
    assert read[0] == read[1] and json.loads(lines[7])["question"] in read[0][7][-1]["content"]
    rows = [data.read_rows(tmp_path / name, "question", "answer") for name in ("rows.jsonl", "rows.parquet")]
    assert rows[0] == rows[1] and len(rows[0]) == 200


def test_without_the_reader_one_line_says_how_to_convert(tmp_path, monkeypatch):
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, out, err = run_program("train.py", "env=planner", f"planner.data={tmp_path}/x.parquet")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "is Parquet: pip install pyarrow, or where pandas is: python -c" in err and ".to_json('rows.jsonl'" in err


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(60) + b"PAR1", b'{"question": "?"}\n'])
def test_damaged_files_are_one_line(content, tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_bytes(content)
    with pytest.raises(ValueError, match=r"data: .*x\.parquet is not Parquet: ") as caught:
        parquet.read(tmp_path / "x.parquet")
    assert "\n" not in str(caught.value)


def test_calls_have_the_arguments_that_were_written(tmp_path):
    """Parquet gives each object the keys of all rows' objects, with None."""
    rows = []
    for name, arguments in (("weather", {"city": "Paris"}), ("add", {"a": 1, "b": 2})):
        properties = {key: {"type": "string"} for key in arguments}
        tool = {"name": name, "description": "x", "parameters": {"type": "object", "properties": properties}}
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        said = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        rows.append({"messages": said, "tools": [{"type": "function", "function": tool}]})
    first, second = (
        data.read_rows(Path(path), sft.Config.prompt_column, sft.Config.answer_column) for path in both(tmp_path, rows)
    )
    assert first == second
    written = [reply["tool_calls"][0]["function"]["arguments"] for _, reply in second]
    assert written == [{"city": "Paris"}, {"a": 1, "b": 2}]


def test_a_decimal_number_is_read_as_its_text(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"question": "price?", "answer": Decimal("1.50"), "more": [{"at": Decimal("-0.00000001")}]}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
    assert parquet.read(tmp_path / "rows.parquet") == [
        {"question": "price?", "answer": "1.50", "more": [{"at": "-0.00000001"}]}
    ]
