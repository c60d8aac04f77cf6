"""The decode step's Triton kernels against the plain decoder's operations, rounded at the same places."""

import on_triton as tt
import pytest
import torch
import torch.nn.functional as F

from models.cuda.triton import step as step_triton
from models.cuda.triton.step import add_norm, rotary_write, swiglu
from models.decoder import rotate

KERNELS = "_add_norm", "_rotary_write", "_swiglu"


def draw(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape))).to(tt.DEVICE, dtype)


def assert_close(got, expected):
    """Equal up to a few roundings; in 16 bits almost all elements are equal. Sums in float32 have another order."""
    mean = 0.1 if got.dtype.itemsize == 2 else 0.25  # 2 roundings of float32: the interpreter's sums vary by CPU
    got, expected, eps = got.float(), expected.float(), max(torch.finfo(got.dtype).eps, 1e-6)
    assert got.shape == expected.shape and got.isfinite().all()
    assert (got - expected).abs().max() <= 4 * eps * expected.abs().max()
    assert (got - expected).abs().mean() <= mean * eps * expected.abs().mean()


def rms_norm(x, weight, eps):
    return F.rms_norm(x.float(), x.shape[-1:], None, eps).to(x.dtype) * weight


@tt.runs
@pytest.mark.parametrize("dtype", tt.FLOATS, ids=str)
@pytest.mark.parametrize(("N", "D"), [(1, 24), (5, 896), (18, 130)])
def test_add_norm(N, D, dtype):
    """`more` is a part of longer rows, as a product leaves it beside low-rank inputs."""
    x, wide, weight = draw(N, D, dtype=dtype), draw(N, D + 16, dtype=dtype), draw(D, dtype=dtype)
    more = wide[:, :D]
    total, normed = add_norm(x, more, weight, 1e-6)
    assert torch.equal(total, x + more)
    assert_close(normed, rms_norm(x + more, weight, 1e-6))
    total, normed = add_norm(x, None, weight, 1e-6)
    assert torch.equal(total, x)
    assert_close(normed, rms_norm(x, weight, 1e-6))


