"""The server of OpenAI's protocol: its tokens are those of sampling in process, whatever runs beside them."""

import http.client
import json
import math
import shutil
import subprocess
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import cases
from conftest import FUZZ, run_program
from hostile import is_plain, modest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_http_fuzz import JUNK

import lora
from envs.serve import Stream
from envs.serve.access import BadRequest
from models import CausalLM, load_model, load_tokenizer
from models.engine import Engine
from models.random import fold_all
from models.weights import TINY
from rl.config.refusals import Refusal
from rl.serve import __main__ as program
from rl.serve import protocol
from rl.serve.sampler import Request, Rows, random_states
from rl.serve.text import Text

pytestmark = pytest.mark.all_only

ROOT = Path(__file__).parents[2]
PROMPT = {"prompt": [5, 6, 7], "max_tokens": 4}
CASES = cases("rl_serve")


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """Return the folders of two adapters that change what is sampled: of other ranks, on other layers."""
    found = {}
    for name, r, targets in (("one", 4, "all-linear"), ("two.5", 3, ["q_proj", "down_proj"])):
        model = load_model("tiny")
        torch.manual_seed(r)
        lora.inject(model, r, 16, targets=targets)
        for _, layer in lora.lora_layers(model):
            torch.nn.init.normal_(layer.adapter.B, std=0.05)
        found[name] = tmp_path_factory.mktemp("adapters") / name
        lora.save_adapter(model, found[name], str(TINY.resolve()))
    return found


@contextmanager
def serving(*words: str):
    """Run a server of the embedded model in threads; yield it with its sampler."""
    model, keys = program.parse(["port=0", "rows=8", "max_len=256", *words])
    sampler = program.load(model, keys.rows, keys.queue)
    server = program.listen(model.model, keys, sampler)
    server.sampler = sampler
    sampler.start()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        sampler.stop()


@pytest.fixture(scope="module")
def server(folders):
    with serving("adapter=" + ",".join(f"{name}={folder}" for name, folder in folders.items())) as server:
        yield server


def send(server, path: str, body: dict | None = None, headers=()) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=30)
    connection.request(
        "GET" if body is None else "POST", path, None if body is None else json.dumps(body), dict(headers)
    )
    return connection.getresponse()


def ask(server, path: str, body: dict | None = None, headers=()) -> tuple[int, dict]:
    answer = send(server, path, body, headers)
    return answer.status, json.loads(answer.read())


def choices(server, path="/v1/completions", **body) -> list[dict]:
    status, said = ask(server, path, body)
    assert status == 200, said
    return said["choices"]


def events(server, path="/v1/completions", **body) -> list[dict]:
    """Return the chunks of a streamed reply."""
    answer = send(server, path, {**body, "stream": True})
    lines = [line.removeprefix("data: ") for line in answer.read().decode().split("\n\n") if line]
    assert answer.status == 200 and lines[-1] == "[DONE]", lines
    return [json.loads(line) for line in lines[:-1]]


@cache
def model_of(folder: Path | None) -> CausalLM:
    model = load_model("tiny")
    if folder:
        lora.load_adapter(model, folder)
    return model


def in_process(folder: Path | None, prompts: list[list[int]], new: int, temperature: float) -> list:
    """Return the turns that an engine samples for keys (0, 0), (0, 1), ..."""
    engine = Engine(model_of(folder), len(prompts), 256)
    for number, ids in enumerate(prompts):
        engine.feed(engine.open((0, number)), ids)
    rows = {row.slot: row for row in engine.run(new, temperature, load_tokenizer("tiny").eos_ids)}
    return [rows[slot] for slot in range(len(prompts))]


def test_replies_are_those_of_sampling_in_process(server, folders):
    """30 requests at once, for the base and two adapters, at two temperatures."""
    prompts = [[(7 * i + 3 * t) % 500 for t in range(1 + 5 * i)] for i in range(5)]
    cases = [(name, t, i) for name in ("tiny", *folders) for t in (1.0, 0.7) for i in range(5)]

    def served(case):
        name, temperature, i = case
        body = {"model": name, "prompt": prompts[i], "max_tokens": 6, "temperature": temperature}
        body |= {"logprobs": 0, "return_token_ids": True, "random_state": int(fold_all([(0, i, 0)]))}
        return choices(server, **body)[0]

    with ThreadPoolExecutor(30) as pool:
        found = dict(zip(cases, pool.map(served, cases), strict=True))
    for name in ("tiny", *folders):
        for temperature in (1.0, 0.7):
            for i, row in enumerate(in_process(folders.get(name), prompts, 6, temperature)):
                said = found[name, temperature, i]
                assert said["token_ids"] == row.ids and said["prompt_token_ids"] == prompts[i]
                assert said["logprobs"]["token_logprobs"] == row.logprobs
                assert said["finish_reason"] == {"stop": "stop", "length": "length"}[row.stop_reason]


