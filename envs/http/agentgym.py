"""The client of AgentGym's servers, and of ours for the environments that AgentGym does not have.

    POST /create, /reset, /step, /close; the names of fields depend on the kind: see the tables below
    GET /           before each new session: a greeting with the environment, and prompt=short if ours serves it so
    GET /tasks      the number of tasks, 0 for no end; only our servers have it

A session is reused for the next episode, because AgentGym's alfworld and webshop cannot close one and a new one of
sciworld is slow; all are closed when the process ends.
"""

import atexit
import functools
import importlib
import re
import time
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field

import envs
from envs import common
from envs.base import Step
from envs.http.exchange import Lost, plain, short
from envs.http.wire import BLOCK, NoJSON, Refused, ServerFailed, Session, is_number, request
from envs.refusal import Refusal

# number of tasks of AgentGym's servers, 0 for no end; babyai's has no end either
TASKS = {"webshop": 6910, "alfworld": 2620, "babyai": 40_000, "sciworld": 4639, "textcraft": 544}
TASKS |= {"tau_retail": 0, "planner": 0}
# Kinds that only our servers play. The client sends the whole reply; the first observation is the whole last message of
# the opening, and steps also return `info`.
OURS = ("tau_retail", "planner")
ONE_TURN = ("planner",)  # environments without max_turns
KINDS = tuple(TASKS)

# environment -> options in which AgentGym's server differs from ours in process: its alfworld is 0.3.3
USUAL = {"alfworld": {"dialect": "0.3"}}

GREETING = {
    "webshop": "ok",
    "alfworld": "This is environment AlfWorld.",
    "babyai": "This is environment BabyAI.",
    "sciworld": "This is environment ScienceWorld.",
    "textcraft": "This is environment TextCraft.",
    "tau_retail": "This is environment TauRetail.",
    "planner": "This is environment Planner.",
}
SHORT = " prompt=short"  # the end of our server's greeting if it serves the short prompt

ID = {"webshop": "env_idx"}  # the field of a session's name in requests; default "id"
NUMBER = {"webshop": "session_id", "alfworld": "game"}  # the field of a task number; default "data_idx"
OBSERVATION = {"webshop": "state"}  # the field of an observation in replies to a step; default "observation"
SCORED = ("babyai", "sciworld")  # kinds whose replies have a score

ACTIONS = "\nAVAILABLE ACTIONS: "  # the start of the list at the end of alfworld's first observation
REFUSED = {
    "alfworld": r"Nothing happens\.",
    "babyai": r"The action is not recognized|No change in state|There is a barrier|You cannot (?!see)",
    "sciworld": r"No known action|Unknown action|Ambiguous request|It'?s not clear|I'm not sure|You can't|You must |"
    r"That (can't|thing|container)|Something can't|There is only|Mixing |Connections must |"
    r".{1,99} is already connected|"
    r"The .{1,99}? (is (not|already) |isn't open, so|appears broken|can't be poured|does not contain)",
    "textcraft": r"Could not |Wrong item format",
}
MAX_METRICS = 50  # most measurements in a step's `info`
MAX_TEXT = 100_000  # most characters of an action sent to webshop, which has no MAX_ACTION


@dataclass
class Server:
    """This process's state of a server."""

    open: set[int] = field(default_factory=set)  # created sessions
    idle: list[int] = field(default_factory=list)  # created sessions without an episode
    tasks: int | None = None  # number of its tasks, None until requested; 0: no end
    failing: bool = False  # whether the last request failed
    breaks: int = 0  # lost connections: after each, the server may have restarted and reused the names of sessions


SERVERS: dict[tuple[str, str], Server] = defaultdict(Server)  # (url, kind) -> Server


