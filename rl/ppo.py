"""Proximal policy optimization (Schulman et al. 2017) with a learned critic and generalized advantage estimation.

loss = clipped surrogate + vf_coef * value loss - entropy_coef * entropy          (eq. 9, signs turned for a minimum)

Differs from the textbook: a step of the return is a *turn*, not a token (`ppo.level=turn`). Each turn has one reward,
one value (at its first token) and one advantage, which all its tokens share. With gamma below 1 per token, no credit
would be left for a turn a thousand tokens ago. The critic is a two-layer MLP on the policy's hidden states, and its
gradient stops there. `ppo.level=token` makes a token a step, as in the textbook. Two habits of implementations are on
that the paper does not have: advantages are whitened over the epoch's tokens (`ppo.whiten=false`), and new values are
clipped (`ppo.value_clip=none`). recipes/embedded.toml sets gamma = gae_lambda = 1, one pass and no bootstrap for the
embedded model: there the advantage is the return minus the value.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import nn

from rl import core, kl
from rl.config.arguments import NotNegative, Positive
from rl.config.refusals import Refusal
from rl.records import Batch


@dataclass(frozen=True)
class Config(kl.Config):
    epochs: Positive[int] = 4  # passes over each epoch's episodes
    clip: Positive[float] = 0.2  # the ratio is clipped to 1 +- clip
    dual_clip: Positive[float] | None = None  # bound the loss of advantages < 0 by this * |advantage|; above 1
    vf_coef: NotNegative[float] = 0.5  # weight of the value loss
    value_clip: Positive[float] | None = 0.2  # new values are clipped to old values +- this; none: they are not
    entropy_coef: float = 0.01  # weight of the entropy bonus
    gamma: float = 0.99  # discount per step of the return
    gae_lambda: float = 0.95  # lambda of generalized advantage estimation
    bootstrap: bool = True  # the critic values the state after a turn limit; false: as 0, as after the task's own end
    level: Literal["turn", "token"] = "turn"  # a step of the return
    whiten: bool = True  # advantages to mean 0 and deviation 1 over the epoch's tokens
    target_kl: Positive[float] | None = None  # stop the epoch's updates once KL(old || new) is past 1.5 * this
    critic_lr: Positive[float] = 1e-3  # the critic's own learning rate; it starts untrained, the policy does not
    critic_hidden: Positive[int] = 256  # width of the critic's hidden layer
    critic_warmup: NotNegative[int] = 0  # first epochs in which the critic learns and the policy does not

    source: ClassVar[str] = "rollouts"
    group_size: ClassVar[int] = 1
    critic: ClassVar[bool] = True

    @property
    def entropy_grad(self) -> bool:
        return self.entropy_coef != 0

    def __post_init__(self):
        super().__post_init__()
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise Refusal(f"ppo.dual_clip must be above 1, not {self.dual_clip}")
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise Refusal(f"ppo.{name} must be between 0 and 1, not {getattr(self, name)}")


def advantages(batch: Batch, cfg: Config) -> Batch:
    """Return the batch with advantages by GAE over turns or tokens, and with the critic's targets."""
    batch = kl.in_reward(batch, cfg)
    first_N = batch.turn_first_N if cfg.level == "turn" else torch.ones_like(batch.turn_N, dtype=torch.bool)
    rewards_steps, step_N = batch.rewards_steps(first_N)
    last_values_B = batch.last_values_B if cfg.bootstrap else torch.zeros_like(batch.last_values_B)
    advantages_steps, returns_steps = core.gae(
        rewards_steps, batch.old_values_N[first_N], batch.episode_N[first_N], last_values_B, cfg.gamma, cfg.gae_lambda
    )
    advantages_N = core.whiten(advantages_steps[step_N]) if cfg.whiten else advantages_steps[step_N]
    return replace(batch, advantages_N=advantages_N, returns_N=returns_steps[step_N])


def loss(batch: Batch, cfg: Config) -> tuple[torch.Tensor, dict[str, float]]:
    """Return (loss, metrics); each metric is this piece's share of the optimizer step's mean."""
    surrogate_N, ratio_N, clipped_N = core.clipped_surrogate(
        batch.logprobs_N - batch.old_logprobs_N, batch.advantages_N, cfg.clip, cfg.clip, cfg.dual_clip
    )
    value_N = core.value_loss(batch.values_N, batch.old_values_N, batch.returns_N, cfg.value_clip)
    if cfg.level == "turn":
        value = value_N[batch.turn_first_N].sum() / batch.total_turns
    else:
        value = value_N.sum() / batch.total_tokens
    policy = (surrogate_N + kl.in_loss(batch, cfg)).sum() / batch.total_tokens
    entropy = batch.entropy_N.sum() / batch.total_tokens
    total = policy + cfg.vf_coef * value - cfg.entropy_coef * entropy
    tokens = {
        "ratio": ratio_N,
        "clip_fraction": clipped_N,
        "approx_kl": core.approximate_kl(batch.logprobs_N, batch.old_logprobs_N),
        "reference_kl": kl.measured(batch),
    }
    metrics = batch.shares(tokens)
    losses = {"loss": total, "policy_loss": policy, "value_loss": value, "entropy": entropy}
    return total, {**{name: x.item() for name, x in losses.items()}, **metrics}


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
