"""Success of a model or an adapter on held-out tasks: python eval.py adapter=runs/x

An adapter plays what its run played (rl/judge/adapter_settings.py), and a run's folder means its best epoch; keys given
here win.
Each task is played at the training temperature and greedily. Without adapter= the base model plays; several adapters by
comma (`adapter=base,runs/x/epoch_10`) play the same tasks and are compared. With server= the model runs on a server
(rl/remote/evaluation.py). docs/glossary.md explains the numbers; --help lists its keys.
"""

if __name__ == "__main__":
    import rl.run.early_interrupt  # noqa: F401

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

import lora
import merge
from envs.http.exchange import is_address
from models import choose_threads, keep_memory, load_model, load_tokenizer
from models.hooks import keep_copies
from models.memory import end_phase
from models.truncation import truncated
from rl import ranks
from rl.config import arguments, checks, model_checks
from rl.config.arguments import ArgumentError, NotNegative, Positive
from rl.config.fields import Config, Experiment
from rl.config.refusals import Refusal
from rl.config.words import parse
from rl.evaluate import describe, held_out_tasks
from rl.judge import adapter_settings, transcripts
from rl.judge import results as judge
from rl.judge.adapter_settings import count_tasks, with_base
from rl.ranks import launch
from rl.remote import evaluation
from rl.run import bases, exits, history, signals
from rl.run.files import write_text
from rl.run.phases import phase
from rl.tools import check_tools, with_tools


@dataclass(frozen=True)
class Keys:
    """The evaluation itself."""

    adapter: str = "base"  # adapters' folders by comma, compared on the same tasks; base: no adapter
    split: Literal["test", "val", "train"] = "test"  # tasks to play
    n: NotNegative[int] = 200  # number of tasks, of a file's each at most once; 0: all of a file's, in order
    top_k: NotNegative[int] = 0  # sample from that many most likely tokens; 0: all, as in training
    top_p: Positive[float] = 1.0  # sample from the fewest tokens that have this probability together
    server: str = ""  # play on this server, http://host:port/v1; model= and adapter= are its names
    json: str = ""  # also write the results to this file
    show: NotNegative[int] = 0  # also print so many episodes of each policy, sampled and greedy
    save_episodes: str = ""  # also write all episodes to this new file, as in a run's episodes.jsonl
    samples: Positive[int] = 1  # times that each task is played sampled, for pass@k
    k: str = ""  # also print pass@k for these k by comma, each at most samples
    against: str = ""  # compare with the results in this file, which json= wrote
    mode: Literal["evaluate", "merge", "both"] = "evaluate"  # evaluate | merge the adapter into out= | play the merged
    out: str = ""  # mode=merge|both: the folder for the merged checkpoint; must not exist

    @property
    def truncation(self) -> dict[str, float]:
        return {"top_k": self.top_k, "top_p": self.top_p}

    @property
    def ks(self) -> list[int]:
        return [arguments.convert("k", k, Positive[int]) for k in self.k.split(",") if k]


# keys of train.py and their names here
TRAINING = {"eval_episodes": "n", "episodes": "n", "eval_split": "split", "sampler": "server"}
TRAINING |= {"resume": "adapter", "resume_from": "adapter", "data": "env=qa qa.data"}


def words_and_lines_as_trained(words: list[str]) -> tuple[list[str], list[str]]:
    """Return (words, lines): the words behind the settings with which the adapters' runs played, with their base model
    and quantisation (rl/judge/adapter_settings.py), and lines about these to print. A run's folder in adapter= becomes
    its best epoch."""
    if arguments.wants_help(words):
        return words, []
    given = arguments.split(words)
    if "server" in given:  # the names are the server's
        return words, []
    chosen = [history.best_of_run(name.strip()) for name in given.get("adapter", "base").split(",")]
    names = [name for name, _ in chosen if name not in ("", "base")]
    for name in names:
        checks.check_adapter(name)
        if names.count(name) > 1:
            raise ArgumentError(f"adapter={given['adapter']}: {name} is named twice")
    best = any(line for _, line in chosen)
    named = [*words, f"adapter={','.join(name for name, _ in chosen)}"] if best else words
    model = given.get("model", "")
    trained_whole = bool(model) and adapter_settings.settings_of(Path(model)) is not None  # an epoch of lora.r=0
    sources = names or [model] * trained_whole
    lines = [line for _, line in chosen if line] + adapter_settings.origin(words, sources)
    return with_base(adapter_settings.with_settings(named, sources), names), lines


