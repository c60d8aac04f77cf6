"""One epoch's learning: passes over the batch, optimizer steps in each, micro-batches in each of these."""

import math
from collections import defaultdict
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import torch
from tqdm import tqdm

import lora
from models import CausalLM, fast_matmul
from models.moe import balance, expert_loads
from rl.adam8bit import AdamW8bit
from rl.batch import drop_zero_advantage, forward, micro_batches, numbered, optimizer_steps
from rl.config.fields import Config
from rl.config.refusals import Refusal
from rl.core import learning_rate_factor
from rl.optimizer import parameters_of, without_compiler
from rl.ppo import Critic
from rl.ranks import gradients
from rl.records import Batch, StepResult
from rl.run import memory_errors, signals
from rl.run.out_of_memory import accumulate_smaller
from rl.run.state import TrainState

OPTIMIZERS = {
    "adamw": torch.optim.AdamW,
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "adamw8bit": AdamW8bit,
}
if hasattr(torch.optim, "Muon"):  # torch 2.9
    OPTIMIZERS["muon"] = torch.optim.Muon


def make_optimizer(model: CausalLM, critic: Critic | None, cfg: Config) -> torch.optim.Optimizer:
    """Return cfg.optimizer over the trainable parameters: adapter or model at cfg.lr, the critic at its own rate.

    With cfg.lora.b_rate the factors B are a group of their own (LoRA+, Hayou et al. 2024, section 4).
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if cfg.lora.b_rate == 1:
        groups = [param_group(trained.values(), cfg.lr, policy=True)]
    else:
        b_factors = [p for name, p in trained.items() if name.endswith(".B")]
        others = [p for name, p in trained.items() if not name.endswith(".B")]
        groups = [param_group(others, cfg.lr, policy=True)]
        groups.append(param_group(b_factors, cfg.lr * cfg.lora.b_rate, policy=True))
    if critic is not None:
        groups.append(param_group(critic.parameters(), cfg.algorithm.critic_lr, policy=False))
    options = {"adjust_lr_fn": "match_rms_adamw"} if cfg.optimizer == "muon" else {}  # lr as for adamw
    return without_compiler(OPTIMIZERS[cfg.optimizer])(groups, weight_decay=cfg.weight_decay, **options)


def param_group(parameters: Iterable[torch.nn.Parameter], rate: float, policy: bool) -> dict[str, Any]:
    """Return a parameter group of the optimizer. policy: of the policy, else of the critic."""
    return {"params": list(parameters), "lr": rate, "base_lr": rate, "policy": policy}


def update(state: TrainState, batch: Batch, algo: ModuleType, cfg: Config, progress: tqdm) -> tuple[dict, torch.Tensor]:
    """Take the epoch's optimizer steps on state.model and state.critic. Return (the means of the steps' metrics,
    first_entropy_N: the entropy of each token of the batch when a step first met it, -1 if none did).

    `sampler_gap` is the largest |log p sampled - log p recomputed| over all optimizer steps before the policy first
    changes; skipped steps and the critic's warm-up do not change it.
    Raises FloatingPointError if no step of the epoch had a finite gradient.
    """
    steps: list[StepResult] = []
    gaps: list[float] = []
    batch, first_entropy_N = numbered(batch), torch.full((len(batch.episode_N),), -1.0)
    version = lora.adapter_version(state.model)
    # Recorded episodes of other weights would show these weights' distance as a gap of the sampler.
    sampled_by_this_policy = not cfg.rollouts or {e.adapter_hash for e in batch.episodes} == {state.adapter_hash()}
    sampled_with = version() if sampled_by_this_policy else None
    state.model.train(cfg.algorithm.source == "demonstrations")  # dropout would make rl's first ratio differ from 1
    for pass_number in range(cfg.algorithm.epochs):
        seed = f"{cfg.seed} {state.epoch} {pass_number}" if cfg.order == "random" else None
        for step_batch in optimizer_steps(batch, cfg.batch_size, seed):
            past_target_kl = bool(steps) and not steps[-1].within_target_kl
            if past_target_kl or (cfg.max_steps and state.step >= cfg.max_steps):
                break
            signals.check()  # a signal ends the run here, between two steps
            on_policy = version() == sampled_with
            step = optimizer_step(state, step_batch, algo, cfg)
            state.watch.stepped(state, step_batch, step, cfg)
            state.mid_epoch = True
            gaps += [step.sampler_gap] if on_policy else []
            met_N = first_entropy_N[step.place_N]
            first_entropy_N[step.place_N] = torch.where(met_N == -1, step.entropy_N, met_N)
            steps.append(step)
            progress.update(len(step_batch.episodes))
    state.model.eval()
    stats = means(steps)
    if steps and not stats["optimizer_steps"] and steps[-1].within_target_kl:
        raise FloatingPointError(f"epoch {state.epoch + 1}: no gradient was finite, in {len(steps)} optimizer steps")
    if cfg.algorithm.source == "rollouts":
        # Through a tensor, because Python's max would pass over a NaN.
        stats |= {"sampler_gap": torch.tensor(gaps).max().item() if gaps else None, "exact": state.exact}
    if steps and len(steps[0].expert_loads):
        stats["expert_load"], stats["experts_idle"] = balance(torch.stack([step.expert_loads for step in steps]).sum(0))
    return stats, first_entropy_N


def means(steps: list[StepResult]) -> dict:
    """Return the means of the metrics of optimizer steps, each over the taken steps that have it, and their counts."""
    # A skipped step's metrics may be NaN, which would spoil the means.
    taken = [step.metrics for step in steps if not step.skipped]
    values = defaultdict(list)
    for metrics in taken:
        for name, value in metrics.items():
            values[name].append(value)
    return {
        **{name: sum(of_steps) / len(of_steps) for name, of_steps in values.items()},
        "optimizer_steps": len(taken),
        "skipped_steps": len(steps) - len(taken),
        "trained_tokens": sum(step.trained_tokens for step in steps),
    }


def optimizer_step(state: TrainState, batch: Batch, algo: ModuleType, cfg: Config) -> StepResult:
    """Take one step on the whole batch, in micro-batches.

    The step is skipped, but counted, if its gradient is not finite or if KL(old || new) is past 1.5 * target_kl.
    """
    algo_cfg, step = cfg.algorithm, None
    if algo_cfg.drops_zero_advantage:
        batch = drop_zero_advantage(batch)
    with memory_errors.suppress_out_of_memory():
        step = accumulate(state, batch, algo, cfg)
    # Outside of the block above, because the error's traceback would hold the failed attempt's tensors in memory.
    if step is None:
        step = accumulate_smaller(accumulate, state, batch, algo, cfg)
    if state.critic is not None and state.epoch < algo_cfg.critic_warmup:
        for p in parameters_of(state.optimizer, policy=True):
            p.grad = None  # the optimizer skips the policy
    factor = rate_factor(state, cfg)
    norms = []
    for group in state.optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    for policy in (True, False):  # policy and critic apart: one's gradient must not scale the other's
        if parameters := parameters_of(state.optimizer, policy):
            norms.append(torch.nn.utils.clip_grad_norm_(parameters, cfg.clip_norm).item())
    if algo_cfg.target_kl is not None and "approx_kl" not in step.metrics:
        raise Refusal(f"{cfg.algo}.target_kl={algo_cfg.target_kl:g} needs a loss that returns the metric approx_kl")
    step.within_target_kl = algo_cfg.target_kl is None or not step.metrics["approx_kl"] > 1.5 * algo_cfg.target_kl
    # One NaN in a gradient would make every weight and moment of the optimizer NaN.
    step.skipped = not step.within_target_kl or not all(map(math.isfinite, norms))
    if not step.skipped:
        state.optimizer.step()
    state.optimizer.zero_grad(set_to_none=True)
    state.step += 1  # after a skipped step too, so that the schedule goes on and dropout draws other masks
    step.metrics |= {"grad_norm": norms[0], "lr": cfg.lr * factor}
    step.trained_tokens = sum(len(episode.ids_T) for episode in batch.episodes)
    return step


def rate_factor(state: TrainState, cfg: Config) -> float:
    """Return the factor on the learning rate of the next step. With max_sampled_tokens= a decay goes by the tokens of
    the finished epochs, because the number of steps is not known, unless schedule_epochs= gives it."""
    now, span, warmup = state.step, cfg.schedule_steps, cfg.warmup_steps
    if cfg.max_sampled_tokens and not cfg.schedule_epochs and now >= warmup:
        now, span, warmup = state.sampled_tokens, (0, cfg.max_sampled_tokens + 1), 0
    return learning_rate_factor(now, span, cfg.schedule, warmup, cfg.min_lr_ratio)


def accumulate(state: TrainState, batch: Batch, algo: ModuleType, cfg: Config) -> StepResult:
    """Add the gradient of the whole batch to the parameters'. Return what its pieces have computed."""
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    temperature = cfg.temperature if cfg.algorithm.source == "rollouts" else 1.0  # of demonstrations
    pieces = list(micro_batches(batch, state.piece_tokens(cfg)))
    # The loop may take p.grad away between two micro-batches; after the block p.grad is the sum over all pieces, and
    # step_sum.results are those of all pieces, of all ranks.
    with gradients.summed(pieces, parameters, state.pace) as step_sum:
        for number, micro in step_sum:
            with gradients.same_masks(cfg.lora.dropout, (cfg.seed, state.step, number), parameters[0].device):
                micro = forward(micro, state.model, temperature, state.critic, cfg.algorithm.entropy_grad)
                loads = expert_loads(state.model.model.layers)
                loss, shares = algo.loss(micro, cfg.algorithm)
                with fast_matmul():
                    loss.backward()
            gap = (micro.logprobs_N.detach() - micro.old_logprobs_N).abs().max().item()
            step_sum.results.append((shares, gap, micro.entropy_N.detach(), loads))
    metrics: dict[str, float] = defaultdict(float)
    shares_of_pieces, gaps, entropies, loads_of_pieces = zip(*step_sum.results, strict=True)
    for shares in shares_of_pieces:
        for name, share in shares.items():
            metrics[name] += share
    place_N, gap = torch.cat([piece.place_N for piece in pieces]), torch.tensor(gaps).max().item()
    return StepResult(dict(metrics), place_N, torch.cat(entropies), gap, torch.stack(loads_of_pieces).sum(0))
