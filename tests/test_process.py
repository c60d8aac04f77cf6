"""Settings of the process: the number of threads, and reuse of freed memory."""

import os
import subprocess
import sys
from statistics import median

import pytest
import torch
from torch import nn

from models.fast import process

FAULTS = """
import resource, torch
from models import keep_memory
torch.set_num_threads(1)
keep_memory()
faults = []
for _ in range(12):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""


def test_small_models_get_one_thread_and_others_every_core():
    with torch.device("meta"):
        assert process.default_threads(nn.Linear(3000, 3000)) == 1
        assert process.default_threads(nn.Linear(4096, 4096)) == len(os.sched_getaffinity(0))


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc's"
)
def test_memory_of_large_tensors_is_fetched_from_the_system_once():
    """The first 64 MiB are new pages, perhaps a few times until the heap has grown."""
    output = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    first, *others = map(int, output.split())
    assert first > 100 and median(others) < first / 10
