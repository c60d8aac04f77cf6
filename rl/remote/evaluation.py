"""Evaluation of a model behind a server of the OpenAI protocol, such as vLLM's.

    python eval.py server=http://localhost:8000/v1 model=Qwen/Qwen2.5-0.5B-Instruct adapter=base,mine env=textcraft

model= and adapter= are the server's names of the base model and of adapters (vLLM: --lora-modules mine=FOLDER).
Conversations are sent and text comes back, through the server's own chat template: there are no ids and no
log-probabilities, so this evaluates and does not train. The server's context limit applies instead of max_len, and its
own sampling settings apply too (vLLM: --generation-config vllm has none). Requests of environments go to the server's
base model: chats to /chat/completions, embeddings (planner.similarity=embeddings) to /embeddings, which vLLM
serves with embedding models only. At most MAX_THREADS episodes run at once. rl/remote/client.py sends the
requests.
"""

import random
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tqdm import tqdm

import envs
from models import Tokenizer
from models.chat.formats import without_thoughts
from rl.config.fields import Config
from rl.config.refusals import Refusal
from rl.evaluate import progress_bar
from rl.records import Episode, Turn
from rl.remote.client import Refused, Server, Unusable
from rl.rollout import MAX_THREADS, UNSEEN, end_turn, timed_out
from rl.tasks import Task, failures_of, make_env, task_digest

MOST_TRIED = 20  # episodes after which an evaluation ends if all of them failed


def opens_thought(cfg: Config) -> bool:
    """Return whether the chat template of the server's base model ends a prompt inside a think block. False if model=
    is no folder of this machine, or its tokenizer cannot be read here: the server shows no template.

    Raise Refusal for thinking=false with such a template.
    """
    if not (Path(cfg.model) / "tokenizer.json").is_file():
        return False
    try:
        tokenizer = Tokenizer(Path(cfg.model), cfg.thinking, rewrites=True)
        opens = tokenizer.opens_thought
    except ValueError:  # the server reads it, and this process need not
        return False
    tokenizer.check_thinking()
    return opens


def play_all(server: Server, name: str, cfg: Config, temperature: float, tasks: list[Task]) -> list[Episode]:
    """Return the episodes of the server's model `name`. One that the server or the environment fails is left out.

    Raise ValueError if all failed, or all of the first MOST_TRIED.
    """
    pool = ThreadPoolExecutor(min(MAX_THREADS, cfg.rollout_batch_size))
    with progress_bar(len(tasks), f"evaluate {name}") as bar:
        played = []
        try:
            for episode in pool.map(partial(play, server, name, cfg, temperature), tasks):
                played.append(episode)
                bar.update()
                if len(played) == min(MOST_TRIED, len(tasks)) and all(e.infrastructure_failed for e in played):
                    reason = "because of the server or the environment, not the agent"
                    raise Refusal(f"all {len(played)} episodes that were tried failed {reason}")
        except BaseException:
            server.cancelled.set()  # running episodes end soon
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return played


def play(server: Server, name: str, cfg: Config, temperature: float, task: Task) -> Episode:
    """Play one episode, without ids. It is left out if the server or the environment fails it; a line says why.

    A conversation that is too long for the server ends it with outcome "timeout". Raise ValueError if the server has no
    such model or wants a key.
    """
    episode = Episode(task.env, task.seed, task.group)
    try:
        _play(server, name, cfg, temperature, task, episode)
    except (envs.EnvironmentFailed, Refused, Unusable, ConnectionError) as error:
        if isinstance(error, Refused) and error.always:
            raise Refusal(str(error)) from None
        if not server.cancelled.is_set():
            tqdm.write(f"{episode.env}: {error}; the episode is left out", file=sys.stderr)
        episode.infrastructure_failed = episode.truncated = True
    return episode


def _play(server: Server, name: str, cfg: Config, temperature: float, task: Task, episode: Episode) -> None:
    """Play the episode. Raise what `play` leaves it out for."""
    draw = random.Random(f"{task.key}")  # a seed for each request, because the server's random numbers restart with it
    with failures_of(task.env):
        env = make_env(cfg, task.env)
        env.cancelled = server.cancelled
        messages = list(env.reset(task.seed, task.split))
        episode.task = task_digest(env)
    while not (episode.terminated or episode.truncated):
        start, tokens, reply, reason = len(episode.action_mask_T), 0, "", "context"
        step = timed_out(UNSEEN, env)
        try:
            seed = draw.randrange(2**31)
            reply, tokens, reason, _ = server.chat(name, messages, cfg.max_new_tokens, temperature, seed)
        except Refused as error:
            if not error.too_long:
                raise
        else:
            with failures_of(task.env):
                step = env.step(without_thoughts(reply))
        while step.requests:
            asked = [server.result(cfg.model, request, draw.randrange(2**31)) for request in step.requests]
            with failures_of(task.env):
                step = env.answer(asked)
        # No ids came, so the mask alone holds how many tokens each turn has.
        episode.action_mask_T += [1] * tokens
        episode.turns.append(Turn(start, start + tokens, 0.0, reason))
        end_turn(episode, step, cfg.reward)
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": step.observation}]
