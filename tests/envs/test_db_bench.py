"""DB Bench: parsing, exact messages, forms of answers, rewards, tasks, files, and episodes."""

import copy
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from random import Random

import golden
import pytest
from cases import cases
from experts import expert
from hypothesis import given, settings
from hypothesis import strategies as st
from mysql_statements import deep

from envs.common import SPLITS, split_of
from envs.db_bench import MAX_REPLY, Config, Env, matches, read_native, read_short
from envs.db_bench import __main__ as program
from envs.db_bench import tasks as db_tasks
from envs.db_bench.tasks import BY_SKILL, CHANGES, LEVELS, SKILLS, Task, draw, entry_of, read_tasks, skills_of, task_of
from envs.simulators.mysql import Database, digest

CASES = cases("db_bench")

ROOT = Path(__file__).parents[2]
COLUMNS = [("name", "TEXT"), ("kind", "TEXT"), ("age", "INT")]
ROWS = [("Rex", "dog", 5), ("Coco", "cat", 3), ("Milo", "dog", 9)]
OLD = [("Milo", "dog", 9)]
ASK = Task(
    "where_single_condition", "name where age > 5", "pets", COLUMNS, ROWS, "SELECT * FROM pets WHERE age > 5", OLD
)
CHANGE = Task("delete", "drop", "pets", COLUMNS, ROWS, "DELETE FROM pets WHERE age < 9", None, digest(OLD))


def at(task: Task, **options) -> Env:
    """Return an environment whose episode has this task."""
    env = Env(Config(**{"prompt": "short"} | options))
    env.begin(task)
    return env


def operation(sql: str) -> str:
    return f"I look.\nAction: Operation\n```sql\n{sql}\n```"


# -- replies


@pytest.mark.parametrize(("reply", "read"), CASES["native replies"])
def test_native_replies_are_read_as_the_original_does(reply, read):
    assert read_native(reply) == tuple(read)


def test_short_replies_are_sql_or_an_answer():
    assert read_short(" SELECT 1 \nanswer [(1,)]") == ("sql", "SELECT 1 ")
    assert read_short("answer [(1,)]\nx") == ("answer", "[(1,)]") == read_short("Answer: [(1,)]")
    assert read_short("answered") == ("sql", "answered") and read_short("") == ("sql", "")


@pytest.mark.parametrize(("answer", "truth", "strict", "loose"), CASES["formats of answers"])
def test_formats_of_answers(answer, truth, strict, loose):
    truth = eval(truth, {"Decimal": Decimal})  # the file holds rows as Python's repr
    assert matches(answer, truth, strict=True) == strict
    assert matches(answer, truth, strict=False) == loose


def test_several_formats_at_once_do_not_pass():
    for answer in ("[(5,)] [(6,)]", "(5) or (6)", "[(5, 6)]", "5, 6", "[('5 6',)]", "5 6"):
        assert not matches(answer, [(5,)]) and not matches(answer, [(6,)])


# -- rewards and endings


def test_a_question_is_answered():
    env = at(ASK)
    step = env.step("SELECT * FROM pets WHERE age > 5")
    assert (step.observation, step.reward, step.terminated) == ("[('Milo', 'dog', 9)]", 0.0, False)
    assert step.info["shaped"] == 0.3 and step.info["status"] == "running"
    step = env.step("answer [('Milo', 'dog', 9)]")
    assert (step.reward, step.terminated, step.truncated) == (1.0, True, False)
    assert step.info == {"outcome": "correct", "success": True, "valid": True, "shaped": 1.0} | {
        "status": "completed",
        "finish_reason": None,
    }


@pytest.mark.parametrize(
    ("task", "replies", "reward", "outcome", "status"),
    [
        (ASK, ["answer [('Rex', 'dog', 5)]"], -0.1, "incorrect", "completed"),
        (ASK, ["answer Milo, dog, 9"], 1.0, "correct", "completed"),
        (ASK, ["SELECT 1", "nonsense", "SELECT 2"], -0.3, "timeout", "task_limit_reached"),
        (ASK, ["SELECT 1", "SELECT 1", "answer Milo, dog, 9"], 1.0, "correct", "completed"),
        (CHANGE, ["answer whatever"], -0.1, "incorrect", "completed"),
        (CHANGE, ["DELETE FROM pets WHERE age < 9", "answer whatever"], 1.0, "correct", "completed"),
        (CHANGE, ["DELETE FROM pets WHERE age < 9", "SELECT 1", "SELECT 1"], -0.3, "timeout", "task_limit_reached"),
        (CHANGE, ["DELETE FROM pets", "answer done"], -0.1, "incorrect", "completed"),
    ],
)
def test_rewards_of_an_episode(task, replies, reward, outcome, status):
    env = at(task)
    for reply in replies:
        step = env.step(reply)
    assert step.reward == reward and step.info["outcome"] == outcome and step.info["status"] == status
    assert step.info["success"] == (reward == 1) and not env.running
    limit = "Task limit reached. The limit is 3." if outcome == "timeout" else None
    assert step.info["finish_reason"] == limit and step.truncated == (outcome == "timeout")