def check_names(words: list[str]) -> None:
    """Raise ArgumentError for a key of train.py that has another name here, and that would be read as a setting."""
    for word in words:
        if "=" in word and (key := arguments.key_of(word)) in TRAINING:  # without it, a topic of --help
            raise ArgumentError(f"{word} is a key of train.py; here it is {TRAINING[key]}=")


def check(keys: Keys, words: list[str], temperature: float) -> None:
    """Raise ArgumentError for keys that cannot be used. temperature: of sampled play."""
    given = {arguments.key_of(word): word for word in words}
    if wrong := [key for key in ("plan", "rollouts") if key in given]:
        raise ArgumentError(f"{wrong[0]}= is a key of train.py")
    if "seed" in given:
        raise ArgumentError(
            "seed= does nothing here: tasks and draws are the same each time; samples=N plays a task N times"
        )
    if keys.server and not is_address(keys.server):
        raise ArgumentError(f"server={keys.server} is not a URL up to /v1, such as http://localhost:8000/v1")
    if keys.server and "model" not in given:
        raise ArgumentError("server= needs model=, the server's name of its base model")
    if keys.top_p > 1:
        raise ArgumentError(f"top_p={keys.top_p}: a probability, at most 1")
    if keys.server and (keys.top_k or keys.top_p < 1):
        raise ArgumentError("top_k= and top_p= do nothing with server=: the server samples")
    if keys.server and "max_thinking_tokens" in given:
        raise ArgumentError("max_thinking_tokens= does nothing with server=: the server ends a thought or does not")
    if keys.ks and max(keys.ks) > keys.samples:
        raise ArgumentError(f"k={keys.k} needs samples={max(keys.ks)} or more; samples={keys.samples}")
    if not temperature and (keys.samples > 1 or (keys.ks and max(keys.ks) > 1)):
        raise ArgumentError("samples= and k= count sampled play, and temperature=0 plays greedily")
    if keys.mode != "evaluate" and (keys.server or "," in keys.adapter or keys.adapter == "base" or not keys.out):
        raise ArgumentError(f"mode={keys.mode} merges one adapter= of this machine into out=, a new folder")
    of_evaluation = [word for key, word in given.items() if key in ("json", "show", "against", "save_episodes")]
    if keys.mode == "merge" and of_evaluation:
        raise ArgumentError(f"{of_evaluation[0]} needs an evaluation, and mode=merge makes none; mode=both does")
    if keys.mode != "evaluate" and "RANK" in os.environ and launch.STARTED not in os.environ:
        raise ArgumentError(f"mode={keys.mode} merges in one process: without torchrun, or with ranks=N")
    if keys.mode == "evaluate" and keys.out:
        raise ArgumentError("out= is the merged checkpoint of mode=merge|both; json= saves results")
    if keys.against and not Path(keys.against).is_file():
        raise ArgumentError(f"against={keys.against} is not a file; json= of an earlier evaluation writes one")
    if keys.server and (keys.show or keys.save_episodes):
        raise ArgumentError("show= and save_episodes= need the tokens of episodes, which a server= does not send")
    if keys.save_episodes and (Path(keys.save_episodes).exists() or not Path(keys.save_episodes).parent.is_dir()):
        raise ArgumentError(f"save_episodes={keys.save_episodes} must be a new file in an existing folder")
    if keys.json and Path(keys.json).is_file() and not judge.wrote(Path(keys.json)):
        raise ArgumentError(f"json={keys.json} is there, and eval.py did not write it; give another file")
    if keys.json and (Path(keys.json).is_dir() or not Path(keys.json).absolute().parent.is_dir()):
        raise ArgumentError(f"json={keys.json} is not a file in an existing folder")
    if keys.json and not os.access(folder := Path(keys.json).absolute().parent, os.W_OK):
        raise ArgumentError(f"json={keys.json}: {folder} is not writable")
    if "" in keys.adapter.split(","):
        raise ArgumentError(f"adapter={keys.adapter}: a name is empty")


