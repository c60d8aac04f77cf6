"""The server: requests and replies of each kind equal AgentGym's; limits, errors and the command line."""

import asyncio
import dataclasses
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from cases import cases

import envs
import envs.http
from envs import serve
from envs.base import Environment, Step
from envs.serve import __main__ as program
from envs.serve import agentgym

CASES = cases("serve")

pytestmark = pytest.mark.all_only

ROOT = Path(__file__).parents[2]
KINDS = envs.http.agentgym.KINDS


@contextmanager
def served(kind="textcraft", options=(), limit=256, idle=600, port=0):
    """Run a server; yield it with its url."""
    sessions = agentgym.Sessions(kind, dict(options), limit, idle)
    with listening(partial(agentgym.answer, sessions), port) as server:
        server.sessions = sessions
        yield server


@contextmanager
def listening(answer, port=0):
    """Run a server with this handler; yield it with its url."""
    with running(serve.Server("127.0.0.1", port, answer)) as server:
        yield server


@contextmanager
def running(server):
    """Start a server; yield it with its url."""
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(server, method: str, path: str, body=None, raw: bytes | None = None, headers=()):
    """Return the status and the JSON of a response."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    connection.request(method, path, data, dict(headers))
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    return answer.status, said


def post(server, path: str, **body):
    status, said = ask(server, "POST", path, body)
    assert status == 200, said
    return said


def get(server, path: str):
    status, said = ask(server, "GET", path)
    assert status == 200, said
    return said


class Fake(ModuleType):
    """A fake environment of any kind with three doors: `open 2` solves it, `open 1` ends it, `break` raises its bug."""

    MAX_ACTION = 100_000
    plain_action = staticmethod(str)

    @dataclass
    class Config:
        max_turns: int = 5
        prompt: str = "native"
        strict: bool = True
        worker: str = "rules"
        user: str = "rules"
        dialect: str = "0.4"

    class Env(Environment):
        text = "{number} doors"

        def __init__(self, config):
            self.config, self.running = config, False

        def reset(self, seed, split="train"):
            self.running, self.turns, self.task = True, 0, f"doors:{seed} {split}"
            observation = self.text.format(number=3)
            return [{"role": role, "content": text} for role, text in (("user", "I"), ("assistant", "OK."))] + [
                {"role": "user", "content": observation}
            ]

        def step(self, reply):
            if not self.running:
                raise RuntimeError("no episode is running: call reset() first, and again after each end")
            action = reply.rpartition("Action:")[2].strip()
            if action == "break":
                raise KeyError("door")
            self.turns += 1
            done = action in ("open 1", "open 2")
            reward = float(action == "open 2") * self.reward
            info = {"outcome": "unknown", "success": reward > 0, "valid": action != "jump", "shaped": reward}
            return Step(f"you {action}", reward, done, self.turns >= self.config.max_turns, info)

        reward = 1.0


class Alfworld(Fake.Env):
    text = "doors\nYour task is to: put it in.\nAVAILABLE ACTIONS: open 1,open 2"

    def admissible(self):
        return ["open 1", "open 2"]


class Sciworld(Fake.Env):
    text = "Your task is to boil.\nThis room is called the hallway."
    reward = 100.0


class Webshop(Fake.Env):
    text = "WebShop [SEP] Instruction: [SEP] Find me shoes [SEP] Search"

    def clickables(self):
        return ["search"]


def fake(kind: str, monkeypatch) -> type[Fake.Env]:
    """Replace a kind by the fake environment during a test."""
    module = Fake(f"fake_{kind}")
    module.Env = {"alfworld": Alfworld, "sciworld": Sciworld, "webshop": Webshop}.get(kind, Fake.Env)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(envs.NAMES, kind, module.__name__)
    return module.Env


def test_webshop_replies(monkeypatch):
    fake("webshop", monkeypatch)
    with served("webshop") as server:
        assert get(server, "/") == "ok"
        name = post(server, "/create")
        assert type(name) is int
        assert get(server, "/list_envs") == [name]
        opening = "WebShop [SEP] Instruction: [SEP] Find me shoes [SEP] Search"
        assert post(server, "/reset", env_idx=name, session_id=3) == [opening, None]
        assert get(server, f"/observation?env_idx={name}") == opening
        assert get(server, f"/available_actions?env_idx={name}") == {"has_search_bar": True, "clickables": ["search"]}
        assert get(server, f"/instruction_text?env_idx={name}") == "Instruction: Find me shoes"
        state = {"url": "", "html": opening, "instruction_text": "Instruction: Find me shoes"}
        assert get(server, f"/state?env_idx={name}") == state
        said = post(server, "/step", env_idx=name, action="open 2")
        assert said == {"state": "you open 2", "reward": 1.0, "done": True, "info": None}
        assert post(server, "/close", env_idx=name) == {"closed": True}
        assert post(server, "/close", env_idx=name) == {"closed": False}
        assert get(server, "/list_envs") == []


def test_alfworld_replies(monkeypatch):
    fake("alfworld", monkeypatch)
    with served("alfworld") as server:
        assert get(server, "/") == "This is environment AlfWorld."
        created = post(server, "/create")
        assert set(created) == {"id"} and type(created["id"]) is int
        opening, actions = "doors\nYour task is to: put it in.", ["open 1", "open 2"]
        assert post(server, "/reset", **created, game=4, world_type="Text") == created | {
            "observation": opening,
            "available_actions": actions,
            "task_type": "4 train",
        }
        name = f"?id={created['id']}"
        assert get(server, "/observation" + name) == opening
        assert get(server, "/available_actions" + name) == actions
        said = {"observation": "you look", "reward": 0.0, "available_actions": actions, "done": False}
        assert post(server, "/step", **created, action="look") == said
        assert get(server, "/detail" + name) == said | {"world_type": "Text", "game": 4, "deleted": False}
        wrong = post(server, "/reset", **created, game=4, world_type="Dream")
        assert wrong == {"error": 'world_type must be one of "Text", "Embody" and "Hybrid"'}


def test_babyai_replies(monkeypatch):
    monkeypatch.setattr(fake("babyai", monkeypatch), "reward", 0.25)
    with served("babyai") as server:
        assert get(server, "/") == "This is environment BabyAI."
        created = post(server, "/create")
        assert set(created) == {"id"}
        zero = {"observation": "3 doors", "reward": 0, "score": 0, "deleted": False, "done": False}
        assert post(server, "/reset", **created, data_idx=81) == zero
        assert get(server, f"/observation?id={created['id']}") == zero
        said = {"observation": "you turn left", "reward": 0.0, "score": 0.0, "done": False}
        assert post(server, "/step", **created, action="turn left") == said
        won = {"observation": "you open 2", "reward": 0.25, "score": 0.25, "done": True}
        assert post(server, "/step", **created, action="open 2") == won
        assert "error" in post(server, "/render", **created)
        assert post(server, "/close", **created) is True
        assert post(server, "/close", **created) is False


def test_sciworld_replies(monkeypatch):
    fake("sciworld", monkeypatch)
    with served("sciworld") as server:
        assert get(server, "/") == "This is environment ScienceWorld."
        created = post(server, "/create")
        assert set(created) == {"id"}
        task = {"task_name": "0 train", "var_num": 0, "task_description": "Your task is to boil."}
        zero = {"observation": "This room is called the hallway.", "reward": 0, "score": 0}
        said = post(server, "/reset", **created, data_idx=0)
        assert said == task | zero | {"deleted": False, "done": False}
        name = f"?id={created['id']}"
        assert get(server, "/task_description" + name) == {"task_description": "Your task is to boil."}
        assert get(server, "/action_hint" + name) == {"possible_actions": [], "possible_objects": []}
        assert get(server, "/goals" + name) == {"goals": ""}
        assert get(server, "/object_tree" + name) == {"object_tree": None}
        assert get(server, "/state" + name)["environment_info"] == get(server, "/detail" + name) == said
        won = {"observation": "you open 2", "reward": 100.0, "score": 100.0, "done": True}
        assert post(server, "/step", **created, action="open 2") == won
        finished = {"error": f"The task with environment {created['id']} has finished."}
        assert post(server, "/step", **created, action="look") == get(server, "/observation" + name) == finished


def test_textcraft_replies():
    with served(options={"difficulty": "1"}) as server:
        assert get(server, "/") == "This is environment TextCraft."
        created = post(server, "/create", commands="craft 1 moon using 1 cheese", goal="minecraft:moon")
        assert set(created) == {"id", "observation", "done", "reward"}
        assert (created["done"], created["reward"]) == (False, 0) and "moon" not in created["observation"]
        env = envs.make("textcraft", difficulty="1")
        opening = env.reset(1, "val")[-1]["content"]
        named = {"id": created["id"]}
        assert post(server, "/reset", **named, data_idx=18) == named | {
            "observation": opening,
            "done": False,
            "reward": 0,
        }
        name = f"?id={created['id']}"
        commands, goal = get(server, "/commands" + name), get(server, "/goal" + name)
        assert opening == f"Crafting commands:\n{commands}\n\nGoal: craft {goal}."
        while env.running:
            action = env.oracle().partition("Action:\n")[2]
            step, said = env.step(f"Action: {action}"), post(server, "/step", **named, action=action)
            assert said == {"observation": step.observation, "reward": step.reward, "done": step.terminated}
        assert get(server, "/observation" + name) == said["observation"]
        assert get(server, "/detail" + name) == said | {"deleted": False}
        assert get(server, "/goal" + name) == goal == env.goal
        assert post(server, "/close", **named) is True


@pytest.mark.parametrize("kind", envs.http.agentgym.OURS)
def test_replies_of_kinds_that_agentgym_does_not_have(kind, monkeypatch):
    env, received = fake(kind, monkeypatch), []
    step = env.step
    monkeypatch.setattr(env, "step", lambda self, reply: received.append(reply) or step(self, reply))
    with served(kind) as server:
        assert get(server, "/") == agentgym.GREETING[kind]
        created = post(server, "/create")
        assert set(created) == {"id", "observation", "done", "reward"}
        named = {"id": created["id"]}
        zero = {"observation": "3 doors", "done": False, "reward": 0}
        assert post(server, "/reset", **named, data_idx=4) == named | zero
        said = post(server, "/step", **named, action="I think.\nAction: jump")
        info = {"outcome": "unknown", "success": False, "valid": False, "shaped": 0.0}
        assert said == {"observation": "you jump", "reward": 0.0, "done": False, "info": info}
        assert get(server, f"/observation?id={created['id']}") == "you jump"
        detail = {"observation": "you jump", "reward": 0.0, "done": False, "deleted": False}
        assert get(server, f"/detail?id={created['id']}") == detail
        assert post(server, "/step", **named, action="open 2")["done"] is True
        assert get(server, f"/observation?id={created['id']}") == "you open 2"
        assert received == ["I think.\nAction: jump", "open 2"]
        assert post(server, "/close", **named) is True


def test_the_client_counts_turns():
    with served(options={"max_turns": 2}) as server:
        name = post(server, "/create")["id"]
        for number in range(2):
            said = [post(server, "/step", id=name, action="inventory") for _ in range(5)]
            assert not any(step["done"] for step in said)
            post(server, "/reset", id=name, data_idx=number)


def test_tasks_are_drawn_for_the_environments_turn_limit(monkeypatch):
    env, drawn = fake("babyai", monkeypatch), []
    reset = env.reset
    monkeypatch.setattr(env, "reset", lambda self, *task: drawn.append(self.config.max_turns) or reset(self, *task))
    with served("babyai", {"max_turns": 7}) as server:
        name = post(server, "/create")["id"]
        for number in range(3):
            post(server, "/reset", id=name, data_idx=number)
    assert drawn == [7, 7, 7]


def test_errors_of_an_environment_have_status_200():
    with served(options={"difficulty": "1"}) as server:
        assert post(server, "/step", id=7, action="inventory") == {"error": "The id 7 is not valid."}
        assert post(server, "/reset", id=-7, data_idx=0) == {"error": "The id -7 is not valid."}
        assert get(server, "/observation?id=9") == {"error": "The id 9 is not valid."}
        name = post(server, "/create")["id"]
        assert "error" not in post(server, "/reset", id=name, data_idx=10**300)
        env = envs.make("textcraft", difficulty="1")
        env.reset(0)
        post(server, "/reset", id=name)
        while env.running:
            action = env.oracle()
            env.step(action)
            post(server, "/step", id=name, action=action.partition("Action:\n")[2])
        finished = {"error": f"The task with environment {name} has finished."}
        assert post(server, "/step", id=name, action="inventory") == finished
        post(server, "/close", id=name)
        assert post(server, "/reset", id=name) == {"error": f"The id {name} is not valid."}


def test_a_bug_in_an_environment_affects_one_session(monkeypatch, capsys):
    fake("babyai", monkeypatch)
    with served("babyai") as server:
        names = [post(server, "/create")["id"] for _ in range(2)]
        unready = post(server, "/step", id=names[0], action="open 2")
        assert unready == {"error": "no episode is running: call reset() first, and again after each end"}
        for name in names:
            post(server, "/reset", id=name, data_idx=0)
        assert post(server, "/step", id=names[0], action="break") == {"error": "KeyError: 'door'"}
        assert post(server, "/step", id=names[1], action="open 2")["done"] is True
    assert "KeyError" in capsys.readouterr().err


def test_a_session_answers_one_request_at_a_time(monkeypatch):
    inside, most = [], []

    def step(self, reply):
        inside.append(reply)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return Step(reply, 0.0, False, False, {})

    monkeypatch.setattr(fake("babyai", monkeypatch), "step", step)
    with served("babyai") as server, ThreadPoolExecutor(8) as pool:
        name = post(server, "/create")["id"]
        post(server, "/reset", id=name, data_idx=0)
        list(pool.map(lambda _: post(server, "/step", id=name, action="x"), range(16)))
    assert most == [1] * 16


@pytest.mark.parametrize(("method", "path", "raw", "headers", "status"), CASES["invalid requests"])
def test_invalid_requests_are_refused(method, path, raw, headers, status):
    raw = None if raw is None else raw.encode("latin-1")
    with served() as server:
        got, said = ask(server, method, path, raw=raw, headers=headers)
        assert got == status and set(said) == {"detail"}
        assert len(str(said)) < 200 and not server.sessions.open
        assert set(post(server, "/create")) == {"id", "observation", "done", "reward"}


def test_head_is_refused_without_a_body():
    with served() as server, socket.create_connection(server.server_address) as connection:
        connection.sendall(b"HEAD /create HTTP/1.0\r\n\r\n")
        head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.0 405 ") and b"application/json" in head and body == b""


@pytest.mark.parametrize("kind", KINDS)
def test_greeting_names_the_environment_and_a_short_prompt(kind, monkeypatch):
    fake(kind, monkeypatch)
    said = []
    for options in ({}, {"prompt": "native"}, {"prompt": "short"}):
        with served(kind, options) as server:
            said.append(get(server, "/"))
    assert said == [agentgym.GREETING[kind]] * 2 + [agentgym.GREETING[kind] + " prompt=short"]


def test_sessions_are_capped_and_idle_ones_expire(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(agentgym.time, "monotonic", lambda: now[0])
    sessions = agentgym.Sessions("textcraft", {}, limit=3, idle=10)
    first, second, third = (sessions.create().name for _ in range(3))
    assert len({first, second, third}) == 3
    with pytest.raises(ValueError, match="3 sessions are open"):
        sessions.create()
    now[0] += 9
    sessions.get(first)
    now[0] += 2
    assert list(sessions.open) == [second, third, first]
    with pytest.raises(ValueError, match=f"The id {second} is not valid"):
        sessions.get(second)
    assert list(sessions.open) == [first]
    assert sessions.create().name not in (first, second, third)
    sessions.close(first)
    assert len(sessions.open) == 1


def test_a_create_beyond_the_cap_is_an_error():
    with served(limit=2) as server:
        names = [post(server, "/create")["id"] for _ in range(2)]
        assert post(server, "/create") == {"error": "all 2 sessions are open: close one"}
        post(server, "/close", id=names[0])
        assert "id" in post(server, "/create")


def test_names_of_sessions_are_not_reused_after_a_restart():
    names = [agentgym.Sessions("textcraft", {}).create().name for _ in range(20)]
    assert len(set(names)) == 20 and all(0 <= name < 2**53 for name in names)


def test_many_sessions_at_once_do_not_disturb_one_another():
    with served(limit=100, options={"difficulty": "1"}) as server:

        def episode(number: int):
            name = post(server, "/create")["id"]
            post(server, "/reset", id=name, data_idx=number)
            said = [post(server, "/step", id=name, action=f"get {number + 1} coal") for _ in range(2)]
            held = post(server, "/step", id=name, action="inventory")["observation"]
            return [s["observation"] for s in said], held

        with ThreadPoolExecutor(16) as pool:
            played = list(pool.map(episode, range(100)))
        for number, (said, held) in enumerate(played):
            assert said == [f"Got {number + 1} coal"] * 2 and held == f"Inventory: [coal] ({2 * number + 2}) "
        assert len(server.sessions.open) == 100
        assert "error" in post(server, "/create")


def command(*words: str) -> subprocess.Popen:
    line = [sys.executable, "-m", "envs.serve", *words]
    return subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_program_prints_its_address_and_stops_cleanly(how):
    process = command("port=0", "sessions=5", "textcraft.difficulty=1")
    line = process.stdout.readline()
    found = re.fullmatch(r"textcraft at (http://127\.0\.0\.1:\d+), 5 sessions at most; .*\n", line)
    env = envs.http.Env(envs.http.Config(url=found[1], retries=0))
    assert env.reset(3) == envs.make("textcraft", difficulty="1").reset(3)
    process.send_signal(how)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "stopped\n", "")


def test_a_future_that_a_signal_cancels_is_left_as_it_is():
    class Interrupted(asyncio.Future):
        def done(self) -> bool:
            answer = super().done()
            self.cancel()  # as a signal would, once the answer is known
            return answer

    async def settled() -> tuple[asyncio.Future, asyncio.Future]:
        over, open_one = Interrupted(), asyncio.Future()
        over.done()
        for future in (over, open_one, Interrupted()):
            serve.settle(future, 1)
        return over, open_one

    over, open_one = asyncio.run(settled())
    assert over.cancelled() and open_one.result() == 1


@pytest.mark.parametrize("repeat", range(5))
def test_busy_program_stops_without_a_traceback(repeat):
    """A signal that interrupted a request, and not the event loop, left a traceback in 3 of 8 tries."""
    process, over = command("port=0"), threading.Event()
    port = int(process.stdout.readline().split("http://127.0.0.1:")[1].split(",")[0])

    def ask() -> None:
        while not over.is_set():
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
                connection.sendall(b"POST /create HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
                connection.recv(999)

    with ThreadPoolExecutor(4) as pool:
        for _ in range(4):
            pool.submit(ask)
        time.sleep(0.2 + 0.01 * repeat)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
        over.set()
    assert (process.returncode, out, err) == (0, "stopped\n", "")


def test_help_names_every_key(capsys):
    with pytest.raises(SystemExit) as end:
        program.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for field in dataclasses.fields(program.Keys):
        assert f"\n  {field.name}={str(field.default).lower()} " in text
    assert "\n  textcraft.difficulty=2 " in text and "\n  db_bench.difficulty=" in text


@pytest.mark.parametrize(("words", "line"), CASES["wrong words"])
def test_wrong_words_are_one_line_and_status_2(words, line, capsys):
    with pytest.raises(SystemExit) as end:
        program.main(words)
    captured = capsys.readouterr()
    assert end.value.code == 2 and captured.out == ""
    assert captured.err.startswith(f"envs.serve: {line}") and captured.err.count("\n") == 1


def test_booleans_are_read_as_booleans(monkeypatch, capsys):
    fake("planner", monkeypatch)
    assert program.parse(["env=planner", "planner.strict=false"])[1]["strict"] is False
    with pytest.raises(SystemExit):
        program.parse(["env=planner", "planner.strict=no"])
    assert capsys.readouterr().err == "envs.serve: planner.strict=no must be true or false\n"


@pytest.mark.parametrize(("kind", "option"), [("planner", "worker"), ("tau_retail", "user")])
def test_options_that_need_a_model_are_refused(kind, option, monkeypatch):
    fake(kind, monkeypatch)
    assert program.parse([f"env={kind}", f"{kind}.{option}=rules"])[1][option] == "rules"
    with pytest.raises(ValueError, match=rf"^{kind}\.{option}=model has to ask a model"):
        program.parse([f"env={kind}", f"{kind}.{option}=model"])


def test_a_wrong_host_is_one_line_and_status_2(capsys):
    with pytest.raises(SystemExit) as end:
        program.main(["host=256.1.1.1"])
    out, err = capsys.readouterr()
    assert end.value.code == 2 and not out
    assert re.fullmatch(r"envs\.serve: cannot listen on 256\.1\.1\.1:36001: [^\n]+\n", err)


def test_a_port_in_use_is_one_line_and_status_2(capsys):
    with served() as server:
        port = server.server_address[1]
        with pytest.raises(SystemExit) as end:
            program.main([f"port={port}"])
        line = f"envs.serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"
        assert end.value.code == 2 and capsys.readouterr() == ("", line)
