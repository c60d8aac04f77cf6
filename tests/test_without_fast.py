"""With models/fast hidden from the import system the plain code computes the same, only slower."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import metrics_of

HIDE = """
import runpy, sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == "models.fast" or name.startswith("models.fast."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from models.kernels import Kernels, kernels
import models
assert kernels == Kernels(), "a slot was filled"
"""
MODELS = ("attention", "decoder", "engine", "formats", "linear", "logprob", "rope", "tokenizer", "weights")
LORA = ("lora", "lora_files", "merge")
QUICK = ("linear", "attention")
RL = ("batch", "checkpoint", "core", "exact_gradients", "learning", "rollout", "train")


def run_hidden(code: str, *args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", HIDE + code, *map(str, args)]
    environ = os.environ | {"PYTHONPATH": os.getcwd()}
    return subprocess.run(command, capture_output=True, text=True, env=environ)


def test_a_training_run_without_fast_has_no_sampler_gap(tmp_path):
    words = ["algo=ppo", "epochs=1", "episodes=4", "batch_size=4", "eval_episodes=0", "ranks=1", "max_turns=2"]
    words += ["max_new_tokens=12", f"out={tmp_path / 'run'}"]
    run = run_hidden("runpy.run_path('train.py', run_name='__main__')", *words)
    assert run.returncode == 0, run.stderr
    (record,) = metrics_of(tmp_path / "run")
    assert record["sampler_gap"] == 0.0


@pytest.mark.parametrize("names", [QUICK, pytest.param((*MODELS, *LORA, *RL), marks=pytest.mark.full)])
def test_correctness_tests_pass_without_fast(names):
    files = [f"tests/test_{name}.py" for name in names]
    run = run_hidden("import pytest; sys.exit(pytest.main(sys.argv[1:]))", "-q", "-p", "no:cacheprovider", *files)
    assert run.returncode == 0, run.stdout


def test_fast_fills_every_slot_where_it_exists():
    import models.fast
    from models.kernels import Kernels, kernels

    assert models.fast
    assert [name for name, plain in vars(Kernels()).items() if getattr(kernels, name) is plain] == []


def test_only_models_imports_fast():
    """A file elsewhere that imports models.fast would break where the folder is deleted."""
    found = {path.as_posix() for room in ("models", "lora", "rl", "envs") for path in Path(room).rglob("*.py")}
    importers = {path for path in found if re.search(r"^\s*(from|import) models\.fast", Path(path).read_text(), re.M)}
    assert {path for path in importers if not path.startswith("models/fast/")} == {"models/__init__.py"}
