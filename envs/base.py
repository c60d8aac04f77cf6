"""What every environment speaks: the records that cross its border, and the split that every task falls in."""

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
    """Something an environment wants from the base model before it can say what the step led to."""

    kind: str  # "chat": continue `messages`; "embed": a vector for each of `texts`
    messages: list | None = None  # [{role, content}, ...] of a chat request
    texts: list | None = None  # the strings of an embed request
    max_tokens: int = 256  # most tokens that the answer to a chat request may have
    temperature: float = 0.0  # sampling temperature of the answer; 0 is greedy


@dataclass(frozen=True)
class Result:
    """The answer to one Request, handed back through `env.answer`."""

    text: str = ""  # the sampled answer to a chat request
    tokens: int = 0  # how many tokens were sampled for it
    vector: list | None = None  # of an embed request: for each text the mean of the base's last hidden states


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
    """Return the split of a task, from nothing but its canonical string: 80 % train, 10 % val, 10 % test."""
    bucket = int.from_bytes(sha256(task.encode()).digest()[:8], "big") % 10
    return "val" if bucket == 8 else "test" if bucket == 9 else "train"


def check_split(split: str) -> None:
    """Raise ValueError for a split that is none."""
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, not {split!r}")


def check_running(running: bool) -> None:
    """Raise RuntimeError where an episode has to run and none does."""
    if not running:
        raise RuntimeError("no episode is running: call reset() first, and again after each end")


def check_prompt(prompt: str) -> None:
    """Raise ValueError for a form of the prompt that there is not."""
    if prompt not in PROMPTS:
        raise ValueError(f"prompt must be 'native' or 'short', not {prompt!r}")


def check_count(name: str, value: int, least: int = 1) -> None:
    """Raise ValueError for an option that counts and does not, or counts less than `least`."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def check_file(what: str, path: str) -> None:
    """Raise ValueError, with the nearest name there, for an option data that names no file."""
    place = Path(path)
    if not place.is_file():
        close = get_close_matches(place.name, [other.name for other in place.parent.glob("*") if other.is_file()], n=1)
        meant = f"; did you mean {str(place.with_name(close[0]))!r}?" if close else ""
        raise ValueError(f"data must be {what}: there is none at {path!r}{meant}")


def level_list(difficulty: str, known) -> str:
    """Return a comma list of levels without its spaces; ValueError if one of them is not known."""
    plain = str(difficulty).replace(" ", "")
    if not set(plain.split(",")) <= set(known):
        raise ValueError(f"difficulty must be a comma list of {', '.join(known)}, not {plain!r}")
    return plain


def outcome(success: bool, terminated: bool, truncated: bool) -> str:
    """What `info` says of an episode after a step."""
    return "correct" if success else "incorrect" if terminated else "timeout" if truncated else "unknown"


def opening(form: str, observation: str, instructions: str, agreed: str, short: str) -> list[dict]:
    """Return the messages of a world of several turns up to the agent's first: in the native form AgentGym's three."""
    if form == "short":
        return [{"role": "user", "content": f"{short}\n{observation}"}]
    turns = ("user", instructions), ("assistant", agreed), ("user", observation)
    return [{"role": role, "content": text} for role, text in turns]


def as_reply(form: str, thought: str, action: str) -> str:
    """Return an expert's action as a reply in the form of the prompt."""
    return action if form == "short" else f"Thought:\n{thought}\n\nAction:\n{action}"
