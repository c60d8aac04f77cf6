"""One epoch's learning: optimizer steps over the batch, each accumulated from micro-batches."""

import math
from collections import defaultdict

import torch
from torch import nn

from models import CausalLM, fast_matmul
from rl.batch import forward, micro_batches, optimizer_steps, with_gradient
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


OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def make_optimizer(model: CausalLM, critic: Critic | None, cfg) -> torch.optim.Optimizer:
    """cfg.optimizer over what trains: the adapter or the model at lr, the critic at its own."""
    groups = [{"params": [p for p in model.parameters() if p.requires_grad], "lr": cfg.lr}]
    if critic is not None:
        groups.append({"params": list(critic.parameters()), "lr": getattr(cfg, cfg.algo).critic_lr})
    for group in groups:
        group["base_lr"] = group["lr"]
    return OPTIMIZERS[cfg.optimizer](groups, weight_decay=cfg.weight_decay)


def total_steps(cfg) -> int:
    """Optimizer steps of a whole run."""
    steps = cfg.epochs * getattr(cfg, cfg.algo).epochs * math.ceil(cfg.episodes / cfg.batch_size)
    return min(steps, cfg.max_steps or steps)


def update(state, batch: Batch, algo, cfg, progress=None) -> dict[str, float]:
    """Takes the epoch's optimizer steps on state.model (and state.critic). Returns the steps' mean metrics.

    `sampler_gap` is the largest difference, over the tokens that the first step learns from, between the
    log-probabilities that the model gives before it and those that it gave when it sampled: what sampling and training
    disagree by.
    Raises FloatingPointError if no step of the epoch had a finite gradient.
    """
    algo_cfg, steps, near = getattr(cfg, cfg.algo), [], True
    state.model.train(algo_cfg.source == "demonstrations")  # dropout: in rl it would make the first ratio differ from 1
    for passed in range(algo_cfg.epochs):
        seed = f"{cfg.seed} {state.epoch} {passed}" if cfg.order == "random" else None
        for piece in optimizer_steps(batch, cfg.batch_size, seed):
            if not near or (cfg.max_steps and state.step >= cfg.max_steps):
                break
            steps.append(optimizer_step(state, piece, algo, cfg))
            near = not steps[-1].pop("too_far")
            if progress is not None:
                progress.update(len(piece.episodes))
    gaps = [step.pop("sampler_gap") for step in steps]
    state.model.eval()
    taken = [step for step in steps if not step["skipped"]]
    if steps and not taken and near:
        raise FloatingPointError(f"epoch {state.epoch + 1}: no gradient was finite, in {len(steps)} optimizer steps")
    names = taken[0] if taken else {}
    means = {name: sum(step[name] for step in taken) / len(taken) for name in names if name != "skipped"}
    means |= {"optimizer_steps": len(taken), "skipped_steps": len(steps) - len(taken)}
    return means | ({"sampler_gap": gaps[0] if gaps else None} if algo_cfg.source == "rollouts" else {})


def optimizer_step(state, batch: Batch, algo, cfg) -> dict[str, float]:
    """One step on all of the batch, in micro-batches. It is not taken, but counted, if its gradient is not finite, or
    if the policy is too far already from the one that sampled (target_kl).

    Where advantages are all that is learned from, episodes without any are left out. Single tokens are not, though
    `token_logprobs` could (keep_N): metrics are means over all tokens of what the model sees.
    """
    algo_cfg, metrics, gap = getattr(cfg, cfg.algo), defaultdict(float), 0.0
    if not (algo_cfg.critic or algo_cfg.reference or algo_cfg.entropy_grad or algo_cfg.target_kl):
        batch = with_gradient(batch)
    for micro in micro_batches(batch, cfg.micro_tokens):
        micro = forward(micro, state.model, cfg.temperature, state.critic, algo_cfg.entropy_grad)
        difference = (micro.logprobs_N.detach() - micro.old_logprobs_N).abs().max().item()
        gap = difference if difference > gap or math.isnan(difference) else gap
        loss, shares = algo.loss(micro, algo_cfg)
        with fast_matmul():
            loss.backward()
        for name, share in shares.items():
            metrics[name] += share
    if state.critic is not None and state.epoch < algo_cfg.critic_warmup:
        for p in state.optimizer.param_groups[0]["params"]:
            p.grad = None  # the optimizer passes over it
    factor = learning_rate_factor(state.step, total_steps(cfg), cfg.schedule, cfg.warmup_steps, cfg.min_lr_ratio)
    norms = []
    for group in state.optimizer.param_groups:  # policy and critic apart: one's gradient must not scale the other's
        group["lr"] = group["base_lr"] * factor
        norms.append(torch.nn.utils.clip_grad_norm_(group["params"], cfg.clip_norm).item())
    too_far = algo_cfg.target_kl is not None and metrics["approx_kl"] > 1.5 * algo_cfg.target_kl
    skipped = too_far or not all(map(math.isfinite, norms))
    if not skipped:
        state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    told = {"grad_norm": norms[0], "lr": cfg.lr * factor, "sampler_gap": gap, "skipped": skipped, "too_far": too_far}
    return {**metrics, **told}
