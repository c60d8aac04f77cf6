"""The live line: on a terminal alone, with how the episodes go and how long the run still takes."""

import io
import sys
from types import SimpleNamespace

import pytest
from test_report import make_episode
from tqdm import tqdm

from rl.report import progress


@pytest.fixture(autouse=True)
def new_run(monkeypatch):
    monkeypatch.setattr(progress, "ended", [])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_time_left_is_that_of_the_last_epochs():
    assert progress.run_left(0.0) == ""
    progress.ended += [(100.0, 47)]
    assert progress.run_left(100.0) == "", "how long an epoch takes is not known yet"
    progress.ended += [(100.0 + 10 * n, 47 - n) for n in range(1, 20)]
    progress.ended += [(290.0 + 60 * n, 28 - n) for n in range(1, 11)]
    assert progress.run_left(890.0) == "run 18 min left", "18 epochs at the pace of the last ten, 60 s each"
    assert progress.run_left(920.0) == f"run {progress.duration(17.5 * 60)} left"
    assert progress.run_left(9e9) == "" and (progress.duration(89), progress.duration(7000)) == ("89 s", "1 h 57 min")


def test_another_run_in_the_same_process_starts_anew():
    progress.ended += [(0.0, 1), (10.0, 0), (20.0, 9)]
    assert progress.run_left(20.0) == ""
    progress.ended[:] = [(0.0, 9), (10.0, 8), (20.0, 9)]
    assert progress.run_left(20.0) == "", "as many epochs are left as at the first run's start"


def test_the_line_says_how_the_episodes_go():
    own = [make_episode("one two", 1.0), make_episode("one two three", -0.5), make_episode("left out")]
    own[2].infrastructure_failed = True
    tokens = sum(turn.stop - turn.start for e in own[:2] for turn in e.turns)
    line = progress.described(own, progress.time.time() - 2)
    assert line.startswith(f"success 50%  reward 0.25  {tokens / 2:,.0f} tokens/s") and progress.described([], 0) == ""


def test_a_log_gets_lines_at_doubling_intervals(monkeypatch, capsys):
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    env = SimpleNamespace(config=SimpleNamespace(max_turns=20))
    with progress.progress_bar(400, "evaluate on val") as bar:
        for second in range(200):
            now = 1000.0 + second
            progress.turn_ended(bar, env)
            if second >= 50:
                progress.finished(bar, [])
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "evaluate on val: 0 of 400 episodes, 31 turns in 30 s; up to 2 h 9 min left", "400 x 20 turns"
    assert second.startswith("evaluate on val: 10 of 400 episodes, 61 turns in 60 s; up to 2 h 10 min left")
    assert third == "evaluate on val: 70 of 400 episodes, 121 turns in 2 min; about 9 min left"
    progress.turn_ended(tqdm(disable=True), env)


def test_a_short_evaluation_writes_nothing_into_a_log(capsys):
    with progress.progress_bar(2, "evaluate on val") as bar:
        progress.finished(bar, [])
        progress.finished(bar, [])
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("out", "err"), [(Terminal, Terminal), (Terminal, io.StringIO), (io.StringIO, Terminal)])
def test_nothing_is_written_without_a_terminal(out, err, monkeypatch):
    monkeypatch.setattr(sys, "stdout", out())
    monkeypatch.setattr(sys, "stderr", err())
    with progress.progress_bar(2, "epoch 1 episodes") as bar:
        bar.mininterval = 0
        progress.finished(bar, [make_episode("one")])
    written = sys.stderr.getvalue()
    if out is err is Terminal:
        assert "epoch 1 episodes 1/2" in written and "success 100%  reward 1.00" in written
    else:
        assert written == ""


def test_a_bar_that_is_off_counts_nothing():
    progress.finished(tqdm(disable=True), [make_episode("one")])
