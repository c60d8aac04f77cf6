"""The value network of PPO."""

import torch
from torch import nn


class Critic(nn.Module):
    """Estimate values with a two-layer MLP on the policy's hidden states, [N, D] -> [N], float32. Starts at value 0."""

    def __init__(self, width: int, hidden: int, device: str = "cpu"):
        super().__init__()
        self.up = nn.Linear(width, hidden, device=device)
        self.down = nn.Linear(hidden, 1, device=device)
        nn.init.zeros_(self.down.weight)
        nn.init.zeros_(self.down.bias)

    def forward(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        return self.down(torch.tanh(self.up(hidden_ND.float())))[:, 0]
