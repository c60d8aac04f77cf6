"""Requests of environments to the base model: answered together, each result depends on its own request alone."""

import threading
from itertools import islice

import pytest
import torch
from tqdm import tqdm

import envs
import lora
from envs import textcraft
from envs.requests import Request
from models import load_model, load_tokenizer
from models.engine import Engine
from rl.base_model import Base, request_streams
from rl.batch import forward, make_batch
from rl.config.words import parse
from rl.data import demonstrations
from rl.rollout import rollout
from rl.tasks import make_tasks

pytestmark = pytest.mark.all_only

SILENT = tqdm(disable=True)
WORDS = "get 1 oak log"


def chat(text: str, max_tokens: int = 8, temperature: float = 0.0) -> Request:
    return Request("chat", messages=[{"role": "user", "content": text}], max_tokens=max_tokens, temperature=temperature)


class Asks(textcraft.Env):
    """TextCraft that makes requests in two rounds before each observation, and quotes the base's answers in it."""

    slow = False

    def step(self, action_text):
        self.said, self.action_text = [], action_text
        return self.asking(chat(action_text, 3), chat(action_text, 5, 0.7), chat(action_text, 5, 0.7))

    def asking(self, *requests):
        return envs.Step("", 0.0, False, False, {}, list(requests))

    def answer(self, results):
        self.said += results
        if len(self.said) == 3:
            texts = [result.text for result in self.said]
            return self.asking(Request("embed", texts=[self.action_text, *texts]), chat(texts[1] or "?", 4))
        step = super().step(self.action_text)
        note = " / ".join(result.text for result in self.said)
        note += f" {self.said[3].vector[0][0]:.17g} {[result.tokens for result in self.said]}"
        return envs.Step(f"{step.observation} {note}", step.reward, step.terminated, step.truncated, step.info)


@pytest.fixture(scope="module")
def tiny():
    """Return the embedded model with a nonzero adapter."""
    torch.manual_seed(0)
    model = load_model("tiny").eval()
    generator = torch.Generator().manual_seed(0)
    lora.inject(model, r=4)
    for _, layer in lora.lora_layers(model):
        layer.adapters["default"].B.data.normal_(0, 0.02, generator=generator)
    return model, load_tokenizer("tiny")


@pytest.fixture
def asks(monkeypatch):
    monkeypatch.setattr(textcraft, "Env", Asks)


