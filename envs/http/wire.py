"""Shared by the clients of all protocols: one request, its failures, and the mapping of seeds to task numbers."""

import json
import math
import time
import urllib.error
import urllib.request
from http.client import HTTPException

from envs.base import EnvironmentFailed

BLOCK = {"babyai": 40}  # size of the blocks of task numbers within a split; default 1
MAX_REPLY = 8 << 20  # most bytes of a server's reply
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerFailed(EnvironmentFailed):
    """The server failed, so the episode counts neither as solved nor as failed."""


class Lost(Exception):
    """A request has no usable answer; a retry may help."""


class Refused(Lost):
    """The server answered with an error."""


class NoJSON(Lost):
    """The server's answer is not JSON, for example a web page."""


def request(url: str, body: dict | None, timeout: float):
    """POST a JSON body, or GET without one. Return the answer's JSON. Raise ConnectionError for a lost connection."""
    path = "/" + url.rpartition("/")[2]
    headers = {"Content-Type": "application/json"}
    data = None if body is None else json.dumps(body).encode()
    deadline = time.monotonic() + timeout
    parts, size = [], 0
    try:
        with DIRECT.open(urllib.request.Request(url, data, headers), timeout=timeout) as answer:
            while part := answer.read1(65536):
                parts.append(part)
                size += len(part)
                if size > MAX_REPLY or time.monotonic() > deadline:
                    raise Lost(f"{path} sent {size} bytes and no end")
            if answer.length:
                raise ConnectionResetError
        return json.loads(b"".join(parts))
    except urllib.error.HTTPError as error:
        with error:
            line = f"{path} answered {error.code} {error.reason}"
        if 400 <= error.code < 500 and error.code not in (408, 425, 429):
            where = url.rpartition("/")[0]
            raise ServerFailed(f"{where}: {line}: does the server serve another environment?") from None
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
        raise NoJSON(f"{path} answered {short(b''.join(parts))}, which is not JSON") from None


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
    return type(value) in (int, float) and math.isfinite(value)


def short(value) -> str:
    """Return a value shortened to one line of a message."""
    text = repr(value if not isinstance(value, bytes | str) else value[:80])
    return text if len(text) <= 80 else text[:77] + "..."
