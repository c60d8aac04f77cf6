"""An environment of one's own: mistakes in its module are refused in a line, those in its results fail the episode."""

import sys
from dataclasses import replace

import numpy as np
import pytest

import envs
from envs import sums
from envs.__main__ import main
from envs.base import Environment
from envs.checked import shown
from envs.common import only_step
from envs.demos import expert
from rl import config
from rl.config.words import parse

STEP = only_step("seen", True, True)
MESSAGES = [{"role": "user", "content": "Hello"}]
WANTED = "envs.Step(observation, reward, terminated, truncated, info)"
WRONG = [  # a method, its result, the message
    ("reset", "Hello", "sums.reset returned 'Hello', not messages"),
    ("reset", ("Hello", {}), "sums.reset returned ('Hello', {}), not messages"),
    ("reset", None, "sums.reset returned None, not messages"),
    ("reset", MESSAGES[0], "sums.reset returned {'role': 'user', 'content': 'Hello'}, not messages"),
    ("reset", [], "sums.reset returned [], not messages"),
    ("reset", [{"role": "user", "content": None}], "not messages"),
    ("step", None, f"sums.step returned None, not an {WANTED}"),
    ("step", ("seen", 1.0, True, {}), f"sums.step returned ('seen', 1.0, True, {{}}), not an {WANTED}"),
    ("step", ("seen", 1.0, True, False, {}), f"not an {WANTED}"),
    ("step", replace(STEP, observation=None), "sums.step: its observation is None, not a text"),
    ("step", replace(STEP, reward=None), "sums.step: its reward is None, not a number"),
    ("step", replace(STEP, terminated="no"), "sums.step: its terminated is 'no', not a bool"),
    ("step", replace(STEP, truncated=None), "sums.step: its truncated is None, not a bool"),
    ("step", replace(STEP, info=None), "sums.step: its info is None, not a dict"),
    ("step", replace(STEP, info={"outcome": "win"}), "'win', not one of correct, incorrect, timeout, unknown"),
    ("step", replace(STEP, info={"success": None}), "sums.step: its success is None, not a bool"),
    ("step", replace(STEP, info={"shaped": "1"}), "sums.step: its shaped is '1', not a number"),
    ("answer", None, f"sums.answer returned None, not an {WANTED}"),
    ("oracle", None, "sums.oracle returned None, not a text"),
    ("oracle", 5, "sums.oracle returned 5, not a text"),
]
GOOD = "from dataclasses import dataclass\nimport envs\n@dataclass\nclass Config:\n    n: int = 1\n"
ENV = "class Env(envs.Environment):\n    def __init__(self, config): ...\n"
MODULES = [  # the code of a module, the message
    ("class Env(:", "own_env.py, line 1: SyntaxError: invalid syntax"),
    ("\nimport nothing_like_it", "own_env.py, line 2: ModuleNotFoundError: No module named 'nothing_like_it'"),
    ("import sys\nsys.exit(0)", "own_env.py, line 2: SystemExit: 0"),
    (GOOD, "own_env needs a class Env, a subclass of envs.Environment"),
    (GOOD + "class Env: ...", "own_env needs a class Env, a subclass of envs.Environment"),
    ("import envs\n" + ENV, "own_env needs a class Config, decorated with @dataclass"),
    ("import envs\nclass Config: ...\n" + ENV, "own_env needs a class Config, decorated with @dataclass"),
    (GOOD + "class Env(envs.Environment): ...", "own_env needs `def __init__(self, config)` in its class Env"),
    (GOOD + ENV + "    async def step(self, action): ...", "has `async def step`, which nothing awaits; write `def"),
]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Return a function that writes the module of an environment `own`; without code there is no file."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(envs.NAMES, "own", "own_env")

    def written(code: str) -> None:
        (tmp_path / "own_env.py").write_text(code)

    yield written
    sys.modules.pop("own_env", None)


def call(env: Environment, method: str) -> object:
    """Call a method of an environment."""
    return getattr(env, method)(*{"reset": (0,), "step": ("5",), "answer": ([],), "oracle": ()}[method])


