"""Fine-tune a language-model agent: python train.py algo=ppo env=textcraft (--help lists the keys).

`main` is a run and `run_epoch` is its loop's body: collect episodes, score them, learn from them, save, evaluate. The
algorithm is a module with Config, advantages and loss: open rl/ppo.py and change it. rl/update.py takes the optimizer
steps. The method in one file, without options, is examples/grpo.py.
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401  (first: Ctrl-C during the slow imports below ends quietly)

import sys
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import lora
from models import Tokenizer
from rl import adapters, kl
from rl.batch import add_values, make_batch, policy_logprobs, whiten_rewards
from rl.config.fields import Config, algorithm_module
from rl.curriculum import lesson
from rl.data import Demonstrations, demonstrations, evaluate_held_out
from rl.evaluate import describe, evaluate, progress_bar
from rl.ranks import launch
from rl.records import Batch, Episode
from rl.remote import ahead, off_policy
from rl.report.trackers import Tracker
from rl.report.write import complete_records, write_held_out, write_report
from rl.rollout import rollout
from rl.run import exits, setup, signals
from rl.run.log import rollout_stats, token_stats
from rl.run.replay import saved_episodes
from rl.run.run import Run
from rl.run.state import MOVED, TrainState
from rl.tasks import training_tasks
from rl.update import update


def main(cfg: Config, seat: adapters.Seat | None = None) -> Path:
    """Carry out a training run. Return its folder. seat: with adapters=, the run's place beside the others."""
    # 1. Start: the model with its adapter, the critic, the optimizer. All that changes is in `state`.
    with closing(Tracker(cfg.track)) as tracker, setup.started(cfg, seat) as (run, tokenizer, state, demos):
        if run.lacks_evaluation(state):
            evaluate_and_log(run, tokenizer, state, demos)
        elif run.finished(state):
            more = run.words_to_go_on(state)
            print(f"nothing is left to do: {state.epoch} epochs and {state.step} steps are done; {more} goes on")
        complete_records(run, state)
        while not run.finished(state):
            run_epoch(run, tokenizer, state, demos, tracker)
        print(run.last_line(state))
    return run.folder


def run_epoch(
    run: Run, tokenizer: Tokenizer, state: TrainState, demos: Demonstrations | None, tracker: Tracker
) -> None:
    cfg, began = run.cfg, time.monotonic()

    # 2. Collect episodes: the agent's own, an expert's, or a file's.
    with run.phase("collect") as phase:
        episodes = collect(tokenizer, state, demos, cfg)
        judged = state.judge.grade(episodes, run.folder) if state.judge else {}
        stats = (token_stats if demos else rollout_stats)(episodes) | judged
        run.collected(state, episodes, stats)
        phase["tokens"] += stats["sampled_tokens"]

    # 3. Score them: the critic's values, the reference's or a teacher's log-probabilities, advantages.
    with run.phase("score") as phase:
        batch = score(state, [episode for episode in episodes if not episode.infrastructure_failed], cfg)
        phase["tokens"] += sum(len(episode.ids_T) for episode in batch.episodes)

    with run.uninterrupted(state, episodes):
        # 4. Learn from them: optimizer steps on the adapter and the critic.
        with run.phase("learn") as phase:
            losses, batch = learn(state, batch, cfg)
            phase["tokens"] += losses["trained_tokens"]

        # 5. Log and save.
        with run.phase("save"):
            run.end_epoch(state, tokenizer, episodes, batch, {**stats, **losses}, began)

    # 6. Evaluate.
    if run.evaluates(state):
        evaluate_and_log(run, tokenizer, state, demos)
    run.log_phases(state)
    write_report(run, state.epoch, tokenizer, episodes, batch, tracker)


def collect(tokenizer: Tokenizer, state: TrainState, demos: Demonstrations | None, cfg: Config) -> list[Episode]:
    """Return the epoch's episodes: rows of data=, saved ones of rollouts=, those of a server that samples ahead, an
    expert's, or the policy's own."""
    if demos:
        return demos.train
    if cfg.rollouts:
        return saved_episodes(state, cfg)
    if cfg.ahead:
        return ahead.collect(tokenizer, state, cfg)
    if cfg.curriculum:
        cfg = lesson(cfg, state.epoch)
    tasks = training_tasks(cfg, state.groups)
    with progress_bar(len(tasks), f"epoch {state.epoch + 1} episodes") as progress:
        if cfg.algorithm.source == "demonstrations":
            return demonstrations(tokenizer, tasks, cfg, progress, state.model, state.pace)
        # Where sampling computes what training does, the critic can read the states that sampling computed.
        keep_hidden = cfg.algorithm.critic and state.exact == "yes"
        return rollout(state.model, tokenizer, tasks, cfg, cfg.temperature, progress, keep_hidden, state.pace)


