"""Fine-tune a language-model agent: python train.py algo=ppo env=textcraft (--help lists every key).

`main` starts a run; `run_epoch` is the loop's body: it collects episodes, scores them, takes optimizer steps and saves
the adapter. The algorithm is a module with Config, advantages and loss: open rl/ppo.py and change it.
"""

import sys
import time
from dataclasses import replace
from typing import Any

import envs
import lora
from models import Tokenizer
from rl import setup
from rl.batch import add_values, make_batch
from rl.checkpoint import save_checkpoint, save_epoch
from rl.config import Common, algorithm_module, parse
from rl.evaluate import describe, evaluate, progress_bar
from rl.log import Run, end_phase, epoch_line, rollout_stats, token_stats
from rl.records import Batch, Episode
from rl.report import write_report
from rl.rollout import rollout
from rl.state import TrainState
from rl.tasks import make_tasks
from rl.update import update


def main(cfg: Common) -> None:
    # 1. The model with its adapter, the critic, the optimizer: everything that changes is in `state`.
    cfg, run, tokenizer, state, demos = setup.start(cfg)
    try:
        if state.epoch == 0:
            evaluate_and_log(run, tokenizer, state, demos, cfg)
        elif finished(state, cfg):
            print(f"nothing is left to do: {state.epoch} epochs and {state.step} steps are done; epochs=N goes on")
        while not finished(state, cfg):
            run_epoch(run, tokenizer, state, demos, cfg)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(str(run.folder)) from None
    print(f"done: {run.folder}/epoch_{state.epoch}, curves and episodes in {run.folder}/report.html")


def run_epoch(run: Run, tokenizer: Tokenizer, state: TrainState, demos: Any, cfg: Common) -> None:
    began, phases = time.monotonic(), {}

    # 2. Collect episodes: the agent's own, an expert's, or a file's.
    episodes = collect(tokenizer, state, demos, cfg)
    stats = (token_stats if demos else rollout_stats)(episodes)
    now = end_phase(phases, "collect", stats["sampled_tokens"], began)

    # 3. Score them: rewards, the critic's values, the reference's log-probabilities, advantages.
    batch = score(state, [episode for episode in episodes if not episode.infrastructure_failed], cfg)
    now = end_phase(phases, "score", stats["total_tokens"], now)

    # 4. Learn from them: optimizer steps on the adapter and the critic.
    losses = learn(state, batch, cfg)
    now = end_phase(phases, "learn", stats["total_tokens"] * cfg.algorithm.epochs, now)

    # 5. Log, save and evaluate.
    stats = {"epoch": state.epoch, "step": state.step, **stats, **losses, "phases": phases}
    stats |= {"left_out": len(episodes) - len(batch.episodes), "seconds": now - began}
    run.metrics(stats)
    if not demos:
        run.episodes(state.epoch, episodes)
    print(epoch_line(stats, cfg.epochs), flush=True)
    to_save = finished(state, cfg) or state.epoch % cfg.save_every == 0
    if to_save:
        save_epoch(state, run.folder, tokenizer, setup.base_name(cfg), stats)
    if finished(state, cfg) or (cfg.eval_every and state.epoch % cfg.eval_every == 0):
        evaluate_and_log(run, tokenizer, state, demos, cfg)
    write_report(run.folder, tokenizer, episodes[:4])
    if to_save:
        save_checkpoint(state, run.folder)  # last: a run that stops before it repeats the epoch with resume=


def collect(tokenizer: Tokenizer, state: TrainState, demos: Any, cfg: Common) -> list[Episode]:
    """Return the epoch's episodes: played, demonstrated by experts, or read from data=."""
    size = cfg.algorithm.group_size
    first, groups = state.groups, cfg.episodes // size
    state.groups += groups
    if demos:
        return demos.train
    tasks = make_tasks(cfg, first, groups, size, "train", cfg.seed, cfg.order, cfg.max_samples)
    with progress_bar(len(tasks), f"epoch {state.epoch + 1} episodes") as progress:
        if cfg.algorithm.source == "demonstrations":
            from rl.demonstrations import demonstrations

            return demonstrations(tokenizer, tasks, cfg, progress, state.model)
        played = rollout(state.model, tokenizer, tasks, cfg, cfg.temperature, progress)
    adapter_hash = state.adapter_hash()
    return [replace(episode, adapter_hash=adapter_hash) for episode in played]


def score(state: TrainState, episodes: list[Episode], cfg: Common) -> Batch:
    """Return the batch of the episodes with everything that the algorithm's loss needs, advantages last."""
    batch = replace(make_batch(episodes), kl_coef=state.kl_coef, baseline=state.baseline)
    if cfg.reward.whiten:
        from rl.groups import whiten_rewards

        batch = whiten_rewards(batch)
    if cfg.algorithm.critic:
        batch = add_values(batch, state.model, state.critic, state.micro_tokens or cfg.micro_tokens)
    if cfg.algorithm.reference:
        from rl.reference import add_reference

        with lora.use_adapter(state.model, state.reference):
            batch = add_reference(batch, state.model, cfg.temperature, state.micro_tokens or cfg.micro_tokens)
    return algorithm_module(cfg.algo).advantages(batch, cfg.algorithm)


def learn(state: TrainState, batch: Batch, cfg: Common) -> dict:
    """Take the epoch's optimizer steps and return their metrics."""
    with progress_bar(cfg.algorithm.epochs * len(batch.episodes), f"epoch {state.epoch + 1} learning") as progress:
        losses = update(state, batch, algorithm_module(cfg.algo), cfg, progress)
    state.epoch += 1
    state.baseline = batch.baseline
    if cfg.algorithm.reference:
        from rl.reference import next_kl_coef

        losses["kl_coef"], state.kl_coef = state.kl_coef, next_kl_coef(batch, cfg.algorithm)
    return losses


def finished(state: TrainState, cfg: Common) -> bool:
    return state.epoch >= cfg.epochs or bool(cfg.max_steps and state.step >= cfg.max_steps)


def evaluate_and_log(run: Run, tokenizer: Tokenizer, state: TrainState, demos: Any, cfg: Common) -> None:
    """Evaluate on held-out tasks, sampled and greedily, and for sft on held-out demonstrations. Log and print."""
    at, prefix = {"epoch": state.epoch, "step": state.step}, f"epoch {state.epoch:>3}/{cfg.epochs}  "
    if cfg.algorithm.source == "demonstrations":
        from rl.demonstrations import report_held_out

        report_held_out(run, at, prefix, state.model, tokenizer, demos, cfg)
    if cfg.eval_episodes and not demos:
        for temperature in (cfg.temperature, 0.0):
            result = evaluate(state.model, tokenizer, cfg, temperature, cfg.eval_split, cfg.eval_episodes)
            run.metrics({**at, "eval": result})
            print(f"{prefix}{cfg.eval_split} {describe(result)}", flush=True)


if __name__ == "__main__":
    cfg = parse(sys.argv[1:], "train.py")
    try:
        main(cfg)
    except (OSError, ValueError, FloatingPointError, envs.EnvironmentFailed) as error:
        sys.exit(f"train.py: {error}")
    except KeyboardInterrupt as interrupt:
        from rl.resume import how_to_resume

        sys.exit(f"train.py: interrupted; {how_to_resume(interrupt.args[0] if interrupt.args else '')}")
