"""Serve a base model and adapters by OpenAI's protocol: python -m rl.serve adapter=mine=runs/x/epoch_10

    python -m rl.serve adapter=runs/x/epoch_5,best=runs/x/epoch_10    # model names tiny, runs/x/epoch_5 and best
    curl http://127.0.0.1:8000/v1/completions -d '{"model": "best", "prompt": "Goal: ", "max_tokens": 20}'

Any client of that protocol works with base_url=http://127.0.0.1:8000/v1; rl/serve/protocol.py says what is spoken.
Requests are sampled together, with the keys and values of earlier conversations where a request goes on with one.
With host=0.0.0.0 other machines can reach the server: set key=, which clients send as their API key.
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import os
import re
import signal
import sys
from dataclasses import dataclass

from envs.serve import Server
from envs.serve.access import Access, is_local, own_names
from models import load_tokenizer
from rl.config.arguments import NotNegative, Positive
from rl.config.help import quiet_on_closed_pipe
from rl.config.refusals import Refusal
from rl.run import exits
from rl.serve.loading import ModelKeys, load, parse_over_adapters_base
from rl.serve.protocol import PageHandler, Protocol
from rl.serve.sampler import Sampler

KEY = "SERVE_KEY"  # the environment variable of the server's key


@dataclass(frozen=True)
class Keys:
    host: str = "127.0.0.1"  # the address to listen on; the default can be reached from this machine only
    port: NotNegative[int] = 8000  # the port to listen on; 0: a free one
    key: str = ""  # each request must have it (Authorization: Bearer ...); empty: SERVE_KEY's, if that is set
    names: str = ""  # further host names, by comma, under which clients reach this machine
    load: bool = False  # let requests load adapters from folders of this machine, and unload them
    rows: Positive[int] = 64  # sequences that are sampled at once, for each adapter
    queue: Positive[int] = 1024  # requests that may wait for a row; more are refused with status 429

    def __post_init__(self):
        if self.port > 65535:
            raise Refusal(f"port={self.port} must be at most 65535")
        key = self.key or os.environ.get(KEY, "").strip()
        if key and not re.fullmatch(r"[!-~]{8,}", key):
            raise Refusal("key must have at least 8 characters, ASCII letters, digits or punctuation")
        object.__setattr__(self, "key", key)


def parse(words: list[str]) -> tuple[ModelKeys, Keys]:
    """Return the settings that key=value words give. Exit with 2 on a wrong word."""
    return parse_over_adapters_base(words, "rl.serve", Keys, about=__doc__)


def listen(model: str, keys: Keys, sampler: Sampler) -> Server:
    """Return a server that is bound to its port. Raise OSError if it cannot be."""
    by_thinking = {thinking: load_tokenizer(model, thinking, rewrites=True) for thinking in (True, False)}
    protocol = Protocol(sampler, model, by_thinking, keys.load)
    access = Access(keys.key, own_names(keys.host, *keys.names.replace(" ", "").split(",")), "as its API key")
    try:
        server = Server(keys.host, keys.port, protocol.answer, access)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"cannot listen on {keys.host}:{keys.port}: {reason}") from None
    server.handler = PageHandler
    protocol.server = server
    return server


def serve(model: str, keys: Keys, sampler: Sampler, server: Server) -> None:
    """Print where the server can be reached, and serve until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # while the event loop runs, it has a handler of its own
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    names, place = ", ".join([model, *sampler.adapters]), "http://{}:{}/".format(*server.server_address)
    print(
        f"{names} at {place}v1, a page to chat at {place}, {sampler.rows} sequences at once; Ctrl-C stops it",
        flush=True,
    )
    if not keys.key and not is_local(keys.host):
        print("rl.serve: other machines can reach this server, and it asks for no key: set key=", file=sys.stderr)
    sys.setswitchinterval(1e-4)  # torch drops Python's lock in each call: the sampler's thread should have it back soon
    sampler.start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        server.server_close()
        sampler.stop()


def main(words: list[str]) -> None:
    model, keys = parse(words)
    with exits.exits_cleanly("rl.serve", needs="rows= and max_len= bound the memory of keys and values"):
        sampler = load(model, keys.rows, keys.queue, rewrites=True)  # a request has its whole conversation
        server = listen(model.model, keys, sampler)
        with quiet_on_closed_pipe():
            serve(model.model, keys, sampler, server)


if __name__ == "__main__":
    main(sys.argv[1:])
