"""Checkpoint policy: the best epoch, early stopping, when to save, and which saves are removed."""

import json
from types import SimpleNamespace

import pytest
from conftest import metrics_of, random_model, run_program
from test_checkpoint import make_state

import lora
import train
from rl.config.model_checks import read_targets
from rl.config.words import parse
from rl.run import history, retention
from rl.run.checkpoint import save_checkpoint
from rl.run.files import append, checkpoints
from rl.run.run import Run

SMALL = ["episodes=8", "batch_size=4", "textcraft.max_turns=1", "max_new_tokens=4", "threads=1", "ranks=1", "lora.r=4"]


def evaluated(run, scores: dict[int, float], key: str = "success") -> None:
    """Append evaluations of these epochs: success in sampled play, or the held-out loss."""
    for epoch, score in scores.items():
        played = {"eval": {"temperature": 1.0, "success": score}}
        append(run / "metrics.jsonl", [{"epoch": epoch, **(played if key == "success" else {"eval_loss": score})}])


@pytest.mark.parametrize(
    ("scores", "since"),
    [([0.1], 0), ([0.3, 0.1], 1), ([0.3, 0.1, 0.3], 2), ([0.1, 0.2, 0.3], 0), ([0.1, 0.4, 0.2, 0.3], 2)],
)
def test_patience_counts_evaluations_since_the_best(scores, since, tmp_path):
    """By hand; an equal score is no better."""
    evaluated(tmp_path, dict(enumerate(scores)))
    for patience in range(5):
        assert retention.patience_exhausted(SimpleNamespace(patience=patience), tmp_path) == (0 < patience <= since)


@pytest.mark.parametrize(("best_by", "kind", "best"), [("success", "success", 2), ("loss", "held-out loss", 1)])
def test_best_epoch_is_judged_as_the_run_says(best_by, kind, best, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"best_by": best_by}))
    evaluated(tmp_path, {0: 0.1, 1: 0.2, 2: 0.5})
    evaluated(tmp_path, {0: 2.0, 1: 0.5, 2: 0.9}, "loss")
    assert (history.best_epoch(tmp_path), history.evaluations(tmp_path)[0]) == (best, kind)


def test_steps_are_saved_after_the_epoch_that_passes_a_multiple():
    cfg = SimpleNamespace(save_steps=5, save_every=1)
    saved = []
    for epoch in range(1, 8):  # three steps an epoch, of which one is skipped
        state = SimpleNamespace(step=3 * epoch, epoch=epoch)
        if retention.to_save(state, cfg, {"optimizer_steps": 2, "skipped_steps": 1}):
            saved.append(state.step)
    assert saved == [6, 12, 15, 21]


@pytest.mark.parametrize(("limit", "left"), [(1, [1, 3, 7]), (3, [1, 3, 5, 6, 7])])
def test_limit_keeps_newest_best_and_resumed_saves(limit, left, tmp_path):
    """Epoch 0, which is better, has no folder: the best of those that have one stays."""
    (tmp_path / "config.json").write_text(json.dumps({"save_total_limit": limit}))
    evaluated(tmp_path, {0: 0.9})
    for epoch in range(1, 8):
        state = make_state(critic=False)
        state.epoch, state.resumed_from = epoch, 3 if epoch > 3 else -1
        (tmp_path / f"epoch_{epoch}").mkdir()
        save_checkpoint(state, tmp_path)
        evaluated(tmp_path, {epoch: 0.5 if epoch == 1 else 0.2})
    assert history.saved_epochs(tmp_path) == left
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{epoch}" for epoch in left]
    assert history.best_saved(tmp_path) == 1


def test_all_epochs_stay_without_a_limit(tmp_path):
    for epoch in range(1, 5):
        state = make_state(critic=False)
        state.epoch = epoch
        (tmp_path / f"epoch_{epoch}").mkdir()
        save_checkpoint(state, tmp_path)
    assert history.saved_epochs(tmp_path) == [1, 2, 3, 4] and len(checkpoints(tmp_path)) == retention.KEEP


@pytest.mark.parametrize("patience, words", [(1, "1 evaluation was"), (2, "2 evaluations were")])
def test_last_line_counts_the_evaluations_of_patience(patience, words, tmp_path):
    state = make_state(critic=False)
    run = Run(tmp_path)
    run.cfg = SimpleNamespace(patience=patience, epochs=9, max_steps=0, max_sampled_tokens=0)
    assert f"; stopped early: {words} no better (patience=0 goes on)" in run.last_line(state)


