"""One failing episode is left out, counted and named; a run ends only if every one fails."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tqdm import tqdm

import envs
from envs import EnvironmentFailed
from envs.affine import sat
from models import load_model, load_tokenizer
from models.refusal import Refusal
from rl.config.words import parse
from rl.data import demonstrations
from rl.evaluate import describe, evaluate
from rl.rollout import rollout
from rl.run.files import plain
from rl.tasks import FAILURES_SHOWN, make_tasks

ERRORS = {
    "digits": lambda: int("9" * 5000),
    "overflow": lambda: float(10**400),
    "missing": lambda: {}["key"],
    "recursion": lambda: (_ for _ in ()).throw(RecursionError("too deep")),
    "memory": lambda: (_ for _ in ()).throw(MemoryError()),
    "assert": lambda: (_ for _ in ()).throw(AssertionError("no such state")),
    "stop": lambda: next(iter(())),
    "exit": lambda: sys.exit(0),
    "own": lambda: (_ for _ in ()).throw(EnvironmentFailed("gone")),
}


class Lines(tqdm):
    """A bar that keeps what is written."""

    def __init__(self):
        super().__init__(disable=True)
        self.lines = []

    def write(self, line: str) -> None:
        self.lines.append(line)


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny"), load_tokenizer("tiny")


def failing(monkeypatch, method: str, error, always: bool = False) -> None:
    """Let the first call of a method of SAT's environment raise, or all of them."""
    original, calls = getattr(sat.Env, method), []

    def call(self, *args):
        calls.append(1)
        return error() if always or len(calls) == 1 else original(self, *args)

    monkeypatch.setattr(sat.Env, method, call)


@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize("error", ERRORS)
def test_whatever_an_environment_raises_leaves_one_episode_out(method, error, tiny, monkeypatch):
    failing(monkeypatch, method, ERRORS[error])
    cfg, bar = parse(["env=sat", "sat.n=3", "max_new_tokens=2"]), Lines()
    played = rollout(*tiny, make_tasks(cfg, 0, 4, 1, "train", 0), cfg, 1.0, bar)
    assert [episode.infrastructure_failed for episode in played] == [True, False, False, False]
    [line] = bar.lines
    assert line.startswith("sat: ") and line.endswith("; the episode is left out") and "\n" not in line
    said = {"own": "gone", "exit": f"sat.{method} called sys.exit(0) (test_failing"}.get(error, "sat raised ")
    assert said in line and (error == "own" or "test_failing_episodes.py, line" in line)


@pytest.mark.parametrize("expert", [False, True])
def test_of_many_failing_episodes_the_first_have_lines(expert, tiny, monkeypatch):
    original, calls = sat.Env.step, []

    def step(self, action):
        calls.append(1)
        return original(self, action) if len(calls) % 3 == 1 else {}["key"]

    monkeypatch.setattr(sat.Env, "step", step)
    cfg, bar = parse(["env=sat", "sat.n=3", "max_new_tokens=2"]), Lines()
    tasks = make_tasks(cfg, 0, 36, 1, "train", 0)
    played = demonstrations(tiny[1], tasks, cfg, bar) if expert else rollout(*tiny, tasks, cfg, 1.0, bar)
    assert sum(episode.infrastructure_failed for episode in played) == 24 and len(bar.lines) == FAILURES_SHOWN == 20
    ends = [line.partition(" (test_")[2].partition("; ")[2] for line in bar.lines]
    assert ends == ["the episode is left out"] * 19 + ["the episode is left out; more such episodes are only counted"]


WRONG = {  # what a step has that is not a number, or that JSON has no word for
    "nan": ({"reward": math.nan}, "its reward is nan, not a number from -1e15 to 1e15"),
    "inf": ({"reward": math.inf}, "its reward is inf"),
    "large": ({"reward": 1e30}, "its reward is 1e+30"),
    "text": ({"reward": "1"}, "its reward is '1', not a number"),
    "nothing": ({"reward": None}, "its reward is None, not a number"),
    "success": ({"success": "no"}, "its success is 'no'"),
    "metric": ({"metrics": {"x": math.nan}}, "its x is nan"),
    "outcome": ({"outcome": "win"}, "its outcome is 'win', not one of correct, incorrect, timeout, unknown"),
    "name": ({"metrics": {(1, 2): 1.0}}, "a name of its metrics is no text: [(1, 2)]"),
    "nested": ({"metrics": {"x": None}}, "its x is None, not a number"),
    "lacks": ({"success": KeyError}, "sat: its info lacks 'success'"),
}


