"""eval.py server=: the answers of a server are judged like those from a model in this process."""

import json
import re
import shutil
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import eval as eval_program
from envs import planner, textcraft
from envs.requests import Request
from models import load_model, load_tokenizer
from models.weights import TINY
from rl.base_model import Base
from rl.config.arguments import ArgumentError
from rl.config.words import parse
from rl.evaluate import evaluate, held_out_tasks, judged, task_hashes, task_numbers
from rl.records import Episode
from rl.remote import client, evaluation
from rl.tasks import make_tasks

pytestmark = pytest.mark.all_only

OPENS = (  # a header that opens a thought, as DeepSeek-R1's
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1].strip() }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
WORDS = ["max_new_tokens=24", "max_len=768", "rollout_batch_size=4"]


class Handler(BaseHTTPRequestHandler):
    """The embedded model in the OpenAI protocol, as `base` and as `mine`."""

    asked: list = []
    failures: list = []  # (status, body) of the next answers
    lock = threading.Lock()

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send(200, {"data": [{"id": "base"}, {"id": "mine"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            self.asked.append((self.path, body))
            if self.failures:
                return self.send(*self.failures.pop(0))
            if self.path == "/v1/embeddings":
                asked = Request("embed", texts=body["input"])
            else:
                asked = Request("chat", body["messages"], None, body["max_tokens"], body["temperature"])
            [result] = self.base.answer({0: [(asked, (0, 0))]})[0]
        if result.vector:
            rows = [{"index": i, "embedding": vector} for i, vector in enumerate(result.vector)]
            return self.send(200, {"data": rows[::-1]})
        choice = {"message": {"content": result.text}, "finish_reason": "stop"}
        self.send(200, {"choices": [choice], "usage": {"completion_tokens": result.tokens}})

    def send(self, status: int, body) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data) + (body is None)))  # None: cut short
        self.end_headers()
        self.wfile.write(data)


class Impatient(threading.Event):
    """Retry without waiting."""

    def wait(self, timeout=None):
        return self.is_set()


@pytest.fixture(scope="module")
def here():
    """Return the model, its tokenizer, and a server of them."""
    model, tokenizer = load_model("tiny").eval(), load_tokenizer("tiny")
    Handler.base = Base(model, tokenizer, parse(WORDS))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield model, tokenizer, client.Server(f"http://127.0.0.1:{server.server_port}/v1", cancelled=Impatient())
    server.shutdown()


@pytest.fixture(autouse=True)
def nothing_asked():
    Handler.asked, Handler.failures = [], []


def read_back(tokenizer, episode) -> bool:
    """Return whether the text of each reply has the ids that were sampled."""
    replies = [list(map(int, episode.ids_T[turn.start : turn.stop])) for turn in episode.turns]
    return all(tokenizer.encode(tokenizer.decode(ids)) == ids[:-1] for ids in replies)  # the last ends the turn


@pytest.mark.parametrize("n", [6, pytest.param(12, marks=pytest.mark.full)])
@pytest.mark.parametrize("env", ["textcraft", "planner"])
def test_remote_evaluation_equals_the_local_one(env, n, here):
    """A server reads earlier replies as text, so a reply that the tokenizer would cut differently ends the equality."""
    model, tokenizer, server = here
    worker = ["planner.worker=model", "planner.similarity=embeddings"]
    cfg = replace(parse([*WORDS, f"env={env}", *worker]), model="base")
    there = evaluation.play_all(server, "mine", cfg, 0.0, held_out_tasks(cfg, n, 1, "val"))
    [(found, episodes)] = evaluate(model, tokenizer, cfg, (0.0,), "val", n)
    same = [i for i, episode in enumerate(episodes) if read_back(tokenizer, episode)]
    assert len(same) > 0.9 * n
    if len(same) == n:
        won = {"successes": [episode.success for episode in there], "task_hashes": task_hashes(there)}
        assert judged(there, 0.0, "val") | won | task_numbers(there) == found
    for mine, ours in ((there[i], episodes[i]) for i in same):
        assert sum(mine.action_mask_T) == sum(ours.action_mask_T)
        assert (mine.success, mine.score, mine.outcome) == (ours.success, ours.score, ours.outcome)
    models = {body["model"] for path, body in Handler.asked if path == "/v1/chat/completions"}
    assert models == ({"mine", "base"} if env == "planner" else {"mine"})  # the worker is the base


def test_request_goes_to_the_base_with_its_own_limits(here):
    answer = here[2].result("base", Request("chat", [{"role": "user", "content": "get 1 oak log"}], None, 3, 0.0), 7)
    assert answer.tokens <= 3
    assert Handler.asked[-1][1] == {
        **{"model": "base", "messages": [{"role": "user", "content": "get 1 oak log"}]},
        **{"max_tokens": 3, "temperature": 0.0, "top_p": 1.0},
    }
    both = here[2].result("base", Request("embed", texts=["two", "one log"]), 7).vector
    alone = [here[2].result("base", Request("embed", texts=[text]), 7).vector[0] for text in ("two", "one log")]
    assert [pytest.approx(vector, abs=1e-4) for vector in alone] == both and both[0] != both[1]


def first_task(env: str = "textcraft"):
    cfg = parse([*WORDS, f"env={env}", "planner.worker=model", "temperature=0.7"])
    return cfg, make_tasks(cfg, 0, 1, 1, "val", 0)[0]


def test_failed_requests_are_retried(here, capsys):
    cfg, task = first_task()
    whole = evaluation.play(here[2], "mine", cfg, 0.0, task)
    Handler.failures = [(503, {}), (429, {}), (200, []), (200, None), (500, {"error": "busy"})]
    assert evaluation.play(here[2], "mine", cfg, 0.0, task) == whole
    assert capsys.readouterr().err.count("trying again, 6 times") == 1


def spoken(text="x", tokens=3, finish="stop", **message) -> dict:
    choice = {"message": {"content": text, **message}, "finish_reason": finish}
    return {"choices": [choice], "usage": {"completion_tokens": tokens}}


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, {"choices": []}, "without text"),
        (200, {"choices": [{"message": {}}]}, "without text"),
        (200, {"error": {"message": "model overloaded"}}, "without text.*overloaded"),
        (200, spoken(finish=None), r"not that of a whole reply: \('x', None\)"),
        (200, spoken(finish="content_filter"), "not that of a whole reply"),
        (200, spoken(tokens=10**18), "a wrong number of tokens for max_tokens=24: 1000000000000000000"),
        (200, spoken(tokens=-1), "a wrong number of tokens for max_tokens=24: -1"),
        (200, spoken(tokens="3"), "a wrong number of tokens for max_tokens=24: '3'"),
        (200, spoken(text="x" * 20_000), "sent 20000 characters for max_tokens=24"),
        (200, spoken(text=["x"]), r"not that of a whole reply: \(\['x'\], 'stop'\)"),
        (200, spoken(text=None, tool_calls=[{"id": "1"}]), "calls of tools"),
        (400, {"error": {"code": "content_filter", "message": "filtered"}}, "filtered"),
        (422, {"error": "a validation of something else"}, "422"),
    ],
)
def test_an_odd_answer_leaves_its_episode_out(status, body, said, here, capsys):
    cfg, tasks = first_task()[0], held_out_tasks(first_task()[0], 6, 1, "val")
    Handler.failures = [(status, body)]
    played = evaluation.play_all(here[2], "mine", replace(cfg, rollout_batch_size=1), 0.0, tasks)
    assert [episode.infrastructure_failed for episode in played] == [True] + [False] * 5
    err = capsys.readouterr().err
    assert err.count("the episode is left out") == 1 and re.search(said, err)


