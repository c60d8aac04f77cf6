"""Everything of a run that changes, in one record."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from models import CausalLM
from rl.config.fields import Optim
from rl.ppo import Critic
from rl.ranks.pace import Pace
from rl.run.health import weights_hash
from rl.run.watch import Watch

if TYPE_CHECKING:  # these import this file, or more than a run needs
    from rl.remote.ahead import Ahead
    from rl.rubric import Judge
    from rl.teacher import Teacher

MOVED = "moved"  # name of the adapter that is a copy of the policy, made by reference_every
# the plain numbers of a TrainState
COUNTERS = ("epoch", "step", "groups", "kl_coef", "baseline", "micro_tokens", "sampled_tokens")


@dataclass
class TrainState:
    """The mutable state of a run. Sampling has none: its random numbers depend only on (seed, episode, turn, token).

    A checkpoint saves it with the random number generator, but without the first reference, which has its own folder.
    """

    model: CausalLM  # its trainable parameters
    critic: Critic | None
    optimizer: torch.optim.Optimizer
    reference: str | None = None  # name of the frozen adapter that is the KL reference, MOVED once it moves; None: base
    exact: str = "not tried"  # whether sampling and training gave the same bits at the start: "yes", or what differs
    epoch: int = 0  # epochs finished
    step: int = 0  # optimizer steps taken
    groups: int = 0  # groups of tasks drawn so far; the next epoch continues there
    kl_coef: float = 0.0  # weight of KL to the reference, as adapted so far
    baseline: float | None = None  # reinforce's moving average of scores
    given: dict[str, float] = field(default_factory=dict)  # the settings' own values of counters that a run adapts
    micro_tokens: int = 0  # smaller than the configured number, once memory ran out; 0: that number
    sampled_tokens: int = 0  # by the finished epochs: max_sampled_tokens= ends the run and the rate's decay by them
    mid_epoch: bool = False  # an epoch's optimizer steps are under way
    resumed_from: int = -1  # epoch of the checkpoint that this process went on from
    ahead: "Ahead | None" = None  # ahead=true: the episodes that are being sampled; not saved
    teacher: "Teacher | None" = None  # algo=opd; loaded anew when a run is resumed, not saved
    judge: "Judge | None" = None  # reward.judge=; loaded anew as well, not saved
    pace: Pace = field(default_factory=Pace)  # how fast this rank works, how long episodes are; not saved
    watch: Watch = field(default_factory=Watch)  # checks that the run does not learn nonsense; not saved
    masters: dict[str, torch.Tensor] = field(
        default_factory=dict
    )  # float32 copies that train instead (rl/run/full_finetuning.py)

    def piece_tokens(self, cfg: Optim) -> int:
        """Return the most ids of a micro-batch."""
        return self.micro_tokens or cfg.micro_tokens

    def trainable(self) -> dict[str, torch.Tensor]:
        """Return the model's trainable parameters by name, or the float32 copies that train."""
        return self.masters or {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def moved_reference(self) -> dict[str, torch.Tensor]:
        """Return the factors of the reference by name if it has moved, else nothing."""
        named = self.model.named_parameters() if self.reference == MOVED else ()
        return {name: p for name, p in named if f".adapters.{MOVED}." in name}

    def adapter_hash(self) -> str:
        """Return a hash of the model's trainable weights, 16 hexadecimal digits."""
        return weights_hash({name: p for name, p in self.model.named_parameters() if p.requires_grad})
