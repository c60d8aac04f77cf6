"""Evaluation of a model behind a server of the OpenAI protocol, such as vLLM's.

    python eval.py server=http://localhost:8000/v1 model=Qwen/Qwen2.5-0.5B-Instruct adapter=base,mine env=textcraft

model= and adapter= are the server's names of the base model and of adapters (vLLM: --lora-modules mine=FOLDER).
Conversations are sent and text comes back, through the server's own chat template: there are no ids and no
log-probabilities, so this evaluates and does not train. The server's context limit applies instead of max_len, and its
own sampling settings apply too (vLLM: --generation-config vllm has none). Requests of environments go to the server's
base model: chats to /chat/completions, embeddings to /embeddings, which vLLM serves with embedding models only
(planner.independence_weight=0 needs none). At most MAX_THREADS episodes run at once. A key in OPENAI_API_KEY is sent,
to this server alone: redirects are not followed, and proxy settings of the environment are ignored.
"""

import json
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from tqdm import tqdm

import envs
from envs.http.exchange import Left, Lost, bearer, exchange, parse_json, plain, short
from envs.http.wire import is_number
from envs.requests import Request, Result
from models.chat.formats import without_thoughts
from rl import reward
from rl.config import Common
from rl.evaluate import EVAL_STREAM, judged
from rl.records import Episode, Turn
from rl.rollout import CUT, MAX_THREADS
from rl.tasks import Task, make_env, make_tasks

KEY = "OPENAI_API_KEY"  # the environment variable of the key that requests carry
TOO_LONG = ("context length", "context_length", "context size", "maximum model length")  # in the messages of servers
MAX_TOKEN = 512  # most characters of a token: the longest of common vocabularies have 128


class Refused(Exception):
    """The server refused a request; the message is the server's."""

    def __init__(self, message: str, too_long: bool = False):
        super().__init__(message)
        self.too_long = too_long  # the conversation does not fit into the model's context


@dataclass
class Server:
    url: str  # up to /v1
    thinking: bool = True  # false asks the chat template for answers without thoughts
    timeout: float = 600.0  # most seconds of one answer, from the connection to the last byte
    retries: int = 6  # after a failed attempt; the waits double from half a second
    left: threading.Event = field(default_factory=threading.Event)  # set when the evaluation was interrupted

    def ask(self, path: str, body: dict | None = None) -> dict:
        """Return the JSON object of an answer. Raise Refused, or ConnectionError if all attempts fail."""
        headers = {"Content-Type": "application/json"} | bearer(KEY)
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(self.retries + 1):
            if self.left.wait(min(0.5 * 2 ** (attempt - 1), 60) if attempt else 0):
                raise ConnectionError("left")
            try:
                reply = exchange(self.url + path, data, headers, self.timeout, self.left)
                if reply.ok and isinstance(found := parse_json(reply.body), dict):
                    return found
                text = without_key(reply.body[:10_000].decode(errors="replace"))
                reason = "no JSON object came" if reply.ok else plain(f"{reply.status} {reply.reason}: {text}", 400)
                if reply.permanent:
                    too_long = any(words in text.lower() for words in TOO_LONG)
                    raise Refused(f"{self.url}{path} answered {reason}", too_long)
            except Left:
                raise ConnectionError("left") from None
            except UnicodeDecodeError:
                reason = "no JSON came"
            except (Lost, ConnectionError, ValueError) as error:
                reason = plain(getattr(error, "strerror", None) or str(error))
            if not attempt:
                print(f"{self.url}{path}: {reason}; trying again, {self.retries} times", file=sys.stderr, flush=True)
        raise ConnectionError(f"{self.url}{path} failed after {self.retries + 1} attempts: {reason}")

    def names(self) -> list[str]:
        """Return the names of the models and adapters on the server."""
        try:
            names = [model["id"] for model in self.ask("/models")["data"]]
            return [name for name in names if isinstance(name, str) and name == plain(name)]
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
            text, finish = choice["message"]["content"], choice["finish_reason"]
        except (KeyError, IndexError, TypeError) as error:
            raise self._unusable("an answer without text, usage or finish_reason", error) from None
        text = "" if text is None else text
        if type(text) is not str or type(finish) is not str:
            raise self._unusable("an answer whose text or finish_reason is no string", (text, finish))
        if type(tokens) is not int or not 0 <= tokens <= most:
            raise self._unusable(f"a wrong number of tokens for max_tokens={most}", tokens)
        if len(text) > MAX_TOKEN * most:
            raise self._unusable(f"{len(text)} characters for max_tokens={most}", text)
        return text, tokens, plain(finish, 40)

    def _unusable(self, what: str, value) -> ConnectionError:
        return ConnectionError(f"{self.url}/chat/completions sent {what}: {short(value)}")

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
            vectors = {row["index"]: row["embedding"] for row in found}
            return Result(vector=_checked([vectors[number] for number in range(len(asked.texts))]))
        except (Refused, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.url} gives no embeddings of {name}: {plain(str(error), 500)}") from None


def without_key(text: str) -> str:
    """Return a server's text without the key, which some servers repeat in their messages."""
    key = bearer(KEY).get("Authorization", "").removeprefix("Bearer ")
    return text.replace(key, "...") if len(key) >= 8 else text


def _checked(vectors: list) -> list[list[float]]:
    """Return the vectors. Raise ValueError unless all have one length, above 0, and finite numbers."""
    if not all(isinstance(vector, list) and all(map(is_number, vector)) for vector in vectors):
        raise ValueError("a vector is no list of finite numbers")
    if len(set(map(len, vectors))) > 1 or [] in vectors:
        raise ValueError("the vectors have different lengths")
    return vectors


def evaluate(server: Server, name: str, cfg: Common, temperature: float, split: str, episodes: int) -> dict:
    """Evaluate the server's model `name` as rl.evaluate.evaluate does; cfg.model is the server's base model."""
    tasks = make_tasks(cfg, 0, episodes, 1, split, EVAL_STREAM)
    pool = ThreadPoolExecutor(min(MAX_THREADS, cfg.rollout_batch_size))
    with tqdm(total=episodes, desc=f"evaluate {name} on {split}", leave=False, disable=None) as bar:
        played = []
        try:
            for episode in pool.map(partial(play, server, name, cfg, temperature), tasks):
                played.append(episode)
                bar.update()
        except BaseException:
            server.left.set()  # running episodes end soon
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    if all(episode.infrastructure_failed for episode in played):
        raise ValueError(f"all {len(played)} episodes failed because of the environment, not the agent")
    return judged(played, temperature, split)


def play(server: Server, name: str, cfg: Common, temperature: float, task: Task) -> Episode:
    """Play one episode, without ids. A conversation that is too long for the server ends it with outcome "timeout"."""
    episode = Episode(task.env, task.seed, task.group)
    draw = random.Random(f"{task.key}")  # a seed for each request, because the server's random numbers restart with it
    try:
        env = make_env(cfg, task.env)
        env.left = server.left
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
        if not server.left.is_set():
            tqdm.write(f"{episode.env}: {error}; the episode is left out", file=sys.stderr)
        episode.infrastructure_failed = episode.truncated = True
    except Refused as error:
        raise ValueError(str(error)) from None
    return episode
