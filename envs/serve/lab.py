"""Serve LifelongAgentBench's two protocols: tasks, and the chat history items that start their conversations.

POST only, with a JSON object as body. Tasks:
    /api/ping                            {"response": "Hello, World!"}
    /api/get_sample_index_list           {"sample_index_list": ["0", "1", ...]}, `samples` of them
    /api/tasks                           0: any number is a sample; the original does not have this request. With
                                         splits=own and one file its number of tasks, which are the samples in order
    /api/reset /interact /complete       {"session": S} -> {"session": S'}
    /api/calculate_metric                {"session_partial_list": [{sample_index, sample_status, evaluation_record}]}
                                         -> {"metric": {"skill", "difficulty_level", "overall"}}
    /api/get_attribute /set_attribute    max_round: the turn limit of new sessions
    /api/release                         null: clears the cache of environments
Chat history items, those before the task's own:
    /api/ping
    /api/construct                       {chat_history_item_index, expected_role}
                                         -> {"chat_history_item": {role, content}}
    /api/set                             {prompt_index, role, content} -> null
    /api/get_chat_history_item_dict_deep_copy

S = {task_name, sample_index, sample_status, chat_history: {"value": [{role: user|agent, content}]}, finish_reason,
task_output, evaluation_record: {outcome, detail_dict}}; roles alternate. /reset takes an initial session and starts its
conversation. While it is running, the client appends the agent's reply and sends it to /interact, which appends the
observation or ends the session: completed, or agent_validation_failed for an unreadable reply, with the reason in
finish_reason. max_round replies are executed; the next one is not, and ends the session as task_limit_reached.
/complete sets the outcome by the environment's state, whatever the status, which the client may have set itself.
task_unknown_error: the environment failed, not the agent.

A sample's number maps to a seed and a split: see envs/http. The differences from the original:
- Any number of sessions at once. S contains everything, so nothing depends on the server's memory: it caches at most
  `sessions` environments, and replays a conversation that is not cached, as after a restart or a repeated request.
- Invalid requests, and requests in the wrong order, have status 4xx and {"detail": text}.
- A change in a database counts only if the session was completed, not at the limit or after an unreadable reply.
- The shapes inside `metric` are ours, see metric(); task_output and detail_dict stay null.
"""

import json
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import envs
from envs.base import Step
from envs.http.lab import BROKEN, COMPLETED, INITIAL, INVALID, LIMIT, ROLES, RUNNING
from envs.http.wire import seed_of
from envs.serve import described, report
from envs.serve.access import BadRequest

MAX_ROUND = 1000  # highest turn limit that a client may set
MAX_SESSIONS = 10_000  # most sessions of a request for statistics
MAX_ITEM = 100_000  # most characters of a chat history item that a client sets
REPLAYS = 4  # conversations replayed at once
REPLAY_SECONDS = 10.0  # most seconds of a replay, and of waiting for one
ENDED = (COMPLETED, INVALID, LIMIT)  # statuses that the agent's last reply sets
STATUSES = (INITIAL, RUNNING, *ENDED, *BROKEN)
STATUSES += ("agent_context_limit", "agent_out_of_memory", "agent_unknown_error")
OUTCOMES = ("unset", "correct", "incorrect", "unknown", "ignored")
FINISH = {  # (environment, prompt) -> the reply of an agent that has finished
    ("os_interaction", "native"): "Act: finish",
    ("os_interaction", "short"): "finish",
    ("db_bench", "native"): "Action: Answer\nFinal Answer: ",
    ("db_bench", "short"): "answer",
}
LABELS = {  # environment -> its task's skills and level of difficulty
    "os_interaction": lambda env: (env.current.skills, env.current.level),
    "db_bench": lambda env: (env.goal.skill.split(","), env.goal.level),
}
SPEAKERS = {role: name for name, role in ROLES.items()}