def test_an_evaluation_ends_if_most_episodes_fail(here, capsys):
    cfg, tasks = first_task()[0], held_out_tasks(first_task()[0], 40, 1, "val")
    Handler.failures = [(400, {"error": "filtered"})] * 40
    with pytest.raises(ValueError, match="all 20 episodes that were tried failed"):
        evaluation.play_all(client.Server(here[2].url), "mine", replace(cfg, rollout_batch_size=1), 0.0, tasks)
    Handler.failures = []


def test_results_before_a_failure_are_saved(here, tmp_path):
    """Sampled play is saved when greedy play fails."""
    plays = []

    def play(cfg, temperature, tasks):
        if plays:
            raise ValueError("all 2 episodes that were tried failed")
        plays.append(1)
        return evaluation.play_all(here[2], "mine", cfg, temperature, tasks)

    words = [*WORDS, f"server={here[2].url}", "model=base", "adapter=mine", "n=2", f"json={tmp_path / 'x.json'}"]
    words += ["textcraft.prompt=short", "textcraft.difficulty=1", "textcraft.max_turns=2"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ValueError, match="all 2 episodes"):
        patch.setattr(eval_program, "evaluators_on_server", lambda *_: [("mine", play)])
        eval_program.main(*parse(words, "eval.py", eval_program.Keys))
    saved = json.loads((tmp_path / "x.json").read_text())
    assert [result["temperature"] for result in saved["results"]["mine"]] == [1.0]


