"""Checks that a run does not learn nonsense: each finds its sign, and none finds one in a healthy run."""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import random_model, run_program
from safetensors.torch import load_file, save_file
from tqdm import tqdm

import envs
import lora
import train
from models import load_model, load_tokenizer
from models.logprob import token_logprobs
from models.weights import TINY
from rl.batch import forward, make_batch
from rl.config import fields as config
from rl.config.refusals import RECIPES
from rl.config.words import parse
from rl.records import Episode, StepResult
from rl.rollout import rollout
from rl.run import health, watch
from rl.run.log import rollout_stats
from rl.run.state import TrainState
from rl.stats import jeffreys
from rl.tasks import make_tasks
from rl.update import make_optimizer

SMALL = "algo=grpo epochs=2 episodes=8 batch_size=8 max_turns=2 max_new_tokens=8 eval_episodes=0 lora.r=2"
SMALL = f"{SMALL} grpo.group_size=4 temperature=1.5 reward.rule=shaped threads=1 products=plain".split()


@pytest.fixture(scope="module")
def tiny():
    return load_model("tiny"), load_tokenizer("tiny")


def epochs(count: int, **numbers) -> list[dict]:
    """Return the records of epochs that show no sign; `numbers` change every one."""
    healthy = {"episodes": 128, "reward_mean": 0.5, "reward_std": 0.5, "accuracy": 0.5, "cut_by_length": 3}
    healthy |= {"turns_mean": 2.0, "invalid_actions": 0.1, "entropy": 0.5, "approx_kl": 0.01, "clip_fraction": 0.1}
    healthy["sampler_gap"] = 0.0
    return [{"epoch": i + 1, "tasks": f"{i:06x}", **healthy, **numbers} for i in range(count)]


def overlapping(number: int) -> list[dict]:
    """Two epochs of four tasks, of which the second has `number` of the first."""
    second = [f"{i:06x}" for i in range(4 - number, 8 - number)]
    return [epochs(1, tasks="".join(f"{i:06x}" for i in range(4)))[0], epochs(2, tasks="".join(second))[1]]


