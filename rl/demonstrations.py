"""Demonstrations for supervised fine-tuning: an environment's expert plays; and the loss on held-out ones."""

import math
from collections.abc import Generator, Iterable
from functools import partial
from itertools import chain

import torch
from tqdm import tqdm

import envs
from envs.demos import expert
from envs.requests import Request, Result
from models import CausalLM, Tokenizer
from rl import ranks
from rl.answer import Base, request_streams
from rl.batch import forward, make_batch, micro_batches
from rl.config import Common
from rl.data import Demonstrations
from rl.evaluate import EVAL_STREAM, progress_bar
from rl.guard.checks import check_failures
from rl.records import Episode, Turn
from rl.rollout import CUT, add_step
from rl.tasks import Task, make_env, make_tasks


def demonstrations(
    tokenizer: Tokenizer, tasks: Iterable[Task], cfg: Common, progress: tqdm, model: CausalLM | None = None
) -> list[Episode]:
    """Return the expert's episodes, with the ids that the model would have sampled; log-probabilities are 0.

    An episode whose environment fails (EnvironmentFailed) is marked infrastructure_failed.
    model: its base answers the environments' requests, all at once.
    Raise ValueError if all episodes fail, or for a request if model is None.
    """
    return next(ranks.play([partial(_play_all, model, tokenizer, cfg)], list(tasks), progress))


def _play_all(model, tokenizer, cfg: Common, tasks: list[Task], progress: tqdm) -> list[Episode]:
    """Return the expert's episodes of this rank's tasks."""
    base, finished = Base(model, tokenizer, cfg), []
    episodes = [Episode(task.env, task.seed, task.group) for task in tasks]
    playing = [_play(tokenizer, task, episode, cfg) for task, episode in zip(tasks, episodes, strict=True)]
    streams = [request_streams(task.key) for task in tasks]
    results = dict.fromkeys(range(len(tasks)))  # of the episodes that are not finished
    while results:
        requests = {}
        for index, answers in results.items():
            try:
                requests[index] = list(zip(playing[index].send(answers), streams[index], strict=False))
                continue
            except StopIteration:
                finished.append(episodes[index])
            except envs.EnvironmentFailed as error:
                finished.append(episodes[index])
                episodes[index].infrastructure_failed = episodes[index].truncated = True
                progress.write(f"{tasks[index].env}: {error}; the episode is left out")
                left = len(tasks) - len(finished)
                started = len(requests) if answers is None else left  # all start in the first round
                check_failures(finished, started, left - started, error)
            progress.update()
        results = base.answer(requests)
    return episodes


def _play(tokenizer: Tokenizer, task: Task, episode: Episode, cfg: Common) -> Generator[list[Request], list[Result]]:
    """Let the expert play the episode. Yields the environment's requests to the base model and is sent the results."""
    env = make_env(cfg, task.env)
    episode.append(tokenizer.prompt(env.reset(task.seed, task.split)))
    running = True
    while running:
        action, room = expert(env), max(cfg.max_len - len(episode.ids_T), 0)
        ids = tokenizer.reply(action)
        stop_reason = "stop" if len(ids) <= room else "context"
        episode.append_turn(ids[:room], [0.0] * len(ids[:room]), stop_reason)
        step = env.step(action) if stop_reason == "stop" else CUT
        while step.requests:
            step = env.answer((yield step.requests))
        running = bool(add_step(episode, step, tokenizer, cfg))
    if cfg.algorithm.source == "demonstrations" and cfg.algorithm.all_tokens:
        episode.turns = [Turn(1, len(episode.ids_T), episode.score, "stop")]
        episode.action_mask_T = [0] + [1] * (len(episode.ids_T) - 1)


def evaluate_held_out(
    prefix: str, model: CausalLM, tokenizer: Tokenizer, demos: Demonstrations | None, cfg: Common
) -> list[dict]:
    """Print and return `held_out_loss` on the held-out demonstrations of the file or, without a file, on those of the
    environments' experts in cfg.eval_split. Return [] if there are none.

    prefix: of the printed line.
    """
    held_out = demos.held_out if demos else []
    if not demos and cfg.eval_episodes:
        tasks = make_tasks(cfg, 0, cfg.eval_episodes, 1, cfg.eval_split, EVAL_STREAM, cfg.order)
        with progress_bar(len(tasks), f"{cfg.eval_split} demonstrations") as progress:
            played = demonstrations(tokenizer, tasks, cfg, progress, model)
        held_out = [episode for episode in played if not episode.infrastructure_failed]
    if not held_out:
        return []
    result = held_out_loss(model, held_out, cfg)
    print(f"{prefix}held-out loss {result['eval_loss']:.4f}, perplexity {result['perplexity']:.2f}", flush=True)
    return [result]


@torch.no_grad()
def held_out_loss(model: CausalLM, demonstrations: list[Episode], cfg: Common) -> dict:
    """Return the mean negative log-probability, in nats at temperature 1, and the perplexity of the demonstrations."""
    batch = make_batch(demonstrations)
    pieces = ranks.own(micro_batches(batch, cfg.micro_tokens))
    sums = [forward(piece, model, 1.0).logprobs_N.double().sum().item() for piece in pieces]
    loss = -sum(chain(*ranks.gathered(sums))) / batch.total_tokens
    return {"eval_loss": loss, "perplexity": math.exp(min(loss, 700.0)), "eval_tokens": batch.total_tokens}
