"""Serve an environment over HTTP, for `env=http` or for the original's own clients.

    python -m envs.serve                                            textcraft on port 36001
    python -m envs.serve env=alfworld port=36002 alfworld.difficulty=1,2
    python -m envs.serve env=os_interaction                         its tasks on port 8000, its prompts on port 8001

webshop, alfworld, babyai, sciworld, textcraft, tau_retail and planner are served in AgentGym's protocol
(envs/serve/agentgym.py), alfworld in the dialect of AgentGym's server (alfworld.dialect=0.3), os_interaction and
db_bench in LifelongAgentBench's (envs/serve/lab.py).

Requests of web pages are refused. With host=0.0.0.0 other machines can reach the server: set token=, which env=http
sends from its environment variable ENVS_TOKEN; the originals' clients send none.
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import os
import re
import signal
import sys
import threading
from dataclasses import dataclass
from functools import partial

import envs
from envs.http import KINDS
from envs.http.agentgym import USUAL
from envs.http.lab import KINDS as LAB
from envs.http.wire import TOKEN
from envs.refusal import Refusal
from envs.requests import check_no_model
from envs.serve import Server, agentgym, lab
from envs.serve.access import Access, is_local, own_names
from rl.config import arguments, program
from rl.config.help import quiet_on_closed_pipe
from rl.config.refusals import hint
from rl.run import status

RANGES = {"port": (0, 65535), "items_port": (0, 65535), "sessions": (1, 10**6), "idle": (1, 10**9)}
RANGES |= {"samples": (1, 10**6), "client_sessions": (0, 10**6)}


@dataclass
class Keys:
    env: str = "textcraft"  # the environment to serve
    host: str = "127.0.0.1"  # the address to listen on; the default can be reached from this machine only
    port: int | None = None  # the port to listen on; 0: a free one; none: 36001, or 8000 for os_interaction, db_bench
    items_port: int = 8001  # os_interaction, db_bench: the port of the prompts (chat history items); 0: a free one
    sessions: int = 256  # most open sessions; os_interaction, db_bench: most cached ones, others are replayed
    client_sessions: int = 0  # most of them of one client's address; 0: all on this machine, else half of them
    idle: int = 600  # seconds without a request after which a session is closed
    samples: int = 500  # os_interaction, db_bench: number of samples that the server lists; it plays any number
    token: str = ""  # each request must have it (Authorization: Bearer ...); empty: ENVS_TOKEN's, if that is set
    names: str = ""  # further host names, by comma, under which clients reach this machine

    def __post_init__(self):
        if self.env not in KINDS:
            raise Refusal(f"env={self.env} is not one of {', '.join(KINDS)}{hint(self.env, KINDS)}")
        if self.port is None:
            self.port = 8000 if self.env in LAB else 36001
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise Refusal(f"{name} must be a whole number from {low} to {high}, not {getattr(self, name)}")
        self.token = self.token or os.environ.get(TOKEN, "").strip()
        if self.token and not re.fullmatch(r"[!-~]{8,}", self.token):
            raise Refusal("token must have at least 8 characters, ASCII letters, digits or punctuation")


def parse(words: list[str]) -> tuple[Keys, dict]:
    """Return this program's Keys and the environment's options. Exit with 2 on a wrong word."""
    if arguments.wants_help(words):
        kinds = KINDS
    else:
        kind = arguments.split(words).get("env", Keys.env)
        kinds = (kind,) if kind in KINDS else ()  # Keys refuses another name
    groups = {kind: envs.config_class(kind) for kind in kinds}
    ours = {kind: envs.WITHOUT_MODEL.get(kind, {}) | USUAL.get(kind, {}) for kind in kinds}
    usual = [f"{kind}.{key}={value}" for kind in kinds for key, value in ours[kind].items()]
    keys, *configs = program.parse(usual + words, "envs.serve", Keys, about=__doc__, **groups)
    options = vars(configs[0])
    check_no_model(keys.env, options)
    if options.get("tools") == "native":
        raise Refusal(f"{keys.env}.tools=native is not served: the clients' protocols have no tools")
    return keys, options


def servers(keys: Keys, options: dict) -> list[tuple[str, Server]]:
    """Return (what it serves, server) of each server. Raise OSError if a port cannot be bound."""
    access = Access(keys.token, own_names(keys.host, *keys.names.replace(" ", "").split(",")))
    share = keys.client_sessions or (keys.sessions if is_local(keys.host) else -(-keys.sessions // 2))
    if keys.env not in LAB:
        sessions = agentgym.Sessions(keys.env, options, keys.sessions, keys.idle, share)
        return [(keys.env, _listen(keys.host, keys.port, partial(agentgym.answer, sessions), access))]
    tasks = lab.Tasks(keys.env, options, keys.sessions, keys.samples, share)
    first = _listen(keys.host, keys.port, partial(lab.answer, tasks), access)
    items = _listen(keys.host, keys.items_port, partial(lab.answer_items, tasks), access)
    return [(keys.env, first), ("its prompts", items)]


def _listen(host: str, port: int, answer, access: Access) -> Server:
    try:
        return Server(host, port, answer, access)
    except (OSError, UnicodeError) as error:
        raise OSError(f"cannot listen on {host}:{port}: {getattr(error, 'strerror', None) or error}") from None


def main(words: list[str]) -> None:
    """Serve until Ctrl-C or SIGTERM. Exit with 2 on a wrong word, a file that cannot be used and a port in use."""
    try:
        keys, options = parse(words)
        envs.make(keys.env, **options)  # raises ValueError for a file or a setting that the environment cannot use
        running = servers(keys, options)
    except (ValueError, OSError) as error:
        arguments.fail("envs.serve", error)
    with status.ends_in_one_line("envs.serve"), quiet_on_closed_pipe():
        serve(keys, running)


def serve(keys: Keys, running: list[tuple[str, Server]]) -> None:
    """Print where the servers can be reached, and serve until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # while the event loop runs, it has a handler of its own
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    places = [f"{what} at http://{server.server_address[0]}:{server.server_address[1]}" for what, server in running]
    print(f"{', '.join(places)}, {keys.sessions} sessions at most; Ctrl-C stops it", flush=True)
    if not keys.token and not is_local(keys.host):
        print("envs.serve: other machines can reach this server, and it asks for no token: set token=", file=sys.stderr)
    try:
        for _, server in running[1:]:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        running[0][1].serve_forever()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        for _, server in running:
            server.server_close()


if __name__ == "__main__":
    main(sys.argv[1:])
