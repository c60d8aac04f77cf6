"""The start of a run: model, tokenizer, adapter, critic, optimizer and folder, fresh or from a checkpoint."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

import lora
from models import CausalLM, Tokenizer, choose_threads, keep_memory, load_model, load_tokenizer
from models.decoder import checkpoint_blocks
from rl import data, ranks, rubric, teacher
from rl.adapters import Seat
from rl.config.fields import Config, Lora
from rl.config.model_checks import check_thinking, read_targets
from rl.config.refusals import Refusal
from rl.config.words import describe_sources
from rl.ppo import Critic
from rl.ranks import launch
from rl.run import digests, full_finetuning, history, resume
from rl.run.checkpoint import base_name, save_checkpoint
from rl.run.files import new_folder
from rl.run.folder import claim
from rl.run.phases import phase
from rl.run.replay import checked_episodes
from rl.run.resume import copy_adapter
from rl.run.run import Run
from rl.run.state import TrainState
from rl.tools import check_tools
from rl.update import make_optimizer


@contextmanager
def started(
    cfg: Config, seat: Seat | None = None
) -> Iterator[tuple[Run, Tokenizer, TrainState, data.Demonstrations | None]]:
    """Context of a run: (run, tokenizer, state, demos). Its folder is locked, and its state is saved on a signal.

    A command whose out= names an unfinished run with the same settings goes on with it.
    seat: with adapters=, the run's place beside the others (rl/adapters.py).
    """
    with claim(cfg) as (cfg, folder):
        run, tokenizer, state, demos = start(cfg, folder, seat)
        try:
            yield run, tokenizer, state, demos
        except KeyboardInterrupt:  # Interrupted is one: other errors may have left the state half changed
            resume.save_unsaved(state, folder)
            raise
        except BaseException:
            run.restore_settings(state)
            raise
        else:
            run.restore_settings(state)
        finally:
            if state.ahead:
                state.ahead.stop()


def start(
    cfg: Config, folder: Path, seat: Seat | None = None
) -> tuple[Run, Tokenizer, TrainState, data.Demonstrations | None]:
    """Return (run, tokenizer, state, demos) for a run in this folder; demos are those of data=, or None.

    run.cfg: the argument with these filled in: the folder in `out`, the number of demonstrations in `episodes`,
    settings of the adapter that training starts from, `threads`, `products`.
    """
    run = Run(folder)
    with run.phase("load"):
        tokenizer = load_tokenizer(cfg.model, cfg.thinking, cfg.history == "template")
        tokenizer.prompt([{"role": "user", "content": "?"}])  # an unknown chat format fails before a folder is made
        check_thinking(cfg, tokenizer)
        check_tools(tokenizer, cfg)
        checkpoint = resume.newest_checkpoint(Path(cfg.resume)) if cfg.resume else None
        print(f"settings: {describe_sources(cfg)}", flush=True)
        demos = data.load(cfg, tokenizer) if cfg.data else None
        if demos:
            cfg = replace(cfg, episodes=len(demos.train))  # an epoch learns from all of them
        torch.manual_seed(cfg.seed)  # before the model, because its adapter and then the critic draw first weights
        keep_memory()
        read = launch.reader(cfg)
        dtype = getattr(torch, cfg.dtype)
        model = seat.model() if seat else load_model(cfg.model, dtype, cfg.device, cfg.exact, cfg.quant, read)
        if demos:
            check_fits(demos, model.config.max_position_embeddings, cfg)
        graded_by = teacher.load(cfg, tokenizer, model)  # before the adapter that trains: a new one freezes the others
        judge = rubric.load(cfg, tokenizer, model)  # likewise
        if cfg.algo == "reinforce" and cfg.episodes * cfg.algorithm.epochs > cfg.batch_size:
            words = ["batch_size=episodes"] * (cfg.episodes > cfg.batch_size)
            words += ["reinforce.epochs=1"] * (cfg.algorithm.epochs > 1)
            single = f"{' '.join(words)} makes a single step per epoch"
            print(f"reinforce: only the first optimizer step of an epoch is on-policy; {single}")
        if cfg.lora.r:
            cfg = replace(cfg, lora=adapt(model, cfg))
        else:
            full_finetuning.train_all(model)
    algo_cfg = cfg.algorithm
    # A phase between two parts of "load", so that the trial's time and lack of memory are not taken for the load's.
    with run.phase("trial"):
        plays = algo_cfg.source == "rollouts"
        rows = min(cfg.rollout_batch_size, -(-cfg.episodes // ranks.here.world))
        exact, products = ranks.chosen(choose_threads, model, cfg.threads, plays, cfg.products, rows)
    with run.phase("load", after="trial"):
        threads = torch.get_num_threads()
        cfg = replace(cfg, threads=threads, products=products)  # a resumed run takes the same
        print(f"threads: {threads}{exact and f'; exact: {exact}'}; ranks: {ranks.here.world}", flush=True)
        critic = Critic(model.config.hidden_size, algo_cfg.critic_hidden, cfg.device) if algo_cfg.critic else None
        optimizer, reference = make_optimizer(model, critic, cfg), "reference" if cfg.resume_from else None
        state = TrainState(model, critic, optimizer, reference, exact, teacher=graded_by, judge=judge)
        if cfg.checkpoint == "block":
            checkpoint_blocks(model)
        if not cfg.lora.r and cfg.dtype != "float32":
            full_finetuning.use_masters(state)
        state.kl_coef = algo_cfg.kl_coef if algo_cfg.reference else 0.0
        state.given = {"kl_coef": state.kl_coef, "micro_tokens": cfg.micro_tokens}
        if checkpoint:
            resume.go_on(state, checkpoint, cfg)
        elif cfg.rollouts:
            checked_episodes(state, cfg)  # before anything is written
        run.begin(cfg)
        state.watch.begin(state, tokenizer, run.cfg, folder)
        run.write_settings()
        if not checkpoint:
            if state.reference:
                with new_folder(folder / "reference") as files:
                    lora.save_adapter(model, files, base_name(cfg.model), name="reference")
            digests.write(run.cfg, folder)
            with phase("save"):
                save_checkpoint(state, folder)  # before anything is played, so that a killed run can go on
        if seat:
            seat.take(model, run.cfg)
    return run, tokenizer, state, demos


def check_fits(demos: data.Demonstrations, most: int, cfg: Config) -> None:
    """Raise ValueError for a conversation with more tokens than the model has positions."""
    longest = max(len(episode.ids_T) for episode in (*demos.train, *demos.held_out))
    if longest > most:
        has = f"a conversation has {longest:,} tokens, more than the model's max_position_embeddings"
        raise Refusal(f"data={cfg.data}: {has}; max_len={most} cuts it there")


def adapt(model: CausalLM, cfg: Config) -> Lora:
    """Give the model the adapter that trains, print a line about it and return its settings."""
    if cfg.resume_from:
        if line := "" if cfg.resume else history.start_line(Path(cfg.resume_from)):
            print(line)
        names, settings = copy_adapter(model, cfg)
    else:
        settings, targets = cfg.lora, cfg.lora.targets
        if targets != "all-linear":
            targets = read_targets(targets, model)
        names = lora.inject(model, settings.r, settings.alpha, settings.dropout, targets, settings.rslora)
    adapters = [layer.adapters["default"] for _, layer in lora.lora_layers(model) if "default" in layer.adapters]
    sizes = "/".join(f"{size:g}" for size in sorted({len(adapter.A) for adapter in adapters}))
    alphas = "/".join(f"{alpha:g}" for alpha in sorted({adapter.alpha for adapter in adapters}))
    kinds = ", ".join(sorted({name.rsplit(".", 1)[-1] for name in names}))
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    frozen = [p for name, p in model.named_parameters() if ".adapters." not in name]
    total = trainable + sum(p.numel() << (p.dtype == torch.uint8) for p in frozen)  # a byte has two codes of 4 bits
    size = f"r={sizes} alpha={alphas}{' rslora' * settings.rslora}"
    print(f"lora on: {size} on {len(names)} layers ({kinds}); {trainable:,} of {total:,} parameters train")
    if cfg.optimizer == "adamw8bit":  # pays for adapters on many experts
        saved = f"{6 * trainable / 2**20:,.1f} MiB"  # two bytes a weight instead of eight
        print(f"optimizer=adamw8bit saves at most {saved} of this adapter's moments and rounds them; adamw is exact")
    for name in names if cfg.log == "debug" else ():
        print(f"  {name} <-> base_model.model.{name}.lora_A|B.weight")
    return settings
