"""Success of a model or an adapter on held-out tasks: python eval.py adapter=runs/x/epoch_10 env=textcraft

Plays the same tasks sampled at the training temperature and greedily, with 80 % Jeffreys intervals. Without adapter= it
plays the base model; several by comma (`adapter=base,runs/x/epoch_10`) play the same tasks. With server= the model runs
on a server (rl/remote.py). --help lists every key.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

import lora
from envs.http.exchange import is_address
from models import choose_threads, keep_memory, load_model, load_tokenizer
from models.truncation import truncated
from rl import arguments, as_trained, config, ranks
from rl.arguments import NotNegative, Positive
from rl.evaluate import describe, evaluate
from rl.guard import ends, signals
from rl.quantised import with_base
from rl.ranks import start
from rl.whole_split import with_every_task


@dataclass(frozen=True)
class Keys:
    adapter: str = "base"  # adapters' folders by comma, compared on the same tasks; base: without an adapter
    split: Literal["test", "val", "train"] = "test"  # tasks to play
    n: NotNegative[int] = 200  # number of tasks; 0: each task of data= once, in order, with splits=own
    top_k: NotNegative[int] = 0  # sample from that many most likely tokens; 0: all, as in training
    top_p: Positive[float] = 1.0  # sample from the fewest tokens that have this probability together
    server: str = ""  # play here, at http://host:port/v1 of the OpenAI protocol; model= and adapter= are its names
    json: str = ""  # also write the results to this file


TRAINING = {
    "eval_episodes": "n",
    "episodes": "n",
    "eval_split": "split",
    "sampler": "server",
}  # keys of train.py and their names here


def as_trained_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words after those of the adapters' runs: what these played (rl/as_trained.py), base model and
    quantisation (rl/quantised.py), and lines to print. A run's folder among the adapters becomes its best epoch's."""
    if arguments.wants_help(words):
        return words, []
    given = arguments.split(words)
    if "server" in given:  # the names are the server's
        return words, []
    chosen = [as_trained.best_of_run(name.strip()) for name in given.get("adapter", "base").split(",")]
    names = [name for name, _ in chosen if name not in ("", "base")]
    best = any(line for _, line in chosen)
    named = [*words, f"adapter={','.join(name for name, _ in chosen)}"] if best else words
    model = given.get("model", "")
    sources = names or [model for model in [model] if model and as_trained.settings_of(Path(model))]
    lines = [line for _, line in chosen if line] + as_trained.origin(words, sources)
    return with_base(as_trained.with_settings(named, sources), names), lines


def check(keys: Keys, words: list[str]) -> None:
    """Raise ArgumentError for keys that cannot be used."""
    for word in words:
        if word.startswith("plan="):
            raise arguments.ArgumentError("plan= is a key of train.py")
        if word.split("=")[0] in TRAINING:
            raise arguments.ArgumentError(f"{word} is a key of train.py; here it is {TRAINING[word.split('=')[0]]}=")
    if keys.server and not is_address(keys.server):
        raise arguments.ArgumentError(f"server={keys.server} is not a URL up to /v1, such as http://localhost:8000/v1")
    if keys.server and not any(word.startswith("model=") for word in words):
        raise arguments.ArgumentError("server= needs model=, the server's name of its base model")
    if keys.top_p > 1:
        raise arguments.ArgumentError(f"top_p={keys.top_p}: a probability, at most 1")
    if keys.server and (keys.top_k or keys.top_p < 1):
        raise arguments.ArgumentError("top_k= and top_p= do nothing with server=: the server samples")
    if keys.json and (Path(keys.json).is_dir() or not Path(keys.json).absolute().parent.is_dir()):
        raise arguments.ArgumentError(f"json={keys.json} is not a file in an existing folder")


def evaluators_here(cfg: Any, names: list[str]) -> Iterator[tuple[str, Callable]]:
    """Yield each name with the function that evaluates it in this process."""
    tokenizer = load_tokenizer(cfg.model, cfg.thinking)
    for name in names:
        if name != "base":
            lora.read_adapter_config(Path(name))  # a misspelt folder fails before the first evaluation
    keep_memory()
    for name in names:
        model = load_model(cfg.model, getattr(torch, cfg.dtype), cfg.device, cfg.exact, cfg.quant, ranks.reader(cfg))
        ranks.chosen(choose_threads, model, cfg.threads, False, cfg.products)
        if name != "base":
            lora.load_adapter(model, Path(name))
        yield name, partial(evaluate, model, tokenizer)


def evaluators_on_server(cfg: Any, names: list[str], url: str) -> Iterator[tuple[str, Callable]]:
    """Yield each name with the function that evaluates it on a server."""
    from rl import remote

    server = remote.Server(url.rstrip("/"), cfg.thinking)
    known, served_as = server.names(), {name: cfg.model if name == "base" else name for name in names}
    for name in served_as.values():
        if name not in known:
            raise ValueError(f"the server has no model {name!r}; it has {', '.join(known)}")
    for name in names:
        yield name, partial(remote.evaluate, server, served_as[name])


def main(cfg: Any, keys: Keys, lines: Iterable[str] = ()) -> None:
    print(*lines, sep="\n", end="\n" * bool(lines), flush=True)
    names, results = [name.strip() for name in keys.adapter.split(",")], {}
    evaluators = evaluators_on_server(cfg, names, keys.server) if keys.server else evaluators_here(cfg, names)
    for name, play in evaluators:
        for temperature in dict.fromkeys((cfg.temperature, 0.0)):
            with truncated(keys.top_k, keys.top_p):
                result = play(cfg, temperature, keys.split, keys.n)
            results.setdefault(name, []).append(result)
            print(f"{name}: {keys.split} {describe(result)}", flush=True)
            for env, one in result["by_env"].items() if len(result["by_env"]) > 1 else ():
                print(f"    {env}: {one['success']:.1%} ({one['low']:.1%} to {one['high']:.1%}, n={one['episodes']})")
    if keys.json and ranks.is_first():
        Path(keys.json).write_text(json.dumps({"config": asdict(cfg), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    with signals.handled():
        with ends.exits_cleanly("eval.py"):
            words, lines = as_trained_words(sys.argv[1:])
            cfg, keys = config.parse(words, "eval.py", Keys)
            check(keys, words)
            cfg, keys = with_every_task(cfg, keys)
        with ends.exits_cleanly("eval.py", cfg):
            cfg = replace(cfg, sampler="", ranks=1 if keys.server else cfg.ranks)
            lines.append(as_trained.describe(cfg))
            start.run(partial(main, keys=keys, lines=lines), cfg, groups=keys.n)
