"""Fine-tune a language-model agent: python train.py algo=ppo env=textcraft (--help lists every key).

The whole program is `main`. Each epoch collects episodes, turns them into advantages, takes optimizer steps and saves
the adapter; the algorithm is a module with Config, advantages and loss: open rl/ppo.py and change it.
"""

import sys
import time

import torch
from tqdm import tqdm

import lora
from rl import config, setup
from rl.batch import add_reference, add_values, make_batch
from rl.checkpoint import save_checkpoint, save_epoch
from rl.evaluate import describe, evaluate
from rl.log import epoch_line, rollout_stats
from rl.report import write_report
from rl.rollout import demonstrations, make_tasks, rollout
from rl.update import update


def main(cfg) -> None:
    # 1. The model with its adapter, the critic, the optimizer: all that changes is in `state`.
    run, tokenizer, state = setup.start(cfg)
    algo, algo_cfg = config.ALGORITHMS[cfg.algo], getattr(cfg, cfg.algo)
    if state.epoch == 0:
        report(run, state, tokenizer, cfg)

    while not finished(state, cfg):
        began = time.monotonic()

        # 2. Collect episodes: the agent's own, or the expert's.
        groups = cfg.episodes // algo_cfg.group_size
        tasks = make_tasks(cfg, state.groups, groups, algo_cfg.group_size, "train", stream=cfg.seed)
        with bar(len(tasks), f"epoch {state.epoch + 1} episodes") as progress:
            if algo_cfg.source == "rollouts":
                episodes = rollout(state.model, tokenizer, tasks, cfg, cfg.temperature, progress, state.adapter_hash())
            else:
                episodes = demonstrations(tokenizer, tasks, cfg, progress)
        state.groups += groups

        # 3. Score them: the critic's values, the reference's log-probabilities, the advantages.
        batch = make_batch([episode for episode in episodes if not episode.infrastructure_failed])
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

        # 5. Save, and look.
        stats = {"epoch": state.epoch, "step": state.step, **rollout_stats(episodes), **losses}
        stats["seconds"] = time.monotonic() - began
        run.metrics(stats)
        run.episodes(state.epoch, episodes)
        print(epoch_line(stats, cfg.epochs), flush=True)
        save_epoch(state, run.folder, tokenizer, setup.base_name(cfg), stats)
        if finished(state, cfg) or (cfg.eval_every and state.epoch % cfg.eval_every == 0):
            report(run, state, tokenizer, cfg)
        write_report(run.folder, tokenizer, episodes[:4])
        if finished(state, cfg) or state.epoch % cfg.save_every == 0:
            save_checkpoint(state, run.folder)  # last: what a run that dies above has lost, resume= does again
    print(f"done: {run.folder}/epoch_{state.epoch}, curves and episodes in {run.folder}/report.html")


def finished(state, cfg) -> bool:
    return state.epoch >= cfg.epochs or bool(cfg.max_steps and state.step >= cfg.max_steps)


def report(run, state, tokenizer, cfg) -> None:
    """Plays held-out tasks, sampled as in training and greedily, into metrics.jsonl and onto the screen."""
    for temperature in (cfg.temperature, 0.0) if cfg.eval_episodes else ():
        result = evaluate(state.model, tokenizer, cfg, temperature, cfg.eval_split, cfg.eval_episodes)
        run.metrics({"epoch": state.epoch, "step": state.step, "eval": result})
        print(f"epoch {state.epoch:>3}/{cfg.epochs}  {cfg.eval_split} {describe(result)}", flush=True)


def bar(total: int, what: str) -> tqdm:
    """Progress on a terminal, silence elsewhere."""
    return tqdm(total=total, desc=what, leave=False, disable=None)


if __name__ == "__main__":
    cfg = config.parse(sys.argv[1:], "train.py")
    torch.set_num_threads(cfg.threads)
    try:
        main(cfg)
    except (OSError, ValueError, FloatingPointError) as error:
        sys.exit(f"train.py: {error}")
    except KeyboardInterrupt:
        sys.exit("train.py: interrupted; resume=FOLDER goes on from the run's last checkpoint, if it has come to one")