def evaluators_here(cfg: Config, names: list[str]) -> Iterator[tuple[str, Callable]]:
    """Yield each name with the function that evaluates it in this process. Before the next one is loaded its memory is
    freed, if the function is no longer referenced."""
    tokenizer = load_tokenizer(cfg.model, cfg.thinking, cfg.history == "template")
    tokenizer.prompt([{"role": "user", "content": "?"}])  # an unknown chat format fails before the weights are read
    model_checks.check_thinking(cfg, tokenizer)
    check_tools(tokenizer, cfg)
    keep_memory()
    for name in names:
        with phase("load"):
            dtype, read = getattr(torch, cfg.dtype), launch.reader(cfg)
            model = load_model(cfg.model, dtype, cfg.device, cfg.exact, cfg.quant, read)
        with phase("trial"):
            ranks.chosen(choose_threads, model, cfg.threads, False, cfg.products, cfg.rollout_batch_size)
        if name != "base":
            with phase("load"):
                bases.check(Path(name), tokenizer.folder, model.config.quant)
                lora.load_adapter(model, Path(name))
        yield name, partial(judge.play, model, tokenizer)
        del model
        keep_copies(True)  # drops copies of weights, and the engine that is kept for the next rollout
        end_phase()  # gives freed memory back


def evaluators_on_server(cfg: Experiment, names: list[str], url: str) -> Iterator[tuple[str, Callable]]:
    """Yield each name with the function that evaluates it on a server."""
    for name in with_tools(cfg):
        raise Refusal(f"{name}.tools=native is not played over server=: leave server= out, or set {name}.tools=none")
    server = evaluation.Server(url.rstrip("/"), cfg.thinking, opens_thought=evaluation.opens_thought(cfg))
    known, served_as = server.names(), {name: cfg.model if name == "base" else name for name in names}
    for name in served_as.values():
        if name not in known:
            raise Refusal(f"the server has no model {name!r}; it has {', '.join(known)}")
    for name in names:
        yield name, partial(evaluation.play_all, server, served_as[name])


def main(cfg: Config, keys: Keys, lines: Iterable[str] = ()) -> None:
    print(*lines, sep="\n", end="\n" * bool(lines), flush=True)
    played = adapter_settings.what_is_played(cfg, keys.truncation)
    tasks = held_out_tasks(cfg, keys.n, 1, keys.split)
    saved = judge.saved_results(keys.against, played, keys.split, tasks) if keys.against else {}
    names, results = [name.strip() for name in keys.adapter.split(",")], {}
    evaluators = evaluators_on_server(cfg, names, keys.server) if keys.server else evaluators_here(cfg, names)
    for name, play in evaluators:
        policy = policy_name(name, cfg, keys)
        for temperature in dict.fromkeys((cfg.temperature, 0.0)):
            samples = keys.samples if temperature else 1  # greedy play repeats itself
            tasks = held_out_tasks(cfg, keys.n, samples, keys.split)
            with truncated(cfg.device, keys.top_k, keys.top_p):
                episodes = play(cfg, temperature, tasks)
            result = judge.result(episodes, temperature, keys.split, [k for k in keys.ks if k <= samples])
            results.setdefault(policy, []).append(result)
            if keys.json:  # after each result, because a later evaluation may fail
                save(Path(keys.json), cfg, played=played, results=results, comparisons=[])
            print(f"{policy}: {keys.split} {describe(result)}", *judge.table(result), sep="\n", flush=True)
            if keys.save_episodes:
                transcripts.save(Path(keys.save_episodes), policy, temperature, episodes)
            if keys.show:
                tokenizer = load_tokenizer(cfg.model, cfg.thinking, cfg.history == "template")
                print(*(transcripts.transcript(e, tokenizer) for e in episodes[: keys.show]), sep="\n\n", flush=True)
        del play  # with its model
    comparisons = compare(saved | results, list(saved) or list(results)[:1], list(results))
    if keys.json:
        save(Path(keys.json), cfg, played=played, results=results, comparisons=comparisons)


