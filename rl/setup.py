"""The start of a run: model, tokenizer, adapter, critic, optimizer and folder, fresh or from a checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import lora
from models import CausalLM, Tokenizer, choose_threads, keep_memory, load_model, load_tokenizer
from models.weights import TINY
from rl.config import describe_sources
from rl.critic import Critic
from rl.log import Run
from rl.state import TrainState
from rl.update import make_optimizer


def start(cfg: Any) -> tuple[Any, Run, Tokenizer, TrainState, Any]:
    """Return (cfg, run, tokenizer, state, demos).

    cfg: as saved in the run's folder: with the folder in `out`, the number of demonstrations in `episodes`, and the
    settings of the adapter that training starts from. demos: the rl.data.Demonstrations of data=, or None.
    The KL reference is the adapter that training starts from, kept frozen beside the trained one, or the base.
    """
    run = Run(cfg)
    tokenizer = load_tokenizer(cfg.model, cfg.thinking)
    tokenizer.prompt([{"role": "user", "content": "?"}])  # an unknown chat format fails before a folder is made
    checkpoint, demos = None, None
    if cfg.resume:
        from rl.resume import forget_after, load_checkpoint, newest_checkpoint

        checkpoint = newest_checkpoint(Path(cfg.resume))
    print(f"settings: {describe_sources(cfg)}")
    if cfg.data:
        from rl import data

        demos = data.load(cfg, tokenizer)
        print(f"data: {demos.describe(cfg.max_len)}")
        cfg = replace(cfg, episodes=len(demos.train))  # an epoch is a pass over them
    torch.manual_seed(cfg.seed)
    keep_memory()
    model = load_model(cfg.model, getattr(torch, cfg.dtype), cfg.device, cfg.exact)
    choose_threads(model, cfg.threads)
    if model.config.dynamic_rope:
        raise ValueError(
            f"model={cfg.model} has dynamic RoPE, whose angles change with the longest sequence of a batch: sampling "
            "and training would disagree; eval.py plays it"
        )
    start_from = Path(cfg.resume) / "reference" if cfg.resume else Path(cfg.resume_from)  # a run keeps a copy
    if cfg.resume_from:
        lora.load_adapter(model, start_from, name="reference", trainable=False)
    if cfg.lora.r:
        cfg = replace(cfg, lora=adapt(model, cfg, start_from))
    else:
        from rl import full

        full.train_all(model)
    algo_cfg = getattr(cfg, cfg.algo)
    critic = Critic(model.config.hidden_size, algo_cfg.critic_hidden, cfg.device) if algo_cfg.critic else None
    state = TrainState(model, critic, make_optimizer(model, critic, cfg), "reference" if cfg.resume_from else None)
    state.kl_coef = algo_cfg.kl_coef if algo_cfg.reference else 0.0
    if checkpoint:
        load_checkpoint(state, checkpoint)
    if cfg.algo == "reinforce" and cfg.episodes * cfg.reinforce.epochs > cfg.batch_size:
        print("reinforce: only the first optimizer step of an epoch is on-policy; batch_size=episodes takes one")
    cfg = run.begin(cfg)
    if state.reference and not cfg.resume:
        lora.save_adapter(model, run.folder / "reference", base_name(cfg), name="reference")
    if checkpoint:
        forget_after(run.folder, state.epoch)
        print(f"resumed from {checkpoint}")
    return cfg, run, tokenizer, state, demos


def adapt(model: CausalLM, cfg: Any, start_from: Path) -> Any:
    """Give the model the adapter that trains: new, or a copy of the one in `start_from` with cfg.resume_from.

    Prints one line. Returns the adapter's settings, an rl.config.Lora.
    """
    if cfg.resume_from:
        names = lora.load_adapter(model, start_from)
    else:
        targets = cfg.lora.targets.split(",") if "," in cfg.lora.targets else cfg.lora.targets
        names = lora.inject(model, cfg.lora.r, cfg.lora.alpha, cfg.lora.dropout, targets, cfg.lora.rslora)
    layers = dict(lora.lora_layers(model))
    adapters = [layers[name].adapters["default"] for name in names]
    trainable = sum(p.numel() for adapter in adapters for p in adapter.parameters())
    frozen = sum(p.numel() for name, p in model.named_parameters() if ".adapters." not in name)
    kinds, settings = ",".join(sorted({name.rsplit(".", 1)[-1] for name in names})), cfg.lora
    if cfg.resume_from:
        first, dropout = adapters[0], layers[names[0]].dropout
        settings = replace(settings, r=len(first.A), alpha=first.alpha, rslora=first.rslora)
        settings = replace(settings, dropout=dropout, targets=kinds)
    size = f"r={_distinct(len(a.A) for a in adapters)} alpha={_distinct(a.alpha for a in adapters)}"
    print(
        f"lora on: {size}{' rslora' * settings.rslora} on {len(names)} layers ({kinds.replace(',', ', ')}); "
        f"{trainable:,} of {trainable + frozen:,} parameters train"
    )
    if cfg.log == "debug":
        for name in names:
            print(f"  {name} <-> base_model.model.{name}.lora_A|B.weight")
    return settings


def _distinct(values) -> str:
    """Return the one value, or the different values that layers have."""
    return "/".join(f"{value:g}" for value in sorted(set(values)))


def base_name(cfg: Any) -> str:
    """Return the model's name as PEFT can load the base from it."""
    if cfg.model == "tiny":
        return str(TINY.resolve())
    return str(Path(cfg.model).resolve()) if Path(cfg.model).is_dir() else cfg.model
