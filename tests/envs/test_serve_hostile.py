"""A hostile client keeps nobody else out, costs bounded time and memory, and reaches nothing that it may not."""

import contextlib
import http.client
import json
import re
import signal
import socket
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from cases import cases
from conftest import FUZZ
from hostile import is_plain, modest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_serve import ask, command, get, listening, post, running, served

import envs
import envs.http
from envs import serve
from envs.http.wire import ServerFailed
from envs.serve import __main__ as program
from envs.serve import access, agentgym, lab

CASES = cases("serve_hostile")
PIECES = [piece.encode("latin-1") for piece in CASES["pieces"]]

pytestmark = pytest.mark.all_only

HEAD = b"POST /create HTTP/1.1\r\nHost: localhost\r\n"
HALVES = {
    "nothing": b"",
    "half a line": b"POST /cre",
    "half a head": HEAD,
    "no body": HEAD + b"Content-Length: 99\r\n\r\n",
    "half a body": HEAD + b"Content-Length: 8000000\r\n\r\n" + b" " * 50_000,
}


@contextlib.contextmanager
def connections(server, count: int, sent: bytes = b""):
    """Open this many connections that send these bytes, and no more."""
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(server.server_address)) for _ in range(count)]
        for connection in opened:
            connection.setblocking(False)
            with contextlib.suppress(OSError):
                connection.send(sent)
        yield opened


@pytest.mark.parametrize("name", HALVES)
def test_half_requests_keep_nobody_out(name):
    with served() as server, connections(server, 400, HALVES[name]):
        for _ in range(3):
            start = time.monotonic()
            assert get(server, "/") == "This is environment TextCraft."
            assert time.monotonic() - start < 1
        assert len(server.waiting) <= serve.MAX_WAITING


def test_requests_that_drip_are_cut_off(monkeypatch):
    monkeypatch.setattr(serve, "SECONDS", 0.4)
    with served() as server, connections(server, 3, b"GET / HTTP/1.1\r\nX: ") as opened:
        start = time.monotonic()
        with contextlib.suppress(OSError):
            while opened[0].send(b"x"):
                time.sleep(0.02)
        assert time.monotonic() - start < 2
        time.sleep(0.2)
        assert not server.waiting


@pytest.mark.all_only
def test_clients_that_read_no_reply_keep_nobody_out():
    big, answered = "x" * 7_000_000, []

    def answer(method, path, body, client):
        answered.append(path)
        return big if path == "/big" else 0

    with listening(answer) as server:
        with connections(server, 80, b"GET /big HTTP/1.0\r\n\r\n"):
            ends = time.monotonic() + 30
            while len(answered) < 80 and time.monotonic() < ends:
                time.sleep(0.05)
            for _ in range(3):
                start = time.monotonic()
                assert get(server, "/small") == 0
                assert time.monotonic() - start < 2
            assert 2**24 < sum(server.waiting.values()) <= serve.MAX_HELD
        assert get(server, "/big") == big


def test_half_bodies_cost_bounded_memory():
    head = HEAD + b"Content-Length: 8000000\r\n\r\n"
    with served() as server, modest(megabytes=200), contextlib.ExitStack() as stack:
        for _ in range(60):  # 480 MB
            connection = stack.enter_context(socket.create_connection(server.server_address))
            with contextlib.suppress(OSError):  # disconnected for the next ones
                connection.sendall(head + b" " * 7_900_000)
        assert get(server, "/") == "This is environment TextCraft."


def test_requests_beyond_the_memory_are_answered_busy(monkeypatch):
    monkeypatch.setattr(serve, "MAX_HELD", 200_000)
    inside, leave = threading.Semaphore(0), threading.Event()

    def answer(method, path, body, client):
        if path == "/slow":
            inside.release()
            leave.wait(10)
        return 0

    with listening(answer) as server, ThreadPoolExecutor(3) as pool:
        slow = [pool.submit(get, server, "/slow") for _ in range(3)]
        for _ in slow:
            inside.acquire(timeout=5)
        with contextlib.closing(http.client.HTTPConnection(*server.server_address)) as connection:
            connection.request("GET", "/")
            assert connection.getresponse().status == 503
        leave.set()
        assert [job.result() for job in slow] == [0, 0, 0]
        assert get(server, "/") == 0 and server.held == server.busy == 0


