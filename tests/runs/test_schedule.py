"""A run that goes on with more epochs says what its learning rate does, and can keep the old end or decay anew."""

import json
import shutil
from types import SimpleNamespace
from unittest import mock

import pytest
from conftest import ROOT, run_program

from rl.config.arguments import ArgumentError
from rl.config.checks import check_schedule
from rl.config.words import parse
from rl.report import progress
from rl.run import health
from rl.run.files import new_folder
from rl.run.resume import schedule_change

WORDS = ["algo=sft", "episodes=4", "batch_size=2", "eval_episodes=0", "ranks=1", "lr=1e-3", "save_every=1"]


def rates(run) -> list[float]:
    """Return the mean learning rate of each epoch."""
    lines = (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())
    return [line["lr"] for line in lines if "lr" in line]


def resumed(run, *words: str) -> str:
    status, out, err = run_program("train.py", f"resume={run}", *words)
    assert status == 0, err
    return out


@pytest.fixture
def run(tmp_path):
    status, _, err = run_program("train.py", *WORDS, "schedule=linear", "epochs=2", f"out={tmp_path / 'run'}")
    assert status == 0, err
    return tmp_path / "run"


def test_more_epochs_under_a_decaying_schedule_are_said(run):
    out = resumed(run, "epochs=4")
    assert (
        "schedule=linear now ends after 8 steps (epoch 4), not after 4 (epoch 2): the learning rate was 0.0001" in out
    )
    assert "schedule_epochs=0-2 keeps the old end, schedule_epochs=2-4 decays anew" in out
    assert rates(run)[2] > 1.5 * rates(run)[1]  # what the line warns of


def test_the_old_end_can_be_kept(run):
    assert "now ends after" not in resumed(run, "epochs=4", "schedule_epochs=0-2")
    assert rates(run)[2:] == pytest.approx([1e-4] * 2)


def test_the_rate_can_decay_anew(run):
    assert "now ends after" not in resumed(run, "epochs=4", "schedule_epochs=2-4", "lr=5e-4")
    assert rates(run)[2:] == pytest.approx([5e-4 * 0.85, 5e-4 * 0.25])  # of 1, 0.7, 0.4, 0.1


@pytest.mark.parametrize("word", ["batch_size=4", "episodes=8"])
def test_another_number_of_steps_is_said_too(word, run):
    assert "now ends after" in resumed(run, "epochs=3", word, "schedule_epochs=")


def test_a_constant_rate_says_nothing(tmp_path):
    assert run_program("train.py", *WORDS, "schedule=constant", "epochs=1", f"out={tmp_path / 'run'}")[0] == 0
    assert "now ends after" not in resumed(tmp_path / "run", "epochs=2")


def test_a_budget_of_tokens_ends_the_run_and_the_decay(tmp_path):
    """The run ends with the first epoch past the budget; the rate falls by the tokens of the epochs before."""
    out, words = tmp_path / "run", [*WORDS, "schedule=linear", "min_lr_ratio=0", "epochs=99"]
    progress.ended.clear()
    assert run_program("train.py", *words, "max_sampled_tokens=300", f"out={out}")[0] == 0
    assert not progress.ended, "of how many epochs are left nothing is known"
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    tokens = [line["sampled_tokens"] for line in lines if "lr" in line]
    assert sum(tokens[:-1]) < 300 <= sum(tokens) and len(tokens) > 2
    assert rates(out) == pytest.approx([1e-3 * (1 - sum(tokens[:epoch]) / 300) for epoch in range(len(tokens))])
    again, _, said = run_program("train.py", *words, "max_sampled_tokens=300", f"out={out}")
    assert again and f"this run has finished; resume={out} max_sampled_tokens={2 * sum(tokens)} goes on" in said
    longer, saved = parse([*words, "max_sampled_tokens=400"]), json.loads((out / "config.json").read_text())
    assert "by max_sampled_tokens=400, not 300" in schedule_change(SimpleNamespace(step=len(tokens)), longer, saved)