@dataclass
class Game:
    """An environment in the state after a conversation."""

    env: envs.Environment
    items: list[dict]  # the conversation so far, [{role, content}, ...]
    last: Step | None = None  # the step of the agent's last reply
    ended: bool = False  # the episode accepts no more replies

    def play(self, text: str) -> Step | None:
        """Execute the agent's next reply. Return its step, or None if no turns are left."""
        if self.ended:
            raise BadRequest(400, "the conversation goes on after the episode's end")
        self.items = [*self.items, {"role": "agent", "content": text}]
        if self.last and self.last.truncated:
            self.ended = True
            return None
        self.last = self.env.step(text)
        self.ended = self.last.terminated
        if not self.ended:
            self.items.append({"role": "user", "content": self.last.observation})
        return self.last

    def outcome(self, kind: str) -> str:
        """Return the episode's outcome; grade an unfinished one as if the agent had finished."""
        if not self.ended and not (self.last and self.last.truncated):
            self.play(FINISH[kind, "short" if self.env.config.prompt == "short" else "native"])
        said = self.last.info["outcome"]
        return said if said in OUTCOMES else "incorrect"  # timeout


@dataclass
class Tasks:
    """The state of both servers."""

    kind: str
    options: dict
    keep: int = 256  # most environments in the cache
    samples: int = 500
    share: int | None = None  # most environments in the cache of one client; none: all
    items: dict[int, dict] = field(default_factory=dict)  # chat history items set by clients
    # the cache, oldest first: conversation -> (its client's address, the game after it)
    kept: OrderedDict[bytes, tuple[str, Game]] = field(default_factory=OrderedDict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    replays: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(REPLAYS))
    in_file: int = 0  # tasks of one file that the samples play in its order (splits=own); 0: the samples have no end

    def __post_init__(self):
        if self.options.get("splits") == "own" and Path(self.options["data"]).is_file():
            self.samples = self.in_file = envs.make(self.kind, **self.options).count("test")

    @property
    def max_turns(self) -> int:
        return self.options.get("max_turns", envs.config_class(self.kind).max_turns)

    def begin(self, index: str) -> Game:
        """Return a sample's game at its start."""
        env = envs.make(self.kind, **self.options)
        messages = env.reset(*((int(index), "test") if self.in_file else seed_of(self.kind, int(index))))
        items = [{"role": SPEAKERS[message["role"]], "content": message["content"]} for message in messages]
        items[:-1] = [self.items.get(number, item) for number, item in enumerate(items[:-1])]
        return Game(env, items)

    def take(self, index: str, items: list[dict]) -> Game:
        """Return a sample's game after a conversation, from the cache or replayed."""
        with self.lock:
            _, game = self.kept.pop(_key(index, items), (None, None))
        return game or self.replay(index, items)

    def replay(self, index: str, items: list[dict]) -> Game:
        """Return a sample's game after a conversation, played again. REPLAYS at once, each within REPLAY_SECONDS."""
        if not self.replays.acquire(timeout=REPLAY_SECONDS):
            raise BadRequest(503, "too many conversations are being replayed")
        try:
            ends, game = time.monotonic() + REPLAY_SECONDS, self.begin(index)
            while len(game.items) < len(items) and items[: len(game.items)] == game.items:
                if game.ended:
                    raise BadRequest(400, "the conversation goes on after the episode's end")
                if time.monotonic() > ends:
                    raise BadRequest(503, f"the replay took more than {REPLAY_SECONDS:g} s")
                game.play(items[len(game.items)]["content"])
        finally:
            self.replays.release()
        if game.items != items:
            raise BadRequest(400, "the conversation differs from the sample's replay")
        return game

    def put(self, index: str, game: Game, client: str) -> None:
        """Cache a game. Above the limits drop the oldest one, of this client or of all."""
        with self.lock:
            self.kept[_key(index, game.items)] = client, game
            own = [key for key, (owner, _) in self.kept.items() if owner == client]
            if len(own) > (self.share or self.keep):
                del self.kept[own[0]]
            if len(self.kept) > self.keep:
                self.kept.popitem(last=False)


def answer(tasks: Tasks, method: str, path: str, body: dict, client: str = ""):
    """Return the task server's answer to a request. Raise BadRequest."""
    handler = _handler(TASKS, method, path)
    return handler(tasks, body, client) if handler in (reset, interact) else handler(tasks, body)


def answer_items(tasks: Tasks, method: str, path: str, body: dict, client: str = ""):
    """Return the chat history items server's answer to a request. Raise BadRequest."""
    return _handler(ITEMS, method, path)(tasks, body)


def reset(tasks: Tasks, body: dict, client: str) -> dict:
    session = _session(tasks, body, (INITIAL,))
    game = tasks.begin(session["sample_index"])
    tasks.put(session["sample_index"], game, client)
    return _answered(session, game, RUNNING)


