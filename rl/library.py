"""The library for notebooks: load a model, sample from it, score texts, train.

    from rl import load, train

    policy = load("tiny")                                  # or load(adapter="runs/x"), over the base of that adapter
    policy.generate("Goal: craft oak door.", n=4)          # four replies
    policy.log_probs("get 1 oak plank", prompt="Goal: craft oak door.")     # (token, nats)
    run = train(algo="grpo", env="textcraft", epochs=2, lora={"r": 4}, **{"grpo.group_size": 4})
    load(adapter=run.folder).generate("Goal: craft oak door.")

Settings are those of the command line. A wrong one raises ValueError with the line that the program would print.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

import lora
import train as program
from envs.read_once import read_anew
from models import CausalLM, Tokenizer
from models.engine import Engine
from models.logprob import token_logprobs
from rl.config import arguments, words
from rl.config.arguments import ArgumentError
from rl.config.fields import LEAST_TEMPERATURE
from rl.config.program import check_keys
from rl.config.refusals import Refusal
from rl.judge.adapter_settings import with_base
from rl.ranks import launch
from rl.report.picture import learning_curve
from rl.run import bases, history, signals
from rl.serve.loading import MOST, ModelKeys, load_base

Prompt = str | list[dict[str, Any]]  # what a user says, or messages with a role and a content


class Policy:
    """A model that replies and scores replies, with its active adapter if it has one.

    `with lora.adapters_off(policy.model): ...` is the base. max_len: most tokens of a prompt and its reply.
    """

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, max_len: int = 0):
        self.model, self.tokenizer = model, tokenizer
        self.max_len = max_len or min(model.config.max_position_embeddings, MOST)

    def generate(
        self, prompt: Prompt, n: int | None = None, max_new_tokens: int = 512, temperature: float = 1.0, seed: int = 0
    ) -> str | list[str]:
        """Return the text of a reply, without control tokens; with `n` a list of n texts.

        temperature: 0 takes the most likely tokens. seed: equal calls return equal texts, and the first of n replies is
        the same for every n. A reply ends at a stop token, at max_new_tokens or at max_len.
        Raise ValueError for a prompt without room for a reply, n or max_new_tokens below 1, a seed that is not from 0
        to 2**31 - 1, a temperature that is below 0, infinite, or too small to divide by.
        """
        ids, rows = self._prompt_ids(prompt), 1 if n is None else n
        for name, value, least in (("n", rows, 1), ("max_new_tokens", max_new_tokens, 1), ("seed", seed, 0)):
            if type(value) is not int or not least <= value < 2**31:
                raise Refusal(f"{name}={value} must be at least {least}, a whole number below 2**31")
        if not (temperature == 0 or LEAST_TEMPERATURE <= temperature < math.inf):
            raise Refusal(f"temperature={temperature} must be 0, or a finite number from {LEAST_TEMPERATURE:g} on")
        max_len = min(self.max_len, len(ids) + max_new_tokens)
        # Steps are not enqueued ahead: for one call a CUDA graph would take longer than it saves.
        engine = Engine(self.model, rows, max_len, lora.adapter_version(self.model), graph=False)
        first = engine.open((seed, 0))
        engine.feed(first, ids)
        for number in range(1, rows):
            engine.open((seed, number), parent=first)
        turns = list(engine.run(max_new_tokens, temperature, self.tokenizer.eos_ids))
        texts = [self.tokenizer.decode(turn.ids) for turn in sorted(turns, key=lambda turn: turn.slot)]
        return texts[0] if n is None else texts

    @torch.no_grad()
    def log_probs(self, text: str, prompt: Prompt | None = None) -> list[tuple[str, float]]:
        """Return (token, its log-probability in nats at temperature 1) for each token of a text.

        prompt: the text is the reply to it, and the token that ends a reply comes last. Without a prompt the text is
        plain, after the BOS token of checkpoints that put one first; else its first token, which nothing predicts, is
        left out.
        Raise ValueError for what is no text, and for more than max_len tokens.
        """
        if not isinstance(text, str):
            raise Refusal(f"log_probs takes a text, not {type(text).__name__}")
        before = self.tokenizer.first_ids if prompt is None else self._prompt_ids(prompt)
        ids = before + (self.tokenizer.encode(text) if prompt is None else self.tokenizer.reply(text))
        if len(ids) > self.max_len:
            raise Refusal(f"the text has {len(ids)} tokens with its prompt, more than max_len={self.max_len}")
        first = max(1, len(before))
        if len(ids) <= first:
            return []
        weight_VD = self.model.lm_head.weight
        ids_T = torch.tensor(ids, device=weight_VD.device)
        places_N = torch.arange(first, len(ids), device=weight_VD.device)
        hidden_ND = self.model(ids_T[None], wanted=places_N - 1)
        logprobs_N, _ = token_logprobs(hidden_ND, weight_VD, ids_T[places_N])
        return [(self.tokenizer.show([i]), value) for i, value in zip(ids[first:], logprobs_N.tolist(), strict=True)]

    def _prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the ids of a prompt, with the header of the reply."""
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if not (isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages)):
            raise Refusal(f"prompt must be a text or a list of messages, not {str(prompt)[:60]!r}")
        ids = self.tokenizer.prompt(messages)
        if len(ids) >= self.max_len:
            raise Refusal(f"the prompt has {len(ids)} tokens, which leaves no room for a reply in {self.max_len}")
        return ids


