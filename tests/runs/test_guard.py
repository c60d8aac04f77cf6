"""Runs survive what happens to them: kills, signals, a second process, a full disk, changed and damaged files."""

import errno
import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import ROOT, metrics_of, run_program
from hostile import modest
from safetensors.torch import load_file, save_file
from test_checkpoint import flip, make_state, sign

import train
from rl.config.words import checked, parse, saved_settings
from rl.report import page
from rl.run import digests as origin
from rl.run import folder as claim
from rl.run import replay, resume, signals
from rl.run.checkpoint import save_checkpoint
from rl.run.files import (
    append,
    checkpoints,
    is_whole,
    new_folder,
    read_lines,
    remove,
    remove_leftovers,
    verify,
    write_text,
)
from rl.run.history import best_epoch

SMALL = ["algo=grpo", "epochs=3", "episodes=8", "batch_size=8", "max_turns=2", "max_new_tokens=8", "eval_episodes=1"]
SMALL += ["grpo.group_size=4", "lora.r=2", "temperature=1.5", "reward.rule=shaped", "threads=1", "products=plain"]
LONG = ["algo=sft", "epochs=500", "episodes=8", "batch_size=8", "eval_episodes=0", "lora.r=2", "threads=1"]
LONG += ["products=plain"]  # a run that begins without a trial of exactness


def started(*words: str, **keys) -> subprocess.Popen:
    """Start train.py in a process of its own."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "train.py", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=environment, **pipes, **keys)


def results(run: Path) -> dict[str, object]:
    """Return what equal runs have in common: weights, optimizer, episodes, and metrics without times."""
    newest = checkpoints(run)[-1]
    kept = {name: (newest / name).read_bytes() for name in ("trainable.safetensors", "optimizer.safetensors")}
    metrics = [{key: value for key, value in record.items() if key != "seconds"} for record in metrics_of(run)]
    return {**kept, "episodes": (run / "episodes.jsonl").read_bytes(), "metrics": metrics, "epoch": newest.name}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """An uninterrupted run, whose every epoch changes the weights."""
    run = tmp_path_factory.mktemp("whole") / "run"
    train.main(parse([*SMALL, f"out={run}"]))
    assert [r["grad_norm"] > 0 for r in metrics_of(run) if "grad_norm" in r] == [True] * 3
    return run


@pytest.fixture
def run(whole, tmp_path) -> Path:
    """Return a copy of the whole run."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def refused(said: str, *words: str, status: int = 1) -> str:
    """Assert that train.py ends with one line that contains `said`; return what it printed before."""
    code, out, err = run_program("train.py", *words)
    assert code == status and said in err and len(err.splitlines()) == 1, err
    return out


MOMENTS = ["config.json", pytest.param("checkpoint-0", marks=pytest.mark.full), "first evaluation", "last evaluation"]


@pytest.mark.all_only
@pytest.mark.parametrize("moment", MOMENTS)
def test_repeating_the_command_goes_on_with_a_killed_run(moment, run, whole, monkeypatch, capsys):
    """`moment` is the last thing that the killed run did."""
    lines = (run / "metrics.jsonl").read_text().splitlines(True)
    if moment == "last evaluation":  # half of it
        (run / "metrics.jsonl").write_text("".join(lines[:-2]))
    else:
        for path in (*run.glob("epoch_*"), *run.glob("checkpoint-*")):
            shutil.rmtree(path)
        for path in (run / "metrics.jsonl", run / "episodes.jsonl", run / "report.html"):
            path.unlink()
        if moment == "config.json":
            (run / ".origin.json.partial").write_text("{")
        else:
            save_epoch_0(run)
        if moment == "first evaluation":
            (run / "metrics.jsonl").write_text(lines[0] + lines[1][:20])
    train.main(parse([*SMALL, f"out={run}"]))
    assert ("a run with these settings has not finished; it goes on" in capsys.readouterr().out) == (
        moment != "config.json"
    )
    assert results(run) == results(whole)
    assert not list(run.glob(".*")), "no lock and nothing half written is left"