def tables(length, E, dtype):
    angles = torch.arange(length)[:, None] * 0.7 ** torch.arange(E // 2)
    cos, sin = angles.cos(), angles.sin()
    return [torch.cat(pair, -1).to(tt.DEVICE, dtype) for pair in ((cos, cos), (-sin, sin))]


@tt.runs
@pytest.mark.parametrize("dtype", tt.FLOATS, ids=str)
@pytest.mark.parametrize(
    ("N", "H", "K", "E", "rank", "norms"),
    [(1, 2, 1, 16, 16, False), (21, 4, 2, 24, 128, True), (16, 3, 3, 64, 0, True)],
)
def test_rotary_write(N, H, K, E, rank, norms, dtype):
    """Ragged rows of several blocks and places; rows without a position or a place write nothing."""
    L, U, rows = 64, 3, 5
    qkv, up = draw(N, (H + 2 * K) * E + 3 * rank, dtype=dtype), draw((H + 2 * K) * E, rank, dtype=dtype) / 4
    weights, (cos, sin) = draw(H + K, E, dtype=dtype) if norms else None, tables(U * L, E, dtype)
    positions_N, places_N = torch.arange(N, device=tt.DEVICE) * 37 % (U * L), torch.arange(N, device=tt.DEVICE) % rows
    positions_N[3::7], places_N[5::9] = -1, -1
    keys, values = draw(U, rows * K, E, L, dtype=dtype), draw(U, rows * K, L, E, dtype=dtype)
    expected_keys, expected_values = keys.clone(), values.clone()
    base, low = qkv[:, : (H + 2 * K) * E], qkv[:, (H + 2 * K) * E :].unflatten(1, (3, rank))
    parts = zip(base.split([H * E, K * E, K * E], 1), low.unbind(1), up.split([H * E, K * E, K * E]), strict=True)
    heads = torch.cat([torch.addmm(b.float(), a.float(), c.float().mT).to(dtype) for b, a, c in parts], 1)
    heads = heads.unflatten(1, (-1, E))
    qk = rms_norm(heads[:, : H + K], weights, 1e-5) if norms else heads[:, : H + K]
    qk = rotate(qk, cos[positions_N.clamp(min=0)], sin[positions_N.clamp(min=0)])
    for n in range(N):
        position, place = int(positions_N[n]), int(places_N[n])
        if position >= 0 and place >= 0:
            z = slice(place * K, (place + 1) * K)
            expected_keys[position // L, z, :, position % L] = qk[n, H:]
            expected_values[position // L, z, position % L] = heads[n, H + K :]
    q = rotary_write(
        qkv, up if rank else None, rank, weights, 1e-5, (cos, sin), positions_N, places_N, keys, values, H, K
    )
    real = positions_N >= 0
    assert_close(q[real], qk[real, :H])
    assert_close(keys, expected_keys)
    assert_close(values, expected_values)


@tt.runs
@pytest.mark.parametrize("dtype", tt.FLOATS, ids=str)
@pytest.mark.parametrize(("N", "width", "rank"), [(1, 80, 16), (19, 130, 128), (4, 64, 0)])
def test_swiglu(N, width, rank, dtype):
    wide = torch.float64 if dtype == torch.float32 else torch.float32  # an exact sum: torch's own varies by CPU
    x, up = draw(N, 2 * width + 2 * rank, dtype=dtype), draw(2 * width, rank, dtype=dtype) / 4
    low = x[:, 2 * width :].unflatten(1, (2, rank)).to(wide)
    gate, value = (
        torch.addmm(x[:, i * width : (i + 1) * width].to(wide), low[:, i], up[i * width : (i + 1) * width].to(wide).mT)
        for i in (0, 1)
    )
    assert_close(
        swiglu(x, up if rank else None, rank, width),
        (F.silu(gate) * value).to(dtype) if wide == torch.float64 else F.silu(gate.to(dtype)) * value.to(dtype),
    )


def launched(monkeypatch, N, D, H, K, E, inner, rank, dtype=torch.bfloat16):
    """Return the launches of a layer's kernels on meta tensors."""
    new = lambda *shape, dtype=dtype: torch.empty(shape, dtype=dtype, device="meta")  # noqa: E731
    with monkeypatch.context() as patch:
        launches = tt.record(patch, step_triton, KERNELS)
        add_norm(new(N, D), new(N, D + rank)[:, :D], new(D), 1e-6)
        O = (H + 2 * K) * E  # noqa: E741
        indices = [new(N, dtype=torch.long) for _ in range(2)]
        cache = new(4, 8 * K, E, 64), new(4, 8 * K, 64, E)
        tables = new(256, E), new(256, E)
        up = new(O, rank) if rank else None
        rotary_write(new(N, O + 3 * rank), up, rank, new(H + K, E), 1e-6, tables, *indices, *cache, H, K)
        swiglu(new(N, 2 * inner + 2 * rank), new(2 * inner, rank) if rank else None, rank, inner)
    return launches


@tt.compiles
@pytest.mark.parametrize("arch", tt.CHIPS)
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        pytest.param((64, 896, 14, 2, 64, 4864, 16), torch.bfloat16, marks=pytest.mark.full),
        pytest.param((256, 8192, 64, 8, 128, 28672, 64), torch.bfloat16, marks=pytest.mark.full),
        ((256, 8192, 64, 8, 128, 28672, 4096), torch.bfloat16),
        pytest.param((64, 3584, 28, 4, 128, 18944, 4096), torch.float32, marks=pytest.mark.full),
    ],
    ids=["0.5B", "70B", "largest rank", "largest rank, float32"],
)
def test_they_compile_and_fit_the_chip(arch, shape, dtype, monkeypatch, tmp_path):
    """Also with rank 4096, the largest that lora/peft_files.py accepts."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    for launch in launched(monkeypatch, *shape, dtype=dtype):
        binary = tt.compiled(*launch, arch)[1]()
        assert f".target sm_{arch}" in binary.asm["ptx"] and binary.metadata.shared <= tt.SHARED[arch]
        assert tt.spilled(binary) <= 8, binary.metadata.name


@tt.compiles
def test_the_number_of_rows_is_not_compiled_in(monkeypatch):
    keys = {tt.compiled(*x, 90)[0] for N in (1, 7, 16, 300) for x in launched(monkeypatch, N, 896, 14, 2, 64, 4864, 16)}
    assert len(keys) == len(KERNELS)