def spoiled(step, change: dict):
    """Return the step with a reward or parts of its info changed; one whose value is KeyError is taken out."""
    info = {key: value for key, value in (step.info | change).items() if key != "reward" and value is not KeyError}
    return replace(step, reward=change.get("reward", step.reward), info=info)


@pytest.mark.parametrize("case", WRONG)
def test_a_step_with_a_wrong_number_leaves_one_episode_out(case, tiny, monkeypatch):
    change, said = WRONG[case]
    original, calls = sat.Env.step, []

    def step(self, action):
        calls.append(1)
        return spoiled(original(self, action), change if len(calls) == 1 else {})

    monkeypatch.setattr(sat.Env, "step", step)
    cfg, bar = parse(["env=sat", "sat.n=3", "max_new_tokens=2"]), Lines()
    played = rollout(*tiny, make_tasks(cfg, 0, 4, 1, "train", 0), cfg, 1.0, bar)
    assert sum(episode.infrastructure_failed for episode in played) == 1 and len(bar.lines) == 1
    assert said in bar.lines[0] and bar.lines[0].endswith("; the episode is left out") and "\n" not in bar.lines[0]


def test_numbers_of_numpy_and_torch_are_saved_as_pythons_own(tiny, monkeypatch):
    original = sat.Env.step
    change = {
        "reward": np.float32(0.5),
        "success": np.bool_(True),
        "metrics": {"x": np.int64(3), "y": torch.tensor(2.5)},
    }
    monkeypatch.setattr(sat.Env, "step", lambda self, action: spoiled(original(self, action), change))
    cfg = parse(["env=sat", "sat.n=3", "max_new_tokens=2"])
    [episode] = rollout(*tiny, make_tasks(cfg, 0, 1, 1, "train", 0), cfg, 1.0, Lines())
    saved = json.loads(json.dumps(episode, default=plain))
    assert (saved["turns"][-1]["reward"], saved["success"], saved["metrics"]) == (0.5, True, {"x": 3.0, "y": 2.5})


def test_a_run_ends_if_every_episode_fails(tiny, monkeypatch):
    failing(monkeypatch, "step", ERRORS["missing"], always=True)
    cfg = parse(["env=sat", "sat.n=3", "max_new_tokens=2"])
    with pytest.raises(ValueError, match=r"every one failed; the last: sat raised KeyError: 'key'"):
        rollout(*tiny, make_tasks(cfg, 0, 8, 1, "train", 0), cfg, 1.0, Lines())


@pytest.mark.parametrize("method", ["reset", "oracle", "step"])
@pytest.mark.parametrize(
    ("error", "said"),
    [("missing", "KeyError"), ("stop", "StopIteration"), ("exit", "sys.exit(0)"), ("none", "returned None, not ")],
)
def test_a_failing_expert_leaves_one_demonstration_out(method, error, said, tiny, monkeypatch):
    failing(monkeypatch, method, ERRORS.get(error, lambda: None))
    cfg, bar = parse(["algo=sft", "env=sat", "sat.n=3"]), Lines()
    played = demonstrations(tiny[1], make_tasks(cfg, 0, 4, 1, "train", 0), cfg, bar)
    assert sum(episode.infrastructure_failed for episode in played) == 1 and said in bar.lines[0]


@pytest.mark.parametrize("method", ["reset", "step"])
@pytest.mark.parametrize("slow", [False, True])
def test_a_wrong_result_leaves_one_episode_out(method, slow, tiny, monkeypatch):
    failing(monkeypatch, method, lambda: ("an observation", {}))
    monkeypatch.setattr(sat.Env, "slow", slow)
    cfg, bar = parse(["env=sat", "sat.n=3", "max_new_tokens=2", "system_prompt=Be brief."]), Lines()
    played = rollout(*tiny, make_tasks(cfg, 0, 4, 1, "train", 0), cfg, 1.0, bar)
    assert sum(episode.infrastructure_failed for episode in played) == 1
    assert bar.lines[0].startswith(f"sat: sat.{method} returned ('an observation', {{}}), not ")