def save_epoch_0(run: Path) -> None:
    """Leave a run's folder as it is before its first evaluation: a run of the same settings, stopped there."""
    other = run.with_name("other")

    def stop(*_):
        raise signals.Interrupted(signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(train, "evaluate_and_log", stop)
        train.main(parse([*SMALL, f"out={other}"]))
    shutil.move(other / "checkpoint-0", run / "checkpoint-0")


def test_a_finished_run_is_not_repeated(whole, capsys):
    before = results(whole)
    said = f"this run has finished; resume={whole} epochs=6 goes on with it"
    assert not refused(said, *SMALL, f"out={whole}") and results(whole) == before


@pytest.mark.parametrize("name", ["trainable.safetensors", pytest.param("state.json", marks=pytest.mark.full)])
def test_a_finished_run_with_a_damaged_checkpoint_goes_on_from_the_one_before(name, run, whole, capsys):
    path = checkpoints(run)[-1] / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    train.main(parse([*SMALL, f"out={run}"]))
    assert "has not finished; it goes on" in capsys.readouterr().out
    assert results(run) == results(whole)


@pytest.mark.parametrize("word", ["lr=0.004", "seed=1", "algo=ppo", "textcraft.difficulty=2"])
def test_a_run_with_other_settings_is_not_continued(word, whole):
    said = f"a run with other settings is there ({word.split('=')[0]}="
    assert not refused(said, *SMALL, word, f"out={whole}")


READS = {  # a file of a run's folder -> what reads it
    "config.json": lambda run: saved_settings(str(run)),
    "origin.json": lambda run: origin.check(parse(SMALL), run),
    "metrics.jsonl": lambda run: read_lines(run / "metrics.jsonl"),
    "manifest.json": verify,
}


@pytest.mark.parametrize("hole", [False, True])
@pytest.mark.parametrize("name", READS)
def test_hostile_file_of_a_run_is_one_line(name, hole, tmp_path):
    """Deep JSON, and a hole of 10 GB, which takes no room on the disk."""
    (tmp_path / name).write_text("[" * 100_000 + "\n")
    if hole:
        os.truncate(tmp_path / name, 10 << 30)
    with modest(), pytest.raises(ValueError, match=name):
        READS[name](tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "null"])
