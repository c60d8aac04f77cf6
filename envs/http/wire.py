"""Shared by the clients of all protocols: one request, its failures, and the mapping of seeds to task numbers."""

import json
from threading import Event
from typing import Any

from envs.base import EnvironmentFailed
from envs.http.exchange import Cancelled, Lost, Reply, bearer, exchange, parse_json, plain, short

BLOCK = {"babyai": 40}  # size of the blocks of task numbers within a split; default 1
TOKEN = "ENVS_TOKEN"  # the environment variable of the token that requests carry
NEVER = Event()  # is never set
MOST_BYTES = 1 << 20  # of an answer: a tokenizer takes a second for as many letters
MOST = 1e15  # of a reward or measurement: sums and squares of such numbers are finite in float32


class Session:
    """The state that the clients of all protocols share: a session of a server, for one episode after another."""

    session = None
    cancelled = NEVER  # the environment's event

    def __init__(self, config: Any, servers: dict[tuple[str, str], Any]):
        self.config, self.kind = config, config.kind
        self.server = servers[config.address, config.kind]

    def drop(self) -> None:
        """Give up the session, which is lost, over or in another state."""
        self.session = None


class ServerFailed(EnvironmentFailed):
    """The server failed, so the episode counts neither as solved nor as failed."""


class Refused(Lost):
    """The server answered with an error."""


class NoJSON(Lost):
    """The server's answer is not JSON, for example a web page."""


def request(url: str, body: dict | None, timeout: float, cancelled: Event = NEVER):
    """POST a JSON body, or GET without one. Return the answer's JSON.

    timeout: most seconds of the whole exchange.
    cancelled: ends it sooner if set.
    Raise ConnectionError for a lost connection, Lost if a retry may help, and ServerFailed if it cannot.
    """
    where, _, name = url.rpartition("/")
    data = None if body is None else json.dumps(body).encode()
    try:
        reply = exchange(url, data, {"Content-Type": "application/json"} | bearer(TOKEN), timeout, cancelled)
    except Cancelled:
        raise ServerFailed(f"{where}: the request was given up") from None
    except Lost as error:
        raise Lost(f"/{name}: {error}") from None
    if reply.permanent:
        raise ServerFailed(f"{where}: /{name} answered {reply.status} {reply.reason}: {_advice(reply)}")
    if not reply.ok:
        raise Lost(f"/{name} answered {reply.status} {reply.reason}")
    if len(reply.body) > MOST_BYTES:
        raise Lost(f"/{name}: a reply of {len(reply.body)} bytes is too long")
    try:
        return parse_json(reply.body)
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except json.JSONDecodeError:
        reason = "not JSON"
    except ValueError as error:
        reason = str(error)
    raise NoJSON(f"/{name} answered {short(reply.body)}, which is {reason}")


def _advice(reply: Reply) -> str:
    """Return what may be wrong with a request that the server refuses."""
    if reply.status < 400:
        return "redirects are not followed"
    try:
        said = parse_json(reply.body)
    except ValueError:
        said = None
    if reply.status in (401, 403):
        detail = said.get("detail") if isinstance(said, dict) else None
        return plain(detail) if isinstance(detail, str) else f"does the server need a token in {TOKEN}?"
    return "does the server serve another environment?"


def number_of(kind: str, seed: int, split: str) -> int:
    """Return the task number of a seed and split."""
    block, place = divmod(seed, BLOCK.get(kind, 1))
    ten, digit = divmod(block, 8) if split == "train" else (block, {"val": 8, "test": 9}[split])
    return (10 * ten + digit) * BLOCK.get(kind, 1) + place


def seed_of(kind: str, number: int) -> tuple[int, str]:
    """Return the seed and split of a task number: the inverse of number_of."""
    block, place = divmod(number, BLOCK.get(kind, 1))
    ten, digit = divmod(block, 10)
    block, split = (8 * ten + digit, "train") if digit < 8 else (ten, {8: "val", 9: "test"}[digit])
    return block * BLOCK.get(kind, 1) + place, split


def seeds_of(kind: str, split: str, tasks: int) -> int:
    """Return the number of seeds of a split whose task numbers are below `tasks`."""
    size = BLOCK.get(kind, 1)
    tens, rest = divmod(tasks, 10 * size)
    digits = range(8) if split == "train" else [{"val": 8, "test": 9}[split]]
    return sum(tens * size + min(max(rest - digit * size, 0), size) for digit in digits)


def is_number(value) -> bool:
    """Return whether a value is a number from -MOST to MOST."""
    return type(value) in (int, float) and -MOST <= value <= MOST
