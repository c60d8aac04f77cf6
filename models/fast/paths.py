"""Which code computes sampling, attention, the head and the blocks on CUDA, and why: a line at the start.

Each part asks the functions that choose the code, so that the line says what runs.
"""

import torch

from models.decoder import CausalLM
from models.fast import dispatch, train_block, trial, varlen
from models.fast.dispatch import HALF, triton_problem

NO_TRITON = "Triton does not work here"


def choose_threads(model: CausalLM, *args, **options) -> tuple[str, str]:
    """Do what trial.py's function of this name does; on CUDA print the line before."""
    if model.lm_head.weight.is_cuda:
        print(describe(model))
    return trial.choose_threads(model, *args, **options)


def describe(model: CausalLM) -> str:
    """Return one line for a model on CUDA."""
    parts = {"sampling": sampling(model), "products": products(model), "training attention": attention(model)}
    parts["training blocks"] = blocks(model)
    parts["head and sampler"] = "Triton" if dispatch.has_head_kernel(model.lm_head.weight) else f"torch ({NO_TRITON})"
    return "; ".join(f"{name}: {what}" for name, what in parts.items() if what)


def sampling(model: CausalLM) -> str:
    """Return what cuda_graph.py and prefill.py do."""
    from models.fast import fused_step  # a CPU never imports it

    problem = fused_step.problem(model)
    if problem is None:
        return "CUDA graphs of Triton's kernels"
    attention = "" if fused_step.attention_problem(model) else " around Triton's attention"
    return f"a step is a CUDA graph of torch's operations{attention} ({problem})"


def products(model: CausalLM) -> str:
    """Return what models/fast/quant.py does with a quantised base; "" for another."""
    kind, weight = model.config.quant, model.lm_head.weight
    if kind == "none":
        return ""
    if triton_problem(weight.device):
        return f"{kind}, dequantised by torch ({NO_TRITON})"
    from models.fast.triton.quant import FEW, takes

    if model.exact or not takes(kind, weight.dtype):
        return f"{kind}, dequantised by Triton"
    return f"{kind}, by its codes up to {FEW} rows, else dequantised by Triton"


def attention(model: CausalLM) -> str:
    weight, head_dim = model.lm_head.weight, model.config.head_dim
    if model.exact:
        return "Triton, as in sampling (exact=true)"
    padded = "torch's scaled_dot_product_attention"
    if dispatch.has_attention_kernel(weight, exact=False):
        padded = "Triton"
    if varlen.available(weight.device, weight.dtype, head_dim):
        return f"varlen_attn, in the last block {padded}"  # whose queries are some of its rows
    why = why_not_varlen(weight, head_dim)
    if padded != "Triton":
        why += f"; {NO_TRITON if triton_problem(weight.device) else 'its Triton kernel takes 16 bits'}"
    return f"{padded} ({why})"


def blocks(model: CausalLM) -> str:
    """Return what train_block.py does: its layout is packed where varlen_attn runs."""
    weight = model.lm_head.weight
    if model.exact:
        return "plain (exact=true)"
    if not varlen.available(weight.device, weight.dtype, model.config.head_dim):
        return "plain (attention is padded)"
    problem = train_block.problem(model.model.layers[0], weight.device)
    return f"plain ({problem})" if problem else "fused, the last one plain"


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
