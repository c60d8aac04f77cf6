"""One HTTP exchange: a hostile or slow server costs bounded time and memory, and one printable line."""

import contextlib
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

import pytest
from cases import cases
from conftest import FUZZ, ROOT
from hostile import OK, drip, is_plain, modest, raw_server, silent
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tqdm import tqdm

import envs.http
from envs.http import exchange as ours
from envs.http.exchange import Cancelled, Lost, exchange, is_address, parse_json, plain, short
from envs.http.wire import NEVER, ServerFailed
from models import load_model, load_tokenizer
from rl.config.words import parse
from rl.remote import client, evaluation
from rl.rollout import rollout
from rl.tasks import make_tasks

pytestmark = pytest.mark.all_only
CASES = cases("exchange", OK=OK.decode("latin-1"))

FAILS = (Lost, ConnectionError)


def get(url: str, timeout: float = 5.0, body: bytes | None = None, cancelled=NEVER):
    return exchange(url, body, {}, timeout, cancelled)


def with_length(body: bytes) -> bytes:
    return OK + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize(
    ("sent", "status", "body"),
    [
        (with_length(b"abc"), 200, b"abc"),
        (with_length(b"abc") + b"more", 200, b"abc"),
        (b"HTTP/1.0 200 OK\r\n\r\nabc", 200, b"abc"),
        (b"HTTP/1.1 200\n\nabc", 200, b"abc"),
        (OK + b"transfer-encoding: Chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\nTrailer: x\r\n\r\n", 200, b"abc"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + with_length(b"abc"), 200, b"abc"),
        (b"HTTP/1.1 204 No Content\r\n\r\nabc", 204, b""),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", 503, b""),
    ],
)
def test_reply_is_read_whole(sent, status, body):
    with raw_server(sent) as server:
        reply = get(server.url)
        assert (reply.status, reply.body) == (status, body)
        assert server.heard == [
            b"GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nAccept-Encoding: identity\r\n\r\n"
            % server.url[7:].encode()
        ]


HUGE = {
    **{name: text.encode("latin-1") for name, text in CASES["replies"].items()},
    "a body without end": OK + b"\r\n" + b"x" * (ours.MAX_BODY + 2**17),
}


@pytest.mark.parametrize("name", HUGE)
def test_oversized_or_malformed_reply_is_a_short_line(name):
    with raw_server(HUGE[name]) as server, modest(), pytest.raises(FAILS) as error:
        get(server.url)
    assert is_plain(str(error.value), 200)


