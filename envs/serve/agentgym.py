"""Serve environments in AgentGym's protocol, including some that AgentGym does not have.

A task number (data_idx; webshop: session_id, alfworld: game) maps to a seed and a split: see envs/http. The client
counts turns: here max_turns only affects which tasks an environment draws.

Requests and replies are those of AgentGym's servers: errors of an environment or a session have status 200 and
{"error": text}, invalid requests 4xx and {"detail": text}. The differences:
- Every kind has POST /close, alfworld and webshop too. There are no images: babyai's /render is an error.
- A finished episode of any kind accepts no more steps; /reset starts the next one.
- The names of sessions start at a random number, so that a restart does not reuse old names.
- GET /tasks, which AgentGym's servers do not have, returns 0: task numbers have no end. GET / ends with prompt=short if
  the environment is served so.
- /create of textcraft accepts commands and goal and ignores them, as in the original.
- sciworld's hints, goals and object tree are empty, its variations are 0, and tasks have our names.
- tau_retail and planner, which AgentGym does not have, answer as textcraft does, without /commands and /goal. `action`
  is the agent's whole reply, an episode's first observation is the whole last message of its opening, and `info` is
  returned too. There is no model: options that need one are refused at the start.

Besides the interface in envs/base.py it uses alfworld's `admissible()` and webshop's `clickables()`, the possible
actions. A score is the sum of the rewards, unless the environment's steps have info["score"].
"""

import random
import threading
import time
from collections import OrderedDict
from dataclasses import replace

import envs
from envs.http.agentgym import ACTIONS, GREETING, ID, NUMBER, ONE_TURN, OURS, SHORT
from envs.http.exchange import plain
from envs.http.wire import seed_of
from envs.refusal import Refusal
from envs.serve import described, report
from envs.serve.access import BadRequest

BEGUN = ("webshop", "textcraft", *OURS)  # kinds whose sessions start with an episode and can be read after its end
NO_LIMIT = 10**9  # turns


class Session:
    """An environment and its last step. Its lock admits one request at a time."""

    def __init__(self, name: int, kind: str, options: dict, client: str = ""):
        self.name, self.kind, self.client = name, kind, client
        self.env = envs.make(kind, **options)
        self.drawing = self.playing = self.env.config
        if kind not in ONE_TURN:  # the turn limit may affect the task drawn, but the client counts the turns
            self.playing = replace(self.drawing, max_turns=NO_LIMIT)
        self.lock, self.used = threading.Lock(), time.monotonic()
        self.number, self.description, self.opening, self.observation = None, "", "", ""
        self.reward, self.score, self.done, self.info = 0, 0, False, {}

    def reset(self, number: int) -> None:
        """Start a task's episode. Keep only the observation; the client adds the prompt around it."""
        self.env.config = self.drawing
        text = self.env.reset(*seed_of(self.kind, number))[-1]["content"]
        self.env.config = self.playing
        if self._short() and self.kind not in OURS:
            text = text.partition("\n")[2]
        if self.kind == "alfworld":
            text = text.partition(ACTIONS)[0]
        if self.kind == "sciworld":
            self.description, _, text = text.partition("\n")
        self.number, self.opening, self.observation = number, text, text
        self.reward, self.score, self.done, self.info = 0, 0, False, {}

    def step(self, action: str) -> None:
        """Execute an action and store the step's parts."""
        whole = self._short() or self.kind in OURS
        step = self.env.step(action if whole else f"Action:\n{action}")
        self.observation, self.reward, self.info = step.observation, step.reward, step.info
        self.score = step.info.get("score", self.score + step.reward)
        self.done = step.terminated or step.truncated

    def actions(self) -> list[str]:
        """Return the possible actions, for alfworld and webshop."""
        if self.number is None:
            return []
        return self.env.clickables() if self.kind == "webshop" else self.env.admissible()

    def said(self, *names: str) -> dict:
        """Return some of the stored parts by name."""
        return {name: getattr(self, name) for name in names}

    def _short(self) -> bool:
        return self.env.config.prompt == "short"


