"""Compare the speed of two versions of this code: python -m benchmarks.versions before=FOLDER

`before` is another checkout (git worktree add FOLDER COMMIT). Each version runs in a process of its own; the two
processes take their repeats in turn, row by row, so that a change of the machine's load meets both. A row is the
median time of this version over the median time of the other: below 1 this version is faster.

    python -m benchmarks.versions before=. before_products=onednn now_products=plain
    python -m benchmarks.versions before=FOLDER clock=cpu threads=1

The first compares two libraries of products on one machine, as another kind of CPU would choose another. The
second counts CPU time, of the started programs too: on a busy machine it varies less than time on the clock.
"""

import importlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

ROOT = Path(__file__).parents[1]
PRODUCTS = "auto"  # in a version's process: its products


@dataclass(frozen=True)
class Keys:
    before: str  # the other version's folder
    rows: str = ""  # run the rows whose names begin with one of these, separated by commas; empty: all rows
    repeats: int = 9  # measured repeats of each version, after one that is not measured
    threads: int = 2  # torch threads of each version
    clock: Literal["wall", "cpu"] = "wall"  # what is measured: time on the clock, or user and system time of a CPU
    before_products: Literal["auto", "onednn", "mkl", "plain"] = "auto"  # products of the other version
    now_products: Literal["auto", "onednn", "mkl", "plain"] = "auto"  # of this one: before=. compares two kinds
    out: str = ""  # also write the rows to this file, as JSON


# ---- what runs in each version's process: imports come from that version's folder ----


def import_first(*names: str):
    """Import the first module whose file this version has: modules may have moved between versions."""
    for name in names:
        if Path(name.replace(".", "/") + ".py").is_file():
            return importlib.import_module(name)
    raise ModuleNotFoundError(" or ".join(names))


def random_model(shape: dict, dtype, seed: int = 0):
    import torch

    from models.config import parse_config
    from models.decoder import CausalLM

    torch.manual_seed(seed)
    model = CausalLM(parse_config(shape))
    for p in model.parameters():
        p.data.normal_(0, 0.02)
    return model.to(dtype).eval()


