"""REINFORCE (Williams 1992): the log-probability of each action, weighted by its return less a baseline.

loss = - sum over sampled tokens of (return of the token's turn - baseline) * log pi(token) / number of episodes

Differs from the textbook: the return is that of a *turn*, from it to the end of the episode (`reinforce.to_go=false`
gives every turn the whole episode's). With `gamma` below 1 the factor gamma^t of a turn's term, for t turns before it,
is left out. There is no correction for a policy that has moved since it sampled, so only the first optimizer step of an
epoch is exact; with `episodes` equal to `batch_size` it is the only one. One update per episode is `episodes=1
batch_size=1 reinforce.baseline=moving`.

Baselines, all of the score (the return of an episode's first turn), the same for each of its turns:

    none            0
    batch           the epoch's mean. It contains the episode itself, which shrinks the gradient by 1 - 1/episodes
    moving          an exponential average of the epochs before, 0 in the first
    leave_one_out   the mean of the group's other episodes: RLOO (Kool et al. 2019; Ahmadian et al. 2024), recipe=rloo
"""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch

from rl import core, kl
from rl.config.arguments import Positive
from rl.config.refusals import Refusal
from rl.records import Batch


@dataclass(frozen=True)
class Config(kl.Config):
    epochs: Positive[int] = 1  # passes over each epoch's episodes; from the second on the gradient is only approximate
    baseline: Literal["none", "batch", "moving", "leave_one_out"] = "batch"  # subtracted from the score, see above
    group_size: Positive[int] = 1  # episodes per task; leave_one_out needs 2 or more
    decay: float = 0.9  # share of the moving baseline that stays after an epoch
    gamma: float = 1.0  # discount per turn
    to_go: bool = True  # a turn is weighted by the rewards from it on; false: by the episode's
    whiten: bool = False  # advantages to mean 0 and deviation 1 over the epoch's tokens
    aggregation: Literal["episode", "sequence", "token"] = "episode"  # of per-token losses; episode: policy gradient
    entropy_coef: float = 0.0  # weight of the entropy bonus
    target_kl: Positive[float] | None = None  # stop the epoch's updates once KL(old || new) is past 1.5 * this

    source: ClassVar[str] = "rollouts"
    critic: ClassVar[bool] = False

    @property
    def entropy_grad(self) -> bool:
        return self.entropy_coef != 0

    @property
    def drops_zero_advantage(self) -> bool:
        return not (self.reference or self.entropy_grad) and self.target_kl is None

    def __post_init__(self):
        super().__post_init__()
        if self.baseline == "leave_one_out" and self.group_size < 2:
            raise Refusal("baseline=leave_one_out needs reinforce.group_size of 2 or more")
        for name in ("gamma", "decay"):
            if not 0 <= getattr(self, name) <= 1:
                raise Refusal(f"{name} must be between 0 and 1, not {getattr(self, name)}")


def advantages(batch: Batch, cfg: Config) -> Batch:
    """Return the batch with each token's advantage: its turn's discounted return less the baseline."""
    batch = kl.in_reward(batch, cfg)
    first_N = batch.turn_first_N  # a step of the return is a turn
    rewards_steps, step_N = batch.rewards_steps(first_N)
    episode_steps = batch.episode_N[first_N]
    returns_steps = core.returns_to_go(rewards_steps, episode_steps, cfg.gamma)
    first_steps = torch.searchsorted(episode_steps, torch.arange(len(batch.episodes)))  # each episode's first turn
    scores_B = returns_steps[first_steps]  # discounted, other than Batch.scores_B
    if cfg.baseline == "leave_one_out":
        baseline_B = core.leave_one_out(scores_B, torch.tensor([episode.group for episode in batch.episodes]))
    else:
        number = {"none": 0.0, "batch": scores_B.mean().item(), "moving": batch.baseline or 0.0}[cfg.baseline]
        baseline_B = torch.full_like(scores_B, number)
    earned_steps = returns_steps if cfg.to_go else scores_B[episode_steps]
    advantages_N = (earned_steps - baseline_B[episode_steps])[step_N]
    if cfg.whiten:
        advantages_N = core.whiten(advantages_N)
    return replace(
        batch,
        advantages_N=advantages_N,
        baseline=moving_average(batch.baseline, scores_B.mean().item(), cfg.decay),
    )


def moving_average(average: float | None, value: float, decay: float) -> float:
    """Return decay * average + (1 - decay) * value; the value itself if there is no average yet."""
    return value if average is None else decay * average + (1 - decay) * value


def loss(batch: Batch, cfg: Config) -> tuple[torch.Tensor, dict[str, float]]:
    """Return (loss, metrics); each metric is this piece's share of the optimizer step's mean.

    A new term may need drops_zero_advantage or entropy_grad of Algorithm (rl/config/fields.py), or it has no gradient.
    """
    kl_N = kl.in_loss(batch, cfg)
    loss_N = kl_N - batch.advantages_N * batch.logprobs_N - cfg.entropy_coef * batch.entropy_N
    total = core.aggregate(loss_N, batch.episode_N, cfg.aggregation, batch.total_tokens, batch.total_episodes)
    tokens = {
        "approx_kl": core.approximate_kl(batch.logprobs_N, batch.old_logprobs_N),
        "reference_kl": kl.measured(batch),
        "entropy": batch.entropy_N,
    }
    metrics = batch.shares(tokens)
    return total, {"loss": total.item(), **metrics}