def test_malformed_reply_fails_even_in_the_right_state():
    env = at(CHANGE, prompt="native")
    env.step(operation(CHANGE.sql))
    step = env.step("That was it.")
    assert (step.reward, step.terminated, step.info["success"], step.info["valid"]) == (-0.1, True, False, False)
    assert step.info["status"] == "agent_validation_failed" and step.observation == step.info["finish_reason"]
    assert step.observation.startswith("Can not find action in agent response. Pattern: ")


def test_shaped_reward_is_paid_once():
    env = at(CHANGE, max_turns=9)
    shaped = [
        env.step(sql).info["shaped"]
        for sql in (
            "SELECT * FROM pets",
            "DELETE FROM pets WHERE age < 9",
            "INSERT INTO pets VALUES ('Rex', 'dog', 5)",
            "DELETE FROM pets WHERE age < 9",
            "nonsense",
        )
    ]
    assert shaped == [0.0, 0.3, 0.0, 0.0, 0.0] and env.step("answer").info["shaped"] == 1.0
    env = at(ASK, max_turns=9)
    assert [env.step(ASK.sql).info["shaped"] for _ in range(2)] == [0.3, 0.0]


def test_an_error_is_shown_and_is_not_valid():
    step = at(ASK).step("SELECT nope FROM pets")
    assert step.observation == "1054 (42S22): Unknown column 'nope' in 'field list'" and not step.info["valid"]
    step = at(ASK).step("SELECT 1; SELECT 2; SELECT nope FROM pets; DELETE FROM pets")
    assert "nope" in step.observation


def test_strict_off_has_the_originals_bugs():
    assert at(replace(ASK, answer=[]), strict=False).step("answer no idea").reward == 1
    assert at(replace(ASK, answer=[])).step("answer no idea").reward == -0.1


def test_long_results_are_cut():
    env = at(replace(ASK, rows=[("x" * 90, "dog", i) for i in range(200)]))
    assert len(env.step("SELECT * FROM pets").observation) == MAX_REPLY + 3


# -- tasks


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("skill", SKILLS)
def test_every_skill_has_tasks_at_every_level_in_every_split(skill, level):
    database = Database()
    for i, split in enumerate(SPLITS * 2):
        task = draw(Random(f"{skill} {i}"), skill, level, split, database)
        assert split_of(task.canonical) == split and "{" not in task.instruction
        assert (task.skill, task.level) == (skill, level)
        few, many, most = LEVELS[level]
        assert few <= len(task.rows) <= many
        database.load(task.table, task.columns, task.rows)
        found = database.run(task.sql)
        if skill in CHANGES:
            assert task.answer is None and digest(database.rows()) == task.state != digest(task.rows)
        else:
            assert task.answer == found and 1 <= len(found) <= most and not task.state
            assert matches(str(found), found)


def test_templates_show_their_skill():
    marks = {"where": "WHERE", "order": "ORDER BY", "limit": "LIMIT", "column_alias": " AS ", "table_alias": " AS "}
    marks |= {"group": "GROUP BY", "having": "HAVING", "subquery": "(SELECT", "limit_and_offset": "OFFSET"}
    marks |= {"insert": "INSERT", "delete": "DELETE", "update": "UPDATE", "select": "SELECT", "subquery_nested": "))"}
    assert len(SKILLS) == 22
    for skill, templates in BY_SKILL.items():
        for mark in (mark for name, mark in marks.items() if skill.startswith(name)):
            assert all(mark in sql for _, sql, _ in templates), skill
        for levels, _, ways in templates:
            assert len(ways) >= ("1" in levels) + bool(set(levels) & {"2", "3"}), (skill, levels)


def test_order_by_has_no_ties():
    """Names, numbers and days do not repeat in a column."""
    for seed in range(60):
        _, columns, rows, _ = db_tasks.draw_table(Random(seed), "123"[seed % 3])
        for i, (name, kind) in enumerate(columns):
            if kind == "INT" or i in (0, 5):
                assert len({row[i] for row in rows}) == len(rows), name


