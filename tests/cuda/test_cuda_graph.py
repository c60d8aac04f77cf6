"""Steps that a CUDA graph can contain: they sample the plain engine's tokens, and every operation is capturable."""

from collections import Counter
from functools import cache

import pytest
import torch
from conftest import random_model, randomize
from test_engine import STOP, adapted_model, play, prompt, sampled
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import lora
from models.attention import attend
from models.cache import KVCache
from models.cuda import ahead as fast_ahead
from models.cuda import graph
from models.cuda.ahead import Ahead
from models.cuda.graph import CHUNK, Steps, static_attention
from models.cuda.step import Unstacked
from models.engine import Engine, Slot, sample
from models.stacked import Stacked

WINDOWS = {"use_sliding_window": True, "sliding_window": 70, "layer_types": ["sliding_attention", "full_attention"]}
EPISODES = 21
MODELS = {
    "qwen2": lambda: random_model("qwen2"),
    "qwen3": lambda: random_model("qwen3"),
    "windows": lambda: random_model("qwen3", **WINDOWS),
    "adapted": adapted_model,
}


LONG = ("qwen3",)  # "windows" and "adapted" are of the same kind


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=[pytest.mark.full] * (name in LONG)) for name in MODELS]
)
def model(request):
    return MODELS[request.param]()


def ahead(model, max_rows: int, max_len: int, **how) -> Engine:
    """Return an engine that samples ahead, by default with the exact attention and without stacking."""
    engine = Engine(model, max_rows, max_len, graph=True)
    steps = Steps(model, engine._cache, sample, **how)
    engine._ahead = Ahead(steps, engine._slots, max_len)
    return engine


def check_steps(steps: Steps, attention=attend, stacked: bool = False) -> None:
    """Assert that the steps were computed by this attention, from stacked copies or from the layers themselves."""
    products = {type(product) for layer in steps.decoder.layers for product in (layer.qkv, layer.gate_up)}
    assert steps.attention is attention and products == {Stacked if stacked else Unstacked}


@pytest.fixture(scope="module")
def expected(model):
    """Return a function from a temperature to the plain engine's samples: of every stop reason and several turns."""

    @cache
    def played(temperature: float) -> dict:
        return sampled(play(Engine(model, 24, 256), range(EPISODES), temperature=temperature))

    reasons = {reason for turns in played(0.8).values() for *_, reason in turns}
    assert reasons == {"stop", "length", "context"} and max(map(len, played(0.8).values())) > 3
    return played


@pytest.mark.parametrize(
    ("max_rows", "temperature"),
    [(3, 0.8), *(pytest.param(24, temperature, marks=pytest.mark.full) for temperature in (0.8, 0))],
)
def test_episodes_match_the_plain_engine_bitwise(model, expected, max_rows, temperature):
    """Prompts and observations of all lengths, several turns, every stop reason, reused slots."""
    engine = ahead(model, max_rows, 256)
    assert sampled(play(engine, range(EPISODES), temperature=temperature)) == expected(temperature)
    check_steps(engine._ahead.steps)
    assert engine._ahead.steps.chunks > 0, "the plain engine sampled"


@pytest.mark.full
@pytest.mark.parametrize("temperature", [0.8, 0])
@pytest.mark.parametrize("max_rows", [3, 24])
def test_forty_episodes_match_those_of_the_plain_engine(model, max_rows, temperature):
    expected = sampled(play(Engine(model, 24, 256), range(40), temperature=temperature))
    assert sampled(play(ahead(model, max_rows, 256), range(40), temperature=temperature)) == expected


def test_a_sequence_outgrows_every_graph():
    """One sequence grows from 62 tokens to max_len = 256, the end of four blocks; another from 55 by 90."""
    model, rows = random_model(), []
    for engine in (Engine(model, 1, 256), ahead(model, 1, 256)):
        for key, fed, new in (((0, 0), 62, 200), ((0, 1), 55, 90)):
            slot = engine.open(key)
            engine.feed(slot, [7] * fed)
            rows += engine.run(new, 1.0, frozenset())
            engine.close(slot)
    assert rows[:2] == rows[2:] and [len(row.ids) for row in rows[:2]] == [194, 90]


