"""Evaluation of a model behind a server of the OpenAI protocol, such as vLLM's.

    python eval.py server=http://localhost:8000/v1 model=Qwen/Qwen2.5-0.5B-Instruct adapter=base,mine env=textcraft

model= and adapter= are the server's names of the base model and of adapters (vLLM: --lora-modules mine=FOLDER).
Conversations are sent and text comes back, through the server's own chat template: there are no ids and no
log-probabilities, so this evaluates and does not train. The server's context limit applies instead of max_len, and its
own sampling settings apply too (vLLM: --generation-config vllm has none). Requests of environments go to the server's
base model: chats to /chat/completions, embeddings to /embeddings, which vLLM serves with embedding models only
(planner.independence_weight=0 needs none). At most MAX_THREADS episodes run at once. A key in OPENAI_API_KEY is sent;
proxy settings of the environment are ignored.
"""

import json
import os
import random
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPException

from tqdm import tqdm

import envs
from envs.http.wire import DIRECT
from envs.requests import Request, Result
from models.chat.formats import without_thoughts
from rl import reward
from rl.config import Common
from rl.evaluate import EVAL_STREAM, judged
from rl.records import Episode, Turn
from rl.rollout import CUT, MAX_THREADS
from rl.tasks import Task, make_env, make_tasks

TOO_LONG = ("context length", "context_length", "context size", "maximum model length")  # in the messages of servers


class Refused(Exception):
    """The server refused a request; the message is the server's."""

    @property
    def too_long(self) -> bool:
        return any(words in str(self).lower() for words in TOO_LONG)


