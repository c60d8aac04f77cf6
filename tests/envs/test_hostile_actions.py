"""Actions that no expert would take, in every environment: any text gets a Step, soon."""

import json
import time

import pytest
from test_envs import STRICT, everywhere

import envs

pytestmark = pytest.mark.all_only

CALL = '{"name": "get_order_details", "arguments": {"order_id": %s}}'
ACTIONS = {
    "NUL": "a\0b\0",
    "surrogates": "\ud800\udfff look \udc80",
    "escape codes": "\x1b[2J\x1b]0;owned\x07\x9b31m\u202e",
    "100 kB of letters": "A" * 100_000,
    "100 kB of lines": "look\n" * 20_000,
    "100 kB of commas": "," * 100_000,
    "100 kB of quotes": "'\"" * 50_000,
    "100 kB of backslashes": "\\" * 100_000,
    "100 kB of digits": "9" * 100_000,
    "deep lists": "[" * 50_000 + "]" * 50_000,
    "a deep call": CALL % ("[" * 20_000 + "]" * 20_000),
    "a deep call of objects": CALL % ('{"a":' * 10_000 + "1" + "}" * 10_000),
    "a call at the recursion limit": CALL % ("[" * 900 + "]" * 900),
    "a call with NaN": CALL % "NaN",
    "a call with 5,000 digits": CALL % ("9" * 5000),
    "a call with a large exponent": CALL % "1e999",
    "a call of no kind": '{"name": ["a"], "arguments": 3}',
    "a call without arguments": '{"name": "respond"}',
    "a call of null": "null",
    "many calls": (CALL % '"#W1"') * 1000,
    "a fence": "```bash\n" + "(" * 20_000 + "\n```",
    "fences": "```" * 30_000,
    "a fenced statement": "```sql\nSELECT " + "(" * 10_000 + "1" + ")" * 10_000 + "\n```",
    "a fenced program": "```python\n" + "x = " + "(" * 10_000 + "\n```",
    "an answer in tags": "<INPUT>" + "<" * 100_000 + "</INPUT>",
    "a formula": "calculate " + "(" * 20_000 + "1" + ")" * 20_000,
    "a power": "calculate 9**9**9**9",
    "a plan": "1. " + "subtask, " * 20_000,
    "a format": "{0.__class__} %s %n ${IFS} $(reboot) `id`",
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
