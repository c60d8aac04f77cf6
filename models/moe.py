"""The mixture of experts of Qwen3-MoE: a row goes through the MLPs of a few experts, which a frozen router chooses.

    y = sum over the C likeliest experts of p_e MLP_e(x),    p = softmax(W x)

With norm_topk_prob the p of the chosen experts are divided by their sum.

Rows are grouped by expert, so that each layer multiplies all its rows at once; their number is padded to ROW_MULTIPLE,
as that of all rows. A row's terms are added from its likeliest expert on. So on a CPU a row's bits do not depend on the
others, and sampling and training agree. The router trains only with lora.r=0: adapters leave it out.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from models.config import ModelConfig
from models.linear import ROW_MULTIPLE


class Router(nn.Module):
    """Logits of the experts. It is no Linear, so that neither adapters nor quantisation change which one is chosen."""

    def __init__(self, width: int, experts: int):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, width) * width**-0.5)

    def forward(self, x_ND: torch.Tensor) -> torch.Tensor:
        return F.linear(x_ND, self.weight)


class SparseMLP(nn.Module):
    """The MLPs of all experts, and the router. make_mlp: cfg -> one MLP.

    loads: rows that each expert got in the last forward with gradients. They are not added up here, because the trial
    at a run's start, dummy passes (rl/ranks/shard.py) and blocks that are computed again also have gradients.
    """

    def __init__(self, cfg: ModelConfig, make_mlp: Callable[[ModelConfig], nn.Module]):
        super().__init__()
        self.experts_per_token, self.normalize = cfg.experts_per_token, cfg.norm_topk_prob
        self.loads: list[int] = []
        self.gate = Router(cfg.hidden_size, cfg.num_experts)
        expert = replace(cfg, intermediate_size=cfg.moe_intermediate_size)
        self.experts: Any = nn.ModuleList(make_mlp(expert) for _ in range(cfg.num_experts))

    def forward(self, x_ND: torch.Tensor) -> torch.Tensor:
        if len(x_ND) == 0:  # a prefill wants no output of the last layer
            return x_ND
        share_NC, expert_NC = self.gate(x_ND).softmax(-1, dtype=torch.float32).topk(self.experts_per_token, -1)
        share_NC = share_NC / share_NC.sum(-1, keepdim=True) if self.normalize else share_NC
        order = expert_NC.flatten().argsort(stable=True)  # places in [N, C], flattened, by expert
        counts = expert_NC.flatten().bincount(minlength=len(self.experts)).tolist()
        if torch.is_grad_enabled():
            self.loads = counts
        outputs = []
        for expert, places in zip(self.experts, order.split(counts), strict=True):
            if len(places):
                rows = F.pad(places // self.experts_per_token, (0, -len(places) % ROW_MULTIPLE))  # copies of row 0
                outputs.append(expert(x_ND.index_select(0, rows))[: len(places)])
        y_NCD = torch.cat(outputs).index_select(0, order.argsort()).view(*expert_NC.shape, -1)
        first, *others = (y_NCD * share_NC.to(x_ND.dtype)[..., None]).unbind(1)
        return sum(others, first)


def expert_loads(blocks: Iterable[Any]) -> torch.Tensor:
    """Return the rows that each expert got in the blocks' last forward with gradients, padding included: int64
    [layers, experts]; [0] without experts."""
    return torch.tensor([block.mlp.loads for block in blocks if isinstance(block.mlp, SparseMLP)], dtype=torch.int64)


def balance(loads: torch.Tensor) -> tuple[float, float]:
    """Return two means over layers, given `expert_loads` or sums of them.

    The first is the rows of the busiest expert, by the mean over experts: 1 is even, experts / experts per token the
    most. The second is the share of experts without a row.
    """
    rows = loads.double()
    return (rows.amax(1) / rows.mean(1)).mean().item(), (rows == 0).double().mean().item()
