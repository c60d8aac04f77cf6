"""Where models/cpu and models/cuda replace the plain code: one `Hooks` for each kind of device.

`hooks(x)` returns the hooks for the device of x. A hook that computes may return None: "use the plain PyTorch code",
which stands beside the call; the defaults always do. docs/architecture.md has a table of the operations: their plain
code, what replaces it on either device, and what chooses. models/__init__.py loads the folders. Deleting one costs
speed: faster code changes rounding, never what is computed. But exact=true on a GPU and plan= need their folder.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from models.refusal import Refusal


def nothing_faster(*_args, **_kwargs) -> None:
    """Return None, the default of most hooks: leave the work to the plain code."""


def refuse_exact(_model: nn.Module) -> None:
    raise Refusal("exact=true on a CUDA device needs models/cuda, which is not here")


@dataclass
class Hooks:
    """The functions of one kind of device. CPU and CUDA: which folder sets the hook; no other code does."""

    # CPU and CUDA. Products of one input with frozen weights [out, D], without autograd; outputs lie side by side.
    joint_product: Callable = nothing_faster  # (x_ND, weights, biases) -> [N, sum of out]
    joint_gradient: Callable = nothing_faster  # (grad, weights) -> the gradient of x_ND
    # CPU and CUDA. A slab of `size` words of a frozen output head, from word `start` on. Rows from `rows` are padding.
    slab_logits: Callable = nothing_faster  # (hidden_ND, rows, weight_VD, start, size, dtype) -> [N, size] in dtype
    # CPU and CUDA
    dequantise: Callable = nothing_faster  # (quantised layer, dtype) -> its weight [out, in]
    token_logprobs: Callable = nothing_faster  # the arguments and results of models/logprob.py's token_logprobs
    train_block: Callable = nothing_faster  # (block, x_ND, layout, wanted) -> x_ND after the block, without a cache
    footprint: Callable = nothing_faster  # (sizes, ...) -> the Footprint of models/memory.py
    keep_copies: Callable[[bool], None] = nothing_faster  # as `keep_copies` below, for one kind of device
    choose_products: Callable = nothing_faster  # (model, products, rows sampled at once): choose and print how
    # CPU
    slab_back: Callable = nothing_faster  # (x [N, size], weight_VD, start, size) -> x @ the slab's weights [N, D]
    rms_norm: Callable = nothing_faster  # (x, weight, eps) -> models/decoder.py's RMSNorm of x, float32
    # (model) -> (ids_B, positions_B, cache view) -> hidden_BD, same bits; its method prefill(ids_N, positions_N, view,
    # counts_B) writes keys and values of several tokens a row, or returns False
    decode_step: Callable = nothing_faster
    # () -> (decode steps of several models over the same weights) -> one step of all with their bits, or None
    mixer: Callable = lambda: nothing_faster
    matmul: Callable[[], AbstractContextManager] = nullcontext  # the context that `fast_matmul` enters
    library: Callable[[], str] = lambda: "plain"  # () -> the library of products in use, as products= names it
    other_libraries: Callable[[], Iterator[str]] = lambda: iter(())  # () -> each other library, once it is in use
    # CUDA
    quant_product: Callable = nothing_faster  # (x_ND, quantised layers: models/quant.py) -> [N, sum of out]
    sample: Callable = nothing_faster  # the arguments and results of models/engine.py's sample
    attend: Callable = nothing_faster  # the arguments and results of models/attention.py's attend
    # (ids_BT, sequences_ST, own_ST, cos_NE) -> (q_NHE, k_NKE, v_NKE, window) -> out_NHE: training without padding
    pack: Callable = nothing_faster
    run_ahead: Callable = nothing_faster  # (model, cache, sample, slots, max_len) -> models/cuda/ahead.py's Ahead
    engine: Callable = lambda make, *args: make(*args)  # (Engine, its arguments) -> one without open slots
    make_exact: Callable[[nn.Module], None] = refuse_exact  # the same kernels for sampling and training


loaders: dict[str, Callable[[Hooks], None]] = {}  # {kind of device: what sets its hooks}; models/__init__.py fills it
_loaded: dict[str, Hooks] = {}


def hooks(where: torch.Tensor | str) -> Hooks:
    """Return the hooks for the device of a tensor, or for a kind of device, "cpu" or "cuda"."""
    kind = where if isinstance(where, str) else where.device.type
    if kind not in _loaded:
        _loaded[kind] = Hooks()
        loaders.get(kind, nothing_faster)(_loaded[kind])
    return _loaded[kind]


def keep_copies(layers: bool) -> None:
    """Drop all copies of weights, and the engine that is kept for the next rollout. layers: whether new copies of a
    layer's weights are kept, or made for each product, because its weights do not stay."""
    for loaded in _loaded.values():
        loaded.keep_copies(layers)


@contextmanager
def fast_matmul():
    """Context and decorator: float32 matrix products on a CPU may use a faster library of the same precision."""
    with hooks("cpu").matmul():
        yield
