"""Attention's Triton kernels: errors at most torch's in the same dtype; a query's bits depend on it alone."""

import itertools

import on_triton as tt
import pytest
import torch
from conftest import also_full, quickly, random_model

from models import attention, decoder
from models.attention import ExactAttention, in_blocks, masked_attention
from models.cache import KVCache
from models.cuda import paths
from models.cuda.triton import attention as attention_triton
from models.cuda.triton.attention import attend
from models.engine import Engine
from models.hooks import hooks
from models.logprob import token_logprobs

KERNELS = "_forward", "_backward_queries", "_backward_keys"


def inputs(B, H, K, T, L, E, dtype, seed=0, size=1.0):
    """Return q, k, v and the positions of T queries that end at key L - 1."""
    g = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(shape, generator=g) for shape in ((B, H, T, E), (B, K, L, E), (B, K, L, E)))
    return *(x.to(tt.DEVICE, dtype) for x in (q * size, k, v)), torch.arange(L - T, L, device=tt.DEVICE).repeat(B, 1)


def results(function, q, k, v, positions_BT, window):
    """Return the output and the gradients, by name."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    out = function(q, in_blocks(k).mT, in_blocks(v), positions_BT, window)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(9)).to(out)
    return dict(zip("oqkv", (out.detach(), *torch.autograd.grad(out, (q, k, v), upstream)), strict=True))


SHAPES = {
    "grouped, a partial block": (1, 4, 2, 68, 68, 8),
    "seven heads a key head, odd width": (1, 7, 1, 20, 150, 24),
    "one query, a full block": (3, 2, 2, 1, 64, 8),
    "more heads than a tile has rows": (1, 70, 1, 3, 67, 8),
}


SAMPLE = [(torch.float32, None), (torch.float32, 66), (torch.bfloat16, None), (torch.float16, 8)]
QUICK = [(shape, *SAMPLE[(i + j) % 4]) for i, shape in enumerate(SHAPES) for j in (1, 2)]  # each of both twice
EVERY = itertools.product(SHAPES, tt.FLOATS, (None, 2, 8, 66, 70))


@tt.runs
@pytest.mark.parametrize(("shape", "dtype", "window"), quickly(QUICK, EVERY), ids=str)
def test_errors_are_at_most_those_of_torch(shape, dtype, window):
    q, k, v, positions_BT = inputs(*SHAPES[shape], dtype, size=3)
    exact = lambda *x: ExactAttention.apply(*(y.cpu() for y in x[:4]), x[4])  # noqa: E731
    truth = results(exact, *(x.double().cpu() for x in (q, k, v)), positions_BT, window)
    reference = results(masked_attention, q, k, v, positions_BT, window)
    got = results(attend, q, k, v, positions_BT, window)
    assert all(x.dtype == dtype for x in got.values())
    wide = ({name: x.double().cpu() for name, x in y.items()} for y in (reference, got, truth))
    tt.assert_within_the_error_of(*wide, most=1.5, mean=1.15)  # one rounding of 16 bits more or less


@tt.runs
@pytest.mark.parametrize("dtype", tt.FLOATS, ids=str)
def test_large_scores_whose_peak_moves_over_the_blocks(dtype):
    """Scores up to several hundred, rising or falling: exponentials of earlier blocks would overflow or vanish."""
    q, k, v, positions_BT = inputs(1, 2, 1, 30, 200, 16, dtype, size=20)
    for slope in (torch.linspace(0, 3, 200), torch.linspace(3, 0, 200)):
        steep = k * slope[:, None].to(k)
        truth = masked_attention(*(x.double() for x in (q, in_blocks(steep).mT, in_blocks(v))), positions_BT)
        reference = masked_attention(q, in_blocks(steep).mT, in_blocks(v), positions_BT)
        got = attend(q, in_blocks(steep).mT, in_blocks(v), positions_BT)
        tt.assert_within_the_error_of({"o": reference.double()}, {"o": got.double()}, {"o": truth})


@tt.runs
@pytest.mark.parametrize(
    ("dtype", "window", "H", "T"),
    [
        *((torch.float32, 70, 2, 100), (torch.bfloat16, None, 2, 100)),
        *also_full(*itertools.product((torch.float32, torch.bfloat16), (None, 1, 70), (3,), (150,))),
    ],
    ids=str,
)
def test_a_querys_bits_are_its_own(dtype, window, H, T):
    """Alone, among others, beside a query that reads more blocks, and with any numbers at unseen keys."""
    q, k, v, positions_BT = inputs(2, H, 1, T, T, 24, dtype)
    run = lambda q, k, v, positions_BT: attend(q, in_blocks(k).mT, in_blocks(v), positions_BT, window)  # noqa: E731
    full = run(q, k, v, positions_BT)
    for t in (0, 63, 64, T - 1):
        one, n = slice(t, t + 1), t + 1
        assert torch.equal(run(q[:, :, one], k, v, positions_BT[:, one]), full[:, :, one])
        assert torch.equal(run(q[:, :, one], k[:, :, :n], v[:, :, :n], positions_BT[:, one]), full[:, :, one])
        pair = torch.cat((q[1:, :, one], q[1:, :, -1:]), 2)
        places = torch.tensor([[t, T - 1]], device=tt.DEVICE)
        assert torch.equal(run(pair, k[1:], v[1:], places)[:, :, :1], full[1:, :, one])
        junk_k, junk_v = k.clone(), v.clone()
        for unseen in (slice(n, None), slice(0, 0 if window is None else max(n - window, 0))):
            junk_k[:, :, unseen], junk_v[:, :, unseen] = 1e4, 1e4
        assert torch.equal(run(q[:, :, one], junk_k, junk_v, positions_BT[:, one]), full[:, :, one])


@tt.runs
@pytest.mark.parametrize("rows", ["the front of the cache", "some of its rows"])
def test_attention_over_a_growing_cache_matches_training_bitwise(rows):
    model = random_model("qwen3", dtype=torch.bfloat16, num_attention_heads=3, num_key_value_heads=1).to(tt.DEVICE)
    cfg, kv = model.config, KVCache(model, 40)
    H, K, E = cfg.num_attention_heads, cfg.num_key_value_heads, cfg.head_dim
    q, k, v, positions_BT = inputs(3, H, K, 72, 72, E, torch.bfloat16)
    full = attend(q, in_blocks(k).mT, in_blocks(v), positions_BT)
    read = slice(0, 3) if rows == "the front of the cache" else torch.tensor([7, 2, 30])
    for start, stop in ((0, 60), (60, 61), (61, 70), (70, 71), (71, 72)):
        new = slice(start, stop)
        view = kv.view(read, torch.full((3,), start), stop - start).layer(1)
        k_UZEL, v_UZLE = view.extend(k[:, :, new], v[:, :, new])
        assert torch.equal(attend(q[:, :, new], k_UZEL, v_UZLE, positions_BT[:, new]), full[:, :, new])


@tt.runs
def test_padding_query_has_no_output_and_no_gradient():
    q, k, v, positions_BT = inputs(2, 2, 1, 66, 66, 16, torch.float32)
    holes_BT = positions_BT.clone()
    holes_BT[0, :40], holes_BT[1, ::3] = -1, -1
    there = (holes_BT >= 0)[:, None, :, None]
    whole = results(lambda *x: attend(*x) * there, q, k, v, positions_BT, 20)
    got = results(attend, q, k, v, holes_BT, 20)
    assert torch.equal(got["o"], whole["o"]) and torch.equal(got["q"], whole["q"])
    assert all(torch.equal(got[x], whole[x]) for x in "kv")
    nothing = results(attend, q, k, v, torch.full_like(positions_BT, -1), None)
    assert not any(x.any() for x in nothing.values())
    assert attend(q[:, :, :0], in_blocks(k).mT, in_blocks(v), positions_BT[:, :0]).shape == (2, 2, 0, 16)


@tt.runs
@pytest.mark.parametrize(
    ("dtype", "window"),
    quickly([(torch.float32, 20), (torch.bfloat16, None)], itertools.product(tt.FLOATS[:2], (None, 20))),
    ids=str,
)
def test_packed_queries_have_the_bits_of_padded_ones(dtype, window):
    """Sequences of 1, 40, 0 and 9 queries at various positions read rows 3, 0, 1 and 2 of a cache of five."""
    H, K, E, rows = 4, 2, 24, 5
    g = torch.Generator().manual_seed(0)
    k_UZEL, v_UZLE = (torch.randn(3, rows * K, *s, generator=g).to(tt.DEVICE, dtype) for s in ((E, 64), (64, E)))
    counts, places, starts = [1, 40, 0, 9], [3, 0, 1, 2], [150, 64, 0, 5]
    q_NHE = torch.randn(sum(counts) + 4, H, E, generator=g).to(tt.DEVICE, dtype)
    positions_N = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, counts, strict=True)]).to(tt.DEVICE)
    positions_N = torch.cat((positions_N, positions_N.new_full((4,), -1)))
    bounds = torch.tensor([0, 1, 41, 41, 50], device=tt.DEVICE)
    order = positions_N, bounds, torch.tensor(places, device=tt.DEVICE), 100, K, window
    got_NHE = attention_triton.attend_packed(q_NHE, k_UZEL, v_UZLE, *order)
    for i, place in enumerate(places):
        own, heads = slice(int(bounds[i]), int(bounds[i + 1])), slice(place * K, (place + 1) * K)
        q_BHTE, k, v = q_NHE[None, own].transpose(1, 2), k_UZEL[:, heads], v_UZLE[:, heads]
        expected = attend(q_BHTE, k, v, positions_N[None, own], window)[0].transpose(0, 1)
        assert torch.equal(got_NHE[own], expected)


@pytest.fixture
def everywhere(monkeypatch):
    """Give the test's models the kernels' attention."""
    monkeypatch.setattr(
        decoder, "attend", lambda q, k, v, positions_BT, window, _: attend(q, k, v, positions_BT, window)
    )


WINDOW = {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}


@tt.runs
@pytest.mark.parametrize("window", [{}, WINDOW], ids=["whole", "window of 20"])
@pytest.mark.parametrize(("layers", "B"), [(1, 3), pytest.param(2, 4, marks=pytest.mark.full)])
@pytest.mark.skipif(tt.DEVICE == "cuda", reason="there linear layers need models/cuda/triton/linear.py too")
def test_sampled_logprobs_match_training_bitwise(window, layers, B, everywhere):
    small = {"num_hidden_layers": layers, "num_attention_heads": 3, "num_key_value_heads": 1}
    model = random_model("qwen3", dtype=torch.bfloat16, **small, **window)
    engine, turns = Engine(model, max_rows=B, max_len=200), {}
    prompts = [[7, 3, 5] * (20 + layers) + [n] for n in range(B)]
    for n, ids in enumerate(prompts):
        engine.feed(engine.open((0, n)), ids)
        turns[n] = [list(ids), [], []]  # ids, positions of sampled ids, log-probabilities
    again = {n: [n] * (5 * n + 1) for n in range(2)}
    for row in engine.run(3, 1.0, frozenset()):
        ids, at, logprobs = turns[row.slot]
        at += range(len(ids), len(ids) + len(row.ids))
        ids += row.ids
        logprobs += row.logprobs
        if row.slot in again:
            engine.feed(row.slot, said := again.pop(row.slot))
            ids += said
    rows, prefixes = [], {}  # shared prefixes are computed once
    for ids, _, _ in turns.values():
        row, places = -1, []
        for token in ids:
            row = prefixes.setdefault((row, token), len(prefixes))
            places.append(row)
        rows.append(torch.tensor(places))
    sequences_ST = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    ids_BT = torch.tensor([[token for _, token in prefixes]])
    assert ids_BT.numel() < sum(map(len, rows))
    wanted = torch.cat([r[torch.tensor(at) - 1] for r, (_, at, _) in zip(rows, turns.values(), strict=True)])
    targets_N = torch.cat([torch.tensor(ids)[at] for ids, at, _ in turns.values()])
    hidden_ND = model(ids_BT, sequences_ST=sequences_ST, wanted=wanted)
    expected = token_logprobs(hidden_ND, model.lm_head.weight, targets_N)[0].detach()
    assert torch.equal(torch.tensor([x for _, _, logprobs in turns.values() for x in logprobs]), expected)


@pytest.mark.full
@tt.runs
@pytest.mark.skipif(tt.DEVICE == "cuda", reason="compares with the CPU's path")
def test_a_models_gradients_match_the_cpu_path(request):
    model = random_model("qwen3").requires_grad_()
    tail = torch.tensor([*range(90, 99), -1])
    sequences_ST = torch.stack((torch.arange(90), torch.cat((torch.arange(80), tail))))
    ids_BT, wanted = torch.randint(97, (1, 99), generator=torch.Generator().manual_seed(0)), torch.tensor([98, 3, 50])
    grads = []
    for _ in range(2):
        hidden_ND = model(ids_BT, sequences_ST=sequences_ST, wanted=wanted)
        grads.append(torch.autograd.grad(hidden_ND.sin().sum(), model.model.layers.parameters()))
        request.getfixturevalue("everywhere")
    for cpus, ours in zip(*grads, strict=True):
        torch.testing.assert_close(ours, cpus, atol=1e-5 * float(cpus.abs().max()), rtol=1e-5)


SMALL_HEADS, LARGE_HEADS = (14, 2, 64), (28, 4, 128)  # Qwen2.5 0.5B and 7B


def launches_of(H, K, E, dtype, monkeypatch, T=300):
    """Return every launch of a training batch's attention, on meta tensors."""
    with monkeypatch.context() as patch:
        launches = tt.record(patch, attention_triton, KERNELS)
        shapes = (8, H, T, E), (5, 8 * K, E, 64), (5, 8 * K, 64, E)
        q, k, v = (torch.empty(s, dtype=dtype, device="meta", requires_grad=True) for s in shapes)
        attend(q, k, v, torch.empty(8, T, dtype=torch.long, device="meta")).sum().backward()
    return launches