def test_an_empty_or_broken_config_without_results_begins_again(content, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text(content)
    cfg = parse([*SMALL, f"out={tmp_path}/run"])
    with claim.claim(cfg) as (claimed, folder):
        assert claimed == cfg and folder == tmp_path / "run"
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    with pytest.raises(FileExistsError, match=r"without a whole config\.json; choose another out="), claim.claim(cfg):
        pass


@pytest.mark.parametrize("content", ['{"model_type": "qwen2", "hidden_size": 64}', '{"a": [1]}', '{"lora": {"r": 1}}'])
def test_a_config_that_is_not_a_runs_is_not_replaced(content, tmp_path):
    """Such as that of the model, whose folder was given as out=."""
    (tmp_path / "config.json").write_text(content)
    cfg, line = parse([*SMALL, f"out={tmp_path}"]), r"out=[^\n]+ is not a run's; choose another out=$"
    with pytest.raises(FileExistsError, match=line), claim.claim(cfg):
        pass
    assert (tmp_path / "config.json").read_text() == content and [*tmp_path.iterdir()] == [tmp_path / "config.json"]


@pytest.mark.all_only
def test_second_process_is_refused_and_named(tmp_path):
    run = tmp_path / "run"
    first = started(*LONG, "ranks=1", f"out={run}")
    try:
        wait_for(run / "config.json", first)
        for words in ([*LONG, f"out={run}"], [f"resume={run}"]):
            said = f"process {first.pid} on {os.uname().nodename} is writing there"
            assert "run:" not in refused(said, *words)
    finally:
        first.kill()
        first.communicate()
    assert (run / ".lock").exists(), "the killed process leaves its lock"
    with claim.claim(parse([f"resume={run}"])):
        pass
    assert not (run / ".lock").exists()


def wait_for(path: Path, process: subprocess.Popen, seconds: float = 90) -> None:
    ends = time.monotonic() + seconds
    while not (path.exists() and path.stat().st_size):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < ends, f"{path} did not come"
        time.sleep(0.02)


def test_a_lock_that_is_removed_while_it_is_awaited_is_not_taken(tmp_path, monkeypatch):
    """The file that is locked must be the one in the folder."""
    real, calls = fcntl.flock, []

    def removed(file, how):
        real(file, how)
        calls.append(how)
        if len(calls) == 1:
            (tmp_path / ".lock").unlink()

    monkeypatch.setattr(fcntl, "flock", removed)
    with claim.lock(tmp_path) as file:
        assert len(calls) == 2 and os.fstat(file.fileno()).st_ino == (tmp_path / ".lock").stat().st_ino


SIGNALS = [(signal.SIGTERM, 143)]
SIGNALS += [pytest.param(*others, marks=pytest.mark.full) for others in ((signal.SIGINT, 130), (signal.SIGHUP, 129))]


@pytest.mark.all_only
@pytest.mark.parametrize(("number", "status"), SIGNALS)
def test_a_signal_saves_and_ends_with_its_status(number, status, tmp_path):
    run = tmp_path / "run"
    process = started(*LONG, f"out={run}")
    wait_for(run / "metrics.jsonl", process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == status, err
    assert err.splitlines()[-1].startswith(f"train.py: stopped by {number.name}; python train.py resume={run} goes on")
    assert "Traceback" not in err and all(is_whole(folder) for folder in checkpoints(run))


def test_ignored_signals_stay_ignored_and_handlers_are_restored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals.handled():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_held_block_is_finished_first():
    done = []
    with signals.handled(), pytest.raises(signals.Interrupted) as caught:
        with signals.held():
            with signals.held():
                os.kill(os.getpid(), signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("never")
    assert done == ["inner", "outer"] and caught.value.status == 143


def test_a_second_signal_leaves_at_once():
    if not (child := os.fork()):
        with signals.handled(), signals.held():
            for number in (signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130


def test_an_update_stops_between_its_steps(tmp_path, monkeypatch):
    """The checkpoint of the epoch's beginning stays the newest: nothing half done is saved."""
    real, taken = train.update.__globals__["optimizer_step"], []

    def step(*args):
        taken.append(real(*args))
        os.kill(os.getpid(), signal.SIGINT)
        return taken[-1]

    monkeypatch.setitem(train.update.__globals__, "optimizer_step", step)
    words = [*SMALL, "batch_size=4", "eval_episodes=0", f"out={tmp_path}/run"]
    with signals.handled(), pytest.raises(signals.Interrupted):
        train.main(parse(words))
    assert len(taken) == 1 and [path.name for path in checkpoints(tmp_path / "run")] == ["checkpoint-0"]
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_a_signal_between_saves_saves_the_last_epoch(whole, tmp_path, monkeypatch):
    """save_every=3 alone would lose two epochs."""
    run, real = tmp_path / "run", train.collect

    def collect(tokenizer, state, demos, cfg):
        if state.epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return real(tokenizer, state, demos, cfg)

    monkeypatch.setattr(train, "collect", collect)
    with signals.handled(), pytest.raises(signals.Interrupted):
        train.main(parse([*SMALL, "save_every=3", f"out={run}"]))
    assert checkpoints(run)[-1].name == "checkpoint-2"
    monkeypatch.undo()
    train.main(parse([f"resume={run}"]))
    assert results(run) == results(whole)


def test_pruning_keeps_whole_best_and_resumed_checkpoints(tmp_path):
    state = make_state()
    for epoch in range(8):
        append(
            tmp_path / "metrics.jsonl", [{"epoch": epoch, "eval": {"temperature": 1.0, "success": float(epoch == 1)}}]
        )
        state.epoch, state.resumed_from = epoch, 3 if epoch > 3 else -1
        if epoch == 7:
            flip(tmp_path / "checkpoint-6" / "trainable.safetensors")
        save_checkpoint(state, tmp_path)
    assert best_epoch(tmp_path) == 1
    assert [path.name for path in checkpoints(tmp_path)] == [f"checkpoint-{n}" for n in (1, 3, 5, 7)]


def test_a_damaged_newer_checkpoint_does_not_remove_the_new_one(tmp_path):
    for epoch in (1, 2, 5, 6):
        state = make_state()
        state.epoch = epoch
        save_checkpoint(state, tmp_path)
    for epoch in (5, 6):
        flip(tmp_path / f"checkpoint-{epoch}" / "trainable.safetensors")
    state.epoch = 3
    save_checkpoint(state, tmp_path)
    assert is_whole(tmp_path / "checkpoint-3")


@pytest.mark.parametrize("name", ["rename", "rmtree"])
def test_half_removed_folders_are_no_checkpoints(name, tmp_path, monkeypatch):
    """The process dies before or after the first operation of a removal."""
    folder = save_checkpoint(make_state(1), tmp_path)

    def die(*_args, **_keys):
        raise SystemExit

    monkeypatch.setattr(os if name == "rename" else shutil, name, die)
    with pytest.raises(SystemExit):
        remove(folder)
    monkeypatch.undo()
    assert all(is_whole(path) for path in checkpoints(tmp_path))
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == (["checkpoint-1"] if name == "rename" else [])


def test_a_full_disk_is_one_line_and_loses_nothing(whole, tmp_path):
    """A file may grow to 64 KiB at most, fewer than a checkpoint has."""
    run = tmp_path / "run"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, limits[1]))
    try:
        refused("cannot be written", *SMALL, f"out={run}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    train.main(parse([*SMALL, f"out={run}"]))
    assert results(run) == results(whole)


@pytest.mark.parametrize("what", ["line", "file", "folder"])
def test_a_write_that_fails_names_the_file(what, tmp_path, monkeypatch):
    """As on a full disk, where the sync fails, or a file cannot grow; what was there stays."""
    (tmp_path / "file").write_text("old")
    path = save_checkpoint(make_state(1), tmp_path) if what == "folder" else tmp_path / what

    def full(_handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    acts = {"line": lambda: append(path, [{}]), "file": lambda: write_text(path, "new")}
    with pytest.raises(OSError, match=rf"^{path} cannot be written: No space left on device$"):
        acts.get(what, lambda: save_checkpoint(make_state(1), tmp_path))()
    assert (tmp_path / "file").read_text() == "old" and (what != "folder" or is_whole(path))


def test_a_report_is_whole_or_as_it_was(run, monkeypatch):
    """A run that has finished writes no other."""
    before = (run / "report.html").read_bytes()

    def die(*_):
        raise SystemExit

    monkeypatch.setattr(os, "rename", die)
    with pytest.raises(SystemExit):
        page.write(run)
    assert (run / "report.html").read_bytes() == before


def test_no_room_on_the_disk_is_known_before_the_model_is_loaded(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=2**20))
    code, out, err = run_program("train.py", f"out={tmp_path}/run")
    assert code == 1 and "1 MiB are free on this disk, that of" in err and len(err.splitlines()) == 1 and not out
    assert err.endswith("; a run needs 16 MiB to begin or to go on\n")
    assert not (tmp_path / "run").exists()


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("")
    assert not refused("run is a file, not a folder", f"out={tmp_path}/run")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("dangling", "dangling is a symbolic link that leads nowhere"),
        ("loop/run", "loop is a symbolic link that leads nowhere"),
        ("a" * 300, "aaa: file name too long$"),
    ],
)
def test_places_where_no_folder_can_be_are_one_line(name, message, tmp_path):
    (tmp_path / "dangling").symlink_to(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OSError, match=message) as caught, claim.claim(parse([f"out={tmp_path}/{name}"])):
        pass
    assert caught.value.errno is None


@pytest.mark.parametrize("name", claim.WRITTEN)
def test_a_link_out_of_the_folder_is_not_written_through(name, tmp_path):
    """A run folder may be a stranger's."""
    run, precious = tmp_path / "run", tmp_path / "precious"
    run.mkdir()
    precious.write_text("precious")
    (run / name).symlink_to(precious)
    with pytest.raises(OSError, match=f"{name} is a symbolic link"), claim.claim(parse([*SMALL, f"out={run}"])):
        pass
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("name", [*claim.WRITTEN, "config.json", "origin.json"])
def test_a_folder_in_the_place_of_a_file_is_refused_at_once(name, tmp_path):
    (tmp_path / "run" / name).mkdir(parents=True)
    code, out, err = run_program("train.py", *SMALL, f"out={tmp_path}/run")
    assert (
        code == 1 and err == f"train.py: {tmp_path}/run/{name} is a folder, and a run writes a file there; remove it\n"
    )
    assert not out and (tmp_path / "run" / name).is_dir()


@pytest.mark.parametrize("kind", ["file", "folder", "link", "link to a file", "link to nothing"])
def test_whatever_is_in_the_place_of_what_is_written_is_replaced(kind, tmp_path):
    (precious := tmp_path / "precious").write_text("precious")
    names = (".checkpoint-1.partial", "checkpoint-1", ".config.json.partial")
    for path in (tmp_path / name for name in names[: 1 if kind == "file" else 3]):
        target = {"link to nothing": "nothing", "link to a file": precious}.get(kind, tmp_path.parent)
        make = {"file": path.touch, "folder": path.mkdir}
        make.get(kind, lambda path=path, target=target: path.symlink_to(target))()
    with new_folder(tmp_path / "checkpoint-1") as folder:
        (folder / "state.json").write_text("{}")
    write_text(tmp_path / "config.json", "{}")
    assert is_whole(tmp_path / "checkpoint-1") and not (tmp_path / "checkpoint-1").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "checkpoint-1", "config.json"}
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("name", [*claim.WRITTEN, "config.json", "epoch_1", "checkpoint-1"])
def test_a_pipe_in_the_folder_is_refused(name, tmp_path):
    """Opening it would wait for ever."""
    os.mkfifo(tmp_path / name)
    cfg = parse([*SMALL, f"out={tmp_path}"])
    with pytest.raises(OSError, match=f"{name} is neither a file nor a folder"), claim.claim(cfg):
        pass


