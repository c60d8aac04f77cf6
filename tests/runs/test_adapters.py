"""adapters=: several runs in one process over one base."""

import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from conftest import ROOT

import train
from models.cpu.mixed import MixedStep
from models.weights import load_model
from rl import adapters
from rl.config.words import parse
from rl.run import signals
from rl.run.run import Run

SHORT = (
    "episodes=4 batch_size=4 epochs=2 eval_episodes=2 eval_every=1 max_new_tokens=5 threads=1 products=plain ranks=1"
)
SHORT = [*SHORT.split(), "lr=1e-2", "textcraft.max_turns=2", "reward.rule=shaped", "temperature=1.5"]
GROUPS = 'algo = "grpo"\nenv = "textcraft"\nseed = 3\n[lora]\nr = 20\n[grpo]\ngroup_size = 2\n'
TIMES = {"seconds", "phases"}


def together(words: list[str]) -> None:
    runs = adapters.settings(words)
    adapters.train(train.main, runs, next(iter(runs.values())))


@pytest.fixture(scope="module")
def words(tmp_path_factory) -> list[str]:
    """Return words for PPO on sat, and GRPO with another rank and seed on textcraft."""
    recipe = tmp_path_factory.mktemp("recipe") / "groups.toml"
    recipe.write_text(GROUPS)
    return [f"adapters=sat,{recipe}", *SHORT]


@pytest.fixture(scope="module")
def folder(words, tmp_path_factory) -> Path:
    """Return the folder of two runs that one process has trained."""
    folder, mixed = tmp_path_factory.mktemp("together") / "x", []
    with pytest.MonkeyPatch.context() as patch:
        step = MixedStep.__call__
        patch.setattr(MixedStep, "__call__", lambda self, ids, *rest: mixed.append(ids) or step(self, ids, *rest))
        together([*words, f"out={folder}"])
    assert len(mixed) > 20, "the runs did not sample together"
    return folder


def written(run: Path) -> dict:
    """Return what a run has written, without times and paths."""
    files = sorted(path for path in run.rglob("*.safetensors"))
    found = {str(path.relative_to(run)): path.read_bytes() for path in files}
    found["episodes"] = (run / "episodes.jsonl").read_text()
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found["metrics"] = [{key: value for key, value in record.items() if key not in TIMES} for record in records]
    config = json.loads((run / "config.json").read_text())
    return found | {"config": {key: config[key] for key in config if key not in ("out", "resume")}}


@pytest.mark.all_only
@pytest.mark.parametrize("name", ["sat", "groups"])
def test_each_run_has_the_bits_that_it_has_alone(name, words, folder, tmp_path):
    one = words[0].removeprefix("adapters=").split(",")[name == "groups"]
    key = "env" if name == "sat" else "recipe"
    train.main(parse([f"{key}={one}", *SHORT, f"out={tmp_path / name}"]))
    assert written(folder / name) == written(tmp_path / name)


@pytest.mark.all_only
def test_a_process_that_is_stopped_goes_on_with_all_runs(words, folder, tmp_path, monkeypatch):
    collected, out = Run.collected, tmp_path / "x"

    def stop(run, state, *rest):
        if state.epoch == 1 and run.folder.name == "sat":
            raise signals.Interrupted(15)
        collected(run, state, *rest)

    monkeypatch.setattr(Run, "collected", stop)
    with pytest.raises(signals.Interrupted) as stopped:
        together([*words, f"out={out}"])
    assert f"adapters=sat,groups resume={out} goes on with all" in stopped.value.__notes__[-1]
    monkeypatch.undo()
    together([words[0], f"resume={out}"])
    for name in ("sat", "groups"):
        resumed, whole = written(out / name), written(folder / name)
        del resumed["config"], whole["config"]  # a resumed run drops the keys of environments that it does not play
        assert resumed == whole


