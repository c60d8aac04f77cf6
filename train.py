"""Fine-tune a language-model agent: python train.py algo=ppo env=textcraft (--help lists every key).

`main` starts a run; `run_epoch` is the loop's body: it collects episodes, scores them, takes optimizer steps and saves
the adapter. The algorithm is a module with Config, advantages and loss: open rl/ppo.py and change it.
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import sys
import time
from dataclasses import replace
from typing import Any

import lora
from models import Tokenizer
from rl.batch import add_values, make_batch, whiten_rewards
from rl.config.fields import Common, algorithm_module, parse
from rl.curriculum import lesson
from rl.data import demonstrations, evaluate_held_out
from rl.evaluate import describe, evaluate, progress_bar
from rl.ranks import launch
from rl.records import Batch, Episode
from rl.reference import add_reference, next_kl_coef
from rl.remote import ahead, off_policy
from rl.report.runs import complete_records
from rl.report.write import write_report
from rl.rollout import rollout
from rl.run import exits, setup, signals, watch
from rl.run.checkpoint import save_checkpoint, save_epoch
from rl.run.folder import claim
from rl.run.log import Run, epoch_line, rollout_stats, token_stats
from rl.run.replay import saved_episodes
from rl.run.retention import evaluation_missing, finished, last_line, to_evaluate, to_save
from rl.run.state import TrainState
from rl.tasks import make_tasks
from rl.update import update


def main(cfg: Common) -> None:
    with claim(cfg) as (cfg, folder):
        # 1. The model with its adapter, the critic, the optimizer: everything that changes is in `state`.
        cfg, run, tokenizer, state, demos = setup.start(cfg, folder)
        with exits.saved(state, folder):
            if to_evaluate(state, cfg, folder) and evaluation_missing(cfg, folder, state.epoch):
                evaluate_and_log(run, tokenizer, state, demos, cfg)
            elif finished(state, cfg, folder):
                print(f"nothing is left to do: {state.epoch} epochs and {state.step} steps are done; epochs=N goes on")
            complete_records(run, state)
            while not finished(state, cfg, folder):
                run_epoch(run, tokenizer, state, demos, cfg)
        print(last_line(state, cfg, folder))


def run_epoch(run: Run, tokenizer: Tokenizer, state: TrainState, demos: Any, cfg: Common) -> None:
    began = time.monotonic()

    # 2. Collect episodes: the agent's own, an expert's, or a file's.
    episodes = collect(tokenizer, state, demos, cfg)
    stats = (token_stats if demos else rollout_stats)(episodes)
    run.end_phase("collect", stats["sampled_tokens"])
    state.watch.collected(state, episodes, stats, cfg)

    # 3. Score them: rewards, the critic's values, the reference's log-probabilities, advantages.
    batch = score(state, [episode for episode in episodes if not episode.infrastructure_failed], cfg)
    run.end_phase("score", sum(len(episode.ids_T) for episode in batch.episodes))

    # A signal ends the run between optimizer steps, or after everything is saved.
    with signals.held(), watch.replayable(state, run.folder, episodes, cfg):
        # 4. Learn from them: optimizer steps on the adapter and the critic.
        losses = learn(state, batch, cfg)
        run.end_phase("learn", losses["trained_tokens"])

        # 5. Log and save.
        stats = {"epoch": state.epoch, "step": state.step, **stats, **losses, **batch.metrics}
        stats |= {"left_out": len(episodes) - len(batch.episodes), "seconds": time.monotonic() - began}
        stats |= state.watch.ended(state, stats, cfg)
        run.metrics(stats)
        if not (demos or cfg.rollouts):
            run.episodes(state.epoch, episodes)
        print(epoch_line(stats, cfg.epochs), flush=True)
        if to_evaluate(state, cfg, run.folder) or to_save(state, cfg, stats):
            save_epoch(state, run.folder, tokenizer, setup.base_name(cfg), stats)
            save_checkpoint(state, run.folder)
        run.end_phase("save")

    # 6. Evaluate.
    if to_evaluate(state, cfg, run.folder):
        evaluate_and_log(run, tokenizer, state, demos, cfg)
    run.log_phases(state.epoch, state.step)
    write_report(run, state.epoch, tokenizer, episodes, batch, cfg)


def collect(tokenizer: Tokenizer, state: TrainState, demos: Any, cfg: Common) -> list[Episode]:
    """Return the epoch's episodes: played, demonstrated by experts, or read from data= or rollouts=."""
    size = cfg.algorithm.group_size
    if demos:
        return demos.train
    if cfg.rollouts:
        return saved_episodes(state, cfg)
    if cfg.ahead:
        return ahead.collect(tokenizer, state, cfg)
    if cfg.curriculum:
        cfg = lesson(cfg, state.epoch)
    tasks = make_tasks(cfg, state.groups, cfg.episodes // size, size, "train", cfg.seed, cfg.order, cfg.max_samples)
    with progress_bar(len(tasks), f"epoch {state.epoch + 1} episodes") as progress:
        if cfg.algorithm.source == "demonstrations":
            return demonstrations(tokenizer, tasks, cfg, progress, state.model)
        return rollout(state.model, tokenizer, tasks, cfg, cfg.temperature, progress, state.exact == "yes")


def score(state: TrainState, episodes: list[Episode], cfg: Common) -> Batch:
    """Return the batch of the episodes with everything that the algorithm's loss needs, advantages last."""
    micro_tokens = state.micro_tokens or cfg.micro_tokens
    batch = replace(make_batch(episodes), kl_coef=state.kl_coef, baseline=state.baseline)
    if cfg.sampler:
        batch = off_policy.recomputed(batch, state, cfg, micro_tokens)
    if cfg.reward.whiten:
        batch = whiten_rewards(batch)
    if cfg.algorithm.critic:
        batch = add_values(batch, state.model, state.critic, micro_tokens)
    if cfg.algorithm.reference:
        with lora.use_adapter(state.model, state.reference):
            batch = add_reference(batch, state.model, cfg.temperature, micro_tokens)
    batch = algorithm_module(cfg.algo).advantages(batch, cfg.algorithm)
    return off_policy.weighted(batch, cfg.sampler_clip) if cfg.sampler else batch


def learn(state: TrainState, batch: Batch, cfg: Common) -> dict:
    """Take the epoch's optimizer steps and return their metrics."""
    with progress_bar(cfg.algorithm.epochs * len(batch.episodes), f"epoch {state.epoch + 1} learning") as progress:
        losses = update(state, batch, algorithm_module(cfg.algo), cfg, progress)
    state.epoch, state.mid_epoch = state.epoch + 1, False
    state.groups += cfg.episodes // cfg.algorithm.group_size
    state.baseline = batch.baseline
    if cfg.algorithm.reference:
        losses["kl_coef"], state.kl_coef = state.kl_coef, next_kl_coef(batch, cfg.algorithm)
    return losses


def evaluate_and_log(run: Run, tokenizer: Tokenizer, state: TrainState, demos: Any, cfg: Common) -> None:
    """Evaluate on held-out tasks, sampled and greedily, and for sft on held-out demonstrations. Log and print."""
    prefix, results = f"epoch {state.epoch:>3}/{cfg.epochs}  ", []
    if cfg.algorithm.source == "demonstrations":
        results += evaluate_held_out(prefix, state.model, tokenizer, demos, cfg)
        run.end_phase("evaluate")
    if cfg.eval_episodes and not demos:
        for result in evaluate(state.model, tokenizer, cfg, (cfg.temperature, 0.0), cfg.eval_split, cfg.eval_episodes):
            run.end_phase("evaluate", result["sampled_tokens"])
            results.append({"eval": result})
            print(f"{prefix}{cfg.eval_split} {describe(result)}", flush=True)
    run.metrics(*({"epoch": state.epoch, "step": state.step, **result} for result in results))


if __name__ == "__main__":
    with signals.handled():
        cfg = parse(sys.argv[1:], "train.py")
        with exits.exits_cleanly("train.py", cfg):
            launch.run(main, cfg, groups=cfg.episodes // cfg.algorithm.group_size)