def small(layers=8, width=512, inner=1536, heads=8, key_heads=4, vocab=1536) -> dict:
    return {
        "model_type": "qwen3",
        "hidden_size": width,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "head_dim": width // heads,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }


def with_adapters(model, r: int = 16):
    import torch

    import lora

    lora.inject(model, r=r)
    for _, layer in lora.lora_layers(model):
        torch.nn.init.normal_(layer.adapters["default"].B, std=0.01)
    return model


def logprob_row(dtype_name: str) -> Callable[[], None]:
    import torch

    from models.logprob import token_logprobs

    dtype, g = getattr(torch, dtype_name), torch.Generator().manual_seed(0)
    hidden = torch.randn(512, 896, generator=g).to(dtype).requires_grad_()
    weight = (torch.randn(151936, 896, generator=g) * 0.02).to(dtype)
    targets, slope = torch.randint(0, 151936, (512,), generator=g), torch.randn(512, generator=g)

    def run():
        hidden.grad = None
        token_logprobs(hidden, weight, targets)[0].backward(slope)

    return run


def train_row(shape: dict, dtype_name: str, tokens: int, samples: int = 0, prompt: int = 0) -> Callable[[], None]:
    """A forward and backward of a model with adapters; with `samples`, of that many replies after one shared prompt."""
    import torch

    model = with_adapters(random_model(shape, getattr(torch, dtype_name)))
    model.train()
    sequences = None
    if samples:
        own = torch.arange(prompt, prompt + samples * tokens).view(samples, tokens)
        sequences = torch.cat((torch.arange(prompt).expand(samples, -1), own), 1)
    ids = torch.randint(0, shape["vocab_size"], (1, prompt + max(samples, 1) * tokens))

    def run():
        hidden = model(ids) if sequences is None else model(ids, sequences_ST=sequences)
        hidden.float().square().sum().backward()
        model.zero_grad(set_to_none=True)

    return run


def sampling_row(name: str, kind: str, rows: int, temperature: float = 1.0) -> Callable[[], None]:
    import random

    import torch

    from models import load_model

    Engine = import_first("models.engine", "models.generate").Engine
    model = load_model("tiny") if name == "tiny" else random_model(small(), torch.float32)
    with_adapters(model)
    draw, vocab, eighth = random.Random(0), model.config.vocab_size, 1 if name == "tiny" else 8

    def ids(n: int) -> list[int]:
        return [draw.randrange(vocab) for _ in range(n)]

    def decode():
        engine = Engine(model, rows, 256)
        for row in range(rows):
            engine.feed(engine.open((0, row)), prompts[row])
        for row in engine.run(64, temperature, frozenset()):
            engine.close(row.slot)

    def mixed():
        engine = Engine(model, rows, 512)
        for row in range(rows):
            engine.feed(engine.open((0, row)), prompts[row][: 20 + 3 * row % 180])
        for row in engine.run(200, temperature, stops):
            engine.close(row.slot)

    def multi_turn():
        engine, left = Engine(model, rows, 512 + 8 * 128 + 1), dict.fromkeys(range(rows), 8)
        for row in range(rows // eighth):
            engine.feed(engine.open((0, row)), prompts[row])
        for row in engine.run(32, temperature, frozenset()):
            left[row.slot] -= 1
            if left[row.slot]:
                engine.feed(row.slot, observations[row.slot])
            else:
                engine.close(row.slot)

    length = {"decode": 64, "mixed": 200, "multi_turn": 512}[kind]
    prompts, observations = [ids(length) for _ in range(rows)], [ids(96) for _ in range(rows)]
    stops = frozenset(range(0, vocab, 97))
    return {"decode": decode, "mixed": mixed, "multi_turn": multi_turn}[kind]


def env_row(name: str, **options) -> Callable[[], None]:
    """Fifty of the expert's episodes."""
    import envs

    env = envs.make(name, difficulty="1", **options)

    def run():
        for seed in range(50):
            env.reset(seed, "train")
            over = False
            while not over:
                step = env.step(env.oracle())
                over = step.terminated or step.truncated

    return run


def program_row(words: str) -> Callable[[], None]:
    """One epoch of train.py, in a process of its own: start, sampling, learning, saving."""
    import tempfile

    chosen = [] if PRODUCTS == "auto" else [f"products={PRODUCTS}"]
    chosen += ["ranks=1"] * Path("rl/ranks").is_dir()  # older versions have one process in any case

    def run():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "train.py", *words.split(), f"out={folder}/run", "threads=1", *chosen]
            subprocess.run(command, check=True, capture_output=True, cwd=os.getcwd())

    return run


LAYERS = small(layers=4, width=896, inner=4864, heads=14, key_heads=2, vocab=64)
ROWS = {
    "logprob float32": lambda: logprob_row("float32"),
    "logprob bfloat16": lambda: logprob_row("bfloat16"),
    "lora float32": lambda: train_row(LAYERS, "float32", 512),
    "lora bfloat16": lambda: train_row(LAYERS, "bfloat16", 512),
    "prefix": lambda: train_row(small(4, 256, 768, 4, 2), "float32", 512, samples=8, prompt=512),
    "decode tiny 16 sampled": lambda: sampling_row("tiny", "decode", 16),
    "decode tiny 64 sampled": lambda: sampling_row("tiny", "decode", 64),
    "decode tiny 16 greedy": lambda: sampling_row("tiny", "decode", 16, 0.0),
    "decode small 16 sampled": lambda: sampling_row("small", "decode", 16),
    "decode small 64 sampled": lambda: sampling_row("small", "decode", 64),
    "mixed tiny": lambda: sampling_row("tiny", "mixed", 64),
    "mixed small": lambda: sampling_row("small", "mixed", 64),
    "multi-turn tiny": lambda: sampling_row("tiny", "multi_turn", 32),
    "train ppo": lambda: program_row("algo=ppo epochs=1 eval_episodes=0"),
    "train grpo": lambda: program_row("algo=grpo epochs=1 eval_episodes=0"),
    "train sft": lambda: program_row("algo=sft epochs=1 eval_episodes=0"),
    **{
        f"env {name}": (lambda name=name: env_row(name))
        for name in [
            "textcraft",
            "alfworld",
            "babyai",
            "webshop",
            "sciworld",
            "sat",
            "os_interaction",
            "db_bench",
            "tau_retail",
        ]
    },
}


def cpu_seconds() -> float:
    """Return the CPU time of this process and of the programs that it started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in used)


def serve(threads: int, products: str, clock: str) -> None:
    """Read a row's name from each line of standard input, run it once, print its seconds."""
    global PRODUCTS
    import torch

    PRODUCTS = products
    torch.set_num_threads(threads)
    if products != "auto":
        import_first("models.cpu.process").choose_products(products)
    run = current = None
    now = cpu_seconds if clock == "cpu" else time.perf_counter
    for line in sys.stdin:
        name = line.rstrip("\n")
        if name != current:
            run, current = ROWS[name](), name
        start = now()
        run()
        print(json.dumps(now() - start), flush=True)


# ---- what compares the two ----


class Version:
    """A process that runs rows in one version's folder."""

    def __init__(self, folder: Path, threads: int, products: str, clock: str):
        environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": str(threads)}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "serve", str(threads), products, clock],
            cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def seconds(self, row: str) -> float:
        print(row, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{row}: this version's process ended")
        return json.loads(answer)


def main(keys: Keys) -> None:
    if not (Path(keys.before) / "models" / "__init__.py").is_file():
        sys.exit(f"before={keys.before}: not a checkout of this code; git worktree add FOLDER COMMIT makes one")
    for start in keys.rows.split(","):
        if not any(name.startswith(start) for name in ROWS):
            sys.exit(f"rows={start}: no row begins with this; rows: {', '.join(ROWS)}")
    names = [name for name in ROWS if name.startswith(tuple(keys.rows.split(",")))]
    results = {}
    print(f"{'row':<26}{'before':>10}{'now':>10}{'now/before':>12}{'least':>8}{'most':>8}")
    for name in names:
        sides = (Path(keys.before).resolve(), keys.before_products), (ROOT, keys.now_products)
        versions = [Version(folder, keys.threads, products, keys.clock) for folder, products in sides]
        for version in versions:
            version.seconds(name)
        pairs = []
        for repeat in range(keys.repeats):
            order = versions if repeat % 2 == 0 else versions[::-1]
            seconds = {version: version.seconds(name) for version in order}
            pairs.append([seconds[version] for version in versions])
        before, now = (median(column) for column in zip(*pairs, strict=True))
        ratios = sorted(n / b for b, n in pairs)
        results[name] = {"before": before, "now": now, "ratio": now / before, "ratios": ratios}
        print(
            f"{name:<26}{before:>9.4f}s{now:>9.4f}s{now / before:>11.3f}x{ratios[0]:>8.2f}{ratios[-1]:>8.2f}",
            flush=True,
        )
        for version in versions:
            version.process.stdin.close()
            version.process.wait()
    if keys.out:
        Path(keys.out).write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        sys.path[0] = os.getcwd()
        serve(int(sys.argv[2]), *sys.argv[3:])
    else:
        from rl.config import program

        [given] = program.parse(sys.argv[1:], "benchmarks.versions", Keys, about=__doc__)
        main(given)
