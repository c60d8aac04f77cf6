"""The stacked step has the decoder's bits for every family, adapter and number of rows."""

import pytest
import torch
import torch.nn.functional as F
from conftest import random_model, randomize
from make_fixtures import MULTIPLIERS, YARN

import lora
from models import load_model
from models.cache import KVCache
from models.cpu import packed, products
from models.cpu import step as decode
from models.cpu.onednn import multiplies_float32
from models.engine import Engine
from models.hooks import hooks
from models.linear import ROW_MULTIPLE
from models.logprob import head_logits, token_logprobs
from models.stacked import random_factors

EACH_TRIAL = True

SLIDES = {"use_sliding_window": True, "sliding_window": 70, "layer_types": ["sliding_attention", "full_attention"]}
NESTED = {"sliding_attention": YARN, "full_attention": {"rope_theta": 1e5}}
WIDE = {"intermediate_size": 96}  # whole vectors, so that a slice and a copy give equal bits


def adapted(family: str, **how):
    model = random_model(family, **WIDE)
    lora.inject(model, **{"r": 16, "alpha": 48, **how})
    return randomize(model).eval()


MODELS = {
    "qwen2, biases": lambda: random_model("qwen2", **WIDE),
    "qwen3, norms of q and k": lambda: random_model("qwen3", **WIDE),
    "mistral, window of 8": lambda: random_model("mistral", sliding_window=8, **WIDE),
    "qwen3, window of 70 and yarn in one layer": lambda: random_model(
        "qwen3", **SLIDES, rope_parameters=NESTED, **WIDE
    ),
    "smollm3, a layer without rotary embedding": lambda: random_model("smollm3", no_rope_layers=[1, 0], **WIDE),
    "granite, multipliers": lambda: random_model("granite", **MULTIPLIERS, **WIDE),
    "phi3 with adapters": lambda: adapted("phi3"),
    "llama, as many key heads": lambda: random_model("llama", num_key_value_heads=4, **WIDE),
    "qwen2 with adapters": lambda: adapted("qwen2"),
    "qwen3 with adapters": lambda: adapted("qwen3", r=32),
    "adapters on some": lambda: adapted("qwen3", targets=["q_proj", "v_proj", "up_proj", "down_proj"]),
}


ROWS = [(1, 0), (1, 3), (16, 0), (16, 3), (23, 0)]


def sizes_and_models():
    """Yield the parameters (rows, more, name). Quick tests take two sizes of each model, all of them in turn."""
    for i, name in enumerate(MODELS):
        for j, size in enumerate(ROWS):
            yield pytest.param(*size, name, marks=[pytest.mark.full] * ((j - i) % len(ROWS) not in (0, 2)))