class Sessions:
    """The sessions of a server: at most `limit`, and `share` of one client's address.

    A session is closed after `idle` seconds without a request.
    """

    def __init__(self, kind: str, options: dict, limit: int = 256, idle: float = 600, share: int | None = None):
        self.kind, self.options, self.limit, self.idle = kind, options, limit, idle
        self.share = share or limit
        self.open: OrderedDict[int, Session] = OrderedDict()  # the longest idle one first
        self.lock = threading.Lock()
        self.next = random.randrange(2**40)

    def create(self, client: str = "") -> Session:
        """Return a new session of the client with this address."""
        with self.lock:
            self._expire()
            if len(self.open) >= self.limit:
                raise Refusal(f"all {self.limit} sessions are open: close one")
            if sum(session.client == client for session in self.open.values()) >= self.share:
                raise Refusal(f"{self.share} sessions are open, the most of one client: close one")
            session = Session(self.next, self.kind, self.options, client)
            self.open[self.next] = session
            self.next += 1
        return session

    def get(self, name: int) -> Session:
        with self.lock:
            self._expire()
            if name not in self.open:
                raise Refusal(f"The id {name} is not valid.")
            self.open.move_to_end(name)
            self.open[name].used = time.monotonic()
            return self.open[name]

    def close(self, name: int) -> bool:
        with self.lock:
            return self.open.pop(name, None) is not None

    def _expire(self) -> None:
        while self.open and time.monotonic() - next(iter(self.open.values())).used > self.idle:
            self.open.popitem(last=False)


def answer(sessions: Sessions, method: str, path: str, body: dict, client: str = ""):
    """Return the answer to a request, errors included. Raise BadRequest."""
    try:
        return reply(sessions, method, path, body, client)
    except BadRequest:
        raise
    except (ValueError, RuntimeError) as error:
        return {"error": plain(str(error))}
    except Exception as error:  # a bug in an environment, reported to the client like other errors
        report(error)
        return {"error": described(error)}


def reply(sessions: Sessions, method: str, path: str, body: dict, client: str):
    """Return the answer to a request. Raise BadRequest, and any error of an environment or a session."""
    kind = sessions.kind
    if (method, path) == ("GET", "/"):
        return GREETING[kind] + SHORT * (sessions.options.get("prompt") == "short")
    if (method, path) == ("GET", "/tasks"):
        return 0
    if (method, path, kind) == ("GET", "/list_envs", "webshop"):
        return list(sessions.open)
    if (method, path, kind) == ("POST", "/render", "babyai"):
        raise Refusal("this server renders no images")
    if (method, path) == ("POST", "/create"):
        return create(sessions, client)
    if method == "POST" and path in POSTS:
        return POSTS[path](sessions, body)
    if method == "GET" and path in VIEWS[kind]:
        session = sessions.get(_field(body, ID.get(kind, "id"), int))
        with session.lock:
            if session.done and kind not in BEGUN:
                raise Refusal(f"The task with environment {session.name} has finished.")
            return VIEWS[kind][path](session)
    if path in ("/", "/tasks", "/create", *POSTS, *VIEWS[kind]):
        raise BadRequest(405, "Method Not Allowed")
    raise BadRequest(404, "Not Found")


def create(sessions: Sessions, client: str):
    session = sessions.create(client)
    if sessions.kind in BEGUN:
        with session.lock:
            session.reset(session.name)
    if sessions.kind == "webshop":
        return session.name
    return {"id": session.name} | (session.said("observation", "done", "reward") if session.observation else {})


def reset(sessions: Sessions, body: dict):
    kind = sessions.kind
    name, number = _field(body, ID.get(kind, "id"), int), _field(body, NUMBER.get(kind, "data_idx"), int)
    if kind == "alfworld" and _field(body, "world_type", str) not in ("Text", "Embody", "Hybrid"):
        raise Refusal('world_type must be one of "Text", "Embody" and "Hybrid"')
    session = sessions.get(name)
    with session.lock:
        session.reset(number)
        if kind == "webshop":
            return [session.observation, None]
        if kind == "alfworld":
            named = {"id": name, "observation": session.observation}
            return named | {"available_actions": session.actions(), "task_type": _name(session)}
        if kind in BEGUN:
            return {"id": name} | session.said("observation", "done", "reward")
        return _task(session) | session.said("observation", "reward", "score") | {"deleted": False, "done": False}


