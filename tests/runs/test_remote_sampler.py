"""Episodes of a server (sampler=): the same as in process, and nothing learned from a server that errs."""

import json
import threading
import time
from concurrent.futures import wait
from functools import partial
from pathlib import Path

import pytest
from test_ranks import played
from test_rl_serve import serving

import train
from envs import textcraft
from envs.serve import Stream
from models.random import fold_all
from rl.config.refusals import Refusal
from rl.config.words import parse
from rl.remote import client as openai_client
from rl.remote import sampler

pytestmark = pytest.mark.all_only

WORDS = "algo=grpo grpo.kl_coef=0.01 grpo.group_size=4 epochs=2 eval_episodes=2 max_turns=2 max_new_tokens=10 "
WORDS += "episodes=8 batch_size=4 reward.rule=shaped max_len=256"


def run(folder: Path, *words: str) -> None:
    train.main(parse([*WORDS.split(), f"out={folder}", *words], "train.py"))


def metrics(folder: Path) -> list[dict]:
    found = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [record for record in found if "reward_mean" in record]


@pytest.fixture(scope="module")
def local(tmp_path_factory) -> Path:
    """Return the folder of a run that samples in process."""
    folder = tmp_path_factory.mktemp("local") / "run"
    run(folder)
    return folder


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(sampler, "Server", partial(openai_client.Server, retries=2))
    with serving("load=true", "rows=16", "max_len=256") as server:
        server.words = f"sampler=http://127.0.0.1:{server.server_address[1]}/v1"
        yield server


def with_fault(server, fault) -> list[str]:
    """Let fault(n, body, reply) answer the n-th asking for a completion; it returns the reply, another one, or raises.
    Return the list of what was asked."""
    real, asked, lock = server.answer, [], threading.Lock()

    def answer(method, path, body, client):
        if path != "/v1/completions":
            return real(method, path, body, client)
        with lock:
            asked.append(json.dumps(body))
            number = asked.count(asked[-1])
        stream = real(method, path, body, client)
        while not stream.ended:
            time.sleep(0.001)
        said = json.loads(b"".join(stream.parts).split(b"\r\n\r\n", 1)[1])
        return fault(number, body, said)

    server.answer = answer
    return asked


