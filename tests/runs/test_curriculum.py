"""curriculum=: an option's values join one by one as training succeeds, exactly again after a resume."""

import pytest

import train
from rl import curriculum
from rl.config.words import parse
from rl.run.files import append
from rl.tasks import make_tasks

LESSONS = ["env=textcraft", "textcraft.difficulty=1,1,2,3"]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("1,2,3", ["1", "1,2", "1,2,3"]),
        ("1,1,2", ["1,1", "1,1,2"]),
        ("2, 1,2", ["2,2", "2,1,2"]),
        ("3", ["3"]),
        ("", []),
    ],
)
def test_lists_begin_with_their_first_value_and_keep_weights(value, found):
    assert curriculum.steps(value) == found


@pytest.mark.parametrize(
    ("at", "accuracies", "levels"),
    [
        ("", [0.2, 0.7, 0.1, 0.9, 0.9], ["1,1", "1,1", "1,1,2", "1,1,2", "1,1,2,3", "1,1,2,3"]),
        (":0.15", [0.2, 0.1, 0.2], ["1,1", "1,1,2", "1,1,2", "1,1,2,3"]),
    ],
)
def test_next_value_joins_after_a_successful_epoch(at, accuracies, levels, tmp_path):
    """By hand."""
    cfg = parse([*LESSONS, f"curriculum=difficulty{at}", f"out={tmp_path}"])
    found = [curriculum.lesson(cfg, 0).environments["textcraft"].difficulty]
    for epoch, accuracy in enumerate(accuracies, 1):
        append(tmp_path / "metrics.jsonl", [{"epoch": epoch, "accuracy": accuracy}])
        found.append(curriculum.lesson(cfg, epoch).environments["textcraft"].difficulty)
    assert found == levels
    assert cfg.environments["textcraft"].difficulty == "1,1,2,3", "evaluations play the whole list"


@pytest.mark.parametrize(
    ("accuracies", "turns"),
    [([0.2, 0.7, 0.1, 0.9, 0.9], [5, 5, 10, 10, 20, 20]), ([0.0, 0.1, 0.0, 0.0], [5, 10, 10, 20, 20])],
)
def test_episodes_get_more_turns_as_success_rises(accuracies, turns, tmp_path):
    """By hand. An epoch without any success lengthens them too: the tasks may need more turns."""
    cfg = parse(["env=textcraft", "max_turns=20", "curriculum=max_turns", f"out={tmp_path}"])
    found = [curriculum.lesson(cfg, 0).environments["textcraft"].max_turns]
    for epoch, accuracy in enumerate(accuracies, 1):
        append(tmp_path / "metrics.jsonl", [{"epoch": epoch, "accuracy": accuracy}])
        found.append(curriculum.lesson(cfg, epoch).environments["textcraft"].max_turns)
    assert found == turns and cfg.environments["textcraft"].max_turns == 20


@pytest.mark.all_only
def test_epochs_play_their_lesson_and_a_resumed_run_the_same(tmp_path, capsys, monkeypatch):
    """Any success is enough here, so each epoch adds a level."""
    played, real = [], train.collect.__globals__["rollout"]

    def rollout(model, tokenizer, tasks, cfg, *rest):
        played.append(cfg.environments["textcraft"].difficulty)
        return real(model, tokenizer, tasks, cfg, *rest)

    monkeypatch.setitem(train.collect.__globals__, "rollout", rollout)
    run = tmp_path / "run"
    words = ["textcraft.difficulty=1,2", "curriculum=difficulty:0.01", "episodes=8", "batch_size=8", "lora.r=4"]
    words += ["eval_episodes=0", "epochs=2", "threads=1", "ranks=1", "strict=false", f"out={run}"]
    words += ["max_turns=8", "max_new_tokens=32", "ppo.epochs=1"]
    train.main(parse(words))
    said = capsys.readouterr().out
    assert played == ["1", "1,2"], "the embedded model solves some task of depth 1"
    assert "curriculum: from epoch 1 on textcraft.difficulty=1\n" in said
    assert "curriculum: from epoch 2 on textcraft.difficulty=1,2\n" in said
    train.main(parse([f"resume={run}", "epochs=3"]))
    assert played[2:] == ["1,2"]


def test_last_lesson_is_printed_once(tmp_path, capsys):
    cfg = parse(["textcraft.difficulty=1,2", "curriculum=difficulty", f"out={tmp_path}"])
    for epoch in range(5):
        curriculum.lesson(cfg, epoch)
        with open(tmp_path / "metrics.jsonl", "a") as file:
            file.write(f'{{"epoch": {epoch + 1}, "accuracy": 1.0}}\n')
    assert capsys.readouterr().out.count("curriculum:") == 2


def test_skills_join_in_their_order(tmp_path):
    words = ["env=db_bench", "db_bench.skill=select,insert", "db_bench.difficulty=1", "curriculum=skill"]
    cfg = parse([*words, f"out={tmp_path}"])
    first = curriculum.lesson(cfg, 0)
    assert first.environments["db_bench"].skill == "select" and make_tasks(first, 0, 2, 1, "train", 0)
