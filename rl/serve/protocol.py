"""The requests and replies of OpenAI's protocol, as vLLM speaks it.

    GET  /                              a page to chat, with the log-probability of each token
    GET  /v1/models                     the base model and the adapters
    POST /v1/completions                prompt: a text, its ids, or a list of either
    POST /v1/chat/completions           messages
    POST /v1/load_lora_adapter          {"lora_name": ..., "lora_path": ...}
    POST /v1/unload_lora_adapter        {"lora_name": ...}

Of vLLM's additions: top_k, stop_token_ids, chat_template_kwargs.enable_thinking, and return_token_ids, which puts
`token_ids` and `prompt_token_ids` into each choice. Log-probabilities are those of the distribution that sampled.
Tools are offered and called in the checkpoint's own format (models/chat/tools.py). A reply that calls tools has
`tool_calls`; one with a malformed call, or one that a limit or `stop` cut, stays text. Streamed, it comes in one part.
`random_state`, ours alone, is the state of a reply's random numbers: fold_all of (seed, episode, turn) in
models/random.py makes the reply that training would sample. `seed` makes such a state.
"""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from envs.conversations import declared_tools, message, without_flag
from envs.http.exchange import plain, short
from envs.serve import Handler, Server, Stream
from envs.serve.access import BadRequest
from models import Tokenizer
from rl.config.fields import LEAST_TEMPERATURE
from rl.serve.replies import ChatReply, Reply, error_body
from rl.serve.sampler import BASE, Full, Request, Sampler, random_states

