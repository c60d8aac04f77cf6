"""The client's side of AgentGym's servers, and of ours for the worlds that they do not have.

    POST /create, /reset, /step, /close; names of fields differ from kind to kind, as the tables below say
    GET /           a greeting that names the world, and prompt=short where ours serves it so: before each new session
    GET /tasks      how many tasks there are, 0 for no end: ours alone has it

A session stays open for the next episode, since AgentGym's alfworld and webshop cannot close one, and a new one of
sciworld takes long; all are closed when the process ends.
"""

import atexit
import functools
import importlib
import re
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass, field

import envs
from envs import base
from envs.base import Step
from envs.http.wire import BLOCK, Lost, NoJSON, Refused, ServerFailed, is_number, request, short

# how many tasks AgentGym's servers have, 0 for no end; babyai's have none either
TASKS = {"webshop": 6910, "alfworld": 2620, "babyai": 40_000, "sciworld": 4639, "textcraft": 544}
TASKS |= {"tau_retail": 0, "planner": 0}
OURS = ("tau_retail", "planner")  # no server of AgentGym's plays them; what is sent is the whole reply, and what comes
# back at first the whole last message of the opening, then `info` too
KINDS = tuple(TASKS)

GREETING = {
    "webshop": "ok",
    "alfworld": "This is environment AlfWorld.",
    "babyai": "This is environment BabyAI.",
    "sciworld": "This is environment ScienceWorld.",
    "textcraft": "This is environment TextCraft.",
    "tau_retail": "This is environment TauRetail.",
    "planner": "This is environment Planner.",
}
SHORT = " prompt=short"  # ends the greeting of ours, if it serves a world so

ID = {"webshop": "env_idx"}  # a session's name in requests; "id" elsewhere
NUMBER = {"webshop": "session_id", "alfworld": "game"}  # a task number's; "data_idx" elsewhere
OBSERVATION = {"webshop": "state"}  # an observation's, in replies to a step; "observation" elsewhere
SCORED = ("babyai", "sciworld")  # whose replies have a score

ACTIONS = "\nAVAILABLE ACTIONS: "  # ends alfworld's first observation
SEVERAL = "Error: Only one 'Action' is allowed per response. Please adjust your response."
REFUSED = {
    "alfworld": r"Nothing happens\.",
    "babyai": r"The action is not recognized|No change in state|There is a barrier|You cannot (?!see)",
    "sciworld": r"No known action|Unknown action|Ambiguous request|It'?s not clear|I'm not sure|You can't|You must |"
    r"That (can't|thing|container)|Something can't|There is only|Mixing |Connections must |"
    r".{1,99} is already connected|"
    r"The .{1,99}? (is (not|already) |isn't open, so|appears broken|can't be poured|does not contain)",
    "textcraft": r"Could not |Wrong item format",
}
MAX_TEXT = 100_000  # characters of an action that are sent to a world that does not say how many it reads


@dataclass
class Server:
    """What this process knows of a server."""

    open: set[int] = field(default_factory=set)  # sessions that were created
    idle: list[int] = field(default_factory=list)  # those of them without an episode
    tasks: int | None = None  # how many it has, once it was asked; 0: no end
    failing: bool = False  # whether the last request found no answer
    breaks: int = 0  # times that it hung up: after each it may be another one, with other sessions of the same names


SERVERS: dict[tuple[str, str], Server] = defaultdict(Server)  # (url, kind) -> Server


