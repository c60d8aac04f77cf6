"""Parts of benchmarks/gpu.py: decode, prefill, attention and a training pass, beside limits of the same run."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from random import Random

import torch
import torch.nn.functional as F
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

import lora
from benchmarks import common, memory, sides
from benchmarks import lora as lora_benchmark
from benchmarks.common import Row
from benchmarks.gpu_sizes import Given
from models.attention import attend, in_blocks
from models.cuda import block as cuda_block
from models.cuda.graph import CHUNK
from models.decoder import checkpoint_blocks
from models.engine import Engine
from models.quant import block_linears
from rl.batch import forward, make_batch

# ---- the limits ----


@cache
def bandwidth(device: str) -> float:
    """Return the bytes per second that a copy reads and writes: the best of five."""
    source = torch.empty(2**30 if device != "cpu" else 2**24, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    best = min(common.seconds_of(lambda: target.copy_(source), device) for _ in range(5))
    return 2 * source.numel() / best


@cache
def product_rate(device: str, dtype) -> float:
    """Return the operations per second of a large matrix product: the best of five."""
    size = 8192 if device != "cpu" else 256
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = min(common.seconds_of(lambda: a @ b, device) for _ in range(5))
    return 2 * size**3 / best


def bytes_per_token(model) -> int:
    """Return the bytes of one token's keys and values."""
    cfg = model.config
    return 2 * cfg.num_hidden_layers * cfg.num_key_value_heads * cfg.head_dim * model.lm_head.weight.itemsize


def layer_weights(model) -> int:
    """Return the number of weights that the linear layers of the blocks multiply by, quantised or not."""
    return sum(layer.out_features * layer.in_features for layer in block_linears(model).values())


def decode_limit(model, rows: int, context: float, device: str) -> float:
    """Return the least seconds of a decode step: every weight once and each row's keys and values, at the speed of
    a copy; or the products of its rows, if they take longer than reading the weights."""
    skipped = 0
    if not model.config.tie_word_embeddings:
        skipped = model.model.embed_tokens.weight.nbytes  # a few of its rows alone
    weights = sum(x.nbytes for x in (*model.parameters(), *model.buffers())) - skipped
    multiplied = layer_weights(model) + model.lm_head.weight.numel()
    products = 2 * rows * multiplied / product_rate(device, model.lm_head.weight.dtype)
    return max(weights / bandwidth(device), products) + rows * context * bytes_per_token(model) / bandwidth(device)


# ---- kernels ----