def epoch_records(run: Path) -> list[dict]:
    """Return the epochs' lines of a run's metrics."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record for record in records if "loss" in record]


def played(group: int, seed: int, ids=(1, 2, 3), **fields) -> Episode:
    episode = Episode("textcraft", seed, group, **fields)
    episode.append(list(ids))
    episode.append_turn([4, 5], [-1.0, -1.0], "stop")
    return episode


# ---- signs in the metrics of several epochs ----

EQUAL = {"reward_mean": 0.0, "reward_std": 0.0, "accuracy": 0.0}
CUT = {"cut_by_length": 256, "accuracy": 0.0}
INVALID = {"invalid_actions": 1.0, "accuracy": 0.0}
LEARNED_BY_HEART = [*epochs(1, sampler_gap=None), *epochs(3, entropy=1e-3, sampler_gap=None)]  # sft, a weak expert
COLLAPSED = [*epochs(1), *epochs(3, entropy=1e-3)]


@pytest.mark.parametrize(
    ("check", "records", "said"),
    [
        (health.equal_rewards, epochs(5, **EQUAL), "every episode of 5 epochs has the reward 0"),
        (health.equal_rewards, epochs(4, **EQUAL), None),
        (health.equal_rewards, epochs(5, **EQUAL | {"episodes": 1}), None),
        (health.equal_rewards, epochs(8, **EQUAL | {"episodes": 64}), "every episode of 8 epochs has the reward 0"),
        (health.equal_rewards, epochs(5, **EQUAL | {"reward_mean": 1.0, "accuracy": 1.0}), None),
        (health.equal_rewards, [*epochs(4, **EQUAL), *epochs(1)], None),
        (health.all_cut, epochs(3, **CUT), "every reply of 3 epochs was cut"),
        (health.all_cut, epochs(2, **CUT), None),
        (health.all_cut, epochs(3, **CUT | {"accuracy": 0.1}), None),
        (health.all_cut, [*epochs(2, **CUT), *epochs(1)], None),
        (health.invalid_actions, epochs(3, **INVALID), "understood hardly an action in 3 epochs"),
        (health.invalid_actions, [*epochs(2, **INVALID), *epochs(1)], None),
        (health.invalid_actions, epochs(99, **INVALID, episodes=1), None),
        (health.invalid_actions, epochs(100, **INVALID, episodes=1), "in 100 epochs"),
        (health.invalid_actions, [*epochs(1), *epochs(99, **INVALID, episodes=1)], None),
        (health.all_cut, epochs(99, **CUT | {"cut_by_length": 2, "episodes": 1}), None),
        (health.all_cut, epochs(100, **CUT | {"cut_by_length": 2, "episodes": 1}), "every reply of 100 epochs"),
        (health.ratio, epochs(99, clip_fraction=0.9, episodes=1), None),
        (health.ratio, epochs(100, clip_fraction=0.9, episodes=1), "in 100 epochs"),
        (health.ratio, epochs(3, clip_fraction=0.9), "lr is too high"),
        (health.ratio, epochs(3, approx_kl=2.0), "lr is too high"),
        (health.ratio, epochs(3, approx_kl=float("nan")), "lr is too high"),
        (health.ratio, epochs(2, approx_kl=2.0), None),
        (health.ratio, epochs(3, approx_kl=2.0, sampler_gap=None), None),
        (health.repeated_tasks, epochs(3, tasks="abcdef"), "1 of 1 tasks are those of epoch 1 again"),
        (health.repeated_tasks, overlapping(1), None),
        (health.repeated_tasks, overlapping(2), "2 of 4 tasks are those of epoch 1 again"),
        (health.repeated_tasks, overlapping(3), "3 of 4 tasks are those of epoch 1 again"),
        (health.repeated_tasks, epochs(3), None),
        (lambda records: health.entropy(records, 1536), COLLAPSED, "has collapsed"),
        (lambda records: health.entropy(records, 1536), [*epochs(1), *epochs(99, entropy=1e-3, episodes=1)], None),
        (lambda records: health.entropy(records, 1536), epochs(4, entropy=1e-3), None),
        (lambda records: health.entropy(records, 1536), LEARNED_BY_HEART, None),
        (lambda records: health.entropy(records, 1536), [*epochs(1), *epochs(3, entropy=0, accuracy=0.95)], None),
        (lambda records: health.entropy(records, 1536), [*epochs(1), *epochs(1, entropy=6.5)], "at random"),
        (lambda records: health.entropy(records, 1536), epochs(3, entropy=7.3), None),
    ],
)
def test_signs_in_the_metrics_of_epochs(check, records, said):
    found = check(records)
    assert found is None if said is None else said in found


def rate(success: float, n: int = 200) -> dict:
    """Return the result of an evaluation."""
    low, high = jeffreys(round(success * n), n)
    return {"success": success, "low": low, "high": high, "temperature": 1.0}


@pytest.mark.parametrize(
    ("first", "now", "said"),
    [
        (rate(0.73), rate(0.225), "is 22.5% and was 73.0% before training: lr is too high"),
        (rate(0.73), rate(0.57), "is 57.0%"),
        (rate(0.73), rate(0.61), None),
        (rate(0.73, 20), rate(0.4, 20), None),
        (rate(0.1), rate(0.9), None),
        (rate(0.0), rate(0.0), None),
    ],
)
def test_a_fall_of_held_out_success_is_found(first, now, said):
    found = health.held_out(first, now)
    assert found is None if said is None else said in found


def test_a_strict_run_ends_at_a_fall_and_again_when_it_is_resumed(tmp_path, capsys):
    first, fallen = ({"epoch": 1, "step": 1, "eval": rate(success)} for success in (0.73, 0.225))
    greedy = {"eval": {**rate(0.0), "temperature": 0.0}}
    epoch = Epoch(tmp_path)
    epoch.begin()
    epoch.state.watch.evaluated(epoch.state, [first, greedy], epoch.cfg)
    epoch.state.watch.evaluated(epoch.state, [first, greedy], epoch.cfg)
    with pytest.raises(watch.Nonsense, match="success on held-out tasks is 22"):
        epoch.state.watch.evaluated(epoch.state, [fallen], epoch.cfg)
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (first, first, fallen)))
    with pytest.raises(watch.Nonsense, match="start: success on held-out tasks is 22"):
        Epoch(tmp_path).begin()
    warned = Epoch(tmp_path, "strict=false")
    warned.begin()
    assert warned.state.watch.findings == {"held_out"} and "warning: start: success" in capsys.readouterr().out


CHECKS = ["equal_rewards", "all_cut", "invalid_actions", "ratio", "repeated_tasks"]


@pytest.mark.parametrize("count", [1, 2, 20])
def test_healthy_epochs_show_no_sign(count):
    assert [getattr(health, name)(epochs(count)) for name in CHECKS] == [None] * 5
    assert health.entropy(epochs(count), 1536) is None


# ---- signs in the episodes of an epoch ----


def test_groups_must_have_one_task_and_one_prompt():
    good = [played(group, group) for group in (0, 0, 1, 1)]
    assert health.unequal_groups(good, 2) is None
    assert "2 tasks" in health.unequal_groups([played(0, 1), played(0, 2)], 2)
    assert "2 prompts" in health.unequal_groups([played(0, 1), played(0, 1, (1, 2, 9))], 2)
    assert "group 1 has 1 episodes" in health.unequal_groups(good[:3], 2)
    failed = Episode("textcraft", 1, 1, infrastructure_failed=True)  # at reset: without a prompt
    assert health.unequal_groups([*good[:3], failed], 2) is None


def test_tasks_of_an_epoch_must_differ():
    assert health.equal_tasks([played(i, i) for i in range(4)]) is None
    assert "4 groups have 1 different tasks" in health.equal_tasks([played(i, 7) for i in range(4)])
    assert health.equal_tasks([played(0, 7)] * 3) is None, "one group"


def test_a_batch_has_no_failed_episode():
    batch = make_batch([played(0, 0), played(1, 1, infrastructure_failed=True)])
    assert "1 of 2 episodes" in health.failed_episodes(batch)
    assert health.failed_episodes(make_batch([played(0, 0)])) is None


def test_sampler_hash_is_that_of_the_active_adapter():
    cfg = parse(["lora.r=2"])
    model = random_model()
    lora.inject(model, r=2, name="reference")
    lora.inject(model, r=2)
    for layer in (layer for _, layer in lora.lora_layers(model)):
        layer.adapters["reference"].requires_grad_(False)
    state = TrainState(model, None, make_optimizer(model, None, cfg))
    own = state.adapter_hash()
    assert health.sampler_hash(model) == own
    with lora.adapters_off(model):
        assert health.sampler_hash(model) != own
    with lora.use_adapter(model, "reference"):
        assert health.sampler_hash(model) != own
    lora.lora_layers(model)[3][1].active = None
    assert health.sampler_hash(model) != own
    episodes = [played(0, 0, adapter_hash="x"), played(0, 0, adapter_hash=own)]
    assert "1 of 2 episodes" in health.other_weights(episodes, own)


# ---- signs in the update ----


def test_checksums_change_with_a_single_bit():
    parameters = {"x.B": torch.zeros(3, 4), "y.B": torch.ones(2, 2)}
    before = health.checksums(parameters)
    assert health.unmoved(before, health.checksums(parameters), "B").startswith("B of 2 of 2 layers, such as x.B")
    parameters["x.B"][2, 3] = 1e-45
    assert "B of 1 of 2 layers, such as y.B" in health.unmoved(before, health.checksums(parameters), "B")
    parameters["y.B"][0, 0] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
    assert health.unmoved(before, health.checksums(parameters), "B") is None
    assert health.unmoved(before, before, "A") is None, "there is no A"


def test_the_bound_of_the_sampler_gap_is_that_of_rounding():
    assert health.rounding("yes", "bfloat16") == 0
    assert health.rounding("no", "float32") < health.rounding("no", "bfloat16") < 0.9, "temperature 1 for 1.5"
    assert health.sampler_gap(None, "yes", "float32") is health.sampler_gap(0.0, "yes", "float32") is None
    assert health.sampler_gap(1e-7, "no", "float32") is None
    assert "1e-07 nats on a token, although the trial" in health.sampler_gap(1e-7, "yes", "float32")
    assert "0.1 nats on a token, and rounding explains 0:" in health.sampler_gap(0.1, "yes", "float32")
    assert "differ by nan nats" in health.sampler_gap(float("nan"), "no", "bfloat16")


def test_a_difference_withdraws_the_claim_of_equal_bits(tmp_path, capsys):
    """With strict=false the run goes on, and metrics say from that epoch on that it is not exact."""
    epoch = Epoch(tmp_path, "strict=false")
    epoch.state.exact = "yes"
    epoch.state.epoch = 1
    assert "exact" not in epoch.all(), "nothing is withdrawn"
    found = epoch.ended(sampler_gap=4e-6)
    assert found["warnings"] == ["sampler_gap"]
    assert found["exact"] == epoch.state.exact == "no: sampling and training differed by 4.0e-06 nats in epoch 1"
    assert epoch.ended(sampler_gap=4e-6)["warnings"] == [], "rounding explains it now"
    assert "although the trial at the start found equal bits" in capsys.readouterr().out

    resumed = Epoch(tmp_path / "resumed", "strict=false")
    resumed.state.exact = "yes"
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text(json.dumps({"epoch": 1, "tasks": "00", "exact": epoch.state.exact}) + "\n")
    resumed.state.watch.begin(resumed.state, resumed.tokenizer, resumed.cfg, folder)
    assert resumed.state.exact == epoch.state.exact, "a resumed run does not claim it again"


def test_16_bits_round_by_less_than_half_of_the_bound(tiny):
    """Sampling and training may each be that far from float32, where their kernels differ."""
    rounded, exact = load_model("tiny", torch.bfloat16), load_model("tiny")
    exact.load_state_dict({name: p.float() for name, p in rounded.state_dict().items()})
    cfg = parse(["textcraft.max_turns=2", "max_new_tokens=24"])
    played = rollout(rounded, tiny[1], make_tasks(cfg, 0, 16, 1, "train", 0), cfg, 1.5, tqdm(disable=True))
    with torch.no_grad():
        first_N, second_N = (forward(make_batch(played), model, 1.5).logprobs_N for model in (rounded, exact))
    apart = (first_N - second_N).abs().max().item()
    assert 1e-3 < apart < health.rounding("no", "bfloat16") / 2


@pytest.mark.parametrize("wanted", [True, False])
def test_dropout_is_active_in_fine_tuning_alone(wanted):
    model = random_model()
    lora.inject(model, r=2, dropout=0.1)
    assert health.dropout(model.train(wanted), wanted) is None
    said = "lora.dropout is not active" if wanted else "dropout is active in reinforcement learning"
    assert said in health.dropout(model.train(not wanted), wanted)
    for _, layer in lora.lora_layers(model):
        layer.dropout = 0.0
    assert health.dropout(model, wanted) is None


# ---- the start ----


def test_a_new_adapter_must_equal_what_it_starts_from(tiny):
    model = load_model("tiny")
    lora.inject(model, r=2)
    ids = tiny[1].prompt([{"role": "user", "content": "Goal: craft a door."}])
    assert health.new_adapter(model, None, ids, 1e-6) is None
    layer = lora.lora_layers(model)[-1][1]
    torch.nn.init.normal_(layer.adapter.B, std=0.1)
    assert "differs from the base by" in health.new_adapter(model, None, ids, 1e-2)
    assert layer.active == "default"
    lora.inject(model, r=2, name="reference")
    lora.layer.activate(model, "default")
    assert "differs from resume_from's by" in health.new_adapter(model, "reference", ids, 1e-2)


def test_a_tokenizer_of_another_model_is_found(tiny):
    tokenizer = tiny[1]
    assert health.tokenizer_ids(tokenizer, 1536) is None
    text = tokenizer.encode("door")[0]
    other = SimpleNamespace(
        **{name: getattr(tokenizer, name) for name in ("folder", "prompt", "control_ids", "vocab_size", "show")},
        eos_ids=frozenset([text]),
    )
    assert f"id {text} ends a reply" in health.tokenizer_ids(other, 1536)
    with pytest.raises(ValueError, match="the tokenizer is another model's"):
        health.tokenizer_ids(tokenizer, 1000)
    other.vocab_size = 1537
    assert "has 1537 ids, and the model 1536 embeddings" in health.tokenizer_ids(other, 1536)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_random_weights_find_prompts_as_likely_as_chance(family):
    """Of the usual deviation, 0.02, and of a far larger one."""
    for deviation in (0.02, 0.15):
        model = random_model(family, vocab_size=500)
        for name, p in model.named_parameters():
            if "norm" not in name:
                p.data *= deviation / 0.15
        episodes = [played(0, 0, [(7 * i * i + seed) % 500 for i in range(100)]) for seed in range(4)]
        assert health.unlikely_prompts(model, episodes) is None


def test_prompts_in_another_tokenizers_ids_are_found():
    """The model learns a prompt by heart; then each id of the prompt is replaced by another one."""
    model = random_model(vocab_size=500).requires_grad_(True)
    ids, optimizer = [1], torch.optim.Adam(model.parameters(), lr=1e-2)
    while len(ids) < 100:
        ids.append((3 * ids[-1] + 7) % 101)
    for _ in range(40):
        hidden = model(torch.tensor([ids]))[0, :-1]
        loss = -token_logprobs(hidden, model.lm_head.weight, torch.tensor(ids[1:]))[0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.5
    assert health.unlikely_prompts(model, [played(0, 0, ids)]) is None
    others = [(i + 250) % 500 for i in ids]
    assert "the tokenizer is another model's" in health.unlikely_prompts(model, [played(0, 0, others)])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("quant", ["none", "nf4"])
def test_weights_that_are_not_finite_are_refused(value, quant, tmp_path):
    tensors = load_file(TINY / "model.safetensors")
    tensors["model.layers.1.input_layernorm.weight"][5] = value
    for path in TINY.glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    save_file(tensors, tmp_path / "model.safetensors")
    name = r"model\.safetensors: model\.layers\.1\.input_layernorm\.weight has an entry that is not finite"
    with pytest.raises(ValueError, match=name):
        load_model(str(tmp_path), quant=quant)


def test_eval_refuses_an_adapter_that_is_not_finite(tmp_path):
    model = load_model("tiny")
    lora.inject(model, r=2)
    lora.lora_layers(model)[2][1].adapter.A.data[1, 1] = float("nan")
    lora.save_adapter(model, tmp_path / "adapter", str(TINY))
    code, out, err = run_program("eval.py", f"adapter={tmp_path}/adapter", "env=textcraft", "n=2", "threads=1")
    assert code == 1 and "v_proj.lora_A.weight has an entry that is not finite" in err and "success" not in out
    assert len(err.splitlines()) == 1


# ---- when each check is made ----

WORDS = ["algo=grpo", "grpo.group_size=2", "episodes=4", "batch_size=4", "lora.r=2", "strict=true"]


@cache
def adapted_tiny():
    """Return the embedded model with an adapter, and its tokenizer."""
    model = load_model("tiny")
    lora.inject(model, r=2)
    return model, load_tokenizer("tiny")


class Epoch:
    """The calls of an epoch of a healthy run: two groups of two episodes, whose optimizer steps the test makes up."""

    def __init__(self, folder: Path, *words: str):
        self.cfg, self.folder = parse([*WORDS, *words]), folder
        model, self.tokenizer = adapted_tiny()
        self.state = TrainState(model, None, make_optimizer(model, None, self.cfg))
        with torch.no_grad():
            for name, p in watch.factors(self.state).items():
                p.fill_(name.endswith(".A"))

    def begin(self) -> None:
        self.state.watch.begin(self.state, self.tokenizer, self.cfg, self.folder)

    def collected(self) -> None:
        own = self.state.adapter_hash()
        self.episodes = [played(group, group, adapter_hash=own) for group in (0, 0, 1, 1)]
        self.stats = rollout_stats(self.episodes)
        self.state.watch.collected(self.state, self.episodes, self.stats, self.cfg)

    def stepped(self, grad_norm=1.0, moved="AB", advantage=1.0, skipped=False, **metrics) -> None:
        """Add 1 to the factors `moved` and check an optimizer step with these metrics."""
        with torch.no_grad():
            for name, p in watch.factors(self.state).items():
                p.add_(name[-1] in moved)
        batch = make_batch(self.episodes)
        batch = replace(batch, advantages_N=torch.full_like(batch.old_logprobs_N, advantage))
        metrics, none = {"lr": 1e-3, "grad_norm": grad_norm, **metrics}, torch.zeros(0)
        step = StepResult(metrics, none, none, 0.0, none, skipped=skipped)
        self.state.step += 1
        self.state.watch.stepped(self.state, batch, step, self.cfg)

    def ended(self, sampler_gap: float = 0.0) -> dict:
        losses = {"entropy": 0.5, "sampler_gap": sampler_gap, "approx_kl": 0.01, "clip_fraction": 0.1}
        return self.state.watch.ended(self.state, {"epoch": 1, **self.stats, **losses}, self.cfg)

    def evaluated(self) -> None:
        self.state.watch.evaluated(self.state, [{"eval": rate(0.5)}], self.cfg)

    def all(self) -> dict:
        self.begin()
        self.evaluated()
        self.collected()
        self.stepped(moved="B")
        self.stepped()
        return self.ended()


NAMES = {  # the name of the finding, of each check
    **{name: name for name in ("equal_rewards", "all_cut", "invalid_actions", "failed_episodes", "dropout")},
    **{name: name for name in ("sampler_gap", "held_out", "entropy", "ratio")},
    **{"unlikely_prompts": "tokenizer", "tokenizer_ids": "tokenizer", "new_adapter": "adapter"},
    **{"repeated_tasks": "tasks", "equal_tasks": "tasks"},
    **{"unequal_groups": "groups", "other_weights": "weights", "zero_gradients": "gradient", "unmoved": "factors"},
}


def test_every_check_is_made_in_every_epoch(tmp_path, monkeypatch):
    assert Epoch(tmp_path).all()["warnings"] == []
    monkeypatch.setattr(watch, "same_shape", lambda folder: False)
    for check, name in NAMES.items():
        with monkeypatch.context() as patch:
            patch.setattr(health, "unlikely_prompts", lambda *_: None)  # the embedded model learned no prompts
            patch.setattr(health, check, lambda *_: "planted")
            with pytest.raises(watch.Nonsense, match="planted") as caught:
                Epoch(tmp_path, f"model={TINY}").all()
        assert caught.value.name == name, check


def test_b_must_move_in_the_first_step_and_a_in_the_second(tmp_path):
    epoch = Epoch(tmp_path)
    epoch.begin()
    epoch.collected()
    for words in ({"advantage": 0.0}, {"skipped": True}, {"grad_norm": 0.0}, {"lr": 0.0}):
        still = replace(epoch.cfg, min_lr_ratio=0.0)  # of these steps nothing is expected
        epoch.cfg, cfg = still, epoch.cfg
        epoch.stepped(moved="", **words)
        epoch.cfg = cfg
    with pytest.raises(watch.Nonsense, match="B of 35 of 35 layers"):
        epoch.stepped(moved="A")
    epoch = Epoch(tmp_path)
    epoch.begin()
    epoch.collected()
    epoch.stepped(moved="B")
    with pytest.raises(watch.Nonsense, match="A of 35 of 35 layers"):
        epoch.stepped(moved="B")
    for words, lr in (("optimizer=sgd", 1e-3), ("optimizer=adamw", 1e-8)):  # A's first steps are lost in its rounding
        epoch = Epoch(tmp_path, words)
        epoch.begin()
        epoch.collected()
        epoch.stepped(moved="B")
        epoch.stepped(moved="B", lr=lr)


def test_two_steps_without_a_gradient_are_found(tmp_path):
    epoch = Epoch(tmp_path)
    epoch.begin()
    epoch.collected()
    epoch.stepped(grad_norm=0.0)
    epoch.stepped(grad_norm=0.0, entropy=1e-4)  # the policy has collapsed, which `entropy` says
    epoch.stepped(grad_norm=0.0)
    epoch.stepped(grad_norm=0.0, advantage=0.0)
    with pytest.raises(watch.Nonsense, match="the gradient was 0 in 2 steps in a row"):
        epoch.stepped(grad_norm=0.0)


def test_a_resumed_run_knows_the_tasks_of_earlier_epochs(tmp_path):
    first = Epoch(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"epoch": 1, **first.all(), **first.stats}) + "\n")
    again = Epoch(tmp_path)
    again.state.epoch = again.state.step = 1
    again.begin()
    with pytest.raises(watch.Nonsense, match="epoch 2: 2 of 2 tasks are those of epoch 1 again"):
        again.collected()


# ---- runs ----


WORLDS = [name for name in envs.NAMES if name not in envs.WITHOUT_TASKS]
HEALTHY = [f"algo={algo} env={env}" for env in WORLDS for algo in config.ALGORITHMS]
HEALTHY = [f"{words} opd.privileged=true" if words.startswith("algo=opd") else words for words in HEALTHY]
HEALTHY += [f"recipe={path.stem}" for path in sorted(RECIPES.glob("*.toml")) if path.stem != "embedded"]


@pytest.mark.full
@pytest.mark.parametrize("words", HEALTHY)
def test_a_healthy_run_is_not_ended(words, tmp_path):
    cut = ["epochs=2", "episodes=16", "batch_size=16", "eval_episodes=0", "threads=1", "strict=true"]
    train.main(parse([*words.split(), *cut, f"out={tmp_path}/run"]))
    assert [record["warnings"] for record in epoch_records(tmp_path / "run")] == [[], []]


@pytest.mark.all_only
def test_a_finding_warns_once_while_it_lasts_or_ends_a_strict_run(tmp_path, monkeypatch, capsys):
    """Every check of `ratio` finds something; strict=true is the embedded model's default."""
    monkeypatch.setattr(health, "ratio", lambda records: "planted" if len(records) < 3 else None)
    assert parse(SMALL).strict
    with pytest.raises(watch.Nonsense, match=r"epoch 1: planted \(strict=false warns and goes on\)") as caught:
        train.main(parse([*SMALL, f"out={tmp_path}/strict"]))
    assert caught.value.name == "ratio"
    assert not (tmp_path / "strict" / "checkpoint-1").exists(), "nothing of the epoch is saved"
    code, _, err = run_program("train.py", f"resume={tmp_path}/strict")
    assert code == 1 and err == "train.py: epoch 1: planted (strict=false warns and goes on)\n"
    capsys.readouterr()
    train.main(parse([f"resume={tmp_path}/strict", "strict=false", "epochs=3"]))
    assert capsys.readouterr().out.count("warning: epoch 1: planted") == 1
    records = epoch_records(tmp_path / "strict")
    assert [record["warnings"] for record in records] == [["ratio"], ["ratio"], []]
    assert len({record["tasks"] for record in records}) == 3


