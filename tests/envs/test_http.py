"""env=http: an episode equals the one in process, also if the network or the server fails on the way."""

import dataclasses
import io
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from random import Random

import pytest
from cases import cases
from test_envs import HOSTILE
from test_serve import KINDS, ROOT, fake, served

import envs
import envs.http
from envs import serve
from envs.common import PROMPTS, SEVERAL, SPLITS
from envs.http.agentgym import OURS, REFUSED, USUAL, action_of, close_sessions
from envs.http.exchange import MAX_BODY
from envs.http.wire import ServerFailed, number_of, seed_of, seeds_of

CASES = cases("http")

pytestmark = pytest.mark.all_only

EASY = {"difficulty": "1"}


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    """Return the name of each environment that AgentGym's protocol serves."""
    return request.param


def remote(server, **options) -> envs.http.Env:
    return envs.http.Env(envs.http.Config(**{"url": server.url, "wait": 0.001, "timeout": 10.0} | options))


def options_of(kind: str, **options) -> dict:
    """Return the options of a twin in process of what `python -m envs.serve` serves."""
    return EASY | USUAL.get(kind, {}) | options


def same(here: envs.Step, there: envs.Step) -> bool:
    """Return whether a step in process equals one over HTTP, except for info that servers do not send."""
    steps = [dataclasses.replace(step, info={}) for step in (here, there)]
    facts = [[step.info[name] for name in ("outcome", "success", "valid")] for step in (here, there)]
    return steps[0] == steps[1] and facts[0] == facts[1]


def step_the_expert(here, there) -> None:
    """Assert that the expert's next reply gets the same step in process and over HTTP."""
    reply = here.oracle()
    assert same(here.step(reply), there.step(reply))


def play_the_expert(here, there) -> None:
    """Do the same until the episode is over."""
    while here.running:
        step_the_expert(here, there)


def reply_of(env, rng: Random) -> str:
    """Return mostly the expert's reply, else one without progress."""
    if rng.random() < 0.8:
        return env.oracle()
    return rng.choice(CASES["replies"])


def episodes(kind: str, options: dict, count: int) -> list[bool]:
    """Play episodes in eight threads on one server; return which were solved.

    Assert that each step equals that of a twin in process, which plays the expert.
    """

    def episode(number: int) -> bool:
        here, there = envs.make(kind, **options), remote(server, kind=kind, prompt=options["prompt"])
        seed, split = number // 3, SPLITS[number % 3]
        assert here.reset(seed, split) == there.reset(seed, split)
        rng = Random(number)
        while here.running:
            text = reply_of(here, rng)
            step = there.step(text)
            assert same(here.step(text), step), text
        assert not there.running
        return step.info["success"]

    with served(kind, options) as server, ThreadPoolExecutor(8) as pool:
        solved = list(pool.map(episode, range(count)))
        assert len(server.sessions.open) <= 8  # taken over, not opened for each episode
    return solved


@pytest.mark.parametrize("prompt", ["native", "short"])
def test_an_episode_is_the_same_as_in_process(kind, prompt):
    assert sum(episodes(kind, options_of(kind, prompt=prompt), 12)) > 2


def has_level(kind: str, level: str) -> bool:
    try:
        return bool(envs.config_class(kind)(difficulty=level))
    except ValueError:
        return False


@pytest.mark.full
@pytest.mark.parametrize("prompt", ["native", "short"])
def test_episode_of_every_difficulty_is_the_same_as_in_process(kind, prompt):
    levels = ",".join(level for level in "1234" if has_level(kind, level))
    played = episodes(kind, options_of(kind, difficulty=levels, prompt=prompt), 300)
    assert sum(played) > 100


