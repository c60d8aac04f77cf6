"""The sizes at which benchmarks/gpu.py measures: one set for each kind of card, and a small one that a CPU runs too."""

from dataclasses import dataclass, replace

import torch

from benchmarks import common, sides


@dataclass(frozen=True)
class Scale:
    """The sizes of all parts. These defaults, with their targets, belong to an H200."""

    large: str = "7b"
    small: str = "0.5b"
    tests: tuple[str, ...] = (  # of tests/: what runs on a GPU if there is one, first what no CPU can do
        "cuda/test_on_a_gpu.py",
        "cuda/test_cuda_graph.py::test_on_a_gpu_the_graph_matches_the_plain_engine",
        "cuda/test_triton_attention.py",
        "cuda/test_triton_linear.py",
        "cuda/test_triton_logprob.py",
        "cuda/test_triton_step.py",
        "cuda/test_triton_sample.py",
        "cuda/test_triton_block.py",
        "cuda/test_triton_quant.py",
        "cuda/test_triton_corners.py",
    )
    text: tuple[int, int] = (8, 512)  # pieces of real text and their tokens
    heads: tuple = (  # name, N, D, V, targets: seconds of ours, share of a peer's time
        ("7B head, N 8k", 8192, 3584, 152064, {"ours": 26.6e-3, "cut-cross-entropy": 0.70, "liger": 0.25}),
        ("0.5B head, N 16k", 16384, 896, 151936, {"ours": 17.4e-3}),
    )
    rows: tuple[int, ...] = (1, 64, 256)  # sequences that decode together
    contexts: tuple[int, ...] = (256, 1024, 4096)  # tokens that each has
    new: int = 32  # tokens decoded in a measured repeat
    prefill: tuple[int, ...] = (64, 512, 8192)  # tokens of one prompt
    attention: tuple = ((1, 8192), (16, 512))  # sequences and their tokens, forward and backward
    rollouts: int = 256  # rows of mixed lengths
    lengths: tuple[int, int] = (100, 1024)  # of their prompts and replies, any between
    talk: tuple[int, int, int, int, int] = (64, 512, 8, 32, 96)  # episodes, prompt, turns, sampled, observed
    group: tuple[int, int, int] = (512, 512, 8)  # prompt, completion, samples
    layer_tokens: int = 8192  # through 4 layers of the large model
    training: tuple[int, int] = (16, 512)  # episodes and their tokens, half of them sampled
    step: tuple[int, int, int, int] = (4, 8, 512, 512)  # prompts, samples, tokens of a prompt, of a reply
    round_trip: tuple[int, int, int, int, int] = (32, 128, 4, 32, 32)  # as talk, for the exact path
    epoch: str = "epochs=1 eval_episodes=32"  # words of train.py algo=ppo for the embedded model
    epoch_small: str = "epochs=1 eval_episodes=32 max_turns=8 max_new_tokens=64"  # for the small shape
    patience: float = 20.0  # seconds after which a row of long repeats stops at common.ENOUGH


def _head(name: str, N: int) -> tuple:
    """Return a head of that shape without targets."""
    raw = sides.SHAPES[name]
    return (f"{name} head, N {N:,}", N, raw["hidden_size"], raw["vocab_size"], {})


SIZES = {  # by the card's memory in GiB, from which on the set is chosen
    "141GB": (120, Scale()),
    "80GB": (60, replace(Scale(), step=(4, 8, 512, 256))),
    "24GB": (
        18,
        replace(
            Scale(),
            large="1.5b",
            heads=(_head("1.5b", 4096), _head("0.5b", 8192)),
            rows=(1, 16, 64),
            rollouts=64,
            talk=(32, 512, 8, 32, 96),
            step=(2, 8, 256, 128),
        ),
    ),
    "tiny": (
        0,
        Scale(
            large="quarter",
            small="quarter",
            tests=("core/test_glossary.py",),
            text=(2, 24),
            heads=(("a head", 20, 16, 300, {}),),
            rows=(1, 3),
            contexts=(20, 70),
            new=2,
            prefill=(5, 40),
            attention=((1, 70), (3, 20)),
            rollouts=3,
            lengths=(4, 12),
            talk=(2, 8, 2, 2, 3),
            group=(16, 8, 2),
            layer_tokens=32,
            training=(2, 12),
            step=(2, 4, 12, 4),
            round_trip=(2, 8, 2, 2, 3),
            epoch="epochs=1 episodes=4 batch_size=4 eval_episodes=2 max_turns=2 max_new_tokens=6",
            epoch_small="epochs=1 episodes=2 batch_size=2 eval_episodes=1 max_turns=1 max_new_tokens=4",
        ),
    ),
}


def by_memory(gibibytes: float) -> str:
    """Return the name of the largest set of sizes for a device with that much memory."""
    return next(name for name, (least, _) in SIZES.items() if gibibytes >= least)


@dataclass(frozen=True)
class Given:
    """Everything that a part needs."""

    scale: Scale
    options: common.Options
    device: str
    dtype: torch.dtype

    def targets(self, stated: dict) -> dict:
        """Return the targets if they are stated for this device and these sizes, else none."""
        return stated if self.device == "cuda" and self.scale == Scale() else {}
