"""Peak memory of each phase of a run, computed from the model's config.json alone, for rl/plan.py.

Every term is the size of tensors that the code makes; docs/scale.md has the comparison with measured peaks, and what is
not counted. The update is taken at its worst: a micro-batch of micro_tokens, or one episode of max_len if that is
longer, of which every token is sampled.
"""

import math
import re
from dataclasses import replace
from typing import Any

import torch

from lora.export import PIECE
from lora.targets import matching
from models.attention import KEY_BLOCK, QUERY_TILE
from models.engine import PREFILL_TOKENS
from models.hooks import hooks
from models.linear import ROW_MULTIPLE
from models.quant import layout
from models.sizes import Sizes
from rl.config.arguments import ArgumentError
from rl.config.fields import Config, Machine
from rl.config.model_checks import asked_of_base, check_stored
from rl.ranks.gradients import SHARES, adds_in_place, most_held

UNITS = {"gib": 2**30, "gb": 10**9, "mib": 2**20, "mb": 10**6}
PROMPTS, MOST_TOKENS = 8, 64  # of merge.py's certificate: held-out tasks, unless prompts= says otherwise; of a reply
MOMENTS = {"adamw": 8, "adam": 8, "sgd": 0}  # bytes of the optimizer's state for a trained weight


def parse_size(word: str) -> int | None:
    """Return the bytes of a size such as 24GiB, 80GB or 24 (GiB), None for "true"."""
    if word.lower() == "true":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(gib|gb|mib|mb)?", word.strip().lower())
    if not match or not 0 < float(match[1]) < 1e12:
        raise ArgumentError(f"plan={word} is neither true nor a size such as 24GiB")
    return int(float(match[1]) * UNITS[match[2] or "gib"])


def settled(sizes: Sizes, cfg: Config) -> Config:
    """Return the settings as a run takes them: with the quantisation that the checkpoint is stored in, and the products
    that are faster on this machine. Raise ArgumentError for settings that do not go with such a checkpoint."""
    stored = sizes.stored
    check_stored(cfg, stored)
    cfg = replace(cfg, quant=cfg.quant if stored == "none" else stored)
    return replace(cfg, products=footprint(sizes, cfg).products)


