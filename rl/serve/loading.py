"""The model and adapters that rl.serve and rl.chat sample from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch

import lora
from models import CausalLM, Tokenizer, choose_threads, keep_memory, load_model, load_tokenizer
from rl.config import arguments, program
from rl.config.arguments import NotNegative
from rl.config.checks import without_auto
from rl.config.refusals import Refusal
from rl.judge.adapter_settings import with_base
from rl.run import exits, history
from rl.serve.sampler import BASE, Sampler

Keys = TypeVar("Keys")
MOST = 8192  # tokens of a sequence, unless max_len= says more


@dataclass(frozen=True)
class ModelKeys:
    model: str = "tiny"  # the base: tiny, smol, a folder, a .gguf file, a hub id; default: that of the first adapter
    adapter: str = ""  # folders of adapters or runs by comma, also their names; NAME=FOLDER gives another name
    max_len: NotNegative[int] = 0  # most tokens of a prompt and its reply; 0: the model's, at most 8192
    thinking: bool = True  # for checkpoints that can think before they answer (Qwen3); false: answers without thoughts
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # of the weights; auto: bfloat16 on CUDA
    quant: Literal["none", "nf4", "nf4-double", "int8"] = "none"  # 4 or 8 bits for the weights of the blocks
    device: Literal["auto", "cpu", "cuda"] = "auto"  # where to compute; auto: on CUDA if there is a device
    threads: NotNegative[int] = 0  # torch threads on a CPU; 0: one for a small model, else all
    products: Literal["auto", "onednn", "mkl", "plain"] = "auto"  # library of products on a CPU; auto: the fastest

    def __post_init__(self):
        if self.max_len == 1:
            raise Refusal("max_len=1 has no room for a prompt and a reply: give 2 or more, or 0 for the model's")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise Refusal("device=cuda: this machine, or this torch, has no CUDA device; use device=cpu")


def parse_over_adapters_base(words: list[str], name: str, own_keys: type[Keys], about: str) -> tuple[ModelKeys, Keys]:
    """Return the model's settings and the program's own, with the base and the quantisation of the adapters where the
    words name none. Exit with 2 on a wrong word. name: the program's."""
    with exits.exits_cleanly(name):
        words = best_of_runs(words)
        given = arguments.split([word for word in words if "=" in word])
        words = with_base(words, list(map(str, adapters(given.get("adapter", "")).values())))
    model_keys, keys = program.parse(words, name, ModelKeys, own_keys, about=about)
    return model_keys, keys


def best_of_runs(words: list[str]) -> list[str]:
    """Return the words with the best epoch of each run's folder in adapter=, under the name that it had. Print which.
    Raise ArgumentError for a run that has none."""
    found = []
    for word in words:
        key, mark, value = word.partition("=")
        if arguments.key_of(word) == "adapter":
            best = {name: history.best_of_run(str(folder)) for name, folder in adapters(value).items()}
            if lines := [line for _, line in best.values() if line]:
                print(*lines, sep="\n")
                value = ",".join(f"{name}={folder}" for name, (folder, _) in best.items())
        found.append(f"{key}{mark}{value}")
    return found


def adapters(words: str) -> dict[str, Path]:
    """Return {name: folder} of adapter=. Raise ArgumentError for a name that comes twice or is empty."""
    folders = {}
    for word in (word.strip() for word in words.split(",") if words):
        if not word:
            raise arguments.ArgumentError(f"adapter={words}: a name is empty")
        name, folder = named(word)
        if not name:
            raise arguments.ArgumentError(f"adapter={words}: a name is empty")
        if name in folders:
            raise arguments.ArgumentError(f"adapter={words}: two adapters are named {name}")
        folders[name] = Path(folder)
    return folders


def named(word: str) -> tuple[str, str]:
    """Return (name, folder) of NAME=FOLDER, or of a FOLDER alone. Folders of sweeps have = in their names too."""
    places = [i for i, c in enumerate(word) if c == "="]
    readings = [(word, word), *((word[:i], word[i + 1 :]) for i in places)]
    usual = readings[0] if not places or "/" in word[: places[0]] else readings[1]
    return next((reading for reading in readings if Path(reading[1]).is_dir()), usual)


def load(keys: ModelKeys, rows: int, most_waiting: int, rewrites: bool = False) -> Sampler:
    """Return a sampler of the model and its adapters; its thread is not started. rewrites: accept a chat template that
    rewrites earlier replies, for a caller that renders whole conversations."""
    folders = adapters(keys.adapter)
    for folder in folders.values():
        lora.read_adapter_config(folder)  # a misspelt folder fails before the model is loaded
    model, tokenizer, max_len = load_base(keys, rows, rewrites)
    sampler = Sampler(model, tokenizer, rows, max_len, most_waiting)
    for name, folder in folders.items():
        if name in (keys.model, BASE):
            raise Refusal(f"adapter={name}: the base model has this name; NAME=FOLDER gives another")
        sampler.load(name, folder)
    return sampler


def load_base(keys: ModelKeys, rows: int, rewrites: bool = False) -> tuple[CausalLM, Tokenizer, int]:
    """Return the model, its tokenizer, and the most tokens of a sequence."""
    keys = without_auto(keys)
    tokenizer = load_tokenizer(keys.model, keys.thinking, rewrites)
    tokenizer.check_thinking()
    keep_memory()
    model = load_model(keys.model, getattr(torch, keys.dtype), keys.device, quant=keys.quant)
    choose_threads(model, keys.threads, False, keys.products, rows)
    most = model.config.max_position_embeddings
    if keys.max_len > most:
        raise Refusal(f"max_len={keys.max_len} is more than the model's max_position_embeddings, {most}")
    return model, tokenizer, keys.max_len or min(most, MOST)
