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
from itertools import pairwise

import torch
import torch.nn.functional as F

from benchmarks import common
from benchmarks.common import TOO, Parts, Row
from models import fast_matmul
from models.logprob import SLAB, slab_back, slabs, token_logprobs
from rl.config.arguments import Positive

SPREAD = 2.0  # deviation of the logits: a trained model's have a few nats, with peaks


@dataclass
class Options(common.Options):
    repeats: Positive[int] = 9  # measured repeats of each side, which differ by up to a third
    N: Positive[int] = 512  # tokens
    D: Positive[int] = 896  # width of the hidden states
    V: Positive[int] = 151936  # words of the vocabulary
    dtypes: str = "float32,bfloat16"  # by comma
    compile: bool = False  # also measure torch.compile of naive; takes minutes and a C++ compiler


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


def peers(device: str, compile: bool) -> tuple[dict[str, Callable], list[str]]:
    """Return (the other sides that can run here, a line about each that cannot)."""
    sides, missing = {"naive": naive}, []
    makers = {"compiled naive": _compiled, "trl": _trl, "liger": _liger, "cut-cross-entropy": _cce}
    for name, make in makers.items():
        if name == "compiled naive" and not compile:
            continue
        try:
            sides[name] = make(device)
            run(sides[name], make_inputs(64, 128, 256, torch.bfloat16 if device == "cuda" else torch.float32, device))
        except (ImportError, AttributeError) as error:
            missing.append(f"{name}: absent ({str(error).splitlines()[0]}).")
        except Exception as error:  # a peer's failure of any kind must not lose our row
            del sides[name]
            missing.append(f"{name}: fails here ({type(error).__name__}: {str(error).splitlines()[0][:160]}).")
    return sides, missing


def _compiled(device: str):
    return torch.compile(naive, dynamic=False)


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


