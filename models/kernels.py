"""The operations that models/fast may compute faster: the interface between the reading path and that folder.

A field that computes may return None: "use the plain PyTorch code", which stands beside the call; the defaults always
do. `models/__init__.py` installs models/fast where it exists. Faster kernels change rounding, never what is computed.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn


def nothing_faster(*_args, **_kwargs) -> None:
    """The default of every hook: leave the work to the plain code."""


def set_threads(model: nn.Module, threads: int = 0, trial: bool = False, products: str = "auto") -> tuple[str, str]:
    """Give torch that many CPU threads; 0 leaves its own choice. Nothing is tried."""
    torch.set_num_threads(threads or torch.get_num_threads())
    return "not tried" if trial else "", products


def refuse_exact(_model: nn.Module) -> None:
    raise ValueError("exact=true on a CUDA device needs models/fast, which is not here")


@dataclass
class Kernels:
    # Products of one input with frozen weights [out, D], without autograd; outputs lie side by side.
    joint_product: Callable = nothing_faster  # (x_ND, weights, biases) -> [N, sum of out]
    joint_gradient: Callable = nothing_faster  # (grad, weights) -> the gradient of x_ND
    quant_product: Callable = nothing_faster  # (x_ND, quantised layers: models/quant.py) -> [N, sum of out]
    dequantise: Callable = nothing_faster  # (quantised layer, dtype) -> its weight [out, in]
    # A slab of `size` words of a frozen output head, from word `start` on. Rows from `rows` on are padding.
    slab_logits: Callable = nothing_faster  # (hidden_ND, rows, weight_VD, start, size, dtype) -> [N, size] in dtype
    slab_back: Callable = nothing_faster  # (x [N, size], weight_VD, start, size) -> x @ the slab's weights [N, D]
    token_logprobs: Callable = nothing_faster  # the arguments and results of models/logprob.py's token_logprobs
    sample: Callable = nothing_faster  # the arguments and results of models/engine.py's sample
    attend: Callable = nothing_faster  # the same of models/attention.py's attend; not called on a CPU
    # (ids_BT, sequences_ST, own_ST, cos_NE) -> (q_NHE, k_NKE, v_NKE, window) -> out_NHE: training without padding
    pack: Callable = nothing_faster
    rms_norm: Callable = nothing_faster  # (x, weight, eps) -> models/decoder.py's RMSNorm of x, float32 on a CPU
    train_block: Callable = nothing_faster  # (block, x_ND, layout, wanted) -> x_ND after the block, without a cache
    # (model) -> (ids_B, positions_B, cache view) -> hidden_BD, same bits; its method prefill(ids_N, positions_N, view,
    # counts_B) writes keys and values of several tokens a row, or returns False
    decode_step: Callable = nothing_faster
    # (new slot, slots, version[, parent]): let it start as a copy of the slot with the longest common beginning
    share_prefix: Callable = nothing_faster
    copy_prefixes: Callable = nothing_faster  # (slots, cache, compute, version): make these copies
    to_front: Callable = nothing_faster  # (cache, busy slots, all slots): move busy slots together in the cache
    run_ahead: Callable = nothing_faster  # (model, cache, sample, slots, max_len) -> models/fast/ahead.py's Ahead
    engine: Callable = lambda make, *args: make(*args)  # (Engine, its arguments) -> one without open slots
    make_exact: Callable[[nn.Module], None] = refuse_exact  # on CUDA: the same kernels for sampling and training
    matmul: Callable[[], AbstractContextManager] = nullcontext  # the context that `fast_matmul` enters
    # (model, threads, trial, products) -> ("yes" if the trial gave the same bits, else the reason; the products chosen)
    choose_threads: Callable[..., tuple[str, str]] = set_threads
    keep_copies: Callable[[bool], None] = nothing_faster  # (layers): drop copies of weights; keep new ones of layers
    keep_memory: Callable[[], None] = nothing_faster  # keep freed memory in the process
    optimizer: Callable[[type], type] = lambda kind: kind  # a class of torch.optim -> one with the same steps
    end_phase: Callable[[], int | None] = nothing_faster  # () -> the most bytes held since the last call
    footprint: Callable = nothing_faster  # (sizes, ...) -> what models/fast/footprint.py counts of a model's memory


kernels = Kernels()


@contextmanager
def fast_matmul():
    """Context and decorator: float32 matrix products on a CPU may use a faster library of the same precision."""
    with kernels.matmul():
        yield
