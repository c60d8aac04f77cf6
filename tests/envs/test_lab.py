"""LifelongAgentBench's protocol: our servers speak it as the original's do, and the client plays on both."""

import json
import re
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from types import ModuleType

import pytest
from cases import cases
from test_envs import HOSTILE
from test_http import FAULTS, remote, same, unreliable_handler
from test_serve import ask, command, listening, running

import envs
import envs.http
import train
from envs import common
from envs.base import Environment, Step
from envs.common import SPLITS
from envs.http.lab import KINDS
from envs.http.wire import ServerFailed
from envs.serve import __main__ as program
from envs.serve import lab
from envs.serve.access import BadRequest
from rl.config.words import parse

CASES = cases("lab")

pytestmark = pytest.mark.all_only

JUNK = [text for text in HOSTILE if len(text) < 1000]
EMPTY = {"chat_history": {"value": []}, "finish_reason": None, "task_output": None}
UNREAD, LATE = "Cannot extract action from agent response.", "Task limit reached. The limit is 3."
UNSET = {"outcome": "unset", "detail_dict": None}


class Fake(ModuleType):
    """A fake of the benchmark's environments: `say X` until the word is said, then `finish`. `break` is its bug."""

    @dataclass
    class Config:
        max_turns: int = 3
        prompt: str = "native"

    class Env(Environment):
        kind = "os_interaction"

        def __init__(self, config):
            self.config, self.running = config, False

        def reset(self, seed, split="train"):
            rng = Random(f"{seed} {split}")
            self.word = rng.choice(["amber", "birch", "cedar"])
            self.level = str(seed % 2 + 1)
            self.said, self.turns, self.running = [], 0, True
            opening = [("user", f"Say what you are shown, in {self.config.max_turns} turns."), ("assistant", "OK.")]
            texts = [*opening, ("user", f"Say {self.word}.")]
            return [{"role": r, "content": t} for r, t in texts[-1 if self.config.prompt == "short" else 0 :]]

        def step(self, reply):
            common.check_running(self.running)
            verb, _, word = reply.partition(" ")
            if verb == "break":
                raise KeyError("door")
            self.turns += 1
            if verb == "finish":
                return self.over("")
            if verb != "say":
                return self.over(UNREAD, valid=False)
            self.said.append(word)
            text = f"You said {' '.join(self.said)}."
            if self.turns >= self.config.max_turns:
                return self.over(text, cut=True)
            return Step(text, 0.0, False, False, {"outcome": "unknown", "success": False, "valid": True, "shaped": 0.0})

        def over(self, text, valid=True, cut=False):
            self.running = False
            right, info = self.word in self.said, {"valid": valid, "shaped": 0.0}
            info |= {"outcome": "correct" if right else "incorrect", "success": right}
            return Step(text, 1.0 if right else -0.5, not cut, cut, info)


class FakeDB(Fake.Env):
    """A fake that pays only for a finished task, and else by its outcome."""

    kind = "db_bench"

    def over(self, text, valid=True, cut=False):
        step = super().over(text, valid, cut)
        right = step.info["success"] and valid and not cut
        reward = 1.0 if right else -0.3 if cut else -0.1
        info = step.info | {"outcome": common.outcome(right, not cut, cut), "success": right}
        return replace(step, reward=reward, info=info)


@pytest.fixture(params=KINDS)
def kind(request, monkeypatch):
    """Replace each of the two environments by a fake."""
    module = Fake(f"fake_{request.param}")
    module.Env = FakeDB if request.param == "db_bench" else Fake.Env
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(envs.NAMES, request.param, module.__name__)
    for prompt in common.PROMPTS:
        monkeypatch.setitem(lab.FINISH, (request.param, prompt), "finish")
    monkeypatch.setitem(lab.LABELS, request.param, lambda env: ([env.word, "say"], env.level))
    return request.param


@contextmanager
def served(kind: str, port: int = 0, **options):
    """Run a task server; yield it with its url."""
    tasks = lab.Tasks(kind, options)
    with listening(partial(lab.answer, tasks), port) as server:
        server.tasks = tasks
        yield server


def post(server, path: str, **body):
    status, said = ask(server, "POST", f"/api/{path}", body)
    assert status == 200, said
    return said


