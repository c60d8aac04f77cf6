"""Peak memory of each phase of a run, from the model's config.json alone, for rl/plan.py.

Each term is the size of tensors that the code makes; what takes a few percent is left out, so a plan is within 15 % of
measured peaks (docs/scale.md). The update is taken at its worst: a micro-batch of micro_tokens, or one episode of
max_len if that is longer, of which every token is sampled.
"""

import math
import re
from dataclasses import replace

import torch

from lora.export import PIECE
from lora.targets import matching
from models.attention import KEY_BLOCK, QUERY_TILE
from models.engine import PREFILL_TOKENS
from models.hooks import hooks
from models.linear import ROW_MULTIPLE
from models.memory import Footprint
from models.quant import layout
from models.sizes import Sizes
from rl.config.arguments import ArgumentError
from rl.config.fields import Config, Machine
from rl.config.model_checks import asked_of_base, check_stored

UNITS = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 10**6}
PROMPTS, MOST_TOKENS = 8, 64  # of merge.py's certificate: held-out tasks, unless prompts= says otherwise; of a reply
# bytes of the optimizer's state for a trained weight; adamw8bit has 1/32 byte more for its scales
MOMENTS = {"adamw": 8, "adam": 8, "sgd": 0, "adamw8bit": 2, "muon": 4}
PARTS, IN_PLACE = 8, 2**30  # rl/ranks/gradients.py: parts of a step's tree; bytes of gradients from which there is none


def parse_size(word: str) -> int | None:
    """Return the bytes of a size such as 24GiB, 80GB or 24 (GiB), None for "true"."""
    if word.lower() == "true":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb)?", word.strip().lower())
    if not match or not 0 < float(match[1]) < 1e12:
        raise ArgumentError(f"plan={word} is neither true nor a size such as 24GiB")
    return int(float(match[1]) * UNITS[match[2] or "gib"])


def settled(sizes: Sizes, cfg: Config) -> Config:
    """Return the settings with the quantisation that the checkpoint is stored in, and the products that are faster on
    this machine. Raise ArgumentError for settings that do not go with such a checkpoint."""
    check_stored(cfg, sizes.stored)
    cfg = replace(cfg, quant=cfg.quant if sizes.stored == "none" else sizes.stored)
    return replace(cfg, products=footprint(sizes, cfg).products)


def phases(sizes: Sizes, cfg: Config) -> dict[str, int]:
    """Return the peak bytes of each phase. cfg: `settled`."""
    held, train = footprint(sizes, cfg), trained_weights(sizes, cfg)
    loaded = base(sizes, cfg) + 4 * (train if cfg.lora.r else train - sizes.weights)  # adapters and the critic
    if not cfg.lora.r and cfg.dtype != "float32":
        loaded += 4 * sizes.weights  # rl/run/full_finetuning.py's copies
    steady = loaded + held.copies + train * MOMENTS[cfg.optimizer]  # after the first optimizer step
    needs = {"load": loaded, "rollout": steady + rollout(sizes, cfg, held)}
    steady += staying(sizes, cfg, held)
    if cfg.algorithm.critic:
        needs["values"] = steady + forward(sizes, cfg, held, rows(cfg), cfg.max_len)
    needs["update"] = steady + max(update(sizes, cfg, held), 4 * train + optimizer_step(sizes, cfg))
    return {name: int(size) for name, size in needs.items()} | {"merge": int(merge(sizes, cfg, held))}


def footprint(sizes: Sizes, cfg: Config) -> Footprint:
    """Return what models/cpu or models/cuda holds beside the weights. Raise ArgumentError without that folder."""
    card = cfg.device != "cpu" and parse_size(cfg.plan or "true")
    if cfg.device != "cpu" and not card and torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0).total_memory
    dtype, again = getattr(torch, cfg.dtype), not cfg.lora.r or cfg.algorithm.entropy_grad
    how = cfg.quant, cfg.lora.r, cfg.products, card or 0
    held = hooks(cfg.device).footprint(sizes, dtype, *how, rows(cfg), again)
    if held is None:
        raise ArgumentError(f"plan= counts what models/{cfg.device} allocates, which is not here")
    return held


# ---- weights ----


def width(cfg: Machine) -> int:
    """Return the bytes of a weight or an activation."""
    return getattr(torch, cfg.dtype).itemsize


def base(sizes: Sizes, cfg: Config) -> int:
    """Return the bytes of the model's weights; block linears may be quantised."""
    others = sizes.other_weights * width(cfg)
    if cfg.quant == "none":
        return sizes.block_weights * width(cfg) + others
    tensors = [layout(cfg.quant, *shape).values() for shape in sizes.linears.values()]
    return sizes.L * sum(math.prod(shape) * dtype.itemsize for layer in tensors for shape, dtype in layer) + others