def save(path: Path, cfg: Config, **report: object) -> None:
    """Write a report and its settings as JSON."""
    if ranks.is_first():
        write_text(path, json.dumps({"config": cfg.as_dict(), **report}, indent=2) + "\n")


def policy_name(name: str, cfg: Experiment, keys: Keys) -> str:
    """Return the name of a policy's results: the adapter's, or the folder of a model that a run has made, or "base"."""
    is_made = name == "base" and not keys.server and adapter_settings.settings_of(Path(cfg.model)) is not None
    return keys.out or (cfg.model if is_made else name)


def compare(results: dict[str, list[dict]], references: list[str], names: list[str]) -> list[dict]:
    """Print and return the differences between each policy and each reference, and the policies on the Pareto frontier,
    for sampled and for greedy play."""
    comparisons = []
    played = [(name, result) for name in results for result in results[name]]
    for temperature in dict.fromkeys(result["temperature"] for name in names for result in results[name]):
        at_temperature = {name: result for name, result in played if result["temperature"] == temperature}
        pairs = [(name, other) for other in references if other in at_temperature for name in names if name != other]
        lines = [judge.compared(name, at_temperature[name], other, at_temperature[other]) for name, other in pairs]
        print(*map(judge.describe_difference, lines), sep="\n", end="\n" * bool(lines))
        if len(at_temperature) > 1 and lines:
            front = judge.pareto(at_temperature)
            print(judge.describe_pareto(front))
            comparisons.append({"temperature": temperature, "differences": lines, "pareto": front})
    return comparisons


def merged(cfg: Config, keys: Keys, dtype: str) -> tuple[Config, Keys]:
    """Merge the adapter into out=, as merge.py does, unless the process that started this rank has. Return the settings
    and keys to evaluate the merged checkpoint with.

    dtype: as given; "auto" or "": the base's.
    """
    if "RANK" not in os.environ:
        base = {"model": cfg.model, "quant": cfg.quant, "device": cfg.device}
        base |= {"dtype": dtype} if dtype in merge.DTYPES else {}
        try:
            merge.main(merge.Keys(out=keys.out, adapter=keys.adapter, **base))
        except merge.Inaccurate as error:
            command = f"python merge.py model={cfg.model} adapter={keys.adapter} out={keys.out}"
            raise Refusal(f"{error}; of these eval.py takes dtype= alone, for the others: {command} ...") from None
    return replace(cfg, model=keys.out, quant="none"), replace(keys, adapter="base")


if __name__ == "__main__":
    with signals.handled():
        with exits.exits_cleanly("eval.py"):
            check_names(sys.argv[1:])
            words, lines = words_and_lines_as_trained(sys.argv[1:])
            cfg, keys = parse(words, "eval.py", Keys)
            check(keys, words, cfg.temperature)
            if not keys.n:
                cfg, keys = replace(cfg, order="sequential"), replace(keys, n=count_tasks(cfg, keys.split))
            if not keys.server:  # whose model= is its own name
                model_checks.check(cfg, training=False)
        with exits.exits_cleanly("eval.py", cfg):
            cfg = replace(cfg, sampler="", ranks=1 if keys.server else cfg.ranks)
            lines.append(adapter_settings.describe(cfg, keys.truncation))
            if keys.mode != "evaluate":
                cfg, keys = merged(cfg, keys, arguments.split(words).get("dtype", ""))
            if keys.mode != "merge":
                launch.run(partial(main, keys=keys, lines=lines), cfg, keys.n, computed=keys.mode == "both")
