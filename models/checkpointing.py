"""Gradient checkpointing by block (Chen et al. 2016): less memory in training for one more forward of each block.

The forward keeps only each block's input, [N, D]; the backward computes the block again before its gradient. The same
operations run on the same numbers, so on a CPU the gradients have the same bits.
"""

import torch
from torch.utils.checkpoint import checkpoint

from models.decoder import Block, CausalLM
from models.kernels import fast_matmul


def checkpoint_blocks(model: CausalLM) -> None:
    """Make every block of the model keep only its input when it is trained."""
    model.run_block = _run_block


def _run_block(block: Block, x_ND: torch.Tensor, layout, cache=None, wanted=None) -> torch.Tensor:
    """Return the block's output, as `Block.forward` does."""
    if cache is not None or not torch.is_grad_enabled():
        return block(x_ND, layout, cache, wanted)
    # Random numbers are only drawn for dropout, in train mode.
    kept = dict(use_reentrant=False, preserve_rng_state=block.training)
    return checkpoint(fast_matmul()(block.__call__), x_ND, layout, cache, wanted, **kept)
