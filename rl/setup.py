"""What a run begins with: model, tokenizer, adapter, critic, optimizer, folder; fresh or from a checkpoint."""

from dataclasses import replace
from pathlib import Path

import torch

import lora
from models import CausalLM, Tokenizer, choose_threads, keep_memory, load_model, load_tokenizer
from models.weights import TINY
from rl import data
from rl.checkpoint import TrainState, load_checkpoint, newest_checkpoint
from rl.config import for_tiny
from rl.log import Run
from rl.update import Critic, make_optimizer


def start(cfg) -> tuple[Run, Tokenizer, TrainState, data.Demonstrations | None]:
    """The run's folder, the tokenizer, the state to train, and the demonstrations of data= if there are. The KL
    reference is the adapter that training starts from, kept frozen beside the one that trains, or the base."""
    run = Run(cfg, resume=bool(cfg.resume))
    tokenizer = load_tokenizer(cfg.model, cfg.thinking)
    tokenizer.prompt([{"role": "user", "content": "?"}])  # or it is refused before a folder is made
    checkpoint = newest_checkpoint(Path(cfg.resume)) if cfg.resume else None
    file = read_data(cfg, tokenizer) if cfg.data else None
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
    adapt(model, cfg, start_from)
    algo_cfg, critic = getattr(cfg, cfg.algo), None
    if algo_cfg.critic:
        critic = Critic(model.config.hidden_size, algo_cfg.critic_hidden, cfg.device)
    state = TrainState(model, critic, make_optimizer(model, critic, cfg), "reference" if cfg.resume_from else None)
    state.kl_coef = getattr(algo_cfg, "kl_coef", 0.0)
    if checkpoint:
        load_checkpoint(state, checkpoint)
    if not cfg.resume and (set_for_tiny := for_tiny(cfg)):
        print(f"recipe {cfg.recipe}, for the embedded model: {set_for_tiny}")
    if cfg.algo == "reinforce" and cfg.episodes * cfg.reinforce.epochs > cfg.batch_size:
        print("reinforce: only the first optimizer step of an epoch is on-policy; batch_size=episodes takes one")
    run.begin(cfg)
    if state.reference and not cfg.resume:
        lora.save_adapter(model, run.folder / "reference", base_name(cfg), name="reference")
    if checkpoint:
        run.forget_after(state.epoch)
        print(f"resumed from {checkpoint}")
    return run, tokenizer, state, file


def read_data(cfg, tokenizer: Tokenizer) -> data.Demonstrations:
    """The demonstrations of data=, and a line that says what there is. An epoch is a pass over them."""
    file = data.load(cfg, tokenizer)
    cfg.episodes = len(file.train)
    left = f", {file.empty} left out for it" if file.empty else ""
    print(
        f"data: {len(file.train):,} conversations to learn, {len(file.held_out):,} held out; "
        f"{file.cut:,} cut by max_len={cfg.max_len}{left}"
    )
    return file


def adapt(model: CausalLM, cfg, start_from: Path) -> None:
    """Gives the model the adapter that trains, a copy of the one it starts from if there is one, and says so."""
    if cfg.lora.r == 0:
        model.requires_grad_(True)
        print(f"lora off: all {sum(p.numel() for p in model.parameters()):,} parameters train")
        return
    if cfg.resume_from:
        names = lora.load_adapter(model, start_from)
    else:
        targets = cfg.lora.targets.split(",") if "," in cfg.lora.targets else cfg.lora.targets
        names = lora.inject(model, cfg.lora.r, cfg.lora.alpha, cfg.lora.dropout, targets, cfg.lora.rslora)
    layers = dict(lora.lora_layers(model))
    adapters = [layers[name].adapters["default"] for name in names]
    trainable = sum(p.numel() for adapter in adapters for p in adapter.parameters())
    frozen = sum(p.numel() for name, p in model.named_parameters() if ".adapters." not in name)
    kinds = sorted({name.rsplit(".", 1)[-1] for name in names})
    if cfg.resume_from:  # its settings are the run's, and what config.json says
        first, dropout = adapters[0], layers[names[0]].dropout
        cfg.lora = replace(
            cfg.lora, r=len(first.A), alpha=first.alpha, rslora=first.rslora, dropout=dropout, targets=",".join(kinds)
        )
    size = f"r={_told(len(a.A) for a in adapters)} alpha={_told(a.alpha for a in adapters)}"
    print(
        f"lora on: {size}{' rslora' * cfg.lora.rslora} on {len(names)} layers ({', '.join(kinds)}); "
        f"{trainable:,} of {trainable + frozen:,} parameters train"
    )
    if cfg.log == "debug":
        for name in names:
            print(f"  {name} <-> base_model.model.{name}.lora_A|B.weight")


def _told(values) -> str:
    """One value, or the different ones that layers have."""
    return "/".join(f"{value:g}" for value in sorted(set(values)))


def base_name(cfg) -> str:
    """The model under a name that PEFT can load the base from."""
    if cfg.model == "tiny":
        return str(TINY.resolve())
    return str(Path(cfg.model).resolve()) if Path(cfg.model).is_dir() else cfg.model