def test_refused_request_gets_its_reason_while_it_is_sent():
    """The reply arrives although the client has not sent its whole body."""
    with served() as server:
        env = envs.http.Env(envs.http.Config(url=server.url, wait=60.0))
        env.reset(0)
        env.client._request = partial(envs.http.wire.request, f"{server.url}/step", {"a": "x" * 12_000_000}, 10.0)
        with pytest.raises(ServerFailed, match="/step answered 413 "):
            env.client._request()


def test_many_files_keep_the_server_alive(monkeypatch):
    """Out of file descriptors it goes on accepting when some are free."""
    with served() as server:
        accept, fails = server.socket.accept, [OSError(24, "Too many open files")] * 3

        class Scarce:
            def __getattr__(self, name):
                return getattr(real, name)

            def accept(self):
                if fails:
                    raise fails.pop()
                return accept()

        real, server.socket = server.socket, Scarce()
        with contextlib.closing(server.socket):
            assert [get(server, "/tasks") for _ in range(3)] == [0, 0, 0]


# access


def guarded(token: str = "", names=()):
    """Return a task server of each protocol with this access."""
    may = access.Access(token, access.own_names(*names))
    sessions, tasks = agentgym.Sessions("textcraft", {}), lab.Tasks("db_bench", {})
    answers = [partial(agentgym.answer, sessions), partial(lab.answer, tasks), partial(lab.answer_items, tasks)]
    return [serve.Server("127.0.0.1", 0, answer, may) for answer in answers]


@pytest.mark.parametrize(
    "sent", [None, "", "Bearer", "Bearer ", "Bearer wrong", "a-good-token", "Basic a-good-token", "é"]
)
def test_token_is_required_on_every_path(sent, monkeypatch):
    for server in guarded("a-good-token"):
        with running(server):
            headers = {} if sent is None else {"Authorization": sent.encode("latin-1")}
            for method, path in (("GET", "/"), ("POST", "/create"), ("POST", "/api/ping"), ("GET", "/nothing")):
                status, said = ask(server, method, path, {}, headers=headers)
                assert status == 401 and set(said) == {"detail"}
            good = {"Authorization": "Bearer a-good-token"}
            assert ask(server, "POST", "/api/ping", {}, headers=good)[0] in (200, 404)


@pytest.mark.parametrize("kind", ["textcraft", "db_bench"])
def test_client_sends_the_token(kind, monkeypatch):
    server = guarded("a-good-token")[kind == "db_bench"]
    with running(server):
        env = envs.http.Env(envs.http.Config(url=server.url, kind=kind, retries=0))
        with pytest.raises(
            ServerFailed, match=r"answered 401 Unauthorized: the token is missing or wrong: .* ENVS_TOKEN"
        ):
            env.reset(0)
        monkeypatch.setenv("ENVS_TOKEN", "a-good-token")
        assert env.reset(3) == envs.make(kind).reset(3)


@pytest.mark.parametrize(("headers", "status"), CASES["headers of web pages"])
def test_requests_of_web_pages_are_refused(headers, status):
    for server in guarded(names=["trainer.example"]):
        with running(server):
            got, said = ask(server, "POST", "/api/ping", {}, headers=headers)
            assert (status if got == 404 else got) == status and is_plain(str(said), 250)


def test_request_without_a_host_is_answered():
    with served() as server, socket.create_connection(server.server_address) as connection:
        connection.sendall(b"GET /tasks HTTP/1.0\n\n")
        assert connection.makefile("rb").read().endswith(b"\r\n\r\n0")


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["host=0.0.0.0"], True),
        (["host=0.0.0.0", "token=a-good-token"], False),
        (["host=127.0.0.1"], False),
        (["host=localhost"], False),
    ],
)
def test_start_says_that_others_can_reach_an_open_server(words, warned):
    process = command("port=0", "sessions=5", *words)
    assert re.match(r"textcraft at http://[\d.]+:\d+, 5 sessions", process.stdout.readline())
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=20)
    line = "envs.serve: other machines can reach this server, and it asks for no token: set token=\n"
    assert err == (line if warned else "") and process.returncode == 0


@pytest.mark.parametrize("word", ["token=short", "token=has a space", "token=naïve-token"])
def test_token_that_no_header_carries_is_refused(word, capsys):
    with pytest.raises(SystemExit) as end:
        program.main([word])
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("envs.serve: token must have at least 8 characters, ASCII")