def score(state: TrainState, episodes: list[Episode], cfg: Config) -> Batch:
    """Return the batch of the episodes with everything that the algorithm's loss needs, advantages last."""
    micro_tokens = state.piece_tokens(cfg)
    batch = replace(make_batch(episodes), kl_coef=state.kl_coef, baseline=state.baseline)
    if cfg.sampler:
        batch = off_policy.recomputed(batch, state, cfg, micro_tokens)
    if cfg.reward.whiten:
        batch = whiten_rewards(batch)
    if state.critic is not None:
        batch = add_values(batch, state.model, state.critic, micro_tokens)
    if cfg.algorithm.reference:
        with lora.use_adapter(state.model, state.reference):
            ref_logprobs_N = policy_logprobs(batch, state.model, cfg.temperature, micro_tokens)
        batch = replace(batch, ref_logprobs_N=ref_logprobs_N)
    if state.teacher:
        batch = state.teacher.graded(batch, cfg, micro_tokens)
    batch = algorithm_module(cfg.algo).advantages(batch, cfg.algorithm)
    return off_policy.weighted(batch, cfg) if cfg.sampler else batch


def learn(state: TrainState, batch: Batch, cfg: Config) -> tuple[dict, Batch]:
    """Take the epoch's optimizer steps, then count it: state.epoch, groups, baseline, the next one's KL weight and
    reference. Return (the steps' metrics, the batch with first_entropy_N)."""
    with progress_bar(cfg.algorithm.epochs * len(batch.episodes), f"epoch {state.epoch + 1} learning") as progress:
        losses, first_entropy_N = update(state, batch, algorithm_module(cfg.algo), cfg, progress)
    state.epoch, state.mid_epoch = state.epoch + 1, False
    state.groups += cfg.episodes // cfg.algorithm.group_size
    state.baseline = batch.baseline
    if cfg.algorithm.reference:
        losses["kl_coef"] = state.kl_coef  # the one that this epoch's loss had
        state.kl_coef = kl.next_kl_coef(batch, cfg.algorithm)
        if cfg.algorithm.reference_every and state.epoch % cfg.algorithm.reference_every == 0:
            lora.freeze_copy(state.model, MOVED)
            state.reference = MOVED
    return losses, replace(batch, first_entropy_N=first_entropy_N)


def evaluate_and_log(run: Run, tokenizer: Tokenizer, state: TrainState, demos: Demonstrations | None) -> None:
    """Evaluate on held-out tasks, sampled and greedily, and for sft on held-out demonstrations. Log and print."""
    cfg = run.cfg
    prefix, results, held_out_episodes = f"epoch {state.epoch:>3}/{cfg.epochs}  ", [], {}
    with run.phase("evaluate") as phase:
        if cfg.algorithm.source == "demonstrations":
            results += evaluate_held_out(prefix, state.model, tokenizer, demos, cfg)
        if cfg.eval_episodes and not demos:
            ways = (cfg.temperature, 0.0)
            played = evaluate(state.model, tokenizer, cfg, ways, cfg.eval_split, cfg.eval_episodes, state.pace)
            for result, episodes in played:
                held_out_episodes[result["temperature"]] = episodes
                phase["tokens"] += result["sampled_tokens"]
                results.append({"eval": result})
                print(f"{prefix}{cfg.eval_split} {describe(result)}", flush=True)
    run.evaluated(state, results)
    write_held_out(run, state.epoch, tokenizer, held_out_episodes)


if __name__ == "__main__":
    with signals.handled():
        runs = adapters.settings(sys.argv[1:])  # one, or with adapters= several
        cfg = next(iter(runs.values()))
        program = main if len(runs) == 1 and "" in runs else partial(adapters.train, main, runs)
        with exits.exits_cleanly("train.py", cfg):
            launch.run(program, cfg, groups=cfg.episodes // cfg.algorithm.group_size)
