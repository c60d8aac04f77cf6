"""The live line: on a terminal alone, with how the episodes go and how long the run still takes."""

import io
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from test_report import make_episode
from tqdm import tqdm

from models import load_model, load_tokenizer
from rl.config.words import parse
from rl.report import progress
from rl.rollout import rollout
from rl.run.log import epoch_line, warn
from rl.tasks import make_tasks


@pytest.fixture(autouse=True)
def new_run(monkeypatch):
    monkeypatch.setattr(progress, "ended", [])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("output", "no_color", "yellow"), [(Terminal, "", 1), (Terminal, "1", 0), (io.StringIO, "", 0)]
)
def test_a_warning_is_yellow_on_a_terminal_alone(output, no_color, yellow, monkeypatch):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys, "stdout", output())
    warn("epoch 1: x")
    assert sys.stdout.getvalue() == "\033[33m" * yellow + "warning: epoch 1: x" + "\033[0m" * yellow + "\n"


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


def test_the_line_shows_no_success_of_the_quick_episodes():
    own = [make_episode("one two", 1.0), make_episode("one two three", -0.5), make_episode("left out")]
    tokens = sum(turn.stop - turn.start for e in own for turn in e.turns)
    assert progress.described(own, progress.time.time() - 2) == f"{tokens / 2:,.0f} tokens/s"
    assert progress.described([], 0) == ""


class Clock:
    """Takes the place of threading.Timer: `to` moves the time and calls what is due."""

    def __init__(self, monkeypatch):
        self.now, self.due = 0.0, []
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(progress.threading, "Timer", self.timer)

    def timer(self, seconds: float, call):
        entry = (self.now + seconds, call)
        return SimpleNamespace(start=lambda: self.due.append(entry), cancel=lambda: self.due.remove(entry))

    def to(self, now: float) -> None:
        for when, call in [entry for entry in self.due if entry[0] <= now]:
            self.due.remove((when, call))
            self.now = when
            call()
        self.now = now


def test_a_log_gets_lines_at_doubling_intervals(monkeypatch, capsys):
    """With the time that is left: by tokens while few episodes are finished, from turns that are not finished too."""
    clock = Clock(monkeypatch)
    with progress.progress_bar(400, "evaluate on val") as bar:
        progress.watch(bar, 20 * 256, lambda: int(100 * max(clock.now - 25, 0)))  # 100 tokens per second, after prompts
        clock.to(59.0)
        progress.finished(bar, [])
        clock.to(119.0)
        for _ in range(40):
            progress.finished(bar, [])
        clock.to(121.0)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first == "evaluate on val: 0 of 400 episodes, 500 tokens in 30 s"
    assert second == "evaluate on val: 1 of 400 episodes, 3,500 tokens in 60 s; up to 5 h 41 min left"
    assert third == "evaluate on val: 41 of 400 episodes, 9,500 tokens in 2 min; about 18 min left"
    assert not clock.due, "nothing is printed after the end"
    progress.watch(tqdm(disable=True), 1, int)


def test_a_rollout_tells_a_log_its_tokens():
    seen, cfg = [], parse(["max_new_tokens=4", "textcraft.max_turns=2"])
    bar = progress.Log(2, "episodes")
    bar.update = lambda: seen.append(bar.sampled())
    played = rollout(load_model("tiny"), load_tokenizer("tiny"), make_tasks(cfg, 0, 2, 1, "val", 0), cfg, 1.0, bar)
    tokens = sum(sum(episode.action_mask_T) for episode in played)
    assert len(seen) == 2 and bar.earlier == tokens == seen[-1] >= seen[0] > 0
    assert bar.sampled() == 0, "the engine is no longer referenced"


def test_a_log_that_nobody_reads_any_more_ends_in_silence(monkeypatch):
    """As behind `| head`: the thread must not print a traceback; the program's own next line ends it."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(progress.Log, "write", lambda *_: (_ for _ in ()).throw(BrokenPipeError()))
    with progress.progress_bar(2, "evaluate on val"):
        clock.to(31.0)


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
        assert "epoch 1 episodes 1/2" in written and "tokens/s" in written and "success" not in written
    else:
        assert written == ""


def test_a_bar_that_is_off_counts_nothing():
    progress.finished(tqdm(disable=True), [make_episode("one")])


def test_an_epochs_line_fits_80_columns():
    stats = {"epoch": 148, "reward_mean": -12.34, "accuracy": 0.906, "loss": -0.01444, "approx_kl": 2.65e-05}
    stats |= {"left_out": 0, "cut_by_length": 0, "sampled_tokens": 49140, "seconds": 3605.7, "sampler_gap": 0.0}
    cfg = parse(["algo=ppo", "epochs=200"])
    line = epoch_line(stats, cfg)
    assert line == "epoch 148/200  success 90.6%  reward -12.34  loss -0.0144  kl 2.7e-05  3605.7 s"
    crowded = epoch_line({**stats, "left_out": 12, "cut_by_length": 34}, cfg)
    assert "  12 left out" in crowded and crowded.endswith("  3605.7 s") and len(crowded) <= 80
    everything = epoch_line(stats, replace(cfg, log="debug"))
    assert "  49140 tokens  sampler_gap 0  3605.7 s" in everything and everything.startswith(line[:60])
    expert = epoch_line({**stats, "accuracy": 1.0, "reward_mean": 1.0, "approx_kl": None}, parse(["algo=sft"]))
    assert "  loss -0.0144  the expert's success 100.0%" in expert and "reward" not in expert
