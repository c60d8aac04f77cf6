"""What the tests of the worlds of one turn share."""

import json

from envs.base import Step


def answered(env, reply: str) -> Step:
    """What ends the episode, whatever the reply."""
    step = env.step(reply)
    assert step.terminated and not step.truncated
    assert step.reward == step.info["shaped"] == step.info["success"]
    assert step.info["outcome"] == ("correct" if step.reward else "incorrect")
    return step


def transcript(module, episodes: list[tuple[dict, int, list[str]]]) -> str:
    """The task of each seed, and how a world of these options answers the replies, one of them the expert's."""
    text = ""
    for options, seed, replies in episodes:
        env = module.Env(module.Config(**options))
        text += f"==== {options} {seed}\n{env.reset(seed, 'test')[0]['content']}\n"
        text += "".join(f"case {json.dumps(case)}\n" for case in getattr(env, "cases", []))
        for reply in replies:
            env.reset(seed, "test")
            said = env.oracle() if reply == "oracle" else reply
            step = answered(env, said)
            text += f"---- reply\n{said}\n---- {step.observation} | reward {step.reward:g} valid {step.info['valid']}\n"
    return text
