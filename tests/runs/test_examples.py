"""The examples that make a model: its folder is a checkpoint whose template does what the example says."""

import json

import pytest
from conftest import run_program

import envs
from examples import thoughts
from models import load_tokenizer
from models.weights import TINY
from rl.config.words import parse
from rl.data import to_samples
from rl.tasks import make_env
from rl.tools import read_action, write_reply


@pytest.fixture
def caller(tmp_path, monkeypatch):
    """Return the tokenizer of examples/tool_calls.py's folder, made of the embedded model in SmolLM2's place."""
    monkeypatch.setattr("models.weights.resolve", {"smol": TINY}.get)
    assert run_program("examples/tool_calls.py", f"{tmp_path}/caller") == (0, "", "")
    return load_tokenizer(tmp_path / "caller")


@pytest.mark.parametrize("env", ["textcraft", "os_interaction", "db_bench", "tau_retail"])
def test_tools_are_declared_and_an_experts_calls_are_read_back(env, caller):
    world, called = envs.make(env, tools="native"), set()
    for seed in range(3):
        messages = world.reset(seed)
        prompt = caller.show(caller.prompt(messages))
        assert all(json.dumps(tool, ensure_ascii=False) in prompt for tool in messages[0]["tools"])
        over = False
        while not over:
            action = world.oracle()
            assert read_action(caller, write_reply(caller, action, world), world) == action
            called |= {call["function"]["name"] for call in world.calls_of(action)[1]}
            step = world.step(action)
            over = step.terminated or step.truncated
    assert called <= {tool["function"]["name"] for tool in messages[0]["tools"]} and called


def test_without_smollm2_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    status, _, said = run_program("examples/tool_calls.py", f"{tmp_path}/caller")
    assert status == 1 and "make smol" in said and said.count("\n") == 1


def test_an_example_takes_new_names_alone(tmp_path):
    for words in (["examples/tool_calls.py", str(tmp_path)], ["examples/thoughts.py", str(tmp_path), "rows.jsonl"]):
        status, printed, said = run_program(*words)
        assert status == 1 and not printed and said.startswith(f"{tmp_path} is there already: give ")
        for asked in ([], ["--help"]):
            status, printed, said = run_program(words[0], *asked)
            assert status == 1 and not printed and "python train.py" in said


def test_a_thought_has_the_commands_that_are_left_and_the_action_solves_the_task():
    for seed in range(10):
        env, rows = make_env(parse(["textcraft.difficulty=2"]), "textcraft"), thoughts.rows(seed)
        env.reset(seed, "train")
        for row in rows:
            *before, reply = row["messages"]
            thought, action = reply["content"].removeprefix("<think>\n").split("\n</think>\n\n")
            step = env.step(action)
            assert all(message.get("loss") is False for message in before if message["role"] == "assistant")
            if action.startswith("craft"):
                assert thought.splitlines()[0] == action
        assert step.info["success"]
        actions = [row["messages"][-1]["content"].rpartition("\n")[2] for row in rows]
        plan = "\n".join(action for action in actions if action.startswith("craft"))
        assert rows[0]["messages"][-1]["content"].startswith(f"<think>\n{plan}\n</think>")


def test_the_thinkers_template_leaves_earlier_thoughts_out(tmp_path):
    status, *_ = run_program("examples/thoughts.py", f"{tmp_path}/thinker", f"{tmp_path}/rows.jsonl")
    tokenizer = load_tokenizer(tmp_path / "thinker", rewrites=True)
    row = next(row for row in map(json.loads, (tmp_path / "rows.jsonl").open()) if len(row["messages"]) > 4)
    reply = row["messages"][-1]["content"]
    messages = [{"loss": False, **message} for message in [*row["messages"], {"role": "user", "content": "Next."}]]
    messages[-2]["loss"] = True
    messages.append({"role": "assistant", "content": "<think>\nNone.\n</think>\n\ninventory", "loss": True})
    episode, _ = to_samples(tokenizer, messages, 0, 10_000)
    first, last = (tokenizer.show(episode.ids_T[turn.start : turn.stop]) for turn in episode.turns)
    assert status == 0 and f"<think>\n{first}" == f"{reply}<|im_end|>", "its tag is the template's"
    assert last == "None.\n</think>\n\ninventory<|im_end|>"
    said, action = tokenizer.show(episode.last_sample), reply.rpartition("\n")[2]
    assert f"assistant\n{action}<|im_end|>" in said and said.count("<think>") == said.count("</think>") == 1
