"""Settings of allocators and of the caches of kernels, and the most memory that a phase held."""

import contextlib
import mmap
import os
import subprocess
import sys

import pytest
import torch
from conftest import random_model

from models import memory, trial
from models.cpu import packed
from models.logprob import token_logprobs
from models.refusal import Refusal
from rl.run.run import Run


@pytest.mark.parametrize("users", [None, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"])
def test_segments_are_expandable_unless_the_user_chose(users, monkeypatch):
    monkeypatch.setattr(memory, "keep_host_memory", lambda: None)
    for name in memory.ALLOCATOR:
        monkeypatch.delenv(name, raising=False)
    if users:
        monkeypatch.setenv(users, "max_split_size_mb:64")
    memory.keep_memory()
    found = {name: os.environ[name] for name in memory.ALLOCATOR if name in os.environ}
    assert found == ({users: "max_split_size_mb:64"} if users else {memory.ALLOCATOR[0]: "expandable_segments:True"})
    assert not torch.cuda.is_initialized()


def test_a_phase_on_cuda_ends_with_its_peak_and_an_empty_reserve(monkeypatch):
    calls = []
    found = {"is_available": True, "is_initialized": True, "max_memory_allocated": 12}
    for name in (*found, "empty_cache", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda name=name: calls.append(name) or found.get(name))
    assert memory.end_phase() == 12
    assert calls[2:] == ["max_memory_allocated", "empty_cache", "reset_peak_memory_stats"]


RETURNED = """
import torch
from models import memory

memory.keep_memory()
tensors = [torch.ones(2**20) for _ in range(64)]
del tensors
memory.end_phase()
kept = memory.end_phase()
memory.return_host_memory()
memory.end_phase()
print(kept - memory.end_phase())
"""


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="only Linux counts a process's peak")
@pytest.mark.all_only
def test_kept_memory_is_returned_after_the_trial():
    output = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, text=True, check=True).stdout
    assert int(output) > 2**27


SHAPES = """
import torch
from models import memory
from models.cpu import packed

memory.keep_memory()
torch.set_num_threads(1)
weight, peaks = packed.pack_weight(torch.randn(256, 128), "onednn"), []
for last in (100, 800):
    for rows in range(last // 8, last):
        packed.multiply(torch.randn(rows, 128), weight)
    peaks.append(memory.end_phase())
print(peaks[1] - peaks[0])
"""


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="only Linux counts a process's peak")
@pytest.mark.skipif(not packed.usable(torch.float32, "onednn"), reason="oneDNN multiplies no packed weights here")
def test_kernels_of_many_numbers_of_rows_take_little_memory():
    env = {name: value for name, value in os.environ.items() if name not in memory.KERNEL_CACHES}
    command = [sys.executable, "-c", SHAPES]
    output = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
    assert int(output) < 2**26  # 2**29 by torch's own settings on a Zen 5


@pytest.mark.parametrize("kept", ["", "0", "abc", "٣"])
def test_a_number_of_kernels_at_which_torch_crashes_is_refused(kept, monkeypatch):
    monkeypatch.setenv(memory.KERNEL_CACHES[0], kept)
    with pytest.raises(Refusal, match=f"LRU_CACHE_CAPACITY={kept} must be a positive whole number"):
        memory.keep_memory()


def test_a_user_may_keep_more_kernels(monkeypatch):
    first, second = memory.KERNEL_CACHES
    monkeypatch.setenv(first, "1024")
    monkeypatch.delenv(second, raising=False)
    memory.keep_memory()
    assert (os.environ[first], os.environ[second]) == ("1024", str(memory.KEPT_KERNELS))


def test_a_part_of_a_phase_may_add_its_peak_to_the_one_before(monkeypatch):
    """As the second part of the load does, where what the trial made is still there."""
    peaks = iter([5, 9, 7])
    monkeypatch.setattr("rl.run.run.end_phase", lambda: next(peaks))
    run = Run.__new__(Run)
    run.phases = {}
    for name, after in (("load", ""), ("trial", ""), ("load", "trial")):
        with run.phase(name, after):
            pass
    assert {name: phase["peak_bytes"] for name, phase in run.phases.items()} == {"load": 5, "trial": 9}


def test_the_trial_keeps_no_activation_for_a_backward(monkeypatch):
    kept = []

    def noted(hidden_ND, *more):
        with contextlib.suppress(TypeError, RuntimeError):  # what was saved cannot be had again
            kept.append(hidden_ND.exp().grad_fn._saved_result)
        return token_logprobs(hidden_ND, *more)

    monkeypatch.setattr(trial, "token_logprobs", noted)
    assert trial.first_difference(random_model()) is None and not kept


@pytest.mark.skipif(not memory.CLEAR.exists(), reason="only Linux counts a process's peak")
def test_a_phases_peak_is_its_own():
    memory.end_phase()
    with mmap.mmap(-1, 2**28) as pages:  # which no allocator keeps
        for place in range(0, len(pages), mmap.PAGESIZE):
            pages[place] = 1
    large = memory.end_phase()
    assert memory.end_phase() < large - 2**27


def test_without_the_systems_count_there_is_no_peak(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")
    assert torch.cuda.is_initialized() or memory.end_phase() is None
