"""The engine: training recomputes every sampled bit, and episodes do not depend on one another."""

import gc
import itertools
import random
import weakref
from collections import deque
from random import Random

import pytest
import torch
from conftest import random_model, randomize
from live_storage import LiveStorage

import lora
from models import slots as cache_slots
from models.attention import KEY_BLOCK
from models.cache import KVCache
from models.engine import Engine, SampledTurn, sample
from models.hooks import hooks, nothing_faster
from models.logprob import token_logprobs
from models.random import fold_all, unit
from rl.batch import forward, make_batch, micro_batches
from rl.records import Episode, Turn

STOP = frozenset({3, 50, 51, 52, 53, 54})
TEMPERATURE = 0.8


def test_padding_of_a_prefill_stays_within_the_cache(monkeypatch):
    """Rows of which a pass computed a part, or that are nearly full, get no more blocks than max_len needs."""
    monkeypatch.setattr("models.engine.PREFILL_TOKENS", 400)
    for turns in ([{0: 185, 1: 185, 2: 185, 3: 185}], [{0: 140}, {0: 45, 1: 75}]):
        engine = Engine(random_model(), 4, 3 * KEY_BLOCK)
        for fed in turns:
            for slot, count in fed.items():
                if slot not in engine._slots:
                    engine.open((0, slot))
                engine.feed(slot, [(slot + i) % 50 for i in range(count)])
            list(engine.run(2, 1.0, frozenset()))
        assert {len(x) for x in (*engine._cache.keys, *engine._cache.values)} <= {3}


def test_a_growing_cache_holds_one_layer_twice():
    model = random_model(num_hidden_layers=8)
    with LiveStorage() as live:
        cache = KVCache(model, 64)
        cache.values[0][1, 2, 3] = 7.0
        cache.reserve(4)
        assert live.peak <= live.live * (1 + 1 / len(cache.keys))
    assert cache.values[0][1, 2, 3].eq(7.0).all() and cache.values[0].count_nonzero() == len(cache.values[0][1, 2, 3])


def test_a_cpu_caches_16_bit_numbers_as_attention_reads_them():
    """In float32, so that no step widens them again; the numbers are those of 16 bits."""
    model, (k, v) = random_model().to(torch.bfloat16), torch.randn(2, 1, 2, 3, 16).bfloat16()
    keys, values = KVCache(model, 1).view(slice(0, 1), torch.zeros(1, dtype=torch.long), 3).extend(k, v)
    assert keys.dtype == values.dtype == torch.float32
    assert torch.equal(keys[0].mT[:, :3], k[0].float()) and torch.equal(values[0][:, :3], v[0].float())


def adapted_model():
    """Return a model with strong adapters on every layer, of widths that the stacked step takes."""
    model = random_model("qwen3", intermediate_size=96)
    lora.inject(model, r=16, alpha=16)
    return randomize(model).eval()


@pytest.fixture(scope="module", params=["qwen2", pytest.param("qwen3", marks=pytest.mark.full), "adapted"])
def model(request):
    return adapted_model() if request.param == "adapted" else random_model(request.param)


def room(engine: Engine, slot: int) -> int:
    return engine._slots[slot].room(engine.max_len)


def prompt(episode: int) -> list[int]:
    rng = Random(episode)
    return [rng.randrange(97) for _ in range(rng.choice((1, 2, 17, 64, 65, rng.randint(1, 250))))]


def observation(episode: int, turn: int) -> list[int]:
    """Return an episode's observation after a turn; None ends the episode."""
    rng = Random(1000 * episode + turn)
    return None if rng.random() < 0.3 else [rng.randrange(97) for _ in range(rng.choice((0, 1, 3, rng.randint(1, 90))))]