def test_stacked_adapters_of_some_layers_and_of_several_scales():
    model = random_model("qwen2")
    lora.inject(model, r=4, alpha=12, targets=["q_proj", "v_proj", "up_proj", "down_proj"], alpha_pattern={"q_proj": 2})
    randomize(model)
    rows = []
    for engine in (Engine(model, 2, 100), stacked := ahead(model, 2, 100, stacked=True)):
        engine.feed(engine.open((0, 0)), [5, 6, 7])
        rows += engine.run(40, 1.0, frozenset())
    check_steps(stacked._ahead.steps, stacked=True)
    torch.testing.assert_close(*(torch.tensor(row.logprobs) for row in rows), atol=1e-5, rtol=0)
    assert rows[0].ids == rows[1].ids


@pytest.mark.parametrize("how", [{"stacked": True}, {"attention": static_attention}], ids=["stacked", "static"])
def test_stacked_weights_or_static_attention_sample_equal_ids(model, expected, how):
    engine = ahead(model, 24, 256, **how)
    got = sampled(play(engine, range(EPISODES)))
    check_steps(engine._ahead.steps, **how)
    assert got.keys() == expected(0.8).keys()
    for episode, turns in expected(0.8).items():
        assert [(ids, reason) for ids, _, reason in got[episode]] == [(ids, reason) for ids, _, reason in turns]
        for (_, logprobs, _), (_, expected_logprobs, _) in zip(got[episode], turns, strict=True):
            torch.testing.assert_close(torch.tensor(logprobs), torch.tensor(expected_logprobs), atol=1e-5, rtol=0)


def test_groups_share_their_prompt_while_others_are_sampled(model):
    """Children are copied, fed and idle between steps; one is far longer than the sequences that are sampled."""

    def rows(engine):
        first, long = engine.open((0, 0)), engine.open((0, 1))
        engine.feed(first, prompt(2))
        engine.feed(long, [5] * 200)
        idle = engine.open((0, 2), parent=long)
        engine._slots[long].fed = engine._slots[idle].fed = False
        found, run = [], engine.run(13, 0.8, STOP)
        for row in run:
            found.append((row.slot, row.ids, row.logprobs, row.stop_reason))
            if len(found) == 1:
                children = [engine.open((1, i), parent=first) for i in range(3)]
                engine.feed(first, [1, 2])
                for i, child in enumerate(children):
                    engine.feed(child, [i] * (i + 1))
            elif len(found) == 3:
                engine.feed(idle, [])
                engine.feed(long, [9, 9])
        return sorted(found)

    expected = rows(Engine(model, 8, 260))
    assert len(expected) == 7
    assert rows(ahead(model, 8, 260)) == expected


def test_prompts_share_a_beginning_while_others_are_sampled(model):
    """Slots are closed and opened anew between chunks; each begins as a copy of one that is being sampled."""

    def rows(engine):
        found, waiting = [], list(range(12))

        def start():
            while waiting and engine.free:
                i = waiting.pop(0)
                engine.feed(engine.open((0, i)), [*range(70), *prompt(i)])

        start()
        for row in engine.run(13, 0.8, STOP):
            found.append((engine._slots[row.slot].key, row.ids, row.logprobs, row.stop_reason))
            engine.close(row.slot)
            start()
        return sorted(found)

    assert rows(ahead(model, 4, 400)) == rows(Engine(model, 12, 400))


