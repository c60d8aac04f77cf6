"""On-policy distillation: the policy samples, and a teacher grades every token.

    reward of a token = teacher_coef * gate * (log teacher(token) - log old(token))
    advantage         = the rewards from the token on, discounted + reward_coef * (score - mean score of the group)
    loss              = clipped surrogate on every sampled token

With top_k > 0 the teacher's reward is replaced by a term of the loss, over its k likeliest words and all others as one:

    loss              = clipped surrogate + teacher_coef * gate * sum of pi * (log pi - log teacher)

The reward's expectation is -KL(policy || teacher) of a token (MiniLLM, Gu et al. 2024; GKD, Agarwal et al. 2024; "On-
policy distillation", Thinking Machines 2025). rl/teacher.py has the teachers: an adapter of the same base, another
checkpoint, or a model that also reads an expert's solution (OPSD, 2601.18734; SDFT, 2601.19897).

Biases. discount=0, the default here and in the literature, takes each token's KL alone: where its choice leads is left
out, so it is the gradient of KL with the visits of states held fixed. discount=1 has the gradient of KL of whole
episodes, and more variance. The term of top_k has the first of these gradients without the variance of sampling a
token, up to the words that it takes as one. gate multiplies a token's signal by sigmoid(gate * (log teacher - log old))
(SDAR, 2605.15155): what the teacher rejects counts less, so the optimum is not the teacher any more. Where a task has
several solutions, the optimum under a privileged teacher is the normalised geometric mean of what it would do knowing
each. Where the solution must be searched for, that is a policy which does not search.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from rl import core
from rl.config.arguments import NotNegative, Positive
from rl.config.refusals import Refusal
from rl.records import Batch


@dataclass(frozen=True)
class Config:
    teacher: str = ""  # an adapter or a run of this base | a folder with a checkpoint | policy: itself; empty: the base
    privileged: bool = False  # the teacher also reads the expert's replies, of qa the answer, behind the prompt
    teacher_coef: Positive[float] = 1.0  # weight of the teacher's grades
    reward_coef: NotNegative[float] = 0.0  # weight of the task's score less the mean of its group; 0: the teacher alone
    top_k: NotNegative[int] = 0  # compare with the teacher's k likeliest words; 0: at the sampled token alone
    discount: float = 0.0  # of later tokens' grades; 0: a token has its own, 1: those of the rest of the episode
    gate: NotNegative[float] = 0.0  # grades times sigmoid(this * (log teacher - log policy)); 0: off (SDAR has 5)
    group_size: Positive[int] = 1  # episodes per task; reward_coef needs 2 or more
    epochs: Positive[int] = 1  # passes over each epoch's episodes; 1 is on-policy
    clip: Positive[float] = 0.2  # the ratio is clipped below 1 - clip
    clip_high: Positive[float] = 0.28  # the ratio is clipped above 1 + clip_high
    aggregation: Literal["token", "sequence", "turn", "episode"] = "token"  # of per-token losses
    target_kl: Positive[float] | None = None  # stop the epoch's updates once KL(old || new) is past 1.5 * this

    source: ClassVar[str] = "rollouts"
    critic: ClassVar[bool] = False
    reference: ClassVar[bool] = False
    entropy_grad: ClassVar[bool] = False

    @property
    def drops_zero_advantage(self) -> bool:
        return not self.top_k and self.target_kl is None

    def __post_init__(self):
        if self.reward_coef and self.group_size < 2:
            raise Refusal("reward_coef needs a group_size of 2 or more: a group is its own baseline")
        if not 0 <= self.discount <= 1:
            raise Refusal(f"discount must be between 0 and 1, not {self.discount}")
        if self.top_k and self.discount:
            raise Refusal("discount adds up rewards of tokens, and top_k has a loss in their place; choose one")


def advantages(batch: Batch, cfg: Config) -> Batch:
    """Return the batch with each token's advantage: the teacher's grades, and the task's score within the group."""
    advantages_N = torch.zeros_like(batch.old_logprobs_N)
    if not cfg.top_k:
        grades_N = gate(batch, cfg) * (batch.teacher_logprobs_N - batch.old_logprobs_N)
        advantages_N = cfg.teacher_coef * core.returns_to_go(grades_N, batch.episode_N, cfg.discount)
    if cfg.reward_coef:
        group_B = torch.tensor([episode.group for episode in batch.episodes])
        scores_B = core.group_advantages(batch.scores_B, group_B, divide_by_std=False)
        advantages_N = advantages_N + cfg.reward_coef * scores_B[batch.episode_N]
    return replace(batch, advantages_N=advantages_N)


def gate(batch: Batch, cfg: Config) -> torch.Tensor:
    """Return the weight of each token's grade [N]."""
    if not cfg.gate:
        return torch.ones_like(batch.old_logprobs_N)
    return torch.sigmoid(cfg.gate * (batch.teacher_logprobs_N - batch.old_logprobs_N))


def loss(batch: Batch, cfg: Config) -> tuple[torch.Tensor, dict[str, float]]:
    """Return (loss, metrics); each metric is this piece's share of the optimizer step's mean.

    A new term may need drops_zero_advantage or entropy_grad of Algorithm (rl/config/fields.py), or it has no gradient.
    """
    log_ratio_N = batch.logprobs_N - batch.old_logprobs_N
    loss_N, ratio_N, clipped_N = core.clipped_surrogate(log_ratio_N, batch.advantages_N, cfg.clip, cfg.clip_high)
    if cfg.top_k:
        kl_N = core.kl_of_choices(batch.choice_logprobs_N, batch.teacher_choices_N)
        loss_N = loss_N + cfg.teacher_coef * gate(batch, cfg) * kl_N
    total = core.aggregate(
        loss_N,
        batch.episode_N,
        cfg.aggregation,
        batch.total_tokens,
        batch.total_episodes,
        turn_first_N=batch.turn_first_N,
    )
    tokens = {
        "ratio": ratio_N,
        "clip_fraction": clipped_N,
        "approx_kl": core.approximate_kl(batch.logprobs_N, batch.old_logprobs_N),
        "teacher_kl": batch.old_logprobs_N - batch.teacher_logprobs_N,  # of the policy that sampled
        "choices_kl": kl_N if cfg.top_k else None,
        "gate": gate(batch, cfg) if cfg.gate else None,
        "entropy": batch.entropy_N,
    }
    metrics = batch.shares(tokens)
    return total, {"loss": total.item(), **metrics}