def new(kind: str, index="0", **fields) -> dict:
    """Return the session that a client begins with."""
    session = {"task_name": kind, "sample_index": index, "sample_status": "initial", "evaluation_record": UNSET}
    return session | EMPTY | fields


def history(items) -> dict:
    return {"chat_history": {"value": [{"role": role, "content": content} for role, content in items]}}


def play(server, session: dict, *replies: str) -> dict:
    """Return a session after the agent's replies, as the original's client sends them."""
    for text in replies:
        session["chat_history"]["value"].append({"role": "agent", "content": text})
        session = post(server, "interact", session=session)["session"]
    return session


def begun(server, kind: str, *replies: str, index="0") -> dict:
    return play(server, post(server, "reset", session=new(kind, index))["session"], *replies)


def outcome(server, session: dict) -> str:
    return post(server, "complete", session=session)["session"]["evaluation_record"]["outcome"]


def word_of(index: int) -> str:
    return Random(f"{index} train").choice(["amber", "birch", "cedar"])


def test_sessions_equal_the_originals(kind):
    with served(kind) as server:
        opened = post(server, "reset", session=new(kind))["session"]
        items = [("user", "Say what you are shown, in 3 turns."), ("agent", "OK."), ("user", f"Say {word_of(0)}.")]
        running = {"sample_status": "running"}
        assert opened == new(kind) | running | history(items)
        said = play(server, opened, "say " + word_of(0))
        items += [("agent", "say " + word_of(0)), ("user", f"You said {word_of(0)}.")]
        assert said == new(kind) | running | history(items)
        ended = play(server, said, "finish")
        items += [("agent", "finish")]
        assert ended == new(kind) | {"sample_status": "completed"} | history(items)
        judged = post(server, "complete", session=ended)["session"]
        assert judged == ended | {"evaluation_record": {"outcome": "correct", "detail_dict": None}}


def test_the_guides_two_curl_lines(kind):
    curl = shutil.which("curl")
    if curl is None:
        pytest.skip("there is no curl")
    both = [server for _, server in program.servers(*program.parse([f"env={kind}", "port=0", "items_port=0"]))]
    with running(both[0]) as tasks, running(both[1]) as items:
        for server in (tasks, items):
            words = [curl, "-s", "-X", "POST", "-H", "Content-Type: application/json", "-d", "{}"]
            said = subprocess.check_output([*words, f"{server.url}/api/ping"], text=True)
            assert json.loads(said) == {"response": "Hello, World!"}


@pytest.mark.parametrize("name", KINDS)
def test_the_program_serves_both_and_ends_cleanly(name):
    process = command(f"env={name}", "port=0", "items_port=0", f"{name}.difficulty=1")
    ports = re.findall(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
    env = envs.http.Env(envs.http.Config(url=f"http://127.0.0.1:{ports[0]}/api/", kind=name, retries=0))
    assert env.reset(3) == envs.make(name, difficulty="1").reset(3)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out, err) == (0, "stopped\n", "")


def test_default_ports_are_the_guides(kind):
    keys, _ = program.parse([f"env={kind}"])
    assert (keys.host, keys.port, keys.items_port) == ("127.0.0.1", 8000, 8001)
    assert envs.http.Config(kind=kind).address == "http://127.0.0.1:8000"
    keys, _ = program.parse([f"env={kind}", "port=9000", "items_port=9001", f"{kind}.max_turns=7"])
    assert (keys.port, keys.items_port) == (9000, 9001)


def test_a_port_in_use_is_one_line_whichever_it_is(kind, capsys):
    with served(kind) as server:
        port = server.server_address[1]
        for words in ([f"port={port}"], ["port=0", f"items_port={port}"]):
            with pytest.raises(SystemExit) as end:
                program.main([f"env={kind}", *words])
            line = f"envs.serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"
            assert end.value.code == 2 and capsys.readouterr() == ("", line)


@pytest.mark.parametrize(("replies", "status", "reason", "right"), CASES["statuses"])
def test_status_and_outcome_of_a_session(kind, replies, status, reason, right):
    with served(kind) as server:
        session = begun(server, kind, *(text.format(word_of(0)) for text in replies))
        assert (session["sample_status"], session["finish_reason"]) == (status, reason)
        assert session["chat_history"]["value"][-1]["role"] == "agent"
        assert outcome(server, session) == ("correct" if right in (True, kind) else "incorrect")


