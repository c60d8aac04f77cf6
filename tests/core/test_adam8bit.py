"""8-bit moments: what is stored, the steps beside torch's AdamW, and a checkpoint."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.quant import dynamic_map
from rl.adam8bit import BLOCK, PIECE, SMALLEST, AdamW8bit, restored, store, unsigned_map

MAPS = {"signed": dynamic_map(), "unsigned": unsigned_map()}


def moments(kind: str, count: int) -> torch.Tensor:
    """Numbers of many sizes, with a block of zeros."""
    torch.manual_seed(3)
    x_N = torch.randn(count) * 10 ** torch.linspace(-9, 2, count)
    x_N[BLOCK : 2 * BLOCK] = 0
    return x_N if kind == "signed" else x_N.square()


@pytest.mark.parametrize("kind", MAPS)
def test_each_number_becomes_the_nearest_level_of_its_block(kind):
    """A plain loop over blocks, the last of which is short. Only a mean of squares is never rounded to 0."""
    levels, x_N = MAPS[kind], moments(kind, 5 * BLOCK + 7)
    codes_N, scales = torch.zeros(len(x_N), dtype=torch.uint8), torch.zeros(6)
    store(x_N, codes_N, scales, levels)
    found = restored(codes_N, scales, levels)
    for start in range(0, len(x_N), BLOCK):
        block = x_N[start : start + BLOCK]
        distances = (block[:, None] - levels * block.abs().max()).abs()
        best = distances.min(1)[0]
        off = (found[start : start + BLOCK] - block).abs()
        raised = (block > 0) & (levels[distances.argmin(1)] == 0) if kind == "unsigned" else torch.tensor(False)
        assert torch.allclose(off, best, rtol=1e-4, atol=1e-30) or (raised | (off <= best * 1.0001 + 1e-30)).all()
        assert scales[start // BLOCK] == block.abs().max()
    if kind == "unsigned":
        assert torch.equal(found > 0, x_N > 0)


def test_the_unsigned_levels_are_those_of_bitsandbytes():
    functional = pytest.importorskip("bitsandbytes.functional")
    assert torch.equal(unsigned_map(), functional.create_dynamic_map(signed=False))


def test_256_levels_reach_from_0_to_1():
    for kind, levels in MAPS.items():
        assert len(levels) == 256 and levels[-1] == 1 and (levels.diff() > 0).all()
        assert levels[0] == 0 if kind == "unsigned" else levels[0] > -1 and 0 in levels


def both(shape: tuple[int, ...], steps: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the weights before, after 8-bit AdamW, after torch's, with the same gradients."""
    torch.manual_seed(seed)
    start, size = torch.randn(shape), 10 ** torch.empty(shape).uniform_(-2, 0)
    ours, theirs = (torch.nn.Parameter(start.clone()) for _ in range(2))
    optimizers = [kind([p], lr=1e-2, weight_decay=0.1) for kind, p in ((AdamW8bit, ours), (torch.optim.AdamW, theirs))]
    for _ in range(steps):
        ours.grad = theirs.grad = size * (0.5 + torch.randn(shape))
        for optimizer in optimizers:
            optimizer.step()
    return start, ours.detach(), theirs.detach()


@pytest.mark.parametrize("shape", [(63, 65), (SMALLEST - 1,)])
def test_small_tensors_take_adamws_steps(shape):
    _, ours, theirs = both(shape, 5)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


def test_a_first_step_is_adamws_in_each_piece():
    """Nothing has been stored before it. The tensor has two pieces and a short block."""
    _, ours, theirs = both((PIECE + BLOCK + 3,), 1)
    assert torch.allclose(ours, theirs, rtol=0, atol=1e-6)


def test_twenty_steps_end_near_adamws():
    """Within 6 % of the distance, with gradients that differ by up to a factor of 100 within a block."""
    start, ours, theirs = both((64, 128), 20)
    assert (ours - theirs).norm() < 0.06 * (theirs - start).norm()
    assert (ours - theirs).abs().max() < 0.3 * (theirs - start).abs().max(), "no weight leaps"


def test_a_saved_state_goes_on_bit_for_bit(tmp_path):
    """Through a file. Its moments take two bytes for a weight, and the scales."""
    p = torch.nn.Parameter(torch.randn(64, 128, generator=torch.Generator().manual_seed(1)))
    grads = torch.randn(3, 64, 128, generator=torch.Generator().manual_seed(2))
    optimizer = AdamW8bit([p], lr=1e-2, weight_decay=0.0)
    for grad in grads[:2]:
        p.grad = grad.clone()
        optimizer.step()
    state = optimizer.state_dict()
    save_file(state["state"][0], tmp_path / "state.safetensors")
    other = torch.nn.Parameter(p.detach().clone())
    loaded = AdamW8bit([other], lr=1e-2, weight_decay=0.0)
    loaded.load_state_dict({**loaded.state_dict(), "state": {0: load_file(tmp_path / "state.safetensors")}})
    assert {str(x.dtype) for x in loaded.state[other].values()} == {"torch.uint8", "torch.float32"}
    assert sum(x.numel() * x.element_size() for x in loaded.state[other].values()) == 4 + 2 * p.numel() * (
        1 + 4 / BLOCK
    )
    for weights, way in ((p, optimizer), (other, loaded)):
        weights.grad = grads[2].clone()
        way.step()
    assert torch.equal(p, other)
