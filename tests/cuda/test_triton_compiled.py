"""Triton kernels compile ahead of time for each architecture, within its shared memory.

The kernels' own tests compile them too, for two architectures or, in test-full, for five. Every binary of every shape
is a full test.
"""

import pytest
import torch
from compile_ahead import SHAPES, SHARED, binaries, binary_of, launches_of
from on_triton import TENSOR_CORES, compiles, needs_no_device, spilled

BIG = {"_score", "_gather", "_dlogits"}  # kernels whose tiles need the architecture's own matrix instructions
KERNELS = {
    "attention": {"_forward", "_backward_queries", "_backward_keys"},
    "logprob": {"_score", "_fold", "_gather", "_dlogits"},
    "sample": {"_choose"},
    "linear": {"_multiply"},
}


def module_of(kernel) -> str:
    return kernel.__module__.split(".")[-1]


@compiles
@pytest.mark.parametrize("arch", [89, pytest.param(120, marks=pytest.mark.full)])
def test_kernels_fit_chips_with_little_shared_memory(arch, monkeypatch, tmp_path):
    """One launch of each kernel in bfloat16: its last."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches = [x for x in launches_of(SHAPES["7b"], torch.bfloat16, arch) if module_of(x.kernel) in KERNELS]
    last = {(module_of(x.kernel), x.kernel.__name__): x for x in launches}
    assert set(last) == {(module, name) for module, names in KERNELS.items() for name in names}
    made = {name: binary_of(launch, arch)[1]() for name, launch in last.items()}
    for name, binary in made.items():
        assert f".target sm_{arch}" in binary.asm["ptx"] and binary.metadata.shared <= SHARED[arch], name
        if name[0] == "attention" or name[1] in BIG:
            assert TENSOR_CORES.get(arch, "mma.sync") in binary.asm["ptx"], name
    for name, binary in made.items():
        assert spilled(binary) <= 8, name


@compiles
@pytest.mark.full
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("arch", SHARED)
def test_every_binary_of_every_shape_compiles_and_fits(arch, dtype, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    assert not [b.line() for b in binaries(arch, dtype) if b.problem]


@needs_no_device
def test_a_kernel_that_does_not_fit_is_reported(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setitem(SHARED, 89, 100)
    made = next(b for b in binaries(89, torch.bfloat16, ["tiny"], "step._swiglu") if b.problem)
    assert "KiB of 0" in made.problem and "step._swiglu" in made.line()