def step(sessions: Sessions, body: dict):
    kind = sessions.kind
    name, action = _field(body, ID.get(kind, "id"), int), _field(body, "action", str)
    session = sessions.get(name)
    with session.lock:
        if session.done:
            raise Refusal(f"The task with environment {name} has finished.")
        session.step(action)
        if kind == "webshop":
            return {"state": session.observation} | session.said("reward", "done") | {"info": None}
        said = session.said("observation", "reward")
        if kind == "alfworld":
            said["available_actions"] = session.actions()
        if kind in ("babyai", "sciworld"):
            said["score"] = session.score
        if kind in OURS:
            said["info"] = session.info
        return said | {"done": session.done}


def close(sessions: Sessions, body: dict):
    closed = sessions.close(_field(body, ID.get(sessions.kind, "id"), int))
    return {"closed": closed} if sessions.kind == "webshop" else closed


def detail(session: Session) -> dict:
    """Return AgentGym's record of a session."""
    said = session.said("observation", "done", "reward") | {"deleted": False}
    if session.kind == "alfworld":
        said |= {"world_type": "Text", "game": session.number, "available_actions": session.actions()}
    return said | ({"score": session.score} | _task(session) if session.kind == "sciworld" else {})


def state(session: Session) -> dict:
    """Return sciworld's full state."""
    return {
        "observation": session.observation,
        "inventory": "",
        "task_description": session.description,
        "goal_progress": "",
        "possible_actions": [],
        "possible_objects": [],
        "current_moves": 0 if session.number is None else session.env.turns,
        "environment_info": detail(session),
    }


def _task(session: Session) -> dict:
    """Return sciworld's fields of a task."""
    if session.kind != "sciworld" or session.number is None:
        return {}
    return {"task_name": _name(session), "var_num": 0, "task_description": session.description}


def _name(session: Session) -> str:
    """Return a task's canonical name without the environment's name."""
    return session.env.task.partition(":")[2]


def _field(body: dict, name: str, kind: type):
    """Return a field of a request; a task number may be missing, as in some of the originals."""
    value = body.get(name)
    if value is None and name in ("data_idx", "session_id"):
        return 0
    if type(value) is not kind:
        raise BadRequest(422, f"{name} must be {'a whole number' if kind is int else 'a string'}")
    return value


def _crafting(session: Session) -> tuple[str, str]:
    """Return textcraft's commands and goal from its first observation."""
    commands, _, goal = session.opening.removeprefix("Crafting commands:\n").partition("\n\nGoal: craft ")
    return commands, goal.removesuffix(".")


def _seen(session: Session) -> dict:
    """Return babyai's current observation."""
    return session.said("observation", "reward", "score", "done") | {"deleted": False}


def _instruction(session: Session) -> str:
    """Return webshop's goal from its first page."""
    return "Instruction: " + session.opening.partition("Instruction: [SEP] ")[2].rpartition(" [SEP] ")[0]


POSTS = {"/reset": reset, "/step": step, "/close": close}
SAID = {"/observation": lambda s: s.observation}
VIEWS = {
    "webshop": SAID
    | {
        "/available_actions": lambda s: {"has_search_bar": "search" in s.actions(), "clickables": s.actions()},
        "/instruction_text": _instruction,
        "/state": lambda s: {"url": "", "html": s.observation, "instruction_text": _instruction(s)},
    },
    "alfworld": SAID | {"/available_actions": Session.actions, "/detail": detail},
    "babyai": {"/observation": _seen},
    "sciworld": SAID
    | {
        "/action_hint": lambda s: {"possible_actions": [], "possible_objects": []},
        "/goals": lambda s: {"goals": ""},
        "/detail": detail,
        "/task_description": lambda s: {"task_description": s.description},
        "/object_tree": lambda s: {"object_tree": None},
        "/state": state,
    },
    "textcraft": SAID | {"/commands": lambda s: _crafting(s)[0], "/goal": lambda s: _crafting(s)[1], "/detail": detail},
    "tau_retail": SAID | {"/detail": detail},
    "planner": SAID | {"/detail": detail},
}
