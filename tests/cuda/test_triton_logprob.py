"""The log-probabilities' Triton kernels: errors at most torch's, rows independent, memory bounded."""

import inspect
import itertools

import on_triton as tt
import pytest
import torch
from conftest import quickly
from torch.utils._python_dispatch import TorchDispatchMode

from models import head, logprob
from models.cuda.triton import logprob as logprob_triton
from models.cuda.triton.logprob import scratch_bytes, tiles, token_logprobs

KERNELS = "_score", "_fold", "_gather", "_dlogits"
MIB = 2**20


def problem(N: int, V: int, D: int, dtype, size: float = 1.0, order=None, seed: int = 0):
    """Return hidden_ND, weight_VD, targets_N. size: of the logits; order: "rising" or "falling" over the vocabulary."""
    g = torch.Generator().manual_seed(seed)
    hidden_ND, weight_VD = torch.randn(N, D, generator=g) * size * D**-0.5, torch.randn(V, D, generator=g)
    if order:
        slope_V = torch.linspace(0, 1, V) if order == "rising" else torch.linspace(1, 0, V)
        weight_VD *= slope_V[:, None]
    targets_N = torch.randint(V, (N,), generator=g)
    targets_N[: min(N, 2)] = torch.tensor([V - 1, 0])[:N]
    return hidden_ND.to(tt.DEVICE, dtype), weight_VD.to(tt.DEVICE, dtype), targets_N.to(tt.DEVICE)


def results(function, hidden_ND, weight_VD, targets_N, trainable_head=False, entropy_grad=False, **options):
    """Return by name: logprobs, entropy and the gradients of a weighted sum of them."""
    hidden_ND = hidden_ND.detach().requires_grad_()
    weight_VD = weight_VD.detach().requires_grad_(trainable_head)
    logprobs_N, entropy_N = function(hidden_ND, weight_VD, targets_N, entropy_grad=entropy_grad, **options)
    assert logprobs_N.dtype == entropy_N.dtype and entropy_N.requires_grad == entropy_grad
    upstream_N, entropy_upstream_N = torch.linspace(-1, 2, 2 * len(targets_N), device=tt.DEVICE).view(2, -1)
    loss = (logprobs_N * upstream_N).sum() + (entropy_N * entropy_upstream_N).sum() * entropy_grad
    wanted = {"hidden": hidden_ND} | ({"weight": weight_VD} if trainable_head else {})
    grads = torch.autograd.grad(loss, list(wanted.values()))
    return {"logprobs": logprobs_N.detach(), "entropy": entropy_N.detach()} | dict(zip(wanted, grads, strict=True))


def torch_logprobs(hidden_ND, weight_VD, targets_N, temperature=1.0, entropy_grad=False):
    """The torch function that the kernels replace; `logprob.token_logprobs` would launch them on CUDA."""
    return head.token_logprobs(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)


def compare(problem, most: float = 1.1, **options):
    hidden_ND, weight_VD, targets_N = problem
    truth = results(torch_logprobs, hidden_ND.double(), weight_VD.double(), targets_N, **options)
    reference = results(torch_logprobs, *problem, **options)
    tt.assert_within_the_error_of(reference, results(token_logprobs, *problem, **options), truth, most, most)


MODES = [{}, {"entropy_grad": True}, {"trainable_head": True, "entropy_grad": True}]


@tt.runs
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "+".join(mode) or "made in the forward")
@pytest.mark.parametrize("dtype", tt.FLOATS, ids=str)
def test_errors_are_at_most_those_of_the_reference(dtype, mode, monkeypatch):
    """One partial tile, a partial pair of tiles, several slabs; the interpreter is slow with float32's small tiles."""
    more = (67, 33, 259, 128, 1.3) if dtype == torch.float32 else (67, 33, 1000, 512, 0.7)
    for N, D, V, slab, temperature in ((1, 24, 97, 16384, 1.0), more):
        monkeypatch.setattr(logprob_triton, "SLAB", slab)
        compare(problem(N, V, D, dtype, size=3), temperature=temperature, **mode)


@pytest.mark.full
@tt.runs
def test_wide_models_and_long_vocabularies(monkeypatch):
    monkeypatch.setattr(logprob_triton, "SLAB", 2048)
    compare(problem(3, 4099, 72, torch.bfloat16), temperature=0.7)
    compare(problem(5, 300, 897, torch.bfloat16))
    compare(problem(2, 40, 230, torch.float32))