def interact(tasks: Tasks, body: dict, client: str) -> dict:
    session = _session(tasks, body, (RUNNING,))
    index, items = session["sample_index"], session["chat_history"]["value"]
    if not items or items[-1]["role"] != "agent":
        raise BadRequest(400, "the session must end with the agent's reply")
    try:
        game = tasks.take(index, items[:-1])
        step = game.play(items[-1]["content"])
    except BadRequest:
        raise
    except Exception as error:  # a bug in an environment ends only this session
        report(error)
        return {"session": session | {"sample_status": BROKEN[1], "finish_reason": described(error)}}
    tasks.put(index, game, client)
    if step is None:
        return _answered(session, game, LIMIT, f"Task limit reached. The limit is {game.env.config.max_turns}.")
    if step.terminated:
        return _answered(session, game, COMPLETED if step.info["valid"] else INVALID, step.observation or None)
    return _answered(session, game, RUNNING)


def complete(tasks: Tasks, body: dict) -> dict:
    session = _session(tasks, body, STATUSES[1:])
    items = session["chat_history"]["value"]
    if items and items[-1]["role"] == "agent" and session["sample_status"] not in ENDED:
        items = items[:-1]  # a reply that the environment never executed
    outcome = tasks.take(session["sample_index"], items).outcome(tasks.kind)
    return {"session": session | {"evaluation_record": {"outcome": outcome, "detail_dict": None}}}


def _answered(session: dict, game: Game, status: str, reason: str | None = None) -> dict:
    history = {"chat_history": {"value": game.items}}
    return {"session": session | history | {"sample_status": status, "finish_reason": reason}}


def metric(tasks: Tasks, body: dict) -> dict:
    """Return the statistics of a list of sessions.

    {"skill": {name: {count, correct_count, correct_rate}}, "difficulty_level": the same by level,
    "overall": {"evaluation_outcome": {name: rate}, "sample_status": {name: rate}}}; the rate of an empty list is -1.
    """
    sessions = _field(body, "session_partial_list", list)
    if not all(isinstance(session, dict) for session in sessions):
        raise BadRequest(422, "session_partial_list must hold sessions")
    indices = set(map(_index, sessions))
    if len(sessions) > MAX_SESSIONS or len(indices) > tasks.samples:
        raise BadRequest(413, f"at most {MAX_SESSIONS} sessions of {tasks.samples} different samples")
    counted = [(_outcome(session), _one_of(session, "sample_status", STATUSES)) for session in sessions]
    labels = {index: LABELS[tasks.kind](tasks.begin(index).env) for index in indices}
    skills, levels = {}, {}
    outcomes, statuses = dict.fromkeys(OUTCOMES, 0), dict.fromkeys(STATUSES, 0)
    for session, (outcome, status) in zip(sessions, counted, strict=True):
        outcomes[outcome] += 1
        statuses[status] += 1
        names, level = labels[_index(session)]
        for table, known in ((skills, names), (levels, [level])):
            for label in known:
                table.setdefault(label, []).append(outcome == "correct")
    whole = {"evaluation_outcome": outcomes, "sample_status": statuses}
    overall = {name: {key: _rate(n, len(sessions)) for key, n in counts.items()} for name, counts in whole.items()}
    return {"metric": {"skill": _counted(skills), "difficulty_level": _counted(levels), "overall": overall}}


def get_attribute(tasks: Tasks, body: dict) -> dict:
    _one_of(body, "name", ("max_round",))
    how = {"type": "int", "value": str(tasks.max_turns)}
    return {"instance_factory_type": "simple_immutable_type", "instance_factory_parameter_dict": how}


def set_attribute(tasks: Tasks, body: dict) -> None:
    _one_of(body, "name", ("max_round",))
    value = str(_field(body, "instance_factory_parameter_dict", dict).get("value"))
    if not (value.isdecimal() and len(value) < 7 and 0 < int(value) <= MAX_ROUND):
        raise BadRequest(422, f"max_round must be a whole number from 1 to {MAX_ROUND}, not {value[:20]!r}")
    tasks.options["max_turns"] = int(value)


def release(tasks: Tasks, body: dict) -> None:
    with tasks.lock:
        tasks.kept.clear()


def items(tasks: Tasks, body: dict) -> dict[int, dict]:
    """Return the chat history items before the task's own, by their numbers."""
    return dict(enumerate(tasks.begin("0").items[:-1]))