def test_a_client_may_end_a_session_itself(kind):
    with served(kind) as server:
        session = begun(server, kind, "say " + word_of(0)) | {"sample_status": "agent_context_limit"}
        assert outcome(server, session) == "correct"
        unheard = begun(server, kind) | {"sample_status": "agent_unknown_error"}
        unheard["chat_history"]["value"].append({"role": "agent", "content": "say " + word_of(0)})
        assert outcome(server, unheard) == "incorrect"  # its last message never arrived


def test_answers_do_not_depend_on_the_servers_memory(kind):
    with served(kind) as server:
        one = begun(server, kind, "say a", index="3")
        other = begun(server, kind, "say a", index="3")  # the same sample, and the same words so far
        assert one == other
        heard = [*one["chat_history"]["value"], {"role": "agent", "content": "say b"}]
        asked = one | {"chat_history": {"value": heard}}
        first = post(server, "interact", session=asked)
        assert first == post(server, "interact", session=asked)  # a lost answer is requested again
        post(server, "release")
        assert not server.tasks.kept
        assert first == post(server, "interact", session=asked)
        assert play(server, other, "say c")["chat_history"]["value"][-1]["content"] == "You said a c."
        port = server.server_address[1]
    with served(kind, port=port) as server:
        assert first == post(server, "interact", session=asked)
        ended = play(server, first["session"], "finish")
        assert outcome(server, ended) == outcome(server, ended) == "incorrect"


def test_cached_environments_are_not_replayed(kind, monkeypatch):
    with served(kind) as server:
        begins = []
        begin = server.tasks.begin
        monkeypatch.setattr(server.tasks, "begin", lambda index: begins.append(index) or begin(index))
        outcome(server, begun(server, kind, "say a", "say b", "finish"))
        assert begins == ["0"] and not server.tasks.kept


def test_cache_of_environments_is_bounded(kind):
    with served(kind) as server:
        server.tasks.keep = 3
        sessions = [begun(server, kind, index=str(n)) for n in range(5)]
        assert len(server.tasks.kept) == 3
        for number, session in enumerate(sessions):  # closed sessions count too
            assert outcome(server, play(server, session, "say " + word_of(number), "finish")) == "correct"
        assert len(server.tasks.kept) <= 3


def test_samples_and_attributes(kind):
    with served(kind) as server:
        server.tasks.samples = 12
        assert post(server, "get_sample_index_list") == {"sample_index_list": [str(n) for n in range(12)]}
        how = {"type": "int", "value": "3"}
        said = {"instance_factory_type": "simple_immutable_type", "instance_factory_parameter_dict": how}
        assert post(server, "get_attribute", name="max_round") == said
        assert (
            post(
                server,
                "set_attribute",
                name="max_round",
                **said | {"instance_factory_parameter_dict": how | {"value": "1"}},
            )
            is None
        )
        assert post(server, "get_attribute", name="max_round")["instance_factory_parameter_dict"]["value"] == "1"
        session = begun(server, kind, "say a", "say b")
        assert session["finish_reason"] == "Task limit reached. The limit is 1."


def test_metric_counts_skills_levels_outcomes_and_statuses(kind):
    with served(kind) as server:
        word = word_of(0)
        parts = [("0", "completed", "correct"), ("0", "task_limit_reached", "incorrect"), (1, "completed", "correct")]
        sessions = [
            {"sample_index": index, "sample_status": status, "evaluation_record": {"outcome": o, "detail_dict": None}}
            for index, status, o in parts
        ]
        metric = post(server, "calculate_metric", session_partial_list=sessions)["metric"]
        assert metric["skill"]["say"] == {"count": 3, "correct_count": 2, "correct_rate": pytest.approx(2 / 3)}
        assert metric["skill"][word]["count"] == 2 + (word_of(1) == word)
        half = {"count": 2, "correct_count": 1, "correct_rate": 0.5}
        assert metric["difficulty_level"] == {"1": half, "2": {"count": 1, "correct_count": 1, "correct_rate": 1.0}}
        rates = metric["overall"]
        assert rates["evaluation_outcome"]["correct"] == rates["sample_status"]["completed"] == pytest.approx(2 / 3)
        assert sum(rates["evaluation_outcome"].values()) == pytest.approx(1)
        nothing = post(server, "calculate_metric", session_partial_list=[])["metric"]
        assert nothing["skill"] == {} and set(nothing["overall"]["sample_status"].values()) == {-1}


