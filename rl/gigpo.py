"""GiGPO (Feng et al. 2025, "Group-in-Group Policy Optimization for LLM Agent Training"): GRPO with groups of turns.

advantage of a turn = that of its episode, as in rl/grpo.py                                     (section 4.1, A^E)
                    + step_coef * (its discounted return - the mean return of its step group)   (section 4.2, omega A^S)
loss                = GRPO's, with every option of it                                           (section 4.3)

A step group holds the turns of a group's episodes that begin in the same state, the anchor: they are different answers
to one question, so the returns from there compare them. No further sampling is needed. As in rl/grpo.py nothing is
divided by a deviation unless `gigpo.divide_by_std` says so; a turn that shares its state with no other has GRPO's
advantage. `step_groups` among the metrics is the share of turns that do share it. `gigpo.drop_equal` leaves groups of
equal scores out with their step groups.

What counts as a state decides the bias:

    anchor=observation   (the paper's) the last observation, or the prompt at first. Equal observations may hide
                         different states, and one episode may meet an observation twice: then its own later return is
                         in the baseline, and whether there is one depends on the action. Even where every episode has
                         the same score the gradient is not 0: it favours one more turn after a reward
    anchor=history       all ids so far, as the policy sees them. The baseline then depends on earlier actions alone. A
                         state's gradient has the right direction, times 1 - 1/n where n episodes of the group reach
                         it: states that few episodes reach count less

`gigpo.graph=true` is GraphGPO (Cheng et al. 2026): the turns of a group's episodes are the edges of a graph of their
states. The return of a turn is gamma ^ (fewest turns from the state that it leads to until success, over the whole
graph), 0 if no episode found a way. So a failed episode is paid for turns that lead where another one succeeded. The
return reads success and no rewards, and trusts that every edge can be repeated: it is biased where equal observations
hide different states and where the environment is random. It is also optimistic: it is the return of the best
way that the group found, not the policy's mean, and larger groups find better ways. The paper multiplies it by 10; here
`step_coef` can.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch

from rl import core, grpo
from rl.config.arguments import NotNegative, Positive
from rl.config.refusals import Refusal
from rl.records import Batch, Episode

loss = grpo.loss


@dataclass(frozen=True)
class Config(grpo.Config):
    step_coef: NotNegative[float] = 1.0  # weight of the advantage within step groups (omega); 0: GRPO
    gamma: Positive[float] = 0.95  # discount per turn of the returns that step groups compare
    anchor: Literal["observation", "history"] = "observation"  # what equal states have in common
    graph: bool = False  # returns by the distance to success in the graph of a group's states (GraphGPO)

    def __post_init__(self):
        super().__post_init__()
        if self.gamma > 1:
            raise Refusal(f"gamma must be at most 1, not {self.gamma}")


def advantages(batch: Batch, cfg: Config) -> Batch:
    """Return the batch with each token's advantage, that of its turn."""
    batch = grpo.advantages(batch, cfg)
    if not batch.episodes:  # drop_equal left none
        return batch
    first_N = batch.turn_first_N
    rewards_steps, step_N = batch.rewards_steps(first_N)
    state_steps, next_steps = states(batch.episodes, cfg.anchor)
    if cfg.graph:
        returns_steps = core.graph_returns(state_steps, next_steps, cfg.gamma).to(batch.reward_N.dtype)
    else:
        returns_steps = core.returns_to_go(rewards_steps, batch.episode_N[first_N], cfg.gamma)
    advantages_steps = core.group_advantages(returns_steps, state_steps, cfg.divide_by_std)
    shared = (torch.bincount(state_steps)[state_steps] > 1).float().mean().item()
    return replace(
        batch,
        advantages_N=batch.advantages_N + cfg.step_coef * advantages_steps[step_N],
        metrics={**batch.metrics, "step_groups": shared},
    )


def states(episodes: list[Episode], anchor: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (state_steps, next_steps), int64, as core.graph_returns takes them: the number of the state in which each
    turn begins, equal for equal states of a group, and of the state that it leads to."""
    numbers: dict[tuple[int, ...], int] = {}
    state_steps, next_steps = [], []
    for e in episodes:
        turns = [turn for turn in e.turns if turn.stop > turn.start]  # others have no token, and so no step
        starts = [0, *(turn.stop for turn in turns)] if anchor == "observation" else [0] * len(turns)
        keys = [(e.group, *e.ids_T[start : turn.start]) for start, turn in zip(starts, turns, strict=False)]
        own = [numbers.setdefault(key, len(numbers)) for key in keys]
        state_steps += own
        next_steps += [*own[1:], -1 if e.success else -2]
    return torch.tensor(state_steps), torch.tensor(next_steps)