@pytest.mark.all_only
def test_run_stops_early_and_goes_on_without_patience(tmp_path, capsys):
    """Replies of four tokens solve nothing, so no evaluation is better than the first."""
    run = tmp_path / "run"
    words = [*SMALL, "epochs=5", "patience=2", "eval_every=1", "eval_episodes=2", "strict=false", f"out={run}"]
    train.main(parse(words))
    assert [r["epoch"] for r in metrics_of(run) if "loss" in r] == [1, 2]
    said = capsys.readouterr().out
    assert "stopped early: 2 evaluations were no better (patience=0 goes on)" in said
    assert "the best epoch by success is epoch_1, 0.0%" in said
    with pytest.raises(FileExistsError, match=f"has finished; resume={run} patience=0 goes on with it"):
        train.main(parse(words))
    train.main(parse([f"resume={run}"]))
    assert "nothing is left to do" in capsys.readouterr().out
    train.main(parse([f"resume={run}", "patience=0", "epochs=3"]))
    assert [r["epoch"] for r in metrics_of(run) if "loss" in r] == [1, 2, 3]


def test_last_line_says_when_training_gained_nothing(tmp_path):
    state = SimpleNamespace(epoch=2, step=2, sampled_tokens=0)
    run = Run(tmp_path)
    run.cfg = SimpleNamespace(epochs=2, max_steps=0, max_sampled_tokens=0, patience=0)
    said = {"0.5": "before training it was better, 50.0%", "0.25": "before training it was the same, 25.0%", "0.1": ""}
    for before in said:
        evals = [
            f'{{"epoch": {n}, "eval": {{"temperature": 1.0, "success": {x}}}}}' for n, x in ((0, before), (2, "0.25"))
        ]
        (tmp_path / "metrics.jsonl").write_text("\n".join(evals) + "\n")
        (tmp_path / "epoch_2").mkdir(exist_ok=True)
        line = run.last_line(state)
        assert "the best epoch by success is epoch_2" in line
        assert line.endswith(said[before]) and ("before training" in line) == bool(said[before])


def test_evaluated_epochs_are_saved(tmp_path):
    words = ["epochs=4", "save_every=9", "eval_every=2", "eval_episodes=1", "strict=false", f"out={tmp_path}/run"]
    train.main(parse([*SMALL, *words]))
    assert history.saved_epochs(tmp_path / "run") == [2, 4]


def test_resume_from_a_run_takes_its_best_epoch(tmp_path, capsys):
    run = tmp_path / "run"
    for epoch in (1, 2):
        (run / f"epoch_{epoch}").mkdir(parents=True)
        (run / f"epoch_{epoch}" / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 8}')
    evaluated(run, {1: 0.5, 2: 0.4})
    assert parse([f"resume_from={run}"]).resume_from == f"{run}/epoch_1"
    assert parse([f"resume_from={run}", "lora.r=4", "lora.alpha=8"]).resume_from == f"{run}/epoch_1", "as it has them"
    for word, has in (
        ("lora.r=16", "lora.r=4"),
        ("lora.alpha=9", "lora.alpha=8"),
        ("lora.targets=q_proj", "lora.targets="),
    ):
        with pytest.raises(SystemExit):
            parse([f"resume_from={run}", word])
        err = capsys.readouterr().err
        assert f"{word} has no effect beside resume_from=, whose adapter has {has}" in err


@pytest.mark.parametrize(
    ("family", "targets"),
    [*((f, t) for f in ("qwen2", "phi3") for t in ("all-linear", "attention")), ("qwen2", "q_proj,v_proj")],
)
def test_targets_beside_an_adapter_may_be_the_words_that_it_was_made_with(family, targets, tmp_path):
    model = random_model(family)
    lora.inject(model, r=4, alpha=8, targets=read_targets(targets, model))
    lora.save_adapter(model, tmp_path / "epoch_1", "tiny")
    assert parse([f"resume_from={tmp_path}/epoch_1", f"lora.targets={targets}"]).resume_from
    with pytest.raises(SystemExit):
        parse([f"resume_from={tmp_path}/epoch_1", "lora.targets=up_proj"])


def test_a_start_that_is_worse_than_its_base_is_named(tmp_path):
    """By held-out loss and by success; of an adapter that no run has made there is nothing to say."""
    worse = [{"epoch": 0, "eval_loss": 0.226}, {"epoch": 1, "eval_loss": 1.05}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in worse))
    said = "held-out loss 1.0500; before training it was better, 0.2260"
    assert history.start_line(tmp_path / "epoch_1") == f"resume_from={tmp_path}/epoch_1: {said}"
    evaluated(tmp_path, {0: 0.3, 1: 0.5})
    assert history.start_line(tmp_path / "epoch_1") == f"resume_from={tmp_path}/epoch_1: success 50.0%"
    assert history.start_line(tmp_path / "epoch_7") == history.start_line(tmp_path / "mine") == ""


def test_patience_without_held_out_rows_is_one_line(tmp_path):
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    words = ["algo=sft", f"data={tmp_path}/rows.jsonl", "patience=1", "eval_every=1", f"out={tmp_path}/run", "ranks=1"]
    status, _, err = run_program("train.py", *words)
    assert status == 1 and "patience=1 counts evaluations" in err and "too small to hold rows out" in err
    assert not (tmp_path / "run").exists()