def test_an_abandoned_run_continues_under_other_settings():
    """Two of three slots keep their tokens and continue greedily; a closed slot's tokens are dropped."""
    model = random_model()
    engine = ahead(model, 3, 200)
    slots = [engine.open((0, i)) for i in range(3)]
    for slot in slots:
        engine.feed(slot, [1 + slot])
    run = engine.run(30, 1.0, frozenset())
    engine._ahead.steps.enqueue, calls = _counted(engine._ahead.steps.enqueue)
    engine._begin_turns(), engine._stamp_version(slots)
    for _ in range(2):
        engine._ahead.advance(slots, engine._version, 30, 1.0, frozenset())
    run.close()
    assert len(calls) == 2 and [len(engine._slots[i].sampling.ids) for i in slots] == [CHUNK] * 3
    engine.close(slots[1])
    other = engine.open((9, 9))
    assert other == slots[1]
    engine.feed(other, [7])
    rows = {row.slot: row for row in engine.run(14, 0, frozenset())}

    plain = Engine(model, 3, 200)
    for slot in slots:
        plain.open((0, slot))
        plain.feed(slot, [1 + slot])
    early = {row.slot: row for row in plain.run(2 * CHUNK, 1.0, frozenset())}
    for slot in (slots[0], slots[2]):
        sequence = [1 + slot, *early[slot].ids]
        while len(sequence) < 15:
            hidden_BTD = model(torch.tensor([sequence]))
            sequence.append(int((hidden_BTD[0, -1] @ model.lm_head.weight.T).argmax()))
        assert rows[slot].ids == sequence[1:]
    alone = Engine(model, 1, 200)
    alone.feed(alone.open((9, 9)), [7])
    assert [rows[other].ids] == [row.ids for row in alone.run(14, 0, frozenset())]


def test_rows_of_one_chunk_come_in_the_order_of_finishing():
    engine = ahead(random_model(), 3, 10)
    for i, fed in enumerate((7, 8, 6)):
        engine.feed(engine.open((0, i)), [1] * fed)
    rows = list(engine.run(9, 1.0, frozenset()))
    assert [(row.slot, len(row.ids), row.stop_reason) for row in rows] == [
        (i, 10 - n, "context") for i, n in ((1, 8), (0, 7), (2, 6))
    ]


def _counted(function):
    calls = []

    def counting():
        calls.append(1)
        return function()

    return counting, calls


@pytest.mark.parametrize(("graph", "chunks"), [(True, 2), (False, 0), (None, 0)])
def test_engine_samples_ahead_only_with_a_graph(graph, chunks, monkeypatch):
    calls, enqueue = [], Steps.enqueue
    monkeypatch.setattr(Steps, "enqueue", lambda steps: calls.append(steps) or enqueue(steps))
    model = random_model()
    engine = Engine(model, 1, 100, graph=graph)
    engine.feed(engine.open((0, 0)), [1, 2])
    (row,) = engine.run(2 * CHUNK, 1.0, frozenset())
    assert len(row.ids) == 2 * CHUNK and len(calls) == chunks and all(steps.model is model for steps in calls)