def test_an_unknown_model_ends_the_evaluation_at_once(here):
    Handler.failures = [(404, {"message": "The model `x` does not exist"})]
    with pytest.raises(ValueError, match=r"404 .*does not exist"):
        evaluation.play(client.Server(here[2].url), "mine", *(first_task()[0], 0.0, first_task()[1]))
    Handler.failures = [(200, spoken()), (403, {"message": "requires moderation"})]
    server, (cfg, task) = client.Server(here[2].url), first_task()
    asked = ("mine", [{"role": "user", "content": "x"}], 24, 0.0, 7)
    assert server.chat(*asked)  # then one refused prompt is one episode
    assert evaluation.play(server, "mine", cfg, 0.0, task).infrastructure_failed


def test_parts_of_text_and_a_missing_count_are_read(here, capsys):
    parts = spoken(text=[{"type": "text", "text": "get 1 "}, {"type": "text", "text": "log"}])
    Handler.failures = [(200, parts), (200, parts | {"usage": None})]
    asked = ("mine", [{"role": "user", "content": "x"}], 24, 0.0, 7)
    assert [here[2].chat(*asked) for _ in range(2)] == [("get 1 log", tokens, "stop", 0) for tokens in (3, 0)]
    assert capsys.readouterr().err.count("counts no tokens") == 1


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 64 tokens",
        "the request exceeds the available context size",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 5000",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "The input is too long for this model",
        "too many tokens",
    ],
)
def test_servers_words_for_a_prompt_that_is_too_long(said, here):
    cfg, task = first_task()
    Handler.failures = [(422, {"error": said})]
    episode = evaluation.play(here[2], "mine", cfg, 0.0, task)
    assert episode.outcome == "timeout" and not episode.infrastructure_failed


@pytest.mark.parametrize("call", ["reset", "step"])
def test_an_environment_that_raises_leaves_its_episode_out(call, here, monkeypatch, capsys):
    """Whatever a grader raises: a number of thousands of digits, say."""
    calls = []
    original = getattr(textcraft.Env, call)

    def once(self, *args):
        calls.append(1)
        return int("9" * 5000) if len(calls) == 1 else original(self, *args)

    monkeypatch.setattr(textcraft.Env, call, once)
    cfg = replace(first_task()[0], rollout_batch_size=1)
    played = evaluation.play_all(here[2], "mine", cfg, 0.0, held_out_tasks(cfg, 4, 1, "val"))
    assert [episode.infrastructure_failed for episode in played] == [True] + [False] * 3
    assert "textcraft raised ValueError: Exceeds the limit" in capsys.readouterr().err


