"""Corners of the Triton kernels' ranges: no rows and one, sizes of 1 and at the edges of tiles, extreme logits."""

import math

import on_triton as tt
import pytest
import torch
import torch.nn.functional as F
from test_triton_attention import inputs as attention_inputs
from test_triton_attention import results as attention_results
from test_triton_block import compare as compare_block
from test_triton_block import plain_add_norm
from test_triton_linear import results as linear_results
from test_triton_logprob import MODES, problem, torch_logprobs
from test_triton_logprob import results as head_results
from test_triton_quant import on_device
from test_triton_step import assert_close, draw, rms_norm

from models import engine
from models.attention import masked_attention
from models.cuda.triton import attention, block, linear, logprob, quant, sample, step
from models.cuda.triton.logprob import token_logprobs
from models.decoder import rotate
from models.hooks import hooks, nothing_faster
from models.quant import dequantise

HALF = [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.full)]


@tt.needs_no_device
@pytest.mark.full
def test_under_the_interpreter():
    tt.run_under_the_interpreter({"corners": 170})


# ---- the head ----

mode_names = {"ids": lambda mode: "+".join(mode) or "made in the forward"}


def compare_head(hidden_ND, weight_VD, targets_N, **options):
    """Assert that results are those of the torch function in float64."""
    truth = head_results(torch_logprobs, hidden_ND.double(), weight_VD.double(), targets_N, **options)
    got = head_results(token_logprobs, hidden_ND, weight_VD, targets_N, **options)
    for name, expected in truth.items():
        size = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
        torch.testing.assert_close(
            got[name].double(), expected, atol=2e-6 * size, rtol=0, msg=lambda m, n=name: f"{n}: {m}"
        )
    return got


@tt.runs
@pytest.mark.parametrize("mode", MODES, **mode_names)
@pytest.mark.parametrize(("N", "D", "V"), [(1, 1, 1), (3, 1, 2), (64, 16, 64), (65, 17, 65), (2, 3, 129)])
def test_head_of_sizes_at_the_edges_of_tiles(N, D, V, mode, monkeypatch):
    monkeypatch.setattr(logprob, "SLAB", 64)
    compare_head(*problem(N, V, D, torch.float32), **mode)


@tt.runs
@pytest.mark.parametrize("mode", MODES, **mode_names)
def test_head_of_no_rows_has_empty_gradients(mode):
    hidden_ND, weight_VD, targets_N = problem(4, 97, 24, torch.float32)
    got = head_results(token_logprobs, hidden_ND[:0], weight_VD, targets_N[:0], **mode)
    assert got["logprobs"].shape == got["entropy"].shape == (0,) and got["hidden"].shape == (0, 24)
    assert "weight" not in got or torch.equal(got["weight"], torch.zeros_like(weight_VD))


@tt.runs
@pytest.mark.parametrize("mode", MODES, **mode_names)
@pytest.mark.parametrize("temperature", [1e-6, 1e-3, 1e3, 1e6])
def test_head_at_extreme_temperatures(temperature, mode):
    compare_head(*problem(5, 97, 24, torch.float32), temperature=temperature, **mode)


@tt.runs
@pytest.mark.parametrize("mode", MODES, **mode_names)
def test_head_of_equal_logits_is_uniform(mode, monkeypatch):
    monkeypatch.setattr(logprob, "SLAB", 64)
    hidden_ND, weight_VD, targets_N = problem(5, 150, 24, torch.float32)
    got = head_results(token_logprobs, hidden_ND, weight_VD[:1].expand(150, -1).contiguous(), targets_N, **mode)
    torch.testing.assert_close(got["logprobs"], torch.full_like(got["logprobs"], -math.log(150)), atol=1e-5, rtol=0)
    torch.testing.assert_close(got["entropy"], torch.full_like(got["entropy"], math.log(150)), atol=1e-5, rtol=0)
    assert got["hidden"].abs().max() < 1e-5, "neither the probability of a token nor the entropy changes"


@tt.runs
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_entropy_gradient_of_huge_logits_is_zero(size):
    """One token has all probability; the largest logits are near float32's end."""
    hidden_ND, weight_VD, targets_N = problem(6, 97, 24, torch.float32)
    hidden_ND = hidden_ND.requires_grad_()
    _, entropy_N = token_logprobs(hidden_ND * size, weight_VD, targets_N, entropy_grad=True)
    entropy_N.sum().backward()
    assert (entropy_N == 0).all() and (hidden_ND.grad == 0).all()