def test_answers_depend_on_their_conditions():
    """A condition excludes some rows, so a random answer from the whole table is wrong."""
    database = Database()
    for seed in range(40):
        task = draw(Random(seed), "where_single_condition", "2", "train", database)
        assert len(task.answer) < len(task.rows)


# -- the expert


def solve(level: str, prompt: str, seeds: range) -> Counter:
    env, skills = Env(Config(difficulty=level, prompt=prompt)), Counter()
    for seed in seeds:
        env.reset(seed, SPLITS[seed % 3])
        steps = []
        while env.running:
            steps.append(env.step(env.oracle()))
            assert steps[-1].info["valid"]
        assert steps[-1].info["success"] and len(steps) == 2, (seed, env.goal)
        assert sum(step.info["shaped"] for step in steps) == pytest.approx(1.3)
        skills[env.goal.skill] += 1
    return skills


@pytest.mark.parametrize("prompt", ["native", "short"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_expert_solves_tasks(level, prompt):
    assert len(solve(level, prompt, range(60))) > 15


@pytest.mark.parametrize("words", [{"prompt": "native"}, {"prompt": "short"}, {"tools": "native"}])
@pytest.mark.parametrize("level", LEVELS)
def test_the_first_message_names_the_table_and_its_columns(level, words):
    """Made-up names cannot be guessed."""
    env = Env(Config(difficulty=level, tasks="fresh", **words))
    for seed in range(20):
        said = env.reset(seed)[-1]["content"]
        assert all(name in said for name in [env.goal.table, *(name for name, _ in env.goal.columns)])


def test_groups_of_level_1_are_right_in_any_order():
    """Their instruction names no order; those of levels 2 and 3 do, and so do all others."""
    task = replace(ASK, skill="group_by_single_column", level="1", answer=[("dog", 2), ("cat", 1)])
    for answer, right in (
        ("[('cat', 1), ('dog', 2)]", True),
        ("[('cat', 2), ('dog', 1)]", False),
        ("[('cat', 1)]", False),
    ):
        assert at(task).step(f"answer {answer}").info["success"] == right
        for other in (replace(task, level="2"), replace(task, skill="order_by_single_column")):
            assert not at(other).step(f"answer {answer}").info["success"]
    assert not at(task).step("answer [('cat', 1), ('cat', 1)]").info["success"]
    for level in LEVELS:
        drawn = draw(Random(1), "having_single_condition_with_aggregate", level, "train", Database())
        assert drawn.any_order == (level == "1")


def test_a_table_that_is_gone_is_a_wrong_state():
    """An empty table may be right; a dropped one is not."""
    env = at(replace(CHANGE, sql="DELETE FROM pets", state=digest([])))
    env.step("DROP TABLE pets")
    assert env.step("answer done").info["outcome"] == "incorrect"


def test_expert_continues_from_any_state():
    env = Env(Config(prompt="short", max_turns=9))
    for seed in range(60):
        env.reset(seed)
        table = env.goal.table
        column = env.goal.columns[-1][0]
        changes = [f"DELETE FROM {table}", f"INSERT INTO {table} VALUES ()", "x", env.goal.sql, f"DROP TABLE {table}"]
        changes += [f"ALTER TABLE {table} DROP `{column}`", f"RENAME TABLE {table} TO old, old TO older"]
        changes += [f"ALTER TABLE {table} ADD CONSTRAINT never CHECK (1 = 1 OR `{column}` IS NULL)"]
        for sql in Random(seed).choices(changes, k=2):
            env.step(sql)
        step = expert(env)[-1]
        assert step.info["success"], (seed, env.goal)


# -- sampling, files, options


def test_a_skill_is_drawn_first():
    env, drawn = Env(Config(skill="select, update", difficulty="1")), Counter()
    for seed in range(300):
        env.reset(seed)
        drawn[env.goal.skill] += 1
    assert set(drawn) == {"select", "update"} and drawn["select"] == pytest.approx(150, abs=40)


def entries(count: int) -> dict:
    """Return a file like the original's: two labels on every query, and one entry of several skills."""
    database, found = Database(), {}
    for i in range(count):
        task = draw(Random(i), SKILLS[i % 22], "3", SPLITS[i % 3], database)
        entry = entry_of(task)
        entry["skill_list"] += ["select"] * (task.skill not in (*CHANGES, "select"))
        found[str(i)] = entry
    return found | {"x": entry_of(task) | {"skill_list": ["limit_only", "where_single_condition"]}}


@pytest.mark.all_only
def test_files_of_the_original_and_of_single_skills(tmp_path):
    whole, single = tmp_path / "db.json", tmp_path / "single.json"
    whole.write_text(json.dumps(entries(132)))
    command = [sys.executable, "-m", "envs.db_bench", f"data={whole}", f"out={single}"]
    text = subprocess.check_output(command, cwd=ROOT, text=True)
    assert text.splitlines()[0].split() == ["select", "6"] and text.endswith("22 skills, 132 tasks\n")
    skills = json.loads(single.read_text())
    assert set(skills) == set(SKILLS) and {len(listed) for listed in skills.values()} == {6}
    for path in (whole, single):
        tasks = read_tasks(str(path), single_skill=True)
        assert sum(len(listed) for skills in tasks.values() for listed in skills.values()) == 132
        for split in SPLITS:
            env = Env(Config(data=str(path), skill="update,having_aggregate_calculation"))
            try:
                env.reset(3, split)
            except ValueError as error:
                assert f"in split {split}" in str(error)
                continue
            assert env.goal.skill in ("update", "having_aggregate_calculation") and split_of(env.task) == split
            step = expert(env)[-1]
            assert step.info["success"]


def test_task_survives_the_round_trip_to_an_entry():
    database = Database()
    for skill in SKILLS:
        task = draw(Random(skill), skill, "3", "train", database)
        again = task_of(json.loads(json.dumps(entry_of(task))), skill)
        assert again.canonical == task.canonical and again.rows == task.rows and again.state == task.state
        assert (again.answer is None) == (task.answer is None) and again.level == ""
        assert task.answer is None or matches(str(task.answer), again.answer)
    assert skills_of({"skill_list": ["select"]}) == ["select"]
    assert skills_of({"skill_list": ["select", "limit_only", "column_alias"]}) == ["limit_only", "column_alias"]


@pytest.mark.parametrize("name", ["rows.json", "rows.jsonl", "entries.json"])
def test_files_of_several_skills_and_rows_of_repr_play(tmp_path, name):
    """Hugging Face's rows hold nested fields as Python's repr."""
    skills, path = ["select", "limit_only", "where_single_condition"], tmp_path / name
    whole = [entry | {"skill_list": skills} for entry in entries(22).values() if entry["answer_info"]["direct"]]
    rows = [{key: value if key == "instruction" else repr(value) for key, value in entry.items()} for entry in whole]
    lines = "\n".join(map(json.dumps, rows))
    path.write_text({"rows.json": json.dumps(rows), "rows.jsonl": lines}.get(name, json.dumps(dict(enumerate(whole)))))
    with pytest.raises(ValueError, match="no task of a single skill"):
        Config(data=str(path), single_skill=True)
    for skill in ("", *skills[1:]):
        env = Env(Config(data=str(path), skill=skill))
        env.reset(0, "train")
        assert env.goal.skill == "limit_only,where_single_condition"
        step = expert(env)[-1]
        assert step.info["success"]


WRONG = [(("table_info", "name"), value) for value in (3, None, [], {}, "sqlite_a", "a\0b")]
WRONG += [(("table_info", "column_info_list", 0, "name"), value) for value in (3, "a\0b")]
WRONG += [(("table_info", "row_list", 0, 0), value) for value in (10**30, [], {}, float("inf"))]
WRONG += [(("table_info", "row_list", 0), value) for value in ([], "x", {}, 3)]
WRONG += [(("table_info", "column_info_list"), []), (("answer_info", "sql"), 3), (("skill_list", 0), {})]
WRONG += [(("answer_info", "direct", 0, 0), 10**400), (("answer_info", "direct", 0), "x"), (("instruction",), 3)]


@pytest.mark.parametrize(("place", "value"), WRONG, ids=str)
def test_a_wrong_value_in_a_file_is_one_line(place, value, tmp_path):
    entry = copy.deepcopy(next(entry for entry in entries(22).values() if entry["answer_info"]["direct"]))
    *above, last = place
    inner = entry
    for name in above:
        inner = inner[name]
    inner[last] = value
    (tmp_path / "data.json").write_text(json.dumps({str(n): entry for n in range(3)}))
    with pytest.raises(ValueError, match=r"^data: [^\n]+$"):
        env = Env(Config(data=str(tmp_path / "data.json")))
        for task in (task for skills in env.tasks.values() for tasks in skills.values() for task in tasks):
            env.begin(task)


@pytest.mark.parametrize(("content", "line"), CASES["bad files"])
def test_bad_files_are_one_line(tmp_path, content, line):
    path = tmp_path / "bad.json"
    path.write_text(content)
    with pytest.raises(ValueError) as error:
        Env(Config(data=str(path)))
    assert str(error.value).startswith("data: ") and line in str(error.value) and "\n" not in str(error.value)


def test_command_writes_generated_tasks(tmp_path, capsys):
    out = tmp_path / "ours.json"
    program.main(["count=40", "difficulty=1", f"out={out}"])
    assert capsys.readouterr().out.endswith(" 40 tasks\n")
    assert sum(map(len, json.loads(out.read_text()).values())) == 40 and read_tasks(str(out))
    (tmp_path / "no_task.json").write_text('{"select": [5]}')
    wrong = ["cuont=3", "count=x", "count=-1", "count=0", "difficulty=9", "out=/nope/x.json"]
    for arg in (*wrong, f"out={tmp_path}", "data=/nowhere.json", f"data={tmp_path}/no_task.json"):
        with pytest.raises(SystemExit) as end:
            program.main([arg])
        said = capsys.readouterr()
        assert end.value.code == 2 and said.err.startswith("envs.db_bench: "), arg
        assert said.err.count("\n") == 1 and not said.out, arg
    for name, why in (("/dev/full", "No space left on device"), ("a" * 300, "File name too long")):
        with pytest.raises(SystemExit) as end:
            program.main(["count=1", f"out={name}"])
        line = f"envs.db_bench: out={name} cannot be written: {why}\n"
        assert end.value.code == 1 and capsys.readouterr().err == line


@pytest.mark.all_only
def test_command_is_quiet_on_a_closed_pipe():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "envs.db_bench", "count=1"]
    done = subprocess.run(command, cwd=ROOT, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.stderr == b""


# -- determinism, robustness, speed


def transcript() -> list[dict]:
    """Return the cases of the golden file: an expert at every level, and an agent that makes mistakes."""
    clumsy = ["SHOW TABLES", "DESCRIBE {t}", "SELECT * FROM {t} LIMIT 2;", "SELECT AVG(nope) FROM {t}", "SELEC 7 / 2"]
    clumsy += ["SELECT 7 / 2, 'a' = 'A' || 0", "DELETE FROM {t}", "answer (1"]
    cases = []
    for difficulty, prompt, seed, script in (
        *(("1", "short", seed, []) for seed in range(6)),
        *(("2", "native", 7, []), ("3", "native", 8, []), ("3", "short", 9, [])),
        ("3", "short", 10, clumsy),
    ):
        env = Env(Config(difficulty=difficulty, prompt=prompt, max_turns=9))
        cases.append(golden.start(env.reset(seed, "test"), seed, "test", difficulty=difficulty, prompt=prompt))
        cases += golden.play(env, [line.format(t=env.goal.table) for line in script])
    return cases


DEEP = ["SELECT 1 FROM (SELECT 1)a" + ",(SELECT 1)a" * 800, "SELECT " + "NOT " * 2000 + "1", "SELECT *" + ",*" * 4000]
DEEP += ["SELECT " + "(SELECT " * 12_500, "SELECT " + "-" * 100_000, "SELECT 1 FROM " + "(" * 100_000]
HOSTILE = st.one_of(
    st.text(max_size=80),
    st.builds(operation, st.text(max_size=60)),
    st.builds("Action: Answer\nFinal Answer:{}".format, st.text(alphabet="()[]',Decimal5. ", max_size=40)),
    st.builds("answer {}".format, st.text(alphabet="()[]',Decimal5. ", max_size=40)),
    st.integers(0, 10**6).map(lambda seed: operation(deep(Random(seed)))),
    st.sampled_from(["```sql\n" * 14_000, "Action: Operation" + "```sql\n" * 14_000, "answer " + "(" * 100_000]),
    st.sampled_from([reply for sql in DEEP for reply in (sql, operation(sql), f"answer {sql}")]),
    st.sampled_from(["Action: " * 12_500, "answer " + "Decimal(" * 12_500, "x" * 100_000, "answer " + "9" * 100_000]),
)


@pytest.mark.all_only
@settings(max_examples=25, deadline=None)
@given(st.lists(HOSTILE, min_size=1, max_size=5), st.sampled_from(["native", "short"]), st.integers(0, 3))
def test_hostile_replies_are_answered(replies, prompt, seed):
    env = Env(Config(difficulty="1", prompt=prompt, max_turns=99))
    env.reset(seed)
    for reply in replies:
        step = env.step(reply)
        assert len(step.observation) < 1000 and step.reward in (0, -0.1)
        if not env.running:
            env.reset(seed)