def test_unreachable_server_is_reported_after_all_attempts():
    with pytest.raises(ConnectionError, match=r"failed after 3 attempts: .*refused"):
        client.Server("http://127.0.0.1:9/v1", retries=2, cancelled=Impatient()).names()


TOO_LONG = (400, {"error": "This model's maximum context length is 64 tokens"})


def test_conversation_too_long_for_the_server_is_a_timeout(here):
    cfg, task = first_task()
    cfg = replace(cfg, reward=replace(cfg.reward, rule="binary", timeout=-3.0))
    Handler.failures = [TOO_LONG]
    episode = evaluation.play(here[2], "mine", cfg, 0.7, task)
    assert (episode.outcome, episode.truncated, episode.success, episode.score) == ("timeout", True, False, -3.0)
    Handler.failures = [TOO_LONG]
    assert (
        here[2].result("base", Request("chat", [{"role": "user", "content": "x"}], None, 3, 0.0), 7) == client.Result()
    )


def test_each_turn_has_its_own_reproducible_seed(here):
    cfg, task = first_task()
    for _ in range(2):
        evaluation.play(here[2], "mine", cfg, 0.7, task)
    seeds = [body["seed"] for _, body in Handler.asked]
    half = len(seeds) // 2
    assert half > 1 and seeds[:half] == seeds[half:] and len(set(seeds)) == half
    assert {body["temperature"] for _, body in Handler.asked} == {0.7}


def test_thoughts_do_not_reach_the_environment(here, monkeypatch):
    received = []
    monkeypatch.setattr(client.Server, "chat", lambda *_: ("<think>\nget?</think>\n\nno action", 5, "stop", 9))
    monkeypatch.setattr("envs.textcraft.Env.step", lambda _, text: received.append(text) or OVER)
    cfg, task = first_task()
    episode = evaluation.play(here[2], "mine", cfg, 0.0, task)
    assert received == ["no action"] and len(episode.action_mask_T) == 5


def test_thinking_false_reaches_the_servers_chat_template(here):
    server = client.Server(here[2].url, thinking=False)
    server.chat("mine", [{"role": "user", "content": "x"}], 3, 0.0, 7)
    server.result("base", Request("chat", [{"role": "user", "content": "x"}], None, 3, 0.0), 7)
    assert [body["chat_template_kwargs"] for _, body in Handler.asked] == [{"enable_thinking": False}] * 2


THOUGHT = "get 1 log? It gives four planks"


@pytest.mark.parametrize(
    ("text", "finish", "more", "answer"),
    [
        (THOUGHT, "length", {}, ""),
        (f"{THOUGHT}\n</think>\n\nget 1 log", "stop", {}, "get 1 log"),
        (f"{THOUGHT}\n</think>\n\nget 1", "length", {}, "get 1"),
        ("get 1", "length", {"reasoning_content": THOUGHT}, "get 1"),
        ("get 1", "length", {"reasoning": THOUGHT}, "get 1"),
        ("get 1 log", "stop", {}, "get 1 log"),
    ],
)
def test_a_thought_that_the_limit_cut_is_no_answer(text, finish, more, answer, here, monkeypatch, tmp_path):
    """The server's template opens the think block in the prompt, so the reply has no tag. A server that knows thoughts
    sends them apart (reasoning_content)."""
    received, (cfg, task) = [], first_task()
    monkeypatch.setattr("envs.textcraft.Env.step", lambda _, said: received.append(said) or OVER)
    shutil.copytree(TINY, folder := tmp_path / "model", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "chat_template.jinja").write_text(OPENS)
    for model in (str(folder), "base"):  # a name of the server alone has no template here
        opened = evaluation.opens_thought(replace(cfg, model=model))
        server = client.Server(here[2].url, opens_thought=opened)
        choice = {"message": {"content": text, **more}, "finish_reason": finish}
        Handler.failures = [(200, {"choices": [choice], "usage": {"completion_tokens": 5}})]
        evaluation.play(server, "mine", cfg, 0.0, task)
    assert received[0] == answer and opened is False
    assert received[1] == (answer or THOUGHT)