def play(engine: Engine, episodes, max_new_tokens: int = 11, temperature: float = TEMPERATURE) -> dict[int, list]:
    """Play episodes to their ends, a new one in each freed place; return {episode: [(fed ids, row), ...]}."""
    waiting, playing, played = list(episodes)[::-1], {}, {}

    def refill():
        while waiting and engine.free:
            episode = waiting.pop()
            slot = engine.open((7, episode))
            engine.feed(slot, prompt(episode))
            playing[slot], played[episode] = (episode, prompt(episode)), []

    refill()
    for row in engine.run(max_new_tokens, temperature, STOP):
        episode, fed = playing.pop(row.slot)
        turns = played[episode]
        turns.append((fed, row))
        says = None if row.stop_reason == "context" else observation(episode, len(turns))
        if says is None:
            engine.close(row.slot)
            refill()
        else:
            engine.feed(row.slot, says)
            playing[row.slot] = (episode, says)
    assert not playing and not waiting and engine.free == engine.max_rows
    return played


def sampled(played: dict[int, list]) -> dict[int, list]:
    return {e: [(row.ids, row.logprobs, row.stop_reason) for _, row in turns] for e, turns in played.items()}


def recompute(model, played: dict[int, list], temperature: float, batch: int):
    """Return (recorded_N, recomputed_N) log-probabilities of all sampled tokens, a few episodes per padded pass."""
    recorded, recomputed, episodes = [], [], list(played.values())
    for start in range(0, len(episodes), batch):
        some = episodes[start : start + batch]
        ids = [[i for fed, row in turns for i in fed + row.ids] for turns in some]
        mask = [[m for fed, row in turns for m in [0] * len(fed) + [1] * len(row.ids)] for turns in some]
        longest = max(map(len, ids))
        ids_BT = torch.tensor([x + [0] * (longest - len(x)) for x in ids])
        mask_BT = torch.tensor([x + [0] * (longest - len(x)) for x in mask]).bool()
        segments_BT = torch.tensor([[0] * len(x) + [-1] * (longest - len(x)) for x in ids])
        hidden_BTD = model(ids_BT, segments_BT=segments_BT)
        at, to = mask_BT[:, 1:], ids_BT[:, 1:]
        with torch.no_grad():
            recomputed.append(token_logprobs(hidden_BTD[:, :-1][at], model.lm_head.weight, to[at], temperature)[0])
        recorded += [x for turns in some for _, row in turns for x in row.logprobs]
    return torch.tensor(recorded), torch.cat(recomputed).detach()


def as_episodes(played: dict[int, list]) -> list[Episode]:
    episodes = []
    for turns in played.values():
        episode = Episode("fake", 0, 0)
        for fed, row in turns:
            start = len(episode.ids_T) + len(fed)
            episode.turns.append(Turn(start, start + len(row.ids), 0.0, row.stop_reason))
            episode.ids_T += fed + row.ids
            episode.action_mask_T += [0] * len(fed) + [1] * len(row.ids)
            episode.logprobs_T += [0.0] * len(fed) + row.logprobs
        episodes.append(episode)
    return episodes


# ------------------------------------------------------------------------------------------ the sampler is the trainer


@pytest.mark.parametrize(
    ("episodes", "max_len", "turns"), [(40, 280, 5), pytest.param(200, 400, 6, marks=pytest.mark.full)]
)
def test_recorded_logprobs_match_training_bitwise(model, episodes, max_len, turns):
    played = play(Engine(model, max_rows=24, max_len=max_len), range(episodes))
    rows = [row for turns in played.values() for _, row in turns]
    lengths = [sum(len(fed) + len(row.ids) for fed, row in turns) for turns in played.values()]
    assert len(played) == episodes and len(rows) > 2 * episodes
    assert max(lengths) > 256 and max(map(len, played.values())) >= turns
    assert {row.stop_reason for row in rows} == {"stop", "length", "context"}
    recorded, recomputed = recompute(model, played, TEMPERATURE, batch=8)
    assert len(recorded) == sum(len(row.ids) for row in rows) > 10 * episodes
    assert torch.equal(recorded, recomputed)


