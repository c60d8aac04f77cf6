"""Requests of environments to the base model, and its answers. The planner and tau_retail make them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """An environment's request to the base model, to be answered before the step is complete."""

    kind: str  # "chat": continue `messages`; "embed": a vector for each of `texts`
    messages: list | None = None  # [{role, content}, ...] of a chat request
    texts: list | None = None  # the strings of an embed request
    max_tokens: int = 256  # most tokens of the answer to a chat request
    temperature: float = 0.0  # sampling temperature of the answer; 0 is greedy


@dataclass(frozen=True)
class Result:
    """The answer to one Request, passed to `env.answer`."""

    text: str = ""  # the sampled answer to a chat request
    tokens: int = 0  # number of tokens sampled for it
    vector: list | None = None  # embed request: for each text, the mean of the base model's last hidden states
