"""Success of a model or an adapter on held-out tasks: python eval.py adapter=runs/x/epoch_10 env=textcraft

Plays the same tasks sampled at the training temperature and greedily, with 80 % Jeffreys intervals. Without adapter= it
plays the base model; several by comma (`adapter=base,runs/x/epoch_10`) play the same tasks. With server= it plays what
a server answers: rl/served.py. --help lists every key.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

import lora
from models import choose_threads, keep_memory, load_model, load_tokenizer
from models.weights import TINY
from rl import config, served
from rl.evaluate import describe, evaluate


@dataclass
class Keys:
    adapter: str = "base"  # adapters' folders by comma, to be compared on the same tasks; base is none
    split: str = "test"  # tasks to play: test | val | train
    n: int = 200  # tasks
    server: str = ""  # play here, at http://host:port/v1 of the OpenAI protocol; model= and adapter= are its names
    json: str = ""  # also write the results to this file


TRAINING = {"eval_episodes": "n", "episodes": "n", "eval_split": "split"}  # keys of train.py, and what they are here


def with_base(words: list[str]) -> list[str]:
    """The words with the model that the first adapter names, where they name none."""
    given = dict(word.split("=", 1) for word in words if "=" in word)
    adapters = [name for name in given.get("adapter", "").split(",") if name not in ("", "base")]
    if "model" in given or not adapters:
        return words
    try:
        base = lora.read_adapter_config(Path(adapters[0])).get("base_model_name_or_path")
    except (OSError, ValueError):  # told later
        return words
    return [*words, f"model={'tiny' if Path(base).resolve() == TINY.resolve() else base}"] if base else words


def wrong(keys: Keys, words: list[str]) -> str:
    """What is wrong with the keys, in one line; nothing, if they can be."""
    for word in words:
        if word.split("=")[0] in TRAINING:
            return f"{word} is a key of train.py; here it is {TRAINING[word.split('=')[0]]}="
    if keys.split not in ("test", "val", "train"):
        return f"split={keys.split} is not one of test, val, train"
    if keys.n < 1:
        return f"n={keys.n} must be positive"
    if keys.server and not re.fullmatch(r"https?://[^/:?#\s]+(:\d+)?(/[^?#\s]*)?", keys.server):
        return f"server={keys.server} is not a URL up to /v1, such as http://localhost:8000/v1"
    if keys.server and not any(word.startswith("model=") for word in words):
        return "server= needs model=, the server's name of its base model"
    if keys.json and not Path(keys.json).absolute().parent.is_dir():
        return f"json={keys.json}: there is no folder {Path(keys.json).parent}"
    return ""


def local(cfg, names: list[str]) -> Iterator[tuple[str, Callable]]:
    """Each name with what evaluates it in this process."""
    tokenizer = load_tokenizer(cfg.model, cfg.thinking)
    for name in names:
        if name != "base":
            lora.read_adapter_config(Path(name))  # a typing error costs no evaluation
    keep_memory()
    for name in names:
        model = load_model(cfg.model, getattr(torch, cfg.dtype), cfg.device, cfg.exact)
        choose_threads(model, cfg.threads)
        if name != "base":
            lora.load_adapter(model, Path(name))
        yield name, partial(evaluate, model, tokenizer)


def remote(cfg, names: list[str], url: str) -> Iterator[tuple[str, Callable]]:
    """Each name with what evaluates it on a server."""
    server = served.Server(url.rstrip("/"), cfg.thinking)
    known, called = server.names(), {name: cfg.model if name == "base" else name for name in names}
    for name in called.values():
        if name not in known:
            raise ValueError(f"the server has no model {name!r}; it has {', '.join(known)}")
    for name in names:
        yield name, partial(served.evaluate, server, called[name])


def main(cfg, keys: Keys) -> None:
    names, results = [name.strip() for name in keys.adapter.split(",")], {}
    for name, play in remote(cfg, names, keys.server) if keys.server else local(cfg, names):
        for temperature in dict.fromkeys((cfg.temperature, 0.0)):
            result = play(cfg, temperature, keys.split, keys.n)
            results.setdefault(name, []).append(result)
            print(f"{name}: {keys.split} {describe(result)}", flush=True)
            for env, one in result["by_env"].items() if len(result["by_env"]) > 1 else ():
                print(f"    {env}: {one['success']:.1%} ({one['low']:.1%} to {one['high']:.1%}, n={one['episodes']})")
    if keys.json:
        Path(keys.json).write_text(json.dumps({"config": config.to_dict(cfg), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    words = with_base(sys.argv[1:])
    cfg, keys = config.parse(words, "eval.py", Keys)
    if wrong(keys, words):
        print(f"eval.py: {wrong(keys, words)}", file=sys.stderr)
        sys.exit(2)
    try:
        main(cfg, keys)
    except (OSError, ValueError) as error:
        sys.exit(f"eval.py: {error}")
    except KeyboardInterrupt:
        sys.exit("eval.py: interrupted")