@pytest.mark.parametrize("count", [50, pytest.param(200, marks=pytest.mark.full)])
def test_episodes_with_adapters_match_training_bitwise(count):
    """The stacked step samples; the packed forward with shared prefixes recomputes."""
    model = adapted_model()
    engine = Engine(model, max_rows=24, max_len=400, version=lora.adapter_version(model))
    episodes = as_episodes(play(engine, range(count)))
    if hooks("cpu").decode_step is not nothing_faster:
        assert engine._step is not None, "the stacked step was not used"
    assert len(episodes) == count and sum(len(e.turns) for e in episodes) > 2 * count
    for piece in micro_batches(make_batch(episodes), 4000):
        with torch.no_grad():
            assert torch.equal(forward(piece, model, TEMPERATURE).logprobs_N, piece.old_logprobs_N)


@pytest.fixture(scope="module")
def thirty(model):
    return sampled(play(Engine(model, max_rows=24, max_len=400), range(30)))


@pytest.mark.parametrize(
    ("max_rows", "order"), [(1, 1), (5, -1), *(pytest.param(n, 1, marks=pytest.mark.full) for n in (16, 40))]
)
def test_an_episodes_samples_depend_on_itself_alone(model, thirty, max_rows, order):
    some = range(10, 30, 3)[::order]
    got = sampled(play(Engine(model, max_rows=max_rows, max_len=400), some))
    assert got == {episode: thirty[episode] for episode in some}


@torch.no_grad()
def test_another_seed_episode_or_turn_samples_otherwise():
    """The model sees only the last token, so only the random numbers can make a difference."""
    model = random_model()
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
    engine = Engine(model, max_rows=3)
    rows = [one_row(engine, [5], 12, key=key) for key in ((0, 0), (0, 1), (1, 0))]
    for _ in range(2):
        engine.feed(rows[0].slot, [5])
        rows += engine.run(12, 1.0, frozenset())
    assert len({tuple(row.ids) for row in rows}) == 5


def test_greedy_ids_are_the_most_likely_of_a_full_forward(model):
    played = play(Engine(model, max_rows=6, max_len=300), range(12), temperature=0)
    for turns in played.values():
        ids = []
        for fed, row in turns:
            ids += fed + row.ids
            if row.ids:
                logits_TV = model(torch.tensor([ids]))[0, -len(row.ids) - 1 : -1] @ model.lm_head.weight.T
                assert logits_TV.argmax(-1).tolist() == row.ids
    recorded, recomputed = recompute(model, played, 1.0, batch=5)
    assert torch.equal(recorded, recomputed)  # reported at temperature 1


@pytest.mark.parametrize(
    ("window", "dtype"),
    [
        *((8, torch.bfloat16), (None, torch.float16)),
        *(pytest.param(*case, marks=pytest.mark.full) for case in ((None, torch.bfloat16), (8, torch.float16))),
    ],
    ids=str,
)
def test_recorded_logprobs_match_training_bitwise_in_16_bits(dtype, window):
    """With float32 adapters; shared prefixes are computed once."""
    sliding = {} if window is None else {"use_sliding_window": True, "sliding_window": window, "max_window_layers": 0}
    model = random_model("qwen3", dtype=dtype, **sliding)
    lora.inject(model, r=16, alpha=16)
    randomize(model).eval()
    engine = Engine(model, max_rows=24, max_len=400, version=lora.adapter_version(model))
    episodes = as_episodes(play(engine, range(30)))
    assert len(episodes) == 30 and sum(len(e.turns) for e in episodes) > 50
    for piece in micro_batches(make_batch(episodes), 4000):
        assert torch.equal(forward(piece, model, TEMPERATURE).logprobs_N.detach(), piece.old_logprobs_N)


def sampled_alone(model, ids: list[int], key=(0, 1), tokens: int = 5, turn: int = 0, stop_ids=frozenset()):
    """Return the (ids, logprobs) that a new engine samples. Random numbers are counted by turn."""
    engine = Engine(model, max_rows=1)
    slot = engine.open(key)
    engine._slots[slot].turn = turn - 1
    engine.feed(slot, ids)
    (row,) = engine.run(tokens, 1.0, stop_ids)
    return row.ids, row.logprobs


@pytest.fixture
def computed(monkeypatch) -> list[int]:
    """Return the counts of tokens that prefills compute."""
    counted, prefill = [], Engine._prefill
    monkeypatch.setattr(
        Engine, "_prefill", lambda self, counts: counted.extend(counts.values()) or prefill(self, counts)
    )
    return counted


