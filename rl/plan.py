"""Peak memory of each phase of a run, computed from the model's config.json alone: train.py plan=true or plan=24GiB.

Every term is the size of tensors that the code makes; docs/scale.md has the comparison with measured peaks. The
update is taken at its worst: a micro-batch of micro_tokens, or one episode of max_len if that is longer, of which
every token is sampled. What the allocator, CUDA's context (about half a GiB) and libraries hold is not counted.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch

from models.attention import KEY_BLOCK
from models.config import ModelConfig, read_config
from models.engine import PREFILL_TOKENS
from models.weights import resolve
from rl.arguments import ArgumentError

UNITS = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 10**6}
SLAB, ROWS = 4096, 2048  # of the head (models/logprob.py, models/fast/head.py)
COPIES_SHARE = 0.25  # of a CPU's memory (models/fast/onednn.py)
STACKED_SHARE = 0.25  # of a card's memory (models/fast/cuda_graph.py)
SMALL = 20_000_000  # parameters; a smaller model is copied for the decode step on a CPU (models/fast/step.py)
GROUPS = (("q_proj", "k_proj", "v_proj"), ("o_proj",), ("gate_proj", "up_proj"), ("down_proj",))


@dataclass(frozen=True)
class Shape:
    """The sizes that memory depends on, L layers, width D, MLP I, queries Q, keys and values K, words V."""

    L: int  # layers
    D: int
    I: int  # noqa: E741  (width of the MLP)
    Q: int  # H * E
    K: int  # key/value heads * E
    H: int
    key_heads: int
    V: int
    tied: bool
    normed: bool  # heads are normed (Qwen3)
    biases: int  # in a layer

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """Return (outputs, inputs) of each linear layer of a block."""
        D, I, Q, K = self.D, self.I, self.Q, self.K  # noqa: E741
        attention = {"q_proj": (Q, D), "k_proj": (K, D), "v_proj": (K, D), "o_proj": (D, Q)}
        return attention | {"gate_proj": (I, D), "up_proj": (I, D), "down_proj": (D, I)}

    @property
    def block_weights(self) -> int:
        return self.L * sum(outputs * inputs for outputs, inputs in self.linears.values())

    @property
    def other_weights(self) -> int:
        """Return the number of weights of embedding, head, norms and biases."""
        norms = self.L * (2 * self.D + (2 * self.Q // self.H if self.normed else 0)) + self.D
        return self.V * self.D * (1 if self.tied else 2) + norms + self.L * self.biases


def shape_of(cfg: ModelConfig) -> Shape:
    Q, K = cfg.num_attention_heads * cfg.head_dim, cfg.num_key_value_heads * cfg.head_dim
    D, I = cfg.hidden_size, cfg.intermediate_size  # noqa: E741
    biases = cfg.qkv_bias * (Q + 2 * K) + cfg.o_bias * D + cfg.mlp_bias * (2 * I + D)
    heads, vocabulary = (cfg.num_attention_heads, cfg.num_key_value_heads), (cfg.vocab_size, cfg.tie_word_embeddings)
    return Shape(cfg.num_hidden_layers, D, I, Q, K, *heads, *vocabulary, cfg.qk_norm, biases)


def print_and_exit(cfg: Any) -> NoReturn:
    """Print the plan and exit: with status 0, or with 1 if it does not fit the size that plan= names.

    Raises ArgumentError for another value of plan=, a model without a config.json, and a size that nothing fits.
    """
    limit = parse_size(cfg.plan)
    try:
        shape = shape_of(read_config(config_folder(cfg.model)))
    except (OSError, ValueError) as error:
        raise ArgumentError(str(error)) from None
    needs = phases(shape, cfg)
    found = [] if fits(needs, limit) else what_fits(shape, cfg, limit)
    if not fits(needs, limit) and not found:
        least = frugal(cfg)
        size = shown(max(on_device(phases(shape, least)).values()))
        raise ArgumentError(f"plan={cfg.plan} is too small for {cfg.model}: with {described(least)} it takes {size}")
    print(f"plan: {cfg.model} device={cfg.device} dtype={cfg.dtype} max_len={cfg.max_len} {described(cfg)}")
    for name, size in needs.items():
        over = "" if fits({name: size}, limit) else f"  {shown(size - limit)} too much"
        print(f"  {name:8}{shown(size):>10}{'  of the host, in float32' if name == 'merge' else over}")
    for settings in found:
        print(f"fits with {described(settings)}: {shown(max(on_device(phases(shape, settings)).values()))}")
    raise SystemExit(1 if found else 0)


def shown(size: float) -> str:
    return f"{size / 2**30:.2f} GiB"


def described(cfg: Any) -> str:
    """Return the settings that memory depends on most, as words."""
    names = ["micro_tokens", "rollout_batch_size", *(["quant"] if cfg.lora.r else []), "checkpoint"]
    return " ".join(f"{name}={getattr(cfg, name)}" for name in names)


def on_device(needs: dict[str, int]) -> dict[str, int]:
    """Return the needs of the phases of a training run: merge.py runs later, and on the host unless told otherwise."""
    return {name: size for name, size in needs.items() if name != "merge"}


def fits(needs: dict[str, int], limit: int | None) -> bool:
    return limit is None or all(size <= limit for size in on_device(needs).values())


def what_fits(shape: Shape, cfg: Any, limit: int) -> list[Any]:
    """Return settings that fit: without and with checkpointing and a quantised base, each with the largest halves of
    micro_tokens and rollout_batch_size."""
    smaller = ("nf4", "nf4-double") if cfg.lora.r and cfg.quant in ("none", "int8") else ()
    bases = [cfg, *(replace(cfg, quant=kind) for kind in smaller)]
    ways, found = dict.fromkeys((cfg.checkpoint, "block")), []
    for settings in [replace(start, checkpoint=way) for start in bases for way in ways]:
        while not fits(needs := phases(shape, settings), limit):
            if needs["rollout"] > limit and settings.rollout_batch_size > (1 if cfg.device == "cpu" else 16):
                settings = replace(settings, rollout_batch_size=settings.rollout_batch_size // 2)
            elif max(needs["update"], needs.get("values", 0)) > limit and settings.micro_tokens > settings.max_len:
                settings = replace(settings, micro_tokens=settings.micro_tokens // 2)
            else:
                break
        else:
            found.append(settings)
    return found


def parse_size(word: str) -> int | None:
    """Return the bytes of a size such as 24GiB, 80GB or 24 (GiB), None for "true"."""
    if word.lower() == "true":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb)?", word.strip().lower())
    if not match or not 0 < float(match[1]) < 1e12:
        raise ArgumentError(f"plan={word} is neither true nor a size such as 24GiB")
    return int(float(match[1]) * UNITS[match[2] or "gib"])


def config_folder(model: str) -> Path:
    """Return a folder with the model's config.json; of a hub id only this file is downloaded."""
    if model == "tiny" or Path(model).is_dir() or model.startswith((".", "/", "~")):
        return resolve(model)
    from models.checkpoints.hub import download_config

    return download_config(model)


