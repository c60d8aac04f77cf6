"""HTTP: a world that a server plays, one of AgentGym's or ours, `python -m envs.serve`.

Task.     What the server makes of a task number. Seeds count the numbers of a split: of every ten the first eight are
          train, then one val and one test; of babyai, where number % 40 is the level, of every ten blocks of 40. So no
          number is in two splits. AgentGym's servers have so many tasks, after which they come again; ours has no end,
          and plays the episode of that seed and split, the same text, byte for byte, as the world gives in process.

Actions.  The world's own. What is read of a reply, and sent:
    webshop alfworld sciworld   the text behind the last `Action:`; without one nothing, but to webshop a whole reply
                                that holds `search[` or `click[`
    babyai textcraft            the line that follows `Action:`, reduced to letters, digits, commas and spaces; with
                                several markers nothing is sent, and the reply says so
          With prompt=short the reply's first line, for all.

Prompts.  The world's own, native or short, around what the server says: alfworld's first observation ends with the list
          of available actions, sciworld's begins with the task. Serve a world with the prompt that you ask for here.

Reward.   The server's `reward`. info["success"]: it ended with a reward of 1, with a score of 100 in sciworld, with any
          reward in babyai. info["valid"]: the reply is none of the world's refusals; webshop's is the same page again,
          after anything but a search or a click on a part of it. info["shaped"]: 1 on success, nothing on the way.

Ending.   Terminated when the server says `done`; truncated, outcome "timeout", after `max_turns` replies of any kind.

Failures. A server that is down, slow or restarted, and a reply that is none, are tried again, `retries` times, after
          waits that double. A lost answer leaves open whether the action was carried out, so the episode is never
          continued: a new session plays it again from its task number, and must give the same replies. When all fails,
          or the server refuses a request for what it is, reset and step raise ServerFailed.

Sessions. One for each running episode. After its end the next episode takes it over, since AgentGym's alfworld and
          webshop cannot close one, and a new one of sciworld takes long; all are closed when the process ends. Proxies
          of the environment are not used. There is no oracle: who wants one plays the world in process.
"""

import atexit
import functools
import importlib
import json
import math
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import defaultdict
from dataclasses import dataclass, field
from http.client import HTTPException

import envs
from envs import base
from envs.base import Step, WorldFailed

# how many tasks AgentGym's servers have; babyai's have no end
TASKS = {"webshop": 6910, "alfworld": 2620, "babyai": 40_000, "sciworld": 4639, "textcraft": 544}
BLOCK = {"babyai": 40}  # task numbers that stay together in a split; 1 elsewhere

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
MAX_REPLY = 1 << 20  # bytes of a server's reply that are read
MAX_TEXT = 100_000  # characters of an action that are sent to a world that does not say how many it reads


