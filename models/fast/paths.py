"""Which code computes attention, the head, the blocks and the decode step on CUDA, and why: a line at the start."""

import torch

from models.decoder import CausalLM
from models.fast import trial, varlen
from models.fast.dispatch import HALF, triton_problem


def choose_threads(model: CausalLM, *args, **options) -> tuple[str, str]:
    """Do what trial.py's function of this name does; on CUDA print the line before."""
    if model.lm_head.weight.is_cuda:
        print(describe(model))
    return trial.choose_threads(model, *args, **options)


def describe(model: CausalLM) -> str:
    """Return one line for a model on CUDA."""
    weight = model.lm_head.weight
    half, problem = weight.dtype in HALF, triton_problem(weight.device)
    triton = "Triton" if not problem else "torch (Triton does not work here)"
    if not half and not model.exact:
        played = "torch's scaled_dot_product_attention (Triton's kernel takes 16 bits)"
    else:
        played = triton if not problem else "torch's scaled_dot_product_attention (Triton does not work here)"
    trained, blocks = played, "plain"
    if model.exact:
        trained += ", the same in training (exact=true)"
    elif varlen.available(weight.device, weight.dtype, model.config.head_dim):
        trained, blocks = f"{played}, in training varlen_attn", "plain" if problem else "fused, 16-bit inputs kept"
    else:
        trained += f", the same in training ({why_not_varlen(weight, model.config.head_dim)})"
    head = "torch" if weight.dtype == torch.float64 else triton
    return f"attention: {trained}; head and sampler: {head}; training blocks: {blocks}; step: CUDA graph"


def why_not_varlen(weight: torch.Tensor, head_dim: int) -> str:
    """Return why torch's varlen_attn does not run."""
    if varlen.load_varlen() is None:
        return f"torch {torch.__version__} has no varlen_attn; 2.10 has"
    if weight.dtype not in HALF:
        return "varlen_attn takes 16 bits"
    if head_dim % 8 or head_dim > 256:
        return f"varlen_attn takes no heads of {head_dim}"
    if torch.cuda.get_device_capability(weight.device) < (8, 0):
        return "varlen_attn takes compute capability 8.0"
    return f"varlen_attn of torch {torch.__version__} lacks windows or grouped heads; 2.13 has both"