def test_a_link_in_the_place_of_a_folder_is_removed_alone(tmp_path):
    """Checkpoints may have been moved to another disk."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_text("")
    (tmp_path / "checkpoint-1").symlink_to(tmp_path / "elsewhere")
    (tmp_path / ".checkpoint-2.removed").symlink_to(tmp_path / "elsewhere")
    remove(tmp_path / "checkpoint-1")
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"] and any((tmp_path / "elsewhere").iterdir())


@pytest.mark.parametrize("part", ["weights", "config", "tokenizer", "template"])
def test_a_base_that_changed_is_refused(part, run):
    path = run / "origin.json"
    saved = json.loads(path.read_text())
    path.write_text(json.dumps({**saved, "base": saved["base"] | {part: "0" * 64}}))
    with pytest.raises(ValueError, match=f"model=tiny has changed since the run began, .*{part}"):
        train.main(parse([f"resume={run}", "epochs=4"]))


def test_weights_that_changed_since_a_run_of_an_earlier_version_are_refused(run):
    path = run / "origin.json"
    saved = json.loads(path.read_text())
    del saved["base"]
    path.write_text(json.dumps({**saved, "weights": "0" * 64}))
    with pytest.raises(ValueError, match="model=tiny has changed since the run began"):
        train.main(parse([f"resume={run}", "epochs=4"]))


@pytest.mark.parametrize("words", [["algo=sft", "data"], ["env=planner", "planner.data"]])
def test_rows_that_changed_are_refused(words, tmp_path):
    first, key = words
    rows = [json.dumps({"question": f"What is {n} + 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"}) for n in range(40)]
    for name in ("rows", "others"):
        (tmp_path / name).write_text("\n".join(rows))
    cfg, other = (parse([first, f"{key}={tmp_path / name}"]) for name in ("rows", "others"))
    origin.write(cfg, tmp_path)
    origin.check(cfg, tmp_path)
    (tmp_path / "rows").write_text("\n".join(rows).replace("What", "what"))
    with pytest.raises(ValueError, match=f"{key}={tmp_path}/rows has changed since the run began"):
        origin.check(cfg, tmp_path)
    origin.check(other, tmp_path)  # another name is another setting


def test_a_folder_of_tasks_that_changed_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("envs.tau_retail.load_tasks", lambda *given: {})
    tasks, run = tmp_path / "tasks", tmp_path / "run"
    run.mkdir(), (tasks / "deep").mkdir(parents=True)
    (tasks / "deep" / "users.json").write_text("{}")
    cfg = parse(["env=sat:1,tau_retail:2", f"tau_retail.data={tasks}"])
    origin.write(cfg, run)
    origin.check(cfg, run)
    (tasks / "deep" / "users.json").write_text("[]")
    with pytest.raises(ValueError, match=f"tau_retail.data={tasks} has changed since the run began"):
        origin.check(cfg, run)


def test_a_reference_that_changed_is_refused(whole, tmp_path):
    shutil.copy(whole / "origin.json", tmp_path)
    shutil.copytree(whole / "epoch_1", tmp_path / "reference")
    origin.check(parse([]), tmp_path)
    flip(tmp_path / "reference" / "adapter_model.safetensors")
    with pytest.raises(ValueError, match=r"reference/adapter_model\.safetensors: damaged"):
        origin.check(parse([]), tmp_path)


def test_changed_code_is_named(run, capsys):
    saved = json.loads((run / "origin.json").read_text())
    saved["code"]["rl/ppo.py"] = "0"
    del saved["code"]["rl/grpo.py"]
    (run / "origin.json").write_text(json.dumps({**saved, "torch": "1.0"}))
    origin.check(parse([]), run)
    out = capsys.readouterr().out
    assert "code has changed since the run began: rl/grpo.py, rl/ppo.py\n" in out and "was 1.0 when" in out


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_digest_depends_on_every_block_that_it_reads(size, tmp_path, monkeypatch):
    path = tmp_path / "model.safetensors"
    path.write_bytes(bytes(size))
    digests = {origin.digest(tmp_path.iterdir())}
    for at in {0, size // 2, size - 1} if size else ():
        path.write_bytes(bytes(at) + b"\1" + bytes(size - at - 1))
        digests.add(origin.digest(tmp_path.iterdir()))
    assert len(digests) == 1 + len({0, size // 2, size - 1} if size else ())
    monkeypatch.setattr(origin, "MOST_BYTES", 2**20)
    assert len(origin.digest(tmp_path.iterdir())) == 64


@pytest.mark.parametrize("name", ["state.json", "rng.safetensors", "optimizer.safetensors", "trainable.safetensors"])
@pytest.mark.parametrize("content", [b"", b"null", b"\xff\xfe", b'{"epoch": "x"}', b"8\0\0\0\0\0\0\0{}"])
def test_nonsense_with_a_right_digest_is_one_line(name, content, tmp_path):
    folder = save_checkpoint(make_state(1), tmp_path)
    (folder / name).write_bytes(content)
    sign(folder)
    with pytest.raises(ValueError, match=rf"{folder}") as caught:
        resume.load_checkpoint(make_state(), folder)
    assert "\n" not in str(caught.value)


NUMBERS = [(name, value) for name in ("epoch", "step", "groups") for value in (-1, 0.5, True, "1", None, 10**400)]
NUMBERS += [("kl_coef", value) for value in (float("nan"), 10**400, "1", [1])]
NUMBERS += [(name, value) for name in ("trainable", "critic", "optimizer") for value in (float("nan"), float("inf"))]


@pytest.mark.parametrize(("name", "value"), NUMBERS)
def test_impossible_numbers_in_a_checkpoint_are_refused(name, value, tmp_path):
    """Also with a right digest, as a run whose weights are not finite would save them."""
    folder, file = save_checkpoint(make_state(1), tmp_path), f"{name}.safetensors"
    if (folder / file).exists():
        tensors = load_file(folder / file)
        next(tensor for tensor in tensors.values() if tensor.dim()).view(-1)[0] = value
        save_file(tensors, folder / file)
    else:
        file, counters = "state.json", json.loads((folder / "state.json").read_text())
        (folder / file).write_text(json.dumps(counters | {name: value}))
    sign(folder)
    with pytest.raises(ValueError, match=rf"^{folder}[^\n]+$"):
        resume.load_checkpoint(make_state(), folder)


def test_metrics_that_are_gone_are_named(whole, tmp_path):
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").write_bytes(bytes(100))
    code, out, _ = run_program("train.py", f"resume={tmp_path}/run")
    assert code == 0 and f"{tmp_path}/run/metrics.jsonl has no line of epoch 3: it was removed or damaged" in out


@pytest.mark.parametrize("line", ["{", "[]", "null", '{"epoch": "1"}', '{"x": 1}', "\xff"])
def test_a_damaged_line_of_metrics_is_named(line, run):
    path = run / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + line.encode("latin-1") + b"\n")
    last = len(path.read_bytes().splitlines())
    refused(f"metrics.jsonl, line {last}: damaged", f"resume={run}", "epochs=4")


EVALUATED = {"temperature": 1.0, "split": "val", "success": 0.5, "low": 0.4, "high": 0.6, "episodes": 9}
WRONG = [{"epoch": value} for value in (1.5, -1, True, None, 10**400)]
WRONG += [{"eval": {**EVALUATED, name: value}} for name in EVALUATED for value in (None, [1], 10**400)]
WRONG += [{"eval": value} for value in (3, None, {}, [EVALUATED])]
WRONG += [{"eval": {**EVALUATED, "successes": value}} for value in (3, None, "x", [True, "1"])]
WRONG += [{name: value} for name in ("eval_loss", "accuracy", "reward_mean", "seconds") for value in ("1", None, [])]
WRONG += [{"sampler_gap": "x"}, {"entropy": {}}, {"tasks": 3}, {"tasks": "", "accuracy": 0.5}]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: str(wrong)[-60:])
def test_a_metric_that_is_no_number_is_a_damaged_line(wrong, tmp_path):
    """Programs compare and print these fields."""
    (path := tmp_path / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "eval": EVALUATED}) + "\n")
    assert read_lines(path)
    path.write_text(json.dumps({"epoch": 1, **wrong}) + "\n")
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 1: damaged, [^\n]+$"):
        read_lines(path)


def test_the_generator_of_the_gpu_is_saved(tmp_path, monkeypatch):
    """With stand-ins for CUDA's generator."""
    restored, state = [], make_state(1)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda: torch.arange(16, dtype=torch.uint8))
    monkeypatch.setattr(torch.cuda, "set_rng_state", restored.append)
    folder = save_checkpoint(state, tmp_path)
    resume.load_checkpoint(make_state(), folder)
    assert load_file(folder / "rng.safetensors").keys() == {"cpu", "cuda"}
    assert [state.tolist() for state in restored] == [list(range(16))]


