"""One epoch's learning: optimizer steps over the batch, each accumulated from micro-batches."""

import math
from collections import defaultdict

import torch
from torch import nn

from models import CausalLM
from rl.batch import forward, micro_batches, optimizer_steps
from rl.core import learning_rate_factor
from rl.records import Batch


class Critic(nn.Module):
    """The value network: a two-layer MLP on the policy's hidden states, [N, D] -> [N], float32. Starts at value 0."""

    def __init__(self, width: int, hidden: int, device: str = "cpu"):
        super().__init__()
        self.up = nn.Linear(width, hidden, device=device)
        self.down = nn.Linear(hidden, 1, device=device)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(hidden_ND.float())))[:, 0]


def make_optimizer(model: CausalLM, critic: Critic | None, cfg) -> torch.optim.Optimizer:
    """AdamW over what trains: the adapter or the model at lr, the critic at its own."""
    groups = [{"params": [p for p in model.parameters() if p.requires_grad], "lr": cfg.lr}]
    if critic is not None:
        groups.append({"params": list(critic.parameters()), "lr": getattr(cfg, cfg.algo).critic_lr})
    for group in groups:
        group["base_lr"] = group["lr"]
    return torch.optim.AdamW(groups, weight_decay=cfg.weight_decay)


def total_steps(cfg) -> int:
    """Optimizer steps of a whole run."""
    steps = cfg.epochs * getattr(cfg, cfg.algo).epochs * math.ceil(cfg.episodes / cfg.batch_size)
    return min(steps, cfg.max_steps or steps)


def update(state, batch: Batch, algo, cfg, progress=None) -> dict[str, float]:
    """Takes the epoch's optimizer steps on state.model (and state.critic). Returns the means of the losses' metrics.

    Before the first step the model is the one that sampled, so the largest difference between its log-probabilities now
    and then, `sampler_gap`, is what sampling and training disagree by. A step whose gradient is not finite is not
    taken.
    """
    algo_cfg = getattr(cfg, cfg.algo)
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    sums, taken, skipped, gap = defaultdict(float), 0, 0, 0.0
    state.model.train(cfg.algo == "sft")  # dropout, if any: in rl it would make the first ratio differ from 1
    for passed in range(algo_cfg.epochs):
        means = defaultdict(float)
        for step, piece in enumerate(optimizer_steps(batch, cfg.batch_size, f"{cfg.seed} {state.epoch} {passed}")):
            if cfg.max_steps and state.step >= cfg.max_steps:
                break
            metrics = defaultdict(float)
            for micro in micro_batches(piece, cfg.micro_tokens):
                micro = forward(micro, state.model, cfg.temperature, state.critic, algo_cfg.entropy_grad)
                if passed == step == 0:
                    gap = max(gap, (micro.logprobs_N.detach() - micro.old_logprobs_N).abs().max().item())
                loss, shares = algo.loss(micro, algo_cfg)
                loss.backward()
                for name, share in shares.items():
                    metrics[name] += share
            factor = learning_rate_factor(
                state.step, total_steps(cfg), cfg.schedule, cfg.warmup_steps, cfg.min_lr_ratio
            )
            for group in state.optimizer.param_groups:
                group["lr"] = group["base_lr"] * factor
            metrics["grad_norm"] = torch.nn.utils.clip_grad_norm_(parameters, cfg.clip_norm).item()
            if math.isfinite(metrics["grad_norm"]):
                state.optimizer.step()
                taken += 1
                for name, value in metrics.items():
                    sums[name] += value
                    means[name] += value
            else:
                skipped += 1
            state.optimizer.zero_grad(set_to_none=True)
            state.step += 1
            if progress is not None:
                progress.update()
        steps = max(1, taken)
        if algo_cfg.target_kl and means["approx_kl"] > 1.5 * algo_cfg.target_kl * (step + 1):
            break
    state.model.eval()
    result = {name: value / steps for name, value in sums.items()}
    result |= {"lr": cfg.lr * factor, "optimizer_steps": taken, "skipped_steps": skipped}
    return result | ({"sampler_gap": gap} if algo_cfg.source == "rollouts" else {})
