"""The sampler's Triton kernels: the same tokens as the plain sampler, with the bits of training's log-probabilities."""

import on_triton as tt
import pytest
import torch
from conftest import also_full, quickly

from models import engine
from models.cuda.triton import common, logprob
from models.cuda.triton import sample as sample_triton
from models.cuda.triton.sample import sample
from models.hooks import hooks, nothing_faster

KERNELS = "_score", "_fold", "_choose"


def problem(B, V, D, dtype, size=3.0):
    g = torch.Generator().manual_seed(B)
    hidden_BD, weight_VD = torch.randn(B, D, generator=g) * size * D**-0.5, torch.randn(V, D, generator=g)
    uniforms_B = torch.rand(B, generator=g, dtype=torch.float64)
    return hidden_BD.to(tt.DEVICE, dtype), weight_VD.to(tt.DEVICE, dtype), uniforms_B.to(tt.DEVICE)


@pytest.fixture
def plain(monkeypatch):
    """Return the plain sampler in float64, whatever the device."""
    monkeypatch.setattr(hooks(tt.DEVICE), "sample", nothing_faster)

    def sample64(hidden_BD, weight_VD, temperature, uniforms_B):
        return engine.sample(hidden_BD.double(), weight_VD.double(), temperature, uniforms_B)

    return sample64


@tt.runs
@pytest.mark.parametrize(("B", "V", "D", "slab"), [(1, 97, 24, 16384), (35, 600, 33, 512)])
@pytest.mark.parametrize(
    ("temperature", "dtype"),
    quickly([(0.0, torch.bfloat16), *((0.7, dtype) for dtype in tt.FLOATS)], ((0.0, dtype) for dtype in tt.FLOATS)),
    ids=str,
)
def test_tokens_are_those_of_the_plain_sampler(B, V, D, slab, dtype, temperature, plain, monkeypatch):
    """One partial tile; a partial pair of tiles, a partial tile of rows and several slabs."""
    monkeypatch.setattr(logprob, "SLAB", slab)
    inputs = problem(B, V, D, dtype)
    ids_B, logprobs_B = sample(*inputs[:2], temperature, inputs[2])
    expected_ids, expected = plain(*inputs[:2], temperature, inputs[2])
    assert ids_B.dtype == torch.long and torch.equal(ids_B, expected_ids)
    torch.testing.assert_close(logprobs_B.double(), expected, atol=2e-5, rtol=0)


@tt.runs
@pytest.mark.parametrize("dtype", tt.FLOATS[:2], ids=str)
def test_logprobs_have_the_bits_of_training(dtype, monkeypatch):
    monkeypatch.setattr(logprob, "SLAB", 128)
    hidden_BD, weight_VD, uniforms_B = problem(20, 200, 24, dtype, size=8)
    for temperature, grads in ((0.8, (False, True)), (0.0, (True,))):
        ids_B, logprobs_B = sample(hidden_BD, weight_VD, temperature, uniforms_B)
        for grad in grads:
            hidden = hidden_BD.detach().requires_grad_(grad)
            trained, _ = logprob.token_logprobs(hidden, weight_VD, ids_B, temperature or 1.0)
            assert torch.equal(logprobs_B, trained.detach())


@tt.runs
def test_a_rows_token_is_its_own():
    hidden_BD, weight_VD, uniforms_B = problem(70, 80, 16, torch.bfloat16)
    whole = sample(hidden_BD, weight_VD, 1.0, uniforms_B)
    for rows in ([3], [69, 0, 12], list(range(64, 70))):
        part = sample(hidden_BD[rows], weight_VD, 1.0, uniforms_B[rows])
        assert all(torch.equal(a, b[rows]) for a, b in zip(part, whole, strict=True))


@tt.runs
def test_the_ends_of_the_unit_interval_give_tokens_with_a_probability():
    """Most of the vocabulary has no weight in float32; the first and the last tokens are among those."""
    hidden_BD, weight_VD, _ = problem(4, 500, 16, torch.float32)
    weight_VD[:, 0] = -1e4
    weight_VD[200:203, 0] = 0
    hidden_BD[:, 0] = 1.0
    ends_B = torch.tensor([0, 2.0**-53, 1 - 2.0**-53, 1 - 2.0**-24], dtype=torch.float64, device=tt.DEVICE)
    ids_B, logprobs_B = sample(hidden_BD, weight_VD, 1.0, ends_B)
    assert ids_B.tolist() == [200, 200, 202, 202] and logprobs_B.isfinite().all()


@tt.runs
def test_sampled_tokens_follow_the_distribution():
    """A fine grid of uniform numbers gives each token in proportion to its probability."""
    count = 64
    hidden_BD, weight_VD, _ = problem(1, 150, 16, torch.float32, size=2)
    uniforms_B = (torch.arange(count, dtype=torch.float64, device=tt.DEVICE) + 0.5) / count
    ids_B, _ = sample(hidden_BD.expand(count, -1), weight_VD, 1.0, uniforms_B)
    probs_V = (hidden_BD[0].double() @ weight_VD.double().T).softmax(-1)
    assert torch.equal(ids_B, ids_B.sort().values), "a larger number takes a later token"
    assert (ids_B.bincount(minlength=150) - probs_V * count).abs().max() <= 1.001


def launched(monkeypatch, B, D, V, dtype, temperature=1.0):
    with monkeypatch.context() as patch:
        launches = tt.record(patch, sample_triton, ["_score", "_choose"])
        launches_of_fold = tt.record(patch, logprob, ["_fold"])
        hidden_BD, weight_VD = (torch.empty(s, dtype=dtype, device="meta") for s in ((B, D), (V, D)))
        sample(hidden_BD, weight_VD, temperature, torch.empty(B, dtype=torch.float64, device="meta"))
    return launches[:1] + launches_of_fold + launches[1:]


@tt.compiles
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_a_step_launches_three_kernels(temperature, monkeypatch):
    launches = launched(monkeypatch, 64, 896, 151936, torch.bfloat16, temperature)
    assert [kernel.__name__ for kernel, *_ in launches] == list(KERNELS)


@tt.compiles
@pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        (90, torch.float32),
        *also_full((120, torch.bfloat16), (80, torch.bfloat16), (90, torch.bfloat16), (100, torch.float16)),
    ],
    ids=str,
)
def test_it_compiles_and_fits_the_chip(arch, dtype, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(logprob, "shared_memory", lambda _: tt.SHARED[arch])
    for temperature in (1.0, 0.0):
        for launch in launched(monkeypatch, 64, 3584, 152064, dtype, temperature)[1:]:
            binary = tt.compiled(*launch, arch)[1]()
            tt.check_binary(binary, arch, tensor_cores=False)
            assert binary.metadata.shared <= tt.SHARED[arch]
            assert tt.spilled(binary) <= (32 if dtype == torch.float32 else 8), binary.metadata.name


@tt.compiles
def test_sampling_and_training_score_with_one_binary(monkeypatch):
    launches = launched(monkeypatch, 7, 896, 151936, torch.bfloat16)[:2]
    with monkeypatch.context() as patch:
        training = tt.record(patch, logprob, ["_score", "_fold"])
        hidden_ND = torch.empty(300, 896, dtype=torch.bfloat16, device="meta")
        weight_VD = torch.empty(151936, 896, dtype=torch.bfloat16, device="meta")
        logprob.token_logprobs(hidden_ND, weight_VD, torch.empty(300, dtype=torch.long, device="meta"))
    assert {tt.compiled(*x, 90)[0] for x in launches} == {tt.compiled(*x, 90)[0] for x in training}
    assert common.FUSED["enable_fp_fusion"]