# --------------------------------------------------------------------------------------------------- groups, forks


@pytest.mark.parametrize("turns", [0, 2])
def test_a_child_of_a_prompt_samples_like_a_fresh_slot(model, turns):
    """turns = 0: the children copy a prompt; 2: they part after two turns and keep the parent's turn count."""
    ids, says = prompt(4), [[9, 8, 7], [], [1] * 70]
    engine = Engine(model, max_rows=12)
    parent = engine.open((0, 0))
    engine.feed(parent, ids)
    past = []
    for i in range(turns):
        (row,) = engine.run(6, 1.0, STOP)
        past += row.ids + says[i]
        engine.feed(parent, says[i])
    children = [engine.open((0, episode), parent=parent) for episode in (1, 2, 3)]
    got = {row.slot: row for row in engine.run(9, 1.0, STOP)}
    assert set(got) == {parent, *children}

    for episode, slot in enumerate((parent, *children)):
        alone = sampled_alone(model, ids + past, (0, episode), 9, turn=turns, stop_ids=STOP)
        assert alone == (got[slot].ids, got[slot].logprobs)


def test_a_child_goes_its_own_way(model):
    """Tokens fed to the child do not reach the parent, nor the reverse."""
    engine = Engine(model, max_rows=2)
    parent = engine.open((0, 0))
    engine.feed(parent, [1, 2, 3])
    child = engine.open((0, 1), parent=parent)
    engine.feed(child, [4, 5])
    engine.feed(parent, [6])
    got = {row.slot: row.ids for row in engine.run(20, 1.0, frozenset())}
    for key, ids, slot in (((0, 0), [1, 2, 3, 6], parent), ((0, 1), [1, 2, 3, 4, 5], child)):
        assert sampled_alone(model, ids, key, 20)[0] == got[slot]


# --------------------------------------------------------------------------------------------------- stops and limits


def one_row(engine: Engine, ids: list[int], max_new_tokens: int = 5, stop_ids=frozenset(), key=(0, 0)) -> SampledTurn:
    slot = engine.open(key)
    engine.feed(slot, ids)
    (row,) = engine.run(max_new_tokens, 1.0, stop_ids)
    return row


def test_stop_reasons(model):
    free = one_row(Engine(model, 1), [1, 2], max_new_tokens=8)
    assert (free.stop_reason, len(free.ids), len(free.logprobs)) == ("length", 8, 8)
    first = free.ids.index(free.ids[3])
    stopped = one_row(Engine(model, 1), [1, 2], max_new_tokens=8, stop_ids=frozenset({free.ids[3]}))
    assert (stopped.stop_reason, stopped.ids) == ("stop", free.ids[: first + 1])  # the stop token is among them
    full = one_row(Engine(model, 1, max_len=6), [1, 2], max_new_tokens=8)
    assert (full.stop_reason, full.ids) == ("context", free.ids[:4])
    last = one_row(Engine(model, 1, max_len=10), [1, 2], max_new_tokens=8)
    assert (last.stop_reason, last.ids) == ("length", free.ids)  # both limits at once
    assert one_row(Engine(model, 1), [1, 2], max_new_tokens=1).ids == free.ids[:1]


@pytest.mark.parametrize("fed", [10, 11, 300])
def test_more_than_max_len_gives_a_row_without_ids(model, fed):
    engine = Engine(model, max_rows=2, max_len=10)
    slot, other = engine.open((0, 1)), engine.open((0, 0))
    engine.feed(slot, [1] * fed)
    engine.feed(other, [1, 2])
    rows = {row.slot: row for row in engine.run(5, 1.0, frozenset())}
    assert (rows[slot].stop_reason, rows[slot].ids, rows[slot].logprobs) == ("context", [], [])
    assert rows[other].ids == one_row(Engine(model, 1), [1, 2]).ids
    assert room(engine, slot) == 10 - fed


def test_room_counts_every_token(model):
    engine = Engine(model, max_rows=1, max_len=20)
    row = one_row(engine, [1, 2, 3])
    assert room(engine, row.slot) == 20 - 3 - 5
    engine.feed(row.slot, [1, 1])
    assert room(engine, row.slot) == 10