def test_steps_without_a_finite_gradient_end_in_a_dump_that_repeats_the_update(tmp_path, monkeypatch):
    """One checkpoint for three epochs; the third one's gradients are not finite."""
    from rl import grpo

    right = grpo.loss

    def broken(batch, cfg):
        loss, metrics = right(batch, cfg)
        return loss * (torch.nan if batch.episodes[0].group >= 4 else 1.0), metrics

    monkeypatch.setattr(grpo, "loss", broken)
    run, words = tmp_path / "run", [*SMALL, "epochs=5", "save_every=9"]
    with pytest.raises(FloatingPointError) as caught:
        train.main(parse([*words, f"out={run}"]))
    [note] = caught.value.__notes__
    copied, command = note.removesuffix(" repeats the update").split("; python train.py ")
    assert copied == f"cp -r {run} {run}-again" and str(run / "nonfinite-3.jsonl") in command
    shutil.copytree(run, f"{run}-again")
    with pytest.raises(FloatingPointError, match="epoch 3"):
        train.main(parse(command.split()))
    monkeypatch.setattr(grpo, "loss", right)
    shutil.rmtree(f"{run}-again")
    shutil.copytree(run, f"{run}-again")
    train.main(parse(command.split()))
    again, first = epoch_records(Path(f"{run}-again")), epoch_records(run)
    assert [record["loss"] for record in again[:2]] == [record["loss"] for record in first], "the same updates"
    assert again[2]["skipped_steps"] == 0


def test_five_steps_in_a_row_without_a_finite_gradient_end_an_epoch(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "score", with_nan(train.score))
    with pytest.raises(
        FloatingPointError, match="epoch 1, step 6: no gradient was finite, in 5 optimizer steps in a row"
    ):
        words = ["algo=reinforce", "episodes=12", "batch_size=2", "order=sequential", "max_turns=1", "max_new_tokens=4"]
        train.main(parse([*SMALL, *words, f"out={tmp_path}/run"]))


def with_nan(score):
    """Return train.score with advantages that are not numbers after the first two episodes."""

    def wrong(state, episodes, cfg):
        batch = score(state, episodes, cfg)
        later_N = batch.episode_N > 1
        return replace(batch, advantages_N=batch.advantages_N.masked_fill(later_N, torch.nan))

    return wrong