def test_a_conversation_goes_on_with_cached_keys_and_the_same_bits(server):
    state, ids, said = int(fold_all([(0, 0, 0)])), list(range(40, 60)), []
    for turn in range(3):
        body = {"prompt": ids, "max_tokens": 6, "random_state": state, "logprobs": 0, "return_token_ids": True}
        status, reply = ask(server, "/v1/completions", body)
        assert status == 200
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == (len(ids) - 4 if turn else 0) or (turn == 0 and cached < len(ids))
        [choice] = reply["choices"]
        [row] = in_process(None, [ids], 6, 1.0)
        assert (choice["token_ids"], choice["logprobs"]["token_logprobs"]) == (row.ids, row.logprobs)
        said.append(choice["token_ids"])
        ids = ids + choice["token_ids"] + [9, 8, 7]
    [again] = choices(server, prompt=ids[:20], max_tokens=6, random_state=state, return_token_ids=True)
    assert again["token_ids"] == said[0]


def replies(rows: Rows, *requests: Request) -> list[tuple[list[int], list[float]]]:
    """Return the sampled ids and log-probabilities of requests that are admitted together."""
    rows.admit(deque(requests))
    while rows.running:
        for row in rows.step(0, 0.0, frozenset()) or ():
            rows.finish(row.slot, row.stop_reason)
    return [(request.sampled, request.logprobs) for request in requests]


def test_a_kept_slot_is_not_cut_while_another_waits_to_copy_from_it():
    """The new prompt drops the long sequence and waits for the short one, which the last prompt would continue."""
    common, rows = list(range(90)), Rows(model_of(None), load_tokenizer("tiny"), 2, 256)
    request = lambda ids, new=3: Request(ids, None, new, 0.0, 0, frozenset())  # noqa: E731
    replies(rows, request(common + [91] * 8, 5), request(common + [92] * 110))
    prompts = [common + [93] * 5, common[:55] + [94] * 100]
    found = replies(rows, *map(request, prompts))
    for ids, reply in zip(prompts, found, strict=True):
        assert [reply] == replies(Rows(model_of(None), load_tokenizer("tiny"), 1, 256), request(ids))


def test_equal_prompts_are_computed_once(server, monkeypatch):
    counted, real = [], Engine._prefill
    monkeypatch.setattr(
        Engine, "_prefill", lambda self, counts: (counted.append(sum(counts.values())), real(self, counts))
    )
    prompt = list(range(100, 150))
    found = choices(server, prompt=prompt, n=4, max_tokens=5, seed=3, return_token_ids=True)
    assert sum(counted) == len(prompt) - 1
    assert len({tuple(choice["token_ids"]) for choice in found}) == 4
    assert [choice["index"] for choice in found] == [0, 1, 2, 3]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_streamed_parts_are_the_whole_reply(server, path):
    chat = path.endswith("chat/completions")
    body = {"messages": [{"role": "user", "content": "Goal: a door"}]} if chat else {"prompt": "Goal: a door"}
    body |= {"max_tokens": 30, "seed": 4, "temperature": 2.0, "n": 2, "ignore_eos": True}
    whole = choices(server, path, **body)
    parts = events(server, path, **body, stream_options={"include_usage": True})
    assert parts[-1]["usage"]["completion_tokens"] == 60 and not parts[-1]["choices"]
    for one in whole:
        mine = [choice for part in parts for choice in part["choices"] if choice["index"] == one["index"]]
        texts = [choice["delta"].get("content", "") if chat else choice["text"] for choice in mine]
        assert "".join(texts) == (one["message"]["content"] if chat else one["text"])
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["length"]
    assert not chat or parts[0]["choices"][0]["delta"]["role"] == "assistant"