def ran(work: Callable[[], object]) -> list[float]:
    """Run the work and return the seconds of everything that ran on the GPU: kernels, copies and fills, those of a
    replayed graph too."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    on_device = [e for e in profiler.events() if e.device_type == DeviceType.CUDA and not e.is_user_annotation]
    return [(e.time_range.end - e.time_range.start) / 1e6 for e in on_device]


def profiled(work: Callable[[], object], device: str, times: int = 1) -> str:
    """Run the work and return the kernels and their time in one of its `times` equal pieces, as a line; on a CPU "". If
    profiling fails, the line says why."""
    if device == "cpu":
        return ""
    try:
        seconds = ran(work)
    except Exception as error:  # the times were measured before, and must not be lost
        return f"not profiled: {common.one_line(error)}"
    return f"{len(seconds) / times:.0f} kernels, {1e3 * sum(seconds) / times:.3g} ms on the device"


# ---- decode ----

TARGETS = {("7b", 64, 1024): 0.80, ("0.5b", 256, 1024): 0.50}  # (shape, rows, context): share of the limit


def model_of(shape: str, given: Given, quant: str = "none"):
    """Return a model with random weights, quantised if asked, and with adapters."""
    model = sides.random(sides.SHAPES[shape], given.dtype, given.device)
    return sides.adapted(model if quant == "none" else sides.quantised(model, quant))


def decode(shape: str, given: Given) -> Iterator[Row]:
    """Measure a decode step, with sampling and log-probabilities, for every number of rows and length of context."""
    model = model_of(shape, given)
    targets = given.targets(TARGETS)
    for context in given.scale.contexts:
        for rows in given.scale.rows:
            name = f"decode {shape}, {rows} rows, context {context:,}"
            yield step_row(name, model, rows, context, targets.get((shape, rows, context)), given)


def step_row(name: str, model, rows: int, context: int, target: float | None, given: Given) -> Row:
    """Return the row of an engine whose slots have about `context` tokens; one without a value if memory runs out.

    The slots are forks of one, so that only one prompt is computed; each has its own keys and values.
    """
    scale, options, draw, dropped = given.scale, given.options, Random(0), {}
    repeats = options.warmup + options.repeats
    start = max(context - scale.new * repeats // 2, 1)

    def measure() -> Row:
        engine = Engine(model, rows, start + scale.new * (repeats + 2) + CHUNK, lora.adapter_version(model))
        slots = [engine.open(key=(0, 0))]
        engine.feed(slots[0], [draw.randrange(model.config.vocab_size) for _ in range(start)])
        slots += [engine.open(key=(0, i), parent=slots[0]) for i in range(1, rows)]

        def run(new: int) -> None:
            for row in engine.run(new, 1.0, frozenset()):
                assert len(row.ids) == new

        def repeat(new: int = scale.new) -> None:
            for slot in slots:
                engine.feed(slot, [])
            run(new)

        run(CHUNK)  # computes the prompt, and captures the step
        row = common.timed(name, {"ours": repeat}, options, given.device, scale.patience, speedup=True, tokens=rows)
        row.check = profiled(partial(repeat, CHUNK), given.device, CHUNK)
        middle = start + scale.new * (options.warmup + len(row.values["ours"]) / 2)
        row.values = {"ours": [seconds / scale.new for seconds in row.values["ours"]]}
        row.values["limit"] = [decode_limit(model, rows, middle, given.device)]
        row.targets = {"limit": target} if target else {}
        return row

    return common.each_side({"ours": measure}, dropped).get("ours", Row(name, {}, dropped=dropped))


def prefill(shape: str, given: Given) -> Iterator[Row]:
    """Measure a prompt's way to its first token, in an engine that has met its length before."""
    model = model_of(shape, given)
    draw, engine = Random(0), Engine(model, 16, max(given.scale.prefill) + 64, lora.adapter_version(model))
    layers = layer_weights(model)
    for tokens in given.scale.prefill:
        ids = [draw.randrange(model.config.vocab_size) for _ in range(tokens)]

        def work(ids=ids) -> None:
            slot = engine.open(key=(0, 0))
            engine.feed(slot, ids)
            for row in engine.run(1, 1.0, frozenset()):
                engine.close(row.slot)

        name = f"prefill {shape}, {tokens:,} tokens and the first sampled"
        row = common.timed(name, {"ours": work}, given.options, given.device, speedup=True, tokens=tokens)
        limit = 2 * layers * tokens / product_rate(given.device, given.dtype)
        limit = max(limit, 2 * layers / bandwidth(given.device)) + decode_limit(model, 1, tokens, given.device)
        row.values["limit"], row.check = [limit], profiled(work, given.device)
        yield row


# ---- attention ----


def attention(given: Given) -> Iterator[Row]:
    """Compare the kernel of exact=true with torch's varlen_attn, which training takes without it, and with torch's
    scaled_dot_product_attention: forward and backward of whole sequences."""
    for shape in dict.fromkeys((given.scale.large, given.scale.small)):
        raw = sides.SHAPES[shape]
        heads = raw["num_attention_heads"], raw["num_key_value_heads"], raw["head_dim"]
        for sequences, tokens in given.scale.attention:
            name = f"attention {shape}, {sequences} x {tokens:,} tokens, forward and backward"
            works = attention_passes(heads, sequences, tokens, given)
            yield common.compared(name, works, torch.Tensor.detach, given)