def phases(shape: Shape, cfg: Any) -> dict[str, int]:
    """Return the peak bytes of each phase."""
    train = trained_weights(shape, cfg)
    adapters = 4 * train if cfg.lora.r else 0
    steady = base(shape, cfg) + copies(shape, cfg) + adapters + train * moments(cfg)  # after the first optimizer step
    needs = {"load": base(shape, cfg) + adapters, "rollout": steady + rollout(shape, cfg)}
    if cfg.algorithm.critic:
        needs["values"] = steady + forward(shape, cfg, rows(cfg))
    needs["update"] = steady + 4 * train + update(shape, cfg)
    return {name: int(size) for name, size in needs.items()} | {"merge": merge(shape)}


def width(cfg: Any) -> int:
    """Return the bytes of a weight or an activation."""
    return 4 if cfg.dtype == "float32" else 2


def base(shape: Shape, cfg: Any) -> int:
    """Return the bytes of the model's weights; block linears may be quantised."""
    kind, per_row = cfg.quant, 0
    if kind == "int8":
        per_row = 4 * shape.L * sum(outputs for outputs, _ in shape.linears.values())
    bytes_of = {"nf4": 0.5 + 4 / 64, "nf4-double": 0.5 + 1 / 64 + 4 / (64 * 256), "int8": 1}
    return int(shape.block_weights * bytes_of.get(kind, width(cfg)) + per_row + shape.other_weights * width(cfg))


def copies(shape: Shape, cfg: Any) -> int:
    """Return the bytes of oneDNN's copies of frozen weights on a CPU, of blocks and head for forward and backward, as
    far as they stay within a share of this machine's memory."""
    if cfg.device != "cpu" or not cfg.lora.r or cfg.quant != "none" or cfg.products == "plain":
        return 0
    wanted = 2 * shape.block_weights * width(cfg) + shape.V * shape.D * (4 + width(cfg))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return min(wanted, int(COPIES_SHARE * memory))


def trained_weights(shape: Shape, cfg: Any) -> int:
    """Return the number of weights that train, the critic's included."""
    critic = shape.D * cfg.algorithm.critic_hidden + 2 * cfg.algorithm.critic_hidden + 1 if cfg.algorithm.critic else 0
    if not cfg.lora.r:
        return shape.block_weights + shape.other_weights + critic
    return shape.L * sum(cfg.lora.r * (outputs + inputs) for outputs, inputs in targets(shape, cfg).values()) + critic


def targets(shape: Shape, cfg: Any) -> dict[str, tuple[int, int]]:
    """Return the linear layers of a block that have adapters."""
    wanted = {"all-linear": tuple(shape.linears), "attention": GROUPS[0] + GROUPS[1]}.get(cfg.lora.targets)
    if wanted is None:
        wanted = tuple(name.rsplit(".", 1)[-1] for name in cfg.lora.targets.split(","))
    return {name: size for name, size in shape.linears.items() if name in wanted} or shape.linears