DRIPS = {
    "nothing": silent,
    "a status line": drip(b"HTTP/1.1 200 ", b"x"),
    "headers": drip(OK, b"X: y\r\n"),
    "continue": drip(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a body": drip(OK + b"\r\n", b" "),
    "a body with its length": drip(OK + b"Content-Length: 99999\r\n\r\n", b" "),
    "chunks": drip(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


@pytest.mark.parametrize("name", DRIPS)
def test_one_deadline_holds_for_the_whole_exchange(name):
    start = time.monotonic()
    with raw_server(DRIPS[name]) as server, pytest.raises(Lost, match="timed out"):
        get(server.url, timeout=0.2)
    assert 0.15 < time.monotonic() - start < 0.6


@pytest.mark.parametrize("name", DRIPS)
def test_exchange_ends_soon_after_cancelled_is_set(name):
    cancelled = threading.Event()
    threading.Timer(0.1, cancelled.set).start()
    start = time.monotonic()
    with raw_server(DRIPS[name]) as server, pytest.raises(Cancelled):
        get(server.url, timeout=60, cancelled=cancelled)
    assert time.monotonic() - start < 0.8


def never_connects():
    """Return a listening socket whose queue is full: the next connection to it waits."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=0)
    waiting = []
    for _ in range(4):
        waiting.append(socket.socket())
        waiting[-1].setblocking(False)
        waiting[-1].connect_ex(listener.getsockname())
    time.sleep(0.05)
    return listener, waiting


@pytest.mark.parametrize("timeout", [0.2, 60])
def test_connecting_and_sending_end_in_time(timeout):
    def hangs(url: str, body=None) -> None:
        cancelled = threading.Event()
        threading.Timer(0.15 if timeout == 60 else 60, cancelled.set).start()
        start = time.monotonic()
        with pytest.raises(Cancelled if timeout == 60 else Lost):
            get(url, timeout, body, cancelled)
        assert time.monotonic() - start < 1
        cancelled.set()

    listener, waiting = never_connects()
    hangs(f"http://127.0.0.1:{listener.getsockname()[1]}")
    for held in (*waiting, listener):
        held.close()
    with raw_server(lambda _: time.sleep(2)) as server:  # reads nothing of the body
        hangs(server.url, bytes(2**25))
        hangs(server.url.replace("http:", "https:"))


@pytest.mark.parametrize("timeout", [0.2, 60])
def test_name_lookup_ends_in_time(timeout, monkeypatch):
    real = socket.getaddrinfo

    def look_up(host, *args, **options):
        if not options.get("flags"):
            time.sleep(3)
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    cancelled = threading.Event()
    threading.Timer(0.15, cancelled.set).start()
    start = time.monotonic()
    with pytest.raises(Cancelled if timeout == 60 else Lost):
        get("http://localhost:9", timeout, cancelled=cancelled if timeout == 60 else NEVER)
    assert time.monotonic() - start < 1


def test_second_address_is_tried_if_the_first_hangs(monkeypatch):
    listener, waiting = never_connects()
    with raw_server(with_length(b"abc")) as server:
        places = [(socket.AF_INET, 1, 6, "", ("127.0.0.1", listener.getsockname()[1]))]
        places += [(socket.AF_INET, 1, 6, "", ("127.0.0.1", server.port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: places)
        assert get("http://somewhere/", timeout=1).body == b"abc"
    for held in (*waiting, listener):
        held.close()


@pytest.mark.parametrize(
    "host", ["name.invalid", "a" * 64 + ".com", "a..b", "-", "1.2.3.4.5", "[::1]", "xn--a-ecp.ru", "%00"]
)
def test_host_that_does_not_exist_is_one_line(host):
    with pytest.raises(FAILS) as error:
        get(f"http://{host}:9/")
    assert is_plain(str(error.value), 200)


def test_https_checks_the_servers_certificate(tmp_path, monkeypatch):
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl")
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    words += " -addext subjectAltName=IP:127.0.0.1 -keyout key.pem -out certificate.pem"
    subprocess.run(words.split(), cwd=tmp_path, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    body = b"x" * 300_000

    def accept():
        for _ in range(2):
            connection, _ = listener.accept()
            try:
                with context.wrap_socket(connection, server_side=True) as secure:
                    heard = b""
                    while len(heard) < 200_000:
                        heard += secure.recv(65_536)
                    secure.sendall(with_length(body))
            except ssl.SSLError:
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        with pytest.raises(Lost, match="certificate"):
            get(url)
        trusting = ssl.create_default_context(cafile=tmp_path / "certificate.pem")
        monkeypatch.setattr(ours, "_tls", lambda: trusting)
        assert get(url, body=bytes(200_000)).body == body


# redirects and the key


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed_and_no_key_leaves(status, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-key")
    monkeypatch.setenv("ENVS_TOKEN", "envs-secret-token")
    with raw_server(with_length(b"0")) as thief:
        away = f"HTTP/1.1 {status} Moved\r\nLocation: {thief.url}/x\x1b[2J\r\nContent-Length: 0\r\n\r\n"
        with raw_server(away.encode()) as server:
            remote_server = client.Server(f"{server.url}/v1", retries=0)
            with pytest.raises(ValueError, match=f"{status} Moved, a redirect to {thief.url}/x") as error:
                remote_server.names()
            assert is_plain(str(error.value))
            with pytest.raises(client.Refused, match="a redirect to"):
                remote_server.chat("m", [], 5, 0.0, 0)
            for kind in ("textcraft", "db_bench"):
                env = envs.http.Env(envs.http.Config(url=server.url, kind=kind, retries=3))
                with pytest.raises(ServerFailed, match="redirects are not followed") as error:
                    env.reset(0)
                assert is_plain(str(error.value))
            assert any(b"Authorization: Bearer sk-secret-key" in heard for heard in server.heard)
            assert any(b"Authorization: Bearer envs-secret-token" in heard for heard in server.heard)
        assert thief.heard == []


@pytest.mark.parametrize("key", ["sk-\nX-Evil: 1", "sk-\x1b[2J", "sk-é", "sk a"])
def test_key_that_no_header_carries_is_not_printed(key, monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(ValueError, match=r"^OPENAI_API_KEY must consist of ASCII letters, digits and punctuation$"):
        client.Server("http://127.0.0.1:9/v1", retries=0).names()
    assert "sk" not in capsys.readouterr().err


def test_key_that_a_server_repeats_is_not_printed(monkeypatch, capsys):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-key\n")
    for status in (401, 503):
        with raw_server(b"HTTP/1.1 %d No\r\n\r\n{'error': 'wrong key sk-secret-key'}" % status) as server:
            with pytest.raises((ValueError, ConnectionError), match=r"wrong key \.\.\.'") as error:
                client.Server(server.url, retries=0).names()
            assert "secret" not in str(error.value) + capsys.readouterr().err
            assert b"Authorization: Bearer sk-secret-key\r\n" in server.heard[0]


# JSON and messages


@pytest.mark.parametrize(
    ("data", "line"),
    [*CASES["json beyond the bounds"], (('["∀", ' + "[" * 70).encode("utf-16").decode("latin-1"), "can't decode")],
)
def test_json_beyond_the_bounds_is_refused_quickly(data, line):
    with modest(), pytest.raises(ValueError, match=line) as error:
        parse_json(data.encode("latin-1"))
    assert len(str(error.value)) < 300


def test_largest_json_within_the_bounds_is_parsed():
    deep = b"[" * 64 + b"]" * 64
    text = json.dumps({"a": '[{"\\' * 1000, "b": [1.5, None, "é\x1b\ud800"]}).encode()
    for data in (deep, text, b"\xef\xbb\xbf" + text, b'["[","\\"]"]', b"[" + b"1.5," * 2_000_000 + b"2]"):
        assert parse_json(data) == json.loads(data.decode("utf-8-sig"))


@given(st.text() | st.binary().map(lambda b: b.decode("latin-1")), st.integers(10, 300))
@example("\x1b[31mred\x07\u202e\ud800\r\n\t", 20)
@example(" " * 5000 + "x", 20)
def test_plain_text_is_one_printable_line(text, most):
    assert is_plain(plain(text, most), most)
    if text.isprintable() and len(text) <= most and " ".join(text.split()) == text:
        assert plain(text, most) == text


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=200),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=50), inner, max_size=4),
)


@given(JSON)
@example([[[[[[[[["x" * 1000]]]]]]]]] * 100)
@example(10**4000)
@example({str(number): "\x1b" * 99 for number in range(99)})
def test_short_is_one_printable_line(value):
    assert is_plain(short(value), 80) and is_plain(short(json.dumps(value)), 80)


@pytest.mark.parametrize(("url", "good"), CASES["addresses"])
def test_addresses(url, good):
    assert is_address(url) == good


PIECES = [b"HTTP/1.1 ", b"HTTP/1.0 ", b"200", b" OK", b"100", b"999", b"\r\n", b"\r\n\r\n", b"\n", b": ", b"0\r\n\r\n"]
PIECES += [
    b"Content-Length",
    b"Transfer-Encoding",
    b"chunked",
    b"-1",
    b"5",
    b"{}",
    b'"a"',
    b"\x00",
    b"\xff",
    b" ",
    b";",
]


@settings(max_examples=FUZZ * 200 or 70, deadline=None)
@given(st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=20).map(b"".join), st.booleans())
@example(b"HTTP/1.1 200 OK\r\nContent-Length\r\n\r\n", False)
@example(b"Content-Length: \r\n\r\n", True)
@example(b"Transfer-Encoding: chunked\r\n\r\n\r\n\r\n", True)
def test_any_bytes_are_a_reply_or_one_line(sent, begun):
    with raw_server((OK if begun else b"") + sent) as server:
        try:
            get(server.url)
        except FAILS as error:
            assert is_plain(str(error), 200)


# signals


@contextlib.contextmanager
def hangs_on(path: bytes):
    """Run a server that answers like our server, and like a model's, except to a request of this path."""
    said = {b"/": b'"hi"', b"/tasks": b"0", b"/create": b'{"id": 1}', b"/v1/models": b'{"data": [{"id": "m"}]}'}
    said[b"/reset"] = b'{"observation": "Go.", "done": false, "reward": 0}'

    def say(connection: socket.socket) -> None:
        asked = server.heard[-1].split(b" ")[1]
        if asked == path:
            silent(connection)
        elif asked in said:
            connection.sendall(with_length(said[asked]))

    with raw_server(say) as server:
        yield server


def wait_for(server, path: bytes, process=None) -> None:
    ends = time.monotonic() + 60
    while not any(b" " + path in heard for heard in server.heard) and time.monotonic() < ends:
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)
    time.sleep(0.2)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.full)])
