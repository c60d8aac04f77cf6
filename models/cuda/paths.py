"""Which code computes attention, the head, the sampler and the blocks on CUDA, and the line at the start that says so.

models/attention.py, models/logprob.py and models/engine.py have the plain code. Each part of the line asks the
functions that choose, so that it says what runs.
"""

import torch

from models import head
from models.cuda import available, block, step
from models.cuda.available import triton_problem
from models.decoder import CausalLM

NO_TRITON = "Triton does not work here"


def attend(q_BHTE, k_UZEL, v_UZLE, last_key_BT, window=None, exact: bool = False) -> torch.Tensor | None:
    """Return models/attention.py's `attend` by Triton in 16 bits, and for every exact model, else None."""
    if not available.has_attention_kernel(q_BHTE, exact):
        return None
    return available.kernels().attention.attend(q_BHTE, k_UZEL, v_UZLE, last_key_BT, window)


def token_logprobs(hidden_ND, weight_VD, targets_N, temperature, entropy_grad):
    """Return models/logprob.py's `token_logprobs` by Triton, other than for float64, else by models/head.py."""
    way = available.kernels().logprob if available.has_head_kernel(hidden_ND) else head
    return way.token_logprobs(hidden_ND, weight_VD, targets_N, temperature, entropy_grad)


def sample(hidden_BD, weight_VD, temperature, uniforms_B):
    """Return models/engine.py's `sample` by Triton, other than for float64, else None."""
    if not available.has_head_kernel(hidden_BD):
        return None
    return available.kernels().sample.sample(hidden_BD, weight_VD, temperature, uniforms_B)


def show(model: CausalLM, _products: str, _rows: int) -> None:
    """Print one line: which code computes a model on CUDA."""
    parts = {"sampling": sampling(model), "products": products(model), "training attention": attention(model)}
    parts["training blocks"] = blocks(model)
    parts["head and sampler"] = "Triton" if available.has_head_kernel(model.lm_head.weight) else f"torch ({NO_TRITON})"
    print("; ".join(f"{name}: {what}" for name, what in parts.items() if what))


def sampling(model: CausalLM) -> str:
    """Return what graph.py and prefill.py do."""
    problem = step.problem(model)
    if problem is None:
        return "CUDA graphs of Triton's kernels"
    attention = "" if step.attention_problem(model) else " around Triton's attention"
    return f"a step is a CUDA graph of torch's operations{attention} ({problem})"


def products(model: CausalLM) -> str:
    """Return what products.py does with a quantised base; "" for another."""
    kind, weight = model.config.quant, model.lm_head.weight
    if kind == "none":
        return ""
    if triton_problem(weight.device):
        return f"{kind}, dequantised by torch ({NO_TRITON})"
    quant = available.kernels().quant
    if model.exact or not quant.takes(kind, weight.dtype):
        return f"{kind}, dequantised by Triton"
    return f"{kind}, by its codes up to {quant.FEW} rows, else dequantised by Triton"


def attention(model: CausalLM) -> str:
    weight = model.lm_head.weight
    if model.exact:
        return "Triton, as in sampling (exact=true)"
    padded = "torch's scaled_dot_product_attention"
    if available.has_attention_kernel(weight, exact=False):
        padded = "Triton"
    why = block.varlen_problem(weight.device, weight.dtype, model.config.head_dim)
    if why is None:
        return f"varlen_attn, in the last block {padded}"  # whose queries are some of its rows
    if padded != "Triton":
        why += f"; {NO_TRITON if triton_problem(weight.device) else 'its Triton kernel takes 16 bits'}"
    return f"{padded} ({why})"


def blocks(model: CausalLM) -> str:
    """Return what block.py does: its layout is packed where varlen_attn runs."""
    weight = model.lm_head.weight
    if model.exact:
        return "plain (exact=true)"
    if block.varlen_problem(weight.device, weight.dtype, model.config.head_dim):
        return "plain (attention is padded)"
    problem = block.problem(model.model.layers[0], weight.device)
    return f"plain ({problem})" if problem else "fused, the last one plain"