def moments(cfg: Any) -> int:
    """Return the bytes of the optimizer's state for a trained weight."""
    masters = 4 if not cfg.lora.r and cfg.dtype != "float32" else 0  # rl/full.py
    return {"adamw": 8, "adam": 8, "sgd": 0}[cfg.optimizer] + masters


def kept(shape: Shape, cfg: Any) -> float:
    """Return the bytes that a token keeps of a layer from its forward to its backward.

    On CUDA in 16 bits models/fast/train_block.py keeps half of what the plain code does.
    """
    s, w = shape, width(cfg)
    ranks = sum(-(-cfg.lora.r // 16) * 16 for _ in targets(shape, cfg)) if cfg.lora.r else 0
    if fused(cfg):
        return 4 * s.D + 6 * s.Q + 4 * s.K + 4 * s.I + 2 * ranks + 4 * s.H + 8 + s.normed * 2 * (s.Q + 2 * s.K)
    norms = (16 if w == 4 else 12) * s.D + 8
    head_norms = s.normed * ((4 * (s.Q + 2 * s.K) if w == 4 else 4 * (s.Q + s.K)) + 4 * (s.H + s.key_heads))
    return norms + head_norms + 3 * w * s.Q + 2 * w * s.K + 4 * w * s.I + 4 * s.H


def fused(cfg: Any) -> bool:
    return cfg.device == "cuda" and cfg.dtype != "float32" and not cfg.exact and cfg.lora.r > 0


def rows(cfg: Any) -> int:
    """Return the most tokens of a micro-batch."""
    return -(-max(cfg.micro_tokens, cfg.max_len) // 16) * 16


def update(shape: Shape, cfg: Any) -> float:
    """Return the bytes of the largest forward and backward, without weights and gradients.

    The peak is in the head, beside what all layers keep, or in the backward of an MLP. With checkpointing a layer that
    is computed again is beside what all layers keep.
    """
    N, s, w = rows(cfg), shape, width(cfg)
    of_a_layer = N * kept(s, cfg)
    inputs = N * s.L * w * s.D if cfg.checkpoint == "block" else s.L * of_a_layer
    head = N * (3 * w + 4) * s.D + min(N, ROWS) * 8 * (min(SLAB, s.V) + s.D)
    backward = N * w * (2 * s.I + 2 * s.D) + (of_a_layer if cfg.checkpoint == "block" else 0)
    return inputs + max(head, backward)


def forward(shape: Shape, cfg: Any, tokens: int) -> float:
    """Return the bytes of a forward without a backward: one layer's MLP beside its input, and scores of attention."""
    s, w = shape, width(cfg)
    scores = 4 * KEY_BLOCK * s.H if cfg.device == "cpu" else 0
    return tokens * (w * (4 * s.D + 4 * s.I) + scores)


def stacked(shape: Shape, cfg: Any) -> int:
    """Return the bytes of the decode step's copies of the blocks' weights on CUDA. They are made where all weights fit
    STACKED_SHARE of the card, which is the size in plan= or else the device at hand."""
    if cfg.device == "cpu" or cfg.quant != "none":
        return 0
    size = cfg.plan and parse_size(cfg.plan)
    if not size and torch.cuda.is_available():
        size = torch.cuda.get_device_properties(0).total_memory
    weights = (shape.block_weights + shape.other_weights) * width(cfg)
    return shape.block_weights * width(cfg) if weights <= STACKED_SHARE * (size or 0) else 0


def rollout(shape: Shape, cfg: Any) -> float:
    """Return the bytes of the cache when every row is full, and of a prefill or a step beside it."""
    s, w, batch = shape, width(cfg), -(-cfg.rollout_batch_size // 16) * 16
    blocks, on_cpu = -(-cfg.max_len // KEY_BLOCK), cfg.device == "cpu"
    step = batch * s.V * (20 if on_cpu else 4)
    if on_cpu:
        batch = cfg.rollout_batch_size
    if on_cpu and s.block_weights + s.other_weights < SMALL:
        step += s.block_weights * w
    cache = 2 * s.L * batch * s.K * blocks * KEY_BLOCK * w
    return cache + stacked(shape, cfg) + max(forward(s, cfg, min(PREFILL_TOKENS, batch * cfg.max_len)), step)


def merge(shape: Shape) -> int:
    """Return the bytes of merge.py on the host: the folded model and the one that is read back, both in float32."""
    return 8 * (shape.block_weights + shape.other_weights)


def frugal(cfg: Any) -> Any:
    """Return the settings with everything that saves memory and leaves what is learned alone, or nearly so."""
    smallest = replace(cfg, micro_tokens=min(cfg.micro_tokens, cfg.max_len), rollout_batch_size=1, checkpoint="block")
    return replace(smallest, quant="nf4-double") if cfg.lora.r else smallest