@pytest.mark.parametrize(("rows", "more", "name"), sizes_and_models())
@torch.no_grad()
def test_a_step_is_bitwise_the_decoder(rows, more, name):
    """Over the whole cache, and over its first rows, whose keys have other strides."""
    model, generator = MODELS[name](), torch.Generator().manual_seed(rows)
    step, caches = decode.CPUStep(model), [KVCache(model, rows + more) for _ in range(2)]
    starts_B = torch.randint(0, 150, (rows,), generator=generator)  # of three blocks of keys
    longest = int(starts_B.max()) + 1
    ids_BT = torch.randint(0, 97, (rows, longest), generator=generator)
    for cache in caches:
        positions_BT = torch.arange(longest).expand(rows, longest)
        model(ids_BT, positions_BT, cache=cache.view(torch.arange(rows), torch.zeros(rows, dtype=torch.long), longest))
    for turn in range(3):
        ids_B, positions_B = ids_BT[:, turn % longest], starts_B + turn
        views = [cache.view(slice(0, rows), positions_B, 1) for cache in caches]
        expected = model(ids_B[:, None], positions_B[:, None], cache=views[0])[:, 0]
        assert torch.equal(step(ids_B, positions_B, views[1]), expected)
    assert decode.exact_step(model) is not None
    for a, b in zip((*caches[0].keys, *caches[0].values), (*caches[1].keys, *caches[1].values), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_short_prefill_is_bitwise_the_decoder(name):
    """A prompt, an observation and a single token, whose rows are in no order; other rows of the cache stay."""
    model, counts_B, starts_B = MODELS[name](), torch.tensor([9, 1, 80]), torch.tensor([60, 0, 130])
    rows_B, generator, N = torch.tensor([3, 0, 4]), torch.Generator().manual_seed(0), int(counts_B.sum())
    ids_N, segments_N = torch.randint(97, (N,), generator=generator), torch.arange(3).repeat_interleave(counts_B)
    positions_N = torch.cat([torch.arange(start, start + n) for start, n in zip(starts_B, counts_B, strict=True)])
    before, *caches = [decode.filled_cache(model, 6, 4) for _ in range(3)]
    views = [cache.view(rows_B, starts_B, int(counts_B.max())) for cache in caches]
    model(ids_N[None], positions_N[None], segments_N[None], views[0], wanted=rows_B[:0])
    assert decode.exact_step(model).prefill(ids_N, positions_N, views[1], counts_B)
    ends = dict(zip(rows_B.tolist(), (starts_B + counts_B).tolist(), strict=True))
    for row in range(6):
        kept = [by_token(cache, row) for cache in (before, *caches)]
        assert torch.equal(kept[2][: ends.get(row, 0)], kept[1][: ends.get(row, 0)])
        assert torch.equal(kept[2][ends.get(row, 0) :], kept[0][ends.get(row, 0) :]), "padding is not written"


def by_token(cache: KVCache, row: int) -> torch.Tensor:
    """Return what the cache holds of each token of a row, of all layers [tokens, numbers]."""
    heads = slice(row * cache.heads, (row + 1) * cache.heads)
    tensors = [*(keys.mT for keys in cache.keys), *cache.values]  # [U, Z, L, E]
    return torch.cat([x[:, heads].transpose(1, 2).flatten(0, 1).flatten(1) for x in tensors], 1)


@torch.no_grad()
def test_prefills_are_left_to_the_decoder_where_bits_differ(monkeypatch):
    """Or where they are long; the step decodes nevertheless."""
    model = adapted("qwen3")
    positions_N, counts_B = torch.arange(decode.SHORT + 1), torch.tensor([decode.SHORT + 1])
    view = KVCache(model, 1).view(torch.tensor([0]), torch.tensor([0]), decode.SHORT + 1)
    assert not decode.exact_step(model).prefill(positions_N % 97, positions_N, view, counts_B)
    right = decode.attend
    monkeypatch.setattr(decode, "attend", lambda *args: right(*args) * (1 + 2**-23))
    step = decode.exact_step(adapted("qwen3"))
    assert not step.prefill(positions_N[:3], positions_N[:3], view, torch.tensor([3]))
    assert not any(x.any() for x in view.cache.keys + view.cache.values), "nothing is written"


@pytest.mark.parametrize("name", [name for name in MODELS if "window" in name])
@pytest.mark.parametrize("stacked", [True, False])
@torch.no_grad()
def test_windows_sample_the_logprobs_of_training(name, stacked, monkeypatch):
    """Prompts of all lengths, two turns: recorded log-probabilities equal those of all episodes packed."""
    if not stacked:
        monkeypatch.setattr(hooks("cpu"), "decode_step", lambda model: None)
    model, generator, episodes = MODELS[name](), torch.Generator().manual_seed(0), []
    engine = Engine(model, 4, 300)
    for i, n in enumerate((1, 60, 100)):
        ids = torch.randint(97, (n,), generator=generator).tolist()
        slot = engine.open((0, i))
        engine.feed(slot, ids)
        episodes.append((ids, []))
    for _ in range(2):
        for row in list(engine.run(30, 1.0, frozenset())):
            ids, logprobs = episodes[row.slot]
            logprobs.extend(zip(range(len(ids), len(ids) + 30), row.logprobs, strict=True))
            ids.extend([*row.ids, 5, 6])
            engine.feed(row.slot, [5, 6])
    packed_BT = torch.tensor([[token for ids, _ in episodes for token in ids]])
    segments_BT = torch.tensor([[i for i, (ids, _) in enumerate(episodes) for _ in ids]])
    hidden_ND = model(packed_BT, segments_BT=segments_BT)[0]
    start = 0
    for ids, logprobs in episodes:
        places = torch.tensor([start + place for place, _ in logprobs])
        expected, _ = token_logprobs(hidden_ND[places - 1], model.lm_head.weight, packed_BT[0, places])
        assert len(places) == 60 and torch.equal(torch.tensor([p for _, p in logprobs]), expected)
        start += len(ids)


@torch.no_grad()
def test_the_step_is_tried_again_when_settings_change(monkeypatch):
    model, tried, before = adapted("qwen3"), [], torch.get_num_threads()
    monkeypatch.setattr(decode, "_agrees", lambda *_: tried.append(1) or True)
    try:
        for number, library in ((1, "plain"), (1, "plain"), (2, "plain"), (2, "onednn"), (1, "plain")):
            torch.set_num_threads(number)
            monkeypatch.setattr(packed, "library", library)
            decode.exact_step(model)
    finally:
        torch.set_num_threads(before)
    assert len(tried) == 3
    lora.inject(model, 5)
    decode.exact_step(model)
    assert len(tried) == 4, "another rank"


@torch.no_grad()
def test_a_step_that_differs_in_a_bit_is_not_used(monkeypatch):
    model = adapted("qwen3")
    assert decode.exact_step(model) is not None
    monkeypatch.setattr(decode, "rotate", lambda x, cos, sin: x * (1 + 2**-23))
    assert decode.exact_step(model) is not None, "it was tried before"
    assert decode.exact_step(adapted("qwen3")) is None


@torch.no_grad()
@pytest.mark.parametrize("windows, count", [([], 2), ([0], 2), ([3], 4), ([1, 5], 2), ([5], 6)])
def test_the_trial_takes_the_first_layers_of_every_kind(windows, count, monkeypatch):
    """Six layers, of which some have a window."""
    kinds = ["sliding_attention" if i in windows else "full_attention" for i in range(6)]
    options = {"use_sliding_window": True, "sliding_window": 70, "layer_types": kinds} if windows else {}
    model, tried, agrees = random_model(num_hidden_layers=6, **options), [], decode._agrees
    monkeypatch.setattr(decode, "_agrees", lambda step, short: tried.append((step, short)) or agrees(step, short))
    assert len(decode.exact_step(model).layers) == 6 and len(model.model.layers) == model.config.num_hidden_layers == 6
    step, short = tried[0]
    assert len(step.layers) == len(short.model.layers) == len(short.config.windows) == count
    assert [p.data_ptr() for p in short.parameters()] == [
        p.data_ptr() for name, p in model.named_parameters() if not name.startswith(tuple(after(count)))
    ]


def after(count: int) -> list[str]:
    """Return the beginnings of the names of parameters in layers from `count` on."""
    return [f"model.layers.{i}." for i in range(count, 6)]


def decoded(model, rows: int, places: int):
    """Return (ids_B, positions_B, a view of a random cache, the decoder's hidden states from its like)."""
    caches = [decode.filled_cache(model, places, 3) for _ in range(2)]
    ids_B, positions_B = torch.arange(rows), torch.arange(rows) * 7 % 140
    theirs, ours = (cache.view(slice(0, rows), positions_B, 1) for cache in caches)
    return ids_B, positions_B, ours, model(ids_B[:, None], positions_B[:, None], cache=theirs)[:, 0]


@pytest.mark.all_only
@torch.no_grad()
def test_few_rows_are_padded_to_four_where_that_is_exact(monkeypatch):
    """The embedded model's step gives the decoder's bits for 1 to 17 rows; where four rows differ it takes sixteen."""
    threads, model = torch.get_num_threads(), load_model("tiny")
    lora.inject(model, 16)
    torch.set_num_threads(1)
    with random_factors(model):
        for rows in range(1, 18):
            *inputs, expected = decoded(model, rows, 20)
            assert torch.equal(decode.exact_step(model)(*inputs), expected), rows
    tried = []
    monkeypatch.setattr(decode, "_agrees", lambda step, _: tried.append(step.row_multiple) or step.row_multiple == 16)
    assert decode.exact_step(load_model("tiny")).row_multiple == 16 and tried == [4, 16]
    assert decode.exact_step(adapted("qwen3")).row_multiple == 16 and tried == [4, 16, 16], "too narrow for four rows"
    torch.set_num_threads(2)
    assert decode.exact_step(load_model("tiny")).row_multiple == 16 and tried == [4, 16, 16, 16], "threads share rows"
    torch.set_num_threads(threads)


@torch.no_grad()
@pytest.mark.parametrize("alike", [True, False])
def test_adapters_apart_are_multiplied_by_a_copy_where_it_gives_the_same_bits(alike, monkeypatch):
    packed.use("onednn")
    if not multiplies_float32():
        pytest.skip("oneDNN multiplies no float32 here")
    monkeypatch.setattr(products, "copy_multiplies_alike", lambda *_: alike)
    model = load_model("tiny")
    lora.inject(model, 16)
    with random_factors(model):
        for rows in (1, 5, 40):
            *inputs, expected = decoded(model, rows, rows)
            step = decode.CPUStep(model, "none")
            assert all((layer.qkv.packed_A is not None) == alike for layer in step.layers)
            assert torch.equal(step(*inputs), expected)


def test_a_copy_that_multiplies_otherwise_is_found(monkeypatch):
    packed.use("onednn")
    multiply = packed.multiply
    monkeypatch.setattr(packed, "multiply", lambda x, *rest: multiply(x, *rest) * (1 + 1e-6 * (len(x) == 7)))
    assert not products.copy_multiplies_alike.__wrapped__(48, 192, 1)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 7, 19])