@pytest.mark.parametrize("name", KINDS)
def test_metric_has_the_tasks_levels(name):
    with served(name, difficulty="1,3") as server:
        record = {"sample_status": "completed", "evaluation_record": {"outcome": "correct", "detail_dict": None}}
        sessions = [{"sample_index": str(number)} | record for number in range(12)]
        levels = post(server, "calculate_metric", session_partial_list=sessions)["metric"]["difficulty_level"]
    assert set(levels) == {"1", "3"} and sum(level["count"] for level in levels.values()) == 12


def test_chat_history_items_are_the_opening_of_every_task(kind):
    tasks = lab.Tasks(kind, {})
    first = {"role": "user", "content": "Say what you are shown, in 3 turns."}
    with served(kind) as server, listening(partial(lab.answer_items, server.tasks)) as items:
        assert post(items, "ping") == {"response": "Hello, World!"}
        known = post(items, "get_chat_history_item_dict_deep_copy")
        assert known == {"0": first, "1": {"role": "agent", "content": "OK."}}
        assert post(items, "construct", chat_history_item_index=0, expected_role="user") == {"chat_history_item": first}
        assert (
            post(items, "construct", chat_history_item_index=1, expected_role=None)["chat_history_item"] == known["1"]
        )
        status, said = ask(items, "POST", "/api/construct", {"chat_history_item_index": 1, "expected_role": "user"})
        assert (status, said) == (400, {"detail": "the item is the agent's, not the user's"})
        assert post(items, "set", prompt_index=0, role="user", content="Speak up.") is None
        session = begun(server, kind)
        assert [item["content"] for item in session["chat_history"]["value"][:2]] == ["Speak up.", "OK."]
        assert ask(items, "POST", "/api/set", {"prompt_index": 2, "role": "user", "content": ""})[0] == 400
        assert not tasks.items


@pytest.mark.parametrize(("path", "body", "status"), CASES["invalid requests"])
def test_invalid_requests_are_refused(kind, path, body, status):
    with served(kind) as server:
        got, said = ask(server, "POST", path, body)
        assert got == status and set(said) == {"detail"} and len(said["detail"]) < 200
        assert ask(server, "GET", "/api/ping") == (405, {"detail": "Method Not Allowed"})


@pytest.mark.parametrize(("path", "fields", "status"), CASES["malformed sessions"])
def test_malformed_sessions_are_refused(kind, path, fields, status):
    with served(kind) as server:
        got, said = ask(server, "POST", f"/api/{path}", {"session": new(kind) | fields})
        assert got == status and set(said) == {"detail"} and len(said["detail"]) < 200
        assert not server.tasks.kept


def test_roles_alternate_and_an_ended_session_is_closed(kind):
    with served(kind) as server:
        session = begun(server, kind)
        session["chat_history"]["value"].append({"role": "user", "content": "say a"})
        assert ask(server, "POST", "/api/interact", {"session": session})[0] == 422
        ended = begun(server, kind, "finish")
        assert ask(server, "POST", "/api/interact", {"session": ended})[0] == 400
        ended["sample_status"] = "running"
        ended["chat_history"]["value"] += [{"role": "user", "content": "go on"}, {"role": "agent", "content": "say a"}]
        status, said = ask(server, "POST", "/api/interact", {"session": ended})
        assert (status, said) == (400, {"detail": "the conversation goes on after the episode's end"})


def test_a_bug_in_an_environment_ends_one_session(kind, capsys):
    with served(kind) as server:
        other = begun(server, kind)
        broken = begun(server, kind, "break")
        assert (broken["sample_status"], broken["finish_reason"]) == ("task_unknown_error", "KeyError: 'door'")
        assert play(server, other, "finish")["sample_status"] == "completed"
    assert "KeyError" in capsys.readouterr().err