def test_rows_come_when_finished_and_new_slots_join(model):
    a, b, c = (one_row(Engine(model, 1), [i], 20, key=(0, i)).ids for i in (1, 2, 3))
    last = next(i for i, token in enumerate(b[:10]) if token not in a + c + b[:i])
    engine = Engine(model, max_rows=2)
    slow, quick = (engine.open((0, i)) for i in (1, 2))
    engine.feed(slow, [1]), engine.feed(quick, [2])
    run = engine.run(20, 1.0, frozenset({b[last]}))
    row = next(run)
    assert (row.slot, row.ids) == (quick, b[: last + 1])
    with pytest.raises(RuntimeError, match=f"slot {slow} is being sampled"):
        engine.feed(slow, [1])
    engine.close(quick)
    newcomer = engine.open((0, 3))
    assert newcomer == quick
    engine.feed(newcomer, [3])
    assert [(row.slot, row.ids) for row in run] == [(slow, a), (newcomer, c)]
    assert list(engine.run(20, 1.0, frozenset())) == []


def test_opening_too_many_is_refused_and_closing_frees_a_place():
    engine = Engine(random_model(), max_rows=2)
    slots = [engine.open((0, i)) for i in range(2)]
    assert engine.free == 0
    with pytest.raises(RuntimeError, match="all 2 slots"):
        engine.open((0, 2))
    engine.close(slots[0])
    assert engine.free == 1 and engine.open((0, 2)) == slots[0] and engine.free == 0


def test_a_sequence_of_no_ids_is_refused():
    engine = Engine(random_model(), max_rows=1)
    with pytest.raises(ValueError, match="at least one id"):
        engine.feed(engine.open((0, 0)), [])


def test_a_reused_place_keeps_nothing_of_its_last_sequence(model):
    engine = Engine(model, max_rows=1)
    engine.close(one_row(engine, list(range(90))).slot)
    assert one_row(engine, [1, 2]) == one_row(Engine(model, 1), [1, 2])


def test_the_cache_grows_to_the_blocks_of_max_len():
    """It doubles, from 2 blocks to 4, and then to 5."""
    engine = Engine(random_model(), 1, max_len=320)
    engine.feed(engine.open((0, 0)), [7] * 100)
    (row,) = engine.run(1000, TEMPERATURE, frozenset())
    assert len(row.ids) == 220 and {len(x) for x in (*engine._cache.keys, *engine._cache.values)} == {5}


@pytest.mark.parametrize("graph", [False, True])
def test_a_deleted_engine_frees_its_memory_at_once(graph):
    """The garbage collector does not know how much memory a device has left."""
    engine = Engine(random_model(), max_rows=2, graph=graph)
    one_row(engine, [1, 2, 3])
    assert (engine._ahead is not None) == (graph and hooks("cuda").run_ahead is not nothing_faster)
    held = [weakref.ref(x) for x in (engine, engine._cache.keys[0], *([engine._ahead.steps] if engine._ahead else []))]
    gc.disable()
    try:
        del engine
        assert all(x() is None for x in held)
    finally:
        gc.enable()


# ------------------------------------------------------------------------------------------------------ changed weights


@torch.no_grad()
def test_keys_and_values_of_changed_weights_are_refused():
    model = random_model()
    engine = Engine(model, max_rows=2)
    row = one_row(engine, [1, 2, 3])
    model.model.layers[1].self_attn.k_proj.bias.add_(0.1)
    engine.feed(row.slot, [4])
    with pytest.raises(RuntimeError, match=f"slot {row.slot} holds keys and values of other weights"):
        list(engine.run(5, 1.0, frozenset()))
    with pytest.raises(RuntimeError, match=f"slot {row.slot} is being sampled"):
        engine.open((0, 1), parent=row.slot)
    engine.close(row.slot)
    assert engine.free == 2
    assert one_row(engine, [1, 2, 3]) == one_row(Engine(model, 2), [1, 2, 3])  # a new slot is fine


