"""Group relative policy optimization (Shao et al. 2024, DeepSeekMath, eq. 3): no critic, the group is the baseline.

advantage of an episode = its score less the mean score of the episodes that had the same task
loss                    = clipped surrogate on every sampled token + kl_coef * KL to the reference

Differs from the textbook: the mean runs over all tokens of the optimizer step rather than first over each sequence
(`grpo.aggregation=sequence` is the paper's); advantages are not divided by the group's deviation, which would give
very easy and very hard tasks more weight (`grpo.divide_by_std=true` is the paper's); the ratio is clipped at 0.8 and
1.28, DAPO's bounds (`grpo.clip_high=0.2` gives the paper's symmetric ones); no KL term unless asked. An episode of
several turns is one sequence whose score is the sum of its turns' rewards; with history=template its samples together
are that sequence, and an episode weighs as much as with history=append. The surrogate of groups whose scores are
exactly equal has no gradient. For the embedded model recipes/embedded.toml sets `grpo.aggregation=sequence`, the mean
over each episode first, as examples/grpo.py computes it.

Its relatives are options here, and named recipes:

    dr_grpo   Liu et al. 2025: no deviation, and a constant instead of each episode's length
    dapo      Yu et al. 2025: clip-higher, token mean, no groups of equal scores, a penalty on overlong episodes. Groups
              that are left out are counted (left_out) and not sampled again. With KL in the reward few are equal
    gspo      Zheng et al. 2025: one ratio per episode, the geometric mean of its tokens'
    cispo     MiniMax-M1 2025: clipped ratios as constant weights, every token keeps its gradient
    maxrl     Tajwar et al. 2026: advantages divided by the group's mean. With scores of 0 or 1, success p and
              aggregation=constant a group of G has the gradient of -sum over k from 1 to G - 1 of (1 - p)^k / k, the
              first terms of log p: rare successes weigh up to G - 1 times more. The other aggregations also weigh
              episodes by their length. Other scores have no such reading, and negative ones are refused

`grpo.echo_coef` adds the cross-entropy of observations (ECHO, 2605.24517): the policy also learns to predict the
environment's replies, in failed episodes as in solved ones, but not in those that drop_equal leaves out. The mean runs
over the observation tokens of the step, at temperature 1. It is not a gradient of the score: its optimum is a model of
the environment, so the weight is a bias.

    loss = ... + echo_coef * - sum over observation tokens of log pi(token) / number of them

`grpo.aggregation=turn` takes the mean of each turn's tokens before that of an episode's turns. A token of a short turn,
or of an episode of few turns, weighs more, so it is not the gradient of the score either.

rl/gigpo.py gives the turns of an episode advantages of their own.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from rl import core, kl
from rl.batch import select
from rl.config.arguments import NotNegative, Positive
from rl.config.refusals import Refusal
from rl.records import Batch


@dataclass(frozen=True)
class Config(kl.Config):
    group_size: int = 8  # episodes per task (G)
    epochs: Positive[int] = 1  # passes over each epoch's episodes; 1 is on-policy
    surrogate: Literal["token", "sequence", "weight"] = "token"  # clip each ratio | the mean (GSPO) | weights (CISPO)
    clip: Positive[float] = 0.2  # the ratio is clipped below 1 - clip
    clip_high: Positive[float] = 0.28  # the ratio is clipped above 1 + clip_high (DAPO, section 3.1)
    dual_clip: Positive[float] | None = None  # bound the loss of advantages < 0 by this * |advantage|; above 1
    divide_by_std: bool = False  # divide advantages by the group's deviation
    divide_by_mean: bool = False  # divide advantages by the group's mean score (MaxRL); scores must be 0 or more
    aggregation: Literal["token", "sequence", "turn", "constant"] = "token"  # of per-token losses
    constant_length: Positive[int] = 1024  # tokens per episode that aggregation=constant divides by
    drop_equal: bool = False  # leave groups of exactly equal scores out of the update and of its denominators
    overlong_limit: NotNegative[int] = 0  # sampled tokens per episode that cost a reward of 1 (DAPO, eq. 13); 0: off
    overlong_cache: int = 256  # the penalty begins this many tokens before the limit
    echo_coef: NotNegative[float] = 0.0  # weight of the cross-entropy of observations (ECHO); 0: they are not learned
    target_kl: Positive[float] | None = None  # stop the epoch's updates once KL(old || new) is past 1.5 * this

    source: ClassVar[str] = "rollouts"
    critic: ClassVar[bool] = False
    entropy_grad: ClassVar[bool] = False

    @property
    def drops_zero_advantage(self) -> bool:
        # KL and ECHO have a gradient there, and target_kl measures it.
        return not self.reference and self.target_kl is None and not self.echo_coef

    def __post_init__(self):
        super().__post_init__()
        if self.group_size < 2:
            raise Refusal(f"group_size must be at least 2, not {self.group_size}: a group is its own baseline")
        if self.dual_clip is not None and self.surrogate == "weight":
            raise Refusal("dual_clip does not apply to surrogate=weight")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise Refusal(f"dual_clip must be above 1, not {self.dual_clip}")
        if self.overlong_limit and not 0 < self.overlong_cache <= self.overlong_limit:
            raise Refusal(f"overlong_cache must be from 1 to overlong_limit, not {self.overlong_cache}")
        if self.divide_by_mean and self.divide_by_std:
            raise Refusal("divide_by_mean and divide_by_std are two divisors of the same advantages; choose one")
        if self.divide_by_mean and (self.overlong_limit or (self.reference and self.kl_in == "reward")):
            raise Refusal("divide_by_mean needs scores of 0 or more: without overlong_limit and kl_in=reward")


def advantages(batch: Batch, cfg: Config) -> Batch:
    """Return the batch with each token's advantage, that of its episode."""
    batch = kl.in_reward(batch, cfg)
    group_B = torch.tensor([episode.group for episode in batch.episodes])
    scores_B = batch.scores_B
    if cfg.overlong_limit:
        tokens_B = torch.bincount(batch.episode_N)
        scores_B = scores_B + core.overlong_penalty(tokens_B, cfg.overlong_limit, cfg.overlong_cache)
    advantages_B = core.group_advantages(scores_B, group_B, cfg.divide_by_std)
    if cfg.divide_by_mean:
        advantages_B = core.over_group_mean(advantages_B, scores_B, group_B)
    batch = replace(batch, advantages_N=advantages_B[batch.episode_N], reads_observations=cfg.echo_coef > 0)
    if cfg.drop_equal:
        batch = select(batch, (~core.equal_groups(scores_B, group_B)).nonzero()[:, 0].tolist())
    return batch