@pytest.mark.parametrize("prompt", ["native", "short"])
def test_hostile_replies_are_the_same_as_in_process(kind, prompt):
    options = options_of(kind, prompt=prompt)
    if "max_turns" in {field.name for field in dataclasses.fields(envs.config_class(kind))}:
        options["max_turns"] = 1000
    here = envs.make(kind, **options)
    with served(kind, options) as server:
        there = remote(server, kind=kind, prompt=prompt, max_turns=1000)
        for text in (
            HOSTILE + [f"Action: {text}" for text in HOSTILE] + [f"{text}\nAction:\n{text}" for text in HOSTILE]
        ):
            if not here.running:
                assert here.reset(5) == there.reset(5)
            assert same(here.step(text), there.step(text)), text


def test_any_text_is_the_same_as_in_process():
    pieces = CASES["pieces"]
    rng = Random(0)
    with served(options=EASY) as server:
        here, there = envs.make("textcraft", max_turns=10**6, **EASY), remote(server, max_turns=10**6)
        here.reset(1), there.reset(1)
        for _ in range(300):
            text = "".join(rng.choices(pieces, k=rng.randrange(12)))
            a, b = here.step(text), there.step(text)
            assert same(a, b), text


def test_info_of_textcraft_equals_the_environments():
    here = envs.make("textcraft", max_turns=3, **EASY)
    with served(options=EASY) as server:
        there = remote(server, max_turns=3)
        for seed in range(10):
            here.reset(seed), there.reset(seed)
            for text in (here.oracle(), "Action: dance", "Action: a\nAction: b"):
                if here.running:
                    step = there.step(text)
                    assert same(here.step(text), step)
                    assert step.info["shaped"] == float(step.info["success"])


def test_two_actions_count_as_a_turn_and_send_nothing():
    with served() as server:
        env = remote(server, max_turns=2)
        env.reset(0)
        server.sessions.close(env.client.session)
        step = env.step("Action: inventory\nAction: get 1 coal")
        assert step.observation == SEVERAL and not step.info["valid"] and not step.truncated
        step = env.step("Action: inventory\nAction: get 1 coal")
        assert step.truncated and step.info["outcome"] == "timeout"
        with pytest.raises(RuntimeError, match="reset"):
            env.step("Action: inventory")


@pytest.mark.parametrize("kind", KINDS)
def test_no_task_number_is_in_two_splits(kind):
    for tasks in (400, 431, 544, 2620, 4639):
        numbers = {}
        for split in SPLITS:
            numbers[split] = [number_of(kind, seed, split) for seed in range(seeds_of(kind, split, tasks))]
        counted = Counter(number for drawn in numbers.values() for number in drawn)
        assert counted == Counter(range(tasks))
        assert {split for split, drawn in numbers.items() for n in drawn if seed_of(kind, n)[1] != split} == set()
    for seed in (0, 7, 8, 39, 40, 12345, 2**31):
        for split in SPLITS:
            assert seed_of(kind, number_of(kind, seed, split)) == (seed, split)


def test_our_server_has_no_last_task():
    here = envs.make("textcraft", **EASY)
    with served(options=EASY) as server:
        for split, seed in zip(SPLITS, (2**31, 10**6, 999), strict=True):
            assert here.reset(seed, split) == remote(server).reset(seed, split)


def test_number_of_tasks_of_agentgyms_servers():
    not_found = b"HTTP/1.0 404 Not Found\r\n\r\n"
    with unreliable([(False, not_found)], options=EASY) as server:
        env = remote(server)
        env.reset(10**6, "val")
        assert env.number < 544 and env.number % 10 == 8


def test_seeds_repeat_after_the_last_task():
    with served(options=EASY) as server:
        env = remote(server, tasks=30)
        drawn = []
        for seed in range(9):
            env.reset(seed, "val")
            drawn.append(env.task)
        assert drawn == ["http:textcraft:8", "http:textcraft:18", "http:textcraft:28"] * 3
        env.reset(2**31 + 5, "train")
        assert env.number < 30


