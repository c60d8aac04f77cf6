"""The records that the stages pass on: T tokens of an episode, N sampled tokens of a batch, B episodes of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch

# `X | MaybeNone` is the type of a field that is None until a stage fills it; type checkers treat it as an X.
MaybeNone: TypeAlias = Any


@dataclass
class Turn:
    """One reply of the agent and its reward."""

    start: int  # its sampled ids are ids_T[start:stop]
    stop: int
    reward: float  # after the reward rule, and with a judge's grade; whitening and KL in the reward come later
    stop_reason: str  # "stop" | "length" | "context", see models.engine.SampledTurn
    # how many of its first ids are thoughts, the closing tag included
    thoughts: int = field(default=0, metadata={"saved": "unless empty"})


@dataclass
class Episode:
    """One attempt of the agent at a task, as a list of ids that only grows.

    With history=append the list is what the model read. With history=template each turn is a sample of its own
    (`samples`), and the ids between two turns are those that the template wrote otherwise than in the sample before.
    """

    env: str
    seed: int  # of the task
    group: int  # episodes of one group have the same task
    ids_T: list[int] = field(default_factory=list)  # prompt, sampled and observation ids
    action_mask_T: list[int] = field(default_factory=list)  # 1 exactly on sampled ids, stop tokens included
    logprobs_T: list[float] = field(default_factory=list)  # of sampled ids at the sampling temperature; 0 elsewhere
    turns: list[Turn] = field(default_factory=list)
    outcome: str = "unknown"  # "correct" | "incorrect" | "timeout" | "unknown"
    success: bool = False  # the task was solved, whatever the reward says
    terminated: bool = False  # the task ended by its own rules
    truncated: bool = False  # a limit on turns or tokens ended it
    invalid: int = 0  # turns that the environment did not understand or carry out
    metrics: dict[str, float] = field(default_factory=dict)  # the environment's own measurements, at the end
    infrastructure_failed: bool = False  # the environment failed, not the agent; left out of the update
    adapter_hash: str = ""  # of the weights that sampled it
    task: str = ""  # digest of the environment's canonical task: seeds may draw one task several times
    # [n, D] each: the states before its sampled tokens, if sampling kept them; freed once the critic has read them
    hidden: list[torch.Tensor] = field(default_factory=list, metadata={"saved": False})
    # history=template: for each observation, how many ids of the sample before it the next one begins with
    kept: list[int] = field(default_factory=list, metadata={"saved": "unless empty"})

    @property
    def score(self) -> float:
        """The sum of the turns' rewards."""
        return sum(turn.reward for turn in self.turns)

    @property
    def observation_mask_T(self) -> list[int]:
        """1 exactly on the ids of observations: those after the first turn that are in no turn."""
        start = self.turns[0].stop
        mask_T = [0] * start + [1] * (len(self.ids_T) - start)
        for turn in self.turns:
            mask_T[turn.start : turn.stop] = [0] * (turn.stop - turn.start)
        return mask_T

    @property
    def samples(self) -> list[tuple[int, int, int]]:
        """(kept, start, stop) of each training sample: the first `kept` ids of the one before, then ids_T[start:stop].
        With history=append the whole list is one."""
        starts = [0, *(turn.stop for turn in self.turns[: len(self.kept)])]
        return list(zip([0, *self.kept], starts, [*starts[1:], len(self.ids_T)], strict=True))

    @property
    def last_sample(self) -> list[int]:
        """The ids of the last training sample: what the model has read and written in its last turn."""
        ids: list[int] = []
        for kept, start, stop in self.samples:
            ids[kept:] = self.ids_T[start:stop]
        return ids

    @property
    def last_reply(self) -> list[int]:
        """The ids of the last turn."""
        return self.ids_T[self.turns[-1].start : self.turns[-1].stop]

    @property
    def thought_tokens(self) -> int:
        """The number of sampled tokens that are thoughts."""
        return sum(sum(self.action_mask_T[turn.start : turn.start + turn.thoughts]) for turn in self.turns)

    def append(self, ids: list[int], logprobs: list[float] | None = None) -> None:
        """Append ids: sampled ones with their log-probabilities, others without."""
        self.ids_T += ids
        self.action_mask_T += [0 if logprobs is None else 1] * len(ids)
        self.logprobs_T += [0.0] * len(ids) if logprobs is None else logprobs

    def append_turn(
        self,
        ids: list[int],
        logprobs: list[float],
        stop_reason: str,
        hidden: Sequence[torch.Tensor] = (),
        goes_on: bool = False,
    ) -> None:
        """Append a turn's sampled ids; its reward is set by the environment's step. goes_on: they continue the last
        turn, to which ids that were appended since then belong too."""
        if not goes_on:
            self.turns.append(Turn(len(self.ids_T), len(self.ids_T), 0.0, stop_reason))
        self.append(ids, logprobs)
        self.turns[-1].stop, self.turns[-1].stop_reason = len(self.ids_T), stop_reason
        self.hidden += hidden