def construct(tasks: Tasks, body: dict) -> dict:
    """Return a chat history item. Its role is checked unless `expected_role` is null, as in the original."""
    item = _item(tasks, body, "chat_history_item_index")
    role = item["role"] if body.get("expected_role", "") is None else _field(body, "expected_role", str)
    if item["role"] != role:
        raise BadRequest(400, f"the item is the {item['role']}'s, not the {role[:20]}'s")
    return {"chat_history_item": item}


def set_item(tasks: Tasks, body: dict) -> None:
    _item(tasks, body, "prompt_index")
    said = {"role": _one_of(body, "role", ROLES), "content": _field(body, "content", str)}
    if len(said["content"]) > MAX_ITEM:
        raise BadRequest(413, f"a chat history item has at most {MAX_ITEM} characters")
    tasks.items[body["prompt_index"]] = said


def ping(tasks: Tasks, body: dict) -> dict:
    return {"response": "Hello, World!"}


TASKS = {
    "ping": ping,
    "get_sample_index_list": lambda tasks, body: {"sample_index_list": [str(n) for n in range(tasks.samples)]},
    "tasks": lambda tasks, body: tasks.in_file,
    "reset": reset,
    "interact": interact,
    "complete": complete,
    "calculate_metric": metric,
    "get_attribute": get_attribute,
    "set_attribute": set_attribute,
    "release": release,
}
ITEMS = {"ping": ping, "construct": construct, "set": set_item, "get_chat_history_item_dict_deep_copy": items}


def _handler(handlers: dict, method: str, path: str):
    found = handlers.get(path.removeprefix("/api/"))
    if found is None or not path.startswith("/api/"):
        raise BadRequest(404, "Not Found")
    if method != "POST":
        raise BadRequest(405, "Method Not Allowed")
    return found


def _session(tasks: Tasks, body: dict, statuses: tuple[str, ...]) -> dict:
    """Return a request's session. Raise BadRequest unless it has this task and one of the statuses."""
    session = _field(body, "session", dict)
    if _field(session, "task_name", str) != tasks.kind:
        raise BadRequest(400, f"this server plays {tasks.kind}, not {session['task_name'][:40]!r}")
    status = _one_of(session, "sample_status", STATUSES)
    if status not in statuses:
        raise BadRequest(400, f"the session is {status}, and not {' or '.join(statuses[:2])}")
    items = _field(_field(session, "chat_history", dict), "value", list)
    for number, item in enumerate(items):
        if not isinstance(item, dict) or item.get("role") != ("user", "agent")[number % 2]:
            raise BadRequest(422, "the roles of chat_history must be user and agent in turn")
        _field(item, "content", str)
    return session | {"sample_index": _index(session)}


def _index(session: dict) -> str:
    index = str(session.get("sample_index"))
    if not (index.isascii() and index.isdecimal() and len(index) < 20):
        raise BadRequest(422, f"sample_index must be the name of a sample, not {index[:40]!r}")
    return index


def _outcome(session: dict) -> str:
    return _one_of(_field(session, "evaluation_record", dict), "outcome", OUTCOMES)


def _item(tasks: Tasks, body: dict, name: str) -> dict:
    known = items(tasks, body)
    number = _field(body, name, int)
    if number not in known:
        raise BadRequest(400, f"{name} must be one of {', '.join(map(str, known))}, not {number}")
    return known[number]


def _field(body: dict, name: str, kind: type):
    value = body.get(name)
    if type(value) is not kind:
        called = {str: "a string", int: "a whole number", dict: "an object", list: "a list"}
        raise BadRequest(422, f"{name} must be {called[kind]}")
    return value


def _one_of(body: dict, name: str, known) -> str:
    value = _field(body, name, str)
    if value not in known:
        raise BadRequest(422, f"{name} cannot be {value[:40]!r}")
    return value


def _key(index: str, items: list[dict]) -> bytes:
    return sha256(json.dumps([index, items], sort_keys=True).encode()).digest()


def _counted(table: dict[str, list[bool]]) -> dict:
    return {
        name: {"count": len(right), "correct_count": sum(right), "correct_rate": _rate(sum(right), len(right))}
        for name, right in sorted(table.items())
    }


def _rate(part: int, whole: int) -> float:
    return part / whole if whole else -1
