"""With models/cpu or models/cuda hidden from the import system the rest computes the same, only slower."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import metrics_of

pytestmark = pytest.mark.all_only

HIDE = """
import runpy, sys

HIDDEN = "models.{kind}"

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name == HIDDEN or name.startswith(HIDDEN + "."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
from models.hooks import Hooks, hooks
import models
assert hooks("{kind}") == Hooks(), "a hook was set"
"""
MODELS = ("attention", "decoder", "engine", "formats", "linear", "logprob", "rope", "tokenizer", "weights")
LORA = ("lora", "lora_files", "merge")
QUICK = ("linear", "attention")
RL = ("batch", "checkpoint", "core", "exact_gradients", "learning", "rollout", "train")
KINDS = ["cpu", "cuda"]


def run_hidden(kind: str, code: str, *args: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", HIDE.replace("{kind}", kind) + code, *map(str, args)]
    environ = os.environ | {"PYTHONPATH": os.getcwd()}
    return subprocess.run(command, capture_output=True, text=True, env=environ)


@pytest.mark.parametrize("kind", KINDS)
def test_a_training_run_without_a_folder_has_no_sampler_gap(kind, tmp_path):
    words = ["algo=ppo", "epochs=1", "episodes=4", "batch_size=4", "eval_episodes=0", "ranks=1", "max_turns=2"]
    words += ["max_new_tokens=12", f"out={tmp_path / 'run'}"]
    run = run_hidden(kind, "runpy.run_path('train.py', run_name='__main__')", *words)
    assert run.returncode == 0, run.stderr
    (record,) = metrics_of(tmp_path / "run")
    assert record["sampler_gap"] == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [QUICK, pytest.param((*MODELS, *LORA, *RL), marks=pytest.mark.full)])
def test_correctness_tests_pass_without_a_folder(names, kind):
    files = [str(path) for name in names for path in Path("tests").glob(f"*/test_{name}.py")]
    code = "import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    run = run_hidden(kind, code, "-q", "-p", "no:cacheprovider", *files)
    assert run.returncode == 0, run.stdout


def test_each_hook_is_set_by_a_folder():
    from models.hooks import Hooks, hooks

    plain = vars(Hooks())
    assert [name for name in plain if all(getattr(hooks(kind), name) is plain[name] for kind in KINDS)] == []


def test_neither_folder_imports_the_other_and_only_models_imports_them():
    """A file elsewhere that imports a folder would break where the folder is deleted."""
    paths = [path for room in ("models", "lora", "rl", "envs") for path in Path(room).rglob("*.py")]
    for kind in KINDS:
        pattern = re.compile(rf"^\s*(from|import) models(\.| import (.*, )?){kind}\b", re.M)
        importers = {path.as_posix() for path in paths if pattern.search(path.read_text())}
        assert {path for path in importers if not path.startswith(f"models/{kind}/")} == {"models/__init__.py"}
