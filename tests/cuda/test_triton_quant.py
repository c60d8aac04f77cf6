"""The kernels for quantised layers: bits of models/quant.py, a product of few rows, and what they compile to."""

import on_triton as tt
import pytest
import torch
import torch.nn.functional as F
from test_quant import layer_of, weight_of

from models.cuda import products
from models.cuda.triton import quant as kernels
from models.quant import KINDS, dequantise

HALF = [torch.bfloat16, torch.float16]
FOUR_BITS = ["nf4", "nf4-double"]


def on_device(shape, kind, biased=False, dtype=torch.float32):
    bias = torch.linspace(-1, 1, shape[0]).to(dtype) if biased else None
    return layer_of(weight_of(shape), kind, bias).to(tt.DEVICE)


@tt.runs
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, *HALF], ids=str)
def test_dense_weight_has_the_bits_of_the_reference(kind, dtype):
    """Of whole and short blocks, odd counts, one entry, and more than one group of nested scales."""
    for shape in ((64, 64), (3, 43), (1, 1), (5, 64), (257, 129)):
        layer = on_device(shape, kind)
        assert torch.equal(kernels.dequantise(layer, dtype), dequantise(layer).to(dtype)), shape


@tt.runs
@pytest.mark.parametrize("kind", FOUR_BITS)
@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_few_rows_are_multiplied_as_by_the_dense_weight(kind, dtype):
    """With ragged numbers of rows and outputs, and outputs in columns of a wider tensor."""
    for rows, inputs, outputs, biased in ((1, 64, 16, True), (5, 192, 50, False), (16, 128, 97, True), (37, 64, 33, 0)):
        layer = on_device((outputs, inputs), kind, biased, dtype)
        x = (torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)) * 3).to(tt.DEVICE, dtype)
        dense, wide = layer.dense(dtype), torch.full((rows, outputs + 6), 7.0, device=tt.DEVICE, dtype=dtype)
        kernels.product(x, layer, wide[:, 2:-4])
        bias = layer.bias
        truth = F.linear(x.double(), dense.double(), None if bias is None else bias.double())
        expected = F.linear(x, dense, bias)
        tt.assert_within_the_error_of({"y": expected}, {"y": wide[:, 2:-4]}, {"y": truth})
        assert (wide[:, :2] == 7).all() and (wide[:, -4:] == 7).all()


@tt.runs
def test_layers_of_one_input_lie_side_by_side(monkeypatch):
    """As a model on CUDA computes them: few rows by the kernel, many by the dense weight, int8 always dense."""
    if tt.DEVICE == "cpu":
        monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda _: True))
    layers = [on_device((40, 64), "nf4", True, torch.bfloat16), on_device((24, 64), "int8", dtype=torch.bfloat16)]
    calls, product = [], kernels.product
    monkeypatch.setattr(kernels, "product", lambda *args: (calls.append(args), product(*args)))
    for rows, launches in ((3, 1), (kernels.FEW + 1, 0)):
        x = torch.randn(rows, 64, generator=torch.Generator().manual_seed(0)).to(tt.DEVICE, torch.bfloat16)
        expected = torch.cat([F.linear(x, layer.dense(x.dtype), layer.bias) for layer in layers], -1)
        torch.testing.assert_close(products.quant_product(x, layers), expected, atol=0.02, rtol=0.01)
        assert len(calls) == launches
        calls.clear()


def test_only_half_precision_and_whole_blocks_use_the_product():
    x, layer = torch.zeros(4, 64, dtype=torch.bfloat16), on_device((40, 64), "nf4-double")
    assert kernels.fits(x, layer) and kernels.fits(torch.zeros(kernels.FEW, 64, dtype=torch.float16), layer)
    assert not kernels.fits(torch.zeros(kernels.FEW + 1, 64, dtype=torch.bfloat16), layer)
    assert not kernels.fits(x.float(), layer) and not kernels.fits(x, on_device((40, 64), "int8"))
    assert not kernels.fits(torch.zeros(4, 80, dtype=torch.bfloat16), on_device((40, 80), "nf4"))


def launches(kind, rows, outputs, inputs, dtype, monkeypatch):
    """Return the launches for a layer of this size: of its dense weight and, in 4 bits, of a product."""
    small = layer_of(torch.ones(1, 64), kind, torch.ones(1, dtype=dtype))
    layer = small.to("meta")
    layer.out_features, layer.in_features = outputs, inputs
    with monkeypatch.context() as patch:
        names = ["_dequantise_blocks", "_dequantise_rows", "_multiply"]
        found = tt.record(patch, kernels, names)
        kernels.dequantise(layer, dtype)
        if kind in FOUR_BITS:
            empty = (torch.empty(shape, dtype=dtype, device="meta") for shape in ((rows, inputs), (rows, outputs)))
            x, out = empty
            kernels.product(x, layer, out)
    return found


@tt.compiles
@pytest.mark.parametrize("arch", tt.CHIPS)
@pytest.mark.parametrize("kind", [pytest.param("nf4", marks=pytest.mark.full), "nf4-double", "int8"])
def test_they_compile_and_fit_the_chip(arch, kind, monkeypatch, tmp_path):
    """Two programs fit on a processor, with all sums in registers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for rows, outputs, inputs in ((1, 3584, 18944), (128, 18944, 3584), (64, 512, 3584)):
        for launch in launches(kind, rows, outputs, inputs, torch.bfloat16, monkeypatch):
            binary = tt.compiled(*launch, arch)[1]()
            tt.check_binary(binary, arch, tensor_cores=False)
            assert 2 * binary.metadata.shared <= tt.SHARED[arch], (launch[0], rows)
            assert tt.spilled(binary) == 0, (launch[0], rows)


@tt.compiles
def test_no_rounding_is_fused_and_products_use_tensor_cores(monkeypatch):
    for launch in launches("nf4-double", 16, 3584, 896, torch.bfloat16, monkeypatch):
        assert launch[2]["enable_fp_fusion"] is False
        code = tt.compiled(*launch, 90)[1]().asm["ptx"]
        product = launch[0].__name__ == "_multiply"
        assert ("mma.sync" in code or "wgmma.mma_async" in code) == product and "fma.rn.f32" not in code


@tt.compiles
def test_rows_up_to_a_tile_launch_the_same_binary(monkeypatch):
    keys = {
        tt.compiled(*launches("nf4", rows, 896, 4864, torch.bfloat16, monkeypatch)[1], 90)[0] for rows in (1, 2, 15, 16)
    }
    assert len(keys) == 1