REPEATED = [["algo=grpo", "grpo.kl_coef=0.1"], ["algo=ppo", "ppo.bootstrap=true"]]


@pytest.mark.parametrize("words", [*REPEATED, pytest.param(["algo=reinforce"], marks=pytest.mark.full)])
def test_saved_episodes_repeat_the_runs_own_updates(words, tmp_path, capsys):
    run, again = tmp_path / "run", tmp_path / "again"
    keys = [*SMALL, *words, "epochs=2", "eval_episodes=0"]
    train.main(parse([*keys, f"out={run}"]))
    train.main(parse([*keys, f"out={again}", f"rollouts={run}/episodes.jsonl"]))
    assert "other weights" not in capsys.readouterr().out and not (again / "episodes.jsonl").exists()
    (again / "episodes.jsonl").symlink_to(run / "episodes.jsonl")
    assert results(again) == results(run)


def test_saved_episodes_of_other_weights_have_no_sampler_gap(whole, tmp_path, capsys):
    words = [*SMALL, "epochs=2", "eval_episodes=0", "lr=0.1", f"rollouts={whole}/episodes.jsonl"]
    train.main(parse([*words, f"out={tmp_path}/run"]))
    assert "epoch 2: other weights sampled these episodes" in capsys.readouterr().out
    metrics = metrics_of(tmp_path / "run")
    assert [record["sampler_gap"] for record in metrics] == [0.0, None]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: "{", "line 1: not an episode"),
        (lambda e: "null", "line 1: not an episode"),
        (lambda e: json.dumps({**e, "ids_T": [10**9, *e["ids_T"][1:]]}), "outside of the vocabulary"),
        (lambda e: json.dumps({**e, "ids_T": e["ids_T"][1:]}), "differ in length"),
        (lambda e: json.dumps({**e, "turns": e["turns"][1:]}), "the turns are not the sampled tokens"),
        (lambda e: json.dumps({**e, "group": "1"}), "wrong or unknown: group"),
        (lambda e: json.dumps({**e, "more": 1}), "wrong or unknown: more"),
        (lambda e: json.dumps({**e, "epoch": 9}), "needs episodes=8 and there are 7"),
    ],
)
def test_damaged_saved_episodes_are_one_line(change, said, whole, tmp_path):
    first, *rest = (whole / "episodes.jsonl").read_text().splitlines(True)
    (tmp_path / "episodes.jsonl").write_text(change(json.loads(first)) + "\n" + "".join(rest))
    words = [*SMALL, "eval_episodes=0", f"rollouts={tmp_path}/episodes.jsonl", f"out={tmp_path}/run"]
    refused(said, *words)


