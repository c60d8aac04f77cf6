"""The start of a run: model, tokenizer, adapter, critic, optimizer and folder, fresh or from a checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import lora
from models import CausalLM, Tokenizer, choose_threads, keep_memory, load_model, load_tokenizer
from models.decoder import checkpoint_blocks
from models.weights import TINY
from rl import data, ranks
from rl.config import checks, fields
from rl.config.fields import Common, Lora
from rl.ppo import Critic
from rl.run import digests, full_finetuning, resume
from rl.run.checkpoint import save_checkpoint
from rl.run.files import new_folder
from rl.run.log import Run
from rl.run.replay import checked_episodes
from rl.run.resume import copy_adapter
from rl.run.state import TrainState
from rl.targets import read_targets
from rl.update import make_optimizer


def start(cfg: Common, folder: Path) -> tuple[Common, Run, Tokenizer, TrainState, Any]:
    """Return (cfg, run, tokenizer, state, demos) for a run in this folder.

    cfg: the argument with these filled in: the folder in `out`, the number of demonstrations in `episodes`, settings of
    the adapter that training starts from, `threads`, `products`. demos: the rl.data.Demonstrations of data=, or None.
    """
    run = Run(folder)
    tokenizer = load_tokenizer(cfg.model, cfg.thinking)
    tokenizer.prompt([{"role": "user", "content": "?"}])  # an unknown chat format fails before a folder is made
    if cfg.resume:
        checkpoint = resume.newest_checkpoint(Path(cfg.resume))
    print(f"settings: {fields.describe_sources(cfg)}", flush=True)
    demos = None
    if cfg.data:
        demos = data.load(cfg, tokenizer)
        cfg = replace(cfg, episodes=len(demos.train))  # an epoch learns from all of them
    torch.manual_seed(cfg.seed)
    keep_memory()
    model = load_model(cfg.model, getattr(torch, cfg.dtype), cfg.device, cfg.exact, cfg.quant, ranks.reader(cfg))
    checks.check_model(cfg, model)
    if cfg.lora.r:
        cfg = replace(cfg, lora=adapt(model, cfg))
    else:
        full_finetuning.train_all(model)
    algo_cfg = cfg.algorithm
    run.end_phase("load")
    exact, kind = ranks.chosen(choose_threads, model, cfg.threads, algo_cfg.source == "rollouts", cfg.products)
    run.end_phase("trial")
    cfg = replace(cfg, threads=torch.get_num_threads(), products=kind)  # a resumed run takes the same
    print(f"threads: {torch.get_num_threads()}{exact and f'; exact: {exact}'}; ranks: {ranks.here.world}", flush=True)
    critic = Critic(model.config.hidden_size, algo_cfg.critic_hidden, cfg.device) if algo_cfg.critic else None
    optimizer, reference = make_optimizer(model, critic, cfg), "reference" if cfg.resume_from else None
    state = TrainState(model, critic, optimizer, reference, exact)
    if cfg.checkpoint == "block":
        checkpoint_blocks(model)
    if not cfg.lora.r and cfg.dtype != "float32":
        full_finetuning.use_masters(state)
    state.kl_coef = algo_cfg.kl_coef if algo_cfg.reference else 0.0
    if cfg.resume:
        resume.go_on(state, checkpoint, cfg)
    elif cfg.rollouts:
        checked_episodes(state, cfg)  # before anything is written
    cfg = run.begin(cfg)
    state.watch.begin(state, tokenizer, cfg, folder)
    if not cfg.resume:
        if state.reference:
            with new_folder(folder / "reference") as files:
                lora.save_adapter(model, files, base_name(cfg), name="reference")
        digests.write(cfg, folder)
        save_checkpoint(state, folder)  # before anything is played, so that a killed run can go on
    run.end_phase("load")
    return cfg, run, tokenizer, state, demos


def adapt(model: CausalLM, cfg: Common) -> Lora:
    """Give the model the adapter that trains, print a line about it and return its settings."""
    if cfg.resume_from:
        names, size, settings = copy_adapter(model, cfg)
    else:
        size, settings, targets = f"r={cfg.lora.r} alpha={cfg.lora.alpha:g}", cfg.lora, cfg.lora.targets
        if targets != "all-linear":
            targets = read_targets(targets, model)
        names = lora.inject(model, settings.r, settings.alpha, settings.dropout, targets, settings.rslora)
    kinds = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in names}))
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = [p for name, p in model.named_parameters() if ".adapters." not in name]
    total = trainable + sum(p.numel() << (p.dtype == torch.uint8) for p in frozen)  # a byte has two codes of 4 bits
    size += f"{' rslora' * settings.rslora} on {len(names)} layers ({kinds})"
    print(f"lora on: {size}; {trainable:,} of {total:,} parameters train")
    for name in names if cfg.log == "debug" else ():
        print(f"  {name} <-> base_model.model.{name}.lora_A|B.weight")
    return settings


def base_name(cfg: Common) -> str:
    """Return the model's name as PEFT can load the base from it."""
    folder = TINY if cfg.model == "tiny" else Path(cfg.model)
    return str(folder.resolve()) if folder.is_dir() else cfg.model