def load(model: str = "", adapter: str | Path = "", **settings: Any) -> Policy:
    """Return the policy of a model, with an adapter if one is named.

    model: tiny, smol, a folder, a .gguf file or a hub id; "": the adapter's base, else tiny.
    adapter: its folder, or a run's folder, of which the best epoch is taken.
    settings: keys of rl.chat that concern the model: max_len, thinking, dtype, quant, device, threads, products.
    Sets the number of threads and the library of products of the whole process.
    Raise ValueError or FileNotFoundError, one line, for an unknown setting, a missing model, or another adapter's base.
    """
    folder, line = history.best_of_run(str(adapter)) if adapter else ("", "")
    if line:
        print(line)
    given = as_words({"model": model, **settings} if model else settings)
    keys = arguments.split(with_base(given, [folder] if folder else []))
    check_keys(keys, [("", ModelKeys)])
    if folder:
        lora.read_adapter_config(Path(folder))  # a misspelt folder fails before the model is loaded
    loaded, tokenizer, max_len = load_base(arguments.build(ModelKeys, keys), rows=1, rewrites=True)
    if folder:
        bases.check(Path(folder), tokenizer.folder, loaded.config.quant)
        lora.load_adapter(loaded, Path(folder), trainable=False)
    return Policy(loaded, tokenizer, max_len)


@dataclass(frozen=True)
class Trained:
    """A finished run. A notebook shows it as its learning curve."""

    folder: Path
    metrics: list[dict] = field(repr=False)  # records of metrics.jsonl: an epoch's, an evaluation's, or its phases'
    best_epoch: int | None  # of those saved, by evaluation; None if none was evaluated

    def _repr_svg_(self) -> str | None:
        """Return the learning curve as SVG, None for a run that played no episodes. IPython calls this."""
        return learning_curve([self.folder]) if any("accuracy" in record for record in self.metrics) else None


def train(**settings: Any) -> Trained:
    """Train as `python train.py` does with the same words and ranks=1, with the same bits, and print its lines.

    settings: the keys of `python train.py --help all`. A group is a dict, lora={"r": 4}, or its keys have dots,
    **{"lora.r": 4}; a list is joined by commas; None is none.
    An interrupt ends the run in good order and raises KeyboardInterrupt, whose note says how to go on. Threads and
    torch's random numbers are those of before afterwards; the library of products is that of the run.
    Raise ValueError or OSError with the line that train.py would print, before anything is loaded if a key is wrong.
    """
    flat = arguments.flatten(settings)
    if flat.get("plan"):
        raise ArgumentError("plan= prints what a run needs and ends the program: python train.py plan=true")
    read_anew()
    cfg = words.checked(as_words({"ranks": 1, **flat}), "train.py")
    if cfg.ranks != 1:
        raise ArgumentError(f"ranks={cfg.ranks}: train() is one process; python train.py starts several")
    folders, threads = [], torch.get_num_threads()
    # Of signals only the notebook's interrupt: what stops the process itself is its own.
    with signals.handled([signals.SIGNALS[0]], second_leaves=False), torch.random.fork_rng(devices=[]):
        try:
            groups = cfg.episodes // cfg.algorithm.group_size
            launch.run(lambda cfg: folders.append(program.main(cfg)), cfg, groups)
        finally:
            torch.set_num_threads(threads)
    [folder] = folders
    return Trained(folder, history.records(folder), history.best_saved(folder))


def as_words(settings: dict[str, Any]) -> list[str]:
    """Return settings as the words key=value of a command line."""
    return [f"{key}={arguments.word(value)}" for key, value in arguments.flatten(settings).items()]
