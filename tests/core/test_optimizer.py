"""Optimizers of adapters: their steps against plain loops, and their groups."""

import math
from dataclasses import replace
from types import SimpleNamespace

import torch
from test_lora import adapted_model

from rl.config.words import resolve
from rl.optimizer import parameters_of
from rl.ppo import Critic
from rl.records import StepResult
from rl.run.state import TrainState
from rl.update import make_optimizer, optimizer_step


def settings(**words: str):
    return resolve({"lr": "1e-2", "weight_decay": "0.1", "algo": "grpo", **words})


def stepped(cfg, grads: list[list[torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return the factors after one step for each list of gradients."""
    model = adapted_model()
    optimizer, named = make_optimizer(model, None, cfg), dict(model.named_parameters())
    factors = {name: p for name, p in named.items() if p.requires_grad}
    for of_step in grads:
        for p, grad in zip(factors.values(), of_step, strict=True):
            p.grad = grad.clone()
        optimizer.step()
    return {name: p.detach() for name, p in factors.items()}


def gradients(steps: int) -> list[list[torch.Tensor]]:
    torch.manual_seed(5)
    shapes = [p.shape for p in adapted_model().parameters() if p.requires_grad]
    return [[torch.randn(shape) for shape in shapes] for _ in range(steps)]


def test_lora_plus_gives_b_a_multiple_of_a_s_rate():
    """Each factor is as plain AdamW leaves it at its own rate."""
    grads, cfg = gradients(3), settings(**{"lora.b_rate": "4"})
    found = stepped(cfg, grads)
    plain, faster = (stepped(settings(lr=rate), grads) for rate in ("1e-2", "4e-2"))
    for name, p in found.items():
        assert torch.equal(p, (faster if name.endswith(".B") else plain)[name]), name
    assert not torch.equal(plain[name], faster[name])


def test_a_ratio_of_1_keeps_one_group_and_the_critic_its_own():
    model, critic = adapted_model(), Critic(32, 8)
    cfg = replace(settings(algo="ppo"), lora=settings(**{"lora.b_rate": "2"}).lora)
    one, three = make_optimizer(model, critic, settings(algo="ppo")), make_optimizer(model, critic, cfg)
    assert [len(optimizer.param_groups) for optimizer in (one, three)] == [2, 3]
    factors = [p for p in model.parameters() if p.requires_grad]
    for optimizer in (one, three):
        assert {id(p) for p in parameters_of(optimizer, policy=True)} == {id(p) for p in factors}
        assert [id(p) for p in parameters_of(optimizer, policy=False)] == [id(p) for p in critic.parameters()]
    assert [id(p) for p in parameters_of(one, policy=True)] == [id(p) for p in factors], "in the order of the model"


def test_clipping_takes_all_factors_together_and_the_critic_apart(monkeypatch):
    """Also where the factors B are a group of their own. The first norm is the printed one: the policy's."""
    model, critic, clipped = adapted_model(), Critic(32, 8), []
    cfg = settings(algo="ppo", **{"lora.b_rate": "2"})
    state = TrainState(model, critic, make_optimizer(model, critic, cfg), None, "yes")
    clip = lambda parameters, _: clipped.append(parameters) or torch.tensor(float(len(clipped)))  # noqa: E731
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    none = torch.zeros(0)
    monkeypatch.setattr("rl.update.accumulate", lambda *_: StepResult({}, none, none, 0.0, none))
    metrics = optimizer_step(state, SimpleNamespace(episodes=[]), None, cfg).metrics
    policy, critics = ({id(p) for p in parameters} for parameters in clipped)
    assert policy == {id(p) for p in model.parameters() if p.requires_grad} and metrics["grad_norm"] == 1.0
    assert critics == {id(p) for p in critic.parameters()}


def test_muon_takes_orthogonal_steps_of_the_factors_momentum():
    """A plain loop: momentum with Nesterov's look-ahead, five Newton-Schulz steps, the size of an AdamW step."""
    grads, cfg = gradients(3), settings(optimizer="muon")
    found = stepped(cfg, grads)
    for n, (name, p) in enumerate(stepped(cfg, []).items()):
        momentum, start = torch.zeros_like(p), p
        for of_step in grads:
            momentum = 0.95 * momentum + 0.05 * of_step[n]
            x = (0.95 * momentum + 0.05 * of_step[n]).bfloat16()
            x = x.T if p.shape[0] > p.shape[1] else x
            x = x / x.norm()
            for _ in range(5):
                gram = x @ x.T
                polynomial = torch.addmm(
                    gram, gram, gram, beta=-4.7750, alpha=2.0315
                )  # one rounding of bfloat16, not three
                x = torch.addmm(x, polynomial, x, beta=3.4445)
            x = x.T if p.shape[0] > p.shape[1] else x
            p = p * (1 - 1e-2 * 0.1) - 1e-2 * 0.2 * math.sqrt(max(p.shape)) * x
        error, moved = (p - found[name]).norm(), (p - start).norm()
        assert error < 0.02 * moved, f"{name}: more than rounding of bfloat16"
        spectrum = torch.linalg.svdvals(x.float())
        assert spectrum.min() > 0.4 and spectrum.max() < 1.4
