"""Settings of the process: the number of threads, and reuse of freed memory."""

import os
import subprocess
import sys
import time
from itertools import cycle
from statistics import median

import pytest
import torch
import torch.nn.functional as F
from conftest import EXACT_MKL, random_model
from torch import nn

import lora
from models import load_model, memory, trial
from models.cpu import onednn, packed, process
from models.cpu.step import exact_step
from models.linear import Linear, joint_linear

pytestmark = pytest.mark.all_only

FAULTS = """
import resource, torch
from models import keep_memory

torch.set_num_threads(1)
keep_memory()
faults = []
for _ in range(24):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(*faults)
"""
KEPT = """
import torch
from models import keep_memory, memory
keep_memory()
tensors = [torch.ones(2**20) for _ in range(64)]
memory.end_phase()
del tensors
released and memory.release_host_memory()
memory.end_phase()
print(memory.end_phase())
"""


def test_small_models_get_one_thread_and_others_every_core():
    with torch.device("meta"):
        assert trial.default_threads(nn.Linear(3000, 3000)) == 1
        assert trial.default_threads(nn.Linear(4096, 4096)) == len(os.sched_getaffinity(0))


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in str(os.confstr("CS_GNU_LIBC_VERSION")), reason="glibc's"
)
def test_memory_of_large_tensors_is_fetched_from_the_system_once():
    """The first 64 MiB are new pages, and up to eight times more: until small blocks no longer lie in the way."""
    output = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True).stdout
    first, *others = map(int, output.split())
    assert first > 100 and median(others) < first / 10


@pytest.mark.all_only
@pytest.mark.skipif(not memory.CLEAR.exists() or sys.platform != "linux", reason="only Linux counts a process's peak")
def test_released_memory_is_not_the_next_phases_peak():
    kept, released = (
        int(
            subprocess.run([sys.executable, "-c", f"released = {word}\n{KEPT}"], capture_output=True, check=True).stdout
        )
        for word in (False, True)
    )
    assert released < kept - 2**27


@pytest.fixture
def products():
    """Restores the choice of products."""
    before = packed.library
    yield
    packed.use(before)


LIBRARIES = [by for by in ("onednn", "mkl") if packed.usable(torch.float32, by)]
needs_copies = pytest.mark.skipif(not LIBRARIES, reason="no library's copies are usable here")


@needs_copies
def test_plain_products_leave_weights_as_they_lie(products):
    """In float32; in 16 bits they have oneDNN's copies. The results agree to rounding."""
    layer, x = Linear(64, 48).requires_grad_(False), torch.randn(32, 64)
    found = {}
    for kind in (*LIBRARIES, "plain"):
        line = process.choose_products(kind)
        assert line.startswith({"onednn": "oneDNN", "mkl": "MKL"}.get(kind, kind)) and line.endswith("(as asked)")
        assert (packed.weight_copy([layer.weight]) is None) == (kind == "plain")
        of_mkl = isinstance(packed.weight_copy([layer.weight.bfloat16()]), packed.MKLWeight)
        assert of_mkl == (kind == "mkl")
        matmul = torch.backends.mkldnn.matmul
        before = matmul.fp32_precision
        with onednn.onednn_matmul():
            assert (matmul.fp32_precision == "bf16") == (kind == "onednn" and onednn.multiplies_float32())
        assert matmul.fp32_precision == before
        found[kind] = joint_linear(x, layer)[0]
    assert torch.equal(found["plain"], torch.nn.functional.linear(x, layer.weight, layer.bias))
    for result in found.values():
        torch.testing.assert_close(result, found["plain"])


@pytest.mark.parametrize("by", LIBRARIES)
@pytest.mark.parametrize("speedup, chosen", [(0.75, ""), (0.87, "mkl"), (1.05, "mkl"), (1.15, "onednn mkl")])
def test_copies_are_made_where_they_pay(by, speedup, chosen, products, monkeypatch):
    """With AVX-512: oneDNN's where they are faster, MKL's where they are not clearly slower."""
    monkeypatch.setattr(onednn, "multiplies_float32", lambda: True)
    monkeypatch.setattr(packed, "independent_rows", lambda *_: True)
    monkeypatch.setattr(process, "speedup_by", lambda name, *_: speedup if name == by else 0.5)
    name = {"onednn": "oneDNN", "mkl": "MKL"}[by]
    assert f"{name}'s {speedup:.2f}x" in process.choose_products()
    assert packed.library == (by if by in chosen else "plain")


