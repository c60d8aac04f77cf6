"""The ten commands of docs/commands.md run as they stand, with smaller numbers."""

import json
import os
import re
import subprocess
import sys

import pytest
from conftest import ROOT, copy_of_the_code, metrics_of

PAGE = (ROOT / "docs" / "commands.md").read_text()
COMMANDS = re.findall(r"^\*\*(\d+)\..*?\n\n    (.*?)\n(?:\n|\Z)", PAGE, re.M | re.S)
SMALL = {
    "train.py": "episodes=16 batch_size=8 eval_episodes=4 max_turns=2 max_new_tokens=8 threads=1 ranks=1",
    "eval.py": "n=6 threads=1 ranks=1",
    "merge.py": "prompts=2",
}


def small(command: str) -> str:
    """Return the command with this Python and with fewer episodes and tasks."""
    program = re.match(r"python (\w+\.py) ", command)
    words = SMALL[program[1]] if program else ""
    if "eval_episodes=0" in command:
        words = words.replace("eval_episodes=4 ", "")
    return re.sub(r"^python ", f"{sys.executable} ", f"{command} {words}")


@pytest.mark.full
def test_the_walk(tmp_path):
    assert [int(number) for number, _ in COMMANDS] == list(range(1, 11))
    tree, said = copy_of_the_code(tmp_path), []
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    for _, command in COMMANDS:
        done = subprocess.run(small(command), shell=True, cwd=tree, env=env, capture_output=True, text=True)
        assert done.returncode == 0, (command, done.stderr)
        said.append(done.stdout)
    assert "epoch_" in said[2] and "the same 6 tasks" in said[2] and json.loads(said[3])
    assert (tree / "rl" / "grpo.py").read_text().count(".clamp(min=-0.25)") == 1
    first, judged = (next(r for r in metrics_of(tree / "runs" / name) if "loss" in r) for name in ("first", "judged"))
    assert judged["tasks"] == first["tasks"] and judged["reward_mean"] == first["reward_mean"]
    assert "runs/second/epoch_" in said[7] and "against runs/first/epoch_" in said[7]
    assert "2 held-out prompts of textcraft" in said[8] and (tree / "merged" / "config.json").is_file()
    assert "settings as in the run of merged" in said[9] and "merged against base of first.json" in said[9]