def play(tiny, rows=6, count=6):
    cfg = parse([f"rollout_batch_size={rows}", "textcraft.max_turns=2", "max_new_tokens=4"])
    return rollout(*tiny, make_tasks(cfg, 0, count // 2, 2, "train", 0), cfg, 1.0, SILENT)


@pytest.fixture(scope="module")
def played(tiny):
    """Return six episodes of environments that make requests, played side by side."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(textcraft, "Env", Asks)
        return play(tiny)


def test_episode_with_requests_is_independent_of_neighbours(tiny, asks, played):
    assert [vars(e) for e in play(tiny, rows=3)] == [vars(e) for e in played]
    assert [vars(e) for e in play(tiny, rows=1, count=2)] == [vars(e) for e in played[:2]]
    assert any(len(e.turns) == 2 for e in played), "what the base said is in a prompt"


def test_slow_environments_make_requests_in_parallel(tiny, asks, played, monkeypatch):
    threads = set()

    def answer(self, results):
        threads.add(threading.current_thread())
        return whole(self, results)

    whole = Asks.answer
    monkeypatch.setattr(Asks, "slow", True)
    monkeypatch.setattr(Asks, "answer", answer)
    assert [vars(e) for e in play(tiny)] == [vars(e) for e in played]
    assert threading.main_thread() not in threads


def test_the_policys_log_probabilities_stay_exact(tiny, played):
    """The policy's engine keeps its keys and values while the base answers."""
    batch = make_batch(played)
    with torch.no_grad():
        assert torch.equal(forward(batch, tiny[0], 1.0).logprobs_N, batch.old_logprobs_N)
    assert {layer.active for _, layer in lora.lora_layers(tiny[0])} == {"default"}


def test_waiting_requests_are_answered_in_one_batch(tiny, asks, monkeypatch):
    rounds = []

    def counted(self, asking):
        rounds.append([len(pairs) for pairs in asking.values()])
        return whole(self, asking)

    whole = Base.answer
    monkeypatch.setattr(Base, "answer", counted)
    played = play(tiny)
    assert rounds[:2] == [[3] * 6, [2] * 6]
    assert len(rounds) == 2 * max(len(e.turns) for e in played)


def test_the_base_answers_and_not_the_policy(tiny):
    model, tokenizer = tiny
    cfg = parse([])
    bare = load_model("tiny").eval()
    texts = ["Goal: craft oak planks.", WORDS, "Reply with one command: get N ITEM"]
    requests = [chat(text, 12) for text in texts] + [Request("embed", texts=texts)]
    asking = {0: list(zip(requests, request_streams((0, 0)), strict=False))}
    mine, its = (Base(m, tokenizer, cfg).answer(asking)[0] for m in (model, bare))
    assert mine == its
    engine = Engine(model, 3, 768)
    for i, text in enumerate(texts):
        engine.feed(engine.open((0, i)), tokenizer.prompt([{"role": "user", "content": text}]))
    policy = {row.slot: tokenizer.answer(row.ids) for row in engine.run(12, 0.0, tokenizer.eos_ids)}
    assert [policy[i] for i in range(3)] != [result.text for result in mine[:3]], "the adapter changes what is said"


def test_replies_are_the_engines(tiny):
    """Text, number of tokens, and both limits."""
    model, tokenizer = tiny
    cfg = parse(["rollout_batch_size=2", "max_len=40"])
    requests = [chat("get 1 oak log " * 40, 5), chat(WORDS, 3), chat(WORDS, 30), chat(WORDS, 30, 1.0)]
    streams = [stream for _, stream in zip(requests, request_streams((3, 4)), strict=False)]
    full, short, long, sampled = Base(model, tokenizer, cfg).answer({7: list(zip(requests, streams, strict=True))})[7]
    assert (full.text, full.tokens) == ("", 0)
    assert short.tokens == 3 and long.text.startswith(short.text)
    prompt = tokenizer.prompt(requests[1].messages)
    with lora.adapters_off(model):
        for result, stream, temperature in ((long, (0, 0), 0.0), (sampled, streams[3], 1.0)):
            engine = Engine(model, 1, 40)
            engine.feed(engine.open(stream), prompt)
            (row,) = engine.run(30, temperature, tokenizer.eos_ids)
            assert (result.text, result.tokens) == (tokenizer.answer(row.ids), len(row.ids))


def test_every_request_has_its_own_random_stream():
    streams = [stream for key in ((0, 0), (0, 1), (1, 0)) for stream in islice(request_streams(key), 50)]
    assert len(set(streams)) == 150
    assert not any(0 <= episode < 2**31 for _, episode in streams), "those are the episodes' own"
    assert [next(request_streams((0, 5))) for _ in range(2)] == [next(request_streams((0, 5)))] * 2


def test_requests_of_one_episode_are_sampled_apart(tiny):
    cfg = parse([])
    pairs = list(zip([chat(WORDS, 20, 1.5)] * 6, request_streams((0, 0)), strict=False))
    texts = [result.text for result in Base(*tiny, cfg).answer({0: pairs})[0]]
    assert len(set(texts)) > 1


def test_embedding_is_the_mean_of_the_bases_hidden_states(tiny):
    model, tokenizer = tiny
    texts = ["", "stick", WORDS, "Goal: craft oak planks. " * 9, "\ud800<|im_end|>\x00é漢"]
    bare = load_model("tiny").eval()
    for micro_tokens in (1, 60, 8192):
        base = Base(model, tokenizer, parse([f"micro_tokens={micro_tokens}", "max_len=30"]))
        pairs = [(Request("embed", texts=texts), (0, 0)), (Request("embed", texts=texts[1:2]), (0, 0))]
        both, one = (result.vector for result in base.answer({0: pairs})[0])
        assert both[0] == [0.0] * model.config.hidden_size and one == both[1:2]
        for text, vector in zip(texts[1:], both[1:], strict=True):
            with torch.no_grad():
                hidden_TD = bare(torch.tensor([tokenizer.encode(text)[:30]]))[0]
            assert vector == hidden_TD.double().mean(0).tolist()


def test_request_without_a_model_is_one_line(tiny, asks):
    cfg = parse([])
    with pytest.raises(ValueError, match=r"^a request must be of kind chat or embed, not 'draw'$"):
        Base(*tiny, cfg).answer({0: [(Request("draw"), (0, 0))]})
    with pytest.raises(ValueError, match=r"^an environment asks the base model, and there is none to answer$"):
        demonstrations(tiny[1], make_tasks(cfg, 0, 2, 1, "train", 0), cfg, SILENT)


def test_demonstrations_get_the_observations_of_rollouts(tiny, asks):
    """With the expert's actions, answered alone, the observations are the same, the base's words included."""
    cfg = parse(["textcraft.difficulty=1", "textcraft.max_turns=2"])
    (model, tokenizer), base = tiny, Base(*tiny, cfg)
    tasks = make_tasks(cfg, 0, 3, 1, "train", 0)
    played = demonstrations(tokenizer, tasks, cfg, SILENT, model)
    for task, episode in zip(tasks, played, strict=True):
        env = Asks(cfg.environments["textcraft"])
        ids, streams = tokenizer.prompt(env.reset(task.seed, task.split)), request_streams(task.key)
        for turn in episode.turns:
            assert episode.ids_T[: turn.start] == ids
            step = env.step(env.oracle())
            while step.requests:
                step = env.answer(base.answer({0: list(zip(step.requests, streams, strict=False))})[0])
            ids = episode.ids_T[: turn.stop]
            ids = ids + tokenizer.follow_up(ids[-1], [{"role": "user", "content": step.observation}])
        assert episode.success == step.info["success"]
    assert vars(demonstrations(tokenizer, tasks[2:], cfg, SILENT, model)[0]) == vars(played[2])


def test_environment_failing_on_an_answer_is_left_out(tiny, played, monkeypatch):
    class Fails(Asks):
        def reset(self, seed, split="train"):
            self.fails = seed % 2 == 1
            return super().reset(seed, split)

        def answer(self, results):
            if self.fails:
                raise envs.EnvironmentFailed("gone")
            return super().answer(results)

    monkeypatch.setattr(textcraft, "Env", Fails)
    now = play(tiny)
    failed = [e.infrastructure_failed for e in now]
    assert 0 < sum(failed) < 6 and failed == [e.seed % 2 == 1 for e in now]
    assert all(e.infrastructure_failed or vars(e) == vars(then) for e, then in zip(now, played, strict=True))