@tt.compiles
@pytest.mark.parametrize(
    ("arch", "dtype", "heads"),
    quickly(
        [(90, torch.bfloat16, LARGE_HEADS)],
        ((*chip, heads) for chip in tt.HALVES_ON_CHIPS for heads in (SMALL_HEADS, LARGE_HEADS)),
    ),
    ids=str,
)
def test_every_launch_compiles_and_fits_the_chip(arch, dtype, heads, monkeypatch, tmp_path):
    """No register is spilled."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    binaries = []
    for launch in launches_of(*heads, dtype, monkeypatch):
        binaries.append(binary := tt.compiled(*launch, arch)[1]())
        tt.check_binary(binary, arch)
        name = binary.metadata.name
        assert binary.metadata.shared <= tt.SHARED[arch] * (0.5 if name == "_forward" and arch > 80 else 1), name
    for binary in binaries:
        assert tt.spilled(binary) == 0, binary.metadata.name


@tt.compiles
@pytest.mark.parametrize("arch", tt.CHIPS)
def test_the_forward_in_float32_fits_every_chip(arch, monkeypatch, tmp_path):
    """Without spilled registers; a chip of the 4090's kind has 99 KiB of shared memory."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    forward, *_ = launches_of(*LARGE_HEADS, torch.float32, monkeypatch)
    binary = tt.compiled(*forward, arch)[1]()
    assert binary.metadata.shared <= tt.SHARED[arch] and tt.spilled(binary) == 0