@pytest.mark.parametrize("computed", [False, True])
@pytest.mark.parametrize("closed", [False, True])
def test_a_child_of_a_parent_with_other_weights_is_a_fresh_slot(closed, computed):
    """The weights change before or after the child is opened."""
    model = random_model()
    engine = Engine(model, max_rows=2)
    row = one_row(engine, list(range(20)))
    engine.feed(row.slot, [4, 5, 6])
    child = None if computed else engine.open((0, 1), parent=row.slot)
    with torch.no_grad():
        model.model.layers[1].self_attn.k_proj.bias.add_(0.1)
    child = engine.open((0, 1), parent=row.slot) if child is None else child
    if closed:
        engine.close(row.slot)
    else:
        engine._slots[row.slot].fed = False  # its own keys and values are stale
    engine._slots[child].turn = -1  # random numbers are counted by turn
    (got,) = engine.run(5, 1.0, frozenset())
    assert (got.ids, got.logprobs) == sampled_alone(model, [*range(20), *row.ids, 4, 5, 6])


COMMON = list(range(80))  # longer than a block of keys


def test_slots_share_the_common_beginning_of_their_prompts(model, computed):
    """Fed at once, and while other slots are sampled; as many tokens as differ are computed, with the same samples."""
    tails = [[1], [2, 3], [2, 9, 9, 9], [4] * 70, []]
    engine, found = Engine(model, 3), {}
    waiting = deque(enumerate(tails))

    def start() -> None:
        while waiting and engine.free:
            i, tail = waiting.popleft()
            engine.feed(engine.open((0, i)), COMMON + tail)

    start()
    for row in engine.run(9, 1.0, frozenset()):
        found[engine._slots[row.slot].key[1]] = row.ids, row.logprobs
        engine.close(row.slot)
        start()
    first = len(COMMON) + len(tails[0]) - 1
    assert sum(computed) <= first + sum(len(tail) for tail in tails[1:])
    for i, tail in enumerate(tails):
        assert found[i] == sampled_alone(model, COMMON + tail, (0, i), 9)


def test_a_fork_of_a_slot_that_shares_a_beginning(model, computed):
    """Its own part of the prompt is computed once for all its forks, and it may be closed before."""
    engine = Engine(model, 6)
    engine.feed(engine.open((0, 0)), COMMON)
    slot = engine.open((0, 1))
    engine.feed(slot, COMMON + [7] * 40)
    forks = [slot]
    for i in (2, 3, 4):
        forks.append(engine.open((0, i), parent=forks[-1]))
    engine.close(slot)
    found = {row.slot: (row.ids, row.logprobs) for row in engine.run(9, 1.0, frozenset())}
    assert sum(computed) == len(COMMON) - 1 + 40
    for i, fork in enumerate(forks[1:], start=2):
        assert found[fork] == sampled_alone(model, COMMON + [7] * 40, (0, i), 9)


@pytest.mark.parametrize("forked", [False, True])
def test_prompts_without_room_are_not_computed_for_others(forked):
    """On CUDA the cache cannot grow beyond max_len."""
    model = random_model()
    engine = Engine(model, 3, max_len=128)
    for i, ids in enumerate((COMMON + [90] * 70, COMMON + [91])):
        engine.feed(engine.open((0, i)), ids)
    if forked:
        engine.open((0, 2), parent=0)
    found = {row.slot: row for row in engine.run(5, 1.0, frozenset())}
    assert len(engine._cache.keys[0]) == 2, "blocks of 64 tokens"
    assert found[0].stop_reason == "context" and not found[0].ids
    assert (found[1].ids, found[1].logprobs) == sampled_alone(model, COMMON + [91])


@pytest.mark.parametrize("forks, passes", [(False, 1), (True, 2)])
def test_copies_do_not_wait_for_each_other_in_a_chain(forks, passes, monkeypatch):
    """Each prompt has more in common with the one before, or is a fork of it; a fork waits for its group's prompt."""
    engine, compute, calls = Engine(random_model(), 8), Engine._compute, []
    monkeypatch.setattr(Engine, "_compute", lambda self, slots: calls.append(slots) or compute(self, slots))
    for i in range(6):
        if forks and i > 1:
            engine.open((0, i), parent=i - 1)
        else:
            engine.feed(engine.open((0, i)), COMMON[: 60 + 2 * i] + [90 + i] * 9)
    list(engine.run(1, 1.0, frozenset()))
    assert len(calls) == passes + 1, "passes of copies, then the tokens of each slot"


