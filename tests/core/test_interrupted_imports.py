"""Ctrl-C in the seconds in which a program imports torch, and in a program that has nothing to save."""

import importlib
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rl.run import exits

ROOT = Path(__file__).parents[2]
PROGRAMS = ["train.py", "eval.py", "merge.py"]
PROGRAMS += [f"-m rl.{name}" for name in ("report", "explain", "chat", "serve")]
# In torch's place: a signal that comes while it is imported, and a KeyboardInterrupt that its C code loses.
SLOW = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    print("here")
except KeyboardInterrupt:
    print("lost")
raise SystemExit(0)
"""


@pytest.mark.parametrize("program", PROGRAMS)
def test_interrupt_during_imports_is_quiet(program, tmp_path):
    (tmp_path / "torch.py").write_text(SLOW)
    command, env = [sys.executable, *program.split()], {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    ended = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (-signal.SIGINT, "", "")


def test_interrupt_raises_again_after_imports():
    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        runpy.run_module("rl.run.early_interrupt")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        with exits.exits_cleanly("x"):
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        runpy.run_module("rl.run.early_interrupt")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN, "nohup"
    finally:
        signal.signal(signal.SIGINT, before)


def test_windows_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit, match=r"this needs Linux.* in WSL"):
        runpy.run_module("rl.run.early_interrupt")


@pytest.mark.parametrize("program, module", [("report", "rl.report.runs"), ("explain", "rl.explain")])
def test_interrupted_report_ends_with_130(program, module, monkeypatch, tmp_path):
    def stop(*_):
        raise KeyboardInterrupt

    (tmp_path / "episodes.jsonl").touch()
    loaded = importlib.import_module(module)
    monkeypatch.setattr(loaded.history, "records", stop)
    monkeypatch.setattr(loaded, "listed", stop, raising=False)
    with pytest.raises(SystemExit) as ended:
        loaded.main([str(tmp_path), "1"] if program == "explain" else [])
    assert ended.value.code == 130