def test_text_comes_in_parts_that_make_the_whole():
    """Also where a character's bytes are tokens of their own."""
    tokenizer = load_tokenizer("tiny")
    for words in ("naïve 木 🪵 door", "  two  spaces ", "plain"):
        ids = tokenizer.encode(words)
        for size in (1, 2, 3):
            text = Text(tokenizer)
            parts = [text.add(ids[i : i + size]) for i in range(0, len(ids), size)]
            assert "".join(parts) + text.add([], last=True) == tokenizer.decode(ids) == words
            assert all("\ufffd" not in part for part in parts)


def test_a_stop_text_ends_the_reply_and_is_not_shown(server):
    body = {"prompt": "Goal: a door", "max_tokens": 60, "seed": 11, "temperature": 1.5, "ignore_eos": True}
    whole = choices(server, **body)[0]["text"]
    stop = whole[20:23]
    cut = choices(server, **body, stop=["never said", stop])[0]
    assert cut["text"] == whole[: whole.index(stop)] and cut["finish_reason"] == "stop"
    parts = [part["choices"][0]["text"] for part in events(server, **body, stop=stop)]
    assert "".join(parts) == cut["text"]


def test_greedy_and_truncated_sampling(server):
    """top_k=1 is greedy, and so is a tiny top_p; alternatives begin with the greedy token."""
    greedy = choices(server, prompt=[5, 6, 7], max_tokens=8, temperature=0, logprobs=3, return_token_ids=True)[0]
    for how in ({"top_k": 1}, {"top_p": 1e-6}):
        assert (
            choices(server, prompt=[5, 6, 7], max_tokens=8, return_token_ids=True, **how)[0]["token_ids"]
            == (greedy["token_ids"])
        )
    tops, said = greedy["logprobs"]["top_logprobs"], greedy["logprobs"]
    assert [next(iter(top)) for top in tops] == said["tokens"] and all(len(top) == 3 for top in tops)
    assert [next(iter(top.values())) for top in tops] == pytest.approx(said["token_logprobs"], abs=1e-5)


def test_alternatives_of_a_sure_reply_are_all_there(server, monkeypatch):
    """Without top_k and top_p nothing is left out, however unlikely it is."""
    monkeypatch.setattr("rl.serve.sampler.head_logits", peaked)
    said = choices(server, prompt=[5, 6, 7], max_tokens=2, seed=1, logprobs=5)[0]["logprobs"]
    assert all(len(top) == 5 for top in said["top_logprobs"])


def peaked(hidden_BD, weight_VD, temperature):
    logits_BV = torch.zeros(len(hidden_BD), len(weight_VD))
    logits_BV[:, 7] = 60.0
    return logits_BV


@pytest.mark.parametrize("how", [{"top_k": 3}, {"top_p": 0.3}, {"top_k": 1}])
def test_alternatives_are_of_the_distribution_that_samples(how, server):
    """Tokens that cannot be sampled are none; probabilities sum to one if all are listed."""
    said = choices(server, prompt=[5, 6, 7], max_tokens=8, seed=1, logprobs=20, **how)[0]["logprobs"]
    for token, logprob, top in zip(said["tokens"], said["token_logprobs"], said["top_logprobs"], strict=True):
        assert top[token] == pytest.approx(logprob, abs=1e-5)
        if len(top) < 20:
            assert sum(map(math.exp, top.values())) == pytest.approx(1, abs=1e-4)
    assert max(map(len, said["top_logprobs"])) <= how.get("top_k", 20)


def test_a_full_context_ends_the_reply(server):
    [choice] = choices(server, prompt=list(range(250)), max_tokens=50, ignore_eos=True, return_token_ids=True)
    assert choice["finish_reason"] == "length" and len(choice["token_ids"]) == 6


BAD = {
    **CASES["bad requests"],
    "too long a prompt": ("/v1/completions", {"prompt": [1] * 256}, 400),
    "half a character": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "\ud800"}], "n": 0}, 400),
    "a huge temperature": ("/v1/completions", {**PROMPT, "temperature": 10**400}, 400),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_requests_get_one_line(server, case):
    path, body, status = BAD[case]
    found, said = ask(server, path, body)
    assert found == status and said["error"]["code"] == status, said
    assert said["error"]["message"] and "\n" not in said["error"]["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"prompt": ""}, "the prompt is empty: it needs a token at least"),
        ({"stop": [5]}, "stop must be a text or a list of texts, not [5]"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids must be a list of ids, not ['a']"),
        ({"stream_options": {"include_usage": True}}, "stream_options goes with stream=true"),
    ],
    ids=str,
)
def test_a_wrong_field_says_what_is_wanted(server, body, said):
    status, answer = ask(server, "/v1/completions", {**PROMPT, **body})
    assert status == 400 and said in answer["error"]["message"], answer


