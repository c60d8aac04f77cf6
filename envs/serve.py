"""Serve a world over HTTP as AgentGym's server for it does, for `env=http` or for AgentGym's own clients.

    python -m envs.serve                                            textcraft on port 36001
    python -m envs.serve env=alfworld port=36002 alfworld.difficulty=1,2

Keys; those of the world itself stand behind its name, textcraft.difficulty=1:
    env=textcraft     the world: webshop, alfworld, babyai, sciworld or textcraft
    host=127.0.0.1    the address to listen on; this one is reached from this machine only
    port=36001        the port to listen on; 0 takes a free one
    sessions=256      how many may be open at once; a /create beyond them is answered with an error
    idle=600          seconds without a request after which a session is closed

A task number (data_idx; webshop: session_id, alfworld: game) stands for a seed and a split, as envs/http.py says. Turns
are the client's to count: here the max_turns of a world has a say in what tasks it draws, and nothing else.

Requests and replies are those of AgentGym's servers: what a world or a session cannot do is answered with status 200
and {"error": text}, what is no request with 4xx and {"detail": text}. With these differences:
- Every kind has POST /close, alfworld and webshop too. Nothing is drawn: babyai's /render is an error.
- After its end an episode of any kind takes no more steps; /reset starts the next one.
- The names of sessions begin anywhere, so that after a restart none means another session than before.
- GET /tasks, which AgentGym's servers do not have, gives 0: task numbers have no end.
- /create of textcraft reads commands and goal, and as in the original they change nothing.
- sciworld's hints, goals and object tree are empty, its variations are 0, and tasks have our names.

Of a world it asks what envs/base.py does; of alfworld `admissible()` too, and of webshop `clickables()`: what the agent
may do now. A score is the sum of the rewards, unless the world's steps have info["score"].
"""

import json
import random
import signal
import sys
import threading
import time
import traceback
from collections import OrderedDict
from dataclasses import fields
from difflib import get_close_matches
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl

import envs
from envs.__main__ import options_help
from envs.http import ACTIONS, ID, NUMBER, TASKS, seed_of

KEYS = {"env": "textcraft", "host": "127.0.0.1", "port": 36001, "sessions": 256, "idle": 600}
GREETING = {"alfworld": "AlfWorld", "babyai": "BabyAI", "sciworld": "ScienceWorld", "textcraft": "TextCraft"}
NO_LIMIT = 10**9  # turns
MAX_BODY = 4 << 20  # bytes of a request
CONNECTIONS = 64  # requests that are read or answered at once; others wait


class BadRequest(Exception):
    """What is no request of the protocol: a status and a line."""


class Session:
    """A world, and what it said last. Its lock lets in one request at a time."""

    def __init__(self, name: int, kind: str, options: dict):
        self.name, self.kind = name, kind
        self.world = envs.make(kind, **options)
        self.max_turns = self.world.config.max_turns
        self.lock, self.used = threading.Lock(), time.monotonic()
        self.number, self.description, self.opening, self.observation = None, "", "", ""
        self.reward, self.score, self.done = 0, 0, False

    def reset(self, number: int) -> None:
        """Start a task's episode. What belongs to the prompt and not to the observation is the client's to put back."""
        self.world.config.max_turns = self.max_turns  # which tasks a world draws may hang on it,
        text = self.world.reset(*seed_of(self.kind, number))[-1]["content"]
        self.world.config.max_turns = NO_LIMIT  # but turns are the client's to count
        if self._short():
            text = text.partition("\n")[2]
        if self.kind == "alfworld":
            text = text.partition(ACTIONS)[0]
        if self.kind == "sciworld":
            self.description, _, text = text.partition("\n")
        self.number, self.opening, self.observation = number, text, text
        self.reward, self.score, self.done = 0, 0, False

    def step(self, action: str) -> None:
        step = self.world.step(action if self._short() else f"Action:\n{action}")
        self.observation, self.reward = step.observation, step.reward
        self.score = step.info.get("score", self.score + step.reward)
        self.done = step.terminated or step.truncated

    def actions(self) -> list[str]:
        """What the agent may do now, where AgentGym's server says it."""
        if self.number is None:
            return []
        return self.world.clickables() if self.kind == "webshop" else self.world.admissible()

    def said(self, *names: str) -> dict:
        return {name: getattr(self, name) for name in names}

    def _short(self) -> bool:
        return self.world.config.prompt == "short"


class Sessions:
    """The sessions of a server: at most `limit`, and none that was idle for more than `idle` seconds."""

    def __init__(self, kind: str, options: dict, limit: int = 256, idle: float = 600):
        self.kind, self.options, self.limit, self.idle = kind, options, limit, idle
        self.open: OrderedDict[int, Session] = OrderedDict()  # the longest idle one first
        self.lock = threading.Lock()
        self.next = random.randrange(2**40)

    def create(self) -> Session:
        with self.lock:
            self._expire()
            if len(self.open) >= self.limit:
                raise ValueError(f"{self.limit} sessions are open, and no more may be: close one")
            session = Session(self.next, self.kind, self.options)
            self.open[self.next] = session
            self.next += 1
        return session

    def get(self, name: int) -> Session:
        with self.lock:
            self._expire()
            if name not in self.open:
                raise ValueError(f"The id {name} is not valid.")
            self.open.move_to_end(name)
            self.open[name].used = time.monotonic()
            return self.open[name]

    def close(self, name: int) -> bool:
        with self.lock:
            return self.open.pop(name, None) is not None

    def _expire(self) -> None:
        while self.open and time.monotonic() - next(iter(self.open.values())).used > self.idle:
            self.open.popitem(last=False)