def test_a_step_and_the_head_multiply_no_padding_by_copies(rows, monkeypatch):
    """With one row this saves a third of the time or more where weights come from memory, and it changes no bit."""
    packed.use("onednn")
    if packed.library_of(torch.float32, "onednn") is None:
        pytest.skip("oneDNN's copies are not usable here")
    model, multiply, taken = load_model("tiny"), packed.multiply, []
    lora.inject(model, 16)
    with random_factors(model):
        *inputs, expected = decoded(model, rows, rows)
        padded = head_logits(F.pad(expected, (0, 0, 0, 32 - rows)), model.lm_head.weight, 1.0)
        head_logits(expected, model.lm_head.weight, 1.0)  # its shape is tried, here and by the next line
        step = decode.exact_step(model)
        monkeypatch.setattr(packed, "multiply", lambda x, w, *b: taken.append((len(x), w.shape)) or multiply(x, w, *b))
        hidden_BD = step(*inputs)
        assert torch.equal(hidden_BD, expected)
        assert torch.equal(head_logits(hidden_BD, model.lm_head.weight, 1.0), padded[:rows])
    assert len(taken) == 4 * model.config.num_hidden_layers + 1
    multiples = [step.row_multiple] * (len(taken) - 1) + [ROW_MULTIPLE]  # the head's is the last
    for (count, shape), multiple in zip(taken, multiples, strict=True):
        alone = packed.independent_rows("onednn", *shape, torch.get_num_threads())
        assert count == (rows if alone else rows + -rows % multiple)


