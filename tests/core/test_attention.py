"""Attention: the masked fallback against the exact path, and padding among the queries."""

import pytest
import torch

from models import attention
from models.attention import masked_attention


@pytest.mark.parametrize("window", [None, 1, 70])
def test_masked_attention_matches_exact_attention(window):
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=g, dtype=torch.float64) for s in ((2, 4, 30, 8), (3, 4, 8, 64), (3, 4, 64, 8)))
    positions_BT = torch.stack((torch.arange(100, 130), torch.arange(30) * 3))
    expected = attention.attend(q, k, v, positions_BT, window)
    torch.testing.assert_close(masked_attention(q, k, v, positions_BT, window), expected)
    of_none, first = positions_BT.clone(), positions_BT.clone()
    of_none[0, 3], first[0, 3] = -1, 0
    assert torch.equal(*(masked_attention(q, k, v, positions, window) for positions in (of_none, first)))


@pytest.mark.parametrize("window", [None, 1, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_padding_queries_change_nothing_and_tiles_are_skipped(window, dtype):
    """Three tiles; each sequence has another pattern of padding: none, all but the last tile, all, every other, ..."""
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(s, generator=g) for s in ((5, 4, 150, 8), (3, 10, 8, 64), (3, 10, 64, 8)))
    q, k, v = (x.to(dtype).requires_grad_() for x in (q, k, v))
    asked = torch.arange(150).expand(5, -1).clone()
    asked[1, :128], asked[2], asked[3, ::2], asked[4, 64:] = -1, -1, -1, -1
    tiles = [(tile.sequences, tile.queries) for tile in attention.tiles(asked, 2, window)]
    assert [t.tolist() if isinstance(t, torch.Tensor) else list(range(t.start, t.stop)) for t, _ in tiles] == [
        [0, 3, 4],
        [0, 3],
        [0, 1, 3],
    ]
    grad = torch.randn(q.shape, generator=g).to(dtype).masked_fill(asked[:, None, :, None] < 0, 0)
    outs, grads = [], []
    for positions_BT in (asked, torch.arange(150).expand(5, -1)):
        out = attention.attend(q, k, v, positions_BT, window)
        outs.append(out.where(asked[:, None, :, None] >= 0, 0))
        grads.append(torch.autograd.grad(out, (q, k, v), grad))
    assert torch.equal(*outs) and all(x.isfinite().all() for x in (*outs, *grads[0]))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 if dtype == torch.float32 else 2e-2, rtol=1e-5)
