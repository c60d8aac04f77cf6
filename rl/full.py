"""Full fine-tuning, lora.r=0: every weight of the model trains, and there is no frozen base."""

import json
from pathlib import Path
from typing import Any

from models import CausalLM, Tokenizer
from models.checkpoints.export import save_model
from rl.arguments import ArgumentError
from rl.tasks import mixture

ASK_BASE = (("planner", "worker", "worker"), ("tau_retail", "user", "customer"))  # environment, key, the base's role


def check(cfg: Any) -> None:
    """Raise ArgumentError for settings that need a frozen base."""
    if cfg.algorithm.reference:
        raise ArgumentError(f"{cfg.algo}.kl_coef needs a frozen base as its reference, which lora.r=0 trains away")
    for env, key, role in ASK_BASE:
        if env in mixture(cfg.env) and getattr(getattr(cfg, env), key) == "model":
            raise ArgumentError(f"{env}.{key}=model needs a frozen base as its {role}, which lora.r=0 trains away")
    if cfg.resume_from:
        raise ArgumentError("resume_from= starts from an adapter, but lora.r=0 trains the model itself")


def train_all(model: CausalLM) -> None:
    """Make every weight trainable, and print one line."""
    model.requires_grad_(True)
    print(f"lora off: all {sum(p.numel() for p in model.parameters()):,} parameters train")


def save(model: CausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the whole model as a checkpoint that load_model reads."""
    raw = json.loads((tokenizer.folder / "config.json").read_text())
    save_model(model, folder, raw, next(model.parameters()).dtype)
