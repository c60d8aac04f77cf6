"""Sequences laid end to end for torch's varlen_attn on CUDA: its arguments, with a plain loop in its place."""

import pytest
import torch
import torch.nn.functional as F
from conftest import random_model

from models.cuda import block as cuda_block
from models.cuda.block import pack_rows
from models.hooks import hooks

WINDOWS = {"whole": {}, "window of 8": {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 0}}


def varlen_loop(q, k, v, starts_q, starts_k, most_q, most_k, *, window_size, enable_gqa):
    """Compute varlen_attn in a loop: causal, with a sequence's last query at its last key."""
    assert starts_q.dtype == starts_k.dtype == torch.int32 and window_size[1] == 0 and enable_gqa
    lengths_q, lengths_k = starts_q.diff().tolist(), starts_k.diff().tolist()
    assert (max(lengths_q), max(lengths_k)) == (most_q, most_k) and (sum(lengths_q), sum(lengths_k)) == (len(q), len(k))
    outs = []
    for one_q, one_k, one_v in zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k), strict=True):
        position = torch.arange(len(one_k) - len(one_q), len(one_k))[:, None]
        seen = torch.arange(len(one_k)) <= position
        if window_size[0] >= 0:
            seen &= torch.arange(len(one_k)) >= position - window_size[0]
        heads = [x.transpose(0, 1)[None] for x in (one_q, one_k, one_v)]
        outs.append(F.scaled_dot_product_attention(*heads, attn_mask=seen, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(outs)


def arrangements():
    """Return inputs of a model by name; some of them put rows into several sequences."""
    ids = lambda *shape: torch.randint(97, shape, generator=torch.Generator().manual_seed(0))  # noqa: E731
    places = lambda *spans: torch.cat([torch.arange(*span) for span in spans])  # noqa: E731
    shared = [places((0, 60)), places((0, 50), (60, 75)), places((0, 50)), places((0, 20), (80, 81)), places((75, 80))]
    return {
        "rows of one length": (ids(3, 37), {}),
        "padded and packed": (ids(2, 40), {"segments_BT": torch.tensor([[0] * 9 + [-1] * 3 + [1] * 28, [2] * 40])}),
        "shared prefixes": (ids(1, 81), {"sequences_ST": _padded(shared)}),
        "out of order": (ids(1, 30), {"sequences_ST": _padded([places((20, 30), (0, 5)), places((20, 30), (5, 20))])}),
    }


def _padded(sequences):
    return torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True, padding_value=-1)


@pytest.fixture
def packing(monkeypatch):
    """Make models pack on this device too; return the list of packed calls."""
    calls = []
    counted = lambda *x, **more: calls.append(len(x[0])) or varlen_loop(*x, **more)  # noqa: E731
    monkeypatch.setattr(cuda_block, "load_varlen", lambda: counted)
    monkeypatch.setattr(cuda_block, "varlen_problem", lambda *_: None)
    monkeypatch.setattr(hooks("cpu"), "pack", cuda_block.pack)
    monkeypatch.setattr(hooks("cpu"), "train_block", cuda_block.train_block)
    return calls


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("name", arrangements())
def test_packed_attention_matches_padded_attention(name, window, request):
    model = random_model("qwen3", **WINDOWS[window]).requires_grad_()
    ids_BT, how = arrangements()[name]
    real = (how["segments_BT"] >= 0).flatten() if "segments_BT" in how else torch.ones(ids_BT.numel(), dtype=torch.bool)
    wanted = torch.tensor([0, 29, 8, 25])
    results = []
    for _ in range(2):
        whole = model(ids_BT, **how).flatten(0, 1)[real]
        some = model(ids_BT, wanted=wanted, **how)
        grads = torch.autograd.grad(whole.sin().sum() + some.cos().sum(), model.model.layers.parameters())
        results.append((whole.detach(), some.detach(), *grads))
        calls = request.getfixturevalue("packing")
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5 * float(one.abs().max()), rtol=1e-5)
    assert len(calls) == 3, "two layers of one forward, one of the other: its last one has few rows"
    rows = ids_BT.numel() - 3 if name == "padded and packed" else ids_BT.numel()
    assert set(calls) == {rows}, "each row is a query once"


def test_rows_shared_after_the_beginning_are_not_packed():
    rows, shared_middle = torch.arange(6), torch.tensor([[0, 1, 2, -1], [3, 1, 4, 5]])
    first = torch.tensor([[True, True, True, False], [True, False, True, True]])
    assert pack_rows(shared_middle, first) is None
    assert pack_rows(rows[None], rows[None] >= 0).queries == slice(6)


def test_torch_takes_the_arguments(monkeypatch):
    """varlen_attn itself runs forward and backward on meta tensors."""
    if cuda_block.load_varlen() is None:
        pytest.skip("this torch has no varlen_attn")
    rows_ST = torch.tensor([[0, 1, 2, 3], [0, 1, 4, -1]])
    packed = pack_rows(rows_ST, torch.tensor([[True] * 4, [False, False, True, False]]))
    packed.keys, packed.query_starts_S, packed.key_starts_S = (
        x.to("meta") for x in (packed.keys, packed.query_starts_S, packed.key_starts_S)
    )
    shapes = (16, 4, 64), (16, 2, 64), (16, 2, 64)
    q, k, v = (torch.empty(s, device="meta", dtype=torch.bfloat16, requires_grad=True) for s in shapes)
    out = packed.attend(q, k, v, window=3)
    out.sum().backward()
    assert out.shape == q.shape and q.grad.shape == q.shape and k.grad.shape == k.shape == v.grad.shape


def test_packing_needs_torch_with_windows_and_groups(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def packs(function, device="cuda"):
        monkeypatch.setattr(cuda_block, "load_varlen", lambda found=function: found)
        return cuda_block.varlen_problem(torch.device(device), torch.bfloat16, 64) is None

    whole = lambda q, k, v, *, window_size=(-1, -1), enable_gqa=False: None  # noqa: E731
    assert packs(whole) and not packs(whole, "cpu") and not packs(None)
    assert not packs(lambda q, k, v, *, window_size=(-1, -1): None)
    assert not packs(lambda q, k, v, *, enable_gqa=False: None)