@pytest.mark.all_only
def test_a_signal_ends_a_process_when_all_runs_have_saved(words, tmp_path):
    """Its status is the signal's: a thread that is cut off aborts the process, or never ends."""
    more = ["epochs=500", "eval_episodes=0", "strict=false", f"out={tmp_path}/x"]
    process = subprocess.Popen([sys.executable, "train.py", *words, *more], cwd=ROOT, text=True, stderr=subprocess.PIPE)
    while process.poll() is None and len({*tmp_path.glob("x/*/epoch_2")}) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 128 + signal.SIGINT, said
    assert f"resume={tmp_path}/x goes on with all" in said


def test_a_signal_waits_for_the_run_that_computes():
    def interrupt(*_):
        raise KeyboardInterrupt

    def main(cfg, seat):
        signal.setitimer(signal.ITIMER_REAL, 0.1)  # the handler runs in the main thread, which waits
        time.sleep(0.5)
        ended.append(seat.name)

    ended, before = [], signal.signal(signal.SIGALRM, interrupt)
    runs = adapters.settings(["adapters=sat", "ranks=1", "out=x"])
    try:
        with pytest.raises(KeyboardInterrupt):
            adapters.train(main, runs, runs["sat"])
        assert ended == ["sat"]
    finally:
        signal.signal(signal.SIGALRM, before)


def test_runs_share_the_tensors_of_the_base_and_no_module():
    seats = [adapters.Seat(adapters.Together(load_model("tiny"), ["a"]), "a")]
    base, model = seats[0].together.base, seats[0].model()
    assert all(map(lambda p, q: p is q, base.parameters(), model.parameters()))
    assert not {*base.modules()} & {*model.modules()}


@dataclass(frozen=True)
class Steps:
    """Takes the place of a run's settings."""

    count: int


def test_a_step_waits_for_the_runs_that_have_not_finished():
    shared, order = adapters.Together(load_model("tiny"), ["long", "short"]), []

    def main(cfg, seat):
        for number in range(cfg.count):
            step = lambda *_, number=number: order.append((seat.name, number)) or torch.zeros(1)  # noqa: E731
            shared.step(seat.name, step, None, None, None)

    threads = [
        threading.Thread(target=shared.run, args=(main, *row)) for row in (("long", Steps(3)), ("short", Steps(1)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert {*order[:2]} == {("long", 0), ("short", 0)} and order[2:] == [("long", 1), ("long", 2)]


REFUSED = {
    "adapters=sat,sat": "two runs would write into",
    "adapters=sat,textcrafts": "neither an environment nor a recipe; did you mean textcraft?",
    "adapters=sat,": "'' is neither",
    "adapters=sums,no/sat.toml": "recipe=no/sat.toml",  # a recipe, though an environment is named so
    "adapters=sat out=x/{env}": "out=x/{env}: with adapters= only {timestamp} is filled in",
    "adapters=sat env=qa": "env=qa has no effect beside adapters=",
    "adapters=sat ranks=2": "one process",
    "adapters=sat plan=true": "plan= counts one run",
    "adapters=sat lora.r=0": "trains the base",
    "adapters=sat shard=zero2": "adapters=: shard=zero2 of sat is for a run that has its process to itself",
    "adapters=sat sampler=http://127.0.0.1:1/v1": "its process to itself",
}


@pytest.mark.parametrize("words", REFUSED)
def test_runs_that_cannot_share_a_process_are_refused(words, capsys):
    with pytest.raises(SystemExit) as exit:
        adapters.settings(words.split())
    error = capsys.readouterr().err
    assert exit.value.code == 2 and REFUSED[words] in error and error.count("\n") == 1


def test_runs_over_different_bases_are_refused(tmp_path, capsys):
    (tmp_path / "eight.toml").write_text('quant = "int8"\n')
    with pytest.raises(SystemExit):
        adapters.settings([f"adapters=sat,{tmp_path}/eight.toml"])
    assert "share one base and one process: sat has quant=none, eight quant=int8" in capsys.readouterr().err