LONG = {
    "a prompt": ("/v1/completions", {"prompt": "a" * 8_000_000}),
    "many prompts": ("/v1/completions", {"prompt": ["a" * 15_000] * 500}),
    "a message": ("/v1/chat/completions", {"messages": [{"role": "user", "content": " " * 8_000_000}]}),
    "many short messages": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}] * 90_000}),
    "many messages": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a" * 10_000}] * 700}),
}


@pytest.mark.parametrize("case", LONG)
def test_a_prompt_that_cannot_fit_costs_little(server, case):
    """Eight million characters took nine seconds to encode, and other clients waited for them."""
    path, body = LONG[case]
    with modest(seconds=1):
        status, said = ask(server, path, body)
    assert status == 400 and "the maximum context length is 256 tokens, and the prompt has " in said["error"]["message"]


RIGHT = {
    **{"prompt": [5, 6], "messages": [{"role": "user", "content": "?"}], "model": "one", "max_tokens": 4, "n": 2},
    **{"temperature": 0.5, "top_p": 0.9, "top_k": 3, "seed": 1, "random_state": 2, "stop": ["x"], "top_logprobs": 2},
    **{"stop_token_ids": [3], "stream": True, "stream_options": {"include_usage": True}, "echo": False, "tools": []},
    **{"chat_template_kwargs": {"enable_thinking": False}, "lora_name": "one", "lora_path": "/nowhere"},
    **{"return_token_ids": True, "ignore_eos": True, "max_completion_tokens": 3, "logit_bias": {}},
}


@settings(max_examples=FUZZ * 200 or 70, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    path=st.sampled_from(["completions", "chat/completions", "load_lora_adapter", "unload_lora_adapter"]),
    name=st.sampled_from([*RIGHT, "logprobs", "role", "content"]),
    junk=JUNK,
)
def test_a_request_with_a_wrong_field_is_a_reply_or_one_line(server, path, name, junk, monkeypatch):
    """Nothing is sampled."""
    monkeypatch.setattr(server.sampler, "submit", lambda *_: None)
    wrong = {"messages": [RIGHT["messages"][0] | {name: junk}]} if name in ("role", "content") else {name: junk}
    try:
        reply = server.answer("POST", f"/v1/{path}", RIGHT | wrong, "127.0.0.1")
    except BadRequest as bad:
        status, line = bad.args
        assert 400 <= status < 500 and is_plain(line, 1000)
    else:
        assert isinstance(reply, Stream)


def test_adapters_are_loaded_and_unloaded_while_others_sample(folders):
    with serving("load=true") as server:
        body = {"prompt": [5, 6, 7], "max_tokens": 120, "ignore_eos": True, "seed": 1, "return_token_ids": True}
        with ThreadPoolExecutor(2) as pool:
            long = pool.submit(choices, server, **body)
            load = {"lora_name": "new/1.0", "lora_path": str(folders["one"])}
            assert ask(server, "/v1/load_lora_adapter", load)[0] == 200
            named = choices(server, model="new/1.0", prompt=[5, 6, 7], max_tokens=9, seed=1, return_token_ids=True)
            assert ask(server, "/v1/load_lora_adapter", load)[0] == 400  # the name is taken
            slow = pool.submit(ask, server, "/v1/completions", {**body, "model": "new/1.0"})
            time.sleep(0.1)
            assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "new/1.0"})[0] == 200
            assert slow.result()[0] in (200, 404, 500)
            alone = choices(server, **body)
            assert long.result()[0]["token_ids"] == alone[0]["token_ids"]
        [row] = in_process(folders["one"], [[5, 6, 7]], 9, 1.0)
        assert len(named[0]["token_ids"]) <= 9 and named != alone and row.ids
        assert ask(server, "/v1/completions", {**PROMPT, "model": "new/1.0"})[0] == 404
        assert [model["id"] for model in ask(server, "/v1/models")[1]["data"]] == ["tiny"]
        assert not any(layer.adapters for _, layer in lora.lora_layers(server.sampler.model))
        missing = {"lora_name": "x", "lora_path": "/nowhere"}
        status, said = ask(server, "/v1/load_lora_adapter", missing)
        assert status == 400 and "/nowhere" in said["error"]["message"]