def test_long_conversation_that_differs_is_refused(kind):
    with served(kind) as server:
        long = begun(server, kind)
        said = [{"role": "agent", "content": "say a"}, {"role": "user", "content": "You said a."}]
        long["chat_history"]["value"] += said * 20_000
        status, said = ask(server, "POST", "/api/complete", {"session": long})
        assert (status, said) == (400, {"detail": "the conversation differs from the sample's replay"})


# the client


def replies_of(rng: Random, word: str) -> str:
    return rng.choice(["say a", f"say {word}", f"say {word}", "finish", "jump", "", *JUNK[:6]])


def episodes(server, kind: str, count: int) -> None:
    """Play `count` episodes in eight threads on one server.

    Assert that each step equals the one in process, and that no request is wasted.
    """

    def episode(number: int) -> None:
        here, there = envs.make(kind), remote(server, kind=kind, retries=0)
        seed, split = number // 3, SPLITS[number % 3]
        assert here.reset(seed, split) == there.reset(seed, split)
        rng = Random(number)
        while here.running:
            text = replies_of(rng, here.word)
            assert same(here.step(text), there.step(text)), text
        assert not there.running

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(episode, range(count)))


def test_an_episode_is_the_same_as_in_process(kind):
    with served(kind) as server:
        episodes(server, kind, 60)


def test_short_prompt_episode_is_the_same_as_in_process(kind):
    with served(kind, prompt="short") as server:
        here, there = envs.make(kind, prompt="short"), remote(server, kind=kind, prompt="short")
        assert here.reset(1, "val") == there.reset(1, "val") and len(here.reset(1, "val")) == 1
        for text in ("say " + here.word, "finish"):
            step = there.step(text)
            assert same(here.step(text), step)
        assert step.reward == 1
        with pytest.raises(ServerFailed, match=r"serves another prompt than http\.prompt=native"):
            remote(server, kind=kind, retries=0).reset(0)


@contextmanager
def original(kind: str, samples: int = 40):
    """Run a task server like the original's: one session at a time, always the one that began last."""
    tasks, playing = lab.Tasks(kind, {}, samples=samples), []

    def answer(method: str, path: str, body: dict, client: str):
        if path == "/api/tasks":
            raise BadRequest(404, "Not Found")
        if path == "/api/reset" and playing:
            raise RuntimeError("a session is running")
        if path in ("/api/interact", "/api/complete") and playing != [
            body["session"]["chat_history"]["value"][: len(playing[0])]
        ]:
            raise RuntimeError("another session is running")
        said = lab.answer(tasks, method, path, body)
        if path in ("/api/reset", "/api/interact"):
            playing[:] = [said["session"]["chat_history"]["value"]]
        if path == "/api/complete":
            playing.clear()
        return said

    with listening(answer) as server:
        server.playing = playing
        yield server


def test_episode_on_a_one_session_server_is_the_same(kind):
    with original(kind) as server:
        episodes(server, kind, 12)


def test_samples_of_the_original_are_split_by_index(kind):
    with original(kind) as server:
        drawn = []
        for split, many in zip(SPLITS, (32, 4, 4), strict=True):
            for seed in range(many):
                env = remote(server, kind=kind)
                env.reset(seed, split)
                drawn.append(env.number)
        assert sorted(drawn) == list(range(40))
        env.reset(2**31, "train")
        assert env.number < 40
    with original(kind, samples=9) as server, pytest.raises(ServerFailed, match="9 samples, too few for three splits"):
        remote(server, kind=kind).reset(0)


def test_turn_limit_below_the_servers(kind):
    with served(kind) as server:
        env = remote(server, kind=kind, max_turns=2)
        env.reset(0)
        assert not env.step("say a").truncated
        step = env.step("say " + word_of(0))
        assert step.truncated and step.observation == f"You said a {word_of(0)}."
        assert step.info["outcome"] == ("correct" if kind == "os_interaction" else "timeout")
        with pytest.raises(RuntimeError, match="no episode is running"):
            env.step("say b")