@dataclass
class Config:
    url: str = "http://127.0.0.1:36001"  # where the server is
    kind: str = "textcraft"  # the world it plays: webshop, alfworld, babyai, sciworld or textcraft
    tasks: int = 0  # how many tasks the server has; 0: no end if it is ours, else as many as AgentGym's
    max_turns: int = 0  # agent turns before the episode is truncated; 0: the world's own number
    prompt: str = "native"  # "native": instructions and Thought/Action replies; "short": one message, bare actions
    timeout: float = 60.0  # seconds that a request may take
    retries: int = 6  # attempts after the first one that failed
    wait: float = 0.5  # seconds before the first of them; each waits twice as long as the one before

    def __post_init__(self):
        if self.kind not in TASKS:
            raise ValueError(f"kind must be one of {', '.join(TASKS)}, not {self.kind!r}")
        base.check_prompt(self.prompt)
        for name in ("tasks", "max_turns", "retries"):
            base.check_count(name, getattr(self, name), 0)
        for name in ("timeout", "wait"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(f"{name} must be a positive number of seconds, not {value!r}")
        least = 10 * BLOCK.get(self.kind, 1)
        if 0 < self.tasks < least:
            raise ValueError(f"tasks must be at least {least}, for a train, a val and a test split, not {self.tasks}")
        try:
            parts = urllib.parse.urlsplit(self.url)
            plain = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        except ValueError:  # a port that is none
            plain = False
        if not plain or not re.fullmatch(r"[!-~]+", self.url) or parts.query or parts.fragment:
            raise ValueError(f"url must be http://host:port, not {self.url!r}")
        self.url = self.url.rstrip("/")


class ServerFailed(WorldFailed):
    """The server did not do its part, so the episode says nothing about the agent."""


class Lost(Exception):
    """A request without a usable answer; another one may have it."""


class Refused(Lost):
    """The server's answer is that it cannot."""


@dataclass
class Server:
    """What this process knows of a server."""

    open: set[int] = field(default_factory=set)  # sessions that were created
    idle: list[int] = field(default_factory=list)  # those of them without an episode
    tasks: int | None = None  # how many it has, once it was asked; 0: no end
    breaks: int = 0  # times that it hung up: after each it may be another one, with other sessions of the same names


SERVERS: dict[tuple[str, str], Server] = defaultdict(Server)  # (url, kind) -> Server
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Env:
    """One episode at a time; the module's docstring is its specification."""

    slow = True  # each answer is a server's
    session = None

    def __init__(self, config: Config | None = None):
        self.config = config or Config()
        self.kind = self.config.kind
        self.server = SERVERS[self.config.url, self.kind]
        self.running = False

    @property
    def task(self) -> str:
        """The canonical task: its number, which is all that is known of it on this side."""
        return f"http:{self.kind}:{self.number}"

    def reset(self, seed: int, split: str = "train") -> list[dict]:
        """Start the episode of a seed: the messages up to the agent's first turn."""
        base.check_split(split)
        self._leave()
        self.wanted, self.number = (seed, split), None
        self.opening, self.played = None, []
        self._try(lambda: None)
        self.turns = 0
        self.running = True
        *before, line = _prompt(_world(self.kind), self.config.prompt)
        return [*map(dict, before), {"role": "user", "content": line + self.opening}]

    def step(self, action_text: str) -> Step:
        """Send the agent's action; every reply counts as a turn."""
        base.check_running(self.running)
        self.turns += 1
        action = action_of(self.kind, action_text, self.config.prompt)
        if action is None:
            observation, reward, done, success, valid = SEVERAL, 0.0, False, False, False
        else:
            reply = self._try(lambda: self._act(action))
            observation, reward, done = self._said(reply), float(reply["reward"]), reply["done"]
            valid = not self._refused(action, observation)
            success = done and self._solved(reply)
            self.played.append((action, observation))
        truncated = not done and self.turns >= (self.config.max_turns or envs.config_class(self.kind).max_turns)
        if done or truncated:
            self._leave()
        info = {
            "outcome": base.outcome(success, done, truncated),
            "success": success,
            "valid": valid,
            "shaped": float(success),
        }
        return Step(observation, reward, done, truncated, info)

    def oracle(self) -> str:
        """Not to be had: raises RuntimeError."""
        raise RuntimeError(f"a world behind http has no oracle: use env={self.kind} for demonstrations")

    def __del__(self):
        self._leave()  # an episode that nobody plays to its end

    def _leave(self) -> None:
        """The episode is over: another one may have its session."""
        self.running = False
        if self.session is not None and self.breaks == self.server.breaks:
            self.server.idle.append(self.session)
        self.session = None

    def _try(self, act):
        """act() in a session that stands where the agent is, again and again until there is an answer."""
        for attempt in range(self.config.retries + 1):
            if attempt:
                time.sleep(min(self.config.wait * 2 ** (attempt - 1), 60))
            try:
                if self.session is None or self.breaks != self.server.breaks:
                    self._open()
                return act()
            except Lost as error:
                self.session, reason = None, error
            except BaseException:
                self.session, self.running = None, False
                raise
        self.running = False
        times = f"{self.config.retries + 1} attempts" if self.config.retries else "one attempt"
        raise ServerFailed(f"{self.config.url} failed after {times}: {reason}")

    def _open(self) -> None:
        """Bring a session to where the agent is: create it or take an idle one, reset it, and play what was played."""
        if self.number is None:
            self.number = self._number(*self.wanted)
        while True:
            self.breaks, idle = self.server.breaks, self.server.idle
            try:
                self.session, fresh = idle.pop(), False
            except IndexError:
                self.session, fresh = self._create(), True
            try:
                opening = self._reset()
                break
            except Refused:
                if fresh:
                    raise
        replies = [self._said(self._act(action)) for action, _ in self.played]
        if (self.opening or opening, [said for _, said in self.played]) != (opening, replies):
            raise ServerFailed(f"{self.config.url} played {self.task} again and said something else than before")
        self.opening = opening

    def _number(self, seed: int, split: str) -> int:
        """The task number of a seed and split, on a server that may have few."""
        tasks = self.config.tasks or self.server.tasks
        if tasks is None:
            try:
                tasks = self._request("tasks")
            except ServerFailed:  # there is no /tasks
                tasks = TASKS[self.kind]
            if type(tasks) is not int or 0 != tasks < 10 * BLOCK.get(self.kind, 1):
                raise Lost(f"/tasks answered {_short(tasks)} instead of a number")
            self.server.tasks = tasks
        return number_of(self.kind, seed % seeds_of(self.kind, split, tasks) if tasks else seed, split)

    def _create(self) -> int:
        reply = self._request("create", {})
        session = reply if self.kind == "webshop" else reply.get("id") if isinstance(reply, dict) else None
        if type(session) is not int:
            raise Lost(f"/create answered {_short(reply)} instead of a session")
        self.server.open.add(session)
        return session

    def _reset(self) -> str:
        world = {"world_type": "Text"} if self.kind == "alfworld" else {}
        number = {NUMBER.get(self.kind, "data_idx"): self.number}
        reply = self._request("reset", self._named() | number | world)
        if self.kind == "webshop":
            said = reply[:1] if isinstance(reply, list) else []
        else:
            said = [reply.get("observation")] if isinstance(reply, dict) else []
            if self.kind == "sciworld":
                said.insert(0, reply.get("task_description") if said else None)
        if not said or not all(isinstance(text, str) for text in said):
            raise Lost(f"/reset answered {_short(reply)} instead of an observation")
        opening = "\n".join(filter(None, said))
        if self.kind == "alfworld" and self.config.prompt == "native":
            opening += ACTIONS + ",".join(map(str, reply.get("available_actions") or []))
        return opening

    def _act(self, action: str) -> dict:
        reply = self._request("step", self._named() | {"action": action})
        good = isinstance(reply, dict) and isinstance(self._said(reply), str) and type(reply.get("done")) is bool
        numbers = ("reward", "score") if self.kind in SCORED else ("reward",)
        if not good or not all(_is_number(reply.get(name)) for name in numbers):
            raise Lost(f"/step answered {_short(reply)} instead of observation, {', '.join(numbers)} and done")
        return reply

    def _named(self) -> dict:
        return {ID.get(self.kind, "id"): self.session}

    def _said(self, reply: dict) -> str:
        return reply.get(OBSERVATION.get(self.kind, "observation"))

    def _refused(self, action: str, observation: str) -> bool:
        if self.kind == "webshop":
            page = self.played[-1][1] if self.played else self.opening
            verb, _, argument = action.lower().rpartition("]")[0].rpartition("[")
            known = verb == "search" or (verb == "click" and argument in page.lower().split(" [sep] "))
            return observation == page and not known
        return bool(re.match(REFUSED[self.kind], observation))

    def _solved(self, reply: dict) -> bool:
        if self.kind == "sciworld":
            return reply["score"] >= 100
        return reply["reward"] > 0 if self.kind == "babyai" else reply["reward"] >= 1

    def _request(self, path: str, body: dict | None = None):
        try:
            reply = request(f"{self.config.url}/{path}", body, self.config.timeout)
        except ConnectionError:
            self.server.breaks += 1
            self.server.open.clear()
            self.server.idle.clear()
            raise Lost(f"/{path} got no connection, or it broke") from None
        if isinstance(reply, dict) and "error" in reply:
            raise Refused(f"/{path} answered: {_short(reply['error'])}")
        return reply


def request(url: str, body: dict | None, timeout: float):
    """POST a JSON body, or GET without one; the JSON of the answer. ConnectionError: nobody is there, or it hung up."""
    path = "/" + url.rpartition("/")[2]
    headers = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    deadline = time.monotonic() + timeout
    text = b""
    try:
        with DIRECT.open(urllib.request.Request(url, data, headers), timeout=timeout) as answer:
            while part := answer.read1(65536):
                text += part
                if len(text) > MAX_REPLY or time.monotonic() > deadline:
                    raise Lost(f"{path} sent {len(text)} bytes and no end")
            if answer.length:
                raise ConnectionResetError
        return json.loads(text)
    except urllib.error.HTTPError as error:
        with error:
            line = f"{path} answered {error.code} {error.reason}"
        if 400 <= error.code < 500 and error.code not in (408, 425, 429):
            raise ServerFailed(f"{url.rpartition('/')[0]}: {line}: does the server play another world?") from None
        raise Lost(line) from None
    except urllib.error.URLError as error:
        if isinstance(error.reason, ConnectionError):
            raise error.reason from None
        raise Lost(f"{path}: {error.reason}") from None
    except (HTTPException, OSError) as error:
        if isinstance(error, ConnectionError):
            raise
        raise Lost(f"{path}: {' '.join(str(error).split()) or type(error).__name__}") from None
    except (ValueError, RecursionError):
        raise Lost(f"{path} answered {_short(text)}, which is not JSON") from None


def action_of(kind: str, reply: str, prompt: str = "native") -> str | None:
    """The action that a reply's text holds, as it is sent; None if it holds several where only one is allowed."""
    most = getattr(_world(kind), "MAX_ACTION", MAX_TEXT)
    if prompt == "short":
        return reply.strip().partition("\n")[0][:most].rstrip()
    if kind in ("babyai", "textcraft"):
        actions = re.findall(r"Action:\s*([^\n]*)", reply)
        if len(actions) > 1:
            return None
        action = actions[0][:most].rstrip() if actions else ""
        plain = getattr(_world(kind), "_plain", str)  # reads brackets, which go with what is no letter
        return " ".join(re.sub(r"[^A-Za-z0-9, ]", "", plain(action)).split())
    _, marker, action = reply.rpartition("Action:")
    if not marker and not (kind == "webshop" and ("search[" in reply or "click[" in reply)):
        action = ""
    return action.strip()[:most].rstrip()


def number_of(kind: str, seed: int, split: str) -> int:
    """The task number of a seed and split."""
    block, place = divmod(seed, BLOCK.get(kind, 1))
    ten, digit = divmod(block, 8) if split == "train" else (block, {"val": 8, "test": 9}[split])
    return (10 * ten + digit) * BLOCK.get(kind, 1) + place


def seed_of(kind: str, number: int) -> tuple[int, str]:
    """The seed and split of a task number: the inverse of number_of."""
    block, place = divmod(number, BLOCK.get(kind, 1))
    ten, digit = divmod(block, 10)
    block, split = (8 * ten + digit, "train") if digit < 8 else (ten, {8: "val", 9: "test"}[digit])
    return block * BLOCK.get(kind, 1) + place, split


def seeds_of(kind: str, split: str, tasks: int) -> int:
    """How many seeds of a split have task numbers below `tasks`."""
    size = BLOCK.get(kind, 1)
    tens, rest = divmod(tasks, 10 * size)
    digits = range(8) if split == "train" else [{"val": 8, "test": 9}[split]]
    return sum(tens * size + min(max(rest - digit * size, 0), size) for digit in digits)


def _world(kind: str):
    """The module of the world in process, which says how to ask for an action and how much of one is read."""
    return importlib.import_module(envs.NAMES[kind])


@functools.cache
def _prompt(world, prompt: str) -> list:
    """What a world says before an observation: messages, and the line above it if the prompt is short."""
    *before, message = world.Env(world.Config(prompt=prompt)).reset(0)
    return [*before, message["content"].partition("\n")[0] + "\n" if prompt == "short" else ""]


def _is_number(value) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _short(value) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


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
