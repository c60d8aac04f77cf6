"""Helpers for the tests of environments of one turn."""

import golden

from envs.base import Step


def answered(env, reply: str) -> Step:
    """Step with a reply that must end the episode."""
    step = env.step(reply)
    assert step.terminated and not step.truncated
    assert step.reward == step.info["shaped"] == step.info["success"]
    assert step.info["outcome"] == ("correct" if step.reward else "incorrect")
    return step


def transcript(module, episodes: list[tuple[dict, int, list[str]]]) -> list[dict]:
    """Return the cases of a golden file: each episode's task, and the observation after each reply.

    The reply "oracle" is replaced by the expert's. Every reply ends the episode, which is reset before the next one.
    """
    cases = []
    for options, seed, replies in episodes:
        env = module.Env(module.Config(**options))
        cases.append(golden.start(env.reset(seed, "test"), seed, "test", **options))
        if hasattr(env, "cases"):
            cases.append(golden.case("cases", env.cases))
        for reply in replies:
            env.reset(seed, "test")
            said = env.oracle() if reply == "oracle" else reply
            cases.append(golden.action(said, answered(env, said)))
    return cases