@pytest.mark.parametrize("by", LIBRARIES)
@pytest.mark.parametrize("speedup, taken", [(0.84, False), (0.92, False), (1.14, False), (1.4, True)])
def test_the_choice_hangs_on_no_noise_without_avx512(by, speedup, taken, products, monkeypatch):
    """The first three are ends of what trials of a Zen 3 beside other programs found, where runs of one command once
    chose differently. MKL's bits depend on the number of rows there, so equal speed is no reason to take its copies."""
    monkeypatch.setattr(onednn, "multiplies_float32", lambda: False)
    monkeypatch.setattr(packed, "independent_rows", lambda *_: False)
    monkeypatch.setattr(process, "speedup_by", lambda name, *_: speedup if name == by else 0.9)
    process.choose_products()
    assert packed.library == (by if taken else "plain")


@pytest.mark.parametrize("by", LIBRARIES)
def test_rows_are_called_independent_if_no_number_of_rows_changes_them(by, monkeypatch):
    if by == "mkl" and EXACT_MKL:
        assert packed.independent_rows(by)
    multiply = packed.multiply
    monkeypatch.setattr(packed, "multiply", lambda x, *more: multiply(x, *more) * (1 + 1e-6 * (len(x) == 1)))
    assert not packed.independent_rows.__wrapped__(by)


@pytest.mark.skipif("mkl" not in LIBRARIES, reason="MKL's copies are not usable here")
@pytest.mark.parametrize("speedup", [0.8, 1.5])
def test_16_bits_are_multiplied_as_float32_where_that_is_faster(speedup, products, monkeypatch):
    """Else as they are, and the head's float32 by plain products or oneDNN's, because MKL's copies are larger."""
    asked = {"mkl": speedup, "onednn": 0.9}
    monkeypatch.setattr(process, "speedup_by", lambda by, *size_and_dtype: asked[by])
    line = process.choose_products("auto", 64, 64, torch.bfloat16)
    assert packed.library == ("mkl" if speedup > 1 else "plain") and ("as float32" in line) == (speedup > 1)


def test_products_are_plain_where_copies_are_inexact(products, monkeypatch):
    monkeypatch.setattr(packed, "usable", lambda *_: False)
    monkeypatch.setattr(process, "speedup_by", None)
    why = {"auto": "copies are impossible or inexact", "onednn": "onednn is missing", "mkl": "mkl is missing"}
    for kind in ("auto", "onednn", "mkl", "plain"):
        assert why.get(kind, "as asked") in process.choose_products(kind) and packed.library == "plain"


