"""One epoch's learning: optimizer steps over the batch, each accumulated from micro-batches."""

import math
from collections import defaultdict
from types import ModuleType

import torch
from tqdm import tqdm

import lora
from models import CausalLM, fast_matmul
from models.kernels import kernels
from rl.batch import drop_zero_advantage, forward, micro_batches, optimizer_steps
from rl.config.fields import Common
from rl.core import learning_rate_factor
from rl.ppo import Critic
from rl.ranks import gradients
from rl.records import Batch
from rl.report.episodes import note_entropies
from rl.run import memory_errors, signals
from rl.run.out_of_memory import accumulate_smaller
from rl.run.state import TrainState

OPTIMIZERS = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}


def make_optimizer(model: CausalLM, critic: Critic | None, cfg: Common) -> torch.optim.Optimizer:
    """Return cfg.optimizer over the trainable parameters: adapter or model at cfg.lr, the critic at its own rate."""
    rates = [([p for p in model.parameters() if p.requires_grad], cfg.lr)]
    rates += [] if critic is None else [(list(critic.parameters()), cfg.algorithm.critic_lr)]
    groups = [{"params": parameters, "lr": rate, "base_lr": rate} for parameters, rate in rates]
    return kernels.optimizer(OPTIMIZERS[cfg.optimizer])(groups, weight_decay=cfg.weight_decay)


def update(state: TrainState, batch: Batch, algo: ModuleType, cfg: Common, progress: tqdm) -> dict:
    """Take the epoch's optimizer steps on state.model and state.critic. Return the means of the steps' metrics.

    `sampler_gap` is the largest |log p sampled - log p recomputed| over all optimizer steps before the policy first
    changes; skipped steps and the critic's warm-up do not change it.
    Raises FloatingPointError if no step of the epoch had a finite gradient.
    """
    algo_cfg, steps, within_target_kl, gaps = cfg.algorithm, [], True, []
    version = lora.adapter_version(state.model)
    own_episodes = not cfg.rollouts or {e.adapter_hash for e in batch.episodes} == {state.adapter_hash()}
    sampled_with = version() if own_episodes else None
    state.model.train(algo_cfg.source == "demonstrations")  # with dropout the first ratio of rl would not be 1
    for number in range(algo_cfg.epochs):  # passes over the epoch's episodes
        seed = f"{cfg.seed} {state.epoch} {number}" if cfg.order == "random" else None
        for piece in optimizer_steps(batch, cfg.batch_size, seed):
            if not within_target_kl or (cfg.max_steps and state.step >= cfg.max_steps):
                break
            signals.check()
            comparable = version() == sampled_with
            steps.append(optimizer_step(state, piece, algo, cfg))
            state.watch.stepped(state, piece, steps[-1], cfg)
            state.mid_epoch = True
            within_target_kl, gap = (steps[-1].pop(name) for name in ("within_target_kl", "sampler_gap"))
            gaps += gap if comparable else []
            progress.update(len(piece.episodes))
    state.model.eval()
    taken = [step for step in steps if not step["skipped"]]
    if steps and not taken and within_target_kl:
        raise FloatingPointError(f"epoch {state.epoch + 1}: no gradient was finite, in {len(steps)} optimizer steps")
    names = [name for name in taken[0] if name not in ("skipped", "trained_tokens")] if taken else []
    stats = {name: sum(step[name] for step in taken) / len(taken) for name in names}
    stats |= {"optimizer_steps": len(taken), "skipped_steps": len(steps) - len(taken)}
    stats["trained_tokens"] = sum(step["trained_tokens"] for step in steps)
    if algo_cfg.source == "rollouts":
        stats |= {"sampler_gap": torch.tensor(gaps).max().item() if gaps else None, "exact": state.exact}
    return stats


def optimizer_step(state: TrainState, batch: Batch, algo: ModuleType, cfg: Common) -> dict:
    """Take one step on the whole batch, in micro-batches, and return its metrics.

    The step is skipped, but counted, if its gradient is not finite or if KL(old || new) is past 1.5 * target_kl.
    """
    algo_cfg, found = cfg.algorithm, None
    if not (algo_cfg.critic or algo_cfg.reference or algo_cfg.entropy_grad or algo_cfg.target_kl):
        batch = drop_zero_advantage(batch)
    with memory_errors.may_run_out():
        found = accumulate(state, batch, algo, cfg)
    if found is None:
        found = accumulate_smaller(accumulate, state, batch, algo, cfg)
    stats, gaps = found
    if state.critic is not None and state.epoch < algo_cfg.critic_warmup:
        for p in state.optimizer.param_groups[0]["params"]:
            p.grad = None  # the optimizer skips the policy
    factor = learning_rate_factor(state.step, cfg.total_steps, cfg.schedule, cfg.warmup_steps, cfg.min_lr_ratio)
    norms = []
    for group in state.optimizer.param_groups:  # policy and critic apart: one's gradient must not scale the other's
        group["lr"] = group["base_lr"] * factor
        norms.append(torch.nn.utils.clip_grad_norm_(group["params"], cfg.clip_norm).item())
    within_target_kl = algo_cfg.target_kl is None or not stats["approx_kl"] > 1.5 * algo_cfg.target_kl
    skipped = not within_target_kl or not all(map(math.isfinite, norms))
    if not skipped:
        state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1
    stats |= {"grad_norm": norms[0], "lr": cfg.lr * factor, "sampler_gap": gaps}
    stats["trained_tokens"] = sum(len(episode.ids_T) for episode in batch.episodes)
    return {**stats, "skipped": skipped, "within_target_kl": within_target_kl}


def accumulate(state: TrainState, batch: Batch, algo: ModuleType, cfg: Common) -> tuple[dict, list[float]]:
    """Add the gradient of the whole batch to the parameters'. Return its metrics, and the sampler gap of each piece."""

    def learn(number: int, micro: Batch) -> tuple[dict, float]:
        with gradients.same_masks(cfg.lora.dropout, (cfg.seed, state.step, number), trained[0].device):
            micro = forward(micro, state.model, temperature, state.critic, cfg.algorithm.entropy_grad)
            gap = (micro.logprobs_N.detach() - micro.old_logprobs_N).abs().max().item()
            note_entropies(micro)
            loss, shares = algo.loss(micro, cfg.algorithm)
            with fast_matmul():
                loss.backward()
        return shares, gap

    trained = [p for group in state.optimizer.param_groups for p in group["params"]]
    temperature = cfg.temperature if cfg.algorithm.source == "rollouts" else 1.0  # of demonstrations
    pieces = micro_batches(batch, state.micro_tokens or cfg.micro_tokens)
    results, stats = gradients.accumulate(learn, pieces, trained, cfg.reduce == "fast"), defaultdict(float)
    for name, share in (item for shares, _ in results for item in shares.items()):
        stats[name] += share
    return stats, [gap for _, gap in results]
