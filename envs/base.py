"""What every environment speaks: the records that cross its border, and the split that every task falls in."""

from dataclasses import dataclass, field
from hashlib import sha256

SPLITS = ("train", "val", "test")


class WorldFailed(RuntimeError):
    """Something other than the agent broke, such as a server: the episode counts neither as solved nor as failed."""


@dataclass(frozen=True)
class Request:
    """Something an environment wants from the base model before it can say what the step led to."""

    kind: str  # "chat": continue `messages`; "embed": one vector for `texts`
    messages: list | None = None  # [{role, content}, ...] of a chat request
    texts: list | None = None  # the strings of an embed request
    max_tokens: int = 256  # most tokens that the answer to a chat request may have
    temperature: float = 0.0  # sampling temperature of the answer; 0 is greedy


@dataclass(frozen=True)
class Result:
    """The answer to one Request, handed back through `env.answer`."""

    text: str = ""  # the sampled answer to a chat request
    tokens: int = 0  # how many tokens were sampled for it
    vector: list | None = None  # the embedding that an embed request asked for


@dataclass(frozen=True)
class Step:
    """What one action led to."""

    observation: str  # the environment's reply, shown to the agent
    reward: float  # the environment's native reward for this step
    terminated: bool  # the task came to its own end: solved, or failed for good
    truncated: bool  # the turn limit cut the episode off
    info: dict  # "outcome": correct|incorrect|timeout|unknown, final once over; "success": bool; "valid": bool, the
    # action was understood and executed; "shaped": float, a denser reward for those who train with it
    requests: list[Request] = field(default_factory=list)  # if any, the step is not finished: answer them first


def split_of(task: str) -> str:
    """The split of a task, from nothing but its canonical string: 80 % train, 10 % val, 10 % test."""
    bucket = int.from_bytes(sha256(task.encode()).digest()[:8], "big") % 10
    return "val" if bucket == 8 else "test" if bucket == 9 else "train"