def test_token_of_the_environment_is_the_servers_too(monkeypatch):
    monkeypatch.setenv("ENVS_TOKEN", "a-good-token")
    assert program.parse([])[0].token == "a-good-token"
    assert program.parse(["token=another-token"])[0].token == "another-token"
    assert "a-good-token" not in repr(program.Keys.__dataclass_fields__["token"].default)


# sessions, and the work of a request


def from_address(server, address: str, path: str, body=None):
    """Return the JSON of a request that comes from another address of this machine."""
    connection = http.client.HTTPConnection(*server.server_address, source_address=(address, 0))
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body or {}))
        return json.loads(connection.getresponse().read())


def test_one_client_cannot_take_all_sessions():
    sessions = agentgym.Sessions("textcraft", {}, limit=4, share=2)
    with listening(partial(agentgym.answer, sessions)) as server:
        first = [from_address(server, "127.0.0.2", "/create") for _ in range(3)]
        assert "id" in first[1] and first[2] == {"error": "2 sessions are open, the most of one client: close one"}
        second = [from_address(server, "127.0.0.3", "/create") for _ in range(2)]
        assert "id" in second[1]
        assert from_address(server, "127.0.0.4", "/create") == {"error": "all 4 sessions are open: close one"}
        from_address(server, "127.0.0.2", "/close", {"id": first[0]["id"]})
        assert "id" in from_address(server, "127.0.0.2", "/create")


def test_clients_share_is_half_beyond_this_machine():
    for words, share in ((["host=127.0.0.1"], 9), (["host=0.0.0.0"], 5), (["host=0.0.0.0", "client_sessions=3"], 3)):
        for kind in ("textcraft", "db_bench"):
            keys, options = program.parse([f"env={kind}", "port=0", "items_port=0", "sessions=9", *words])
            made = [server for _, server in program.servers(keys, options)]
            assert made[0].answer.args[0].share == share
            for server in made:
                server.server_close()


def session_of(index: str, *items: tuple[str, str]) -> dict:
    session = {"task_name": "db_bench", "sample_index": index, "sample_status": "running", "finish_reason": None}
    session |= {"chat_history": {"value": [{"role": role, "content": text} for role, text in items]}}
    return session | {"task_output": None, "evaluation_record": {"outcome": "unset", "detail_dict": None}}


@contextlib.contextmanager
def tasks_served(**fields):
    tasks = lab.Tasks("db_bench", {"difficulty": "1"}, **fields)
    with listening(partial(lab.answer, tasks)) as server:
        yield tasks, server


def begin(server, address: str, index: str) -> dict:
    initial = session_of(index) | {"sample_status": "initial"}
    return from_address(server, address, "/api/reset", {"session": initial})["session"]


def test_one_client_cannot_take_the_whole_cache():
    with tasks_served(keep=4, share=2) as (tasks, server):
        kept = [begin(server, "127.0.0.2", "0"), begin(server, "127.0.0.2", "1")]
        for number in range(5):
            begin(server, "127.0.0.3", str(7 + number))
        owners = [client for client, _ in tasks.kept.values()]
        assert sorted(owners) == ["127.0.0.2"] * 2 + ["127.0.0.3"] * 2
        assert [lab._key(s["sample_index"], s["chat_history"]["value"]) for s in kept] == list(tasks.kept)[:2]


def test_conversation_that_differs_is_not_played_on(monkeypatch):
    played = []
    monkeypatch.setattr(
        lab.Game, "play", lambda game, text, whole=lab.Game.play: played.append(text) or whole(game, text)
    )
    with tasks_served() as (_, server):
        said = begin(server, "127.0.0.1", "0")["chat_history"]["value"]
        post(server, "/api/release")
        turns = [{"role": "agent", "content": "x"}, {"role": "user", "content": "y"}] * 1000
        for items in (said + turns, [{"role": "user", "content": "other"}, *said[1:], *turns], turns[1:]):
            session = session_of("0") | {"chat_history": {"value": [*items, {"role": "agent", "content": "x"}]}}
            status, answer = ask(server, "POST", "/api/interact", {"session": session})
            assert status in (400, 422) and is_plain(answer["detail"], 200)
        assert played == ["x"]


