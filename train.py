"""Fine-tune a language-model agent: python train.py algo=ppo env=textcraft (--help lists every key).

The whole program is `main`. Each epoch collects episodes, turns them into advantages, takes optimizer steps and saves
the adapter; the algorithm is a module with Config, advantages and loss: open rl/ppo.py and change it.
"""

import sys
import time
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

import envs
import lora
from rl import config, kl, setup
from rl.batch import add_reference, add_values, make_batch
from rl.checkpoint import save_checkpoint, save_epoch
from rl.evaluate import EVAL_STREAM, describe, evaluate, held_out_loss
from rl.log import epoch_line, rollout_stats, token_stats
from rl.report import write_report
from rl.reward import whiten_rewards
from rl.rollout import demonstrations, make_tasks, rollout
from rl.update import update


def main(cfg) -> None:
    # 1. The model with its adapter, the critic, the optimizer: all that changes is in `state`.
    run, tokenizer, state, file = setup.start(cfg)
    cfg.out = str(run.folder)  # as it is: who interrupts is told
    algo, algo_cfg = config.ALGORITHMS[cfg.algo], getattr(cfg, cfg.algo)
    if state.epoch == 0:
        report(run, state, tokenizer, cfg, file)
    elif finished(state, cfg):
        print(f"nothing is left to do: {state.epoch} epochs and {state.step} steps are done; epochs=N goes on")

    while not finished(state, cfg):
        began = time.monotonic()

        # 2. Collect episodes: the agent's own, the expert's, or a file's.
        groups = cfg.episodes // algo_cfg.group_size
        tasks = (
            []
            if file
            else make_tasks(
                cfg, state.groups, groups, algo_cfg.group_size, "train", cfg.seed, cfg.order, cfg.max_samples
            )
        )
        with bar(len(tasks), f"epoch {state.epoch + 1} episodes") as progress:
            if algo_cfg.source == "rollouts":
                episodes = rollout(state.model, tokenizer, tasks, cfg, cfg.temperature, progress, state.adapter_hash())
            else:
                episodes = file.train if file else demonstrations(tokenizer, tasks, cfg, progress, state.model)
        state.groups += groups

        # 3. Score them: the rewards, the critic's values, the reference's log-probabilities, the advantages.
        batch = make_batch([episode for episode in episodes if not episode.infrastructure_failed])
        batch = replace(batch, kl_coef=state.kl_coef, baseline=state.baseline)
        if cfg.reward.whiten:
            batch = whiten_rewards(batch)
        if algo_cfg.critic:
            batch = add_values(batch, state.model, state.critic, cfg.micro_tokens)
        if algo_cfg.reference:
            with lora.use_adapter(state.model, state.reference):
                batch = add_reference(batch, state.model, cfg.temperature, cfg.micro_tokens)
        batch = algo.advantages(batch, algo_cfg)

        # 4. Learn.
        with bar(algo_cfg.epochs * len(batch.episodes), f"epoch {state.epoch + 1} learning") as progress:
            losses = update(state, batch, algo, cfg, progress)
        state.epoch += 1
        state.baseline = batch.baseline
        if algo_cfg.reference:
            losses["kl_coef"], state.kl_coef = state.kl_coef, kl.adapted(batch, algo_cfg)

        # 5. Save, and look.
        played = token_stats(episodes) if file else rollout_stats(episodes)
        stats = {"epoch": state.epoch, "step": state.step, **played, **losses}
        stats |= {"left_out": len(episodes) - len(batch.episodes), "seconds": time.monotonic() - began}
        run.metrics(stats)
        if not file:
            run.episodes(state.epoch, episodes)
        print(epoch_line(stats, cfg.epochs), flush=True)
        to_save = finished(state, cfg) or state.epoch % cfg.save_every == 0
        if to_save:
            save_epoch(state, run.folder, tokenizer, setup.base_name(cfg), stats)
        if finished(state, cfg) or (cfg.eval_every and state.epoch % cfg.eval_every == 0):
            report(run, state, tokenizer, cfg, file)
        write_report(run.folder, tokenizer, episodes[:4])
        if to_save:
            save_checkpoint(state, run.folder)  # last: what a run that dies above has lost, resume= does again
    print(f"done: {run.folder}/epoch_{state.epoch}, curves and episodes in {run.folder}/report.html")


def finished(state, cfg) -> bool:
    return state.epoch >= cfg.epochs or bool(cfg.max_steps and state.step >= cfg.max_steps)


def report(run, state, tokenizer, cfg, file) -> None:
    """Into metrics.jsonl and onto the screen: held-out tasks played, sampled as in training and greedily; for sft the
    loss on held-out demonstrations."""
    at, prefix = {"epoch": state.epoch, "step": state.step}, f"epoch {state.epoch:>3}/{cfg.epochs}  "
    expert = file.held_out if file else []
    if cfg.algo == "sft" and not file and cfg.eval_episodes:
        tasks = make_tasks(cfg, 0, cfg.eval_episodes, 1, cfg.eval_split, EVAL_STREAM)
        with bar(len(tasks), f"{cfg.eval_split} demonstrations") as progress:
            expert = demonstrations(tokenizer, tasks, cfg, progress, state.model)
    if expert:
        result = held_out_loss(state.model, expert, cfg)
        run.metrics({**at, **result})
        print(f"{prefix}held-out loss {result['eval_loss']:.4f}, perplexity {result['perplexity']:.2f}", flush=True)
    for temperature in (cfg.temperature, 0.0) if cfg.eval_episodes and not file else ():
        result = evaluate(state.model, tokenizer, cfg, temperature, cfg.eval_split, cfg.eval_episodes)
        run.metrics({**at, "eval": result})
        print(f"{prefix}{cfg.eval_split} {describe(result)}", flush=True)


def way_on(folder: str) -> str:
    """How to go on with an interrupted run."""
    if any(Path(folder).glob("checkpoint-*")):
        return f"python train.py resume={folder} goes on from its newest checkpoint"
    return f"{folder} has no checkpoint yet to go on from" if Path(folder).is_dir() else "no run had begun"


def bar(total: int, what: str) -> tqdm:
    """Progress on a terminal, silence elsewhere."""
    return tqdm(total=total, desc=what, leave=False, disable=None)


if __name__ == "__main__":
    cfg = config.parse(sys.argv[1:], "train.py")
    try:
        main(cfg)
    except (OSError, ValueError, FloatingPointError, envs.EnvironmentFailed) as error:
        sys.exit(f"train.py: {error}")
    except KeyboardInterrupt:
        sys.exit(f"train.py: interrupted; {way_on(cfg.out)}")