def test_interrupt_ends_training_whose_server_hangs(ranks, tmp_path):
    words = ["algo=reinforce", "env=http", "episodes=8", "eval_episodes=0", "threads=1", f"ranks={ranks}"]
    words += ["products=plain", f"out={tmp_path / 'run'}"]
    with hangs_on(b"/step") as server:
        line = [sys.executable, "train.py", *words, f"http.url={server.url}"]
        process = subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            wait_for(server, b"/step", process)
            start = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
        finally:
            process.kill()
        assert time.monotonic() - start < 15  # the client waits a minute for an answer
        assert process.returncode != 0 and "Traceback" not in err


@pytest.mark.parametrize("path", [b"/reset", b"/step", b"/v1/chat/completions"])
def test_interrupted_rollout_leaves_no_waiting_thread(path):
    """Rollouts here, and of a model behind a server."""
    before = set(threading.enumerate())
    with hangs_on(path) as server, pytest.raises(KeyboardInterrupt):
        cfg = parse(["env=http", f"http.url={server.url}", "max_new_tokens=4", "rollout_batch_size=4"])

        def interrupt() -> None:
            wait_for(server, path)
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        if path == b"/v1/chat/completions":
            evaluation.play_all(client.Server(f"{server.url}/v1"), "m", cfg, 0.0, make_tasks(cfg, 0, 8, 1, "val", 0))
        else:
            model, tokenizer = load_model("tiny").eval(), load_tokenizer("tiny")
            rollout(model, tokenizer, make_tasks(cfg, 0, 4, 2, "train", 0), cfg, 1.0, tqdm(disable=True))
    start = time.monotonic()
    for thread in {thread for thread in threading.enumerate() if not thread.daemon} - before:
        thread.join(max(0, start + 2 - time.monotonic()))
        assert not thread.is_alive()