def trained_weights(sizes: Sizes, cfg: Config) -> int:
    """Return the number of weights that train, the critic's included."""
    critic = sizes.D * cfg.algorithm.critic_hidden + 2 * cfg.algorithm.critic_hidden + 1 if cfg.algorithm.critic else 0
    if not cfg.lora.r:
        return sizes.weights + critic
    return cfg.lora.r * adapted(sizes, cfg) + critic


def adapted(sizes: Sizes, cfg: Config) -> int:
    """Return the sum of outputs and inputs of all layers that have an adapter. Raise ArgumentError if none has."""
    word, linears = cfg.lora.targets, {}
    for i in range(sizes.L):
        for name, shape in sizes.linears.items():
            room = "self_attn" if name in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj") else "mlp"
            linears[f"model.layers.{i}.{room}.{name}"] = sum(shape)
    names = word if word == "attention" or not re.fullmatch(r"[\w.,]+", word) else word.split(",")
    selected = matching(linears, word if word == "all-linear" else names)
    if not selected:
        raise ArgumentError(f"lora.targets={word}: no linear layer of {cfg.model} is named so")
    return sum(linears[path] for path in selected)


def optimizer_step(sizes: Sizes, cfg: Config) -> int:
    """Return the bytes of torch's temporaries in a step: on a CPU for one parameter at a time, on CUDA for all."""
    if cfg.optimizer in ("sgd", "adamw8bit"):  # adamw8bit: of a piece of a parameter
        return 0
    largest = sizes.V * sizes.D if not cfg.lora.r else 0
    return 8 * largest if cfg.device == "cpu" else 4 * trained_weights(sizes, cfg)


# ---- the update ----


def rows(cfg: Config) -> int:
    """Return the most tokens of a micro-batch."""
    return padded(max(cfg.micro_tokens, cfg.max_len))


def padded(count: int) -> int:
    return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE


def fused(sizes: Sizes, cfg: Config) -> bool:
    return cfg.device == "cuda" and cfg.dtype != "float32" and not cfg.exact and cfg.lora.r > 0 and sizes.silu


def kept(sizes: Sizes, cfg: Config, last: bool = False) -> float:
    """Return the bytes that a token keeps of a layer from its forward to its backward.

    On CUDA in 16 bits models/cuda/block.py keeps half of what the plain code does. last: of the last layer, which
    is plain there too. On a CPU models/cpu/block.py keeps 2I numbers less than the plain code.
    """
    s, w = sizes, width(cfg)
    if fused(sizes, cfg) and not last:
        ranks = 2 * padded(cfg.lora.r) * len(sizes.linears)
        return 4 * (s.D + s.Q + s.K + s.I) + ranks + 4 * s.H + bool(s.normed) * 2 * (s.Q + 2 * s.K)
    norms = (16 if w == 4 else 12) * s.D + bool(s.normed) * 4 * (s.Q + s.K)
    if not cfg.lora.r:  # what the gradients of the norms' weights need
        norms += 2 * w * s.D
    norms += w * (s.D + s.Q) if fused(s, cfg) else 0  # copies of the rows that the last layer goes on with
    return norms + w * (3 * s.Q + 2 * s.K) + w * (2 if cfg.device == "cpu" else 4) * s.I + 4 * s.H


def sums_held(pieces: int) -> int:
    """Return the most sums of gradients that a tree holds when it begins with the last of these micro-batches."""
    return min(PARTS.bit_length(), (pieces - 1).bit_length())


