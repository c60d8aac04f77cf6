"""What makes models/ faster on a CPU. Deleting this folder costs speed alone.

models/head.py belongs to it too, and lies outside because CUDA without Triton takes it as well.
"""

from models import head
from models.cpu import block, memory, mixed, onednn, packed, process, products, step
from models.hooks import Hooks


def install(hooks: Hooks) -> None:
    """Set the hooks for a CPU."""
    hooks.joint_product, hooks.joint_gradient = products.joint_product, products.joint_gradient
    hooks.slab_logits, hooks.slab_back = products.slab_logits, products.slab_back
    hooks.dequantise, hooks.token_logprobs = products.dequantise, head.token_logprobs
    hooks.train_block, hooks.rms_norm = block.train_block, block.rms_norm
    hooks.decode_step, hooks.matmul = step.exact_step, onednn.onednn_matmul
    hooks.mixer = mixed.Mixer
    hooks.choose_products, hooks.library = process.choose_for_model, process.library
    hooks.other_libraries = process.other_libraries
    hooks.keep_copies, hooks.footprint = packed.keep_copies, memory.footprint