def test_only_needed_steps_are_enqueued():
    engine = ahead(random_model(), 2, 200)
    engine._ahead.steps.enqueue, calls = _counted(engine._ahead.steps.enqueue)
    for n in (1, CHUNK, CHUNK + 1, 3 * CHUNK):
        calls.clear()
        slot = engine.open((0, n))
        engine.feed(slot, [1, 2])
        (row,) = engine.run(n, 1.0, frozenset())
        assert len(row.ids) == n and len(calls) == -(-n // CHUNK)
        engine.close(slot)


def test_prompts_are_computed_together_and_change_no_sample(monkeypatch):
    """Rows that end one by one wait for others: fewer forwards, the same tokens."""
    model, calls, prefill, played = random_model(), [], Engine._prefill, []
    monkeypatch.setattr(Engine, "_prefill", lambda self, counts: calls.append(len(counts)) or prefill(self, counts))
    for waiting in (0, fast_ahead.WAITING):
        monkeypatch.setattr(fast_ahead, "WAITING", waiting)
        engine, rows, turns = ahead(model, 32, 260), {}, Counter()
        for i in range(32):
            engine.feed(engine.open((0, i)), [5, 6, i])
        for row in engine.run(100, 1.0, frozenset({50})):
            rows[row.slot, turns[row.slot]] = row.ids, row.logprobs
            turns[row.slot] += 1
            if turns[row.slot] < 2:
                engine.feed(row.slot, [7, 8])
        played.append((rows, calls.copy()))
        calls.clear()
    (at_once, single), (together, grouped) = played
    assert at_once == together and sum(single) == sum(grouped) and len(grouped) < 0.7 * len(single)


def test_a_prompt_waits_for_few_chunks_and_only_beside_sampled_rows():
    slots = {i: Slot((0, i), i, pending=[5] * (1 + (i >= 32))) for i in range(34)}
    host, rows = Ahead(ahead(random_model(), 1, 10)._ahead.steps, slots, 100), list(range(32))
    assert host.ready([*rows, 32, 33]) == [*rows, 32, 33], "two of 32 are enough"
    for _ in range(2):
        ready = [host.ready([*rows, 32]) for _ in range(fast_ahead.PATIENCE + 1)]
        assert ready == [rows] * fast_ahead.PATIENCE + [[*rows, 32]]
    assert host.ready([32]) == [32], "nothing else is sampled"
    slots[3].parent = 32
    assert host.ready([*rows, 32]) == [*rows, 32], "a group's sample needs its parent's prompt"
    slots[3].parent, slots[32].parent = None, 3
    assert host.ready([*rows, 32]) == rows, "the parent is computed already"


# ------------------------------------------------------------------------------------------------------ changed weights


@pytest.mark.parametrize("stacked", [False, True])
@torch.no_grad()
def test_changed_adapters_are_used_and_old_caches_refused(stacked):
    model = adapted_model()
    engine = Engine(model, 3, 100, version=lora.adapter_version(model), graph=True)
    steps = Steps(model, engine._cache, sample, stacked=stacked)
    engine._ahead = Ahead(steps, engine._slots, 100)
    prepared = []

    def agree():
        rows = []
        for each in (engine, Engine(model, 3, 100)):
            slot = each.open((0, 1))
            each.feed(slot, [5, 6, 7])
            rows += each.run(12, 1.0, frozenset())
            each.close(slot)
        check_steps(steps, stacked=stacked)
        prepared.append([id(layer) for layer in steps.decoder.layers])
        torch.testing.assert_close(torch.tensor(rows[0].logprobs), torch.tensor(rows[1].logprobs), atol=1e-5, rtol=0)
        assert rows[0].ids == rows[1].ids
        return rows[0].logprobs

    before = agree()
    for layer in model.model.layers:  # in place, as an optimizer does
        layer.self_attn.v_proj.adapters["default"].B.mul_(1.5)
        layer.mlp.down_proj.adapters["default"].A.mul_(1.5)
    after = agree()
    assert before != after and prepared[0] == prepared[1], "a captured graph would be stale"
    with lora.adapters_off(model):
        assert agree() not in (before, after) and prepared[2] != prepared[1]
    assert agree() == after

    slot = engine.open((0, 1))
    engine.feed(slot, [1, 2])
    (_,) = engine.run(3, 1.0, frozenset())
    engine.feed(slot, [3])
    model.model.layers[0].mlp.up_proj.adapters["default"].B.mul_(2)
    with pytest.raises(RuntimeError, match=f"slot {slot} holds keys and values of other weights"):
        list(engine.run(3, 1.0, frozenset()))


# ------------------------------------------------------------------------------------------- what a graph can hold


class _Recorder(TorchDispatchMode):
    """Record every operation with the shapes of its inputs and outputs."""

    def __init__(self):
        super().__init__()
        self.trace = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        flat = torch.utils._pytree.tree_leaves((args, kwargs, out))
        self.trace.append((str(function), [tuple(x.shape) for x in flat if isinstance(x, torch.Tensor)]))
        return out


WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "item", "equal")


@pytest.mark.parametrize("temperature", [0.8, 0.0])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_step_runs_the_same_operations_for_any_data(model, temperature, stacked):
    engine = ahead(model, 20, 260, attention=static_attention, stacked=stacked)
    steps, traces = engine._ahead.steps, []
    steps.prepare(0, 200, temperature)
    steps.step()  # the first call lays out weights for the CPU
    for lengths, left in ((0, 0), (torch.arange(32) * 6, torch.arange(32)), (189, 50)):
        steps.state.length_B[:], steps.state.left_B[:] = torch.as_tensor(lengths), torch.as_tensor(left)
        with _Recorder() as recorder:
            steps.step()
        traces.append(recorder.trace)
    assert len(traces[0]) > 50 and traces[0] == traces[1] == traces[2]
    assert not [name for name, _ in traces[0] if any(word in name for word in WAITING)]