@pytest.mark.parametrize(("method", "result", "said"), WRONG)
def test_a_wrong_result_fails_the_episode(method, result, said, monkeypatch):
    monkeypatch.setattr(sums.Env, method, lambda *_: result)
    with pytest.raises(envs.EnvironmentFailed) as caught:
        call(envs.make("sums"), method)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_bools_of_numpy_end_an_episode(monkeypatch):
    step = replace(STEP, terminated=np.bool_(True), truncated=np.bool_(False), reward=np.float32(1))
    monkeypatch.setattr(sums.Env, "step", lambda *_: step)
    assert call(envs.make("sums"), "step") is step


@pytest.mark.parametrize(("code", "said"), MODULES)
def test_a_module_that_cannot_be_used_is_refused_in_a_line(code, said, module):
    module(code)
    for use in (envs.config_class, envs.make, envs.has_expert):
        with pytest.raises(ValueError) as caught:
            use("own")
        assert str(caught.value).startswith("environment 'own': ") and said in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("words", ["env=own", "qa.dat=x", "--help lrr"])
def test_programs_refuse_such_a_module_in_a_line(words, module, monkeypatch, capsys):
    module("class Env(:")
    monkeypatch.setattr(config.words, "GROUPS", (*config.words.GROUPS, "own"))
    with pytest.raises(SystemExit) as ended:
        parse(words.split())
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("train.py: ") and "own_env.py, line 1: SyntaxError" in line


def test_a_name_without_a_file_is_refused_in_a_line(module, monkeypatch):
    for path in ("own_env", "envs.own", "own_folder.own"):
        monkeypatch.setitem(envs.NAMES, "own", path)
        with pytest.raises(ValueError, match=f"environment 'own': NAMES names {path}, and there is no such file"):
            envs.make("own")


def test_an_exit_in_a_constructor_does_not_end_the_program(module):
    module(GOOD + ENV.replace("...", "raise SystemExit(0)"))
    with pytest.raises(envs.EnvironmentFailed, match=r"own.Env\(\) called sys.exit\(0\) \(own_env.py, line 7\)"):
        envs.make("own")


@pytest.mark.parametrize("words", ["algo=sft", "reward.progress=0.1", "algo=opd opd.privileged=true"])
def test_an_environment_without_an_expert_is_refused(words, monkeypatch, capsys):
    monkeypatch.setattr(sums.Env, "oracle", Environment.oracle)
    with pytest.raises(SystemExit) as ended:
        parse([*words.split(), "env=sums"])
    [line] = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and " an expert" in line and "env=sums has none (its Env has no oracle)" in line


def test_a_missing_expert_is_named_without_a_run(monkeypatch, capsys):
    monkeypatch.setattr(sums.Env, "oracle", Environment.oracle)
    with pytest.raises(SystemExit):
        main(["sums", "demos=2"])
    said = "envs: demos=2 asks an expert, and sums has none: its Env has no oracle()\n"
    assert capsys.readouterr().err == said
    with pytest.raises(ValueError, match=r"envs.sums has no expert: its Env has no oracle\(\)"):
        expert(envs.make("sums"))


@pytest.mark.parametrize("name", ["grpo", "lora", "seed"])
def test_an_environment_may_not_be_named_as_other_settings(name, monkeypatch, capsys):
    monkeypatch.setitem(envs.NAMES, name, "envs.sums")
    with pytest.raises(SystemExit) as ended:
        parse(["algo=ppo", "env=sums"])
    assert ended.value.code == 2
    assert f"no environment can be named {name}, as a setting is" in capsys.readouterr().err


def test_a_long_value_in_a_message_is_cut_with_a_mark():
    assert shown("x" * 78) == f"'{'x' * 78}'" and shown("x" * 79) == f"'{'x' * 76}..."


def test_demonstrations_say_why_an_episode_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sums.Env, "step", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main(["sums", "demos=1", f"out={tmp_path}/rows.jsonl"])
    lines = capsys.readouterr().err.splitlines()
    assert ended.value.code == 1 and len(lines) == 2
    assert lines[0] == f"sums: sums.step returned None, not an {WANTED}; the episode is left out"
    with pytest.raises(SystemExit) as ended:
        main(["sums", "demos=1"])
    assert (ended.value.code, capsys.readouterr().err) == (1, f"envs: sums.step returned None, not an {WANTED}\n")