def test_replays_are_bounded_in_number_and_time(monkeypatch):
    monkeypatch.setattr(lab, "REPLAY_SECONDS", 0.3)
    with tasks_served() as (tasks, server):
        session = begin(server, "127.0.0.1", "0")
        post(server, "/api/release")
        body = {"session": session}
        body["session"]["chat_history"]["value"].append({"role": "agent", "content": "x"})
        for _ in range(lab.REPLAYS):
            tasks.replays.acquire()
        start = time.monotonic()
        assert ask(server, "POST", "/api/interact", body) == (
            503,
            {"detail": "too many conversations are being replayed"},
        )
        assert time.monotonic() - start < 2
        tasks.replays.release()
        whole = tasks.begin
        monkeypatch.setattr(tasks, "begin", lambda index: time.sleep(0.4) or whole(index))
        played = ask(server, "POST", "/api/interact", body)  # the opening alone: nothing to replay after it
        assert played[0] == 200 and tasks.replays._value == 1
        turn = played[1]["session"]["chat_history"]["value"]
        if turn[-1]["role"] == "user":
            post(server, "/api/release")
            again = session_of("0") | {"chat_history": {"value": [*turn, {"role": "agent", "content": "x"}]}}
            status, said = ask(server, "POST", "/api/interact", {"session": again})
            assert (status, said) == (503, {"detail": "the replay took more than 0.3 s"})


def test_work_of_one_request_is_bounded():
    record = {"sample_status": "completed", "evaluation_record": {"outcome": "correct", "detail_dict": None}}

    def metric(count: int, different: int):
        sessions = [record | {"sample_index": str(number % different)} for number in range(count)]
        return ask(server, "POST", "/api/calculate_metric", {"session_partial_list": sessions})

    with tasks_served(samples=50) as (_, server):
        with modest():
            assert metric(10_000, 50)[0] == 200
        for count, different in ((10_001, 1), (51, 51)):
            assert metric(count, different) == (413, {"detail": "at most 10000 sessions of 50 different samples"})
        for value, status in (("1000", 200), ("1001", 422), ("999999", 422), ("0", 422)):
            how = {"instance_factory_parameter_dict": {"value": value}}
            assert ask(server, "POST", "/api/set_attribute", {"name": "max_round"} | how)[0] == status


def test_error_texts_are_short_and_printable(monkeypatch, capsys):
    def step(self, reply):
        raise LookupError("\x1b[2J" + reply * 1000)

    monkeypatch.setattr("envs.textcraft.Env.step", step)
    with served() as server:
        name = post(server, "/create")["id"]
        said = post(server, "/step", id=name, action="\x07\u202ered")
        assert set(said) == {"error"} and is_plain(said["error"], 200)
    err = capsys.readouterr().err
    assert "LookupError" in err and all(is_plain(line, 600) for line in err.splitlines())


@pytest.mark.parametrize("version", ["HTTP/1.1", "HTTP/1.0"])
def test_other_clients_can_play(version, monkeypatch):
    """A client that would keep the connection, and the standard library's."""
    monkeypatch.setattr(http.client.HTTPConnection, "_http_vsn_str", version)
    with served() as server:
        for _ in range(3):
            with urllib.request.urlopen(f"{server.url}/create", b"{}") as answer:
                assert set(json.load(answer)) == {"id", "observation", "done", "reward"}
        connection = http.client.HTTPConnection(*server.server_address)
        for _ in range(3):
            connection.request("POST", "/create", "{}", {"Connection": "keep-alive"})
            assert "id" in json.load(connection.getresponse())


# any request


