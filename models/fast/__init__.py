"""Faster implementations of the operations that models/kernels.py names. Deleting this folder costs speed alone."""

from models.fast import (
    compact,
    cpu_step,
    dispatch,
    kept,
    memory,
    norm,
    onednn,
    optimizer,
    packed,
    paths,
    prefix,
    products,
    quant,
    train_block,
    varlen,
)
from models.kernels import kernels


def install() -> None:
    """Set every hook of models/kernels.py."""
    kernels.joint_product, kernels.joint_gradient = products.joint_product, products.joint_gradient
    kernels.quant_product, kernels.dequantise = quant.quant_product, quant.dequantise
    kernels.slab_logits, kernels.slab_back = products.slab_logits, products.slab_back
    kernels.token_logprobs, kernels.attend = dispatch.token_logprobs, dispatch.attend
    kernels.sample, kernels.pack = dispatch.sample, varlen.pack
    kernels.train_block, kernels.rms_norm = train_block.train_block, norm.rms_norm
    kernels.share_prefix, kernels.copy_prefixes = prefix.share_prefix, prefix.copy_prefixes
    kernels.decode_step, kernels.run_ahead, kernels.to_front = cpu_step.exact_step, run_ahead, compact.to_front
    kernels.make_exact = make_exact
    kernels.matmul = onednn.onednn_matmul
    kernels.choose_threads = paths.choose_threads
    kernels.keep_copies, kernels.engine = keep_copies, kept.engine
    kernels.keep_memory, kernels.end_phase = memory.keep_memory, memory.end_phase
    kernels.optimizer, kernels.footprint = optimizer.without_compiler, footprint_of


def run_ahead(model, cache, sample, slots, max_len: int):
    """Implement the hook of models/kernels.py: models/fast/ahead.py's Ahead. A CPU never imports it."""
    from models.fast import ahead, cuda_graph

    return ahead.Ahead(cuda_graph.Steps(model, cache, sample), slots, max_len)


def keep_copies(layers: bool) -> None:
    """Implement the hook of models/kernels.py: copies are packed.py's, and those of an engine that is kept."""
    packed.keep_copies(layers)
    kept.drop()


def footprint_of(*args, **options):
    """Implement the hook of models/kernels.py by models/fast/footprint.py's function, which only plan= imports."""
    from models.fast import footprint

    return footprint.footprint(*args, **options)


def make_exact(model):
    """Implement the hook of models/kernels.py by models/fast/exact.py's function. A CPU never imports it."""
    from models.fast import exact

    return exact.make_exact(model)