@torch.no_grad()
def test_stacked_weights_lie_by_columns_where_products_are_plain(monkeypatch):
    """MKL is faster with them; other tests compare the step's bits."""
    monkeypatch.setattr(packed, "library", "plain")
    by_columns, by_rows = decode.CPUStep(adapted("qwen3")), decode.CPUStep(adapted("qwen3"), "rows")
    for step, stride in ((by_columns, 0), (by_rows, 1)):
        stacks = [stack.weight for layer in step.layers for stack in (layer.qkv, layer.out, layer.gate_up, layer.down)]
        assert {weight.stride(stride) for weight in stacks} == {1}


@torch.no_grad()
@pytest.mark.parametrize("small", [True, False])
def test_weights_are_not_stacked_where_a_stack_has_other_bits(small, monkeypatch):
    """Nor are those of a large model: it takes the copies that training has."""
    tried, threads = [], torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.setattr(decode, "SMALL", 10**9 if small else 0)
    monkeypatch.setattr(decode, "_agrees", lambda step, _: tried.append(step.copies) or step.copies == "none")
    step = decode.exact_step(adapted("qwen3"))
    torch.set_num_threads(threads)
    assert step.copies == "none" and tried == (["columns", "rows", "none"] if small else ["none"])


def test_layers_of_a_stack_may_have_scales_of_their_own():
    model = adapted("qwen2")
    model.model.layers[1].mlp.up_proj.adapters["default"].scale = 0.3
    assert decode.exact_step(model) is not None


