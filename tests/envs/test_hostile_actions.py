"""Actions that no expert would take, in every environment: any text gets a Step, soon."""

import json
import time

import pytest
from cases import cases
from test_envs import STRICT, everywhere

import envs

pytestmark = pytest.mark.all_only

ACTIONS = {
    **cases("hostile_actions")["actions"],
    "surrogates": "\ud800\udfff look \udc80",
    "every character": "".join(map(chr, range(0, 0x3000))),
}


@pytest.mark.parametrize("prompt", ["native", "short"])
@everywhere
def test_hostile_actions_get_a_step(name, prompt):
    for what, text in ACTIONS.items():
        env = envs.make(name, prompt=prompt)
        words = env.reset(1)[-1]["content"]
        began = time.process_time()
        for action in (text, f"Thought: a\nAction: {text}", f"Thought:\n{words[:200]}\n\nAction:\n{text}"):
            try:
                step = env.step(action)
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
            assert isinstance(step.observation, str) and len(step.observation) < 20_000, what
            assert json.dumps(step.observation) and step.info["success"] is False, what
            if step.terminated or step.truncated:
                break
        assert time.process_time() - began < 6, what  # two seconds for each
        assert not (name in STRICT and prompt == "native") or step.terminated, what