EPISODE = {"epoch": 1, "env": "sat", "seed": 1, "group": 1, "outcome": "unknown", "adapter_hash": "", "metrics": {}}
EPISODE |= {"ids_T": [1, 2], "action_mask_T": [0, 1], "logprobs_T": [0.0, -1.0]}
EPISODE |= {"turns": [{"start": 1, "stop": 2, "reward": 0.5, "stop_reason": "stop"}]}
EPISODE |= dict.fromkeys(("success", "terminated", "truncated", "infrastructure_failed"), False)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e308, 10**400, "x", None, [1.0]])
@pytest.mark.parametrize("where", ["logprobs_T", "turns", "metrics", "group"])
def test_saved_episodes_have_numbers_that_can_be_summed(where, value, tmp_path):
    wrong = {"logprobs_T": [0.0, value], "turns": [{**EPISODE["turns"][0], "reward": value}], "metrics": {"a": value}}
    wrong["group"] = value
    (path := tmp_path / "episodes.jsonl").write_text(json.dumps(EPISODE) + "\n")
    assert len(replay.read(path, 3)[1]) == 1
    (path := tmp_path / "wrong.jsonl").write_text(json.dumps(EPISODE | {where: wrong[where]}) + "\n")
    with pytest.raises(ValueError, match=r"^rollouts=[^\n]+, line 1: not an episode of a run [^\n]+$"):
        replay.read(path, 3)