@tt.runs
@pytest.mark.parametrize(
    ("dtype", "order"),
    quickly(
        [(torch.float32, "rising"), (torch.bfloat16, None), (torch.float16, "falling")],
        itertools.product(tt.FLOATS, ("rising", None, "falling")),
    ),
    ids=str,
)
def test_large_logits_whose_peaks_move_over_the_slabs(dtype, order, monkeypatch):
    """Logits around +-80: exponentials of earlier tiles and slabs must be rescaled, or they overflow."""
    monkeypatch.setattr(logprob_triton, "SLAB", 256)
    V = 400 if dtype == torch.float32 else 1000
    hidden_ND, weight_VD, targets_N = problem(40, V, 32, dtype, size=25, order=order)
    assert 60 < (hidden_ND @ weight_VD.T).abs().max() < 150
    # The reference divides before it rounds to 16 bits, which lowers its error for a token with almost all probability.
    compare((hidden_ND, weight_VD, targets_N), most=3)
    compare((hidden_ND, weight_VD, targets_N), entropy_grad=True)


@tt.runs
def test_huge_logits_do_not_overflow(monkeypatch):
    monkeypatch.setattr(logprob_triton, "SLAB", 64)
    hidden_ND, weight_VD, _ = problem(20, 130, 16, torch.float32)
    best_first_NV = (hidden_ND @ weight_VD.T).argsort(descending=True)
    for rank in (0, 1):
        got = results(token_logprobs, hidden_ND * 1e30, weight_VD, best_first_NV[:, rank])
        assert ((got["logprobs"] == 0) == (rank == 0)).all() and (got["entropy"] == 0).all()
        difference_ND = weight_VD[best_first_NV[:, rank]] - weight_VD[best_first_NV[:, 0]]
        torch.testing.assert_close(got["hidden"], difference_ND * torch.linspace(-1, 2, 40)[:20, None].to(tt.DEVICE))


@tt.runs
def test_small_gradient_of_a_confident_token_keeps_its_digits(monkeypatch):
    """For p of 0.999 and more the gradient is a small difference, lost if p W[y] is rounded to bfloat16."""
    monkeypatch.setattr(logprob_triton, "SLAB", 256)
    hidden_ND, weight_VD, targets_N = problem(32, 600, 64, torch.bfloat16, size=0.3)
    hidden_ND += (weight_VD[targets_N] * 16 / weight_VD[targets_N].float().square().sum(-1, keepdim=True)).bfloat16()
    truth = results(torch_logprobs, hidden_ND.double(), weight_VD.double(), targets_N)
    assert 0 < -truth["logprobs"].median() < 0.003
    error_ND = results(token_logprobs, hidden_ND, weight_VD, targets_N)["hidden"] - truth["hidden"]
    assert (error_ND.norm(dim=-1) < 0.01 * truth["hidden"].norm(dim=-1)).all()


@tt.runs
@pytest.mark.parametrize("mode", [{}, {"entropy_grad": True}], ids=["made in the forward", "recomputed"])
@pytest.mark.parametrize(
    ("N", "dtype"),
    [(70, torch.bfloat16), *(pytest.param(135, dtype, marks=pytest.mark.full) for dtype in tt.FLOATS[:2])],
    ids=str,
)
def test_a_rows_bits_do_not_depend_on_the_other_rows(dtype, mode, N, monkeypatch):
    monkeypatch.setattr(logprob_triton, "SLAB", 128 if dtype == torch.float32 else 256)
    hidden_ND, weight_VD, targets_N = problem(N, 150 if dtype == torch.float32 else 300, 24, dtype, size=10)

    def rows_of(rows):
        hidden = hidden_ND[rows].requires_grad_()
        logprobs_N, entropy_N = token_logprobs(hidden, weight_VD, targets_N[rows], 0.8, **mode)
        loss = logprobs_N.sum() * 3 + entropy_N.sum() * bool(mode)
        return torch.cat((logprobs_N[:, None], entropy_N[:, None], torch.autograd.grad(loss, hidden)[0].float()), 1)

    whole, order = rows_of(torch.arange(N)), torch.randperm(N, generator=torch.Generator().manual_seed(0))
    sampled = token_logprobs(hidden_ND[:7].detach(), weight_VD, targets_N[:7], 0.8)  # without a gradient
    assert torch.equal(torch.stack(sampled, 1), whole[:7, :2])
    for rows in (order, order[:1], order[:7], order[:64]):
        assert torch.equal(rows_of(rows), whole[rows])
    monkeypatch.setattr(logprob_triton, "SCRATCH_BYTES", 1)  # a chunk per tile of rows
    assert torch.equal(rows_of(torch.arange(N)), whole)


