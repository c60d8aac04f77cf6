"""Settings that do not go with the model's config.json: refused before its weights are downloaded or read."""

from pathlib import Path
from typing import Any

import torch

from lora.layer import select_layers
from models.config import ModelConfig, read_config
from models.decoder import CausalLM
from models.weights import download_config, resolve
from rl.config.arguments import ArgumentError
from rl.targets import read_targets
from rl.tasks import mixture

ASK_BASE = (("planner", "worker", "worker"), ("tau_retail", "user", "customer"))  # environment, key, the base's role


def config_folder(model: str) -> Path:
    """Return a folder with the model's config.json; of a hub id only this file is downloaded."""
    if model == "tiny" or Path(model).is_dir() or model.startswith((".", "/", "~")):
        return resolve(model)
    return download_config(model)


def asked_of_base(cfg: Any) -> list[tuple[str, str, str]]:
    """Return the entries of ASK_BASE that hold in a run: those whose environment asks the frozen base."""
    played = mixture(cfg.env)
    return [
        (env, key, role) for env, key, role in ASK_BASE if env in played and getattr(getattr(cfg, env), key) == "model"
    ]


def stored(model: str) -> str:
    """Return how a checkpoint holds the linear layers of its blocks, as quant= names it; "none" if that cannot be
    read."""
    try:
        return read_config(config_folder(model)).quant
    except (OSError, ValueError):
        return "none"


def check(cfg: Any, training: bool) -> None:
    """Raise ArgumentError for settings of train.py, or of eval.py, that do not go with cfg.model. A config.json that
    cannot be had or read is loading's to refuse."""
    try:
        config = read_config(config_folder(cfg.model))
    except (OSError, ValueError):
        return
    check_stored(cfg, config.quant)
    most, plays = config.max_position_embeddings, not (training and (cfg.data or cfg.rollouts))
    if plays and cfg.max_len > most:
        raise ArgumentError(f"max_len={cfg.max_len} is more than the model's max_position_embeddings, {most}")
    if training:
        check_trainable(cfg, config)
        if cfg.lora.r and cfg.lora.targets != "all-linear" and not cfg.resume_from:  # whose adapter has its own
            _check_targets(cfg.lora.targets, config)


def check_stored(cfg: Any, stored: str) -> None:
    """Raise ArgumentError for settings that do not go with a checkpoint that is stored so."""
    if stored != "none" and cfg.quant not in ("none", stored):
        raise ArgumentError(f"{cfg.model}: is stored as {stored}, not {cfg.quant}; leave quant= out")
    if stored != "none" and not cfg.lora.r:
        raise ArgumentError(f"lora.r=0 cannot train a checkpoint that is stored as {stored}; use lora.r=16")


def check_trainable(cfg: Any, config: ModelConfig) -> None:
    """Raise ArgumentError for a model that cannot be trained."""
    if any(rope.kind == "dynamic" for rope in config.ropes):
        raise ArgumentError(
            f"model={cfg.model}: dynamic RoPE changes with a batch's longest sequence; eval.py plays it"
        )


def _check_targets(word: str, config: ModelConfig) -> None:
    """Raise ArgumentError if lora.targets selects no layer of such a model, or its head."""
    with torch.device("meta"):
        model = CausalLM(config)
    linears = [path for path, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    try:
        select_layers(linears, read_targets(word, model))
    except ValueError as error:
        raise ArgumentError(str(error)) from None
