"""The client of a server of OpenAI's protocol: eval.py server= and train.py sampler=.

A key in OPENAI_API_KEY is sent, to this server alone: redirects are not followed, and proxy settings of the environment
are ignored. Answers are not trusted: their size, nesting and fields are checked.
"""

import json
import re
import sys
import threading
from dataclasses import dataclass, field

from envs.http.exchange import Cancelled, Lost, bearer, exchange, parse_json, plain, short
from envs.http.wire import is_number
from envs.requests import Request, Result
from models.chat.formats import ANSWER, THINK, without_thoughts
from rl.config.refusals import Refusal

KEY = "OPENAI_API_KEY"  # the environment variable of the key that requests carry
TOO_LONG = re.compile(  # in the messages of servers: vLLM, llama.cpp, OpenAI, TGI, Anthropic
    r"context.?(length|size|window)|maximum (model )?length|(prompt|inputs?|conversation) (is|are) too long"
    r"|too many (input |prompt )?tokens|max_new_tokens. must be|exceeds? [^.]{0,60}(tokens|context)"
    r"|longer than [^.]{0,40}tokens",
    re.IGNORECASE,
)
MAX_TOKEN = 512  # most characters of a token: the longest of common vocabularies have 128


class Refused(Exception):
    """The server refused a request; the message is the server's."""

    def __init__(self, message: str, too_long: bool = False, always: bool = False):
        super().__init__(message)
        self.too_long = too_long  # the conversation does not fit into the model's context
        self.always = always  # every request will be: no such model, a wrong key


class Unusable(Exception):
    """One answer of the server cannot be used; others may."""


