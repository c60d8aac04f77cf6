"""Fine-tune a language-model agent: python train.py algo=ppo env=textcraft (--help lists every key).

The whole program is `main`. Each epoch collects episodes, turns them into advantages, takes optimizer steps and saves
the adapter; the algorithm is a module with Config, advantages and loss: open rl/ppo.py and change it.
"""

import sys
import time

import torch
from tqdm import tqdm

from models.generate import Engine
from rl import config, setup
from rl.batch import add_reference, add_values, make_batch
from rl.checkpoint import save_checkpoint, save_epoch
from rl.evaluate import describe, evaluate
from rl.log import epoch_line, rollout_stats
from rl.rollout import demonstrations, make_tasks, rollout
from rl.update import total_steps, update


def main(cfg) -> None:
    # 1. The model with its adapter, the critic, the optimizer: all that changes is in `state`.
    run, tokenizer, state, version, reference = setup.start(cfg)
    algo, algo_cfg = config.ALGORITHMS[cfg.algo], getattr(cfg, cfg.algo)
    group_size = getattr(algo_cfg, "group_size", 1)

    while state.epoch < cfg.epochs and not (cfg.max_steps and state.step >= cfg.max_steps):
        if state.epoch == 0 and cfg.eval_episodes:
            report(run, state, tokenizer, cfg, version)
        began = time.monotonic()

        # 2. Collect episodes: the agent's own, or the expert's.
        tasks = make_tasks(cfg, state.groups, cfg.episodes // group_size, group_size, "train", stream=cfg.seed)
        with tqdm(total=len(tasks), desc=f"epoch {state.epoch + 1} episodes", leave=False, disable=None) as bar:
            if algo_cfg.source == "rollouts":
                engine = Engine(state.model, cfg.rollout_rows, cfg.max_len, version)
                episodes = rollout(engine, tokenizer, tasks, cfg, cfg.temperature, bar, state.adapter_hash())
            else:
                episodes = demonstrations(tokenizer, tasks, cfg, bar)
        state.groups += len(tasks) // group_size

        # 3. Score them: the critic's values, the reference's log-probabilities, the advantages.
        batch = make_batch([episode for episode in episodes if not episode.infrastructure_failed])
        if algo_cfg.critic:
            batch = add_values(batch, state.model, state.critic, cfg.micro_tokens)
        if algo_cfg.reference:
            with reference():
                batch = add_reference(batch, state.model, cfg.temperature, cfg.micro_tokens)
        batch = algo.advantages(batch, algo_cfg)

        # 4. Learn.
        with tqdm(
            total=total_steps(cfg) - state.step, desc=f"epoch {state.epoch + 1} steps", leave=False, disable=None
        ) as bar:
            losses = update(state, batch, algo, cfg, bar)

        # 5. Save, and look.
        state.epoch += 1
        stats = {"epoch": state.epoch, "step": state.step, **rollout_stats(episodes), **losses}
        stats["seconds"] = time.monotonic() - began
        run.metrics(stats)
        run.episodes(state.epoch, episodes)
        print(epoch_line(stats, cfg.epochs), flush=True)
        save_epoch(state, run.folder, tokenizer, setup.base_name(cfg), stats)
        if state.epoch % cfg.save_every == 0 or state.epoch == cfg.epochs:
            save_checkpoint(state, run.folder)
        if cfg.eval_episodes and (state.epoch == cfg.epochs or (cfg.eval_every and state.epoch % cfg.eval_every == 0)):
            report(run, state, tokenizer, cfg, version)
    print(f"done: {run.folder}/epoch_{state.epoch}")


def report(run, state, tokenizer, cfg, version) -> None:
    """Plays held-out tasks, sampled as in training and greedily, into metrics.jsonl and onto the screen."""
    for temperature in (cfg.temperature, 0.0):
        result = evaluate(state.model, tokenizer, cfg, version, temperature, cfg.eval_split, cfg.eval_episodes)
        run.metrics({"epoch": state.epoch, "step": state.step, "eval": result})
        print(f"epoch {state.epoch:>3}/{cfg.epochs}  {cfg.eval_split} {describe(result)}", flush=True)


if __name__ == "__main__":
    cfg = config.parse(sys.argv[1:], "train.py")
    torch.set_num_threads(cfg.threads)
    try:
        main(cfg)
    except (FileNotFoundError, FileExistsError, ValueError, FloatingPointError) as error:
        sys.exit(f"train.py: {error}")
    except KeyboardInterrupt:
        sys.exit("train.py: interrupted; the last whole checkpoint stands, resume= goes on from it")