@tt.runs
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_target_outside_the_vocabulary_is_nan_in_its_own_row(dtype, monkeypatch):
    monkeypatch.setattr(logprob_triton, "SLAB", 128)
    hidden_ND, weight_VD, targets_N = problem(20, 150, 24, dtype)
    outside_N = targets_N.clone()
    outside_N[3:6] = torch.tensor([-100, 150, 255])
    good, bad = (results(token_logprobs, hidden_ND, weight_VD, targets) for targets in (targets_N, outside_N))
    assert bad["logprobs"][3:6].isnan().all() and bad["hidden"][3:6].isnan().all()
    others = [0, 1, 2, *range(6, 20)]
    assert torch.equal(bad["entropy"], good["entropy"])
    assert all(torch.equal(bad[name][others], good[name][others]) for name in good)


@tt.runs
def test_no_rows():
    hidden_ND, weight_VD, targets_N = problem(4, 97, 24, torch.float32)
    logprobs_N, entropy_N = token_logprobs(hidden_ND[:0].requires_grad_(), weight_VD, targets_N[:0])
    logprobs_N.sum().backward()
    assert logprobs_N.shape == entropy_N.shape == (0,)


class Allocated(TorchDispatchMode):
    """Record every storage that an operation returns, once."""

    def __init__(self, *known):
        super().__init__()
        self.known, self.storages = {x.untyped_storage().data_ptr() for x in known}, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if torch.is_tensor(x) and x.untyped_storage().data_ptr() not in self.known:
                self.storages[x.untyped_storage().data_ptr()] = x.untyped_storage()
        return out

    def sizes(self):
        return [storage.nbytes() for storage in self.storages.values()]


@tt.runs_no_kernel
@pytest.mark.parametrize("mode", MODES[:2], ids=lambda mode: "+".join(mode) or "made in the forward")
def test_temporary_memory_is_within_scratch_bytes(mode, monkeypatch):
    """Counted without running the kernels, which allocate nothing; three chunks of rows, six slabs."""
    tt.record(monkeypatch, logprob_triton, KERNELS)
    N, D, V, dtype = 300, 40, 3000, torch.bfloat16
    monkeypatch.setattr(logprob_triton, "SLAB", 512)
    allowed = scratch_bytes(128, D, V, dtype, tiles(D, dtype, tt.SHARED[90]))
    monkeypatch.setattr(logprob_triton, "SCRATCH_BYTES", allowed)
    hidden_ND, weight_VD, targets_N = (x.cpu() for x in problem(N, V, D, dtype))
    with Allocated(hidden_ND, weight_VD, targets_N) as chunks:
        logprobs_N, entropy_N = token_logprobs(hidden_ND.requires_grad_(), weight_VD, targets_N, **mode)
        (logprobs_N + entropy_N).sum().backward()
    kept = (2 * D * dtype.itemsize + 8 * 4) * N  # d logp / d h, the gradient, and figures of each row
    assert allowed < sum(chunks.sizes()) <= 3 * (2 if mode else 1) * allowed + kept
    assert max(chunks.sizes()) < dtype.itemsize * min(V * D, N * V, allowed)


@tt.runs_no_kernel
def test_scratch_is_bounded_at_any_number_of_rows():
    for D, V in ((896, 151936), (3584, 152064), (8192, 262144), (4096, 32001)):
        for dtype in tt.FLOATS:
            weight_VD, hidden_ND = (torch.empty(n, D, dtype=dtype, device="meta") for n in (V, 10**6))
            first, second = list(logprob_triton._chunks(hidden_ND, weight_VD))[:2]
            rows = first.stop - first.start
            assert rows == second.stop - second.start and rows >= 2048
            used = scratch_bytes(rows, D, V, dtype, tiles(D, dtype, tt.SHARED[90]))
            assert 0.95 * 512 * MIB < used <= 512 * MIB