@dataclass
class Server:
    url: str  # up to /v1
    thinking: bool = True  # false asks the chat template for answers without thoughts
    opens_thought: bool = False  # the chat template ends a prompt inside a think block
    timeout: float = 600.0  # most seconds of one answer, from the connection to the last byte
    retries: int = 6  # after a failed attempt; the waits double from half a second
    cancelled: threading.Event = field(default_factory=threading.Event)  # set to end requests under way
    answered: bool = False  # an answer has come: what it refuses then is one request, not all
    embedded: bool = False  # vectors have come
    counts_tokens: bool = True  # false once an answer came without a number of tokens

    def ask(
        self,
        path: str,
        body: dict | None = None,
        json_reply: bool = True,
        cancelled: threading.Event | None = None,
    ) -> dict:
        """Return the JSON object of an answer. Raise Refused, or ConnectionError if all attempts fail.

        json_reply: False where any answer that is no error will do; then {} is returned.
        cancelled: ends the attempts when it is set; None: the server's own event.
        """
        cancelled = cancelled or self.cancelled
        headers = {"Content-Type": "application/json"} | bearer(KEY)
        data = None if body is None else json.dumps(body).encode()
        for attempt in range(self.retries + 1):
            if cancelled.wait(min(0.5 * 2 ** (attempt - 1), 60) if attempt else 0):
                raise ConnectionError("cancelled")
            try:
                reply = exchange(self.url + path, data, headers, self.timeout, cancelled)
                if reply.ok and not json_reply:
                    return {}
                if reply.ok and isinstance(table := parse_json(reply.body), dict):
                    return table
                text = without_key(reply.body[:10_000].decode(errors="replace"))
                reason = "no JSON object came" if reply.ok else plain(f"{reply.status} {reply.reason}: {text}", 400)
                if reply.permanent:
                    too_long = reply.status == 413 or TOO_LONG.search(text) is not None
                    raise Refused(
                        f"{self.url}{path} answered {reason}",
                        too_long,
                        not self.answered and reply.status in (401, 403, 404),
                    )
            except Cancelled:
                raise ConnectionError("cancelled") from None
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
            raise Refusal(f"{self.url}/models lists no models: is it the URL up to /v1? {error}") from None

    def chat(
        self, name: str, messages: list[dict], most: int, temperature: float, seed: int
    ) -> tuple[str, int, str, int]:
        """Return a reply: its text, its tokens as counted by the server, its finish reason, "stop" or "length", and the
        tokens of its prompt.

        A server that counts no tokens (usage: null) gets 0, and a line says so. Raise Unusable for an answer that is
        not the whole reply, Refused and ConnectionError as `ask`. A reply that max_tokens cut within its thoughts gets
        their tags, if the server's chat template is known to open them in the prompt.
        """
        body = {"model": name, "messages": messages, "max_tokens": most, "temperature": temperature, "top_p": 1.0}
        body |= {"seed": seed} if temperature else {}
        body |= {} if self.thinking else {"chat_template_kwargs": {"enable_thinking": False}}
        answer = self.ask("/chat/completions", body)
        self.answered = True
        try:
            [choice] = answer["choices"]
            said, finish = choice["message"], choice["finish_reason"]
            text, calls = said["content"], said.get("tool_calls") or said.get("function_call")
            apart = said.get("reasoning_content") or said.get("reasoning")  # vLLM's parsers move thoughts there
        except (KeyError, IndexError, TypeError, ValueError, AttributeError):
            raise self._unusable("an answer without text or finish_reason", answer) from None
        if isinstance(text, list) and all(isinstance(p, dict) and isinstance(p.get("text"), str) for p in text):
            text = "".join(part["text"] for part in text if part.get("type", "text") == "text")
        text = "" if text is None else text
        if calls:
            raise self._unusable("calls of tools, which no environment offered", calls)
        if type(text) is not str or finish not in ("stop", "length", "eos", "eos_token"):
            raise self._unusable("an answer whose text or finish_reason is not that of a whole reply", (text, finish))
        if len(text) > MAX_TOKEN * most:
            raise self._unusable(f"{len(text)} characters for max_tokens={most}", text)
        if self.opens_thought and finish == "length" and not apart and ANSWER not in text:
            text = f"{THINK}\n{text}\n{ANSWER}\n\n"  # as Tokenizer.message closes thoughts that were cut off
        return text, self._tokens(answer, most), plain(finish, 40), _prompt_tokens(answer)

    def _tokens(self, answer: dict, most: int) -> int:
        """Return the tokens of a reply; 0 from a server that counts none."""
        usage = answer.get("usage")
        tokens = usage.get("completion_tokens") if isinstance(usage, dict) else usage
        if tokens is None:
            if self.counts_tokens:
                print(f"{self.url} counts no tokens: sampled tokens are unknown", file=sys.stderr, flush=True)
            self.counts_tokens = False
            return 0
        if type(tokens) is not int or not 0 <= tokens <= most:
            raise self._unusable(f"a wrong number of tokens for max_tokens={most}", tokens)
        return tokens

    def _unusable(self, what: str, value) -> Unusable:
        return Unusable(f"{self.url}/chat/completions sent {what}: {short(value)}")

    def result(self, name: str, asked: Request, seed: int) -> Result:
        """Return the answer to an environment's request; for a conversation without room for a reply, an empty one."""
        if asked.kind == "chat":
            try:
                text, tokens, *_ = self.chat(name, asked.messages, asked.max_tokens, asked.temperature, seed)
            except Refused as error:
                if not error.too_long:
                    raise
                return Result()
            return Result(text=without_thoughts(text), tokens=tokens)
        try:
            rows = self.ask("/embeddings", {"model": name, "input": asked.texts})["data"]
            vectors = {row["index"]: row["embedding"] for row in rows}
            checked, self.embedded = _checked([vectors[number] for number in range(len(asked.texts))]), True
            return Result(vector=checked)
        except (Refused, KeyError, TypeError, ValueError) as error:
            text = f"{self.url} gives no embeddings of {name}: {plain(str(error), 500)}"
            raise (Unusable if self.embedded else Refusal)(text) from None


def _prompt_tokens(answer: dict) -> int:
    """Return the tokens of the prompt; 0 from a server that does not count them, or not in a whole number."""
    usage = answer.get("usage")
    tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return tokens if type(tokens) is int and is_number(tokens) and tokens >= 0 else 0


def without_key(text: str) -> str:
    """Return a server's text without the key, which some servers repeat in their messages."""
    key = bearer(KEY).get("Authorization", "").removeprefix("Bearer ")
    return text.replace(key, "...") if len(key) >= 8 else text


def _checked(vectors: list) -> list[list[float]]:
    """Return the vectors. Raise ValueError unless all have one length, above 0, and finite numbers."""
    if not all(isinstance(vector, list) and all(map(is_number, vector)) for vector in vectors):
        raise Refusal("a vector is no list of finite numbers")
    if len(set(map(len, vectors))) > 1 or [] in vectors:
        raise Refusal("the vectors have different lengths")
    return vectors
