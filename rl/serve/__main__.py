"""Serve a base model and adapters by OpenAI's protocol: python -m rl.serve adapter=mine=runs/x/epoch_10

    python -m rl.serve adapter=runs/x/epoch_5,best=runs/x/epoch_10    # model names tiny, runs/x/epoch_5 and best
    curl http://127.0.0.1:8000/v1/completions -d '{"model": "best", "prompt": "Goal: ", "max_tokens": 20}'

Any client of that protocol works with base_url=http://127.0.0.1:8000/v1; rl/serve/protocol.py says what is spoken.
Requests are sampled together, with the keys and values of earlier conversations where a request goes on with one.
With host=0.0.0.0 other machines can reach the server: set key=, which clients send as their API key.
"""

import os
import re
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch

import lora
from envs.serve import Server
from envs.serve.access import Access, is_local, own_names
from models import choose_threads, keep_memory, load_model, load_tokenizer
from rl import arguments, program
from rl.arguments import NotNegative, Positive
from rl.guard import ends
from rl.guard.checks import without_auto
from rl.help import quiet_on_closed_pipe
from rl.quantised import with_base
from rl.serve.protocol import ErrorHandler, Protocol
from rl.serve.sampler import Sampler

KEY = "SERVE_KEY"  # the environment variable of the server's key


@dataclass(frozen=True)
class Keys:
    model: str = "tiny"  # the base: tiny, a folder or a hub id; default: the base that the first adapter names
    adapter: str = ""  # adapters' folders by comma, served under their names; NAME=FOLDER gives another name
    host: str = "127.0.0.1"  # the address to listen on; the default can be reached from this machine only
    port: NotNegative[int] = 8000  # the port to listen on; 0: a free one
    key: str = ""  # each request must have it (Authorization: Bearer ...); empty: SERVE_KEY's, if that is set
    names: str = ""  # further host names, by comma, under which clients reach this machine
    load: bool = False  # let requests load adapters from folders of this machine, and unload them
    rows: Positive[int] = 64  # sequences that are sampled at once, for each adapter
    max_len: NotNegative[int] = 0  # most tokens of a prompt and its reply; 0: the model's, at most 8192
    queue: Positive[int] = 1024  # requests that may wait for a row; more are refused with status 429
    thinking: bool = True  # false: answers without thoughts (Qwen3) where a request does not say
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # of the weights; auto: bfloat16 on CUDA
    quant: Literal["none", "nf4", "nf4-double", "int8"] = "none"  # 4 or 8 bits for the weights of the blocks
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where to compute; auto: on CUDA if there is a device
    threads: NotNegative[int] = 0  # torch threads on a CPU; 0: one for a small model, else all
    products: Literal["auto", "onednn", "plain"] = "auto"  # float32 products on a CPU; auto: whichever is faster

    def __post_init__(self):
        if self.port > 65535:
            raise ValueError(f"port={self.port} must be at most 65535")
        key = self.key or os.environ.get(KEY, "").strip()
        if key and not re.fullmatch(r"[!-~]{8,}", key):
            raise ValueError("key must have at least 8 characters, ASCII letters, digits or punctuation")
        object.__setattr__(self, "key", key)
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device=cuda: this machine, or this torch, has no CUDA device; use device=cpu")


def adapters(words: str) -> dict[str, Path]:
    """Return {name: folder} of adapter=. Raise ArgumentError for a name that comes twice."""
    found = {}
    for word in filter(None, (word.strip() for word in words.split(","))):
        name, _, folder = word.rpartition("=")
        if (name or folder) in found:
            raise arguments.ArgumentError(f"adapter={words}: two adapters are named {name or folder}")
        found[name or folder] = Path(folder)
    return found


def load(keys: Keys) -> Sampler:
    """Return a sampler of the model and its adapters."""
    folders, keys = adapters(keys.adapter), without_auto(keys)
    for folder in folders.values():
        lora.read_adapter_config(folder)  # a misspelt folder fails before the model is loaded
    tokenizer = load_tokenizer(keys.model, keys.thinking)
    keep_memory()
    model = load_model(keys.model, getattr(torch, keys.dtype), keys.device, quant=keys.quant)
    choose_threads(model, keys.threads, False, keys.products)
    most = model.config.max_position_embeddings
    if keys.max_len > most:
        raise ValueError(f"max_len={keys.max_len} is more than the model's max_position_embeddings, {most}")
    sampler = Sampler(model, tokenizer, keys.rows, keys.max_len or min(most, 8192), keys.queue)
    for name, folder in folders.items():
        if name == keys.model:
            raise ValueError(f"adapter={name}: the base model has this name; NAME=FOLDER gives another")
        sampler.load(name, folder)
    return sampler


def listen(keys: Keys, sampler: Sampler) -> Server:
    """Return a server that is bound to its port. Raise OSError if it cannot be."""
    without_thoughts = load_tokenizer(keys.model, False)
    protocol = Protocol(sampler, keys.model, sampler.tokenizer, without_thoughts, keys.load)
    access = Access(keys.key, own_names(keys.host, *keys.names.replace(" ", "").split(",")), "as its API key")
    try:
        server = Server(keys.host, keys.port, protocol.answer, access)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OSError(f"cannot listen on {keys.host}:{keys.port}: {reason}") from None
    server.handler = ErrorHandler
    protocol.run_soon = partial(_run_soon, server)
    return server


def _run_soon(server: Server, function) -> None:
    with suppress(RuntimeError):  # the server has stopped
        server.loop.call_soon_threadsafe(function)


def serve(keys: Keys, sampler: Sampler, server: Server) -> None:
    """Print where the server can be reached, and serve until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # while the event loop runs, it has a handler of its own
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    names, place = ", ".join([keys.model, *sampler.adapters]), "http://{}:{}/v1".format(*server.server_address)
    print(f"{names} at {place}, {sampler.rows} sequences at once; Ctrl-C stops it", flush=True)
    if not keys.key and not is_local(keys.host):
        print("rl.serve: other machines can reach this server, and it asks for no key: set key=", file=sys.stderr)
    sampler.start()
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped")
    finally:
        server.server_close()
        sampler.stop()


def main(words: list[str]) -> None:
    with ends.exits_cleanly("rl.serve"):
        given = dict(word.split("=", 1) for word in words if "=" in word)
        words = with_base(words, list(map(str, adapters(given.get("adapter", "")).values())))
    [keys] = program.parse(words, "rl.serve", Keys, about=__doc__)
    with ends.exits_cleanly("rl.serve", needs="rows= and max_len= bound the memory of keys and values"):
        sampler = load(keys)
        server = listen(keys, sampler)
        with quiet_on_closed_pipe():
            serve(keys, sampler, server)


if __name__ == "__main__":
    main(sys.argv[1:])