def cut_head(V, D, first, last, dtype=torch.float32, rows=6):
    """Return hidden_ND and weight_VD whose logits are minus infinity outside of the tokens first ... last - 1."""
    hidden_ND, weight_VD, _ = problem(rows, V, D, dtype)
    hidden_ND[:, 0] = 1
    weight_VD[:first, 0] = weight_VD[last:, 0] = -math.inf
    return hidden_ND, weight_VD


CUTS = [(0, 3), (70, 73), (0, 150), (149, 150), (63, 65)]  # of 150 tokens in tiles of 32 and slabs of 64


@tt.runs
@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_tokens_of_logit_minus_infinity_change_nothing(cut, monkeypatch):
    """Log-probabilities and entropies are those of the other tokens alone, in every tile and slab."""
    monkeypatch.setattr(logprob, "SLAB", 64)
    hidden_ND, weight_VD = cut_head(150, 24, *cut)
    targets_N = torch.arange(6, device=tt.DEVICE) % (cut[1] - cut[0])
    logits_NV = (hidden_ND.double() @ weight_VD[slice(*cut)].double().T).log_softmax(-1)
    logprobs_N, entropy_N = token_logprobs(hidden_ND, weight_VD, targets_N + cut[0])
    expected_N = logits_NV.gather(1, targets_N[:, None])[:, 0]
    torch.testing.assert_close(logprobs_N.double(), expected_N, atol=2e-6, rtol=0)
    torch.testing.assert_close(entropy_N.double(), -(logits_NV * logits_NV.exp()).sum(-1), atol=2e-6, rtol=0)
    outside = [token for token in (0, 64, 149) if not cut[0] <= token < cut[1]]
    for token in outside:
        assert (token_logprobs(hidden_ND, weight_VD, torch.full_like(targets_N, token))[0] == -math.inf).all()


@tt.runs
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_logit_that_is_no_number_makes_its_row_nan(wrong):
    hidden_ND, weight_VD, targets_N = problem(5, 97, 24, torch.float32)
    hidden_ND[2, 3] = wrong
    logprobs_N, entropy_N = token_logprobs(hidden_ND, weight_VD, targets_N)
    assert logprobs_N.isnan().tolist() == entropy_N.isnan().tolist() == [False, False, True, False, False]


# ---- the sampler ----

UNIFORMS = [0.0, 2.0**-53, 1e-7, 0.25, 0.5, 1 - 2.0**-24, 1 - 2.0**-53]


@pytest.fixture
def plain(monkeypatch):
    """Return the torch sampler."""
    monkeypatch.setattr(hooks(tt.DEVICE), "sample", nothing_faster)
    return engine.sample


def uniforms(numbers=UNIFORMS) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64, device=tt.DEVICE)


@tt.runs
@pytest.mark.parametrize("V", [1, 2, 31, 32, 33, 64, 65, 150])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampler_of_equal_logits_takes_equal_shares(V, temperature, plain):
    """At temperature 0 the first token, as torch's argmax."""
    hidden_BD, weight_VD, _ = problem(len(UNIFORMS), V, 5, torch.float32)
    weight_VD = weight_VD[:1].expand(V, -1).contiguous()
    ids_B, logprobs_B = sample.sample(hidden_BD, weight_VD, temperature, uniforms())
    expected_B, _ = plain(hidden_BD.double(), weight_VD.double(), temperature, uniforms())
    assert torch.equal(ids_B, expected_B)
    assert ids_B.tolist() == [int(number * V) if temperature else 0 for number in UNIFORMS]
    torch.testing.assert_close(logprobs_B, torch.full_like(logprobs_B, -math.log(V)), atol=2e-6, rtol=0)


@tt.runs
@pytest.mark.parametrize("cut", CUTS, ids=str)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampler_takes_no_token_of_logit_minus_infinity(cut, temperature, plain):
    hidden_BD, weight_VD = cut_head(150, 24, *cut, rows=len(UNIFORMS))
    ids_B, logprobs_B = sample.sample(hidden_BD, weight_VD, temperature, uniforms())
    expected_B, expected = plain(hidden_BD.double(), weight_VD[slice(*cut)].double(), temperature, uniforms())
    assert torch.equal(ids_B, expected_B + cut[0])
    torch.testing.assert_close(logprobs_B.double(), expected, atol=2e-6, rtol=0)