@dataclass
class Batch:
    """The tensors that losses see: one entry per sampled token, episode after episode, no padding and no mask.

    The totals count over the whole optimizer step, of which this batch may be one piece; a loss divides by them, so the
    way a step is cut into micro-batches changes its gradient by rounding at most.
    """

    episodes: list[Episode]  # B of them, in the order in which their tokens are laid out
    episode_N: torch.Tensor  # int64: index into episodes
    turn_N: torch.Tensor  # int64: turn of the episode, from 0
    reward_N: torch.Tensor  # float32: a turn's on its last token, 0 elsewhere; kl_in=reward adds -kl_coef * KL to each
    old_logprobs_N: torch.Tensor  # float32: as sampled
    total_tokens: int
    total_turns: int
    total_episodes: int
    total_observed: int = 0  # tokens of observations, which follow the first turn and were not sampled
    logprobs_N: torch.Tensor | MaybeNone = None  # under the policy that trains, with its gradient
    # nats, of the whole distribution at each sampled token; with a gradient only where Config.entropy_grad is True
    entropy_N: torch.Tensor | MaybeNone = None
    values_N: torch.Tensor | MaybeNone = None  # the critic's, with its gradient; of the state before each sampled token
    old_values_N: torch.Tensor | MaybeNone = None  # the critic's, before the update
    # the critic's value of each episode's last state, before the update; 0 where no ids follow the last turn
    last_values_B: torch.Tensor | MaybeNone = None
    reads_observations: bool = False  # the loss reads observation_nll_B, so a forward pass must compute it
    observation_nll_B: torch.Tensor | MaybeNone = None  # -log p of an episode's observations, summed, with its gradient
    ref_logprobs_N: torch.Tensor | MaybeNone = None  # under the reference policy
    teacher_logprobs_N: torch.Tensor | MaybeNone = None  # under the teacher of algo=opd
    choices_N: torch.Tensor | MaybeNone = None  # int64 [N, top_k]: the teacher's likeliest ids in each place
    teacher_choices_N: torch.Tensor | MaybeNone = None  # [N, top_k]: their log-probabilities under the teacher
    choice_logprobs_N: torch.Tensor | MaybeNone = None  # and under the policy that trains, with their gradient
    advantages_N: torch.Tensor | MaybeNone = None
    returns_N: torch.Tensor | MaybeNone = None  # targets of values_N
    place_N: torch.Tensor | MaybeNone = None  # int64: index of the entry in the batch that was `numbered` last
    first_entropy_N: torch.Tensor | MaybeNone = None  # float32: entropy_N when the update first met it; -1: never
    kl_coef: float = 0.0  # weight of KL to the reference, as adapted so far
    baseline: float | None = None  # moving average of the epochs' mean scores; None before the first
    learned_tokens: int = 0  # how many of total_tokens are in a forward pass; metrics divide by it, losses do not
    metrics: dict[str, float] = field(default_factory=dict)  # of the stages that made it, for the epoch's line

    def shares(self, tokens: dict[str, torch.Tensor | None]) -> dict[str, float]:
        """Return this piece's share of each metric's mean over the step's learned tokens. None is left out."""
        return {name: x.detach().sum().item() / self.learned_tokens for name, x in tokens.items() if x is not None}

    @property
    def turn_first_N(self) -> torch.Tensor:
        """bool: True on the first token of each turn."""
        new = torch.ones_like(self.turn_N, dtype=torch.bool)
        new[1:] = (self.turn_N[1:] != self.turn_N[:-1]) | (self.episode_N[1:] != self.episode_N[:-1])
        return new

    def rewards_steps(self, first_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (rewards_steps, step_N): the sum of the rewards of each step of the return, and the index of the step
        to which each token belongs. first_N: True on the first token of each step, such as turn_first_N."""
        step_N = first_N.cumsum(0) - 1
        return self.reward_N.new_zeros(int(first_N.sum())).index_add_(0, step_N, self.reward_N), step_N

    @property
    def scores_B(self) -> torch.Tensor:
        """float32: the sum of each episode's rewards."""
        return self.reward_N.new_zeros(len(self.episodes)).index_add_(0, self.episode_N, self.reward_N)


@dataclass
class StepResult:
    """What one optimizer step computed, over all its pieces, and whether the optimizer took it."""

    metrics: dict[str, float]  # the loss's own, then grad_norm and lr
    place_N: torch.Tensor  # int64: of the step's tokens in the epoch's batch
    entropy_N: torch.Tensor  # float32, nats: of the same tokens
    sampler_gap: float  # nats: the largest |log p sampled - log p recomputed| of a token
    expert_loads: torch.Tensor  # models/moe.py
    trained_tokens: int = 0  # ids of the step's episodes
    within_target_kl: bool = True  # KL(old || new) is at most 1.5 * target_kl
    skipped: bool = False  # it is not, or the gradient was not finite
