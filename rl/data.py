"""Demonstrations for supervised fine-tuning, from a file or an environment's expert; and the loss on held-out ones.

A file is JSON Lines, a conversation or a prompt/answer pair in each, or rows of Parquet:

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "...", "loss": true}]}     AgentGym
    {"question": "...", "answer": "..."}                      with sft.prompt_column=question sft.answer_column=answer

Only the assistant's messages are learned, except those marked `"loss": false`. The 10 % of distinct rows with the
lowest hashes are held out, so the split depends neither on the seed nor on the order. Fewer than ten distinct rows hold
nothing out.
"""

import hashlib
import json
import math
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import torch
from tqdm import tqdm

import envs
from envs import parquet
from envs.demos import expert
from envs.requests import Request, Result
from models import CausalLM, Tokenizer
from models.json_file import parse_json
from rl import ranks
from rl.base_model import Base, request_streams
from rl.batch import forward, make_batch, micro_batches
from rl.config.fields import Config, Optim
from rl.config.refusals import Refusal
from rl.evaluate import EVAL_STREAM, progress_bar
from rl.ranks import playing
from rl.records import Episode, Turn
from rl.rollout import CUT, add_step, check_failures
from rl.run.files import bounded_lines
from rl.tasks import Task, make_env, make_tasks, text_of, with_prompt

MOST_BYTES = 2**20  # of a line; longer texts than max_len's are encoded whole
ROLES = {"human": "user", "gpt": "assistant"} | {role: role for role in ("system", "user", "assistant", "tool")}


@dataclass
class Demonstrations:
    """A file's conversations as episodes."""

    train: list[Episode]
    held_out: list[Episode]
    cut: int  # conversations that max_len cut short
    empty: int  # conversations left out because nothing to learn remained after the cut


