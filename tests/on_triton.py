"""Shared by the tests of Triton kernels.

On a machine without a CUDA device kernels run under Triton's interpreter, in a process of its own (it is chosen when
triton is first imported), and are compiled for CHIPS without being run.
"""

import dataclasses
import gc
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

triton = pytest.importorskip("triton")

import compile_ahead  # noqa: E402

from models import cache  # noqa: E402

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu"
if INTERPRETED:  # a CPU stands for a device, whose caches hold 16-bit numbers
    cache.stored_dtype = lambda weight: weight.dtype
runs = pytest.mark.skipif(DEVICE == "cpu" and not INTERPRETED, reason="test_triton_interpreted.py runs it")
not_interpreted = pytest.mark.skipif(INTERPRETED, reason="compiled in a process without the interpreter")
runs_no_kernel = pytest.mark.skipif(INTERPRETED, reason="runs in a process without the interpreter")
compiles = lambda test: pytest.mark.compiles(not_interpreted(test))  # noqa: E731
needs_no_device = pytest.mark.skipif(DEVICE == "cuda" or INTERPRETED, reason="for machines without a CUDA device")
SHARED = compile_ahead.SHARED
# Quick tests compile for a chip with little shared memory, test-full for every chip.
CHIPS = [120, *(pytest.param(chip, marks=pytest.mark.full) for chip in (80, 89, 90, 100))]
TENSOR_CORES = {80: "mma.sync", 90: "wgmma.mma_async", 100: "tcgen05.mma"}  # their instruction
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
HALVES_ON_CHIPS = [(80, torch.bfloat16), (90, torch.bfloat16), (100, torch.bfloat16), (90, torch.float16)]


def mend_the_interpreter():
    """Correct three faults of the interpreter that GPUs do not have.

    It multiplies bfloat16 as if the bits were integers, truncates float32 to bfloat16 instead of rounding it, and sums
    a row's products in an order that depends on the row's place.
    """
    from triton.runtime import interpreter

    bfloat16, float32 = triton.language.bfloat16, triton.language.float32
    convert = interpreter._convert_float

    def rounding(x, source, target, mode):
        if (source, target) == (float32, bfloat16):
            return torch.from_numpy(np.ascontiguousarray(x)).bfloat16().view(torch.uint16).numpy()
        return convert(x, source, target, mode)

    def row_by_row(self, a, b, sums, *_):
        a, b = (self.cast_impl(x, float32).data if x.dtype.scalar == bfloat16 else x.data for x in (a, b))
        product = np.matmul(a[:, None].astype(np.float32), b.astype(np.float32))[:, 0]
        return interpreter.TensorHandle(product + sums.data, sums.dtype.scalar)

    interpreter._convert_float, interpreter.InterpreterBuilder.create_dot = rounding, row_by_row


def hasten_the_interpreter():
    """Leave out work of the interpreter that changes no result: half of its time.

    It patches triton.language at every launch and at every call of a device function, computes for every integer sum
    whether it overflows though that assertion is off without debug, and makes a table of dtypes for every constant.
    """
    from triton.runtime import interpreter

    language = triton.language
    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": language, "core": language.core}))
    interpreter._patch_lang = lambda fn: interpreter._LangPatchScope()  # nothing to restore
    builder = interpreter.interpreter_builder
    assert not builder.options.debug
    builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    numpy_dtype, by_name = interpreter._get_np_dtype, {}

    def numpy_dtype_once(dtype):
        name = dtype.scalar.name
        if name not in by_name:
            by_name[name] = numpy_dtype(dtype)
        return by_name[name]

    interpreter._get_np_dtype = numpy_dtype_once
    gc.set_threshold(100_000)  # a kernel's tensors are many small objects without cycles


if INTERPRETED:
    mend_the_interpreter()
    hasten_the_interpreter()


def run_under_the_interpreter(at_least: dict[str, int], marks: str = "not full"):
    """Run test files in a process with TRITON_INTERPRET=1; assert that of each at least so many tests pass."""
    files = [f"tests/cuda/test_triton_{name}.py" for name in at_least]
    options = "-o", "addopts=", "-p", "no:cacheprovider", "-rp", "-m", marks
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *files],
        env=os.environ | {"TRITON_INTERPRET": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
    )
    passed = Counter(re.findall(r"^PASSED tests/cuda/test_triton_(\w+)\.py::", run.stdout, re.M))
    few = {name: passed[name] for name, least in at_least.items() if passed[name] < least}
    assert run.returncode == 0 and not few, f"{few}\n{run.stdout}{run.stderr}"


def assert_within_the_error_of(reference: dict, got: dict, truth: dict, most: float = 1.1, mean: float = 1.1):
    """Assert that the largest and the mean error are at most these multiples of the reference's, plus rounding."""
    for name, expected in truth.items():
        allowed, error = (reference[name] - expected).abs(), (got[name] - expected).abs()
        tiny = 1e-6 * max(1, float(expected.abs().max()))
        assert got[name].isfinite().all(), name
        assert error.max() <= most * allowed.max() + tiny, (name, float(error.max()), float(allowed.max()))
        assert error.mean() <= mean * allowed.mean() + tiny, (name, float(error.mean()), float(allowed.mean()))


def record(monkeypatch, module, names) -> list:
    """Record the launches of a module's kernels from now on, without running them; return the list."""
    launches = []
    for name in names:
        monkeypatch.setattr(module, name, compile_ahead.Recorder(getattr(module, name), launches))
    return launches


def compiled(kernel, args, kwargs, arch: int):
    """Return (a key of the binary, a function that compiles it for `arch`), as the launch would compile it."""
    return compile_ahead.binary_of(compile_ahead.Launch(kernel, args, kwargs), arch)


def check_binary(binary, arch: int, tensor_cores: bool = True):
    """Assert that the binary is for `arch` and, unless tensor_cores=False, multiplies on its tensor cores."""
    name = binary.metadata.name
    assert f".target sm_{arch}" in binary.asm["ptx"] and binary.asm["cubin"], name
    assert not tensor_cores or TENSOR_CORES[arch] in binary.asm["ptx"], name


def spilled(binary) -> int:
    """Return the bytes of registers that each thread spills. Call it last: it skips the test without cuobjdump."""
    found = compile_ahead.spilled(binary)
    if found is None:
        pytest.skip("Triton's cuobjdump is missing: all other checks passed, spilled registers were not counted")
    return found