@tt.compiles
@pytest.mark.full
def test_the_backward_fits_a_chip_with_little_shared_memory(monkeypatch, tmp_path):
    """In the quick tests test_triton_compiled.py compiles these launches for sm_89, which has as little."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(attention_triton, "shared_memory", lambda device: tt.SHARED[120])
    for launch in launches_of(28, 4, 128, torch.bfloat16, monkeypatch):
        assert tt.compiled(*launch, 120)[1]().metadata.shared <= tt.SHARED[120], launch[0].__name__


@tt.compiles
def test_sampling_and_training_launch_the_same_binary(monkeypatch):
    """The numbers of sequences, queries and blocks are not compiled into the kernel."""
    keys = set()
    for T, B, U in ((1, 1, 1), (1, 16, 2), (300, 8, 16), (16, 3, 5)):
        with monkeypatch.context() as patch:
            launches = tt.record(patch, attention_triton, KERNELS)
            shapes = (B, 14, T, 64), (U, B * 2, 64, 64), (U, B * 2, 64, 64)
            q, k, v = (torch.empty(s, dtype=torch.bfloat16, device="meta") for s in shapes)
            for window in (None, 1, 16):
                attend(q, k, v, torch.empty(B, T, dtype=torch.long, device="meta"), window)
        keys |= {tt.compiled(*launch, 90)[0] for launch in launches}
    assert len(keys) == 1


@tt.runs_no_kernel
def test_cuda_uses_the_kernels_for_16_bits_and_exact_float32(monkeypatch):
    """The meta device, given CUDA's hook, shows which calls reach the kernel."""
    calls = []
    monkeypatch.setattr(hooks("meta"), "attend", paths.attend)
    monkeypatch.setattr(attention_triton, "attend", lambda q, *_: calls.append(q.dtype))
    for dtype, exact in ((torch.bfloat16, False), (torch.float16, True), (torch.float32, False), (torch.float32, True)):
        q, k, v = (torch.empty(1, 2, 64, 64, dtype=dtype, device="meta") for _ in range(3))
        attention.attend(q, k, v, torch.zeros(1, 64, dtype=torch.long, device="meta"), None, exact)
    assert calls == [torch.bfloat16, torch.float16, torch.float32]
