"""Settings that do not go with the model's config.json or chat template: refused before its weights are read."""

import re
from pathlib import Path

import torch
from torch import nn

from lora.layer import select_layers
from models import Tokenizer
from models.config import ModelConfig, read_config
from models.decoder import CausalLM
from models.weights import TINY, download_config, local
from rl.config.arguments import ArgumentError
from rl.config.fields import Config
from rl.config.refusals import Refusal, hint
from rl.tasks import mixture

ASK_BASE = (("planner", "worker", "worker"), ("tau_retail", "user", "customer"))  # environment, key, the base's role


def check(cfg: Config, training: bool) -> None:
    """Raise ArgumentError for settings of train.py, or of eval.py, that do not go with cfg.model. A config.json that
    cannot be had or read is loading's to refuse."""
    config = config_of(cfg.model)
    if config is None:
        return
    check_stored(cfg, config.quant)
    most, plays = config.max_position_embeddings, not (training and (cfg.data or cfg.rollouts))
    if plays and cfg.max_len > most:
        raise ArgumentError(f"max_len={cfg.max_len} is more than the model's max_position_embeddings, {most}")
    if training and any(rope.kind == "dynamic" for rope in config.ropes):
        raise ArgumentError(
            f"model={cfg.model}: dynamic RoPE changes with a batch's longest sequence; eval.py plays it"
        )
    own_targets = cfg.lora.targets != "all-linear" and not cfg.resume_from  # whose adapter has its own
    if training and cfg.lora.r and own_targets:
        _check_targets(cfg.lora.targets, config)


def check_stored(cfg: Config, stored: str) -> None:
    """Raise ArgumentError for settings that do not go with a checkpoint that is stored so."""
    if stored != "none" and cfg.quant not in ("none", stored):
        raise ArgumentError(f"{cfg.model}: is stored as {stored}, not {cfg.quant}; leave quant= out")
    if stored != "none" and not cfg.lora.r:
        raise ArgumentError(f"lora.r=0 cannot train a checkpoint that is stored as {stored}; use lora.r=16")


def _check_targets(word: str, config: ModelConfig) -> None:
    """Raise ArgumentError if lora.targets selects no layer of such a model, or its head."""
    with torch.device("meta"):
        model = CausalLM(config)
    linears = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    try:
        select_layers(linears, read_targets(word, model))
    except ValueError as error:
        raise ArgumentError(str(error)) from None


def check_thinking(cfg: Config, tokenizer: Tokenizer) -> None:
    """Raise Refusal for thinking=false with a chat template that opens thoughts in any case. Print a line for
    max_thinking_tokens= with one that has none."""
    tokenizer.check_thinking()
    if cfg.max_thinking_tokens and not tokenizer.has_thoughts:
        said = f"max_thinking_tokens={cfg.max_thinking_tokens} bounds only replies that open <think> themselves"
        print(f"{said}: the chat template of {cfg.model} has no thoughts", flush=True)


def check_full_finetuning(cfg: Config) -> None:
    """Raise ArgumentError for settings that need a frozen base."""
    if cfg.algorithm.reference:
        raise ArgumentError(f"{cfg.algo}.kl_coef needs a frozen base as its reference, which lora.r=0 trains away")
    for env, key, role in asked_of_base(cfg):
        raise ArgumentError(f"{env}.{key}=model needs a frozen base as its {role}, which lora.r=0 trains away")
    if cfg.quant != "none":
        raise ArgumentError(f"quant={cfg.quant} freezes the weights that lora.r=0 trains; choose one of the two")
    if cfg.resume_from:
        raise ArgumentError("resume_from= starts from an adapter, but lora.r=0 trains the model itself")


def read_targets(word: str, model: nn.Module) -> str | list[str]:
    """Return `lora.targets` as lora.inject takes it: names by comma become a list.

    Raise ValueError for a name that no linear layer has.
    """
    if word == "attention" or not re.fullmatch(r"[\w.,]+", word):
        return word
    names = [name for name in word.split(",") if name]
    paths = [path for path, module in model.named_modules() if isinstance(module, nn.Linear)]
    for name in names:
        if not any(path == name or path.endswith(f".{name}") for path in paths):
            known = sorted({path.rsplit(".", 1)[-1] for path in paths})
            near = f"{hint(name, known)}; linear layers here: {', '.join(known)}"
            raise Refusal(f"lora.targets={word}: no linear layer is named {name}{near}")
    return names


def asked_of_base(cfg: Config) -> list[tuple[str, str, str]]:
    """Return the entries of ASK_BASE that hold in a run: those whose environment asks the frozen base."""
    played = mixture(cfg.env)
    return [
        (env, key, role)
        for env, key, role in ASK_BASE
        if env in played and getattr(cfg.environments[env], key) == "model"
    ]


def config_of(model: str) -> ModelConfig | None:
    """Return what the model's config.json says; None if it cannot be had or read."""
    try:
        return read_config(config_folder(model))
    except (OSError, ValueError):
        return None


def same_model(one: str, other: str) -> bool:
    """Return whether two names mean one model."""
    folders = [(TINY if name == "tiny" else Path(name)).resolve() for name in (one, other)]
    return one == other or folders[0] == folders[1]


def config_folder(model: str) -> Path:
    """Return a folder with the model's config.json; of a hub id only this file is downloaded."""
    return local(model) or download_config(model)
