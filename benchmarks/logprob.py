"""Log-probabilities of taken tokens from hidden states, forward and backward with a frozen head:
python -m benchmarks.logprob

Each side gives the log-probability of every target and, from a random gradient of those, the hidden states' gradient.
`naive` is what most code does: logits in the head's dtype, float32 log_softmax, gather. Only log-probabilities are
asked for; ours gives the entropy as well.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import torch
import torch.nn.functional as F

from benchmarks import common, memory
from benchmarks.common import TOO, Parts, Row
from models import fast_matmul
from models.cpu.speed import WEIGHTS
from models.logprob import SLAB, slab_back, slabs, token_logprobs
from models.sizes import Sizes
from rl.config.arguments import Positive

SPREAD = 2.0  # deviation of the logits: a trained model's have a few nats, with peaks


@dataclass
class Options(common.Options):
    repeats: Positive[int] = 9  # measured repeats of each side, which differ by up to a third
    N: Positive[int] = 512  # tokens
    D: Positive[int] = 896  # width of the hidden states
    V: Positive[int] = 151936  # words of the vocabulary
    dtypes: str = "float32,bfloat16"  # by comma


@dataclass(frozen=True)
class Inputs:
    hidden_ND: torch.Tensor
    weight_VD: torch.Tensor  # frozen
    targets_N: torch.Tensor
    grad_N: torch.Tensor  # of a loss with respect to the log-probabilities, float32


def make_inputs(N: int, D: int, V: int, dtype: torch.dtype, device: str = "cpu") -> Inputs:
    """Normal hidden states and head; the target of every other token gets a likely word: its logit is raised by 10."""
    rng = torch.Generator(device).manual_seed(0)
    hidden_ND = torch.randn(N, D, device=device, generator=rng)
    weight_VD = torch.randn(V, D, device=device, generator=rng) * (SPREAD / D**0.5)
    targets_N = torch.randint(V, (N,), device=device, generator=rng)
    liked_MD = weight_VD[targets_N[::2]]
    hidden_ND[::2] += liked_MD * (10 / liked_MD.square().sum(-1, keepdim=True))
    grad_N = torch.randn(N, device=device, generator=rng)
    return Inputs(hidden_ND.to(dtype), weight_VD.to(dtype), targets_N, grad_N)


# ---- the sides: (hidden, weight, targets) -> logprobs_N, with a gradient to hidden ----


def ours(hidden_ND, weight_VD, targets_N):
    return token_logprobs(hidden_ND, weight_VD, targets_N)[0]


def naive(hidden_ND, weight_VD, targets_N):
    logits_NV = F.linear(hidden_ND, weight_VD)
    return logits_NV.float().log_softmax(-1).gather(1, targets_N[:, None])[:, 0]


def peers(device: str) -> tuple[dict[str, Callable], list[str]]:
    """Return (the other sides that can run here, a line about each that cannot)."""
    sides, missing = {"naive": naive}, []
    makers = {"trl": _trl, "liger": _liger, "cut-cross-entropy": _cce}
    if device != "cpu":  # where it takes minutes and a C++ compiler
        makers["compiled naive"] = lambda device: torch.compile(naive, dynamic=False)
    for name, make in makers.items():
        try:
            sides[name] = make(device)
            run(sides[name], make_inputs(64, 128, 256, torch.bfloat16 if device == "cuda" else torch.float32, device))
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: absent ({str(error).splitlines()[0]}).")
        except Exception as error:  # a peer's failure of any kind must not lose our row
            del sides[name]
            missing.append(f"{name}: fails here ({type(error).__name__}: {str(error).splitlines()[0][:160]}).")
    return sides, missing


def _trl(device: str):
    """Return trl's chunked function, with its trainers' chunk size and without its optional outputs."""
    utils = importlib.import_module("trl.trainer.utils")
    function, size = utils._ChunkedLogProbFunction, utils._CHUNKED_LOGPROB_CHUNK_SIZE
    return lambda hidden, weight, targets: function.apply(hidden, weight, None, targets, 1.0, size, None, 1.0, ())[0]


def _liger(device: str):
    if device == "cpu":
        raise ImportError("its kernels need a GPU")
    loss = importlib.import_module("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss(reduction="none")
    return lambda hidden, weight, targets: -loss(weight, hidden, targets).float()


def _cce(device: str):
    if device == "cpu":
        raise ImportError("its kernels need a GPU")
    function = importlib.import_module("cut_cross_entropy").linear_cross_entropy
    return lambda hidden, weight, targets: -function(hidden, weight, targets, reduction="none", impl="cce_exact")


def run(side: Callable, inputs: Inputs) -> list[torch.Tensor]:
    """Return [logprobs_N, the gradient of hidden]."""
    hidden_ND = inputs.hidden_ND.detach().requires_grad_()
    logprobs_N = side(hidden_ND, inputs.weight_VD, inputs.targets_N)
    logprobs_N.backward(inputs.grad_N.to(logprobs_N.dtype))
    return [logprobs_N.detach(), hidden_ND.grad]


@torch.no_grad()
def two_products(inputs: Inputs, rows: int = 4096) -> None:
    """Compute the two matrix products alone: the least work for exact log-probabilities and a gradient.

    On a CPU they are ours, slab by slab from the same copies; on a GPU torch's, in chunks of rows.
    """
    hidden_ND, weight_VD = inputs.hidden_ND, inputs.weight_VD
    if hidden_ND.device.type == "cpu":
        with fast_matmul():
            for start, logits in slabs(hidden_ND, weight_VD, 1.0):
                slab_back(logits, weight_VD, start, SLAB)
        return
    logits = hidden_ND.new_empty(min(rows, len(hidden_ND)), len(weight_VD))
    for start in range(0, len(hidden_ND), rows):
        hidden = hidden_ND[start : start + rows]
        torch.mm(hidden, weight_VD.mT, out=logits[: len(hidden)])
        torch.mm(logits[: len(hidden)], weight_VD)


# ---- what is measured ----


def truth(inputs: Inputs, rows: int = 128) -> list[torch.Tensor]:
    """Return [logprobs_N, the gradient of hidden] in float64, computed by autograd in pieces of rows."""

    def plain(hidden_ND, weight_VD, targets_N):
        return F.linear(hidden_ND, weight_VD).log_softmax(-1).gather(1, targets_N[:, None])[:, 0]

    weight_VD, found = inputs.weight_VD.double(), []
    for start in range(0, len(inputs.hidden_ND), rows):
        piece = slice(start, start + rows)
        hidden_ND, grad_N = inputs.hidden_ND[piece].double(), inputs.grad_N[piece].double()
        found.append(run(plain, Inputs(hidden_ND, weight_VD, inputs.targets_N[piece], grad_N)))
    return [torch.cat(pieces) for pieces in zip(*found, strict=True)]


def parts(
    name: str, make: Callable[[], Inputs], sides: dict[str, Callable], options, targets: dict, device: str = "cpu"
) -> Parts:
    """Return the rows of one set of inputs, which are made when the first row is measured.

    targets: of the time. Without them scratch has no target either.
    """

    def works() -> dict[str, Callable]:
        return {side: partial(run, function, make()) for side, function in sides.items()}

    def time(row: str) -> Row:
        inputs, timed = make(), works()
        if device == "cpu" and inputs.weight_VD.dtype == torch.float32:
            timed[f"naive, {TOO}"] = fast_matmul()(timed["naive"])
        timed["two products"] = partial(two_products, inputs)
        return common.timed(row, timed, options, device, targets=targets, tokens=len(inputs.targets_N))

    def scratch(row: str) -> Row:
        found = {side: partial(memory.scratch_of, work, device) for side, work in works().items()}
        return common.valued(row, found, "MiB", targets={"naive": 0.1, "ours": 512.0} if targets else {})

    @cache
    def expected() -> list[torch.Tensor]:
        return truth(make())

    def largest_error(work: Callable) -> float:
        return (work()[0].double() - expected()[0]).abs().max().item()

    def error_of_the_gradient(work: Callable) -> float:
        return ((work()[1].double() - expected()[1]).norm() / expected()[1].norm()).item()

    def errors(kind: Callable, unit: str, bounds: dict, row: str) -> Row:
        found = {side: partial(kind, work) for side, work in works().items()}
        return common.valued(row, found, unit, targets=bounds)

    return {
        f"{name}, forward and backward": time,
        f"{name}, scratch": scratch,
        f"{name}, largest error": partial(errors, largest_error, "nats", {"ours": 1e-4}),
        f"{name}, error of the gradient": partial(errors, error_of_the_gradient, "of its norm", {}),
    }


def notes_of(missing: list[str]) -> list[str]:
    return [
        f"Inputs: normal hidden states and head, logits of deviation {SPREAD:g}; every other target's is raised by 10.",
        "No side computes an entropy but ours, which always does. trl's function makes the gradient of the head only "
        "if that is trained, which it is not here.",
        "scratch: the most that tensors take while a side runs, beyond its inputs and outputs; on a CPU the tensors "
        "that torch's operations make are counted, not what a matrix product takes inside, nor copies that are kept.",
        "error: against float64 on the same inputs.",
        "two products: the hidden states with the head and the result with the head again, and nothing else.",
        *missing,
    ]


def main(options: Options) -> None:
    dtypes = common.dtypes_of(options.dtypes)
    torch.set_num_threads(options.threads)
    layers = max(1, options.V * options.D // WEIGHTS)  # narrow ones, so that the head has most of the weights
    width = options.D + options.D % 2  # rotary embedding takes pairs
    square = {"D": width, "I": width, "Q": width, "K": width, "H": 1, "key_heads": 1, "V": options.V}
    common.choose_products(
        options,
        Sizes(L=layers, **square, tied=True, normed="", biases=0, silu=True, joined=False, experts=0, stored="none"),
    )
    make = lru_cache(1)(make_inputs)  # keeps the inputs of one dtype at a time

    def plan(sides: dict[str, Callable]) -> Parts:
        made = {}
        targets = {"naive": 0.33, "trl": 0.19} if common.as_stated(options, "N", "D", "V") else {}
        for word, dtype in dtypes.items():
            inputs = partial(make, options.N, options.D, options.V, dtype)
            made |= parts(word, inputs, sides, options, targets)
        return made

    common.chosen(plan({}), options.only)  # before the peers are imported, which takes a while
    others, missing = peers("cpu")
    sides = {"ours": ours, **others}
    about = {"tokens": options.N, "width": options.D, "vocabulary": options.V, "head": "frozen"}
    common.measure_and_report("logprob", plan(sides), options, notes_of(missing), about, ("transformers", "trl"))


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
