"""Serve a world over HTTP, for `env=http` or for the original's own clients.

    python -m envs.serve                                            textcraft on port 36001
    python -m envs.serve env=alfworld port=36002 alfworld.difficulty=1,2
    python -m envs.serve env=os_interaction                         its tasks on port 8000, its prompts on port 8001

Keys; those of the world itself stand behind its name, textcraft.difficulty=1:
    env=textcraft     webshop, alfworld, babyai, sciworld, textcraft, tau_retail or planner, as AgentGym's servers do
                      (envs/serve/agentgym.py); os_interaction or db_bench, as LifelongAgentBench's (envs/serve/lab.py)
    host=127.0.0.1    the address to listen on; this one is reached from this machine only
    port=36001        the port to listen on; 0 takes a free one; of os_interaction and db_bench 8000
    items_port=8001   os_interaction and db_bench: the port of the prompts (chat history items); 0 takes a free one
    sessions=256      how many may be open at once; a /create beyond them is answered with an error. Of os_interaction
                      and db_bench how many are kept: another one that goes on is played again from its start
    idle=600          seconds without a request after which a session is closed
    samples=500       os_interaction and db_bench: how many samples the server lists; it plays any number
"""

import signal
import sys
import threading
from dataclasses import fields
from difflib import get_close_matches
from functools import partial

import envs
from envs.__main__ import options_help
from envs.http import KINDS
from envs.http.lab import KINDS as LAB
from envs.serve import Server, agentgym, lab
from envs.terminal import reader_may_leave, typed

KEYS = {"env": "textcraft", "host": "127.0.0.1", "port": 36001, "items_port": 8001}
KEYS |= {"sessions": 256, "idle": 600, "samples": 500}
RANGES = {"port": (0, 65535), "items_port": (0, 65535), "sessions": (1, 10**6), "idle": (1, 10**9)}
RANGES |= {"samples": (1, 10**6)}
ASKS = {"planner": "worker", "tau_retail": "user"}  # world -> the option that may ask for a model


def parse(words: list[str]) -> tuple[dict, dict]:
    """The keys of this program, and the options of its world, each as the type of its default."""
    pairs = [word.partition("=") for word in words]
    for word, (_, equals, _) in zip(words, pairs, strict=True):
        if not equals:
            raise ValueError(f"expected key=value, not {word!r}")
    kind = ([text for key, _, text in pairs if key == "env"] or [KEYS["env"]])[-1]
    if kind not in KINDS:
        raise ValueError(f"env must be one of {', '.join(KINDS)}, not {kind!r}")
    usual = KEYS | ({"port": 8000} if kind in LAB else {})
    defaults = usual | {f"{kind}.{f.name}": f.default for f in fields(envs.config_class(kind))}
    values = {}
    for key, _, text in pairs:
        if key not in defaults:
            world, dot, _ = key.partition(".")
            if dot and world in KINDS and world != kind:
                raise ValueError(f"{key!r} belongs to env={world}, and this is env={kind}")
            own = f"{kind}.{key}"
            near = own if own in defaults else get_close_matches(key, defaults, n=1, cutoff=0)[0]
            raise ValueError(f"no key {key!r}; the nearest is {near!r}")
        values[key] = typed(key, text, type(defaults[key]))
    keys = usual | {key: value for key, value in values.items() if key in KEYS}
    for name, (low, high) in RANGES.items():
        if not low <= keys[name] <= high:
            raise ValueError(f"{name} must be a whole number from {low} to {high}, not {keys[name]}")
    options = {key.partition(".")[2]: value for key, value in values.items() if key not in KEYS}
    if options.get(ASKS.get(kind)) == "model":
        raise ValueError(f"{kind}.{ASKS[kind]}=model needs a model, and a server has none: it takes rules")
    envs.make(kind, **options)  # raises ValueError with what the world does not like
    return keys, options


def servers(keys: dict, options: dict) -> list[tuple[str, Server]]:
    """What is served where, the first one first. Raises OSError."""
    kind, host = keys["env"], keys["host"]
    if kind not in LAB:
        sessions = agentgym.Sessions(kind, options, keys["sessions"], keys["idle"])
        return [(kind, _listen(host, keys["port"], partial(agentgym.answer, sessions)))]
    tasks = lab.Tasks(kind, options, keys["sessions"], keys["samples"])
    first = _listen(host, keys["port"], partial(lab.answer, tasks))
    return [(kind, first), ("its prompts", _listen(host, keys["items_port"], partial(lab.answer_items, tasks)))]


def _listen(host: str, port: int, answer) -> Server:
    try:
        return Server(host, port, answer)
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from None


def main(words: list[str]) -> int:
    if {"-h", "--help"} & set(words):
        with reader_may_leave():
            print(__doc__ + "".join(f"\nKeys of {kind}:\n{options_help(kind)}" for kind in KINDS if kind in envs.NAMES))
        return 0
    try:
        keys, options = parse(words)
        running = servers(keys, options)
    except (ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    places = [f"{what} at http://{server.server_address[0]}:{server.server_address[1]}" for what, server in running]
    print(f"{', '.join(places)}, {keys['sessions']} sessions at most; Ctrl-C ends it", flush=True)
    try:
        for _, server in running[1:]:
            threading.Thread(target=server.serve_forever, daemon=True).start()
        running[0][1].serve_forever()
    except KeyboardInterrupt:
        print("ended")
    finally:
        for _, server in running:
            server.server_close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
