"""The code in docs/bring_your_own.md works as it stands: one file and one line in a dict."""

import re
import subprocess
import sys

import pytest
from conftest import ROOT, copy_of_the_code, metrics_of

import envs

PAGE = (ROOT / "docs" / "bring_your_own.md").read_text()
FILES = dict(re.findall(r"This is `([\w/]+\.py)`:\n\n```python\n(.*?)```", PAGE, re.S))
LINES = {"envs/__init__.py": "NAMES = {", "rl/config/fields.py": "ALGORITHMS = {"}
SMALL = ["episodes=8", "batch_size=8", "epochs=1", "max_new_tokens=6", "eval_episodes=2", "threads=1", "ranks=1"]
SMALL += ["products=plain"]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Copy the code that a run imports, and add the page's files and lines."""
    folder = copy_of_the_code(tmp_path_factory.mktemp("tree"))
    for path, code in FILES.items():
        (folder / path).write_text(code)
    for path, start in LINES.items():
        package = path.partition("/")[0]
        [line] = re.findall(rf'`("\w+": "{package}\.\w+",)`', PAGE)
        text = (folder / path).read_text()
        assert text.count(start) == 1
        (folder / path).write_text(text.replace(start, f"{start}{line} "))
    return folder


@pytest.mark.parametrize(("path", "most"), [("envs/guess.py", 60), ("rl/raft.py", 80)])
def test_the_code_is_short(path, most):
    assert 20 < len(FILES[path].splitlines()) <= most


def test_the_environment_does_what_the_page_asks(tmp_path, monkeypatch):
    (tmp_path / "own_guess.py").write_text(FILES["envs/guess.py"])
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(envs.NAMES, "guess", "own_guess")
    tasks = {}
    for split in ("train", "val", "test"):
        for seed in range(30):
            env = envs.make("guess")
            prompt = env.reset(seed, split)[0]["content"]
            assert prompt == envs.make("guess").reset(seed, split)[0]["content"], "a group has one prompt"
            tasks.setdefault((*env.left, env.secret), set()).add(split)
            step = env.step(env.oracle())
            while not (step.terminated or step.truncated):
                step = env.step(env.oracle())
            assert step.info["success"] and step.info["outcome"] == "correct" and step.reward == 1
    assert all(len(splits) == 1 for splits in tasks.values()) and len(tasks) > 80
    env = envs.make("guess", max_turns=2)
    env.reset(1)
    assert not env.step("seven").info["valid"]
    step = env.step("123456789")
    assert step.truncated and not step.terminated and step.info["outcome"] == "timeout"
    with pytest.raises(RuntimeError, match="no episode is running"):
        env.step("1")


@pytest.mark.all_only
def test_the_page_s_demonstrations_teach_the_environment(tree):
    """The embedded model solves nothing before; by the page's own words, with fewer held-out tasks."""
    [words] = re.findall(r"python train.py (algo=sft env=guess.*)", PAGE)
    command = [sys.executable, "train.py", *words.split(), "eval_episodes=50"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    evals = [(record["epoch"], record["eval"]) for record in metrics_of(tree / "runs" / "guess") if "eval" in record]
    assert [epoch for epoch, _ in evals] == [0, 0, 6, 6], "sampled and greedy play"
    assert all(found["low"] > 0.2 if epoch else found["success"] == 0 for epoch, found in evals)


@pytest.mark.all_only
def test_a_run_with_both(tree):
    words = [*SMALL, "algo=raft", "raft.group_size=8", "env=guess", "guess.numbers=2", "out=run"]
    done = subprocess.run([sys.executable, "train.py", *words], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    records = metrics_of(tree / "run")
    epochs = [record for record in records if "loss" in record]
    assert len(epochs) == 1 and all(record["sampler_gap"] == 0 and record["entropy"] > 0 for record in epochs)
    assert any("eval" in record and record["eval"]["by_env"].keys() == {"guess"} for record in records)