def reply(sessions: Sessions, method: str, path: str, body: dict):
    """What a request is answered with. Raises BadRequest, and whatever a world or a session raises."""
    kind = sessions.kind
    if (method, path) == ("GET", "/"):
        return f"This is environment {GREETING[kind]}." if kind in GREETING else "ok"
    if (method, path) == ("GET", "/tasks"):
        return 0
    if (method, path, kind) == ("GET", "/list_envs", "webshop"):
        return list(sessions.open)
    if (method, path, kind) == ("POST", "/render", "babyai"):
        raise ValueError("this server draws nothing")
    if method == "POST" and path in POSTS:
        return POSTS[path](sessions, body)
    if method == "GET" and path in VIEWS[kind]:
        session = sessions.get(_field(body, ID.get(kind, "id"), int))
        with session.lock:
            if session.done and kind not in ("textcraft", "webshop"):
                raise ValueError(f"The task with environment {session.name} has finished.")
            return VIEWS[kind][path](session)
    if path in POSTS or path in VIEWS[kind]:
        raise BadRequest(405, "Method Not Allowed")
    raise BadRequest(404, "Not Found")


def create(sessions: Sessions, body: dict):
    session = sessions.create()
    if sessions.kind in ("textcraft", "webshop"):  # whose sessions begin with an episode
        with session.lock:
            session.reset(session.name)
    if sessions.kind == "webshop":
        return session.name
    return {"id": session.name} | (session.said("observation", "done", "reward") if session.observation else {})


def reset(sessions: Sessions, body: dict):
    kind = sessions.kind
    name, number = _field(body, ID.get(kind, "id"), int), _field(body, NUMBER.get(kind, "data_idx"), int)
    if kind == "alfworld" and _field(body, "world_type", str) not in ("Text", "Embody", "Hybrid"):
        raise ValueError('world_type must be one of "Text", "Embody" and "Hybrid"')
    session = sessions.get(name)
    with session.lock:
        session.reset(number)
        if kind == "webshop":
            return [session.observation, None]
        if kind == "alfworld":
            named = {"id": name, "observation": session.observation}
            return named | {"available_actions": session.actions(), "task_type": _name(session)}
        if kind == "textcraft":
            return {"id": name} | session.said("observation", "done", "reward")
        return _task(session) | session.said("observation", "reward", "score") | {"deleted": False, "done": False}


def step(sessions: Sessions, body: dict):
    kind = sessions.kind
    name, action = _field(body, ID.get(kind, "id"), int), _field(body, "action", str)
    session = sessions.get(name)
    with session.lock:
        if session.done:
            raise ValueError(f"The task with environment {name} has finished.")
        session.step(action)
        if kind == "webshop":
            return {"state": session.observation} | session.said("reward", "done") | {"info": None}
        said = session.said("observation", "reward")
        if kind == "alfworld":
            said["available_actions"] = session.actions()
        if kind in ("babyai", "sciworld"):
            said["score"] = session.score
        return said | {"done": session.done}


def close(sessions: Sessions, body: dict):
    closed = sessions.close(_field(body, ID.get(sessions.kind, "id"), int))
    return {"closed": closed} if sessions.kind == "webshop" else closed


def detail(session: Session) -> dict:
    """What AgentGym's servers keep of a session."""
    said = session.said("observation", "done", "reward") | {"deleted": False}
    if session.kind == "alfworld":
        said |= {"world_type": "Text", "game": session.number, "available_actions": session.actions()}
    return said | ({"score": session.score} | _task(session) if session.kind == "sciworld" else {})


def state(session: Session) -> dict:
    """sciworld's view of everything."""
    return {
        "observation": session.observation,
        "inventory": "",
        "task_description": session.description,
        "goal_progress": "",
        "possible_actions": [],
        "possible_objects": [],
        "current_moves": session.world.turns,
        "environment_info": detail(session),
    }


def _task(session: Session) -> dict:
    """How sciworld names a task."""
    if session.kind != "sciworld" or session.number is None:
        return {}
    return {"task_name": _name(session), "var_num": 0, "task_description": session.description}


def _name(session: Session) -> str:
    """A task's canonical name, without that of the world."""
    return session.world.task.partition(":")[2]


def _field(body: dict, name: str, kind: type):
    """A field of a request; numbers of tasks may be left out, as some of the originals allow."""
    value = body.get(name)
    if value is None and name in ("data_idx", "session_id"):
        return 0
    if type(value) is not kind:
        raise BadRequest(422, f"{name} must be {'a whole number' if kind is int else 'a string'}")
    return value


