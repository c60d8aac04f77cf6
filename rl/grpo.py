"""Group relative policy optimization (Shao et al. 2024, DeepSeekMath, eq. 3): no critic, the group is the baseline.

advantage of an episode = its score less the mean score of the episodes that had the same task
loss                    = clipped surrogate on every sampled token + kl_coef * KL to the reference

Differs from the textbook: the mean runs over all tokens of the optimizer step rather than first over each sequence
(`grpo.aggregation=sequence` is the paper's); advantages are not divided by the group's deviation, which would give
very easy and very hard tasks more weight (`grpo.divide_by_std=true` is the paper's); no KL term unless asked. An
episode of several turns is one sequence whose score is the sum of its turns' rewards. Groups whose scores are exactly
equal have no gradient.
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from rl import core
from rl.records import Batch


@dataclass
class Config:
    group_size: int = 8  # episodes per task (G)
    epochs: int = 1  # passes over each epoch's episodes; 1 is on-policy
    clip: float = 0.2  # the ratio is clipped below 1 - clip
    clip_high: float = 0.28  # and above 1 + clip_high (DAPO, section 3.1)
    divide_by_std: bool = False  # divide advantages by the group's deviation
    aggregation: str = "token"  # of per-token losses: token | sequence | constant
    constant_length: int = 1024  # tokens per episode that aggregation=constant divides by
    kl_coef: float = 0.0  # weight of the KL term; above 0 it needs a frozen base (lora.r > 0)
    kl_estimator: str = "k3"  # of the KL term: k1 | k2 | k3
    target_kl: float | None = None  # stop the epoch's updates when KL(old || new) passes 1.5 times this; none: never

    source: ClassVar[str] = "rollouts"
    critic: ClassVar[bool] = False
    entropy_grad: ClassVar[bool] = False

    @property
    def reference(self) -> bool:
        return self.kl_coef > 0

    def __post_init__(self):
        if self.group_size < 2:
            raise ValueError(f"grpo.group_size must be at least 2, not {self.group_size}: a group is its own baseline")
        if self.aggregation not in ("token", "sequence", "constant"):
            raise ValueError(f"grpo.aggregation {self.aggregation!r} is not one of token, sequence, constant")
        if self.kl_estimator not in ("k1", "k2", "k3"):
            raise ValueError(f"grpo.kl_estimator {self.kl_estimator!r} is not one of k1, k2, k3")


def advantages(batch: Batch, cfg: Config) -> Batch:
    """Each token gets the advantage of its episode."""
    group_B = torch.tensor([episode.group for episode in batch.episodes])
    advantages_B = core.group_advantages(batch.scores_B, group_B, cfg.divide_by_std)
    return replace(batch, advantages_N=advantages_B[batch.episode_N])


def loss(batch: Batch, cfg: Config) -> tuple[torch.Tensor, dict[str, float]]:
    """(loss, metrics); the metrics are this piece's share of the optimizer step's means."""
    surrogate_N, ratio_N, clipped_N = core.clipped_surrogate(
        batch.logprobs_N, batch.old_logprobs_N, batch.advantages_N, cfg.clip, cfg.clip_high
    )
    loss_N, kl_N = surrogate_N, torch.zeros_like(surrogate_N)
    if cfg.kl_coef > 0:
        kl_N = core.kl_estimate(batch.logprobs_N, batch.ref_logprobs_N, cfg.kl_estimator)
        loss_N = loss_N + cfg.kl_coef * kl_N
    total = core.aggregate(
        loss_N, batch.episode_N, cfg.aggregation, batch.total_tokens, batch.total_episodes, cfg.constant_length
    )
    tokens = {
        "ratio": ratio_N,
        "clip_fraction": clipped_N,
        "approx_kl": core.approximate_kl(batch.logprobs_N, batch.old_logprobs_N),
        "reference_kl": kl_N,
        "entropy": batch.entropy_N,
    }
    metrics = {name: x.detach().sum().item() / batch.total_tokens for name, x in tokens.items()}
    return total, {"loss": total.item(), **metrics}
