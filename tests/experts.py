"""The expert's play, which tests of many environments need."""

from envs.base import Step


def expert(env) -> list[Step]:
    """Play the expert from the current state to the end; return its steps."""
    steps = [env.step(env.oracle())]
    while not (steps[-1].terminated or steps[-1].truncated):
        steps.append(env.step(env.oracle()))
    return steps
