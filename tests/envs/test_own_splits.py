"""A data set's own splits: every task once, in the order of the file, in each environment that plays original data."""

import json
from pathlib import Path

import pytest
import test_data_files
from conftest import reference, run_program
from experts import expert

import envs
import envs.planner
from envs.own_splits import OwnSplits
from envs.serve import lab

FORMS = {"planner": "{}.jsonl", "os_interaction": "{}.json", "db_bench": "{}.json", "tau_retail": "tasks_{}.json"}
COUNTS = {"train": 7, "dev": 2, "test": 3}


def numbered(kind: str, name: str) -> list:
    """Return the tasks of a split, all different."""
    files = getattr(test_data_files, kind)()
    if kind == "planner":
        return [{"question": f"{name}: {i} + 2?", "answer": f"#### {i + 2}"} for i in range(COUNTS[name])]
    found = files["tasks.json" if kind == "tau_retail" else "data.json"]
    tasks = [task for each in (found.values() if isinstance(found, dict) else [found]) for task in each]
    if kind == "os_interaction":
        tasks = list(found.values())
    tasks = enumerate(tasks[: COUNTS[name]])
    return [task | {"instruction": f"{name} {i}: {task['instruction']}"} for i, task in tasks]


def write(kind: str, folder: Path, names: list[str], form: str) -> None:
    """Write the files of splits in the original's format."""
    if kind == "tau_retail":
        for name, content in test_data_files.tau_retail().items():
            if name != "tasks.json":
                (folder / name).write_text(json.dumps(content))
    for name in names:
        rows = numbered(kind, name)
        text = "\n".join(map(json.dumps, rows))
        if not form.endswith("l"):
            text = json.dumps(rows if kind == "tau_retail" else dict(enumerate(rows)))
        (folder / form.format(name)).write_text(text)


def made(kind: str, data: Path) -> OwnSplits:
    return envs.make(kind, data=str(data), splits="own", prompt="short")


def said(env: OwnSplits, seed: int, split: str) -> str:
    return env.reset(seed, split)[-1]["content"]


def expert_wins(env: OwnSplits) -> bool:
    return expert(env)[-1].info["success"]


@pytest.mark.parametrize("kind", FORMS)
def test_own_splits_play_each_task_once_in_order(tmp_path, kind):
    """The seeds 0, 1, 2, ... are the tasks of a split's file in its order, and the expert solves them all."""
    write(kind, tmp_path, [*COUNTS], FORMS[kind])
    env = made(kind, tmp_path)
    for split, name in (("train", "train"), ("val", "dev"), ("test", "test")):
        assert env.count(split) == COUNTS[name]
        opened = []
        for seed in range(env.count(split)):
            opened.append(said(env, seed, split))
            assert expert_wins(env)
        wanted = [f"{name}: {i} +" if kind == "planner" else f"{name} {i}: " for i in range(COUNTS[name])]
        assert all(want.lower() in text.lower() for want, text in zip(wanted, opened, strict=True)), opened
        assert said(env, env.count(split), split) == opened[0]
    assert envs.make(kind).count("test") == 0


@pytest.mark.parametrize("kind", FORMS)
def test_one_file_is_every_split(tmp_path, kind):
    """As for LifelongAgentBench, whose file has no splits."""
    write(kind, tmp_path, ["test"], "tasks.json" if kind == "tau_retail" else f"data{Path(FORMS[kind]).suffix}")
    env = made(kind, tmp_path if kind == "tau_retail" else next(tmp_path.glob("data.*")))
    assert [env.count(split) for split in ("train", "val", "test")] == [3, 3, 3]
    assert said(env, 1, "val") == said(env, 4, "test")


@pytest.mark.parametrize("kind", FORMS)
def test_a_missing_split_is_one_line(tmp_path, kind):
    write(kind, tmp_path, ["train", "test"], FORMS[kind])
    with pytest.raises(ValueError, match=r"has no .*val") as error:
        made(kind, tmp_path).reset(0, "val")
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match="has a file for each split; splits=own plays them"):
        envs.make(kind, data=str(tmp_path))
    with pytest.raises(ValueError, match="splits must be 'hash' or 'own', not 'mine'"):
        envs.make(kind, data=str(tmp_path), splits="mine")
    with pytest.raises(ValueError, match="splits=own needs data="):
        envs.make(kind, splits="own")


