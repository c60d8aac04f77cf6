"""python -m envs X demos=N out=FILE: rows that data= reads as the experts' own episodes; rejects are counted."""

import json
from collections import Counter
from pathlib import Path

import pytest
from cases import cases
from conftest import run_program

import envs
from envs import demos
from envs.base import Environment, EnvironmentFailed, Step
from models import load_tokenizer
from rl import data
from rl.config.words import resolve
from rl.data import demonstrations
from rl.evaluate import progress_bar
from rl.tasks import Task, make_env

CASES = cases("demos")


@pytest.mark.parametrize("name", [name for name in envs.NAMES if name not in (*envs.WITHOUT_TASKS, "abd", "ded")])
def test_rows_are_the_experts_episodes_token_for_token(name, tmp_path):
    """data= learns from the same ids and the same tokens as algo=sft does without a file."""
    words = {
        "algo": "sft",
        "env": name,
        "max_len": "9000",
        **({"planner.worker": "rules"} if name == "planner" else {}),
    }
    cfg, tokenizer = resolve({**words, f"{name}.prompt": "native"}), load_tokenizer("tiny")
    rows = tmp_path / "rows.jsonl"
    demos.collect({name: make_env(cfg, name)}, range(2), "train", rows, buffer=1)
    tasks = [Task((0, seed), name, seed, seed, "train") for seed in range(2)]
    expected = demonstrations(tokenizer, tasks, cfg, progress_bar(2, ""))
    for number, (messages, episode) in enumerate(zip(data.read_rows(rows, "", ""), expected, strict=True)):
        found, _ = data.to_episode(tokenizer, messages, number, cfg.max_len)
        assert found.ids_T == episode.ids_T and found.action_mask_T == episode.action_mask_T


class Flaky(Environment):
    """Seeds 0, 3, ... are solved, 1, 4, ... are not, at 2, 5, ... the environment fails."""

    def reset(self, seed, split="train"):
        self.seed = seed
        return [{"role": "user", "content": f"{seed}"}, {"role": "assistant", "content": "OK."}]

    def step(self, action_text):
        if self.seed % 3 == 2:
            raise EnvironmentFailed("gone")
        return Step("", 1.0, True, False, {"success": self.seed % 3 == 0})

    def oracle(self):
        return "do"


def test_rejects_are_counted_and_left_out(tmp_path):
    rows = tmp_path / "rows.jsonl"
    counts = demos.collect({"a": Flaky(), "b": Flaky()}, range(8), "train", rows, buffer=2)
    assert counts == {"a": Counter(written=2, unsolved=1, failed=1), "b": Counter(written=1, unsolved=2, failed=1)}
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [(row["env"], row["seed"]) for row in found] == [("a", 0), ("b", 3), ("a", 6)]
    assert [m.get("loss") for m in found[0]["messages"]] == [None, False, None], "the prompt's OK. is not learned"
    assert next(demos.lines(counts, rows)) == "a: 2 written, 2 rejected (1 unsolved, 1 failed)"


def test_interrupted_collection_keeps_whole_rows(tmp_path, monkeypatch):
    real = demos.demonstration

    def interrupted(name, env, seed, split):
        if seed == 7:
            raise KeyboardInterrupt
        return real(name, env, seed, split)

    monkeypatch.setattr(demos, "demonstration", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demos.collect({"a": envs.make("textcraft")}, range(10), "train", tmp_path / "rows.jsonl", buffer=3)
    partial = (tmp_path / "rows.jsonl.partial").read_text().splitlines()
    assert len([json.loads(line) for line in partial]) == 6 and not (tmp_path / "rows.jsonl").exists()


def test_program_reports_counts_per_environment(tmp_path):
    rows = tmp_path / "rows.jsonl"
    words = ["demos=4", f"out={rows}", "textcraft.prompt=short", "babyai.difficulty=1"]
    status, out, err = run_program("envs/__main__.py", "textcraft,babyai", *words)
    assert (status, err) == (0, "") and "textcraft: 2 written, 0 rejected\nbabyai: 2 written, 0 rejected\n" in out
    assert Counter(json.loads(line)["env"] for line in rows.read_text().splitlines()) == {"textcraft": 2, "babyai": 2}
    before = rows.read_bytes()
    status, out, err = run_program("envs/__main__.py", "textcraft,babyai", *words)
    assert status == 1 and err == f"envs: out={rows} is there already; remove it, or choose another out=\n"
    assert rows.read_bytes() == before


@pytest.mark.parametrize(("words", "said"), CASES["wrong words"])
def test_wrong_words_are_one_line(words, said, tmp_path):
    status, out, err = run_program("envs/__main__.py", *words)
    assert (status, out, err) == (2, "", said + "\n")
    assert not Path("x").exists()
