"""The interface of every environment: its records, its base class, the split of a task, and shared checks."""

from dataclasses import dataclass, field
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path

SPLITS = ("train", "val", "test")
PROMPTS = ("native", "short")


class EnvironmentFailed(RuntimeError):
    """The environment broke, such as its server: the episode counts neither as solved nor as failed."""


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


@dataclass(frozen=True)
class Step:
    """The result of one action."""

    observation: str  # the text shown to the agent
    reward: float  # the environment's native reward for this step
    terminated: bool  # the task ended: solved, or failed for good
    truncated: bool  # the turn limit ended the episode
    info: dict  # "outcome": correct|incorrect|timeout|unknown, final once over; "success": bool; "valid": bool, the
    # action was understood and executed; "shaped": float, the denser reward that reward.rule=shaped pays
    requests: list[Request] = field(default_factory=list)  # if any, the step is incomplete until `answer`


class Environment:
    """Play one episode at a time. Each environment's module has a subclass `Env`, made from its `Config`."""

    slow: bool = False  # step and reset wait for a server or another process: rollouts call them in a thread pool

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages, [{role, content}, ...], up to the agent's first turn."""
        raise NotImplementedError

    def step(self, action_text: str) -> Step:
        """Execute the agent's turn."""
        raise NotImplementedError

    def answer(self, results: list[Result]) -> Step:
        """Return the next step, given one result for each of the last step's requests."""
        raise NotImplementedError

    def oracle(self) -> str:
        """Return an expert's next turn. Raise RuntimeError if the environment has no expert."""
        raise NotImplementedError


def split_of(task: str) -> str:
    """Return the split of a task by a hash of its canonical string: 80 % train, 10 % val, 10 % test."""
    bucket = int.from_bytes(sha256(task.encode()).digest()[:8], "big") % 10
    return "val" if bucket == 8 else "test" if bucket == 9 else "train"


def check_split(split: str) -> None:
    """Raise ValueError if `split` is not one of SPLITS."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")


def check_running(running: bool) -> None:
    """Raise RuntimeError if no episode is running."""
    if not running:
        raise RuntimeError("no episode is running: call reset() first, and again after each end")


def check_prompt(prompt: str) -> None:
    """Raise ValueError if `prompt` is not one of PROMPTS."""
    if prompt not in PROMPTS:
        raise ValueError(f"prompt must be 'native' or 'short', not {prompt!r}")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError if an option is not a whole number of at least `least`."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def check_file(what: str, path: str) -> None:
    """Raise ValueError, naming the most similar file, if the option `data` is not a file."""
    place = Path(path)
    if not place.is_file():
        close = get_close_matches(place.name, [other.name for other in place.parent.glob("*") if other.is_file()], n=1)
        meant = f"; did you mean {str(place.with_name(close[0]))!r}?" if close else ""
        raise ValueError(f"data must be {what}: no file {path!r}{meant}")


def level_list(difficulty: str, known) -> str:
    """Return a comma list of levels without spaces. Raise ValueError for an unknown level."""
    plain = str(difficulty).replace(" ", "")
    if not set(plain.split(",")) <= set(known):
        raise ValueError(f"difficulty must be a comma list of {', '.join(known)}, not {plain!r}")
    return plain


def outcome(success: bool, terminated: bool, truncated: bool) -> str:
    """Return info["outcome"] of a step."""
    return "correct" if success else "incorrect" if terminated else "timeout" if truncated else "unknown"


def opening(form: str, observation: str, instructions: str, agreed: str, short: str) -> list[dict]:
    """Return the messages up to the agent's first turn: one in the short form, AgentGym's three in the native form."""
    if form == "short":
        return [{"role": "user", "content": f"{short}\n{observation}"}]
    messages = ("user", instructions), ("assistant", agreed), ("user", observation)
    return [{"role": role, "content": text} for role, text in messages]


def as_reply(form: str, thought: str, action: str) -> str:
    """Return an expert's action as a reply in the form of the prompt."""
    return action if form == "short" else f"Thought:\n{thought}\n\nAction:\n{action}"
