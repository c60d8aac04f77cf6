"""track=: the numbers, histograms and examples of each epoch arrive in the other program, and it cannot end a run."""

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import ROOT, run_program
from test_report import HOSTILE, TOKENIZER, make_episode

from rl.config import checks
from rl.config.fields import Track
from rl.report import trackers

pytestmark = pytest.mark.all_only

STAND_IN = """
import json, os
SENT = []
class Histogram:
    def __init__(self, values): self.values = list(values)
class Table:
    def __init__(self, columns, data): self.columns, self.data = columns, data
class Run:
    def log(self, record, step): SENT.append((step, record))
    def finish(self): SENT.append("finished")
def init(**settings):
    SENT.append(settings)
    return Run()
class SummaryWriter:
    def __init__(self, folder, purge_step): SENT.append({"folder": folder, "purge_step": purge_step})
    def add_scalar(self, name, x, step): SENT.append((step, {name: x}))
    def add_histogram(self, name, values, step): SENT.append((step, {name: Histogram(values.tolist())}))
    def add_text(self, name, text, step=None): SENT.append((step, {name: text}))
    def flush(self): pass
    def close(self): SENT.append("finished")
"""


@pytest.fixture
def stand_in(request, tmp_path, monkeypatch):
    """A module with the few names of the package that are used, in its place."""
    name = getattr(request, "param", "wandb")
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / f"{name}.py").write_text(STAND_IN)
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    monkeypatch.delitem(sys.modules, name, raising=False)
    module = __import__(name)
    if name == "tensorboard":
        monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    yield name, module
    sys.modules.pop(name, None)


def make_folder(tmp_path: Path) -> Path:
    """Return a run's folder after its second epoch."""
    folder, part = tmp_path / "run", {"success": 0.5, "low": 0.3, "high": 0.7, "temperature": 0.0}
    folder.mkdir()
    (folder / "config.json").write_text('{"algo": "grpo", "env": "planner"}')
    records = [{"epoch": 0, "step": 0, "eval": {**part, "by_env": {"planner": part}}}]
    for n in (1, 2):
        more = {"reward_mean": n / 4, "env/decomposition": 0.5 * n, "env/token_efficiency": 0.9, "tasks": "abc"}
        records.append({"epoch": n, "step": n, "loss": 0.1, "outcomes": {"correct": 2}, "exact": "yes", **more})
        records.append({"epoch": n, "step": n, "phases": {"learn": {"seconds": 2.0, "tokens": 8}}})
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    return folder


def own() -> list:
    return [make_episode("one", 1.0), make_episode(HOSTILE, -0.5, group=1)]


@pytest.mark.parametrize("stand_in", ["wandb", "tensorboard", "trackio"], indirect=True)
def test_epoch_arrives_with_numbers_histograms_and_examples(stand_in, tmp_path):
    name, module = stand_in
    folder = make_folder(tmp_path)
    tracker = trackers.Tracker(Track(name, project="plans", name="third try"))
    for epoch in (1, 2):
        tracker.send(folder, epoch, TOKENIZER, own())
    tracker.close()
    opened, *sent, end = module.SENT
    assert end == "finished"
    if name == "tensorboard":
        assert opened == {"folder": f"{folder}/tensorboard/third try", "purge_step": 1}
    else:
        assert (opened["project"], opened["name"], opened["resume"]) == ("plans", "third try", "allow")
        assert opened["config"] == {"algo": "grpo", "env": "planner"}
    by_epoch = {0: {}, 1: {}, 2: {}}
    for step, record in sent:
        by_epoch.get(step, {}).update(record)
    assert by_epoch[0]["eval/greedy/success"] == by_epoch[0]["eval/greedy/planner/success"] == 0.5
    for epoch in (1, 2):
        found = by_epoch[epoch]
        assert (found["train/reward_mean"], found["env/decomposition"]) == (epoch / 4, 0.5 * epoch)
        assert (found["env/token_efficiency"], found["phases/learn/seconds"], found["outcomes/correct"]) == (0.9, 2, 2)
        assert found["reward"].values == [1.0, -0.5] and len(found["sampled_tokens"].values) == 2
        examples = found["examples"]
        if name == "tensorboard":
            assert examples.count("\n") == 3 and "<script>" not in examples and "alert(1)" in examples
        else:
            assert examples.columns == trackers.COLUMNS and [row[4] for row in examples.data] == [1.0, -0.5]
            assert examples.data[1][-1] == HOSTILE and "Go." in examples.data[0][-2]
        assert not {"train/tasks", "train/exact"} & found.keys()