@pytest.mark.parametrize("kind", ["planner", "os_interaction", "db_bench"])
def test_a_folder_without_splits_is_one_line(tmp_path, kind):
    with pytest.raises(ValueError, match=r"has no file of a split, such as test\.json") as error:
        made(kind, tmp_path)
    assert "\n" not in str(error.value)


def test_db_bench_plays_tasks_of_several_skills(tmp_path):
    """They are most of LifelongAgentBench's, and its score counts them."""
    tasks = [
        task | {"skill_list": ["select", "where_single_condition", "limit_only"]}
        for task in numbered("db_bench", "test")
    ]
    (tmp_path / "test.json").write_text(json.dumps(dict(enumerate(tasks))))
    assert made("db_bench", tmp_path).count("test") == 3
    with pytest.raises(ValueError, match="leave skill= and single_skill= out"):
        envs.make("db_bench", data=str(tmp_path), splits="own", skill="select")


def test_unplayable_tasks_are_counted_and_left_out(tmp_path, capsys):
    tasks = numbered("os_interaction", "test")
    tasks[1]["evaluation_info"] = {
        f"{name}_command_item": test_data_files.command("false") for name in ("evaluation", "ground_truth")
    }
    (tmp_path / "test.json").write_text(json.dumps(dict(enumerate(tasks))))
    env = made("os_interaction", tmp_path)
    assert env.count("test") == 2 and "test 2: " in said(env, 1, "test")
    assert "1 of 3 tasks are unusable" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["os_interaction", "db_bench"])
def test_a_served_file_is_played_in_order(tmp_path, kind):
    """A client of LifelongAgentBench plays the samples 0, 1, 2, ...: the tasks of the file, each once."""
    write(kind, tmp_path, ["train"], FORMS[kind])
    tasks = lab.Tasks(kind, {"data": str(tmp_path / "train.json"), "splits": "own"})
    names = lab.answer(tasks, "POST", "/api/get_sample_index_list", {})["sample_index_list"]
    assert names == [str(number) for number in range(7)]
    assert lab.answer(tasks, "POST", "/api/tasks", {}) == 7
    assert all(f"train {name}: " in tasks.begin(name).items[-1]["content"] for name in names)


def test_gsm8k_plays_its_own_test_split():
    env = envs.make("planner", data=str(reference("gsm8k")), splits="own")
    rows = [json.loads(line) for line in (reference("gsm8k") / "test.jsonl").read_text().splitlines()]
    assert env.count("test") == len(rows) == 1319 and env.count("train") == 7473
    for seed in range(0, 1319, 100):
        env.reset(seed, "test")
        assert env.problem.question == rows[seed]["question"]


WORDS = ["env=planner", "planner.worker=rules", "planner.prompt=short", "max_new_tokens=2", "threads=1", "lora.r=0"]


@pytest.mark.all_only
def test_eval_plays_a_whole_split(tmp_path, monkeypatch):
    """n=0 is each task once, sampled and greedily; without a file to count it is refused."""
    played, reset = [], envs.planner.Env.reset
    monkeypatch.setattr(
        envs.planner.Env, "reset", lambda env, seed, split: played.append(seed) or reset(env, seed, split)
    )
    write("planner", tmp_path, ["test"], FORMS["planner"])
    data = [f"planner.data={tmp_path}", "planner.splits=own"]
    code, _, err = run_program("eval.py", "n=0", *WORDS, *data, f"json={tmp_path}/out.json")
    assert code == 0, err
    written = json.loads((tmp_path / "out.json").read_text())
    assert [result["episodes"] for result in written["results"]["base"]] == [3, 3]
    assert written["config"]["order"] == "sequential" and played == [0, 1, 2, 0, 1, 2]
    for words in (WORDS, ["env=planner,sat", *WORDS[1:], *data], ["env=textcraft", *WORDS[3:]]):
        code, _, err = run_program("eval.py", "n=0", *words)
        assert code == 2 and "n=0 needs one environment with tasks of a file" in err and err.count("\n") == 1
    code, _, err = run_program("eval.py", "n=0", "split=val", *WORDS, *data)
    assert code == 2 and "has no val.json or .jsonl, only test.jsonl" in err and err.count("\n") == 1