def test_interrupt_ends_the_wait_before_a_retry(tmp_path):
    """Also in a thread, and with a lock that another thread's request holds."""
    program = (
        "import sys, threading, envs.http as h\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "made = [h.Env(h.Config(url='http://127.0.0.1:9', kind='db_bench', wait=50.0)) for _ in range(3)]\n"
        "cancelled, pool = threading.Event(), ThreadPoolExecutor(3)\n"
        "for env in made: env.cancelled = cancelled\n"
        "jobs = [pool.submit(env.reset, 0) for env in made]\n"
        "try:\n    print('all wait', file=sys.stderr, flush=True); jobs[0].result()\n"
        "except KeyboardInterrupt:\n    cancelled.set(); pool.shutdown(wait=False)\n"
        "print([type(job.exception()).__name__ for job in jobs])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    seen = ""
    while not ("trying again" in seen and "all wait" in seen):
        seen += (line := process.stderr.readline())
        assert line, seen
    start = time.monotonic()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (out, process.returncode) == (f"{['ServerFailed'] * 3}\n", 0), err
    assert time.monotonic() - start < 3


def test_closing_sessions_of_a_hanging_server_takes_a_second():
    program = (
        "import sys, envs.http as h\n"
        "from envs.http import agentgym\n"
        "for n in range(4): agentgym.SERVERS[sys.argv[1], 'textcraft' if n else 'babyai'].open |= {1, 2, 3}\n"
    )
    with raw_server(drip(OK, b"X: y\r\n")) as server:
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-c", program, server.url], cwd=ROOT, capture_output=True, text=True, timeout=30
        )
    assert (done.returncode, done.stderr) == (0, "")
    assert time.monotonic() - start < 3