def loss(batch: Batch, cfg: Config) -> tuple[torch.Tensor, dict[str, float]]:
    """Return (loss, metrics); each metric is this piece's share of the optimizer step's mean.

    A new term may need drops_zero_advantage or entropy_grad of Algorithm (rl/config/fields.py), or it has no gradient.
    """
    log_ratio_N = batch.logprobs_N - batch.old_logprobs_N
    if cfg.surrogate == "weight":
        surrogate_N, ratio_N, clipped_N = core.weighted_surrogate(
            log_ratio_N, batch.logprobs_N, batch.advantages_N, cfg.clip, cfg.clip_high
        )
    else:
        if cfg.surrogate == "sequence":
            log_ratio_N = core.sequence_log_ratio(log_ratio_N, batch.episode_N)
        surrogate_N, ratio_N, clipped_N = core.clipped_surrogate(
            log_ratio_N, batch.advantages_N, cfg.clip, cfg.clip_high, cfg.dual_clip
        )
    loss_N = surrogate_N + kl.in_loss(batch, cfg)
    total = core.aggregate(
        loss_N,
        batch.episode_N,
        cfg.aggregation,
        batch.total_tokens,
        batch.total_episodes,
        constant=cfg.constant_length,
        turn_first_N=batch.turn_first_N,
    )
    tokens = {
        "ratio": ratio_N,
        "clip_fraction": clipped_N,
        "approx_kl": core.approximate_kl(batch.logprobs_N, batch.old_logprobs_N),
        "reference_kl": kl.measured(batch),
        "entropy": batch.entropy_N,
    }
    metrics = batch.shares(tokens)
    if cfg.echo_coef:
        observation_nll = batch.observation_nll_B.sum() / max(batch.total_observed, 1)
        total = total + cfg.echo_coef * observation_nll
        metrics["observation_nll"] = observation_nll.item()
    return total, {"loss": total.item(), **metrics}