class Client:
    """A session of a server, for one episode after the other."""

    session = None

    def __init__(self, config):
        self.config, self.kind = config, config.kind
        self.server = SERVERS[config.address, config.kind]

    @property
    def turns(self) -> int:
        """How many the agent has: they are counted on this side."""
        return self.config.max_turns or getattr(envs.config_class(self.kind), "max_turns", 1)

    def alone(self):
        """What a request has to hold: nothing, for a session is this client's alone."""
        return nullcontext()

    def standing(self) -> bool:
        """Whether the session can still be where the agent is."""
        return self.session is not None and self.breaks == self.server.breaks

    def drop(self) -> None:
        """The session is where it should not be, or gone."""
        self.session = None

    def leave(self) -> None:
        """The episode is over: another one may have its session."""
        if self.standing():
            self.server.idle.append(self.session)
        self.session = None

    def tasks(self) -> int:
        """How many tasks the server has; 0: no end."""
        if self.config.tasks:
            return self.config.tasks
        if self.server.tasks is None:
            try:
                tasks = self._request("tasks")
            except ServerFailed:  # there is no /tasks
                tasks = TASKS[self.kind]
            if type(tasks) is not int or 0 != tasks < 10 * BLOCK.get(self.kind, 1):
                raise Lost(f"/tasks answered {short(tasks)} instead of a number")
            self.server.tasks = tasks
        return self.server.tasks

    def reset(self, number: int) -> list[dict]:
        """Start a task in an idle session or a new one: the messages up to the agent's first turn."""
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
        *before, line = _prompt(importlib.import_module(envs.NAMES[self.kind]), self.config.prompt)
        line = "" if self.kind in OURS else line
        return [*map(dict, before), {"role": "user", "content": line + self.page}]

    def act(self, text: str, last: bool) -> Step:
        """The answer to the agent's reply, which is its last one if so said."""
        action = action_of(self.kind, text, self.config.prompt)
        if action is None:
            info = {"outcome": base.outcome(False, False, last), "success": False, "valid": False, "shaped": 0.0}
            return Step(SEVERAL, 0.0, False, last, info)
        reply = self._step(action)
        observation, done = self._said(reply), reply["done"]
        if self.kind in OURS:
            info = reply["info"]
        else:
            success = done and self._solved(reply)
            info = {"success": success, "valid": not self._refused(action, observation), "shaped": float(success)}
        self.page = observation
        cut = last and not done
        outcome = base.outcome(info["success"], done, cut)
        return Step(observation, float(reply["reward"]), done, cut, info | {"outcome": outcome})

    def _greet(self) -> None:
        """Raises ValueError if the server says that it plays another world, or with a prompt that is not asked for."""
        try:
            said = self._request("")
        except (ServerFailed, NoJSON):  # there is no greeting
            return
        for kind, greeting in GREETING.items():
            if said in (greeting, greeting + SHORT) and kind != self.kind:
                raise ValueError(f"{self.config.address} serves {kind}, and http.kind={self.kind} is asked for")
        served = "short" if said == GREETING[self.kind] + SHORT else "native"
        if served != self.config.prompt and (served == "short" or self.kind in OURS):  # else it may be AgentGym's
            asked = f"http.prompt={self.config.prompt} is asked for"
            raise ValueError(f"{self.config.address} serves {self.kind}.prompt={served}, and {asked}")

    def _create(self) -> int:
        self._greet()
        reply = self._request("create", {})
        session = reply if self.kind == "webshop" else reply.get("id") if isinstance(reply, dict) else None
        if type(session) is not int:
            raise Lost(f"/create answered {short(reply)} instead of a session")
        self.server.open.add(session)
        return session

    def _reset(self, number: int) -> str:
        world = {"world_type": "Text"} if self.kind == "alfworld" else {}
        reply = self._request("reset", self._named() | {NUMBER.get(self.kind, "data_idx"): number} | world)
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
            opening += ACTIONS + ",".join(map(str, actions)) if self.config.prompt == "native" else ""
        return opening

    def _step(self, action: str) -> dict:
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
        return {ID.get(self.kind, "id"): self.session}

    def _said(self, reply: dict) -> str:
        return reply.get(OBSERVATION.get(self.kind, "observation"))

    def _refused(self, action: str, observation: str) -> bool:
        if self.kind == "webshop":
            verb, _, argument = action.lower().rpartition("]")[0].rpartition("[")
            known = verb == "search" or (verb == "click" and argument in self.page.lower().split(" [sep] "))
            return observation == self.page and not known
        return self.kind in REFUSED and bool(re.match(REFUSED[self.kind], observation))

    def _solved(self, reply: dict) -> bool:
        if self.kind == "sciworld":
            return reply["score"] >= 100
        return reply["reward"] > 0 if self.kind == "babyai" else reply["reward"] >= 1

    def _request(self, path: str, body: dict | None = None):
        try:
            reply = request(f"{self.config.address}/{path}", body, self.config.timeout)
        except ConnectionError:
            self.server.breaks += 1
            self.server.open.clear()
            self.server.idle.clear()
            raise Lost(f"/{path} got no connection, or it broke") from None
        if isinstance(reply, dict) and "error" in reply:
            raise Refused(f"/{path} answered: {short(reply['error'])}")
        return reply


def _is_info(info) -> bool:
    """Whether this says of a step what every world does."""
    good = isinstance(info, dict) and isinstance(info.get("outcome"), str) and is_number(info.get("shaped"))
    return good and isinstance(info.get("success"), bool) and isinstance(info.get("valid"), bool)


FIELDS = {  # of replies to a step: what they must be
    "observation": (lambda value: isinstance(value, str), "a text"),
    "reward": (is_number, "a finite number"),
    "done": (lambda value: isinstance(value, bool), "true or false"),
    "info": (_is_info, "an object of outcome, success, valid and shaped"),
}
FIELDS |= {"state": FIELDS["observation"], "score": FIELDS["reward"]}


def action_of(kind: str, reply: str, prompt: str = "native") -> str | None:
    """The action that a reply's text holds, as it is sent; None if it holds several where only one is allowed."""
    if kind in OURS:
        return reply
    world = importlib.import_module(envs.NAMES[kind])
    most = getattr(world, "MAX_ACTION", MAX_TEXT)
    if prompt == "short":
        return reply.strip().partition("\n")[0][:most].rstrip()
    if kind in ("babyai", "textcraft"):
        actions = re.findall(r"Action:\s*([^\n]*)", reply)
        if len(actions) > 1:
            return None
        action = actions[0][:most].rstrip() if actions else ""
        plain = getattr(world, "_plain", str)  # reads brackets, which go with what is no letter
        return " ".join(re.sub(r"[^A-Za-z0-9, ]", "", plain(action)).split())
    _, marker, action = reply.rpartition("Action:")
    if not marker and not (kind == "webshop" and ("search[" in reply or "click[" in reply)):
        action = ""
    return action.strip()[:most].rstrip()


@functools.cache
def _prompt(world, prompt: str) -> list:
    """What a world says before an observation: messages, and the line above it if the prompt is short."""
    *before, message = world.Env(world.Config(prompt=prompt)).reset(0)
    return [*before, message["content"].partition("\n")[0] + "\n" if prompt == "short" else ""]


@atexit.register
def close_sessions() -> None:
    """Close all sessions, where the server can."""
    for (url, kind), server in SERVERS.items():
        server.idle.clear()
        try:
            while server.open:
                request(f"{url}/close", {ID.get(kind, "id"): server.open.pop()}, timeout=1)
        except (Lost, ServerFailed, ConnectionError):
            server.open.clear()  # it cannot, or it is gone