@pytest.fixture(scope="module")
def both():
    """Return a server of each protocol, with all that they print to stderr."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(running(server)) for server in guarded()]


@settings(max_examples=FUZZ * 300 or 100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sent=st.lists(st.sampled_from(PIECES) | st.binary(max_size=12), max_size=14).map(b"".join), which=st.integers(0, 2)
)
@example(sent=b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", which=0)
@example(sent=b"POST /step HTTP/1.1\r\nContent-Length: \xb2\r\n\r\n", which=0)
@example(sent=b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", which=0)
@example(sent=b"GET / HTTP/9.9\r\n\r\n", which=1)
@example(sent=b"\r\n\r\n", which=1)
def test_any_bytes_get_an_error_or_nothing(both, sent, which, capsys):
    with socket.create_connection(both[which].server_address, timeout=5) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        reply = connection.makefile("rb").read()
    if reply:
        head, _, body = reply.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1]) if head.startswith(b"HTTP/") else 200
        assert status in (200, 400, 403, 404, 405, 411, 413, 414, 422, 431, 501, 505), reply
        said = json.loads(body) if body else None
        assert status == 200 or not body or (set(said) == {"detail"} and is_plain(said["detail"], 250))
    assert capsys.readouterr().err == ""


TEXTS = st.text(max_size=20) | st.sampled_from(
    ["\x1b[2J", "\ud800", "db_bench", "running", "0", "9" * 500, "user", "max_round"]
)
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS | st.sampled_from([10**400, -1, 2**63]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
FIELDS = ["id", "action", "data_idx", "game", "world_type", "env_idx", "session_id", "session", "name", "prompt_index"]
FIELDS += ["role", "content", "expected_role", "chat_history_item_index", "session_partial_list"]
FIELDS += ["instance_factory_parameter_dict"]
BODIES = st.dictionaries(st.sampled_from(FIELDS), JUNK, max_size=4)


def answers(kind: str):
    """Return (paths, function that answers) of a server of this kind, and the name of an open session."""
    if kind in lab.LABELS:
        tasks = lab.Tasks(kind, {"difficulty": "1"})
        return [f"/api/{name}" for name in lab.TASKS | lab.ITEMS], [
            partial(lab.answer, tasks),
            partial(lab.answer_items, tasks),
        ]
    sessions = agentgym.Sessions(kind, {"difficulty": "1"} | envs.WITHOUT_MODEL.get(kind, {}), limit=3)
    sessions.next = 0
    return ["/create", *agentgym.POSTS, *agentgym.VIEWS[kind]], [partial(agentgym.answer, sessions)]


def check_answer(answer, method: str, path: str, body: dict) -> None:
    """Assert that a request gets JSON or BadRequest with a short line, quickly."""
    start = time.process_time()
    try:
        said = answer(method, path, body, "127.0.0.1")
    except access.BadRequest as bad:
        assert 400 <= bad.args[0] < 500 and is_plain(bad.args[1], 250)
    else:
        json.dumps(said)
        if isinstance(said, dict) and set(said) == {"error"}:
            assert is_plain(said["error"], 200)
    assert time.process_time() - start < 2


def fuzzed(kind: str, count: int, capsys) -> None:
    paths, several = answers(kind)

    @settings(max_examples=FUZZ * count or count // 3, deadline=None)
    @given(path=st.sampled_from(paths), body=BODIES, which=st.integers(0, 1), name=st.integers(0, 3))
    @example(path="/reset", body={"data_idx": 10**400, "game": 10**400, "session_id": 10**400}, which=0, name=0)
    @example(path="/api/reset", body={"session": session_of("9" * 19)}, which=0, name=0)
    def play(path, body, which, name):
        if path in ("/step", "/reset") or path.startswith("/api") is False:
            body = {"id": name, "env_idx": name, "world_type": "Text"} | body
        method = "GET" if kind not in lab.LABELS and path in agentgym.VIEWS[kind] else "POST"
        check_answer(several[which % len(several)], method, path, body)

    play()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", envs.http.KINDS)
def test_any_request_is_answered_or_refused(kind, capsys):
    fuzzed(kind, 60, capsys)


@pytest.mark.parametrize("kind", agentgym.VIEWS)
def test_every_view_of_a_session_before_its_reset_is_answered(kind, capsys):
    _, several = answers(kind)
    created = several[0]("POST", "/create", {}, "127.0.0.1")
    name = created if kind == "webshop" else created["id"]
    for path in agentgym.VIEWS[kind]:
        check_answer(several[0], "GET", path, {"id": name, "env_idx": name})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("kind", envs.http.KINDS)
def test_huge_action_costs_little(kind):
    """Actions as large as a request may be."""
    _, several = answers(kind)
    for text in ("x" * 8_000_000, "Action: " * 1_000_000, "[" * 8_000_000, "\x1b\n" * 4_000_000, "get 1 " * 1_300_000):
        with modest(seconds=2.5):
            if kind in lab.LABELS:
                initial = session_of("0") | {"task_name": kind, "sample_status": "initial"}
                session = several[0]("POST", "/api/reset", {"session": initial}, "")["session"]
                session["chat_history"]["value"] = [
                    *session["chat_history"]["value"],
                    {"role": "agent", "content": text},
                ]
                check_answer(several[0], "POST", "/api/interact", {"session": session})
            else:
                name = several[0]("POST", "/create", {}, "")
                name = name if kind == "webshop" else name["id"]
                named = {"id": name, "env_idx": name}
                several[0]("POST", "/reset", named | {"game": 0, "world_type": "Text"}, "")
                check_answer(several[0], "POST", "/step", named | {"action": text})
                several[0]("POST", "/close", named, "")