@pytest.mark.parametrize("by", LIBRARIES)
@pytest.mark.parametrize("size", [(192, 512), (5120, 27648), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_trial_of_products_is_short_and_keeps_the_threads(by, size, dtype):
    before, began = torch.get_num_threads(), time.process_time()
    if packed.usable(dtype, by):
        assert process.speedup_by(by, *size, dtype) > 0 and torch.get_num_threads() == before
        assert time.process_time() - began < (0.4 if dtype == torch.float32 else 1.5)


def test_a_trial_ends_early_where_products_are_slow():
    """But not before one pair."""
    calls = []

    def slow() -> None:
        calls.append(1)
        ends = time.thread_time() + 0.06
        while time.thread_time() < ends:
            pass

    assert 0.5 < process.speedup(slow, slow) < 2 and len(calls) == 2
    calls.clear()
    assert process.speedup(lambda: calls.append(1), lambda: None) > 0 and len(calls) == process.PAIRS + 1


def test_a_busy_machine_does_not_change_a_trial(monkeypatch):
    """Other programs slow down two of three products, in another order for each number of the first one."""
    clock = [0.0]
    monkeypatch.setattr(process.time, "thread_time", lambda: clock[0])
    slow = cycle((3.0, 1.0, 2.0, 3.0, 1.7))

    def product(seconds: float) -> None:
        clock[0] += seconds * next(slow)

    for _ in range(5):
        next(slow)
        assert process.speedup(lambda: product(2e-4), lambda: product(1e-4)) == pytest.approx(2.0)


@needs_copies
def test_the_trial_of_products_has_the_size_of_the_model(products, monkeypatch):
    asked = []
    monkeypatch.setattr(process, "speedup_by", lambda by, *size: asked.append((by, *size)) or 1.0)
    model = random_model(hidden_size=64, intermediate_size=80)
    trial.choose_threads(model, 1)
    weights = sum(p.numel() for p in model.parameters())
    assert asked == [(by, 64, 80, torch.float32, weights) for by in LIBRARIES]


@needs_copies
@pytest.mark.parametrize("weights, count", [(0, 1), (process.ONE_THREAD - 1, 1), (2**24, 8), (2**40, 16)])
def test_weights_of_a_large_model_come_from_memory_in_the_trial(weights, count, monkeypatch):
    """One matrix stays in a cache, where few rows have another speed: 1.0x and 2.3x by oneDNN on a Zen 3."""
    multiplied = {process._product: [], process._packed_product: []}
    monkeypatch.setattr(packed, "pack_weight", lambda weight, by: weight)
    monkeypatch.setattr(packed, "multiply", F.linear)
    monkeypatch.setattr(process, "speedup", lambda *both: [multiply_all(one, multiplied) for one in both[:2]] and 1.0)
    assert process.speedup_by(LIBRARIES[0], 512, 4096, torch.float32, weights) == 1.0
    for found in multiplied.values():
        assert len(set(found)) == count and len(found) == 20 * len(process.ROWS_LARGE if count > 1 else process.ROWS)


def multiply_all(product, multiplied: dict) -> None:
    """Note the address of each matrix that 20 products take."""
    x, matrices = product.args
    taken = [next(matrices) for _ in range(20)]
    multiplied[product.func] += [matrix.data_ptr() for matrix in taken]
    product.func(x, iter(taken))


@needs_copies
@pytest.mark.parametrize("kind, said", [("auto", "yes"), ("plain", "differs")])
def test_products_that_are_not_exact_are_not_chosen_for_speed(kind, said, products, monkeypatch, capsys):
    """Here plain products fail in the trial and are the fastest ones."""
    monkeypatch.setattr(process, "speedup_by", lambda *_: 0.5)
    monkeypatch.setattr(trial, "first_difference", lambda _: None if packed.library != "plain" else "differs")
    model, threads = random_model(), torch.get_num_threads()
    found, library = trial.choose_threads(model, threads, trial=True, products=kind)
    assert found == said and library == packed.library and (library == "plain") == (kind == "plain")
    assert capsys.readouterr().out.startswith("products: plain")


@pytest.mark.parametrize(
    ("library", "same_bits", "least"),
    [("onednn", True, 64), ("onednn", False, 2), ("mkl", True, None), ("plain", False, None)],
)
def test_a_steps_attention_has_the_bits_of_training(library, same_bits, least, products, monkeypatch):
    """oneDNN takes products where training takes it; MKL takes few of them only where that changes no bit."""
    packed.use(library)
    monkeypatch.setattr(onednn, "multiplies_float32", lambda: True)
    monkeypatch.setattr(onednn, "agrees_with_mkl", lambda: same_bits)
    monkeypatch.setattr(onednn, "_switch", lambda: "oneDNN")
    by_onednn = [count for count in (1, 2, 63, 64, 999) if onednn.batch_matmul(count, 1) == "oneDNN"]
    assert by_onednn == [count for count in (1, 2, 63, 64, 999) if count == 1 or (least and count >= least)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("library", ["plain", "mkl"])
def test_slow_products_of_16_bits_are_said(dtype, fast, library, products, monkeypatch, capsys):
    """Also where MKL's copies in float32 help: a run in float32 needs none."""
    monkeypatch.setattr(packed, "usable", lambda dtype, by: fast or dtype == torch.float32)
    trial.choose_threads(random_model(dtype=dtype), 1, products=library)
    assert ("16 bits: this CPU has no fast" in capsys.readouterr().out) == (not fast and dtype != torch.float32)


def test_attention_stays_with_mkl_where_torch_has_no_other_product(products, monkeypatch):
    """As on a CPU without AVX-512: the switch to oneDNN does nothing there."""
    packed.use("onednn")
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    monkeypatch.setattr(onednn, "multiplies_float32", onednn.multiplies_float32.__wrapped__)
    monkeypatch.setattr(onednn, "_switch", None)
    with onednn.batch_matmul(999, 1):
        pass


@pytest.mark.parametrize("r", [0, 1, 16, 192])
def test_the_decode_step_is_exact_where_only_copies_use_onednn(r, products, monkeypatch):
    """As on a CPU without AVX-512: adapters are multiplied by MKL in training, and so they must be in sampling."""
    packed.use("onednn")
    monkeypatch.setattr(onednn, "multiplies_float32", lambda: False)
    model = load_model("tiny")
    if r:
        lora.inject(model, r)
    assert exact_step(model) is not None
