"""Requests of environments to the base model, and its answers. The planner and tau_retail make them."""

from dataclasses import dataclass

from envs.refusal import Refusal

NEEDS_MODEL = {"planner": "worker", "tau_retail": "user"}  # environment -> the option whose value may be "model"


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
    stop_reason: str = ""  # "stop" | "length" | "context" of a reply that was sampled here
    vector: list | None = None  # embed request: for each text, the mean of the base model's last hidden states


def check_no_model(name: str, options: dict) -> None:
    """Raise ValueError if an option lets the environment ask a model: programs without one call this."""
    option = NEEDS_MODEL.get(name)
    if options.get(option) == "model":
        raise Refusal(f"{name}.{option}=model has to ask a model, and there is none here; use {option}=rules")