def test_every_level_of_babyai_is_in_every_split():
    for split in SPLITS:
        assert {number_of("babyai", seed, split) % 40 for seed in range(40)} == set(range(40))


def test_sessions_are_reused():
    with served() as server:
        first, second = remote(server), remote(server)
        for env in (first, second, first):
            env.reset(0)
        assert len(server.sessions.open) == 2
        del first, env  # an episode that is left unfinished
        third = remote(server)
        third.reset(1)
        assert len(server.sessions.open) == 2
        for _ in range(20):
            third.step("Action: inventory")
        assert not third.running
        fourth = remote(server)
        fourth.reset(2)
        assert len(server.sessions.open) == 2
        close_sessions()
        assert not server.sessions.open
        assert second.step("Action: inventory").observation == "Inventory: You are not carrying anything."


def test_sessions_are_closed_when_the_process_ends():
    program = "import sys, envs.http as h; e = h.Env(h.Config(url=sys.argv[1])); e.reset(0); print(e.client.session)"
    with served() as server:
        command = [sys.executable, "-c", program, server.url]
        environment = os.environ | {"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
        assert subprocess.check_output(command, cwd=ROOT, text=True, env=environment).strip().isdigit()
        assert not server.sessions.open


OK, X = b"HTTP/1.0 200 OK\r\n", b'{"observation": "x", "reward": 0, "done": false}'
FAULTS = {name: answer.encode("latin-1") for name, answer in CASES["faults"].items()}
STEPS = {name: answer.encode("latin-1") for name, answer in CASES["faults of a step"].items()}
STEPS["no end"] = OK + b"\r\n" + b" " * MAX_BODY + X


def unreliable_handler(faults) -> type[serve.Handler]:
    """Return a handler that answers some requests with a fault, before or after it carries them out."""

    class Unreliable(serve.Handler):
        def do_POST(self):
            fault = faults.pop(0) if faults else None
            if fault is None:
                return super().do_POST()
            after, answer = fault
            if after:
                wfile, self.wfile = self.wfile, io.BytesIO()
                super().do_POST()
                self.wfile = wfile
            if isinstance(answer, float):
                time.sleep(answer)
            else:
                self.wfile.write(answer)

        do_GET = do_POST

    return Unreliable


@contextmanager
def unreliable(faults, **options):
    """Run a server with these faults."""
    with served(**options) as server:
        server.handler = unreliable_handler(faults)
        yield server


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_does_not_change_the_episode(name, after):
    here = envs.make("textcraft", difficulty="2")
    fault = (after, FAULTS[name])
    none = [None] * 4  # a greeting, a session, an episode, a step
    faults = [fault, None, None, fault, *none, fault, None, fault, *none, fault]
    with unreliable(faults, options={"difficulty": "2"}) as server:
        there = remote(server)
        for seed in (0, 1):
            assert here.reset(seed) == there.reset(seed)
            play_the_expert(here, there)
    assert not faults


@pytest.mark.parametrize("kind", OURS)
def test_missing_info_is_requested_again_from_our_servers(kind, monkeypatch):
    fake(kind, monkeypatch)
    odd = X.replace(b"}", b', "info": {"outcome": "correct", "success": 1, "valid": true, "shaped": 0}}')
    faults = [*[None] * 4, (False, OK + b"\r\n" + X), *[None] * 3, (False, OK + b"\r\n" + odd)]
    with unreliable(faults, kind=kind) as server:
        env = remote(server, kind=kind, max_turns=3)
        env.reset(0)
        assert env.step("Action: jump").info["valid"] is False
        assert env.step("Action: look").info == {"outcome": "unknown", "success": False, "valid": True, "shaped": 0.0}
    assert not faults


@pytest.mark.parametrize("name", STEPS)
def test_a_malformed_step_does_not_change_the_episode(name):
    here = envs.make("textcraft", difficulty="2")
    faults = [*[None] * 4, (True, STEPS[name]), *[None] * 4, (False, STEPS[name])]
    with unreliable(faults, options={"difficulty": "2"}) as server:
        there = remote(server)
        assert here.reset(4) == there.reset(4)
        play_the_expert(here, there)
    assert not faults


def test_a_slow_answer_is_requested_again():
    here = envs.make("textcraft", **EASY)
    with unreliable([(True, 1.0), None, None, None, None, (True, 1.0)], options=EASY) as server:
        there = remote(server, timeout=0.2)
        assert here.reset(0) == there.reset(0)
        step_the_expert(here, there)


@pytest.mark.parametrize("name", FAULTS)
def test_a_permanent_failure_is_one_line(name):
    with unreliable([(False, FAULTS[name])] * 99) as server:
        env = remote(server, retries=2)
        with pytest.raises(ServerFailed, match=r"^http://[^ ]* failed after 3 attempts: /tasks\b") as error:
            env.reset(0)
        assert len(str(error.value)) < 250 and "\n" not in str(error.value)
        with pytest.raises(RuntimeError, match="no episode is running"):
            env.step("Action: inventory")


def test_server_that_is_down_fails_after_doubling_waits(monkeypatch, capsys):
    waits = []
    monkeypatch.setattr(envs.Environment.cancelled, "wait", waits.append)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    env = envs.http.Env(envs.http.Config(url=f"http://127.0.0.1:{port}"))
    with pytest.raises(ServerFailed, match="failed after 7 attempts: /tasks got no connection, or it broke"):
        env.reset(0)
    assert waits == [0.5, 1, 2, 4, 8, 16]
    said = capsys.readouterr().err
    assert said == f"http://127.0.0.1:{port}: /tasks got no connection, or it broke; trying again, 6 times in 31.5 s\n"


def test_a_server_that_is_down_is_reported_once(monkeypatch, capsys):
    crash = (False, FAULTS["a crash"])
    with unreliable([crash, crash, None, None, None, None, crash]) as server:
        env = remote(server)
        env.reset(0)
        assert capsys.readouterr().err.count("\n") == 1
        env.step("Action: inventory")
        assert "/step answered 500 Internal Server Error; trying again" in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/other", "/textcraft"])
def test_a_server_of_another_kind_fails_at_once(path):
    with served() as server:
        env = envs.http.Env(envs.http.Config(url=server.url + path, wait=60.0))
        with pytest.raises(
            ServerFailed, match="/create answered 404 Not Found: does the server serve another environment"
        ):
            env.reset(0)


@pytest.mark.parametrize("served_kind", KINDS)
def test_greeting_of_another_environment_is_refused(served_kind, monkeypatch):
    for kind in KINDS:
        fake(kind, monkeypatch)
    for prompt in PROMPTS:
        with served(served_kind, {"prompt": prompt}) as server:
            for kind in set(KINDS) - {served_kind}:
                env = remote(server, kind=kind, prompt=prompt, wait=60.0)
                with pytest.raises(ValueError) as error:
                    env.reset(0)
                assert str(error.value) == f"{server.url} serves {served_kind}, but http.kind={kind}"
            assert not server.sessions.open
            assert remote(server, kind=served_kind, prompt=prompt).reset(0)


@pytest.mark.parametrize("kind", KINDS)
def test_greeting_of_another_prompt_is_refused(kind, monkeypatch):
    fake(kind, monkeypatch)
    with served(kind, {"prompt": "short"}) as server:
        line = rf"serves {kind}\.prompt=short, but http\.prompt=native"
        with pytest.raises(ValueError, match=line):
            remote(server, kind=kind, wait=60.0).reset(0)
    with served(kind) as server:
        env = remote(server, kind=kind, prompt="short", wait=60.0)
        if kind in OURS:  # the server sends the whole prompt
            with pytest.raises(ValueError, match=r"prompt=native, but http\.prompt=short"):
                env.reset(0)
        else:  # it answers as AgentGym's, which has no short prompts, and the client's goes around it
            assert env.reset(0)


def test_another_environment_after_a_restart_is_refused(monkeypatch):
    fake("babyai", monkeypatch)
    with served() as server:
        env = remote(server)
        env.reset(0)
        port = server.server_address[1]
    with served("babyai", port=port), pytest.raises(ValueError, match=r"serves babyai, but http\.kind=textcraft"):
        env.reset(1)


@pytest.mark.parametrize(
    "greeting",
    [b"HTTP/1.0 404 Not Found\r\n\r\n", OK + b'\r\n{"status": "ok"}', OK + b'\r\n"hi"', OK + b"\r\n<html>hi</html>"],
)
def test_greeting_is_optional(greeting):
    with unreliable([None, (False, greeting)], options=EASY) as server:
        assert remote(server, retries=0).reset(0) == envs.make("textcraft", **EASY).reset(0)


def test_alfworld_reply_needs_available_actions(monkeypatch):
    fake("alfworld", monkeypatch)
    reset = b'{"id": 0, "observation": "Crafting commands:", "done": false, "reward": 0}'
    with unreliable([None, None, None, (False, OK + b"\r\n" + reset)], kind="alfworld") as server:
        env = remote(server, kind="alfworld", retries=0)
        with pytest.raises(ServerFailed, match=r"/reset answered .*, where available_actions is no list"):
            env.reset(0)


@pytest.mark.parametrize(("kind", "reply", "line"), CASES["bad fields"])
def test_errors_name_the_bad_field_of_a_step(kind, reply, line, monkeypatch):
    fake(kind, monkeypatch)
    with unreliable([None, None, None, None, (False, OK + b"\r\n" + reply.encode())], kind=kind) as server:
        env = remote(server, kind=kind, retries=0)
        env.reset(0)
        with pytest.raises(ServerFailed, match=f"/step answered {line}$"):
            env.step("Action: look")


def test_client_waits_for_a_full_server():
    with served(limit=1) as server:
        first, second = remote(server), remote(server, wait=0.05)
        first.reset(0)
        threading.Timer(0.1, server.sessions.close, [first.client.session]).start()
        second.reset(1)
        assert list(server.sessions.open) == [second.client.session]
        with pytest.raises(ServerFailed, match="all 1 sessions are open"):
            remote(server, retries=0).reset(0)


def test_a_restart_does_not_change_the_episode():
    here = envs.make("textcraft", difficulty="3")
    with served(options={"difficulty": "3"}) as server:
        there, idle = remote(server), remote(server)
        idle.reset(3), idle._leave()  # a session for the next episode, which is lost in the restart
        assert here.reset(2) == there.reset(2)
        for _ in range(3):
            step_the_expert(here, there)
        port = server.server_address[1]
    with served(options={"difficulty": "3"}, port=port):
        play_the_expert(here, there)
        assert here.reset(3) == there.reset(3)


def test_an_expired_session_is_replayed():
    here = envs.make("textcraft", difficulty="3")
    with served(options={"difficulty": "3"}) as server:
        there = remote(server)
        here.reset(0), there.reset(0)
        while here.running:
            server.sessions.close(there.client.session)
            step_the_expert(here, there)


def test_expired_idle_sessions_are_skipped():
    with served() as server:
        several = [remote(server, retries=0) for _ in range(3)]
        for env in several:
            env.reset(0)
        for env in several:
            server.sessions.close(env.client.session)
            env._leave()
        several[0].reset(1)
        assert list(server.sessions.open) == [several[0].client.session]


def test_other_observations_after_a_restart_fail_the_episode():
    with served(options={"difficulty": "1"}) as server:
        env = remote(server)
        env.reset(0)
        env.step("Action: inventory")
        port = server.server_address[1]
    with served(options={"difficulty": "3"}, port=port):
        with pytest.raises(ServerFailed, match="replayed http:textcraft:0 with other observations"):
            env.step("Action: inventory")
        env.reset(0)  # the next episode is the new environment's


def test_sessions_from_before_a_restart_are_dropped():
    """Some servers count sessions from 0: after a restart a name may be another agent's session."""
    with served(options=EASY) as server:
        several = [remote(server) for _ in range(3)]
        for env in several:
            env.reset(0)
        names, port = {env.client.session for env in several}, server.server_address[1]
        playing, *idle = several
        for env in idle:
            env._leave()
    with pytest.raises(ServerFailed):
        remote(server, retries=0).reset(0)
    with served(options=EASY, port=port) as server:
        server.sessions.next = min(names)
        assert {server.sessions.create().name for _ in range(3)} == names
        playing.step("Action: inventory"), idle[0].reset(1)
        assert not names & {playing.client.session, idle[0].client.session}


@pytest.mark.parametrize(("kind", "reply", "action"), CASES["actions of replies"])
def test_action_of_a_reply(kind, reply, action):
    assert action_of(kind, reply) == action


@pytest.mark.parametrize("kind", KINDS)
def test_replies_of_each_kind_are_read(kind, monkeypatch):
    fake(kind, monkeypatch)
    with served(kind) as server:
        env = remote(server, kind=kind, max_turns=4)
        messages = env.reset(41)
        first = {
            "alfworld": "doors\nYour task is to: put it in.\nAVAILABLE ACTIONS: open 1,open 2",
            "sciworld": "Your task is to boil.\nThis room is called the hallway.",
            "webshop": "WebShop [SEP] Instruction: [SEP] Find me shoes [SEP] Search",
        }.get(kind, "3 doors")
        assert [message["content"] for message in messages] == ["I", "OK.", first]
        assert env.step("Action: look").observation == "you look"
        step = env.step("Action: open 2")
        assert step.terminated and step.info["outcome"] == "correct" and step.info["success"]
        assert step.reward == (100 if kind == "sciworld" else 1)
        env.reset(2)
        step = env.step("Action: open 1")
        assert step.terminated and step.info["outcome"] == "incorrect" and step.reward == 0
        env.reset(2)
        steps = [env.step("Action: wait") for _ in range(4)]
        assert steps[-1].truncated and steps[-1].info["outcome"] == "timeout"


def test_a_late_success_in_babyai_pays_once_and_ends(monkeypatch):
    """AgentGym's server goes on after a reward of at most 0.5, and repeats it with every later reply."""
    fake("babyai", monkeypatch)
    late = OK + b'\r\n{"observation": "x", "reward": 0.4, "score": 0.4, "done": false}'
    with unreliable([None, None, None, None, (False, late), (False, late)], kind="babyai") as server:
        env = remote(server, kind="babyai", retries=0)
        env.reset(0)
        step = env.step("Action: look")
        assert (step.reward, step.terminated, step.info["outcome"], env.running) == (0.4, True, "correct", False)


def test_refusals_are_not_valid():
    said = {
        "alfworld": ["Nothing happens."],
        "babyai": ["The action is not recognized. Please check valid actions.", "You cannot drop the object, as"],
        "sciworld": ["No known action matches that input.", "It's not clear how to get there from here."],
        "textcraft": ["Could not find stick", "Could not execute foo", "Wrong item format: oak log"],
    }
    for kind, lines in said.items():
        assert all(re.match(REFUSED[kind], line) for line in lines)
    assert not re.match(REFUSED["babyai"], "You cannot see any objects within sight.")


def test_http_has_no_expert():
    with pytest.raises(
        RuntimeError, match="an environment behind http has no expert: use env=textcraft for demonstrations"
    ):
        envs.http.Env().oracle()


def test_reset_names_the_splits():
    with pytest.raises(ValueError, match="split must be one of train, val, test, not 'dev'"):
        envs.http.Env().reset(0, "dev")
