"""Settings of the process: the number of threads, and reuse of freed memory."""

import os
import subprocess
import sys
import time
from itertools import cycle
from statistics import median

import pytest
import torch
from conftest import EXACT_MKL, random_model
from torch import nn

import lora
from benchmarks import sides
from models import fast_matmul, load_model, trial
from models.cpu import onednn, packed, process, speed
from models.cpu import step as decode
from models.cpu.step import exact_step
from models.engine import Engine
from models.linear import Linear, joint_linear
from models.logprob import head_logits, token_logprobs
from models.sizes import Sizes, sizes_of

pytestmark = pytest.mark.all_only
EACH_TRIAL = True

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


@pytest.fixture
def products(monkeypatch):
    """Restores the choice of products. Small models get a trial of speed too."""
    monkeypatch.setattr(process, "ONE_THREAD", 0)
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
        line = process.choose_products(kind, random_model())
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


def planted_costs(monkeypatch, **costs: float) -> list[str]:
    """Let each round of the trial of speed find these costs; return the list that gets the libraries in their order."""
    order = []
    monkeypatch.setattr(speed.Tried, "warm_up", lambda one: order.append(one.library))
    monkeypatch.setattr(speed.Tried, "seconds", lambda one, _: costs[one.library])
    return order


@needs_copies
@pytest.mark.parametrize("multiplies, independent", [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize("fastest", ["onednn", "mkl", "plain"])
def test_a_library_that_is_clearly_faster_is_chosen(fastest, multiplies, independent, products, monkeypatch):
    monkeypatch.setattr(onednn, "multiplies_float32", lambda: multiplies)
    monkeypatch.setattr(packed, "independent_rows", lambda *_: independent)
    if fastest not in process.usable_libraries():
        pytest.skip(f"{fastest} is not usable here")
    planted_costs(monkeypatch, **({"onednn": 1.3, "mkl": 1.3, "plain": 1.3} | {fastest: 1.0}))
    line = process.choose_products("auto", random_model())
    assert packed.library == fastest and "speed of copies here: " in line and "count as equal" not in line


@needs_copies
@pytest.mark.parametrize(
    ("multiplies", "independent", "order"),
    [(True, True, "mkl onednn plain"), (True, False, "onednn plain mkl"), (False, False, "plain mkl onednn")],
)
def test_equally_fast_libraries_are_chosen_in_one_order(multiplies, independent, order, products, monkeypatch):
    """Two runs of one command must choose alike, although the fastest changes from trial to trial."""
    monkeypatch.setattr(onednn, "multiplies_float32", lambda: multiplies)
    monkeypatch.setattr(packed, "independent_rows", lambda *_: independent)
    order = [by for by in order.split() if by in process.usable_libraries()]
    for fastest in order:
        tried = planted_costs(monkeypatch, **(dict.fromkeys(order, 1.15) | {fastest: 1.0}))
        line = process.choose_products("auto", random_model())
        assert packed.library == order[0] and tried == order, line
        assert ("count as equal" in line) == (fastest != order[0])


@needs_copies
def test_a_small_model_gets_the_first_library_without_a_trial(products, monkeypatch):
    monkeypatch.setattr(process, "ONE_THREAD", 10_000_000)
    monkeypatch.setattr(speed, "race", None)
    for multiplies, first in ((True, "onednn"), (False, "plain")):
        monkeypatch.setattr(onednn, "multiplies_float32", lambda multiplies=multiplies: multiplies)
        monkeypatch.setattr(packed, "independent_rows", lambda _: False)
        if first in process.usable_libraries():
            assert "no trial of speed" in process.choose_products("auto", random_model()) and packed.library == first


@pytest.mark.parametrize("by", LIBRARIES)
def test_rows_are_called_independent_if_no_number_of_rows_changes_them(by, monkeypatch):
    if by == "mkl" and EXACT_MKL:
        assert packed.independent_rows(by)
    multiply = packed.multiply
    monkeypatch.setattr(packed, "multiply", lambda x, *more: multiply(x, *more) * (1 + 1e-6 * (len(x) == 1)))
    assert not packed.independent_rows.__wrapped__(by)


@pytest.mark.skipif("mkl" not in LIBRARIES, reason="MKL's copies are not usable here")
@pytest.mark.parametrize("cost", [0.5, 1.5])
def test_16_bits_are_multiplied_as_float32_where_that_is_faster(cost, products, monkeypatch):
    planted_costs(monkeypatch, onednn=1.0, plain=1.0, mkl=cost)
    line = process.choose_products("auto", random_model(dtype=torch.bfloat16))
    assert (packed.library == "mkl") == ("as float32" in line) == (cost < 1)


def test_products_are_plain_where_copies_are_inexact(products, monkeypatch):
    monkeypatch.setattr(packed, "usable", lambda *_: False)
    monkeypatch.setattr(speed, "race", None)
    why = {"auto": "copies are impossible or inexact", "onednn": "onednn is missing", "mkl": "mkl is missing"}
    for kind in ("auto", "onednn", "mkl", "plain"):
        line = process.choose_products(kind, random_model())
        assert why.get(kind, "as asked") in line and packed.library == "plain"


@pytest.mark.parametrize(
    ("ratios", "side"),
    [
        ([1.0], ""),
        ([1.5, 1.45], "slower"),
        ([1.5, 1.3], ""),
        ([1.3, 1.4, 1.3], "slower"),
        ([1.0, 1.3, 1.1], ""),
        ([1.0, 1.1, 0.99], "same"),
        ([1.0, 1.02, 1.5, 1.0, 1.0, 1.0, 1.01], "same"),
        ([1.0, 1.3] * 20, ""),
    ],
)
def test_rounds_are_repeated_until_they_agree(ratios, side):
    assert speed._side(ratios) == side


@needs_copies
def test_a_busy_machine_does_not_change_the_choice(products, monkeypatch):
    """Every third measurement takes three times as long, in another place of each round. The slower one leaves."""
    slow, counts = cycle((3.0, 1.0, 1.0, 1.0, 3.0, 1.0, 1.0)), dict.fromkeys(process.usable_libraries(), 0)

    def seconds(one, _):
        counts[one.library] += 1
        return next(slow) * (1.0 if one.library == "plain" else 2.0)

    monkeypatch.setattr(speed.Tried, "warm_up", lambda _: None)
    monkeypatch.setattr(speed.Tried, "seconds", seconds)
    for _ in range(7):
        next(slow)
        assert process.best_library(speed.part_of(random_model()))[0] == "plain"
    assert counts["plain"] > counts[LIBRARIES[0]]


@needs_copies
def test_a_trial_that_stays_unsure_ends(products, monkeypatch):
    """After LIMIT seconds of processor time, with the medians so far."""
    clock, costs = [0.0], cycle((1.0, 1.0, 1.2, 1.05))
    monkeypatch.setattr(speed.time, "process_time", lambda: clock[0])
    monkeypatch.setattr(speed.Tried, "warm_up", lambda _: None)
    monkeypatch.setattr(speed, "_side", lambda _: "")

    def seconds(one, _):
        clock[0] += 0.01
        return next(costs)

    monkeypatch.setattr(speed.Tried, "seconds", seconds)
    process.best_library(speed.part_of(random_model()))
    assert speed.LIMIT < clock[0] < 1.2 * speed.LIMIT


@needs_copies
def test_the_speed_of_the_step_that_the_bits_allow_decides(products, monkeypatch):
    """A step of four rows is faster; where its bits differ from training's, the trial is repeated with sixteen."""
    monkeypatch.setattr(packed, "usable", lambda dtype, by: by == LIBRARIES[0])
    monkeypatch.setattr(decode, "_agrees", lambda step, _: step.row_multiple == 16 or packed.library == "plain")
    monkeypatch.setattr(decode, "_row_multiples", lambda _: [4, 16])
    asked = []

    def race(_part, steps, rows):
        asked.append((dict(steps), rows))
        fast = steps[LIBRARIES[0]][1] == 4
        return (LIBRARIES[0] if fast else "plain"), dict.fromkeys(steps, 1.0)

    monkeypatch.setattr(speed, "race", race)
    model = random_model(intermediate_size=96)
    lora.inject(model, r=16)
    assert process.best_library(model, 7)[0] == "plain"
    assert [(steps[LIBRARIES[0]][1], rows) for steps, rows in asked] == [(4, 7), (16, 7)]


def test_the_trial_leaves_the_model_as_it_was(products):
    """It takes no random number, and no gradient stays."""
    model = load_model("tiny")
    lora.inject(model, r=4)
    before, seed = {name: p.clone() for name, p in model.named_parameters()}, torch.get_rng_state()
    process.best_library(model, 3)
    assert all(torch.equal(p, before[name]) and p.grad is None for name, p in model.named_parameters())
    assert torch.equal(torch.get_rng_state(), seed)
    process.best_library(speed.random_part(sizes_of(model.config), torch.float32))
    assert torch.equal(torch.get_rng_state(), seed)


@pytest.mark.parametrize("layers, words", [(28, 1536), (30, 49152), (28, 152064), (1, 100)])
def test_a_part_has_as_large_a_share_of_the_head_as_of_the_layers(layers, words):
    sizes = Sizes(layers, 576, 1536, 576, 192, 9, 3, words, True, "", 0, True, False, 0, "none")
    part = speed.random_part(sizes, torch.float32)
    share = part.model.config.num_hidden_layers / layers
    assert len(part.head_VD) == pytest.approx(share * words, abs=speed.WORDS) and part.whole == sizes.weights
    assert sum(p.numel() for p in part.model.parameters()) < 3 * speed.WEIGHTS


@needs_copies
@pytest.mark.parametrize("rows", [1, 32])
def test_the_chosen_library_wins_in_a_loop_that_is_measured_apart(rows, products):
    """Each library is forced in turn on an epoch's work: the engine samples, and training gives gradients. Where one
    takes 1.3 times as long as another, it must not be the one that was chosen. Other programs only add time, so the
    least counts."""
    model = sides.adapted(sides.random(sides.SHAPES["small"] | {"num_hidden_layers": 2}))
    chosen, seconds = process.best_library(model, rows)[0], {by: [] for by in process.usable_libraries()}
    engines = {}
    for repeat in range(3):
        for by, found in seconds.items():
            with packed.taken(by):
                engine = engines.setdefault(by, Engine(model, rows, 128, lora.adapter_version(model)))
                began = time.process_time()
                sample_and_train(model, engine, rows)
                found += [time.process_time() - began] * (repeat > 0)
    least = {by: min(found) for by, found in seconds.items()}
    assert least[chosen] < 1.3 * min(least.values()), (chosen, least)


def sample_and_train(model, engine: Engine, rows: int, prompt: int = 16, new: int = 12) -> None:
    """Sample a turn after each of some prompts, and compute the gradient of the log-probabilities of its tokens."""
    for i in range(rows):
        slot = engine.open((0, i))
        engine.feed(slot, [(7 * i + t) % 1000 for t in range(prompt)])
    for turn in list(engine.run(new, 1.0, frozenset())):
        engine.close(turn.slot)
    ids_N = torch.arange(rows * (prompt + new)) % 1000
    sequences_ST = torch.arange(len(ids_N)).view(rows, -1)
    with fast_matmul():
        hidden_ND = model(ids_N[None], sequences_ST=sequences_ST)[0]
        logprobs_N = token_logprobs(hidden_ND, model.lm_head.weight, ids_N)[0]
        torch.autograd.grad(logprobs_N.sum(), [p for p in model.parameters() if p.requires_grad])


@needs_copies
@pytest.mark.parametrize("kind, said", [("auto", "yes"), ("plain", "differs")])
def test_products_that_are_not_exact_are_not_chosen_for_speed(kind, said, products, monkeypatch, capsys):
    """Here plain products fail in the trial and are the fastest ones."""
    planted_costs(monkeypatch, plain=1.0, onednn=2.0, mkl=2.0)
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


@pytest.mark.parametrize("agree", [True, False])
@pytest.mark.parametrize("rows, computed", [(1, 4), (4, 4), (5, 8), (12, 12), (13, 16), (16, 16)])
def test_plain_logits_of_few_rows_are_padded_to_four(rows, computed, agree, products, monkeypatch):
    """Where that gives the same bits, else to sixteen."""
    packed.use("plain")
    counts, linear = [], packed.F.linear
    monkeypatch.setattr(packed, "few_rows_agree", lambda *_: agree)
    monkeypatch.setattr(packed.F, "linear", lambda x, weight: counts.append(len(x)) or linear(x, weight))
    hidden_ND, weight_VD = torch.randn(rows, 64), torch.randn(300, 64)
    logits = head_logits(hidden_ND, weight_VD, 1.0)
    torch.testing.assert_close(logits, hidden_ND @ weight_VD.mT)
    assert counts == [computed if agree else 16]


def test_few_plain_rows_agree_if_no_number_of_rows_changes_them(monkeypatch):
    linear = packed.F.linear
    monkeypatch.setattr(packed.F, "linear", lambda x, weight: linear(x, weight) * (1 + 1e-6 * (len(x) == 8)))
    assert not packed.few_rows_agree.__wrapped__(96, 64, 1)


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


def test_a_race_tries_no_more_rows_than_tell_libraries_apart(monkeypatch):
    """A cache for as many rows as rollout_batch_size may name would not fit into memory."""
    tried = []

    class Noted:
        library = "plain"

        def __init__(self, _part, _library, _step, rows):
            tried.append(rows)

        def warm_up(self):
            pass

        def seconds(self, _work):
            return 1.0

    monkeypatch.setattr(speed, "Tried", Noted)
    assert speed.race(None, {"plain": None}, 10**9) == ("plain", {"plain": 1.0}) and tried == [speed.MOST_ROWS]
