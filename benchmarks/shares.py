"""Memory and communication to expect of shard= on GPUs: python -m benchmarks.shares

Nothing here is measured. Memory is that of train.py plan= (rl/peaks.py), with a rank's share of the base and what is
gathered in place of the base. Computing takes as long as benchmarks/scale.py assumes for an H200, communication as long
as LINKS say. docs=true writes the table into docs/scale.md.
"""

import sys
from dataclasses import dataclass, replace

from benchmarks import scale, sides
from models.config import parse_config
from models.sizes import Sizes, sizes_of
from rl import peaks
from rl.config import program
from rl.config.parse import parse

MARKER = "<!-- python -m benchmarks.shares docs=true -->"
MODELS = {"8b": "Llama-3.1-8B", "32b": "Qwen2.5-32B", "70b": "Llama-3.1-70B"}
RANKS = (2, 8, 64)
NODE = 8  # GPUs
LINKS = (
    0.8 * 450e9,
    0.8 * 8 * 50e9,
)  # bytes per second that a GPU receives: within a node by NVLink 4, and over nodes of
# eight network cards of 400 Gbit/s, all of which a ring uses; 80 % of the published rates
GATHERED = 3  # blocks at once: the one that computes, the next one, the buffer of its gather
H200 = scale.CARDS[-1]
GIB = 2**30


@dataclass(frozen=True)
class Parts:
    """Bytes of a model on a rank."""

    base: float  # all weights
    root: float  # embedding, final norm and head
    block: float
    state: float  # adapters, critic and the optimizer's moments
    update: float  # gradients and activations
    rollout: float  # the cache and activations
    gradients: float  # of adapters and critic


def parts(shape: str, r: int) -> Parts:
    words = ["algo=grpo", f"rollout_batch_size={scale.ROWS}", f"max_len={scale.MAX_LEN}", "checkpoint=block"]
    words += [f"micro_tokens={scale.MICRO_TOKENS}", f"lora.r={r}"]
    cfg, sizes = (
        replace(parse(words), device="cuda", dtype="bfloat16", plan="true"),
        sizes_of(parse_config(sides.SHAPES[shape])),
    )
    held, trained = peaks.footprint(sizes, cfg), peaks.trained_weights(sizes, cfg)
    base, blocks = peaks.base(sizes, cfg), 2 * block_weights(sizes)
    extra = max(peaks.update(sizes, cfg, held), peaks.optimizer_step(sizes, cfg) if r else 0)
    trained = 4 * trained if r else 0
    return Parts(
        base, base - blocks, blocks / sizes.L, 3 * trained, trained + extra, peaks.rollout(sizes, cfg, held), trained
    )


def block_weights(sizes: Sizes) -> float:
    """Return the number of weights of all blocks, with their norms and biases."""
    return sizes.weights - sizes.V * sizes.D * (1 if sizes.tied else 2) - sizes.D


def memory(shape: str, world: int) -> dict[str, float]:
    """Return the bytes that a rank holds at its peak."""
    p, full = parts(shape, scale.RANK), parts(shape, 0)
    whole, streamed = p.base / world + p.base, p.base / world + p.root + GATHERED * p.block
    # lora.r=0: float32 weights, gradients and two moments in shares; of blocks that are gathered gradients in bfloat16,
    # and of one in float32, to be scattered
    shares = 16 * full.base / 2 / world + full.root + GATHERED * full.block + 2 * full.block + 2 * full.block
    return {
        "ddp": p.base + p.state + p.update,
        "zero2": whole + p.state + p.update,
        "zero3": streamed + p.state + p.update,
        "all": shares + full.update,
        "gathered": whole + p.state + p.rollout,
        "lockstep": streamed + p.state + p.rollout,
    }


def seconds(received: float, world: int) -> float:
    return received / LINKS[world > NODE]


def table() -> list[str]:
    lines = ["| model | GPUs | update: ddp / zero2 / zero3 | `lora.r=0`, zero3 | rollout: gathered / lockstep |"]
    lines[0] += " base once | micro-batch: computing / gathering | decode step: computing / gathering in lockstep |"
    lines.append("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for shape, name in MODELS.items():
        p, size = parts(shape, scale.RANK), scale.size_of(shape)
        compute = scale.MICRO_TOKENS / scale.update_rate(size, H200, scale.BF16, checkpoint=True)
        step = scale.ROWS / scale.rollout_rate(size, H200, scale.BF16)
        for world in RANKS:
            held = {kind: f"{count / GIB:.0f}" for kind, count in memory(shape, world).items()}
            once, blocks = (x * (world - 1) / world for x in (p.base, p.base - p.root))
            cells = [name, str(world), f"{held['ddp']} / {held['zero2']} / {held['zero3']}", held["all"]]
            cells += [f"{held['gathered']} / {held['lockstep']}", f"{once / GIB:.0f}"]
            cells.append(f"{compute:.2f} / {seconds(2 * blocks, world):.2f} s")
            cells.append(f"{1000 * step:.0f} / {1000 * seconds(blocks, world):.0f} ms")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def gradients() -> list[str]:
    """Return a table of what a rank receives of adapters' gradients in a step: by the tree, by `reduce=fast`."""
    lines = ["| model | GPUs | tree | reduce=fast |", "| --- | ---: | ---: | ---: |"]
    for shape, name in MODELS.items():
        size = parts(shape, scale.RANK).gradients
        for world in RANKS:
            tree, fast = (world - 1) * size, 2 * size * (world - 1) / world
            lines.append(f"| {name} | {world} | {tree / GIB:.1f} GiB | {fast / GIB:.1f} GiB |")
    return lines


def main(keys: scale.Keys) -> None:
    lines = "\n".join([*table(), "", *gradients()])
    if keys.docs:
        before, _, after = scale.DOCS.read_text().split(MARKER)
        scale.DOCS.write_text(f"{before}{MARKER}\n{lines}\n{MARKER}{after}")
    print(lines)


if __name__ == "__main__":
    [given] = program.parse(sys.argv[1:], "benchmarks.shares", scale.Keys, about=__doc__)
    main(given)