class Client(Session):
    """A session of a server, for one episode after another."""

    def __init__(self, config):
        super().__init__(config, SERVERS)

    @property
    def turns(self) -> int:
        """The turn limit, counted by the client."""
        return self.config.max_turns or (1 if self.kind in ONE_TURN else envs.config_class(self.kind).max_turns)

    def alone(self):
        """Return the lock of a request: none, since no other client uses this session."""
        return nullcontext()

    def standing(self) -> bool:
        """Return whether the session may still be in the agent's state."""
        return self.session is not None and self.breaks == self.server.breaks

    def leave(self) -> None:
        """End the episode and release its session for another one."""
        if self.standing():
            self.server.idle.append(self.session)
        self.session = None

    def tasks(self) -> int:
        """Return the number of the server's tasks; 0: no end."""
        if self.config.tasks:
            return self.config.tasks
        if self.server.tasks is None:
            try:
                tasks = self._request("tasks")
            except ServerFailed:  # the server has no /tasks
                tasks = TASKS[self.kind]
            if type(tasks) is not int or 0 != tasks < 10 * BLOCK.get(self.kind, 1):
                raise Lost(f"/tasks answered {short(tasks)} instead of a number")
            self.server.tasks = tasks
        return self.server.tasks

    def reset(self, number: int) -> list[dict]:
        """Start a task in an idle or new session. Return the messages up to the agent's first turn."""
        while True:
            self.breaks, idle = self.server.breaks, self.server.idle
            try:
                self.session, fresh = idle.pop(), False
            except IndexError:
                self.session, fresh = self._create(), True
            try:
                self.page = self._reset(number)
                break
            except Refused:
                if fresh:
                    raise
        *before, line = _prompt(self.kind, self.config.prompt)
        line = "" if self.kind in OURS else line
        return [*map(dict, before), {"role": "user", "content": line + self.page}]

    def act(self, text: str, last: bool) -> Step:
        """Send the agent's reply. Return the step, truncated if this is the `last` turn."""
        action = action_of(self.kind, text, self.config.prompt)
        if action is None:
            return Step(common.SEVERAL, 0.0, False, last, common.step_info(False, False, last, False, 0.0))
        reply = self._step(action)
        observation = self._said(reply)
        done = reply["done"] or (self.kind == "babyai" and reply["reward"] > 0)
        if self.kind in OURS:
            info = {name: value for name, value in reply["info"].items() if name in INFO}
        else:
            success = done and self._solved(reply)
            info = {"success": success, "valid": not self._refused(action, observation), "shaped": float(success)}
        self.page = observation
        cut = last and not done
        outcome = common.outcome(info["success"], done, cut)
        return Step(observation, float(reply["reward"]), done, cut, info | {"outcome": outcome})

    def _greet(self) -> None:
        """Raise ValueError if the server's greeting names another environment or prompt."""
        try:
            said = self._request("")
        except (ServerFailed, NoJSON):  # the server has no greeting
            return
        for kind, greeting in GREETING.items():
            if said in (greeting, greeting + SHORT) and kind != self.kind:
                raise Refusal(f"{self.config.address} serves {kind}, but http.kind={self.kind}")
        served = "short" if said == GREETING[self.kind] + SHORT else "native"
        wanted = "short" if self.config.prompt == "short" else "native"
        if served != wanted and (served == "short" or self.kind in OURS):  # else perhaps AgentGym's
            asked = f"http.prompt={self.config.prompt}"
            raise Refusal(f"{self.config.address} serves {self.kind}.prompt={served}, but {asked}")

    def _create(self) -> int:
        """Return a new session."""
        self._greet()
        reply = self._request("create", {})
        session = reply if self.kind == "webshop" else reply.get("id") if isinstance(reply, dict) else None
        if type(session) is not int:
            raise Lost(f"/create answered {short(reply)} instead of a session")
        self.server.open.add(session)
        return session

    def _reset(self, number: int) -> str:
        """Start a task. Return the first observation."""
        more = {"world_type": "Text"} if self.kind == "alfworld" else {}
        reply = self._request("reset", self._named() | {NUMBER.get(self.kind, "data_idx"): number} | more)
        if self.kind == "webshop":
            said = reply[:1] if isinstance(reply, list) else []
        else:
            said = [reply.get("observation")] if isinstance(reply, dict) else []
            if self.kind == "sciworld":
                said.insert(0, reply.get("task_description") if said else None)
        if not said or not all(isinstance(text, str) for text in said):
            raise Lost(f"/reset answered {short(reply)} instead of an observation")
        opening = "\n".join(filter(None, said))
        if self.kind == "alfworld":
            actions = reply.get("available_actions")
            if not isinstance(actions, list):
                raise Lost(f"/reset answered {short(reply)}, where available_actions is no list")
            opening += ACTIONS + ",".join(map(str, actions)) if self.config.prompt != "short" else ""
        return opening

    def _step(self, action: str) -> dict:
        """Send an action. Return the reply, checked to have the fields of its kind."""
        reply = self._request("step", self._named() | {"action": action})
        if not isinstance(reply, dict):
            raise Lost(f"/step answered {short(reply)} instead of an object")
        names = [OBSERVATION.get(self.kind, "observation"), "reward", "done"]
        for name in names + ["score"] * (self.kind in SCORED) + ["info"] * (self.kind in OURS):
            fits, what = FIELDS[name]
            if name not in reply:
                raise Lost(f"/step answered {short(reply)}, where {name} is missing")
            if not fits(reply[name]):
                raise Lost(f"/step answered {short(reply[name])} as {name}, which must be {what}")
        return reply

    def _named(self) -> dict:
        """Return the field that names the session in a request."""
        return {ID.get(self.kind, "id"): self.session}

    def _said(self, reply: dict) -> str:
        """Return the observation in a reply."""
        return reply.get(OBSERVATION.get(self.kind, "observation"))

    def _refused(self, action: str, observation: str) -> bool:
        """Return whether an observation says that the action was not valid."""
        if self.kind == "webshop":
            verb, _, argument = action.lower().rpartition("]")[0].rpartition("[")
            known = verb == "search" or (verb == "click" and argument in self.page.lower().split(" [sep] "))
            return observation == self.page and not known
        return self.kind in REFUSED and bool(re.match(REFUSED[self.kind], observation))

    def _solved(self, reply: dict) -> bool:
        """Return whether the last reply of an episode means success."""
        if self.kind == "sciworld":
            return reply["score"] >= 100
        return reply["reward"] > 0 if self.kind == "babyai" else reply["reward"] >= 1

    def _request(self, path: str, body: dict | None = None):
        """Return the JSON of a request. Raise Lost or ServerFailed if it has none."""
        try:
            reply = request(f"{self.config.address}/{path}", body, self.config.timeout, self.cancelled)
        except ConnectionError:
            self.server.breaks += 1
            self.server.open.clear()
            self.server.idle.clear()
            raise Lost(f"/{path} got no connection, or it broke") from None
        if isinstance(reply, dict) and "error" in reply:
            raise Refused(f"/{path} answered: {short(reply['error'])}")
        return reply