def test_more_requests_than_rows_are_all_answered(server):
    body = {"prompt": [5, 6, 7], "max_tokens": 10, "ignore_eos": True, "return_token_ids": True, "temperature": 3.0}
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda seed: events(server, **body, seed=seed), range(24)))
    ids = [[i for part in parts for choice in part["choices"] for i in choice["token_ids"]] for parts in found]
    assert all(len(one) == 10 for one in ids) and len(set(map(tuple, ids))) == 24


def test_a_full_queue_refuses(folders):
    with serving("rows=1", "queue=2") as server:
        body = {"prompt": [5, 6, 7], "max_tokens": 60, "ignore_eos": True}
        with ThreadPoolExecutor(12) as pool:
            found = [status for status, _ in pool.map(lambda _: ask(server, "/v1/completions", body), range(12))]
    assert set(found) == {200, 429}


def test_replies_that_never_find_room_are_not_asked_to_wait():
    with serving("rows=1", "queue=2") as server:
        status, said = ask(server, "/v1/completions", PROMPT | {"n": 3})
    assert status == 400 and said["error"]["message"] == "3 replies at once, and queue=2 may wait"


def test_a_models_name_may_be_quoted_or_left_out(server):
    assert ask(server, "/v1/models/two%2E5")[1]["id"] == "two.5"
    assert ask(server, "/v1/completions", PROMPT | {"model": None})[1]["model"] == "tiny"


def test_a_developer_is_the_system(server):
    said = []
    for role in ("developer", "system"):
        body = {"messages": [{"role": role, "content": "Be brief."}, {"role": "user", "content": "Hello"}], "seed": 1}
        said.append(choices(server, "/v1/chat/completions", **body, max_tokens=6)[0]["message"])
    assert said[0] == said[1]


def test_cached_tokens_of_several_replies_are_a_prompts_own(server):
    for _ in range(2):
        usage = ask(server, "/v1/completions", {"prompt": [*range(40, 60)], "max_tokens": 2, "n": 3})[1]["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"] == 20


def test_offsets_count_the_characters_of_tokens_also_where_text_is_held_back(server):
    body = {"prompt": "Goal", "max_tokens": 12, "temperature": 0, "logprobs": 0, "ignore_eos": True}
    [whole] = choices(server, **body)
    names = whole["logprobs"]["tokens"]
    stop = sorted({f"{name[-1]}\0" for name in names})[:4]  # the end of many tokens may begin one of these
    parts = [part["choices"][0]["logprobs"] for part in events(server, **body, stop=stop)]
    offsets = [n for part in parts if part for n in part["text_offset"]]
    assert offsets == whole["logprobs"]["text_offset"] == [len("".join(names[:n])) for n in range(len(names))]


def test_a_client_that_leaves_frees_its_row():
    with serving("max_len=4096") as server:
        connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
        body = {"prompt": [5, 6, 7], "max_tokens": 4000, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body))
        answer = connection.getresponse()
        answer.read(100)
        [request] = server.sampler.engines[None].running.values()
        answer.close()
        connection.close()
        ends = time.monotonic() + 10
        while not request.finish and time.monotonic() < ends:
            time.sleep(0.01)
        assert request.finish == "cancelled" and len(request.sampled) < 4000


def test_a_failure_ends_the_requests_under_way_and_no_others(server, monkeypatch, capfd):
    def fail(self, states):
        raise RuntimeError("out of memory, says the test")

    with monkeypatch.context() as patched:
        patched.setattr(Engine, "_hidden", fail)
        status, said = ask(server, "/v1/completions", PROMPT)
    assert status == 500 and "out of memory, says the test" in said["error"]["message"]
    assert "out of memory, says the test" in capfd.readouterr().err
    assert choices(server, **PROMPT)


def test_the_page_needs_no_key_and_may_load_nothing():
    """It comes to names of this machine alone, and its script asks the server that sent it."""
    with serving("key=secret-key") as server:
        page, models = send(server, "/?x=1"), send(server, "/v1/models")
        assert page.status == 200 and models.status == 401
        text, policy = page.read().decode(), page.headers["Content-Security-Policy"]
        assert page.headers["Content-Type"] == "text/html; charset=utf-8" and "/v1/chat/completions" in text
        assert "default-src 'none'" in policy and "connect-src 'self'" in policy
        assert "http:" not in text and "https:" not in text and "innerHTML" not in text
        status, said = ask(server, "/", headers={"Host": "example.com"})
        assert status == 403 and "not a name of this server" in said["error"]["message"]