@contextmanager
def unreliable(kind: str, faults: list):
    """Run a task server that answers some requests with a fault, before or after it carries them out."""
    with served(kind) as server:
        server.handler = unreliable_handler(faults)
        yield server


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_does_not_change_the_episode(kind, name, after):
    here, fault = envs.make(kind), (after, FAULTS[name])
    faults = [fault, None, None, None, fault, None, None, fault, fault, None, None, None, None, fault]
    with unreliable(kind, faults) as server:
        there = remote(server, kind=kind)
        for seed in (0, 1):
            assert here.reset(seed) == there.reset(seed)
            for text in ("say a", "say " + here.word, "finish"):
                assert same(here.step(text), there.step(text))
    assert not faults


def test_answer_of_another_session_is_requested_again(kind):
    items = [("user", "Sing."), ("agent", "OK."), ("user", "Sing it."), ("agent", "la"), ("user", "You sang.")]
    other = new(kind) | {"sample_status": "running"} | history(items)
    fault = b"HTTP/1.0 200 OK\r\n\r\n" + json.dumps({"session": other}).encode()
    faults = [None, None, None, (True, fault)]
    with unreliable(kind, faults) as server:
        here, there = envs.make(kind), remote(server, kind=kind)
        assert here.reset(0) == there.reset(0)
        assert same(here.step("say a"), there.step("say a"))
    assert not faults


@pytest.mark.parametrize("name", FAULTS)
def test_permanent_failure_is_reported_once_and_raised(kind, name, capsys):
    with unreliable(kind, [(False, FAULTS[name])] * 99) as server:
        env = remote(server, kind=kind, retries=2)
        with pytest.raises(ServerFailed, match=r"^http://[^ ]* failed after 3 attempts: /get_attribute\b") as error:
            env.reset(0)
        assert len(str(error.value)) < 250 and "\n" not in str(error.value)
        said = capsys.readouterr().err
        assert re.fullmatch(r"http://[^ ]*: /get_attribute\b.*; trying again, 2 times in 0\.003 s\n", said)
        with pytest.raises(RuntimeError, match="no episode is running"):
            env.step("finish")


def test_a_slow_answer_is_requested_again(kind):
    here = envs.make(kind)
    with unreliable(kind, [(True, 0.5), None, None, (True, 0.5), (False, 0.5)]) as server:
        there = remote(server, kind=kind, timeout=0.1)
        assert here.reset(0) == there.reset(0)
        assert same(here.step("say a"), there.step("say a"))


def test_a_restart_does_not_change_the_episode(kind):
    here = envs.make(kind)
    with served(kind) as server:
        there = remote(server, kind=kind)
        assert here.reset(2) == there.reset(2)
        assert same(here.step("say a"), there.step("say a"))
        port = server.server_address[1]
    with served(kind, port=port):
        for text in ("say " + here.word, "finish"):
            assert same(here.step(text), there.step(text))


def test_other_observations_after_a_restart_fail_the_episode(kind):
    with served(kind) as server:
        there = remote(server, kind=kind)
        there.reset(2), there.step("say a")
        port = server.server_address[1]
    with (
        served(kind, port=port, max_turns=4),
        pytest.raises(ServerFailed, match=r"replayed http:.* with other observations"),
    ):
        there.step("say b")


def test_a_server_of_another_kind_fails_at_once(kind):
    other = "textcraft" if kind == "db_bench" else "db_bench"
    with served(kind) as server:
        with pytest.raises(
            ServerFailed, match="/create answered 404 Not Found: does the server serve another environment"
        ):
            remote(server, kind="textcraft", wait=60.0).reset(0)
        if other == "db_bench":
            with pytest.raises(ServerFailed, match="/reset answered 400 Bad Request: does the server serve another"):
                remote(server, kind=other, wait=60.0).reset(0)


def test_broken_environment_is_not_the_agents_failure(kind, capsys):
    with served(kind) as server:
        env = remote(server, kind=kind, retries=1)
        env.reset(0)
        with pytest.raises(ServerFailed, match="a session that is task_unknown_error: \"KeyError: 'door'\""):
            env.step("break")


def test_hostile_replies_are_the_same_as_in_process(kind):
    with served(kind) as server:
        here, there = envs.make(kind), remote(server, kind=kind)
        for number, text in enumerate(HOSTILE):
            assert here.reset(number) == there.reset(number)
            assert same(here.step("say " + text), there.step("say " + text))
            assert same(here.step(text), there.step(text))