def update(sizes: Sizes, cfg: Config, held: Footprint) -> float:
    """Return the bytes of the largest forward and backward, without weights, beside the gradients.

    The peak is in the head, beside what all layers keep, or in the backward of an MLP: the last layer's, which keeps
    the most, or the first layer's, beside the gradients of the others. With checkpointing that layer is computed again.
    """
    N, s, w, gradient = rows(cfg), sizes, width(cfg), 4 * trained_weights(sizes, cfg)
    pieces = -(-cfg.batch_size * cfg.max_len // N)
    in_place = cfg.device != "cpu" or gradient > IN_PLACE
    before = gradient * (min(pieces - 1, 1) if in_place else sums_held(pieces))
    before += 0 if cfg.lora.r else w * s.V * s.D  # the head's gradient, which a tied embedding's is added to
    added = gradient if pieces == 1 or (not in_place and pieces <= PARTS) else 0
    again = cfg.checkpoint == "block"
    of_a_layer, of_the_last = N * kept(s, cfg), N * kept(s, cfg, last=True)
    if fused(s, cfg):  # and the factors, cast once for forward and backward
        of_a_layer += w * padded(cfg.lora.r) * adapted(s, cfg) / s.L
    inputs = N * s.L * w * s.D if again else (s.L - 1) * of_a_layer + of_the_last
    head = N * (3 * w + 4) * s.D + held.head
    wide = 2 if cfg.device == "cpu" else 1  # act(gate) * up, and on a CPU its factors and their gradients
    backward = N * w * (wide * s.I + 2 * s.D) + max(wide * N * w * s.I, held.dequantised)  # of the MLP's down_proj
    return before + max(inputs + head, inputs + backward + again * of_the_last, added + of_a_layer + backward)


# ---- the rollout ----


def forward(sizes: Sizes, cfg: Config, held: Footprint, tokens: int, new: int) -> float:
    """Return the bytes of a forward without a backward: one layer's MLP or attention beside its input. new: tokens of a
    sequence."""
    s, w = sizes, width(cfg)
    mlp = tokens * w * (4 * s.D + 3 * s.I) + max(tokens * w * s.I, held.dequantised)
    return mlp if cfg.device != "cpu" else max(mlp, attention(s, w, tokens, min(new, tokens), new))


def attention(sizes: Sizes, w: int, tokens: int, new: int, length: int) -> float:
    """Return the bytes of attention on a CPU beside its layer's rows, for the last `new` of a sequence's `length`
    tokens: projections, the keys and values that are read, and all scores and weighted values of a tile of queries."""
    s, blocks, sequences = sizes, -(-length // KEY_BLOCK), tokens / new
    read = sequences * blocks * KEY_BLOCK * s.K * 8  # as float32
    tile = sequences * min(new, QUERY_TILE) * 4 * blocks * (KEY_BLOCK * s.H + 2 * s.Q)
    return tokens * w * (2 * s.D + 4 * s.Q + 3 * s.K) + read + tile


def rollout(sizes: Sizes, cfg: Config, held: Footprint) -> float:
    """Return the bytes of the cache when every row is full, and of a prefill or a step beside it; of both engines where
    an environment asks the frozen base."""
    s, on_cpu, batch = sizes, cfg.device == "cpu", sampled_together(cfg)
    asked = cfg.rollout_batch_size if on_cpu else padded(cfg.rollout_batch_size)  # an episode may ask several times
    engines = cache(s, cfg) + held.stacks + (cache(s, cfg, asked) + held.stacks if asked_of_base(cfg) else 0)
    step = s.V * (4 * padded(batch) + 16 * batch * on_cpu)
    prefill = forward(s, cfg, held, min(PREFILL_TOKENS, batch * cfg.max_len), cfg.max_len)
    if not on_cpu:
        return engines + max(step, prefill)
    new = max(1, min(QUERY_TILE, cfg.max_len, PREFILL_TOKENS // batch))  # of every row of a nearly full cache
    observed = attention(s, width(cfg), batch * new, new, cfg.max_len)
    return engines + max(step, prefill, observed, cache(s, cfg) / s.L)  # one layer's blocks grow


def sampled_together(cfg: Config) -> int:
    """Return the most rows of an engine: of a run's rollouts or evaluations."""
    rows = min(cfg.rollout_batch_size, max(cfg.episodes, cfg.eval_episodes))
    return rows if cfg.device == "cpu" else padded(rows)


def cache(sizes: Sizes, cfg: Config, batch: int = 0) -> int:
    """Return the bytes of keys and values when every row is full; on CUDA they are allocated at once. batch: rows, by
    default those of a run's rollouts."""
    blocks = max(-(-cfg.max_len // KEY_BLOCK), 2 if cfg.device == "cpu" else 1)
    number = 4 if cfg.device == "cpu" else width(cfg)  # models/cache.py
    return 2 * sizes.L * (batch or sampled_together(cfg)) * blocks * KEY_BLOCK * sizes.K * number


def staying(sizes: Sizes, cfg: Config, held: Footprint) -> int:
    """Return the bytes of the cache and of the decode step's copies that stay between rollouts, where they are few."""
    size = cache(sizes, cfg) + held.stacks
    return size if cfg.device != "cpu" and size <= held.small and not cfg.sampler else 0


def merge(sizes: Sizes, cfg: Config, held: Footprint) -> float:
    """Return the most bytes of merge.py, which computes in float32, on the host and block by block.

    It holds the adapters, a block with its copy in a library's layout, and what the block makes of prompts of max_len
    or the update of its largest layer, which is measured in pieces; at the end the distributions of three passes.
    """
    plain, tokens = replace(cfg, device="cpu", dtype="float32"), (PROMPTS + 1) * cfg.max_len
    adapters = 4 * cfg.lora.r * adapted(sizes, cfg) if cfg.lora.r else 0
    distributions = 4 * (PROMPTS + 1) * MOST_TOKENS * sizes.V
    measuring = 8 * tokens * sizes.D + 4 * sizes.largest_linear + 22 * min(sizes.largest_linear, PIECE)
    comparing = 2 * distributions + forward(sizes, plain, held, tokens, cfg.max_len)
    return adapters + max(8 * sizes.block_weights / sizes.L + max(measuring, comparing), 5.7 * distributions)