@pytest.mark.parametrize("change", ["weights", "one token less"])
def test_no_beginning_is_shared_where_it_does_not_hold(change):
    """Keys and values of other weights, or fewer common tokens than pay."""
    model = random_model()
    engine, count = Engine(model, 2), cache_slots.LEAST - (change != "weights")
    row = one_row(engine, COMMON[:count] + [90, 91])
    if change == "weights":
        with torch.no_grad():
            model.model.layers[1].self_attn.k_proj.bias.add_(0.1)
    slot = engine.open((0, 1))
    engine.feed(slot, COMMON[:count] + [80])
    assert engine._slots[slot].parent is None and row.ids
    got = next(engine.run(5, 1.0, frozenset()))
    assert (got.ids, got.logprobs) == sampled_alone(model, COMMON[:count] + [80])


def test_a_child_of_a_pending_child_samples_like_a_fresh_slot():
    """Between the forks the parent or the child is fed, or the parent is closed."""
    model = random_model()
    engine, fresh = Engine(model, max_rows=4), Engine(model, max_rows=4)
    first = engine.open((0, 0))
    engine.feed(first, [1, 2, 3, 4])
    second = engine.open((0, 1), parent=first)
    engine.feed(second, [5, 6])
    third = engine.open((0, 2), parent=second)
    engine.feed(first, [7, 8])
    engine.close(first)
    for slot, key, ids in ((second, (0, 1), [1, 2, 3, 4, 5, 6]), (third, (0, 2), [1, 2, 3, 4, 5, 6])):
        assert room(engine, slot) == engine.max_len - len(ids)
        fresh.feed(fresh.open(key), ids)
    found, expected = (sorted((r.ids, r.logprobs) for r in e.run(9, 1.0, frozenset())) for e in (engine, fresh))
    assert found == expected


def test_given_version_function_decides_if_caches_are_stale():
    now = ["a"]
    engine = Engine(random_model(), max_rows=1, version=lambda: now[0])
    row = one_row(engine, [1, 2])
    engine.feed(row.slot, [])
    now[0] = "b"
    with pytest.raises(RuntimeError, match="other weights"):
        next(engine.run(5, 1.0, frozenset()))
    now[0] = "a"
    assert len(next(engine.run(5, 1.0, frozenset())).ids) == 5


@pytest.mark.parametrize("closed", [False, True])
def test_moving_slots_to_the_front_of_the_cache_changes_nothing(model, closed):
    """Six of eight slots are idle, open or closed, while the last two move to the front and are sampled."""
    engine, fed = Engine(model, max_rows=8), {}
    for episode in range(8):
        slot = engine.open((7, episode))
        fed[slot] = prompt(episode) + [1] * 60
        engine.feed(slot, fed[slot])
    slots = list(fed)
    for row in engine.run(5, 1.0, frozenset()):
        fed[row.slot] += row.ids
        if closed and row.slot in slots[:6]:
            engine.close(row.slot)
    for wave in [slots[6:]] if closed else [slots[6:], slots[:1], slots[:6]]:
        for slot in wave:
            engine.feed(slot, [5, 6])
            fed[slot] += [5, 6]
        for row in engine.run(20, 1.0, frozenset()):
            state = engine._slots[row.slot]
            alone = sampled_alone(model, fed[row.slot], state.key, 20, turn=state.turn)
            assert alone == (row.ids, row.logprobs)
            fed[row.slot] += row.ids
        places = [state.row for state in engine._slots.values()]
        assert len(set(places)) == len(places)
        assert {engine._slots[slot].row for slot in slots[6:]} != {6, 7}, "they moved"


# ------------------------------------------------------------------------------------------------------ random numbers


def uniforms(counters):
    return unit(fold_all(counters))


