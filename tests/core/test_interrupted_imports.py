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


def on_windows(code: str) -> tuple[int, str, str]:
    """Run code as if on Windows, without fcntl and SIGHUP. Return the status, the output and the errors."""
    before = "import asyncio, runpy, signal, sys; "  # asyncio imports other modules there
    before += "sys.platform, sys.modules['fcntl'] = 'win32', None; del signal.SIGHUP; "
    ended = subprocess.run([sys.executable, "-c", before + code], cwd=ROOT, capture_output=True, text=True)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.mark.parametrize("program", [*PROGRAMS, "-m envs", "-m envs.serve"])
def test_programs_on_windows_end_in_one_line(program):
    run = "run_module" if program.startswith("-m ") else "run_path"
    status, out, errors = on_windows(f"runpy.{run}('{program.removeprefix('-m ')}', run_name='__main__')")
    assert (status, out, errors.count("\n")) == (1, "", 1), errors
    assert errors.startswith("this needs Linux") and errors.endswith("in WSL, the Windows Subsystem for Linux\n")


@pytest.mark.parametrize(
    "code", ["from rl import load, train", "import envs; envs.make('abd')", "import rl.run.folder"]
)
def test_imports_on_windows_end_in_the_same_line(code):
    status, out, errors = on_windows(code)
    assert (status, out, errors.count("Error: ")) == (1, "", 1), errors
    assert errors.splitlines()[-1].startswith("ImportError: this needs Linux") and "rl/library.py" not in errors


def test_an_environment_that_needs_no_sandbox_plays_on_windows():
    assert on_windows("import envs; print(len(envs.make('textcraft').reset(0)))") == (0, "3\n", "")


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
