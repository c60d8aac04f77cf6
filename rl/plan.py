"""train.py plan=true or plan=24GiB: print the peak memory of each phase of a run, before anything is loaded."""

from dataclasses import replace
from typing import NoReturn

import torch

from models.config import read_config
from models.sizes import Sizes, sizes_of
from rl.config.arguments import ArgumentError
from rl.config.fields import Config
from rl.config.model_checks import config_folder
from rl.peaks import parse_size, phases, settled


def print_and_exit(cfg: Config) -> NoReturn:
    """Print the plan and exit: with status 0, or with 1 if it does not fit the size that plan= names.

    Raises ArgumentError for another value of plan=, a model without a config.json, and a size that nothing fits.
    """
    limit = parse_size(cfg.plan)
    try:
        sizes = sizes_of(read_config(config_folder(cfg.model)))
    except (OSError, ValueError) as error:
        raise ArgumentError(str(error)) from None
    if sizes.experts:
        raise ArgumentError(f"plan={cfg.plan} does not count a mixture of experts ({cfg.model})")
    if cfg.threads:
        torch.set_num_threads(cfg.threads)  # as the run, whose products are tried
    cfg = settled(sizes, cfg)
    needs = phases(sizes, cfg)
    fitting = [] if fits(needs, limit) else what_fits(sizes, cfg, limit)
    if not fits(needs, limit) and not fitting:
        least = frugal(sizes, cfg)
        size = shown(max(on_device(phases(sizes, least)).values()))
        raise ArgumentError(f"plan={cfg.plan} is too small for {cfg.model}: with {described(least)} it takes {size}")
    how = f"device={cfg.device} dtype={cfg.dtype}{f' products={cfg.products}' * (cfg.device == 'cpu')}"
    print(f"plan: {cfg.model} {how} max_len={cfg.max_len} {described(cfg)}")
    for name, size in needs.items():
        over = "" if fits({name: size}, limit) else f"  {shown(size - limit)} too much"
        where = "  of the host at most, block by block in float32"
        print(f"  {name:8}{shown(size):>10}{where if name == 'merge' else over}")
    if limit and not fitting:
        print(f"fits into {shown(limit)}")
    for settings in fitting:
        print(f"fits with {described(settings)}: {shown(max(on_device(phases(sizes, settings)).values()))}")
    raise SystemExit(1 if fitting else 0)


def shown(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def described(cfg: Config) -> str:
    """Return the settings that memory depends on most, as words."""
    names = ["micro_tokens", "rollout_batch_size", *(["quant"] if cfg.lora.r else []), "checkpoint"]
    return " ".join(f"{name}={getattr(cfg, name)}" for name in names)


def on_device(needs: dict[str, int]) -> dict[str, int]:
    """Return the needs of the phases of a training run: merge.py runs later, and on the host unless told otherwise."""
    return {name: size for name, size in needs.items() if name != "merge"}


def fits(needs: dict[str, int], limit: int | None) -> bool:
    return limit is None or all(size <= limit for size in on_device(needs).values())


def what_fits(sizes: Sizes, cfg: Config, limit: int) -> list[Config]:
    """Return settings that fit: without and with checkpointing and a quantised base, each with the largest halves of
    micro_tokens and rollout_batch_size."""
    smaller = {"none": ("nf4", "nf4-double"), "int8": ("nf4", "nf4-double"), "nf4": ("nf4-double",), "nf4-double": ()}
    may_quantise = cfg.lora.r and sizes.stored == "none"
    bases = [cfg, *(replace(cfg, quant=kind) for kind in (smaller[cfg.quant] if may_quantise else ()))]
    ways, fitting = dict.fromkeys((cfg.checkpoint, "block")), []
    fewest = 1 if cfg.device == "cpu" else 16  # rows, to a multiple of which CUDA pads
    for settings in [replace(start, checkpoint=way) for start in bases for way in ways]:
        while not fits(needs := phases(sizes, settings), limit):
            trains = max(needs["update"], needs.get("values", 0)) <= limit
            least = settings.micro_tokens <= settings.max_len  # then only a smaller cache, which stays, is left
            too_many = needs["rollout"] > limit or (least and not trains)
            if too_many and settings.rollout_batch_size > fewest:
                settings = replace(settings, rollout_batch_size=settings.rollout_batch_size // 2)
            elif not trains and not least:
                settings = replace(settings, micro_tokens=settings.micro_tokens // 2)
            else:
                break
        else:
            fitting.append(settings)
    return fitting


def frugal(sizes: Sizes, cfg: Config) -> Config:
    """Return the settings with everything that saves memory and leaves what is learned alone, or nearly so."""
    smallest = replace(cfg, micro_tokens=min(cfg.micro_tokens, cfg.max_len), rollout_batch_size=1, checkpoint="block")
    return replace(smallest, quant="nf4-double") if cfg.lora.r and sizes.stored == "none" else smallest