def test_a_resumed_run_goes_on_with_its_own_run_there(stand_in, tmp_path):
    folder = make_folder(tmp_path)
    for epoch in (1, 2):  # each in a process of its own
        tracker = trackers.Tracker(Track("wandb"))
        tracker.send(folder, epoch, TOKENIZER, own())
        tracker.close()
    first, second = (entry for entry in stand_in[1].SENT if isinstance(entry, dict))
    assert [entry[0] for entry in stand_in[1].SENT if isinstance(entry, tuple)] == [0, 1, 2], "nothing is sent twice"
    assert first["id"] == second["id"] and first["name"] == "run" and first["project"] == "lora-rl"


def test_an_error_there_is_a_warning_once(stand_in, tmp_path, monkeypatch, capsys):
    def gone(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(stand_in[1].Run, "log", gone)
    folder, tracker = make_folder(tmp_path), trackers.Tracker(Track("wandb"))
    for epoch in (1, 2):
        tracker.send(folder, epoch, TOKENIZER, own())
    tracker.close()
    line = "warning: track=wandb: no route; nothing more is sent, metrics.jsonl has all of it\n"
    assert capsys.readouterr().out == line


def test_nothing_is_imported_unasked(tmp_path):
    before = set(sys.modules)
    trackers.Tracker(Track("none")).send(tmp_path, 1, TOKENIZER, own())
    assert not {"wandb", "trackio", "tensorboard"} & (set(sys.modules) - before)


@pytest.mark.parametrize("name", ["wandb", "tensorboard", "trackio"])
def test_missing_package_is_refused_in_one_line(name, tmp_path, monkeypatch):
    monkeypatch.setattr(checks.importlib.util, "find_spec", lambda _: None)
    status, out, err = run_program("train.py", f"track={name}", f"out={tmp_path}/run")
    assert (status, out) == (2, "") and not (tmp_path / "run").exists()
    assert err == f"train.py: track={name}: the package is not installed; pip install {name}\n"


@pytest.mark.parametrize("name", ["wandb", "tensorboard", "trackio"])
def test_the_package_itself_takes_it_offline(name, tmp_path):
    """In a process of its own: these packages start threads."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    import subprocess

    folder = make_folder(tmp_path)
    program = "import sys; from pathlib import Path; sys.path[:0] = ['tests', 'tests/runs']; import test_sinks as t\n"
    program += "name, folder = sys.argv[1], Path(sys.argv[2])\n"
    program += "tracker = t.trackers.Tracker(t.Track(name))\n"
    program += "for n in (1, 2): tracker.send(folder, n, t.TOKENIZER, t.own())\n"
    program += "tracker.close()\n"
    offline = {"WANDB_MODE": "offline", "TRACKIO_DIR": str(tmp_path / "trackio"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program, name, str(folder)],
        **dict(cwd=ROOT, env={**os.environ, **offline}, capture_output=True, text=True, timeout=120),
    )
    assert done.returncode == 0 and "warning: track=" not in done.stdout, done.stdout + done.stderr
    if name == "wandb":
        assert list(folder.glob("wandb/offline-run-*/*.wandb"))
    elif name == "trackio":
        assert list((tmp_path / "trackio").glob("lora-rl*.db"))
    else:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        read = EventAccumulator(str(folder / "tensorboard"))
        read.Reload()
        assert [(e.step, e.value) for e in read.Scalars("env/decomposition")] == [(1, 0.5), (2, 1.0)]
        assert "reward" in read.Tags()["histograms"]
