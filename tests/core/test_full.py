"""Full fine-tuning in bfloat16: the optimizer steps on float32 copies, and the model is these copies rounded."""

import torch
from conftest import random_model

from rl.config.words import parse
from rl.run import full_finetuning
from rl.run.state import TrainState
from rl.update import make_optimizer

IDS_BT = torch.arange(24).view(2, 12)


def make_state(dtype: torch.dtype) -> TrainState:
    model = random_model(dtype=dtype)
    cfg = parse(["algo=grpo", "lora.r=0", f"dtype={str(dtype)[6:]}", "lr=1e-5"])
    full_finetuning.train_all(model)
    state = TrainState(model, None, make_optimizer(model, None, cfg))
    if dtype != torch.float32:
        full_finetuning.use_masters(state)
    return state


def step(state: TrainState) -> None:
    state.model(IDS_BT).float().square().mean().backward()
    state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)


def test_small_steps_move_every_weight_as_in_float32():
    """20 steps at lr=1e-5: AdamW's first steps are about lr long whatever the gradient's size."""
    state = make_state(torch.bfloat16)
    before = {name: p.detach().clone() for name, p in state.model.named_parameters()}
    for _ in range(20):
        step(state)
    layer = "model.layers.0.mlp.up_proj.weight"
    moved = (state.masters[layer] - before[layer].float()).abs()
    assert (moved > 1e-4).float().mean() > 0.9, "20 * lr = 2e-4, where the gradient keeps its sign"
    stuck = make_state(torch.bfloat16)
    stuck.optimizer = torch.optim.AdamW(stuck.model.parameters(), lr=1e-5)  # torch's own steps on 16 bits
    for p in stuck.model.parameters():
        p._post_accumulate_grad_hooks.clear()
    for _ in range(20):
        step(stuck)
    weights = dict(stuck.model.named_parameters())[layer]
    assert (weights == before[layer]).float().mean() > 0.5


def test_model_is_its_float32_copies_rounded():
    state = make_state(torch.bfloat16)
    versions = [p._version for p in state.model.parameters()]
    step(state)
    for name, p in state.model.named_parameters():
        assert p.dtype == torch.bfloat16 and torch.equal(p, state.masters[name].bfloat16()) and p.grad is None
    assert all(a < p._version for a, p in zip(versions, state.model.parameters(), strict=True)), "engines see it"


def test_gradients_of_micro_batches_add_up_in_float32():
    whole, state = make_state(torch.bfloat16), make_state(torch.bfloat16)
    whole.model(IDS_BT).float().square().mean().backward()
    for _ in range(5):  # 5 times a bfloat16 number has up to 3 bits more than bfloat16 keeps
        state.model(IDS_BT).float().square().mean().backward()
    masters = {name: master for name, master in state.masters.items() if name != "lm_head.weight"}
    for name, master in masters.items():
        assert master.grad.dtype == torch.float32
        assert torch.equal(master.grad, 5 * whole.masters[name].grad), name