def load(cfg: Config, tokenizer: Tokenizer) -> Demonstrations:
    """Read at most cfg.max_samples rows of the file cfg.data, and print their counts.

    Raises ValueError for a row that is neither a conversation nor a pair, or if nothing is left to learn from.
    """
    algo_cfg = cfg.algorithm
    rows = read_rows(Path(cfg.data), algo_cfg.prompt_column, algo_cfg.answer_column)[: cfg.max_samples or None]
    if cfg.system_prompt:
        text = text_of(cfg.system_prompt)
        rows = [[{"loss": False, **message} for message in with_prompt(row, text)] for row in rows]
    demos, learnable = Demonstrations([], [], 0, 0), []
    for number, row in enumerate(rows):
        try:
            episode, cut = to_episode(tokenizer, row, number, cfg.max_len, algo_cfg.all_tokens)
        except ValueError as error:
            raise Refusal(f"{cfg.data}, conversation {number + 1}: {error}") from None
        demos.cut += cut
        if any(episode.action_mask_T):
            learnable.append((hashlib.sha256(json.dumps(row).encode()).hexdigest(), episode))
        else:
            demos.empty += 1
    digests = sorted({digest for digest, _ in learnable})
    held_out = set(digests[: len(digests) // 10])
    for digest, episode in learnable:
        (demos.held_out if digest in held_out else demos.train).append(episode)
    if not demos.train:
        raise Refusal(f"data={cfg.data}: nothing to learn from in {len(rows)} rows, {demos.cut} cut by max_len")
    if cfg.patience and not demos.held_out:
        raise Refusal(f"patience={cfg.patience} counts evaluations, and {cfg.data} is too small to hold rows out")
    left_out = f", {demos.empty} left out for it" if demos.empty else ""
    counts = f"{len(demos.train):,} conversations to learn, {len(demos.held_out):,} held out"
    print(f"data: {counts}; {demos.cut:,} cut by max_len={cfg.max_len}{left_out}")
    return demos


def read_rows(path: Path, prompt: str, answer: str) -> list[list[dict]]:
    """Return conversations as [{"role", "content", "loss"}, ...]; loss: whether the message is learned.

    Raise ValueError for a line that is no row, or larger than MOST_BYTES.
    """
    is_parquet, conversations = path.suffix == parquet.ENDING, []
    for number, row in enumerate(parquet.read(path), 1) if is_parquet else bounded_lines(path, MOST_BYTES):
        try:
            if not is_parquet:
                text = row.decode("utf-8-sig")
                if not text.strip():
                    continue
                row = parse_json(text.encode())
            conversations.append(_messages(row, prompt, answer))
        except ValueError as error:
            what = f"not UTF-8 ({error})" if isinstance(error, UnicodeDecodeError) else error
            raise Refusal(f"{path}, {'row' if is_parquet else 'line'} {number}: {what}") from None
    return conversations


def _messages(row: dict, prompt: str, answer: str) -> list[dict]:
    if not isinstance(row, dict):
        raise Refusal("not a JSON object")
    conversation = row.get("messages", row.get("conversations"))
    if conversation is None:
        for column in (prompt, answer):
            if not isinstance(row.get(column), str):
                raise Refusal(
                    f"neither messages nor conversations nor a text under {column!r}; there is: "
                    f"{', '.join(list(row)[:20])} "
                    "(sft.prompt_column and sft.answer_column name the columns)"
                )
        conversation = [{"role": "user", "content": row[prompt]}, {"role": "assistant", "content": row[answer]}]
    if not isinstance(conversation, list):
        raise Refusal(f"a conversation is a list of messages, not {str(conversation)[:80]}")
    messages = []
    for message in conversation:
        fields = message if isinstance(message, dict) else {}
        role, content = fields.get("role", fields.get("from")), fields.get("content", fields.get("value"))
        if not (isinstance(role, str) and role in ROLES and isinstance(content, str)):
            raise Refusal(f"a message needs a role of {', '.join(ROLES)} and a text, not {str(message)[:80]}")
        learned = ROLES[role] == "assistant" and message.get("loss") is not False
        messages.append({"role": ROLES[role], "content": content, "loss": learned})
    if not any(message["loss"] for message in messages):
        raise Refusal("no message of the assistant is to be learned")
    return messages


def to_episode(
    tokenizer: Tokenizer, messages: list[dict], number: int, max_len: int, all_tokens: bool = False
) -> tuple[Episode, bool]:
    """Return the conversation as an episode, and whether max_len cut it. Learned messages are turns of the agent."""
    episode, read = Episode("data", number, number), []
    for message in messages:
        if not message["loss"]:
            read.append({"role": message["role"], "content": message["content"]})
            continue
        episode.append(tokenizer.follow_up(episode.ids_T[-1], read) if episode.turns else tokenizer.prompt(read))
        reply, read = tokenizer.reply(message["content"]), []
        episode.append_turn(reply, [0.0] * len(reply), "stop")
        if len(episode.ids_T) > max_len:
            break
    cut = len(episode.ids_T) > max_len
    if cut:
        for tokens_T in (episode.ids_T, episode.action_mask_T, episode.logprobs_T):
            del tokens_T[max_len:]
        episode.turns = [turn for turn in episode.turns if turn.start < max_len]
        if episode.turns and episode.turns[-1].stop > max_len:
            episode.turns[-1].stop, episode.turns[-1].stop_reason = max_len, "context"
    if all_tokens:
        _learn_all(episode)
    return episode, cut


def _learn_all(episode: Episode) -> None:
    """Make all tokens after the first, which nothing predicts, the episode's one turn."""
    episode.turns = [Turn(1, len(episode.ids_T), episode.score, "stop")]
    episode.action_mask_T = [0] + [1] * (len(episode.ids_T) - 1)


def demonstrations(
    tokenizer: Tokenizer, tasks: Iterable[Task], cfg: Config, progress: tqdm, model: CausalLM | None = None
) -> list[Episode]:
    """Return the expert's episodes, with the ids that the model would have sampled; log-probabilities are 0.

    An episode whose environment fails (EnvironmentFailed) is marked infrastructure_failed.
    model: its base answers the environments' requests, all at once.
    Raise ValueError if all episodes fail, or for a request if model is None.
    """
    return next(playing.play([partial(_play_all, model, tokenizer, cfg)], list(tasks), progress))


def _play_all(
    model: CausalLM | None, tokenizer: Tokenizer, cfg: Config, tasks: list[Task], progress: tqdm
) -> list[Episode]:
    """Return the expert's episodes of this rank's tasks."""
    base, finished = Base(model, tokenizer, cfg), []
    episodes = [Episode(task.env, task.seed, task.group) for task in tasks]
    demonstrating = [_play(tokenizer, task, episode, cfg) for task, episode in zip(tasks, episodes, strict=True)]
    streams = [request_streams(task.key) for task in tasks]
    results = dict.fromkeys(range(len(tasks)))  # of the episodes that are not finished
    while results:
        requests = {}
        for index, answers in results.items():
            try:
                requests[index] = list(zip(demonstrating[index].send(answers), streams[index], strict=False))
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


def _play(tokenizer: Tokenizer, task: Task, episode: Episode, cfg: Config) -> Generator[list[Request], list[Result]]:
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
        _learn_all(episode)


def evaluate_held_out(
    prefix: str, model: CausalLM, tokenizer: Tokenizer, demos: Demonstrations | None, cfg: Config
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
def held_out_loss(model: CausalLM, episodes: list[Episode], cfg: Optim) -> dict:
    """Return the mean negative log-probability, in nats at temperature 1, and the perplexity of demonstrations."""
    batch = make_batch(episodes)
    pieces = ranks.own(micro_batches(batch, cfg.micro_tokens))
    sums = [forward(piece, model, 1.0).logprobs_N.double().sum().item() for piece in pieces]
    loss = -sum(chain(*ranks.gathered(sums))) / batch.total_tokens
    return {"eval_loss": loss, "perplexity": math.exp(min(loss, 700.0)), "eval_tokens": batch.total_tokens}