def phases(sizes: Sizes, cfg: Config) -> dict[str, int]:
    """Return the peak bytes of each phase. cfg: `settled`."""
    held, train = footprint(sizes, cfg), trained_weights(sizes, cfg)
    loaded = base(sizes, cfg) + 4 * (train if cfg.lora.r else train - sizes.weights)  # adapters and the critic
    if not cfg.lora.r and cfg.dtype != "float32":
        loaded += 4 * sizes.weights  # rl/run/full_finetuning.py's copies
    steady = loaded + held.copies + train * MOMENTS[cfg.optimizer]  # after the first optimizer step
    steady += 2 * -(-cfg.max_len // 1024) * 1024 * sizes.E * width(cfg)  # the tables of CausalLM.rotary_tables
    needs = {"load": loaded, "rollout": steady + rollout(sizes, cfg, held)}
    steady += staying(sizes, cfg, held)
    if cfg.algorithm.critic:
        critic = rows(cfg) * ((width(cfg) + 4) * sizes.D + 8 * cfg.algorithm.critic_hidden)
        # The hidden states of the micro-batch before; cosines and sines of the rows that the last layer goes on with.
        before = rows(cfg) * width(cfg) * (sizes.D + 2 * sizes.E)
        needs["values"] = steady + max(before + forward(sizes, cfg, held, rows(cfg), cfg.max_len), critic)
    needs["update"] = steady + max(
        update(sizes, cfg, held, gradients(sizes, cfg)), 4 * train + optimizer_step(sizes, cfg)
    )
    return {name: int(size) for name, size in needs.items()} | {"merge": int(merge(sizes, cfg, held))}


def footprint(sizes: Sizes, cfg: Config) -> Any:
    """Return what models/cpu or models/cuda counts. Raise ArgumentError where the folder is missing."""
    card = cfg.device != "cpu" and parse_size(cfg.plan or "true")
    if cfg.device != "cpu" and not card and torch.cuda.is_available():
        card = torch.cuda.get_device_properties(0).total_memory
    dtype, again = getattr(torch, cfg.dtype), not cfg.lora.r or cfg.algorithm.entropy_grad
    how = cfg.quant, cfg.lora.r, cfg.products, card or 0
    held = hooks(cfg.device).footprint(sizes, dtype, *how, rows(cfg), again)
    if held is None:
        raise ArgumentError(f"plan= counts what models/{cfg.device} allocates, which is not here")
    return held


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
    return sum(cfg.lora.r * (outputs + inputs) for outputs, inputs in adapted(sizes, cfg)) + critic


def adapted(sizes: Sizes, cfg: Config) -> list[tuple[int, int]]:
    """Return (outputs, inputs) of each layer that has an adapter. Raise ArgumentError if none has."""
    word, rooms = cfg.lora.targets, {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn"}
    rooms["o_proj"] = "self_attn"
    linears = {
        f"model.layers.{i}.{rooms.get(name, 'mlp')}.{name}": shape
        for i in range(sizes.L)
        for name, shape in sizes.linears.items()
    }
    names = word if word == "attention" or not re.fullmatch(r"[\w.,]+", word) else word.split(",")
    found = matching(linears, word if word == "all-linear" else names)
    if not found:
        raise ArgumentError(f"lora.targets={word}: no linear layer of {cfg.model} is named so")
    return [linears[path] for path in found]


def optimizer_step(sizes: Sizes, cfg: Config) -> int:
    """Return the bytes of torch's temporaries in a step: on a CPU for one parameter at a time, on CUDA for all."""
    decayed = cfg.weight_decay > 0 and cfg.optimizer != "adamw"  # the gradient with the decay
    if cfg.device != "cpu":
        return 4 * trained_weights(sizes, cfg) if decayed or cfg.optimizer != "sgd" else 0
    critic = sizes.D * cfg.algorithm.critic_hidden if cfg.algorithm.critic else 0
    if cfg.lora.r:
        largest = max(cfg.lora.r * max(shape) for shape in adapted(sizes, cfg))
    else:
        largest = max(sizes.V * sizes.D, sizes.largest_linear)
    return 4 * max(largest, critic) * (decayed + 2 * (cfg.optimizer != "sgd"))


def kept(sizes: Sizes, cfg: Config, last: bool = False) -> float:
    """Return the bytes that a token keeps of a layer from its forward to its backward.

    On CUDA in 16 bits models/cuda/block.py keeps half of what the plain code does, and the logarithms of
    attention's sums. last: of the last layer, which is plain there too. On a CPU models/cpu/block.py keeps 2I
    numbers less than the plain code.
    """
    s, w = sizes, width(cfg)
    if fused(sizes, cfg) and not last:
        ranks = padded(cfg.lora.r) * len(adapted(sizes, cfg)) / sizes.L
        return 4 * s.D + 4 * s.Q + 4 * s.K + 4 * s.I + 2 * ranks + 4 * s.H + 8 + s.normed * 2 * (s.Q + 2 * s.K)
    norms = (16 if w == 4 else 12) * s.D + 8
    head_norms = s.normed * ((4 * (s.Q + 2 * s.K) if w == 4 else 4 * (s.Q + s.K)) + 4 * (s.H + s.key_heads))
    if not cfg.lora.r:  # what the gradients of the norms' weights need
        norms += 2 * w * s.D + s.normed * w * (s.Q + s.K)
    wanted = w * (s.D + s.Q) if fused(s, cfg) else 0  # copies of the rows that the last layer goes on with
    inner = (2 if cfg.device == "cpu" else 4) * s.I
    return norms + head_norms + 3 * w * s.Q + 2 * w * s.K + w * inner + 4 * s.H + wanted


def fused(sizes: Sizes, cfg: Config) -> bool:
    return cfg.device == "cuda" and cfg.dtype != "float32" and not cfg.exact and cfg.lora.r > 0 and sizes.silu


def padded(count: int) -> int:
    return -(-count // ROW_MULTIPLE) * ROW_MULTIPLE


def rows(cfg: Config) -> int:
    """Return the most tokens of a micro-batch."""
    return padded(max(cfg.micro_tokens, cfg.max_len))


def gradients(sizes: Sizes, cfg: Config) -> tuple[int, int]:
    """Return the bytes of the sums of gradients that a micro-batch begins beside, at most, and of those that all blocks
    then add to them."""
    train, blocks = trained_weights(sizes, cfg), sizes.block_weights
    if cfg.lora.r:
        blocks = sum(cfg.lora.r * (outputs + inputs) for outputs, inputs in adapted(sizes, cfg))
    pieces = -(-cfg.batch_size * cfg.max_len // rows(cfg))
    if adds_in_place(4 * train, cfg.device != "cpu"):
        return (4 * train, 0) if pieces > 1 else (0, 4 * blocks)
    return 4 * train * most_held(pieces), 4 * blocks * (pieces <= SHARES)


def update(sizes: Sizes, cfg: Config, held: Any, gradients: tuple[int, int] = (0, 0)) -> float:
    """Return the bytes of the largest forward and backward, without weights, beside these gradients.

    The peak is in the head, beside what all layers keep, or in the backward of an MLP: the last layer's, which keeps
    the most, or the first layer's, beside the gradients of the others. With checkpointing that layer is computed again.
    """
    N, s, w = rows(cfg), sizes, width(cfg)
    before, of_blocks = gradients
    before += N * w * 2 * s.E  # the rows' cosines and sines
    of_a_layer, of_the_last = N * kept(s, cfg), N * kept(s, cfg, last=True)
    if fused(s, cfg):  # and the factors, cast once for forward and backward
        of_a_layer += w * padded(cfg.lora.r) * sum(outputs + inputs for outputs, inputs in adapted(s, cfg)) / s.L
    again = cfg.checkpoint == "block"
    inputs = N * s.L * w * s.D if again else (s.L - 1) * of_a_layer + of_the_last
    before += 0 if cfg.lora.r else w * s.V * s.D  # the head's gradient, which a tied embedding's is added to
    head = N * (3 * w + 4) * s.D + held.head
    backward = N * w * (s.I + 2 * s.D) + max(N * w * s.I, held.dequantised)  # of the MLP's down_proj
    if cfg.device == "cpu":  # act(gate) * up in the forward, and its factors and their gradients in the backward
        backward = N * w * (2 * s.I + 2 * s.D) + max(2 * N * w * s.I, held.dequantised)
    last = inputs + backward + (of_the_last if again else 0)
    first = of_blocks * (s.L - 1) / s.L + of_a_layer + backward + (N * w * s.D if again else 0)
    return before + max(inputs + head, last, first)


def forward(sizes: Sizes, cfg: Config, held: Any, tokens: int, new: int) -> float:
    """Return the bytes of a forward without a backward: one layer's MLP or attention beside its input. new: tokens of a
    sequence."""
    s, w = sizes, width(cfg)
    rows = 4 * s.D + 2 * s.E  # the layer's input, its output, the normed rows, what is added; cosines and sines
    mlp = tokens * w * (rows + 3 * s.I) + max(tokens * w * s.I, held.dequantised)
    if cfg.device != "cpu":
        return mlp
    rows = 2 * s.D + 2 * s.E + 2 * s.Q + 3 * s.K  # as above; the projections, and those that are rotated
    return max(mlp, tokens * w * rows + attention(s, w, tokens, min(new, tokens), new))


def attention(sizes: Sizes, w: int, tokens: int, new: int, length: int) -> float:
    """Return the bytes that ExactAttention makes beside its layer's rows, for the last `new` of a sequence's `length`
    tokens: queries and results, the keys and values that are read, all scores of a tile, and its weighted values by
    block, beside those of the tile before."""
    s, blocks, sequences = sizes, -(-length // KEY_BLOCK), tokens / new
    read = sequences * blocks * KEY_BLOCK * s.K * (2 * w + (4 if w == 2 else 0))  # one of them as float32
    tile = sequences * min(new, QUERY_TILE) * 4 * (s.Q + blocks * (KEY_BLOCK * s.H + s.Q))
    tile += sequences * QUERY_TILE * 4 * (blocks - 1) * s.Q * (new > QUERY_TILE)
    return tokens * w * 2 * s.Q + read + tile


def rollout(sizes: Sizes, cfg: Config, held: Any) -> float:
    """Return the bytes of the cache when every row is full, and of a prefill or a step beside it; of both engines where
    an environment asks the frozen base."""
    s, on_cpu, batch = sizes, cfg.device == "cpu", sampled_together(cfg)
    asked = cfg.rollout_batch_size if on_cpu else padded(cfg.rollout_batch_size)  # an episode may ask several times
    engines = cache(s, cfg) + held.stacks + (cache(s, cfg, asked) + held.base_stacks if asked_of_base(cfg) else 0)
    step = s.V * (4 * padded(batch) + 16 * batch * on_cpu) + held.slab  # short prompts take the step's copies too
    prefill = forward(s, cfg, held, min(PREFILL_TOKENS, batch * cfg.max_len), cfg.max_len)
    more = max(observation(s, cfg, held, batch), cache(s, cfg) / s.L) if on_cpu else 0  # one layer's blocks grow
    return engines + max(step, prefill, more)


def observation(sizes: Sizes, cfg: Config, held: Any, batch: int) -> float:
    """Return the bytes of a forward on a CPU in which every row of a nearly full cache gets a tile of queries."""
    s, w = sizes, width(cfg)
    new = max(1, min(QUERY_TILE, cfg.max_len, PREFILL_TOKENS // batch))
    made = lambda tokens: attention(s, w, tokens, max(1, min(new, tokens)), cfg.max_len)  # noqa: E731
    plain = batch * new * w * (2 * s.D + 2 * s.E + 2 * s.Q + 3 * s.K) + made(batch * new)
    N, ranks = padded(min(held.short, batch * cfg.max_len)), padded(cfg.lora.r)
    gate_up, qkv = 2 * s.I + 2 * ranks, s.Q + 2 * s.K + 3 * ranks  # with the adapters' low-rank inputs
    rows = gate_up + qkv + s.D + ranks + 3 * s.Q + 2 * s.K + 2 * s.E + 4 * s.K  # the last are indices of 8 bytes
    return max(plain, N * w * rows + max(N * w * (gate_up + s.D), made(N)))


def sampled_together(cfg: Config) -> int:
    """Return the most rows of an engine: of a run's rollouts or evaluations."""
    rows = min(cfg.rollout_batch_size, max(cfg.episodes, cfg.eval_episodes))
    return rows if cfg.device == "cpu" else padded(rows)


def cache(sizes: Sizes, cfg: Config, batch: int = 0) -> int:
    """Return the bytes of keys and values when every row is full; on CUDA they are allocated at once. batch: rows, by
    default those of a run's rollouts."""
    batch = batch or sampled_together(cfg)
    blocks = max(-(-cfg.max_len // KEY_BLOCK), 2 if cfg.device == "cpu" else 1)
    tokens = blocks * KEY_BLOCK
    return 2 * sizes.L * batch * tokens * sizes.K * width(cfg)


def staying(sizes: Sizes, cfg: Config, held: Any) -> int:
    """Return the bytes of the cache and of the decode step's copies that stay between rollouts, where they are few."""
    size = cache(sizes, cfg) + held.stacks
    return size if cfg.device != "cpu" and size <= held.small and not cfg.sampler else 0


def merge(sizes: Sizes, cfg: Config, held: Any) -> float:
    """Return the most bytes of merge.py, which computes in float32, on the host and block by block.

    Beside the adapters and the distributions at the probes it holds a block, a library's copies of it, and what the
    block makes of prompts of max_len or, while the update of its largest layer is measured, that update and pieces of
    it. Embedding and head are mapped from their files. At the end the distributions of three passes are compared.
    """
    s, plain, tokens = sizes, replace(cfg, device="cpu", dtype="float32"), (PROMPTS + 1) * cfg.max_len
    adapters = sum(4 * cfg.lora.r * (outputs + inputs) for outputs, inputs in adapted(s, cfg)) if cfg.lora.r else 0
    distributions = 4 * (PROMPTS + 1) * MOST_TOKENS * s.V
    block = 2 * 4 * s.block_weights / s.L + adapters / s.L
    piece = min(s.largest_linear, PIECE)
    measuring = 4 * 2 * tokens * s.D + 4 * s.largest_linear + 22 * piece  # in float32, float64 and the cast's dtype
    comparing = 2 * distributions + forward(s, plain, held, tokens, cfg.max_len)
    return adapters + max(block + max(measuring, comparing), (3 + 3 * PROMPTS / (PROMPTS + 1)) * distributions)
