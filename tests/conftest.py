"""Shared by the tests: one thread, the reference data, and small models whose every weight matters."""

import contextlib
import gc
import importlib
import io
import json
import os
import re
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads beyond the cores must not spin
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each program that a test starts would compile all files again

import pytest
import torch
from hypothesis import settings
from shared_trials import shared_trials

from models.config import parse_config
from models.decoder import CausalLM

sys.dont_write_bytecode = False  # nor would each worker the tests
torch.set_num_threads(1)
SWITCH = getattr(getattr(torch.backends.mkldnn, "matmul", None), "fp32_precision", None)  # oneDNN's, off
FUZZ = int(os.environ.get("FUZZ", 0))  # 0: the same examples in every run; N: others in each, and N times as many
settings.register_profile("chosen", derandomize=not FUZZ)
settings.load_profile("chosen")
# A background job ignores these signals, and so would the programs that tests start. A handler ends with exec.
for number, handler in {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: lambda *_: None}.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)
ROOT = Path(__file__).parents[1]
CPU = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
# With Intel's AVX-512 a row of MKL's packed products does not depend on the others; elsewhere a run's trial decides.
EXACT_MKL = "GenuineIntel" in CPU and "avx512f" in CPU and "MKL_ENABLE_INSTRUCTIONS" not in os.environ

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 64}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session):
    """Collect tests without garbage collection, and keep what was imported out of later ones: each would take half a
    second. The second of several workers begins with the last module: it finds the first half compiled, and the first
    worker the second half."""
    gc.disable()
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        rooms = [Path(word) for word in session.config.args if Path(word).is_dir()]
        for path in sorted((path for room in rooms for path in room.rglob("test_*.py")), reverse=True):
            with contextlib.suppress(Exception, pytest.skip.Exception):  # which collecting it reports
                importlib.import_module(path.stem)
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.hookimpl(tryfirst=True)  # before -m deselects
def pytest_collection_modifyitems(items):
    """Leave the rooms of kernels and of comparisons with other packages to `make test-all`."""
    for item in items:
        if item.path.parent.name in ("cuda", "parity"):
            item.add_marker(pytest.mark.all_only)


@pytest.fixture
def frozen_heap():
    """Keep what was loaded before a test out of the garbage collections of the code that it calls, which are many."""
    gc.collect()
    gc.freeze()


def fsync(file: int) -> None:
    """Stand in for os.fsync: refuse the same files, but do not wait for the disk."""
    os.fstat(file)


@pytest.fixture(scope="module", autouse=True)
def _one_rank():
    """Let programs that run in the tests' process stay in it, and not wait until the disk has what they wrote."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rl.ranks.launch.cores", lambda: 1)
        patch.setattr(os, "fsync", fsync)
        yield


def reference(*parts: str) -> Path:
    """Return a path in the reference data; skip the test if it is missing."""
    path = Path(os.environ.get("REFERENCE_DATA", ROOT.parent / "shared" / "data"), *parts)
    if not path.exists():
        pytest.skip(f"no reference data at {path}; set REFERENCE_DATA")
    return path


def metrics_of(run: Path) -> list[dict]:
    """Return the records of a run's metrics.jsonl, without those that hold only the phases' times and memory."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if record.keys() != {"epoch", "step", "phases"}]


def page_data(path: Path, name: str) -> Any:
    """Return the JSON of report.html's element with that id, or the list of it of all elements with that class."""
    text = path.read_text()
    found = re.findall(rf'<script type="application/json" (id|class)="{name}"[^>]*>(.*?)</script>', text)
    values = [json.loads(value) for _, value in found]
    return values[0] if found and found[0][0] == "id" else values


def randomize(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """Draw all weights: matrices and biases with deviation 0.15, norms around 1."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        p.data.normal_(1 if "norm" in name else 0, 0.3 if "norm" in name else 0.15, generator=generator)
    return module


def random_model(model_type: str = "qwen2", seed: int = 0, dtype=torch.float32, **fields) -> CausalLM:
    experts = EXPERTS if model_type == "qwen3_moe" else {}
    model = CausalLM(parse_config({**SMALL, **experts, "model_type": model_type, **fields}))
    return randomize(model, seed).to(dtype).eval()


def copy_of_the_code(folder: Path) -> Path:
    """Make a folder with the programs and packages that a run imports. rl/ and envs/ are copies, to be changed."""
    for name in ("rl", "envs"):
        unfinished = shutil.ignore_patterns("*.pyc.*")  # bytecode that another process is writing
        shutil.copytree(ROOT / name, folder / name, ignore=unfinished)
    for name in ("models", "lora", "recipes"):
        (folder / name).symlink_to(ROOT / name)
    for name in ("train.py", "eval.py", "merge.py"):
        shutil.copy(ROOT / name, folder)  # Python would import from where a link leads
    return folder


def run_program(*words: str) -> tuple[int, str, str]:
    """Run `python FILE key=value ...` in this process; return (exit status, stdout, stderr)."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            sys.argv = list(words)
            runpy.run_path(words[0], run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code or 0
        finally:
            sys.argv = before
            torch.set_num_threads(1)
    text = f"{status}\n" if isinstance(status, str) else ""  # as Python prints it
    return 1 if text else status, out.getvalue(), err.getvalue() + text


@contextlib.contextmanager
def no_hang(seconds: float = 20):
    """Assert that the block ends within `seconds`: far more than it takes, far less than a hang or quadratic time."""
    start = time.monotonic()
    yield
    assert time.monotonic() - start < seconds, f"took more than {seconds} s"


@pytest.fixture
def threads():
    """Return torch.set_num_threads; the number is restored afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _unknown_servers():
    """Forget the servers of earlier tests: another one may get the port of theirs."""
    for name in ("agentgym", "lab"):
        if module := sys.modules.get(f"envs.http.{name}"):
            module.SERVERS.clear()


def _restored_products():
    """Undo what a run in this process chose: the library of products. And see that oneDNN's switch is off: left on, it
    would give later runs other bits than another process has."""
    onednn, packed = (sys.modules.get(f"models.cpu.{name}") for name in ("onednn", "packed"))
    before = onednn and packed.library  # absent where a test hides models/cpu
    yield
    if onednn:
        packed.library = before
        with onednn._lock:  # a server's thread may be within it
            off = SWITCH is None or onednn._within or torch.backends.mkldnn.matmul.fp32_precision == SWITCH
        assert off, "oneDNN's switch was left on"


# A module's own fixtures, which may run train.py, are made before those of its tests.
_restored_by_module = pytest.fixture(scope="module", autouse=True)(_restored_products)
_restored_by_test = pytest.fixture(autouse=True)(_restored_products)


@pytest.fixture(scope="session")
def trials_folder(tmp_path_factory) -> Path:
    """Return the folder in which pytest's workers share trials of exactness."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "trials"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module", autouse=True)
def _shared_trials(request, trials_folder):
    """Share trials of exactness, but in a module with EACH_TRIAL, which tests them."""
    loaded = {"models.trial", "models.cpu.step"} <= sys.modules.keys()
    apart = hasattr(request.module, "EACH_TRIAL") or not loaded
    with contextlib.nullcontext() if apart else shared_trials(trials_folder):
        yield


def also_full(*values) -> list:
    """Return parameters of make test-full."""
    return [pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.full) for one in values]


def quickly(quick: list[tuple], every: Iterable[tuple]) -> list:
    """Return all cases as parameters; those that are not quick are of make test-full."""
    return [*quick, *also_full(*(case for case in every if case not in quick))]


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
