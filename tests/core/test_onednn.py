"""Products with frozen weights: copies in a library's layout, oneDNN's switch, and products in place on a GPU."""

import gc
import threading
import time

import pytest
import torch
from conftest import EXACT_MKL
from test_linear import WIDTHS, adapted, formula, layers
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from models.cpu import onednn, packed
from models.cpu.onednn import onednn_matmul
from models.cpu.packed import weight_copy
from models.cuda import products as cuda_products
from models.hooks import hooks
from models.linear import Linear, joint_linear

pytestmark = pytest.mark.all_only


def test_without_copies_the_results_are_the_same_to_rounding(monkeypatch):
    these, x = adapted(), torch.randn(32, 32)
    copied = joint_linear(x, *these)
    monkeypatch.setattr(packed, "COPIES_SHARE", 0.0)
    packed.budget.cache_clear()
    packed._copies.clear()
    uncopied = joint_linear(x, *these)
    packed.budget.cache_clear()
    packed._copies.clear()
    torch.testing.assert_close(copied, uncopied, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("count", [2, 3])
def test_on_a_gpu_outputs_are_written_in_place(count, monkeypatch):
    """The meta device, given the hooks for CUDA, shows that they are taken; the CPU checks their numbers."""
    these, x, dy = layers()[-count:], torch.randn(20, 32), torch.randn(20, sum(WIDTHS[-count:]))
    y = torch.cat([formula(x, layer) for layer in these], -1)
    weights, biases = [layer.weight for layer in these], [layer.bias for layer in these]
    torch.testing.assert_close(cuda_products.joint_product(x, weights, biases).double(), y, atol=1e-5, rtol=1e-5)
    back = dy.double() @ torch.cat(weights).double()
    torch.testing.assert_close(cuda_products.joint_gradient(dy, weights).double(), back, atol=1e-5, rtol=1e-5)

    for name in ("joint_product", "joint_gradient"):
        monkeypatch.setattr(hooks("meta"), name, getattr(cuda_products, name))
    these = [layer.to("meta", torch.bfloat16) for layer in these]
    with Called() as called:
        y = Linear.joint_product(x.to("meta", torch.bfloat16), these)
        assert y.shape == dy.shape and Linear.joint_gradient(y, these).shape == x.shape
    assert called.names.count("aten::mm.out") == called.names.count("aten::addmm_") == count - 1
    assert called.names.count("aten::addmm.out") == called.names.count("aten::mm") == 1
    assert not {"aten::cat", "aten::add.Tensor"} & set(called.names)


class Called(TorchDispatchMode):
    """Record the names of called operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


def test_the_switch_is_off_when_the_contexts_of_all_threads_have_ended(monkeypatch):
    """A server's thread and its client's may both sample: the second may begin before the first ends."""
    monkeypatch.setattr(onednn, "multiplies_float32", lambda: True)
    before = torch.backends.mkldnn.matmul.fp32_precision
    began, ended = threading.Event(), threading.Event()

    def other() -> None:
        with onednn.batch_matmul(1, 1):
            began.set()
            assert ended.wait(10)

    thread = threading.Thread(target=other)
    with onednn.batch_matmul(1, 1):
        thread.start()
        assert began.wait(10)
    assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    ended.set()
    thread.join()
    assert torch.backends.mkldnn.matmul.fp32_precision == before != "bf16"


def test_the_switch_is_off_after_two_threads_try_it_at_once(monkeypatch):
    """Both find no earlier result; the second begins while the first has it on, and ends after the first."""
    before, began = torch.backends.mkldnn.matmul.fp32_precision, threading.Event()
    threads = [threading.Thread(target=onednn.multiplies_float32.__wrapped__) for _ in range(2)]

    def accurate(*_) -> bool:
        began.set()
        if threading.current_thread() is threads[1]:
            threads[0].join()
        time.sleep(0.1)
        return True

    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    monkeypatch.setattr(packed, "accurate", accurate)
    threads[0].start()
    assert began.wait(10)
    threads[1].start()
    threads[1].join()
    after, torch.backends.mkldnn.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision, before
    assert after == before


PARTS = [slice(*ends) for ends in ((0, 1), (1, 3), (5, 12), (0, 16), (5, 37), (0, 128), (97, 130), (0, 600))]
LIBRARIES = [
    pytest.param(by, marks=pytest.mark.skipif(not packed.usable(torch.float32, by), reason=f"{by} is not usable here"))
    for by in ("onednn", "mkl")
]


@pytest.fixture(params=LIBRARIES)
def library(request):
    """Each library that this machine has, in turn; conftest.py restores the choice."""
    packed.use(request.param)
    return request.param


def test_copies_are_made_once_and_follow_their_weight(library):
    (layer, *_), x = layers(), torch.randn(16, 32)
    before, first = layer(x), weight_copy([layer.weight])
    assert first is not None and weight_copy([layer.weight]) is first
    with torch.no_grad():
        layer.weight.mul_(2)
    assert weight_copy([layer.weight]) is not first
    torch.testing.assert_close(layer(x), 2 * before)
    layer.weight = nn.Parameter(-layer.weight.detach(), requires_grad=False)
    torch.testing.assert_close(layer(x), -2 * before)
    gc.collect()
    kept = len(packed._copies)
    del layer, first, _
    gc.collect()
    assert len(packed._copies) < kept


@pytest.mark.skipif(not (EXACT_MKL and torch.backends.mkl.is_available()), reason="MKL's copies may be unusable here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_mkl_is_usable_where_it_is_known_to_be(dtype):
    """Tests of its copies skip where it is not, so that a fault of ours must not look like a missing library."""
    assert packed.usable.__wrapped__(dtype, "mkl")


def test_another_library_drops_the_copies(library):
    (layer, *_), kept = layers(), packed.bytes_of_copies()
    copy = weight_copy([layer.weight])
    assert packed.bytes_of_copies() == kept + 4 * layer.weight.numel()
    packed.use(library)
    assert weight_copy([layer.weight]) is copy
    packed.use("plain")
    assert packed.bytes_of_copies() == 0 and weight_copy([layer.weight]) is None


LARGE = [pytest.mark.full] * (not EXACT_MKL)  # where no bits are compared the smaller sizes suffice


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(1, 1), (31, 77), (192, 576), (896, 300), pytest.param(4864, 96, marks=LARGE)]
)
def test_mkl_multiplies_as_float32_whatever_the_rows_and_threads(inputs, outputs, bias, dtype, threads):
    """With Intel's AVX-512 a row's bits depend neither on the rows beside it nor on the threads that packed and
    multiplied. On other CPUs the trial of a run decides."""
    if not packed.usable(dtype, "mkl"):
        pytest.skip("mkl is not usable here")
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
    x, weight, b = draw(600, inputs), draw(outputs, inputs), draw(outputs) if bias else None
    expected = x.double() @ weight.double().T + (b.double() if bias else 0)
    threads(1)
    first = packed.multiply(x, packed.pack_weight(weight, "mkl"), b)
    close = {torch.float32: 1e-5, torch.bfloat16: 2**-7, torch.float16: 2**-10}[dtype]
    assert first.dtype == dtype and (first - expected).abs().max() <= close * expected.abs().max()
    for number in (1, 2, 3, 16):
        threads(number)
        copy = packed.pack_weight(weight, "mkl")
        assert torch.get_num_threads() == number
        for rows in PARTS if EXACT_MKL else ():
            assert torch.equal(packed.multiply(x[rows], copy, b), first[rows])
        for strided in (x[:, None], x.unflatten(0, (2, 300)), x.T.contiguous().T, x[:0]):
            assert torch.equal(packed.multiply(strided, copy, b), packed.multiply(strided.contiguous(), copy, b))


@pytest.mark.parametrize("number", [1, 2, 3, 16])
@torch.no_grad()
def test_padding_rows_are_multiplied_only_where_a_row_depends_on_others(number, library, threads, monkeypatch):
    """Left out, they leave the bits of the other rows as they are, and zeros in their place."""
    threads(number)
    generator, multiply, taken = torch.Generator().manual_seed(0), packed.multiply, []
    x, weight, bias = (torch.randn(*shape, generator=generator) for shape in ((64, 896), (200, 896), (200,)))
    copy = packed.pack_weight(weight)
    many, x, expected = x, x[:32], multiply(x, copy, bias)[:32]
    independent = library == "onednn" and packed.independent_rows(library, 200, 896, number)
    monkeypatch.setattr(packed, "multiply", lambda x, *rest: taken.append(len(x)) or multiply(x, *rest))
    for rows in (1, 3, 9, 17, 31, 32) if EXACT_MKL or library == "onednn" else ():
        product = packed.multiply_first(x, rows, copy, bias)
        assert product.shape == expected.shape and torch.equal(product[:rows], expected[:rows])
        assert taken.pop() == (rows if independent else 32) and not taken
        assert not independent or not product[rows:].any()
    packed.multiply_first(many, 50, copy, bias)
    assert taken.pop() == 64, "so many rows are not tried"
    monkeypatch.setattr(packed, "TRIED_SIZE", 1000)
    packed.multiply_first(x, 1, copy, bias)
    assert taken.pop() == 32, "nor is so large a layer"
    monkeypatch.setattr(packed, "TRIED_SIZE", 10**6)
    monkeypatch.setattr(packed, "independent_rows", lambda *_: False)
    packed.multiply_first(x, 1, copy, bias)
    assert taken == [32]


def test_copies_stay_within_their_share_of_memory(library, monkeypatch):
    first, second, _ = layers()
    room = packed.bytes_of_copies() + 4 * first.weight.numel()
    monkeypatch.setattr(packed, "budget", lambda: room)
    assert weight_copy([first.weight]) is not None and weight_copy([second.weight]) is None
    assert weight_copy([first.weight], transposed=True) is None


def test_trainable_weights_are_never_copied():
    trains = layers(frozen=False)
    assert weight_copy([layer.weight for layer in trains]) is None and trains[0].weight not in packed._copies


def test_onednn_matmul_is_float32_and_restores_the_switch():
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has no such switch")
    before, (x, w) = matmul.fp32_precision, torch.randn(2, 300, 300)
    with pytest.raises(KeyError), onednn_matmul():
        assert (matmul.fp32_precision == "bf16") == onednn.multiplies_float32()
        torch.testing.assert_close((x @ w).double(), x.double() @ w.double(), atol=2e-4, rtol=0)
        raise KeyError
    assert matmul.fp32_precision == before


def test_onednn_matmul_does_nothing_where_it_would_round(monkeypatch):
    matmul = getattr(torch.backends.mkldnn, "matmul", None)
    if not hasattr(matmul, "fp32_precision"):
        pytest.skip("this torch has no such switch")
    rounded = lambda x, w: x.bfloat16().float() @ w.bfloat16().float()  # noqa: E731
    assert packed.accurate(48, 256, torch.matmul) and not packed.accurate(48, 256, rounded)
    monkeypatch.setattr(onednn, "multiplies_float32", lambda: False)
    before = matmul.fp32_precision
    with onednn_matmul():
        assert matmul.fp32_precision == before