def attention_passes(heads: tuple, sequences: int, tokens: int, given: Given) -> dict[str, Callable]:
    """Return the passes by side, each of which returns its output [B, H, T, E]."""
    H, K, E = heads
    generator = torch.Generator(given.device).manual_seed(0)
    words = {"device": given.device, "dtype": given.dtype, "generator": generator}
    q_BHTE, k_BKTE, v_BKTE = (torch.randn(sequences, count, tokens, E, **words) for count in (H, K, K))
    inputs = [x.requires_grad_() for x in (q_BHTE, k_BKTE, v_BKTE)]
    grad_BHTE = torch.randn(sequences, H, tokens, E, **words)
    positions_BT = torch.arange(tokens, device=given.device).expand(sequences, -1)
    rows_ST = torch.arange(sequences * tokens, device=given.device).view(sequences, tokens)

    def ours() -> torch.Tensor:
        return attend(q_BHTE, in_blocks(k_BKTE).mT, in_blocks(v_BKTE), positions_BT, exact=True)

    def packed() -> torch.Tensor:
        in_rows = lambda x: x.transpose(1, 2).flatten(0, 1)  # noqa: E731
        out_NHE = pack.attend(*map(in_rows, (q_BHTE, k_BKTE, v_BKTE)))
        return out_NHE.unflatten(0, (sequences, tokens)).transpose(1, 2)

    def sdpa() -> torch.Tensor:
        return F.scaled_dot_product_attention(q_BHTE, k_BKTE, v_BKTE, is_causal=True, enable_gqa=True)

    outputs = {"ours": ours, "SDPA": sdpa}
    if not cuda_block.varlen_problem(torch.device(given.device), given.dtype, E):
        pack = cuda_block.pack_rows(rows_ST, rows_ST >= 0)
        outputs = {"ours": ours, "varlen_attn": packed, "SDPA": sdpa}

    def both_ways(output: Callable) -> torch.Tensor:
        for x in inputs:
            x.grad = None
        found = output()
        found.backward(grad_BHTE)
        return found

    return {side: partial(both_ways, output) for side, output in outputs.items()}


# ---- training ----


def training(given: Given) -> Iterator[Row]:
    """Measure the forward and backward pass that rl/update.py takes, on the large and the small model, with
    checkpoint=block and without."""
    for shape in dict.fromkeys((given.scale.large, given.scale.small)):
        model = model_of(shape, given)
        yield training_row(f"training pass {shape}", model, given)
        checkpoint_blocks(model)
        yield training_row(f"training pass {shape} checkpoint=block", model, given)
        del model
        memory.free_memory()


def training_row(name: str, model, given: Given) -> Row:
    count, tokens = given.scale.training
    prompt, episodes = tokens // 2, []
    for seed in range(count):  # groups of one, so that no prompt is shared
        [episode] = lora_benchmark.make_group(prompt, tokens - prompt, 1, model.config.vocab_size, seed)
        episode.group = seed
        episodes.append(episode)
    batch, grad_N = make_batch(episodes), torch.randn(count * (tokens - prompt))

    def work() -> None:
        forward(batch, model, 1.0).logprobs_N.backward(grad_N)
        for p in model.parameters():
            p.grad = None

    name = f"{name}, {count * tokens:,} tokens"
    memory.reset_peak(given.device)
    limit = given.scale.patience
    row = common.timed(name, {"ours": work}, given.options, given.device, limit, speedup=True, tokens=count * tokens)
    if row.values:
        operations = 4 * (count * tokens * layer_weights(model) + len(grad_N) * model.lm_head.weight.numel())
        row.values["limit"] = [operations / product_rate(given.device, given.dtype)]
        row.check = f"peak {memory.peak_gib(given.device):.2f} GiB"
        row.check += f"; {kernels}" if (kernels := profiled(work, given.device)) else ""
    return row


# ---- quantised bases ----


def quantised(given: Given) -> Iterator[Row]:
    """Measure the large model with its base in nf4: dequantising a layer, decode steps, a training pass."""
    shape = given.scale.large
    model = model_of(shape, given, "nf4")
    layer = max(block_linears(model).values(), key=lambda layer: layer.out_features * layer.in_features)
    moved = sum(x.nbytes for x in (layer.weight, layer.absmax))
    moved += layer.out_features * layer.in_features * given.dtype.itemsize
    name, works = (
        f"dequantise nf4, {layer.out_features} x {layer.in_features}",
        {"ours": lambda: layer.dense(given.dtype)},
    )
    row = common.timed(name, works, given.options, given.device, speedup=True)
    row.values["limit"] = [moved / bandwidth(given.device)]
    yield row
    context = given.scale.contexts[len(given.scale.contexts) // 2]
    for rows in given.scale.rows:
        name = f"decode {shape} nf4, {rows} rows, context {context:,}"
        yield step_row(name, model, rows, context, None, given)
    yield training_row(f"training pass {shape} nf4", model, given)