PAGE = Path(__file__).with_name("chat.html")
PAGE_HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'",  # a reply's text can load nothing
}
MOST_CHOICES = 128  # of one request
MOST_LIKELY = 20  # alternatives to a token
LONGEST_STOP = 200  # characters
MOST_OF_TOKEN = 64  # characters of a prompt's token, on average
SAMPLING = {"model", "max_tokens", "temperature", "top_p", "top_k", "n", "stop", "stop_token_ids", "ignore_eos"}
SAMPLING |= {"seed", "random_state", "stream", "stream_options", "logprobs", "return_token_ids"}
READ = {  # fields of each request; any other field is refused
    "/v1/completions": {*SAMPLING, "prompt", "add_special_tokens"},
    "/v1/chat/completions": {
        *(*SAMPLING, "messages", "max_completion_tokens", "top_logprobs", "chat_template_kwargs"),
        *("tools", "tool_choice"),
    },
    "/v1/load_lora_adapter": {"lora_name", "lora_path"},
    "/v1/unload_lora_adapter": {"lora_name"},
}
IGNORED = {  # fields that say nothing about the reply
    *("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "request_id", "priority"),
    *("cache_salt", "parallel_tool_calls"),
}
NO_EFFECT = {  # fields that would change a reply, and the values with which they do not; null never does
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "logit_bias": ({},),
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_p": (0,),
    "typical_p": (1,),
    "min_tokens": (0,),
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "bad_words": ([],),
    "logits_processors": ([],),
    "add_special_tokens": (False,),
    "skip_special_tokens": (True, False),  # false: with return_token_ids, because texts are without control tokens
    "include_stop_str_in_output": (False,),
    "return_tokens_as_token_ids": (False,),
    "spaces_between_special_tokens": (True,),
    "include_reasoning": (True,),
    "truncate_prompt_tokens": (-1,),
    "continue_final_message": (False,),
    "add_generation_prompt": (True,),
}
# names of other servers' fields, so that the message can say which is meant by a name that is none of the above
UNSUPPORTED = {
    *("guided_json", "guided_choice", "guided_regex", "guided_grammar", "structured_outputs", "allowed_token_ids"),
    *("prompt_logprobs", "vllm_xargs", "documents", "chat_template", "reasoning_effort", "thinking", "reasoning"),
}


class PageHandler(Handler):
    """A handler that sends the page at / and gives errors OpenAI's form."""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/":
            return self.do_POST()
        try:  # without the key, which the page asks for and sends
            replace(self.server.access, token="").check(self.headers)
        except BadRequest as bad:
            return self._say(bad.args[0], {"detail": bad.args[1]})
        page = PAGE.read_bytes()
        self.send_response(200)
        for name, value in PAGE_HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def _say(self, status: int, said: Any) -> None:
        super()._say(status, said if status == 200 else error_body(status, said["detail"]))


class Protocol:
    """Answers requests with a sampler.

    base: the base model's name. by_thinking: the tokenizers for requests that ask for thoughts, or for none. may_load:
    whether requests may load adapters and unload them.
    """

    def __init__(self, sampler: Sampler, base: str, by_thinking: dict[bool, Tokenizer], may_load: bool):
        self.sampler, self.base, self.may_load, self.began = sampler, base, may_load, int(time.time())
        self.tokenizer, self.by_thinking = sampler.tokenizer, by_thinking
        self.first_ids = self.tokenizer.first_ids if self.tokenizer else []  # a bad file is refused at the start
        self.server: Server | None = None  # set by whoever makes it, because it needs `answer`
        sampler.notify = self._notify

    def answer(self, method: str, path: str, body: dict, _client: str) -> Any:
        """Return the JSON of a reply, or the Stream of a completion. Raise BadRequest for an invalid request."""
        if method == "GET" and path == "/health":
            return {}
        if method == "GET" and path == "/v1/models":
            return {"object": "list", "data": [self._model(name) for name in (self.base, *self.sampler.adapters)]}
        if method == "GET" and path.startswith("/v1/models/"):
            return self._model(self._known(unquote(path.removeprefix("/v1/models/"))))
        actions = {
            "/v1/completions": self._completions,
            "/v1/chat/completions": self._chat,
            "/v1/load_lora_adapter": self._load,
            "/v1/unload_lora_adapter": self._unload,
        }
        if method != "POST" or path not in actions:
            raise BadRequest(404, f"there is no {method} {plain(path, 80)}; there are /v1/models, {', '.join(actions)}")
        check_fields(path, body)
        return actions[path](body)

    # ------------------------------------------------------------------------------------------------- models

    def _model(self, name: str) -> dict:
        is_base = name == self.base
        root = name if is_base else str(self.sampler.adapters[name][1])
        more = {"max_model_len": self.sampler.max_len} if is_base else {"parent": self.base}
        return {"id": name, "object": "model", "created": self.began, "owned_by": "lora-rl", "root": root, **more}

    def _known(self, name: Any) -> str:
        known = (self.base, *self.sampler.adapters)
        if name == BASE:  # as in eval.py and rl.chat, whatever the base is
            return self.base
        if name not in known:
            raise BadRequest(404, f"there is no model {short(name)}; there are {', '.join(known)}")
        return name

    def _load(self, body: dict) -> dict:
        name, folder = (_field(body, key, str, None) for key in ("lora_name", "lora_path"))
        if not self.may_load:
            raise BadRequest(403, "adapters are loaded over HTTP only with load=true")
        if not name or not folder or name != plain(name) or name in (self.base, BASE):
            raise BadRequest(400, "lora_name and lora_path must be a new name and a folder")
        try:
            self.sampler.call(lambda: self.sampler.load(name, Path(folder))).result()
        except (OSError, ValueError) as error:
            raise BadRequest(400, plain(str(error), 500)) from None
        return {"status": "loaded", "lora_name": name}

    def _unload(self, body: dict) -> dict:
        name = _field(body, "lora_name", str, None)
        if not self.may_load:
            raise BadRequest(403, "adapters are unloaded over HTTP only with load=true")
        try:
            self.sampler.call(lambda: self.sampler.unload(name)).result()
        except KeyError:
            raise BadRequest(404, f"there is no adapter {short(name)}") from None
        return {"status": "unloaded", "lora_name": name}

    # -------------------------------------------------------------------------------------------- completions

    def _completions(self, body: dict) -> Stream:
        prompt = body.get("prompt")
        prompts = prompt if isinstance(prompt, list) and prompt and not _is_id(prompt[0]) else [prompt]
        likely = _field(body, "logprobs", int, None, 0, MOST_LIKELY)
        first = self.first_ids if _field(body, "add_special_tokens", bool, True) else []
        prompt_ids = [self._ids(prompt, first) for prompt in prompts[: MOST_CHOICES + 1]]
        return self._sample(Reply, body, prompt_ids, _field(body, "max_tokens", int, 16, 1), likely)

    def _chat(self, body: dict) -> Stream:
        thinking = _options(body, "chat_template_kwargs", "enable_thinking", None)
        tokenizer = self.tokenizer if thinking is None else self.by_thinking[thinking]
        messages, tools = _messages(body.get("messages")), offered_tools(body)
        if tools:
            messages[0] = messages[0] | {"tools": tools}
        length = sum(len(one["content"]) for one in messages)
        length += sum(len(str(one[key])) for one in messages for key in ("tools", "tool_calls") if key in one)
        self._check_length(length + MOST_OF_TOKEN * len(messages))  # each has a token at least
        try:
            tokenizer.check_thinking()
            if tools:
                tokenizer.check_tools()
            ids = self._checked(tokenizer.prompt(messages))
        except (ValueError, RecursionError) as error:
            raise BadRequest(400, plain(str(error), 500)) from None
        wanted, likely = _field(body, "logprobs", bool, False), _field(body, "top_logprobs", int, 0, 0, MOST_LIKELY)
        if likely and not wanted:
            raise BadRequest(400, "top_logprobs needs logprobs=true")
        limits = {_field(body, name, int, None, 1) for name in ("max_completion_tokens", "max_tokens")} - {None}
        if len(limits) > 1:
            raise BadRequest(400, "max_completion_tokens and max_tokens differ: give one of them")
        most = limits.pop() if limits else self.sampler.max_len
        kind = partial(ChatReply, caller=tokenizer if tools else None)
        return self._sample(kind, body, [ids], most, likely if wanted else None)

    def _ids(self, prompt: Any, first: list[int]) -> list[int]:
        """Return the ids of a prompt: those of a text behind `first`, or a list of ids. Raise BadRequest if there are
        none or too many."""
        if isinstance(prompt, str):
            self._check_length(len(prompt))
            return self._checked(first + self.tokenizer.encode(prompt))
        words = self.sampler.model.config.vocab_size
        if not isinstance(prompt, list) or not all(_is_id(token) and 0 <= token < words for token in prompt):
            raise BadRequest(400, f"prompt must be a text, or ids from 0 to {words - 1}, or a list of either")
        return self._checked(prompt)

    def _check_length(self, characters: int) -> None:
        """Raise BadRequest for a text that is not worth encoding: it takes more tokens than a prompt may have."""
        if characters > MOST_OF_TOKEN * self.sampler.max_len:
            raise self._wrong_length(f"{characters:,} characters")

    def _checked(self, ids: list[int]) -> list[int]:
        """Return the ids of a prompt. Raise BadRequest if there are none or too many."""
        if not ids:
            raise BadRequest(400, "the prompt is empty: it needs a token at least")
        if len(ids) >= self.sampler.max_len:
            raise self._wrong_length(len(ids))
        return ids

    def _wrong_length(self, size: int | str) -> BadRequest:
        limit = f"the maximum context length is {self.sampler.max_len} tokens"
        return BadRequest(400, f"{limit}, and the prompt has {size}")

    def _sample(
        self, kind: Callable[..., Reply], body: dict, prompts: list[list[int]], most: int, likely: int | None
    ) -> Stream:
        """Queue a request for each choice of each prompt; return the reply that they fill."""
        model = self._known(self.base if body.get("model") is None else body["model"])
        n = _field(body, "n", int, 1, 1, MOST_CHOICES)
        if n * len(prompts) > MOST_CHOICES:
            raise BadRequest(400, f"n times the number of prompts is more than {MOST_CHOICES}")
        stop_ids = frozenset(_list(body, "stop_token_ids", _is_id, "a list of ids"))
        stop = body.get("stop")
        is_text, texts = (lambda words: isinstance(words, str)), "a text or a list of texts"
        stop = [stop] if isinstance(stop, str) else _list(body, "stop", is_text, texts)
        if len(stop) > 16 or any(not 0 < len(words) <= LONGEST_STOP for words in stop):
            raise BadRequest(400, f"stop must be at most 16 texts of 1 to {LONGEST_STOP} characters")
        seed, state = (_field(body, name, int, None, -(2**63), 2**63 - 1) for name in ("seed", "random_state"))
        states = random_states(seed, state, len(prompts) * n)
        top_k = _field(body, "top_k", int, 0, -1)
        temperature = _field(body, "temperature", float, 1.0, 0.0, 100.0)
        if 0 < temperature < LEAST_TEMPERATURE:
            raise BadRequest(400, f"temperature={temperature} is too small to divide by; 0 takes the likeliest tokens")
        settings = {
            "adapter": None if model == self.base else model,
            "max_tokens": most,
            "temperature": temperature,
            "stop_ids": stop_ids if _field(body, "ignore_eos", bool, False) else self.tokenizer.eos_ids | stop_ids,
            "top_k": max(top_k, 0),
            "top_p": _field(body, "top_p", float, 1.0, 1e-9, 1.0),
            "stop": tuple(stop),
            "alternatives": likely or 0,
        }
        repeated = [ids for ids in prompts for _ in range(n)]
        requests = [Request(ids, stream=state, **settings) for ids, state in zip(repeated, states, strict=True)]
        streams = _field(body, "stream", bool, False)
        usage = bool(_options(body, "stream_options", "include_usage", False))
        if usage and not streams:
            raise BadRequest(400, "stream_options goes with stream=true; other replies have their usage")
        with_ids = _field(body, "return_token_ids", bool, False)
        reply = kind(requests, model, self.tokenizer, n, likely, with_ids, streams, usage)
        try:
            self.sampler.submit(*requests)
        except Full as error:
            raise BadRequest(429 if error.passes else 400, f"{error}{error.passes * '; try again later'}") from None
        except KeyError:  # unloaded meanwhile
            raise BadRequest(404, f"there is no model {short(model)}") from None
        return reply.out

    def _notify(self, requests: list[Request]) -> None:
        """Let the replies that have something new know, in one call of the event loop."""
        replies = dict.fromkeys(request.reply_to for request in requests)  # each once, in order
        with suppress(RuntimeError):  # the server has stopped
            self.server.loop.call_soon_threadsafe(lambda: [reply.advance() for reply in replies])


def check_fields(path: str, body: dict) -> None:
    """Raise BadRequest for a field that is not understood, or that asks for what is not supported."""
    for name, value in body.items():
        is_empty = isinstance(value, str | list | dict) and not value and name in {*NO_EFFECT, *UNSUPPORTED}
        if value is None or is_empty or name in READ[path] or name in IGNORED:
            continue
        if name not in NO_EFFECT:
            known = sorted({*READ[path], *IGNORED, *NO_EFFECT, *UNSUPPORTED})
            near = [] if name in UNSUPPORTED else get_close_matches(name, known, 1, 0.75)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise BadRequest(400, f"{plain(name, 80)} is not supported{meant}")
        if not any(value == same and isinstance(value, bool) == isinstance(same, bool) for same in NO_EFFECT[name]):
            raise BadRequest(400, f"{name}={short(value)} is not supported")
    with_ids = body.get("return_token_ids") or "return_token_ids" not in READ[path]
    if body.get("skip_special_tokens") is False and not with_ids:
        raise BadRequest(400, "skip_special_tokens=false is not supported without return_token_ids=true")


def _options(body: dict, name: str, key: str, default: bool | None) -> bool | None:
    """Return the one option of a field that is an object. Raise BadRequest for other options and other values."""
    options = body.get(name) or {}
    if not isinstance(options, dict) or not isinstance(options.get(key, False), bool):
        raise BadRequest(400, f"{name} must be an object, its {key} true or false")
    if others := options.keys() - {key}:
        raise BadRequest(400, f"{name}: {plain(min(map(str, others)), 80)} is not supported, only {key}")
    return options.get(key, default)


def _field(body: dict, name: str, kind: type, default: Any, low: float = -math.inf, high: float = math.inf) -> Any:
    """Return a field of the request. Raise BadRequest if it has another type or is out of range."""
    value = body.get(name)
    if value is None:
        return default
    kinds = (int, float) if kind is float else kind
    if not isinstance(value, kinds) or (kind is not bool and isinstance(value, bool)):
        raise BadRequest(400, f"{name} must be of type {kind.__name__}, not {short(value)}")
    if kind in (int, float) and not low <= value <= high:
        bounds = f"at least {low}" if high == math.inf else f"from {low} to {high}"
        raise BadRequest(400, f"{name}={short(value)} must be {bounds}")
    return value


def _list(body: dict, name: str, is_right: Callable[[Any], bool], wanted: str) -> list:
    """Return a field of the request that is a list. Raise BadRequest, which says what is wanted, for another value."""
    values = body.get(name) or []
    if not isinstance(values, list) or not all(map(is_right, values)):
        raise BadRequest(400, f"{name} must be {wanted}, not {short(values)}")
    return values


def _is_id(value: Any) -> bool:
    return type(value) is int


def _messages(given: Any) -> list[dict]:
    """Return the messages of a request (envs/conversations.py). Raise BadRequest for one that is not understood."""
    if not isinstance(given, list) or not given or not all(isinstance(one, dict) for one in given):
        raise BadRequest(400, "messages must be a list of objects with role and content")
    try:
        # "developer" is OpenAI's later name of the system.
        renamed = [one | {"role": "system"} if one.get("role") == "developer" else one for one in given]
        return [without_flag(message(one)) for one in renamed]
    except ValueError as error:
        raise BadRequest(400, plain(str(error), 500)) from None


def offered_tools(body: dict) -> list[dict]:
    """Return the tools that a chat's reply may call: none with tool_choice=none. Raise BadRequest for tools that are no
    functions, and for what cannot be ensured, because replies are sampled freely."""
    try:
        tools = declared_tools(body.get("tools"))
    except ValueError as error:
        raise BadRequest(400, plain(str(error), 500)) from None
    choice = body.get("tool_choice")
    if choice not in (None, "none", "auto"):
        raise BadRequest(400, f"tool_choice={short(choice)} is not supported, only none and auto: no call is forced")
    for tool in tools:
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise BadRequest(400, f"tools: each needs the type function and a function with a name, not {short(tool)}")
        if function.get("strict"):
            raise BadRequest(400, "tools: strict=true is not supported: nothing keeps a call to its schema")
    if tools and body.get("parallel_tool_calls") is False:
        raise BadRequest(400, "parallel_tool_calls=false is not supported: a reply may have several calls")
    return [] if choice == "none" else tools