def test_a_shaped_reward_that_is_missing_is_named(tiny, monkeypatch):
    monkeypatch.setattr(sat.Env, "step", lambda self, action: envs.Step("", 1.0, True, False, {"valid": True}))
    cfg = parse(["env=sat", "sat.n=3", "max_new_tokens=2", "reward.rule=shaped"])
    with pytest.raises(ValueError, match=r"every one failed; the last: its info lacks 'shaped'$"):
        rollout(*tiny, make_tasks(cfg, 0, 2, 1, "train", 0), cfg, 1.0, Lines())


def refusing_once(monkeypatch, tokenizer, method: str, reason: str) -> None:
    """Let the first call of a method of the tokenizer refuse."""
    original, calls = getattr(tokenizer, method), []

    def call(*args):
        calls.append(1)
        if len(calls) == 1:
            raise Refusal(reason)
        return original(*args)

    monkeypatch.setattr(tokenizer, method, call)


def test_an_observation_that_cannot_be_written_leaves_one_episode_out(tiny, monkeypatch):
    """The tokenizers library panics on some texts, which Guarded turns into a refusal."""
    refusing_once(monkeypatch, tiny[1], "follow_up", "tokenizer.json: the tokenizer fails (index out of bounds)")
    cfg, bar = parse(["env=textcraft", "max_new_tokens=2", "max_turns=3"]), Lines()
    played = rollout(*tiny, make_tasks(cfg, 0, 4, 1, "train", 0), cfg, 1.0, bar)
    assert sum(episode.infrastructure_failed for episode in played) == 1
    assert "its observation cannot be written: tokenizer.json: the tokenizer fails" in bar.lines[0]


@pytest.mark.parametrize("source", ["rollout", "demonstrations"])
def test_a_prompt_that_cannot_be_written_leaves_one_episode_out(source, tiny, monkeypatch):
    """One row of questions may need what the chat template does not write."""
    refusing_once(monkeypatch, tiny[1], "prompt", "the chat template leaves out tool_calls")
    cfg, bar = parse(["algo=sft", "env=sat", "sat.n=3", "max_new_tokens=2"]), Lines()
    tasks = make_tasks(cfg, 0, 4, 1, "train", 0)
    if source == "rollout":
        played = rollout(*tiny, tasks, cfg, 1.0, bar)
    else:
        played = demonstrations(tiny[1], tasks, cfg, bar)
    assert sum(episode.infrastructure_failed for episode in played) == 1
    assert "its prompt cannot be written: the chat template leaves out tool_calls" in bar.lines[0]


def test_an_evaluation_says_what_it_could_not_ask(tiny, monkeypatch):
    cfg = parse(["env=sat", "sat.n=3", "max_new_tokens=2", "max_len=20"])
    [(found, _)] = evaluate(*tiny, cfg, [0.0], "test", 6)
    assert found["prompts_too_long"] == 6 and "; 6 prompts left no room for a reply" in describe(found)
    failing(monkeypatch, "step", ERRORS["missing"])
    [(found, _)] = evaluate(*tiny, parse(["env=sat", "sat.n=3", "max_new_tokens=2"]), [0.0], "test", 6)
    assert found["prompts_too_long"] == 0 and found["episodes"] == 5
    assert describe(found).endswith("; 1 episodes left out, whose environment or server failed")


def test_an_environment_of_which_every_episode_fails_is_named(tiny, monkeypatch):
    """In a mixture the others' success is not that of all."""
    failing(monkeypatch, "step", ERRORS["missing"], always=True)
    cfg = parse(["env=sat,textcraft", "sat.n=3", "max_new_tokens=2", "max_turns=1"])
    [(found, _)] = evaluate(*tiny, cfg, [0.0], "test", 12)
    assert describe(found).endswith("; every episode of sat failed, so it is missing here")