def test_unsupported_inputs_are_refused():
    hidden_ND, weight_VD, targets_N = torch.zeros(3, 8), torch.zeros(5, 8), torch.zeros(3, dtype=torch.long)
    with pytest.raises(ValueError, match="agree in dtype, width and number"):
        token_logprobs(hidden_ND, weight_VD.bfloat16(), targets_N)
    with pytest.raises(ValueError, match="agree in dtype, width and number"):
        token_logprobs(hidden_ND, weight_VD[:, :7], targets_N)
    with pytest.raises(ValueError, match="contiguous"):
        token_logprobs(hidden_ND, weight_VD.T.contiguous().T, targets_N)
    with pytest.raises(ValueError, match="agree in dtype, width and number"):
        token_logprobs(hidden_ND, weight_VD, targets_N[:2])


def launches_of(dtype, arch, monkeypatch, N=2000):
    """Return every launch of the losses of a 7B and a 0.5B model, on meta tensors."""
    with monkeypatch.context() as patch:
        launches = tt.record(patch, logprob_triton, KERNELS)
        patch.setattr(logprob_triton, "_tiles_on", lambda hidden_ND: tiles(hidden_ND.shape[1], dtype, tt.SHARED[arch]))
        for D, V in ((3584, 152064), (896, 151936)):
            hidden_ND = torch.empty(N, D, dtype=dtype, device="meta", requires_grad=True)
            weight_VD = torch.empty(V, D, dtype=dtype, device="meta")
            targets_N = torch.empty(N, dtype=torch.long, device="meta")
            for entropy_grad in (False, True):
                token_logprobs(hidden_ND, weight_VD, targets_N, 0.7, entropy_grad)[0].sum().backward()
    return launches


@tt.compiles
@pytest.mark.parametrize(("arch", "dtype"), quickly([(90, torch.float32)], tt.HALVES_ON_CHIPS), ids=str)
def test_every_launch_compiles_and_fits_the_chip(arch, dtype, monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches, binaries = launches_of(dtype, arch, monkeypatch), []
    assert {kernel.__name__ for kernel, _, _ in launches} == set(KERNELS)
    for compile_ in dict(tt.compiled(*launch, arch) for launch in launches).values():
        binaries.append(binary := compile_())
        name = binary.metadata.name
        tt.check_binary(binary, arch, tensor_cores=dtype != torch.float32 and name != "_fold")
        assert binary.metadata.shared <= tt.SHARED[arch], name
    for binary in binaries:
        assert tt.spilled(binary) <= (32 if dtype == torch.float32 else 8), binary.metadata.name


@tt.compiles
@pytest.mark.full
def test_a_chip_with_little_shared_memory_gets_tiles_that_fit(monkeypatch, tmp_path):
    """sm_120 is newer than sm_90 and has less. In the quick tests test_triton_compiled.py compiles them for sm_89."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launches = [launch for launch in launches_of(torch.bfloat16, 120, monkeypatch) if launch[0].__name__ != "_fold"]
    for compile_ in dict(tt.compiled(*launch, 120) for launch in launches).values():
        assert (binary := compile_()).metadata.shared <= tt.SHARED[120], binary.metadata.name


@tt.compiles
@pytest.mark.parametrize("dtype", tt.FLOATS, ids=str)
def test_sampling_and_training_launch_the_same_binary(dtype, monkeypatch):
    """For any number of rows, and with the gradient in the forward, in the backward, or without one."""
    with monkeypatch.context() as patch:
        launches = tt.record(patch, logprob_triton, KERNELS)
        weight_VD = torch.empty(151936, 896, dtype=dtype, device="meta")
        for N, grad, options in itertools.product((1, 16, 2000), (False, True), ({}, {"entropy_grad": True})):
            hidden_ND = torch.empty(N, 896, dtype=dtype, device="meta", requires_grad=grad)
            token_logprobs(hidden_ND, weight_VD, torch.empty(N, dtype=torch.long, device="meta"), 0.7, **options)
    keys = {}
    for launch in launches:
        keys.setdefault(launch[0].__name__, set()).add(tt.compiled(*launch, 90)[0])
    assert {name: len(found) for name, found in keys.items()} == {"_score": 1, "_fold": 1, "_gather": 1}


@tt.runs_no_kernel
def test_signature_matches_the_reference():
    ours, reference = (
        [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]
        for function in (token_logprobs, logprob.token_logprobs)
    )
    assert ours == reference
