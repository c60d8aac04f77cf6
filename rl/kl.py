"""KL to the reference policy: in the loss or in the reward, with a fixed or an adaptive weight.

The reference is the adapter that training started from, or the base; with `reference_every` the policy of some epochs
ago (ProRL, Liu et al. 2025, resets it so): KL then limits how fast the policy moves, and no longer how far. Where KL is
added decides the gradient:
    in the reward   k1 has exactly the gradient of E[score] - kl_coef * KL(policy || reference); k2 and k3 are biased
    in the loss     k2 that of KL(policy || reference), k3 that of KL(reference || policy), per token; k1 none, as long
                    as the sampling policy is the present one and the aggregation divides by a constant
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from rl.config.arguments import NotNegative, Positive
from rl.config.fields import Algorithm
from rl.config.refusals import Refusal
from rl.core import kl_estimate
from rl.records import Batch


@dataclass(frozen=True)
class Config:
    """The fields that ppo, grpo and reinforce share."""

    kl_coef: NotNegative[float] = 0.0  # weight of KL to the reference; above 0 it needs a frozen base (lora.r > 0)
    kl_in: Literal["loss", "reward"] = "loss"  # add KL to the loss, or subtract it from the reward
    kl_estimator: Literal["k1", "k2", "k3"] = "k3"  # k1 is the unbiased one in the reward, and useless in the loss
    kl_target: Positive[float] | None = None  # nats per token that kl_coef is adapted towards; none: fixed
    kl_horizon: Positive[int] = 1000  # an epoch of n episodes adapts kl_coef by at most 20 % * min(1, n / this)
    reference_every: NotNegative[int] = 0  # epochs after which the policy becomes the reference; 0: it stays the first

    @property
    def reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def drops_zero_advantage(self) -> bool:
        """Whether the loss of a token with advantage 0 has no gradient, so that the update may leave out episodes of
        nothing else. A loss with a term beside the policy gradient must say False, or its term vanishes there."""
        return False

    def __post_init__(self):
        if self.kl_target is not None and self.kl_coef == 0:
            raise Refusal("kl_target adapts kl_coef, which must be above 0 to begin with")
        if self.kl_in == "reward" and self.kl_coef == 0:
            raise Refusal("kl_in=reward has no effect with kl_coef=0")
        if self.reference_every and self.kl_coef == 0:
            raise Refusal(f"reference_every={self.reference_every} moves the reference of KL, and kl_coef=0 has none")


def in_reward(batch: Batch, cfg: Config) -> Batch:
    """Return the batch with -kl_coef * KL of the sampling policy added to each token's reward (Ziegler et al. 2019)."""
    if not cfg.reference or cfg.kl_in != "reward":
        return batch
    kl_N = kl_estimate(batch.old_logprobs_N, batch.ref_logprobs_N, cfg.kl_estimator)
    return replace(batch, reward_N=batch.reward_N - batch.kl_coef * kl_N)


def in_loss(batch: Batch, cfg: Config) -> torch.Tensor:
    """Return the term of each token's loss [N]: kl_coef * KL of the trained policy, or 0."""
    if not cfg.reference or cfg.kl_in != "loss":
        return torch.zeros_like(batch.logprobs_N)
    return batch.kl_coef * kl_estimate(batch.logprobs_N, batch.ref_logprobs_N, cfg.kl_estimator)


def measured(batch: Batch) -> torch.Tensor | None:
    """Return KL of the trained policy per token [N], as a metric: k3, which is never negative."""
    return None if batch.ref_logprobs_N is None else kl_estimate(batch.logprobs_N, batch.ref_logprobs_N, "k3")


def next_kl_coef(batch: Batch, cfg: Algorithm) -> float:
    """Return the next epoch's kl_coef (Ziegler et al. 2019, section 2.2): higher if the epoch's KL was above kl_target.

    An epoch of n episodes multiplies it by at most 1 +- 0.2 * min(1, n / kl_horizon). The factors compound: in
    kl_horizon episodes, of one epoch or of several, to between 0.8 and exp(0.2) = 1.22.
    """
    if cfg.kl_target is None or not len(batch.episodes):
        return batch.kl_coef
    kl = (batch.old_logprobs_N - batch.ref_logprobs_N).mean().item()
    error = min(max(kl / cfg.kl_target - 1, -0.2), 0.2)
    return batch.kl_coef * (1 + error * min(1.0, len(batch.episodes) / cfg.kl_horizon))