@torch.no_grad()
def truth(inputs: Inputs, rows: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (logprobs_N, the gradient of hidden) in float64."""
    weight, logprobs, gradients = inputs.weight_VD.double(), [], []
    for start in range(0, len(inputs.hidden_ND), rows):
        piece = slice(start, start + rows)
        targets = inputs.targets_N[piece]
        logp = (inputs.hidden_ND[piece].double() @ weight.mT).log_softmax(-1)
        logprobs.append(logp.gather(1, targets[:, None])[:, 0])
        slope = weight[targets] - logp.exp_() @ weight
        gradients.append(slope * inputs.grad_N[piece, None].double())
    return torch.cat(logprobs), torch.cat(gradients)


def depends_on_others(inputs: Inputs) -> tuple[int, int]:
    """Return how many of our values, and how many rows of the gradient, change a bit if rows are permuted or split."""
    values_N, grad_ND = run(ours, inputs)
    N, changed = len(values_N), torch.zeros(2, len(values_N), dtype=torch.bool, device=values_N.device)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1)).to(values_N.device)
    cuts = sorted({0, 1, N // 3, N // 2 + 1, N} & set(range(N + 1)))
    pieces = [torch.arange(a, b, device=order.device) for a, b in pairwise(cuts)]
    for index in (order, *pieces):
        part = Inputs(inputs.hidden_ND[index], inputs.weight_VD, inputs.targets_N[index], inputs.grad_N[index])
        values, grad = run(ours, part)
        changed[:, index] |= torch.stack((values != values_N[index], (grad != grad_ND[index]).any(-1)))
    return tuple(changed.sum(-1).tolist())


def parts(
    name: str, make: Callable[[], Inputs], sides: dict[str, Callable], options, targets: dict, device: str = "cpu"
) -> Parts:
    """Return the rows of one set of inputs, which are made when the first row is measured.

    targets: of the time. Without them scratch has no target either.
    """

    def time(row: str) -> Row:
        inputs = make()
        works = {side: partial(run, function, inputs) for side, function in sides.items()}
        if device == "cpu" and inputs.weight_VD.dtype == torch.float32:
            works[f"naive, {TOO}"] = fast_matmul()(works["naive"])
        works["two products"], dropped = partial(two_products, inputs), {}
        how = {"dropped": dropped, "clock": options.clock}
        seconds = common.interleave(works, options.repeats, options.warmup, device, **how)
        return Row(row, seconds, targets=targets, tokens=len(inputs.targets_N), dropped=dropped)

    def scratch(row: str) -> Row:
        inputs, dropped = make(), {}
        works = {side: partial(common.scratch_of, partial(run, f, inputs), device) for side, f in sides.items()}
        found = {side: [mebibytes] for side, mebibytes in common.each_side(works, dropped).items()}
        return Row(row, found, "MiB", targets={"naive": 0.1, "ours": 512.0} if targets else {}, dropped=dropped)

    @cache
    def errors() -> tuple[dict, dict, dict]:
        """Return (error by side, error of the gradient by side, dropped sides)."""
        inputs, dropped = make(), {}
        expected_N, expected_ND = truth(inputs)

        def error(function: Callable) -> tuple[float, float]:
            logprobs_N, grad_ND = run(function, inputs)
            apart_ND = grad_ND.double() - expected_ND
            return (logprobs_N.double() - expected_N).abs().max().item(), (apart_ND.norm() / expected_ND.norm()).item()

        found = common.each_side({side: partial(error, function) for side, function in sides.items()}, dropped)
        return *({side: [pair[i]] for side, pair in found.items()} for i in (0, 1)), dropped

    @cache
    def changed() -> tuple[int, int, int]:
        inputs = make()
        return *depends_on_others(inputs), len(inputs.targets_N)

    def depending(which: int, row: str) -> Row:
        return Row(row, {"ours": [float(changed()[which])]}, f"of {changed()[2]}", targets={"ours": 0.0})

    return {
        f"{name}, forward and backward": time,
        f"{name}, scratch": scratch,
        f"{name}, largest error": lambda row: Row(
            row, errors()[0], "nats", targets={"ours": 1e-4}, dropped=errors()[2]
        ),
        f"{name}, error of the gradient": lambda row: Row(row, errors()[1], "of its norm", dropped=errors()[2]),
        f"{name}, values that depend on N": partial(depending, 0),
        f"{name}, gradients that depend on N": partial(depending, 1),
    }


def notes_of(missing: list[str]) -> list[str]:
    return [
        f"Inputs: normal hidden states and head, logits of deviation {SPREAD:g}; every other target's is raised by 10.",
        "No side computes an entropy but ours, which always does. trl's function makes the gradient of the head only "
        "if that is trained, which it is not here.",
        "scratch: the most that tensors take while a side runs, beyond its inputs and outputs; on a CPU the tensors "
        "that torch's operations make are counted, not what a matrix product takes inside, nor copies that are kept.",
        "error: against float64 on the same inputs. that depend on N: other bits among permuted rows, or among fewer, "
        "down to one alone.",
        "two products: the hidden states with the head and the result with the head again, and nothing else.",
        *missing,
    ]


def main(options: Options) -> None:
    dtypes = common.dtypes_of(options.dtypes)
    torch.set_num_threads(options.threads)
    common.choose_products(options, (options.D, options.V, options.D * options.V))
    make = lru_cache(1)(make_inputs)  # keeps the inputs of one dtype at a time

    def plan(sides: dict[str, Callable]) -> Parts:
        made = {}
        targets = {"naive": 0.33, "trl": 0.19} if common.as_stated(options, "N", "D", "V") else {}
        for word, dtype in dtypes.items():
            inputs = partial(make, options.N, options.D, options.V, dtype)
            made |= parts(word, inputs, sides, options, targets)
        return made

    common.chosen(plan({}), options.only)  # before the peers are imported, which takes a while
    others, missing = peers("cpu", options.compile)
    if not options.compile:
        missing.append("torch.compile of naive: left out; compile=true adds it, for minutes and with a C++ compiler.")
    sides = {"ours": ours, **others}
    rows = list(common.measured(plan(sides), options.only, common.absent("transformers", "trl")))
    about = {"tokens": options.N, "width": options.D, "vocabulary": options.V, "head": "frozen"}
    common.report("logprob", rows, options, notes_of(missing), about)


if __name__ == "__main__":
    main(common.parse(Options, sys.argv[1:]))
