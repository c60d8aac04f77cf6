"""Whatever a server answers, a client returns a well-formed result or raises one printable line of its own errors."""

import contextlib
import copy
import io
import json
import math
import random

import pytest
from conftest import FUZZ
from hostile import is_plain, modest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import envs.http
from envs.common import PROMPTS
from envs.http import agentgym, lab, wire
from envs.http.exchange import MAX_BODY, Reply
from envs.http.wire import ServerFailed
from envs.refusal import Refusal
from envs.requests import Request
from rl.config.refusals import Refusal as RefusedByRun
from rl.remote import client

pytestmark = pytest.mark.all_only

INFO = {"outcome": "unknown", "success": False, "valid": True, "shaped": 0.5, "metrics": {"correctness": 0.5}}
TEXTS = st.text(max_size=30) | st.sampled_from(
    ["\x1b[2J\x07", "\ud800\u202e", "9" * 400, "running", "completed", "user"]
)
NUMBERS = st.integers() | st.floats() | st.sampled_from([10**400, -(10**4000), 1e308, 2**63, True])
JUNK = st.recursive(
    st.none() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


def history(*roles: str) -> dict:
    return {"value": [{"role": role, "content": f"text {number}"} for number, role in enumerate(roles)]}


def right(path: str, body: dict | None):
    """Return what a good server of any kind would answer."""
    if path == "chat/completions":
        return {
            "choices": [{"message": {"content": "get 1"}, "finish_reason": "stop"}],
            "usage": {"completion_tokens": 3},
        }
    if path == "embeddings":
        return {"data": [{"index": number, "embedding": [0.5, 1.0]} for number in range(len(body["input"]))]}
    if path == "models":
        return {"data": [{"id": "base"}, {"id": "mine"}]}
    if path == "get_attribute":
        return {"instance_factory_parameter_dict": {"type": "int", "value": "3"}}
    if path == "get_sample_index_list":
        return {"sample_index_list": [str(number) for number in range(20)]}
    if body and "session" in body:
        said = body["session"]["chat_history"]["value"]
        new = history("user", "agent", "user")["value"] if not said else [{"role": "user", "content": "Go on."}]
        record = {"outcome": "correct", "detail_dict": None}
        status = {"sample_status": "running", "chat_history": {"value": said + new}, "evaluation_record": record}
        return {"session": body["session"] | status}
    step = {"observation": "You see.", "state": "You see.", "reward": 0.5, "score": 1, "done": False, "info": INFO}
    more = {"task_description": "Boil.", "available_actions": ["go", "look"], "id": 1}
    return {"": "hi", "tasks": 0, "create": {"id": 1}}.get(path, step | more)


def spoil(value, junk, rng: random.Random):
    """Return the value with a part of it, at any depth, replaced or removed."""
    value = copy.deepcopy(value)
    if not isinstance(value, dict | list) or not value or rng.random() < 0.15:
        return junk
    key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
    if rng.random() < 0.15:
        del value[key]
    else:
        value[key] = spoil(value[key], junk, rng)
    return value


class Server:
    """Answers the exchanges of clients rightly, but the `nth` one not."""

    def __init__(self, junk, nth: int, seed: int):
        self.junk, self.nth, self.rng, self.count = junk, nth, random.Random(seed), 0

    def exchange(self, url: str, body: bytes | None, headers, timeout, left) -> Reply:
        asked = None if body is None else json.loads(body)
        _, _, path = url.partition("//")[2].partition("/")
        path = path.removeprefix("api/").removeprefix("v1/")
        said = right(path, asked)
        if path == "create" and asked == {} and self.webshop:
            said = 1
        if path == "reset" and self.webshop:
            said = ["WebShop", None]
        if self.count == self.nth:
            said = spoil(said, self.junk, self.rng)
        self.count += 1
        return Reply(200, "OK", json.dumps(said).encode())

    webshop = False


def check_step(step) -> None:
    assert type(step.observation) is str and type(step.terminated) is type(step.truncated) is bool
    assert type(step.reward) is float and math.isfinite(step.reward)
    assert step.info["outcome"] in ("correct", "incorrect", "timeout", "unknown")
    assert type(step.info["success"]) is type(step.info["valid"]) is bool and math.isfinite(step.info["shaped"])
    assert step.info.keys() <= {"outcome", "success", "valid", "shaped", "metrics"} and not step.requests
    assert all(is_plain(name, 40) and math.isfinite(n) for name, n in step.info.get("metrics", {}).items())


def fuzz(count: int):
    """Return a decorator: draw the wrong value, which exchange gets it, and where in the right answer."""
    health = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    drawn = given(junk=JUNK, nth=st.integers(0, 8), seed=st.integers(0, 99))
    found = example(junk=[], nth=5, seed=41)  # a message whose role is a list
    chosen = settings(max_examples=FUZZ * count or count // 3, deadline=None, suppress_health_check=health)
    return lambda test: chosen(found(drawn(test)))


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("kind", envs.http.KINDS)
@fuzz(60)
@example(junk=10**400, nth=4, seed=0)  # a number that no float holds
@example(junk={"a": {"b": [["\x1b[2J" * 99]]}}, nth=4, seed=3)
def test_any_answer_is_a_step_or_one_line(kind, prompt, junk, nth, seed):
    server, err = Server(junk, nth, seed), io.StringIO()
    server.webshop = kind == "webshop"
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(err):
        patch.setattr(wire, "exchange", server.exchange)
        patch.setattr(agentgym, "SERVERS", type(agentgym.SERVERS)(agentgym.Server))
        patch.setattr(lab, "SERVERS", type(lab.SERVERS)(lab.Server))
        env = envs.http.Env(envs.http.Config(kind=kind, prompt=prompt, retries=1, wait=1e-9, max_turns=3))
        try:
            messages = env.reset(5)
            assert all(set(message) == {"role", "content"} and type(message["content"]) is str for message in messages)
            assert {message["role"] for message in messages} <= {"system", "user", "assistant"}
            step = None
            while step is None or not (step.terminated or step.truncated):
                step = env.step("Action: look")
                check_step(step)
        except (ServerFailed, ValueError) as error:
            assert type(error) in (ServerFailed, Refusal) and is_plain(str(error))
        del env
    assert all(map(is_plain, err.getvalue().splitlines()))


@fuzz(300)
@example(junk=10**18, nth=0, seed=8)  # completion_tokens, of which a list was made
def test_any_answer_of_a_models_server_is_a_reply_or_one_line(junk, nth, seed):
    requests = [
        lambda: asked.names(),
        lambda: asked.chat("mine", [], 5, 0.0, 0),
        lambda: asked.result("base", Request("chat", [], None, 5, 0.0), 0),
        lambda: asked.result("base", Request("embed", texts=["a", "b"]), 0),
    ]
    nth, call = nth % 2, requests[nth % 4]
    server, err = Server(junk, nth, seed), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(err):
        patch.setattr(client, "exchange", server.exchange)
        asked = client.Server("http://127.0.0.1:9/v1", retries=0)
        try:
            found = call()
        except (ConnectionError, ValueError, client.Unusable) as error:
            assert type(error) in (ConnectionError, RefusedByRun, client.Unusable) and is_plain(str(error))
            return
    if isinstance(found, list):
        assert all(is_plain(name, 200) for name in found)
    elif isinstance(found, tuple):
        assert type(found[0]) is str and len(found[0]) <= 5 * 512 and found[1] in range(6) and is_plain(found[2], 40)
    elif found.vector is None:
        assert type(found.text) is str and found.tokens in range(6)
    else:
        assert [len(vector) for vector in found.vector] == [len(found.vector[0])] * 2
        assert all(math.isfinite(x) for vector in found.vector for x in vector)
    assert all(map(is_plain, err.getvalue().splitlines()))


def test_an_observation_that_takes_seconds_to_encode_is_refused(monkeypatch):
    """A tokenizer takes a second for a million letters."""
    answer = json.dumps({"observation": "a" * 2_000_000, "reward": 0.0, "done": False}).encode()
    monkeypatch.setattr(wire, "exchange", lambda *_: Reply(200, "OK", answer))
    with pytest.raises(wire.Lost, match=r"^/step: a reply of [0-9]+ bytes is too long$"):
        wire.request("http://127.0.0.1:8/step", {"id": 1, "action": "look"}, 1.0)


HUGE = {
    "deep": b"[" * 10_000 + b"]" * 10_000,
    "lists": b"[" + b"[]," * 2_700_000 + b"[]]",
    "strings": b"[" + b'"ab",' * 1_600_000 + b'""]',
    "objects": b"[" + b'{"a":1},' * 1_000_000 + b"{}]",
    "numbers": b"[" + b"1.5," * 2_000_000 + b"1]",
    "digits": b"[" + b"9" * 4000 + (b"," + b"9" * 4000) * 2000 + b"]",
    "text": b'{"observation": "' + b"\\u001b" * 1_300_000 + b'", "error": "' + b"x" * 100_000 + b'"}',
    "keys": b"{" + b",".join(b'"%x":0' % number for number in range(600_000)) + b"}",
    "invalid": b'{"id": "\xff"}',
}
KINDS_OF_ANSWERS = ["webshop", "planner", "db_bench", "model"]
ANSWERS = [  # all that one kind gets, all kinds that get one
    pytest.param(name, kind, marks=[pytest.mark.full] * (kind != "model" and name != "text"))
    for name in HUGE
    for kind in KINDS_OF_ANSWERS
]


@pytest.mark.parametrize(("name", "kind"), ANSWERS)
def test_huge_answer_costs_little(name, kind, monkeypatch, capsys):
    assert len(HUGE[name]) <= MAX_BODY
    reply = Reply(200, "OK", HUGE[name])
    for module in (wire, client):
        monkeypatch.setattr(module, "exchange", lambda *_: reply)
    with modest(), pytest.raises((ServerFailed, ConnectionError, ValueError, client.Unusable)) as error:
        if kind == "model":
            client.Server("http://127.0.0.1:9", retries=0).chat("m", [], 5, 0.0, 0)
        else:
            envs.http.Env(envs.http.Config(url="http://127.0.0.1:8", kind=kind, retries=0)).reset(0)
    assert is_plain(str(error.value)) and all(map(is_plain, capsys.readouterr().err.splitlines()))