@pytest.mark.parametrize("prompt", common.PROMPTS)
@pytest.mark.parametrize("name", KINDS)
def test_real_environments_are_the_same_as_in_process(name, prompt):
    """Except for `valid` and `shaped`, which the protocol does not carry."""
    solved = 0
    with served(name, prompt=prompt) as server:
        here, there = envs.make(name, prompt=prompt), remote(server, kind=name, prompt=prompt)
        for number in range(8):
            rng, task = Random(number), (number, SPLITS[number % 3])
            assert here.reset(*task) == there.reset(*task)
            while here.running:
                text = here.oracle() if number % 2 or rng.random() < 0.5 else rng.choice(HOSTILE)
                mine, its = here.step(text), there.step(text)
                said = {name: mine.info[name] for name in ("outcome", "success")}
                assert replace(mine, info=said) == replace(its, info={name: its.info[name] for name in said})
                solved += its.info["success"]
    assert solved >= 4


# the guide's two terminals

EASY = "os_interaction.difficulty=1", "os_interaction.tasks=panel", "os_interaction.max_turns=2"
FROM_HERE = "env=http", "http.kind=os_interaction", "http.prompt=short"
FILES = "metrics.jsonl", "episodes.jsonl"


@contextmanager
def other_terminal():
    """Run the program that serves os_interaction; yield its url."""
    process = command("env=os_interaction", "port=0", "items_port=0", "os_interaction.prompt=short", *EASY)
    try:
        yield process, re.search(r"os_interaction at (http://127\.0\.0\.1:\d+)", process.stdout.readline())[1]
    finally:
        process.kill()
        process.communicate()


def trained(folder, *words) -> tuple[dict, list[dict]]:
    """Return an epoch's metrics and its episodes."""
    small = [
        "algo=reinforce",
        "epochs=1",
        "episodes=8",
        "eval_episodes=0",
        "lora.r=4",
        "threads=1",
        "products=onednn",  # the choice by time could be another in the second run
        "max_new_tokens=12",
    ]
    train.main(parse([*small, f"out={folder}", *words]))
    read = [[json.loads(line) for line in (folder / name).read_text().splitlines()] for name in FILES]
    return read[0][0], read[1]


def test_training_from_another_terminal_is_training_in_process(tmp_path):
    with other_terminal() as (_, url):
        stats, episodes = trained(tmp_path / "there", *FROM_HERE, f"http.url={url}")
    own, played = trained(tmp_path / "here", "env=os_interaction", *EASY)
    # The protocol does not say that a command was not found; a task's name has that of the environment.
    here = {"env": "os_interaction", "invalid": 0, "task": ""}
    assert [e | here for e in episodes] == [e | here for e in played] and len(played) == 8
    same = {"seconds": 0, "tasks": "", "invalid_actions": 0}
    assert stats | same == own | same and stats["infrastructure_failed"] == 0
    adapters = [(tmp_path / name / "epoch_1" / "adapter_model.safetensors").read_bytes() for name in ("there", "here")]
    assert adapters[0] == adapters[1]


def test_episodes_whose_server_dies_are_left_out_of_the_update(tmp_path, monkeypatch, capsys):
    whole = envs.http.Env.step
    with other_terminal() as (process, url):

        def step(env, text):
            found = whole(env, text)
            if found.terminated or found.truncated:
                process.kill()
                process.wait()
            return found

        monkeypatch.setattr(envs.http.Env, "step", step)
        words = [*FROM_HERE, f"http.url={url}", "http.retries=1", "http.wait=0.01", "rollout_batch_size=2"]
        stats, episodes = trained(tmp_path / "run", *words)
    failed = [episode for episode in episodes if episode["infrastructure_failed"]]
    assert 6 <= len(failed) < 8 and stats["infrastructure_failed"] == stats["left_out"] == len(failed)
    assert sum(stats["outcomes"].values()) == 8 - len(failed)
    line = rf"^http: {url} failed after 2 attempts: /\w+ got no connection, or it broke; the episode is left out$"
    assert len(re.findall(line, capsys.readouterr().out, re.MULTILINE)) == len(failed)