@pytest.mark.parametrize("lost", ["metrics.jsonl", "the counter"])
def test_a_resumed_run_knows_its_tokens(lost, run):
    """From its checkpoint; of an earlier version's, which lacks them, from metrics.jsonl."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    tokens = sum(line.get("sampled_tokens", 0) for line in lines)
    path = run / "checkpoint-2" / "state.json"
    saved = json.loads(path.read_text())
    assert saved.pop("sampled_tokens") == tokens > 0
    if lost == "metrics.jsonl":
        (run / "metrics.jsonl").unlink()
    else:
        with new_folder(run / "older") as older:
            for file in path.parent.iterdir():
                shutil.copy(file, older)
            (older / "manifest.json").unlink()
            (older / "state.json").write_text(json.dumps(saved))
        shutil.rmtree(path.parent)
        (run / "older").rename(path.parent)
    assert f"max_sampled_tokens={2 * tokens} goes on" in resumed(run, f"max_sampled_tokens={tokens}")


def test_settings_that_did_not_work_are_not_kept(run):
    """Nor those of a run in which nothing was left to do; a plain resume= then goes on as before."""
    path = run / "config.json"
    before = path.read_text()
    assert "nothing is left to do" in resumed(run, "temperature=0.5") and path.read_text() == before
    status, _, err = run_program("train.py", f"resume={run}", "epochs=3", "max_len=5")
    assert status == 1 and "max_len" in err and path.read_text() == before
    with mock.patch.object(health, "tokenizer_ids", return_value="it fell"):  # strict=true ends the run at its start
        status, _, err = run_program("train.py", f"resume={run}", "epochs=3", "strict=true")
    assert status == 1 and "it fell" in err and path.read_text() == before
    resumed(run, "epochs=3", "lr=2e-3")
    assert json.loads(path.read_text())["lr"] == 2e-3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["out=elsewhere"], "out= has no effect beside resume=, which goes on in "),
        (["quick=true"], "quick= has no effect beside resume=, which goes on with the run's own settings"),
    ],
)
def test_words_that_a_resumed_run_cannot_follow_are_refused(words, said, run):
    status, _, err = run_program("train.py", f"resume={run}", *words)
    assert status == 2 and said in err and not (ROOT / "elsewhere").exists()
    assert run_program("train.py", f"resume={run / 'config.json'}")[2].endswith(f"give its folder, {run}\n")


@pytest.mark.parametrize("span", ["4", "4-", "4-4", "5-4", "a-b", "-1-4", "0-99999999999"])
def test_a_span_that_is_none_is_refused(span):
    with pytest.raises(ArgumentError, match=r"schedule_epochs=.*: FROM-TO"):
        check_schedule(parse(["schedule=cosine"]).__class__(schedule="cosine", schedule_epochs=span))


def test_a_span_without_a_schedule_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["schedule=constant", "schedule_epochs=0-4"])
    assert end.value.code == 2 and "does nothing with schedule=constant" in capsys.readouterr().err


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_another_file_of_questions_is_refused_or_said(order, tmp_path):
    """order=sequential goes on at a place in the file, which another file does not have."""
    for name in "ab":
        rows = (json.dumps({"question": f"{name}{i}", "answer": "1"}) for i in range(60))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    words = ["algo=reinforce", "env=qa", f"qa.data={tmp_path / 'a.jsonl'}", "episodes=2", "batch_size=2", "epochs=1"]
    words += ["max_new_tokens=2", "eval_episodes=0", "ranks=1", f"order={order}", "strict=false"]
    assert run_program("train.py", *words, f"out={tmp_path / 'run'}")[0] == 0
    (tmp_path / "moved").mkdir()
    moved = shutil.copy(tmp_path / "a.jsonl", tmp_path / "moved" / "a.jsonl")
    more = (f"resume={tmp_path / 'run'}", "epochs=2")
    status, out, err = run_program("train.py", *more, f"qa.data={tmp_path / 'b.jsonl'}")
    if order == "sequential":
        assert status and "is another file: order=sequential goes on at a place in" in err
        status, _, err = run_program("train.py", *more, f"qa.data={moved}")  # the same file in another folder
        assert status == 0, err
    else:
        assert status == 0 and "b.jsonl is another file than" in out