@pytest.mark.skipif(not shutil.which("chromium"), reason="no Chromium on this machine")
def test_the_page_talks_in_a_browser(server):
    """Its console is empty, and the names of the server's models are in it."""
    words = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    place = "http://{}:{}/".format(*server.server_address)
    done = subprocess.run(["chromium", *words, "--enable-logging=stderr", place], capture_output=True, text=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    assert all(f">{name}</option>" in done.stdout for name in ("tiny", "one", "two.5"))


def test_a_key_is_asked_for():
    with serving("key=secret-key") as server:
        assert ask(server, "/v1/models")[0] == 401
        assert ask(server, "/v1/models", None, {"Authorization": "Bearer secret-kez"})[0] == 401
        assert ask(server, "/v1/models", None, {"Authorization": "Bearer secret-key"})[0] == 200
        assert ask(server, "/v1/models", None, {"Authorization": "bearer secret-key"})[0] == 200
        assert ask(server, "/v1/models", None, {"Authorization": "Bearer secret-key", "Host": "evil.com"})[0] == 403
        assert ask(server, "/health", None, {"Authorization": "Bearer secret-key", "Origin": "http://a.b"})[0] == 403


@pytest.mark.parametrize(("words", "line"), CASES["bad words"])
def test_bad_words_are_one_line(words, line):
    code, _, err = run_program("rl/serve/__main__.py", *words)
    assert code in (1, 2) and len(err.splitlines()) == 1 and line in err, err


def test_the_command_ends_with_one_line():
    """In a process of its own."""
    command = [sys.executable, "-m", "rl.serve", "prot=8000"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode in (1, 2) and len(done.stderr.splitlines()) == 1 and "key 'prot'" in done.stderr


def test_the_package_openai_works_as_a_client(server):
    openai = pytest.importorskip("openai")
    client = openai.OpenAI(base_url="http://{}:{}/v1".format(*server.server_address), api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny", "one", "two.5"]
    messages = [{"role": "user", "content": "Goal: a door"}]
    whole = client.chat.completions.create(model="one", messages=messages, max_tokens=9, seed=5, logprobs=True)
    parts = client.chat.completions.create(model="one", messages=messages, max_tokens=9, seed=5, stream=True)
    assert "".join(part.choices[0].delta.content or "" for part in parts) == whole.choices[0].message.content
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    done = client.completions.create(model="tiny", prompt=["a", "b"], max_tokens=3, extra_body={"top_k": 5})
    assert [choice.index for choice in done.choices] == [0, 1]
    with pytest.raises(openai.NotFoundError, match="there is no model"):
        client.completions.create(model="gpt-4", prompt="a")


def test_a_stop_text_of_several_tokens_is_found():
    tokenizer = load_tokenizer("tiny")
    request = Request([1], None, 9, 1.0, 0, frozenset(), stop=("door, t",))
    for token in tokenizer.encode("one door, two doors"):
        request.sampled.append(token)
        if request.matches(tokenizer):
            break
    assert "door, t" in tokenizer.decode(request.sampled)
    assert "door, t" not in tokenizer.decode(request.sampled[:-1])


def test_seeds_that_follow_each_other_have_different_numbers():
    """The numbers of seed 1 are not those of seed 0 in another order."""
    from models.random import fold, unit

    draws = []
    for seed in range(20):
        [state] = random_states(seed, None, 1)
        draws += unit(fold(torch.tensor(state), torch.arange(50))).tolist()
    assert len(set(draws)) == 1000 and abs(sum(draws) / 1000 - 0.5) < 0.04


def test_the_base_model_is_also_named_base(folders):
    """As in eval.py and rl.chat, so that a client need not know what the server serves."""
    spoken = protocol.Protocol(SimpleNamespace(adapters={"mine": None}, tokenizer=None), "tiny", {}, True)
    assert [spoken._known(name) for name in ("base", "tiny", "mine")] == ["tiny", "tiny", "mine"]
    with pytest.raises(BadRequest, match="must be a new name"):
        spoken._load({"lora_name": "base", "lora_path": "x"})
    keys, _ = program.parse([f"adapter=base={folders['one']}"])
    with pytest.raises(Refusal, match="adapter=base: the base model has this name"):
        program.load(keys, 1, 1)