def test_episodes_and_updates_are_those_of_sampling_in_process(local, server, tmp_path):
    run(tmp_path / "run", server.words)
    for name in ("episodes.jsonl", "epoch_2/adapter_model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (local / name).read_bytes(), name
    assert [(r["remote_gap"], r["remote_weight_mean"]) for r in metrics(tmp_path / "run")] == [(0.0, 1.0)] * 2
    assert len(server.sampler.adapters) == 1 and len(list((tmp_path / "run/sampler").iterdir())) == 1


def test_replies_in_two_parts_and_histories_are_those_of_sampling_in_process(server, tmp_path):
    words = ["history=template", "max_thinking_tokens=4", "epochs=1", "eval_episodes=0"]
    run(tmp_path / "local", *words)
    run(tmp_path / "run", server.words, *words)
    episodes = (tmp_path / "local/episodes.jsonl").read_bytes()
    assert (tmp_path / "run/episodes.jsonl").read_bytes() == episodes and b'"kept"' in episodes


def no_answer(_said):
    raise RuntimeError("the test's server fails")


def cut(_said):
    stream = Stream(lambda: None)
    stream.put(b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{", end=True)
    return stream


def another_model(said):
    return {**said, "model": "base"}


def test_requests_are_repeated(local, server, tmp_path, capfd):
    """Every third request fails when it comes first, each in one of three ways."""
    faults, made = [no_answer, cut, another_model], set()

    def fault(number, body, said):
        if number > 1 or body["seed"] % 3:
            return said
        made.add(chosen := faults[body["seed"] // 3 % 3])
        return chosen(said)

    asked = with_fault(server, fault)
    run(tmp_path / "run", server.words, "eval_episodes=0", "epochs=1")
    assert (local / "episodes.jsonl").read_bytes().startswith((tmp_path / "run/episodes.jsonl").read_bytes())
    assert len(asked) > len(set(asked)) > 8 and made == set(faults)


def test_slow_replies_change_nothing(local, server, tmp_path):
    def slow(_number, body, said):
        time.sleep(body["seed"] % 5 / 50)
        return said

    with_fault(server, slow)
    run(tmp_path / "run", server.words, "eval_episodes=0", "epochs=1")
    assert (local / "episodes.jsonl").read_bytes().startswith((tmp_path / "run/episodes.jsonl").read_bytes())


def unusable(said: dict, case: str) -> dict:
    [choice] = said["choices"]
    ids, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
    changed = {
        "ids past the vocabulary": {"token_ids": [*ids[:-1], 10**6]},
        "a token too few": {"token_ids": ids[:-1]},
        "NaN": {"logprobs": {"token_logprobs": [float("nan")] * len(ids)}},
        "positive": {"logprobs": {"token_logprobs": [1.0] * len(ids)}},
        "text": {"logprobs": {"token_logprobs": ["-1"] * len(logprobs)}},
        "no log-probabilities": {"logprobs": None},
        "another prompt": {"prompt_token_ids": [1, 2, 3]},
        "no end": {"finish_reason": None},
    }
    return {**said, "choices": [{**choice, **changed[case]}]}


CASES = ["ids past the vocabulary", "a token too few", "NaN", "positive", "text", "no log-probabilities"]
CASES += ["another prompt", "no end"]


def test_an_unusable_reply_leaves_its_episode_out(server, tmp_path, capfd):
    """The first replies of every second episode are spoilt whenever they are asked for, each in a way of its own."""
    spoilt = {int(fold_all([(0, 2 * i, 0)])): case for i, case in enumerate(CASES)}

    def fault(_number, body, said):
        return unusable(said, spoilt[body["seed"]]) if body["seed"] in spoilt else said

    asked = with_fault(server, fault)
    run(tmp_path / "run", server.words, "epochs=1", "eval_episodes=0", "episodes=16")
    episodes = [json.loads(line) for line in (tmp_path / "run/episodes.jsonl").read_text().splitlines()]
    assert [e["infrastructure_failed"] for e in episodes] == [True, False] * 8
    [record] = metrics(tmp_path / "run")
    assert record["infrastructure_failed"] == record["left_out"] == 8 and record["remote_gap"] == 0
    for seed, case in spoilt.items():
        assert sum(json.loads(body)["seed"] == seed for body in asked) == sampler.ATTEMPTS, case
    printed = capfd.readouterr()
    assert "the sampler: ids that are not of the vocabulary" in printed.out + printed.err


def test_replies_of_another_adapter_are_not_learned_from(server, tmp_path, capfd):
    """The ids of some tasks' replies are replaced, and the log-probabilities stay: these episodes are left out."""

    def fault(_number, body, said):
        [choice] = said["choices"]
        ids = [17] * (len(choice["token_ids"]) - 1) + choice["token_ids"][-1:]
        return {**said, "choices": [{**choice, "token_ids": ids}]} if sum(body["prompt"][:30]) % 2 else said

    with_fault(server, fault)
    run(tmp_path / "run", server.words, "epochs=1", "eval_episodes=0", "strict=false", "grpo.group_size=2")
    [record] = metrics(tmp_path / "run")
    assert 0 < record["remote_far"] == record["left_out"] < 8
    assert "far from this adapter's; they are left out" in "".join(capfd.readouterr())


def test_a_server_of_another_base_ends_the_run(server, tmp_path):
    for name, p in server.sampler.model.named_parameters():
        if "mlp" in name:
            p.data.mul_(-1)
    with pytest.raises(ValueError, match="another base, or log-probabilities before"):
        run(tmp_path / "run", server.words, "eval_episodes=0")


def test_a_restarted_server_gets_the_adapter_again(local, server, tmp_path):
    count = iter(range(10**6))

    def fault(_number, _body, said):
        if next(count) == 2:  # before most second turns are asked for: at a later one no request may follow
            for name in list(server.sampler.adapters):
                server.sampler.call(lambda name=name: server.sampler.unload(name)).result()
        return said

    with_fault(server, fault)
    run(tmp_path / "run", server.words, "eval_episodes=0", "epochs=1")
    assert (local / "episodes.jsonl").read_bytes().startswith((tmp_path / "run/episodes.jsonl").read_bytes())
    assert next(count) > 10 and server.sampler.adapters


def test_a_server_that_is_gone_ends_the_run_which_goes_on_later(local, server, tmp_path, monkeypatch):
    monkeypatch.setattr(sampler, "Server", partial(openai_client.Server, retries=0))
    monkeypatch.setattr(sampler, "ATTEMPTS", 1)
    real = server.answer
    server.answer = None  # every request fails
    with pytest.raises((ValueError, ConnectionError)):
        run(tmp_path / "never", server.words)
    server.answer = real

    def fault(_number, body, said):
        if body["seed"] in seeds:
            raise RuntimeError("the test's server is gone")
        return said

    seeds = {int(fold_all([(2**31, i, turn)])) for i in range(9) for turn in range(9)}  # of evaluations
    with_fault(server, fault)
    with pytest.raises(ValueError, match="every one failed; the last: the sampler: "):
        run(tmp_path / "run", server.words)
    server.answer = real
    train.main(parse([f"resume={tmp_path}/run"], "train.py"))
    assert (tmp_path / "run/episodes.jsonl").read_bytes() == (local / "episodes.jsonl").read_bytes()


def seeds_of(epoch: int) -> set[int]:
    """Return the seeds of the requests of an epoch of WORDS, whose episodes have up to 8 turns."""
    return {int(fold_all([(0, i, turn)])) for i in range(8 * epoch - 8, 8 * epoch) for turn in range(8)}


def test_an_epoch_is_sampled_while_the_one_before_is_learned(local, server, tmp_path, monkeypatch):
    """The server answers requests of the second epoch only once the first update has begun. The episodes are of the
    weights before that update, and their advantages are weighted for it."""
    learned, begun, late, update, second = [], threading.Event(), [], train.update, seeds_of(epoch=2)

    def waits(_number, body, said):
        if body["seed"] in second and not begun.wait(20):
            late.append(body)
        return said

    def noted(state, *words):
        begun.set()
        learned.append(state.adapter_hash())
        return update(state, *words)

    with_fault(server, waits)
    monkeypatch.setattr(train, "update", noted)
    run(tmp_path / "run", server.words, "ahead=true", "epochs=3", "eval_every=1")
    assert not late, "nothing is sampled beside the update"
    episodes = [json.loads(line) for line in (tmp_path / "run/episodes.jsonl").read_text().splitlines()]
    assert [e["adapter_hash"] for e in episodes[::8]] == [learned[0], learned[0], learned[1]]
    assert (local / "episodes.jsonl").read_text().splitlines()[:8] == [json.dumps(e) for e in episodes[:8]]
    records = metrics(tmp_path / "run")
    assert [r["staleness"] for r in records] == [0, 2, 2] and not any(r["warnings"] for r in records)
    assert records[0]["remote_gap"] == 0 < records[1]["remote_gap"] and records[1]["remote_weight_mean"] != 1
    assert all(r["sampler_gap"] == 0 for r in records), "old log-probabilities are those of the present weights"
    assert len(server.sampler.adapters) == 2, "the last evaluation's adapter, and the one before, which may be sampling"


@pytest.mark.full
def test_two_ranks_sample_ahead_as_one(server, trials_folder, tmp_path):
    run(tmp_path / "alone", server.words, "ahead=true", "eval_every=1")
    played(tmp_path, 2, {"two": [f"{WORDS} {server.words} ahead=true eval_every=1 out=OUT"]}, trials_folder)
    for name in ("episodes.jsonl", "epoch_2/adapter_model.safetensors"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "alone" / name).read_bytes(), name
    assert [r["staleness"] for r in metrics(tmp_path / "two")] == [0, 2]


def test_sampling_ahead_ends_with_the_run(server, tmp_path, monkeypatch):
    sampling = []

    def failing(state, *_words):
        sampling.append(state.ahead.coming.played)
        raise ValueError("the test's update fails")

    def slow(_number, body, said):
        time.sleep(0.5 if body["seed"] in seeds else 0)
        return said

    seeds = seeds_of(epoch=2)
    monkeypatch.setattr(train, "update", failing)
    with_fault(server, slow)
    with pytest.raises(ValueError, match="the test's update fails"):
        run(tmp_path / "run", server.words, "ahead=true", "eval_episodes=0", "max_turns=8")
    began = time.monotonic()
    wait(sampling, timeout=30)
    assert isinstance(sampling[0].exception(), ValueError) and time.monotonic() - began < 3


def test_a_run_that_fails_does_not_ask_again(server, tmp_path, monkeypatch):
    """A thread whose request was ended would ask once more, and the interpreter would wait for it."""
    others_wait, released, lock = threading.Event(), threading.Event(), threading.Lock()

    def slow(_number, _body, said):
        with lock:
            first = not answered
            answered.append(1)
        if not first:
            others_wait.set()
            released.wait(20)
        return said

    def failing(_env, _action):
        others_wait.wait(20)
        raise Refusal("the scorer changed")

    answered: list[int] = []
    monkeypatch.setattr(textcraft.Env, "step", failing)
    asked = with_fault(server, slow)
    with pytest.raises(ValueError, match="the scorer changed"):
        run(tmp_path / "run", server.words, "eval_episodes=0")
    time.sleep(2)  # an ended request would be sent anew at once, or after half a second
    released.set()
    assert len(asked) == len(set(asked)) == 8


def test_a_server_that_cannot_serve_the_run_is_said_at_once(tmp_path):
    with serving("load=true", "max_len=100") as server:
        words = f"sampler=http://127.0.0.1:{server.server_address[1]}/v1"
        with pytest.raises(ValueError, match="takes 100 tokens, fewer than max_len=256"):
            run(tmp_path / "short", words)
    with serving() as server:
        words = f"sampler=http://127.0.0.1:{server.server_address[1]}/v1"
        with pytest.raises(ValueError, match="does not load the adapter"):
            run(tmp_path / "closed", words)