def _crafting(session: Session) -> tuple[str, str]:
    """textcraft's commands and goal, as its first observation lists them."""
    commands, _, goal = session.opening.removeprefix("Crafting commands:\n").partition("\n\nGoal: craft ")
    return commands, goal.removesuffix(".")


def _seen(session: Session) -> dict:
    """babyai's view of where the agent stands."""
    return session.said("observation", "reward", "score", "done") | {"deleted": False}


def _instruction(session: Session) -> str:
    """webshop's goal, as its first page shows it."""
    return "Instruction: " + session.opening.partition("Instruction: [SEP] ")[2].rpartition(" [SEP] ")[0]


POSTS = {"/create": create, "/reset": reset, "/step": step, "/close": close}
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
}


class Handler(BaseHTTPRequestHandler):
    """One request: its JSON in, `reply`'s JSON out."""

    timeout = 30  # seconds that each piece of a request may take to arrive
    wbufsize = -1  # headers and body leave together

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def _answer(self, method: str) -> None:
        path, _, query = self.path.partition("?")
        try:
            body = self._body() if method == "POST" else _query(query)
            status, said = 200, reply(self.server.sessions, method, path, body)
        except BadRequest as bad:
            status, said = bad.args[0], {"detail": bad.args[1]}
        except (ValueError, RuntimeError) as error:
            status, said = 200, {"error": str(error)}
        except Exception as error:  # a world's mistake ends neither the server nor other sessions
            traceback.print_exc()
            status, said = 200, {"error": f"{type(error).__name__}: {error}"}
        text = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _body(self) -> dict:
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal():
            raise BadRequest(411, "Length Required")
        if len(length) > 9 or int(length) > MAX_BODY:
            raise BadRequest(413, f"a request has at most {MAX_BODY} bytes")
        try:
            body = json.loads(self.rfile.read(int(length)) or b"{}")
        except (ValueError, RecursionError):
            raise BadRequest(422, "the body is not JSON") from None
        if not isinstance(body, dict):
            raise BadRequest(422, "the body is not a JSON object")
        return body

    def log_message(self, *args) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A thread for each request, CONNECTIONS at most."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, host: str, port: int, sessions: Sessions):
        self.sessions = sessions
        self.free = threading.Semaphore(CONNECTIONS)
        super().__init__((host, port), Handler)

    def process_request(self, request, client_address) -> None:
        self.free.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request, client_address) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.free.release()

    def handle_error(self, request, client_address) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that left before its answer is no news
            super().handle_error(request, client_address)


def _query(text: str) -> dict:
    """The fields of a URL, whole numbers as such."""
    return {name: int(value) if value.isdecimal() and len(value) < 20 else value for name, value in parse_qsl(text)}


def parse(words: list[str]) -> tuple[dict, dict]:
    """The keys of this program, and the options of its world, each as the type of its default."""
    pairs = [word.partition("=") for word in words]
    for word, (_, equals, _) in zip(words, pairs, strict=True):
        if not equals:
            raise ValueError(f"expected key=value, not {word!r}")
    kind = ([text for key, _, text in pairs if key == "env"] or [KEYS["env"]])[-1]
    if kind not in TASKS:
        raise ValueError(f"env must be one of {', '.join(TASKS)}, not {kind!r}")
    defaults = KEYS | {f"{kind}.{f.name}": f.default for f in fields(envs.config_class(kind))}
    values = {}
    for key, _, text in pairs:
        if key not in defaults:
            close = get_close_matches(key, defaults, n=1, cutoff=0)
            raise ValueError(f"no key {key!r}; the nearest is {close[0]!r}")
        try:
            values[key] = type(defaults[key])(text)
        except ValueError:
            raise ValueError(f"{key} must be a number, not {text!r}") from None
    keys = KEYS | {key: value for key, value in values.items() if key in KEYS}
    for name, low, high in (("port", 0, 65535), ("sessions", 1, 10**6), ("idle", 1, 10**9)):
        if not low <= keys[name] <= high:
            raise ValueError(f"{name} must be a whole number from {low} to {high}, not {keys[name]}")
    options = {key.partition(".")[2]: value for key, value in values.items() if key not in KEYS}
    envs.make(kind, **options)  # raises ValueError with what the world does not like
    return keys, options


def main(words: list[str]) -> int:
    if {"-h", "--help"} & set(words):
        print(__doc__ + "".join(f"\nKeys of {kind}:\n{options_help(kind)}" for kind in TASKS if kind in envs.NAMES))
        return 0
    try:
        keys, options = parse(words)
        sessions = Sessions(keys["env"], options, keys["sessions"], keys["idle"])
        server = Server(keys["host"], keys["port"], sessions)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot listen on {keys['host']}:{keys['port']}: {error.strerror}", file=sys.stderr)
        return 2
    host, port = server.server_address[:2]
    most, idle = keys["sessions"], keys["idle"]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    print(f"{keys['env']} at http://{host}:{port}, {most} sessions at most, {idle} s idle; Ctrl-C ends it", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print(f"ended with {len(sessions.open)} sessions open")
    finally:
        server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
