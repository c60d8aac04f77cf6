"""torch's optimizers without the wrappers of torch.compile, and their parameters by role, policy or critic.

The first call of a wrapped method imports torch._dynamo, which takes a second of CPU time at the start of every run,
although nothing here is compiled.
"""

from collections.abc import Callable
from inspect import unwrap

import torch

WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def parameters_of(optimizer: torch.optim.Optimizer, policy: bool) -> list[torch.Tensor]:
    """Return the parameters of the policy, or those of the critic, in the optimizer's order."""
    return [p for group in optimizer.param_groups if group["policy"] == policy for p in group["params"]]


def without_compiler(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return a subclass whose steps are those of `kind`, bit for bit."""
    methods = {name: unwrap(getattr(kind, name)) for name in WRAPPED}
    return type(kind.__name__, (kind,), {**methods, "step": torch.no_grad()(unwrap(kind.step))})
