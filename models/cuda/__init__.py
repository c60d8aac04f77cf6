"""What makes models/ faster on CUDA. Deleting this folder costs speed, and exact=true on a GPU.

models/__init__.py imports it at the first question for the hooks of CUDA: a run on a CPU imports none of it.
"""

from models.cuda import ahead, block, exact, memory, paths, products
from models.hooks import Hooks


def install(hooks: Hooks) -> None:
    """Set the hooks for CUDA."""
    hooks.joint_product, hooks.joint_gradient = products.joint_product, products.joint_gradient
    hooks.quant_product, hooks.dequantise = products.quant_product, products.dequantise
    hooks.slab_logits = products.slab_logits
    hooks.attend, hooks.sample, hooks.token_logprobs = paths.attend, paths.sample, paths.token_logprobs
    hooks.pack, hooks.train_block = block.pack, block.train_block
    hooks.run_ahead, hooks.make_exact = ahead.run_ahead, exact.make_exact
    hooks.choose_products = paths.show
    last = memory.KeptEngine()
    hooks.engine, hooks.keep_copies, hooks.footprint = last.engine, last.drop, memory.footprint
