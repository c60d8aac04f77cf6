"""The replies of OpenAI's protocol, whole or streamed, as the sampler's tokens come."""

import json
import os
import time
from codecs import IncrementalDecoder, getincrementaldecoder
from dataclasses import dataclass, field
from functools import partial

from envs.http.exchange import plain
from envs.serve import Stream
from models import Tokenizer
from models.chat.formats import ANSWER
from models.refusal import Refusal as RefusedByModel
from rl.serve.sampler import Request
from rl.serve.text import Text

UTF_8 = partial(getincrementaldecoder("utf-8"), "replace")
FINISHED = {"stop": "stop", "length": "length", "context": "length"}  # finish of a Request: finish_reason of its reply


@dataclass
class Choice:
    """A request's reply as far as it has been sent."""

    request: Request
    index: int
    text: Text
    sent: int = 0  # sampled ids
    reply: str = ""  # the text so far, held-back text included
    shown: int = 0  # characters of it that have been sent
    ended: bool = False  # the finish reason has been sent
    offset: int = 0  # characters of the tokens whose log-probabilities have been sent
    decoder: IncrementalDecoder = field(default_factory=UTF_8)  # of their bytes: a token may be a part of a character

    def news(self) -> tuple[str, slice, str | None]:
        """Return (text, slice of new sampled ids, finish reason or None). Text that may begin a stop text is held back
        until it is known not to."""
        # The reason is read first: the sampler's thread sets it after the last token.
        request, finish = self.request, FINISHED.get(self.request.finish)
        new = slice(self.sent, len(request.logprobs))
        self.sent = new.stop
        self.reply += self.text.add(request.sampled[new], last=bool(finish))
        until, places = len(self.reply), [at for words in request.stop if (at := self.reply.find(words)) >= 0]
        if places:
            until = min(places)
        elif not finish:
            until -= max((_overlap(self.reply, words) for words in request.stop), default=0)
        text, self.shown = self.reply[self.shown : until], max(self.shown, until)
        return text, new, finish


def _overlap(text: str, words: str) -> int:
    """Return the most characters at the end of the text that may begin `words`."""
    return next((n for n in range(min(len(text), len(words) - 1), 0, -1) if text.endswith(words[:n])), 0)