@tt.runs
@pytest.mark.parametrize("dtype", tt.FLOATS, ids=str)
@pytest.mark.parametrize("temperature", [1e-6, 1e-2, 1e6])
def test_sampler_at_extreme_temperatures(temperature, dtype, plain):
    hidden_BD, weight_VD, _ = problem(len(UNIFORMS), 97, 24, dtype)
    ids_B, logprobs_B = sample.sample(hidden_BD, weight_VD, temperature, uniforms())
    expected_B, _ = plain(hidden_BD.float(), weight_VD.float(), temperature, uniforms())  # other weights vanish there
    logits_BV = hidden_BD.double() @ weight_VD.double().T / temperature
    expected = logits_BV.log_softmax(-1).gather(1, ids_B[:, None])[:, 0]
    assert torch.equal(ids_B, expected_B)
    torch.testing.assert_close(logprobs_B.double(), expected, atol=2e-6 + 3e-7 * float(logits_BV.abs().max()), rtol=0)


@tt.runs
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_sampler_of_no_rows(temperature):
    hidden_BD, weight_VD, _ = problem(1, 97, 24, torch.float32)
    ids_B, logprobs_B = sample.sample(hidden_BD[:0], weight_VD, temperature, uniforms([]))
    assert ids_B.shape == logprobs_B.shape == (0,) and ids_B.dtype == torch.long


# ---- attention ----


def compare_attention(q, k, v, positions_BT, window):
    """Assert that the output and the gradients have at most 1.5 times the errors of torch's in the same dtype."""
    wide = [x.double() for x in (q, k, v)]
    truth = attention_results(masked_attention, *wide, positions_BT, window)
    reference = attention_results(masked_attention, q, k, v, positions_BT, window)
    got = attention_results(attention.attend, q, k, v, positions_BT, window)
    found = ({name: x.double() for name, x in results.items()} for results in (reference, got, truth))
    tt.assert_within_the_error_of(*found, most=1.5, mean=1.15)


@tt.runs
@pytest.mark.parametrize("E", [2, 48, 64, 80, 128, 256])
def test_attention_with_heads_of_any_width(E):
    compare_attention(*attention_inputs(1, 4, 2, 5, 70, E, torch.bfloat16), None)


@tt.runs
@pytest.mark.parametrize(
    ("T", "L", "window"),
    [(1, 1, None), (63, 63, 1), (64, 64, 64), (65, 65, 63), (65, 65, None), (2, 129, 65), (2, 129, 1000), (1, 65, 1)],
)
def test_attention_at_the_edges_of_blocks(T, L, window):
    """A head for each key head, so that a tile has 64 queries."""
    compare_attention(*attention_inputs(2, 2, 2, T, L, 16, torch.float32), window)


@tt.runs
@pytest.mark.parametrize(("B", "T"), [(0, 5), (0, 0), (2, 0)])
def test_attention_without_queries_has_zero_gradients(B, T):
    q, k, v, positions_BT = attention_inputs(B, 4, 2, T, 70, 16, torch.float32)
    got = attention_results(attention.attend, q, k, v, positions_BT, None)
    assert got["o"].shape == q.shape and got["q"].shape == q.shape
    assert got["k"].shape == k.shape and not got["k"].any() and not got["v"].any()


@tt.runs
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0], [0, 3, 0]], ids=str)
def test_packed_attention_of_empty_sequences(counts):
    K, E, N = 2, 16, sum(counts)
    k_UZEL, v_UZLE = draw(2, 4 * K, E, 64, dtype=torch.float32), draw(2, 4 * K, 64, E, dtype=torch.float32)
    q_NHE, positions_N = draw(N, 4, E, dtype=torch.float32), torch.arange(60, 60 + N, device=tt.DEVICE)
    bounds = torch.tensor([0, *counts], device=tt.DEVICE).cumsum(0)
    places_B = torch.arange(len(counts), device=tt.DEVICE)
    longest = max(counts, default=0)
    out_NHE = attention.attend_packed(q_NHE, k_UZEL, v_UZLE, positions_N, bounds, places_B, longest, K)
    own = slice(K, 2 * K)  # the second sequence's rows of the cache
    if N:
        expected = masked_attention(q_NHE[None].transpose(1, 2), k_UZEL[:, own], v_UZLE[:, own], positions_N[None])
        torch.testing.assert_close(out_NHE, expected[0].transpose(0, 1), atol=1e-5, rtol=0)
    assert out_NHE.shape == q_NHE.shape


