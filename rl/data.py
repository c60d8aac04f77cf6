"""Demonstrations for supervised fine-tuning, from a file or an environment's expert; and the loss on held-out ones.

A file is JSON Lines, one JSON array, or Parquet. A row is a conversation or a prompt/answer pair
(envs/conversations.py has the keys that are read; other keys are refused or named in a line at the start):

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}
    {"conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "...", "loss": true}]}     AgentGym
    {"question": "...", "answer": "..."}                      with sft.prompt_column=question sft.answer_column=answer

Only the assistant's messages are learned, except those marked `"loss": false`. The 10 % of distinct prompts with the
lowest hashes are held out, with all their answers, so the split depends neither on the seed nor on the order. Fewer
than ten distinct prompts hold nothing out.
"""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, takewhile
from pathlib import Path

import torch
from tqdm import tqdm

import envs
from envs import parquet
from envs.conversations import conversation, without_flag
from envs.data_files import whole
from envs.demos import expert
from envs.requests import Request, Result
from envs.rows import check_rows_file
from models import CausalLM, Tokenizer
from models.json_file import parse_json, read_bytes
from rl import ranks, sft
from rl.base_model import Base, request_streams
from rl.batch import forward, make_batch, micro_batches
from rl.config.fields import Config, Optim
from rl.config.refusals import Refusal
from rl.evaluate import held_out_tasks, progress_bar
from rl.ranks.pace import Pace
from rl.ranks.playing import play_on_ranks
from rl.records import Episode, Turn
from rl.rollout import UNSEEN, add_step, difference, timed_out, write_prompt
from rl.run.files import bounded_lines
from rl.tasks import (
    Task,
    check_failures,
    failures_of,
    make_env,
    show_failure,
    system_prompt_text,
    task_digest,
    with_prompt,
)
from rl.tools import write_reply