class Reply:
    """The HTTP reply of /v1/completions, with one or several choices. Its methods run on the server's event loop.

    n: choices of each prompt, which stand side by side in `requests`. likely: alternatives to report with each
    log-probability; None: no log-probabilities. with_ids: report the ids of the prompt and of the reply. usage: end a
    streamed reply with the counts of its tokens, as a whole one does.
    """

    kind = chunk = "text_completion"  # `object` of a whole reply, and of a part of a streamed one
    waits = False  # whether a choice is streamed in one part, at its end

    def __init__(
        self,
        requests: list[Request],
        model: str,
        tokenizer: Tokenizer,
        n: int,
        likely: int | None,
        with_ids: bool,
        streams: bool,
        usage: bool,
    ):
        self.tokenizer, self.n, self.likely, self.with_ids = tokenizer, n, likely, with_ids
        self.streams, self.usage, self.begun = streams, usage, False
        kind = self.chunk if streams else self.kind
        self.head = {"id": f"cmpl-{os.urandom(12).hex()}", "object": kind, "created": int(time.time()), "model": model}
        self.out = Stream(self.cancel)
        self.choices = [Choice(request, i, Text(tokenizer)) for i, request in enumerate(requests)]
        for request in requests:
            request.reply_to = self

    def cancel(self) -> None:
        for choice in self.choices:
            choice.request.cancelled = True

    def advance(self) -> None:
        """Send what is new."""
        if self.out.ended:
            return
        failed = next((choice.request for choice in self.choices if choice.request.finish == "error"), None)
        if failed:
            self.cancel()
            body = error_body(500, plain(failed.error, 500))
            self.out.put(_event(body) if self.begun else _http(500, body), end=True)
        elif self.streams:
            self._stream()
        elif all(choice.request.finish in FINISHED for choice in self.choices):
            body = self.head | {"choices": [self._entry(choice, *choice.news()) for choice in self.choices]}
            self.out.put(_http(200, body | {"usage": self._usage()}), end=True)

    def _stream(self) -> None:
        parts = []
        if not self.begun:
            self.begun = True
            parts.append(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n\r\n")
            parts += [self._part(choice, "", slice(0, 0), None, first=True) for choice in self.choices]
        for choice in self.choices:
            if choice.ended or (self.waits and choice.request.finish not in FINISHED):
                continue
            text, new, finish = choice.news()
            shows_ids = new.stop > new.start and (self.with_ids or self.likely is not None)
            if text or finish or shows_ids:
                parts.append(self._part(choice, text, new, finish))
            choice.ended = bool(finish)
        ended = all(choice.ended for choice in self.choices)
        if ended and self.usage:
            parts.append(_event(self.head | {"choices": [], "usage": self._usage()}))
        if ended:
            parts.append(b"data: [DONE]\n\n")
        if parts:
            self.out.put(b"".join(parts), end=ended)

    def _part(self, choice: Choice, text: str, new: slice, finish: str | None, first: bool = False) -> bytes:
        return _event(self.head | {"choices": [self._entry(choice, text, new, finish, first)]})

    def _entry(self, choice: Choice, text: str, new: slice, finish: str | None, first: bool = False) -> dict:
        request = choice.request
        entry = {"index": choice.index, **self.content(text, first), "logprobs": None, "finish_reason": finish}
        if self.likely is not None:
            entry["logprobs"] = self.logprobs(choice, new)
        if self.with_ids:
            entry["token_ids"] = request.sampled[new]
            entry |= {"prompt_token_ids": request.ids} if new.start == 0 else {}
        return entry

    def content(self, text: str, _first: bool) -> dict:
        """Return the fields that hold the text of a whole reply or of a part. first: the part before any text."""
        return {"text": text}

    def logprobs(self, choice: Choice, new: slice) -> dict:
        """Return the log-probabilities of new tokens, whose offsets go on where those of earlier ones ended."""
        request, offsets = choice.request, []
        names = [self.tokenizer.show([token]) for token in request.sampled[new]]
        for token in request.sampled[new]:
            offsets.append(choice.offset)
            choice.offset += len(choice.decoder.decode(self.tokenizer.bytes_of(token)))
        tops = [{self.tokenizer.show([i]): value for i, value in likely} for likely in request.likely[new]]
        table = {"tokens": names, "token_logprobs": request.logprobs[new], "text_offset": offsets}
        return table | {"top_logprobs": tops or None}

    def _usage(self) -> dict:
        requests = [choice.request for choice in self.choices]
        prompts = requests[:: self.n]  # each is counted once
        usage = {"prompt_tokens": sum(len(request.ids) for request in prompts)}
        usage["completion_tokens"] = sum(len(request.sampled) for request in requests)
        cached = {"cached_tokens": sum(request.reused for request in prompts)}
        return usage | {"total_tokens": sum(usage.values()), "prompt_tokens_details": cached}


class ChatReply(Reply):
    """The HTTP reply of /v1/chat/completions.

    caller: the tokenizer that wrote the tools of the prompt, and reads calls of them; None without tools.
    """

    kind, chunk = "chat.completion", "chat.completion.chunk"

    def __init__(self, *arguments, caller: Tokenizer | None = None):
        super().__init__(*arguments)
        self.caller, self.waits = caller, caller is not None

    def _entry(self, choice: Choice, text: str, new: slice, finish: str | None, first: bool = False) -> dict:
        entry = super()._entry(choice, text, new, finish, first)
        if self.caller and finish == "stop" and (called := self._called(choice, text)):
            entry["delta" if self.streams else "message"] |= called
            entry["finish_reason"] = "tool_calls"
        return entry

    def _called(self, choice: Choice, text: str) -> dict:
        """Return a whole reply's content and calls; {} if it has no calls, a malformed one, or ended at `stop`."""
        try:
            said, calls = self.caller.calls(choice.request.sampled)
        except (RefusedByModel, RecursionError):
            return {}
        if not calls or choice.shown < len(choice.reply):
            return {}
        thoughts, end, _ = text.rpartition(ANSWER)
        made = [
            ({"index": i} if self.streams else {})
            | {"id": f"call_{os.urandom(12).hex()}", "type": "function"}
            | {"function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
            for i, call in enumerate(calls)
        ]
        return {"content": "\n\n".join(filter(None, (thoughts + end, said))) or None, "tool_calls": made}

    def content(self, text: str, first: bool) -> dict:
        if not self.streams:
            return {"message": {"role": "assistant", "content": text}}
        return {"delta": {"role": "assistant", "content": ""} if first else {"content": text}}

    def logprobs(self, choice: Choice, new: slice) -> dict:
        request = choice.request
        content = [self._token(*pair) for pair in zip(request.sampled[new], request.logprobs[new], strict=True)]
        tops = request.likely[new] or [[]] * len(content)  # without alternatives none are collected
        for entry, likely in zip(content, tops, strict=True):
            entry["top_logprobs"] = [self._token(*pair) for pair in likely]
        return {"content": content}

    def _token(self, token: int, logprob: float) -> dict:
        name = self.tokenizer.show([token])
        return {"token": name, "logprob": logprob, "bytes": list(self.tokenizer.bytes_of(token))}


def error_body(status: int, message: str) -> dict:
    """Return the JSON of an error in OpenAI's form."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": status}}


def _event(body: dict) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _http(status: int, body: dict) -> bytes:
    text = json.dumps(body).encode()
    head = f"HTTP/1.0 {status} {'OK' if status == 200 else 'Error'}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text
