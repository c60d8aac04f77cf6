"""What clients of all protocols share: one request, the ways in which it fails, and whose episode a task number is."""

import json
import math
import time
import urllib.error
import urllib.request
from http.client import HTTPException

from envs.base import EnvironmentFailed

BLOCK = {"babyai": 40}  # task numbers that stay together in a split; 1 elsewhere
MAX_REPLY = 8 << 20  # bytes of a server's reply that are read
DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerFailed(EnvironmentFailed):
    """The server did not do its part, so the episode says nothing about the agent."""


class Lost(Exception):
    """A request without a usable answer; another one may have it."""


class Refused(Lost):
    """The server's answer is that it cannot."""


class NoJSON(Lost):
    """The server's answer is something else, a page perhaps."""


def request(url: str, body: dict | None, timeout: float):
    """POST a JSON body, or GET without one; the JSON of the answer. ConnectionError: nobody is there, or it hung up."""
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
        raise NoJSON(f"{path} answered {short(b''.join(parts))}, which is not JSON") from None


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


def is_number(value) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def short(value) -> str:
    """What came, as one line of a message."""
    text = repr(value if not isinstance(value, bytes | str) else value[:80])
    return text if len(text) <= 80 else text[:77] + "..."
