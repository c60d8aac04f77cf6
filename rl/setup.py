"""What a run begins with: model, tokenizer, adapter, critic, optimizer, folder; fresh or from a checkpoint."""

from dataclasses import replace
from pathlib import Path

import torch

import lora
from models import CausalLM, Tokenizer, load_model, load_tokenizer
from models.weights import TINY
from rl.checkpoint import TrainState, load_checkpoint, newest_checkpoint
from rl.log import Run
from rl.update import Critic, make_optimizer


def start(cfg) -> tuple[Run, Tokenizer, TrainState]:
    """The run's folder, the tokenizer, and the state to train. The KL reference is the adapter that training starts
    from, kept frozen beside the one that trains, or the base."""
    run = Run(cfg, resume=bool(cfg.resume))
    tokenizer = load_tokenizer(cfg.model)
    checkpoint = newest_checkpoint(Path(cfg.resume)) if cfg.resume else None
    torch.manual_seed(cfg.seed)
    model = load_model(cfg.model, getattr(torch, cfg.dtype), cfg.device)
    if cfg.adapter:
        lora.load_adapter(model, cfg.adapter, name="reference", trainable=False)
    adapt(model, cfg)
    algo_cfg, critic = getattr(cfg, cfg.algo), None
    if algo_cfg.critic:
        critic = Critic(model.config.hidden_size, algo_cfg.critic_hidden, cfg.device)
    state = TrainState(model, critic, make_optimizer(model, critic, cfg), "reference" if cfg.adapter else None)
    if checkpoint:
        load_checkpoint(state, checkpoint)
    run.begin(cfg)
    if checkpoint:
        run.forget_after(state.epoch)
        print(f"resumed from {checkpoint}")
    return run, tokenizer, state


def adapt(model: CausalLM, cfg) -> None:
    """Gives the model the adapter that trains, a copy of the one it starts from if there is one, and says so."""
    total = sum(p.numel() for p in model.parameters())
    if cfg.lora.r == 0:
        model.requires_grad_(True)
        print(f"lora off: all {total:,} parameters train")
        return
    if cfg.adapter:
        names = lora.load_adapter(model, cfg.adapter)
    else:
        targets = cfg.lora.targets.split(",") if "," in cfg.lora.targets else cfg.lora.targets
        names = lora.inject(model, cfg.lora.r, cfg.lora.alpha, cfg.lora.dropout, targets, cfg.lora.rslora)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    layer = lora.lora_layers(model)[0][1]
    r, scale = layer.adapters[layer.active].A.shape[0], layer.adapters[layer.active].scale
    kinds = sorted({name.rsplit(".", 1)[-1] for name in names})
    if cfg.adapter:  # its settings are the run's, and what config.json says
        cfg.lora = replace(cfg.lora, r=r, alpha=scale * r, rslora=False, dropout=layer.dropout, targets=",".join(kinds))
    print(
        f"lora on: r={r} scale={scale:g} on {len(names)} layers ({', '.join(kinds)}); "
        f"{trainable:,} of {total:,} parameters train"
    )
    if cfg.log == "debug":
        for name in names:
            print(f"  {name} <-> base_model.model.{name}.lora_A|B.weight")


def base_name(cfg) -> str:
    """The model under a name that PEFT can load the base from."""
    if cfg.model == "tiny":
        return str(TINY.resolve())
    return str(Path(cfg.model).resolve()) if Path(cfg.model).is_dir() else cfg.model
