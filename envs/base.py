"""The interface of every environment: its base class and its records. What environments share is in envs/common.py."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import Any


class EnvironmentFailed(RuntimeError):
    """The environment broke, such as its server: the episode counts neither as solved nor as failed."""


@dataclass(frozen=True)
class Step:
    """The result of one action."""

    observation: str  # the text shown to the agent
    reward: float  # the environment's native reward for this step
    terminated: bool  # the task ended: solved, or failed for good
    truncated: bool  # the turn limit ended the episode
    info: dict  # "outcome": correct|incorrect|timeout|unknown, final once over; "success": bool; "valid": bool, the
    # action was understood and executed; "shaped": float, the denser reward that reward.rule=shaped pays
    requests: list = field(default_factory=list)  # of envs.requests.Request; if any, the step needs `answer` first


class Environment:
    """Play one episode at a time. Each environment's module has a subclass `Env`, made from its `Config`."""

    config: Any  # the Config of its module that it was made from
    task: str = ""  # once reset, the canonical text of the task; equal tasks have equal texts, whose hash is the split
    slow: bool = False  # step and reset wait for a server or another process: rollouts call them in a thread pool
    timeout_reward: float = 0.0  # what the turn limit costs an unsolved task; rollouts also pay it where max_len cuts
    pays_below_0: bool = False  # whether a step's native reward may be negative
    tools: Sequence[dict] = ()  # JSON schemas of the actions, if the agent takes them as calls of tools (tools=native)
    role: str = "user"  # of the message that holds the last step's observation: user, or tool after a call
    cancelled: Event = Event()  # set by a rollout that ends early: a slow environment stops waiting and raises

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed. Return the messages, [{role, content}, ...], up to the agent's first turn."""
        raise NotImplementedError

    def step(self, action_text: str) -> Step:
        """Execute the agent's turn."""
        raise NotImplementedError

    def answer(self, results: list) -> Step:
        """Return the next step, given an envs.requests.Result for each of the last step's requests."""
        raise NotImplementedError

    def oracle(self) -> str:
        """Return an expert's next turn. Raise RuntimeError if the environment has no expert."""
        raise NotImplementedError(f"{type(self).__module__} has no expert: its Env has no oracle()")

    def action_of(self, content: str, calls: list[dict]) -> str:
        """Return the action text for `step` of a reply with tools. Raise envs.tools.Malformed for a wrong call."""
        raise NotImplementedError

    def calls_of(self, action: str) -> tuple[str, list[dict]]:
        """Return the content and the calls of an expert's action with tools: `action_of` of them is the action."""
        raise NotImplementedError


class Configured(Environment):
    """An environment that is made from its module's Config."""

    defaults: Callable[[], Any]  # returns the Config of an environment that is made without one; usually the class

    def __init__(self, config: Any = None):
        self.config = config or self.defaults()
        self.running = False  # whether an episode runs: from reset to the step that ends it