def test_a_hash_tells_tasks_of_one_seed_apart_and_equal_tasks_of_two_seeds_not():
    named = [replace(Episode("sat", seed, 0), task=task) for seed, task in ((1, "a"), (1, "b"), (2, "a"))]
    first, second, third = (task_hashes([episode]) for episode in named)
    assert first == third != second and task_hashes(named) == first + second + third
    assert task_hashes([Episode("sat", 1, 0)]) != task_hashes([Episode("sat", 2, 0)]), "without a name it is the seed"


def test_a_tokenizer_that_cannot_be_read_here_is_the_servers_alone(here, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    assert evaluation.opens_thought(replace(first_task()[0], model=str(tmp_path))) is False


def test_thinking_false_is_refused_where_the_servers_template_is_here(tmp_path, here):
    shutil.copytree(TINY, folder := tmp_path / "model", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    (folder / "chat_template.jinja").write_text(OPENS)
    words = [*WORDS, f"server={here[2].url}", f"model={folder}", "n=1", "thinking=false"]
    with pytest.raises(ValueError, match="opens <think> in every reply, also with thinking=false"):
        eval_program.main(*parse(words, "eval.py", eval_program.Keys))


def test_interrupt_does_not_wait_for_the_server():
    server = client.Server("http://127.0.0.1:9/v1")
    server.cancelled.set()
    with pytest.raises(ConnectionError, match="cancelled"):
        server.names()


@pytest.mark.parametrize("vector", [[], [1.0, float("nan")], ["a"], [10**400], 3, [1.0, 2.0, 3.0]])
def test_malformed_embeddings_end_the_evaluation(vector, here):
    rows = [{"index": 1, "embedding": [1.0, 2.0]}, {"index": 0, "embedding": vector}]
    Handler.failures = [(200, {"data": rows})]
    with pytest.raises(ValueError, match="no embeddings of base"):
        client.Server(here[2].url).result("base", Request("embed", texts=["a", "b"]), 7)


OVER = planner.Step("", 0.0, True, False, {"outcome": "incorrect", "success": False, "valid": True, "shaped": 0.0})


def test_embeddings_that_a_server_lacks_end_the_evaluation(here):
    Handler.failures = [(404, {"detail": "Not Found"})]
    with pytest.raises(ValueError, match="no embeddings of base"):
        client.Server(here[2].url).result("base", Request("embed", texts=["a"]), 7)


def test_the_program_compares_names_of_a_server(here, capsys, tmp_path):
    words = [*WORDS, f"server={here[2].url}", "model=base", "adapter=base,mine", "n=2", f"json={tmp_path / 'x.json'}"]
    words += ["textcraft.prompt=short", "textcraft.difficulty=1", "textcraft.max_turns=2"]
    eval_program.main(*parse(words, "eval.py", eval_program.Keys))
    output = capsys.readouterr().out.splitlines()
    assert [line.split(" success")[0] for line in output if ": test " in line] == [
        *("base: test sampled", "base: test greedy ", "mine: test sampled", "mine: test greedy "),
    ]
    assert sum("mine against base, " in line for line in output) == 2
    assert set(json.loads((tmp_path / "x.json").read_text())["results"]) == {"base", "mine"}
    with pytest.raises(ValueError, match="no model 'mnie'; it has base, mine"):
        eval_program.main(*parse([*words, "adapter=mnie"], "eval.py", eval_program.Keys))
    for url, said in (("localhost:8000", "is not a URL"), ("http://localhost:port/v1", "is not a URL")):
        keys = parse([f"server={url}"], "eval.py", eval_program.Keys)[1]
        with pytest.raises(ArgumentError, match=said):
            eval_program.check(keys, [f"server={url}", "model=base"], 1.0)
    keys = parse(["server=http://x/v1"], "eval.py", eval_program.Keys)[1]
    with pytest.raises(ArgumentError, match="needs model="):
        eval_program.check(keys, ["server=http://x/v1"], 1.0)