def test_the_recorder_finds_operations_that_wait_for_the_device():
    """The exact attention reads positions on the host, so the test above would fail with it."""
    engine = ahead(random_model(), 2, 100, attention=attend)
    engine._ahead.steps.prepare(0, 50, 1.0)
    with _Recorder() as recorder:
        engine._ahead.steps.step()
    assert any("_local_scalar_dense" in name for name, _ in recorder.trace)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("stacked", [False, True])
def test_a_step_reads_no_number_from_the_device(dtype, stacked):
    """The meta device has shapes but no data: reading a number, or a tensor on the host, would fail."""
    model = adapted_model().to("meta")
    for name, p in model.named_parameters():
        p.data = p.data if ".adapters." in name else p.data.to(dtype)
    steps = Steps(model, KVCache(model, 20), sample, attention=static_attention, stacked=stacked)
    steps.prepare(0, 200, 0.8)
    steps.step()
    assert steps.state.storage.device.type == steps.cache.keys[0].device.type == "meta"


def test_on_a_gpu_products_of_16_bits_come_in_float32():
    """Fake tensors show the dtype without a GPU."""
    with FakeTensorMode():
        a, b = (torch.empty(3, 4, *shape, dtype=torch.bfloat16, device="cuda") for shape in ((2, 5), (5, 6)))
        out = graph._product(a, b)
    assert out.dtype == torch.float32 and out.shape == (3, 4, 2, 6) and out.device.type == "cuda"


# ------------------------------------------------------------------------------------------------------------ its parts


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("window", [None, 5, 100])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (7, 1)])
def test_static_attention_is_attention(rng, dtype, window, heads):
    """Its error in float64 is at most `attend`'s, plus the rounding of weights to the values' dtype."""
    (H, K), B, U, E = heads, 5, 3, 16
    q_BHTE = torch.randn(B, H, 1, E, generator=rng).to(dtype)
    k_UZEL, v_UZLE = (torch.randn(U, B * K, *s, generator=rng).to(dtype) for s in ((E, 64), (64, E)))
    positions_BT = torch.tensor([[0], [63], [64], [130], [191]])
    inputs = (q_BHTE, k_UZEL, v_UZLE)
    truth = attend(*(x.double() for x in inputs), positions_BT, window)
    budget = (attend(*inputs, positions_BT, window) - truth).abs().max() + 1e-6
    weighed = attend(*(x.double() for x in (q_BHTE, k_UZEL, v_UZLE.abs())), positions_BT, window)
    got = static_attention(*inputs, positions_BT, window)
    assert got.dtype == dtype and got.shape == q_BHTE.shape
    assert ((got - truth).abs() <= 1.5 * budget + torch.finfo(dtype).eps / 2 * weighed).all()


def test_prefill_in_pieces_matches_prefill_at_once(model, monkeypatch):
    expected = sampled(play(Engine(model, 24, 260), range(12)))
    sizes, prefill = [], Engine._prefill
    monkeypatch.setattr("models.engine.PREFILL_TOKENS", 48)
    monkeypatch.setattr(
        Engine, "_prefill", lambda self, counts: sizes.append(sum(counts.values())) or prefill(self, counts)
    )
    assert sampled(play(Engine(model, 24, 260), range(12))) == expected
    assert max(sizes) == 48


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("stacked", [False, True])
def test_on_a_gpu_the_graph_matches_the_plain_engine(stacked):
    model = adapted_model().cuda()
    expected = sampled(play(Engine(model, 24, 260, graph=False), range(40)))
    got = sampled(play(ahead(model, 24, 260, stacked=stacked), range(40)))
    for episode, turns in expected.items():
        assert [ids for ids, *_ in got[episode]] == [ids for ids, *_ in turns]
        for (_, logprobs, _), (_, expected_logprobs, _) in zip(got[episode], turns, strict=True):
            torch.testing.assert_close(torch.tensor(logprobs), torch.tensor(expected_logprobs), atol=1e-4, rtol=0)