# ---- linear layers ----


@tt.runs
@pytest.mark.parametrize("dtype", tt.FLOATS, ids=str)
@pytest.mark.parametrize(("N", "D", "outputs"), [(1, 1, 1), (64, 64, 128), (65, 63, 129), (63, 65, 127), (0, 24, 40)])
def test_product_at_the_edges_of_tiles(N, D, outputs, dtype):
    x, weight, bias = draw(N, D, dtype=dtype), draw(outputs, D, dtype=dtype), draw(outputs, dtype=dtype)
    truth = linear_results(F.linear, *(t.double() for t in (x, weight, bias)), True)
    reference, got = (linear_results(f, x, weight, bias, True) for f in (F.linear, linear.product))
    assert all(got[name].shape == expected.shape for name, expected in truth.items())
    if N:
        tt.assert_within_the_error_of(reference, got, truth)
    else:
        assert not got["weight"].any() and not got["bias"].any()


# ---- quantised layers ----


@tt.runs
@pytest.mark.parametrize("kind", ["nf4", "nf4-double", "int8"])
@pytest.mark.parametrize("shape", [(1, 2), (1, 63), (1, 65), (32, 64), (33, 64), (2, 1024), (1, 2049)], ids=str)
def test_dequantised_at_the_edges_of_programs(shape, kind):
    """A program writes 2,048 weights."""
    layer = on_device(shape, kind)
    assert torch.equal(quant.dequantise(layer, torch.bfloat16), dequantise(layer).bfloat16())


@tt.runs
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 64, 65, 127, quant.FEW])
def test_quantised_product_of_every_number_of_rows(rows, dtype, monkeypatch):
    """Tiles of 16, 32 and 64 outputs; the last program has one."""
    monkeypatch.setattr(quant, "PROGRAMS", 2)
    for outputs in (1, 17, 33, 65):
        layer = on_device((outputs, 64), "nf4", True, dtype)
        x, out = draw(rows, 64, dtype=dtype), torch.full((rows, outputs), 7.0, device=tt.DEVICE, dtype=dtype)
        quant.product(x, layer, out)
        dense = layer.dense(dtype)
        truth, expected = F.linear(x.double(), dense.double(), layer.bias.double()), F.linear(x, dense, layer.bias)
        if rows:
            tt.assert_within_the_error_of({"y": expected}, {"y": out}, {"y": truth})


# ---- the decode step ----


@tt.runs
@pytest.mark.parametrize(("N", "D"), [(0, 24), (1, 1), (3, 64), (2, 65), (2, 2049)])
def test_add_norm_of_any_width(N, D):
    x, more, weight = draw(N, D), draw(N, D, seed=1), draw(D)
    total, normed = step.add_norm(x, more, weight, 1e-6)
    assert torch.equal(total, x + more) and normed.shape == x.shape
    if N:
        assert_close(normed, rms_norm(x + more, weight, 1e-6))