@pytest.mark.parametrize("name", ["qwen2, biases", "qwen3 with adapters", "adapters on some"])
def test_a_large_model_is_multiplied_from_its_own_weights(name, monkeypatch):
    """Where products are plain, and where it trains: no weight is copied, and the bits are the decoder's."""
    monkeypatch.setattr(decode, "SMALL", 1000)
    monkeypatch.setattr(packed, "library", "plain")
    model = MODELS[name]()
    step, own = decode.exact_step(model), {p.data_ptr() for p in model.parameters()}
    for layer in step.layers:
        for part in (layer.qkv, layer.out, layer.gate_up, layer.down):
            assert part.packed is None and part.weight is None and {w.data_ptr() for w in part.own} <= own


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("library", ["onednn", "mkl", "plain"])
def test_large_model_has_a_step_that_stacks_nothing(frozen, library, monkeypatch):
    monkeypatch.setattr(decode, "SMALL", 1000)
    monkeypatch.setattr(packed, "library", library)
    monkeypatch.setattr(decode, "_agrees", lambda *_: True)
    model = adapted("qwen2").requires_grad_(not frozen)
    assert all(layer.out.weight is None for layer in decode.exact_step(model).layers)


def test_a_model_of_many_weights_has_no_step_beyond_the_budget(monkeypatch):
    """Not even if its first layers would fit."""
    monkeypatch.setattr(decode, "SMALL", 1000)
    model = adapted("qwen2")
    room = 4 * model.model.layers[0].self_attn.q_proj.base_layer.weight.numel() * 4
    kept = packed.bytes_of_copies()
    monkeypatch.setattr(packed, "budget", lambda: kept + room)
    assert decode.exact_step(model) is None


def test_sixteen_bits_are_not_stacked():
    assert decode.exact_step(adapted("qwen2").bfloat16()) is None


@torch.no_grad()
def test_the_engine_stacks_anew_when_the_weights_change():
    model = adapted("qwen3")
    engine = Engine(model, 4, 64, lora.adapter_version(model))

    def sampled(engine):
        slot = engine.open((0, 1))
        engine.feed(slot, [5, 6, 7])
        (row,) = engine.run(12, 1.0, frozenset())
        engine.close(slot)
        return row.logprobs

    before = sampled(engine)
    with lora.adapters_off(model):
        base = sampled(engine)
    model.model.layers[0].self_attn.v_proj.adapters["default"].B.mul_(3)
    after = sampled(engine)
    assert before != base and before != after and after != base
    assert after == sampled(Engine(model, 4, 64))