MOST_BYTES = 2**20  # of a line; longer texts than max_len's are encoded whole
# of chat templates, which may be another model's; and tags of the vocabulary that are no part of a template
MARKS = ("<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|eot_id|>", "<|user|>", "<|assistant|>", "<|end|>")
MARKS += ("<start_of_turn>", "<end_of_turn>", "[INST]", "[/INST]", "</s>")
TAG = re.compile("</?[a-z0-9_]+>")
MOST_ARRAY, MOST_PARTS = 2**27, 5_000_000  # bytes, lists and objects of a file that is one JSON array


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
    say_marks(rows, tokenizer)
    if cfg.system_prompt:
        text = system_prompt_text(cfg.system_prompt)
        rows = [[{"loss": False, **message} for message in with_prompt(row, text)] for row in rows]
    demos, learnable = Demonstrations([], [], 0, 0), []
    for number, row in enumerate(rows):
        try:
            if algo_cfg.all_tokens and any(m["role"] == "assistant" and not m["loss"] for m in row):
                raise Refusal("sft.all_tokens=true learns every token, and a message is marked as not learned")
            if cfg.history == "template":
                episode, cut = to_samples(tokenizer, row, number, cfg.max_len)
            else:
                episode, cut = to_episode(tokenizer, row, number, cfg.max_len, algo_cfg.all_tokens)
        except ValueError as error:
            raise Refusal(f"{cfg.data}, conversation {number + 1}: {error}") from None
        demos.cut += cut
        if any(episode.action_mask_T):
            learnable.append((_prompt_digest(row), episode))
        else:
            demos.empty += 1
    digests = sorted({digest for digest, _ in learnable})
    held_out = set(digests[: len(digests) // 10])
    for digest, episode in learnable:
        (demos.held_out if digest in held_out else demos.train).append(episode)
    if not demos.train:
        raise Refusal(f"data={cfg.data}: nothing to learn from in {len(rows)} rows, {demos.cut} cut by max_len")
    if demos.empty > len(rows) / 2:
        words = f"{demos.empty} of {len(rows)} conversations have nothing to learn within max_len={cfg.max_len}"
        raise Refusal(f"data={cfg.data}: {words}: raise it")
    if cfg.patience and not demos.held_out:
        raise Refusal(f"patience={cfg.patience} counts evaluations, and {cfg.data} is too small to hold rows out")
    left_out = f", {demos.empty} left out for it" if demos.empty else ""
    counts = f"{len(demos.train):,} conversations to learn, {len(demos.held_out):,} held out"
    counts += "" if held_out else " (there are fewer than ten distinct prompts)"
    print(f"data: {counts}; {demos.cut:,} cut by max_len={cfg.max_len}{left_out}")
    print("data: an epoch learns all of them, so episodes= has no effect; max_samples=N reads fewer rows")
    return demos


def say_marks(rows: list[list[dict]], tokenizer: Tokenizer) -> None:
    """Print how many conversations have marks of a chat template in their texts: those are read as letters."""
    own = (tokenizer.show([i]) for i in tokenizer.control_ids)
    marks = re.compile("|".join(map(re.escape, {*MARKS, *(mark for mark in own if not TAG.fullmatch(mark))})))
    texts = ("\n".join(message["content"] for message in row) for row in rows)
    if found := Counter(mark[0] for text in texts if (mark := marks.search(text))):
        [(mark, _)] = found.most_common(1)
        count = f"{found.total():,} rows contain {mark}"
        print(f"data: {count} as text, which is read as letters: give the conversation without its template")


def read_rows(path: Path, prompt: str, answer: str) -> list[list[dict]]:
    """Return conversations as [{"role", "content", "loss"}, ...]; loss: whether the message is learned.

    Print the columns that were not read. Raise ValueError for a row that is no conversation, or larger than MOST_BYTES.
    """
    if prompt and prompt == answer:
        raise Refusal(f"sft.prompt_column and sft.answer_column are both {answer!r}: the prompt is no answer")
    conversations, unread, columns = [], Counter(), {}
    for where, row in _rows(path):
        try:
            messages, not_read = conversation(row, prompt, answer)
            messages = whole([{"loss": message["role"] == "assistant", **message} for message in messages])
            learned = [message for message in messages if message["loss"]]
            if not learned:
                raise Refusal("no message of the assistant is to be learned")
            if any(not message["content"].strip() and not message.get("tool_calls") for message in learned):
                raise Refusal('a reply to be learned is empty; "loss": false excludes it')
        except ValueError as error:
            raise Refusal(f"{path}, {where}: {error}") from None
        conversations.append(messages)
        unread.update(not_read)
        columns |= dict.fromkeys(row)
    if conversations and prompt not in ("", sft.Config.prompt_column) and prompt not in columns:
        raise Refusal(f"{path}: sft.prompt_column={prompt}, and no row has it; there is: {', '.join(columns)}")
    if unread:
        names = ", ".join(f"{name!r} ({count:,} rows)" for name, count in unread.most_common(12))
        print(f"data: columns of {path} that are not read: {names}")
    return conversations


def _rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield where each row of a file stands, and its value. Raise ValueError for a file that is none of the forms."""
    check_rows_file(str(path))
    if path.suffix == parquet.ENDING:
        yield from ((f"row {number}", row) for number, row in enumerate(parquet.read(path), 1))
        return
    if (array := _array(path)) is not None:
        yield from ((f"row {number}", row) for number, row in enumerate(array, 1))
        return
    for number, line in bounded_lines(path, MOST_BYTES):
        try:
            text = line.decode("utf-8-sig").strip()
            if text:
                yield f"line {number}", parse_json(text.encode())
        except UnicodeDecodeError as error:
            raise Refusal(f"{path}, line {number}: not UTF-8 ({error})") from None
        except ValueError as error:
            raise Refusal(f"{path}, line {number}: {error}; a file has one row in each line, or is one array") from None


def _array(path: Path) -> list | None:
    """Return the rows of a file that is one JSON array, or one object over several lines; None for JSON Lines."""
    with open(path, "rb") as file:
        first = next((line for line in file if line.strip(b"\xef\xbb\xbf \t\r\n")), b"")
    if not first.lstrip(b"\xef\xbb\xbf \t").startswith(b"[") and first.strip(b"\xef\xbb\xbf \t\r\n") != b"{":
        return None
    try:
        value = parse_json(read_bytes(path, MOST_ARRAY).removeprefix(b"\xef\xbb\xbf"), MOST_PARTS)
    except ValueError as error:
        raise Refusal(f"{path}: {error}") from None
    return value if isinstance(value, list) else [value]


def to_episode(
    tokenizer: Tokenizer, messages: list[dict], number: int, max_len: int, all_tokens: bool = False
) -> tuple[Episode, bool]:
    """Return the conversation as an episode, and whether max_len cut it. Learned messages are turns of the agent."""
    episode, read = Episode("data", number, number), []
    for message in messages:
        if not message["loss"]:
            read.append(without_flag(message))
            continue
        episode.append(tokenizer.follow_up(episode.ids_T[-1], read) if episode.turns else tokenizer.prompt(read))
        reply, read = tokenizer.reply(message["content"], message.get("tool_calls", ())), []
        episode.append_turn(reply, [0.0] * len(reply), "stop")
        if len(episode.ids_T) > max_len:
            break
    if all_tokens and read and episode.turns:  # what follows the last reply
        plain = [without_flag(message) for message in messages]
        header = len(tokenizer.prompt(plain)) - len(tokenizer.prompt(plain, header=False))
        closing = tokenizer.follow_up(episode.ids_T[-1], read)
        episode.append(closing[: len(closing) - header])
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


def to_samples(tokenizer: Tokenizer, messages: list[dict], number: int, max_len: int) -> tuple[Episode, bool]:
    """Return the conversation as an episode for history=template, and whether max_len left samples out.

    Each learned message is a sample of its own, behind what the chat template renders of all messages before it. The
    first sample of more than max_len tokens ends the episode.
    """
    episode, earlier = Episode("data", number, number), []
    for message in messages:
        if message["loss"]:
            kept, ids = difference(episode.last_sample, tokenizer.prompt(earlier))
            reply = tokenizer.reply(message["content"], message.get("tool_calls", ()))
            if kept + len(ids) + len(reply) > max_len:
                return episode, True
            if episode.turns:
                episode.kept.append(kept)
            episode.append(ids)
            episode.append_turn(reply, [0.0] * len(reply), "stop")
        earlier.append(without_flag(message))
    return episode, False


def _prompt_digest(messages: list[dict]) -> str:
    """Return the hash of the conversation up to the first learned reply to the user, whatever its white space.

    Replies that are not learned belong to the prompt: an agent's rows may all begin with the same rules and an "OK.".
    """
    first = next((i for i, message in enumerate(messages) if message["role"] == "user"), 0)  # behind a greeting
    unlearned = takewhile(lambda m: m["role"] != "assistant" or not m["loss"], messages[first:])
    asked = [*messages[:first], *unlearned]
    words = [(message["role"], message["content"].split()) for message in asked]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _learn_all(episode: Episode) -> None:
    """Make all tokens after the first, which nothing predicts, the episode's one turn."""
    episode.turns = [Turn(1, len(episode.ids_T), episode.score, "stop")]
    episode.action_mask_T = [0] + [1] * (len(episode.ids_T) - 1)


def demonstrations(
    tokenizer: Tokenizer,
    tasks: Iterable[Task],
    cfg: Config,
    progress: tqdm,
    model: CausalLM | None = None,
    pace: Pace | None = None,
) -> list[Episode]:
    """Return the expert's episodes, with the ids that the model would have sampled; log-probabilities are 0.

    An episode whose environment fails (EnvironmentFailed) is marked infrastructure_failed.
    model: its base answers the environments' requests, all at once.
    Raise ValueError if all episodes fail, or for a request if model is None.
    """
    return next(play_on_ranks([partial(_play_all, model, tokenizer, cfg)], list(tasks), progress, pace))


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
                show_failure(progress, tasks[index].env, error, finished)
                left = len(tasks) - len(finished)
                started = len(requests) if answers is None else left  # all start in the first round
                check_failures(finished, started, left - started, error)
            progress.update()
        results = base.answer(requests)
    return episodes


def _play(tokenizer: Tokenizer, task: Task, episode: Episode, cfg: Config) -> Generator[list[Request], list[Result]]:
    """Let the expert play the episode. Yields the environment's requests to the base model and is sent the results."""
    env = make_env(cfg, task.env)
    with failures_of(task.env):
        messages, episode.task = env.reset(task.seed, task.split), task_digest(env)
    episode.append(write_prompt(tokenizer, messages))
    running = True
    while running:
        with failures_of(task.env):
            action = expert(env)
        room = max(cfg.max_len - len(episode.ids_T), 0)
        ids = write_reply(tokenizer, action, env)
        stop_reason = "stop" if len(ids) <= room else "context"
        episode.append_turn(ids[:room], [0.0] * len(ids[:room]), stop_reason)
        with failures_of(task.env):
            step = env.step(action) if stop_reason == "stop" else timed_out(UNSEEN, env)
        while step.requests:
            results = yield step.requests
            with failures_of(task.env):
                step = env.answer(results)
        running = bool(add_step(episode, step, tokenizer, cfg, env))
    if cfg.algorithm.source == "demonstrations" and cfg.algorithm.all_tokens and any(episode.action_mask_T):
        _learn_all(episode)  # a prompt that leaves no room for a reply stays without a learned token


def evaluate_held_out(
    prefix: str, model: CausalLM, tokenizer: Tokenizer, demos: Demonstrations | None, cfg: Config
) -> list[dict]:
    """Print and return `held_out_loss` on the held-out demonstrations of the file or, without a file, on those of the
    environments' experts in cfg.eval_split. Return [] if there are none.

    prefix: of the printed line.
    """
    held_out = demos.held_out if demos else []
    if not demos and cfg.eval_episodes:
        tasks = held_out_tasks(cfg, cfg.eval_episodes, 1, cfg.eval_split)
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