@pytest.mark.parametrize("places", [[(1, 10**7)], [(-(10**7), 2)], [(2, 3), (1, 2)], [(1, 2)] * 2, [(0, 2)], [(2, 1)]])
def test_turns_outside_of_a_saved_episode_are_refused(places, tmp_path):
    """Before a list of all their tokens is made."""
    episode = {**EPISODE, "turns": [{**EPISODE["turns"][0], "start": a, "stop": b} for a, b in places]}
    (path := tmp_path / "episodes.jsonl").write_text(json.dumps(episode) + "\n")
    with modest(megabytes=50), pytest.raises(ValueError, match=r"line 1: not an episode of a run [^\n]+$"):
        replay.read(path, 3)


def test_saved_episodes_of_failed_environments_alone_are_refused(whole, tmp_path):
    lines = [json.loads(line) for line in (whole / "episodes.jsonl").read_text().splitlines()]
    text = "".join(json.dumps(line | {"infrastructure_failed": True}) + "\n" for line in lines)
    (tmp_path / "episodes.jsonl").write_text(text)
    words = [*SMALL, "eval_episodes=0", f"rollouts={tmp_path}/episodes.jsonl", f"out={tmp_path}/run"]
    refused("the environments of all episodes of epoch 1 failed", *words)


def test_refused_saved_episodes_leave_no_run_behind(whole, tmp_path):
    """The corrected command would be refused for the settings of a run that has begun."""
    words = [*SMALL, "episodes=4", "batch_size=4", "eval_episodes=0", f"rollouts={whole}/episodes.jsonl"]
    refused("epoch 1 needs episodes=4 and there are 8", *words, f"out={tmp_path}/run")
    assert not (tmp_path / "run").exists()


def test_all_tokens_does_not_learn_a_prompt_that_leaves_no_room_for_a_reply(tmp_path):
    """It would be learned whole, past max_len."""
    words = ["algo=sft", "env=sat", "sft.all_tokens=true", "max_len=20", "epochs=1", "episodes=2", "eval_episodes=0"]
    refused("none of the episodes has a sampled token", *words, "threads=1", "ranks=1", f"out={tmp_path}/run")


def test_saved_episodes_of_another_environment_are_refused(whole, tmp_path):
    words = [word for word in SMALL if not word.startswith("max_turns")]
    words += ["env=sat", "eval_episodes=0", f"rollouts={whole}/episodes.jsonl", f"out={tmp_path}/run"]
    refused("it has episodes of env=textcraft, and this run has env=sat", *words)


@pytest.mark.parametrize(("bootstrap", "taken"), [("true", False), ("false", True)])
def test_a_critic_does_not_bootstrap_from_observations_that_were_not_saved(bootstrap, taken, whole, tmp_path):
    """The episodes of `whole` are GRPO's, whose last ids are those of the last turn."""
    words = [*SMALL, "algo=ppo", f"ppo.bootstrap={bootstrap}", "epochs=1", "eval_episodes=0", "strict=false"]
    words += [f"rollouts={whole}/episodes.jsonl", f"out={tmp_path}/run"]
    if taken:
        train.main(parse(words))
    else:
        refused("the observations after the turn limit are not there, because ppo.bootstrap=true did not play", *words)


def test_saved_episodes_keep_their_temperature(whole, tmp_path):
    words = [*SMALL, "eval_episodes=0", f"rollouts={whole}/episodes.jsonl", f"out={tmp_path}/run", "temperature=0.5"]
    refused("whose episodes were sampled at temperature=1.5", *words, status=2)


def test_saved_rewards_are_not_asked_for_anew(whole, tmp_path):
    words = [*SMALL, "eval_episodes=0", f"rollouts={whole}/episodes.jsonl", f"out={tmp_path}/run"]
    said = "reward.rule=binary has no effect beside rollouts=, whose episodes keep their rewards of reward.rule=shaped"
    refused(said, *words, "reward.rule=binary", status=2)


ADAPTERS = {"lora.alpha": "32.0", "lora.rslora": "false", "lora.r": "2", "lora.b_rate": "1.0"}
KEPT = ["lora.alpha=64", "lora.rslora=true", "lora.r=4", "lora.b_rate=16", "optimizer=adamw8bit", "quant=int8"]