def test_uniforms_are_a_function_of_their_counters():
    counters = [(7, e, t, n) for e in range(5) for t in range(4) for n in range(6)]
    together = uniforms(counters)
    assert together.dtype == torch.float64
    assert torch.equal(together, torch.cat([uniforms([c]) for c in counters]))
    assert torch.equal(together.flip(0), uniforms(counters[::-1]))


def test_uniforms_match_splitmix64():
    """Computed in Python integers; 0xE220A8397B1DCDAF is the published first output for the seed 0."""

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    assert mix(0) == 0xE220A8397B1DCDAF
    draw, edges = random.Random(0), [(0, 0, 0, 0), (1, 2, 3, 4), (2**40, 10**6, 50, 4095), (-1, 0, 0, 7)]
    edges += itertools.product((0, -1, 2**63 - 1, -(2**63)), repeat=4)
    for counter in [*edges, *(tuple(draw.randrange(-(2**63), 2**63) for _ in range(4)) for _ in range(500))]:
        state = 0
        for number in counter:
            state = mix(state ^ number % 2**64)
        assert uniforms([counter]).item() == (state >> 11) / 2**53


def test_uniforms_differ_in_every_coordinate():
    grid = [(a, b, c, d) for a in range(18) for b in range(18) for c in range(18) for d in range(18)]
    assert len(set(uniforms(grid).tolist())) == len(grid)
    large = [(2**40 + i, 2**31 - i, i, 2**20 + i) for i in range(1000)] + [(-1, 0, 0, 0)]
    assert len(set(uniforms(large).tolist())) == len(large)


@pytest.mark.parametrize("coordinate", range(4))
def test_uniforms_are_uniform_and_uncorrelated(coordinate):
    """100,000 draws: mean, variance, lag correlations and chi-square over 100 bins within four standard errors."""
    n = 100_000
    u = uniforms([tuple(i if k == coordinate else 5 for k in range(4)) for i in range(n)])
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 1 / 2) < 4 * (1 / 12 / n) ** 0.5
    assert abs(u.var() - 1 / 12) < 4 * (1 / 180 / n) ** 0.5
    for lag in (1, 2, 3, 16, 256):
        assert abs(torch.corrcoef(torch.stack((u[:-lag], u[lag:])))[0, 1]) < 4 * n**-0.5, lag
    counts = torch.histc(u, 100, 0, 1)
    assert ((counts - n / 100) ** 2 / (n / 100)).sum() < 99 + 4 * (2 * 99) ** 0.5


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_sampled_frequencies_are_the_probabilities(temperature):
    """Chi-square with 10 degrees of freedom below its 99.9 % point, 29.59."""
    n, g = 50_000, torch.Generator().manual_seed(0)
    weight_VD, hidden_D = torch.randn(11, 4, generator=g), torch.randn(4, generator=g)
    probabilities = (weight_VD @ hidden_D / temperature).double().softmax(-1)
    u = uniforms([(3, i, 0, 0) for i in range(n)])
    ids_N, logprobs_N = sample(hidden_D.expand(n, 4), weight_VD, temperature, u)
    counts = torch.bincount(ids_N, minlength=11)
    assert ((counts - n * probabilities) ** 2 / (n * probabilities)).sum() < 29.59
    torch.testing.assert_close(logprobs_N.double(), probabilities.log()[ids_N], atol=1e-5, rtol=1e-5)


def test_sampling_inverts_the_cumulative_distribution():
    """Probabilities 0, 0.1, 0.6, 0.3, 0: a token of probability 0 is never taken, not even at the ends of [0, 1)."""
    weight_VD = torch.tensor([0.0, 0.1, 0.6, 0.3, 0.0]).log().clamp(min=-1e4)[:, None]
    for u, token in ((0.0, 1), (0.09999, 1), (0.10001, 2), (0.69999, 2), (0.70001, 3), (1 - 2**-53, 3)):
        ids_B, logprobs_B = sample(torch.ones(1, 1), weight_VD, 1.0, torch.tensor([u], dtype=torch.float64))
        assert ids_B.tolist() == [token]
        torch.testing.assert_close(logprobs_B, weight_VD[token])