@dataclass
class Server:
    url: str  # up to /v1
    thinking: bool = True  # false asks the chat template for answers without thoughts
    timeout: float = 600.0  # seconds for one answer
    retries: int = 6  # after a failed attempt; the waits double from half a second
    left: threading.Event = field(default_factory=threading.Event)  # set when the evaluation was interrupted

    def ask(self, path: str, body: dict | None = None) -> dict:
        """Return the JSON object of an answer. Raises Refused, or ConnectionError if all attempts fail."""
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("OPENAI_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(self.retries + 1):
            if self.left.wait(0.5 * 2 ** (attempt - 1) if attempt else 0):
                raise ConnectionError("left")
            try:
                asked = urllib.request.Request(self.url + path, data, headers)
                with DIRECT.open(asked, timeout=self.timeout) as answer:
                    found = json.loads(answer.read())
                if isinstance(found, dict):
                    return found
                reason = "no JSON object came"
            except urllib.error.HTTPError as error:
                with error:
                    reason = f"{error.code} {' '.join(error.read(2000).decode(errors='replace').split())}"
                if 400 <= error.code < 500 and error.code not in (408, 425, 429):
                    raise Refused(f"{self.url}{path} answered {reason}") from None
            except (OSError, ValueError, HTTPException) as error:  # refused, timed out, cut short, not JSON
                reason = str(getattr(error, "reason", error))
            if not attempt:
                print(f"{self.url}{path}: {reason}; trying again, {self.retries} times", file=sys.stderr, flush=True)
        raise ConnectionError(f"{self.url}{path} failed after {self.retries + 1} attempts: {reason}")

    def names(self) -> list[str]:
        """Return the names of the models and adapters on the server."""
        try:
            return [model["id"] for model in self.ask("/models")["data"]]
        except (KeyError, TypeError, Refused) as error:
            raise ValueError(f"{self.url}/models lists no models: is it the URL up to /v1? {error}") from None

    def chat(self, name: str, messages: list[dict], most: int, temperature: float, seed: int) -> tuple[str, int, str]:
        """Return a reply: its text, its tokens as counted by the server, and its finish reason, "stop" or "length"."""
        body = {"model": name, "messages": messages, "max_tokens": most, "temperature": temperature, "top_p": 1.0}
        body |= {"seed": seed} if temperature else {}
        body |= {} if self.thinking else {"chat_template_kwargs": {"enable_thinking": False}}
        answer = self.ask("/chat/completions", body)
        try:
            choice, tokens = answer["choices"][0], answer["usage"]["completion_tokens"]
            return choice["message"]["content"] or "", int(tokens), choice["finish_reason"]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            said = "sent an answer without text, usage or finish_reason"
            raise ConnectionError(f"{self.url}/chat/completions {said}: {error!r}") from None

    def result(self, name: str, asked: Request, seed: int) -> Result:
        """Return the answer to an environment's request; for a conversation without room for a reply, an empty one."""
        if asked.kind == "chat":
            try:
                text, tokens, _ = self.chat(name, asked.messages, asked.max_tokens, asked.temperature, seed)
            except Refused as error:
                if not error.too_long:
                    raise
                return Result()
            return Result(text=without_thoughts(text), tokens=tokens)
        try:
            found = self.ask("/embeddings", {"model": name, "input": asked.texts})["data"]
            return Result(vector=[row["embedding"] for row in sorted(found, key=lambda row: row["index"])])
        except (Refused, KeyError, TypeError) as error:
            raise ValueError(f"{self.url} gives no embeddings of {name}: {error}") from None


def evaluate(server: Server, name: str, cfg: Common, temperature: float, split: str, episodes: int) -> dict:
    """Evaluate the server's model `name` as rl.evaluate.evaluate does; cfg.model is the server's base model."""
    tasks = make_tasks(cfg, 0, episodes, 1, split, EVAL_STREAM)
    with (
        tqdm(total=episodes, desc=f"evaluate {name} on {split}", leave=False, disable=None) as bar,
        ThreadPoolExecutor(min(MAX_THREADS, cfg.rollout_batch_size)) as pool,
    ):
        played = []
        try:
            for episode in pool.map(partial(play, server, name, cfg, temperature), tasks):
                played.append(episode)
                bar.update()
        except BaseException:
            server.left.set()  # running episodes end with their next request
            raise
    if all(episode.infrastructure_failed for episode in played):
        raise ValueError(f"all {len(played)} episodes failed because of the environment, not the agent")
    return judged(played, temperature, split)


def play(server: Server, name: str, cfg: Common, temperature: float, task: Task) -> Episode:
    """Play one episode, without ids. A conversation that is too long for the server ends it with outcome "timeout"."""
    episode = Episode(task.env, task.seed, task.group)
    draw = random.Random(f"{task.key}")  # a seed for each request, because the server's random numbers restart with it
    try:
        env = make_env(cfg, task.env)
        messages = list(env.reset(task.seed, task.split))
        while not (episode.terminated or episode.truncated):
            start = len(episode.action_mask_T)
            try:
                seed = draw.randrange(2**31)
                reply, tokens, reason = server.chat(name, messages, cfg.max_new_tokens, temperature, seed)
                step = env.step(without_thoughts(reply))
            except Refused as error:
                if not error.too_long:
                    raise
                reply, tokens, reason, step = "", 0, "context", CUT
            while step.requests:
                asked = [server.result(cfg.model, request, draw.randrange(2**31)) for request in step.requests]
                step = env.answer(asked)
            episode.action_mask_T += [1] * tokens
            episode.turns.append(Turn(start, start + tokens, 0.0, reason))
            episode.turns[-1].reward = reward.turn_reward(step, episode, cfg.reward)
            episode.terminated, episode.truncated = step.terminated, step.truncated
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": step.observation}]
        episode.outcome, episode.success = step.info["outcome"], step.info["success"]
        episode.metrics = step.info.get("metrics", {})
    except envs.EnvironmentFailed as error:
        tqdm.write(f"{episode.env}: {error}; the episode is left out", file=sys.stderr)
        episode.infrastructure_failed = episode.truncated = True
    except Refused as error:
        raise ValueError(str(error)) from None
    return episode