@pytest.mark.parametrize("word", KEPT)
def test_a_resumed_run_keeps_its_adapter_its_base_and_its_optimizer(word, whole):
    key, own = word.split("=")[0], ADAPTERS | {"optimizer": "adamw", "quant": "none"}
    refused(f"{word}: resume= goes on with a run of {key}={own[key]}; ", f"resume={whole}", word, status=2)
    assert checked([f"resume={whole}", f"{key}={own[key]}"], "train.py").lora.r == 2


@pytest.mark.parametrize("key", ["epochs", "max_steps"])
def test_a_limit_that_the_run_has_passed_is_refused(key, whole):
    before = (whole / "config.json").read_bytes()
    refused(f"{key}=2: 3 are done, so the run ends at {key}=3 or later", f"resume={whole}", f"{key}=2")
    assert (whole / "config.json").read_bytes() == before


@pytest.mark.parametrize(("words", "used"), [([], 64), (["micro_tokens=512"], 0)])
def test_a_given_micro_batch_replaces_what_a_lack_of_memory_left(words, used, run):
    state = run / "checkpoint-3" / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {"micro_tokens": 64}))
    sign(state.parent)
    train.main(parse([f"resume={run}", "epochs=4", *words]))
    assert json.loads((run / "checkpoint-4" / "state.json").read_text())["micro_tokens"] == used


def test_a_given_weight_of_kl_holds_from_the_next_epoch_on(run):
    for epochs, weight in ((4, 0.5), (5, 0.25), (6, 0.0)):
        train.main(parse([f"resume={run}", f"epochs={epochs}", f"grpo.kl_coef={weight}"]))
        assert json.loads((run / f"checkpoint-{epochs}" / "state.json").read_text())["kl_coef"] == weight


def test_a_given_weight_of_kl_survives_an_interruption(run):
    """config.json has it before the epoch that is interrupted, and the checkpoint before has the earlier one."""
    for _ in range(2):
        train.main(parse([f"resume={run}", "epochs=4", "grpo.kl_coef=0.5"]))
        assert json.loads((run / "checkpoint-4" / "state.json").read_text())["kl_coef"] == 0.5
        remove(run / "checkpoint-4")


def test_an_epoch_of_one_episode_with_several_turns_is_learned_from():
    assert parse(["algo=ppo", "env=textcraft", "episodes=1", "batch_size=1"]).episodes == 1


def test_a_given_dropout_holds_for_an_adapter_of_another_run(whole, tmp_path):
    run = tmp_path / "run"
    words = [*LONG, "epochs=1", f"resume_from={whole}/epoch_3", f"out={run}"]
    train.main(parse([word for word in words if word not in ("epochs=500", "lora.r=2")]))
    train.main(parse([f"resume={run}", "epochs=2", "lora.dropout=0.5"]))
    assert json.loads((run / "epoch_2" / "adapter_config.json").read_text())["lora_dropout"] == 0.5


def test_dropout_in_reinforcement_learning_is_refused(tmp_path):
    said = "lora.dropout= has no effect with algo=grpo: without it sampling equals training"
    refused(said, *SMALL, "lora.dropout=0.1", f"out={tmp_path}/run", status=2)


def test_a_folder_without_settings_does_not_suggest_itself(run):
    (run / "config.json").unlink()
    code, _, err = run_program("train.py", f"resume={run}")
    assert code == 2 and "config.json" in err and "did you mean" not in err


def test_a_finished_run_names_the_limit_that_ended_it(tmp_path, capsys):
    run = tmp_path / "run"
    words = [*SMALL, "epochs=3", "max_steps=1", "eval_episodes=0", f"out={run}"]
    train.main(parse(words))
    refused(f"this run has finished; resume={run} max_steps=2 goes on with it", *words)
    train.main(parse([f"resume={run}"]))
    assert "nothing is left to do: 1 epochs and 1 steps are done; max_steps=2 goes on" in capsys.readouterr().out
    train.main(parse([f"resume={run}", "max_steps=2"]))
    assert [record["step"] for record in metrics_of(run) if "loss" in record] == [1, 2]


def test_rollouts_are_refused_where_nothing_is_played(whole, tmp_path):
    words = ["algo=sft", f"rollouts={whole}/episodes.jsonl", f"out={tmp_path}/run"]
    refused("has episodes that an agent played, and algo=sft imitates an expert", *words, status=2)
    refused("no such file", "rollouts=nowhere", f"out={tmp_path}/run", status=2)


def test_a_failed_environment_is_no_lack_of_observations(tmp_path):
    """Its episode ends behind the last reply, as one does whose observation was not saved."""
    solved = EPISODE | {"terminated": True, "success": True, "outcome": "correct", "env": "textcraft"}
    failed = EPISODE | {"truncated": True, "infrastructure_failed": True, "group": 2, "env": "textcraft"}
    (path := tmp_path / "episodes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (solved, failed)))
    words = ["algo=ppo", "ppo.bootstrap=true", "episodes=2", "batch_size=2", "epochs=1", "eval_episodes=0"]
    words += ["strict=false", "ranks=1", "threads=1", f"rollouts={path}", f"out={tmp_path}/run"]
    train.main(parse(words))
    assert len(metrics_of(tmp_path / "run")) >= 1