def _is_info(info) -> bool:
    """Return whether this is a valid `info` of a step."""
    if not isinstance(info, dict) or not isinstance(info.get("outcome"), str) or not is_number(info.get("shaped")):
        return False
    metrics = info.get("metrics", {})
    measured = isinstance(metrics, dict) and len(metrics) <= MAX_METRICS and all(map(is_number, metrics.values()))
    named = measured and all(name == plain(name, 40) for name in metrics)
    return named and isinstance(info.get("success"), bool) and isinstance(info.get("valid"), bool)


INFO = ("success", "valid", "shaped", "metrics")  # what the client keeps of a step's `info`
FIELDS = {  # field of a reply to a step -> (check, description)
    "observation": (lambda value: isinstance(value, str), "a text"),
    "reward": (is_number, "a number from -1e15 to 1e15"),
    "done": (lambda value: isinstance(value, bool), "true or false"),
    "info": (_is_info, "an object of outcome, success, valid and shaped"),
}
FIELDS |= {"state": FIELDS["observation"], "score": FIELDS["reward"]}


def action_of(kind: str, reply: str, prompt: str = "native") -> str | None:
    """Return the action of a reply as it is sent; None if the reply has several and the kind allows one."""
    if kind in OURS:
        return reply
    module = importlib.import_module(envs.NAMES[kind])
    most = MAX_TEXT if kind == "webshop" else module.MAX_ACTION
    if prompt == "short":
        return common.first_line(reply, most)
    if kind in ("babyai", "textcraft"):
        action = common.only_action(reply, most)
        return None if action is None else common.plain_words(module.plain_action(action))
    if kind == "webshop" and "Action:" not in reply and ("search[" in reply or "click[" in reply):
        return reply.strip()[:most].rstrip()
    return common.last_action(reply, most)


def _prompt(kind: str, prompt: str) -> list:
    """Return the messages before the first observation, and the line above it (empty in the native prompt)."""
    return _opening(importlib.import_module(envs.NAMES[kind]), prompt, tuple(USUAL.get(kind, {}).items()))


@functools.cache
def _opening(module, prompt: str, options: tuple) -> list:
    *before, message = module.Env(module.Config(prompt=prompt, **dict(options))).reset(0)
    return [*before, message["content"].partition("\n")[0] + "\n" if prompt == "short" else ""]


@atexit.register
def close_sessions(seconds: float = 1.0) -> None:
    """Close all sessions of servers that can close them, within this time in all."""
    ends = time.monotonic() + seconds
    for (url, kind), server in SERVERS.items():
        server.idle.clear()
        try:
            while server.open:
                request(f"{url}/close", {ID.get(kind, "id"): server.open.pop()}, ends - time.monotonic())
        except (Lost, ServerFailed, ConnectionError, ValueError):
            server.open.clear()  # the server cannot close sessions, or is gone