@tt.runs
@pytest.mark.parametrize(("N", "E"), [(0, 16), (33, 2), (1, 256), (2, 96)])
def test_rotary_write_of_any_width(N, E):
    """No rows, and three programs of rows; the last position of the last block."""
    H, K, L, U = 3, 1, 64, 2
    qkv, keys, values = draw(N, (H + 2 * K) * E), draw(U, N + 1, E, L), draw(U, N + 1, L, E)
    cos, sin = draw(U * L, E, seed=1), draw(U * L, E, seed=2)
    positions_N, places_N = (
        (torch.arange(N, device=tt.DEVICE) * 5 + U * L - 1) % (U * L),
        torch.arange(N, device=tt.DEVICE),
    )
    heads = qkv.unflatten(1, (-1, E))
    rotated = rotate(heads, cos[positions_N], sin[positions_N])
    expected_keys, expected_values = keys.clone(), values.clone()
    for n, position in enumerate(positions_N.tolist()):
        expected_keys[position // L, n, :, position % L] = rotated[n, H]
        expected_values[position // L, n, position % L] = heads[n, H + K]
    q_NHE = step.rotary_write(qkv, None, 0, None, 1e-6, (cos, sin), positions_N, places_N, keys, values, H, K)
    assert q_NHE.shape == (N, H, E) and torch.equal(values, expected_values)
    assert_close(keys, expected_keys)
    if N:
        assert_close(q_NHE, rotated[:, :H])


@tt.runs
def test_padding_rows_write_nothing_to_the_cache():
    keys, values, nowhere = draw(2, 4, 16, 64), draw(2, 4, 64, 16), torch.full((20,), -1, device=tt.DEVICE)
    before, place = (keys.clone(), values.clone()), torch.zeros_like(nowhere)
    for where in ((nowhere, place), (place, nowhere), (nowhere, nowhere)):
        step.rotary_write(draw(20, 64), None, 0, None, 1e-6, (draw(128, 16), draw(128, 16)), *where, keys, values, 2, 1)
    assert torch.equal(keys, before[0]) and torch.equal(values, before[1])


@tt.runs
@pytest.mark.parametrize(("N", "width"), [(0, 64), (1, 1), (16, 64), (17, 65), (15, 63)])
@pytest.mark.parametrize("rank", [0, 16])
def test_swiglu_of_any_width(N, width, rank):
    x, up = draw(N, 2 * width + 2 * rank), draw(2 * width, rank) / 4
    low = x[:, 2 * width :].unflatten(1, (2, rank)).float()
    gate, value = (
        torch.addmm(x[:, i * width : (i + 1) * width].float(), low[:, i], up[i * width : (i + 1) * width].float().mT)
        for i in (0, 1)
    )
    got = step.swiglu(x, up if rank else None, rank, width)
    assert got.shape == (N, width)
    if N:
        assert_close(got, F.silu(gate.bfloat16()) * value.bfloat16())


# ---- the training block ----


@tt.runs
@pytest.mark.parametrize("D", [1, 2, 64, 65])
def test_block_norm_of_any_width(D):
    inputs = {"x": draw(3, D), "added": draw(3, D, seed=1)}
    fused = lambda x, added, weight: block.AddNorm.apply(x, added, weight, 1e-6)  # noqa: E731
    compare_block(plain_add_norm, fused, inputs, {"weight": 1 + 0.3 * draw(D, seed=2)})


@tt.runs
@pytest.mark.parametrize("width", [1, 2, 1023, 1024, 2049])
def test_block_swiglu_of_any_width(width):
    plain = lambda gate_up: F.silu(gate_up[:, :width]) * gate_up[:, width:]  # noqa: E731
    compare_block(plain, block.SwiGLU.apply, {"gate_up": 2 * draw(2, 2 * width)}, {})


@tt.runs
@pytest.mark.parametrize(("H", "K", "E"), [(1, 1, 2), (4, 2, 16), (6, 1, 96), (7, 1, 256)])
def test_block_rotary_of_any_width(H, K, E):
    """Fewer heads than a program rotates, as many, and one more."""
    N = 8
    cos, sin = draw(N, E, seed=1), draw(N, E, seed=2)

    def plain(qkv, cos, sin):
        q, k, v = qkv.unflatten(-1, (-1, E)).split([H, K, K], 1)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    fused = lambda qkv, cos, sin: block.Rotate.apply(qkv, cos, sin, (H, K, E), None, None, 1e-6)  # noqa: E731
    compare_block(plain, fused, {"qkv": draw(N, (H + 2 * K) * E)}, {"cos": cos, "sin": sin})


@tt.runs
def test_blocks_parts_of_no_rows():
    qkv, gate_up, x = (torch.empty(0, n, device=tt.DEVICE, requires_grad=True) for n in (4 * 16, 20, 24))
    angles = torch.empty(0, 16, device=tt.DEVICE)
    outputs = [
        *block.AddNorm.apply(x, x * 2, torch.ones(24, device=tt.DEVICE), 1e-6),
        *block.Rotate.apply(qkv, angles, angles, (2, 1, 16), None, None, 1e-6),
        block.SwiGLU.apply(gate_up),
    ]
    torch.autograd.backward(outputs, [torch.empty_like(y) for y in outputs])
    assert [y.shape[0] for y in outputs] == [0] * 6 and gate_up.grad.shape == gate_up.shape
